"""A worker may import the simulator: it brings no search library, no web framework and no database along."""

import subprocess
import sys


def test_the_simulator_needs_numpy_and_pydantic_only() -> None:
    code = "import sys, tuner.simulation; print(*{name.split('.')[0] for name in sys.modules})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(answer.stdout.split())
    assert {"numpy", "pydantic", "tuner"} <= loaded
    assert not loaded & {
        "optuna",
        "scipy",
        "torch",
        "sqlalchemy",
        "fastapi",
        "httpx",
        "asyncio",
        "workers",
        "app",
    }
