"""The fits behind :mod:`iglu.tails`: distributions above a threshold, intervals, and Gaussian baselines.

Every fit is a generalized Pareto distribution, P(X > threshold + y | X > threshold) = (1 + xi
y/scale)^(-1/xi), so that all share one distance and one description.  Hill's fit has scale = xi threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_Z = 1.959963984540054  # the 97.5% point of the normal distribution
_LOWEST_XI, _HIGHEST_XI = -0.99, 50.0  # at xi <= -1 the likelihood has no maximum
_CANDIDATES = 100  # values of k to try or to plot


class Fit(NamedTuple):
    xi: float
    scale: float
    k: int
    threshold: float
    excess: Tensor  # X_(i) - threshold, descending


def fit_above(name: str, largest: Tensor, k: int, n: int, resolution: float) -> Fit:
    """Fit by the method ``name`` above the (k+1)-th of the ``largest`` values of n, in descending order."""
    check_k(name, k, n)
    if k >= len(largest):
        raise ValueError(f"k = {k} needs the {k + 1} largest values, got the {len(largest)} largest of {n}")
    threshold = largest[k].item()
    excess = largest[:k] - threshold
    if excess.mean() <= resolution * threshold:
        raise ValueError(
            f"The {k + 1} largest values are equal up to rounding ({threshold:.6g}, to {resolution:.2g}): "
            "there is no tail to estimate"
        )
    return METHODS[name].fit(excess, threshold, resolution)


def check_k(name: str, k: int, n: int) -> None:
    smallest = METHODS[name].smallest_k
    if not smallest <= k < n:
        raise ValueError(f"{name} needs k from {smallest} to n - 1 = {n - 1}, got k = {k}")


def distance(fit: Fit) -> float:
    """The two-sided Kolmogorov-Smirnov distance between the data and the fitted distribution."""
    survival = torch.exp(-_log_power(fit.xi, fit.excess / fit.scale))
    steps = torch.arange(fit.k + 1, dtype=torch.float64) / fit.k
    return max((survival - steps[1:]).abs().max().item(), (survival - steps[:-1]).abs().max().item())


# -- Hill and moment -------------------------------------------------------------------------------


def _log_excess(name: str, excess: Tensor, threshold: float) -> Tensor:
    """ln(X_(i)/X_(k+1)), from the difference, which is exact where the two are close."""
    if threshold == 0:
        raise ValueError(
            f"{name} needs a threshold above 0, got 0: only {int((excess > 0).sum())} values are not zero; "
            "choose a smaller k"
        )
    return torch.log1p(excess / threshold)


def _fit_hill(excess: Tensor, threshold: float, _: float) -> Fit:
    xi = _log_excess("hill", excess, threshold).mean().item()
    return Fit(xi, xi * threshold, len(excess), threshold, excess)


def _interval_hill(fit: Fit) -> tuple[float, float]:
    low, high = chi_square_range(2.0 * fit.k)
    return fit.xi / high, fit.xi / low


def _fit_moment(excess: Tensor, threshold: float, _: float) -> Fit:
    logs = _log_excess("moment", excess, threshold)
    first = logs.mean().item()
    variance = (logs - first).square().mean().item()
    if excess[0] == excess[-1]:
        raise ValueError(f"moment needs values that differ, got all {len(excess)} above the threshold equal")
    light = 1 - (variance + first**2) / (2 * variance)  # 1 - 1/(2 (1 - M1^2/M2)): estimates min(xi, 0)
    return Fit(first + light, threshold * first * (1 - light), len(excess), threshold, excess)


def _interval_moment(fit: Fit) -> tuple[float, float]:
    """All xi whose distance from the estimate is at most 1.96 asymptotic standard deviations at that xi."""

    def excess(xi: float) -> float:
        variance = 1 + xi**2
        if xi < 0:
            variance = (1 - xi) ** 2 * (1 - 2 * xi) * (1 - xi + 6 * xi**2) / ((1 - 3 * xi) * (1 - 4 * xi))
        return abs(fit.xi - xi) - _Z * math.sqrt(variance / fit.k)

    return _crossing(excess, fit, -_HIGHEST_XI), _crossing(excess, fit, _HIGHEST_XI)


# -- maximum likelihood ----------------------------------------------------------------------------


def _fit_gpd(excess: Tensor, threshold: float, resolution: float) -> Fit:
    # Before rounding, values above the rounded threshold were above it by at least half a rounding step.
    # Ignoring that would lower xi by 0.03 for a Gaussian in bfloat16.
    half_step = math.ldexp(resolution, math.frexp(threshold)[1] - 2) if threshold > 0 else 0.0
    above = excess[excess > half_step] - half_step
    smallest = METHODS["gpd"].smallest_k
    if len(above) < smallest:
        raise ValueError(
            f"gpd needs {smallest} values strictly above the threshold, got {len(above)}: "
            f"{len(excess) - len(above)} more are tied with it"
        )
    unit = above.mean().item()  # makes the result independent of the units of x
    xi, scale = _likeliest(above / unit, torch.full_like(above, 1 / len(above)))
    return Fit(xi, scale * unit, len(above), threshold + half_step, above)


def _likeliest(y: Tensor, weights: Tensor) -> tuple[float, float]:
    """xi and scale at the maximum of the profile likelihood that is nearest to xi = 0."""

    def score(xi: float) -> float:
        return _profile(y, weights, xi).score

    up = score(0.0) > 0
    near, far = 0.0, 0.25 if up else -0.25
    while _LOWEST_XI < far < _HIGHEST_XI and (score(far) > 0) == up:
        near, far = far, 2 * far
    far = min(max(far, _LOWEST_XI), _HIGHEST_XI)
    xi = far if (score(far) > 0) == up else _root(score, near, far)
    return xi, _profile(y, weights, xi).scale


class _Profile(NamedTuple):
    height: float  # log likelihood per value, at the best scale for this xi
    score: float  # its derivative with respect to xi
    scale: float


def _profile(y: Tensor, weights: Tensor, xi: float) -> _Profile:
    """The generalized Pareto likelihood of y (descending, with mean about 1), maximized over the scale s.

    The likelihood equation in s is H(s) = 1 + xi, where H is the harmonic mean of s/y + xi.  A harmonic mean
    of increasing linear functions is increasing and concave, so Newton's method converges from any start: the
    first step lands below the root (or is cut at the end of the range) and the following increase.
    """
    lowest = max(-xi * y[0].item(), 0.0)  # below, the largest value has probability 0
    scale = max(1 + xi, 1.5 * lowest)
    for _ in range(100):
        shares = y / (scale + xi * y)
        harmonic = 1 / weights.dot(shares).item()
        step = (1 + xi - harmonic) / (harmonic**2 * weights.dot(shares.square() / y).item())
        scale, previous = max(scale + step, (scale + lowest) / 2), scale
        if abs(scale - previous) <= 1e-14 * scale:
            break
    w = y / scale
    log_power, share = _log_power(xi, w), w / (1 + xi * w)
    height = -math.log(scale) - (1 + xi) * weights.dot(log_power).item()
    # d/dxi of the log density -log(scale) - (1 + 1/xi) log(1 + xi w); by its series where that is 0/0
    slopes = (log_power - share) / xi if abs(xi) >= 1e-5 else w.square() / 2 - xi * w**3 * (2 / 3)
    return _Profile(height, weights.dot(slopes - share).item(), scale)


def _log_power(xi: float, w: Tensor) -> Tensor:
    """log(1 + xi w)/xi = -log of the survival function; w at xi = 0, inf beyond the end of a bounded tail."""
    return w if abs(xi) < 1e-12 else torch.log1p((xi * w).clamp(min=-1)) / xi


def _interval_gpd(fit: Fit) -> tuple[float, float]:
    """All xi whose profile log likelihood is within chi-square(1)/2 of the maximum."""
    y, weights = fit.excess / fit.excess.mean(), torch.full_like(fit.excess, 1 / fit.k)
    top = _profile(y, weights, fit.xi).height

    def excess(xi: float) -> float:
        return math.sqrt(max(2 * fit.k * (top - _profile(y, weights, xi).height), 0.0)) - _Z

    return _crossing(excess, fit, _LOWEST_XI), _crossing(excess, fit, _HIGHEST_XI)


def _crossing(excess: Callable[[float], float], fit: Fit, limit: float) -> float:
    """Where ``excess``, negative at the estimate, crosses 0 toward ``limit``; infinite if it does not."""
    direction = 1 if limit > 0 else -1
    near, step = fit.xi, 2 * (1 + abs(fit.xi)) / math.sqrt(fit.k)
    while (limit - near) * direction > 0:
        far = near + direction * min(step, abs(limit - near))
        if excess(far) >= 0:
            return _root(excess, near, far)
        near, step = far, 2 * step
    return direction * math.inf


class Method(NamedTuple):
    fit: Callable[[Tensor, float, float], Fit]  # of the excesses, the threshold and the resolution
    interval: Callable[[Fit], tuple[float, float]]
    smallest_k: int


METHODS = {
    "hill": Method(_fit_hill, _interval_hill, 1),
    "moment": Method(_fit_moment, _interval_moment, 10),
    "gpd": Method(_fit_gpd, _interval_gpd, 25),
}


# -- on Gaussian data ------------------------------------------------------------------------------


def gaussian_xi(name: str, n: int, k: int) -> tuple[float, float, float, float]:
    """Mean, 2.5% and 97.5% points and standard deviation of the estimate on n Gaussian values."""
    xi, sd = _gpd_on_gaussian(n, k) if name == "gpd" else _logs_on_gaussian(name, n, k)
    if name == "hill":
        low, high = chi_square_range(2 * (xi / sd) ** 2)  # distributed like the estimate on Pareto data
        return xi, xi * low, xi * high, sd
    return xi, xi - _Z * sd, xi + _Z * sd, sd


def _logs_on_gaussian(name: str, n: int, k: int) -> tuple[float, float]:
    """Mean and standard deviation of Hill's and of the moment estimate, which are functions of the mean
    powers of ln(X_(i)/X_(k+1)).

    p = P(|X| > X_(k+1)) has the distribution Beta(k+1, n-k), and given X_(k+1) = u the k larger values are
    independent draws from the tail above u.  Both integrals use the trapezoidal rule in variables (the logit
    of p, the logarithm of ln(x/u)) in which the integrand is analytic and decays on both sides.
    """
    sd = math.sqrt(1 / (k + 1) + 1 / (n - k))
    logit = math.log((k + 1) / (n - k)) + torch.linspace(-9, 9, 61, dtype=torch.float64) * sd
    weights = torch.softmax((k + 1) * F.logsigmoid(logit) + (n - k) * F.logsigmoid(-logit), 0)
    u = -torch.special.ndtri(torch.sigmoid(logit) / 2).unsqueeze(1)
    logs = torch.exp(torch.arange(-38, 7, 0.25, dtype=torch.float64)) / (1 + u * u)
    # The density of l = ln(x/u) is exp(-u^2 (e^2l - 1)/2) e^l up to a factor, on nodes equidistant in ln l.
    density = torch.exp(-u * u / 2 * torch.expm1(2 * logs) + logs) * logs
    density /= density.sum(1, keepdim=True)
    m = [(density * logs**j).sum(1) for j in range(5)]
    mean, variance = m[1], (m[2] - m[1] ** 2) / k
    if name == "moment":
        mean, variance = _moment_given_threshold(m, k)
    overall = weights.dot(mean)
    return overall.item(), weights.dot(variance + (mean - overall) ** 2).sqrt().item()


def _moment_given_threshold(m: list[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Mean to the order 1/k^2 and variance of f(M1, M2) = M1 + 1 - M2/(2q), q = M2 - M1^2, by its
    derivatives and the covariances of M1 and M2."""
    q = m[2] - m[1] ** 2
    f1 = 1 - m[1] * m[2] / q**2
    f2 = m[1] ** 2 / (2 * q**2)
    f11 = -m[2] * (q + 4 * m[1] ** 2) / q**3
    f12 = m[1] * (2 * m[2] - q) / q**3
    f22 = -(m[1] ** 2) / q**3
    c11, c12, c22 = (q / k, (m[3] - m[1] * m[2]) / k, (m[4] - m[2] ** 2) / k)
    mean = m[1] + 1 - m[2] / (2 * q) + (f11 * c11 + 2 * f12 * c12 + f22 * c22) / 2
    return mean, f1**2 * c11 + 2 * f1 * f2 * c12 + f2**2 * c22


