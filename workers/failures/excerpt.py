"""The lines that decided, fit to be kept: bounded, without prompts and without secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from workers.failures.log import Line, Loudness
from workers.failures.tracebacks import Chain

__all__ = ["excerpt_of", "tail_of", "without_secrets"]

MAX_LINES = 40
"""As many as ``Failure.excerpt`` takes."""
MAX_FRAME_LINES = 16
MAX_LINE_CHARS = 600
MARKERS = re.compile(r"^\s*[\^~]+\s*$")
CALL = re.compile(r'^\s+File "')
PLUMBING = re.compile(
    r'^\s+File "[^"]*(?:torch/nn/modules/module|torch/utils/_contextlib|vllm/tracing/\w+)\.py"'
)
"""Calls that stand between any two others and tell nothing."""
OF_REQUESTS = re.compile(
    r"Received request|Added request|prompt(?:_token_ids)?['\"]?\s*[:=]|\bmessages['\"]?\s*[:=]"
)
SECRETS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{8,}"), "hf_…"),
    (re.compile(r"\b(sk|ghp|glpat)-?[A-Za-z0-9_-]{16,}"), r"\1…"),
    (re.compile(r"(api[_-]?key['\"]?\s*[:= ]\s*\[?['\"]?)[^'\"\s,\]]+", re.IGNORECASE), r"\1…"),
    (
        re.compile(r"(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)\s+)[^'\"\s,]+", re.IGNORECASE),
        r"\1…",
    ),
    (re.compile(r"(://[^/\s:@]+:)[^@\s/]+@"), r"\1…@"),
)


def excerpt_of(lines: Sequence[Line], chain: Chain) -> tuple[str, ...]:
    """The exception lines of a chain with the calls right before each, at most 40 lines."""
    chosen: list[Line] = []
    before = chain.start
    for raised in chain.raised:
        calls = _calls([line for line in lines[before : raised.numbers[0]] if _belongs(line, chain)])
        chosen += calls[-(MAX_FRAME_LINES // len(chain.raised)) :] if chain.structured else []
        chosen += [lines[number] for number in raised.numbers if lines[number].text.strip()]
        before = raised.numbers[-1] + 1
    return tuple(_fit(line) for line in chosen[-MAX_LINES:])


def tail_of(lines: Sequence[Line]) -> tuple[str, ...]:
    """The last 40 lines that are not about requests."""
    telling = [line for line in lines if line.text.strip() and not OF_REQUESTS.search(line.text)]
    return tuple(_fit(line) for line in telling[-MAX_LINES:])


def without_secrets(text: str) -> str:
    """Keys, tokens and passwords become ``…``."""
    for pattern, replacement in SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _calls(lines: Sequence[Line]) -> list[Line]:
    """The lines of a traceback without its plumbing: a call's own line and the code under it go together."""
    kept: list[Line] = []
    plumbing = False
    for line in lines:
        if CALL.match(line.text):
            plumbing = PLUMBING.match(line.text) is not None
        if not plumbing:
            kept.append(line)
    return kept


def _belongs(line: Line, chain: Chain) -> bool:
    same = line.process == chain.process and line.source == chain.source
    return same and line.loudness is not Loudness.QUIET and not MARKERS.match(line.text)


def _fit(line: Line) -> str:
    return without_secrets(line.whole)[:MAX_LINE_CHARS]
