"""The equations of IGLU and their derivatives, in plain torch: the one truth of this package.

Notation: ``u = sigma x``, ``a = |u|``, ``t = 1/a``, ``m = min(a, t)``.

The textbook formula ``x (1/2 + arctan(u)/pi)`` subtracts two nearly equal numbers in the negative
tail, so its output and, worse, its gradient drown in rounding noise there.  Every function below is
written in the *tail probability* instead, which is small where the result is small:

====================  ==========================  ===========================
                      exact (Cauchy)              rational (two-sided Lomax)
====================  ==========================  ===========================
tail of the gate      p = arctan(t)/pi            p = r/2,  r = 1/(1+a)
gate                  p  or  1 - p                p  or  1 - p
value                 x * gate                    x * gate
tail of the slope     g = (arctan t - t/(1+t^2))/pi   g = r^2/2
slope  f'             g  or  1 - g                g  or  1 - g
slope of the gate     sigma j,  j = 1/(pi(1+u^2))     sigma j,  j = r^2/2
curvature  f''        sigma k,  k = 2/(pi(1+u^2)^2)   sigma k,  k = r^3
d f / d sigma         x^2 j                       x^2 j
====================  ==========================  ===========================

("p or 1 - p": the first for u < 0, the second for u >= 0.)  All of them take ``x`` in the precision to
compute in and ``sigma`` as a positive finite number or as a tensor that broadcasts; a negative tensor
value is the analytic continuation f(x; -sigma) = x - f(x; sigma), which these forms give by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Sigma = float | Tensor
Formula = Callable[[Tensor, Sigma], Tensor]

# g / t^3 = (arctan(t)/t - 1/(1+z)) / (pi z) as a polynomial in z = t^2 on [0, 1], lowest order first.
# As a formula it is 0/0 at z = 0; as a polynomial nothing cancels.  Relative error 2^-28.9 (12 terms)
# and 2^-54.3 (22 terms); tools/polynomials.py computes both.
_SLOPE_TAIL = {
    torch.float32: (
        0.21220659036943965, -0.25464778926437537, 0.2728313021206852, -0.28283233227147847,
        0.2882668583497781, -0.28708701388659774, 0.27014393682155957, -0.22485995172399204,
        0.1513687390911459, -0.0740670513417009, 0.022770211660208317, -0.003248443199896543,
    ),
    torch.float64: (
        0.21220659078919377, -0.25464790894702344, 0.2728370452989263, -0.28294212095813626,
        0.2893726205828219, -0.2938244423931696, 0.2970882631600326, -0.299576025034842,
        0.3014835212997652, -0.30273182399461585, 0.3025814552886284, -0.2988204522944523,
        0.28699109699904524, -0.26114135029993474, 0.21749905571868602, -0.1594863738066832,
        0.0988565255083229, -0.04959931903567974, 0.019137790955675457, -0.0052890631681674115,
        0.0009271393865387903, -7.716814682729909e-05,
    ),
}  # fmt: skip

# (arctan(m)/m - 1)/m^2 as a polynomial in m^2 on [0, 1]: float32 to 2^-28, from the same tool.
_ARCTAN_EXCESS = (
    -0.33333298563957214, 0.1999853402376175, -0.14264114201068878, 0.10951609909534454,
    -0.08401954919099808, 0.05793433636426926, -0.031156444922089577, 0.0109038595110178,
    -0.0017913521733134985,
)  # fmt: skip

# |u| is kept above this, so that 1/|u| and its square are finite in every precision.  Both gates are
# 1/2 to the last bit of a float64 long before.
_NEGLIGIBLE = 1e-18

# Half precisions are computed in float32 and rounded once.
_COMPUTE_DTYPE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which tensors of ``dtype`` are computed."""
    return _COMPUTE_DTYPE.get(dtype, dtype)


def _product(x: Tensor, sigma: Sigma) -> Tensor:
    """u = sigma x; a tensor sigma may hold zeros, and 0 times inf must be 0, not NaN."""
    if isinstance(sigma, Tensor):
        largest = torch.finfo(x.dtype).max
        return x.clamp(-largest, largest) * sigma
    return x * sigma


def _magnitude(u: Tensor) -> Tensor:
    return u.abs().clamp(min=_NEGLIGIBLE)


def _either_tail(u: Tensor, tail: Tensor) -> Tensor:
    """A distribution function at u, from its (symmetric) tail probability."""
    return torch.where(u < 0, tail, 1 - tail)


def _polynomial(coefficients: tuple[float, ...], z: Tensor) -> Tensor:
    result = z * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * z + coefficient
    return result


