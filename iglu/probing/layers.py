"""The statistics of the inputs of one activation."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from iglu.formulas import EXACT
from iglu.probing.observe import ObservedSite
from iglu.probing.stream import Moments, Stream
from iglu.tails import Tail, TailIndex, TailWarning, hill
from iglu.tails.fits import chi_square_range

VANISHING = 1e-3  # a derivative below this passes on almost no gradient
_MAD_TO_SD = 1.482602218505602  # standard deviation / MAD of a Gaussian
_FRACTION = 0.01  # default k as a share of the values ...
_SMALLEST_K = 10  # ... and its minimum


def default_k(n: int, kept: int, given: int | None) -> int:
    """The k of Hill's estimate from n values of which the ``kept`` largest are stored."""
    wanted = max(round(_FRACTION * n), _SMALLEST_K) if given is None else given
    return max(min(wanted, kept - 1), 1)


def check_sizes(k: int | None, *, keep: int, sample: int = 2) -> None:
    for name, value in (("keep", keep), ("sample", sample)):
        if value < 2:
            raise ValueError(f"{name} must be at least 2, got {value}")
    if k is not None and not 1 <= k < keep:
        raise ValueError(f"k must be from 1 to keep - 1 = {keep - 1}, got {k}")


class LayerIndex(NamedTuple):
    """Hill's estimate for one layer, with 95% intervals that allow for dependence between the values of one
    row (an image, a sequence).

    ``excess`` is the estimated xi divided by the xi of Gaussian data at the same n and k.  For tails like
    exp(-x^theta) it tends to 2/theta as n/k grows, so that layers and networks can be compared: 1 is
    Gaussian, an exponential has about 1.7 at usual n and k, more is heavier.
    """

    hill: TailIndex
    effective_k: float  # the number of independent values with the same variance of the estimate
    alpha: float
    alpha_low: float
    alpha_high: float
    gaussian: float  # the alpha of Gaussian data at the same n and k
    excess: float
    excess_low: float
    excess_high: float
    verdict: str  # "heavier" or "lighter" than a Gaussian; "like" if the interval contains 1


@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """The inputs of one activation, over all batches."""

    site: ObservedSite
    calls: int
    n: int  # finite values
    not_finite: int  # NaN and inf, which are left out of everything else
    moments: Moments
    tail: Tail | None  # the largest magnitudes, for the functions of iglu.tails; None if there are no values
    rows_of_tail: Tensor  # the row of the inputs that each of them came from
    sample: Tensor  # a uniform sample of the values
    vanishing: float  # the share of inputs with |f'| < 1e-3; NaN if f is not a function of x alone
    k: int  # the default

    @classmethod
    def of(cls, site: ObservedSite, stream: Stream, k: int | None, device: torch.device | None) -> Layer:
        sample, vanishing = stream.sample(), math.nan
        # An activation with one parameter per channel is not a function of x alone.
        with contextlib.suppress(RuntimeError, ValueError, TypeError):
            vanishing = _share(derivative(site.function, sample.to(device)).abs() < VANISHING)
        tail = stream.tail() if stream.n else None
        return cls(
            site, stream.calls, stream.n, stream.not_finite, stream.moments(), tail, stream.rows_of_tail(),
            sample, vanishing, default_k(stream.n, len(tail or ()), k),
        )  # fmt: skip

    @property
    def name(self) -> str:
        return self.site.name

    @cached_property
    def robust_sd(self) -> float:
        """1.4826 times the median absolute deviation; if that is 0, the standard deviation."""
        if len(self.sample) == 0:
            return math.nan
        median = self.sample.quantile(0.5)
        return (self.sample - median).abs().quantile(0.5).item() * _MAD_TO_SD or self.moments.sd

    @property
    def negative(self) -> float:
        """The share of inputs below 0."""
        return _share(self.sample < 0)

    def vanishing_under(self, sigma: float) -> float:
        """The share of inputs with |f'| < 1e-3 if f were IGLU."""
        is_relu = sigma == math.inf
        return _share(self.sample <= 0 if is_relu else EXACT.df_dx(self.sample, sigma) < VANISHING)

    def index(self, k: int | None = None) -> LayerIndex:
        """Estimate the tail index from the k largest values; a ValueError says why there is none."""
        if self.tail is None:
            raise ValueError(f"{self.name} has no finite inputs")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TailWarning)  # the excess shows the same
            estimate = hill(self.tail, self.k if k is None else k)
        effective_k = _effective_k(estimate, self.rows_of_tail)
        alpha, gaussian = estimate.alpha, estimate.gaussian.alpha
        low, high = (alpha * factor for factor in chi_square_range(2 * effective_k))
        verdict = "heavier" if gaussian > high else "lighter" if gaussian < low else "like"
        excess = gaussian / alpha, gaussian / high, gaussian / low
        return LayerIndex(estimate, effective_k, alpha, low, high, gaussian, *excess, verdict)

    @cached_property
    def index_or_reason(self) -> LayerIndex | str:
        """The default index, or why there is none."""
        try:
            return self.index()
        except ValueError as error:
            return str(error)

    def __repr__(self) -> str:
        index = self.index_or_reason
        if isinstance(index, LayerIndex):
            index = f"alpha = {index.alpha:.3g}, Gaussian {index.gaussian:.3g}"
        return f"Layer({self.name}: {self.site.activation}, n = {self.n}, {index})"


def _same(x: Tensor) -> Tensor:
    return x


def derivative(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivative of a pointwise function, which may work in place, by autograd.

    Its saved tensors bypass outer hooks: activation checkpointing would count them."""
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_same, _same):
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(function(x.clone()).sum(), x)
    return found


def _share(condition: Tensor) -> float:
    return condition.float().mean().item()


def _effective_k(estimate: TailIndex, rows: Tensor) -> float:
    """k divided by the factor by which dependence within rows increases the variance of xi.

    xi is the mean of l_i = ln(X_(i)/X_(k+1)).  If all l_i are independent its variance is xi^2/k; if only the
    rows are, it is the sum over rows of (sum within the row of (l_i - xi))^2, divided by k^2.
    """
    k = estimate.k
    logs = torch.log(estimate.tail.values[:k] / estimate.threshold) - estimate.xi
    _, group = torch.unique(rows[:k], return_inverse=True)
    m = int(group.max()) + 1
    if m == 1:  # one row cannot show how much rows differ
        return 1.0
    sums = torch.zeros(m, dtype=logs.dtype).index_add_(0, group, logs)
    variance = sums.square().sum().item() / k**2 * m / (m - 1)  # the sums have m - 1 degrees of freedom
    independent = estimate.xi**2 / k
    return max(k / max(variance / independent, 1.0), 1.0)
