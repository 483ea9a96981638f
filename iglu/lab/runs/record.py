"""Many runs in one file, a run a line, without their checkpoints; and all runs below a folder.

The first line says what the file is and on what the runs were made, each machine and state of the code once::

    {"iglu_runs": 1, "provenance": [{"commit": ..., "torch": ..., "cpu": ...}]}
    {"recipe": {...}, "status": "finished", "message": "", "date": ..., "provenance": 0, "history": [...]}

``iglu runs FOLDER --record FILE`` writes it; wherever a folder of runs is read, such a file is too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from iglu.lab.mistakes import MistakeError, complaining
from iglu.lab.runs.folder import (
    METRICS,
    PROVENANCE,
    RECIPE,
    Run,
    checked_history,
    checked_recipe,
    checked_state,
    parsed,
    read_run,
)
from iglu.lab.storage import write_json_lines

FORMAT = 1
_KIND = "iglu_runs"
_OF_A_START = ("date", "step")  # what differs between two starts on one machine


def read_runs(place: Path | str) -> tuple[list[Run], list[str]]:
    """Every run in or below a folder, or in a file of recorded ones; and what is wrong, a line each."""
    place = Path(place)
    runs: list[Run] = []
    complaints: list[str] = []
    for path in run_files(place):
        read_into(path, runs, complaints)
    return runs, complaints


def run_files(place: Path) -> Iterator[Path]:
    """The recipes of folders of runs and the files of recorded ones, in the order of their paths."""
    if place.is_file():
        yield place
    for folder, below, names in os.walk(place):
        below.sort()
        for name in sorted(names):
            path = Path(folder, name)
            is_other = not name.endswith(".jsonl") or name in (METRICS, PROVENANCE)
            if name == RECIPE or (not is_other and is_record(path)):
                yield path


def read_into(path: Path, runs: list[Run], complaints: list[str]) -> None:
    """What one of ``run_files`` holds; a run that cannot be read is named and left out."""
    with complaining(complaints):
        if path.name == RECIPE:
            runs.append(read_run(path.parent))
            return
        lines = path.read_text(encoding="utf-8").splitlines()
        starts = _starts(lines[0] if lines else "", path)
        for number, line in enumerate(lines[1:], start=2):
            with complaining(complaints):
                runs.append(_run(line, starts, path, number))


def is_record(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            head = json.loads(file.readline(1_000_000))
    except (ValueError, OSError, RecursionError):
        return False
    return isinstance(head, dict) and _KIND in head


def record(runs: Iterable[Run], path: Path) -> tuple[int, int]:
    """Add runs to the file, made if missing; those it has stay as they are.  How many are new, and there in
    all.  Only runs that are done: the rest is not yet a result."""
    kept: list[Run] = []
    complaints: list[str] = []
    if path.exists():
        read_into(path, kept, complaints)
    if complaints:
        raise MistakeError(f"{complaints[0]}; nothing was written")
    known = {run.name for run in kept}
    new = [run for run in runs if run.is_done_for(run.recipe) and run.name not in known]
    starts: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for run in (*kept, *new):
        start = {key: value for key, value in run.provenance.items() if key not in _OF_A_START}
        if start not in starts:
            starts.append(start)
        lines.append(
            {
                "recipe": run.recipe.as_dict(),
                "status": run.status,
                "message": run.message,
                "date": run.provenance.get("date", ""),
                "provenance": starts.index(start),
                "history": run.history,
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_lines(path, [{_KIND: FORMAT, "provenance": starts}, *lines])
    return len(new), len(lines)


def _starts(head: str, path: Path) -> list[dict[str, Any]]:
    content = parsed(head, f"{path} cannot be read: its first line")
    if not isinstance(content, dict) or _KIND not in content:
        raise MistakeError(f"{path} is not a file of runs: its first line does not say {_KIND}")
    if content[_KIND] != FORMAT:
        raise MistakeError(f"{path} has format {content[_KIND]!r}; this version of iglu reads {FORMAT}")
    starts = content.get("provenance", [])
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise MistakeError(f"{path} cannot be read: its provenance is not a list of starts")
    return starts


def _run(line: str, starts: list[dict[str, Any]], path: Path, number: int) -> Run:
    where = f"line {number} of {path}"
    content = parsed(line, f"{where} cannot be read: it")
    if not isinstance(content, dict) or not isinstance(content.get("history"), list):
        raise MistakeError(f"{where} cannot be read: it is not a run")
    recipe = checked_recipe(content.get("recipe"), where)
    status, message = checked_state(content, where)
    history = checked_history(content["history"], where)
    index = content.get("provenance")
    start = starts[index] if type(index) is int and 0 <= index < len(starts) else {}
    return Run(path, recipe, status, history, message, {**start, "date": content.get("date", "")})
