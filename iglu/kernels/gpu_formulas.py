# mypy: ignore-errors
# ruff: noqa: RET505 - Triton compiles what follows a return, so every return needs its branch
"""iglu/formulas.py for a block of elements, in Triton: the formulas of cpu/formulas.h under the same names.

Every function is of x and of a sigma > 0, given as sigma + sigma_low, two float32 that hold a double to 48
bits.  All is computed in float32; ``half`` says that the result will be rounded to a half precision, for
which shorter polynomials and the fast division do.  Notation as in formulas.py: u = sigma x, a = |u|,
t = 1/a, m = min(a, t), z = m^2.

Products are fused with sums where the text says so and nowhere else (the kernels are compiled with
``enable_fp_fusion=False``): a compiler that fuses ``a - centre`` with the product in ``a`` would count
``a_low`` twice.  Triton reads these functions as source, so to a type checker they are not Python.
"""

from __future__ import annotations

import triton
import triton.language as tl


def _polynomial(coefficients: str) -> tl.constexpr:
    return tl.constexpr(tuple(float.fromhex(each) for each in coefficients.split()))


# -- coefficients: written by tools/polynomials.py, do not edit
# Highest order first; what each approximates is said in cpu/polynomials.h, whose numbers they are.
EXCESS = _polynomial("""
    -0x1.d5979cp-10 0x1.654c34p-7 -0x1.fe779ap-6 0x1.da991cp-5 -0x1.5824e2p-4 0x1.c093f4p-4
    -0x1.24210ap-3 0x1.9991eap-3 -0x1.55553ep-2""")
FAR_SLOPE = _polynomial("""
    0x1.35093ap-8 -0x1.d742cp-8 0x1.ea05fp-8 -0x1.689e12p-7 0x1.182586p-6 -0x1.9decp-6 0x1.2f427ep-5
    -0x1.b97f26p-5 0x1.3c291p-4 -0x1.b43e8ap-4 0x1.0a1654p-3""")
NEAR_SLOPE = _polynomial("""
    0x1.edc9dap-6 0x1.abfde4p-4 0x1.09a0dp-4 -0x1.7d77b2p-5 0x1.92c5fcp-6 0x1.d56eap-7
    -0x1.3997fap-4 0x1.7de7c8p-4 -0x1.35a0d4p-6 -0x1.05e1eap-3 0x1.08a03cp-2 -0x1.15f452p-2
    0x1.2f07c8p-3""")
FAR_SLOPE_HALF = _polynomial("""
    0x1.43f5p-7 -0x1.bdae68p-5 0x1.1a0b36p-3 -0x1.c4b6d6p-3 0x1.122dacp-2 -0x1.1dce92p-2
    0x1.1705b6p-2 -0x1.04bf06p-2 0x1.b29954p-3""")
NEAR_SLOPE_HALF = _polynomial("""
    0x1.cdf41ap-6 0x1.daf83cp-4 0x1.f6715ap-6 -0x1.68da74p-4 0x1.6ffb7p-4 -0x1.2d4774p-6
    -0x1.058d9ap-3 0x1.089dbp-2 -0x1.15f4cap-2 0x1.2f07cep-3""")
TAIL_NUMERATOR_HALF = _polynomial("""
    0x1p+0 0x1.d042e4p+2 0x1.de57ccp+4 0x1.2aa68p+6 0x1.af319cp+6""")
TAIL_DENOMINATOR_HALF = _polynomial("""
    0x1p+0 0x1.d04554p+2 0x1.09642cp+5 0x1.8b79p+6 0x1.820ap+7 0x1.af318ep+7""")
FAR_SLOPE_CENTRE = tl.constexpr(float.fromhex("0x1.fdf50ep-2"))
NEAR_SLOPE_CENTRE = tl.constexpr(float.fromhex("0x1.75407p-1"))
# -- end of coefficients

