"""What IGLU makes of an interval: its range, and straight lines below and above it, for verifiers."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from iglu import functional
from iglu.formulas import FAMILIES, Sigma, compute_dtype
from iglu.functional import Approximate, check_choice
from iglu.kernels import plain, record

# What the library promises, in units in the last place, of a value and of a slope in the precision that it is
# computed in.
_OFF_VALUE = {torch.float64: 4, torch.float32: 4, torch.bfloat16: 1, torch.float16: 1}
_OFF_SLOPE = 16


class Line(NamedTuple):
    """slope x + intercept."""

    slope: Tensor
    intercept: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return self.slope * x + self.intercept


class Bounds(NamedTuple):
    """low <= f(x) <= high and below(x) <= f(x) <= above(x) for every x of the interval."""

    low: Tensor
    high: Tensor
    below: Line
    above: Line


def bounds(
    low: Tensor,
    high: Tensor,
    sigma: Sigma = 1.0,
    *,
    approximate: Approximate = "none",
    channel_dim: int | None = None,
) -> Bounds:
    """The range of :func:`iglu` over each interval [low, high], and the tightest lines below and above it.

    *Range.*  f increases, so it is [f(low), f(high)].

    *Above.*  f is convex, so it lies below the chord through its ends; any line above f is above both ends,
    so none is lower than the chord anywhere.

    *Below.*  f is convex, so it lies above each of its tangents, and a line below f that touches it nowhere
    can be raised.  The tangent at c has the mean f(c) + f'(c) (m - c) over the interval with midpoint m; that
    is at most f(m), and equal to it for c = m.  So of all lines below f the tangent at the midpoint leaves
    the least area.  Its intercept f(m) - m f'(m) is -sigma df/dsigma, which cancels nowhere.

    *Rounding.*  Let X be the larger of \\|low\\| and \\|high\\|.  A slope that is off by d moves a line by
    d X at most.  For the chord's slope s any number will do, with the larger of f(low) - s low and
    f(high) - s high for its intercept, since f(x) - s x is convex and has its maximum at an end.  The
    intercept is moved outward by the promised errors of f and f', and by that of evaluating s x + intercept
    in this dtype.  So the bounds hold for the true f, and for what :func:`iglu` and ``line(x)`` give.

    Where an end is infinite the lines are level, at the ends of the range.  sigma as in :func:`iglu`, but
    never negative: there f is concave.

    >>> found = bounds(torch.tensor(-1.0), torch.tensor(1.0))
    >>> found.low, found.high, found.below.slope, found.above.slope
    (tensor(-0.2500), tensor(0.7500), tensor(0.5000), tensor(0.5000))
    >>> found.below.intercept, found.above.intercept
    (tensor(-1.7881e-06), tensor(0.2500))
    """
    check_choice("approximate", approximate, FAMILIES)
    scale, channel_dim = functional._prepare(low, sigma, channel_dim)
    scale = plain.broadcast(scale, low, channel_dim)
    if not isinstance(high, Tensor) or high.shape != low.shape or high.dtype != low.dtype:
        got = f"{tuple(high.shape)} {high.dtype}" if isinstance(high, Tensor) else type(high).__name__
        raise ValueError(f"high must have low's shape and dtype, {tuple(low.shape)} {low.dtype}, got {got}")
    if (low > high).any():
        raise ValueError("low must be at most high, everywhere")
    if isinstance(scale, Tensor) and (scale < 0).any():
        raise ValueError(
            "sigma must be >= 0: with a negative one IGLU is concave, and the bounds do not hold"
        )

    wide = compute_dtype(low.dtype)
    function = _Function(approximate, scale.to(wide) if isinstance(scale, Tensor) else scale)
    eps, tiny = torch.finfo(low.dtype).eps, torch.finfo(low.dtype).tiny
    off_value, off_slope = _OFF_VALUE[low.dtype] * eps, _OFF_SLOPE * torch.finfo(wide).eps

    first, last = function.value(low.to(wide)), function.value(high.to(wide))
    lowest = first - 2 * off_value * first.abs() - tiny
    highest = last + 2 * off_value * last.abs() + tiny

    is_finite = low.isfinite() & high.isfinite()
    left, right = (torch.where(is_finite, end, 0).to(wide) for end in (low, high))
    at_left, at_right = function.value(left), function.value(right)
    reach = torch.maximum(left.abs(), right.abs())
    size = torch.maximum(at_left.abs(), at_right.abs())

    def rounding(slope: Tensor, intercept: Tensor) -> Tensor:
        return 2 * eps * (slope * reach + intercept.abs()) + 2 * off_value * size + tiny

    def line(slope: Tensor, intercept: Tensor, horizontal: Tensor) -> Line:
        intercept = torch.where(is_finite, intercept, horizontal).to(low.dtype)
        return Line(torch.where(is_finite, slope, 0).to(low.dtype), intercept)

    middle = left / 2 + right / 2
    tangent = function.slope(middle)
    kept = tangent.to(low.dtype).to(wide)
    intercept = function.tangent_intercept(middle)
    drift = ((kept - tangent).abs() + off_slope * tangent) * reach + off_slope * intercept.abs()
    below = line(kept, intercept - drift - rounding(kept, intercept), lowest)

    # Between the slopes at the ends by the mean value theorem; rounding says nothing of a short chord's own.
    width = right - left
    chord = torch.where(width > 0, (at_right - at_left) / torch.where(width > 0, width, 1), tangent)
    kept = chord.clamp(function.slope(left), function.slope(right)).to(low.dtype).to(wide)
    intercept = torch.maximum(at_left - kept * left, at_right - kept * right)
    above = line(kept, intercept + rounding(kept, intercept), highest)
    return Bounds(lowest.to(low.dtype), highest.to(low.dtype), below, above)


class _Function(NamedTuple):
    """f with its sigma, limits included."""

    approximate: str
    sigma: Sigma

    def value(self, x: Tensor) -> Tensor:
        if self._is_limit():
            return functional.iglu(x, self.sigma)
        return self._call("value", x)

    def slope(self, x: Tensor) -> Tensor:
        if self._is_limit():
            return torch.full_like(x, 0.5) if self.sigma == 0 else (x > 0).to(x.dtype)
        return self._call("slope", x)

    def tangent_intercept(self, x: Tensor) -> Tensor:
        """f(x) - x f'(x) = -x^2 dgate/dx, and df/dsigma = x^2 (dgate/dx)/sigma."""
        if self._is_limit():
            return torch.zeros_like(x)
        return self._call("by_sigma", x) * -self.sigma

    def _call(self, operation: str, x: Tensor) -> Tensor:
        return record.call(operation, x, None, self.sigma, self.approximate, None)

    def _is_limit(self) -> bool:
        return isinstance(self.sigma, float) and self.sigma in (0, math.inf)
