"""The formulas as differentiable operations: what serves wherever no native kernel does.

Autograd never differentiates *through* a formula (a ``where`` whose unused branch is infinite would give
NaN); each operation states its partial derivatives instead, and these are operations again, so that
double backward, forward mode, vmap and their compositions follow from one table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from iglu.formulas import FAMILIES, Family, Sigma, compute_dtype, is_exporting

Input = Sigma


class Operation(NamedTuple):
    """A pointwise function of its inputs and its partial derivative by each of them."""

    value: Callable[..., Tensor]
    partials: tuple[Callable[..., Tensor], ...]
    textbook: Callable[..., Tensor]


def _operations(approximate: str, family: Family) -> dict[str, Operation]:
    slope = functools.partial(call, f"slope:{approximate}")
    by_sigma = functools.partial(call, f"by_sigma:{approximate}")
    value = functools.partial(call, f"value:{approximate}")

    def gate_by_x(x: Tensor, sigma: Sigma) -> Tensor:
        return family.gate_density(x, sigma) * sigma

    def gate_by_sigma(x: Tensor, sigma: Sigma) -> Tensor:
        return family.gate_density(x, sigma) * x

    def slope_by_x(x: Tensor, sigma: Sigma) -> Tensor:
        return family.slope_density(x, sigma) * sigma

    def slope_by_sigma(x: Tensor, sigma: Sigma) -> Tensor:
        return family.slope_density(x, sigma) * x

    def pair(gate: Tensor, up: Tensor, sigma: Sigma) -> Tensor:
        return family.value(gate, sigma) * up

    def pair_by_gate(gate: Tensor, up: Tensor, sigma: Sigma) -> Tensor:
        return slope(gate, sigma) * up

    def pair_by_up(gate: Tensor, up: Tensor, sigma: Sigma) -> Tensor:
        return value(gate, sigma)

    def pair_by_sigma(gate: Tensor, up: Tensor, sigma: Sigma) -> Tensor:
        return by_sigma(gate, sigma) * up

    def textbook_value(x: Tensor, sigma: Sigma) -> Tensor:
        return x * family.textbook_gate(x, sigma)

    def textbook_pair(gate: Tensor, up: Tensor, sigma: Sigma) -> Tensor:
        return textbook_value(gate, sigma) * up

    def textbook_slope(x: Tensor, sigma: Sigma) -> Tensor:
        return family.textbook_gate(x, sigma) + x * sigma * family.gate_density(x, sigma)

    def textbook_by_sigma(x: Tensor, sigma: Sigma) -> Tensor:
        return x * x * family.gate_density(x, sigma)

    operations = {
        "value": Operation(family.value, (slope, by_sigma), textbook_value),
        "gate": Operation(family.gate, (gate_by_x, gate_by_sigma), family.textbook_gate),
        "glu": Operation(pair, (pair_by_gate, pair_by_up, pair_by_sigma), textbook_pair),
        "slope": Operation(family.slope, (slope_by_x, slope_by_sigma), textbook_slope),
        "by_sigma": Operation(family.by_sigma, (slope_by_sigma, family.by_sigma_twice), textbook_by_sigma),
    }
    return {f"{name}:{approximate}": operation for name, operation in operations.items()}


def call(name: str, *inputs: Input) -> Tensor:
    """The operation ``name`` (``"value:none"``, ``"glu:rational"``, ...) of its tensors and of sigma,
    which comes last, broadcasts against the first and may be a positive finite number."""
    if is_exporting():  # an exported program is made of aten operations only
        return _evaluate(OPERATIONS[name].value, inputs)
    if torch._C._are_functorch_transforms_active():
        if _forward_mode_is_nested():
            return _evaluate(OPERATIONS[name].textbook, inputs)
        return _Transformed.apply(name, *inputs)  # type: ignore[no-any-return, no-untyped-call]
    if forward_ad._current_level >= 0:
        return _Transformed.apply(name, *inputs)  # type: ignore[no-any-return, no-untyped-call]
    if torch.is_grad_enabled() and any(_requires_grad(value) for value in inputs):
        return _Recorded.apply(name, *inputs)  # type: ignore[no-any-return, no-untyped-call]
    return _evaluate(OPERATIONS[name].value, inputs)


def _forward_mode_is_nested() -> bool:
    """Whether torch.func.jvp runs inside torch.func.jvp, where torch (2.13) silently takes the
    derivative of every autograd.Function's tangent to be zero."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in levels) > 1