# pi = PI (1 + PI_ERROR), and so for its inverse, which is INVERSE_PI + INVERSE_PI_LOW too.
PI = tl.constexpr(float.fromhex("0x1.921fb6p+1"))
PI_ERROR = tl.constexpr(-2.7827534378484539e-8)
INVERSE_PI = tl.constexpr(float.fromhex("0x1.45f306p-2"))
INVERSE_PI_ERROR = tl.constexpr(4.034206196184844e-8)
INVERSE_PI_LOW = tl.constexpr(float.fromhex("0x1.b9391p-27"))
LARGEST_FLOAT = tl.constexpr(float.fromhex("0x1.fffffep+127"))
# |u| at which 1/(1 + |u|) has no more use for the 1, and the fifth power of pi |u| is far from overflow
FAR = tl.constexpr(2.0**20)
# and the same of an output sigma y, whose root is taken
TALL = tl.constexpr(2.0**30)

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def fused(a, b, c):
    """a b + c, rounded once."""
    if INTERPRETED:  # its tl.fma rounds twice; in float64 the product is exact
        one = tl.full((1, 1), 1.0, tl.float64)
        return ((a * one) * (b * one) + (c * one)).to(tl.float32)
    else:
        return tl.fma(a, b, c)


@triton.jit
def polynomial(x, coefficients: tl.constexpr):
    result = fused(coefficients[0], x, coefficients[1])
    for i in tl.static_range(2, len(coefficients.value)):
        result = fused(result, x, coefficients[i])
    return result


@triton.jit
def quotient(a, b, half: tl.constexpr):
    if half:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def smaller(a, b):
    """The smaller one, and b where b is NaN."""
    return tl.where(b > a, a, b)


@triton.jit
def size_of(x, sigma):
    """|x|, cut where sigma |x| would overflow and every tail has long reached its limit."""
    largest = smaller(LARGEST_FLOAT, tl.div_rn(2.0**126, sigma))
    return smaller(largest, tl.abs(x))


@triton.jit
def positive_part(x):
    """-0 stays -0."""
    return tl.where(x < 0, 0.0, x)


@triton.jit
def either_tail(x, tail):
    """A distribution function, from its (symmetric) tail."""
    return tl.where(x < 0, tail, 1 - tail)


@triton.jit
def gate_from_tail(x, sigma, tail):
    """A gate is 0 or 1 at the infinities, where |x| was cut."""
    return either_tail(x, tl.where((tl.abs(x) == float("inf")) & (sigma > 0), 0.0, tail))


@triton.jit
def corrected(value, error, half: tl.constexpr):
    """value (1 + error), the value being finite.  For a half all these errors are below notice."""
    if half:
        return value
    else:
        return fused(value, error, value)


# -- what follows from sigma, once for each channel of a block --------------------------------------


@triton.jit
def over_pi_of(sigma, sigma_low):
    """sigma/pi to twice the precision."""
    over_pi = sigma * INVERSE_PI
    return over_pi, fused(sigma, INVERSE_PI_LOW, fused(sigma, INVERSE_PI, -over_pi)) + sigma_low * INVERSE_PI


@triton.jit
def floor_of(sigma, sigma_low):
    """1/(pi sigma) = floor (1 + error)."""
    floor = tl.div_rn(INVERSE_PI, sigma)
    rest = fused(-floor, sigma, INVERSE_PI) + fused(-floor, sigma_low, INVERSE_PI_LOW)
    return floor, rest * PI


# -- exact ------------------------------------------------------------------------------------------


@triton.jit
def argument_of(x, sigma, sigma_low, half: tl.constexpr):
    """(|x|, a, a_low, t, t_error) with |u| = a + a_low and 1/|u| = t (1 + t_error)."""
    size = size_of(x, sigma)
    a = sigma * size
    t = quotient(1.0, a, half)
    if half:
        return size, a, a * 0, t, a * 0
    else:
        a_low = fused(sigma_low, size, fused(sigma, size, -a))
        return size, a, a_low, t, fused(-a_low, t, -fused(a, t, -1.0))


