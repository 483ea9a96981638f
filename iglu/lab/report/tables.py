"""The paper's tables beside ours, in its layout, and tables of the same form for what it did not run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from iglu import zoo
from iglu.lab import paper
from iglu.lab.bench.tables import Table as BenchTable
from iglu.lab.bench.tables import tables_of
from iglu.lab.recipes import Recipe
from iglu.lab.report.cells import (
    METRIC_LABELS,
    MISSING,
    NONE,
    digits_of,
    errata_of,
    published_cell,
)
from iglu.lab.report.content import Cell, Table
from iglu.lab.report.gather import Bench, Gathered
from iglu.lab.report.probe_tables import own_probes, table5
from iglu.lab.report.samples import (
    MARKING_RULE,
    Mark,
    Sample,
    difference,
    differences,
    failure,
    marks,
    samples,
)
from iglu.lab.report.speed_table import table1
from iglu.lab.results.comparison import by_setting, setting_label
from iglu.lab.runs.folder import Run

REFERENCE = "relu"

_OURS_NOTE = (
    "Ours: mean over seeds ± the 95% t-interval, of the last epoch; in brackets the number of seeds. "
    "Difference: ours minus the published number, where that is right; the interval is ours alone, since a "
    "published number is one run. Reduced: the runs differ from the paper's in what the remark says."
)


def all_tables(found: Gathered) -> tuple[Table, ...]:
    """Tables 1 to 5, then runs, probes and training steps of our own, then the errata."""
    runs = list(found.runs)
    run_tables = []
    for number in paper.RUN_TABLES:
        table, used = _run_table(paper.run_table(number), runs)
        run_tables.append(table)
        runs = [run for run in runs if run.folder not in used]
    steps = [(bench, step) for bench in found.benches for step in _training_steps(bench)]
    return (
        table1(found.benches),
        *run_tables,
        table5(found.probes),
        *own_run_tables(runs),
        *own_probes(found.probes),
        *(_from_bench(bench, step, f"steps{number}") for number, (bench, step) in enumerate(steps, 1)),
        _errata(),
    )


# -- cells of samples --------------------------------------------------------------------------------


def _ours_cell(sample: Sample, metric: str, mark: Mark) -> Cell:
    found = sample.estimate(metric)
    if found is None:
        return Cell("no metric", note=sample.note)
    text = f"{found.text(digits_of(metric))} ({found.seeds})"
    return Cell(text + (" reduced" if sample.is_reduced else ""), found.mean, mark, sample.note)


def _difference_cell(sample: Sample, metric: str, published: paper.Published | None) -> Cell:
    found = sample.estimate(metric)
    if found is None or published is None:
        return NONE
    shift = published.right
    moved = found._replace(mean=found.mean - shift, low=found.low - shift, high=found.high - shift)
    return Cell(moved.text(digits_of(metric), "+"), moved.mean)


# -- Tables 2 to 4 -------------------------------------------------------------------------------------


def _run_table(table: paper.Table, runs: Sequence[Run]) -> tuple[Table, set[Any]]:
    """The table, and the folders of the runs it shows."""
    by_activation: dict[str, list[Run]] = {}
    for run in runs:
        by_activation.setdefault(run.recipe.activation, []).append(run)
    headers = [("", "activation")]
    columns: list[list[tuple[Cell, Cell, Cell]]] = []
    used = set()
    for place, column in enumerate(table.columns):
        label = METRIC_LABELS[column.metric]
        headers += [(column.heading, f"{label}: {name}") for name in ("paper", "ours", "difference")]
        fixed = _distinguishing(table, column.recipe)
        candidates = {
            name: [run for run in by_activation.get(name, []) if _is_of(run.recipe, column.recipe, fixed)]
            for name in table.rows
        }
        chosen = {name: next(iter(samples(found, column.recipe)), None) for name, found in candidates.items()}
        # The remark of a cell speaks also for runs of its recipe that failed or went to another epoch.
        used |= {
            run.folder
            for name, sample in chosen.items()
            for run in candidates[name]
            if sample is None or differences(run.recipe, column.recipe) == sample.differences
        }
        marked = marks(list(chosen.values()), column.metric, column.lower_is_better)
        cells = []
        for (name, sample), mark in zip(chosen.items(), marked, strict=True):
            published = table.rows[name][place]
            first = published_cell(published, digits_of(column.metric))
            if sample is None:
                why = failure(candidates[name])
                cells.append((first, Cell(why) if why else MISSING, NONE))
            else:
                ours = _ours_cell(sample, column.metric, mark)
                cells.append((first, ours, _difference_cell(sample, column.metric, published)))
        columns.append(cells)
    rows = tuple(
        (Cell(zoo.parse(name).label), *(cell for cells in columns for cell in cells[line]))
        for line, name in enumerate(table.rows)
    )
    title = f"Table {table.number}. {table.caption}"
    notes = (f"The paper: {table.setup}.", _OURS_NOTE, MARKING_RULE, *errata_of(table.number))
    return Table(f"table{table.number}", title, tuple(headers), rows, notes), used


def _distinguishing(table: paper.Table, recipe: Recipe) -> tuple[str, ...]:
    """The fields that tell columns of one recipe apart, such as the ratio in Table 4."""
    alike = [other.identity() for other in table.recipes if other.name == recipe.name]
    return tuple(name for name in recipe.identity() if len({other[name] for other in alike}) > 1)


def _is_of(recipe: Recipe, column: Recipe, fixed: Sequence[str]) -> bool:
    return recipe.name == column.name and all(
        getattr(recipe, name) == getattr(column, name) for name in fixed
    )


# -- our own runs --------------------------------------------------------------------------------------


def own_run_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each recipe that is no column of the paper's, with differences to ReLU."""
    return [
        _own_run_table(setting, of_name, f"own{number}")
        for number, (setting, of_name) in enumerate(by_setting(runs).items(), 1)
    ]


