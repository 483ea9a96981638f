"""Gather all measurements below some folders: rows of ``iglu bench``, runs, probes, and planned grids.

A file that cannot be read is skipped and listed among the problems; no error is raised.
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

from iglu_lab.bench.sessions import FILES, Session, read_session
from iglu_lab.errors import UserError, collect_problems, missing
from iglu_lab.probe.tail_tables import PROBE_FILE, Tails
from iglu_lab.recipes import Recipe
from iglu_lab.report.replication import Repeat, repeated
from iglu_lab.runs.archive import read_into, run_files
from iglu_lab.runs.folder import Run
from iglu_lab.runs.provenance import describe_provenance
from iglu_lab.stats.comparison import Sample, counted, distinct, is_number, samples
from iglu_lab.storage import shown
from iglu_lab.sweep.grid import Grid, Plan, key_of, read_grid

Samples = Mapping[Recipe, Mapping[str, Sample]]


@dataclass(frozen=True)
class PlannedGrid:
    """A grid that was planned before it was run, with its samples: none if it is a pilot, or sealed until the
    next look of its plan."""

    grid: Grid
    plan: Plan
    samples: Samples
    members: Sequence[Run]  # its runs, including unfinished and sealed ones
    is_sealed: bool  # its runs may only be counted; always true for a pilot

    @classmethod
    def of(cls, grid: Grid, plan: Plan, runs: Iterable[Run]) -> PlannedGrid:
        recipes = grid.keys
        members = [run for run in runs if key_of(run.recipe) in recipes]
        is_sealed = plan.pilot or plan.is_sealed(grid.complete_seeds(members))
        # A run that is set to stop at another epoch has the numbers of that epoch.
        shown = [run for run in members if run.recipe.last_epoch == recipes[key_of(run.recipe)].last_epoch]
        return cls(grid, plan, samples([] if is_sealed else shown), members, is_sealed)

    @property
    def recorded(self) -> list[Run]:
        """The runs that are done."""
        recipes = self.grid.keys
        return [run for run in self.members if run.is_done_for(recipes[key_of(run.recipe)])]

    @property
    def is_second_round(self) -> bool:
        """Whether its plan names the comparisons, or it is the pilot of such a grid."""
        return bool(self.plan.primary) or self.plan.pilot

    @functools.cached_property
    def common(self) -> Samples:
        """The samples on the seeds that all activations have: fewer than planned if it was stopped early."""
        return {setting: self._common(of) for setting, of in self.samples.items()}

    def _common(self, of: Mapping[str, Sample]) -> dict[str, Sample]:
        seeds = [{run.recipe.seed for run in (*each.runs, *each.diverged)} for each in of.values()]
        is_complete = len(of) == len({recipe.activation for recipe in self.grid.recipes})
        common = set.intersection(*seeds) if is_complete else set()
        return {
            name: replace(
                each,
                runs=tuple(run for run in each.runs if run.recipe.seed in common),
                diverged=tuple(run for run in each.diverged if run.recipe.seed in common),
            )
            for name, each in of.items()
        }


def seeds_of(of: Mapping[str, Sample]) -> int:
    """The number of seeds that all activations have."""
    return min((len(each.runs) + len(each.diverged) for each in of.values()), default=0)


@dataclass
class Gathered:
    """All measurements, without duplicate runs."""

    sessions: list[Session] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    probes: list[Tails] = field(default_factory=list)
    planned: list[PlannedGrid] = field(default_factory=list)  # without samples if none may be shown
    sources: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    sealed: list[Run] = field(default_factory=list)  # in no table or figure

    @functools.cached_property
    def samples(self) -> Samples:
        """The samples; of a setting that is in both rounds, those of the first: the second has other seeds,
        and not for every activation."""
        second = (of for each in self._second_round for of in each.samples.items())
        others = {
            run.name
            for setting, of in second
            if setting in self._first_round_settings
            for sample in of.values()
            for run in (*sample.runs, *sample.diverged, *sample.unfinished)
        }
        return samples(run for run in self.runs if run.name not in others)

    @property
    def first_round(self) -> list[PlannedGrid]:
        return [planned for planned in self.planned if not planned.is_second_round]

    @property
    def _second_round(self) -> list[PlannedGrid]:
        return [planned for planned in self.planned if planned.is_second_round]

    @functools.cached_property
    def _first_round_settings(self) -> set[Recipe]:
        return {setting for planned in self.first_round for setting in planned.samples}

    @functools.cached_property
    def second_round_settings(self) -> set[Recipe]:
        """Settings that only the second round has: they are shown by the comparisons of their plan."""
        found = {setting for planned in self._second_round for setting in planned.samples}
        return found - self._first_round_settings


def gather(folders: Sequence[Path]) -> Gathered:
    """Read all folders, each file only once if they overlap."""
    found = Gathered(problems=[str(missing(folder)) for folder in folders if not folder.exists()])
    everything: list[Run] = []
    grids: list[Grid] = []
    tops: dict[Path, Path] = {}
    for top, path in _files(folders):
        tops[path] = top
        with collect_problems(found.problems, path):
            if path.name in FILES:
                session = read_session(path, found.problems)
                found.sessions.append(session)
                found.sources.append(f"{shown(path)}: {len(session.rows)} rows; {session.origin}")
            elif path.name == PROBE_FILE:
                probe = _probe(path)
                found.probes.append(probe)
                sentence = describe_provenance(probe.body.get("provenance"))
                found.sources.append(f"{shown(path)}: {len(probe.body['layers'])} layers; {sentence}")
            elif path.suffix == ".toml":
                grids.append(read_grid(str(path)))
            else:
                read_into(path, everything, found.problems)
    found.sources += _run_sources(everything, tops)
    found.runs, found.repeats = distinct(everything), repeated(everything)
    again = len(found.repeats)
    copies = len(everything) - len(found.runs) - again
    found.planned = [PlannedGrid.of(grid, grid.plan, found.runs) for grid in grids if grid.plan is not None]
    _seal(found)
    if copies:
        found.sources.append(f"found more than once and counted once: {counted(copies, 'run')}")
    if again:
        found.sources.append(f"repeated and counted once: {counted(again, 'run')}")
    left = sum(not run.is_complete and run.status != "diverged" for run in found.runs)
    if left:
        found.problems.append(f"{left} of {len(found.runs)} runs are unfinished and not in any mean")
    recipes = {run.name: run.recipe for run in found.runs}
    found.probes = [each._replace(recipe=each.recipe or recipes.get(each.name)) for each in found.probes]
    return found


def _seal(found: Gathered) -> None:
    """Remove the runs that may only be counted from everything that is shown."""
    sealed: dict[str, Run] = {}
    for planned in found.planned:
        if planned.is_sealed and planned.members:
            sealed |= {run.name: run for run in planned.members}
            why = "a pilot, not in any comparison" if planned.plan.pilot else "sealed until its next look"
            count = f"{len(planned.recorded)} of {len(planned.grid.runs)} runs"
            found.sources.append(f"{planned.grid.title}: {count}; {why}")
    found.sealed = list(sealed.values())
    found.runs = [run for run in found.runs if run.name not in sealed]
    found.repeats = [each for each in found.repeats if each.first.name not in sealed]


def _files(folders: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Each given folder, with a file in it.  A grid is next to its recorded runs; a grid without runs is next
    to the others."""
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
    """One line per given folder or file and per provenance in it."""
    lines: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        is_recorded = run.folder in tops
        top = run.folder if is_recorded else tops[run.folder / "recipe.json"]
        lines.setdefault((shown(top), describe_provenance(run.provenance)), []).append(run)
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
    """Read and check a probe: layers with numbers, curves of equal lengths; invalid parts are left out."""
    body = json.loads(path.read_text(encoding="utf-8"))
    for part in ("layers", "first_batch"):
        rows = body.get(part) if isinstance(body, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "layer" in row for row in rows):
            raise UserError(f"not a file of iglu probe: it has no {part}")
        body[part] = [_layer(row) for row in rows]
    hill = body.get("hill")
    curves = hill.items() if isinstance(hill, dict) else ()
    body["hill"] = {layer: curve for layer, curve in curves if _is_curve(curve)}
    recipe = body.get("recipe")
    known = Recipe.from_dict(recipe) if isinstance(recipe, dict) else None
    return Tails(path.parent.name, body, known)


def _layer(row: dict[str, Any]) -> dict[str, Any]:
    """Keep the fields that have the expected type: text or a number."""
    row = row | {"layer": str(row["layer"])}
    return {
        key: value
        for key, value in row.items()
        if (isinstance(value, str) if key in _WORDS else is_number(value))
    }


def _is_curve(curve: Any) -> bool:
    columns: list[Any] = [curve.get(name) for name in _CURVE] if isinstance(curve, dict) else [None]
    if not all(isinstance(column, list) and len(column) == len(columns[0]) > 1 for column in columns):
        return False
    return all(map(is_number, itertools.chain(*columns)))
