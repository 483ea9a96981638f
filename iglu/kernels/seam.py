"""What all kernels called from Python have in common: when a call is recorded, what it keeps, and what
overwrites its input.

A set of kernels says which calls it serves and computes values and gradients; :func:`seam` makes of it the
three functions that the package calls, ``value``, ``gate`` and ``glu``, each of which answers None where
the call is not one for these kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import Function

from iglu.formulas import Sigma
from iglu.kernels.ordinary import is_dense, is_plain_eager
from iglu.kernels.plain import gradients_of_call


class Run(Protocol):
    """y of an operation, written into ``out`` if given; only a pair that is not packed has an ``up``."""

    def __call__(
        self,
        operation: str,
        approximate: str,
        x: Tensor,
        up: Tensor | None,
        sigma: Sigma,
        channel_dim: int,
        out: Tensor | None = None,
    ) -> Tensor: ...


class Kernels(NamedTuple):
    """A set of kernels."""

    serves: Callable[[Any, Any, str, int], bool]  # (x, sigma, approximate, channel_dim) of a value or a gate
    serves_pair: Callable[[Any, Any, Any, str, int], bool]  # (x, up, sigma, approximate, channel_dim)
    is_ordinary: Callable[[object], bool]  # a tensor of theirs, and nothing but memory
    run: Run
    # (operation, approximate, grad, x, up, sigma, channel_dim, needs_sigma) -> of x, of up, of sigma; the
    # operation "output" has the output of the rational value in the place of x
    gradients: Callable[..., list[Tensor]]


class Seam(NamedTuple):
    value: Callable[[Any, Any, str, int, bool, bool], Tensor | None]
    gate: Callable[[Any, Any, str, int], Tensor | None]
    glu: Callable[[Any, Any, Any, str, int], Tensor | None]


def seam(kernels: Kernels) -> Seam:
    """The three functions of these kernels."""
    record, record_output = _recorders(kernels)
    run = kernels.run

    def value(
        x: Any, sigma: Any, approximate: str, channel_dim: int, inplace: bool, save_output: bool
    ) -> Tensor | None:
        if not kernels.serves(x, sigma, approximate, channel_dim):
            return None
        if not (inplace or save_output):
            return (record if _records(x, sigma) else run)("value", approximate, x, None, sigma, channel_dim)
        keeps_output = approximate == "rational"
        if (save_output and not keeps_output) or (inplace and (x.is_inference() or not is_dense(x))):
            return None
        if _records(x, sigma):
            return record_output(approximate, x, sigma, channel_dim, inplace) if keeps_output else None
        y = run("value", approximate, x, None, sigma, channel_dim, x if inplace else None)
        if not inplace:
            return y
        torch.autograd.graph.increment_version(x)
        return x  # type: ignore[no-any-return]

    def gate(x: Any, sigma: Any, approximate: str, channel_dim: int) -> Tensor | None:
        if not kernels.serves(x, sigma, approximate, channel_dim):
            return None
        return (record if _records(x, sigma) else run)("gate", approximate, x, None, sigma, channel_dim)

    def glu(x: Any, up: Any, sigma: Any, approximate: str, channel_dim: int) -> Tensor | None:
        if not kernels.serves_pair(x, up, sigma, approximate, channel_dim):
            return None
        return (record if _records(x, up, sigma) else run)("glu", approximate, x, up, sigma, channel_dim)

    return Seam(value, gate, glu)


def _records(*values: object) -> bool:
    return torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in values)


def _recorders(kernels: Kernels) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def backward(
        ctx: Any, grad: Tensor, x: Tensor, up: Tensor | None, sigma: Sigma, needs_sigma: bool
    ) -> Any:
        """By the kernels; where the backward pass is itself recorded, by differentiable operations."""
        inputs = (grad, x, up, sigma, ctx.channel_dim, needs_sigma)
        if torch.is_grad_enabled() or not is_plain_eager() or not all(map(kernels.is_ordinary, (grad, x))):
            grads = gradients_of_call(f"{ctx.operation}:{ctx.approximate}", *inputs)
        else:
            grads = kernels.gradients(ctx.operation, ctx.approximate, *inputs)
        found = iter(grads)
        return next(found), None if up is None else next(found), next(found) if needs_sigma else None

    class Recorded(Function):
        """A call that keeps its inputs: x, up (or None), sigma."""

        @staticmethod
        def forward(
            ctx: Any,
            operation: str,
            approximate: str,
            x: Tensor,
            up: Tensor | None,
            sigma: Sigma,
            channel_dim: int,
        ) -> Tensor:
            ctx.save_for_backward(x, up, sigma if isinstance(sigma, Tensor) else None)
            ctx.number = None if isinstance(sigma, Tensor) else sigma
            ctx.operation, ctx.approximate, ctx.channel_dim = operation, approximate, channel_dim
            return kernels.run(operation, approximate, x, up, sigma, channel_dim)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, up, tensor_sigma = ctx.saved_tensors
            sigma = ctx.number if tensor_sigma is None else tensor_sigma
            needs_sigma = tensor_sigma is not None and ctx.needs_input_grad[4]
            return None, None, *backward(ctx, grad, x, up, sigma, needs_sigma), None

    class KeepsOutput(Function):
        """A value that keeps its output, and may write it over x."""

        @staticmethod
        def forward(
            ctx: Any, approximate: str, x: Tensor, sigma: Sigma, channel_dim: int, overwrite: bool
        ) -> Tensor:
            y = kernels.run("value", approximate, x, None, sigma, channel_dim, x if overwrite else None)
            if overwrite:
                ctx.mark_dirty(x)
                y = x
            ctx.save_for_backward(y, sigma if isinstance(sigma, Tensor) else None)
            ctx.number = None if isinstance(sigma, Tensor) else sigma
            ctx.operation, ctx.approximate, ctx.channel_dim = "output", approximate, channel_dim
            return y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            y, tensor_sigma = ctx.saved_tensors
            sigma = ctx.number if tensor_sigma is None else tensor_sigma
            needs_sigma = tensor_sigma is not None and ctx.needs_input_grad[2]
            by_x, _, by_sigma = backward(ctx, grad, y, None, sigma, needs_sigma)
            return None, by_x, by_sigma, None, None

    # Past the Python half of Function.apply, which looks for transforms that the kernels do not serve.
    return super(Function, Recorded).apply, super(Function, KeepsOutput).apply
