"""The C kernels for CPUs: load ``iglu._kernels``, built from csrc/, and pass it what it needs from torch.

The module is built without torch.  One binary supports every torch from 2.10, whose Tensor type carries a
table of C functions (DLPack 1.3) that return a tensor's data pointer, sizes and strides.  Reading a
copy-on-write tensor (torch._lazy_clone) through it makes the copy, which is harmless.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import numbers
import pathlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from iglu.formulas import COMPUTE_DTYPE
from iglu.kernels import autograd

TESTED_TORCH = ("2.10", "2.13")
"""The torch releases that these kernels were tested with.  Only with these is the private C++ function
THPVariable_Wrap used: it is assumed to accept a tensor handle of torch's C interface, which another release
may change without notice.  With any other torch, torch.empty_like creates new tensors."""


def _addresses(library: str, *names: str) -> list[int | None]:
    """Addresses of exported functions of one of torch's libraries; None for each that does not exist."""
    file = {"win32": "{}.dll", "darwin": "lib{}.dylib"}.get(sys.platform, "lib{}.so").format(library)
    try:
        found = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / file))
    except OSError:
        return [None] * len(names)
    functions = (getattr(found, name, None) for name in names)
    return [None if each is None else ctypes.cast(each, ctypes.c_void_p).value for each in functions]


def _release(version: str) -> str:
    """The "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split(".")[:2])


def _allocator_addresses() -> list[int | None]:
    """Functions that create a tensor in half the time of torch.empty_like, if this release was tested."""
    if _release(torch.__version__) not in TESTED_TORCH:
        return [None] * 3
    return [
        *_addresses("torch_cpu", "aoti_torch_empty_strided", "aoti_torch_delete_tensor_object"),
        *_addresses("torch_python", "_Z16THPVariable_WrapRKN2at10TensorBaseE"),  # (const at::TensorBase &)
    ]


def _load() -> tuple[Any, str]:
    """The module and "", or None and the reason why it is unavailable."""
    if importlib.util.find_spec("iglu._kernels") is None:
        return None, "the native kernels (iglu._kernels) were not built"
    try:
        found = importlib.import_module("iglu._kernels")
        _set_up(found)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        return None, f"the native kernels (iglu._kernels) cannot be loaded: {error}"
    return found, ""


def _set_up(module: ModuleType) -> None:
    module.set_up(
        Tensor.__dlpack_c_exchange_api__,
        parallel_for_address,
        *_allocator_addresses(),
        tensor=Tensor,
        parameter=torch.nn.Parameter,
        is_negative=Tensor.is_neg,
        function_modes=torch._C._len_torch_function_stack,
        dispatch_modes=torch._C._len_torch_dispatch_stack,
        is_tracing=torch._C._is_tracing,
        has_transforms=torch._C._are_functorch_transforms_active,
        forward_ad=vars(forward_ad),
        is_grad_enabled=torch.is_grad_enabled,
        profiler=vars(torch.autograd.profiler),
        record_function=torch._C._profiler._RecordFunctionFast,
        empty_like=torch.empty_like,
        float64_options={"dtype": torch.float64},
        save_inputs=autograd.save_inputs,
        real=numbers.Real,
    )


def unsupported_reason(x: object) -> str:
    """Why ``iglu(x)`` cannot run on the native kernels in this context; empty if it can."""
    if loops is None:
        return unavailable_reason
    if reason := autograd.not_ordinary_reason(x):
        return reason
    assert isinstance(x, Tensor)
    if not x.is_cpu:
        return f"expected a CPU tensor, got one on {x.device}"
    if x.dtype not in COMPUTE_DTYPE:
        return f"expected a floating-point dtype, got {x.dtype}"
    with torch.no_grad():
        if x.numel() and loops.forward("value", x.detach(), None, 1.0, "none", 1) is None:
            return "the memory of x cannot be accessed"
    return ""


# Torch's parallel loop: it uses torch's thread pool and respects torch.set_num_threads.
(parallel_for_address,) = _addresses("torch_cpu", "torch_parallel_for")
loops: Any
"""The module ``iglu._kernels``; None if it is unavailable."""
loops, unavailable_reason = _load()
if loops is not None:
    autograd.KERNELS["native"] = autograd.Kernels(loops.forward, loops.backward, loops.double_backward)
