"""The same equations, fast: which kernel serves a call, and why.

``native`` are the compiled CPU loops, ``plain`` the formulas in torch.  ``auto`` takes the native kernels
where they can serve and the plain ones elsewhere, silently; a backend that was named and cannot serve raises.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from iglu.kernels import native

BACKENDS = ("auto", "native", "triton", "plain")
REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps iglu-torch"


def _nothing(*_: object) -> Tensor | None:
    """Serves no call: the native kernels where there are none, or where plain was asked for."""
    return None


# What the functions try first; each answers None where it does not serve.
value: Callable[..., Tensor | None] = _nothing
gate: Callable[..., Tensor | None] = _nothing
glu: Callable[..., Tensor | None] = _nothing

_chosen = "auto"


def _choose(name: str) -> None:
    global _chosen, value, gate, glu
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {name!r}")
    if name == "native" and native.loops is None:
        raise RuntimeError(f"backend 'native' cannot serve: {native.why_no_loops}. To get it: {REBUILD}")
    if name == "triton":
        raise RuntimeError(
            "backend 'triton' cannot serve: this version has no GPU kernels; use 'auto' or 'plain'"
        )
    uses_native = name in ("auto", "native") and native.loops is not None
    value, gate, glu = (
        (native.value, native.gate, native.glu) if uses_native else (_nothing, _nothing, _nothing)
    )
    _chosen = name


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
    reason = _why_not_native(x)
    if reason:
        return f"plain: {reason}"
    how = "through the C++ entry" if native.entry is not None else f"by pointer, since {native.why_no_entry}"
    return f"native: {native.loops.capability()} loops, {how}"


def refuse_if_named(x: object) -> None:
    """Raise where the native kernels were named and did not serve this call."""
    if _chosen == "native":
        reason = _why_not_native(x) or "this sigma or layout is not one for them"
        raise RuntimeError(
            f"backend 'native' cannot serve this call: {reason}. iglu.backend('auto') would go on"
        )


def _why_not_native(x: object) -> str:
    if native.loops is None:
        return native.why_no_loops
    if torch.compiler.is_compiling():
        return "the compiler fuses the plain formulas with their neighbours"
    if not native.is_plain_eager():
        return "a mode or transform of torch is active"
    if not isinstance(x, Tensor):
        return f"x is no tensor but {type(x).__name__}"
    if not x.is_cpu:
        return f"x is on {x.device}, and the native kernels run on the CPU"
    if not native.is_ordinary(x):
        return f"x is no ordinary dense tensor but {type(x).__name__} with layout {x.layout}"
    if x.dtype not in native.DTYPES:
        return f"x is of {x.dtype}"
    if not native.is_dense(x):
        return "the memory of x has gaps or overlaps"
    return ""


_choose(os.environ.get("IGLU_BACKEND", "auto"))
