"""The inverse of IGLU and the logarithm of its derivative, for changes of variables.

IGLU is strictly increasing and convex, above its floor -1/(pi sigma) or -1/(2 sigma), so every y above the
floor has exactly one x.  With u = sigma x and v = sigma y, u gate(u) = v for both forms, and x = y/gate(u) is
not sensitive to an error of u:

- rational, v < 0: gate = (1 + 2v)/2, so x = 2y/(1 + 2v); v >= 0: u solves 2u^2 + (1 - 2v) u = 2v.
- exact, v < 0: gate = sqrt(h) p(h), at the height h = 1/pi + v above the floor, with a polynomial p;
  v >= 0: gate = q(s), s = (1 - v)/(1 + v), with a polynomial q.  No iteration is needed.

Near the floor 1/pi + v and 1 + 2v cancel, so v is computed to twice the working precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from iglu import functional
from iglu.formulas import FAMILIES, Family, Sigma, _polynomial
from iglu.functional import Approximate
from iglu.kernels import autograd, reference

# p and q of the module's docstring, lowest order first, with relative errors below 2^-28.6 and 2^-55.2;
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

# 1/pi as a number of the working precision, and the remainder.
_INVERSE_PI = {
    torch.float32: (0.31830987334251404, 1.2841276486597046e-08),
    torch.float64: (0.3183098861837907, -1.9678676675182486e-17),
}
# Factors that split a number into two halves of its digits (Dekker 1971).
_HALVES = {torch.float32: 4097.0, torch.float64: 134217729.0}

# The floor that iglu returns is rounded: an output up to this many eps below it still means -inf.
_BELOW_FLOOR = 2
# One operation per dtype of y, since the tolerance at the floor depends on it.
_INVERSE = {
    dtype: f"inverse of {dtype}" for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def iglu_inverse(
    y: Tensor, sigma: Sigma = 1.0, *, approximate: Approximate = "none", channel_dim: int | None = None
) -> Tensor:
    """Return the x with ``iglu(x, sigma) == y``.

    y = inf gives inf, y = 0 gives 0, the floor -1/(pi sigma) (rational: -1/(2 sigma)) gives -inf, as do
    values up to 2 eps of ``y``'s dtype below it, where rounding may put the floor; anything lower gives NaN.

    Twice differentiable: dx/dy = 1/f'(x).  For the given y, x is accurate to 4 ulp.  If y is itself a rounded
    output of :func:`iglu`, the inverse amplifies its rounding error in the negative tail by 1.5 u^2
    (rational: \\|u\\|), u = sigma x: float32 keeps two digits of x at u = -300, and none below about -2000.

    Args:
        y: Outputs of :func:`iglu`, of any floating-point dtype.
        sigma: The sigma they were computed with.  0 gives 2y; inf gives y for y >= 0 (at 0, the largest x
            with ReLU(x) = 0) and NaN for y < 0.
        approximate: "none" for IGLU, "rational" for IGLU-Approx.
        channel_dim: The dimension of ``y`` along which ``sigma`` has one value per channel, as in
            :func:`iglu`.

    >>> iglu_inverse(torch.tensor([-0.25, 0.0, 0.75]))
    tensor([-1.,  0.,  1.])
    >>> iglu_inverse(torch.tensor([-0.5, -0.25, 2.0]), approximate="rational")
    tensor([   -inf, -1.0000,  2.3508])
    """
    if has_torch_function((y, sigma)):
        return handle_torch_function(
            iglu_inverse, (y, sigma), y, sigma, approximate=approximate, channel_dim=channel_dim
        )
    sigma, channel_dim = functional._prepare(y, sigma, channel_dim, approximate)
    if isinstance(sigma, float) and sigma in (0, math.inf):
        return y * 2 if sigma == 0 else torch.where(y < 0, math.nan, y)
    return autograd.call(_INVERSE[y.dtype], y, None, sigma, approximate, channel_dim)


def iglu_log_derivative(
    x: Tensor, sigma: Sigma = 1.0, *, approximate: Approximate = "none", channel_dim: int | None = None
) -> Tensor:
    """Return log f'(x), the logarithm of the derivative of :func:`iglu`, accurate to a few ulp in both tails.

    For x -> -inf it decreases as -3 log \\|x\\| (rational: -2 log \\|x\\|), also where the derivative itself
    would underflow; for x -> inf it tends to 0 from below.  Twice differentiable.

    Args:
        x: Inputs of :func:`iglu`, of any floating-point dtype.
        sigma: As in :func:`iglu`.  0 gives log(1/2); inf gives 0 for x > 0, -inf for x < 0, log(1/2) at 0.
        approximate: "none" for IGLU, "rational" for IGLU-Approx.
        channel_dim: The dimension of ``x`` along which ``sigma`` has one value per channel, as in
            :func:`iglu`.

    >>> iglu_log_derivative(torch.tensor([-1e20, 0.0, 100.0]))
    tensor([-1.3971e+02, -6.9315e-01, -2.1218e-07])
    """
    if has_torch_function((x, sigma)):
        return handle_torch_function(
            iglu_log_derivative, (x, sigma), x, sigma, approximate=approximate, channel_dim=channel_dim
        )
    sigma, channel_dim = functional._prepare(x, sigma, channel_dim, approximate)
    if isinstance(sigma, float) and sigma in (0, math.inf):
        half = torch.full_like(x, 0.5)
        return torch.where(x.isnan(), x, (half if sigma == 0 else torch.heaviside(x, half)).log())
    return autograd.call("log_derivative", x, None, sigma, approximate, channel_dim)


# -- the inverse -----------------------------------------------------------------------------------


def _product_and_error(y: Tensor, sigma: Sigma) -> tuple[Tensor, Tensor]:
    """v = sigma y and its exact rounding error; 0 for the error where splitting would overflow."""
    largest = torch.finfo(y.dtype).max
    a = y.clamp(-largest, largest)  # sigma may contain 0 and inf, and 0 times inf must be 0
    b = sigma.clamp(-largest, largest) if isinstance(sigma, Tensor) else y.new_full((), sigma)
    product = a * b
    factor = _HALVES[a.dtype]
    a_high = a * factor - (a * factor - a)
    b_high = b * factor - (b * factor - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, torch.where(error.isfinite(), error, 0)


def _invert(approximate: str, y: Tensor, sigma: Sigma, slack: float) -> Tensor:
    v, rest = _product_and_error(y, sigma)
    # clamped where the gate is 1 to the last bit and v^2 does not overflow
    above = v.clamp(0, torch.finfo(v.dtype).eps ** -2)
    if approximate == "none":
        high, low = _INVERSE_PI[y.dtype]
        height = (v + high) + (rest + low)  # the first sum is exact where it is small
        gate_below = height.clamp(min=0).sqrt() * _polynomial(_GATE_BELOW[y.dtype], height)
        gate_above = _polynomial(_GATE_ABOVE[y.dtype], (1 - above) / (1 + above))
        x, height = y / torch.where(v < 0, gate_below, gate_above), math.pi * height
    else:
        height = (1 + 2 * v) + 2 * rest  # twice the gate
        b = 2 * above - 1
        u = ((b * b + 16 * above).sqrt() + b) / 4  # for b < 0 it cancels, but 1/2 and 1 are added to it
        x = torch.where(v < 0, 2 * y / height, y * ((1 + u) / (0.5 + u)))
    # The height is now relative to the depth of the floor.  At the floor x is -inf.  A negative sigma has a
    # ceiling instead, where x is +inf: the sign is that of y.
    return torch.where(height > 0, x, torch.where(height >= -slack, y * math.inf, math.nan))


# -- the logarithm of the derivative ---------------------------------------------------------------


class _Tail(NamedTuple):
    """The tail of f', first/|u|^power to the last bit for u < -eps^-start, and the derivative of log f''."""

    first: float
    power: int
    start: float
    dlog_d2f: Callable[[Tensor], Tensor]  # of u

    def is_reached(self, x: Tensor, sigma: Sigma) -> Tensor:
        return x * sigma < -math.pow(torch.finfo(x.dtype).eps, -self.start)