@triton.jit
def near_angle(size, z, excess, sigma, sigma_low):
    """arctan(a)/pi for a < 1: its linear term, where the digits are, to twice the precision."""
    over_pi, over_pi_low = over_pi_of(sigma, sigma_low)
    linear = over_pi * size
    rest = fused(over_pi_low, size, fused(over_pi, size, -linear))
    return linear + fused(linear * z, excess, rest)


@triton.jit
def exact_tail_half(b):
    """The gate at -a, one fraction in b = pi a for every a up to FAR."""
    return polynomial(b, TAIL_NUMERATOR_HALF) / polynomial(b, TAIL_DENOMINATOR_HALF)


@triton.jit
def exact_value(x, sigma, sigma_low, half: tl.constexpr):
    if half:
        size = smaller(smaller(LARGEST_FLOAT, tl.div_rn(FAR, sigma)), tl.abs(x))
        # pi sigma/4 does not overflow.  Not -size: in Triton that is 0 - size, and -0 would become 0
        return fused(size, -exact_tail_half(4 * ((sigma * (PI / 4)) * size)), positive_part(x))
    else:
        size = size_of(x, sigma)
        a = sigma * size
        m = smaller(tl.div_rn(1.0, a), a)
        z = m * m
        excess = polynomial(z, EXCESS)
        near = fused(-size, near_angle(size, z, excess, sigma, sigma_low), 0.5 * size)
        # |x| arctan(t)/pi = (arctan(t)/t)/(pi sigma)
        floor, floor_error = floor_of(sigma, sigma_low)
        far = fused(floor, fused(z, excess, floor_error), floor)
        return positive_part(x) - tl.where(a < 1, near, far)


@triton.jit
def exact_gate(x, sigma, sigma_low, half: tl.constexpr):
    size, a, _, t, t_error = argument_of(x, sigma, sigma_low, half)
    m = smaller(t, a)
    z = m * m
    excess = polynomial(z, EXCESS)
    near = 0.5 - near_angle(size, z, excess, sigma, sigma_low)
    linear = m * INVERSE_PI
    rest = fused(linear, t_error + INVERSE_PI_ERROR, fused(m, INVERSE_PI, -linear))
    far = linear + fused(linear * z, excess, rest)
    return gate_from_tail(x, sigma, tl.where(a < 1, near, far))


@triton.jit
def exact_slope(x, sigma, sigma_low, half: tl.constexpr):
    """The tail falls like t^3, which triples every relative error of t."""
    _, a, a_low, t, t_error = argument_of(x, sigma, sigma_low, half)
    z = t * t
    if half:
        near = polynomial(a - NEAR_SLOPE_CENTRE, NEAR_SLOPE_HALF)
        far = t * (z * polynomial(z, FAR_SLOPE_HALF))
    else:
        z_error = 2 * t_error
        near = polynomial((a - NEAR_SLOPE_CENTRE) + a_low, NEAR_SLOPE)
        far = t * (z * polynomial(fused(z, z_error, z - FAR_SLOPE_CENTRE), FAR_SLOPE))
        far = corrected(far, z_error + t_error, half)
    return either_tail(x, tl.where(a < 1, near, far))


@triton.jit
def one_over_one_plus_z(a, a_low, t, t_error, half: tl.constexpr):
    """(r, error) with 1/(1 + z) = r (1 + error)."""
    m = smaller(t, a)
    d = fused(m, m, 1.0)
    r = quotient(1.0, d, half)
    if half:
        return r, r * 0
    else:
        z_low = 2 * tl.where(a < 1, a * a_low, m * m * t_error)
        return r, fused(-(fused(m, m, 1 - d) + z_low), r, -fused(d, r, -1.0))


