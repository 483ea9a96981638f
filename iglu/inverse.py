"""The inverse of IGLU, and the logarithm of its slope: what a change of variables needs.

IGLU is strictly increasing and convex from its floor up, -1/(pi sigma) or -1/(2 sigma), so every y above the
floor comes from one x.  With u = sigma x and v = sigma y both functions are u gate(u) = v, and x = y/gate(u)
takes up little of an error in u:

- rational, v < 0: gate = (1 + 2v)/2, so x = 2y/(1 + 2v); v >= 0: u solves 2u^2 + (1 - 2v) u = 2v.
- exact, v < 0: gate = sqrt(h) p(h), at the height h = 1/pi + v above the floor, with a polynomial p;
  v >= 0: gate = q(s), s = (1 - v)/(1 + v), with a polynomial q.  (Both are smooth, so nothing is iterated.)

Near the floor 1/pi + v and 1 + 2v cancel, and v must be known to twice the working precision: it is kept as
the sum of a product and its rounding error.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from iglu import functional
from iglu.formulas import FAMILIES, Family, Sigma
from iglu.functional import Approximate, check_choice
from iglu.kernels import plain, record

# p and q of the docstring, lowest order first, all to 2^-28.6 or 2^-55.2 and better;
# tools/inverse_polynomial.py computes them.
_GATE_BELOW = {
    torch.float32: (
        0.9772050214763417, -0.30699748421324563, 0.06198157869824691, 0.01974734000058526,
        -0.017894343435434376, 0.0027573660309813306,
    ),
    torch.float64: (
        0.9772050238058398, -0.3069980123839472, 0.06200117359546414, 0.019478243139783358,
        -0.01619222535052005, -0.0023895955617190038, 0.006437393669353518,
        -0.0007925977801805923, -0.002580681612625224, 0.0011144482214924766,
        0.0010341205762068473, -0.0012234172972046408, 0.0004046059790120229,
    ),
}  # fmt: skip
_GATE_ABOVE = {
    torch.float32: (
        0.7876372941648639, -0.2586424171533225, -0.03535857211042923, 0.011848770414024877,
        -0.002689521326701916, -0.0034608158111790817, 0.0007485017890356279,
        0.0002981388970896089, -0.0004082213088662715, -3.0584602686227236e-05,
        8.687354315424487e-05, -1.3092184579950434e-05, -1.635500107145689e-05,
    ),
    torch.float64: (
        0.7876372941648639, -0.2586424040581371, -0.03535856813104182, 0.011848394831822697,
        -0.0026896326882856966, -0.0034576307881492023, 0.0007493903577610064,
        0.00028602720618428043, -0.00041123255512124095, -6.507645385778459e-06,
        9.166160221173733e-05, -3.957593654152871e-05, -1.940530986074623e-05,
        1.6205678993957015e-05, -5.870298841358698e-07, -5.4608991896153356e-06,
        1.8313709642460477e-06, 1.0607344511857158e-06, -1.019221110035171e-06,
        -7.068365226672604e-08, 3.4161006742090235e-07, -5.675226846118064e-08,
        -8.734914173588086e-08, 2.1650904882074924e-08, 1.462020408840876e-08,
        -3.339033064999271e-09, -1.4416270313677737e-09,
    ),
}  # fmt: skip

# 1/pi as a number of the working precision and the rest.
_INVERSE_PI = {
    torch.float32: (0.31830987334251404, 1.2841276486597046e-08),
    torch.float64: (0.3183098861837907, -1.9678676675182486e-17),
}
# A constant that cuts a number into two halves of its digits (Dekker 1971).
_HALVES = {torch.float32: 4097.0, torch.float64: 134217729.0}

# The floor, as iglu gives it, is rounded; an output this many eps below it still means -inf.
_BELOW_FLOOR = 2
# One operation for each dtype of y, since they differ in that.
_INVERSE = {
    dtype: f"inverse of {dtype}" for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def iglu_inverse(
    y: Tensor, sigma: Sigma = 1.0, *, approximate: Approximate = "none", channel_dim: int | None = None
) -> Tensor:
    """The x with ``iglu(x, sigma) == y``; sigma as in :func:`iglu`, in the precision of the computation.

    y = inf gives inf, y = 0 gives 0, the floor -1/(pi sigma) (rational: -1/(2 sigma)) gives -inf, and so does
    what lies up to 2 eps of ``y``'s dtype below it, where rounding puts the floor; everything lower is NaN.
    sigma = 0 gives 2y.  sigma = inf gives y, NaN below 0, and 0 at 0: the largest x whose ReLU that is.

    It is differentiable, also twice: dx/dy = 1/f'(x).  For the y given, x is right to 4 ulp.  A y that is
    itself the rounded output of :func:`iglu` is another matter: in the negative tail its rounding error comes
    back 1.5 u^2 times as large (rational: \\|u\\| times), u = sigma x, so that float32 keeps two digits of x
    at u = -300, and none from about -2000 on.

    >>> iglu_inverse(torch.tensor([-0.25, 0.0, 0.75]))
    tensor([-1.,  0.,  1.])
    >>> iglu_inverse(torch.tensor([-0.5, -0.25, 2.0]), approximate="rational")
    tensor([   -inf, -1.0000,  2.3508])
    """
    if has_torch_function((y, sigma)):
        return handle_torch_function(
            iglu_inverse, (y, sigma), y, sigma, approximate=approximate, channel_dim=channel_dim
        )
    check_choice("approximate", approximate, FAMILIES)
    scale, channel_dim = functional._prepare(y, sigma, channel_dim)
    if isinstance(scale, float) and scale in (0, math.inf):
        return y * 2 if scale == 0 else torch.where(y < 0, math.nan, y)
    return record.call(_INVERSE[y.dtype], y, None, scale, approximate, channel_dim)


def iglu_log_slope(
    x: Tensor, sigma: Sigma = 1.0, *, approximate: Approximate = "none", channel_dim: int | None = None
) -> Tensor:
    """log f'(x), the logarithm of the slope of :func:`iglu`, right to a few ulp in both tails.

    It falls as -3 log \\|x\\| (rational: -2 log \\|x\\|) on the left, far beyond where the slope itself would
    underflow, and nears 0 from below on the right.  sigma = 0 gives log(1/2); sigma = inf gives 0 above 0,
    -inf below and log(1/2) at 0, the limit.  Differentiable, also twice.

    >>> iglu_log_slope(torch.tensor([-1e20, 0.0, 100.0]))
    tensor([-1.3971e+02, -6.9315e-01, -2.1218e-07])
    """
    if has_torch_function((x, sigma)):
        return handle_torch_function(
            iglu_log_slope, (x, sigma), x, sigma, approximate=approximate, channel_dim=channel_dim
        )
    check_choice("approximate", approximate, FAMILIES)
    scale, channel_dim = functional._prepare(x, sigma, channel_dim)
    if isinstance(scale, float) and scale in (0, math.inf):
        slope = torch.full_like(x, 0.5) if scale == 0 else torch.heaviside(x, torch.full_like(x, 0.5))
        return torch.where(x.isnan(), x, slope.log())
    return record.call("log_slope", x, None, scale, approximate, channel_dim)


# -- the inverse -----------------------------------------------------------------------------------


def _product_and_error(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a b and what its rounding left out, exactly; 0 for that where halving would overflow."""
    product = a * b
    factor = _HALVES[a.dtype]
    a_high = a * factor - (a * factor - a)
    b_high = b * factor - (b * factor - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, torch.where(error.isfinite(), error, 0)


def _scaled(y: Tensor, sigma: Sigma) -> tuple[Tensor, Tensor]:
    """v = sigma y to twice the working precision."""
    largest = torch.finfo(y.dtype).max
    # sigma may hold zeros, and 0 times inf must be 0
    scale = sigma if isinstance(sigma, Tensor) else y.new_full((), sigma)
    return _product_and_error(y.clamp(-largest, largest), scale)


def _above(v: Tensor) -> Tensor:
    """v from 0 to where the gate is 1 to the last bit, and its square still far from overflow."""
    return v.clamp(0, torch.finfo(v.dtype).eps ** -2)


def _rational_inverse(y: Tensor, sigma: Sigma, slack: float) -> Tensor:
    v, rest = _scaled(y, sigma)
    doubled_gate = (1 + 2 * v) + 2 * rest
    above = _above(v)
    b = 2 * above - 1
    root = (b * b + 16 * above).sqrt()
    u = (root + b) / 4  # what cancels for b < 0 is lost beside the 1/2 and 1 that it is added to
    x = torch.where(v < 0, 2 * y / doubled_gate, y * ((1 + u) / (0.5 + u)))
    return _from_the_floor_up(y, x, doubled_gate, slack)


def _exact_inverse(y: Tensor, sigma: Sigma, slack: float) -> Tensor:
    v, rest = _scaled(y, sigma)
    high, low = _INVERSE_PI[y.dtype]
    height = (v + high) + (rest + low)  # the first sum is exact where it is small
    gate_below = height.clamp(min=0).sqrt() * _polynomial(_GATE_BELOW[y.dtype], height)
    above = _above(v)
    gate_above = _polynomial(_GATE_ABOVE[y.dtype], (1 - above) / (1 + above))
    x = y / torch.where(v < 0, gate_below, gate_above)
    return _from_the_floor_up(y, x, math.pi * height, slack)


def _from_the_floor_up(y: Tensor, x: Tensor, height: Tensor, slack: float) -> Tensor:
    """x where the height, in units of the floor's depth, is positive; infinite at the floor, NaN below it.
    (A negative sigma has a ceiling instead, where x is +inf: the sign is y's.)"""
    return torch.where(height > 0, x, torch.where(height >= -slack, y * math.inf, math.nan))


def _polynomial(coefficients: tuple[float, ...], z: Tensor) -> Tensor:
    result = z * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * z + coefficient
    return result


# -- the slope's logarithm -------------------------------------------------------------------------


def _log_magnitude(x: Tensor, sigma: Sigma) -> Tensor:
    """log|u|, also where u overflows."""
    u = (x * sigma).abs()
    log_sigma = sigma.abs().log() if isinstance(sigma, Tensor) else math.log(sigma)
    return torch.where(u.isfinite(), u.log(), x.abs().log() + log_sigma)


class _Tail(NamedTuple):
    """The slope's tail far out: first/|u|^power to the last bit for u < -eps^-start."""

    first: float
    power: int
    start: float

    def is_reached(self, x: Tensor, sigma: Sigma) -> Tensor:
        return x * sigma < -math.pow(torch.finfo(x.dtype).eps, -self.start)


_TAILS = {"none": _Tail(2 / (3 * math.pi), 3, 0.5), "rational": _Tail(0.5, 2, 1.0)}


def _log_slope(family: Family, tail: _Tail, x: Tensor, sigma: Sigma) -> Tensor:
    """With g the slope's tail: log g on the left, where g may underflow far out; log(1 - g) on the right."""
    is_left = x * sigma < 0
    g = family.slope(torch.where(is_left, x, -x), sigma)
    near = torch.where(is_left, g.log(), (-g).log1p())
    far = math.log(tail.first) - tail.power * _log_magnitude(x, sigma)
    return torch.where(tail.is_reached(x, sigma), far, near)


def _hazard(family: Family, tail: _Tail, x: Tensor, sigma: Sigma) -> Tensor:
    """f''/(sigma f') = k/f', which on the far left is power/|u|."""
    near = family.curvature(x, sigma) / family.slope(x, sigma)
    return torch.where(tail.is_reached(x, sigma), (x * sigma).abs().reciprocal() * tail.power, near)


def _exact_bend(x: Tensor, sigma: Sigma) -> Tensor:
    """The derivative of log k by u."""
    u = x * sigma
    return -4 / (u + u.reciprocal())


def _rational_bend(x: Tensor, sigma: Sigma) -> Tensor:
    u = x * sigma
    return -3 * u.sign() / (1 + u.abs())


# -- as operations ---------------------------------------------------------------------------------


def _operations(approximate: str) -> dict[str, plain.Operation]:
    family = FAMILIES[approximate]
    is_exact = approximate == "none"
    invert, bend = (_exact_inverse, _exact_bend) if is_exact else (_rational_inverse, _rational_bend)
    tail = _TAILS[approximate]

    def call(operation: str, x: Tensor, sigma: Sigma) -> Tensor:
        return record.call(operation, x, None, sigma, approximate, None)

    def inverse(dtype: torch.dtype) -> plain.Operation:
        slack = _BELOW_FLOOR * torch.finfo(dtype).eps

        def value(y: Tensor, sigma: Sigma) -> Tensor:
            return invert(y, sigma, slack)

        def by_y(y: Tensor, sigma: Sigma) -> Tensor:
            return call("slope", call(_INVERSE[dtype], y, sigma), sigma).reciprocal()

        def by_sigma(y: Tensor, sigma: Sigma) -> Tensor:
            x = call(_INVERSE[dtype], y, sigma)
            return -call("by_sigma", x, sigma) / call("slope", x, sigma)

        def textbook(y: Tensor, sigma: Sigma) -> Tensor:
            """Newton's steps from the solution change nothing but carry derivatives, two the second."""
            x = invert(y, sigma, slack)
            for _ in range(2):
                x = x - (x * family.textbook_gate(x, sigma) - y) / textbook_slope(x, sigma)
            return x

        return plain.Operation(value, {"x": by_y, "sigma": by_sigma}, textbook)

    def textbook_slope(x: Tensor, sigma: Sigma) -> Tensor:
        return family.textbook_gate(x, sigma) + x * sigma * family.density(x, sigma)

    def hazard_by_u(x: Tensor, sigma: Sigma) -> Tensor:
        ratio = call("hazard", x, sigma)
        return ratio * (bend(x, sigma) - ratio)

    def hazard_by_x(x: Tensor, sigma: Sigma) -> Tensor:
        return hazard_by_u(x, sigma) * sigma

    def hazard_by_sigma(x: Tensor, sigma: Sigma) -> Tensor:
        return hazard_by_u(x, sigma) * x

    def textbook_log_slope(x: Tensor, sigma: Sigma) -> Tensor:
        return textbook_slope(x, sigma).log()

    def textbook_hazard(x: Tensor, sigma: Sigma) -> Tensor:
        return family.curvature(x, sigma) / textbook_slope(x, sigma)

    return {name: inverse(dtype) for dtype, name in _INVERSE.items()} | {
        "log_slope": plain.Operation(
            functools.partial(_log_slope, family, tail),
            {"x": ("hazard", "sigma"), "sigma": ("hazard", "x")},
            textbook_log_slope,
        ),
        "hazard": plain.Operation(
            functools.partial(_hazard, family, tail),
            {"x": hazard_by_x, "sigma": hazard_by_sigma},
            textbook_hazard,
        ),
    }


for _approximate, _known in plain.OPERATIONS.items():
    _known |= _operations(_approximate)
