"""How heavy is a tail: three estimators of the tail index, each an object with an interval.

A tail is heavy with index alpha when P(|X| > x) falls like x^-alpha; xi = 1/alpha.  Three answers, since
no single one can be trusted alone:

- :func:`hill` assumes xi > 0.  It is the sharpest where that holds, and blind where it does not: of a
  Gaussian (xi = 0) it says alpha = 9 at the largest 1%, for ever, and 17.8 at k = 100 of a million.
- :func:`moment` (Dekkers, Einmahl and de Haan, 1989) and :func:`gpd` (generalised Pareto law, maximum
  likelihood) also see light tails (xi = 0) and bounded ones (xi < 0), at several times the spread.

Hence every estimate carries ``gaussian``, what Gaussian data give at the same n and k.

Conventions.  All of it is about |x|; for one side, pass ``x[x > 0]`` or ``x[x < 0]``.  ``k`` counts the
values above the threshold X_(k+1), the (k+1)-th largest; part of the literature counts the threshold
too, which multiplies xi by k/(k+1).  ``alpha`` is the index of the tail; the exponent of the density,
often called alpha as well, is alpha + 1.  Intervals are for independent draws and a true power tail:
they know nothing of bias, nor of dependence between the activations of one image.
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

from iglu.tails.fits import METHODS, Fit, check_k, distance, fit_above, gaussian_xi, spread

_DEFAULT_K = 100  # the paper's
_PLOT_REACH = 4  # an estimate at k keeps the largest 4k values, for the curve to go beyond k
_SMALLEST_CHOICE = 25  # "ks" looks from here ...
_LARGEST_CHOICE = 0.1  # ... to this fraction of the sample


class TailWarning(UserWarning):
    """The number returned is right as a formula and means nothing as a tail index."""


@dataclass(frozen=True, eq=False)
class Tail:
    """The largest of n magnitudes, in descending order: all that an estimator looks at.

    Made from data by :meth:`of`, or from values reduced elsewhere; two of them merge exactly, so that
    a stream of any length can be estimated from what fits in memory.

    >>> first, second = Tail.of(torch.tensor([1.0, -5.0, 2.0]), 2), Tail.of(torch.tensor([4.0, 3.0]), 2)
    >>> first.merge(second)
    Tail(largest 2 of n = 5, 5 to 4)
    """

    values: Tensor  # held as float64 on the CPU
    n: int
    resolution: float = -1.0  # relative spacing of the numbers; by default, that of the dtype of values

    def __post_init__(self) -> None:
        values = self.values
        if not isinstance(values, Tensor) or not values.is_floating_point():
            kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise TypeError(f"A tail needs a floating-point tensor, got {kind}")
        if values.dim() != 1 or not 1 <= len(values) <= self.n:
            raise ValueError(
                f"A tail needs one dimension of 1 to n = {self.n} values, got shape {tuple(values.shape)}"
            )
        if self.resolution < 0:
            object.__setattr__(self, "resolution", torch.finfo(values.dtype).eps)
        values = values.detach().cpu().double()
        # NaN and inf count as largest, so no more than the largest values need be looked at.
        if bad := int((~values.isfinite()).sum()):
            raise ValueError(f"A tail needs finite values, got {bad} NaN or inf in the {len(values)} largest")
        if values[-1] < 0 or (values[1:] > values[:-1]).any():
            raise ValueError("The values of a tail must be magnitudes in descending order; see Tail.of")
        object.__setattr__(self, "values", values)

    @classmethod
    def of(cls, x: Tensor, keep: int) -> Tail:
        """The ``keep`` largest of |x|, or all of them where there are fewer."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"x must be a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}")
        magnitudes = x.detach().reshape(-1).abs()
        return cls(magnitudes.topk(min(keep, len(magnitudes))).values, len(magnitudes))

    def merge(self, other: Tail) -> Tail:
        """The tail of both samples together, exact, as long as what either keeps."""
        both = torch.cat([self.values, other.values])
        # A tail that holds its whole sample sets no limit.
        keep = min((len(tail) for tail in (self, other) if len(tail) < tail.n), default=len(both))
        return Tail(both.topk(keep).values, self.n + other.n, max(self.resolution, other.resolution))

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Tail(largest {len(self)} of n = {self.n}, {self.values[0]:.4g} to {self.values[-1]:.4g})"


@dataclass(frozen=True)
class Index:
    """xi with a 95% range; alpha = 1/xi and its range are the inverse, inf where xi reaches 0."""

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

    def _describe(self) -> str:
        return (
            f"alpha = {self.alpha:.4g} [{self.alpha_low:.4g}, {self.alpha_high:.4g}], "
            f"xi = {self.xi:.4g} [{self.xi_low:.4g}, {self.xi_high:.4g}]"
        )