@triton.jit
def exact_by_sigma(x, sigma, sigma_low, half: tl.constexpr):
    """x^2/(pi (1 + u^2)), beyond |u| = 1 as pi/((pi sigma)^2 (1 + t^2)), which does not overflow."""
    size, a, a_low, t, t_error = argument_of(x, sigma, sigma_low, half)
    r, error = one_over_one_plus_z(a, a_low, t, t_error, half)
    floor, floor_error = floor_of(sigma, sigma_low)
    w = tl.where(a < 1, size, floor)
    error += tl.where(a < 1, INVERSE_PI_ERROR, 2 * floor_error + PI_ERROR)
    return w * (w * corrected(r * tl.where(a < 1, INVERSE_PI, PI), error, half))


@triton.jit
def exact_gate_slope(x, sigma, sigma_low, half: tl.constexpr):
    """sigma/(pi (1 + u^2)), beyond |u| = 1 as sigma t^2/(pi (1 + t^2))."""
    _, a, a_low, t, t_error = argument_of(x, sigma, sigma_low, half)
    r, error = one_over_one_plus_z(a, a_low, t, t_error, half)
    over_pi, over_pi_low = over_pi_of(sigma, sigma_low)
    w = tl.where(a < 1, 1.0, t)
    density = w * r
    result = fused(over_pi_low * w, density, over_pi * w * density)
    return corrected(result, tl.where(a < 1, error, error + 2 * t_error), half)


@triton.jit
def exact_gate_by_sigma(x, sigma, sigma_low, half: tl.constexpr):
    """x/(pi (1 + u^2)), beyond |u| = 1 as t/(pi sigma (1 + t^2))."""
    size, a, a_low, t, t_error = argument_of(x, sigma, sigma_low, half)
    r, error = one_over_one_plus_z(a, a_low, t, t_error, half)
    floor, floor_error = floor_of(sigma, sigma_low)
    error += tl.where(a < 1, INVERSE_PI_ERROR, floor_error + t_error)
    result = corrected(tl.where(a < 1, size * INVERSE_PI, floor * t) * r, error, half)
    return tl.where(x < 0, -result, result)


@triton.jit
def one_over_one_plus_square(x, sigma, sigma_low, half: tl.constexpr):
    """(|x|, q, error) with 1/(1 + u^2) = q (1 + error), beyond |u| = 1 as t^2/(1 + t^2)."""
    size, a, a_low, t, t_error = argument_of(x, sigma, sigma_low, half)
    r, error = one_over_one_plus_z(a, a_low, t, t_error, half)
    return size, tl.where(a < 1, r, t * t * r), tl.where(a < 1, error, error + 2 * t_error)


@triton.jit
def exact_curvature(x, sigma, sigma_low, half: tl.constexpr):
    """f'' = 2 sigma/(pi (1 + u^2)^2)."""
    _, q, error = one_over_one_plus_square(x, sigma, sigma_low, half)
    over_pi, over_pi_low = over_pi_of(sigma, sigma_low)
    return corrected(2 * fused(over_pi_low * q, q, over_pi * q * q), 2 * error, half)


@triton.jit
def exact_slope_by_sigma(x, sigma, sigma_low, half: tl.constexpr):
    """d f'/d sigma = 2 x/(pi (1 + u^2)^2)."""
    size, q, error = one_over_one_plus_square(x, sigma, sigma_low, half)
    result = corrected(((size * INVERSE_PI) * q) * (2 * q), 2 * error + INVERSE_PI_ERROR, half)
    return tl.where(x < 0, -result, result)


# -- rational ---------------------------------------------------------------------------------------


@triton.jit
def one_plus(size, sigma, sigma_low):
    """1 + a.  The low part of sigma, added first, counts where a is large."""
    return fused(sigma, size, fused(sigma_low, size, 1.0))


@triton.jit
def rational_value(x, sigma, sigma_low, half: tl.constexpr):
    size = size_of(x, sigma)
    return fused(-0.5, quotient(size, one_plus(size, sigma, sigma_low), half), positive_part(x))


