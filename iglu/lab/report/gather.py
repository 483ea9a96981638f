"""Everything measured below some folders: rows of ``iglu bench``, runs, probes.

Nothing here raises over what it finds: a file that is not what its name says is skipped and named.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iglu import zoo
from iglu.lab.recipes import Recipe
from iglu.lab.runs.folder import PROVENANCE, RECIPE, Row, Run, read_run
from iglu.lab.runs.provenance import Provenance

BENCH_FILES = ("bench.json", "train.json")
PROBE_FILE = "probe.json"

# What a foreign or damaged file may do to those who read it.
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Bench:
    """One file of ``iglu bench``: rows of one sitting, which may be compared with each other."""

    path: Path
    rows: tuple[Row, ...]
    date: str
    sentence: str  # its provenance


@dataclass(frozen=True)
class ProbeRecord:
    """One file of ``iglu probe``; the recipe where the network was a run of the lab."""

    name: str
    body: dict[str, Any]
    recipe: Recipe | None


@dataclass(frozen=True)
class Gathered:
    """What was found, the same run once."""

    benches: tuple[Bench, ...] = ()
    runs: tuple[Run, ...] = ()
    probes: tuple[ProbeRecord, ...] = ()
    sources: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()


def gather(folders: Sequence[Path]) -> Gathered:
    """Read all folders; of runs that are in several of them, the one that went furthest, then the first."""
    complaints: list[str] = []
    benches: list[Bench] = []
    runs: list[Run] = []
    bodies: list[tuple[Path, dict[str, Any]]] = []

    def read(path: Path) -> None:
        try:
            if path.name == RECIPE:
                runs.append(_run(path.parent, complaints))
            elif path.name in BENCH_FILES:
                benches.append(_bench(path, complaints))
            else:
                bodies.append((path, _probe(path)))
        except _UNREADABLE as error:
            text = str(error) or type(error).__name__
            complaints.append(text if str(path.parent) in text else f"{path}: {text}")

    for path in _files(folders, complaints):
        read(path)
    sources = [*_bench_sources(benches), *_run_sources(runs, folders)]
    sources += [f"{path}: {len(body['layers'])} layers; {_sentence(body)}" for path, body in bodies]
    distinct = _distinct(runs)
    if len(distinct) < len(runs):
        sources.append(f"{len(runs) - len(distinct)} runs were found more than once and count once")
    complaints += [
        f"{run.folder} has no finished epoch ({run.status})"
        for run in distinct
        if not run.history and run.status != "diverged"
    ]
    recipes = {run.folder.name: run.recipe for run in distinct}
    probes = [
        ProbeRecord(path.parent.name, body, _recipe_of(body) or recipes.get(path.parent.name))
        for path, body in bodies
    ]
    return Gathered(tuple(benches), tuple(distinct), tuple(probes), tuple(sources), tuple(complaints))


def _files(folders: Iterable[Path], complaints: list[str]) -> Iterator[Path]:
    """Each file once, however the folders overlap."""
    wanted = {RECIPE, *BENCH_FILES, PROBE_FILE}
    seen: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            complaints.append(f"{folder} is not a folder")
        for place, below, names in os.walk(folder):
            below.sort()
            for name in sorted(wanted.intersection(names)):
                path = Path(place, name)
                real = path.resolve()
                if real not in seen:
                    seen.add(real)
                    yield path


# -- runs ----------------------------------------------------------------------------------------------


def _run(folder: Path, complaints: list[str]) -> Run:
    run = read_run(folder)
    # One spelling for one activation: iglu:0.50 is iglu:0.5.
    recipe = run.recipe.replace(activation=str(zoo.parse(run.recipe.activation)))
    return dataclasses.replace(run, recipe=recipe)


def _distinct(runs: Iterable[Run]) -> list[Run]:
    found: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        key = tuple(run.recipe.identity().items())
        if key not in found or len(run.history) > len(found[key].history):
            found[key] = run
    return list(found.values())


def metric_of(run: Run, metric: str) -> float | None:
    """The metric after the last epoch, if that is a number."""
    value = run.history[-1].get(metric) if run.history else None
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number and value is not None else None


def _run_sources(runs: Sequence[Run], folders: Sequence[Path]) -> list[str]:
    """A line for each folder that was named and each provenance in it."""
    lines: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        top = next((folder for folder in folders if run.folder.is_relative_to(folder)), run.folder)
        lines.setdefault((str(top), _run_sentence(run.folder)), []).append(run)
    return [f"{top}: {_statuses(found)}; {sentence}" for (top, sentence), found in lines.items()]


def _statuses(runs: Sequence[Run]) -> str:
    counts = Counter(run.status for run in runs)
    return f"{len(runs)} runs ({', '.join(f'{count} {status}' for status, count in counts.items())})"


def _run_sentence(folder: Path) -> str:
    try:
        lines = (folder / PROVENANCE).read_text(encoding="utf-8").splitlines()
        return _sentence({"provenance": json.loads(lines[-1])})
    except (*_UNREADABLE, IndexError):
        return "no provenance"


# -- bench and probe -----------------------------------------------------------------------------------

_SPREAD = ("median", "low", "high")
_ROW_FIELDS: dict[str, type | tuple[type, ...]] = {
    "activation": str, "label": str, "kernel": str, "is_ours": bool, "device": str, "dtype": str,
    "threads": int, "rounds": int, "seconds": dict, "ratios": dict, "seconds_by_round": list,
}  # fmt: skip
_KIND_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "operation": {"elements": int, "pass": str},
    "training": {
        "model": str, "model_label": str, "unit": str, "items_a_second": dict,
        "kept_bytes": (int, float), "peak_bytes": (int, float),
    },
}  # fmt: skip


def _bench(path: Path, complaints: list[str]) -> Bench:
    body = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(body, dict) or not isinstance(body.get("rows"), list):
        raise ValueError("not a file of iglu bench: it has no rows")
    rows = [row for row in body["rows"] if _is_row(row)]
    if len(rows) < len(body["rows"]):
        complaints.append(f"{path}: {len(body['rows']) - len(rows)} entries are not rows of iglu bench")
    provenance = body.get("provenance")
    date = str(provenance.get("date", "")) if isinstance(provenance, dict) else ""
    return Bench(path, tuple(rows), date, _sentence(body))


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or row.get("kind") not in _KIND_FIELDS:
        return False
    fields = {**_ROW_FIELDS, **_KIND_FIELDS[row["kind"]]}
    if not all(isinstance(row.get(name), kind) for name, kind in fields.items()):
        return False
    spreads = [row["seconds"], *row["ratios"].values(), row.get("items_a_second", row["seconds"])]
    return all(
        isinstance(spread, dict) and all(isinstance(spread.get(name), int | float) for name in _SPREAD)
        for spread in spreads
    ) and all(isinstance(value, int | float) and value > 0 for value in row["seconds_by_round"])


def _bench_sources(benches: Iterable[Bench]) -> list[str]:
    return [f"{bench.path}: {len(bench.rows)} rows; {bench.sentence}" for bench in benches]


def _probe(path: Path) -> dict[str, Any]:
    body = json.loads(path.read_text(encoding="utf-8"))
    for part in ("layers", "first_batch"):
        rows = body.get(part) if isinstance(body, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "layer" in row for row in rows):
            raise ValueError(f"not a file of iglu probe: it has no {part}")
    return {**body, "name": path.parent.name}


def _recipe_of(body: dict[str, Any]) -> Recipe | None:
    try:
        return Recipe.from_dict(body["recipe"])
    except _UNREADABLE:
        return None


def _sentence(body: dict[str, Any]) -> str:
    names = [field.name for field in dataclasses.fields(Provenance)]
    try:
        return Provenance(**{name: body["provenance"][name] for name in names}).sentence()
    except _UNREADABLE:
        return "no provenance"
