"""Where IGLU was better than ReLU and GELU here, where it was not, and by how much.

A difference is paired by seed.  It counts as shown only if the p-value of its t-test, raised by Holm over all
differences to the same reference in the grid that was planned (without a plan: in the setting), is below 5%:
rule 6 of results/evidence/README.md, applied to GELU as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from iglu import zoo
from iglu.lab import paper
from iglu.lab.recipes import Recipe
from iglu.lab.report.content import LEVEL, Difference, Standing, Task
from iglu.lab.report.gather import Gathered
from iglu.lab.report.tables import asks_the_same, distinguishing, scale_of
from iglu.lab.results.comparison import METRIC_LABELS, REFERENCES, Sample, digits_of, setting_of
from iglu.lab.results.statistics import holm, p_value
from iglu.lab.results.tables import NONE, Cell, Table

SHOTS = ("test_acc_many", "test_acc_medium", "test_acc_few")

RULE = (
    f"Differences are paired by seed, with 95% intervals. One counts as shown only if its p-value, raised by "
    f"Holm over all differences to the same reference in its grid, is below {LEVEL:.0%}."
)


class _Setting(NamedTuple):
    grid: str
    setting: Recipe
    of: Mapping[str, Sample]
    metric: str
    reference: str


def all_tasks(found: Gathered) -> tuple[Task, ...]:
    """Planned grids first, on the seeds that every activation of them has; then what else was run."""
    planned = [
        [
            _Setting(evidence.grid.title, setting, evidence.common(setting), plan.metric, plan.reference)
            for setting in evidence.samples
        ]
        for evidence in found.evidence
        if (plan := evidence.grid.plan) is not None
    ]
    known = {each.setting for group in planned for each in group}
    others = [
        [_Setting("", setting, of, next(iter(of.values())).metric, reference)]
        for setting, of in found.samples.items()
        if setting not in known
        and (reference := next((name for name in REFERENCES if name in of and of[name].runs), None))
        and all(sample.runs or sample.diverged for sample in of.values())
    ]
    tasks = [task for group in (*planned, *others) for task in _tasks(group)]
    return tuple(replace(task, key=f"task{number}") for number, task in enumerate(tasks, start=1))


def _tasks(group: Sequence[_Setting]) -> Iterator[Task]:
    """Of one grid: the correction is over all of its settings."""
    own = {each.setting: _differences(each, each.reference, each.metric) for each in group}
    beside = {
        each.setting: _differences(each, REFERENCES[1], each.metric)
        for each in group
        if each.reference != REFERENCES[1]
    }
    _raise(own)
    _raise(beside)
    for each in group:
        mine = own[each.setting]
        if mine:
            seeds = max(one.found.size for one in mine)
            parts = [one for metric in SHOTS for one in _differences(each, each.reference, metric)]
            yield Task(
                "", scale_of(each.setting, seeds), each.metric, each.reference, each.grid, tuple(mine),
                tuple(beside.get(each.setting, ())), tuple(parts),
            )  # fmt: skip


def _differences(each: _Setting, reference: str, metric: str) -> list[Difference]:
    other = each.of.get(reference)
    if other is None:
        return []
    found = [(sample, sample.minus(other, metric)) for name, sample in each.of.items() if name != reference]
    return [
        Difference(
            sample.activation, reference, metric, difference,
            published=_published(each.setting, sample.activation, reference, metric),
            diverged=len(sample.diverged),
        )
        for sample, difference in found
        if difference is not None
    ]  # fmt: skip


def _raise(differences: dict[Recipe, list[Difference]]) -> None:
    """By Holm over all of them; one seed has no p-value and is no comparison."""
    places = [(setting, place) for setting, of in differences.items() for place in range(len(of))]
    chances = {(setting, place): p_value(differences[setting][place].found) for setting, place in places}
    known = {key: each for key, each in chances.items() if not math.isnan(each)}
    for (setting, place), chance in holm(known).items():
        differences[setting][place] = replace(differences[setting][place], chance=chance)


def _published(setting: Recipe, activation: str, reference: str, metric: str) -> float | None:
    """In the column of the paper that asks the same question."""
    for table in map(paper.run_table, paper.RUN_TABLES):
        for place, column in enumerate(table.columns):
            is_its = setting == setting_of(column.recipe) or asks_the_same(
                setting, column.recipe, column.beside, distinguishing(table, column.recipe)
            )
            if is_its and column.metric == metric and {activation, reference} <= table.rows.keys():
                one, other = table.rows[activation][place], table.rows[reference][place]
                if one is not None and other is not None:
                    return one.right - other.right
    return None


# -- in words ------------------------------------------------------------------------------------------


def is_ours(activation: str) -> bool:
    return activation.startswith("iglu")


def beside(task: Task, reference: str) -> list[Difference]:
    """Of IGLU and IGLU-Approx to ReLU or GELU."""
    found = task.differences if task.reference == reference else task.beside
    return [one for one in found if is_ours(one.activation) and one.reference == reference]


def headlines(tasks: Sequence[Task]) -> list[str]:
    """One sentence for each of ReLU and GELU."""
    if not tasks:
        return ["Nothing was run in which IGLU stands beside ReLU or GELU."]
    lines = []
    for reference in REFERENCES:
        asked = [found for task in tasks if (found := beside(task, reference))]
        better, worse = (
            sum(any(one.standing == standing for one in found) for found in asked)
            for standing in ("better", "worse")
        )
        label = zoo.ZOO[reference].label
        if not asked:
            lines.append(f"Beside {label} nothing was run.")
            continue
        tasks_of = "the one task" if len(asked) == 1 else f"{len(asked)} tasks"
        if better:
            where = f"{better} of {tasks_of}" if len(asked) > 1 else tasks_of
            start = f"Some IGLU was better than {label} in {where}"
        else:
            start = f"IGLU was nowhere better than {label} (of {tasks_of})"
        lines.append(start + (f", and some was worse in {worse}." if worse else ", and nowhere worse."))
    return lines


def answer_table(tasks: Sequence[Task]) -> Table:
    """For each task, beside ReLU and beside GELU: which IGLU was better, which was worse, and by how much."""
    columns: tuple[Standing, ...] = ("better", "worse", "not told apart")
    rows = []
    for task in tasks:
        for reference in REFERENCES:
            found = beside(task, reference)
            if found:
                groups = [[one for one in found if one.standing == standing] for standing in columns]
                rows.append((Cell(_name(task)), Cell(zoo.ZOO[reference].label), *map(_list, groups)))
    headers = (("", "task"), ("", "IGLU beside"), *(("", name) for name in columns))
    return Table("answer", "Where IGLU was better here, and where not", headers, tuple(rows), (RULE,))


def _name(task: Task) -> str:
    how = f"grid {task.grid}" if task.grid else "not planned"
    return f"{task.title}; {METRIC_LABELS.get(task.metric, task.metric)} ({how})"


def _list(found: Sequence[Difference]) -> Cell:
    parts = [
        f"{zoo.parse(one.activation).label} {one.found.text(digits_of(one.metric), '+')}"
        + (f" ({one.diverged} diverged)" if one.diverged else "")
        for one in sorted(found, key=lambda one: one.gain.value, reverse=True)
    ]
    return Cell("; ".join(parts)) if parts else NONE
