"""A picture before it is drawn, and what of it can be drawn again elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from iglu.lab.report.content import Panel

_FINE = 300  # dots an inch: points that no dot tells apart are left out of a panel
_DIGITS = 5


class Drawing(NamedTuple):
    """``draw`` makes the figure of matplotlib; ``alt`` says in words what it shows."""

    key: str
    title: str
    alt: str
    draw: Callable[[], Any]
    is_redrawn: bool = False  # on the page, from its panels


def panels(figure: Any) -> tuple[Panel, ...]:
    """The lines of every pair of axes, in numbers."""
    figure.set_dpi(_FINE)
    figure.canvas.draw()  # lays the axes out
    return tuple(
        {
            "title": _plain(axis.get_title()),
            "labels": (_plain(axis.get_xlabel()), _plain(axis.get_ylabel())),
            "scales": (axis.get_xscale(), axis.get_yscale()),
            "limits": [tuple(map(float, ends)) for ends in (axis.get_xlim(), axis.get_ylim())],
            "series": [_series(axis, each) for each in axis.lines],
        }
        for axis in figure.axes
    )


def _series(axis: Any, line: Any) -> dict[str, Any]:
    label = str(line.get_label())
    marker = "" if line.get_marker() == "None" else str(line.get_marker())
    is_across = line.get_transform() != axis.transData  # from one side of the axes to the other
    x, y = (axis.get_xlim(), line.get_ydata()) if is_across else _points(axis, line, bool(marker))
    return {
        "label": "" if label.startswith("_") else _plain(label),
        "x": list(map(_rounded, x)),
        "y": list(map(_rounded, y)),
        "colour": str(line.get_color()),
        "dash": line.get_linestyle(),
        "marker": marker,
    }


def _points(axis: Any, line: Any, is_marked: bool) -> Iterable[Iterable[float]]:
    """Those that lie on the axes, and of a line without marks as many as it takes to draw it."""
    from matplotlib.path import Path

    def is_on(value: float, scale: str) -> bool:
        return math.isfinite(value) and (value > 0 or scale != "log")

    scales = axis.get_xscale(), axis.get_yscale()
    points: Any = [point for point in line.get_xydata().tolist() if all(map(is_on, point, scales))]
    if not is_marked and len(points) > 2:
        # On the paper, for a logarithm is no part of a path's own transform.
        path: Any = Path(axis.transData.transform(points)).cleaned(simplify=True)
        points = axis.transData.inverted().transform(path.vertices[path.codes != Path.STOP]).tolist()
    return zip(*points, strict=True) if points else ((), ())


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


_SIGNS = {"$": "", r"\sigma": "σ", r"\pi": "π", "^3": "³", r"_{\mathrm{approx}}": "_approx"}  # noqa: RUF001


def _plain(text: str) -> str:
    """What matplotlib sets as mathematics, in letters.

    >>> _plain(r"$2/(3\\pi|x|^3)$")
    '2/(3π|x|³)'
    """
    for sign, letter in _SIGNS.items():
        text = text.replace(sign, letter)
    return text
