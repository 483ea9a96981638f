"""The CPU kernels, ``iglu._kernels`` of cpu/*.c: finds them, and hands them what they ask of torch.

They are built without torch and serve every torch from 2.10, whose Tensor type carries a table of C functions
(DLPack 1.3) that tells where a tensor lies.  A copy-on-write tensor (torch._lazy_clone) is copied by being
looked at, which is harmless.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import pathlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from iglu.formulas import COMPUTE_DTYPE
from iglu.kernels import record


def _addresses(library: str, *names: str) -> list[int | None]:
    """Where functions of torch's C interface lie in one of its libraries; None for those it has not got."""
    file = {"win32": "{}.dll", "darwin": "lib{}.dylib"}.get(sys.platform, "lib{}.so").format(library)
    try:
        found = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / file))
    except OSError:
        return [None] * len(names)
    functions = (getattr(found, name, None) for name in names)
    return [None if each is None else ctypes.cast(each, ctypes.c_void_p).value for each in functions]


def _load() -> tuple[Any, str]:
    """The module, or why it does not serve."""
    if importlib.util.find_spec("iglu._kernels") is None:
        return None, "the loops (iglu._kernels) were not built"
    try:
        found = importlib.import_module("iglu._kernels")
        _set_up(found)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        return None, f"the loops (iglu._kernels) do not load: {error}"
    return found, ""


def _set_up(module: ModuleType) -> None:
    module.set_up(
        Tensor.__dlpack_c_exchange_api__,
        parallel_for_address,
        *_addresses("torch_cpu", "aoti_torch_empty_strided", "aoti_torch_delete_tensor_object"),
        *_addresses("torch_python", "_Z16THPVariable_WrapRKN2at10TensorBaseE"),  # of a const at::TensorBase &
        tensor=Tensor,
        parameter=torch.nn.Parameter,
        is_negative=Tensor.is_neg,
        function_modes=torch._C._len_torch_function_stack,
        dispatch_modes=torch._C._len_torch_dispatch_stack,
        transforms=torch._C._are_functorch_transforms_active,
        tracing=torch._C._is_tracing,
        forward_ad=vars(forward_ad),
        is_grad_enabled=torch.is_grad_enabled,
        profiler=vars(torch.autograd.profiler),
        named=torch._C._profiler._RecordFunctionFast,
        empty_like=torch.empty_like,
        doubles={"dtype": torch.float64},
        record=record.keep_inputs,
    )


def is_plain_eager() -> bool:
    """Whether no mode, transform or tracer of torch wants to see the call."""
    has_modes = torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
    return not has_modes and record.is_eager()


def why_not(x: object) -> str:
    """Why the loops would not serve ``iglu(x)`` here and now; empty if they would."""
    if loops is None:
        return why_none
    if torch.compiler.is_compiling():
        return "the compiler fuses the plain formulas with their neighbours"
    if not is_plain_eager():
        return "a mode or transform of torch is active"
    if not isinstance(x, Tensor):
        return f"x is no tensor but {type(x).__name__}"
    if not x.is_cpu:
        return f"x is on {x.device}, and the native kernels run on the CPU"
    if x.dtype not in COMPUTE_DTYPE:
        return f"x is of {x.dtype}"
    if type(x) not in (Tensor, torch.nn.Parameter) or x.layout != torch.strided or x.is_neg():
        return f"x is no ordinary dense tensor but {type(x).__name__} with layout {x.layout}"
    with torch.no_grad():
        if x.numel() and loops.forward("value", x.detach(), None, 1.0, "none", 1) is None:
            return "the memory of x is not within reach"
    return ""


# Torch's own parallel loop, so that there is one pool of threads and torch.set_num_threads is honoured.
(parallel_for_address,) = _addresses("torch_cpu", "torch_parallel_for")
loops: Any
"""The module ``iglu._kernels``, if it is there."""
loops, why_none = _load()
if loops is not None:
    record.KERNELS["native"] = record.Kernels(loops.forward, loops.backward, loops.twice)