def _gpd_on_gaussian(n: int, k: int) -> tuple[float, float]:
    """Mean and standard deviation of the fit: a fit to quantiles of the Gaussian tail above its typical
    threshold, plus the bias at k (Cox and Snell); the standard deviation of maximum likelihood,
    (1 + xi)/sqrt(k), with two constants measured on simulated fits."""
    # The fit changes with the logarithm of the number of quantiles and has no limit.  30k quantiles, in about
    # a hundred groups, match the mean of simulated fits to 0.005 for k = 25 to 10,000.
    count = 30 * k
    ends = torch.tensor([0, *log_spaced(1, count)], dtype=torch.float64)
    weights = ends.diff() / count
    p = (k + 1) / (n + 1) * torch.cat([(ends[1:] + ends[:-1]) / (2 * count), torch.ones(1)])
    quantiles = -torch.special.ndtri(p / 2)
    y = quantiles[:-1] - quantiles[-1]
    xi, _ = _likeliest(y / weights.dot(y), weights)
    return xi - (1 + xi) * (3 + xi) / (k * (1 + 3 * xi)), 1.05 * (1 + xi) / math.sqrt(k - 16)


# -- numerics --------------------------------------------------------------------------------------


def log_spaced(lowest: int, highest: int) -> list[int]:
    """Up to 100 integers from lowest to highest, about evenly spaced in their logarithm."""
    if highest < lowest:
        return []
    steps = torch.linspace(math.log(lowest), math.log(highest), _CANDIDATES, dtype=torch.float64)
    return sorted({min(max(round(step), lowest), highest) for step in steps.exp().tolist()})


@lru_cache(maxsize=4096)
def chi_square_range(degrees: float) -> tuple[float, float]:
    """The 2.5% and 97.5% points of chi-square, divided by the degrees of freedom."""
    shape = torch.tensor(degrees / 2, dtype=torch.float64)
    reach = 9 / math.sqrt(degrees / 2)
    low = _root(
        lambda log: torch.special.gammainc(shape, shape * math.exp(log)).item() - 0.025, -reach - 4, 0
    )
    high = _root(lambda log: torch.special.gammaincc(shape, shape * math.exp(log)).item() - 0.025, 0, reach)
    return math.exp(low), math.exp(high)


def _root(function: Callable[[float], float], a: float, b: float) -> float:
    """A root between a and b, where the function has opposite signs: regula falsi, Illinois variant."""
    at_a, at_b = function(a), function(b)
    for _ in range(200):
        if abs(b - a) <= 1e-12 * (1 + abs(b)) or at_b == 0:
            break
        c = b - at_b * (b - a) / (at_b - at_a)
        at_c = function(c)
        if (at_c > 0) != (at_b > 0):
            a, at_a = b, at_b
        else:
            at_a /= 2
        b, at_b = c, at_c
    return b
