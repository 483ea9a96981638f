"""A run as its folder tells it, and as one line of a file.

::

    recipe.json        the recipe, with the number of its format
    provenance.jsonl   one line for each start: commit, versions, device, threads
    metrics.jsonl      one line an epoch
    state.json         how the run ended; missing while it has not
    checkpoint-*       see iglu.lab.training.checkpoint
    lock               held by the process that is at it

Many runs without their checkpoints are kept in one file, a run a line: see :mod:`iglu.lab.runs.record`.  What
is read is checked here, once, so that nobody behind has to: a file with anything that cannot be is named and
its run left out.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from iglu.lab.mistakes import MistakeError, complaining
from iglu.lab.recipes import Recipe, is_short_number
from iglu.lab.runs import provenance
from iglu.lab.storage import remove_unfinished, write_json, write_json_lines

Row = dict[str, Any]

RECIPE, PROVENANCE, METRICS, STATE = "recipe.json", "provenance.jsonl", "metrics.jsonl", "state.json"
STATUSES = ("finished", "stopped", "diverged", "unfinished")

# One of these is in the line of every epoch, by the kind of data and whether it ended with an evaluation.
_METRICS_OF_AN_EPOCH = ("train_loss", "test_acc", "perplexity")

# What differs between two runs that are equal: time, and what is made of it.
TIMINGS = ("seconds", "test_seconds", "rate")


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it."""

    folder: Path  # or the file that has it as one line
    recipe: Recipe
    status: str  # "finished", "stopped" (at an epoch or by request), "diverged", "unfinished"
    history: tuple[Row, ...]  # a row an epoch
    message: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)  # of its last start

    @property
    def name(self) -> str:
        """That of its folder, also where it has none any more."""
        return self.recipe.folder_name

    @property
    def metric(self) -> str:
        """The name of the metric that tables show."""
        return "perplexity" if any("perplexity" in row for row in self.history) else "test_acc"

    @property
    def evaluated(self) -> tuple[Row, ...]:
        """The epochs that ended with an evaluation; the last of a run always does."""
        return tuple(row for row in self.history if self.metric in row)

    @property
    def last(self) -> Row:
        """The last of these: what the paper reports, and what means over seeds are made of."""
        if not self.evaluated:
            raise ValueError(f"{self.name} has no finished epoch that was evaluated")
        return self.evaluated[-1]

    @property
    def best(self) -> Row:
        """The best epoch by the test set itself: flattering, to be shown beside the last and marked."""
        sign = -1 if self.metric == "perplexity" else 1
        return max(self.evaluated, key=lambda row: float(sign * row[self.metric]))

    def is_done_for(self, recipe: Recipe) -> bool:
        """Whether nothing is left to do for ``recipe``, which may ask for more epochs than this run's: it
        diverged, or has them all."""
        done = len(self.history) if self.status in ("finished", "stopped") else 0
        return self.status == "diverged" or done >= recipe.last_epoch

    @property
    def is_whole(self) -> bool:
        """Whether it did not diverge and has every epoch it was to have."""
        return self.status != "diverged" and bool(self.evaluated) and self.is_done_for(self.recipe)

    @property
    def seconds(self) -> float:
        """Time of all its epochs, as far as their lines tell."""
        return math.fsum(row.get("seconds", 0.0) + row.get("test_seconds", 0.0) for row in self.history)

    def without_timings(self) -> list[Row]:
        """The history as far as it must be the same each time."""
        return [{key: row[key] for key in row if key not in TIMINGS} for row in self.history]


def read_run(folder: Path | str) -> Run:
    """The run in ``folder``; a MistakeError names the file that is not what it should be."""
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        raise MistakeError(f"{folder} is not the folder of a run: it has no {RECIPE}")
    recipe = read_recipe(folder)
    status, message = read_state(folder)
    try:
        starts = read_starts(folder)
    except MistakeError:  # without them a run's numbers stand as they are
        starts = []
    return Run(folder, recipe, status, read_history(folder), message, starts[-1] if starts else {})


def read_recipe(folder: Path) -> Recipe:
    """A recipe lies in the folder of its name.  By the first format fields were named that are not now, and
    the other way round, but recipe, activation and seed were where they are."""
    content = _json(folder / RECIPE)
    recipe = checked_recipe(content, str(folder / RECIPE))
    found, own = folder.resolve().name.split("_"), recipe.folder_name.split("_")
    if "format" not in content:
        found, own = [*found[:2], found[-1]], [*own[:2], own[-1]]
    if found != own:
        raise MistakeError(
            f"{folder / RECIPE} cannot be read: it is the recipe of {recipe.folder_name}, but its folder "
            "has another name"
        )
    return recipe


def read_state(folder: Path) -> tuple[str, str]:
    """Status and message."""
    state = _json(folder / STATE) if (folder / STATE).exists() else {"status": "unfinished"}
    return checked_state(state, str(folder / STATE))


def read_history(folder: Path) -> tuple[Row, ...]:
    return checked_history(_json_lines(folder / METRICS), str(folder / METRICS))


def read_starts(folder: Path) -> list[Row]:
    """The provenance of each start."""
    starts = _json_lines(folder / PROVENANCE)
    if not all(isinstance(start, dict) for start in starts):
        raise MistakeError(f"{folder / PROVENANCE} cannot be read: a line is not the provenance of a start")
    return starts


