"""GPUs, on a machine that has none."""

from __future__ import annotations

import pytest

from tuner.errors import FieldError
from workers.gpu import driver_version, memory_used_bytes, owned_gpus

pytestmark = pytest.mark.skipif(driver_version() is not None, reason="this machine has an NVIDIA driver")


def test_without_a_driver_a_worker_owns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert owned_gpus(None) == ()
    assert memory_used_bytes(()) is None


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_not_looked_for(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert owned_gpus(None) == ()


def test_one_that_is_named_must_exist() -> None:
    with pytest.raises(FieldError, match=r"NIGHTSHIFT_GPUS: no NVIDIA driver answers \(got '0'\)"):
        owned_gpus(("0",))
