"""An independent truth in extended precision, and the error of a result in units in the last place.

Written from the definitions alone, sharing nothing with the package: with u = sigma x the Cauchy gate
is arctan2(1, -u)/pi, which cancels nowhere; the derivative's tail is summed as a series where it would.
"""

from __future__ import annotations

import math
import os
import shutil
import sys

import mpmath
import numpy as np
import pytest
import torch

import iglu
from iglu.kernels import native

LONG = np.longdouble
# 4 arctan(1): numpy's own pi is only a double
PI = 4 * np.arctan(LONG(1))

needs_extended = pytest.mark.skipif(
    np.finfo(LONG).nmant < 63, reason="no extended precision on this platform to check float64 against"
)


# Where the loops are required (set where they were built) a build that lacks them fails, and says why.
if native.loops is None and os.environ.get("IGLU_REQUIRE_LOOPS"):
    raise ImportError(f"IGLU_REQUIRE_LOOPS is set, but {native.unavailable_reason}")
needs_loops = pytest.mark.skipif(native.loops is None, reason=native.unavailable_reason)

# torch.compile writes C++ for the CPU, and calls this compiler.
_CXX = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
needs_compiler = pytest.mark.skipif(
    shutil.which(_CXX) is None,
    reason="no C++ compiler here for torch.compile",
)


def extended(x: torch.Tensor) -> np.ndarray:
    return x.detach().to(torch.float64).numpy().astype(LONG)


def exact_gate(x: np.ndarray, sigma: float) -> np.ndarray:
    return np.arctan2(LONG(1), -LONG(sigma) * x) / PI


def exact_value(x: np.ndarray, sigma: float) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(x), -1 / (PI * LONG(sigma)), x * exact_gate(x, sigma))


def exact_df_dx(x: np.ndarray, sigma: float) -> np.ndarray:
    u = LONG(sigma) * x
    with np.errstate(all="ignore"):
        t = 1 / np.abs(u)
        closed = np.where(np.isinf(t), PI / 2, np.arctan(t)) - np.abs(u) / (1 + u * u)
        z = np.where(t < 0.125, t * t, 0)
        series = sum(LONG((-1) ** n * (2 * n + 2)) / (2 * n + 3) * z**n for n in range(14))
        tail = np.where(t < 0.125, t * t * t * series, closed) / PI
        tail = np.where(np.isinf(u), 0, tail)
    return np.where(np.isnan(x), x, np.where(u < 0, tail, 1 - tail))


def exact_df_dsigma(x: np.ndarray, sigma: float) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        ordinary = x * x / (PI * (1 + (LONG(sigma) * x) ** 2))
    return np.where(np.isinf(x), 1 / (PI * LONG(sigma) ** 2), ordinary)


def rational_gate(x: np.ndarray, sigma: float) -> np.ndarray:
    u = LONG(sigma) * x
    tail = 1 / (2 * (1 + np.abs(u)))
    return np.where(u < 0, tail, 1 - tail)


def rational_value(x: np.ndarray, sigma: float) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        limit = np.where(x < 0, -1 / (2 * LONG(sigma)), x)
        return np.where(np.isinf(x), limit, x * rational_gate(x, sigma))


def rational_df_dx(x: np.ndarray, sigma: float) -> np.ndarray:
    u = LONG(sigma) * x
    tail = 1 / (2 * (1 + np.abs(u)) ** 2)
    return np.where(np.isnan(x), x, np.where(u < 0, tail, 1 - tail))


def rational_df_dsigma(x: np.ndarray, sigma: float) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        ordinary = (x / (1 + np.abs(LONG(sigma) * x))) ** 2 / 2
    return np.where(np.isinf(x), 1 / (2 * LONG(sigma) ** 2), ordinary)


def exact_d2f_dx2(x: np.ndarray, sigma: float) -> np.ndarray:
    return 2 * LONG(sigma) / (PI * (1 + (LONG(sigma) * x) ** 2) ** 2)


def rational_d2f_dx2(x: np.ndarray, sigma: float) -> np.ndarray:
    return LONG(sigma) / (1 + np.abs(LONG(sigma) * x)) ** 3


def evaluate(kind: str, x: torch.Tensor, sigma: float, approximate: str) -> torch.Tensor:
    """The package's own result, through its public functions, element by element."""
    if kind == "value":
        return iglu.iglu(x, sigma, approximate=approximate)
    if kind == "gate":
        return iglu.iglu_gate(x, sigma, approximate=approximate)
    if kind == "df_dx":
        leaf = x.detach().clone().requires_grad_()
        (derivative,) = torch.autograd.grad(
            iglu.iglu(leaf, sigma, approximate=approximate), leaf, torch.ones_like(x)
        )
        return derivative
    # one element per channel, so that the gradient of sigma is not a sum
    sigmas = torch.full((x.numel(),), sigma, dtype=torch.float64, requires_grad=True)
    row = iglu.iglu(x.reshape(1, -1), sigmas, approximate=approximate)
    (df_dsigma,) = torch.autograd.grad(row, sigmas, torch.ones_like(row))
    return df_dsigma.to(x.dtype)


