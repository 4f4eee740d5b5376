"""Why an attempt failed: evidence first, words of the log last (docs/verdicts.md)."""

from workers.failures.classify import classify
from workers.failures.evidence import Evidence
from workers.failures.reading import evidence_of_case, evidence_of_log

__all__ = ["Evidence", "classify", "evidence_of_case", "evidence_of_log"]
