"""The numbers of a figure, independent of its renderer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from iglu_lab.stats import style

Limits = tuple[float, float] | None


@dataclass(frozen=True)
class Line:
    """A curve, or with ``dash=""`` points; ``low`` and ``high`` are the ends of a band around it."""

    label: str  # empty: not in the legend
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dash: Any = "-"  # a line style of Matplotlib
    marker: str = ""
    width: float = 1.5
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    labels: tuple[str, str]
    lines: tuple[Line, ...]
    scales: tuple[str, str] = ("linear", "linear")
    limits: tuple[Limits, Limits] = (None, None)
    names: tuple[str, ...] = ()  # labels at 0, 1 ... of the vertical axis, the first on top


@dataclass(frozen=True)
class Figure:
    """``alt`` describes the figure in words; ``paths`` are the files that were written."""

    key: str
    title: str
    alt: str
    panels: tuple[Panel, ...]
    is_on_page: bool = False  # of other figures, the page shows the numbers in another form
    size: tuple[float, float] = (7.2, 3.4)  # inches
    columns: int = 3
    legend: Literal["inside", "below"] = "below"
    paths: tuple[Path, ...] = ()


def activation_line(
    activation: str, label: str, x: Sequence[float], y: Sequence[float], **options: Any
) -> Line:
    """A line with the color, dash and width that the activation has in every figure."""
    look = style.line(activation)
    chosen = {"dash": look["linestyle"], "width": look["linewidth"], **options}
    return Line(label, x, y, look["color"], **chosen)


def key_of(text: str) -> str:
    """Convert a text to a file name and anchor.

    >>> key_of("curves-gpt2-python lr=0.002")
    'curves-gpt2-python-lr-0.002'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")[:100]
