"""What the engine's own ``/metrics`` say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["ServerFigures", "parse_labels", "parse_metrics"]

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+\d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second name up to vLLM 0.10
GENERATED = ("vllm:generation_tokens_total",)
CACHE_CONFIG = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """One reading; ``None`` where the server has no such figure.

    Attributes:
        preemptions: requests preempted since the start, all engines together.
        kv_cache_usage: share of the KV cache in use, of the fullest engine.
        generated_tokens: output tokens made since the start.
    """

    preemptions: float | None
    kv_cache_usage: float | None
    generated_tokens: float | None

    @classmethod
    def read(cls, text: str) -> ServerFigures:
        """From the Prometheus text of ``/metrics``."""
        values = parse_metrics(text)
        return cls(
            preemptions=_first(values, PREEMPTIONS, sum),
            kv_cache_usage=_first(values, KV_USAGE, max),
            generated_tokens=_first(values, GENERATED, sum),
        )


def parse_metrics(text: str) -> dict[str, list[float]]:
    """Values by metric name, one for each set of labels. Lines that are no samples are left out."""
    values: dict[str, list[float]] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        values.setdefault(match["name"], []).append(value)
    return values


def parse_labels(text: str, name: str) -> dict[str, str]:
    """The labels of a metric's first sample; empty if there is none."""
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match["name"] == name:
            return dict(_LABEL.findall(match["labels"] or ""))
    return {}


def _first(
    values: Mapping[str, list[float]], names: tuple[str, ...], combine: Callable[[list[float]], float]
) -> float | None:
    return next((float(combine(values[name])) for name in names if name in values), None)
