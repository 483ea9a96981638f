"""The directory of one run: what it contains, and how it is read, locked and written.

::

    recipe.json        the recipe, with its format number
    provenance.jsonl   one line per start: commit, versions, device, threads
    metrics.jsonl      one line per epoch
    state.json         how the run ended; absent before that
    checkpoint-*       see iglu_lab.training.checkpoint
    lock               held by the process that runs it

:mod:`iglu_lab.runs.archive` stores many runs, without checkpoints, in one file.  Both are validated here when
they are read: a run with invalid content is reported and left out.
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

from iglu_lab.errors import UserError, collect_problems
from iglu_lab.recipes import RECIPES, Recipe, is_plain_number
from iglu_lab.runs import provenance
from iglu_lab.storage import remove_unfinished, write_json, write_json_lines

Row = dict[str, Any]

RECIPE, PROVENANCE, METRICS, STATE = "recipe.json", "provenance.jsonl", "metrics.jsonl", "state.json"
STATUSES = ("finished", "stopped", "diverged", "unfinished")

# Every epoch has at least one of these.
_EPOCH_METRICS = ("train_loss", "test_acc", "perplexity")

# The metrics in which two equal runs differ.
TIMINGS = ("seconds", "test_seconds", "rate")


@dataclass(frozen=True)
class Run:
    """One run, as stored."""

    folder: Path  # or the archive that contains it
    recipe: Recipe
    status: str  # "finished", "stopped" (at an epoch or by request), "diverged", "unfinished"
    history: tuple[Row, ...]  # one row per epoch
    message: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)  # of its last start

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.recipe.folder_name

    @property
    def metric(self) -> str:
        """The metric shown in tables."""
        if self.recipe.kind == "continual":
            return "final_acc"
        return "perplexity" if any("perplexity" in row for row in self.history) else "test_acc"

    @property
    def evaluated(self) -> tuple[Row, ...]:
        """The epochs with an evaluation. The last epoch always has one."""
        return tuple(row for row in self.history if self.metric in row)

    @property
    def last(self) -> Row:
        """The last evaluated epoch. The paper and all means over seeds use it."""
        if not self.evaluated:
            raise ValueError(f"{self.name} has no evaluated epoch")
        return self.evaluated[-1]

    @property
    def best(self) -> Row:
        """The epoch with the best test metric. Selected on the test set, so optimistic: show it as such."""
        sign = -1 if self.metric == "perplexity" else 1
        return max(self.evaluated, key=lambda row: float(sign * row[self.metric]))

    def is_done_for(self, recipe: Recipe) -> bool:
        """Whether it diverged or has all epochs of ``recipe``, which may have more than the run's own."""
        done = len(self.history) if self.status in ("finished", "stopped") else 0
        return self.status == "diverged" or done >= recipe.last_epoch

    @property
    def is_complete(self) -> bool:
        """Whether it has all its epochs and did not diverge."""
        return self.status != "diverged" and bool(self.evaluated) and self.is_done_for(self.recipe)

    @property
    def seconds(self) -> float:
        """Total time of its epochs, evaluation included."""
        return math.fsum(row.get("seconds", 0.0) + row.get("test_seconds", 0.0) for row in self.history)

    def without_timings(self) -> list[Row]:
        """The history without timings: equal for equal runs."""
        return [{key: row[key] for key in row if key not in TIMINGS} for row in self.history]


def read_run(folder: Path | str) -> Run:
    """Read the run in ``folder``; raise UserError if a file is invalid."""
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        raise UserError(f"{folder} is not a run folder: it has no {RECIPE}")
    recipe = read_recipe(folder)
    status, message = read_state(folder)
    try:
        starts = read_starts(folder)
    except UserError:  # the metrics are valid without them
        starts = []
    return Run(folder, recipe, status, read_history(folder), message, starts[-1] if starts else {})


