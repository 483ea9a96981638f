"""``iglu sweep TABLE|FILE.toml``: all runs of a grid, on this machine or on a Ray cluster."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from iglu_lab.cli import DONE, FAILED, INTERRUPTED
from iglu_lab.console import Terminal
from iglu_lab.errors import UserError, check_least, check_writable, missing
from iglu_lab.extensions import ExtensionFlags
from iglu_lab.recipes import Recipe
from iglu_lab.runs.archive import read_runs
from iglu_lab.runs.folder import Run
from iglu_lab.stats.comparison import counted, setting_label, summarize, summary_tables
from iglu_lab.stats.tabulate import Cell, Table, terminal
from iglu_lab.sweep.cluster import run_on_ray
from iglu_lab.sweep.display import SweepDisplay
from iglu_lab.sweep.estimate import UNKNOWN, durations, format_duration, wall_seconds
from iglu_lab.sweep.filters import make_filter, read_field
from iglu_lab.sweep.grid import Grid, GridStatus, grid_status, read_grid
from iglu_lab.sweep.local import run_local
from iglu_lab.sweep.worker import RunResult, SweepObserver, missing_data
from iglu_lab.training.progress import StopOnSignal

TIME_LIMIT_REACHED = 3  # exit status


@dataclass(frozen=True, kw_only=True)
class SweepFlags(ExtensionFlags):
    """Run all runs of a table of the paper, or of a grid file, that are not done yet.

    Exit status: 0 all runs are done (diverged ones included), 1 some failed, 2 invalid flags, 3 time limit
    reached, 130 Ctrl-C. The same command resumes, also with more seeds or activations."""

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE|FILE.toml")]
    """table2, table3, table4, table5, or a TOML file with recipes, activations, seeds and recipe fields."""
    seeds: int | None = None
    """Number of seeds, starting at 0. If not given: the seeds of the file, or 5."""
    epochs: int | None = None
    """Number of epochs. If not given: the recipe's."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILTER ...")] = ()
    """Run only matching runs: activations (iglu matches every sigma, iglu:0.5 one), recipe names, or
    field=value (ratio=100, norm=false). Filters of the same kind are OR-ed, different kinds are AND-ed."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD=VALUE ...")] = ()
    """Override other recipe fields; iglu train RECIPE --help lists them."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Data directory. If not given: IGLU_DATA, or the cache, to which CIFAR is downloaded."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Output directory, with one subdirectory per run."""
    jobs: int = 1
    """Number of parallel runs on this machine."""
    threads: int | None = None
    """CPU threads per run. If not given: 1, or the file's. The last digits of the results depend on it."""
    tails_every: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Log the tail index of each layer every N epochs, and after the last epoch."""
    time_limit: Annotated[str | None, tyro.conf.arg(metavar="2h|90m|30s")] = None
    """Stop after this time. Running runs save a checkpoint after their current step."""
    known: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR|FILE.jsonl ...")] = ()
    """Skip runs that are done in these folders or archives, such as those of another machine."""
    dry_run: bool = False
    """List the runs and the estimated time, and exit."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Run on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT (extra ray)."""
    cpus: float | None = None
    """Ray: CPUs per run. If not given: its threads."""
    gpus: float = 0.0
    """Ray: GPUs per run. 0.25 shares one GPU among four runs."""
    retries: int = 3
    """Ray: retries of a run whose worker or node dies."""


@dataclass
class StopCondition:
    """Stop on a signal, or after ``limit`` seconds."""

    limit: float | None
    signal: StopOnSignal
    started: float = field(default_factory=time.monotonic)

    @property
    def is_time_up(self) -> bool:
        return self.limit is not None and time.monotonic() - self.started >= self.limit

    def is_met(self) -> bool:
        return self.signal.is_wanted or self.is_time_up


def main(argv: list[str]) -> int:
    flags = tyro.cli(SweepFlags, args=argv, prog="iglu sweep")
    limit = None if flags.time_limit is None else read_time(flags.time_limit)
    grid, recipes = chosen_runs(flags)
    with StopOnSignal().installed() as signal:
        return _sweep(grid, recipes, flags, StopCondition(limit, signal), Terminal())


def read_time(text: str, flag: str = "--time-limit") -> float:
    """Seconds.

    >>> read_time("2h"), read_time("90m"), read_time("1h30m"), read_time("45s")
    (7200.0, 5400.0, 5400.0, 45.0)
    """
    match = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", text)
    if not text or match is None:
        raise UserError(f"{flag} must be a time such as 2h, 90m or 1h30m, got {text!r}")
    return sum(float(number or 0) * unit for number, unit in zip(match.groups(), (3600, 60, 1), strict=True))


def chosen_runs(flags: SweepFlags) -> tuple[Grid, list[Recipe]]:
    """The grid, and its runs that the flags select."""
    check_least(flags, jobs=1, retries=0, gpus=0)
    if flags.data is not None and not flags.data.expanduser().is_dir():
        raise UserError(f"--data {flags.data} is not a folder")
    check_writable(flags.out)
    changes: dict[str, Any] = dict(map(read_field, flags.set))
    given = {"epochs": flags.epochs, "threads": flags.threads, "tails_every": flags.tails_every}
    changes |= {name: value for name, value in given.items() if value is not None}
    grid = read_grid(flags.target, flags.seeds, changes)
    matches = make_filter(flags.only, grid.runs)
    return grid, [recipe for recipe in grid.runs if matches(recipe)]