def is_exporting() -> bool:
    """Whether torch.export is at work.

    Not by torch.compiler.is_exporting, which in some versions (2.10) is True inside torch.compile as well:
    derivatives would then be taken through the formulas and lose their accuracy.
    """
    return torch.compiler._is_exporting_flag if _HAS_FLAG else torch.compiler.is_exporting()


_HAS_FLAG = hasattr(torch.compiler, "_is_exporting_flag")


def _arctan_of_inverse(a: Tensor, t: Tensor) -> Tensor:
    """arctan(t), t = 1/a > 0.  A compiler fuses a polynomial into a few vector instructions, where calling
    arctan would take several times as long; one operation after the other it is the other way round."""
    if t.dtype != torch.float32 or not torch.compiler.is_compiling() or is_exporting():
        return t.atan()
    m = torch.minimum(a, t)
    z = m * m
    angle = m + m * z * _polynomial(_ARCTAN_EXCESS, z)
    return torch.where(t > 1, math.pi / 2 - angle, angle)


def _far(x: Tensor, sigma: Sigma) -> tuple[Tensor, Tensor, Tensor]:
    """``(|u| > 1, m, w)`` with w = x near the origin and 1/sigma beyond, so that x^2 never overflows:
    x^2/(1+u^2) = w^2/(1+m^2), and likewise with 1+|u|."""
    a = _magnitude(_product(x, sigma))
    is_far = a > 1
    return is_far, torch.minimum(a, a.reciprocal()), torch.where(is_far, 1 / sigma, x)


# -- exact: the Cauchy gate ------------------------------------------------------------------------


def _exact_value(x: Tensor, sigma: Sigma) -> Tensor:
    """x (1/2 + arctan(u)/pi); beyond u = -1 as -(arctan(t)/t)/(pi sigma), finite at -inf."""
    u = _product(x, sigma)
    a = _magnitude(u)
    # Kept from 0, where arctan(t)/t would be 0/0; it is 1 long before.
    t = a.reciprocal().clamp(min=_NEGLIGIBLE)
    angle = _arctan_of_inverse(a, t)
    tail = angle / t * (1 / (sigma * -math.pi))
    return torch.where(u < -1, tail, x * _either_tail(u, angle / math.pi))


def _exact_gate(x: Tensor, sigma: Sigma) -> Tensor:
    u = _product(x, sigma)
    a = _magnitude(u)
    return _either_tail(u, _arctan_of_inverse(a, a.reciprocal()) / math.pi)


def _exact_slope(x: Tensor, sigma: Sigma) -> Tensor:
    """f' = the distribution function of Student's t with 3 degrees of freedom at sqrt(3) u."""
    u = _product(x, sigma)
    a = _magnitude(u)
    t = a.reciprocal()
    z = t * t
    m = torch.minimum(a, t)
    near = (_arctan_of_inverse(a, t) - m / (1 + m * m)) / math.pi  # m/(1+m^2) = t/(1+t^2)
    # Only z <= 1 is used; the clamp keeps the unused rest from overflowing.
    far = t * (z * _polynomial(_SLOPE_TAIL[x.dtype], z.clamp(max=1)))
    return _either_tail(u, torch.where(t > 1, near, far))


def _exact_by_sigma(x: Tensor, sigma: Sigma) -> Tensor:
    _, m, w = _far(x, sigma)
    return w * (w / (math.pi * (1 + m * m)))


def _exact_gate_density(x: Tensor, sigma: Sigma) -> Tensor:
    u = _product(x, sigma)
    return (1 + u * u).reciprocal() / math.pi


def _exact_slope_density(x: Tensor, sigma: Sigma) -> Tensor:
    u = _product(x, sigma)
    return (1 + u * u).reciprocal().square() * (2 / math.pi)


def _exact_by_sigma_twice(x: Tensor, sigma: Sigma) -> Tensor:
    is_far, m, w = _far(x, sigma)
    u = torch.where(is_far, 1.0, _product(x, sigma))
    return (-2 / math.pi) * w * w * w * u / (1 + m * m).square()


# -- rational: the two-sided Lomax gate ------------------------------------------------------------


def _lomax(x: Tensor, sigma: Sigma) -> tuple[Tensor, Tensor]:
    u = _product(x, sigma)
    return u, (1 + u.abs()).reciprocal()


def _rational_value(x: Tensor, sigma: Sigma) -> Tensor:
    """x (1 - r/2) or x r/2; beyond u = -1 as -1/(2 sigma (1+t)), finite at -inf."""
    u, r = _lomax(x, sigma)
    tail = (1 / (sigma * -2)) / (1 + _magnitude(u).reciprocal())
    return torch.where(u < -1, tail, x * _either_tail(u, r / 2))


