"""The autograd.Functions: what a call saves for its backward pass, and how it is differentiated.

Every backend is a :class:`Kernels` under its name in ``KERNELS``.  A node of the graph stores the name, so
that the backward pass uses the backend of its forward pass.  Support is checked again, since hooks may have
changed the saved tensors.  Where the backend does not support them, and where the backward pass is itself
recorded or compiled, the differentiable operations of :mod:`iglu.kernels.reference` are used.

All backends save the same tensors: x, up and sigma as given; or the output and sigma.
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
from iglu.kernels import reference

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class Kernels(NamedTuple):
    """The functions of a backend.  They take tensors and return tensors; None asks the caller to fall back.

    ``forward(operation, x, up, sigma, approximate, channel_dim, out=None)`` returns the result of "value",
    "gate" or "glu" (where ``up`` is None, x holds both halves) and records it for autograd if needed.
    If ``out`` is given it must be x: the result overwrites x and is not recorded.

    ``backward(operation, grad, x, up, sigma, approximate, channel_dim, needs_sigma)`` returns the gradients
    of x, of up (None without one) and of sigma (None unless needed).  For the operation "output", x is the
    output of the rational value, which determines its input, since it is strictly increasing.

    ``double_backward(operation, gg_x, gg_up, grad, x, up, sigma, approximate, channel_dim, needs_sigma)``
    takes the gradients of the first two results of ``backward`` and returns those of grad, x, up and sigma,
    for "value" and "glu".
    """

    forward: Callable[..., Tensor | None]
    backward: Callable[..., Gradients | None]
    double_backward: Callable[..., tuple[Tensor | None, ...] | None]


KERNELS: dict[str, Kernels] = {}

Call = tuple[str, str, float | None, str, int | None, Tensor | None]
"""A call without its tensor inputs: the backend, the operation, sigma if it is a number, approximate,
channel_dim, and the result if the backend has computed it.  It is one argument, since each argument of a
Function costs 0.06 us."""


def call(
    operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None
) -> Tensor:
    """Run an operation by the reference formulas, differentiable in every way that torch supports."""
    inputs = (operation, x, up, sigma, approximate, channel_dim)
    is_last = reference.OPERATIONS[approximate][operation].partials is None
    if is_last or is_exporting() or reference.is_tracing():
        return reference.forward(*inputs)  # an exported program may contain only torch's operations
    is_transformed = torch._C._are_functorch_transforms_active()
    if is_transformed and _forward_mode_is_nested():
        return reference.forward(*inputs, is_textbook=True)
    if is_transformed or forward_ad._current_level >= 0:
        return _Transformed.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]
    if is_recorded(x, up, sigma):
        number, tensor = split(sigma)
        description = ("reference", operation, number, approximate, channel_dim, None)
        return Iglu.apply(description, x, up, tensor)  # type: ignore[no-any-return, no-untyped-call]
    return reference.forward(*inputs)


def split(sigma: Sigma) -> tuple[float | None, Tensor | None]:
    """Return sigma as a number and as a tensor; one of them is None."""
    return (None, sigma) if isinstance(sigma, Tensor) else (sigma, None)


def is_eager() -> bool:
    """Whether torch is not compiling, tracing or transforming."""
    return not (
        torch.compiler.is_compiling()
        or reference.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def not_ordinary_reason(x: object) -> str:
    """Why x is not a dense tensor in plain eager mode, which is all that kernels support; empty if it is."""
    if torch.compiler.is_compiling():
        return "torch.compile fuses the reference formulas with the operations around them"
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack() or not is_eager():
        return "a mode or transform of torch is active"
    if not isinstance(x, Tensor):
        return f"expected a Tensor, got {type(x).__name__}"
    if type(x) not in (Tensor, torch.nn.Parameter) or x.layout != torch.strided or x.is_neg():
        return f"expected a dense strided Tensor, got {type(x).__name__} with layout {x.layout}"
    return ""


def _forward_mode_is_nested() -> bool:
    """Whether torch.func.jvp runs inside torch.func.jvp, where torch (2.13) silently treats the tangent of
    every autograd.Function as constant."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in levels) > 1


def is_recorded(*inputs: object) -> bool:
    return torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in inputs)


# -- gradients -------------------------------------------------------------------------------------


def _is_for_kernels() -> bool:
    """Whether kernels may run a backward pass: it must be neither recorded nor compiled."""
    return not torch.is_grad_enabled() and not is_dynamo_compiling()


