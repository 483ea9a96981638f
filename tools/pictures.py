"""The two pictures of the README: python tools/pictures.py FOLDER"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import torch
from matplotlib import pyplot
from torch.nn import functional as F

import iglu
from iglu.lab.report.figures.functions import tail_panel
from iglu.lab.style import line, pictures


def function_picture() -> Any:
    x = torch.linspace(-6, 4, 1001, dtype=torch.float64)
    figure, axes = pyplot.subplots(figsize=(7.2, 3.6))
    axes.plot(x, F.relu(x), label="ReLU", **line("relu"))
    axes.plot(x, F.gelu(x), label="GELU", **(line("gelu") | {"linestyle": ":"}))
    for sigma in (0.1, 0.5, 1.0, 5.0):
        axes.plot(x, iglu.iglu(x, sigma), label=f"IGLU, $\\sigma$ = {sigma:g}", **line(f"iglu:{sigma:g}"))
    axes.set(xlabel="x", ylim=(-2, 4), xlim=(-6, 4))
    axes.legend()
    return figure


def tail_picture() -> Any:
    """The gradient in the negative tail: the direct formula's noise beside the true power law."""
    figure, panels = pyplot.subplots(1, 2, figsize=(7.2, 3.9), sharey=True)
    for axes, dtype in zip(panels, (torch.float32, torch.bfloat16), strict=True):
        tail_panel(axes, dtype)
    panels[0].set_ylabel("gradient (magnitude)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with pictures():
        for name, draw in (("function", function_picture), ("tail", tail_picture)):
            draw().savefig(folder / f"{name}.png", dpi=150)
            print(folder / f"{name}.png")
