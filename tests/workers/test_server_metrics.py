"""Reading the engine's Prometheus text."""

from workers.server_metrics import CACHE_CONFIG, ServerFigures, parse_labels, parse_metrics

TEXT = """\
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="/a {odd} \\"name\\""} 3.0
vllm:num_preemptions_total{engine="1",model_name="m"} 4.0
vllm:num_preemptions_created{engine="0"} 1.796121671801568e+09
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:generation_tokens_total{engine="0"} 1e3
vllm:cache_config_info{block_size="128",num_gpu_blocks="1024",sliding_window="None"} 1.0
up 1
broken{
vllm:odd NaNsense
"""


def test_counters_add_up_over_engines_and_gauges_take_the_fullest() -> None:
    figures = ServerFigures.read(TEXT)
    assert (figures.preemptions, figures.kv_cache_usage, figures.generated_tokens) == (7.0, 0.75, 1000.0)


def test_what_the_server_does_not_tell_is_none() -> None:
    assert ServerFigures.read("up 1\n") == ServerFigures(None, None, None)


def test_older_names_are_understood() -> None:
    assert ServerFigures.read('vllm:gpu_cache_usage_perc{model_name="m"} 0.5').kv_cache_usage == 0.5


def test_lines_that_are_no_samples_are_left_out() -> None:
    assert parse_metrics(TEXT).keys() >= {"up", "vllm:cache_config_info"}
    assert "broken" not in parse_metrics(TEXT)
    assert "vllm:odd" not in parse_metrics(TEXT)


def test_labels_are_read_as_text() -> None:
    assert parse_labels(TEXT, CACHE_CONFIG)["block_size"] == "128"
    assert parse_labels(TEXT, "vllm:nothing") == {}
