"""The comparisons that a plan names, judged by rules 11, 12 and 16 of results/evidence/README.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from iglu_lab.report.gather import PlannedGrid
from iglu_lab.stats.comparison import Sample, activation_order, lower_is_better, samples
from iglu_lab.stats.contrasts import (
    UNKNOWN,
    Category,
    ComparisonResult,
    MeanDifference,
    Values,
    against_diverged,
    blocked,
    common_seeds,
    judge,
    paired,
)
from iglu_lab.stats.statistics import Estimate, estimate
from iglu_lab.sweep.grid import RATES, Contrast

DEFAULT_MARGIN = 0.5  # points, if a plan has none
FIXED_RATE = 1e-3  # learning rate at which the grid learning-rate also compares every activation

Key = tuple[str, float]  # activation and learning rate


class Judged(NamedTuple):
    """A comparison of a family, and the number of diverged runs on either side."""

    family: str  # "primary"
    result: ComparisonResult
    lost: tuple[int, int] = (0, 0)

    @property
    def category(self) -> Category:
        return against_diverged(self.result.category, *self.lost)

    @property
    def is_significant(self) -> bool:
        return self.category in ("better", "worse")

    @property
    def estimate(self) -> Estimate | None:
        """The difference; None with fewer than two common seeds."""
        return None if self.result.difference is UNKNOWN else self.result.difference.estimate

    def describe(self, unit: str = "points") -> str:
        if self.estimate is None:
            return "inconclusive: fewer than two seeds have a number for both"
        text = self.result.describe(unit)
        if self.category == self.result.category:
            return text
        return f"inconclusive: {text} without the diverged runs"


def samples_of(planned: PlannedGrid) -> dict[Key, Sample]:
    """The samples by activation, in the order of the zoo, and learning rate, in which settings may differ."""
    found = {
        (name, setting.lr): sample for setting, of in planned.samples.items() for name, sample in of.items()
    }
    return dict(sorted(found.items(), key=lambda item: (activation_order(item[0][0]), item[0][1])))


def values_of(planned: PlannedGrid, metric: str) -> dict[str, dict[int, float]]:
    """The values by activation, for grids with one learning rate per activation."""
    return {name: sample.values(metric) for (name, _), sample in samples_of(planned).items()}


def differences(
    planned: PlannedGrid, values: Values, contrasts: Sequence[Contrast]
) -> dict[str, MeanDifference]:
    """The difference of each contrast; UNKNOWN if its activations (with blocks: all activations) have fewer
    than two seeds in common.  Such a comparison stays in its family."""
    is_blocked = planned.plan.model == "blocks"
    found = {}
    for each in contrasts:
        names = {*each.plus, *each.minus, *(values if is_blocked else ())}
        is_known = len(common_seeds({name: values.get(name, {}) for name in names})) > 1
        compare = blocked if is_blocked else paired
        found[each.text] = compare(values, each.plus, each.minus) if is_known else UNKNOWN
    return found


def unit_of(metric: str) -> str:
    return "units" if lower_is_better(metric) else "points"


def judged(planned: PlannedGrid) -> list[Judged]:
    """Every comparison of an open grid, by the rule of its plan."""
    return judged_rates(planned) if planned.grid.title == RATES else judged_contrasts(planned)


class _Compared(NamedTuple):
    """A difference and the samples on either side of it."""

    difference: MeanDifference
    plus: Sequence[Key]
    minus: Sequence[Key]


def judged_contrasts(planned: PlannedGrid) -> list[Judged]:
    """The primary and the secondary family, adjusted separately."""
    plan, values = planned.plan, values_of(planned, planned.plan.metric)
    rates = dict(samples_of(planned).keys())

    def compared(contrasts: Sequence[Contrast]) -> dict[str, _Compared]:
        sides = {
            each.text: [[(name, rates[name]) for name in side if name in rates] for side in each[1:]]
            for each in contrasts
        }
        found = differences(planned, values, contrasts)
        return {text: _Compared(each, *sides[text]) for text, each in found.items()}

    return [
        *_judge_family(planned, "primary", compared(plan.primary), plan.level),
        *_judge_family(planned, "secondary", compared(plan.secondary)),
    ]


def _judge_family(
    planned: PlannedGrid, family: str, compared: Mapping[str, _Compared], level: float = 0.05
) -> list[Judged]:
    plan, known = planned.plan, samples_of(planned)

    def lost(keys: Sequence[Key]) -> int:
        return sum(len(known[key].diverged) for key in dict.fromkeys(keys) if key in known)

    results = judge(
        {text: each.difference for text, each in compared.items()},
        plan.margin or DEFAULT_MARGIN,
        lower_is_better(plan.metric),
        level,
    )
    return [
        Judged(family, each, (lost(compared[each.text].plus), lost(compared[each.text].minus)))
        for each in results
    ]


# -- learning rates ------------------------------------------------------------------------------------


def chosen_rates(planned: PlannedGrid) -> dict[str, float]:
    """The chosen rate by activation: of two rates, the one that is not the fixed one."""
    rates: dict[str, list[float]] = {}
    for name, rate in samples_of(planned):
        rates.setdefault(name, []).append(rate)
    return {name: next((rate for rate in of if rate != FIXED_RATE), FIXED_RATE) for name, of in rates.items()}


def judged_rates(planned: PlannedGrid) -> list[Judged]:
    """One family of the pairs, at the chosen rates and at the fixed one, and one of their interactions."""
    plan, rates = planned.plan, chosen_rates(planned)
    values = {key: sample.values(plan.metric) for key, sample in samples_of(planned).items()}

    def gap(one: Key, other: Key) -> dict[int, float]:
        first, second = values.get(one, {}), values.get(other, {})
        return {seed: first[seed] - second[seed] for seed in first.keys() & second.keys()}

    pairs: dict[str, _Compared] = {}
    interactions: dict[str, _Compared] = {}
    for text, (one,), (other,) in (*plan.primary, *plan.secondary):
        fixed = [(one, FIXED_RATE), (other, FIXED_RATE)]
        chosen = [(name, rates.get(name, FIXED_RATE)) for name in (one, other)]
        at_fixed, at_chosen = gap(*fixed), gap(*chosen)
        pairs[f"{text}, at {FIXED_RATE:g}"] = _Compared(_mean(at_fixed), fixed[:1], fixed[1:])
        if chosen == fixed:
            continue
        where = f"at {chosen[0][1]:g} and {chosen[1][1]:g}"
        pairs[f"{text}, {where}"] = _Compared(_mean(at_chosen), chosen[:1], chosen[1:])
        both = at_chosen.keys() & at_fixed.keys()
        change = _mean({seed: at_chosen[seed] - at_fixed[seed] for seed in both})
        every = fixed + chosen  # a diverged run in any of them makes the interaction inconclusive
        interactions[f"{text}, interaction"] = _Compared(change, every, every)
    return [
        *_judge_family(planned, "pairs", pairs),
        *_judge_family(planned, "interactions", interactions),
    ]


def _mean(gaps: Mapping[int, float]) -> MeanDifference:
    return MeanDifference.of(estimate(gaps.values())) if len(gaps) > 1 else UNKNOWN


def pilot_means(pilot: PlannedGrid) -> dict[str, dict[float, float]]:
    """The mean over seeds by activation and learning rate, without rates at which a run diverged."""
    found: dict[str, dict[float, float]] = {}
    for of in samples(pilot.recorded).values():
        for name, sample in of.items():
            means = found.setdefault(name, {})
            mean = sample.estimate(pilot.plan.metric)
            if mean is not None and not sample.diverged:
                means[sample.setting.lr] = mean.value
    return found


def chosen_rate(means: Mapping[float, float], within: float = 0.0) -> float:
    """The rate with the highest mean; of several rates within ``within`` of it, the one nearest to 1e-3.

    >>> chosen_rate({3e-4: 50.0, 1e-3: 49.8, 3e-3: 40.0}), chosen_rate({3e-4: 50.0, 1e-3: 49.8}, within=0.3)
    (0.0003, 0.001)
    """
    tied = [rate for rate, mean in means.items() if mean >= max(means.values()) - within]
    return min(tied, key=lambda rate: abs(math.log(rate / FIXED_RATE)))