@dataclass(frozen=True, repr=False)
class GaussianIndex(Index):
    """What n independent Gaussian values give: the mean of the estimate xi, its standard deviation, and
    the range that holds 95% of the estimates.  ``alpha`` is 1/(mean xi), which the mean of Hill's 1/xi
    exceeds by the factor 1 + (sd/xi)^2: by 0.8% at k = 100."""

    sd: float

    def __repr__(self) -> str:
        return f"GaussianIndex({self._describe()})"


@dataclass(frozen=True, eq=False)
class Curve:
    """An estimate over k, for a Hill plot: five tensors of equal length."""

    k: Tensor
    xi: Tensor
    xi_low: Tensor
    xi_high: Tensor
    gaussian_xi: Tensor


@dataclass(frozen=True, repr=False)
class TailIndex(Index):
    """A tail index estimated from the k values above a threshold, out of n.

    ``[xi_low, xi_high]`` is the 95% interval at this k, infinite on a side the data do not bound.  Where
    ``k_from`` is "ks" it leaves out that k was chosen on the same data, and covers far less than 95%: read
    it as the spread at that k, no more.
    """

    method: str
    k: int
    n: int
    threshold: float
    scale: float  # of the fitted law: P(|X| > threshold + y) = k/n (1 + xi y/scale)^(-1/xi)
    distance: float  # Kolmogorov-Smirnov, two-sided, between the k values and that law
    k_from: str  # "given", "fraction" or "ks"
    tail: Tail = field(compare=False)

    @property
    def gaussian(self) -> GaussianIndex:
        """The same estimate on Gaussian data of this n and k."""
        return gaussian_index(self.method, self.n, self.k)

    @property
    def versus_gaussian(self) -> str:
        """Where xi lies beside the 95% range of Gaussian data: "heavier", "like" or "lighter"."""
        if self.xi > self.gaussian.xi_high:
            return "heavier"
        return "lighter" if self.xi < self.gaussian.xi_low else "like"

    def curve(self, k: Iterable[int] | None = None) -> Curve:
        """The estimate at each ``k``, NaN where there is none; by default at up to 100 values of k, from the
        fewest to as many as the tail holds (four times the k of the estimate, for data given whole)."""
        method = METHODS[self.method]
        counts = spread(method.fewest, len(self.tail) - 1) if k is None else list(k)
        rows = []
        for count in counts:
            beside = gaussian_index(self.method, self.n, count).xi
            law = _fit_or_none(self.method, self.tail, count)
            estimate = (math.nan,) * 3 if law is None else (law.xi, *method.interval(law))
            rows.append((*estimate, beside))
        xi, low, high, gaussian = torch.tensor(rows, dtype=torch.float64).reshape(-1, 4).unbind(1)
        return Curve(torch.tensor(counts), xi, low, high, gaussian)

    def __repr__(self) -> str:
        chosen = ", chosen on these data: the interval leaves that out" if self.k_from == "ks" else ""
        beside = self.gaussian
        return (
            f"TailIndex({self.method}: {self._describe()}; k = {self.k} of n = {self.n} above "
            f"{self.threshold:.4g}{chosen}; a Gaussian gives {beside._describe()}: {self.versus_gaussian})"
        )


