"""``python -m workers``: a worker told by the environment alone (:mod:`workers.settings`)."""

from __future__ import annotations

import asyncio
import logging
import sys

from pydantic import ValidationError

from tuner.errors import FieldError
from workers.agent import run
from workers.settings import WorkerSettings

BAD_INPUT = 2


def main() -> int:
    """Run until drained; 0, or 2 with one line when a setting is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every heartbeat
    try:
        asyncio.run(run(WorkerSettings()))
    except FieldError as error:
        sys.stderr.write(f"error: {error}\n")
        return BAD_INPUT
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = "NIGHTSHIFT_" + ".".join(str(part) for part in first["loc"]).upper()
        sys.stderr.write(f"error: {name}: {first['msg']}\n")
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
