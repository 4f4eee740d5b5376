"""``nightshift token …``: who may speak to the control plane."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from app.cli.options import JsonOption, ServerOption, TokenOption, show_help
from app.cli.output import print_json, print_table, when
from app.cli.plane import connected
from tuner.errors import FieldError

__all__ = ["app", "lifetime_s"]

app = typer.Typer(help="Make, list and revoke tokens.", callback=show_help, invoke_without_command=True)

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Scope(StrEnum):
    """What a token allows; each scope but ``worker`` includes the ones before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    WORKER = "worker"
    ADMIN = "admin"


def lifetime_s(text: str) -> float | None:
    """Seconds from ``30d``, ``12h``, ``90m``, ``60s``; ``never`` is ``None``.

    Raises:
        FieldError: it is none of these.
    """
    if text == "never":
        return None
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None or int(match[1]) == 0:
        raise FieldError(
            "--expires", text, problem="is no time span", fix="write e.g. 30d, 12h, 90m or never"
        )
    return float(match[1]) * UNITS[match[2]]


@app.command()
def create(
    name: Annotated[str, typer.Option(help="What the token is for; unique.")],
    scope: Annotated[Scope, typer.Option(help="What it allows.")] = Scope.WORKER,
    expires: Annotated[str, typer.Option(help="Lifetime, e.g. 30d, 12h, never.")] = "90d",
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it; it is shown this once.

    \b
    Examples:
      nightshift token create --name gpu-hosts --scope worker
      nightshift token create --name me --scope admin --expires 12h > token
    """
    with connected(server, token) as client:
        made = client.create_token(name, scope.value, lifetime_s(expires))
    if as_json:
        print_json(made)
    else:
        typer.echo(made.token)


@app.command("list")
def list_tokens(server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False) -> None:
    """List the tokens, without their secrets.

    \b
    Example:
      nightshift token list
    """
    with connected(server, token) as client:
        tokens = client.tokens()
    if as_json:
        print_json(tokens)
        return
    rows = [(t.name, t.scope, when(t.created_at), when(t.expires_at), when(t.revoked_at)) for t in tokens]
    print_table(("name", "scope", "created", "expires", "revoked"), rows, empty="There is no token yet.")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a token.")],
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Make a token useless from now on.

    \b
    Example:
      nightshift token revoke gpu-hosts
    """
    with connected(server, token) as client:
        client.revoke_token(name)
    typer.echo(f"{name} is revoked")
