"""``iglu sweep TABLE | FILE.toml``: a whole table with seeds, here or on a Ray cluster."""

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

from iglu.lab.cli import DONE, FAILED, INTERRUPTED
from iglu.lab.console import Terminal
from iglu.lab.mistakes import MistakeError, check_least, check_writable, missing
from iglu.lab.recipes import Recipe
from iglu.lab.results.comparison import counted, setting_label, summarise, summary_tables
from iglu.lab.results.tables import Cell, Table, terminal
from iglu.lab.runs.folder import Run
from iglu.lab.runs.record import read_runs
from iglu.lab.sweep.choice import chooser, read_field
from iglu.lab.sweep.cluster import run_on_ray
from iglu.lab.sweep.display import Lines
from iglu.lab.sweep.estimate import UNKNOWN, durations, in_words, wall_seconds
from iglu.lab.sweep.grid import Grid, Survey, read_grid, survey
from iglu.lab.sweep.local import run_local
from iglu.lab.sweep.work import Outcome, Watcher, missing_data
from iglu.lab.training.progress import StopOnSignal

TIME_IS_UP = 3  # beside those of every command; diverging is a result, not a failure


@dataclass(frozen=True)
class SweepFlags:
    """Run every run of a table of the paper, or of a file, that is not done yet.

    The status is 0 when every run is done, 1 if some failed, 2 for a mistake in the flags, 3 when the time
    was up and 130 after Ctrl-C.  The same command goes on, also with more seeds or activations."""

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE|FILE.toml")]
    """table2, table3, table4, table5, or a file with recipes, activations, seeds and fields of the recipe."""
    seeds: int | None = None
    """So many seeds for each, from 0; by default those of the file, or 5."""
    epochs: int | None = None
    """The length of every run's schedule; by default the recipe's."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORD ...")] = ()
    """Some of the runs: activations (iglu stands for every sigma, iglu:0.5 for one), names of recipes, or
    field=value (ratio=100, norm=false).  Words of one kind are alternatives; kinds narrow each other down."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD=VALUE ...")] = ()
    """Change any other field of the recipes; iglu train RECIPE --help lists them."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder with the data; otherwise IGLU_DATA, or the cache, into which CIFAR is fetched."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Folder in which each run gets a folder of its own."""
    jobs: int = 1
    """Runs at a time on this machine."""
    threads: int | None = None
    """CPU threads of a run, by default 1 or as the file says; they decide the last digits of its numbers."""
    tails: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Every N epochs, and after the last, add the tail index of each layer to the metrics."""
    time_limit: Annotated[str | None, tyro.conf.arg(metavar="2h|90m|30s")] = None
    """Stop after this time: each running run at a checkpoint, once the step it is at is done."""
    known: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR|FILE.jsonl ...")] = ()
    """Runs that are done there are not repeated: a sweep that was begun on another machine goes on here."""
    dry_run: bool = False
    """List the runs and the time they would take, and stop there."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Run on a Ray cluster instead: auto, HOST:PORT or ray://HOST:PORT (extra ray)."""
    cpus: float | None = None
    """On Ray, CPUs a run; by default its threads."""
    gpus: float = 0.0
    """On Ray, GPUs a run; 0.25 puts four runs on one."""
    retries: int = 3
    """On Ray, how often a run is begun again when its worker or its node dies."""


@dataclass
class Clock:
    """Whether to go on."""

    limit: float | None  # in seconds
    signal: StopOnSignal
    began: float = field(default_factory=time.monotonic)

    @property
    def is_time_up(self) -> bool:
        return self.limit is not None and time.monotonic() - self.began >= self.limit

    def is_stop_wanted(self) -> bool:
        return self.signal.is_wanted or self.is_time_up


def main(argv: list[str]) -> int:
    """Run ``iglu sweep``; what its status means is in its help."""
    flags = tyro.cli(SweepFlags, args=argv, prog="iglu sweep")
    limit = None if flags.time_limit is None else read_time(flags.time_limit)
    recipes = chosen_runs(flags)
    with StopOnSignal().installed() as signal:
        return _sweep(recipes, flags, Clock(limit, signal), Terminal())


def read_time(text: str) -> float:
    """
    >>> read_time("2h"), read_time("90m"), read_time("1h30m"), read_time("45s")
    (7200.0, 5400.0, 5400.0, 45.0)
    """
    match = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", text)
    if not text or match is None:
        raise MistakeError(f"--time-limit is a time such as 2h, 90m or 1h30m, got {text!r}")
    return sum(float(number or 0) * unit for number, unit in zip(match.groups(), (3600, 60, 1), strict=True))


def chosen_runs(flags: SweepFlags) -> list[Recipe]:
    """The runs that the flags mean."""
    check_least(flags, jobs=1, retries=0, gpus=0)
    if flags.data is not None and not flags.data.expanduser().is_dir():
        raise MistakeError(f"--data {flags.data} is not a folder")
    check_writable(flags.out)
    changes: dict[str, Any] = dict(map(read_field, flags.set))
    given = {"epochs": flags.epochs, "threads": flags.threads, "tails": flags.tails}
    changes |= {name: value for name, value in given.items() if value is not None}
    grid: Grid = read_grid(flags.target, flags.seeds, changes)
    is_meant = chooser(flags.only, grid.runs)
    return [recipe for recipe in grid.runs if is_meant(recipe)]


