"""The formulas of IGLU and their derivatives in torch operations: the single source of truth.

Notation: ``u = sigma x``, ``a = |u|``, ``t = 1/a``, ``m = min(a, t)``.

The textbook formula ``x (1/2 + arctan(u)/pi)`` subtracts two nearly equal numbers in the negative tail, so
rounding errors dominate its output there and, even more, its gradient.  Every function below is written in
terms of the *tail probability* instead, which is small where the result is small:

======================  ===============================  ===========================
                        exact (Cauchy)                   rational (two-sided Lomax)
======================  ===============================  ===========================
tail of the gate        p = arctan(t)/pi                 p = r/2,  r = 1/(1+a)
gate                    p  or  1 - p                     p  or  1 - p
value                   x * gate                         x * gate
tail of f'              g = (arctan t - t/(1+t^2))/pi    g = r^2/2
derivative f'           g  or  1 - g                     g  or  1 - g
derivative of the gate  sigma j,  j = 1/(pi(1+u^2))      sigma j,  j = r^2/2
second derivative f''   sigma k,  k = 2/(pi(1+u^2)^2)    sigma k,  k = r^3
df/dsigma               x^2 j                            x^2 j
======================  ===============================  ===========================

("p or 1 - p": the first for u < 0, the second for u >= 0.)  All functions compute in the precision of ``x``.
``sigma`` is a positive finite number or a tensor that broadcasts; a negative value in a tensor is the
analytic continuation f(x; -sigma) = x - f(x; sigma), which follows from these forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Sigma = float | Tensor
Formula = Callable[[Tensor, Sigma], Tensor]

# -- coefficients: written by tools/polynomials.py, do not edit
# Lowest order first, on [0, 1].  As a formula the first is 0/0 at z = 0; a polynomial is not.
# g/t^3 = (arctan(t)/t - 1/(1+z))/(pi z) in z = t^2: relative error 2^-28.9 and 2^-54.3
DERIVATIVE_TAIL = {
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
# (arctan(m)/m - 1)/m^2 in m^2: 2^-28.5
ARCTAN_EXCESS = (
    -0.33333298563957214, 0.1999853402376175, -0.14264114201068878, 0.10951609909534454,
    -0.08401954919099808, 0.05793433636426926, -0.031156444922089577, 0.0109038595110178,
    -0.0017913521733134985,
)  # fmt: skip
# (1/2 - f'(-a))/a = (arctan(a)/a + 1/(1+z))/pi in z = a^2: 2^-27.3
NEAR_DERIVATIVE = (
    0.6366197466850281, -0.42441070079803467, 0.3819059729576111, -0.36297377943992615,
    0.34804537892341614, -0.3224722743034363, 0.26915234327316284, -0.1840062439441681,
    0.09206290543079376, -0.029010511934757233, 0.004242106806486845,
)  # fmt: skip
# -- end of coefficients

# The smallest |u| that is inverted, so that 1/|u| and its square are finite in every precision, also where
# torch differentiates (an exported program).  Both gates are 1/2 to the last bit at much larger |u|.
_NEGLIGIBLE = 1e-18
# For larger |u| every tail has reached its limit to the last digit; the square is far from overflow.
FAR = 2.0**60

# The dtype in which each supported dtype is computed; the result is rounded once.
COMPUTE_DTYPE = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32)
COMPUTE_DTYPE[torch.float64] = torch.float64


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which tensors of ``dtype`` are computed."""
    return COMPUTE_DTYPE.get(dtype, dtype)


def _magnitude(size: Tensor, sigma: Sigma) -> Tensor:
    """a = |u|, given |x|.  A tensor sigma may contain 0 and inf: 0 times inf gives 0, not NaN."""
    if not isinstance(sigma, Tensor):
        return size * sigma
    largest = torch.finfo(size.dtype).max
    scale = sigma.abs().clamp(max=largest)
    limit = torch.where(scale == 0, largest, torch.full_like(scale, math.inf))
    return torch.minimum(size, limit) * scale


