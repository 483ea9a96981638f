"""Activations from other papers that torch does not have, for comparison.

Each is computed in float32 or float64 and rounded once.  Inputs are clamped where the formula as written
would give inf times 0, in the value or in its gradient; the limits do not change the result.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iglu.formulas import compute_dtype
from iglu.kernels.reference import is_readable


class ReLUSquared(nn.Module):
    """max(x, 0)^2 (So et al., 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).square()


class TeLU(nn.Module):
    """x tanh(e^x) (Fernandez and Mali, 2024)."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(compute_dtype(x.dtype)).clamp(min=-1000.0)  # below, e^x is 0, and -inf e^x would be NaN
        u = wide.clamp(max=5.0).exp()  # tanh(e^5) is 1
        # Near 1, the derivative 1 - tanh^2 would cancel; the derivative of 1 - 2/(1 + e^2u) does not.
        gate = torch.where(wide > 0, 1 - 2 * torch.sigmoid(-2 * u), torch.tanh(u))
        return (wide * gate).to(x.dtype)


class GoLU(nn.Module):
    """x exp(-exp(-x)), gated by the Gumbel distribution function (Das et al., 2025)."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(compute_dtype(x.dtype)).clamp(min=-7.0)  # exp(-e^7) is 0 in double precision
        gate = torch.exp(-torch.exp(-wide.clamp(max=100.0)))
        return (wide * gate).to(x.dtype)


class XIELU(nn.Module):
    """xIELU (Huang and Schlag, 2024): a_p x^2 + x/2 for x > 0, else a_n (e^x - 1 - x) + x/2, where a_p > 0
    and a_n > 1/2 are learned and start at 0.8.

    As in the authors' code, the parameters are ln(e^a_p - 1) and ln(e^(a_n - 1/2) - 1), the inverse softplus
    of a_p and of a_n - 1/2.
    """

    BETA = 0.5

    def __init__(
        self,
        alpha_p: float = 0.8,
        alpha_n: float = 0.8,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not alpha_p > 0:
            raise ValueError(f"alpha_p must be above 0, got {alpha_p}")
        if not alpha_n > self.BETA:
            raise ValueError(f"alpha_n must be above {self.BETA}, got {alpha_n}")
        self.starts = (alpha_p, alpha_n)
        self.alpha_p = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.alpha_n = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        alpha_p, alpha_n = self.starts
        nn.init.constant_(self.alpha_p, math.log(math.expm1(alpha_p)))
        nn.init.constant_(self.alpha_n, math.log(math.expm1(alpha_n - self.BETA)))

    def slopes(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the current a_p and a_n - 1/2."""
        return F.softplus(self.alpha_p.to(dtype)), F.softplus(self.alpha_n.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(compute_dtype(x.dtype))
        positive, negative = wide.clamp(min=0), wide.clamp(max=0)
        alpha_p, excess = self.slopes(wide.dtype)
        right = (alpha_p * positive + self.BETA) * positive
        left = (self.BETA + excess) * torch.expm1(negative) - excess * negative
        return (right + left).to(x.dtype)

    def extra_repr(self) -> str:
        alpha_p, excess = self.slopes(torch.float64)
        if not (is_readable(alpha_p) and is_readable(excess)):
            return "alpha_p=?, alpha_n=?"
        return f"alpha_p={alpha_p.item():.4g}, alpha_n={self.BETA + excess.item():.4g}"
