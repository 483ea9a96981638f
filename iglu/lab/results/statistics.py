"""A number with the interval that holds it: means over seeds, medians over rounds."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Estimate(NamedTuple):
    """An estimate and its 95% interval; where the sample is too small for one, that is the whole line."""

    value: float
    low: float
    high: float
    size: int  # of the sample: seeds, or rounds
    deviation: float = math.nan  # of one seed

    def text(self, digits: int = 2, sign: str = "") -> str:
        """The value, with half its interval where there is one; ``sign="+"`` for a difference.

        >>> Estimate(1.0, 0.5, 1.5, 3).text(1, "+")
        '+1.0 ± 0.5'
        """
        value = f"{self.value:{sign},.{digits}f}"
        return f"{value} ± {(self.high - self.low) / 2:,.{digits}f}" if self.has_interval else value

    def span(self, digits: int = 2) -> str:
        """With both ends, where they are not the same distance away; alone where there is no interval.

        >>> Estimate(1.0, 0.9, 1.3, 50).span()
        '1.00 [0.90, 1.30]'
        """
        value = f"{self.value:.{digits}f}"
        return f"{value} [{self.low:.{digits}f}, {self.high:.{digits}f}]" if self.has_interval else value

    def __str__(self) -> str:
        return self.text()

    def __neg__(self) -> Estimate:
        return Estimate(-self.value, -self.high, -self.low, self.size, self.deviation)

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.high - self.low)

    def moved(self, by: float) -> Estimate:
        return self._replace(value=self.value + by, low=self.low + by, high=self.high + by)

    def excludes(self, bound: float) -> bool:
        """Whether the whole interval is on one side of the bound; one that ends there does not exclude it."""
        return self.low > bound or self.high < bound


def estimate(values: Iterable[float]) -> Estimate:
    """The mean over seeds, with its t-interval.

    >>> print(estimate([1.0, 2.0, 3.0]))
    2.00 ± 2.48
    """
    sample = list(values)
    if not sample:
        raise ValueError("No values to take the mean of")
    count, mean = len(sample), statistics.fmean(sample)
    if count < 2:
        return Estimate(mean, -math.inf, math.inf, count)
    deviation = statistics.stdev(sample, mean)
    half = _t_quantile(count - 1) * deviation / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count, deviation)


@functools.cache
def _t_quantile(freedom: int) -> float:
    """The 97.5% point; scipy takes a while over each, and over its import."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def median(values: Sequence[float]) -> Estimate:
    """The median over rounds, with its interval from order statistics: the number of values below the true
    median is binomial(n, 1/2), whatever their distribution.

    >>> median([5.0, 1.0, 4.0, 2.0, 3.0, 6.0]).span()
    '3.50 [1.00, 6.00]'
    """
    from scipy.stats import quantile_test

    found = quantile_test(values, p=0.5).confidence_interval(0.95)
    low, high = (
        end if math.isfinite(end) else side * math.inf for end, side in zip(found, (-1, 1), strict=True)
    )
    return Estimate(statistics.median(values), float(low), float(high), len(values))


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> Estimate | None:
    """``values`` minus ``reference``, seed by seed: what the seeds share (order, first weights)
    cancels, so that the interval is narrower than that of either mean.  None without a common seed.

    >>> print(paired_difference({0: 5.0, 1: 9.0, 2: 7.0}, {0: 4.0, 1: 8.0}))
    1.00 ± 0.00
    """
    common = [value - reference[seed] for seed, value in values.items() if seed in reference]
    return estimate(common) if common else None


def p_value(found: Estimate) -> float:
    """Of the t-test that the mean is 0; NaN without an interval."""
    from scipy.stats import t

    if not found.has_interval:
        return math.nan
    if found.deviation == 0:
        return float(found.value == 0)
    return float(2 * t.sf(abs(found.value) * math.sqrt(found.size) / found.deviation, found.size - 1))


def smallest_difference(seeds: int, spread: float) -> float:
    """What so many seeds show four times out of five, at 5%, if one run has the standard deviation
    ``spread`` and pairing by seed gains nothing.

    >>> round(smallest_difference(10, 0.7), 2)
    0.98
    """
    from scipy.stats import t

    if seeds < 2:
        return math.inf
    points = _t_quantile(seeds - 1) + t.ppf(0.8, seeds - 1)
    return float(points * spread * math.sqrt(2 / seeds))


def seeds_to_show(difference: float, spread: float) -> int:
    """How many it takes until ``smallest_difference`` is no larger than this one, which is not 0.

    >>> seeds_to_show(1.0, 0.7), seeds_to_show(-0.98, 0.7)
    (10, 11)
    """
    if difference == 0 or not math.isfinite(difference):
        raise ValueError(f"A difference to be shown must be finite and not 0, got {difference}")
    normal = statistics.NormalDist()
    points = normal.inv_cdf(0.975) + normal.inv_cdf(0.8)
    seeds = max(2, math.floor(2 * (points * spread / difference) ** 2))  # Student's t takes a few more
    while smallest_difference(seeds, spread) > abs(difference):
        seeds += 1
    return seeds


def holm(chances: Mapping[Key, float]) -> dict[Key, float]:
    """Chances of error (p-values) of several comparisons, each raised so that all together stay below a
    level: the smallest times their number, the next times one fewer, and none below the one before.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    raised: dict[Key, float] = {}
    least = 0.0
    for place, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        least = max(least, min((len(chances) - place) * chances[name], 1.0))
        raised[name] = least
    return raised
