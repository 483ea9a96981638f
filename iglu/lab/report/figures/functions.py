"""Pictures of the functions themselves: the paper's figures 1 to 3, and the gradient in the negative tail."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import iglu
from iglu.formulas import EXACT, RATIONAL
from iglu.functional import gelu_scaled
from iglu.lab.report.computed import PRECISIONS, direct, gate_error, gradient
from iglu.lab.report.figures.drawing import Drawing
from iglu.lab.results.style import BLACK, BLUE, GREY, VERMILION, axes, legend_below, line

_SIGMAS = (0.0, 0.1, 0.5, 1.0, 5.0, 10.0)  # of the paper's figures 1 and 2


def function_figures() -> Iterator[Drawing]:
    yield Drawing(
        "figure1",
        "Figure 1. Activations, and GELU_a for growing a",
        "Left: ReLU, GELU and IGLU at sigma = 1 from x = -5 to 5; IGLU lies lowest for negative x and tends "
        "to -1/pi. Right: x Phi(a x) for a from 0, a straight line of slope one half, to 10, close to ReLU; "
        "the argument of its cubic term is (a x), not a x alone as in the paper's picture.",
        _figure1,
        is_redrawn=True,
    )
    yield Drawing(
        "figure2",
        "Figure 2. IGLU for six values of sigma",
        "IGLU from x = -5 to 5 for sigma = 0, 0.1, 0.5, 1, 5 and 10: from the straight line x/2 to a curve "
        "close to ReLU, the sharper the greater sigma.",
        _figure2,
        is_redrawn=True,
    )
    largest, _, _ = gate_error()
    yield Drawing(
        "figure3",
        "Figure 3. The gate of IGLU minus that of IGLU-Approx",
        "The difference for sigma = 0.1, 1 and 10 from x = -30 to 30: one curve at three widths, odd in x, "
        f"never beyond ± {largest:.4f}.",
        _figure3,
        is_redrawn=True,
    )
    yield Drawing(
        "tails",
        "The gradient in the negative tail",
        "Gradient of IGLU at sigma = 1 against -x in log-log, one panel each for float32, bfloat16 and "
        "float16. This library follows the power law 2/(3 pi |x|^3) down to the smallest number of the "
        "format; the direct formula leaves it, with crosses where its sign is wrong; GELU's gradient drops "
        "to 0 before |x| = 15.",
        _tails,
        is_redrawn=True,
    )


def _x(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, 1001, dtype=torch.float64)


def _family(axis: Any, name: str, symbol: str, function: Callable[[Tensor, float], Tensor]) -> None:
    x = _x(-5, 5)
    for sigma in _SIGMAS:
        axis.plot(x, function(x, sigma), label=f"{symbol} = {sigma:g}", **line(f"{name}:{sigma:g}"))
    axis.set(xlim=(-5, 5), xlabel="x")
    axis.legend(loc="upper left", fontsize=8)


def _figure1() -> Any:
    figure, ((left, right),) = axes(1, 2, 7.2, 3.1)
    x = _x(-5, 5)
    left.plot(x, F.relu(x), label="ReLU", **line("relu"))
    left.plot(x, F.gelu(x), label="GELU", **(line("gelu") | {"linestyle": "--"}))
    left.plot(x, iglu.iglu(x), label=r"IGLU, $\sigma$ = 1", **line("iglu"))
    left.set(xlim=(-5, 5), ylim=(-1, 2.5), xlabel="x")
    left.legend(loc="upper left", fontsize=8)
    _family(right, "gelu_a", "a", gelu_scaled)
    right.set(ylim=(-1, 2.5))
    left.set_title("Activations")
    right.set_title(r"GELU$_a$")
    return figure


def _figure2() -> Any:
    figure, ((axis,),) = axes(1, 1, 4.6, 3.4)
    _family(axis, "iglu", r"$\sigma$", iglu.iglu)
    axis.set(ylim=(-1, 3), title="IGLU")
    return figure


def _figure3() -> Any:
    figure, ((axis,),) = axes(1, 1, 5.6, 3.4)
    x = torch.cat(
        [-torch.logspace(math.log10(30), -4, 2001), torch.logspace(-4, math.log10(30), 2001)]
    ).double()
    for sigma in (0.1, 1.0, 10.0):
        gap = EXACT.gate(x, sigma) - RATIONAL.gate(x, sigma)
        axis.plot(x, gap, label=rf"$\sigma$ = {sigma:g}", **line(f"iglu:{sigma:g}"))
    largest, _, _ = gate_error()
    for bound in (largest, -largest):
        axis.axhline(bound, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)))
    axis.text(29.5, largest + 0.0008, f"± {largest:.4f}", ha="right", va="bottom", fontsize=8)
    axis.set(xlim=(-30, 30), ylim=(-0.029, 0.036), xlabel="x", ylabel=r"$Z - Z_{\mathrm{approx}}$")
    axis.legend(loc="upper left", fontsize=8, ncols=3)
    return figure


# The smallest and largest value of the panels' axes: as far as each precision reaches.
_FLOORS = {torch.float32: 1e-20, torch.bfloat16: 1e-20, torch.float16: 1e-9}
_REACHES = {torch.float32: 1e6, torch.bfloat16: 1e6, torch.float16: 6e4}


def _tails() -> Any:
    figure, (grid,) = axes(1, 3, 9.4, 3.6)
    for axis, dtype in zip(grid, PRECISIONS, strict=True):
        tail_panel(axis, dtype)
    legend_below(figure, grid[0], 5, fontsize=8)
    grid[0].set_ylabel("gradient (magnitude)")
    return figure


def tail_panel(axis: Any, dtype: torch.dtype) -> None:
    """One precision: the direct formula's gradients, crosses where the sign is wrong, and the library's."""
    reach, floor = _REACHES[dtype], _FLOORS[dtype]
    u = torch.logspace(0, math.log10(reach), 500).to(dtype)
    slope = gradient(direct, -u)
    right, wrong = slope > 0, slope < 0
    axis.plot(u[right].float(), slope[right].float(), ".", ms=3, color=VERMILION, label="direct formula")
    axis.plot(
        u[wrong].float(), -slope[wrong].float(), "x", ms=4, color=VERMILION, alpha=0.5,
        label="direct formula, wrong sign",
    )  # fmt: skip
    axis.plot(u.float(), gradient(iglu.iglu, -u).float(), color=BLUE, linewidth=2, label="this library")
    axis.plot(
        u.float(), gradient(F.gelu, -u).abs().float(), label="GELU", **(line("gelu") | {"linestyle": ":"})
    )
    law = 2 / (3 * math.pi * u.double() ** 3)
    axis.plot(u.float(), law, color=GREY, linewidth=0.9, linestyle="--", label=r"$2/(3\pi|x|^3)$")
    axis.set(xscale="log", yscale="log", xlim=(1, reach), ylim=(floor, 1), xlabel="-x")
    axis.set_title(str(dtype).removeprefix("torch."))
