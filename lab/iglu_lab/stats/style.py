"""The style of all figures: one color per activation.

The colors are the colorblind-safe palette of Okabe and Ito.  An activation with a sigma has a shade of its
family's color, darker for a larger sigma, and its own dash pattern, so that color is never the only cue.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from iglu_lab.recipes import spec_of

VERMILION, BLUE, GREEN, PURPLE, ORANGE, SKY = "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
BLACK, GREY, OTHER, DIRECT_GREY = "#000000", "#999999", "#BBBBBB", "#7F7F7F"

COLORS = {
    "iglu": BLUE, "iglu_approx": VERMILION, "relu": BLACK, "gelu": GREEN, "silu": PURPLE,
    "gelu_tanh": ORANGE, "hardswish": ORANGE, "leaky_relu": ORANGE, "mish": SKY, "gelu_a": SKY,
    "identity": GREY,
}  # fmt: skip
MARKERS = {
    "iglu": "o", "iglu_approx": "s", "relu": "^", "gelu": "D", "silu": "v", "gelu_tanh": "P",
    "hardswish": "X", "mish": "*",
}  # fmt: skip
_SHADES = (0.01, 100.0)  # the sigmas of the lightest and the darkest shade
_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 1)))
_DASHED_AT = (1.0, 0.5, 5.0, 0.1, 10.0, 0.0)  # the sigmas of the paper, in the order of _DASHES

Item = TypeVar("Item")

_STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#E5E5E5", "axes.axisbelow": True, "legend.frameon": False, "legend.handlelength": 2.8,
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True, "axes.titlesize": 10, "axes.titleweight": "bold",
    "svg.hashsalt": "iglu",  # for reproducible files
}  # fmt: skip


def color(activation: str) -> str:
    """The color of an activation of the zoo or of the benchmarks, such as "iglu:0.5" or "gelu_tanh".

    >>> color("iglu") == BLUE, color("gelu_tanh") == ORANGE
    (True, True)
    """
    name, _, argument = activation.partition(":")
    base = COLORS.get(name, GREY)
    sigma = spec_of(activation).sigma if argument else None
    return base if sigma is None else shade(base, sigma)


def shade(base: str, sigma: float) -> str:
    """``base``, lighter for sigma < 1 and darker for sigma > 1."""
    low, high = (math.log(sigma) for sigma in _SHADES)
    place = (math.log(min(max(sigma, _SHADES[0]), _SHADES[1])) - low) / (high - low)
    toward, share = (255, 1 - 2 * place) if place < 0.5 else (0, 2 * place - 1)
    channels = (int(base[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(value + 0.65 * share * (toward - value)):02X}" for value in channels)


def line(activation: str) -> dict[str, Any]:
    """Keyword arguments of ``plot`` for an activation."""
    name, _, argument = activation.partition(":")
    sigma = spec_of(activation).sigma if argument else None
    dash = _DASHES[_DASHED_AT.index(sigma)] if sigma in _DASHED_AT else "-"
    width = 1.9 if name.startswith("iglu") else 1.3
    return {"color": color(activation), "linestyle": dash, "linewidth": width}


@contextlib.contextmanager
def pictures() -> Iterator[None]:
    """Use this style, without a display."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(_STYLE):
        yield


def axes(lines: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """A figure and its 2-D array of axes."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(lines, columns, figsize=(width, height), squeeze=False, **options)
    return figure, grid


def evenly_spaced(items: Sequence[Item], most: int) -> Sequence[Item]:
    """At most ``most`` items, including the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def legend_below(figure: Any) -> None:
    """One legend below the figure, each label of its axes once, in as many columns as fit."""
    found = (zip(*axis.get_legend_handles_labels(), strict=True) for axis in figure.axes)
    handles = {label: handle for pairs in found for handle, label in pairs}
    if handles:
        widest = 0.6 + 0.07 * max(map(len, handles))  # inches: the handle, and about 0.07 per character
        columns = max(1, min(4, int(figure.get_figwidth() / widest)))
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=8)


def names_down(figure: Any, names: Sequence[str]) -> None:
    """Label the shared y axis with one name per line, the first on top."""
    for axis in figure.axes:
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0)
    figure.axes[0].set_yticks(range(len(names)), names)
    figure.axes[0].set_ylim(len(names) - 0.4, -0.6)


def save(figure: Any, folder: Path, name: str) -> Path:
    """Save as PNG and SVG; return the path of the PNG file."""
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=150)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)
    return path
