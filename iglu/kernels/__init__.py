"""Dispatch: which backend runs a call, and why.

``native`` is the C kernels for the CPU, ``triton`` the GPU kernels, ``reference`` the formulas as torch
operations.  ``auto`` uses the backend of x's device and falls back to the reference formulas silently; a
backend selected by name raises for calls that it does not support.

The backend is a context variable: a thread or task that sets it does not affect the others, and a new thread
starts with the backend of the process.  A backward pass uses the backend of its forward pass.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from iglu.install_hint import pip_install
from iglu.kernels import native, triton
from iglu.kernels.autograd import KERNELS

BACKENDS = ("auto", "native", "triton", "reference")


class Backend(NamedTuple):
    """The name of a backend, and ``Kernels.forward`` of the CPU kernels if it uses them."""

    name: str
    native_forward: Callable[..., Tensor | None]
    problem: str = ""  # why no call can run


def _backend(name: str) -> Backend:
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {name!r}")
    if name == "native" and native.loops is None:
        command = pip_install(rebuild=True)
        raise RuntimeError(
            f"backend 'native' is not available: {native.unavailable_reason}. To enable it: {command}"
        )
    has_device = triton.device_type != "cuda" or torch.cuda.is_available()
    if name == "triton" and (reason := triton.load()[1] if has_device else "torch finds no GPU"):
        raise RuntimeError(f"backend 'triton' is not available: {reason}")
    has_native = name in ("auto", "native") and native.loops is not None
    return Backend(name, KERNELS["native"].forward if has_native else lambda *_: None)


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Select the backend for the calls inside: "auto", "native", "triton" or "reference".

    The environment variable IGLU_BACKEND does the same for the process.

    Args:
        name: "auto" uses the kernels of the tensor's device and falls back to the formulas in torch
            operations; "native" (C, for CPUs) and "triton" (GPUs) raise where they do not support a call;
            "reference" always uses the formulas.

    >>> import iglu
    >>> with iglu.backend("reference"):
    ...     iglu.explain(torch.ones(3))
    'reference: selected by name'
    """
    token = current.set(_backend(name))
    try:
        yield
    finally:
        current.reset(token)


def explain(x: Tensor) -> str:
    """Say which backend runs ``iglu(x)`` in this context, and why.  May run the first check of a GPU kernel.

    Args:
        x: A tensor of the device, dtype and layout in question; its values do not matter.
    """
    if torch._C._len_torch_function_stack():  # a mode handles iglu with itself disabled: do the same
        return str(handle_torch_function(explain, (), x))
    selected = current.get()
    if selected.problem:
        return selected.problem
    if selected.name == "reference":
        return "reference: selected by name"
    name = backend_for(x.device) if isinstance(x, Tensor) else "native"
    name = "native" if name == "reference" else name
    if reason := _unsupported_reason(name, x):
        return f"reference: {reason}"
    return f"native: {native.loops.capability()} loops" if name == "native" else "triton: passed its check"


def _unsupported_reason(name: str, x: Tensor) -> str:
    if name == "native":
        return native.unsupported_reason(x)
    return triton.select("forward", "value", x, None, 1.0, "none")[1]


def backend_for(device: torch.device) -> str:
    """The name of the backend for tensors on this device."""
    name = current.get().name
    if name != "auto":
        return name
    if device.type == triton.device_type:
        return "triton"
    return "native" if device.type == "cpu" and native.loops is not None else "reference"


def raise_if_unsupported(x: Tensor) -> None:
    """Raise if a backend was selected by name and does not support this call; an empty x is accepted."""
    name, _, problem = current.get()
    if problem:
        raise RuntimeError(problem)
    if name in ("auto", "reference") or (isinstance(x, Tensor) and x.numel() == 0):
        return
    if reason := _unsupported_reason(name, x):
        raise RuntimeError(f"backend {name!r} does not support this call: {reason}. Use iglu.backend('auto')")


def _from_environment() -> Backend:
    """The backend that IGLU_BACKEND names; an unavailable one raises at the first call, not on import."""
    name = os.environ.get("IGLU_BACKEND", "auto")
    try:
        return _backend(name)
    except (ValueError, RuntimeError) as error:
        problem = f"environment variable IGLU_BACKEND={name}: {error}"

    def fail(*_: object) -> Tensor | None:
        raise RuntimeError(problem)

    return Backend(name, fail, problem)


_PROCESS = _from_environment()
current: ContextVar[Backend] = ContextVar("backend", default=_PROCESS)
