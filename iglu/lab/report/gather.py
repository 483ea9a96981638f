"""Everything measured below some folders: rows of ``iglu bench``, runs, probes, and grids that were planned.

Nothing here raises over what it finds: a file that is not what its name says is skipped and named.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iglu.lab.bench.sittings import FILES, Sitting, read_sitting
from iglu.lab.mistakes import MistakeError, complaining, missing
from iglu.lab.probe.tables import PROBE_FILE, Tails
from iglu.lab.recipes import Recipe
from iglu.lab.report.replication import Repeat, repeated
from iglu.lab.results.comparison import Sample, counted, distinct, is_number, samples
from iglu.lab.runs.folder import Run
from iglu.lab.runs.provenance import sentence_of
from iglu.lab.runs.record import read_into, run_files
from iglu.lab.sweep.grid import Grid, Plan, read_grid

Samples = Mapping[Recipe, Mapping[str, Sample]]


@dataclass(frozen=True)
class Evidence:
    """A grid that was planned before it was run, and the samples of it."""

    grid: Grid
    plan: Plan
    samples: Samples

    @functools.cached_property
    def common(self) -> Samples:
        """On the seeds that every activation has: of a grid that was stopped early, fewer than planned."""
        return {setting: self._common(of) for setting, of in self.samples.items()}

    def _common(self, of: Mapping[str, Sample]) -> dict[str, Sample]:
        seeds = [{run.recipe.seed for run in (*each.runs, *each.diverged)} for each in of.values()]
        is_whole = len(of) == len({recipe.activation for recipe in self.grid.recipes})
        common = set.intersection(*seeds) if is_whole else set()
        return {
            name: replace(
                each,
                runs=tuple(run for run in each.runs if run.recipe.seed in common),
                diverged=tuple(run for run in each.diverged if run.recipe.seed in common),
            )
            for name, each in of.items()
        }


def seeds_of(of: Mapping[str, Sample]) -> int:
    """How many every activation has."""
    return min((len(each.runs) + len(each.diverged) for each in of.values()), default=0)


@dataclass
class Gathered:
    """What was found, the same run once."""

    sittings: list[Sitting] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    probes: list[Tails] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)

    @functools.cached_property
    def samples(self) -> Samples:
        return samples(self.runs)

    @functools.cached_property
    def evidence(self) -> list[Evidence]:
        """Of every grid with a plan; it has no samples where nothing was run."""
        found = []
        for grid in self.grids:
            names = {recipe.folder_name for recipe in grid.runs}
            mine = [run for run in self.runs if run.name in names]
            if grid.plan is not None:
                found.append(Evidence(grid, grid.plan, samples(mine)))
        return found


def gather(folders: Sequence[Path]) -> Gathered:
    """Read all folders, each file once however they overlap."""
    found = Gathered(complaints=[str(missing(folder)) for folder in folders if not folder.exists()])
    everything: list[Run] = []
    tops: dict[Path, Path] = {}
    for top, path in _files(folders):
        tops[path] = top
        with complaining(found.complaints, path):
            if path.name in FILES:
                sitting = read_sitting(path, found.complaints)
                found.sittings.append(sitting)
                found.sources.append(f"{path}: {len(sitting.rows)} rows; {sitting.sentence}")
            elif path.name == PROBE_FILE:
                probe = _probe(path)
                found.probes.append(probe)
                sentence = sentence_of(probe.body.get("provenance"))
                found.sources.append(f"{path}: {len(probe.body['layers'])} layers; {sentence}")
            elif path.suffix == ".toml":
                found.grids.append(read_grid(str(path)))
            else:
                read_into(path, everything, found.complaints)
    found.sources += _run_sources(everything, tops)
    found.runs, found.repeats = distinct(everything), repeated(everything)
    again = len(found.repeats)
    copies = len(everything) - len(found.runs) - again
    if copies:
        found.sources.append(f"found more than once and counted once: {counted(copies, 'run')}")
    if again:
        found.sources.append(f"made again and counted once: {counted(again, 'run')}; see how well they agree")
    left = sum(not run.is_whole and run.status != "diverged" for run in found.runs)
    if left:
        found.complaints.append(f"{left} of {len(found.runs)} runs have epochs to go and are in no mean")
    recipes = {run.name: run.recipe for run in found.runs}
    found.probes = [each._replace(recipe=each.recipe or recipes.get(each.name)) for each in found.probes]
    return found


def _files(folders: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """The folder that was named, and a file in it.  Grids lie beside the runs recorded of them, those of
    which nothing was run beside the others."""
    seen: set[Path] = set()
    for folder in folders:
        own = [path for name in (*FILES, PROBE_FILE) for path in sorted(folder.rglob(name))]
        records = list(run_files(folder))
        homes = dict.fromkeys(record.parent for record in records if record.with_suffix(".toml").is_file())
        grids = [path for home in homes for path in sorted(home.glob("*.toml"))]
        for path in (*own, *records, *grids):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield folder, path


def _run_sources(runs: Sequence[Run], tops: Mapping[Path, Path]) -> list[str]:
    """A line for each folder or file that was named and each provenance in it."""
    lines: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        is_recorded = run.folder in tops
        top = run.folder if is_recorded else tops[run.folder / "recipe.json"]
        lines.setdefault((str(top), sentence_of(run.provenance)), []).append(run)
    sources = []
    for (place, sentence), found in lines.items():
        counts = Counter(run.status for run in found)
        statuses = ", ".join(f"{count} {status}" for status, count in counts.items())
        sources.append(f"{place}: {counted(len(found), 'run')} ({statuses}); {sentence}")
    return sources


# -- probes ----------------------------------------------------------------------------------------

_WORDS = ("layer", "verdict", "note")
_CURVE = ("k", "xi", "xi_low", "xi_high", "gaussian_xi")


def _probe(path: Path) -> Tails:
    """Checked once: layers with numbers, curves of equal lengths; what is not so is left out of it."""
    body = json.loads(path.read_text(encoding="utf-8"))
    for part in ("layers", "first_batch"):
        rows = body.get(part) if isinstance(body, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "layer" in row for row in rows):
            raise MistakeError(f"not a file of iglu probe: it has no {part}")
        body[part] = [_layer(row) for row in rows]
    hill = body.get("hill")
    curves = hill.items() if isinstance(hill, dict) else ()
    body["hill"] = {layer: curve for layer, curve in curves if _is_curve(curve)}
    recipe = body.get("recipe")
    known = Recipe.from_dict(recipe) if isinstance(recipe, dict) else None
    return Tails(path.parent.name, body, known)


def _layer(row: dict[str, Any]) -> dict[str, Any]:
    """Words where words belong, numbers everywhere else."""
    words = {key: row[key] for key in ("verdict", "note") if isinstance(row.get(key), str)}
    numbers = {key: value for key, value in row.items() if key not in _WORDS and is_number(value)}
    return {"layer": str(row["layer"]), **words, **numbers}


def _is_curve(curve: Any) -> bool:
    if not isinstance(curve, dict) or not all(isinstance(curve.get(name), list) for name in _CURVE):
        return False
    columns = [curve[name] for name in _CURVE]
    is_square = len(set(map(len, columns))) == 1 and len(columns[0]) > 1
    return is_square and all(map(is_number, itertools.chain(*columns)))