def unlike(before: Recipe, after: Recipe) -> str:
    """In what two runs differ, in words; empty if they are one."""
    old, new = before.identity(), after.identity()
    return "; ".join(
        f"{key} was {old.get(key)!r}, now {new.get(key)!r}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    )


# -- checks ----------------------------------------------------------------------------------------


def checked_recipe(value: Any, where: str) -> Recipe:
    if not isinstance(value, dict):
        raise MistakeError(f"{where} cannot be read: not a recipe")
    try:
        return Recipe.from_dict(value)
    except MistakeError as error:
        raise MistakeError(f"{where} cannot be read: {error}") from error


def checked_state(value: Any, where: str) -> tuple[str, str]:
    """Status and message."""
    status = value.get("status") if isinstance(value, dict) else None
    message = value.get("message", "") if isinstance(value, dict) else None
    if status not in STATUSES or not isinstance(message, str):
        raise MistakeError(f"{where} cannot be read: it does not say how the run ended")
    return status, message


def checked_history(rows: list[Any], where: str) -> tuple[Row, ...]:
    """A row an epoch, from 1, in order, each of numbers but for what an observer added."""
    for number, row in enumerate(rows, start=1):
        if not _is_epoch(row, number):
            raise MistakeError(f"{where} cannot be read: line {number} is not the metrics of epoch {number}")
    return tuple(rows)


def _is_epoch(row: Any, number: int) -> bool:
    return (
        isinstance(row, dict)
        and type(row.get("epoch")) is int
        and row["epoch"] == number
        and any(name in row for name in _METRICS_OF_AN_EPOCH)
        and all(_is_fit(name, value) for name, value in row.items())
    )


def _is_fit(name: str, value: Any) -> bool:
    is_metric = name in (*_METRICS_OF_AN_EPOCH, *TIMINGS) or name.startswith(("test_", "train_", "bits_"))
    return is_short_number(value) or not (is_metric or isinstance(value, int))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise MistakeError(f"{path} cannot be read: {error or type(error).__name__}") from error


def _json_lines(path: Path) -> list[Any]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (ValueError, OSError) as error:
        raise MistakeError(f"{path} cannot be read: {error}") from error
    return [
        parsed(line, f"{path} cannot be read: line {number}") for number, line in enumerate(lines, start=1)
    ]


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MistakeError(f"{where} is not JSON") from error


# -- writing ---------------------------------------------------------------------------------------


class FolderInUseError(BlockingIOError):
    """Another process is at this run."""


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Hold the folder, made if missing; the system lets go of it when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUseError(
            f"Another process is at the run in {folder}. Wait for it, or choose another --out."
        ) from None
    try:
        remove_unfinished(folder)
        yield
    finally:
        lock.release()


def open_run(
    folder: Path, recipe: Recipe, notes: list[str], saved: Mapping[str, Any] | None = None
) -> Run | None:
    """The run in the folder, as far as there is one; a folder of another run is refused.  What is damaged is
    set aside, for a checkpoint knows it too, and so the recipe if ``saved`` is that of one; ``notes`` says
    so."""
    if not (folder / RECIPE).exists():
        return None
    complaints: list[str] = []
    with complaining(complaints):
        checked_recipe(_json(folder / RECIPE), str(folder / RECIPE))
    if complaints and saved is None:
        raise MistakeError(f"{complaints[0]}. Mend it, or remove {folder} for the run to start again.")
    if complaints:
        notes.append(set_aside(folder / RECIPE, complaints[0]))
        write_json(folder / RECIPE, saved)
    difference = unlike(read_recipe(folder), recipe)
    if difference:
        raise MistakeError(f"{folder} holds another run: {difference}. Choose another --out, or remove it.")
    readers: dict[str, Callable[[Path], object]] = {
        STATE: read_state, METRICS: read_history, PROVENANCE: read_starts
    }  # fmt: skip
    for name, read in readers.items():
        complaints = []
        with complaining(complaints):
            read(folder)
        if complaints:
            content = (folder / name).read_bytes()
            notes.append(set_aside(folder / name, complaints[0]))
            if name == PROVENANCE:  # each line stands for itself
                write_json_lines(folder / name, filter(None, map(_start, content.splitlines())))
    return read_run(folder)


def _start(line: bytes) -> Row | None:
    try:
        start = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return start if isinstance(start, dict) else None


def set_aside(path: Path, reason: str) -> str:
    """Give a file a name under which nobody looks for it; what was done, in words."""
    names = (path.with_name(f"{path.name}.damaged{number}") for number in ("", *range(2, 1000)))
    kept = next(name for name in names if not name.exists())
    path.rename(kept)
    return f"{reason}; set aside as {kept.name}"


def begin(folder: Path, recipe: Recipe, history: Sequence[Row], start: Mapping[str, Any]) -> None:
    """Write down that a run begins or goes on: one more line of provenance, since it may do so under another
    version, on another machine."""
    write_json(folder / RECIPE, recipe.as_dict())
    (folder / STATE).unlink(missing_ok=True)
    if history and not (folder / METRICS).exists():
        write_json_lines(folder / METRICS, history)
    starts = [*read_starts(folder), {**provenance.collect(), **start}]
    write_json_lines(folder / PROVENANCE, starts)
