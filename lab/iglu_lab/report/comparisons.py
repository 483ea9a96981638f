"""Every activation of a task compared with a reference and with GELU, paired by seed.

p-values are of the paired t-test, Holm-adjusted over all differences to the same reference in the grid that
was planned (without a plan: in the setting): rule 6 of results/evidence/README.md, applied to GELU as well.
Grids of the second round name their comparisons in the plan instead: see :mod:`iglu_lab.report.second_round`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from iglu_lab import paper
from iglu_lab.recipes import Recipe
from iglu_lab.report.content import ComparedTask, Difference
from iglu_lab.report.gather import Gathered, PlannedGrid
from iglu_lab.stats.comparison import REFERENCES, Sample, describe_setup, setting_of
from iglu_lab.stats.contrasts import MeanDifference
from iglu_lab.stats.statistics import estimate, holm

SHOTS = ("test_acc_many", "test_acc_medium", "test_acc_few")


class SettingSamples(NamedTuple):
    """The samples of one setting, and what they are compared by."""

    grid: str  # that was planned for it; empty without a plan
    setting: Recipe
    samples: Mapping[str, Sample]
    metric: str
    reference: str
    planned_seeds: int = 0


def settings_of(planned: PlannedGrid) -> list[SettingSamples]:
    """The settings of a grid, on the seeds that every activation of it has."""
    grid, plan = planned.grid, planned.plan
    return [
        SettingSamples(grid.title, *each, plan.metric, plan.reference, len(grid.seeds))
        for each in planned.common.items()
    ]


def all_tasks(found: Gathered) -> tuple[ComparedTask, ...]:
    """Those of planned grids first, then what else was run."""
    groups = [settings_of(planned) for planned in found.first_round]
    known = found.second_round_settings | {each.setting for group in groups for each in group}
    groups += [
        [SettingSamples("", setting, of, next(iter(of.values())).metric, reference)]
        for setting, of in found.samples.items()
        if setting not in known
        and (reference := next((name for name in REFERENCES if name in of and of[name].runs), None))
        and all(sample.runs or sample.diverged for sample in of.values())
    ]
    tasks = [task for group in groups for task in _tasks(group)]
    return tuple(replace(task, key=f"task{number}") for number, task in enumerate(tasks, start=1))


def _tasks(group: Sequence[SettingSamples]) -> Iterator[ComparedTask]:
    to_reference, to_gelu = _compare(group), _compare(group, REFERENCES[1])
    for each in group:
        found = to_reference[each.setting]
        if found:
            parts = [one for metric in SHOTS for one in _differences(each, each.reference, metric)]
            yield ComparedTask(
                key="",
                title=describe_setup(each.setting, max(one.found.size for one in found)),
                metric=each.metric,
                reference=each.reference,
                grid=each.grid,
                differences=tuple(found),
                to_gelu=tuple(to_gelu[each.setting]),
                parts=tuple(parts),
                losses=tuple(_differences(each, each.reference, "test_loss")),
                samples=each.samples,
                planned_seeds=each.planned_seeds,
            )


def _compare(group: Sequence[SettingSamples], reference: str = "") -> dict[Recipe, list[Difference]]:
    """With the reference of the group, or with another.  One seed has no p-value and is in no family."""
    found = {
        (each.setting, one.activation): one
        for each in group
        for one in _differences(each, reference or each.reference, each.metric)
    }
    adjusted = holm(
        {key: MeanDifference.of(one.found).p_value for key, one in found.items() if one.found.has_interval}
    )
    result: dict[Recipe, list[Difference]] = {each.setting: [] for each in group}
    for key, one in found.items():
        result[key[0]].append(replace(one, p_value=adjusted.get(key, math.nan)))
    return result


def _differences(each: SettingSamples, reference: str, metric: str) -> list[Difference]:
    other = each.samples.get(reference)
    if other is None or not other.values(metric):
        return []
    mean = estimate(other.values(metric).values()).value
    return [
        Difference(
            name, reference, metric, difference,
            published=published_difference(each.setting, name, reference, metric),
            diverged=len(sample.diverged), reference_mean=mean,
        )
        for name, sample in each.samples.items()
        if name != reference and (difference := sample.minus(other, metric)) is not None
    ]  # fmt: skip


def published_difference(setting: Recipe, activation: str, reference: str, metric: str) -> float | None:
    """In the column of the paper that asks the same question, one run each."""
    for table, place in _papers_columns(setting):
        if table.columns[place].metric == metric and {activation, reference} <= table.rows.keys():
            one, other = table.rows[activation][place], table.rows[reference][place]
            if one is not None and other is not None:
                return one.right - other.right
    return None


@functools.cache
def _papers_columns(setting: Recipe) -> list[tuple[paper.RunTable, int]]:
    """The columns that ask the question of a setting: their tables and places."""
    return [
        (table, place)
        for table in map(paper.run_table, paper.RUN_TABLES)
        for place, column in enumerate(table.columns)
        if setting == setting_of(column.recipe)
        or paper.is_same_question(
            setting, column.recipe, column.reduced_recipe, table.distinguishing(column.recipe)
        )
    ]
