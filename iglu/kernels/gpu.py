"""The GPU kernels, called: which calls they serve, how their tensors are cut into tiles, and the gradients.

The kernels themselves are in gpu_kernels.py, in Triton, which is imported with the first GPU tensor.
``forward`` and ``backward`` are those of record.Kernels, and answer None where a call is not one for them.

Nothing here waits for the GPU: a tensor sigma is read by the kernel, so calls can be captured in a CUDA
graph (after one call outside of it, which compiles).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from iglu.formulas import FAMILIES, Sigma
from iglu.kernels import record
from iglu.kernels.cpu import is_plain_eager
from iglu.kernels.plain import halves

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SIGMA_DTYPES = (*DTYPES, torch.float64)
# Beyond these a number sigma leaves some of its constants without all their digits in float32.
_SMALLEST, _LARGEST = 1e-30, 1e30

device_type = "cuda"
"""Whose tensors are served; the tests, which run the kernels in Triton's interpreter, say "cpu"."""

# -- which calls are served ------------------------------------------------------------------------


@functools.cache
def _load() -> tuple[Any, str]:
    """The module of the kernels, or why it does not serve."""
    try:
        from iglu.kernels import gpu_kernels
    except ImportError as error:
        return None, f"Triton does not load: {error}"
    return gpu_kernels, ""


@functools.cache
def _ordinary_keys(device: str) -> frozenset[int]:
    """The dispatch keys of tensors that are nothing but dense memory on the device."""
    normal = torch.empty(0, device=device)
    with torch.inference_mode():
        inference = torch.empty(0, device=device)
    return frozenset(torch._C._dispatch_keys(tensor).raw_repr() for tensor in (normal, inference))


def is_ordinary(x: object) -> bool:
    """Whether x is nothing but memory on the GPU: no subclass, no other device or layout."""
    if type(x) not in (Tensor, torch.nn.Parameter) or x.device.type != device_type:  # type: ignore[attr-defined]
        return False
    assert isinstance(x, Tensor)
    return torch._C._dispatch_keys(x).raw_repr() in _ordinary_keys(device_type)


def why_none() -> str:
    """Why the kernels would serve no call at all; empty if they would some."""
    if device_type == "cuda" and not torch.cuda.is_available():
        return "torch sees no GPU"
    reason = _load()[1]
    return f"{reason}; pip install triton" if reason else ""


def why_not(x: object) -> str:
    """Why the kernels would not serve ``iglu(x)`` here and now; empty if they would."""
    if not is_plain_eager():
        return "a mode or transform of torch is active"
    if not isinstance(x, Tensor):
        return f"x is no tensor but {type(x).__name__}"
    if x.device.type != device_type:
        return f"x is on {x.device}, and the Triton kernels run on {device_type}"
    if not is_ordinary(x):
        return f"x is no ordinary dense tensor but {type(x).__name__} with layout {x.layout}"
    if x.dtype not in DTYPES:
        return f"x is of {x.dtype}"
    if x.numel() == 0:
        return "x is empty"
    return _load()[1]


def _serves(operation: str, x: Any, up: Any, sigma: Any, approximate: str, channel_dim: int) -> bool:
    if why_not(x) or approximate not in FAMILIES:
        return False
    if operation != "glu":
        return up is None and _is_served_sigma(sigma, x, channel_dim)
    if up is not None:
        return _is_alike(up, x) and _is_served_sigma(sigma, x, channel_dim)
    is_packed = x.dim() > 0 and x.shape[-1] % 2 == 0
    return is_packed and _is_served_sigma(sigma, halves(operation, x, None)[0], channel_dim)


def _is_alike(other: Any, x: Tensor) -> bool:
    return (
        is_ordinary(other) and other.device == x.device and other.dtype == x.dtype and other.shape == x.shape
    )


