"""The rows of a probe as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

COLUMNS: dict[str, Callable[[Row], str]] = {
    "layer": lambda row: str(row["layer"]),
    "n": lambda row: f"{row['n']:,}",
    "k": lambda row: f"{row['k']:,} ({row['fraction']:.2g})",
    "alpha [95%]": lambda row: f"{row['alpha']:.3g} [{row['alpha_low']:.3g}, {row['alpha_high']:.3g}]",
    "Gaussian": lambda row: f"{row['gaussian']:.3g}",
    "excess": lambda row: f"{row['excess']:.2f} {row['verdict']}",
    "scale": lambda row: f"{row['scale']:.3g}",
    "kurtosis": lambda row: f"{row['kurtosis']:.2f}",
    "x < 0": lambda row: f"{row['negative']:.0%}",
    "f' ~ 0": lambda row: f"{row['vanishing']:.1%}",
    "sigma": lambda row: f"{row['sigma']:.3g}",
    "IGLU' ~ 0": lambda row: f"{row['vanishing_iglu']:.1%}",
}
"""The columns of the printed table: a title, and how a row is written under it."""


def cells(row: Row) -> list[str]:
    """A row of :meth:`iglu.probing.Probe.rows` as text; "-" where it has no figure."""
    return [_cell(write, row) for write in COLUMNS.values()]


def notes(rows: list[Row]) -> list[str]:
    """What belongs under the table."""
    found = [f"{row['layer']}: {row['note']}" for row in rows if row["note"]]
    return found + [
        f"{row['layer']}: {row['not_finite']:,} values left out, NaN or inf"
        for row in rows
        if row["not_finite"]
    ]


def text_table(rows: list[Row]) -> str:
    """As plain text, with its notes."""
    lines = [list(COLUMNS), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for first, *others in lines:
        aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        text.append("  ".join([first.ljust(widths[0]), *aligned]))
    return "\n".join(text + notes(rows))


def _cell(write: Callable[[Row], str], row: Row) -> str:
    try:
        return write(row)
    except (KeyError, TypeError):
        return "-"
