"""The report's pictures, as PNG and SVG: the paper's figures made anew, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iglu.lab.report.content import Curve, Figure
from iglu.lab.report.figures.drawing import panels
from iglu.lab.report.figures.functions import function_figures
from iglu.lab.report.figures.measured import measured_figures
from iglu.lab.report.gather import Gathered
from iglu.lab.results.style import pictures, save


def draw_figures(found: Gathered, curves: Sequence[Curve], folder: Path) -> tuple[Figure, ...]:
    """Draw everything that can be drawn."""
    figures = []
    with pictures():
        for drawing in (*function_figures(), *measured_figures(found, curves)):
            drawn = drawing.draw()
            path = save(drawn, folder, drawing.key)
            again = panels(drawn) if drawing.is_redrawn else ()
            paths = (path, path.with_suffix(".svg"))
            figures.append(Figure(drawing.key, drawing.title, drawing.alt, paths, again))
    return tuple(figures)
