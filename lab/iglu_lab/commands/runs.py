"""``iglu runs DIR``: list the runs of a folder, and compare their means over seeds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from iglu_lab.console import Terminal
from iglu_lab.errors import UserError, check_writable, missing, no_runs
from iglu_lab.extensions import ExtensionFlags
from iglu_lab.runs.archive import add_to_archive, read_runs
from iglu_lab.runs.folder import STATUSES, Run
from iglu_lab.stats.comparison import (
    REFERENCES,
    Summary,
    counted,
    is_number,
    setting_label,
    setting_of,
    summarize,
    summary_row,
    summary_tables,
)
from iglu_lab.stats.tabulate import Cell, Table, Tone, csv_lines, terminal
from iglu_lab.sweep.estimate import format_duration
from iglu_lab.sweep.filters import make_filter
from iglu_lab.sweep.grid import read_grid


@dataclass(frozen=True, kw_only=True)
class RunsFlags(ExtensionFlags):
    """List, filter and compare the runs of a folder."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|FILE.jsonl")]
    """Folder with runs at any depth, or an archive of recorded runs."""
    filter: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORD ...")] = ()
    """Activations (iglu matches every sigma), recipes, or field=value such as ratio=100 or seed=3.  Filters
    of the same kind are OR-ed, different kinds are AND-ed.  ReLU and GELU remain as baselines."""
    grid: Annotated[str | None, tyro.conf.arg(metavar="TABLE|FILE.toml")] = None
    """Only the runs of this grid: a name or file, as for iglu sweep."""
    status: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORD ...")] = ()
    """Only runs of this status: finished, stopped, diverged, unfinished."""
    metric: str | None = None
    """Metric to compare, such as test_loss or test_acc_few; by default test_acc or perplexity."""
    summary: bool = False
    """Omit the list of runs."""
    json: bool = False
    """Print everything as JSON."""
    csv: bool = False
    """Print the list of runs as CSV."""
    record: Annotated[Path | None, tyro.conf.arg(metavar="FILE.jsonl")] = None
    """Also add the completed runs to this file, one per line, without checkpoints."""


def main(argv: list[str]) -> int:
    flags = tyro.cli(RunsFlags, args=argv, prog="iglu runs")
    if flags.record is not None:
        check_writable(flags.record.parent)
    runs, problems, sealed = _read(flags)
    chosen, references = _chosen(runs, flags)
    if not sealed:
        _print(chosen, references, problems, flags)
    elif flags.json or flags.csv:
        raise UserError(f"No numbers are shown: {sealed}")
    else:
        print(f"{counted(len(chosen), 'run')}. No numbers are shown: {sealed}.")
    for problem in problems:
        print(f"iglu runs: {problem}", file=sys.stderr)
    if flags.record is not None:
        new, total = add_to_archive(chosen, flags.record)
        print(f"iglu runs: {counted(new, 'run')} added to {flags.record}, which has {total}", file=sys.stderr)
    return 0


def _read(flags: RunsFlags) -> tuple[list[Run], list[str], str]:
    """The runs of the folder (with a grid: those of the grid), the problems found, and why the plan of the
    grid does not allow their numbers to be shown; empty if it does."""
    if not flags.folder.exists():
        raise missing(flags.folder)
    runs, problems = read_runs(flags.folder)
    if not runs:
        raise UserError(no_runs(flags.folder, problems))
    if flags.grid is None:
        return runs, problems, ""
    grid = read_grid(flags.grid)
    names = {recipe.folder_name for recipe in grid.runs}
    runs = [run for run in runs if run.name in names]
    if not runs:
        raise UserError(f"No run in {flags.folder} belongs to {flags.grid}")
    return runs, problems, grid.sealed_reason(runs)


