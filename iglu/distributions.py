"""IGLU as an invertible transform for torch.distributions and normalizing flows."""

from __future__ import annotations

import math

from torch import Tensor
from torch.distributions import Transform, constraints

from iglu.formulas import FAMILIES, Sigma
from iglu.functional import Approximate, check_choice, check_number, iglu
from iglu.inverse import iglu_inverse, iglu_log_derivative

# Depth of the floor below 0, times sigma.
_DEPTH = {"none": 1 / math.pi, "rational": 0.5}


class IGLUTransform(Transform):
    """y = IGLU(x; sigma), from the real line to (floor, inf); the floor is -1/(pi sigma), or -1/(2 sigma)
    with ``approximate="rational"``.

    Positive values are nearly unchanged, negative ones are compressed into the interval above the floor; a
    normal variable becomes a skewed one.

    Args:
        sigma: A positive finite number, or a tensor of positive values, either one or one per entry of the
            last dimension.  A tensor may be learnable; its values are not checked.
        approximate: "none" for IGLU, "rational" for IGLU-Approx.
        cache_size: As in :class:`torch.distributions.transforms.Transform`.

    >>> import torch
    >>> from torch.distributions import Normal, TransformedDistribution
    >>> skewed = TransformedDistribution(Normal(0.0, 1.0), [IGLUTransform(1.0)])
    >>> skewed.log_prob(torch.tensor([-0.25, 0.75]))
    tensor([ 0.9797, -1.3237])
    """

    domain = constraints.real
    bijective = True
    sign = 1

    def __init__(self, sigma: Sigma = 1.0, *, approximate: Approximate = "none", cache_size: int = 0) -> None:
        check_choice("approximate", approximate, FAMILIES)
        if (
            not isinstance(sigma, Tensor)
            and not 0 < check_number("sigma", sigma, "a number > 0 or a tensor") < math.inf
        ):
            raise ValueError(f"sigma must be above 0 and below inf (ReLU is not invertible), got {sigma}")
        super().__init__(cache_size=cache_size)
        self.sigma = sigma
        self.approximate: Approximate = approximate

    @property
    def floor(self) -> Sigma:
        """The infimum of y, which is not attained."""
        return -_DEPTH[self.approximate] / self.sigma

    @property
    def codomain(self) -> constraints.Constraint:  # type: ignore[override]
        return constraints.greater_than(self.floor)  # type: ignore[no-untyped-call]

    def with_cache(self, cache_size: int = 1) -> IGLUTransform:
        if self._cache_size == cache_size:
            return self
        return IGLUTransform(self.sigma, approximate=self.approximate, cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IGLUTransform) or self.approximate != other.approximate:
            return False
        if isinstance(self.sigma, Tensor) or isinstance(other.sigma, Tensor):
            return self.sigma is other.sigma
        return self.sigma == other.sigma

    def __repr__(self) -> str:
        option = "" if self.approximate == "none" else f", approximate={self.approximate!r}"
        return f"IGLUTransform({self.sigma}{option})"

    def _call(self, x: Tensor) -> Tensor:
        return iglu(x, self.sigma, approximate=self.approximate, channel_dim=-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return iglu_inverse(y, self.sigma, approximate=self.approximate, channel_dim=-1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return iglu_log_derivative(x, self.sigma, approximate=self.approximate, channel_dim=-1)
