"""The real vLLM, started cold by the interpreter of its own environment."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tuner.argv import render_args
from tuner.protocol import ArgValue, Assignment
from workers.engines.base import EngineDescription, EngineUnreadableError
from workers.engines.model_files import read_config, vocabulary_of
from workers.load.prompts import Vocabulary
from workers.process import EngineProcess, Session, read_log
from workers.server_metrics import CACHE_CONFIG, parse_labels

__all__ = ["Site", "VllmEngine", "engine_environment", "free_port"]

PROBE_TIMEOUT_S = 5.0
SERVER_INFO_TIMEOUT_S = 60.0
"""The first answer of ``/server_info`` collects facts about the machine: 4 s on two cores."""

GIB = 1024**3
NOT_FOR_ENGINES = ("NIGHTSHIFT_",)
"""Ours, above all the worker's token: an engine runs code from model repositories."""

ALSO_NOT = frozenset({"VLLM_API_KEY"})
"""With a key of its own the engine would refuse the load."""

SECTIONS = (
    "scheduler_config",
    "cache_config",
    "model_config",
    "parallel_config",
    "compilation_config",
    "offload_config",
)
OTHER_NAMES = {"kv_cache_dtype": "cache_dtype"}
"""Arguments whose field in vLLM's configuration has another name."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a worker runs its engines.

    Attributes:
        python: interpreter of vLLM's environment.
        mark: names the worker on the engine's processes.
        gpus: the GPUs for the attempt; empty hides all of them.
        grace_s: time between SIGTERM and SIGKILL.
        inherited: environment that the engine's is made from.
        remember: is told the session of an engine that was started.
    """

    python: Path
    mark: str
    gpus: Sequence[str] = ()
    grace_s: float = 10.0
    inherited: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    remember: Callable[[Session], None] = lambda _: None


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def chosen_environment(assignment: Assignment, site: Site) -> dict[str, str]:
    """The variables that are set for the engine on purpose; the trial's win."""
    chosen = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(site.gpus),
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if Path(assignment.engine.model).is_dir():
        chosen["HF_HUB_OFFLINE"] = "1"
    if asks_for_arguments(assignment):
        chosen["VLLM_SERVER_DEV_MODE"] = "1"  # opens /server_info, on the loopback interface only
    return chosen | assignment.env


def engine_environment(chosen: Mapping[str, str], site: Site) -> dict[str, str]:
    """The engine's whole environment: inherited, without what is ours, with what was chosen."""
    inherited = {
        name: value
        for name, value in site.inherited.items()
        if not name.startswith(NOT_FOR_ENGINES) and name not in ALSO_NOT
    }
    # Compilers that vLLM calls at run time (ninja, for one) lie beside its interpreter.
    path = f"{site.python.absolute().parent}{os.pathsep}{inherited.get('PATH', os.defpath)}"
    return inherited | {"PATH": path} | dict(chosen)


def asks_for_arguments(assignment: Assignment) -> bool:
    """Whether a knob is left to vLLM's default, so that only the engine knows its value."""
    return any(knob not in assignment.args and knob not in assignment.env for knob in assignment.knobs)


