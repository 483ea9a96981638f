"""Table 5 of the paper beside our probes, and a table of the probes it did not make."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from iglu.lab import paper
from iglu.lab.report.cells import MISSING, NONE, errata_of, number_text, published_cell
from iglu.lab.report.content import Cell, Table
from iglu.lab.report.gather import ProbeRecord
from iglu.lab.report.samples import differences
from iglu.lab.runs.folder import Row


def mean_of(rows: Sequence[Row], name: str) -> float:
    """Over the layers that have the metric; NaN if none has."""
    values = [
        row[name] for row in rows if isinstance(row.get(name), int | float) and math.isfinite(row[name])
    ]
    return math.fsum(values) / len(values) if values else math.nan


def _value_cell(value: float, digits: int = 1, text: Callable[[str], str] = str) -> Cell:
    return Cell(text(number_text(value, digits)), value) if math.isfinite(value) else Cell("none")


def _probe_cells(body: dict[str, Any]) -> list[Cell]:
    """Alpha the paper's way and ours, each beside a Gaussian's, the excess, and the sigma suggested."""
    first, layers = body["first_batch"], body["layers"]
    low, high = mean_of(layers, "excess_low"), mean_of(layers, "excess_high")
    suggestion = body.get("suggestion")
    sigma = suggestion.get("sigma") if isinstance(suggestion, dict) else None
    return [
        _value_cell(mean_of(first, "alpha")),
        _value_cell(mean_of(first, "gaussian")),
        _value_cell(mean_of(layers, "alpha")),
        _value_cell(mean_of(layers, "gaussian")),
        _value_cell(mean_of(layers, "excess"), 2, lambda text: f"{text} [{low:.2f}, {high:.2f}]"),
        Cell("none") if not isinstance(sigma, int | float) else Cell(f"{sigma:.3g}", float(sigma)),
    ]


_PROBE_HEADERS = (
    ("alpha, first batch, k = 100", "ours"), ("alpha, first batch, k = 100", "a Gaussian's"),
    ("alpha, all batches", "ours"), ("alpha, all batches", "a Gaussian's"),
    ("xi over a Gaussian's", "ours [95%]"), ("sigma", "suggested"),
)  # fmt: skip
_PROBE_NOTE = (
    "Hill's alpha, mean over layers: the paper's way (first batch, k = 100) and over all batches, each "
    "beside what a Gaussian gives at the same n and k. Only the quotient of the two speaks of tails; above 1 "
    "they are heavier than a Gaussian's."
)


def papers_probe(row: paper.TailRow, probes: Iterable[ProbeRecord]) -> ProbeRecord | None:
    """The probe of a network of Table 5, nearest to its recipe first."""
    fitting = [
        probe
        for probe in probes
        if probe.recipe is not None and probe.recipe.name == row.recipe.name
        and probe.recipe.norm == row.recipe.norm and probe.recipe.activation == row.recipe.activation
    ]  # fmt: skip
    return min(fitting, key=lambda probe: len(probe_differences(probe, row)), default=None)


def probe_differences(probe: ProbeRecord, row: paper.TailRow) -> tuple[str, ...]:
    return () if probe.recipe is None else differences(probe.recipe, row.recipe)


def table5(probes: Sequence[ProbeRecord]) -> Table:
    alpha = _PROBE_HEADERS[0][0]
    headers = (
        ("", "network"), ("", "normalisation"), (alpha, "paper"), _PROBE_HEADERS[0], (alpha, "difference"),
        *_PROBE_HEADERS[1:5], ("sigma", "paper"), _PROBE_HEADERS[5],
    )  # fmt: skip
    rows = []
    for row in paper.table5():
        printed = Cell(row.outcome) if row.alpha is None else published_cell(row.alpha, 1)
        sigma = NONE if row.sigma is None else Cell(f"{row.sigma:g}", row.sigma)
        probe = papers_probe(row, probes)
        if probe is None:
            cells = [MISSING, NONE, *[MISSING] * 4, sigma, MISSING]
        else:
            first, *rest, suggested = _probe_cells(probe.body)
            apart = probe_differences(probe, row)
            if apart:
                text = f"{first.text} reduced"
                first = Cell(text, first.sort, note=f"{probe.name}: {', '.join(apart)}")
            cells = [first, _gap_cell(first.sort, row.alpha), *rest, sigma, suggested]
        rows.append((Cell(row.model), Cell(row.norm or "none"), printed, *cells))
    content = paper.paper()["table5"]
    notes = (f"The paper: {content['setup']}.", _PROBE_NOTE, *errata_of(5))
    return Table("table5", f"Table 5. {content['caption']}", headers, tuple(rows), notes)


def _gap_cell(alpha: float | None, published: paper.Published | None) -> Cell:
    if alpha is None or published is None:
        return NONE
    gap = alpha - published.right
    return Cell(number_text(gap, 1, "+"), gap)


def own_probes(probes: Sequence[ProbeRecord]) -> list[Table]:
    matched = [papers_probe(row, probes) for row in paper.table5()]
    own = [probe for probe in probes if not any(probe is each for each in matched)]
    if not own:
        return []
    rows = [
        (
            Cell(probe.name),
            Cell(str(len(probe.body["layers"])), float(len(probe.body["layers"]))),
            *_probe_cells(probe.body),
        )
        for probe in own
    ]
    headers = (("", "network"), ("", "layers"), *_PROBE_HEADERS)
    return [Table("probes", "Our own probes", headers, tuple(rows), (_PROBE_NOTE,))]
