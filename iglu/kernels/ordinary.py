"""Which tensors and which moments are ordinary: dense memory, and no mode or transform that wants to see."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


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
