"""Statistics over seeds."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from iglu.lab.runs.folder import Run


class Estimate(NamedTuple):
    """A mean over seeds and its 95% t-interval; of one value the interval is the whole line."""

    mean: float
    deviation: float
    low: float
    high: float
    seeds: int

    def text(self, digits: int = 2, sign: str = "") -> str:
        """The mean, with half its interval where there is one; ``sign="+"`` for a difference.

        >>> Estimate(1.0, 0.5, 0.5, 1.5, 3).text(1, "+")
        '+1.0 ± 0.5'
        """
        mean = f"{self.mean:{sign},.{digits}f}"
        return mean if self.seeds < 2 else f"{mean} ± {(self.high - self.low) / 2:,.{digits}f}"

    def __str__(self) -> str:
        return self.text()


def estimate(values: Iterable[float]) -> Estimate:
    """
    >>> print(estimate([1.0, 2.0, 3.0]))
    2.00 ± 2.48
    """
    sample = list(values)
    if not sample:
        raise ValueError("No values to take the mean of")
    count = len(sample)
    mean = math.fsum(sample) / count
    if count < 2:
        return Estimate(mean, math.nan, -math.inf, math.inf, count)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in sample) / (count - 1))
    half = _quantile(count - 1) * deviation / math.sqrt(count)
    return Estimate(mean, deviation, mean - half, mean + half, count)


@functools.cache
def _quantile(freedom: int) -> float:
    """The 97.5% point of Student's t; scipy takes a while over each."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def smallest_difference(seeds: int, spread: float, comparisons: int = 1) -> float:
    """What so many seeds show four times out of five, at 5% shared by ``comparisons``, if one run has the
    standard deviation ``spread`` and pairing by seed gains nothing.

    >>> round(smallest_difference(10, 0.7), 2), round(smallest_difference(10, 0.7, 9), 2)
    (0.98, 1.41)
    """
    from scipy.stats import t

    if seeds < 2:
        return math.inf
    points = t.ppf(1 - 0.025 / comparisons, seeds - 1) + t.ppf(0.8, seeds - 1)
    return float(points * spread * math.sqrt(2 / seeds))


def holm(chances: Mapping[str, float]) -> dict[str, float]:
    """Chances of error (p-values) of several comparisons, each raised so that all together stay below a
    level: the smallest times their number, the next times one fewer, and none below the one before.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    raised, least = {}, 0.0
    for place, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        least = max(least, min((len(chances) - place) * chances[name], 1.0))
        raised[name] = least
    return raised


def paired_difference(runs: Sequence[Run], reference: Sequence[Run], metric: str) -> Estimate:
    """The metric of ``runs`` minus that of ``reference``, seed by seed: what the seeds share (the data's
    order, the long tail's choice) cancels, so that the interval is narrower than that of either mean."""
    other = {run.recipe.seed: run.last[metric] for run in reference}
    return estimate(run.last[metric] - other[run.recipe.seed] for run in runs if run.recipe.seed in other)
