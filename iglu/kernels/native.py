"""The native CPU kernels: load the two compiled parts, and call the loops by pointer.

``iglu._kernels`` has the loops and needs no torch; ``iglu._entry`` makes torch operations of them and was
built for one version of torch.  With both, ``value``, ``gate`` and ``glu`` are the entry's; with the loops
alone they are the functions below, which do the same at a few microseconds more a recorded call.

Each answers None where the call is not one for these kernels: whatever is not a plain dense CPU tensor in
plain eager mode is left to :mod:`iglu.kernels.plain`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import math
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from iglu.formulas import Sigma
from iglu.kernels import plain

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
_FAMILY = {"none": "exact", "rational": "rational"}

# -- loading ---------------------------------------------------------------------------------------

loops: Any = None
"""The module ``iglu._kernels``, if it is there."""
why_no_loops = ""

try:
    from iglu import _kernels as loops  # type: ignore[no-redef, attr-defined]
except ImportError as error:
    why_no_loops = f"the loops (iglu._kernels) were not built: {error}"


def _torch_parallel_for() -> int | None:
    """The address of torch's own parallel loop (a C function since 2.10), so that there is one pool of
    threads and torch.set_num_threads is honoured."""
    name = {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / name))
        return ctypes.cast(library.torch_parallel_for, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _load_entry() -> tuple[Any, str]:
    """The module ``iglu._entry``, or why it does not serve.

    Its file says for which torch it was built, and is asked before it is loaded: one that was built for
    another torch need not fail politely."""
    found = importlib.util.find_spec("iglu._entry")
    if found is None or found.origin is None:
        return None, "the entry (iglu._entry) was not built"
    mark = re.search(rb"iglu entry for torch ([^;]*);", pathlib.Path(found.origin).read_bytes())
    built_for = mark.group(1).decode() if mark else "an unknown version"
    if built_for != torch.__version__:
        return None, f"the entry (iglu._entry) was built for torch {built_for}, this is {torch.__version__}"
    try:
        return importlib.import_module("iglu._entry"), ""
    except ImportError as error:
        return None, f"the entry (iglu._entry) does not load: {error}"


is_threaded = False
entry: Any = None
why_no_entry = why_no_loops
if loops is not None:
    _address = _torch_parallel_for()
    loops.set_parallel_for(_address)
    is_threaded = _address is not None
    entry, why_no_entry = _load_entry()


# -- which calls are served ------------------------------------------------------------------------


def _ordinary_keys() -> frozenset[int]:
    """The dispatch keys of tensors that are nothing but dense memory on the CPU."""
    normal = torch.empty(0)
    with torch.inference_mode():
        inference = torch.empty(0)
    return frozenset(torch._C._dispatch_keys(tensor).raw_repr() for tensor in (normal, inference))


_ORDINARY_KEYS = _ordinary_keys()
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def is_plain_eager() -> bool:
    """Whether no mode, transform or tracer of torch wants to see the call."""
    return not (
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state()
    )


def is_ordinary(x: object) -> bool:
    """Whether x is nothing but dense memory on the CPU: no subclass, no other device or layout."""
    keys = torch._C._dispatch_keys
    return type(x) in _PLAIN_TYPES and keys(x).raw_repr() in _ORDINARY_KEYS  # type: ignore[arg-type]


def is_dense(x: Tensor) -> bool:
    return x.is_contiguous() or x.permute(sorted(range(x.dim()), key=x.stride, reverse=True)).is_contiguous()


def _is_served_sigma(sigma: object, x: Tensor, channel_dim: int, channels: int | None = None) -> bool:
    if type(sigma) is float or type(sigma) is int:
        return 0 < sigma <= torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).max
    if not is_ordinary(sigma) or sigma.dtype not in DTYPES or sigma.dim() > 1:  # type: ignore[attr-defined]
        return False
    assert isinstance(sigma, Tensor)
    if sigma.numel() <= 1:
        return sigma.numel() == 1
    return -x.dim() <= channel_dim < x.dim() and sigma.numel() == (channels or x.shape[channel_dim])


# -- calls by pointer ------------------------------------------------------------------------------


class _Scale:
    """sigma as the loops take it: a number, or the address of doubles and where the channels lie."""

    __slots__ = ("arguments", "channels", "values")

    def __init__(self, sigma: Sigma, x: Tensor, channel_dim: int, *, row_major: bool = False) -> None:
        self.channels = 0
        if not isinstance(sigma, Tensor):
            self.arguments: tuple[float, int, int] = (sigma, 0, 1)
            return
        self.values = sigma.detach().to(torch.float64).contiguous()
        if self.values.numel() == 1:
            self.arguments = (self.values.item(), 0, 1)
            return
        self.channels = self.values.numel()
        # In dense memory the stride of a dimension is the number of elements that vary faster.
        inner = math.prod(x.shape[channel_dim % x.dim() + 1 :]) if row_major else x.stride(channel_dim)
        self.arguments = (self.values.data_ptr(), self.channels, inner)


def _forward_pointwise(
    operation: str, approximate: str, x: Tensor, sigma: Sigma, channel_dim: int, out: Tensor
) -> Tensor:
    loop = getattr(loops, f"{operation}_{_FAMILY[approximate]}_{DTYPES[x.dtype]}")
    scale = _Scale(sigma, x, channel_dim)
    loop(x.data_ptr(), out.data_ptr(), x.numel(), *scale.arguments)
    return out


class _Rows:
    """A tensor as ``rows`` rows of ``width`` dense elements, ``step`` apart."""

    __slots__ = ("pointer", "rows", "step", "width")

    def __init__(self, x: Tensor) -> None:
        self.pointer = x.data_ptr()
        self.width = x.shape[-1]
        self.rows = x.numel() // self.width
        self.step = x.reshape(-1, self.width).stride(0) if self.rows > 1 else self.width

    @staticmethod
    def fit(x: Tensor) -> bool:
        """Whether x is contiguous but for the distance from one last dimension to the next."""
        if x.dim() == 0 or x.stride(-1) != 1:
            return False
        expected = None
        for size, stride in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
            if size == 1:
                continue
            if expected is not None and stride != expected:
                return False
            expected = stride * size
        return True


class _Pair:
    """Gate and up, dense with equal strides or as rows, be they two tensors or the halves of one."""

    def __init__(self, x: Tensor, up: Tensor | None) -> None:
        self.is_packed = up is None
        gate, other = x.chunk(2, -1) if up is None else (x, up)
        self.gate, self.up = gate, other
        self.is_row_major = self.is_packed or not (is_dense(x) and gate.stride() == other.stride())
        if self.is_row_major:
            gate_rows, up_rows = _Rows(gate), _Rows(other)
            self.size = (gate_rows.rows, gate_rows.width)
            self.steps = (gate_rows.step, up_rows.step)
        else:
            self.size = (1, gate.numel())
            self.steps = (0, 0)

    @staticmethod
    def fit(x: Tensor, up: Tensor | None) -> bool:
        if up is None:
            return x.dim() > 0 and x.shape[-1] % 2 == 0 and x.is_contiguous()
        if not is_ordinary(up) or up.dtype != x.dtype or up.shape != x.shape:
            return False
        return (is_dense(x) and x.stride() == up.stride()) or (_Rows.fit(x) and _Rows.fit(up))

    def empty(self) -> Tensor:
        """A tensor for a result of the pair."""
        if self.is_row_major:
            return torch.empty(self.gate.shape, dtype=self.gate.dtype)
        return torch.empty_like(self.gate)


def _forward_pair(approximate: str, x: Tensor, up: Tensor | None, sigma: Sigma, channel_dim: int) -> Tensor:
    pair = _Pair(x, up)
    scale = _Scale(sigma, pair.gate, channel_dim, row_major=pair.is_row_major)
    loop = getattr(loops, f"glu_{_FAMILY[approximate]}_{DTYPES[x.dtype]}")
    y = pair.empty()
    loop(
        pair.gate.data_ptr(),
        pair.up.data_ptr(),
        y.data_ptr(),
        *pair.size,
        *pair.steps,
        pair.size[1],
        *scale.arguments,
    )
    return y


def _upstream(grad: Tensor, like: Tensor, *, row_major: bool = False) -> tuple[Tensor, bool]:
    """The gradient in the memory order of the output, or as one value that stands for all of it."""
    if all(size == 1 or stride == 0 for size, stride in zip(grad.shape, grad.stride(), strict=True)):
        return grad, True
    if row_major:
        return grad.contiguous(), False
    return (grad if grad.stride() == like.stride() else torch.empty_like(like).copy_(grad)), False


def _backward_pointwise(
    operation: str,
    approximate: str,
    grad: Tensor,
    x: Tensor,
    sigma: Sigma,
    channel_dim: int,
    sums: Tensor | None,
) -> Tensor:
    grad, is_one_value = _upstream(grad, x)
    grad_x = torch.empty_like(x)
    scale = _Scale(sigma, x, channel_dim)
    loop = getattr(loops, f"{operation}_backward_{_FAMILY[approximate]}_{DTYPES[x.dtype]}")
    loop(
        grad.data_ptr(), x.data_ptr(), grad_x.data_ptr(), x.numel(), *scale.arguments,
        int(is_one_value), 0 if sums is None else sums.data_ptr(),
    )  # fmt: skip
    return grad_x


def _backward_pair(
    approximate: str,
    grad: Tensor,
    x: Tensor,
    up: Tensor | None,
    sigma: Sigma,
    channel_dim: int,
    sums: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    pair = _Pair(x, up)
    grad, is_one_value = _upstream(grad, pair.gate, row_major=pair.is_row_major)
    packed = torch.empty_like(x) if pair.is_packed else None
    grad_gate, grad_up = packed.chunk(2, -1) if packed is not None else (pair.empty(), pair.empty())
    width = pair.size[1]
    step = 2 * width if pair.is_packed else width
    scale = _Scale(sigma, pair.gate, channel_dim, row_major=pair.is_row_major)
    loop = getattr(loops, f"glu_backward_{_FAMILY[approximate]}_{DTYPES[x.dtype]}")
    loop(
        grad.data_ptr(), pair.gate.data_ptr(), pair.up.data_ptr(), grad_gate.data_ptr(), grad_up.data_ptr(),
        *pair.size, width, *pair.steps, step, step, *scale.arguments,
        int(is_one_value), 0 if sums is None else sums.data_ptr(),
    )  # fmt: skip
    return (packed, None) if packed is not None else (grad_gate, grad_up)


class _Recorded(Function):
    """A recorded call of the loops that keeps its inputs: x, up (or None), sigma."""

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
        ctx.number = sigma
        ctx.operation, ctx.approximate, ctx.channel_dim = operation, approximate, channel_dim
        return _run(operation, approximate, x, up, sigma, channel_dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, up, tensor_sigma = ctx.saved_tensors
        sigma: Sigma = ctx.number if tensor_sigma is None else tensor_sigma
        needs_sigma = tensor_sigma is not None and ctx.needs_input_grad[4]
        arguments = (ctx.approximate, grad, x, up, sigma, ctx.channel_dim)
        if torch.is_grad_enabled() or not (is_plain_eager() and is_ordinary(grad) and is_ordinary(x)):
            grads = plain_gradients(f"{ctx.operation}:{ctx.approximate}", *arguments[1:], needs_sigma)
        else:
            grads = _native_gradients(ctx.operation, *arguments, needs_sigma)
        found = iter(grads)
        return (
            None,
            None,
            next(found),
            None if up is None else next(found),
            next(found) if needs_sigma else None,
            None,
        )


class _KeepsOutput(Function):
    """A recorded call of the rational value that keeps its output, and may write it over x."""

    @staticmethod
    def forward(
        ctx: Any, approximate: str, x: Tensor, sigma: Sigma, channel_dim: int, overwrite: bool
    ) -> Tensor:
        y = _forward_pointwise(
            "value", approximate, x, sigma, channel_dim, x if overwrite else torch.empty_like(x)
        )
        if overwrite:
            ctx.mark_dirty(x)
        ctx.save_for_backward(y, sigma if isinstance(sigma, Tensor) else None)
        ctx.number, ctx.approximate, ctx.channel_dim = sigma, approximate, channel_dim
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        y, tensor_sigma = ctx.saved_tensors
        sigma: Sigma = ctx.number if tensor_sigma is None else tensor_sigma
        needs_sigma = tensor_sigma is not None and ctx.needs_input_grad[2]
        arguments = (grad, y, None, sigma, ctx.channel_dim, needs_sigma)
        if torch.is_grad_enabled() or not (is_plain_eager() and is_ordinary(grad) and is_ordinary(y)):
            grads = plain_gradients(f"output:{ctx.approximate}", *arguments)
        else:
            grads = _native_gradients("output", ctx.approximate, *arguments)
        return None, grads[0], grads[1] if needs_sigma else None, None, None


def _native_gradients(
    operation: str,
    approximate: str,
    grad: Tensor,
    x: Tensor,
    up: Tensor | None,
    sigma: Sigma,
    channel_dim: int,
    needs_sigma: bool,
) -> list[Tensor]:
    sums = None
    if needs_sigma:
        assert isinstance(sigma, Tensor)
        sums = torch.zeros(sigma.numel(), dtype=torch.float64)
    if operation == "glu":
        grad_x, grad_up = _backward_pair(approximate, grad, x, up, sigma, channel_dim, sums)
    else:
        grad_x, grad_up = _backward_pointwise(operation, approximate, grad, x, sigma, channel_dim, sums), None
    grads = [grad_x] if grad_up is None else [grad_x, grad_up]
    if sums is not None and isinstance(sigma, Tensor):
        grads.append(sums.to(sigma.dtype).reshape(sigma.shape))
    return grads


def plain_gradients(
    name: str, grad: Tensor, x: Tensor, up: Tensor | None, sigma: Sigma, channel_dim: int, needs_sigma: bool
) -> list[Tensor]:
    """The gradients of x, of up if there is one, and of sigma if needed, by differentiable operations: for a
    backward pass that is itself recorded, here and in ``iglu._entry``."""
    if name.startswith("output"):
        scale = plain.along_channels(sigma, x.dim(), channel_dim) if isinstance(sigma, Tensor) else sigma
        by_x, by_sigma = plain.gradients_from_output(name.partition(":")[2], grad, x, scale, needs_sigma)
        return [by_x] if by_sigma is None else [by_x, by_sigma.reshape(cast("Tensor", sigma).shape)]
    is_packed = name.startswith("glu") and up is None
    tensors = x.chunk(2, -1) if is_packed else (x,) if up is None else (x, up)
    scale = plain.along_channels(sigma, x.dim(), channel_dim) if isinstance(sigma, Tensor) else sigma
    needed = [True] * len(tensors) + [needs_sigma]
    *grads, by_sigma = plain.gradients(name, grad, (*tensors, scale), needed)
    result = [each for each in grads if each is not None]
    if is_packed:
        result = [torch.cat(result, -1)]
    if by_sigma is not None and isinstance(sigma, Tensor):
        result.append(by_sigma.reshape(sigma.shape))
    return result


def _run(
    operation: str, approximate: str, x: Tensor, up: Tensor | None, sigma: Sigma, channel_dim: int
) -> Tensor:
    if operation == "glu":
        return _forward_pair(approximate, x, up, sigma, channel_dim)
    return _forward_pointwise(operation, approximate, x, sigma, channel_dim, torch.empty_like(x))


# Past the Python half of Function.apply, which looks for transforms that is_plain_eager has excluded.
_record: Callable[..., Tensor] = super(Function, _Recorded).apply
_record_output: Callable[..., Tensor] = super(Function, _KeepsOutput).apply


def _requires_grad(*values: object) -> bool:
    return torch.is_grad_enabled() and any(isinstance(each, Tensor) and each.requires_grad for each in values)


def _is_call_for_us(x: Any, approximate: str) -> bool:
    return (
        is_ordinary(x) and x.dtype in DTYPES and x.numel() > 0 and approximate in _FAMILY and is_plain_eager()
    )


def _value(
    x: Any, sigma: Any, approximate: str, channel_dim: int, inplace: bool, save_output: bool
) -> Tensor | None:
    if not (_is_call_for_us(x, approximate) and _is_served_sigma(sigma, x, channel_dim) and is_dense(x)):
        return None
    records, is_rational = _requires_grad(x, sigma), approximate == "rational"
    if save_output and not is_rational:
        return None
    if records and is_rational and (inplace or save_output):
        return _record_output(approximate, x, sigma, channel_dim, inplace)
    if inplace:
        if records or x.is_inference():
            return None
        _forward_pointwise("value", approximate, x, sigma, channel_dim, x)
        torch.autograd.graph.increment_version(x)
        return x  # type: ignore[no-any-return]
    run = _record if records else _run
    return run("value", approximate, x, None, sigma, channel_dim)


def _gate(x: Any, sigma: Any, approximate: str, channel_dim: int) -> Tensor | None:
    if not (_is_call_for_us(x, approximate) and _is_served_sigma(sigma, x, channel_dim) and is_dense(x)):
        return None
    run = _record if _requires_grad(x, sigma) else _run
    return run("gate", approximate, x, None, sigma, channel_dim)


def _glu(x: Any, up: Any, sigma: Any, approximate: str, channel_dim: int) -> Tensor | None:
    if not (_is_call_for_us(x, approximate) and _Pair.fit(x, up)):
        return None
    if not _is_served_sigma(sigma, x, channel_dim, _pair_channels(x, up, channel_dim)):
        return None
    run = _record if _requires_grad(x, up, sigma) else _run
    return run("glu", approximate, x, up, sigma, channel_dim)


def _pair_channels(x: Tensor, up: Tensor | None, channel_dim: int) -> int | None:
    """The channels of a pair along channel_dim, where that is the packed dimension; None elsewhere."""
    is_halved = up is None and channel_dim in (-1, x.dim() - 1)
    return x.shape[-1] // 2 if is_halved else None


value: Callable[..., Tensor | None] = entry.value if entry is not None else _value
gate: Callable[..., Tensor | None] = entry.gate if entry is not None else _gate
glu: Callable[..., Tensor | None] = entry.glu if entry is not None else _glu
