"""Check and time the GPU kernels on this GPU, and print a row of JSON: python benchmarks/gpu.py."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import iglu
from iglu.kernels import triton

ROUNDS = 50


def silu_mul() -> tuple[str, Callable[[Tensor, Tensor], Tensor]]:
    """Liger-Kernel's fused SiLU-mul where it is installed, else that of torch."""
    try:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError:
        return "silu_mul (torch)", lambda x, up: F.silu(x) * up
    return "silu_mul (Liger)", LigerSiLUMulFunction.apply


def milliseconds(call: Callable[[], object]) -> float:
    """The median time of a call on the GPU."""
    times = []
    for _ in range(ROUNDS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


def timings(dtype: torch.dtype, rows: int, columns: int) -> dict[str, dict[str, float]]:
    x, up, grad = (torch.randn(rows, columns, device="cuda", dtype=dtype) for _ in range(3))
    x.requires_grad_()
    up.requires_grad_()
    liger, fused = silu_mul()
    calls: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "relu": (F.relu, (x,)),
        "gelu": (F.gelu, (x,)),
        "silu": (F.silu, (x,)),
        "iglu": (lambda x: iglu.iglu(x, 1.0), (x,)),
        "iglu_approx": (lambda x: iglu.iglu(x, 1.0, approximate="rational"), (x,)),
        liger: (fused, (x, up)),
        "iglu_glu": (iglu.iglu_glu, (x, up)),
        "iglu_glu_approx": (lambda x, up: iglu.iglu_glu(x, up, approximate="rational"), (x, up)),
    }
    found = {}
    for name, (function, inputs) in calls.items():
        y = function(*inputs)

        def forward(function: Any = function, inputs: Any = inputs) -> None:
            with torch.no_grad():
                function(*inputs)

        def backward(y: Tensor = y, inputs: Any = inputs) -> None:
            torch.autograd.grad(y, inputs, grad, retain_graph=True)

        found[name] = {"forward": milliseconds(forward), "backward": milliseconds(backward)}
    return found


def main() -> int:
    if not torch.cuda.is_available():
        print("torch finds no GPU: install a CUDA or ROCm build of torch")
        return 1
    failures = triton.check_all(torch.device("cuda", torch.cuda.current_device()))
    failed = [f"{kernel}: {reason}" for kernel, reason in failures.items() if reason]
    print(f"{len(failures) - len(failed)} of {len(failures)} kernels passed their check")
    print("\n".join(failed))
    row: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "iglu": iglu.__version__,
        "explain": iglu.explain(torch.ones(1, device="cuda")),
        "failed": failed,
        "milliseconds": {},
    }
    for dtype in triton.DTYPES:
        for rows, columns in ((1, 1024), (1024, 4096), (8192, 8192)):
            found = timings(dtype, rows, columns)
            case = f"{dtype} {rows} x {columns}".removeprefix("torch.")
            row["milliseconds"][case] = found
            print(f"\n{case}: time relative to ReLU (forward, backward)")
            for name, each in found.items():
                ratios = [each[way] / found["relu"][way] for way in ("forward", "backward")]
                print(f"  {name:18} {ratios[0]:6.2f} {ratios[1]:6.2f}")
    print("\n" + json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