class VllmEngine:
    """One cold-started vLLM server; implements :class:`workers.engines.base.Engine`."""

    def __init__(self, assignment: Assignment, site: Site, folder: Path) -> None:
        port = free_port()
        model = assignment.engine.model
        self.url = f"http://127.0.0.1:{port}"
        # The engine's working directory is the attempt's folder, so paths of ours become absolute.
        self._model = str(Path(model).absolute()) if Path(model).is_dir() else model
        self.argv: tuple[str, ...] = (
            *(str(site.python.absolute()), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", self._model, "--host", "127.0.0.1", "--port", str(port)),
            *(() if "uvicorn_log_level" in assignment.args else ("--uvicorn-log-level", "warning")),
            *render_args(assignment.args),
        )
        self.env: dict[str, str] = chosen_environment(assignment, site)
        self._assignment = assignment
        self._site = site
        self._log = folder / "engine.log"
        self._process: EngineProcess | None = None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the API server's process."""
        return None if self._process is None else self._process.exit_code

    async def start(self) -> None:
        """Start the server behind a keeper."""
        self._process = await EngineProcess.start(
            self.argv,
            env=engine_environment(self.env, self._site),
            log=self._log,
            mark=self._site.mark,
            grace_s=self._site.grace_s,
        )
        self._site.remember(self._process.session)

    async def wait(self) -> int:
        """Wait for the API server to end."""
        return -signal.SIGKILL if self._process is None else await self._process.wait()

    async def stop(self, *, at_once: bool = False) -> None:
        """End every process of it."""
        if self._process is not None:
            await self._process.stop(at_once=at_once)

    def log_lines(self) -> list[str]:
        """Everything it has written."""
        return read_log(self._log)

    async def health(self) -> int | None:
        """Status of ``/health``: 200 when ready, 503 when the engine behind the API is dead."""
        status, _ = await self._get("/health")
        return status

    async def metrics(self) -> str | None:
        """Text of ``/metrics``."""
        status, body = await self._get("/metrics")
        return body.decode("utf-8", "replace") if status == 200 else None

    async def describe(self) -> EngineDescription:
        """Ask ``/v1/models``, ``/version`` and, where a knob has vLLM's default, ``/server_info``."""
        models = await self._json("/v1/models")
        try:
            served = models["data"][0]  # type: ignore[index]  # any JSON; what is not as told raises below
            name, longest = str(served["id"]), served.get("max_model_len")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineUnreadableError(f"/v1/models answers {models!r}") from error
        version = await self._json("/version")
        return EngineDescription(
            version=str(version["version"]) if isinstance(version, dict) and "version" in version else None,
            model=name,
            max_model_len=longest if isinstance(longest, int) else None,
            resolved_args=await self._resolved_args(),
            vocabulary=await self._vocabulary(name),
        )

    async def _resolved_args(self) -> dict[str, ArgValue]:
        found = await self._from_cache_labels()
        if asks_for_arguments(self._assignment):
            info = await self._json("/server_info?config_format=json", SERVER_INFO_TIMEOUT_S)
            if isinstance(info, dict):
                found |= resolve(self._assignment.knobs, info)
        return found | self._assignment.args

    async def _from_cache_labels(self) -> dict[str, ArgValue]:
        """Size of the KV cache, which every engine shows among its metrics."""
        labels = parse_labels(await self.metrics() or "", CACHE_CONFIG)
        numbers = {name: labels.get(name, "") for name in ("block_size", "num_gpu_blocks")}
        return {name: int(text) for name, text in numbers.items() if text.isdigit()}

    async def _vocabulary(self, model: str) -> Vocabulary:
        revision = str(self._assignment.args.get("revision", "main"))
        environment = engine_environment(self.env, self._site)
        config = read_config(self._model, revision=revision, env=environment)
        known = vocabulary_of(config) if config is not None else None
        return known or await self._tokens_of_words(model)

    async def _tokens_of_words(self, model: str) -> Vocabulary:
        """Without a configuration to read: the tokens that the server makes of plenty of ordinary text."""
        words = " ".join(
            first + second + third for first in "bdfgklmn" for second in "aeiou" for third in "lmnrst"
        )
        answer = await self._json(
            "/tokenize", body={"model": model, "prompt": words, "add_special_tokens": False}
        )
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(tokens, list) or not tokens:
            raise EngineUnreadableError("neither the model's config.json nor /tokenize tells its vocabulary")
        return Vocabulary(tokens)

    async def _json(
        self, path: str, timeout_s: float = PROBE_TIMEOUT_S, body: Mapping[str, object] | None = None
    ) -> object:
        """A JSON answer, or ``None``."""
        status, text = await self._get(path, timeout_s, body)
        if status != 200:
            return None
        try:
            answer: object = json.loads(text)
        except ValueError:
            return None
        return answer

    async def _get(
        self, path: str, timeout_s: float = PROBE_TIMEOUT_S, body: Mapping[str, object] | None = None
    ) -> tuple[int | None, bytes]:
        """Status and body; without a status if there was no answer in time. With ``body`` it is a POST."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        method = "GET" if body is None else "POST"
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, self.url + path, json=body) as answer,
            ):
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None, b""


def resolve(names: Sequence[str], info: Mapping[str, object]) -> dict[str, ArgValue]:
    """Values of arguments and environment variables, from the JSON of ``/server_info``."""
    config = info.get("vllm_config")
    environment = info.get("vllm_env")
    sections = [config.get(name) for name in SECTIONS] if isinstance(config, dict) else []
    known = [section for section in sections if isinstance(section, dict)]
    found: dict[str, ArgValue] = {}
    for name in names:
        field_name = OTHER_NAMES.get(name, name)
        places = [environment if name.isupper() else None, *known]
        values = [place[field_name] for place in places if isinstance(place, dict) and field_name in place]
        if values and isinstance(values[0], bool | int | float | str):
            found[name] = values[0]
    size = next(
        (section["kv_cache_memory_bytes"] for section in known if "kv_cache_memory_bytes" in section), None
    )
    if "VLLM_CPU_KVCACHE_SPACE" in names and isinstance(size, int):
        found["VLLM_CPU_KVCACHE_SPACE"] = round(size / GIB, 3)
    return found