def _sweep(recipes: Sequence[Recipe], flags: SweepFlags, clock: Clock, console: Terminal) -> int:
    elsewhere = _known(flags)
    found = survey(recipes, flags.out, elsewhere)
    for complaint in found.complaints:
        console.say(complaint)
    here, _ = read_runs(flags.out) if flags.out.is_dir() else ([], [])
    times = durations(found.left, [*here, *elsewhere], found.begun)
    _show_plan(recipes, found, times, flags, console)
    if flags.dry_run:
        return DONE
    outcomes: list[Outcome] = []
    if found.left and not clock.is_stop_wanted():
        with Lines(console, len(found.left)) as lines:
            outcomes = _run(found.left, flags, clock.is_stop_wanted, lines)
    return _conclude(recipes, outcomes, flags, clock, console)


def _known(flags: SweepFlags) -> list[Run]:
    runs = []
    for place in flags.known:
        if not place.exists():
            raise missing(place)
        found, complaints = read_runs(place)
        if complaints:
            raise MistakeError(complaints[0])
        runs += found
    return runs


def _run(
    recipes: Sequence[Recipe], flags: SweepFlags, is_stop_wanted: Callable[[], bool], lines: Watcher
) -> list[Outcome]:
    if flags.ray is not None:
        return run_on_ray(
            recipes, address=flags.ray, data=flags.data, out=flags.out, watcher=lines,
            cpus=flags.cpus, gpus=flags.gpus, retries=flags.retries, is_stop_wanted=is_stop_wanted,
        )  # fmt: skip
    without_data = missing_data(recipes, flags.data)
    for outcome in without_data:
        lines.ended(outcome)
    hopeless = {outcome.recipe for outcome in without_data}
    return without_data + run_local(
        [recipe for recipe in recipes if recipe not in hopeless], data=flags.data, out=flags.out,
        jobs=flags.jobs, watcher=lines, is_stop_wanted=is_stop_wanted,
    )  # fmt: skip


# -- before ----------------------------------------------------------------------------------------


def _show_plan(
    recipes: Sequence[Recipe], found: Survey, times: dict[Recipe, float], flags: SweepFlags, console: Terminal
) -> None:
    left = set(found.left)
    rows = []
    for label in dict.fromkeys(map(setting_label, recipes)):
        mine = [recipe for recipe in recipes if setting_label(recipe) == label]
        to_go = [times[recipe] for recipe in mine if recipe in left]
        counts = (
            len({recipe.activation for recipe in mine}), len({recipe.seed for recipe in mine}),
            mine[0].last_epoch, len(mine) - len(to_go), len(to_go),
        )  # fmt: skip
        total = math.fsum(to_go)
        spans = [Cell(in_words(time), time) for time in (total / len(to_go), total)] if to_go else [None] * 2
        rows.append((label, *counts, *spans))
    names = ("recipe", "activations", "seeds", "epochs", "done", "to go", "time each", "together")
    title = f"{flags.target}: {counted(len(recipes), 'run')}"
    console.print(terminal(Table.of("plan", title, names, rows)))
    console.say(_totals(recipes, times, flags))


def _totals(recipes: Sequence[Recipe], times: dict[Recipe, float], flags: SweepFlags) -> str:
    text = f"{len(times)} of {len(recipes)} runs to go"
    known = {recipe: seconds for recipe, seconds in times.items() if math.isfinite(seconds)}
    if known and flags.ray is not None:
        text += f", about {in_words(math.fsum(known.values()))} of runs at the speed of this machine"
    elif known:
        cores = math.fsum((recipe.threads or 1) * seconds for recipe, seconds in known.items())
        wall = in_words(wall_seconds(known.values(), flags.jobs))
        text += f", about {in_words(cores)} of core time, {wall} with --jobs {flags.jobs}"
    missing = len(times) - len(known)
    return text + (f"; the time of {missing} is {UNKNOWN}." if missing else ".")


# -- afterwards ------------------------------------------------------------------------------------


def _conclude(
    recipes: Sequence[Recipe], outcomes: Sequence[Outcome], flags: SweepFlags, clock: Clock, console: Terminal
) -> int:
    """Means, what went wrong by name, what is left."""
    found = survey(recipes, flags.out, _known(flags))
    for table in summary_tables(summarise(found.done)):
        console.print(terminal(table))
    for run in found.done:
        if run.status == "diverged":
            console.say(f"diverged: {run.name}: {run.message}")
    failed = [outcome for outcome in outcomes if outcome.run is None]
    for outcome in failed:
        console.say(f"failed: {outcome.recipe.folder_name}: {outcome.failure}")
        if outcome.traceback:
            console.say(outcome.traceback)
    ends = Counter(run.status for run in found.done)
    ended = ", ".join(f"{count} {status}" for status, count in ends.items()) or "none done"
    console.say(
        f"{counted(len(recipes), 'run')} in {flags.out}: {ended}, {len(failed)} failed, "
        f"{len(found.left) - len(failed)} left, {len(found.begun)} of them begun."
    )
    if found.done:
        console.say(f"Beside the paper, with figures and a page: iglu report {flags.out}", "dim")
    if flags.target == "table5" and found.done:
        console.say(f"iglu probe {flags.out} shows their tails, the paper's way and ours side by side.")
    if not found.left:
        return DONE
    if clock.signal.is_wanted:
        reason, status = "Stopped", INTERRUPTED
    elif clock.is_time_up:
        reason, status = "The time is up", TIME_IS_UP
    else:
        reason, status = "Some failed", FAILED
    console.say(f"{reason}; the same command goes on with what is left.")
    return status
