"""Three estimators of the tail index; each returns the estimate with a 95% interval.

A tail is heavy with index alpha if P(|X| > x) decays like x^-alpha; xi = 1/alpha.

- :func:`hill` assumes xi > 0.  It has the smallest variance if that holds, and is misleading if not: for
  Gaussian data (xi = 0) it gives alpha = 9 at the largest 1%, for any n, and 17.8 at k = 100 of a million.
- :func:`moment` (Dekkers, Einmahl and de Haan, 1989) and :func:`gpd` (generalized Pareto distribution,
  maximum likelihood) also estimate light tails (xi = 0) and bounded ones (xi < 0), with a larger variance.

So every estimate has an attribute ``gaussian``: the estimate for Gaussian data at the same n and k.

Conventions.  The estimators use |x|; for one side, pass ``x[x > 0]`` or ``x[x < 0]``.  ``k`` counts the
values above the threshold X_(k+1), the (k+1)-th largest; part of the literature also counts the threshold,
which multiplies xi by k/(k+1).  ``alpha`` is the index of the tail; the exponent of the density, often called
alpha as well, is alpha + 1.  Intervals assume independent draws with an exact power tail: they include
neither bias nor dependence between the values of one image.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from iglu.tails.fits import METHODS, Fit, check_k, distance, fit_above, gaussian_xi, log_spaced

_DEFAULT_K = 100  # as in the paper
_PLOT_REACH = 4  # an estimate at k keeps the largest 4k values, so that its curve extends beyond k
_SMALLEST_CHOICE, _LARGEST_CHOICE = 25, 0.1  # "ks" tries k from 25 to a tenth of the sample


class TailWarning(UserWarning):
    """The number follows the formula but is not meaningful as a tail index."""


@dataclass(frozen=True, eq=False)
class Tail:
    """The largest of n magnitudes, in descending order: all that an estimator needs.

    Two tails merge exactly, so a stream of any length can be reduced to a fixed amount of memory.

    Args:
        values: The largest magnitudes, in descending order; stored as float64 on the CPU.
        n: The number of values in the sample that they come from.
        resolution: The relative spacing of the numbers; by default, eps of the dtype of ``values``.

    >>> first, second = Tail.of(torch.tensor([1.0, -5.0, 2.0]), 2), Tail.of(torch.tensor([4.0, 3.0]), 2)
    >>> first.merge(second)
    Tail(largest 2 of n = 5, 5 to 4)
    """

    values: Tensor
    n: int
    resolution: float = -1.0

    def __post_init__(self) -> None:
        values = self.values
        if values.dim() != 1 or not 1 <= len(values) <= self.n:
            raise ValueError(
                f"A tail needs one dimension of 1 to n = {self.n} values, got shape {tuple(values.shape)}"
            )
        if self.resolution < 0:
            object.__setattr__(self, "resolution", torch.finfo(values.dtype).eps)
        values = values.detach().cpu().double()
        # topk puts NaN and inf first, so it is enough to check the largest values.
        if bad := int((~values.isfinite()).sum()):
            raise ValueError(f"A tail needs finite values, got {bad} NaN or inf in the {len(values)} largest")
        if values[-1] < 0 or (values[1:] > values[:-1]).any():
            raise ValueError("The values of a tail must be magnitudes in descending order; see Tail.of")
        object.__setattr__(self, "values", values)

    @classmethod
    def of(cls, x: Tensor, keep: int) -> Tail:
        """Make the tail of a sample.

        Args:
            x: The sample, a floating-point tensor of any shape; its signs do not matter.
            keep: How many of the largest magnitudes to keep, at most.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"x must be a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}")
        magnitudes = x.detach().reshape(-1).abs()
        return cls(magnitudes.topk(min(keep, len(magnitudes))).values, len(magnitudes))

    def merge(self, other: Tail) -> Tail:
        """Return the exact tail of both samples together, as long as the shorter of the two.

        Args:
            other: The tail of another sample.
        """
        both = torch.cat([self.values, other.values])
        # A tail that holds its complete sample sets no limit.
        keep = min((len(tail) for tail in (self, other) if len(tail) < tail.n), default=len(both))
        return Tail(both.topk(keep).values, self.n + other.n, max(self.resolution, other.resolution))

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Tail(largest {len(self)} of n = {self.n}, {self.values[0]:.4g} to {self.values[-1]:.4g})"


@dataclass(frozen=True, repr=False)
class Index:
    """xi with a 95% interval.  alpha = 1/xi and its interval are the inverse, inf where xi <= 0."""

    xi: float
    xi_low: float
    xi_high: float

    @property
    def alpha(self) -> float:
        return _inverse(self.xi)

    @property
    def alpha_low(self) -> float:
        return _inverse(self.xi_high)

    @property
    def alpha_high(self) -> float:
        return _inverse(self.xi_low)

    def __repr__(self) -> str:
        return (
            f"alpha = {self.alpha:.4g} [{self.alpha_low:.4g}, {self.alpha_high:.4g}], "
            f"xi = {self.xi:.4g} [{self.xi_low:.4g}, {self.xi_high:.4g}]"
        )


