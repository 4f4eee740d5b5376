"""Facts about the machine and the installation that the evidence and the provenance of an attempt hold."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
from pathlib import Path

__all__ = ["describe_host", "nightshift_version", "oom_kills", "vllm_version"]

_VERSION_SCRIPT = """
import importlib.util, pathlib, runpy
spec = importlib.util.find_spec("vllm")
if spec and spec.origin:
    print(runpy.run_path(str(pathlib.Path(spec.origin).with_name("_version.py")))["__version__"])
"""
"""Reads the version without importing vLLM, which takes seconds. The CPU build's distribution is not called
``vllm``, so its metadata cannot be asked for by name."""

_VERSION_TIMEOUT_S = 60.0
"""The first start of an interpreter on a cold, busy disk may take long; none takes a minute."""


def nightshift_version() -> str:
    """Our own version; empty in a checkout that was not installed."""
    try:
        return importlib.metadata.version("vllm-nightshift")
    except importlib.metadata.PackageNotFoundError:
        return ""


async def vllm_version(python: Path) -> str | None:
    """Version of the vLLM that an interpreter would run; ``None`` if it has none or does not start."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(str(python), "-c", _VERSION_SCRIPT),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _VERSION_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return output.decode().strip() or None


def describe_host() -> dict[str, str]:
    """The host's name, kernel and processor."""
    return {"host": platform.node(), "kernel": platform.release(), "machine": platform.machine()}


def oom_kills() -> int | None:
    """How often the OOM killer struck in this process's cgroup; ``None`` where cgroup v2 is absent."""
    try:
        group = Path("/proc/self/cgroup").read_text(encoding="ascii").rpartition("0::")[2].strip()
        events = Path("/sys/fs/cgroup", group.lstrip("/"), "memory.events").read_text(encoding="ascii")
    except OSError:
        return None
    counts = dict(line.split() for line in events.splitlines())
    return int(counts["oom_kill"]) if "oom_kill" in counts else None
