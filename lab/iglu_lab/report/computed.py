"""Claims about the function itself, computed with the installed library, in double precision unless stated
otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import iglu
from iglu.formulas import EXACT, RATIONAL
from iglu_lab.report.content import Claim

Function = Callable[[Tensor], Tensor]

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
_PAPER_GATE_ERROR = 0.025  # the caption of the paper's figure 3


def mathematical_claims() -> list[Claim]:
    """The claims, each decided by the numbers in its evidence."""
    found = [
        _gradient_of_the_function(),
        _gradient_of_the_direct_formula(),
        _larger_than_gelus(),
        _gate_error(),
        _error_vanishes("gate", lambda x: EXACT.gate(x, 1.0), lambda x: RATIONAL.gate(x, 1.0)),
        _error_vanishes(
            "activation", lambda x: EXACT.value(x, 1.0), lambda x: RATIONAL.value(x, 1.0),
            f"; the limit is 1/2 - 1/pi = {0.5 - 1 / math.pi:.5f}, over sigma",
        ),
        _tends_to_relu(),
    ]  # fmt: skip
    return [replace(claim, is_mathematical=True) for claim in found]


def gradient(function: Function, x: Tensor) -> Tensor:
    """The derivative by autograd, in the precision of ``x``."""
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return slope


def direct(x: Tensor) -> Tensor:
    """IGLU at sigma = 1 as the paper writes it, one operation at a time."""
    return x * EXACT.textbook_gate(x, 1.0)


def negative_numbers(dtype: torch.dtype) -> Tensor:
    """All finite ones of a 16-bit type; for float32, a million from the smallest normal to the largest."""
    if dtype == torch.float32:
        info = torch.finfo(dtype)
        return -torch.logspace(math.log10(info.tiny), math.log10(info.max) - 1e-6, 1_000_000)
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return numbers[(numbers < 0) & numbers.isfinite()]


class Signs(NamedTuple):
    """The smallest |x| at which the gradient at x < 0 is negative, and at which it is 0; None for never."""

    negative_from: float | None
    zero_from: float | None

    def __str__(self) -> str:
        if self.negative_from is not None:
            return f"negative from x = -{self.negative_from:.3g}"
        if self.zero_from is None:
            return "never negative or 0"
        return f"never negative, underflow to 0 from x = -{self.zero_from:.2g}"


def signs(function: Function, dtype: torch.dtype) -> Signs:
    x = negative_numbers(dtype)
    slope = gradient(function, x)
    least = (x[chosen].abs().min().item() if chosen.any() else None for chosen in (slope < 0, slope == 0))
    return Signs(*least)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _gradient_of_the_function() -> Claim:
    reach = torch.logspace(-300, 100, 40_001, dtype=torch.float64)
    least = EXACT.df_dx(-reach, 1.0).min().item()
    found = {dtype: signs(lambda x: iglu.iglu(x, 1.0), dtype) for dtype in PRECISIONS}
    never_negative = all(each.negative_from is None for each in found.values())
    ranges = "; ".join(f"{_name(dtype)} {each}" for dtype, each in found.items())
    return Claim(
        "IGLU's gradient is not zero for any finite input (the function, as this library computes it)",
        "holds" if least > 0 and never_negative else "does not hold",
        f"At sigma = 1 the smallest derivative for x from -1e-300 to -1e100 is {least:.3g} in double "
        f"precision. The library's gradient: {ranges}.",
        "the derivative is positive at every point, and the library returns no negative gradient in any "
        "precision.",
    )


def _gradient_of_the_direct_formula() -> Claim:
    found = {dtype: signs(direct, dtype) for dtype in PRECISIONS}
    starts = {dtype: each.negative_from for dtype, each in found.items() if each.negative_from is not None}
    listed = ", ".join(f"{_name(dtype)} from x = -{start:.3g}" for dtype, start in starts.items())
    return Claim(
        "IGLU's gradient is not zero for any finite input (the formula as the paper writes it)",
        "does not hold" if starts else "holds",
        f"At sigma = 1 autograd's gradient of the direct formula is negative in {listed or 'no precision'}.",
        "no gradient of the wrong sign in any of float32, bfloat16 and float16.",
    )


def _larger_than_gelus() -> Claim:
    parts = []
    holds = True
    for sigma in (0.1, 0.5, 1.0):
        smaller = _where_smaller_than_gelu(sigma)
        holds = holds and not smaller
        spans = " and ".join(f"({low:.3f}, {high:.3f})" for low, high in smaller)
        parts.append(
            f"at sigma = {sigma:g} it is " + (f"smaller on {spans}" if spans else "larger everywhere")
        )
    return Claim(
        "IGLU's gradient is larger than GELU's for every x < 0",
        "holds" if holds else "does not hold",
        f"In magnitude, on [-12, 0): {'; '.join(parts)}.",
        "larger at every x for each of these sigmas.",
    )


def _where_smaller_than_gelu(sigma: float) -> list[tuple[float, float]]:
    """The intervals of [-12, 0) on which IGLU' < |GELU'|."""
    from scipy.optimize import brentq

    def excess(x: Tensor) -> Tensor:
        return EXACT.df_dx(x, sigma) - gradient(F.gelu, x).abs()

    def at(x: float) -> float:
        return excess(torch.tensor([x], dtype=torch.float64)).item()

    x = torch.linspace(-12, -1e-6, 24_001, dtype=torch.float64)
    is_smaller = (excess(x) < 0).tolist()
    ends = [
        float(brentq(at, x[place].item(), x[place + 1].item()))
        for place in range(len(is_smaller) - 1)
        if is_smaller[place] != is_smaller[place + 1]
    ]
    if is_smaller[0]:
        ends.insert(0, -12.0)
    if is_smaller[-1]:
        ends.append(0.0)
    return list(zip(ends[::2], ends[1::2], strict=True))


def gate_error() -> tuple[float, float, float]:
    """The largest difference of the two gates, and the sigma |x| below and above 1 at which it occurs."""
    u = torch.logspace(-4, 4, 800_001, dtype=torch.float64)
    error = (EXACT.gate(u, 1.0) - RATIONAL.gate(u, 1.0)).abs()
    near, far = u < 1, u >= 1
    return error.max().item(), u[near][error[near].argmax()].item(), u[far][error[far].argmax()].item()


def _gate_error() -> Claim:
    largest, near, far = gate_error()
    return Claim(
        f"The gates of IGLU and IGLU-Approx differ by at most {_PAPER_GATE_ERROR}",
        "holds" if largest <= _PAPER_GATE_ERROR else "does not hold",
        f"The largest difference is {largest:.7f}, at sigma |x| = {near:.4f} and {far:.4f}; it does not "
        "depend on sigma.",
        "computed at 800,001 points.",
    )


_FAR = (1e2, 1e4, 1e6)


def _error_vanishes(of: str, exact: Function, rational: Function, limit: str = "") -> Claim:
    x = torch.tensor([*_FAR, *(-far for far in _FAR)], dtype=torch.float64)
    errors = (exact(x) - rational(x)).abs().tolist()
    return Claim(
        f"The error of the approximation vanishes as x goes to ± infinity (of the {of})",
        "holds" if errors[2] < 1e-6 and errors[5] < 1e-6 else "does not hold",
        f"At sigma = 1 and |x| = {_listed(_FAR)}: {_listed(errors[:3])} for x > 0, {_listed(errors[3:])} for "
        f"x < 0{limit}.",
        "below 1e-6 at |x| = 1e6.",
    )


def _tends_to_relu() -> Claim:
    x = torch.logspace(-6, 6, 100_001, dtype=torch.float64)
    x = torch.cat([-x.flip(0), x])
    sigmas = (1.0, 10.0, 100.0, 1000.0)
    gaps = [(EXACT.value(x, sigma) - F.relu(x)).abs().max().item() for sigma in sigmas]
    scaled = [gap * sigma for gap, sigma in zip(gaps, sigmas, strict=True)]
    return Claim(
        "IGLU converges to ReLU as sigma grows",
        "holds" if max(scaled) <= (1 + 1e-6) / math.pi else "does not hold",
        f"The largest distance from ReLU at sigma = {_listed(sigmas)} is {_listed(gaps)}; times sigma at "
        f"most {max(scaled):.5f}; the bound is 1/pi = {1 / math.pi:.5f}.",
        "never more than 1/(pi sigma).",
    )


def _listed(numbers: tuple[float, ...] | list[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)