TRUTH = {
    ("none", "value"): exact_value,
    ("none", "gate"): exact_gate,
    ("none", "df_dx"): exact_df_dx,
    ("none", "df_dsigma"): exact_df_dsigma,
    ("rational", "value"): rational_value,
    ("rational", "gate"): rational_gate,
    ("rational", "df_dx"): rational_df_dx,
    ("rational", "df_dsigma"): rational_df_dsigma,
    ("none", "d2f_dx2"): exact_d2f_dx2,
    ("rational", "d2f_dx2"): rational_d2f_dx2,
}


def ulp_errors(result: torch.Tensor, truth: np.ndarray) -> np.ndarray:
    """|result - truth| in units in the last place of the truth; 0 where the truth is not normal."""
    kind = torch.finfo(result.dtype)
    # eps of bfloat16 is 2^-7 and so on: the spacing in [1, 2)
    _, exponent = np.frexp(truth)
    with np.errstate(all="ignore"):
        unit = np.ldexp(LONG(kind.eps), exponent - 1)
        errors = np.abs(extended(result) - truth) / unit
        normal = np.isfinite(truth) & (np.abs(truth) >= kind.tiny) & (np.abs(truth) <= kind.max)
    assert not np.isnan(errors[normal]).any(), "NaN where the truth is an ordinary number"
    return np.where(normal, errors, 0)


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 bit patterns of a half precision, NaN left out, in ascending order."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return patterns[~patterns.isnan()].float().sort().values.to(dtype)


def spread(dtype: torch.dtype, count: int = 200_000, seed: int = 0) -> torch.Tensor:
    """Values of both signs over all magnitudes up to 1e30, denser where the functions bend."""
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    everywhere = 10 ** (torch.rand(count, generator=generator, dtype=torch.float64) * 60 - 30)
    bends = torch.randn(count, generator=generator, dtype=torch.float64) * 3
    return torch.cat([everywhere * sign, bends, bends / 100, bends * 100]).to(dtype)


# -- the inverse and the logarithm of the derivative, in 60 digits ------------------------------------------

FLOOR = {"none": -1 / math.pi, "rational": -0.5}


def _gate(u: mpmath.mpf, approximate: str) -> mpmath.mpf:
    if approximate == "rational":
        return (1 + 2 * max(u, 0)) / (2 * (1 + abs(u)))
    return mpmath.atan2(1, -u) / mpmath.pi


def _derivative_tail(a: mpmath.mpf, approximate: str) -> mpmath.mpf:
    with mpmath.workdps(150):  # the closed form of the exact tail cancels to the third power of u
        if approximate == "rational":
            return 1 / (2 * (1 + a) ** 2)
        return (mpmath.atan2(1, a) - a / (1 + a * a)) / mpmath.pi


def inverse(y: float, sigma: float, approximate: str) -> mpmath.mpf | None:
    """By Newton's method from above, which cannot fail on a convex function; None below its floor."""
    with mpmath.workdps(60):
        v = mpmath.mpf(y) * mpmath.mpf(sigma)
        limit = 1 / mpmath.pi if approximate == "none" else mpmath.mpf(0.5)
        if v <= -limit:
            return None
        u = v + limit if v > 0 else mpmath.mpf(0)
        step = mpmath.inf
        while abs(step) > abs(u) * mpmath.mpf(2) ** -80:
            tail = _derivative_tail(abs(u), approximate)
            step = (u * _gate(u, approximate) - v) / (tail if u < 0 else 1 - tail)
            u -= step
        return u / mpmath.mpf(sigma)


def log_derivative(x: float, sigma: float, approximate: str) -> mpmath.mpf:
    with mpmath.workdps(60):
        u = mpmath.mpf(x) * mpmath.mpf(sigma)
        tail = _derivative_tail(abs(u), approximate)
        return mpmath.log(tail) if u < 0 else mpmath.log1p(-tail)


def worst_ulp(results: torch.Tensor, truths: list[mpmath.mpf]) -> float:
    longs = np.array([LONG(mpmath.nstr(each, 25)) for each in truths])
    return float(ulp_errors(results, longs).max())


def as_computed(sigma: float, dtype: torch.dtype) -> float:
    """A number in the precision of the computation."""
    return float(torch.tensor(sigma, dtype=torch.float64 if dtype == torch.float64 else torch.float32))


def above_the_floor(dtype: torch.dtype, sigma: float, approximate: str, count: int = 60) -> torch.Tensor:
    """Values above the floor at all distances from it, of both signs, over all magnitudes."""
    floor = FLOOR[approximate] / sigma
    digits = -math.log10(torch.finfo(dtype).eps)
    heights = torch.logspace(-digits, -0.01, count, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    near = torch.rand(count, generator=generator, dtype=torch.float64) * 4 / sigma
    large = torch.logspace(-30, 30, count, dtype=torch.float64)
    small = -torch.logspace(-30, -0.5, count, dtype=torch.float64) * abs(floor)
    y = torch.cat([floor * (1 - heights), near, large, small]).to(dtype).unique()
    return y[y.isfinite()]
