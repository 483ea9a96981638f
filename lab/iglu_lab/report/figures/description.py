"""A figure in numbers, apart from who renders it."""

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

    label: str  # empty for what the legend leaves out
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dash: Any = "-"  # as Matplotlib has it
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
    names: tuple[str, ...] = ()  # at 0, 1 ... of the vertical axis, the first on top


@dataclass(frozen=True)
class Figure:
    """``alt`` says in words what is seen; ``paths`` are the files that were written."""

    key: str
    title: str
    alt: str
    panels: tuple[Panel, ...]
    is_on_page: bool = False  # the page shows the others' numbers in another form
    size: tuple[float, float] = (7.2, 3.4)  # inches
    columns: int = 3
    legend: Literal["inside", "below"] = "below"
    paths: tuple[Path, ...] = ()


def activation_line(
    activation: str, label: str, x: Sequence[float], y: Sequence[float], **options: Any
) -> Line:
    """In the color, dash and width that the activation has in every figure."""
    look = style.line(activation)
    chosen = {"dash": look["linestyle"], "width": look["linewidth"], **options}
    return Line(label, x, y, look["color"], **chosen)


def key_of(text: str) -> str:
    """Safe as a file's name and as an anchor.

    >>> key_of("curves-gpt2-python lr=0.002")
    'curves-gpt2-python-lr-0.002'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")[:100]
