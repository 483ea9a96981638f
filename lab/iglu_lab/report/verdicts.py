"""Verdicts on claims, by one rule for all measurements and both scales.

A claim says that a number is on one side of a bound.  It holds if our 95% interval is entirely on that side,
does not hold if it is entirely on the other side, and otherwise there is not enough evidence.  A claim about
several settings holds if it holds in all of them, and does not hold if it fails in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from iglu_lab.stats.statistics import Estimate

Verdict = Literal["holds", "does not hold", "not enough evidence"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "not enough evidence")
INCONCLUSIVE: Verdict = "not enough evidence"


def judge_side(interval: Estimate, bound: float = 0.0) -> Verdict:
    """The verdict on the claim that the number is above the bound."""
    if not interval.excludes(bound):
        return INCONCLUSIVE
    return "holds" if interval.low > bound else "does not hold"


def combined(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim about several settings."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if verdicts and set(verdicts) == {"holds"} else INCONCLUSIVE
