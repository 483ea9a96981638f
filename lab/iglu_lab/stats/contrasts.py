"""Planned comparisons of activations over common seeds: significance and equivalence.

A difference is significant if its Holm-adjusted p-value is below the level of the plan.  Two activations are
equivalent if the 90% interval of their difference is inside the margin (two one-sided tests at 5%).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from iglu_lab.stats.statistics import Estimate, estimate, holm, seeds_needed, t_quantile

Values = Mapping[str, Mapping[int, float]]  # by activation, then by seed
Category = Literal["better", "worse", "equivalent", "inconclusive"]


class MeanDifference(NamedTuple):
    """A mean difference over seeds with its standard error and degrees of freedom."""

    value: float
    error: float
    freedom: int
    seeds: int

    @classmethod
    def of(cls, found: Estimate) -> MeanDifference:
        """Convert an estimate from at least two seeds."""
        return cls(found.value, found.sd / math.sqrt(found.size), found.size - 1, found.size)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """
        >>> low, high = MeanDifference(1.0, 0.5, 9, 10).interval()
        >>> round(low, 2), round(high, 2)
        (-0.13, 2.13)
        """
        half = t_quantile((1 + level) / 2, self.freedom) * self.error
        return self.value - half, self.value + half

    @property
    def p_value(self) -> float:
        """The two-sided p-value of the t-test for a difference of 0; 1 if the difference is the same in every
        seed up to rounding, since its variation is then unknown.

        >>> MeanDifference(0.4, 0.0, 2, 3).p_value
        1.0
        """
        from scipy.stats import t

        if self.error <= 1e-12 * abs(self.value):
            return 1.0
        return float(2 * t.sf(abs(self.value) / self.error, self.freedom))

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.value, *self.interval(), self.seeds, self.error * math.sqrt(self.seeds))

    def is_within(self, margin: float, level: float = 0.05) -> bool:
        """Whether two one-sided tests at this level show that the difference is in (-margin, margin): at 5%,
        whether the 90% interval is in it."""
        low, high = self.interval(1 - 2 * level)
        return -margin < low and high < margin

    def seeds_needed(self, margin: float) -> int:
        """Seeds for 80% power to detect a difference of the margin, at the observed standard deviation."""
        pairs = self.error * math.sqrt(self.seeds)
        return 2 if pairs == 0 else seeds_needed(margin, pairs / math.sqrt(2))


UNKNOWN = MeanDifference(0.0, math.inf, 1, 0)  # from too few numbers: p = 1, and within no margin


def common_seeds(values: Values) -> list[int]:
    """The seeds that all activations have."""
    return sorted(set.intersection(*(set(of) for of in values.values()))) if values else []


def paired(values: Values, plus: Sequence[str], minus: Sequence[str]) -> MeanDifference:
    """The mean over ``plus`` minus the mean over ``minus``, seed by seed.

    >>> paired({"a": {0: 5.0, 1: 7.0}, "b": {0: 4.0, 1: 5.0}}, ["a"], ["b"])
    MeanDifference(value=1.5, error=0.5, freedom=1, seeds=2)
    """
    named = {name: values[name] for name in (*plus, *minus)}
    return MeanDifference.of(estimate(_contrasts(named, plus, minus).values()))


def blocked(values: Values, plus: Sequence[str], minus: Sequence[str]) -> MeanDifference:
    """The same contrast in the model value = activation + seed + residual, fitted to all of ``values``.

    With a activations and n seeds the residual variance s^2 is pooled over all of them and has (a-1)(n-1)
    degrees of freedom; a contrast with weights c has the standard error s sqrt(sum c^2 / n).
    """
    seeds = _contrasts(values, plus, minus)
    activation_means = {name: statistics.fmean(of[seed] for seed in seeds) for name, of in values.items()}
    seed_means = {seed: statistics.fmean(of[seed] for of in values.values()) for seed in seeds}
    mean = statistics.fmean(seed_means.values())
    freedom = (len(values) - 1) * (len(seeds) - 1)
    squares = math.fsum(
        (of[seed] - activation_means[name] - seed_means[seed] + mean) ** 2
        for name, of in values.items()
        for seed in seeds
    )
    weights = 1 / len(plus) + 1 / len(minus)  # the sum of c^2
    error = math.sqrt(squares / freedom * weights / len(seeds))
    return MeanDifference(statistics.fmean(seeds.values()), error, freedom, len(seeds))


def _contrasts(values: Values, plus: Sequence[str], minus: Sequence[str]) -> dict[int, float]:
    """The contrast by seed, for the seeds that all of ``values`` have."""
    seeds = common_seeds(values)
    if len(seeds) < 2:
        raise ValueError(f"a comparison needs at least two seeds in common, got {len(seeds)}")
    one, other = (
        {seed: statistics.fmean(values[name][seed] for name in side) for seed in seeds}
        for side in (plus, minus)
    )
    return {seed: one[seed] - other[seed] for seed in seeds}


def against_diverged(category: Category, lost: int, other_lost: int) -> Category:
    """The category if ``lost`` runs of the activation and ``other_lost`` runs of the other one diverged: such
    a run has no number and counts against its side, which is then neither better nor equivalent.

    >>> against_diverged("better", 1, 0), against_diverged("worse", 1, 0), against_diverged("worse", 0, 1)
    ('inconclusive', 'worse', 'inconclusive')
    """
    is_undecided = (lost and category in ("better", "equivalent")) or (
        other_lost and category in ("worse", "equivalent")
    )
    return "inconclusive" if is_undecided else category


_MARGIN_WORDS = {(0.5, "points"): "half a point", (1.0, "points"): "one point"}


class ComparisonResult(NamedTuple):
    """The result of one planned comparison."""

    text: str
    difference: MeanDifference
    p_value: float  # Holm-adjusted within its family
    category: Category
    gain: float  # the difference, signed so that above 0 is better
    margin: float

    @property
    def is_significant(self) -> bool:
        return self.category in ("better", "worse")

    def describe(self, unit: str = "points", digits: int = 2) -> str:
        """Significance first, then the size.

        >>> found = MeanDifference(0.3, 0.05, 19, 20)
        >>> ComparisonResult("a - b", found, 0.001, "better", 0.3, 0.5).describe()
        'helped by 0.30 points and lies within half a point'
        """
        within = _MARGIN_WORDS.get((self.margin, unit), f"{self.margin:g} {unit}")
        if self.is_significant:
            verb = "helped by" if self.category == "better" else "cost"
            size = f"{verb} {abs(self.gain):.{digits}f} {unit}"
            return f"{size} and lies within {within}" if self.difference.is_within(self.margin) else size
        if self.category == "equivalent":
            return f"no difference of {within}"
        return f"inconclusive; about {self.difference.seeds_needed(self.margin)} seeds would decide"


def judge(
    differences: Mapping[str, MeanDifference],
    margin: float,
    lower_is_better: bool = False,
    level: float = 0.05,
    equivalence: float = 0.05,
) -> list[ComparisonResult]:
    """Adjust one family of comparisons by Holm's method and assign each to one of four categories;
    ``equivalence`` is the level of the two one-sided tests."""
    adjusted = holm({text: each.p_value for text, each in differences.items()})
    sign = -1 if lower_is_better else 1
    results = []
    for text, each in differences.items():
        gain = sign * each.value
        if adjusted[text] < level:
            category: Category = "better" if gain > 0 else "worse"
        else:
            category = "equivalent" if each.is_within(margin, equivalence) else "inconclusive"
        results.append(ComparisonResult(text, each, adjusted[text], category, gain, margin))
    return results
