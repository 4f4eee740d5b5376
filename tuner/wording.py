"""What is wrong with a study file, in words: the field, the value, the problem and the fix.

Pydantic says what it expected; people need to know what to write.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from tuner.errors import FieldError

__all__ = ["did_you_mean", "field_error"]

_KNOB = "a range {low: 8, high: 64, step: pow2} or a list [a, b]"
_SHAPES: Mapping[str, str] = MappingProxyType(
    {
        "StudySpec": "`name: …`, `engine: …`, `workload: …`",
        "EngineSpec": "{model: organisation/name}",
        "Hardware": "{gpus: 1, gpu: H200}",
        "Workload": "{prompts: …, arrivals: …}",
        "SyntheticPrompts": "{input_tokens: 512, output_tokens: 128}",
        "Length": "a number of tokens, or {mean: 512, stdev: 150}",
        "ClosedLoop": "{kind: closed, concurrency: 64}",
        "SpaceSpec": "{preset: balanced, knobs: …}",
        "RangeKnob": _KNOB,
        "ChoicesKnob": _KNOB,
        "Objective": "{metric: output_tokens_per_s}",
        "Slo": "{metric: ttft_p95_s, max: 2.0}",
        "Budget": "{trials: 30}",
    }
)
"""What a mapping looks like, by the name of its model."""

_UNION_MEMBERS = frozenset({"RangeKnob", "ChoicesKnob", "closed", "poisson", "[key]"})
_SCALARS = frozenset({"bool", "int", "float", "str"})
_ABOUT_KEYS = frozenset({"missing", "extra_forbidden"})
_RANGE_OR_CHOICES = frozenset({"low", "high", "step", "log", "choices"})

Path = tuple[int | str, ...]
Detail = Mapping[str, Any]


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """``did you mean x?`` for the name of ``known`` that is nearest, if one is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else None


def field_error(error: ValidationError, *, fields: Sequence[str]) -> FieldError:
    """The one mistake worth telling, as a :class:`FieldError`.

    Args:
        error: what pydantic found.
        fields: the names of all fields of a study file, to find the one that was meant.
    """
    details: list[Detail] = [dict(detail) for detail in error.errors(include_url=False)]
    # A misspelt key says more than the key that is then missing; of a union's members, the one whose error
    # is not about its keys tells what was meant.
    detail = next((d for d in details if d["type"] not in _ABOUT_KEYS), None)
    detail = detail or next((d for d in details if _is_misspelt(d)), details[0])
    path, value = _path(detail), None if detail["type"] == "missing" else detail["input"]
    if _is_scalar(detail["loc"]):
        problem, fix = _no_value(path)
    elif detail["type"] == "extra_forbidden":
        problem, fix = "there is no such field", _meant(path, details, fields)
    else:
        problem, fix = _problem(detail), _fix(detail, path)
    return FieldError(".".join(map(str, path)) or "study", value, problem=problem, fix=fix)


def _path(detail: Detail) -> Path:
    """Where the value stands in the file, without the names of a union's members."""
    parts = [part for part in detail["loc"] if not _is_union_member(part)]
    return tuple(parts[:-1] if _is_scalar(detail["loc"]) else parts)


def _is_union_member(part: int | str) -> bool:
    return isinstance(part, str) and (part in _UNION_MEMBERS or part.startswith("function-"))


def _is_scalar(path: Path) -> bool:
    """Whether a path ends in a member of a union of plain values."""
    last = str(path[-1]) if path else ""
    return last in _SCALARS or last.startswith("literal[")


def _is_misspelt(detail: Detail) -> bool:
    """A key that no shape has; one that only another member of the union has is not misspelt."""
    path = detail["loc"]
    of_another = path[-1] in _RANGE_OR_CHOICES and any(map(_is_union_member, path))
    return detail["type"] == "extra_forbidden" and not of_another


def _no_value(path: Path) -> tuple[str, str]:
    if path[-1] == "step":
        return "is no step", "write a number above 0, or pow2"
    return "is no single value", "write a number, a text, true or false"


def _meant(path: Path, details: Sequence[Detail], fields: Sequence[str]) -> str:
    name = str(path[-1])
    missing = [str(detail["loc"][-1]) for detail in details if detail["type"] == "missing"]
    return did_you_mean(name, missing) or did_you_mean(name, fields) or "remove it"


def _problem(detail: Detail) -> str:
    match detail["type"]:
        case "model_type" | "model_attributes_type" | "dict_type":
            return "is not a mapping"
        case "tuple_type":
            return "is not a list"
        case "too_short" | "too_long":
            return "is a list of the wrong length"
        case "missing":
            return "is missing"
    problem: str = detail["msg"].removeprefix("Value error, ").partition("; ")[0]
    return problem[:1].lower() + problem[1:]


def _fix(detail: Detail, path: Path) -> str:
    """What to write instead."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        # Our own validators say it themselves, behind a semicolon.
        return detail["msg"].partition("; ")[2] or "change it"
    if kind in ("model_type", "model_attributes_type"):
        return f"write {_SHAPES.get(context.get('class_name', 'ClosedLoop'), 'a mapping')}"
    if kind == "enum" or kind == "literal_error":
        words = [word.strip("' ") for word in context["expected"].replace(" or ", ",").split(",")]
        return did_you_mean(str(detail["input"]), words) or f"write {' or '.join(words)}"
    if kind in _BOUNDS:
        return _BOUNDS[kind](context)
    family = kind.partition("_")[0]
    if family == "string" and isinstance(detail["input"], int | float):
        return "put it in quotes"
    if family == "tuple":
        shape = "{metric: …}" if path[-1] in ("slos", "objectives") else "a, b"
        return f"write a list [{shape}]"
    return _FAMILIES.get(family, "see docs/study-file.md for what it takes")


_BOUNDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = MappingProxyType(
    {
        "missing": lambda _: "add it",
        "greater_than": lambda context: f"write a number above {context['gt']:g}",
        "greater_than_equal": lambda context: f"write {context['ge']:g} or more",
        "less_than": lambda context: f"write a number below {context['lt']}",
        "less_than_equal": lambda context: f"write {context['le']:g} or less",
        "string_too_short": lambda _: "write at least one character",
        "too_short": lambda context: f"list at least {context['min_length']}",
        "too_long": lambda context: f"list at most {context['max_length']}",
        "union_tag_invalid": lambda context: f"write kind: {_tags(context['expected_tags'])}",
        "union_tag_not_found": lambda _: "add kind: closed or kind: poisson",
    }
)
_FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "int": "write a whole number",
        "float": "write a number",
        "finite": "write a finite number",
        "bool": "write true or false",
        "string": "write text",
        "dict": "write a mapping {name: value}",
    }
)
"""By the first word of pydantic's name of the error, e.g. ``int_parsing``."""


def _tags(expected: str) -> str:
    return expected.replace("'", "").replace(", ", " or kind: ")