def _is_served_sigma(sigma: object, x: Tensor, channel_dim: int) -> bool:
    if type(sigma) is float or type(sigma) is int:
        return _SMALLEST <= sigma <= _LARGEST
    if not is_ordinary(sigma):
        return False
    assert isinstance(sigma, Tensor)
    if sigma.device != x.device or sigma.dtype not in _SIGMA_DTYPES or sigma.dim() > 1:
        return False
    if sigma.numel() <= 1:
        return sigma.numel() == 1
    return -x.dim() <= channel_dim < x.dim() and sigma.numel() == x.shape[channel_dim]


# -- tiles -----------------------------------------------------------------------------------------

_TILE = 1024  # elements a program
_NARROW = 2**31 - 2**16  # what 32 bits can index, the end of the last tile included
_COALESCED = 128  # neighbours in memory that are worth reading together

Shape = tuple[int, ...]


class _Tiling(NamedTuple):
    """How a kernel sees its tensors, see gpu_kernels.py."""

    channels: int
    elements: int  # of each channel
    sizes: Shape
    strides: tuple[Shape, ...]  # of each tensor: of the channels, then of the sizes
    is_wide: bool
    block_channels: int
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.elements // self.block)

    @property
    def programs(self) -> int:
        return self.blocks * -(-self.channels // self.block_channels)


@functools.lru_cache(maxsize=1024)
def _tiling(shape: Shape, strides: tuple[Shape, ...], channel_dim: int | None) -> _Tiling:
    """Order the dimensions as the first tensor lies in memory and merge those that are one to all tensors."""
    dims = [dim for dim, size in enumerate(shape) if size > 1 and dim != channel_dim]
    dims.sort(key=lambda dim: [each[dim] for each in strides], reverse=True)
    sizes: list[int] = []
    steps: list[Shape] = []
    for dim in dims:
        size, step = shape[dim], tuple(each[dim] for each in strides)
        if steps and all(outer == size * inner for outer, inner in zip(steps[-1], step, strict=True)):
            sizes[-1] *= size
            steps[-1] = step
        else:
            sizes.append(size)
            steps.append(step)
    if not sizes:
        sizes, steps = [1], [(0,) * len(strides)]

    channels = 1 if channel_dim is None else shape[channel_dim]
    channel_steps = [0 if channel_dim is None else each[channel_dim] for each in strides]
    elements = math.prod(sizes)
    reach = [
        (channels - 1) * across + sum((size - 1) * step[i] for size, step in zip(sizes, steps, strict=True))
        for i, across in enumerate(channel_steps)
    ]
    if channels > 1 and channel_steps[0] < steps[-1][0]:  # the channels are innermost
        together = min(_power_of_two(channels), _COALESCED)
        block = min(_power_of_two(elements), _TILE // together)
    else:
        block = min(_power_of_two(elements), _TILE)
    return _Tiling(
        channels,
        elements,
        tuple(sizes),
        tuple((across, *(step[i] for step in steps)) for i, across in enumerate(channel_steps)),
        max(*reach, channels * elements) > _NARROW,
        min(_power_of_two(channels), _TILE // block),
        block,
    )


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


# -- launches --------------------------------------------------------------------------------------


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, whatever device its tensors are on."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def _scale(sigma: Sigma) -> tuple[Any, float, int]:
    """sigma for the kernel: a number as two float32 that add up to it, a tensor as it is."""
    if isinstance(sigma, Tensor):
        return sigma.detach(), 0.0, sigma.stride(0) if sigma.numel() > 1 else 0
    high = ctypes.c_float(sigma).value
    return high, sigma - high, 0


def _launch(
    kernel: str, tensors: tuple[Tensor | None, ...],
    sigma: Any, operation: str, approximate: str, channel_dim: int, **options: Any,
) -> Tensor | None:  # fmt: skip
    """Run a kernel over tensors, those that are there; the gradient of sigma, if it ``needs_sums``."""
    there = [each for each in tensors if each is not None]
    first, is_number = there[0], not isinstance(sigma, Tensor)
    channels = None if is_number or sigma.numel() == 1 else channel_dim % first.dim()
    tiling = _tiling(tuple(first.shape), tuple(each.stride() for each in there), channels)
    known = iter(tiling.strides)
    strides = [tiling.strides[0] if each is None else next(known) for each in tensors]
    sums = None
    if options.get("needs_sums"):
        sums = torch.empty(tiling.blocks, tiling.channels, dtype=torch.float32, device=first.device)
    with _current(first.device):
        getattr(_load()[0], kernel)[(tiling.programs,)](
            *tensors,
            *((sums,) if "needs_sums" in options else ()),
            *_scale(sigma),
            tiling.channels,
            tiling.elements,
            tiling.sizes,
            *strides,
            operation=operation,
            is_exact=approximate == "none",
            is_number=is_number,
            wide=tiling.is_wide,
            block_channels=tiling.block_channels,
            block=tiling.block,
            num_warps=4,
            enable_fp_fusion=False,  # see gpu_formulas.py
            **options,
        )
    return None if sums is None else sums.sum(0, dtype=torch.float64).to(sigma.dtype).reshape(sigma.shape)


def forward(
    operation: str, x: Any, up: Any, sigma: Any, approximate: str, channel_dim: int, out: Tensor | None = None
) -> Tensor | None:
    if not _serves(operation, x, up, sigma, approximate, channel_dim):
        return None
    with _named(operation), torch.no_grad():
        at, other = halves(operation, x.detach(), None if up is None else up.detach())
        y = torch.empty_like(at) if out is None else out
        _launch("forward", (y.detach(), at, other), sigma, operation, approximate, channel_dim)
    if out is not None or not record.is_recorded(x, up, sigma):
        return y
    number, scale = (None, sigma) if isinstance(sigma, Tensor) else (sigma, None)
    return record.keep_inputs(("triton", operation, number, approximate, channel_dim, y), x, up, scale)


def _named(operation: str) -> contextlib.AbstractContextManager[Any]:
    """The call by its name in a profile, where there is one."""
    if not torch._C._autograd._profiler_enabled():
        return contextlib.nullcontext()
    return torch.profiler.record_function(f"iglu::{operation}")


def backward(
    operation: str, grad: Any,
    x: Any, up: Any, sigma: Any, approximate: str, channel_dim: int, needs_sigma: bool,
) -> record.Gradients | None:  # fmt: skip
    """The gradients of x, of up if there is one, and of sigma if needed, in one pass."""
    if not _serves(operation, x, up, sigma, approximate, channel_dim):
        return None
    at, other = halves(operation, x, up)
    if not _is_alike(grad, at):
        return None
    grad_x = torch.empty_like(x)
    grad_up = None if up is None else torch.empty_like(up)
    by_at, by_other = halves(operation, grad_x, grad_up)
    tensors = (by_at, grad, at, by_other, other)
    call = (sigma, operation, approximate, channel_dim)
    return grad_x, grad_up, _launch("backward", tensors, *call, needs_sums=needs_sigma)


def twice(
    operation: str, by_x: Any, by_up: Any, grad: Any,
    x: Any, up: Any, sigma: Any, approximate: str, channel_dim: int, needs_sigma: bool,
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    """The gradients of grad, x, up and sigma, in one pass."""
    if operation not in ("value", "glu") or not _serves(operation, x, up, sigma, approximate, channel_dim):
        return None
    at, other = halves(operation, x, up)
    if not (_is_alike(by_x, x) and (up is None or _is_alike(by_up, x)) and _is_alike(grad, at)):
        return None
    of_grad, of_x = torch.empty_like(grad), torch.empty_like(x)
    of_up = None if up is None else torch.empty_like(up)
    first, second = halves(operation, by_x, by_up if up is not None else None)
    of_at, of_other = halves(operation, of_x, of_up)
    tensors = (of_grad, first, grad, at, of_at, second, other, of_other)
    call = (sigma, operation, approximate, channel_dim)
    return of_grad, of_x, of_up, _launch("twice", tensors, *call, needs_sums=needs_sigma)


record.KERNELS["triton"] = record.Kernels(forward, backward, twice)