def _chosen(runs: Sequence[Run], flags: RunsFlags) -> tuple[list[Run], list[Run]]:
    """The runs that pass the filters, and the runs of ReLU and GELU to compare them with if a filter leaves
    those out."""
    for status in flags.status:
        if status not in STATUSES:
            raise UserError(f"--status must be one of {', '.join(STATUSES)}, got {status!r}")
    matches = make_filter(flags.filter, [run.recipe for run in runs])
    chosen = [run for run in runs if matches(run.recipe) and (not flags.status or run.status in flags.status)]
    if not chosen:
        raise UserError(f"None of {len(runs)} runs is {' or '.join(flags.status)}")
    seeds = {(setting_of(run.recipe), run.recipe.seed) for run in chosen}
    shown = {run.recipe.activation for run in chosen}
    references = [
        run
        for run in runs
        if run.recipe.activation in set(REFERENCES) - shown
        and (setting_of(run.recipe), run.recipe.seed) in seeds
    ]
    return chosen, references


def _print(runs: Sequence[Run], references: Sequence[Run], problems: Sequence[str], flags: RunsFlags) -> None:
    """The list of runs and the means, in the form of the flags."""
    kept = {(row.setting, row.activation) for row in summarize(runs, flags.metric)}
    rows = [
        row for row in summarize([*runs, *references], flags.metric) if (row.setting, row.activation) in kept
    ]
    if flags.metric is not None and all(row.mean is None for row in rows):
        known = {name for run in runs if run.evaluated for name in run.last if is_number(run.last[name])}
        raise UserError(
            f"No finished run has the metric {flags.metric!r}. Metrics: {', '.join(sorted(known))}"
        )
    if flags.json:
        body = {
            "runs": [run_row(run) for run in runs],
            "summary": [summary_row(row) for row in rows],
            "problems": problems,
        }
        print(json.dumps(body, indent=1))
    elif flags.csv:
        listed = [run_row(run) for run in runs]
        print(csv_lines([listed[0], *(row.values() for row in listed)]), end="")
    else:
        _show(runs, rows, flags)


def _show(runs: Sequence[Run], rows: Sequence[Summary], flags: RunsFlags) -> None:
    console = Terminal()
    if not flags.summary:
        console.print(terminal(runs_table(runs)))
    for table in summary_tables(rows):
        console.print(terminal(table))
    for run in runs:
        if run.status == "diverged":
            label = f"{setting_label(run.recipe)}, {run.recipe.activation}, seed {run.recipe.seed}"
            console.say(f"diverged: {label}: {run.message}")
    left = sum(not run.is_complete and run.status != "diverged" for run in runs)
    if left:
        console.say(f"{left} of {len(runs)} runs are incomplete and excluded from the means.")
    console.say(f"To compare with the paper, with figures and a page: iglu report {flags.folder}", "dim")


def runs_table(runs: Sequence[Run]) -> Table:
    names = ("status", "recipe", "activation", "seed", "epochs", "last", "best*", "in", "time")
    rows = []
    for run in runs:
        unit = "" if run.metric == "perplexity" else "%"
        shown: list[Cell | int | None] = [None] * 3
        if run.evaluated:
            numbers = [each[run.metric] for each in (run.last, run.best)]
            shown = [*(Cell(f"{number:.2f}{unit}", number) for number in numbers), run.best["epoch"]]
        recipe = run.recipe
        done = Cell(f"{len(run.history)}/{recipe.last_epoch}", len(run.history))
        words = (run.status, setting_label(recipe), recipe.activation, recipe.seed)
        rows.append((*words, done, *shown, Cell(format_duration(run.seconds), run.seconds)))
    note = "best*: the best epoch, selected on the test set and therefore too optimistic"
    tones: list[Tone] = ["" if run.status == "finished" else "quiet" for run in runs]
    return Table.of("runs", counted(len(runs), "run"), names, rows, [note], tones)


def run_row(run: Run) -> dict[str, Any]:
    """A run as one flat row for JSON and CSV; None for missing values."""
    recipe, has_epochs = run.recipe, bool(run.evaluated)
    return {
        "status": run.status,
        "recipe": setting_label(recipe),
        "activation": recipe.activation,
        "seed": recipe.seed,
        "epochs": len(run.history),
        "of": recipe.last_epoch,
        "metric": run.metric if has_epochs else None,
        "last": run.last[run.metric] if has_epochs else None,
        "best_on_test_set": run.best[run.metric] if has_epochs else None,
        "best_epoch": run.best["epoch"] if has_epochs else None,
        "seconds": round(run.seconds, 1),
        "folder": str(run.folder),
        "message": run.message,
    }
