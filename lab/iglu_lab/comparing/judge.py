"""The verdicts of a comparison, by the rules of :mod:`iglu_lab.stats.contrasts` and three more:

- There is no verdict with fewer than three seeds, or if the difference is the same in every seed: then the
  run ignores its seed or its activation.
- A diverged run has no number, and counts against its activation: an activation with a diverged run is never
  better or equivalent, and none is worse than, or equivalent to, a reference with a diverged run.
- The minimum detectable difference and the seeds needed are at the level of the strictest comparison of the
  family, so that the power is at least 80% whatever the other comparisons are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from iglu_lab.comparing.plan import FEWEST_SEEDS, LEVEL
from iglu_lab.stats.contrasts import (
    UNKNOWN,
    Category,
    MeanDifference,
    against_diverged,
    common_seeds,
    judge,
    paired,
)
from iglu_lab.stats.statistics import minimum_detectable_difference, seeds_needed


class Case(NamedTuple):
    """The numbers of an activation and of the reference by seed, and how many runs of each diverged."""

    values: Mapping[int, float]
    reference: Mapping[int, float]
    diverged: int = 0
    reference_diverged: int = 0


class Verdict(NamedTuple):
    """The verdict on one activation."""

    category: Category | None  # None: no verdict
    difference: MeanDifference | None  # from at least two seeds
    p_value: float | None = None  # Holm-adjusted
    reason: str = ""  # why there is no verdict, or what it would be without diverged runs
    detectable: float | None = None
    needed: int | None = None  # seeds, if inconclusive and there is a margin


def judge_all(
    cases: Mapping[str, Case],
    margin: float | None = None,
    lower_is_better: bool = False,
    level: float = LEVEL,
) -> dict[str, Verdict]:
    """Judge one family of comparisons.  Those without a number stay in the family, with p = 1."""
    differences = {name: _difference(case) for name, case in cases.items()}
    reasons = {name: _reason(each, cases[name]) for name, each in differences.items()}
    family = {name: UNKNOWN if each is None or reasons[name] else each for name, each in differences.items()}
    found = {each.text: each for each in judge(family, margin or 0.0, lower_is_better, level, level)}
    strictest = level / len(cases)
    verdicts = {}
    for name, difference in differences.items():
        if difference is None or reasons[name]:
            verdicts[name] = Verdict(None, difference, reason=reasons[name])
            continue
        category, reason = _with_diverged(found[name].category, cases[name])
        sd = difference.error * math.sqrt(difference.seeds) / math.sqrt(2)
        needed = seeds_needed(margin, sd, strictest) if margin and category == "inconclusive" else None
        detectable = minimum_detectable_difference(difference.seeds, sd, strictest)
        verdicts[name] = Verdict(category, difference, found[name].p_value, reason, detectable, needed)
    return verdicts


def _difference(case: Case) -> MeanDifference | None:
    values = {"values": case.values, "reference": case.reference}
    return paired(values, ["values"], ["reference"]) if len(common_seeds(values)) > 1 else None


def _reason(difference: MeanDifference | None, case: Case) -> str:
    """Why there is no verdict; empty if there is one."""
    if difference is None or difference.seeds < FEWEST_SEEDS:
        return f"fewer than {FEWEST_SEEDS} seeds have a number for both"
    rounding = 1e-12 * max(map(abs, (*case.values.values(), *case.reference.values())))
    if difference.error <= rounding:
        return "the same difference in every seed: does the run use its activation and its seed?"
    return ""


def _with_diverged(category: Category, case: Case) -> tuple[Category, str]:
    """The category, and the one without diverged runs if that differs."""
    result = against_diverged(category, case.diverged, case.reference_diverged)
    if result == category:
        return category, ""
    whose = f"its {case.diverged} diverged"
    if against_diverged(category, case.diverged, 0) == category:
        whose = f"the reference's {case.reference_diverged} diverged"
    return result, f"{category} without {whose}"
