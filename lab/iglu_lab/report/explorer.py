"""The curves that the page's explorer draws: every activation of the zoo, as the library computes it.

They are sampled in double precision, with derivatives by autograd.  Only those in WITH_SLIDER follow the
slider for sigma: the page computes them itself (assets/formulas.js, compared with the library by a test).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from iglu import zoo

REACH = 8.0  # the linear views go from -REACH to REACH
_STEP = 0.05
_TAIL_DECADES = (-1.0, 4.0)  # of |x| in the tail view
_TAIL_POINTS = 201

SIGMAS = (0.01, 100.0)
WITH_SLIDER = ("z", "z_approx", "iglu", "iglu_approx", "gelu_a")
FIRST_SHOWN = ("iglu", "iglu_approx", "relu", "gelu", "silu")


def explorer_data() -> dict[str, Any]:
    """What the explorer needs, ready for JSON; an activation without ``curves`` follows the slider."""
    # Midpoints: the kinks of the activations are at multiples of the step, where a derivative is a
    # convention.  So is f(x)/x at 0.
    steps = round(REACH / _STEP)
    x = (torch.arange(-steps, steps, dtype=torch.float64) + 0.5) * _STEP
    tail_x = -torch.logspace(*_TAIL_DECADES, _TAIL_POINTS, dtype=torch.float64)
    return {
        "x": _short(x),
        "tail_x": _short(tail_x),
        "sigmas": SIGMAS,
        "smallest_half": torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps,
        # Those shown initially come first and get the simplest line styles.
        "activations": [_activation(name, x, tail_x) for name in dict.fromkeys([*FIRST_SHOWN, *zoo.ZOO])],
    }


def _activation(name: str, x: Tensor, tail_x: Tensor) -> dict[str, Any]:
    row = zoo.ZOO[name]
    at_zero = zoo.create(name).double()(torch.zeros(1, dtype=torch.float64)).item()
    found: dict[str, Any] = {
        "name": name,
        "label": row.label,
        "is_shown": name in FIRST_SHOWN,
        "has_gate": at_zero == 0,  # otherwise f(x)/x has a pole
    }
    if name not in WITH_SLIDER:
        curves = dict(zip(("value", "slope", "curvature"), derivatives(name, x), strict=True))
        curves["tail"] = derivatives(name, tail_x)[1]
        found["curves"] = {key: _short(curve) for key, curve in curves.items()}
    return found


def _short(curve: Tensor) -> list[float]:
    """Rounded to 6 digits, more than a screen can show, to save space."""
    return [float(f"{value:.6g}") for value in curve.tolist()]


def derivatives(name: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f, f' and f'' of an activation by its name, in the precision of ``x``.

    >>> _, slope, curvature = derivatives("relu", torch.tensor([-1.0, 2.0]))
    >>> slope.tolist(), curvature.tolist()
    ([0.0, 1.0], [0.0, 0.0])
    """
    x = x.detach().clone().requires_grad_()
    value = zoo.create(name).to(x.dtype)(x)
    slope = _derivative(value, x)
    try:
        curvature = _derivative(slope, x)
    except RuntimeError:  # torch cannot differentiate Hardsigmoid twice; it is piecewise linear
        curvature = torch.zeros_like(x)
    return value.detach(), slope.detach(), curvature.detach()


def _derivative(y: Tensor, x: Tensor) -> Tensor:
    if not y.requires_grad:  # a constant derivative, as that of Identity
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(y.sum(), x, create_graph=True, materialize_grads=True)
    return found
