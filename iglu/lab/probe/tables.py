"""The tails of networks as tables: layer by layer, many networks beside each other, and the paper's Table 5.

A network is told by the content of its probe.json, or by the ``tails`` in the last line of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from iglu.lab.recipes import Recipe
from iglu.lab.results.comparison import Sample, is_number
from iglu.lab.results.statistics import Estimate, estimate
from iglu.lab.results.tables import Cell, Table, estimated, numbered
from iglu.probing.table import COLUMNS, cells, notes

# The number that a column of the printed table is sorted by.
_NUMBERS = {
    "n": "n", "k": "k", "alpha [95%]": "alpha", "Gaussian": "gaussian", "excess": "excess", "scale": "scale",
    "kurtosis": "kurtosis", "x < 0": "negative", "f' ~ 0": "vanishing", "sigma": "sigma",
    "IGLU' ~ 0": "vanishing_iglu",
}  # fmt: skip

PROBE_FILE = "probe.json"

HEADERS = (
    ("alpha, first batch, k = 100", "ours"), ("alpha, first batch, k = 100", "a Gaussian's"),
    ("alpha, all batches", "ours"), ("alpha, all batches", "a Gaussian's"),
    ("xi over a Gaussian's", "ours [95%]"), ("sigma", "suggested"),
)  # fmt: skip
NOTE = (
    "Hill's alpha, mean over layers: the paper's way (first batch, k = 100) and over all batches, each "
    "beside what a Gaussian gives at the same n and k. Only the quotient of the two speaks of tails; above 1 "
    "they are heavier than a Gaussian's."
)


class Tails(NamedTuple):
    """What one network's probe found; ``recipe`` where it was a run of the lab."""

    name: str
    body: Mapping[str, Any]  # of probe.json: layers, first_batch, suggestion, hill
    recipe: Recipe | None = None

    @property
    def sigma(self) -> float | None:
        """That was suggested for the network as a whole."""
        suggestion = self.body.get("suggestion")
        found: Any = suggestion.get("sigma") if isinstance(suggestion, Mapping) else None
        return float(found) if is_number(found) else None

    @property
    def excess(self) -> Estimate:
        """Hill's xi over a Gaussian's, and its interval: means over layers."""
        value, low, high = (
            mean_of(self.body["layers"], name) for name in ("excess", "excess_low", "excess_high")
        )
        return Estimate(value, low, high, len(self.body["layers"]))


def mean_of(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    """Over the layers that have the number; NaN if none has."""
    values = [row[name] for row in rows if is_number(row.get(name))]
    return math.fsum(values) / len(values) if values else math.nan


def layer_table(tails: Tails, key: str) -> Table:
    """One network, layer by layer."""
    rows = tails.body["layers"]
    lines = [
        [
            Cell(text, row[name] if is_number(row.get(name := _NUMBERS.get(title, ""))) else None)
            for title, text in zip(COLUMNS, cells(row), strict=True)
        ]
        for row in rows
    ]
    # Those of the printed table, also of a file that lacks a field.
    blank = {"layer": "", "note": "", "not_finite": 0}
    title = f"Tails of {tails.name}, layer by layer"
    return Table.of(key, title, COLUMNS, lines, notes([blank | dict(row) for row in rows]))


def tail_cells(tails: Tails) -> list[Cell]:
    """Alpha the paper's way and ours, each beside a Gaussian's, the excess, and the sigma suggested."""
    excess, sigma = tails.excess, tails.sigma
    return [
        *(
            numbered(mean_of(tails.body[part], name), 1)
            for part in ("first_batch", "layers")
            for name in ("alpha", "gaussian")
        ),
        Cell(excess.span(), excess.value) if math.isfinite(excess.value) else Cell("none"),
        Cell("none") if sigma is None else Cell(f"{sigma:.3g}", sigma),
    ]


def networks_table(networks: Sequence[Tails], title: str = "Our own probes") -> Table:
    """Many networks beside each other; runs that differ in the seed alone share a line."""
    groups: dict[tuple[Recipe | None, str], list[Tails]] = {}
    for tails in networks:
        same, name = tails.recipe, tails.name
        if same is not None:
            same, name = same.replace(seed=0), same.folder_name.rpartition("_seed=")[0]
        groups.setdefault((same, name), []).append(tails)
    rows = [
        (
            name,
            len(group),
            len(group[0].body["layers"]),
            *(map(_over_seeds, zip(*map(tail_cells, group), strict=True))),
        )
        for (_, name), group in groups.items()
    ]
    return Table.of("probes", title, ("network", "seeds", "layers", *HEADERS), rows, [NOTE])


def _over_seeds(column: tuple[Cell, ...]) -> Cell:
    numbers = [cell.number for cell in column if cell.number is not None]
    return column[0] if len(column) == 1 or not numbers else estimated(estimate(numbers), 2)


def layers_of_run(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """From an epoch's line, where it has their tails."""
    tails = row.get("tails")
    layers = list(tails.values()) if isinstance(tails, Mapping) else []
    return layers if all(isinstance(each, Mapping) for each in layers) else []


def sample_tails(sample: Sample, name: str) -> Estimate | None:
    """A number of every layer ("alpha", "excess"), mean over layers, over the seeds of a sample."""
    values = [mean_of(layers_of_run(run.last), name) for run in sample.runs]
    known = [value for value in values if math.isfinite(value)]
    return estimate(known) if known else None
