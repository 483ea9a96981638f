"""``iglu runs DIR``: what is in a folder of runs, one by one and over seeds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from iglu.lab.console import Terminal
from iglu.lab.mistakes import MistakeError, missing
from iglu.lab.results.comparison import (
    Summary,
    counted,
    setting_label,
    summarise,
    summary_row,
    summary_tables,
)
from iglu.lab.results.tables import Cell, Table, Tone, csv_lines, terminal
from iglu.lab.runs.folder import STATUSES, Run
from iglu.lab.runs.record import read_runs, record
from iglu.lab.sweep.choice import chooser
from iglu.lab.sweep.estimate import in_words
from iglu.lab.sweep.grid import read_grid


@dataclass(frozen=True)
class RunsFlags:
    """List, filter and compare the runs of a folder."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|FILE.jsonl")]
    """Folder with runs in it, at any depth, or a file of recorded ones."""
    filter: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORD ...")] = ()
    """Which: activations (iglu stands for every sigma), recipes, or field=value such as ratio=100 or seed=3.
    Words of one kind are alternatives; kinds narrow each other down."""
    grid: Annotated[str | None, tyro.conf.arg(metavar="TABLE|FILE.toml")] = None
    """Only the runs of this grid, as iglu sweep has them."""
    status: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORD ...")] = ()
    """Only these: finished, stopped, diverged, unfinished."""
    metric: str | None = None
    """The metric to compare, such as test_loss or test_acc_few; by default test_acc or perplexity."""
    summary: bool = False
    """Leave out the list."""
    json: bool = False
    """Everything as JSON."""
    csv: bool = False
    """The list as CSV."""
    record: Annotated[Path | None, tyro.conf.arg(metavar="FILE.jsonl")] = None
    """Also add those that are done to this file, a run a line, without their checkpoints."""


def main(argv: list[str]) -> int:
    """Run ``iglu runs``."""
    flags = tyro.cli(RunsFlags, args=argv, prog="iglu runs")
    runs, complaints = _chosen(flags)
    rows = summarise(runs, flags.metric)
    if flags.json:
        body = {
            "runs": [run_row(run) for run in runs],
            "summary": [summary_row(row) for row in rows],
            "complaints": complaints,
        }
        print(json.dumps(body, indent=1))
    elif flags.csv:
        listed = [run_row(run) for run in runs]
        print(csv_lines([listed[0], *(row.values() for row in listed)]), end="")
    else:
        _show(runs, rows, flags)
    for complaint in complaints:
        print(f"iglu runs: {complaint}", file=sys.stderr)
    if flags.record is not None:
        new, total = record(runs, flags.record)
        print(f"iglu runs: {counted(new, 'run')} added to {flags.record}, which has {total}", file=sys.stderr)
    return 0


def _chosen(flags: RunsFlags) -> tuple[list[Run], list[str]]:
    if not flags.folder.exists():
        raise missing(flags.folder)
    runs, complaints = read_runs(flags.folder)
    if not runs:
        raise MistakeError(" ".join([f"No run in {flags.folder}.", *complaints]))
    if flags.grid is not None:
        names = {recipe.folder_name for recipe in read_grid(flags.grid).runs}
        runs = [run for run in runs if run.name in names]
        if not runs:
            raise MistakeError(f"No run in {flags.folder} is of {flags.grid}")
    for status in flags.status:
        if status not in STATUSES:
            raise MistakeError(f"--status must be one of {', '.join(STATUSES)}, got {status!r}")
    is_meant = chooser(flags.filter, [run.recipe for run in runs])
    chosen = [
        run for run in runs if is_meant(run.recipe) and (not flags.status or run.status in flags.status)
    ]
    if not chosen:
        raise MistakeError(f"None of {len(runs)} runs is {' or '.join(flags.status)}")
    return chosen, complaints


def _show(runs: Sequence[Run], rows: Sequence[Summary], flags: RunsFlags) -> None:
    console = Terminal()
    if not flags.summary:
        console.print(terminal(runs_table(runs)))
    for table in summary_tables(rows):
        console.print(terminal(table))
    if flags.metric is not None and not rows:
        metrics = sorted({name for run in runs if run.history for name in run.last})
        console.say(f"No finished run has {flags.metric!r}. There are: {', '.join(metrics)}.")
    for run in runs:
        if run.status == "diverged":
            console.say(f"diverged: {run.name}: {run.message}")
    left = sum(not run.is_whole and run.status != "diverged" for run in runs)
    if left:
        console.say(f"{left} of {len(runs)} runs have epochs to go and are in no mean.")
    console.say(f"Beside the paper, with figures and a page: iglu report {flags.folder}", "dim")


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
        rows.append((*words, done, *shown, Cell(in_words(run.seconds), run.seconds)))
    note = "best*: chosen on the test set itself, so flattering"
    tones: list[Tone] = ["" if run.status == "finished" else "quiet" for run in runs]
    return Table.of("runs", counted(len(runs), "run"), names, rows, [note], tones)


def run_row(run: Run) -> dict[str, Any]:
    """A run as one flat row for JSON and CSV; what it has not got yet is None."""
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
