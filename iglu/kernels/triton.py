"""The GPU backend: run the Triton kernels, and check each of them on the device before its first use.

Triton is imported at the first call with a GPU tensor.  Double backward, forward mode, the backward pass from
an output, and calls captured in a CUDA graph before the check of their kernel use the reference formulas.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from iglu.formulas import FAMILIES
from iglu.kernels import autograd, reference

BLOCK = 1024  # elements per program
NARROW = 2**31 - 2**24  # elements that 32-bit indices can address, with room for the last block
SIGMA_RANGE = (1e-30, 1e30)  # of a number; beyond, constants derived from sigma overflow float32
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
device_type = "cuda"  # of the supported tensors; tests that use Triton's interpreter set it to "cpu"


class Kernel(NamedTuple):
    """One kernel: the parameters that select its code."""

    direction: str  # "forward" or "backward"
    operation: str  # "value", "gate" or "glu"
    is_packed: bool  # x holds both halves of a gated pair
    approximate: str
    dtype: torch.dtype
    sigma_dtype: torch.dtype | None  # None: sigma is a number
    is_wide: bool = False  # 64-bit indices


@functools.cache
def load() -> tuple[Any, str]:
    """Return the module of the kernels and "", or None and why it cannot be imported."""
    try:
        from iglu.kernels import triton_kernels
    except Exception as error:  # a broken or old Triton raises other errors than ImportError
        return None, f"Triton cannot be imported ({error}); to enable it: pip install triton"
    return triton_kernels, ""


def select(direction: str, operation: str, x: Any, up: Any, sigma: Any, approximate: str) -> tuple[Any, str]:
    """The kernel for a call whose arguments were validated, or None and the reason."""
    for tensor in (x, up, sigma):
        if tensor is x or isinstance(tensor, Tensor):
            if reason := autograd.not_ordinary_reason(tensor):
                return None, reason
            if tensor.device.type != device_type or tensor.device != x.device:
                return None, f"expected tensors on one {device_type} device, got one on {tensor.device}"
    if x.dtype not in DTYPES or x.numel() == 0:
        return None, f"expected nonempty float32, bfloat16 or float16, got {x.dtype}, {tuple(x.shape)}"
    sigma_dtype = sigma.dtype if isinstance(sigma, Tensor) else None
    if sigma_dtype is None and not SIGMA_RANGE[0] <= sigma <= SIGMA_RANGE[1]:
        return None, f"expected a number sigma from {SIGMA_RANGE[0]} to {SIGMA_RANGE[1]}, got {sigma}"
    is_packed = operation == "glu" and up is None
    kernel = Kernel(direction, operation, is_packed, approximate, x.dtype, sigma_dtype, x.numel() > NARROW)
    reason = load()[1] or failure(kernel, x.device)
    return (None, reason) if reason else (kernel, "")


def forward(
    operation: str, x: Any, up: Any, sigma: Any, approximate: str, channel_dim: int, out: Tensor | None = None
) -> Tensor | None:
    kernel, _ = select("forward", operation, x, up, sigma, approximate)
    if kernel is None or (out is not None and out.stride() != torch.empty_like(out).stride()):
        return None  # unsupported, or in place in memory that is not dense
    with torch.no_grad():
        (y,) = run(kernel, x.detach(), up, sigma, channel_dim, out=out)
    if out is not None or not autograd.is_recorded(x, up, sigma):
        return y  # type: ignore[no-any-return]
    number, tensor = autograd.split(sigma)
    return autograd.save_inputs(("triton", operation, number, approximate, channel_dim, y), x, up, tensor)


def backward(
    operation: str, grad: Any, x: Any, up: Any, sigma: Any, approximate: str, channel_dim: int, *_: bool
) -> autograd.Gradients | None:
    if operation == "output" or autograd.not_ordinary_reason(grad):
        return None
    kernel = select("backward", operation, x, up, sigma, approximate)[0]
    return run(kernel, x, up, sigma, channel_dim, grad) if kernel else None


autograd.KERNELS["triton"] = autograd.Kernels(forward, backward, lambda *_: None)


def run(
    kernel: Kernel, x: Tensor, up: Any, sigma: Any, channel_dim: int,
    grad: Any = None, out: Any = None, new: Any = torch.empty_like,
) -> tuple[Any, ...]:  # fmt: skip
    """Run a kernel; return y or, given its gradient, those of x, up (None without one) and a tensor sigma."""
    x = x.contiguous() if kernel.is_packed else x
    half = reference.halves(kernel.operation, x, up)[0]
    first = out if out is not None else new(half if grad is None else x)
    like = grad.contiguous() if kernel.is_packed and grad is not None else first  # dense

    def ordered(tensor: Any) -> Any:
        is_same = tensor is None or tensor.stride() == like.stride()
        return tensor if is_same else torch.empty_like(like).copy_(tensor)

    def pair(x: Tensor, up: Any) -> tuple[Any, Any]:
        return (x, x.view(-1)[like.shape[-1] :]) if kernel.is_packed else (ordered(x), ordered(up))

    channels, inner = 1, 1
    if kernel.sigma_dtype is not None and sigma.numel() > 1:
        channels, inner = sigma.numel(), like.stride(channel_dim)
    if grad is None:
        programs, blocks = -(-like.numel() // BLOCK), {"block": BLOCK}
        tensors: tuple[Any, ...] = (first, *pair(x, up))
    else:
        grad_up = None if up is None else new(x)
        # With a sigma per channel, a block is contiguous in memory: several channels, or elements of one.
        width = min(64, 1 << (channels - 1).bit_length()) if inner == 1 else 1
        blocks = {"block": BLOCK // width, "block_channels": 0 if channels == 1 else width}
        sums = x.new_empty(-(-like.numel() // channels * width // BLOCK), channels, dtype=torch.float32)
        programs = len(sums) * -(-channels // width)
        tensors = (*pair(first, grad_up), sums, ordered(grad), *pair(x, up))
    with torch.cuda.device_of(like):  # type: ignore[no-untyped-call] # the device must be current
        getattr(load()[0], f"iglu_{kernel.direction}")[(programs,)](
            *tensors, sigma if kernel.sigma_dtype is None else sigma.contiguous(),
            like.numel(), channels, inner, like.shape[-1] if like.dim() else 1,
            operation=kernel.operation, exact=kernel.approximate == "none", is_packed=kernel.is_packed,
            is_number=kernel.sigma_dtype is None, is_wide=kernel.is_wide, enable_fp_fusion=True, **blocks,
        )  # fmt: skip
    if grad is None or kernel.sigma_dtype is None:
        return (first,) if grad is None else (first, grad_up, None)
    return first, grad_up, sums.sum(0, dtype=torch.float64).to(sigma.dtype).reshape(sigma.shape)


# -- the check of a kernel before its first use ------------------------------------------------------

_failures: dict[tuple[Kernel, torch.device], str] = {}  # of the checked kernels; empty where one passed
_INPUTS = (0.3, -0.7, 2.5, -4.0, 1e-3, -30.0, 300.0, -3e4, 0.0, -torch.inf, torch.inf, torch.nan, 1.0)
_UNWRITTEN = -512.0  # not a result of any kernel


def failure(kernel: Kernel, device: torch.device) -> str:
    """Why the kernel must not run on the device, empty if it passed its check; runs the check if needed."""
    found = _failures.get((kernel, device))
    if found is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "a kernel must be called once before it is captured in a graph"
        try:
            found = check(kernel, device)
        except Exception as error:  # after any error, the reference formulas still work
            found = f"{type(error).__name__}: {error}"
        _failures[kernel, device] = found
        if found:
            text = f"GPU {kernel} failed its check on {device} and is disabled: {found}. The reference"
            text += " formulas are used instead. Please report this with the output of `iglu doctor`."
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return found


def check_all(device: torch.device) -> dict[Kernel, str]:
    """Check all kernels with 32-bit indices and usual dtypes of sigma: why each failed, empty if passed."""
    forms = (("value", False), ("gate", False), ("glu", False), ("glu", True))
    every = itertools.product(("forward", "backward"), forms, FAMILIES, DTYPES)
    kernels = (Kernel(way, *form, family, dtype, sigma_dtype) for way, form, family, dtype in every
               for sigma_dtype in dict.fromkeys((None, torch.float32, dtype)))  # fmt: skip
    return {kernel: failure(kernel, device) for kernel in kernels}


@torch.no_grad()
def check(kernel: Kernel, device: torch.device) -> str:
    """Compare a kernel with the reference formulas on fixed inputs: their difference, empty if they agree."""
    is_tensor = kernel.sigma_dtype is not None
    sizes, needs = (1, BLOCK - 1, BLOCK + 1, 3 * BLOCK), (True, True, is_tensor)
    for n, is_finite, form in itertools.product(sizes, (True, False), range(3 if is_tensor else 1)):
        shape, channel_dim = (((1, n), 0), ((n, 3), 1), ((3, n), 0))[form]
        index = torch.arange(math.prod(shape), device=device).reshape(shape)
        x = torch.tensor(_INPUTS, device=device)[index % len(_INPUTS)]
        x = (x.nan_to_num(2.0, 3.0, -3.0) if is_finite else x).to(kernel.dtype)
        other, grad = ((index % size + 1).to(kernel.dtype) / 4 for size in (7, 5))
        x = torch.cat([x, other], -1) if kernel.is_packed else x
        up = other if kernel.operation == "glu" and not kernel.is_packed else None
        values = (0.7, -1.3, 0.0)[: shape[channel_dim]]
        sigma = torch.tensor(values, dtype=kernel.sigma_dtype, device=device) if is_tensor else 0.7
        ends: list[Tensor] = []

        def new(like: Tensor, ends: list[Tensor] = ends) -> Tensor:
            memory = torch.full((like.numel() + BLOCK,), _UNWRITTEN, dtype=like.dtype, device=device)
            ends.append(memory[like.numel() :])
            return memory.as_strided(like.shape, torch.empty_like(like).stride())

        call = (x, up, sigma, kernel.approximate, channel_dim)
        expected: Any = (reference.forward(kernel.operation, *call),)
        if kernel.direction == "backward":
            expected = autograd.differentiable_gradients(kernel.operation, grad, *call, needs)
        results = run(kernel, x, up, sigma, channel_dim, grad if len(expected) > 1 else None, new=new)
        for i, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            kind = torch.finfo(torch.float32 if wanted is None else wanted.dtype)
            tolerance = max(1e-5, 2 * kind.eps), 1e-5 * index.numel() if i == 2 else 2 * kind.tiny * kind.eps
            if wanted is not None and not result.double().isclose(wanted.double(), *tolerance, True).all():
                return f"result {i} differs from that of the reference formulas for shape {shape}"
        if any((end != _UNWRITTEN).any() for end in ends):
            return f"it writes beyond the end of a tensor of shape {shape}"
    return ""
