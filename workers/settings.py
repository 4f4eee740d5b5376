"""The worker's settings: read once from the environment, frozen, passed down."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tuner.errors import FieldError

__all__ = ["WorkerSettings"]

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")


class WorkerSettings(BaseSettings):
    """Everything that a worker is told, each from ``NIGHTSHIFT_<FIELD>``.

    Attributes:
        server: address of the control plane.
        token: proves to the control plane who asks; none on loopback while the server has no tokens.
        token_file: file that holds the token, instead of ``token``.
        vllm_python: interpreter of the environment that vLLM is installed in.
        worker_name: unique and stable across restarts; by default the host's name and its GPUs.
        home: folder for locks and engine logs.
        gpus: indices of the GPUs this worker owns; empty is a CPU worker; ``None`` takes
            ``CUDA_VISIBLE_DEVICES``, else all GPUs.
        exit_with_parent: drain and exit when the process that started this one ends.
        claim_wait_s: how long one claim may wait at the server.
        progress_interval_s: longest time between two heartbeats while an attempt runs, for people who watch.
        name_wait_s: how long a worker waits at its start for one of the same name that drains.
        stop_grace_s: time an engine gets to end by itself before it is killed.
        stall_s: time without any token after which an engine under load is given up.
        keep_attempts: number of attempt folders (engine logs) kept.
        max_attempts: exit after so many attempts; ``None`` for no limit.
    """

    model_config = SettingsConfigDict(env_prefix="NIGHTSHIFT_", frozen=True, extra="ignore")

    server: str = "http://127.0.0.1:8765"
    token: SecretStr | None = None
    token_file: Path | None = None
    vllm_python: Path = Path(sys.executable)
    worker_name: str = ""
    home: Path = Field(default_factory=lambda: Path.home() / ".nightshift")
    gpus: Annotated[tuple[str, ...] | None, NoDecode] = None
    exit_with_parent: bool = False
    claim_wait_s: float = Field(default=20.0, ge=0.0, le=60.0)
    progress_interval_s: float = Field(default=2.0, gt=0.0)
    name_wait_s: float = Field(default=15.0, ge=0.0)
    stop_grace_s: float = Field(default=10.0, ge=0.0)
    stall_s: float = Field(default=120.0, gt=0.0)
    keep_attempts: int = Field(default=50, ge=1)
    max_attempts: int | None = Field(default=None, ge=1)

    @field_validator("gpus", mode="before")
    @classmethod
    def _indices(cls, value: object) -> object:
        """``0,1`` names GPUs; ``none`` and the empty text are a CPU worker; ``auto`` is the default."""
        if not isinstance(value, str):
            return value
        text = value.strip().lower()
        if text == "auto":
            return None
        return () if text in {"", "none"} else tuple(part.strip() for part in value.split(","))

    @field_validator("worker_name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if name and not _NAME.match(name):
            raise ValueError("a name is letters, digits, '.', '_' and '-', at most 200, e.g. host-gpu0")
        return name

    def name_for(self, gpus: tuple[str, ...]) -> str:
        """The name given, else one made of the host's name and the GPUs."""
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "host"
        return self.worker_name or (f"{host}-gpu{'-'.join(gpus)}" if gpus else f"{host}-cpu")

    def bearer(self) -> str | None:
        """The token, from the setting or from its file.

        Raises:
            FieldError: the file cannot be read or is empty.
        """
        if self.token is not None:
            return self.token.get_secret_value()
        if self.token_file is None:
            return None
        fix = "write the token into it, or set NIGHTSHIFT_TOKEN"
        try:
            text = self.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise FieldError(
                "NIGHTSHIFT_TOKEN_FILE", str(self.token_file), problem=problem, fix=fix
            ) from error
        if not text:
            raise FieldError("NIGHTSHIFT_TOKEN_FILE", str(self.token_file), problem="is empty", fix=fix)
        return text
