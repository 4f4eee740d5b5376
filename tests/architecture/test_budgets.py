"""Size budgets and names that the linters have no rule for."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ["app", "tuner", "workers"]
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
MAY_CATCH_ALL = {"app/background/loop.py", "workers/agent.py", "app/api/errors.py"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    docstring = ast.get_docstring(function, clean=False)
    taken = (first.end_lineno or first.lineno) - first.lineno + 1 if docstring is not None else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - taken


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_file_and_its_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    long = {f.name: lines_without_docstring(f) for f in functions(ast.parse(text))}
    assert {name: n for name, n in long.items() if n > MAX_FUNCTION_LINES} == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [
        name_of(path) for path in SOURCES if path.stem in EMPTY_NAMES or path.parent.name in EMPTY_NAMES
    ] == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_only_the_outermost_loops_catch_everything(path: Path) -> None:
    if name_of(path) in MAY_CATCH_ALL:
        return
    for handler in (
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ExceptHandler)
    ):
        broad = handler.type is None or ast.unparse(handler.type) in {"Exception", "BaseException"}
        reraises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
        assert not broad or reraises, f"line {handler.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_ignored_types_say_why(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if "type: ignore" in line:
            assert re.search(r"type: ignore\[[\w-]+(, ?[\w-]+)*\]\s+#\s+\S+", line), f"line {number}"


def test_no_test_sleeps() -> None:
    sleeping = [
        f"{name_of(path)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "stand_in" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(time|asyncio)\.sleep\((?!0\))", line)
    ]
    assert sleeping == []
