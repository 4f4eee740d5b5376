"""The roofline, with figures that can be computed by hand."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from tests.tuner.simulation.test_models import LLAMA_2_7B, MIXTRAL_8X7B
from tuner.simulation.hardware import Gpu
from tuner.simulation.models import ModelShape
from tuner.simulation.scheduler import Batch, Prefill, Request
from tuner.simulation.steptimes import Efficiencies, Execution, Roofline, capture_sizes

MODEL = ModelShape.from_config(LLAMA_2_7B)
GPU = Gpu("round", 100, 1e12, MappingProxyType({"bf16": 1e15}), 1e11)
PEAK = Efficiencies(
    weights=1.0,
    kv=1.0,
    kv_fp8=0.5,
    compute=1.0,
    attention=1.0,
    step_s=0.0,
    sequence_s=0.0,
    token_s=0.0,
    host_s=0.0,
    launch_s=0.0,
    eager_launch_s=0.0,
)


def batch(decodes: int = 0, context: int = 0, prefill: int = 0, behind: int = 0) -> Batch:
    prefills = (Prefill(Request(0, prefill + behind, 1), prefill, behind),) if prefill else ()
    return Batch(0, decodes, context, prefills, completed=(), preempted=0, blocks_used=0)


def step_s(what: Batch, execution: Execution | None = None, costs: Efficiencies = PEAK) -> float:
    return Roofline(GPU, MODEL, execution or Execution(), costs).step_s(what)


class TestRoofline:
    def test_one_decode_reads_the_weights(self) -> None:
        # 6.607 billion weights without the embedding table, 2 bytes each, at 1 TB/s.
        assert step_s(batch(decodes=1)) == pytest.approx(6.607e9 * 2 / 1e12, rel=1e-3)

    def test_a_long_prompt_multiplies_by_the_weights(self) -> None:
        attention = 4096 * 2048 * 4 * 32 * 4096 / 1e15
        assert step_s(batch(prefill=4096)) == pytest.approx(2 * 6.607e9 * 4096 / 1e15 + attention, rel=1e-2)

    def test_decodes_read_the_cache_of_their_context(self) -> None:
        longer = step_s(batch(decodes=4, context=100_000)) - step_s(batch(decodes=4))
        assert longer == pytest.approx(100_000 * 524_288 / 1e12)

    def test_an_8_bit_cache_is_half_as_long_but_slower_to_read(self) -> None:
        what = batch(decodes=1, context=100_000)
        small = step_s(what, Execution(kv_number_bytes=1.0)) - step_s(batch(decodes=1))
        assert small == pytest.approx(100_000 * 262_144 / 0.5e12)

    def test_a_later_chunk_attends_to_what_came_before(self) -> None:
        more = step_s(batch(prefill=512, behind=2048)) - step_s(batch(prefill=512))
        assert more == pytest.approx(512 * 2048 * 4 * 32 * 4096 / 1e15)

    def test_tokens_are_padded_to_the_next_graph(self) -> None:
        graphs = Execution(captured=(256, 512))
        assert step_s(batch(decodes=300), graphs) == step_s(batch(decodes=512), graphs)
        assert step_s(batch(decodes=513), graphs) == step_s(batch(decodes=513))

    def test_the_host_is_waited_for_when_it_is_slower(self) -> None:
        costs = replace(PEAK, host_s=1.0, launch_s=0.1, eager_launch_s=0.2)
        assert step_s(batch(decodes=1), Execution(captured=(1,)), costs) == 1.0
        assert step_s(batch(decodes=2), Execution(captured=(1,)), costs) == pytest.approx(1.0 + 32 * 0.1)
        assert step_s(batch(decodes=1), Execution(eager=True), costs) == pytest.approx(1.0 + 32 * 0.2)

    def test_without_asynchronous_scheduling_the_host_is_always_waited_for(self) -> None:
        costs = replace(PEAK, host_s=0.001)
        late = step_s(batch(decodes=1), Execution(captured=(1,), asynchronous=False), costs)
        assert late == pytest.approx(step_s(batch(decodes=1)) + 0.001)

    def test_tensor_parallel_gpus_share_the_work_and_pay_for_the_exchange(self) -> None:
        one, two = (step_s(batch(prefill=8192), Execution(tensor_parallel_size=n)) for n in (1, 2))
        assert 0.5 * one < two < one

    def test_experts_are_read_as_far_as_tokens_need_them(self) -> None:
        roofline = Roofline(GPU, ModelShape.from_config(MIXTRAL_8X7B), Execution(), PEAK)
        assert 3.0 < roofline.step_s(batch(decodes=64)) / roofline.step_s(batch(decodes=1)) < 4.0


class TestCaptureSizes:
    def test_default_of_a_large_engine(self) -> None:
        sizes = capture_sizes(512, 8192)
        assert sizes[:5] == (1, 2, 4, 8, 16)
        assert sizes[-1] == 512
        assert len(sizes) == 51

    def test_they_end_at_the_largest_one(self) -> None:
        assert capture_sizes(128, 8192)[-1] == 128
        assert capture_sizes(512, 100)[-1] == 100