def product(x: Tensor, sigma: Sigma) -> Tensor:
    """u, where 0 times inf gives 0 as in :func:`_magnitude`.  In torch the derivative of |x| at 0 is 0, so a
    function that torch differentiates and that is smooth at 0 must be written in u."""
    if not isinstance(sigma, Tensor):
        return x * sigma
    largest = torch.finfo(x.dtype).max
    limit = torch.where(sigma == 0, largest, torch.full_like(sigma, math.inf))
    # minimum and maximum, since nested tensors have no clamp by a tensor
    return torch.maximum(torch.minimum(x, limit), -limit) * sigma.clamp(-largest, largest)


def _size(x: Tensor) -> Tensor:
    """|x|; finite where torch may differentiate: both branches of ``where`` need a finite derivative."""
    return x.abs() if _is_compiled() else x.abs().clamp(max=torch.finfo(x.dtype).max)


def _inverse(a: Tensor) -> Tensor:
    return a.clamp(min=_NEGLIGIBLE).reciprocal()


def _from_tail(x: Tensor, sigma: Sigma, tail: Tensor) -> Tensor:
    """max(x, 0) - |x| p, given |x| p; with a negative sigma min(x, 0) + |x| p."""
    if _is_onnx(sigma):
        return torch.relu(x) - tail
    zero = x.new_zeros(())  # at x = 0, the derivative of maximum(x, zero) is 1/2
    # compiled, relu is one instruction; maximum, which propagates NaN, is four
    positive = torch.relu(x) if _is_compiled() else torch.maximum(x, zero)
    value = positive - tail
    if not isinstance(sigma, Tensor):
        return value
    value = torch.where(sigma < 0, torch.minimum(x, zero) + tail, value)
    return torch.where(sigma == 0, x * 0.5, value)


def _either_tail(x: Tensor, sigma: Sigma, tail: Tensor) -> Tensor:
    """A distribution function at u = sigma x, from its (symmetric) tail probability."""
    is_below = (x < 0) ^ (sigma < 0) if isinstance(sigma, Tensor) else x < 0
    return torch.where(is_below, tail, 1 - tail)


def _polynomial(coefficients: tuple[float, ...], z: Tensor) -> Tensor:
    result = z * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * z + coefficient
    return result


def is_exporting() -> bool:
    """Whether torch.export is running.  torch.compiler.is_exporting is also True inside torch.compile in some
    versions (2.10), and derivatives taken through the formulas would lose their accuracy there."""
    return torch.compiler._is_exporting_flag if _HAS_FLAG else torch.compiler.is_exporting()


def _is_onnx(sigma: Sigma) -> bool:
    """Whether torch exports to ONNX, so that nothing is differentiated, and sigma is a number."""
    return is_exporting() and not isinstance(sigma, Tensor) and torch.onnx.is_in_onnx_export()


_HAS_FLAG = hasattr(torch.compiler, "_is_exporting_flag")


def _is_compiled() -> bool:
    """Whether torch.compile is running, which is given the derivatives as formulas."""
    return torch.compiler.is_compiling() and not is_exporting()


def _is_fused(a: Tensor) -> bool:
    """Whether to compute arctan by a polynomial: compiled, it is several times faster than a call of arctan;
    in eager mode it is slower."""
    return a.dtype == torch.float32 and _is_compiled()


def _arctan_over(a: Tensor) -> tuple[Tensor, Tensor]:
    """``(m, arctan(m)/m)`` under a compiler, where a comparison is cheaper than a minimum."""
    m = torch.where(a < 1, a, a.reciprocal())
    z = m * m
    return m, 1 + z * _polynomial(ARCTAN_EXCESS, z)


def _floor(x: Tensor, sigma: Sigma) -> Sigma:
    """1/(pi sigma); where that overflows, no x is large enough to need it."""
    largest = torch.finfo(x.dtype).max
    if isinstance(sigma, Tensor):
        return (1 / (sigma.abs() * math.pi)).clamp(max=largest)
    return min(1 / (math.pi * sigma), largest)


