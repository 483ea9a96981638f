"""Estimates with 95% confidence intervals: means over seeds, medians over rounds; tests and power."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


def rounded(value: float, digits: int, sign: str = "") -> str:
    """Round to ``digits`` decimals, with commas; ``sign="+"`` for a difference.  There is no negative zero.

    >>> rounded(1234.5, 1, "+"), rounded(-0.001, 2)
    ('+1,234.5', '0.00')
    """
    return f"{round(value, digits) + 0.0:{sign},.{digits}f}"


class Estimate(NamedTuple):
    """An estimate and its 95% interval, which is infinite if the sample is too small."""

    value: float
    low: float
    high: float
    size: int  # of the sample: seeds, or rounds
    sd: float = math.nan  # sample standard deviation

    def text(self, digits: int = 2, sign: str = "") -> str:
        """The value ± half the interval, if there is one; ``sign="+"`` for a difference.

        >>> Estimate(1.0, 0.5, 1.5, 3).text(1, "+")
        '+1.0 ± 0.5'
        """
        value = rounded(self.value, digits, sign)
        return f"{value} ± {rounded((self.high - self.low) / 2, digits)}" if self.has_interval else value

    def span(self, digits: int = 2) -> str:
        """The value with both bounds of an asymmetric interval, if there is one.

        >>> Estimate(1.0, 0.9, 1.3, 50).span()
        '1.00 [0.90, 1.30]'
        """
        value, low, high = (rounded(each, digits) for each in self[:3])
        return f"{value} [{low}, {high}]" if self.has_interval else value

    def __str__(self) -> str:
        return self.text()

    def __neg__(self) -> Estimate:
        return Estimate(-self.value, -self.high, -self.low, self.size, self.sd)

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.high - self.low)

    def moved(self, by: float) -> Estimate:
        return self._replace(value=self.value + by, low=self.low + by, high=self.high + by)

    def excludes(self, bound: float) -> bool:
        """Whether the bound is outside the closed interval."""
        return self.low > bound or self.high < bound


def estimate(values: Iterable[float]) -> Estimate:
    """The mean with its t-interval.

    >>> print(estimate([1.0, 2.0, 3.0]))
    2.00 ± 2.48
    """
    sample = list(values)
    if not sample:
        raise ValueError("The mean needs at least one value")
    count, mean = len(sample), statistics.fmean(sample)
    if count < 2:
        return Estimate(mean, -math.inf, math.inf, count)
    sd = statistics.stdev(sample, mean)
    half = t_quantile(0.975, count - 1) * sd / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count, sd)


@functools.cache
def t_quantile(probability: float, freedom: int) -> float:
    """A quantile of Student's t; cached, since scipy is slow."""
    from scipy.stats import t

    return float(t.ppf(probability, freedom))


def median(values: Sequence[float]) -> Estimate:
    """The median with its interval from order statistics: for any distribution, the number of values below
    the true median is binomial(n, 1/2).

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
    """The mean of ``values`` minus ``reference``, paired by seed; None without a common seed.  What runs of
    one seed share (initial weights, data order) cancels.

    >>> print(paired_difference({0: 5.0, 1: 9.0, 2: 7.0}, {0: 4.0, 1: 8.0}))
    1.00 ± 0.00
    """
    common = [value - reference[seed] for seed, value in values.items() if seed in reference]
    return estimate(common) if common else None


def minimum_detectable_difference(seeds: int, sd: float, level: float = 0.05) -> float:
    """The difference detected with 80% power at this level, if runs have the standard deviation ``sd`` and
    pairing by seed gains nothing.

    >>> round(minimum_detectable_difference(10, 0.7), 2)
    0.99
    """
    return math.inf if seeds < 2 else _detectable_shift(seeds - 1, level) * sd * math.sqrt(2 / seeds)


@functools.cache
def _detectable_shift(freedom: int, level: float) -> float:
    """The noncentrality at which the t-test has 80% power: the difference in standard errors."""
    from scipy.optimize import brentq
    from scipy.stats import nct

    bound = t_quantile(1 - level / 2, freedom)
    return float(brentq(lambda shift: nct.sf(bound, freedom, shift) - 0.8, 0.0, 20 * bound))


def seeds_needed(difference: float, sd: float, level: float = 0.05) -> int:
    """The smallest number of seeds whose ``minimum_detectable_difference`` is at most this one.

    >>> seeds_needed(1.0, 0.7), seeds_needed(-0.98, 0.7)
    (10, 11)
    """
    if difference == 0 or not math.isfinite(difference):
        raise ValueError(f"The difference must be finite and not 0, got {difference}")
    normal = statistics.NormalDist()
    points = normal.inv_cdf(1 - level / 2) + normal.inv_cdf(0.8)
    seeds = max(2, math.floor(2 * (points * sd / difference) ** 2))  # Student's t needs a few more
    while minimum_detectable_difference(seeds, sd, level) > abs(difference):
        seeds += 1
    return seeds


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm-adjusted p-values: the smallest of n is multiplied by n, the next by n - 1, and so on, each at
    least as large as the one before.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    adjusted: dict[Key, float] = {}
    least = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        least = max(least, min((len(p_values) - place) * p_values[name], 1.0))
        adjusted[name] = least
    return adjusted
