"""Decisions are recorded, and every record has all its parts."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
PARTS = ["## Context", "## Decision", "## Consequences", "## Alternatives", "## References"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_record_has_every_part_in_order(record: Path) -> None:
    text = record.read_text()
    assert re.search(r"^- Status: (accepted|superseded by \d{4})$", text, re.M)
    assert re.search(r"^- Area: .+$", text, re.M)
    assert re.search(r"^- Date: \d{4}-\d{2}-\d{2}$", text, re.M)
    positions = [text.index(part) for part in PARTS]
    assert positions == sorted(positions)


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_code_that_a_record_refers_to_exists(record: Path) -> None:
    references = record.read_text().split("## References")[1]
    for path in re.findall(r"`([\w./-]+)`", references):
        assert (ROOT / path).exists(), f"{record.name} refers to {path}"


def test_index_lists_every_record() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert [record.name for record in RECORDS] == re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", index)
