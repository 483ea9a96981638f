"""The native CPU kernels: the operations of ``iglu._entry`` where it was built for this torch, else the loops
of ``iglu._kernels`` by pointer.

Each of ``value``, ``gate`` and ``glu`` answers None where the call is not one for these kernels: whatever is
not a plain dense CPU tensor in plain eager mode is left to :mod:`iglu.kernels.plain`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from iglu.kernels import pointers
from iglu.kernels.compiled import entry, is_threaded, loops, why_no_entry, why_no_loops

__all__ = ["entry", "gate", "glu", "is_threaded", "loops", "value", "why_no_entry", "why_no_loops"]

value: Callable[..., Tensor | None] = entry.value if entry is not None else pointers.value
gate: Callable[..., Tensor | None] = entry.gate if entry is not None else pointers.gate
glu: Callable[..., Tensor | None] = entry.glu if entry is not None else pointers.glu
