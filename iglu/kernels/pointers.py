"""Calls of the loops by pointer: what serves where ``iglu._entry`` does not, at a few microseconds more a
recorded call.

``value``, ``gate`` and ``glu`` answer None where the call is not one for the loops.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from iglu.formulas import Sigma
from iglu.kernels.compiled import loops
from iglu.kernels.ordinary import is_dense, is_ordinary, is_plain_eager
from iglu.kernels.seam import Kernels, seam

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
_FAMILY = {"none": "exact", "rational": "rational"}


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


def _gradients(
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


def _run(
    operation: str,
    approximate: str,
    x: Tensor,
    up: Tensor | None,
    sigma: Sigma,
    channel_dim: int,
    out: Tensor | None = None,
) -> Tensor:
    if operation == "glu":
        return _forward_pair(approximate, x, up, sigma, channel_dim)
    y = torch.empty_like(x) if out is None else out
    return _forward_pointwise(operation, approximate, x, sigma, channel_dim, y)


def _is_served_sigma(sigma: object, x: Tensor, channel_dim: int, channels: int | None = None) -> bool:
    if type(sigma) is float or type(sigma) is int:
        return 0 < sigma <= torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).max
    if not is_ordinary(sigma) or sigma.dtype not in DTYPES or sigma.dim() > 1:  # type: ignore[attr-defined]
        return False
    assert isinstance(sigma, Tensor)
    if sigma.numel() <= 1:
        return sigma.numel() == 1
    return -x.dim() <= channel_dim < x.dim() and sigma.numel() == (channels or x.shape[channel_dim])


def _is_call_for_us(x: Any, approximate: str) -> bool:
    return (
        is_ordinary(x) and x.dtype in DTYPES and x.numel() > 0 and approximate in _FAMILY and is_plain_eager()
    )


def _serves(x: Any, sigma: Any, approximate: str, channel_dim: int) -> bool:
    return _is_call_for_us(x, approximate) and _is_served_sigma(sigma, x, channel_dim) and is_dense(x)


def _serves_pair(x: Any, up: Any, sigma: Any, approximate: str, channel_dim: int) -> bool:
    return (
        _is_call_for_us(x, approximate)
        and _Pair.fit(x, up)
        and _is_served_sigma(sigma, x, channel_dim, _pair_channels(x, up, channel_dim))
    )


def _pair_channels(x: Tensor, up: Tensor | None, channel_dim: int) -> int | None:
    """The channels of a pair along channel_dim, where that is the packed dimension; None elsewhere."""
    is_halved = up is None and channel_dim in (-1, x.dim() - 1)
    return x.shape[-1] // 2 if is_halved else None


_value, gate, glu = seam(Kernels(_serves, _serves_pair, is_ordinary, _run, _gradients))

_LOOPS = {
    (approximate, dtype): getattr(loops, f"value_{family}_{suffix}", None)
    for approximate, family in _FAMILY.items()
    for dtype, suffix in DTYPES.items()
}


def value(
    x: Any, sigma: Any, approximate: str, channel_dim: int, inplace: bool, save_output: bool
) -> Tensor | None:
    # The commonest call by the shortest way: at one element the questions cost more than the answer.
    if (
        type(sigma) is float
        and 1e-30 < sigma < 1e30
        and type(x) is Tensor
        and x.is_cpu
        and x.layout is torch.strided
        and not (inplace or save_output or x.requires_grad or x.is_neg())
        and x.is_contiguous()
        and is_plain_eager()
    ):
        loop = _LOOPS.get((approximate, x.dtype))
        if loop is not None:
            y = torch.empty_like(x)
            loop(x.data_ptr(), y.data_ptr(), x.numel(), sigma)
            return y
    return _value(x, sigma, approximate, channel_dim, inplace, save_output)
