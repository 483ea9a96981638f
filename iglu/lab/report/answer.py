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
from iglu.lab.report.gather import Evidence, Gathered
from iglu.lab.results.comparison import (
    METRIC_LABELS,
    REFERENCES,
    Sample,
    digits_of,
    scale_of,
    setting_of,
)
from iglu.lab.results.statistics import holm, p_value
from iglu.lab.results.tables import Table

SHOTS = ("test_acc_many", "test_acc_medium", "test_acc_few")

RULE = (
    f"Differences are paired by seed, with 95% intervals. One counts as shown only if its p-value, raised by "
    f"Holm over all differences to the same reference in its grid, is below {LEVEL:.0%}."
)


class Compared(NamedTuple):
    """Activations that are set beside one of them."""

    grid: str  # that was planned for it; empty without a plan
    setting: Recipe
    of: Mapping[str, Sample]
    metric: str
    reference: str


def planned(evidence: Evidence) -> list[Compared]:
    """The settings of a grid, on the seeds that every activation of it has."""
    grid, plan = evidence.grid.title, evidence.plan
    return [Compared(grid, *each, plan.metric, plan.reference) for each in evidence.common.items()]


def all_tasks(found: Gathered) -> tuple[Task, ...]:
    """Planned grids first, then what else was run."""
    groups = [planned(evidence) for evidence in found.evidence]
    known = {each.setting for group in groups for each in group}
    groups += [
        [Compared("", setting, of, next(iter(of.values())).metric, reference)]
        for setting, of in found.samples.items()
        if setting not in known
        and (reference := next((name for name in REFERENCES if name in of and of[name].runs), None))
        and all(sample.runs or sample.diverged for sample in of.values())
    ]
    tasks = [task for group in groups for task in _tasks(group)]
    return tuple(replace(task, key=f"task{number}") for number, task in enumerate(tasks, start=1))


def _tasks(group: Sequence[Compared]) -> Iterator[Task]:
    own, beside = compared(group), compared(group, REFERENCES[1])
    for each in group:
        mine = own[each.setting]
        if mine:
            seeds = max(one.found.size for one in mine)
            parts = [one for metric in SHOTS for one in _differences(each, each.reference, metric)]
            title = scale_of(each.setting, seeds)
            lists = map(tuple, (mine, beside[each.setting], parts))
            yield Task("", title, each.metric, each.reference, each.grid, *lists)


def compared(group: Sequence[Compared], reference: str = "") -> dict[Recipe, list[Difference]]:
    """To the reference, or to another; raised by Holm over all of them.  One seed has no p-value and is no
    comparison."""
    found = {
        (each.setting, one.activation): one
        for each in group
        for one in _differences(each, reference or each.reference, each.metric)
    }
    chances = {key: p_value(one.found) for key, one in found.items()}
    raised = holm({key: chance for key, chance in chances.items() if not math.isnan(chance)})
    result: dict[Recipe, list[Difference]] = {each.setting: [] for each in group}
    for key, one in found.items():
        result[key[0]].append(replace(one, chance=raised.get(key, math.nan)))
    return result


def _differences(each: Compared, reference: str, metric: str) -> list[Difference]:
    other = each.of.get(reference)
    if other is None:
        return []
    found = [(sample, sample.minus(other, metric)) for name, sample in each.of.items() if name != reference]
    return [
        Difference(
            sample.activation, reference, metric, difference,
            published=published_difference(each.setting, sample.activation, reference, metric),
            diverged=len(sample.diverged),
        )
        for sample, difference in found
        if difference is not None
    ]  # fmt: skip


def published_difference(setting: Recipe, activation: str, reference: str, metric: str) -> float | None:
    """In the column of the paper that asks the same question, one run each."""
    for table in map(paper.run_table, paper.RUN_TABLES):
        for place, column in enumerate(table.columns):
            is_its = setting == setting_of(column.recipe) or paper.asks_the_same(
                setting, column.recipe, column.beside, table.distinguishing(column.recipe)
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
            start = f"With some sigma IGLU was better than {label} in {where}"
        else:
            start = f"IGLU was nowhere better than {label} (of {tasks_of})"
        lines.append(
            start + (f", and with some sigma worse in {worse}." if worse else ", and nowhere worse.")
        )
    return lines


class Outcome(NamedTuple):
    """Of all IGLUs of one task beside one reference."""

    shown: dict[Standing, list[Difference]]  # better and worse, the best first
    rest: str  # how many are not told apart, and between which values


def outcomes(task: Task) -> dict[str, Outcome]:
    """Beside ReLU and beside GELU."""
    return {zoo.ZOO[reference].label: _outcome(beside(task, reference)) for reference in REFERENCES}


def _outcome(found: Sequence[Difference]) -> Outcome:
    shown: dict[Standing, list[Difference]] = {}
    for one in sorted(found, key=lambda one: one.gain.value, reverse=True):
        shown.setdefault(one.standing, []).append(one)
    alike = sorted(one.found.value for one in shown.pop("not told apart", []))
    if not alike:
        return Outcome(shown, "" if found else "not run")
    ends = dict.fromkeys(f"{value:+.{digits_of(found[0].metric)}f}" for value in (alike[0], alike[-1]))
    is_comparison = any(one.found.has_interval for one in found)
    rest = f"{len(alike)} not told apart" if is_comparison else "one seed tells nothing"
    return Outcome(shown, f"{rest} ({' to '.join(ends)})")


def amount(one: Difference) -> str:
    """By how much, and how many seeds were lost."""
    lost = f" ({one.diverged} diverged)" if one.diverged else ""
    return one.found.text(digits_of(one.metric), "+") + lost


def answer_table(tasks: Sequence[Task]) -> Table:
    """A line for each task, short enough for a README."""
    rows = [
        (f"{task.title}; {metric_of(task)}", *(_words(outcome) for outcome in outcomes(task).values()))
        for task in tasks
    ]
    headers = ("task", *(f"beside {zoo.ZOO[reference].label}" for reference in REFERENCES))
    return Table.of("answer", "Where IGLU was better here, and where not", headers, rows, [RULE])


def metric_of(task: Task) -> str:
    return METRIC_LABELS.get(task.metric, task.metric) + ("" if task.grid else " (not planned)")


def _words(outcome: Outcome) -> str:
    """
    >>> from iglu.lab.results.statistics import Estimate
    >>> five = Difference("iglu:5", "relu", "test_acc", Estimate(0.5, 0.25, 0.75, 10), 0.01)
    >>> _words(Outcome({"better": [five]}, "1 not told apart (-0.65)"))
    'better: iglu:5 +0.50 ± 0.25; 1 not told apart (-0.65)'
    """
    parts = [
        f"{standing}: {', '.join(f'{one.activation} {amount(one)}' for one in found)}"
        for standing, found in outcome.shown.items()
    ]
    return "; ".join([*parts, *([outcome.rest] if outcome.rest else [])])
