"""One sitting beside an earlier one: which ratios moved by more than they vary from round to round.

Times of two sittings are not compared: the machine was busier, or another.  A ratio is of two subjects that
saw the same machine in the same round, so it may be.  It has moved where each median is outside the other's
spread: where neither sitting thinks the other's likely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iglu.lab.bench.sittings import Timing
from iglu.lab.bench.timing import PASS_LABELS, where_of

Spread = Mapping[str, float]

# What makes two rows the same measurement; a field that a kind of row lacks is None in both.
_SAME = ("kind", "activation", "kernel", "device", "dtype", "threads", "elements", "pass", "model")


@dataclass(frozen=True)
class Moved:
    """A ratio that is not what it was."""

    row: Timing
    reference: str
    before: Spread
    now: Spread

    def __str__(self) -> str:
        row = self.row
        place = where_of(row)
        if row["kind"] == "training":
            what = f"{row['label']} ({row['kernel']}) in a step of {row['model_label']}, {place}"
        else:
            size = f"{row['elements']:,} elements"
            what = f"{row['label']} ({row['kernel']}), {PASS_LABELS[row['pass']]}, {size}, {place}"
        was, now = (
            "{median:.2f} [{low:.2f}, {high:.2f}]".format(**spread) for spread in (self.before, self.now)
        )
        return f"{what}: {now} times {self.reference}, was {was}"


def moved(before: Sequence[Timing], now: Sequence[Timing]) -> list[Moved]:
    """Every ratio of both that has moved, in the order of the new rows."""
    return [
        each
        for each in _compared(before, now)
        if not (_within(each.before["median"], each.now) or _within(each.now["median"], each.before))
    ]


def compared(before: Sequence[Timing], now: Sequence[Timing]) -> int:
    """How many ratios are in both."""
    return sum(1 for _ in _compared(before, now))


def _compared(before: Sequence[Timing], now: Sequence[Timing]) -> Iterator[Moved]:
    earlier = {_identity(row): row["ratios"] for row in before}
    for row in now:
        for reference, was in earlier.get(_identity(row), {}).items():
            if reference in row["ratios"]:
                yield Moved(row, reference, was, row["ratios"][reference])


def _identity(row: Timing) -> tuple[Any, ...]:
    return tuple(row.get(field) for field in _SAME)


def _within(value: float, spread: Spread) -> bool:
    return spread["low"] <= value <= spread["high"]
