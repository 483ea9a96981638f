"""The same equations, fast: which kernels serve a call, and why.

``native`` are the compiled CPU loops, ``triton`` the GPU kernels, ``plain`` the formulas in torch.  ``auto``
takes the first that can serve, silently; a backend that was named and cannot serve raises.

The choice belongs to the context (``contextvars``): a thread or a task that chooses leaves the others alone,
and a new thread starts with the choice of the process.  The backward pass uses what its forward pass used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from iglu.installed import pip_install
from iglu.kernels import cpu, gpu
from iglu.kernels.record import KERNELS

BACKENDS = ("auto", "native", "triton", "plain")

_Forward = Callable[..., Tensor | None]


class Choice(NamedTuple):
    """A backend by its name, and what the functions try first: see ``Kernels.forward``."""

    name: str
    forward: _Forward


def _nothing(*_: object) -> Tensor | None:
    """Serves no call: the formulas do."""
    return None


def _choice(name: str) -> Choice:
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {name!r}")
    if name == "native" and cpu.loops is None:
        command = pip_install(is_rebuilt=True)
        raise RuntimeError(f"backend 'native' cannot serve: {cpu.why_none}. To get it: {command}")
    if name == "triton" and (reason := gpu.why_none()):
        raise RuntimeError(f"backend 'triton' cannot serve: {reason}")
    on_cpu = KERNELS["native"].forward if cpu.loops is not None else _nothing
    if name in ("native", "triton"):
        return Choice(name, KERNELS[name].forward)
    if name == "plain":
        return Choice(name, _nothing)
    # A build of torch without a GPU is spared the second question.
    has_gpu = torch.version.cuda is not None or torch.version.hip is not None
    return Choice(name, _either(on_cpu, KERNELS["triton"].forward) if has_gpu else on_cpu)


def _either(on_cpu: _Forward, on_gpu: _Forward) -> _Forward:
    def forward(*call: object) -> Tensor | None:
        served = on_cpu(*call)
        return on_gpu(*call) if served is None else served

    return forward


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Choose the kernels for the calls inside: "auto", "native", "triton" or "plain".

    The environment variable IGLU_BACKEND does the same for a whole process.

    >>> import iglu
    >>> with iglu.backend("plain"):
    ...     iglu.explain(torch.ones(3))
    'plain: asked for by name'
    """
    token = chosen.set(_choice(name))
    try:
        yield
    finally:
        chosen.reset(token)


def explain(x: Tensor) -> str:
    """Which kernels would serve ``iglu(x)`` here and now, and why."""
    name = chosen.get().name
    if name == "plain":
        return "plain: asked for by name"
    not_native, not_triton = cpu.why_not(x), gpu.why_not(x)
    if name != "triton" and not not_native:
        return f"native: {cpu.loops.capability()} loops"
    if name != "native" and not not_triton:
        return "triton: the GPU kernels"
    on_gpu = isinstance(x, Tensor) and x.is_cuda
    return f"plain: {not_triton if on_gpu or name == 'triton' else not_native}"


def kernels_for(x: Tensor) -> str:
    """The name of the kernels that x is for, by its device."""
    name = chosen.get().name
    if name != "auto":
        return name
    if x.is_cuda:
        return "triton"
    return "native" if cpu.loops is not None else "plain"


def refuse_if_named(x: Tensor) -> None:
    """Raise where kernels were named and do not serve this call; an empty x needs none."""
    name = chosen.get().name
    if name in ("auto", "plain") or (isinstance(x, Tensor) and x.numel() == 0):
        return
    reason = cpu.why_not(x) if name == "native" else gpu.why_not(x)
    if reason:
        raise RuntimeError(f"backend {name!r} cannot serve this call: {reason}. Use iglu.backend('auto')")


_PROCESS = _choice(os.environ.get("IGLU_BACKEND", "auto"))
chosen: ContextVar[Choice] = ContextVar("chosen", default=_PROCESS)