def read_recipe(folder: Path) -> Recipe:
    """Read recipe.json.  The folder must have the name that follows from the recipe."""
    recipe = checked_recipe(_json(folder / RECIPE), str(folder / RECIPE))
    # The folder name has the differences from the recipe of that name, which may not be registered.
    if recipe.name in RECIPES and folder.resolve().name != recipe.folder_name:
        raise UserError(
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
    """Read the provenance of each start."""
    starts = _json_lines(folder / PROVENANCE)
    if not all(isinstance(start, dict) for start in starts):
        raise UserError(f"{folder / PROVENANCE} cannot be read: a line is not the provenance of a start")
    return starts


def describe_difference(before: Recipe, after: Recipe) -> str:
    """The fields of the identity that differ, as text; empty if none does."""
    old, new = before.identity(), after.identity()
    return "; ".join(
        f"{key} was {old.get(key)!r}, now {new.get(key)!r}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    )


# -- checks ----------------------------------------------------------------------------------------


def checked_recipe(value: Any, where: str) -> Recipe:
    try:
        return Recipe.from_dict(value)
    except (ValueError, TypeError) as error:
        raise UserError(f"{where} cannot be read: {error}") from error


def checked_state(value: Any, where: str) -> tuple[str, str]:
    """Status and message."""
    status = value.get("status") if isinstance(value, dict) else None
    message = value.get("message", "") if isinstance(value, dict) else None
    if status not in STATUSES or not isinstance(message, str):
        raise UserError(f"{where} cannot be read: it has no valid status and message")
    return status, message


def checked_history(rows: list[Any], where: str) -> tuple[Row, ...]:
    """One row per epoch, from 1, in order, with numbers; observers may have added other values."""
    for number, row in enumerate(rows, start=1):
        if not _is_epoch(row, number):
            raise UserError(f"{where} cannot be read: line {number} is not the metrics of epoch {number}")
    return tuple(rows)


def _is_epoch(row: Any, number: int) -> bool:
    return (
        isinstance(row, dict)
        and type(row.get("epoch")) is int
        and row["epoch"] == number
        and any(name in row for name in _EPOCH_METRICS)
        and all(_is_valid(name, value) for name, value in row.items())
    )


def _is_valid(name: str, value: Any) -> bool:
    is_metric = name in (*_EPOCH_METRICS, *TIMINGS) or name.startswith(("test_", "train_", "bits_"))
    return is_plain_number(value) or not (is_metric or isinstance(value, int))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error or type(error).__name__}") from error


def _json_lines(path: Path) -> list[Any]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return [
        parsed(line, f"{path} cannot be read: line {number}") for number, line in enumerate(lines, start=1)
    ]


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON") from error


# -- writing ---------------------------------------------------------------------------------------


class RunLockedError(BlockingIOError):
    """Another process holds the lock of this run."""


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Create the folder if needed and lock it.  The system releases the lock when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunLockedError(
            f"{folder} is locked by another process. Wait for it, or choose another --out."
        ) from None
    try:
        remove_unfinished(folder)
        yield
    finally:
        lock.release()


def open_run(
    folder: Path, recipe: Recipe, notes: list[str], saved: Mapping[str, Any] | None = None
) -> Run | None:
    """Read the run in the folder, or None if there is none; raise UserError if it is another run.

    Damaged files are renamed and reported in ``notes``: a checkpoint has their content too.  ``saved`` is
    the recipe of a checkpoint, which replaces a damaged one."""
    if not (folder / RECIPE).exists():
        return None
    problems: list[str] = []
    with collect_problems(problems):
        checked_recipe(_json(folder / RECIPE), str(folder / RECIPE))
    if problems and saved is None:
        raise UserError(f"{problems[0]}. Repair it, or remove {folder} to start again.")
    if problems:
        notes.append(set_aside(folder / RECIPE, problems[0]))
        write_json(folder / RECIPE, saved)
    difference = describe_difference(read_recipe(folder), recipe)
    if difference:
        raise UserError(f"{folder} contains another run: {difference}. Choose another --out, or remove it.")
    readers: dict[str, Callable[[Path], object]] = {
        STATE: read_state, METRICS: read_history, PROVENANCE: read_starts
    }  # fmt: skip
    for name, read in readers.items():
        problems = []
        with collect_problems(problems):
            read(folder)
        if problems:
            content = (folder / name).read_bytes()
            notes.append(set_aside(folder / name, problems[0]))
            if name == PROVENANCE:  # the other lines are still valid
                write_json_lines(folder / name, filter(None, map(_parse_start, content.splitlines())))
    return read_run(folder)


def _parse_start(line: bytes) -> Row | None:
    try:
        start = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return start if isinstance(start, dict) else None


def set_aside(path: Path, reason: str) -> str:
    """Rename a damaged file and return a note about it."""
    names = (path.with_name(f"{path.name}.damaged{number}") for number in ("", *range(2, 1000)))
    kept = next(name for name in names if not name.exists())
    path.rename(kept)
    return f"{reason}; set aside as {kept.name}"


def write_start(folder: Path, recipe: Recipe, history: Sequence[Row], start: Mapping[str, Any]) -> None:
    """Record that a run starts or resumes, possibly with another version or on another machine."""
    write_json(folder / RECIPE, recipe.as_dict())
    (folder / STATE).unlink(missing_ok=True)
    if history and not (folder / METRICS).exists():
        write_json_lines(folder / METRICS, history)
    starts = [*read_starts(folder), {**provenance.collect(), **start}]
    write_json_lines(folder / PROVENANCE, starts)
