"""The two compiled parts: ``iglu._kernels`` has the loops and needs no torch; ``iglu._entry`` makes torch
operations of them and was built for one version of torch.  Either may be missing; then this says why."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import pathlib
import re
import sys
from typing import Any

import torch

loops: Any = None
"""The module ``iglu._kernels``, if it is there."""
why_no_loops = "the loops (iglu._kernels) were not built"

if importlib.util.find_spec("iglu._kernels") is not None:
    try:
        loops = importlib.import_module("iglu._kernels")
        why_no_loops = ""
    except ImportError as error:
        why_no_loops = f"the loops (iglu._kernels) do not load: {error}"


def _torch_parallel_for() -> int | None:
    """The address of torch's own parallel loop (a C function since 2.10), so that there is one pool of
    threads and torch.set_num_threads is honoured."""
    name = {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / name))
        return ctypes.cast(library.torch_parallel_for, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _load_entry() -> tuple[Any, str]:
    """The module ``iglu._entry``, or why it does not serve.

    Its file says for which torch it was built, and is asked before it is loaded: one that was built for
    another torch need not fail politely."""
    found = importlib.util.find_spec("iglu._entry")
    if found is None or found.origin is None:
        return None, "the entry (iglu._entry) was not built"
    mark = re.search(rb"iglu entry for torch ([^;]*);", pathlib.Path(found.origin).read_bytes())
    built_for = mark.group(1).decode() if mark else "an unknown version"
    if built_for != torch.__version__:
        return None, f"the entry (iglu._entry) was built for torch {built_for}, this is {torch.__version__}"
    try:
        return importlib.import_module("iglu._entry"), ""
    except ImportError as error:
        return None, f"the entry (iglu._entry) does not load: {error}"


is_threaded = False
entry: Any = None
why_no_entry = why_no_loops
if loops is not None:
    _address = _torch_parallel_for()
    loops.set_parallel_for(_address)
    is_threaded = _address is not None
    entry, why_no_entry = _load_entry()
