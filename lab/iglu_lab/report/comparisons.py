"""Every activation of a task compared with a reference and with GELU, paired by seed.

p-values are of the paired t-test, Holm-adjusted over all differences to the same reference in the grid that
was planned (without a plan: in the setting): rule 6 of results/evidence/README.md, applied to GELU as well.
Grids of the second round name their comparisons in the plan instead: see :mod:`iglu_lab.report.planned`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from iglu_lab import paper
from iglu_lab.recipes import Recipe
from iglu_lab.report.content import ComparedTask, Difference
from iglu_lab.report.gather import Gathered, PlannedGrid
from iglu_lab.stats.comparison import REFERENCES, describe_setup
from iglu_lab.stats.contrasts import MeanDifference
from iglu_lab.stats.statistics import estimate, holm

SHOTS = ("test_acc_many", "test_acc_medium", "test_acc_few")


def settings_of(planned: PlannedGrid) -> list[ComparedTask]:
    """The settings of a grid, on the seeds that all its activations have, not compared yet."""
    grid, plan = planned.grid, planned.plan
    return [
        ComparedTask(setting, of, plan.metric, plan.reference, grid.title, len(grid.seeds))
        for setting, of in planned.common.items()
    ]


def all_tasks(found: Gathered) -> tuple[ComparedTask, ...]:
    """The tasks of planned grids, then those of other runs."""
    groups = [settings_of(planned) for planned in found.first_round]
    known = found.second_round_settings | {each.setting for group in groups for each in group}
    groups += [
        [ComparedTask(setting, of, next(iter(of.values())).metric, reference)]
        for setting, of in found.samples.items()
        if setting not in known
        and (reference := next((name for name in REFERENCES if name in of and of[name].runs), None))
        and all(sample.runs or sample.diverged for sample in of.values())
    ]
    tasks = [task for group in groups for task in _compared(group)]
    return tuple(replace(task, key=f"task{number}") for number, task in enumerate(tasks, start=1))


def _compared(group: Sequence[ComparedTask]) -> Iterator[ComparedTask]:
    """The tasks of a grid that have a difference."""
    to_reference = _adjusted(group, [each.reference for each in group])
    to_gelu = _adjusted(group, [REFERENCES[1]] * len(group))
    for task, differences, others in zip(group, to_reference, to_gelu, strict=True):
        if differences:
            parts = [one for metric in SHOTS for one in _differences(task, task.reference, metric)]
            yield replace(
                task,
                title=describe_setup(task.setting, max(one.found.size for one in differences)),
                differences=tuple(differences),
                to_gelu=tuple(others),
                parts=tuple(parts),
                losses=tuple(_differences(task, task.reference, "test_loss")),
            )


def _adjusted(group: Sequence[ComparedTask], references: Sequence[str]) -> list[list[Difference]]:
    """The differences of each task, with p-values adjusted over all of them; one seed has no p-value."""
    found = [
        _differences(task, reference, task.metric) for task, reference in zip(group, references, strict=True)
    ]
    p_values = {
        (place, one.activation): MeanDifference.of(one.found).p_value
        for place, differences in enumerate(found)
        for one in differences
        if one.found.has_interval
    }
    # Comparisons without a number, because runs diverged, stay in the family.
    p_values |= {
        (place, name): 1.0
        for place, (task, reference) in enumerate(zip(group, references, strict=True))
        for name in replace(task, differences=tuple(found[place]), reference=reference).lost(reference)
    }
    adjusted = holm(p_values)
    return [
        [replace(one, p_value=adjusted.get((place, one.activation), math.nan)) for one in differences]
        for place, differences in enumerate(found)
    ]


def _differences(task: ComparedTask, reference: str, metric: str) -> list[Difference]:
    other = task.samples.get(reference)
    if other is None or not other.values(metric):
        return []
    mean = estimate(other.values(metric).values()).value
    return [
        Difference(
            name, reference, metric, difference,
            published=published_difference(task.setting, name, reference, metric),
            diverged=len(sample.diverged), reference_diverged=len(other.diverged), reference_mean=mean,
        )
        for name, sample in task.samples.items()
        if name != reference and (difference := sample.minus(other, metric)) is not None
    ]  # fmt: skip


def published_difference(setting: Recipe, activation: str, reference: str, metric: str) -> float | None:
    """The paper's difference for the same question, one run each; None if it was not published."""
    for column in itertools.chain.from_iterable(paper.run_table(each).columns for each in paper.RUN_TABLES):
        is_named = column.plain_metric == metric and {activation, reference} <= column.numbers.keys()
        if is_named and column.question.is_asked_by(setting):
            return column.numbers[activation].right - column.numbers[reference].right
    return None
