"""The same runs made again, on another processor or with another state of the code: how well they agree.

What a run computes is fixed by its recipe but for the last digits of its sums, which differ between
processors and versions; training lets them grow.  That spread is the floor under every difference between
activations.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from iglu.lab.results.comparison import (
    METRIC_LABELS,
    by_identity,
    digits_of,
    is_number,
    setting_label,
    setting_of,
)
from iglu.lab.results.statistics import estimate
from iglu.lab.results.tables import Cell, Table, estimated, numbered
from iglu.lab.runs.folder import Run
from iglu.lab.runs.provenance import sentence_of


class Repeat(NamedTuple):
    """A run and the same run made again."""

    first: Run  # the one that counts
    again: Run

    @property
    def difference(self) -> float | None:
        """Of what tables show, after the last epoch; None where either has no number."""
        metric = self.first.metric
        values = [float(run.last[metric]) for run in self if run.is_whole and is_number(run.last.get(metric))]
        return values[1] - values[0] if len(values) == 2 else None


def repeated(runs: Iterable[Run]) -> list[Repeat]:
    """A copy, which tells the same of the same start, is none, nor is a run with epochs to go."""
    found = []
    for same in by_identity(runs):
        first = max(same, key=lambda run: len(run.history))
        seen = [first]
        for run in same:
            if first.is_whole and run.is_whole and not any(_is_copy(run, other) for other in seen):
                seen.append(run)
                found.append(Repeat(first, run))
    return found


def _is_copy(one: Run, other: Run) -> bool:
    is_same_start = one.provenance.get("date") == other.provenance.get("date")
    return is_same_start and one.without_timings() == other.without_timings()


def replication_table(repeats: Sequence[Repeat]) -> Table:
    """A line for each setting and each place where its runs were made again."""
    groups: dict[tuple[str, str, str], list[Repeat]] = {}
    for each in repeats:
        setting = setting_label(setting_of(each.first.recipe))
        places = (sentence_of(each.first.provenance), sentence_of(each.again.provenance))
        groups.setdefault((setting, *places), []).append(each)
    headers = (
        "setting", "metric", ("made again", "runs"), ("made again", "the same to the last digit"),
        ("again minus first", "mean"), ("again minus first", "standard deviation"),
        ("again minus first", "largest"), "standard deviation between seeds",
    )  # fmt: skip
    rows = [_row(setting, places, group) for (setting, *places), group in groups.items()]
    notes = (
        "Every metric is of the last epoch. Two activations that differ by less than a run differs from "
        "itself are not told apart; the seeds of a comparison carry that spread within theirs.",
    )
    return Table.of("replication", "The same runs made again", headers, rows, notes)


def _row(setting: str, places: Sequence[str], group: Sequence[Repeat]) -> tuple[Cell | str | int | None, ...]:
    metric = group[0].first.metric
    digits = digits_of(metric)
    differences = [each.difference for each in group if each.difference is not None]
    where = Cell(setting, note=f"first: {places[0]}; again: {places[1]}")
    lead = (where, METRIC_LABELS.get(metric, metric), len(group))
    if not differences:
        return (*lead, *[None] * 5)
    found = estimate(differences)
    return (
        *lead,
        sum(difference == 0 for difference in differences),
        estimated(found, digits, "+"),
        numbered(found.deviation, digits) if len(differences) > 1 else None,
        numbered(max(differences, key=abs), digits, "+"),
        numbered(_between_seeds(group), digits),
    )


def _between_seeds(group: Sequence[Repeat]) -> float | None:
    """Of one run, averaged over activations; None where none has two seeds."""
    values: dict[str, list[float]] = {}
    for each in group:
        if each.difference is not None:
            values.setdefault(each.first.recipe.activation, []).append(each.first.last[each.first.metric])
    spreads = [statistics.stdev(seeds) for seeds in values.values() if len(seeds) > 1]
    return statistics.fmean(spreads) if spreads else None
