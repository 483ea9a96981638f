"""A forest plot as positions from 0 to 100, for HTML without scripts: each activation's difference to the
reference with its interval, and the paper's difference.  Better is always to the right.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from iglu import zoo
from iglu_lab.recipes import spec_of
from iglu_lab.report.content import ComparedTask
from iglu_lab.stats.comparison import METRIC_LABELS, digits_of
from iglu_lab.stats.tabulate import numbered

_WIDEST = 2.5  # intervals are cut at this multiple of their usual extent
_MARGIN = 0.06  # fraction of the range, on either side


class ForestLine(NamedTuple):
    label: str
    difference: Any  # of the report or of iglu compare
    text: str
    published_text: str
    value: float
    low: float
    high: float
    is_cut: bool  # the interval extends beyond the axis
    published: float | None
    published_sign: str  # ◇, or an arrow at the edge


class Forest(NamedTuple):
    metric: str
    reference: str
    lines: list[ForestLine]
    ticks: list[tuple[float, str]]  # place and number

    @property
    def has_published(self) -> bool:
        return any(line.published is not None for line in self.lines)


def forests(task: ComparedTask) -> Iterator[Forest]:
    """The forest plot of the main metric, then those of its parts."""
    yield forest(task.differences)
    for metric in dict.fromkeys(one.metric for one in task.parts):
        yield forest([one for one in task.parts if one.metric == metric])


def forest(differences: Sequence[Any], digits: int | None = None) -> Forest:
    """The forest plot of these differences, the best on top; ``digits`` defaults to those of the metric."""
    metric, reference = differences[0].metric, differences[0].reference
    digits = digits_of(metric) if digits is None else digits
    low, high = _reach(differences)
    left, right = (high, low) if differences[0].lower_is_better else (low, high)

    def place(value: float) -> float:
        """The position: 0 at ``left``, 100 at ``right``, whichever of the two is greater."""
        return round(100 * min(max((value - left) / (right - left), 0.0), 1.0), 2)

    lines = []
    for one in sorted(differences, key=lambda one: one.gain.value, reverse=True):
        ends = (place(one.found.low), place(one.found.high))
        published = numbered(one.published, digits, "+")
        lines.append(
            ForestLine(
                spec_of(one.activation).label, one, one.found.text(digits, "+"), published.text,
                place(one.found.value), min(ends), max(ends),
                one.found.low < low or one.found.high > high,
                None if one.published is None else place(one.published), _sign(one.published, left, right),
            )
        )  # fmt: skip
    label = METRIC_LABELS.get(metric, metric)
    marks = [(place(tick), f"{tick:+g}" if tick else "0") for tick in ticks(low, high)]
    return Forest(label, zoo.parse(reference).label, lines, marks)


def _sign(published: float | None, left: float, right: float) -> str:
    if published is None or min(left, right) <= published <= max(left, right):
        return "◇"
    return "◁" if abs(published - left) < abs(published - right) else "▷"


def _reach(differences: Sequence[Any]) -> tuple[float, float]:
    """The range of our intervals; a published value far outside it is drawn at the edge."""
    values = [one.found.value for one in differences]
    halves = [(one.found.high - one.found.low) / 2 for one in differences if one.found.has_interval]
    usual = max(map(abs, values)) + (statistics.median(halves) if halves else 0.0)
    ends = [
        min(max(end, -_WIDEST * usual), _WIDEST * usual)
        for one in differences
        if one.found.has_interval
        for end in (one.found.low, one.found.high)
    ]
    low, high = (choose(0.0, *values, *ends) for choose in (min, max))
    margin = _MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers, including 0.

    >>> ticks(-0.7, 1.6)
    [-0.5, 0.0, 0.5, 1.0, 1.5]
    """
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [round(float(tick), 12) for tick in found if low <= tick <= high]