@dataclass(frozen=True, repr=False)
class GaussianIndex(Index):
    """The distribution of an estimate on n independent Gaussian values: the mean of xi, its standard
    deviation, and the range of 95% of the estimates.  ``alpha`` is 1/(mean xi); the mean of Hill's alpha is
    larger by the factor 1 + (sd/xi)^2, 0.8% at k = 100."""

    sd: float


@dataclass(frozen=True, eq=False)
class Curve:
    """Estimates over k, for a Hill plot: five tensors of equal length."""

    k: Tensor
    xi: Tensor
    xi_low: Tensor
    xi_high: Tensor
    gaussian_xi: Tensor


@dataclass(frozen=True, repr=False)
class TailIndex(Index):
    """A tail index estimated from the k values above a threshold, out of n.

    The fitted distribution is P(\\|X\\| > threshold + y) = k/n (1 + xi y/scale)^(-1/xi).

    Args:
        xi: The estimate of 1/alpha.
        xi_low: The lower end of its 95% interval at this k, infinite if the data do not bound it.  If
            ``k_from`` is "ks", the interval ignores that k was chosen on the same data and covers far less.
        xi_high: The upper end of the interval.
        method: The estimator: "hill", "moment" or "gpd".
        k: The number of values above the threshold.
        n: The number of values in the sample.
        threshold: The (k+1)-th largest magnitude.
        scale: The scale of the excesses over the threshold in the fitted distribution.
        distance: The two-sided Kolmogorov-Smirnov distance of the k values from that distribution.
        k_from: How k was chosen: "given", "fraction" or "ks".
        tail: The largest values of the sample, for :meth:`curve`.
    """

    method: str
    k: int
    n: int
    threshold: float
    scale: float
    distance: float
    k_from: str
    tail: Tail = field(compare=False)

    @property
    def gaussian(self) -> GaussianIndex:
        """The same estimator on Gaussian data at this n and k."""
        return gaussian_index(self.method, self.n, self.k)

    @property
    def versus_gaussian(self) -> str:
        """xi compared with the 95% range of Gaussian data: "heavier", "like" or "lighter"."""
        if self.xi > self.gaussian.xi_high:
            return "heavier"
        return "lighter" if self.xi < self.gaussian.xi_low else "like"

    def curve(self, k: Iterable[int] | None = None) -> Curve:
        """Estimate at several k, for a Hill plot; NaN where that fails.

        Args:
            k: The numbers of values to use.  By default up to 100 of them, as far as the tail reaches (four
                times the k of this estimate, if it was made from a tensor).
        """
        method = METHODS[self.method]
        counts = log_spaced(method.smallest_k, len(self.tail) - 1) if k is None else list(k)
        rows = []
        for count in counts:
            fit = _fit_or_none(self.method, self.tail, count)
            estimate = (math.nan,) * 3 if fit is None else (fit.xi, *method.interval(fit))
            rows.append((*estimate, gaussian_index(self.method, self.n, count).xi))
        columns = torch.tensor(rows, dtype=torch.float64).reshape(-1, 4).unbind(1)
        return Curve(torch.tensor(counts), *columns)

    def __repr__(self) -> str:
        chosen = ", chosen on these data, which the interval ignores" if self.k_from == "ks" else ""
        return (
            f"TailIndex({self.method}: {super().__repr__()}; k = {self.k} of n = {self.n} above "
            f"{self.threshold:.4g}{chosen}; Gaussian: {self.gaussian}; {self.versus_gaussian})"
        )


