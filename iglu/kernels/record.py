"""The one recorder: what a call keeps for its backward pass, and how it is differentiated, however often.

Every set of kernels is a :class:`Kernels` under its name in ``KERNELS``.  A node of the graph remembers the
name, so that the backward pass uses what its forward pass used; it asks again whether they serve, since
saved tensors may come back changed (by hooks).  Where they do not, and where the backward pass is itself
recorded or compiled, the differentiable operations of :mod:`iglu.kernels.plain` serve.

What is kept is the same whichever kernels serve: x, up and sigma as they were given; or the output and sigma.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function
from torch.compiler import is_dynamo_compiling

from iglu.formulas import Sigma, compute_dtype, is_exporting
from iglu.kernels import plain

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class Kernels(NamedTuple):
    """A set of kernels; each function answers None where a call is not one for them.

    ``forward(operation, x, up, sigma, approximate, channel_dim, out=None)`` is the result of the operation
    "value", "gate" or "glu" (whose ``up`` is None where x holds both halves), recorded where torch records;
    with ``out``, which is x, it is written over x and never recorded.

    ``backward(operation, grad, x, up, sigma, approximate, channel_dim, needs_sigma)`` gives the gradients of
    x, of up (None without one) and of sigma (None unless needed).  For the operation "output", x is the
    output of the rational value, which tells its input, since it is strictly increasing.

    ``twice(operation, by_x, by_up, grad, x, up, sigma, approximate, channel_dim, needs_sigma)`` is given what
    flows back to the first two results of ``backward`` and gives the gradients of grad, x, up and sigma, of
    "value" and "glu".
    """

    forward: Callable[..., Tensor | None]
    backward: Callable[..., Gradients | None]
    twice: Callable[..., tuple[Tensor | None, ...] | None]


KERNELS: dict[str, Kernels] = {}

Call = tuple[str, str, float | None, str, int | None, Tensor | None]
"""What a call consists of beside its inputs: the name of the kernels, the operation, sigma if it is a number,
approximate, channel_dim, and the result if kernels have made it.  One argument, since each costs a Function
.06 us."""


def call(
    operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None
) -> Tensor:
    """An operation by the formulas in torch, differentiable in every way that torch knows."""
    inputs = (operation, x, up, sigma, approximate, channel_dim)
    is_last = plain.OPERATIONS[approximate][operation].partials is None
    if is_last or is_exporting() or plain.is_tracing():
        return plain.forward(*inputs)  # a program that is kept is made of torch's operations alone
    if torch._C._are_functorch_transforms_active():
        if _forward_mode_is_nested():
            return plain.textbook(*inputs)
        return _Transformed.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]
    if forward_ad._current_level >= 0:
        return _Transformed.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]
    if is_recorded(x, up, sigma):
        number, scale = (None, sigma) if isinstance(sigma, Tensor) else (sigma, None)
        description = ("plain", operation, number, approximate, channel_dim, None)
        return Iglu.apply(description, x, up, scale)  # type: ignore[no-any-return, no-untyped-call]
    return plain.forward(*inputs)


def is_eager() -> bool:
    """Whether torch neither compiles, traces nor transforms."""
    return not (
        torch.compiler.is_compiling()
        or plain.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _forward_mode_is_nested() -> bool:
    """Whether torch.func.jvp runs inside torch.func.jvp, where torch (2.13) silently takes the
    derivative of every autograd.Function's tangent to be zero."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in levels) > 1


def is_recorded(*inputs: object) -> bool:
    return torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in inputs)


# -- gradients -------------------------------------------------------------------------------------


def _is_for_kernels() -> bool:
    """Whether a backward pass may be offered to kernels: one that is neither recorded nor compiled."""
    return not torch.is_grad_enabled() and not is_dynamo_compiling()


