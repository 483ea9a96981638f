"""The operations in torch, with their stated partial derivatives: what serves wherever no other kernels do.

Autograd never differentiates *through* a formula (a ``where`` whose unused branch is infinite would give
NaN): each operation states its partials, which are operations again, so that double backward, forward mode,
vmap and their compositions follow from one table.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from iglu.formulas import FAMILIES, Family, Formula, Sigma, compute_dtype

Partial = tuple[str, str | None] | Formula


class Operation(NamedTuple):
    """A function of (x, sigma) and its partial derivative by each: another operation, and the input it is
    multiplied with; or a formula, which torch may differentiate.  Without partials (None, one guard of a
    compiled program instead of one an entry) torch differentiates the operation."""

    value: Formula
    partials: dict[str, Partial] | None
    textbook: Formula  # the same by definition, which torch may differentiate as often as it likes


def _operations(family: Family) -> dict[str, Operation]:
    def textbook_value(x: Tensor, sigma: Sigma) -> Tensor:
        return x * family.textbook_gate(x, sigma)

    def textbook_slope(x: Tensor, sigma: Sigma) -> Tensor:
        return family.textbook_gate(x, sigma) + x * sigma * family.density(x, sigma)

    def textbook_by_sigma(x: Tensor, sigma: Sigma) -> Tensor:
        return x * x * family.density(x, sigma)

    def itself(y: Tensor, sigma: Sigma) -> Tensor:
        return y

    value: dict[str, Partial] = {"x": ("slope", None), "sigma": ("by_sigma", None)}
    pair: dict[str, Partial] = {"x": ("slope", "up"), "up": ("value", None), "sigma": ("by_sigma", "up")}
    gate: dict[str, Partial] = {"x": ("density", "sigma"), "sigma": ("density", "x")}
    slope: dict[str, Partial] = {"x": ("curvature", "sigma"), "sigma": ("curvature", "x")}
    by_sigma: dict[str, Partial] = {"x": ("curvature", "x"), "sigma": ("by_sigma_twice", None)}
    operations = {
        "value": Operation(family.value, value, textbook_value),
        "glu": Operation(family.value, pair, textbook_value),  # and this times up
        "gate": Operation(family.gate, gate, family.textbook_gate),
        "slope": Operation(family.slope, slope, textbook_slope),
        "by_sigma": Operation(family.by_sigma, by_sigma, textbook_by_sigma),
        "density": Operation(family.density, None, family.density),
        "curvature": Operation(family.curvature, None, family.curvature),
        "by_sigma_twice": Operation(family.by_sigma_twice, None, family.by_sigma_twice),
    }
    if family.from_output is not None:  # the value, x being its output
        slope_of, by_sigma_of = family.from_output
        operations["output"] = Operation(itself, {"x": slope_of, "sigma": by_sigma_of}, itself)
    return operations


OPERATIONS = {approximate: _operations(family) for approximate, family in FAMILIES.items()}


def forward(
    operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The result, in the dtype of x: computed in at least float32 and rounded once.

    ``channel_dim`` None says that sigma broadcasts against x as it is."""
    formula = OPERATIONS[approximate][operation].value
    result = _evaluate(formula, operation, x, up, sigma, channel_dim)
    return result if out is None else out.copy_(result)


def textbook(
    operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None
) -> Tensor:
    """The same by the definitions, which torch may differentiate as often as it likes."""
    formula = OPERATIONS[approximate][operation].textbook
    return _evaluate(formula, operation, x, up, sigma, channel_dim)


def _evaluate(
    formula: Formula, operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, channel_dim: int | None
) -> Tensor:
    wide = compute_dtype(x.dtype)
    scale = widen(broadcast(sigma, x, channel_dim), wide)
    at, other = halves(operation, x, up)
    result = formula(at.to(wide), scale)
    return (result if other is None else result * other.to(wide)).to(x.dtype)


def halves(operation: str, x: Tensor, up: Tensor | None) -> tuple[Tensor, Any]:
    """Of "glu" gate and up, two tensors or one that holds both along its last dimension; else x alone."""
    if operation != "glu" or up is not None:
        return x, up
    gate, other = x.chunk(2, -1)
    return gate, other


def broadcast(sigma: Sigma, x: Tensor, channel_dim: int | None) -> Sigma:
    """A sigma of one value, or of one a channel, in the shape that broadcasts against x."""
    if not isinstance(sigma, Tensor) or channel_dim is None:
        return sigma
    if shape_of(sigma) in ((), (1,)):
        return sigma.reshape(())
    shape = [1] * x.dim()
    shape[channel_dim] = -1
    return sigma.reshape(shape)


def shape_of(x: Tensor) -> tuple[int, ...]:
    """The shape; in numbers also where torch.jit traces, to which sizes are tensors that it warns to read."""
    if not is_tracing():
        return tuple(x.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return tuple(map(int, x.shape))


def is_tracing() -> bool:
    return torch.jit.is_tracing()  # type: ignore[attr-defined, no-any-return, no-untyped-call]


def widen(value: Sigma, dtype: torch.dtype) -> Sigma:
    return value.to(dtype) if isinstance(value, Tensor) else value
