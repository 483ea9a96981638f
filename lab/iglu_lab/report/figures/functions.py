"""Figures of the functions themselves: the paper's figures 1 to 3, and the gradient in the negative tail."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

import iglu
from iglu.formulas import EXACT, RATIONAL
from iglu.functional import gelu_scaled
from iglu_lab.report.computed import PRECISIONS, direct, gate_error, gradient
from iglu_lab.report.figures.description import Figure, Limits, Line, Panel, activation_line
from iglu_lab.stats.style import BLACK, BLUE, GREY, VERMILION

SIGMA = "\N{GREEK SMALL LETTER SIGMA}"
_SIGMAS = (0.0, 0.1, 0.5, 1.0, 5.0, 10.0)  # of the paper's figures 1 and 2


def function_figures() -> Iterator[Figure]:
    yield Figure(
        "figure1",
        "Figure 1. Activations, and GELU_a for growing a",
        "Left: ReLU, GELU and IGLU at sigma = 1 from x = -5 to 5; IGLU is lowest for negative x and tends "
        "to -1/pi. Right: x Phi(a x) for a from 0, a straight line of slope one half, to 10, close to ReLU; "
        "its cubic term is (a x)^3, unlike in the paper's figure.",
        (_activations(), _family("gelu_a", "GELU_a", "a", gelu_scaled, (-1, 2.5))),
        is_on_page=True,
        size=(7.2, 3.1),
        legend="inside",
    )
    yield Figure(
        "figure2",
        "Figure 2. IGLU for six values of sigma",
        "IGLU from x = -5 to 5 for sigma = 0, 0.1, 0.5, 1, 5 and 10: from the straight line x/2 to a curve "
        "close to ReLU, sharper for larger sigma.",
        (_family("iglu", "IGLU", SIGMA, iglu.iglu, (-1, 3)),),
        is_on_page=True,
        size=(4.6, 3.4),
        legend="inside",
    )
    largest, _, _ = gate_error()
    yield Figure(
        "figure3",
        "Figure 3. The gate of IGLU minus that of IGLU-Approx",
        "The difference for sigma = 0.1, 1 and 10 from x = -30 to 30: one curve at three widths, odd in x, "
        f"never beyond ± {largest:.4f}.",
        (_gates(largest),),
        is_on_page=True,
        size=(5.6, 3.4),
        legend="inside",
    )
    yield Figure(
        "tails",
        "The gradient in the negative tail",
        "Gradient of IGLU at sigma = 1 against -x in log-log, one panel each for float32, bfloat16 and "
        "float16. This library follows the power law 2/(3 pi |x|^3) down to the smallest number of the "
        "format; the textbook formula deviates from it, with crosses where its sign is wrong; GELU's "
        "gradient underflows to 0 before |x| = 15.",
        tuple(map(tail_panel, PRECISIONS)),
        is_on_page=True,
        size=(9.4, 3.6),
    )


def _activations() -> Panel:
    x = torch.linspace(-5, 5, 401, dtype=torch.float64)
    curves: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "relu": ("ReLU", F.relu),
        "gelu": ("GELU", F.gelu),
        "iglu": (f"IGLU, {SIGMA} = 1", lambda x: iglu.iglu(x, 1.0)),
    }
    dashes: dict[str, dict[str, str]] = {"gelu": {"dash": "--"}}
    lines = [
        activation_line(name, label, x.tolist(), function(x).tolist(), **dashes.get(name, {}))
        for name, (label, function) in curves.items()
    ]
    return Panel("Activations", ("x", ""), tuple(lines), limits=((-5, 5), (-1, 2.5)))


def _family(
    name: str, title: str, symbol: str, function: Callable[[Tensor, float], Tensor], reach: Limits
) -> Panel:
    x = torch.linspace(-5, 5, 401, dtype=torch.float64)
    lines = [
        activation_line(f"{name}:{sigma:g}", f"{symbol} = {sigma:g}", x.tolist(), function(x, sigma).tolist())
        for sigma in _SIGMAS
    ]
    return Panel(title, ("x", ""), tuple(lines), limits=((-5, 5), reach))


def _gates(largest: float) -> Panel:
    right = torch.logspace(-3, math.log10(30), 250, dtype=torch.float64)
    x = torch.cat([-right.flip(0), right])
    lines = [
        activation_line(
            f"iglu:{sigma:g}", f"{SIGMA} = {sigma:g}", x.tolist(),
            (EXACT.gate(x, sigma) - RATIONAL.gate(x, sigma)).tolist(),
        )
        for sigma in (0.1, 1.0, 10.0)
    ]  # fmt: skip
    label = f"± {largest:.4f}"
    lines += [
        Line(text, (-30, 30), (bound, bound), BLACK, "--", width=0.8)
        for text, bound in ((label, largest), ("", -largest))
    ]
    return Panel("", ("x", "Z - Z_approx"), tuple(lines), limits=((-30, 30), (-0.029, 0.036)))


# The smallest y and the largest x of the panels, by the range of each precision.
_FLOORS = {torch.float32: 1e-20, torch.bfloat16: 1e-20, torch.float16: 1e-9}
_REACHES = {torch.float32: 1e6, torch.bfloat16: 1e6, torch.float16: 6e4}


def tail_panel(dtype: torch.dtype) -> Panel:
    """One precision: the textbook formula's gradients, crosses where the sign is wrong, and the library's."""
    reach, floor = _REACHES[dtype], _FLOORS[dtype]
    u = torch.logspace(0, math.log10(reach), 400).to(dtype)
    slope = gradient(direct, -u)
    right, wrong = slope > 0, slope < 0
    ours = gradient(lambda x: iglu.iglu(x, 1.0), -u)
    gelu = gradient(F.gelu, -u).abs()
    law = (2 / (3 * math.pi * u.double() ** 3)).tolist()

    def points(label: str, chosen: Tensor, marker: str) -> Line:
        y = slope[chosen].abs().float().tolist()
        return Line(label, u[chosen].float().tolist(), y, VERMILION, "", marker)

    lines = (
        points("textbook formula", right, "."),
        points("textbook formula, wrong sign", wrong, "x"),
        Line("this library", u.float().tolist(), ours.float().tolist(), BLUE, width=2),
        activation_line(
            "gelu", "GELU", u[gelu > 0].float().tolist(), gelu[gelu > 0].float().tolist(), dash=":"
        ),
        Line("2/(3\N{GREEK SMALL LETTER PI}|x|³)", u.float().tolist(), law, GREY, "--", width=0.9),
    )
    title = str(dtype).removeprefix("torch.")
    labels = ("-x", "gradient (magnitude)" if dtype == torch.float32 else "")
    return Panel(title, labels, lines, ("log", "log"), ((1, reach), (floor, 1)))