def _far(x: Tensor, sigma: Sigma) -> tuple[Tensor, Tensor, Tensor]:
    """``(|u| > 1, m, w)`` with w = |x| near the origin and 1/|sigma| beyond, so that x^2 never overflows:
    x^2/(1+u^2) = w^2/(1+m^2), and likewise with 1+|u|."""
    a = _magnitude(x.abs(), sigma)
    is_far = a > 1
    return is_far, torch.minimum(a, _inverse(a)), torch.where(is_far, _inverse_sigma(sigma), x.abs())


def _inverse_sigma(sigma: Sigma) -> Sigma:
    return 1 / sigma.abs() if isinstance(sigma, Tensor) else 1 / sigma


def _sign(x: Tensor, sigma: Sigma) -> Tensor:
    """The sign of u."""
    return x.sign() * sigma.sign() if isinstance(sigma, Tensor) else x.sign()


# -- exact: the Cauchy gate ------------------------------------------------------------------------


def _exact_value(x: Tensor, sigma: Sigma) -> Tensor:
    """For a >= 1, |x| p is computed as (arctan(t)/t)/(pi sigma), which is insensitive to errors of a."""
    size = _size(x)
    a = _magnitude(size, sigma)
    floor = _floor(x, sigma)
    if _is_fused(x):  # an infinite a is harmless
        m, ratio = _arctan_over(a)
        near, far = size * (0.5 - m * (1 / math.pi) * ratio), floor * ratio
    else:
        a = a.clamp(max=FAR)
        angle = _inverse(a).atan()
        near, far = size * (angle * (1 / math.pi)), a * angle * floor
    return _from_tail(x, sigma, torch.where(a < 1, near, far))


def _exact_gate(x: Tensor, sigma: Sigma) -> Tensor:
    a = _magnitude(x.abs(), sigma)
    if _is_fused(a):
        m, ratio = _arctan_over(a)
        angle = m * (1 / math.pi) * ratio
        return _either_tail(x, sigma, torch.where(a < 1, 0.5 - angle, angle))
    return _either_tail(x, sigma, _inverse(a).atan() * (1 / math.pi))


def _exact_df_dx(x: Tensor, sigma: Sigma) -> Tensor:
    """f' = the distribution function of Student's t with 3 degrees of freedom at sqrt(3) u."""
    a = _magnitude(x.abs(), sigma)
    if _is_fused(a):
        m = torch.where(a < 1, a, a.reciprocal())
        z = m * m
        near = 0.5 - m * _polynomial(NEAR_DERIVATIVE, z)
    else:
        t = _inverse(a)
        m = torch.minimum(a, t)
        z = m * m
        near = (t.atan() - m / (1 + z)) * (1 / math.pi)  # m/(1+m^2) = t/(1+t^2)
    far = m * (z * _polynomial(DERIVATIVE_TAIL[x.dtype], z))
    return _either_tail(x, sigma, torch.where(a < 1, near, far))


def _exact_df_dsigma(x: Tensor, sigma: Sigma) -> Tensor:
    _, m, w = _far(x, sigma)
    return w * (w / (math.pi * (1 + m * m)))


def _exact_density(x: Tensor, sigma: Sigma) -> Tensor:
    u = product(x, sigma)
    return (1 + u * u).reciprocal() * (1 / math.pi)


def _exact_d2f_dx2(x: Tensor, sigma: Sigma) -> Tensor:
    u = product(x, sigma)
    return (1 + u * u).reciprocal().square() * (2 / math.pi)


def _exact_d2f_dsigma2(x: Tensor, sigma: Sigma) -> Tensor:
    is_far, m, w = _far(x, sigma)
    size = (2 / math.pi) * w * w * w * torch.where(is_far, 1.0, m) / (1 + m * m).square()
    return -size * sigma.sign() if isinstance(sigma, Tensor) else -size