_TAILS = {
    "none": _Tail(2 / (3 * math.pi), 3, 0.5, lambda u: -4 / (u + u.reciprocal())),
    "rational": _Tail(0.5, 2, 1.0, lambda u: -3 * u.sign() / (1 + u.abs())),
}


def _log_derivative(family: Family, tail: _Tail, x: Tensor, sigma: Sigma) -> Tensor:
    """With g = f'(-|x|): log g on the left, by its tail where g may underflow; log(1 - g) on the right."""
    u = x * sigma
    g = family.df_dx(torch.where(u < 0, x, -x), sigma)
    near = torch.where(u < 0, g.log(), (-g).log1p())
    log_sigma = sigma.abs().log() if isinstance(sigma, Tensor) else math.log(sigma)
    log_u = torch.where(u.isfinite(), u.abs().log(), x.abs().log() + log_sigma)
    far = math.log(tail.first) - tail.power * log_u
    return torch.where(tail.is_reached(x, sigma), far, near)


def _hazard(family: Family, tail: _Tail, x: Tensor, sigma: Sigma) -> Tensor:
    """f''/(sigma f'), the derivative of log f' with respect to u, which is power/|u| on the far left."""
    near = family.d2f_dx2(x, sigma) / family.df_dx(x, sigma)
    return torch.where(tail.is_reached(x, sigma), (x * sigma).abs().reciprocal() * tail.power, near)


