"""What commands print."""

from __future__ import annotations

import json

import pytest

from app.cli.output import complain, figure, print_json, print_pairs, print_table, when
from tuner.protocol import Length


def test_an_error_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    complain("two\n  lines")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "nightshift: two lines\n")


def test_json_holds_models_and_text_of_any_language(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"length": Length(mean=3), "list": [Length(mean=4)], "text": "größer"})
    out = capsys.readouterr().out
    assert json.loads(out)["list"] == [{"mean": 4, "stdev": 0.0}]
    assert "größer" in out


def test_table_never_cuts_a_cell_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b"), [("x" * 150, "[bold]y" * 20)], empty="none")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["x" * 150, "[bold]y" * 20]


def test_table_without_rows_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a",), [], empty="There is nothing.")
    assert capsys.readouterr().out == "There is nothing.\n"


def test_pairs_leave_out_what_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("name", "tiny"), ("reason", ""), ("state", "running")])
    assert capsys.readouterr().out == "name   tiny\nstate  running\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.31234, "0.312"), (2.0, "2"), (1234.56, "1,235"), (51.27, "51.3"), (0.0, "0")],
)
def test_figures_have_three_or_four_digits(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_moments_are_read_from_seconds_and_from_iso_8601() -> None:
    assert when(0.0) == when("1970-01-01T00:00:00Z")
    assert when(None) == "-"
