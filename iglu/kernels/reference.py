"""The fallback backend: the formulas as differentiable torch operations.

Autograd never differentiates *through* a formula (a ``where`` whose unused branch is infinite would give
NaN).  Each operation names its partial derivatives, which are operations too, so that double backward,
forward mode, vmap and their compositions follow from one table.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from iglu.formulas import FAMILIES, Family, Formula, Sigma, compute_dtype

Partial = tuple[str, str | None] | Formula


class Operation(NamedTuple):
    """A function of (x, sigma) and its partial derivatives: another operation and the input it is multiplied
    by, or a formula that torch may differentiate.  Without partials torch differentiates the operation; None
    gives one guard in a compiled program, an empty dict would give one per entry."""

    value: Formula
    partials: dict[str, Partial] | None
    textbook: Formula  # by definition, differentiable any number of times


def _operations(family: Family) -> dict[str, Operation]:
    def textbook_value(x: Tensor, sigma: Sigma) -> Tensor:
        return x * family.textbook_gate(x, sigma)

    def textbook_df_dx(x: Tensor, sigma: Sigma) -> Tensor:
        return family.textbook_gate(x, sigma) + x * sigma * family.density(x, sigma)

    def textbook_df_dsigma(x: Tensor, sigma: Sigma) -> Tensor:
        return x * x * family.density(x, sigma)

    def itself(y: Tensor, sigma: Sigma) -> Tensor:
        return y

    value: dict[str, Partial] = {"x": ("df_dx", None), "sigma": ("df_dsigma", None)}
    pair: dict[str, Partial] = {"x": ("df_dx", "up"), "up": ("value", None), "sigma": ("df_dsigma", "up")}
    gate: dict[str, Partial] = {"x": ("density", "sigma"), "sigma": ("density", "x")}
    df_dx: dict[str, Partial] = {"x": ("d2f_dx2", "sigma"), "sigma": ("d2f_dx2", "x")}
    df_dsigma: dict[str, Partial] = {"x": ("d2f_dx2", "x"), "sigma": ("d2f_dsigma2", None)}
    operations = {
        "value": Operation(family.value, value, textbook_value),
        "glu": Operation(family.value, pair, textbook_value),  # multiplied by up
        "gate": Operation(family.gate, gate, family.textbook_gate),
        "df_dx": Operation(family.df_dx, df_dx, textbook_df_dx),
        "df_dsigma": Operation(family.df_dsigma, df_dsigma, textbook_df_dsigma),
        "density": Operation(family.density, None, family.density),
        "d2f_dx2": Operation(family.d2f_dx2, None, family.d2f_dx2),
        "d2f_dsigma2": Operation(family.d2f_dsigma2, None, family.d2f_dsigma2),
    }
    if (of := family.from_output) is not None:  # the value and its derivatives, given the output, not x
        for name, formula, partials in (
            ("output", itself, (("output_df_dx", None), ("output_df_dsigma", None))),
            ("output_df_dx", of.df_dx, of.df_dx_partials),
            ("output_df_dsigma", of.df_dsigma, of.df_dsigma_partials),
        ):
            of_x, of_sigma = partials
            operations[name] = Operation(formula, {"x": of_x, "sigma": of_sigma}, formula)
    return operations


OPERATIONS = {approximate: _operations(family) for approximate, family in FAMILIES.items()}


def forward(
    operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None,
    out: Tensor | None = None, *, is_textbook: bool = False,
) -> Tensor:  # fmt: skip
    """The result, in the dtype of x: computed in at least float32 and rounded once.

    ``channel_dim=None``: sigma broadcasts against x as it is.  ``is_textbook``: use the definition, which
    is differentiable any number of times."""
    formulas = OPERATIONS[approximate][operation]
    wide = compute_dtype(x.dtype)
    scale = widen(broadcast(sigma, x, channel_dim), wide)
    at, other = halves(operation, x, up)
    result = (formulas.textbook if is_textbook else formulas.value)(at.to(wide), scale)
    result = (result if other is None else result * other.to(wide)).to(x.dtype)
    return result if out is None else out.copy_(result)


def halves(operation: str, x: Tensor, up: Tensor | None) -> tuple[Tensor, Any]:
    """For "glu", gate and up, from two tensors or from one that holds both along its last dimension."""
    if operation != "glu" or up is not None:
        return x, up
    gate, other = x.chunk(2, -1)
    return gate, other


def broadcast(sigma: Sigma, x: Tensor, channel_dim: int | None) -> Sigma:
    """Reshape a sigma with one value, or with one per channel, so that it broadcasts against x."""
    if not isinstance(sigma, Tensor) or channel_dim is None:
        return sigma
    if shape_of(sigma) in ((), (1,)):
        return sigma.reshape(())
    shape = [1] * x.dim()
    shape[channel_dim] = -1
    return sigma.reshape(shape)


def shape_of(x: Tensor) -> tuple[int, ...]:
    """The shape as numbers, also under torch.jit.trace, where sizes are tensors and reading them warns."""
    if not is_tracing():
        return tuple(x.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return tuple(map(int, x.shape))


def is_readable(x: Tensor) -> bool:
    """Whether all values of x can be read in this process: not those of a meta or fake tensor, of a sharded
    one (a DTensor, or a parameter of which this process has no part), or under vmap."""
    is_ordinary = type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta and x.numel() > 0
    return is_ordinary and not torch._C._functorch.is_batchedtensor(x)


def is_tracing() -> bool:
    return torch.jit.is_tracing()  # type: ignore[attr-defined, no-any-return, no-untyped-call]


def widen(value: Sigma, dtype: torch.dtype) -> Sigma:
    return value.to(dtype) if isinstance(value, Tensor) else value
