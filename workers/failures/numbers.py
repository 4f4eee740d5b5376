"""Figures that an exception's message holds, by name and in base units."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["numbers_in"]

UNITS: Mapping[str, int] = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "kb": 10**3,
    "kib": 2**10,
    "mb": 10**6,
    "mib": 2**20,
    "gb": 10**9,
    "gib": 2**30,
    "tb": 10**12,
    "tib": 2**40,
}
FIGURE = r"(-?\d+(?:\.\d+)?)"
SIZE = rf"{FIGURE}\s*(bytes?|[KMGT]i?B|B)\b"

SIZES: tuple[tuple[str, str], ...] = (
    ("asked_bytes", rf"[Tt]ried to allocate {SIZE}"),
    ("asked_bytes", rf"unable to (?:mmap|allocate) {SIZE}"),
    ("asked_bytes", rf"requested memory for kv \({FIGURE}(?:/{FIGURE})? (GiB)"),
    ("total_bytes", rf"total capac?i?ty of {SIZE}"),
    ("free_bytes", rf"of which {SIZE} is free"),
    ("in_use_bytes", rf"this process has {SIZE} memory in use"),
    ("allocated_bytes", rf"Of the allocated memory {SIZE} is allocated"),
    ("reserved_bytes", rf"{SIZE} is reserved by PyTorch"),
    ("free_bytes", rf"(?:Free memory on device|Available memory on node) \S+ \({FIGURE}/{FIGURE} (GiB)\)"),
    ("total_bytes", rf"(?:Free memory on device|Available memory on node) \S+ \(-?[\d.]+/{FIGURE} (GiB)\)"),
    ("asked_bytes", rf"memory utilization \([\d.]+, {FIGURE} (GiB)\)"),
    ("asked_bytes", rf"external process's weights \([\d.]+, {FIGURE} (GiB)\)"),
    ("needed_bytes", rf"\({FIGURE} (GiB) KV cache is needed"),
    ("available_bytes", rf"available KV cache memory \({FIGURE} (GiB)\)"),
)
"""A figure comes first and its unit last; what stands in between belongs to another figure."""
PLAIN: tuple[tuple[str, str], ...] = (
    ("max_model_len", rf"max seq len \({FIGURE}\)"),
    ("longest_model_len", rf"estimated maximum model length is {FIGURE}"),
    ("longest_model_len", rf"tokens that can be stored in KV cache \({FIGURE}\)"),
    ("longest_model_len", rf"derived max_model_len \(max_position_embeddings={FIGURE}"),
    ("utilization", rf"memory utilization \({FIGURE},"),
    ("required_bytes", rf"Required: {FIGURE}"),
    ("limit_bytes", rf"[Ll]imit: {FIGURE}"),
    ("dummy_requests", rf"with {FIGURE} dummy requests"),
)
ARGUMENT = re.compile(rf"\b([a-z][a-z0-9]*(?:_[a-z0-9]+)+) ?(?:\({FIGURE}\)|= ?{FIGURE})")


def numbers_in(message: str) -> dict[str, float]:
    """Bytes, tokens and shares by name; a figure that the message does not hold is absent.

    Values of arguments, such as ``max_num_seqs (128)``, are kept under the argument's own name.
    """
    found: dict[str, float] = {}
    for name, pattern in SIZES:
        if match := re.search(pattern, message):
            groups = [group for group in match.groups() if group is not None]
            size = float(groups[0]) * UNITS[groups[-1].lower()]
            if size >= 0:  # what is left after the weights may be less than nothing
                found.setdefault(name, size)
    for name, pattern in PLAIN:
        if match := re.search(pattern, message):
            found.setdefault(name, float(match[1]))
    for match in ARGUMENT.finditer(message):
        if not match[1].startswith("max_position"):
            found.setdefault(match[1], float(match[2] or match[3]))
    return found
