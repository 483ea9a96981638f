"""The two pictures of the README: python tools/pictures.py FOLDER"""

from __future__ import annotations

import math
import pathlib
import sys

import matplotlib
import torch
from torch.nn import functional as F

import iglu
from iglu.formulas import EXACT

matplotlib.use("Agg")
from matplotlib import pyplot

# Okabe and Ito's palette: told apart by colour-blind eyes and in grey print
BLACK, ORANGE, BLUE, GREEN, RED, PURPLE = "#000000", "#E69F00", "#0072B2", "#009E73", "#D55E00", "#CC79A7"


def function_picture(file: pathlib.Path) -> None:
    x = torch.linspace(-6, 4, 1001, dtype=torch.float64)
    figure, axes = pyplot.subplots(figsize=(7.2, 3.6), layout="constrained")
    axes.plot(x, F.relu(x), color=BLACK, lw=1, label="ReLU")
    axes.plot(x, F.gelu(x), color=BLACK, lw=1, ls=":", label="GELU")
    for sigma, colour in ((0.1, PURPLE), (0.5, ORANGE), (1.0, BLUE), (5.0, GREEN)):
        axes.plot(x, iglu.iglu(x, sigma), color=colour, lw=2, label=f"IGLU, $\\sigma$ = {sigma:g}")
    axes.set(xlabel="x", ylim=(-2, 4), xlim=(-6, 4))
    _finish(figure, axes, file)


def tail_picture(file: pathlib.Path) -> None:
    """The gradient in the negative tail: the direct formula's noise beside the true power law."""
    magnitudes = torch.logspace(0, 6, 600)
    figure, axes = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    for dtype, colour, name in ((torch.float32, RED, "float32"), (torch.bfloat16, ORANGE, "bfloat16")):
        u = magnitudes.to(dtype)
        slope = _gradient(lambda x: x * EXACT.textbook_gate(x, 1.0), -u)
        right, wrong = slope > 0, slope < 0
        label = f"textbook formula, {name}"
        axes.plot(u[right].float(), slope[right].float(), ".", ms=3, color=colour, label=label)
        axes.plot(
            u[wrong].float(),
            -slope[wrong].float(),
            "x",
            ms=4,
            color=colour,
            alpha=0.5,
            label=f"{label}: wrong sign",
        )
    axes.plot(magnitudes, _gradient(iglu.iglu, -magnitudes), color=BLUE, lw=2, label="this library, float32")
    half = magnitudes.to(torch.bfloat16)
    axes.plot(
        half.float(),
        _gradient(iglu.iglu, -half).float(),
        color=GREEN,
        lw=2,
        ls="--",
        label="this library, bfloat16",
    )
    axes.plot(magnitudes, _gradient(F.gelu, -magnitudes).abs(), color=BLACK, ls=":", label="GELU, float32")
    axes.plot(
        magnitudes, 2 / (3 * math.pi * magnitudes**3), color=BLACK, lw=0.7, label=r"$2/(3\pi |\sigma x|^3)$"
    )
    axes.set(xscale="log", yscale="log", ylim=(1e-20, 1), xlim=(1, 1e6))
    axes.set(xlabel=r"$-\sigma x$", ylabel="gradient (magnitude)")
    _finish(figure, axes, file)


def _gradient(function, x: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return slope


def _finish(figure, axes, file: pathlib.Path) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, framealpha=0.9, edgecolor="none")
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
    print(file)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    function_picture(folder / "function.png")
    tail_picture(folder / "tail.png")
