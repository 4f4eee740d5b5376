"""Who may use a server that asks for no token: programs and pages of its own machine.

A web page from elsewhere can make its visitor's browser call a server on loopback. The browser says so: by
the page's ``Origin``, or by the name that was made to lead to loopback in ``Host``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from app.errors import ForbiddenError

__all__ = ["is_loopback", "refuse_strangers"]

FIX = "open the server as http://127.0.0.1:PORT, or make a token first: nightshift token create"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_strangers(headers: Mapping[str, str]) -> None:
    """Let a request pass that came from this machine, as far as its headers tell.

    Args:
        headers: of the request, names in lower case or compared without case.

    Raises:
        ForbiddenError: a browser sent it for a page of another server, or by another name.
    """
    host = headers.get("host", "")
    if not is_loopback(_hostname(f"//{host}")):
        raise ForbiddenError(f"this server is not {host!r}", field="Host", value=host, fix=FIX)
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise ForbiddenError(f"pages of {origin} may not use it", field="Origin", value=origin, fix=FIX)


def _hostname(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:  # brackets that are no IPv6 address
        return ""
