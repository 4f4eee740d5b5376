"""Why an attempt failed: evidence first, words of the log last (docs/verdicts.md)."""

from workers.failures.classify import classify
from workers.failures.evidence import Evidence

__all__ = ["Evidence", "classify"]
