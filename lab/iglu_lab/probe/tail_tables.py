"""Tables of tails: the layers of one network, several networks, and the columns of the paper's Table 5.

The data of a network are in its probe.json, or in ``tails`` in the last line of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from iglu.probing.table import COLUMNS, cells, notes
from iglu_lab.recipes import Recipe
from iglu_lab.stats.comparison import Sample, is_number
from iglu_lab.stats.statistics import Estimate, estimate
from iglu_lab.stats.tabulate import Cell, Table, estimated, numbered

# The field that a column of the printed table is sorted by.
_NUMBERS = {
    "n": "n", "k": "k", "alpha [95%]": "alpha", "Gaussian": "gaussian", "excess": "excess",
    "robust SD": "robust_sd", "kurtosis": "kurtosis", "x < 0": "negative", "f' ~ 0": "vanishing",
    "sigma": "sigma", "IGLU' ~ 0": "vanishing_iglu",
}  # fmt: skip

PROBE_FILE = "probe.json"

HEADERS = (
    ("alpha, first batch, k = 100", "ours"), ("alpha, first batch, k = 100", "Gaussian"),
    ("alpha, all batches", "ours"), ("alpha, all batches", "Gaussian"),
    ("excess", "ours [95%]"), ("sigma", "suggested"),
)  # fmt: skip
NOTE = (
    "Hill's alpha, mean over layers: as in the paper (first batch, k = 100) and over all batches, each with "
    "the alpha of Gaussian data at the same n and k. Excess: the Gaussian's alpha divided by ours, geometric "
    "mean over layers; 1 is a Gaussian tail, above 1 is heavier."
)


class Tails(NamedTuple):
    """The probe of one network; ``recipe`` if it was a run of the lab."""

    name: str
    body: Mapping[str, Any]  # of probe.json: layers, first_batch, suggestion, hill
    recipe: Recipe | None = None

    @property
    def sigma(self) -> float | None:
        """The sigma suggested for the network."""
        suggestion = self.body.get("suggestion")
        found: Any = suggestion.get("sigma") if isinstance(suggestion, Mapping) else None
        return float(found) if is_number(found) else None

    @property
    def excess(self) -> Estimate:
        """Hill's xi divided by a Gaussian's, with its interval: geometric means over layers."""
        value, low, high = (
            mean_of(self.body["layers"], name) for name in ("excess", "excess_low", "excess_high")
        )
        return Estimate(value, low, high, len(self.body["layers"]))


def mean_of(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    """The mean over the layers that have the number; NaN if none has.  The mean of the excess, a ratio, is
    geometric, as in iglu.probing.sigma."""
    values = [row[name] for row in rows if is_number(row.get(name))]
    if values and name.startswith("excess"):
        return math.exp(math.fsum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0
    return math.fsum(values) / len(values) if values else math.nan


def layer_table(tails: Tails, key: str) -> Table:
    """One network, one row per layer."""
    rows = tails.body["layers"]
    lines = [
        [
            Cell(text, row[name] if is_number(row.get(name := _NUMBERS.get(title, ""))) else None)
            for title, text in zip(COLUMNS, cells(row), strict=True)
        ]
        for row in rows
    ]
    # A file may lack a field that the notes need.
    blank = {"layer": "", "note": "", "not_finite": 0}
    title = f"Tails of {tails.name} per layer"
    return Table.of(key, title, COLUMNS, lines, notes([blank | dict(row) for row in rows]))


def tail_cells(tails: Tails) -> list[Cell]:
    """Alpha as in the paper and over all batches, each with that of a Gaussian; excess; suggested sigma."""
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
    """One row per network; runs that differ only in the seed share a row."""
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
    """The tails of each layer in an epoch's line; empty if it has none."""
    tails = row.get("tails")
    layers = list(tails.values()) if isinstance(tails, Mapping) else []
    return layers if all(isinstance(each, Mapping) for each in layers) else []


def sample_tails(sample: Sample, name: str) -> Estimate | None:
    """The mean over layers of a statistic ("alpha" or "excess"), estimated over the seeds."""
    values = [mean_of(layers_of_run(run.last), name) for run in sample.runs]
    known = [value for value in values if math.isfinite(value)]
    return estimate(known) if known else None
