"""Repeated runs, on another processor or at another commit: how well they agree.

A recipe determines a run up to the last digits of its sums, which differ between processors and versions and
grow in training.  That variation is a lower bound for differences between activations that can be detected.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from iglu_lab.runs.folder import Run
from iglu_lab.runs.provenance import describe_provenance
from iglu_lab.stats.comparison import (
    METRIC_LABELS,
    by_identity,
    digits_of,
    is_number,
    setting_label,
    setting_of,
)
from iglu_lab.stats.statistics import estimate
from iglu_lab.stats.tabulate import Cell, Table, estimated, numbered


class Repeat(NamedTuple):
    """A run and the same run, repeated."""

    first: Run  # the one that counts
    again: Run

    @property
    def difference(self) -> float | None:
        """The difference of the main metric after the last epoch; None if either run has no number."""
        metric = self.first.metric
        values = [
            float(run.last[metric]) for run in self if run.is_complete and is_number(run.last.get(metric))
        ]
        return values[1] - values[0] if len(values) == 2 else None


def repeated(runs: Iterable[Run]) -> list[Repeat]:
    """All repeats of complete runs; a copy of a run (same start, same numbers) is not a repeat."""
    found = []
    for same in by_identity(runs):
        first = max(same, key=lambda run: len(run.history))
        seen = [first]
        for run in same:
            if first.is_complete and run.is_complete and not any(_is_copy(run, other) for other in seen):
                seen.append(run)
                found.append(Repeat(first, run))
    return found


def _is_copy(one: Run, other: Run) -> bool:
    is_same_start = one.provenance.get("date") == other.provenance.get("date")
    return is_same_start and one.without_timings() == other.without_timings()


def replication_table(repeats: Sequence[Repeat]) -> Table:
    """One line per setting and machine on which its runs were repeated."""
    groups: dict[tuple[str, str, str], list[Repeat]] = {}
    for each in repeats:
        setting = setting_label(setting_of(each.first.recipe))
        places = (describe_provenance(each.first.provenance), describe_provenance(each.again.provenance))
        groups.setdefault((setting, *places), []).append(each)
    headers = (
        "setting", "metric", ("repeated", "runs"), ("repeated", "identical"),
        ("repeat minus first", "mean"), ("repeat minus first", "standard deviation"),
        ("repeat minus first", "largest"), "standard deviation between seeds",
    )  # fmt: skip
    rows = [_row(setting, places, group) for (setting, *places), group in groups.items()]
    notes = (
        "All metrics are of the last epoch. A difference between activations is meaningless if it is smaller "
        "than that between a run and its repeat, which the variation over seeds includes.",
    )
    return Table.of("replication", "Repeated runs", headers, rows, notes)


def _row(setting: str, places: Sequence[str], group: Sequence[Repeat]) -> tuple[Cell | str | int | None, ...]:
    metric = group[0].first.metric
    digits = digits_of(metric)
    differences = [each.difference for each in group if each.difference is not None]
    where = Cell(setting, note=f"first: {places[0]}; repeat: {places[1]}")
    lead = (where, METRIC_LABELS.get(metric, metric), len(group))
    if not differences:
        return (*lead, *[None] * 5)
    found = estimate(differences)
    return (
        *lead,
        sum(difference == 0 for difference in differences),
        estimated(found, digits, "+"),
        numbered(found.sd, digits) if len(differences) > 1 else None,
        numbered(max(differences, key=abs), digits, "+"),
        numbered(_between_seeds(group), digits),
    )


def _between_seeds(group: Sequence[Repeat]) -> float | None:
    """The standard deviation over seeds, averaged over activations; None if none has two seeds."""
    values: dict[str, list[float]] = {}
    for each in group:
        if each.difference is not None:
            values.setdefault(each.first.recipe.activation, []).append(each.first.last[each.first.metric])
    spreads = [statistics.stdev(seeds) for seeds in values.values() if len(seeds) > 1]
    return statistics.fmean(spreads) if spreads else None