def _requires_grad(value: Input) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _widen(value: Input, dtype: torch.dtype) -> Input:
    return value.to(dtype) if isinstance(value, Tensor) else value


def _evaluate(formula: Callable[..., Tensor], inputs: tuple[Input, ...]) -> Tensor:
    first = inputs[0]
    assert isinstance(first, Tensor)
    wide = compute_dtype(first.dtype)
    return formula(*[_widen(each, wide) for each in inputs]).to(first.dtype)


def _remember(ctx: Any, name: str, inputs: tuple[Input, ...]) -> tuple[Tensor, ...]:
    """Keep the numbers on ctx; the tensors are returned, for the caller to save."""
    ctx.name = name
    ctx.numbers = [None if isinstance(each, Tensor) else each for each in inputs]
    return tuple(each for each in inputs if isinstance(each, Tensor))


def _recall(ctx: Any) -> list[Input]:
    tensors = iter(ctx.saved_tensors)
    return [next(tensors) if number is None else number for number in ctx.numbers]


def gradients(
    name: str, grad: Tensor, inputs: Sequence[Input], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradient of each input that needs one, in its shape and dtype, by differentiable operations."""
    wide = compute_dtype(grad.dtype)
    widened = [_widen(each, wide) for each in inputs]
    result: list[Tensor | None] = []
    for each, partial, is_needed in zip(inputs, OPERATIONS[name].partials, needed, strict=True):
        if isinstance(each, Tensor) and is_needed:
            contribution = grad.to(wide) * partial(*widened)
            result.append(contribution.sum_to_size(each.shape).to(each.dtype))
        else:
            result.append(None)
    return result


def along_channels(sigma: Tensor, dimensions: int, channel_dim: int) -> Tensor:
    """A sigma of one value, or of one a channel, in the shape that broadcasts against x."""
    if sigma.numel() == 1:
        return sigma.reshape(())
    shape = [1] * dimensions
    shape[channel_dim] = -1
    return sigma.reshape(shape)


def _push_forward(ctx: Any, tangents: tuple[Tensor | None, ...]) -> Tensor:
    inputs = _recall(ctx)
    first = inputs[0]
    assert isinstance(first, Tensor)
    wide = compute_dtype(first.dtype)
    widened = [_widen(each, wide) for each in inputs]
    result = torch.zeros_like(first, dtype=wide)
    for tangent, partial in zip(tangents, OPERATIONS[ctx.name].partials, strict=True):
        if tangent is not None:
            result = result + tangent.to(wide) * partial(*widened)
    return result.to(first.dtype)


class _Recorded(Function):
    """For eager recording and for Dynamo, which refuses a Function that defines ``jvp``.

    Forward takes ctx: a separate ``setup_context`` would make every eager call five times dearer.
    """

    @staticmethod
    def forward(ctx: Any, name: str, *inputs: Input) -> Tensor:
        ctx.save_for_backward(*_remember(ctx, name, inputs))
        return _evaluate(OPERATIONS[name].value, inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, *gradients(ctx.name, grad, _recall(ctx), ctx.needs_input_grad[1:])


class _Transformed(Function):
    """The same for ``torch.func`` and for dual numbers."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, *inputs: Input) -> Tensor:
        return _evaluate(OPERATIONS[name].value, inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        name, *values = inputs
        tensors = _remember(ctx, name, tuple(values))
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, *gradients(ctx.name, grad, _recall(ctx), ctx.needs_input_grad[1:])

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensor:
        return _push_forward(ctx, tangents)


class _KeepsOutput(Function):
    """The value, keeping its output for the backward pass instead of x, which it may overwrite."""

    @staticmethod
    def forward(ctx: Any, approximate: str, x: Tensor, sigma: Sigma, overwrite: bool) -> Tensor:
        y = _evaluate(FAMILIES[approximate].value, (x, sigma))
        if overwrite:
            y = x.copy_(y)
            ctx.mark_dirty(x)
        ctx.save_for_backward(y, *_remember(ctx, approximate, (sigma,)))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        y, *tensors = ctx.saved_tensors
        sigma = tensors[0] if tensors else ctx.numbers[0]
        by_x, by_sigma = gradients_from_output(ctx.name, grad, y, sigma, ctx.needs_input_grad[2])
        return None, by_x, by_sigma, None


def gradients_from_output(
    approximate: str, grad: Tensor, y: Tensor, sigma: Sigma, needs_sigma: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and of sigma from the output; torch itself may differentiate these formulas."""
    family = FAMILIES[approximate]
    assert family.slope_from_output is not None
    assert family.by_sigma_from_output is not None
    wide = compute_dtype(y.dtype)
    wide_y, scale, wide_grad = y.to(wide), _widen(sigma, wide), grad.to(wide)
    by_x = (wide_grad * family.slope_from_output(wide_y, scale)).to(y.dtype)
    if not needs_sigma or not isinstance(sigma, Tensor):
        return by_x, None
    by_sigma = wide_grad * family.by_sigma_from_output(wide_y, scale)
    return by_x, by_sigma.sum_to_size(sigma.shape).to(sigma.dtype)


def gradients_of_call(
    name: str, grad: Tensor, x: Tensor, up: Tensor | None, sigma: Sigma, channel_dim: int, needs_sigma: bool
) -> list[Tensor]:
    """The gradients of x, of up if there is one, and of sigma if needed, by differentiable operations: for a
    backward pass that is itself recorded, here and in ``iglu._entry``."""
    if name.startswith("output"):
        scale = along_channels(sigma, x.dim(), channel_dim) if isinstance(sigma, Tensor) else sigma
        by_x, by_sigma = gradients_from_output(name.partition(":")[2], grad, x, scale, needs_sigma)
        return [by_x] if by_sigma is None else [by_x, by_sigma.reshape(cast("Tensor", sigma).shape)]
    is_packed = name.startswith("glu") and up is None
    tensors = x.chunk(2, -1) if is_packed else (x,) if up is None else (x, up)
    scale = along_channels(sigma, x.dim(), channel_dim) if isinstance(sigma, Tensor) else sigma
    needed = [True] * len(tensors) + [needs_sigma]
    *grads, by_sigma = gradients(name, grad, (*tensors, scale), needed)
    result = [each for each in grads if each is not None]
    if is_packed:
        result = [torch.cat(result, -1)]
    if by_sigma is not None and isinstance(sigma, Tensor):
        result.append(by_sigma.reshape(sigma.shape))
    return result


def value_keeping_output(approximate: str, x: Tensor, sigma: Sigma, overwrite: bool) -> Tensor:
    """The value, recorded by its output and written over x if asked.

    Only in eager mode: the compiler decides by itself what to keep, and transforms need the input.  There
    the ordinary operation serves, and overwriting x is a copy."""
    is_eager = not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )
    if is_eager and torch.is_grad_enabled() and (x.requires_grad or _requires_grad(sigma)):
        return _KeepsOutput.apply(approximate, x, sigma, overwrite)  # type: ignore[no-any-return, no-untyped-call]
    return overwriting(approximate, x, sigma) if overwrite else call(f"value:{approximate}", x, sigma)


def overwriting(approximate: str, x: Tensor, sigma: Sigma) -> Tensor:
    """The value written over x; where a gradient will need x, of a copy of it."""
    recording = torch.is_grad_enabled() and (x.requires_grad or _requires_grad(sigma))
    return x.copy_(call(f"value:{approximate}", x.clone() if recording else x, sigma))


OPERATIONS: dict[str, Operation] = {}
for _approximate, _family in FAMILIES.items():
    OPERATIONS |= _operations(_approximate, _family)