def _sweep(
    grid: Grid, recipes: Sequence[Recipe], flags: SweepFlags, stop: StopCondition, console: Terminal
) -> int:
    elsewhere = _known(flags)
    found = grid_status(recipes, flags.out, elsewhere)
    for problem in found.problems:
        console.say(problem)
    here, _ = read_runs(flags.out) if flags.out.is_dir() else ([], [])
    times = durations(found.remaining, [*here, *elsewhere], found.started)
    _show_plan(recipes, found, times, flags, console)
    if flags.dry_run:
        return DONE
    results: list[RunResult] = []
    if found.remaining and not stop.is_met():
        with SweepDisplay(console, len(found.remaining)) as display:
            results = _run(found.remaining, flags, stop.is_met, display)
    sealed = grid.sealed_reason(grid_status(grid.runs, flags.out, elsewhere).done)
    return _conclude(grid_status(recipes, flags.out, elsewhere), results, sealed, flags, stop, console)


def _known(flags: SweepFlags) -> list[Run]:
    runs = []
    for place in flags.known:
        if not place.exists():
            raise missing(place)
        found, problems = read_runs(place)
        if problems:
            raise UserError(problems[0])
        runs += found
    return runs


def _run(
    recipes: Sequence[Recipe], flags: SweepFlags, should_stop: Callable[[], bool], display: SweepObserver
) -> list[RunResult]:
    if flags.ray is not None:
        return run_on_ray(
            recipes, address=flags.ray, data=flags.data, out=flags.out, observer=display,
            cpus=flags.cpus, gpus=flags.gpus, retries=flags.retries, should_stop=should_stop,
        )  # fmt: skip
    without_data = missing_data(recipes, flags.data)
    for result in without_data:
        display.ended(result)
    unavailable = {result.item for result in without_data}
    return without_data + run_local(
        [recipe for recipe in recipes if recipe not in unavailable], data=flags.data, out=flags.out,
        jobs=flags.jobs, observer=display, should_stop=should_stop,
    )  # fmt: skip


# -- before the sweep ----------------------------------------------------------------------------------------


def _show_plan(
    recipes: Sequence[Recipe],
    found: GridStatus,
    times: dict[Recipe, float],
    flags: SweepFlags,
    console: Terminal,
) -> None:
    left = set(found.remaining)
    rows = []
    for label in dict.fromkeys(map(setting_label, recipes)):
        mine = [recipe for recipe in recipes if setting_label(recipe) == label]
        to_go = [times[recipe] for recipe in mine if recipe in left]
        counts = (
            len({recipe.activation for recipe in mine}), len({recipe.seed for recipe in mine}),
            mine[0].last_epoch, len(mine) - len(to_go), len(to_go),
        )  # fmt: skip
        total = math.fsum(to_go)
        spans = [Cell(format_duration(time), time) for time in (total / len(to_go), total)] if to_go else ()
        rows.append((label, *counts, *(spans or (None, None))))
    names = ("recipe", "activations", "seeds", "epochs", "done", "remaining", "time per run", "total")
    title = f"{flags.target}: {counted(len(recipes), 'run')}"
    console.print(terminal(Table.of("plan", title, names, rows)))
    console.say(_totals(recipes, times, flags))


def _totals(recipes: Sequence[Recipe], times: dict[Recipe, float], flags: SweepFlags) -> str:
    text = f"{len(times)} of {len(recipes)} runs remaining"
    known = {recipe: seconds for recipe, seconds in times.items() if math.isfinite(seconds)}
    if known and flags.ray is not None:
        text += f", about {format_duration(math.fsum(known.values()))} of run time at this machine's speed"
    elif known:
        cores = math.fsum((recipe.threads or 1) * seconds for recipe, seconds in known.items())
        wall = format_duration(wall_seconds(known.values(), flags.jobs))
        text += f", about {format_duration(cores)} of core time, {wall} of wall time with --jobs {flags.jobs}"
    missing = len(times) - len(known)
    return text + (f"; the time of {missing} is {UNKNOWN}." if missing else ".")


# -- after the sweep ------------------------------------------------------------------------------------


def _conclude(
    found: GridStatus,
    results: Sequence[RunResult],
    sealed: str,
    flags: SweepFlags,
    stop: StopCondition,
    console: Terminal,
) -> int:
    """Show the means (unless sealed), the failures and the remaining runs; return the exit status."""
    for table in [] if sealed else summary_tables(summarize(found.done)):
        console.print(terminal(table))
    for run in found.done:
        if run.status == "diverged":
            console.say(f"diverged: {run.name}: {run.message}")
    failed = [result for result in results if result.run is None]
    for result in failed:
        console.say(f"failed: {result.item.folder_name}: {result.failure}")
        if result.traceback:
            console.say(result.traceback)
    ends = Counter(run.status for run in found.done)
    ended = ", ".join(f"{count} {status}" for status, count in ends.items()) or "0 finished"
    total = counted(len(found.done) + len(found.remaining), "run")
    console.say(
        f"{total} in {flags.out}: {ended}, {len(failed)} failed, "
        f"{len(found.remaining) - len(failed)} remaining, {len(found.started)} of them started."
    )
    if sealed:
        console.say(f"No means are shown: {sealed}.")
    elif found.done:
        console.say(f"To compare with the paper: iglu report {flags.out}", "dim")
    if flags.target == "table5" and found.done:
        console.say(f"iglu probe {flags.out} shows their tail indices, by the paper's method and by ours.")
    if not found.remaining:
        return DONE
    if stop.signal.is_wanted:
        reason, status = "Stopped", INTERRUPTED
    elif stop.is_time_up:
        reason, status = "Time limit reached", TIME_LIMIT_REACHED
    else:
        reason, status = "Some runs failed", FAILED
    console.say(f"{reason}; the same command resumes.")
    return status