# -- as operations ---------------------------------------------------------------------------------


def _operations(approximate: str) -> dict[str, reference.Operation]:
    family, tail = FAMILIES[approximate], _TAILS[approximate]
    textbook_value, textbook_df_dx = (
        reference.OPERATIONS[approximate][name].textbook for name in ("value", "df_dx")
    )

    def call(operation: str, x: Tensor, sigma: Sigma) -> Tensor:
        return autograd.call(operation, x, None, sigma, approximate, None)

    def inverse(dtype: torch.dtype) -> reference.Operation:
        def value(y: Tensor, sigma: Sigma) -> Tensor:
            return _invert(approximate, y, sigma, _BELOW_FLOOR * torch.finfo(dtype).eps)

        def dx_dy(y: Tensor, sigma: Sigma) -> Tensor:
            return call("df_dx", call(_INVERSE[dtype], y, sigma), sigma).reciprocal()

        def dx_dsigma(y: Tensor, sigma: Sigma) -> Tensor:
            x = call(_INVERSE[dtype], y, sigma)
            return -call("df_dsigma", x, sigma) / call("df_dx", x, sigma)

        def textbook(y: Tensor, sigma: Sigma) -> Tensor:
            """Two Newton steps from the solution keep its value and carry first and second derivatives."""
            x = value(y, sigma)
            for _ in range(2):
                x = x - (textbook_value(x, sigma) - y) / textbook_df_dx(x, sigma)
            return x

        return reference.Operation(value, {"x": dx_dy, "sigma": dx_dsigma}, textbook)

    def textbook_log_derivative(x: Tensor, sigma: Sigma) -> Tensor:
        return textbook_df_dx(x, sigma).log()

    def textbook_hazard(x: Tensor, sigma: Sigma) -> Tensor:
        return family.d2f_dx2(x, sigma) / textbook_df_dx(x, sigma)

    def dhazard_du(x: Tensor, sigma: Sigma) -> Tensor:
        ratio = call("hazard", x, sigma)
        return ratio * (tail.dlog_d2f(x * sigma) - ratio)

    hazard_partials: dict[str, reference.Partial] = {
        "x": lambda x, sigma: dhazard_du(x, sigma) * sigma,
        "sigma": lambda x, sigma: dhazard_du(x, sigma) * x,
    }
    partials: dict[str, reference.Partial] = {"x": ("hazard", "sigma"), "sigma": ("hazard", "x")}
    log_derivative, hazard = partial(_log_derivative, family, tail), partial(_hazard, family, tail)
    return {name: inverse(dtype) for dtype, name in _INVERSE.items()} | {
        "log_derivative": reference.Operation(log_derivative, partials, textbook_log_derivative),
        "hazard": reference.Operation(hazard, hazard_partials, textbook_hazard),
    }


for _approximate, _known in reference.OPERATIONS.items():
    _known |= _operations(_approximate)
