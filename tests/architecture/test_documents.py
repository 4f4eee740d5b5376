"""Documents agree with the code and with each other."""

import re
from pathlib import Path

import pytest
import yaml

from app.lifecycle.lease import LEASE
from app.lifecycle.study import STUDY
from tuner.metrics import LATENCIES, METRICS, STATISTICS
from tuner.protocol import FailureKind
from tuner.space import build_space
from tuner.spec import parse_study

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def table_under(heading: str) -> dict[str, set[str]]:
    text = (ROOT / "docs" / "life-cycles.md").read_text()
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| ([\w, ]+) \|$", section, re.M)
    return {source: set(targets.split(", ")) for source, targets in rows if source != "from"}


@pytest.mark.parametrize(("heading", "machine"), [("Study", STUDY), ("Lease", LEASE)])
def test_life_cycle_tables_are_those_of_the_code(heading: str, machine: object) -> None:
    moves = machine.moves  # type: ignore[attr-defined]  # either machine
    in_code = {
        source.value: {target.value for target in targets} for source, targets in moves.items() if targets
    }
    assert table_under(heading) == in_code


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_every_failure_kind_is_explained() -> None:
    text = (ROOT / "docs" / "verdicts.md").read_text()
    assert [kind.value for kind in FailureKind if f"`{kind.value}`" not in text] == []


def test_every_latency_and_statistic_is_explained() -> None:
    text = (ROOT / "docs" / "measurement.md").read_text().lower()
    assert [word for word in (*LATENCIES, *STATISTICS) if word not in text] == []


def test_changelog_has_an_unreleased_part() -> None:
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()


def test_the_study_file_of_the_documents_is_valid() -> None:
    text = (ROOT / "docs" / "study-file.md").read_text()
    example = text.split("```yaml\n")[1].split("```")[0]
    spec = parse_study(yaml.safe_load(example))
    assert build_space(spec).distributions().keys() >= {"max_num_batched_tokens", "block_size"}


def test_every_metric_without_a_statistic_is_listed_in_the_study_file_document() -> None:
    text = (ROOT / "docs" / "study-file.md").read_text()
    plain = [name for name in METRICS if name.split("_")[0] not in LATENCIES]
    assert [name for name in plain if f"`{name}`" not in text] == []
