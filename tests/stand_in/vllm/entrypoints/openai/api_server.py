"""The stand-in's server; started as the real one is."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from aiohttp import web

from vllm._version import __version__
from vllm.behaviour import FAILURES, OOM_WHILE_SERVING, Behaviour, behaviour

GIB = 1024**3
ENGINE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
NUMBERS = {
    "--max-model-len": 0,
    "--max-num-seqs": 128,
    "--max-num-batched-tokens": 2048,
    "--block-size": 16,
    "--tensor-parallel-size": 1,
    "--seed": 0,
}
TEXTS = {
    "--load-format": "auto",
    "--dtype": "auto",
    "--uvicorn-log-level": "info",
    "--kv-cache-dtype": "auto",
}
SWITCHES = {"--enforce-eager": False, "--enable-prefix-caching": True, "--enable-chunked-prefill": True}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="vllm", usage="vllm serve [model_tag] [options]")
    parser.add_argument("--model", required=True)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    for flag, number in NUMBERS.items():
        parser.add_argument(flag, type=int, default=number)
    for flag, text in TEXTS.items():
        parser.add_argument(flag, default=text)
    for flag, on in SWITCHES.items():
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=on)
    return parser.parse_args()


def fail(code: int, log: str) -> None:
    sys.stderr.write(log)
    sys.stderr.flush()
    os._exit(code)


def model_config(model: str) -> dict[str, int]:
    path = Path(model) / "config.json"
    if not path.is_file():
        fail(1, f"OSError: {model} is not a local folder and is not a valid model identifier\n")
    config: dict[str, int] = json.loads(path.read_text())
    return config


def check_memory(args: argparse.Namespace, config: dict[str, int]) -> None:
    """The check, and the words, of the real one."""
    space = float(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "4"))
    per_token = 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    needed = args.max_model_len * per_token / GIB
    if needed > space:
        fail(
            1,
            "(EngineCore pid=14823) ERROR 12-01 10:37:33 [core.py:1510] ValueError: To serve at least one "
            f"request with the model's max seq len ({args.max_model_len}), ({needed:.1f} GiB KV cache is "
            f"needed, which is larger than the available KV cache memory ({space:.1f} GiB). Based on the "
            f"available memory, the estimated maximum model length is {int(space * GIB / per_token)}. "
            "Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) "
            "or decreasing "
            "`max_model_len` when initializing the engine.\n",
        )


class Server:
    def __init__(self, args: argparse.Namespace, how: Behaviour, engine: subprocess.Popen[bytes]) -> None:
        self.args = args
        self.how = how
        self.engine = engine
        self.slots = asyncio.Semaphore(args.max_num_seqs)
        self.requests = 0
        self.running = 0
        self.generated = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/version", self.version)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/v1/completions", self.completions)
        if os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
            app.router.add_get("/server_info", self.server_info)
        return app

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.engine.poll() is None else 503)

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": __version__})

    async def models(self, _: web.Request) -> web.Response:
        entry = {"id": self.args.model, "object": "model", "max_model_len": self.args.max_model_len}
        return web.json_response({"object": "list", "data": [entry]})

    async def tokenize(self, _: web.Request) -> web.Response:
        return web.json_response({"tokens": list(range(10, 200)), "count": 190})

    async def server_info(self, _: web.Request) -> web.Response:
        args = vars(self.args)
        scheduler = {
            name: args[name] for name in ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill")
        }
        cache = {
            name: args[name] for name in ("block_size", "gpu_memory_utilization", "enable_prefix_caching")
        }
        cache["kv_cache_memory_bytes"] = int(float(os.environ.get("VLLM_CPU_KVCACHE_SPACE", "4")) * GIB)
        model = {"max_model_len": args["max_model_len"], "enforce_eager": args["enforce_eager"]}
        config = {"scheduler_config": scheduler, "cache_config": cache, "model_config": model}
        return web.json_response({"vllm_config": config, "vllm_env": {}, "system_env": {}})

    async def metrics(self, _: web.Request) -> web.Response:
        label = f'{{engine="0",model_name="{self.args.model}"}}'
        config = f'block_size="{self.args.block_size}",num_gpu_blocks="1024",engine="0"'
        usage = min(1.0, self.running / self.args.max_num_seqs)
        lines = [
            "# TYPE vllm:num_preemptions_total counter",
            f"vllm:num_preemptions_total{label} {self.requests // 10}.0",
            f"vllm:kv_cache_usage_perc{label} {usage}",
            f"vllm:generation_tokens_total{label} {self.generated}.0",
            f"vllm:cache_config_info{{{config}}} 1.0",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    def misbehave(self) -> web.Response | None:
        self.requests += 1
        if self.how.refuse is not None:
            return web.json_response(
                {"error": {"message": "no", "code": self.how.refuse}}, status=self.how.refuse
            )
        if self.how.crash_after is not None and self.requests >= self.how.crash_after:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.how.oom_after is not None and self.requests >= self.how.oom_after:
            sys.stderr.write(OOM_WHILE_SERVING)
            sys.stderr.flush()
            return web.json_response(
                {"error": {"message": "EngineCore encountered an issue.", "code": 500}}, status=500
            )
        return None

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        wrong = self.misbehave()
        if wrong is not None:
            return wrong
        total = len(body["prompt"]) + body["max_tokens"]
        if self.args.max_model_len and total > self.args.max_model_len:
            return web.json_response(
                {"error": {"message": f"{total} tokens are too many", "code": 400}}, status=400
            )
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        async with self.slots:
            self.running += 1
            try:
                await self.generate(stream, body)
            finally:
                self.running -= 1
        return stream

    async def generate(self, stream: web.StreamResponse, body: dict[str, object]) -> None:
        prompt, wanted = len(body["prompt"]), int(body["max_tokens"])  # type: ignore[arg-type]  # our own client
        await asyncio.sleep(prompt / (10.0 * self.args.max_num_batched_tokens))
        made = 0
        while made < wanted:
            if self.how.hang_after is not None and self.requests >= self.how.hang_after:
                await asyncio.Event().wait()
            count = min(self.how.tokens_per_chunk, wanted - made)
            await asyncio.sleep(self.how.step_s * count * (1.0 + self.running / 64.0))
            made += count
            self.generated += count
            choice = {"index": 0, "text": "ab" * count, "finish_reason": "length" if made == wanted else None}
            await self.event(stream, {"choices": [choice]})
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + wanted, "completion_tokens": wanted}
        await self.event(stream, {"choices": [], "usage": usage})
        await stream.write(b"data: [DONE]\n\n")

    async def event(self, stream: web.StreamResponse, content: dict[str, object]) -> None:
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": self.args.model}
        text = "{nonsense" if self.how.garbage else json.dumps(head | content, separators=(",", ":"))
        await stream.write(f"data: {text}\n\n".encode())


def check(args: argparse.Namespace, how: Behaviour) -> None:
    """Refuse to start where the real one would, or where the test wants it."""
    config = model_config(args.model)
    args.max_model_len = args.max_model_len or config["max_position_embeddings"]
    time.sleep(how.startup_s)
    sys.stdout.write("x" * 99 + "\n" if how.noise_bytes else "")
    for _ in range(how.noise_bytes // 100):
        sys.stdout.write("n" * 99 + "\n")
    sys.stdout.flush()
    if how.fail is not None:
        fail(*FAILURES[how.fail])
    for name, limit in how.fail_above.items():
        if vars(args)[name] > limit:
            fail(*FAILURES["oom_profile"])
    check_memory(args, config)


def main() -> None:
    args, how = parse(), behaviour()
    # As the real engine process: it does not heed SIGTERM, and its environment cannot be read.
    engine = subprocess.Popen([sys.executable, "-I", "-S", "-c", ENGINE], env={})
    if how.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    check(args, how)
    sys.stdout.write(f"INFO serving {args.model}\n")
    sys.stdout.flush()
    asyncio.run(serve(args, how, engine))


async def serve(args: argparse.Namespace, how: Behaviour, engine: subprocess.Popen[bytes]) -> None:
    runner = web.AppRunner(Server(args, how, engine).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, args.host, args.port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