def _rational_gate(x: Tensor, sigma: Sigma) -> Tensor:
    u, r = _lomax(x, sigma)
    return _either_tail(u, r / 2)


def _rational_slope(x: Tensor, sigma: Sigma) -> Tensor:
    u, r = _lomax(x, sigma)
    return _either_tail(u, r * (r / 2))


def _rational_by_sigma(x: Tensor, sigma: Sigma) -> Tensor:
    _, m, w = _far(x, sigma)
    root = w / (1 + m)
    return root * (root / 2)


def _rational_gate_density(x: Tensor, sigma: Sigma) -> Tensor:
    _, r = _lomax(x, sigma)
    return r * (r / 2)


def _rational_slope_density(x: Tensor, sigma: Sigma) -> Tensor:
    _, r = _lomax(x, sigma)
    return r * r * r


def _rational_by_sigma_twice(x: Tensor, sigma: Sigma) -> Tensor:
    is_far, m, w = _far(x, sigma)
    sign = torch.where(is_far, 1.0, _product(x, sigma).sign())
    root = w / (1 + m)
    return -sign * root * root * root


# -- from the output ---------------------------------------------------------------------------------
# IGLU-Approx is strictly increasing, so its output y tells its slope, and x need not be kept.  With
# v = sigma y: for v < 0 simply r = 1 + 2 v; for v >= 0, u solves 2 u^2 + (1 - 2 v) u = 2 v.  (The exact
# IGLU nears its floor as t^2, not as t, and its output says too little of t.)


def _rational_r_from_output(y: Tensor, sigma: Sigma) -> tuple[Tensor, Tensor]:
    v = _product(y, sigma)
    above = v.clamp(min=0)
    b = 2 * above - 1
    u = (b + (b * b + 16 * above).sqrt()) / 4
    return v, torch.where(v < 0, 1 + 2 * v, (1 + u).reciprocal())


def _rational_slope_from_output(y: Tensor, sigma: Sigma) -> Tensor:
    v, r = _rational_r_from_output(y, sigma)
    return _either_tail(v, r * (r / 2))


def _rational_by_sigma_from_output(y: Tensor, sigma: Sigma) -> Tensor:
    """(x r)^2/2, where x = y / gate; for large v, x r = (1 - r)/sigma does not overflow."""
    v, r = _rational_r_from_output(y, sigma)
    root = torch.where(v < 0, 2 * y, torch.where(v > 1, (1 - r) / sigma, y * r / (1 - r / 2)))
    return root * (root / 2)


# -- the textbook gates ----------------------------------------------------------------------------
# What the functions are by definition.  They cancel in the negative tail; their use is to be compared
# with, and to be differentiated by torch itself where it cannot be told the derivative.


def _exact_textbook(x: Tensor, sigma: Sigma) -> Tensor:
    return 0.5 + torch.atan(x * sigma) / math.pi


def _rational_textbook(x: Tensor, sigma: Sigma) -> Tensor:
    u = x * sigma
    return 0.5 + u / (2 * (1 + u.abs()))


class Family(NamedTuple):
    """One gate and all that follows from it; each entry is a function of (x, sigma)."""

    value: Formula
    gate: Formula
    slope: Formula  # df/dx
    by_sigma: Formula  # df/dsigma
    gate_density: Formula  # j: the gate's slope is sigma j, its derivative in sigma x j
    slope_density: Formula  # k: f'' = sigma k, and d f'/dsigma = x k
    by_sigma_twice: Formula  # d2f/dsigma2
    textbook_gate: Formula  # by definition, with the cancellation
    slope_from_output: Formula | None = None  # the slope at x as a function of (f(x), sigma)
    by_sigma_from_output: Formula | None = None


EXACT = Family(
    _exact_value,
    _exact_gate,
    _exact_slope,
    _exact_by_sigma,
    _exact_gate_density,
    _exact_slope_density,
    _exact_by_sigma_twice,
    _exact_textbook,
)
RATIONAL = Family(
    _rational_value,
    _rational_gate,
    _rational_slope,
    _rational_by_sigma,
    _rational_gate_density,
    _rational_slope_density,
    _rational_by_sigma_twice,
    _rational_textbook,
    _rational_slope_from_output,
    _rational_by_sigma_from_output,
)
FAMILIES = {"none": EXACT, "rational": RATIONAL}
"""By the value of ``approximate``, in the spelling of ``torch.nn.functional.gelu``."""
