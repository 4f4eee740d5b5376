"""The control plane's errors; what each means over HTTP is one table in ``app.api.errors``.

AppError
├── NotFoundError           nothing has that name or number
├── ConflictError           it exists already, as something else
├── StateError              the thing is in a state that does not allow this
├── StaleLeaseError         the lease is not the caller's any more; nothing was changed
├── UnauthorizedError       no token, or one that is unknown, expired or revoked
├── ForbiddenError          the token's scope does not allow this
└── DatabaseError
    ├── DatabaseUnreachableError
    └── DatabaseTooNewError
"""

from __future__ import annotations

__all__ = [
    "AppError",
    "ConflictError",
    "DatabaseError",
    "DatabaseTooNewError",
    "DatabaseUnreachableError",
    "ForbiddenError",
    "NotFoundError",
    "StaleLeaseError",
    "StateError",
    "UnauthorizedError",
]


class AppError(Exception):
    """Base of all.

    Attributes:
        field: dotted name of what is wrong, where there is one.
        value: its value, never a secret.
        fix: what to do, one clause; empty where nothing helps.
    """

    def __init__(self, message: str, *, field: str = "", value: object = None, fix: str = "") -> None:
        super().__init__(f"{message}; {fix}" if fix else message)
        self.field = field
        self.value = value
        self.fix = fix


class NotFoundError(AppError):
    """Nothing has that name or number."""


class ConflictError(AppError):
    """It exists already, as something else."""


class StateError(AppError):
    """The thing is in a state that does not allow this."""


class StaleLeaseError(AppError):
    """The lease has ended, or belongs to someone else; nothing was changed."""

    def __init__(self, lease_id: str) -> None:
        super().__init__(
            f"lease {lease_id} is not held with this token: it has expired, was given back, or was reported",
            field="token",
            value="(hidden)",
            fix="stop the engine and claim again",
        )


class UnauthorizedError(AppError):
    """No token, or one that is unknown, expired or revoked."""


class ForbiddenError(AppError):
    """The token's scope does not allow this."""


class DatabaseError(AppError):
    """The database cannot be used."""


class DatabaseUnreachableError(DatabaseError):
    """Nothing answers at the database's address."""


class DatabaseTooNewError(DatabaseError):
    """A newer Nightshift has migrated the database."""
