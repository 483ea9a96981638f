"""One sitting beside an earlier one: which ratios moved by more than they vary from round to round.

Times of two sittings are not compared: the machine was busier, or another.  A ratio is of two subjects that
saw the same machine in the same round, so it may be.  It has moved where each median is outside the other's
spread: where neither sitting thinks the other's likely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iglu.lab.bench.sittings import Timing
from iglu.lab.bench.timing import PASS_LABELS, where_of

Spread = Mapping[str, float]

# What makes two rows the same measurement; a field that a kind of row lacks is None in both.
_SAME = ("kind", "activation", "kernel", "device", "dtype", "threads", "elements", "pass", "model")


@dataclass(frozen=True)
class Ratio:
    """One that both sittings have."""

    row: Timing
    reference: str
    before: Spread
    now: Spread

    @property
    def has_moved(self) -> bool:
        return not (_within(self.before["median"], self.now) or _within(self.now["median"], self.before))

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


def compared(before: Sequence[Timing], now: Sequence[Timing]) -> list[Ratio]:
    """Every ratio that is in both, in the order of the new rows."""
    earlier = {_identity(row): row["ratios"] for row in before}
    return [
        Ratio(row, reference, was, row["ratios"][reference])
        for row in now
        for reference, was in earlier.get(_identity(row), {}).items()
        if reference in row["ratios"]
    ]


def _identity(row: Timing) -> tuple[Any, ...]:
    return tuple(row.get(field) for field in _SAME)


def _within(value: float, spread: Spread) -> bool:
    return spread["low"] <= value <= spread["high"]
