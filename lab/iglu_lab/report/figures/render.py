"""The two renderers of a figure: Matplotlib for files, and the numbers from which the page's script draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from iglu_lab.report.figures.description import Figure, Line, Panel
from iglu_lab.stats.style import axes, legend_below, names_down, pictures, save


def write_figures(figures: Iterable[Figure], folder: Path) -> tuple[Figure, ...]:
    """Write each figure as PNG and SVG."""
    written = []
    with pictures():
        for figure in figures:
            path = save(draw(figure), folder, figure.key)
            written.append(dataclasses.replace(figure, paths=(path, path.with_suffix(".svg"))))
    return tuple(written)


def draw(figure: Figure) -> Any:
    """Draw a figure with Matplotlib."""
    columns = min(figure.columns, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    has_names = any(panel.names for panel in figure.panels)
    drawn, grid = axes(rows, columns, *figure.size, sharey=has_names)
    for axis in grid.flat[len(figure.panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(grid.flat, figure.panels, strict=False):
        draw_panel(axis, panel)
        if figure.legend == "inside":
            axis.legend(loc="upper left", fontsize=8)
    if has_names:
        names_down(drawn, figure.panels[0].names)
    if figure.legend == "below":
        legend_below(drawn)
    return drawn


def draw_panel(axis: Any, panel: Panel) -> None:
    """Draw a panel on axes of Matplotlib."""
    for line in panel.lines:
        axis.plot(
            line.x, line.y, label=line.label or "_", color=line.color, linestyle=line.dash or "none",
            marker=line.marker or None, markersize=3 if line.marker == "." else 4, linewidth=line.width,
        )  # fmt: skip
        if len(line.low):
            axis.fill_between(line.x, line.low, line.high, color=line.color, alpha=0.12, linewidth=0)
    axis.set(xlabel=panel.labels[0], ylabel=panel.labels[1], title=panel.title)
    axis.set(xscale=panel.scales[0], yscale=panel.scales[1])
    for limits, place in zip(panel.limits, (axis.set_xlim, axis.set_ylim), strict=True):
        if limits is not None:
            place(limits)


def numbers(figure: Figure) -> dict[str, Any]:
    """The numbers of a figure for the page, ready for JSON."""
    panels = [
        {**dataclasses.asdict(panel), "lines": [_line_numbers(line) for line in panel.lines]}
        for panel in figure.panels
    ]
    return {"title": figure.title, "panels": panels}


def _line_numbers(line: Line) -> dict[str, Any]:
    """The numbers of a line, rounded to 5 digits."""
    columns = {
        name: [float(f"{value:.5g}") for value in getattr(line, name)] for name in ("x", "y", "low", "high")
    }
    dash = line.dash if isinstance(line.dash, str) else "-."
    return {"label": line.label, "color": line.color, "dash": dash, "marker": line.marker, **columns}