# -- rational: the two-sided Lomax gate ------------------------------------------------------------


def _lomax(x: Tensor, sigma: Sigma) -> Tensor:
    return (1 + _magnitude(x.abs(), sigma)).reciprocal()


def _rational_value(x: Tensor, sigma: Sigma) -> Tensor:
    if _is_onnx(sigma):  # the shortest form, also correct at 0 and at the infinities
        return torch.relu(x) - x.new_full((), 0.5) / (x.abs().reciprocal() + sigma)
    size = _size(x)
    a = _magnitude(size, sigma)
    # a tensor, since torch (2.13) compiles a number in the `where` as a constant, that of the first sigma
    floor = x.new_ones(()) * (_inverse_sigma(sigma) * 0.5)
    return _from_tail(x, sigma, torch.where(a < FAR, (size * 0.5) / (1 + a), floor))


def _rational_gate(x: Tensor, sigma: Sigma) -> Tensor:
    return _either_tail(x, sigma, _lomax(x, sigma) * 0.5)


def _rational_density(x: Tensor, sigma: Sigma) -> Tensor:
    r = _lomax(x, sigma)
    return r * (r * 0.5)


def _rational_df_dx(x: Tensor, sigma: Sigma) -> Tensor:
    return _either_tail(x, sigma, _rational_density(x, sigma))


def _rational_df_dsigma(x: Tensor, sigma: Sigma) -> Tensor:
    _, m, w = _far(x, sigma)
    root = w / (1 + m)
    return root * (root * 0.5)


def _rational_d2f_dx2(x: Tensor, sigma: Sigma) -> Tensor:
    r = _lomax(x, sigma)
    return r * r * r


def _rational_d2f_dsigma2(x: Tensor, sigma: Sigma) -> Tensor:
    _, m, w = _far(x, sigma)
    root = w / (1 + m)
    size = root * root * root
    return -size * sigma.sign() if isinstance(sigma, Tensor) else -size


# -- from the output ---------------------------------------------------------------------------------
# IGLU-Approx is strictly increasing, so its output y determines its derivative, and x need not be saved.
# With v = sigma y: r = 1 + 2 v for v < 0; for v >= 0, u solves 2 u^2 + (1 - 2 v) u = 2 v.  (The exact IGLU
# approaches its floor as t^2, not as t, so its output does not determine t accurately.)


def _rational_r_from_output(y: Tensor, sigma: Sigma, size: Tensor) -> tuple[Tensor, Tensor]:
    """``(is below, r)``, given |y|."""
    size = _magnitude(size, sigma)
    is_below = _sign(y, sigma) < 0
    b = 2 * size - 1
    u = (b + (b * b + 16 * size).sqrt()) * 0.25
    return is_below, torch.where(is_below, 1 - 2 * size, (1 + u).reciprocal())


def _rational_df_dx_from_output(y: Tensor, sigma: Sigma) -> Tensor:
    is_below, r = _rational_r_from_output(y, sigma, y.abs())
    tail = r * (r * 0.5)
    return torch.where(is_below, tail, 1 - tail)


def _rational_df_dsigma_from_output(y: Tensor, sigma: Sigma) -> Tensor:
    """(x r)^2/2."""
    is_below, r = _rational_r_from_output(y, sigma, y.abs())
    root = _rational_root_from_output(y, sigma, is_below, r)
    return root * (root * 0.5)


def _rational_root_from_output(y: Tensor, sigma: Sigma, is_below: Tensor, r: Tensor) -> Tensor:
    """x r, where x = y / gate; for large v, x r = (1 - r)/sigma does not overflow."""
    above = torch.where(r < 0.5, (1 - r) * (1 / sigma), y * r / (1 - r * 0.5))
    return torch.where(is_below, 2 * y, above)


