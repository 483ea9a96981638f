"""The writing side of a run's folder: who may work in it, and what it says about itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from iglu.lab.mistakes import MistakeError
from iglu.lab.recipes import Recipe
from iglu.lab.runs import provenance
from iglu.lab.runs.folder import PROVENANCE, RECIPE, STATE, Run, read_run
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


def open_run(folder: Path, recipe: Recipe) -> Run | None:
    """Write the recipe down, or check that it is the one of the folder.  The run if there is nothing left to
    do: it diverged, or has all its epochs."""
    path = folder / RECIPE
    if path.exists():
        run = read_run(folder)
        _check_same(run.recipe, recipe, folder)
        if run.is_done_for(recipe):
            return run
        (folder / STATE).unlink(missing_ok=True)
    write_json(path, recipe.as_dict())
    return None


def record_start(folder: Path, extra: Mapping[str, Any]) -> None:
    """One more line of provenance: a run may go on under another version, on another machine."""
    path = folder / PROVENANCE
    lines = path.read_text().splitlines() if path.exists() else []
    write_json_lines(path, [*map(json.loads, lines), {**provenance.collect().as_dict(), **extra}])


def _check_same(old: Recipe, new: Recipe, folder: Path) -> None:
    before, after = old.identity(), new.identity()
    differences = [
        f"{key} was {before[key]!r}, now {after[key]!r}" for key in before if before[key] != after[key]
    ]
    if differences:
        raise MistakeError(
            f"{folder} holds another run: {'; '.join(differences)}. Choose another --out, or remove it."
        )