def _own_run_table(setting: Recipe, of_name: dict[str, list[Run]], key: str) -> Table:
    chosen = {name: next(iter(samples(found, setting)), None) for name, found in of_name.items()}
    reference = chosen.get(REFERENCE)
    measured = {metric for sample in filter(None, chosen.values()) for metric in sample.runs[0].history[-1]}
    shown = [metric for metric in METRIC_LABELS if metric in measured and metric != "train_loss"]
    headers = [("", "activation")]
    columns: list[list[tuple[Cell, Cell]]] = []
    for metric in shown:
        headers += [(METRIC_LABELS[metric], "ours"), (METRIC_LABELS[metric], "minus ReLU")]
        marked = marks(list(chosen.values()), metric, metric in ("test_loss", "perplexity"))
        cells = []
        for (name, sample), mark in zip(chosen.items(), marked, strict=True):
            if sample is None:
                cells.append((Cell(failure(of_name[name])), NONE))
            else:
                ours = _ours_cell(sample, metric, mark)
                cells.append((ours, _beside_reference(name, sample, reference, metric)))
        columns.append(cells)
    rows = tuple(
        (Cell(zoo.parse(name).label), *(cell for cells in columns for cell in cells[line]))
        for line, name in enumerate(of_name)
    )
    notes = (
        f"{setting.model} on {setting.dataset}, {setting.epochs} epochs; not an experiment of the paper's. "
        "Mean over seeds ± the 95% t-interval, of the last epoch; in brackets the number of seeds. Minus "
        "ReLU: paired by seed.",
        MARKING_RULE,
    )
    return Table(key, f"Our own runs: {setting_label(setting)}", tuple(headers), rows, notes)


def _beside_reference(name: str, sample: Sample, reference: Sample | None, metric: str) -> Cell:
    if name == REFERENCE or reference is None or sample.epochs != reference.epochs:
        return NONE
    found = difference(sample, reference, metric)
    if found is None:
        return NONE
    return Cell(found.text(digits_of(metric), "+"), found.mean)


# -- the rest ------------------------------------------------------------------------------------------


def _training_steps(bench: Bench) -> list[BenchTable]:
    return tables_of([row for row in bench.rows if row["kind"] == "training"], ())


def _from_bench(bench: Bench, table: BenchTable, key: str) -> Table:
    """A table of ``iglu bench`` as one of the report's."""
    headers = tuple(("", " ".join(header.split())) for header in table.headers)
    rows = tuple(tuple(Cell(text, _leading_number(text)) for text in line) for line in table.rows)
    return Table(key, table.title, headers, rows, (table.caption, f"{bench.path}; {bench.sentence}"))


def _leading_number(text: str) -> float | None:
    found = re.match(r"[±+-]?[\d,]*\.?\d+", text)
    return float(found[0].lstrip("±").replace(",", "")) if found else None


def _errata() -> Table:
    headers = (("", "place"), ("", "printed"), ("", "right"), ("", "how it is known"))
    rows = tuple(
        (Cell(each.place), Cell(str(each.printed)), Cell(str(each.right)), Cell(each.how))
        for each in paper.errata()
    )
    return Table("errata", "Errata of the paper", headers, rows)
