"""The operations in torch, with their stated partial derivatives: what serves wherever no other kernels do.

Autograd never differentiates *through* a formula (a ``where`` whose unused branch is infinite would give
NaN): each operation states its partials, which are operations again, so that double backward, forward mode,
vmap and their compositions follow from one table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from iglu.formulas import FAMILIES, Sigma, compute_dtype

PARTIALS: dict[str, dict[str, tuple[str, str | None]]] = {
    "value": {"x": ("slope", None), "sigma": ("by_sigma", None)},
    "gate": {"x": ("density", "sigma"), "sigma": ("density", "x")},
    "glu": {"x": ("slope", "up"), "up": ("value", None), "sigma": ("by_sigma", "up")},
    "slope": {"x": ("curvature", "sigma"), "sigma": ("curvature", "x")},
    "by_sigma": {"x": ("curvature", "x"), "sigma": ("by_sigma_twice", None)},
}
"""The derivative of an operation by each of its inputs: another operation of (x, sigma), and the input it is
multiplied with.  Those that are not in the table are differentiated by torch."""


def forward(
    operation: str,
    x: Tensor,
    up: Tensor | None,
    sigma: Sigma,
    approximate: str,
    channel_dim: int | None,
    out: Tensor | None = None,
) -> Tensor:
    """The result, in the dtype of x: computed in at least float32 and rounded once.

    ``channel_dim`` None says that sigma broadcasts against x as it is."""
    family, wide = FAMILIES[approximate], compute_dtype(x.dtype)
    scale = widen(broadcast(sigma, x, channel_dim), wide)
    if operation == "glu":
        gate, other = halves(x, up)
        result = family.value(gate.to(wide), scale) * other.to(wide)
    else:
        result = getattr(family, operation)(x.to(wide), scale)
    result = result.to(x.dtype)
    return result if out is None else out.copy_(result)


def textbook(
    operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None
) -> Tensor:
    """The same by the definitions, which torch may differentiate as often as it likes."""
    family, wide = FAMILIES[approximate], compute_dtype(x.dtype)
    scale = widen(broadcast(sigma, x, channel_dim), wide)
    at, other = halves(x, up) if operation == "glu" else (x, None)
    at = at.to(wide)
    gate = family.textbook_gate(at, scale)
    if operation in ("value", "glu"):
        result = at * gate
    elif operation == "slope":
        result = gate + at * scale * family.density(at, scale)
    elif operation == "by_sigma":
        result = at * at * family.density(at, scale)
    else:
        result = gate if operation == "gate" else getattr(family, operation)(at, scale)
    return (result if other is None else result * other.to(wide)).to(x.dtype)


def halves(x: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gate and up, of two tensors or of one that holds both along its last dimension."""
    if up is not None:
        return x, up
    gate, other = x.chunk(2, -1)
    return gate, other


def broadcast(sigma: Sigma, x: Tensor, channel_dim: int | None) -> Sigma:
    """A sigma of one value, or of one a channel, in the shape that broadcasts against x."""
    if not isinstance(sigma, Tensor) or channel_dim is None:
        return sigma
    if sigma.numel() == 1:
        return sigma.reshape(())
    shape = [1] * x.dim()
    shape[channel_dim] = -1
    return sigma.reshape(shape)


def widen(value: Sigma, dtype: torch.dtype) -> Sigma:
    return value.to(dtype) if isinstance(value, Tensor) else value
