"""Drives vLLM's own scheduler without a model, by the interpreter that has vLLM installed.

    .venv-vllm/bin/python tests/tuner/simulation/real_scheduler.py MODEL_FOLDER < scenarios.json > out.json

A scenario is ``{"limits": {…}, "blocks": n, "caching": bool, "requests": [[turn, in, out, shared], …]}`` and
its answer a list of batches, each ``{"scheduled": {request: tokens}, "preempted": n, "free": n}``. Turns
are rounds of the engine's loop. It needs nothing but vLLM.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager


def make_scheduler(model: str, scenario: dict[str, Any]) -> Scheduler:
    limits = scenario["limits"]
    size = limits["block_size"]
    scheduler_config = SchedulerConfig(
        max_num_seqs=limits["max_num_seqs"],
        max_num_batched_tokens=limits["max_num_batched_tokens"],
        max_model_len=8192,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=limits["asynchronous"],
    )
    cache_config = CacheConfig(block_size=size, enable_prefix_caching=scenario["caching"])
    config = VllmConfig(
        scheduler_config=scheduler_config,
        model_config=ModelConfig(model=model, max_model_len=8192, skip_tokenizer_init=True),
        cache_config=cache_config,
        device_config=DeviceConfig(device="cpu"),
    )
    blocks = scenario["blocks"] + 1  # vLLM keeps one as the null block
    cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    made = AsyncScheduler if limits["asynchronous"] else Scheduler
    return made(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        log_stats=True,
    )


def make_request(number: int, inputs: int, outputs: int, shared: int, size: int) -> Request:
    first = 1_000_000 * (number + 1)
    tokens = list(range(shared)) + list(range(first, first + inputs - shared))
    sampling = SamplingParams(max_tokens=outputs, min_tokens=outputs, ignore_eos=True)
    sampling.update_from_generation_config({}, eos_token_id=1)
    return Request(
        request_id=str(number),
        prompt_token_ids=tokens,
        sampling_params=sampling,
        pooling_params=None,
        block_hasher=get_request_block_hasher(size, sha256),
    )


class Run:
    def __init__(self, model: str, scenario: dict[str, Any]) -> None:
        self.scheduler = make_scheduler(model, scenario)
        self.asynchronous = scenario["limits"]["asynchronous"]
        self.batches: list[dict[str, Any]] = []
        self.emitted: dict[str, int] = {}

    def schedule(self) -> Any:
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks
        output = self.scheduler.schedule()
        if not output.total_num_scheduled_tokens:
            return None
        self.batches.append(
            {
                "scheduled": dict(sorted(output.num_scheduled_tokens.items(), key=lambda item: int(item[0]))),
                "preempted": len(output.preempted_req_ids or ()),
                "free": free(),
            }
        )
        # Which of them sample a token has to be known now: the state moves on before the batch is finished.
        sampling = [
            name for name in output.num_scheduled_tokens if not self.scheduler.requests[name].is_prefill_chunk
        ]
        return output, sampling

    def finish(self, batch: Any) -> None:
        output, sampling = batch
        names = list(output.num_scheduled_tokens)
        tokens = []
        for name in names:
            if name in sampling:
                self.emitted[name] = self.emitted.get(name, 0) + 1
                tokens.append([500_000_000 + 1_000_000 * int(name) + self.emitted[name]])
            else:
                tokens.append([])
        result = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens
        )
        self.scheduler.update_from_output(output, result)


def run(model: str, scenario: dict[str, Any]) -> list[dict[str, Any]]:
    state = Run(model, scenario)
    coming = [
        (turn, make_request(number, inputs, outputs, shared, scenario["limits"]["block_size"]))
        for number, (turn, inputs, outputs, shared) in enumerate(scenario["requests"])
    ]
    batch, turn = None, 0
    while True:
        while coming and coming[0][0] <= turn:
            state.scheduler.add_request(coming.pop(0)[1])
        turn += 1
        batch = batch or state.schedule()
        if batch is None:
            if not coming:
                return state.batches
            continue
        following = state.schedule() if state.asynchronous else None
        state.finish(batch)
        batch = following


if __name__ == "__main__":
    init_none_hash(sha256)
    json.dump([run(sys.argv[1], scenario) for scenario in json.load(sys.stdin)], sys.stdout)
