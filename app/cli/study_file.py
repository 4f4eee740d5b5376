"""Reads a study file and checks everything that can be checked before a server sees it."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import yaml

from tuner.errors import FieldError
from tuner.space import build_space
from tuner.spec import StudySpec, parse_study

__all__ = ["check_model_folder", "key_for", "load_study", "read_study_data", "study_from"]


def load_study(file: Path) -> StudySpec:
    """Read a study file in YAML or JSON; ``-`` reads standard input.

    Raises:
        FieldError: the file cannot be read, is no YAML, or asks for something that does not exist.
    """
    return study_from(read_study_data(file))


def read_study_data(file: Path) -> Any:
    """The file's content as plain data, unchecked.

    Raises:
        FieldError: the file cannot be read or is no YAML.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise FieldError(
            "FILE", str(file), problem=f"cannot be read: {error.strerror}", fix="name a study file"
        ) from error
    except UnicodeDecodeError as error:
        raise FieldError(
            "FILE", str(file), problem="is not UTF-8 text", fix="name a study file in YAML or JSON"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        what = getattr(error, "problem", None) or "cannot be parsed"
        raise FieldError(
            "FILE", str(file), problem=f"is not YAML: {what} in {where}", fix="mend that line"
        ) from error


def study_from(data: object) -> StudySpec:
    """Check plain data field by field, and its space against the catalogue of knobs.

    A model that is written as a path is made absolute, so that the study means the same from everywhere.

    Raises:
        FieldError: naming the first field that is wrong.
    """
    spec = parse_study(data)
    build_space(spec)
    if not is_path(spec.engine.model):
        return spec
    absolute = str(Path(spec.engine.model).expanduser().resolve())
    return spec.model_copy(update={"engine": spec.engine.model_copy(update={"model": absolute})})


def is_path(model: str) -> bool:
    """Whether a model is a folder rather than a Hugging Face id, which has at most one slash."""
    return model.startswith(("/", "./", "../", "~")) or model.count("/") > 1


def check_model_folder(spec: StudySpec) -> None:
    """Check a model that is a folder, where the worker will run on this machine.

    Raises:
        FieldError: the folder does not exist or holds no model.
    """
    model = spec.engine.model
    if not is_path(model):
        return
    if not Path(model).is_dir():
        raise FieldError(
            "engine.model",
            model,
            problem="there is no such folder",
            fix="name a folder with config.json, or a Hugging Face id",
        )
    if not Path(model, "config.json").is_file():
        raise FieldError(
            "engine.model",
            model,
            problem="the folder has no config.json",
            fix="name the folder that holds the model's config.json",
        )


def key_for(spec: StudySpec) -> str:
    """Equal for equal studies, so that creating one again gives the same one back."""
    return f"cli:{hashlib.sha256(spec.model_dump_json().encode()).hexdigest()}"
