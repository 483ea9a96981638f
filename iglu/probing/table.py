"""The rows of a probe, as values and as text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from iglu.probing.layers import Layer
from iglu.tails import moment

Row = dict[str, Any]

COLUMNS: dict[str, Callable[[Row], str]] = {
    "layer": lambda row: str(row["layer"]),
    "n": lambda row: f"{row['n']:,}",
    "k": lambda row: f"{row['k']:,} ({row['fraction']:.2g})",
    "alpha [95%]": lambda row: f"{row['alpha']:.3g} [{row['alpha_low']:.3g}, {row['alpha_high']:.3g}]",
    "Gaussian": lambda row: f"{row['gaussian']:.3g}",
    "excess": lambda row: f"{row['excess']:.2f} {row['verdict']}",
    "robust SD": lambda row: f"{row['robust_sd']:.3g}",
    "kurtosis": lambda row: f"{row['kurtosis']:.2f}",
    "x < 0": lambda row: f"{row['negative']:.0%}",
    "f' ~ 0": lambda row: f"{row['vanishing']:.1%}",
    "sigma": lambda row: f"{row['sigma']:.3g}",
    "IGLU' ~ 0": lambda row: f"{row['vanishing_iglu']:.1%}",
}
"""The columns of the printed table: title, and the text of a row's cell."""


def row_of(layer: Layer, sigma: float | None) -> Row:
    """The statistics of a layer and its suggested sigma."""
    index = layer.index_or_reason
    row: Row = {
        "layer": layer.name, "activation": layer.site.activation, "source": layer.site.source,
        "calls": layer.calls, "n": layer.n, "not_finite": layer.not_finite, "mean": layer.moments.mean,
        "sd": layer.moments.sd, "robust_sd": layer.robust_sd, "kurtosis": layer.moments.kurtosis,
        "negative": layer.negative, "vanishing": layer.vanishing, "sigma": sigma,
        "vanishing_iglu": None if sigma is None else layer.vanishing_under(sigma), "note": "",
    }  # fmt: skip
    if isinstance(index, str):
        return row | {"note": index}
    estimate, *_ = index
    row |= {"k": estimate.k, "fraction": estimate.k / layer.n, "moment_xi": None, **index._asdict()}
    del row["hill"]
    with contextlib.suppress(ValueError):  # for comparison, an estimator that also measures light tails
        row["moment_xi"] = moment(estimate.tail, estimate.k).xi
    return row


def finite_or_none(value: Any) -> Any:
    """Replace NaN and inf, which JSON does not have, by None in nested dicts and lists."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def cells(row: Row) -> list[str]:
    """Format a row of :meth:`iglu.probing.Probe.rows`; "-" where it has no value."""

    def cell(write: Callable[[Row], str]) -> str:
        try:
            return write(row)
        except (KeyError, TypeError):
            return "-"

    return [cell(write) for write in COLUMNS.values()]


def notes(rows: list[Row]) -> list[str]:
    """The lines below the table."""
    return [f"{row['layer']}: {row['note']}" for row in rows if row["note"]] + [
        f"{row['layer']}: {row['not_finite']:,} values (NaN or inf) left out"
        for row in rows
        if row["not_finite"]
    ]


def text_table(rows: list[Row]) -> str:
    """Format the table and its notes as plain text."""
    lines = [list(COLUMNS), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for first, *others in lines:
        aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        text.append("  ".join([first.ljust(widths[0]), *aligned]))
    return "\n".join(text + notes(rows))