def differentiable_double_backward(
    operation: str, gg_x: Tensor | None, gg_up: Tensor | None, gg_sigma: Any, grad: Tensor,
    x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None, needs_sigma: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """``Kernels.double_backward`` by the reference formulas, given also gg_sigma, the gradient of sigma's
    gradient: the gradients of grad (gg_x up f' + gg_up f + gg_sigma up df/dsigma)."""
    partials = _Partials(operation, x, up, sigma, approximate, channel_dim)
    other, wide = partials.inputs["up"], partials.inputs["x"].dtype
    if gg_x is not None and up is None:
        gg_x, gg_up = reference.halves(operation, gg_x, None)
    if gg_sigma is not None:
        gg_sigma = reference.broadcast(gg_sigma, x, channel_dim)
    of_grad = of_x = of_up = of_sigma = torch.zeros_like(partials.inputs["x"])
    for gg, first in ((gg_x, "df_dx"), (gg_up, "value"), (gg_sigma, "df_dsigma")):
        if gg is None:
            continue
        gg = gg.to(wide)
        through, value = gg, partials.call(first)
        if other is not None and first != "value":
            through = gg * other
            of_up = of_up + gg * value
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
    """The gradients from the table of partials, which torch can differentiate again."""
    partials = _Partials(operation, x, up, sigma, approximate, channel_dim)
    grad_x = partials.times(grad, "x").to(x.dtype) if needs[0] else None
    needs_up = operation == "glu" and needs[0 if up is None else 1]
    grad_up = partials.times(grad, "up").to(x.dtype) if needs_up else None
    if up is None and grad_x is not None and grad_up is not None:
        grad_x, grad_up = torch.cat([grad_x, grad_up], -1), None
    return grad_x, grad_up, partials.like_sigma(partials.times(grad, "sigma")) if needs[2] else None


class _Partials:
    """An operation's partial derivatives at its inputs, in the dtype of the computation, sigma broadcast."""

    def __init__(
        self, operation: str, x: Tensor, up: Any, sigma: Any, approximate: str, channel_dim: int | None
    ) -> None:
        self.operation, self.approximate, self.sigma = operation, approximate, sigma
        wide = compute_dtype(x.dtype)
        at, other = reference.halves(operation, x, up)
        scale = reference.widen(reference.broadcast(sigma, x, channel_dim), wide)
        self.inputs: dict[str, Any] = {"x": at.to(wide), "up": reference.widen(other, wide), "sigma": scale}

    def call(self, operation: str) -> Tensor:
        return call(operation, self.inputs["x"], None, self.inputs["sigma"], self.approximate, None)

    def times(self, factor: Tensor, name: str, operation: str | None = None) -> Tensor:
        """``factor`` times the derivative of this operation, or of another, by the input ``name``."""
        x, sigma = self.inputs["x"], self.inputs["sigma"]
        partials = reference.OPERATIONS[self.approximate][operation or self.operation].partials or {}
        partial = partials[name]
        if callable(partial):
            return factor.to(x.dtype) * partial(x, sigma)
        derivative, multiplied_with = partial
        result = factor.to(x.dtype) * self.call(derivative)
        return result if multiplied_with is None else result * self.inputs[multiplied_with]

    def like_sigma(self, each: Tensor) -> Tensor:
        """The gradient of sigma, given the contribution of each element."""
        total = each.sum_to_size(self.inputs["sigma"].shape)
        return total.reshape(self.sigma.shape).to(self.sigma.dtype)


# -- the autograd.Functions -------------------------------------------------------------------


class Iglu(Function):
    """Saves its inputs; for the operation "output", y in place of x, which may have been overwritten.

    ``forward`` takes ctx: a separate ``setup_context`` would make every eager call five times slower, and
    Dynamo rejects a Function that defines ``jvp``.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Call, x: Tensor, up: Tensor | None, sigma: Tensor | None, grad: Tensor | None = None
    ) -> Any:
        """The result of the operation; or, given its gradient, the gradients of x, up and sigma."""
        kernels, operation, number, approximate, channel_dim, y = call
        ctx.save_for_backward(y if operation == "output" else x, up, sigma, grad)
        ctx.call = call[:5]
        if y is not None:
            if y is x:
                ctx.mark_dirty(x)
            return y
        scale: Any = number if sigma is None else sigma
        if grad is None:
            return reference.forward(operation, x, up, scale, approximate, channel_dim)
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
        # Inlined: a helper function and arguments unpacked by * would add 0.5 us to the 6 us that the
        # backward pass of 10,000 elements takes.
        x, up, sigma, grad = ctx.saved_tensors
        kernels, operation, number, approximate, channel_dim = ctx.call
        scale = number if sigma is None else sigma
        needs = ctx.needs_input_grad  # of call, x, up and sigma
        found: Any = None
        if grad is not None:
            gg_x, gg_up, gg_sigma = through
            if gg_sigma is None and _is_for_kernels():
                found = KERNELS[kernels].double_backward(
                    operation, gg_x, gg_up, grad, x, up, scale, approximate, channel_dim, needs[3]
                )
            if found is None:
                found = differentiable_double_backward(
                    operation, gg_x, gg_up, gg_sigma, grad, x, up, scale, approximate, channel_dim, needs[3]
                )
            of_grad, of_x, of_up, of_sigma = found
            return None, of_x, of_up, of_sigma, of_grad
        g: Any = through[0]
        if _is_for_kernels():
            backward = KERNELS[kernels].backward
            found = backward(operation, g, x, up, scale, approximate, channel_dim, needs[3])
        elif kernels != "reference" and operation in ("value", "glu") and not is_dynamo_compiling():
            found = Iglu.apply((*ctx.call, None), x, up, sigma, g)  # type: ignore[no-untyped-call]
        if found is None:
            found = differentiable_gradients(operation, g, x, up, scale, approximate, channel_dim, needs[1:4])
        grad_x, grad_up, grad_sigma = found
        return None, grad_x, grad_up, grad_sigma


class _Transformed(Function):
    """For the transforms of ``torch.func`` and for forward mode, by the reference formulas."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int | None
    ) -> Tensor:
        return reference.forward(operation, x, up, sigma, approximate, channel_dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        operation, x, up, sigma, approximate, channel_dim = inputs
        number, tensor = split(sigma)
        ctx.save_for_backward(x, up, tensor)
        ctx.save_for_forward(x, up, tensor)
        ctx.call = (operation, number, approximate, channel_dim)

    @staticmethod
    def _saved(ctx: Any) -> tuple[Any, ...]:
        x, up, tensor = ctx.saved_tensors
        operation, number, approximate, channel_dim = ctx.call
        return operation, x, up, number if tensor is None else tensor, approximate, channel_dim

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        operation, x, up, sigma, approximate, channel_dim = _Transformed._saved(ctx)
        needs = ctx.needs_input_grad[1:4]
        grads = differentiable_gradients(operation, grad, x, up, sigma, approximate, channel_dim, needs)
        return None, *grads, None, None

    @staticmethod
    def jvp(
        ctx: Any, _: None, dx: Tensor | None, dup: Tensor | None, dsigma: Tensor | None, *__: None
    ) -> Tensor:
        operation, x, up, sigma, approximate, channel_dim = _Transformed._saved(ctx)
        if up is None and dx is not None:
            dx, dup = reference.halves(operation, dx, None)
        if dsigma is not None:
            dsigma = reference.broadcast(dsigma, x, channel_dim)  # type: ignore[assignment]
        partials = _Partials(operation, x, up, sigma, approximate, channel_dim)
        result = torch.zeros_like(partials.inputs["x"])
        for name, tangent in (("x", dx), ("up", dup), ("sigma", dsigma)):
            if tangent is not None:
                result = result + partials.times(tangent, name)
        return result.to(x.dtype)


# For speed, skip two Python methods: ``Function.apply``, which checks for transforms, and ``apply`` of its
# node (if torch has such a class), which looks up ``backward``.
if hasattr(Iglu, "_backward_cls"):
    Iglu._backward_cls.apply = Iglu.backward  # type: ignore[attr-defined]
save_inputs: Callable[..., Tensor] = super(Function, Iglu).apply


# -- saving the output, and in place ---------------------------------------------------------------


def output_determines_df_dx(x: Tensor, sigma: Sigma) -> bool:
    """Whether the derivative of the rational value follows from its output.  In float16 it does not if the
    floor, 1/(2 sigma), is below the normal numbers; the values of a tensor are not inspected."""
    smallest = torch.finfo(torch.float16).tiny
    return x.dtype != torch.float16 or (not isinstance(sigma, Tensor) and 1 / (2 * sigma) >= smallest)


def save_output(kernels: str, x: Tensor, sigma: Sigma, channel_dim: int, overwrites: bool) -> Tensor:
    """Compute the rational value, overwriting x if requested, and save it for the backward pass.

    Raise if autograd or the memory of x does not allow to overwrite x.  Torch would reject a Function only
    after x was overwritten, but its own operations before, so first run one that changes nothing."""
    if overwrites and ((x.is_leaf and x.requires_grad) or x._is_view()):
        x.sub_(0 if x.requires_grad else torch.zeros((), dtype=x.dtype, requires_grad=True))
    inputs = ("value", x, None, sigma, "rational", channel_dim, x if overwrites else None)
    with torch.no_grad():
        y = KERNELS[kernels].forward(*inputs)
        y = reference.forward(*inputs) if y is None else y
    number, tensor = split(sigma)
    return save_inputs((kernels, "output", number, "rational", channel_dim, y), x, None, tensor)


def overwrite(kernels: str, x: Tensor, sigma: Sigma, approximate: str, channel_dim: int) -> Tensor | None:
    """Overwrite x with the value, not recorded; return None if the backend does not support it."""
    if kernels == "reference":
        return None
    result = KERNELS[kernels].forward("value", x, None, sigma, approximate, channel_dim, x)
    if result is not None and not x.is_inference():
        torch.autograd.graph.increment_version(x)
    return result


# The derivatives of this backend are the functions above.
KERNELS["reference"] = Kernels(reference.forward, lambda *_: None, lambda *_: None)
