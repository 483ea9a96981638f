"""Bounds of IGLU over an interval: its range, and lower and upper lines, for verification tools."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from iglu import functional
from iglu.formulas import Sigma, compute_dtype
from iglu.functional import Approximate
from iglu.kernels import autograd, reference

# Guaranteed errors in units in the last place: of a value in its dtype, and of a derivative in the dtype of
# the computation.
_VALUE_ERROR = {torch.float64: 4, torch.float32: 4, torch.bfloat16: 1, torch.float16: 1}
_DERIVATIVE_ERROR = 16


class Line(NamedTuple):
    """The line slope x + intercept."""

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
    low: Tensor, high: Tensor, sigma: Sigma = 1.0, *, approximate: Approximate = "none",
    channel_dim: int | None = None,
) -> Bounds:  # fmt: skip
    """Return the range of :func:`iglu` over each interval [low, high], and the tightest lines below and
    above.  If an end is infinite, the lines are constant, at the ends of the range.

    f is increasing, so its range is [f(low), f(high)].  f is convex, so it lies below the chord through its
    ends; any line above f is above both ends, so none is lower than the chord anywhere.

    f lies above each of its tangents, and a line below f that does not touch it can be raised.  The tangent
    at c has the mean f(c) + f'(c) (m - c) over the interval with midpoint m; it is at most f(m), with
    equality for c = m.  So of all lines below f, the tangent at the midpoint leaves the least area.

    Rounding: let X be the larger of \\|low\\| and \\|high\\|.  An error d of a slope moves a line by d X at
    most.  The upper line may have any slope s if its intercept is the larger of f(low) - s low and
    f(high) - s high, since f(x) - s x is convex and has its maximum at an end.  The intercept is moved
    outward by the guaranteed errors of f and f', and of evaluating s x + intercept in this dtype.  So the
    bounds hold for the true f, and for the computed :func:`iglu` and ``line(x)``.

    Args:
        low: The lower ends of the intervals.
        high: The upper ends, with the shape and dtype of ``low``.
        sigma: As in :func:`iglu`, but not negative: f would be concave.
        approximate: "none" for IGLU, "rational" for IGLU-Approx.
        channel_dim: The dimension of ``low`` along which ``sigma`` has one value per channel, as in
            :func:`iglu`.

    >>> found = bounds(torch.tensor(-1.0), torch.tensor(1.0))
    >>> found.low, found.high, found.below.slope, found.above.slope
    (tensor(-0.2500), tensor(0.7500), tensor(0.5000), tensor(0.5000))
    >>> found.below.intercept, found.above.intercept
    (tensor(-1.7881e-06), tensor(0.2500))
    """
    sigma, channel_dim = functional._prepare(low, sigma, channel_dim, approximate)
    if not isinstance(high, Tensor) or high.shape != low.shape or high.dtype != low.dtype:
        got = f"{tuple(high.shape)} {high.dtype}" if isinstance(high, Tensor) else type(high).__name__
        raise ValueError(f"high must have low's shape and dtype, {tuple(low.shape)} {low.dtype}, got {got}")
    if (low > high).any():
        raise ValueError("low must be <= high everywhere")
    if isinstance(sigma, Tensor) and (sigma < 0).any():
        raise ValueError(
            "sigma must be >= 0, got a negative value: IGLU is then concave and the bounds do not hold"
        )

    wide = compute_dtype(low.dtype)
    is_relu = not isinstance(sigma, Tensor) and sigma == math.inf
    scale = torch.as_tensor(reference.broadcast(sigma, low, channel_dim), dtype=wide, device=low.device)
    scale = scale.clamp(max=torch.finfo(wide).max)  # differs from ReLU by less than the smallest number
    eps, tiny = torch.finfo(low.dtype).eps, torch.finfo(low.dtype).tiny
    value_error, derivative_error = _VALUE_ERROR[low.dtype] * eps, _DERIVATIVE_ERROR * torch.finfo(wide).eps

    def call(operation: str, x: Tensor) -> Tensor:
        if is_relu and operation != "value":  # else second derivatives at 0 would be huge
            return (x > 0).to(wide) if operation == "df_dx" else torch.zeros_like(x)
        return autograd.call(operation, x, None, scale, approximate, None)

    first, last = call("value", low.to(wide)), call("value", high.to(wide))
    lowest = first - 2 * value_error * first.abs() - tiny
    highest = last + 2 * value_error * last.abs() + tiny

    is_finite = low.isfinite() & high.isfinite()
    left, right = (torch.where(is_finite, end, 0).to(wide) for end in (low, high))
    at_left, at_right = call("value", left), call("value", right)
    reach = torch.maximum(left.abs(), right.abs())
    size = torch.maximum(at_left.abs(), at_right.abs())

    def rounding(slope: Tensor, intercept: Tensor) -> Tensor:
        return 2 * eps * (slope * reach + intercept.abs()) + 2 * value_error * size + tiny

    def line(slope: Tensor, intercept: Tensor, constant: Tensor) -> Line:
        intercept = torch.where(is_finite, intercept, constant).to(low.dtype)
        return Line(torch.where(is_finite, slope, 0).to(low.dtype), intercept)

    middle = left / 2 + right / 2
    tangent = call("df_dx", middle)
    slope = tangent.to(low.dtype).to(wide)
    # f(x) - x f'(x) = -x^2 dgate/dx, without cancellation, and df/dsigma = x^2 (dgate/dx)/sigma
    intercept = call("df_dsigma", middle) * -scale
    error = (
        (slope - tangent).abs() + derivative_error * tangent
    ) * reach + derivative_error * intercept.abs()
    below = line(slope, intercept - error - rounding(slope, intercept), lowest)

    # By the mean value theorem the slope is between f' at the ends; that of a short chord is mostly rounding.
    width = right - left
    chord = torch.where(width > 0, (at_right - at_left) / torch.where(width > 0, width, 1), tangent)
    slope = chord.clamp(call("df_dx", left), call("df_dx", right)).to(low.dtype).to(wide)
    intercept = torch.maximum(at_left - slope * left, at_right - slope * right)
    above = line(slope, intercept + rounding(slope, intercept), highest)
    return Bounds(lowest.to(low.dtype), highest.to(low.dtype), below, above)