@triton.jit
def lomax(size, sigma, sigma_low, half: tl.constexpr):
    """(r, error) with 1/(1+a) = r (1 + error)."""
    d = fused(sigma, size, 1.0)
    r = quotient(1.0, d, half)
    if half:
        return r, r * 0
    else:
        d_low = fused(sigma_low, size, fused(sigma, size, 1 - d))
        return r, fused(-d_low, r, -fused(d, r, -1.0))


@triton.jit
def rational_gate(x, sigma, sigma_low, half: tl.constexpr):
    r, error = lomax(size_of(x, sigma), sigma, sigma_low, half)
    return gate_from_tail(x, sigma, corrected(0.5 * r, error, half))


@triton.jit
def rational_slope(x, sigma, sigma_low, half: tl.constexpr):
    r, error = lomax(size_of(x, sigma), sigma, sigma_low, half)
    tail = r * (0.5 * r)
    return either_tail(x, corrected(tail, 2 * error, half))


@triton.jit
def rational_by_sigma(x, sigma, sigma_low, half: tl.constexpr):
    """x^2 r^2/2, as the square of |x| r, which is at most 1/sigma."""
    size = size_of(x, sigma)
    r, error = lomax(size, sigma, sigma_low, half)
    root = corrected(size * r, error, half)
    return root * (0.5 * root)


@triton.jit
def rational_gate_slope(x, sigma, sigma_low, half: tl.constexpr):
    r, error = lomax(size_of(x, sigma), sigma, sigma_low, half)
    return corrected((sigma * r) * (0.5 * r), 2 * error, half)


@triton.jit
def rational_gate_by_sigma(x, sigma, sigma_low, half: tl.constexpr):
    size = size_of(x, sigma)
    r, error = lomax(size, sigma, sigma_low, half)
    result = corrected((size * r) * (0.5 * r), 2 * error, half)
    return tl.where(x < 0, -result, result)


@triton.jit
def rational_curvature(x, sigma, sigma_low, half: tl.constexpr):
    """f'' = sigma r^3."""
    r, error = lomax(size_of(x, sigma), sigma, sigma_low, half)
    return corrected(fused(sigma_low * r, r * r, sigma * r * (r * r)), 3 * error, half)


@triton.jit
def rational_slope_by_sigma(x, sigma, sigma_low, half: tl.constexpr):
    """d f'/d sigma = x r^3."""
    size = size_of(x, sigma)
    r, error = lomax(size, sigma, sigma_low, half)
    result = corrected(((size * r) * r) * r, 3 * error, half)
    return tl.where(x < 0, -result, result)


# -- rational, from the output ----------------------------------------------------------------------


@triton.jit
def lomax_from_output(y, sigma, sigma_low):
    """(y, r) with r = 1/(1+a): 1 + 2 sigma y below 0; above, u solves 2 u^2 + (1 - 2 v) u = 2 v, v = sigma y.

    y is cut where u has outgrown every digit of 1/u and its square is still far from overflow."""
    y = smaller(smaller(LARGEST_FLOAT, tl.div_rn(TALL, sigma)), y)
    v = sigma * y
    b = fused(2.0, v, -1.0)
    u = 0.25 * (b + tl.sqrt_rn(fused(b, b, 16 * positive_part(v))))
    below = fused(2 * sigma_low, y, fused(2 * sigma, y, 1.0))
    return y, tl.where(y < 0, below, tl.div_rn(1.0, 1 + u))


@triton.jit
def rational_slope_from_output(y, sigma, sigma_low):
    y, r = lomax_from_output(y, sigma, sigma_low)
    return either_tail(y, r * (0.5 * r))


@triton.jit
def rational_by_sigma_from_output(y, sigma, sigma_low):
    """(x r)^2/2, where x = y/gate."""
    y, r = lomax_from_output(y, sigma, sigma_low)
    root = tl.where(y < 0, 2 * y, tl.div_rn(y * r, 1 - 0.5 * r))
    return root * (0.5 * root)