# The derivatives of df_dx and df_dsigma by y, and by sigma at constant y, in q = x r, s = sign(u) and
# c = r^2/(2 f'): from dx/dy = 1/f', dx/dsigma = -(q^2/2)/f' and sigma q = s (1 - r).  Torch, differentiating
# the forms above, would get 0 at y = 0 and at sigma = 0, from an absolute value, and NaN where an
# intermediate result is infinite.


def _rational_terms_from_output(y: Tensor, sigma: Sigma) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``(r, q, s, c)``."""
    size = torch.where(y < 0, -y, y)  # for third derivatives: at 0, those from the right
    is_below, r = _rational_r_from_output(y, sigma, size)
    q = _rational_root_from_output(y, sigma, is_below, r)
    return r, q, _sign(y, sigma), torch.where(is_below, 1.0, r * r / (2 - r * r))


def _rational_d2f_dx2_from_output(y: Tensor, sigma: Sigma) -> Tensor:
    r, _, _, c = _rational_terms_from_output(y, sigma)
    return 2 * sigma * r * c


def _rational_d2f_dx_dsigma_from_output(y: Tensor, sigma: Sigma) -> Tensor:
    r, q, s, c = _rational_terms_from_output(y, sigma)
    return q * r * (r - s * (1 - r) * c)


def _rational_d2f_dsigma_dx_from_output(y: Tensor, sigma: Sigma) -> Tensor:
    _, q, _, c = _rational_terms_from_output(y, sigma)
    return 2 * q * c


def _rational_d2f_dsigma2_from_output(y: Tensor, sigma: Sigma) -> Tensor:
    _, q, s, c = _rational_terms_from_output(y, sigma)
    return -(s + c) * q * q * q  # in this order: s + c is 0 below 0, and q^3 may overflow


# -- the textbook gates ----------------------------------------------------------------------------
# The gates by definition, with cancellation in the negative tail: for comparison, and for torch to
# differentiate where it does not accept a given derivative.


def _exact_textbook(x: Tensor, sigma: Sigma) -> Tensor:
    return 0.5 + torch.atan(x * sigma) / math.pi


def _rational_textbook(x: Tensor, sigma: Sigma) -> Tensor:
    u = x * sigma
    return 0.5 + u / (2 * (1 + u.abs()))


class FromOutput(NamedTuple):
    """The derivatives of the value at x as functions of (y, sigma), where y is the value at x."""

    df_dx: Formula
    df_dsigma: Formula
    df_dx_partials: tuple[Formula, Formula]  # by y, and by sigma at constant y
    df_dsigma_partials: tuple[Formula, Formula]


class Family(NamedTuple):
    """One gate and what is derived from it; each entry is a function of (x, sigma)."""

    value: Formula
    gate: Formula
    df_dx: Formula
    df_dsigma: Formula
    density: Formula  # j: the derivatives of the gate are sigma j and x j
    d2f_dx2: Formula  # k, without the factor sigma: f'' = sigma k, and d f'/dsigma = x k
    d2f_dsigma2: Formula
    textbook_gate: Formula  # by definition, with the cancellation
    from_output: FromOutput | None = None


EXACT = Family(
    _exact_value, _exact_gate, _exact_df_dx, _exact_df_dsigma, _exact_density, _exact_d2f_dx2,
    _exact_d2f_dsigma2, _exact_textbook,
)  # fmt: skip
RATIONAL = Family(
    _rational_value, _rational_gate, _rational_df_dx, _rational_df_dsigma, _rational_density,
    _rational_d2f_dx2, _rational_d2f_dsigma2, _rational_textbook,
    FromOutput(
        _rational_df_dx_from_output, _rational_df_dsigma_from_output,
        (_rational_d2f_dx2_from_output, _rational_d2f_dx_dsigma_from_output),
        (_rational_d2f_dsigma_dx_from_output, _rational_d2f_dsigma2_from_output),
    ),
)  # fmt: skip
FAMILIES = {"none": EXACT, "rational": RATIONAL}
"""The families by the value of ``approximate``, spelled as in ``torch.nn.functional.gelu``."""
