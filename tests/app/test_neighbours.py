"""Whom an open server lets in, told by the headers alone."""

from __future__ import annotations

import pytest

from app.errors import ForbiddenError
from app.neighbours import is_loopback, refuse_strangers


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "db", "", "localhost.example"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:8765"},
        {"host": "localhost"},
        {"host": "[::1]:8765"},
        {"host": "localhost:9000", "origin": "http://localhost:9000"},
    ],
)
def test_neighbours_pass(headers: dict[str, str]) -> None:
    refuse_strangers(headers)


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({}, "Host"),
        ({"host": ""}, "Host"),
        ({"host": "[::1"}, "Host"),
        ({"host": "rebound.example:8765"}, "Host"),
        ({"host": "localhost:8765", "origin": "https://evil.example"}, "Origin"),
        ({"host": "localhost:8765", "origin": "http://localhost:3000"}, "Origin"),
        ({"host": "localhost:8765", "origin": "null"}, "Origin"),
        ({"host": "localhost:8765", "origin": "http://[x"}, "Origin"),
    ],
)
def test_strangers_do_not(headers: dict[str, str], field: str) -> None:
    with pytest.raises(ForbiddenError, match="make a token first") as caught:
        refuse_strangers(headers)
    assert caught.value.field == field
