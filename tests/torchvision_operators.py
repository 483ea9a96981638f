"""Importing this makes a torchvision that does not match the build of torch importable.

Such a torchvision fails at import over two operators that it would have registered itself, and takes timm
and the models of transformers down with it.  Declaring them is enough for everything that the tests use.
"""

from __future__ import annotations

import importlib.util

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _declare_missing_operators() -> torch.library.Library | None:
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(name + _SCHEMA)
        return library
    return None


# Kept alive: the operators go when the library object does.
_TORCHVISION = _declare_missing_operators()
