"""Compare the ratios of two sessions, to detect slowdowns.

Times of two sessions are not comparable: the load or the machine may differ.  Ratios are comparable, since
both cases of a round ran under the same conditions.  A ratio has changed if each median is outside the 20% to
80% quantile range of the other session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iglu_lab.bench.sessions import Timing
from iglu_lab.bench.timing import PASS_LABELS, where_of

Quantiles = Mapping[str, float]

# The fields that identify a measurement; None if a kind of row does not have the field.
_SAME = ("kind", "activation", "kernel", "device", "dtype", "threads", "elements", "pass", "model")


@dataclass(frozen=True)
class Ratio:
    """A ratio that both sessions have."""

    row: Timing
    reference: str
    before: Quantiles
    now: Quantiles

    @property
    def has_changed(self) -> bool:
        return not (_within(self.before["median"], self.now) or _within(self.now["median"], self.before))

    def __str__(self) -> str:
        row = self.row
        place = where_of(row)
        if row["kind"] == "training":
            what = f"{row['label']} ({row['kernel']}) in a step of {row['model_label']}, {place}"
        else:
            size = f"{row['elements']:,} elements"
            what = f"{row['label']} ({row['kernel']}), {PASS_LABELS[row['pass']]}, {size}, {place}"
        was, now = ("{median:.2f} [{low:.2f}, {high:.2f}]".format(**each) for each in (self.before, self.now))
        return f"{what}: {now} times {self.reference}, was {was}"


def compared(before: Sequence[Timing], now: Sequence[Timing]) -> list[Ratio]:
    """All ratios that both have, in the order of the new rows."""
    earlier = {_identity(row): row["ratios"] for row in before}
    return [
        Ratio(row, reference, was, row["ratios"][reference])
        for row in now
        for reference, was in earlier.get(_identity(row), {}).items()
        if reference in row["ratios"]
    ]


def _identity(row: Timing) -> tuple[Any, ...]:
    return tuple(row.get(field) for field in _SAME)


def _within(value: float, quantiles: Quantiles) -> bool:
    return quantiles["low"] <= value <= quantiles["high"]