@lru_cache(maxsize=4096)
def gaussian_index(method: str, n: int, k: int) -> GaussianIndex:
    """What ``method`` ("hill", "moment" or "gpd") gives on n Gaussian values at k; computed, not drawn.

    >>> round(gaussian_index("hill", n=1_000_000, k=100).alpha, 2)
    17.76
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    check_k(method, k, n)
    return GaussianIndex(*gaussian_xi(method, n, k))


def hill(data: Tensor | Tail, k: int | str | None = None, *, fraction: float | None = None) -> TailIndex:
    """Hill's estimator, alpha = k / sum_{i<=k} ln(X_(i)/X_(k+1)), X_(1) >= X_(2) >= ... the sorted |x|.

    ``k`` is a number (100 by default), ``"ks"`` for the one at which the fitted law is nearest to the data
    (two-sided Kolmogorov-Smirnov distance), or ``fraction`` of the sample.  ``data`` is a tensor of any
    floating-point dtype, shape and device, or a :class:`Tail`.  The interval is exact on Pareto data:
    2 k xi_hat/xi is chi-square with 2k degrees of freedom.

    Values equal to the threshold count among the k, with logarithm 0, as the formula has it.  NaN, inf, a
    threshold of 0, k >= n and values that are equal up to their rounding raise ``ValueError``; a result
    far lighter than a Gaussian's, where there is no power tail to measure, gives a :class:`TailWarning`.

    >>> x = torch.arange(1, 10001, dtype=torch.float64).rsqrt()  # quantiles of the Pareto law of alpha = 2
    >>> estimate = hill(x, k=100)
    >>> print(f"{estimate.alpha:.2f}, 95% from {estimate.alpha_low:.2f} to {estimate.alpha_high:.2f}")
    2.05, 95% from 1.66 to 2.47
    >>> print(f"{estimate.gaussian.alpha:.2f}: {estimate.versus_gaussian}")
    8.99: heavier
    """
    return _estimate("hill", data, k, fraction)


def moment(data: Tensor | Tail, k: int | str | None = None, *, fraction: float | None = None) -> TailIndex:
    """The moment estimator, xi = M1 + 1 - 1/(2 (1 - M1^2/M2)), M_j the mean of ln(X_(i)/X_(k+1))^j.

    Sees light and bounded tails too.  Arguments and rules as in :func:`hill`; its bias is about -3/k.
    """
    return _estimate("moment", data, k, fraction)


def gpd(data: Tensor | Tail, k: int | str | None = None, *, fraction: float | None = None) -> TailIndex:
    """The generalised Pareto law P(Y > y) = (1 + xi y/scale)^(-1/xi) of the excesses over X_(k+1), by
    maximum likelihood, with the interval of the profile likelihood.

    Sees light and bounded tails too, and alone of the three does not change when a constant is added to
    |x|.  Arguments and rules as in :func:`hill`, but for two: a threshold of 0 is allowed, and only values
    strictly above the threshold count, so that ties with it lower k.  xi is held above -0.99, since the
    likelihood has no maximum below -1, and is not regular below -1/2; its bias is about -3/k.
    """
    return _estimate("gpd", data, k, fraction)


def _estimate(name: str, data: Tensor | Tail, k: int | str | None, fraction: float | None) -> TailIndex:
    tail, count, k_from = _prepare(name, data, k, fraction)
    law = _fit(name, tail, count)
    low, high = METHODS[name].interval(law)
    result = TailIndex(
        law.xi, low, high, name, law.k, tail.n, law.threshold, law.scale, distance(law), k_from, tail
    )
    if name == "hill" and result.xi < result.gaussian.xi_low / 2:
        warnings.warn(
            f"Hill's alpha = {result.alpha:.4g} is far beyond a Gaussian's {result.gaussian.alpha:.4g} at "
            "the same n and k: there is no power tail here to measure; see moment() and gpd()",
            TailWarning,
            stacklevel=3,
        )
    return result


# -- which k ---------------------------------------------------------------------------------------


def _prepare(
    name: str, data: Tensor | Tail, k: int | str | None, fraction: float | None
) -> tuple[Tail, int, str]:
    """The tail to look at, k, and where k came from."""
    n = data.n if isinstance(data, Tail) else data.numel() if isinstance(data, Tensor) else 0
    if k is not None and fraction is not None:
        raise ValueError(f"Give k or fraction, not both, got k = {k!r} and fraction = {fraction!r}")
    if isinstance(k, str):
        if k != "ks":
            raise ValueError(f"k must be a whole number or 'ks', got {k!r}")
        highest = int(_LARGEST_CHOICE * n)
        tail = data if isinstance(data, Tail) else Tail.of(data, highest + 1)
        return tail, _nearest(name, tail, min(highest, len(tail) - 1)), "ks"
    if fraction is not None:
        if not 0 < fraction < 1:
            raise ValueError(f"fraction must be between 0 and 1, got {fraction!r}")
        count, k_from = round(fraction * n), "fraction"
    else:
        if k is not None and not hasattr(k, "__index__"):
            raise TypeError(f"k must be a whole number or 'ks', got {k!r}")
        count, k_from = _DEFAULT_K if k is None else operator.index(k), "given"
    tail = data if isinstance(data, Tail) else Tail.of(data, max(_PLOT_REACH * count, count + 1, 1))
    return tail, count, k_from


def _nearest(name: str, tail: Tail, highest: int) -> int:
    candidates = spread(_SMALLEST_CHOICE, highest)
    if not candidates:
        raise ValueError(
            f"Choosing k needs at least {_SMALLEST_CHOICE} values above a threshold, "
            f"got {highest} (a tenth of n = {tail.n}, or all that the tail holds)"
        )
    laws = {count: _fit_or_none(name, tail, count) for count in candidates}
    distances = {count: distance(law) for count, law in laws.items() if law is not None}
    if not distances:
        _fit(name, tail, candidates[-1])  # raises, and says why
    return min(distances, key=distances.__getitem__)


def _fit(name: str, tail: Tail, k: int) -> Fit:
    return fit_above(name, tail.values, k, tail.n, tail.resolution)


def _fit_or_none(name: str, tail: Tail, k: int) -> Fit | None:
    try:
        return _fit(name, tail, k)
    except ValueError:
        return None


def _inverse(xi: float) -> float:
    return 1 / xi if xi > 0 else math.inf
