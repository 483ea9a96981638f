"""``iglu runs DIR``: what is in a folder of runs, one by one and over seeds."""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from iglu.lab.fields import chooser
from iglu.lab.mistakes import MistakeError
from iglu.lab.results.comparison import Summary, summarise
from iglu.lab.results.shown import run_row, runs_table, show_summary
from iglu.lab.results.statistics import Estimate
from iglu.lab.runs.folder import Run
from iglu.lab.runs.record import read_runs, record


@dataclass(frozen=True)
class Flags:
    """List, filter and compare the runs of a folder."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|FILE.jsonl")]
    """Folder with runs in it, at any depth, or a file of recorded ones."""
    filter: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORD ...")] = ()
    """Which: activations (iglu stands for every sigma), recipes, or field=value such as ratio=100 or seed=3.
    Words of one kind are alternatives; kinds narrow each other down."""
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


STATUSES = ("finished", "stopped", "diverged", "unfinished")


def main(argv: list[str]) -> int:
    """Run ``iglu runs``; 2 if there is nothing to show."""
    flags = tyro.cli(Flags, args=argv, prog="iglu runs")
    try:
        runs, complaints = _chosen(flags)
    except ValueError as error:
        print(f"iglu runs: {error}", file=sys.stderr)
        return 2
    rows = summarise(runs, flags.metric)
    if flags.json:
        body = {
            "runs": [run_row(run) for run in runs],
            "summary": [summary_row(row) for row in rows],
            "complaints": complaints,
        }
        print(json.dumps(body, indent=1))
    elif flags.csv:
        writer = csv.DictWriter(sys.stdout, list(run_row(runs[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(run_row, runs))
    else:
        _show(runs, rows, flags)
    for complaint in complaints:
        print(f"iglu runs: {complaint}", file=sys.stderr)
    if flags.record is not None:
        new, total = record(runs, flags.record)
        print(f"iglu runs: {new} runs added to {flags.record}, which has {total}", file=sys.stderr)
    return 0


def _chosen(flags: Flags) -> tuple[list[Run], list[str]]:
    if not flags.folder.exists():
        raise MistakeError(f"There is no folder or file {flags.folder}")
    runs, complaints = read_runs(flags.folder)
    if not runs:
        raise MistakeError(" ".join([f"No run in {flags.folder}.", *complaints]))
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


def _show(runs: list[Run], rows: list[Summary], flags: Flags) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)  # a file or a pipe has no width to keep to
    if not flags.summary:
        console.print(runs_table(runs))
    show_summary(rows, console)
    if flags.metric is not None and not rows:
        metrics = sorted({name for run in runs if run.history for name in run.last})
        console.print(f"No finished run has {flags.metric!r}. There are: {', '.join(metrics)}.")
    for run in runs:
        if run.status == "diverged":
            console.print(f"diverged: {run.folder.name}: {run.message}", markup=False, soft_wrap=True)
    left = sum(not run.is_whole and run.status != "diverged" for run in runs)
    if left:
        console.print(f"{left} of {len(runs)} runs have epochs to go and are in no mean.")


def summary_row(row: Summary) -> dict[str, Any]:
    """For JSON, which knows no infinity: what one seed leaves open is null."""
    differences = {name: _bounded(difference) for name, difference in row.differences.items()}
    return {**row._asdict(), "mean": _bounded(row.mean), "differences": differences}


def _bounded(found: Estimate) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in found._asdict().items()}
