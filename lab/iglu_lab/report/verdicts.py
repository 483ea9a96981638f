"""Whether a claim holds, by one rule for all that was measured and for either scale.

A claim says that some number lies on one side of a bound; it holds where the 95% interval of ours lies
wholly on that side, does not hold where it lies on the other, and otherwise the evidence is not enough.  A
claim about several settings holds if it does in all of them, and does not if it fails in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from iglu_lab.stats.statistics import Estimate

Verdict = Literal["holds", "does not hold", "not enough evidence"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "not enough evidence")
OPEN: Verdict = "not enough evidence"


def side(interval: Estimate, bound: float = 0.0) -> Verdict:
    """Of the claim that the number is above the bound."""
    if not interval.excludes(bound):
        return OPEN
    return "holds" if interval.low > bound else "does not hold"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim about several settings."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if verdicts and set(verdicts) == {"holds"} else OPEN
