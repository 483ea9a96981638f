"""Shared by all tests; runs before any of them is imported.

A torchvision that does not match torch's build fails at import over two operators it would have
registered itself, and takes timm and the models of transformers down with it.  Declaring them is enough
for everything these tests use.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
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


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, and one thread: tests run beside each other."""
    monkeypatch.setenv("IGLU_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