def differentiable_twice(
    operation: str, by_x: Tensor | None, by_up: Tensor | None, by_sigma: Any, grad: Tensor,
    x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None, needs_sigma: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """As Kernels.twice, which knows of no by_sigma, by the operations in torch: the gradients of
    grad (by_x up f' + by_up f + by_sigma up f_sigma)."""
    partials = _Partials(operation, x, up, sigma, approximate, channel_dim)
    other, wide = partials.inputs["up"], partials.inputs["x"].dtype
    if by_x is not None and up is None:
        by_x, by_up = plain.halves(operation, by_x, None)
    if by_sigma is not None:
        by_sigma = plain.broadcast(by_sigma, x, channel_dim)
    of_grad = of_x = of_up = of_sigma = torch.zeros_like(partials.inputs["x"])
    for by, first in ((by_x, "slope"), (by_up, "value"), (by_sigma, "by_sigma")):
        if by is None:
            continue
        by = by.to(wide)
        through, value = by, partials.call(first)
        if other is not None and first != "value":
            through = by * other
            of_up = of_up + by * value
        of_grad = of_grad + through * value
        of_x = of_x + partials.times(through, "x", first)
        if needs_sigma:
            of_sigma = of_sigma + partials.times(through, "sigma", first)
    g = grad.to(wide)
    at_x, at_up = (g * of_x).to(x.dtype), None if other is None else (g * of_up).to(x.dtype)
    if at_up is not None and up is None:
        at_x, at_up = torch.cat([at_x, at_up], -1), None
    return of_grad.to(grad.dtype), at_x, at_up, partials.like_sigma(g * of_sigma) if needs_sigma else None


def differentiable_gradients(
    operation: str, grad: Tensor, x: Tensor, up: Tensor | None, sigma: Sigma,
    approximate: str, channel_dim: int | None, needs: Sequence[bool],
) -> Gradients:  # fmt: skip
    """The gradients by the table of partials, which torch can differentiate again."""
    partials = _Partials(operation, x, up, sigma, approximate, channel_dim)
    by_x = partials.times(grad, "x").to(x.dtype) if needs[0] else None
    needs_up = operation == "glu" and needs[0 if up is None else 1]
    by_up = partials.times(grad, "up").to(x.dtype) if needs_up else None
    if up is None and by_x is not None and by_up is not None:
        by_x, by_up = torch.cat([by_x, by_up], -1), None
    return by_x, by_up, partials.like_sigma(partials.times(grad, "sigma")) if needs[2] else None


class _Partials:
    """An operation's partial derivatives at its inputs, which are widened and, but for up, broadcast."""

    def __init__(
        self, operation: str, x: Tensor, up: Any, sigma: Any, approximate: str, channel_dim: int | None
    ) -> None:
        self.operation, self.approximate, self.sigma = operation, approximate, sigma
        wide = compute_dtype(x.dtype)
        at, other = plain.halves(operation, x, up)
        scale = plain.widen(plain.broadcast(sigma, x, channel_dim), wide)
        self.inputs: dict[str, Any] = {"x": at.to(wide), "up": plain.widen(other, wide), "sigma": scale}

    def call(self, operation: str) -> Tensor:
        return call(operation, self.inputs["x"], None, self.inputs["sigma"], self.approximate, None)

    def times(self, factor: Tensor, name: str, operation: str | None = None) -> Tensor:
        """The derivative by the input of this name, times a gradient or a tangent; or another operation's."""
        x, sigma = self.inputs["x"], self.inputs["sigma"]
        partials = plain.OPERATIONS[self.approximate][operation or self.operation].partials or {}
        partial = partials[name]
        if callable(partial):
            return factor.to(x.dtype) * partial(x, sigma)
        derivative, multiplied_with = partial
        result = factor.to(x.dtype) * self.call(derivative)
        return result if multiplied_with is None else result * self.inputs[multiplied_with]

    def like_sigma(self, each: Tensor) -> Tensor:
        """The gradient of sigma, given what each element adds to it."""
        total = each.sum_to_size(self.inputs["sigma"].shape)
        return total.reshape(self.sigma.shape).to(self.sigma.dtype)


# -- the three ways to be recorded -----------------------------------------------------------------


class Iglu(Function):
    """Keeps its inputs.

    Forward takes ctx: a separate ``setup_context`` would make every eager call five times dearer, and Dynamo
    refuses a Function that defines ``jvp``.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Call, x: Tensor, up: Tensor | None, sigma: Tensor | None, grad: Tensor | None = None
    ) -> Any:
        """The result of the operation; or, given a gradient of that, the gradients of x, up and sigma."""
        ctx.save_for_backward(x, up, sigma, grad)
        kernels, operation, number, approximate, channel_dim, y = call
        ctx.call = call[:5]
        if y is not None:
            return y
        scale: Any = number if sigma is None else sigma
        if grad is None:
            return plain.forward(operation, x, up, scale, approximate, channel_dim)
        ctx.set_materialize_grads(False)
        needs_sigma = sigma is not None and ctx.needs_input_grad[3]
        backward = KERNELS[kernels].backward
        found = backward(operation, grad, x, up, scale, approximate, channel_dim, needs_sigma)
        if found is None:
            needs = (True, True, needs_sigma)
            found = differentiable_gradients(operation, grad, x, up, scale, approximate, channel_dim, needs)
        return found

    @staticmethod
    def backward(ctx: Any, *through: Tensor | None) -> Any:
        # Written out: a function in between and arguments handed on by * would take half a microsecond more,
        # where that of 10,000 elements takes six.
        x, up, sigma, grad = ctx.saved_tensors
        kernels, operation, number, approximate, channel_dim = ctx.call
        scale = number if sigma is None else sigma
        needs = ctx.needs_input_grad  # of call, x, up and sigma
        found: Any = None
        if grad is not None:
            by_x, by_up, by_sigma = through
            if by_sigma is None and _is_for_kernels():
                twice = KERNELS[kernels].twice
                found = twice(operation, by_x, by_up, grad, x, up, scale, approximate, channel_dim, needs[3])
            if found is None:
                found = differentiable_twice(
                    operation, by_x, by_up, by_sigma, grad, x, up, scale, approximate, channel_dim, needs[3]
                )
            by_grad, at_x, at_up, at_sigma = found
            return None, at_x, at_up, at_sigma, by_grad
        g: Any = through[0]
        if _is_for_kernels():
            backward = KERNELS[kernels].backward
            found = backward(operation, g, x, up, scale, approximate, channel_dim, needs[3])
        elif kernels != "plain" and operation in ("value", "glu") and not is_dynamo_compiling():
            found = Iglu.apply((*ctx.call, None), x, up, sigma, g)  # type: ignore[no-untyped-call]
        if found is None:
            found = differentiable_gradients(operation, g, x, up, scale, approximate, channel_dim, needs[1:4])
        by_x, by_up, by_sigma = found
        return None, by_x, by_up, by_sigma


class IgluFromOutput(Function):
    """The rational value, keeping its output instead of x, which it may overwrite."""

    @staticmethod
    def forward(
        ctx: Any, kernels: str, x: Tensor, sigma: Sigma, channel_dim: int, overwrites: bool
    ) -> Tensor:
        inputs = ("value", x, None, sigma, "rational", channel_dim, x if overwrites else None)
        y = KERNELS[kernels].forward(*inputs)
        y = plain.forward(*inputs) if y is None else y
        if overwrites:
            ctx.mark_dirty(x)
        number = sigma if isinstance(sigma, (float, int)) else None
        ctx.save_for_backward(y, None if number is not None else sigma)
        ctx.call = (kernels, number, channel_dim)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        y, sigma = ctx.saved_tensors
        kernels, number, channel_dim = ctx.call
        sigma = sigma if number is None else number
        call = ("output", grad, y, None, sigma, "rational", channel_dim)
        needs_sigma = ctx.needs_input_grad[2]
        found = KERNELS[kernels].backward(*call, needs_sigma) if _is_for_kernels() else None
        if found is None:
            found = differentiable_gradients(*call, (True, False, needs_sigma))
        by_x, _, by_sigma = found
        return None, by_x, by_sigma, None, None


class _Transformed(Function):
    """For ``torch.func`` and for dual numbers; by the formulas."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None
    ) -> Tensor:
        return plain.forward(operation, x, up, sigma, approximate, channel_dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        operation, x, up, sigma, approximate, channel_dim = inputs
        is_tensor = isinstance(sigma, Tensor)
        ctx.save_for_backward(x, up, sigma if is_tensor else None)
        ctx.save_for_forward(x, up, sigma if is_tensor else None)
        ctx.call = (operation, None if is_tensor else sigma, approximate, channel_dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, up, tensor_sigma = ctx.saved_tensors
        operation, number, approximate, channel_dim = ctx.call
        sigma = number if tensor_sigma is None else tensor_sigma
        needs = ctx.needs_input_grad[1:4]
        grads = differentiable_gradients(operation, grad, x, up, sigma, approximate, channel_dim, needs)
        return None, *grads, None, None

    @staticmethod
    def jvp(
        ctx: Any, _: None, by_x: Tensor | None, by_up: Tensor | None, by_sigma: Tensor | None, *__: None
    ) -> Tensor:
        x, up, tensor_sigma = ctx.saved_tensors
        operation, number, approximate, channel_dim = ctx.call
        sigma = number if tensor_sigma is None else tensor_sigma
        if up is None and by_x is not None:
            by_x, by_up = plain.halves(operation, by_x, None)
        tangents: dict[str, Any] = {"x": by_x, "up": by_up, "sigma": by_sigma}
        if by_sigma is not None:
            tangents["sigma"] = plain.broadcast(by_sigma, x, channel_dim)
        partials = _Partials(operation, x, up, sigma, approximate, channel_dim)
        result = torch.zeros_like(partials.inputs["x"])
        for name, tangent in tangents.items():
            if tangent is not None:
                result = result + partials.times(tangent, name)
        return result.to(x.dtype)


# Past the Python halves of Function: that of apply, which looks for transforms that the kernels do not serve,
# and that of the node, which looks up what its backward is; a torch that calls it otherwise is left to do so.
for _each in (Iglu, IgluFromOutput):
    if hasattr(_each, "_backward_cls"):
        _each._backward_cls.apply = _each.backward  # type: ignore[attr-defined]
keep_inputs: Callable[..., Tensor] = super(Function, Iglu).apply
_keep_output: Callable[..., Tensor] = super(Function, IgluFromOutput).apply


# -- keeping the output, and in place --------------------------------------------------------------

# Below this an output of float16 has no more digits, and the slope that would be read from it is wrong.
_SMALLEST_FLOOR = 2.0**-14


def output_tells_slope(x: Tensor, sigma: Sigma) -> bool:
    """Whether the output of the rational value tells its slope.  In float16 not where the floor, 1/(2 sigma),
    is below the normal numbers; a tensor's values are not looked at."""
    if x.dtype != torch.float16:
        return True
    return not isinstance(sigma, Tensor) and 1 / (2 * sigma) >= _SMALLEST_FLOOR


def keep_output(kernels: str, x: Tensor, sigma: Sigma, channel_dim: int, overwrites: bool) -> Tensor:
    """The rational value, recorded by its output and written over x if asked."""
    if overwrites:
        _refuse_before_writing(x)
    return _keep_output(kernels, x, sigma, channel_dim, overwrites)


def _refuse_before_writing(x: Tensor) -> None:
    """Raise where autograd or the memory of x forbid to overwrite it.  A Function would be refused only after
    its forward had written; torch's own operations ask first, so one that changes nothing is tried."""
    if (x.is_leaf and x.requires_grad) or x._is_view():
        zero: float | Tensor = 0 if x.requires_grad else torch.zeros((), dtype=x.dtype, requires_grad=True)
        x.sub_(zero)


def overwrite(kernels: str, x: Tensor, sigma: Sigma, approximate: str, channel_dim: int) -> Tensor | None:
    """The value written over x, where nothing is recorded; None where these kernels do not serve."""
    result = (
        None
        if kernels == "plain"
        else KERNELS[kernels].forward("value", x, None, sigma, approximate, channel_dim, x)
    )
    if result is not None and not x.is_inference():
        torch.autograd.graph.increment_version(x)
    return result


# Of these only the forward pass is a function of its own: the derivatives are above.
KERNELS["plain"] = Kernels(plain.forward, lambda *_: None, lambda *_: None)
