"""The pictures of the documentation that the README does not have: python tools/site_pictures.py FOLDER"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from matplotlib import pyplot
from torch import Tensor
from torch.nn import functional as F

import iglu
from iglu.formulas import EXACT
from iglu.lab.style import BLACK, BLUE, GREEN, ORANGE, VERMILION, line, pictures

Function = Callable[[Tensor], Tensor]


def error_picture() -> Any:
    """The relative error of the gradient in the negative tail, the direct formula's and ours: the worst
    within each of many short intervals."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4.0))
    for dtype, colours in ((torch.float32, (VERMILION, BLUE)), (torch.bfloat16, (ORANGE, GREEN))):
        u = torch.logspace(0, 5, 20_000, dtype=torch.float64).to(dtype)
        truth = EXACT.slope(-u.double(), 1.0)
        direct = _gradient(lambda x: x * EXACT.textbook_gate(x, 1.0), -u)
        ours = _gradient(iglu.iglu, -u)
        whose = ((direct, "textbook formula", "-"), (ours, "this library", "--"))
        for colour, (slope, who, style) in zip(colours, whose, strict=True):
            error = (slope.double() / truth - 1).abs()
            middles, worst = u.double().view(100, -1).mean(1), error.view(100, -1).amax(1)
            label = f"{who}, {str(dtype).removeprefix('torch.')}"
            axes.plot(middles, worst, style, color=colour, linewidth=1.6, label=label)
    axes.axhline(1, color=BLACK, linewidth=0.7)
    axes.annotate("above this line nothing is right", (9e4, 0.3), fontsize=8, ha="right")
    axes.set(xscale="log", yscale="log", xlim=(1, 1e5), ylim=(1e-8, 1e8))
    axes.set(xlabel=r"$-\sigma x$", ylabel="relative error of the gradient")
    axes.legend()
    return figure


def slope_picture() -> Any:
    """First and second derivatives."""
    x = torch.linspace(-6, 6, 1201, dtype=torch.float64)
    figure, panels = pyplot.subplots(1, 2, figsize=(8.4, 3.4))
    shown: dict[str, tuple[str, Function]] = {
        "iglu": (r"IGLU, $\sigma$ = 1", iglu.iglu),
        "iglu_approx": (r"IGLU-Approx, $\sigma$ = 1", functools.partial(iglu.iglu, approximate="rational")),
        "gelu": ("GELU", F.gelu),
        "silu": ("SiLU", F.silu),
    }
    for name, (label, function) in shown.items():
        slope = functools.partial(_slope, function)
        for axes, values in zip(panels, (_gradient(function, x), _gradient(slope, x)), strict=True):
            axes.plot(x, values, label=label, **line(name))
    for axes, title in zip(panels, ("slope", "curvature"), strict=True):
        axes.axhline(0, color=BLACK, linewidth=0.7)
        axes.set(xlabel="x", title=title, xlim=(-6, 6))
    panels[0].axhline(1, color=BLACK, linewidth=0.7)
    panels[1].legend(loc="upper right", fontsize=8)
    return figure


def _gradient(function: Function, x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf)[0]


def _slope(function: Function, x: Tensor) -> Tensor:
    """To be differentiated once more."""
    return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with pictures():
        for name, draw in (("error", error_picture), ("slope", slope_picture)):
            draw().savefig(folder / f"{name}.png", dpi=150)
            print(folder / f"{name}.png")
