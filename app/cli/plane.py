"""A control plane for one command: in this process, on the local database."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from app.cli.options import DEFAULT_PORT, read_token
from app.client import ControlPlaneClient
from app.main import ServerThread
from app.settings import Settings

__all__ = ["connected", "local_plane"]


@contextmanager
def connected(server: str | None, token: str | None) -> Iterator[ControlPlaneClient]:
    """A client of the server that was named, else of a control plane in this process.

    Raises:
        ServerUnreachableError: nothing answers at the server's address.
        FieldError: the token's file cannot be read.
        DatabaseError: the local database cannot be used.
    """
    if server is not None:
        with ControlPlaneClient(server, read_token(token)) as client:
            yield client
        return
    with local_plane(Settings(), 0) as client:
        yield client


@contextmanager
def local_plane(settings: Settings, port: int | None) -> Iterator[ControlPlaneClient]:
    """A control plane in this process while the block runs.

    Args:
        settings: its database and home.
        port: to listen on; ``None`` takes the usual one, or a free one when that is taken.

    Raises:
        FieldError: the port is in use.
        DatabaseError: the database cannot be used.
    """
    chosen = _usual_or_free() if port is None else port
    with (
        ServerThread(settings, port=chosen) as server,
        ControlPlaneClient(server.url, server.token) as client,
    ):
        yield client


def _usual_or_free() -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return 0
    return DEFAULT_PORT
