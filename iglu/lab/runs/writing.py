"""The writing side of a run's folder: who may work in it, and what it says about itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from iglu.lab.mistakes import MistakeError
from iglu.lab.recipes import Recipe
from iglu.lab.runs import provenance
from iglu.lab.runs.folder import (
    METRICS,
    PROVENANCE,
    RECIPE,
    STATE,
    Row,
    Run,
    read_history,
    read_recipe,
    read_run,
    read_starts,
    read_state,
    unlike,
)
from iglu.lab.runs.storage import remove_unfinished, write_json, write_json_lines


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


def open_run(folder: Path, recipe: Recipe, notes: list[str]) -> Run | None:
    """The run in the folder, as far as there is one; a folder of another run is refused.  What is damaged
    beside the recipe is set aside, for a checkpoint knows it too; ``notes`` says so."""
    if not (folder / RECIPE).exists():
        return None
    difference = unlike(read_recipe(folder), recipe)
    if difference:
        raise MistakeError(f"{folder} holds another run: {difference}. Choose another --out, or remove it.")
    for name, read in ((STATE, read_state), (METRICS, read_history), (PROVENANCE, read_starts)):
        complaint = _complaint(read, folder)
        if complaint:
            content = (folder / name).read_bytes()
            notes.append(set_aside(folder / name, complaint))
            if name == PROVENANCE:  # each line stands for itself
                write_json_lines(folder / name, filter(None, map(_start, content.splitlines())))
    return read_run(folder)


def _start(line: bytes) -> Row | None:
    try:
        start = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return start if isinstance(start, dict) else None


def _complaint(read: Callable[[Path], object], folder: Path) -> str:
    try:
        read(folder)
    except MistakeError as error:
        return str(error)
    return ""


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
    starts = [*read_starts(folder), {**provenance.collect().as_dict(), **start}]
    write_json_lines(folder / PROVENANCE, starts)
