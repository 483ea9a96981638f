"""The same equations, fast: which kernel serves a call, and why.

``native`` are the compiled CPU loops, ``triton`` the GPU kernels, ``plain`` the formulas in torch.  ``auto``
takes the first that can serve, silently; a backend that was named and cannot serve raises.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from iglu.kernels import gpu, native, ordinary, pointers

BACKENDS = ("auto", "native", "triton", "plain")
REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps iglu-torch"


_Function = Callable[..., Tensor | None]
_Functions = tuple[_Function, _Function, _Function]


def _nothing(*_: object) -> Tensor | None:
    """Serves no call: the native kernels where there are none, or where plain was asked for."""
    return None


# What the functions try first; each answers None where it does not serve.
value: _Function = _nothing
gate: _Function = _nothing
glu: _Function = _nothing

_chosen = "auto"


def _choose(name: str) -> None:
    global _chosen, value, gate, glu
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {name!r}")
    if name == "native" and native.loops is None:
        raise RuntimeError(f"backend 'native' cannot serve: {native.why_no_loops}. To get it: {REBUILD}")
    if name == "triton" and (reason := gpu.why_none()):
        raise RuntimeError(f"backend 'triton' cannot serve: {reason}")
    value, gate, glu = _FUNCTIONS[name]()
    _chosen = name


def _native() -> _Functions:
    return (_nothing,) * 3 if native.loops is None else (native.value, native.gate, native.glu)


def _triton() -> _Functions:
    return gpu.value, gpu.gate, gpu.glu


def _auto() -> _Functions:
    # A build of torch without a GPU is spared the second question.
    if torch.version.cuda is None and torch.version.hip is None:
        return _native()
    first, second, third = (_either(*pair) for pair in zip(_native(), _triton(), strict=True))
    return first, second, third


def _either(on_cpu: _Function, on_gpu: _Function) -> _Function:
    def serve(*arguments: object) -> Tensor | None:
        served = on_cpu(*arguments)
        return on_gpu(*arguments) if served is None else served

    return serve


_FUNCTIONS: dict[str, Callable[[], _Functions]] = {
    "auto": _auto,
    "native": _native,
    "triton": _triton,
    "plain": lambda: (_nothing,) * 3,
}


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Choose the kernels for the calls inside: "auto", "native", "triton" or "plain".

    The environment variable IGLU_BACKEND does the same for a whole process.

    >>> import iglu
    >>> with iglu.backend("plain"):
    ...     iglu.explain(torch.ones(3))
    'plain: asked for by name'
    """
    before = _chosen
    _choose(name)
    try:
        yield
    finally:
        _choose(before)


def explain(x: Tensor) -> str:
    """Which kernel would serve ``iglu(x)`` here and now, and why."""
    if _chosen == "plain":
        return "plain: asked for by name"
    not_native, not_triton = _why_not_native(x), gpu.why_not(x)
    if _chosen != "triton" and not not_native:
        how = (
            "through the C++ entry"
            if native.entry is not None
            else f"by pointer, since {native.why_no_entry}"
        )
        return f"native: {native.loops.capability()} loops, {how}"
    if _chosen != "native" and not not_triton:
        return "triton: the GPU kernels"
    on_gpu = isinstance(x, Tensor) and x.is_cuda
    return f"plain: {not_triton if on_gpu or _chosen == 'triton' else not_native}"


def refuse_if_named(x: object) -> None:
    """Raise where kernels were named and did not serve this call."""
    if _chosen in ("native", "triton"):
        reason = _why_not_native(x) if _chosen == "native" else gpu.why_not(x)
        reason = reason or "this sigma or layout is not one for it"
        raise RuntimeError(f"backend {_chosen!r} cannot serve this call: {reason}. Use iglu.backend('auto')")


def _why_not_native(x: object) -> str:
    if native.loops is None:
        return native.why_no_loops
    if torch.compiler.is_compiling():
        return "the compiler fuses the plain formulas with their neighbours"
    if not ordinary.is_plain_eager():
        return "a mode or transform of torch is active"
    if not isinstance(x, Tensor):
        return f"x is no tensor but {type(x).__name__}"
    if not x.is_cpu:
        return f"x is on {x.device}, and the native kernels run on the CPU"
    if not ordinary.is_ordinary(x):
        return f"x is no ordinary dense tensor but {type(x).__name__} with layout {x.layout}"
    if x.dtype not in pointers.DTYPES:
        return f"x is of {x.dtype}"
    if not ordinary.is_dense(x):
        return "the memory of x has gaps or overlaps"
    return ""


_choose(os.environ.get("IGLU_BACKEND", "auto"))