@lru_cache(maxsize=4096)
def gaussian_index(method: str, n: int, k: int) -> GaussianIndex:
    """Compute the distribution of an estimate on Gaussian data, without simulation.

    Args:
        method: "hill", "moment" or "gpd".
        n: The number of independent values in the sample.
        k: The number of values above the threshold.

    >>> round(gaussian_index("hill", n=1_000_000, k=100).alpha, 2)
    17.76
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    check_k(method, k, n)
    return GaussianIndex(*gaussian_xi(method, n, k))


def hill(data: Tensor | Tail, k: int | str | None = None, *, fraction: float | None = None) -> TailIndex:
    """Hill's estimator, alpha = k / sum_{i<=k} ln(X_(i)/X_(k+1)), with X_(1) >= X_(2) >= ... the sorted |x|.

    The interval is exact on Pareto data: 2 k xi_hat/xi is chi-square with 2k degrees of freedom.  Values
    equal to the threshold count among the k, with logarithm 0.  NaN, inf, a threshold of 0, k >= n and values
    that are equal up to rounding raise ``ValueError``.  A result far lighter than a Gaussian's, where there
    is no power tail to measure, gives a :class:`TailWarning`.

    Args:
        data: A tensor of any floating-point dtype, shape and device, or a :class:`Tail`.
        k: The number of values above the threshold, 100 by default; ``"ks"`` chooses the k with the smallest
            two-sided Kolmogorov-Smirnov distance between the data and the fitted distribution.
        fraction: k as a share of the sample, between 0 and 1, instead of ``k``.

    >>> x = torch.arange(1, 10001, dtype=torch.float64).rsqrt()  # quantiles of Pareto with alpha = 2
    >>> estimate = hill(x, k=100)
    >>> print(f"{estimate.alpha:.2f}, 95% from {estimate.alpha_low:.2f} to {estimate.alpha_high:.2f}")
    2.05, 95% from 1.66 to 2.47
    >>> print(f"{estimate.gaussian.alpha:.2f}: {estimate.versus_gaussian}")
    8.99: heavier
    """
    result = _estimate("hill", data, k, fraction)
    if result.xi < result.gaussian.xi_low / 2:
        warnings.warn(
            f"Hill's alpha = {result.alpha:.4g} is far above a Gaussian's {result.gaussian.alpha:.4g} at the "
            "same n and k: there is no power tail to measure; see moment() and gpd()",
            TailWarning,
            stacklevel=2,
        )
    return result


def moment(data: Tensor | Tail, k: int | str | None = None, *, fraction: float | None = None) -> TailIndex:
    """The moment estimator, xi = M1 + 1 - 1/(2 (1 - M1^2/M2)), where M_j is the mean of ln(X_(i)/X_(k+1))^j.

    Also for light and bounded tails.  Errors as in :func:`hill`.  The bias is about -3/k.

    Args:
        data: A floating-point tensor or a :class:`Tail`.
        k: The number of values above the threshold, at least 10, or "ks"; 100 by default.
        fraction: k as a share of the sample, instead of ``k``.
    """
    return _estimate("moment", data, k, fraction)


def gpd(data: Tensor | Tail, k: int | str | None = None, *, fraction: float | None = None) -> TailIndex:
    """Fit the generalized Pareto distribution P(Y > y) = (1 + xi y/scale)^(-1/xi) to the excesses over
    X_(k+1), by maximum likelihood, with a profile-likelihood interval.

    Also for light and bounded tails; the only one of the three that does not change if a constant is added
    to |x|.  Errors as in :func:`hill`, except that a threshold of 0 is allowed.  xi is limited to -0.99,
    since the likelihood has no maximum below -1; it is not regular below -1/2.  The bias is about -3/k.

    Args:
        data: A floating-point tensor or a :class:`Tail`.
        k: The number of values above the threshold, at least 25, or "ks"; 100 by default.  Only values
            strictly above the threshold count, so ties with it lower k.
        fraction: k as a share of the sample, instead of ``k``.
    """
    return _estimate("gpd", data, k, fraction)


def _estimate(name: str, data: Tensor | Tail, k: int | str | None, fraction: float | None) -> TailIndex:
    if k is not None and fraction is not None:
        raise ValueError(f"Give k or fraction, not both, got k = {k!r} and fraction = {fraction!r}")
    if fraction is not None and not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1, got {fraction!r}")
    n = data.n if isinstance(data, Tail) else data.numel() if isinstance(data, Tensor) else 0
    if isinstance(k, str):
        if k != "ks":
            raise ValueError(f"k must be an integer or 'ks', got {k!r}")
        highest, k_from = int(_LARGEST_CHOICE * n), "ks"
        tail = data if isinstance(data, Tail) else Tail.of(data, highest + 1)
        count = _closest_k(name, tail, min(highest, len(tail) - 1))
    else:
        if k is not None and not hasattr(k, "__index__"):
            raise TypeError(f"k must be an integer or 'ks', got {k!r}")
        count, k_from = _DEFAULT_K if k is None else operator.index(k), "given"
        if fraction is not None:
            count, k_from = round(fraction * n), "fraction"
        tail = data if isinstance(data, Tail) else Tail.of(data, max(_PLOT_REACH * count, 1))
    fit = fit_above(name, tail.values, count, tail.n, tail.resolution)
    return TailIndex(
        fit.xi, *METHODS[name].interval(fit), name, fit.k, tail.n, fit.threshold, fit.scale, distance(fit),
        k_from, tail,
    )  # fmt: skip


def _closest_k(name: str, tail: Tail, highest: int) -> int:
    """The k up to ``highest`` whose fit is closest to the data; ``highest`` if none can be fitted."""
    candidates = log_spaced(_SMALLEST_CHOICE, highest)
    if not candidates:
        raise ValueError(
            f"Choosing k needs at least {_SMALLEST_CHOICE} values above a threshold, "
            f"got {highest} (a tenth of n = {tail.n}, or all that the tail holds)"
        )
    fits = {count: _fit_or_none(name, tail, count) for count in candidates}
    distances = {count: distance(fit) for count, fit in fits.items() if fit is not None}
    return min(distances, key=distances.__getitem__, default=highest)


def _fit_or_none(name: str, tail: Tail, k: int) -> Fit | None:
    try:
        return fit_above(name, tail.values, k, tail.n, tail.resolution)
    except ValueError:
        return None


def _inverse(xi: float) -> float:
    return 1 / xi if xi > 0 else math.inf
