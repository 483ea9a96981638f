"""Many runs in one JSON Lines file, without checkpoints, and all runs below a folder.

The first line identifies the file and lists each machine and code version once; then one run per line::

    {"iglu_runs": 1, "provenance": [{"commit": ..., "torch": ..., "cpu": ...}]}
    {"recipe": {...}, "status": "finished", "message": "", "date": ..., "provenance": 0, "history": [...]}

``iglu runs FOLDER --record FILE`` writes it.  Everything that reads a folder of runs reads such a file too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from iglu_lab.errors import UserError, collect_problems
from iglu_lab.runs.folder import (
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
from iglu_lab.storage import write_json_lines

FORMAT = 1
_KIND = "iglu_runs"
_PER_START = ("date", "step")  # these differ between two starts on one machine


def read_runs(place: Path | str) -> tuple[list[Run], list[str]]:
    """Read every run in or below a folder, or in an archive; return the runs and the problems found."""
    place = Path(place)
    runs: list[Run] = []
    problems: list[str] = []
    for path in run_files(place):
        read_into(path, runs, problems)
    return runs, problems


def run_files(place: Path) -> Iterator[Path]:
    """The recipe.json files and the archives in ``place``, sorted by path."""
    if place.is_file():
        yield place
    for folder, below, names in os.walk(place):
        below.sort()
        for name in sorted(names):
            path = Path(folder, name)
            is_other = not name.endswith(".jsonl") or name in (METRICS, PROVENANCE)
            if name == RECIPE or (not is_other and is_archive(path)):
                yield path


def read_into(path: Path, runs: list[Run], problems: list[str]) -> None:
    """Read one of ``run_files``.  A run that cannot be read is added to ``problems`` instead."""
    with collect_problems(problems):
        if path.name == RECIPE:
            runs.append(read_run(path.parent))
            return
        lines = path.read_text(encoding="utf-8").splitlines()
        starts = _starts(lines[0] if lines else "", path)
        for number, line in enumerate(lines[1:], start=2):
            with collect_problems(problems):
                runs.append(_run(line, starts, path, number))


def is_archive(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            head = json.loads(file.readline(1_000_000))
    except (ValueError, OSError, RecursionError):
        return False
    return isinstance(head, dict) and _KIND in head


def add_to_archive(runs: Iterable[Run], path: Path) -> tuple[int, int]:
    """Add the completed runs that the file does not have; replace those with fewer epochs.  Return the number
    of added or replaced runs and the total."""
    kept: list[Run] = []
    problems: list[str] = []
    if path.exists():
        read_into(path, kept, problems)
    if problems:
        raise UserError(f"{problems[0]}; nothing was written")
    known = {run.name: len(run.history) for run in kept}
    new = [
        run
        for run in runs
        if run.is_done_for(run.recipe) and (run.name not in known or known[run.name] < len(run.history))
    ]
    names = {run.name for run in new}
    kept = [run for run in kept if run.name not in names]
    starts: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for run in (*kept, *new):
        start = {key: value for key, value in run.provenance.items() if key not in _PER_START}
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
        raise UserError(f"{path} is not a run archive: its first line has no {_KIND}")
    if content[_KIND] != FORMAT:
        raise UserError(f"{path} has format {content[_KIND]!r}; this version of iglu reads {FORMAT}")
    starts = content.get("provenance", [])
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise UserError(f"{path} cannot be read: its provenance is not a list of objects")
    return starts


def _run(line: str, starts: list[dict[str, Any]], path: Path, number: int) -> Run:
    where = f"line {number} of {path}"
    content = parsed(line, f"{where} cannot be read: it")
    if not isinstance(content, dict) or not isinstance(content.get("history"), list):
        raise UserError(f"{where} cannot be read: it is not a run")
    recipe = checked_recipe(content.get("recipe"), where)
    status, message = checked_state(content, where)
    history = checked_history(content["history"], where)
    index = content.get("provenance")
    start = starts[index] if type(index) is int and 0 <= index < len(starts) else {}
    return Run(path, recipe, status, history, message, {**start, "date": content.get("date", "")})
