"""The published numbers, read from paper.toml."""

from __future__ import annotations

import functools
import sys
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@functools.cache
def paper() -> dict[str, Any]:
    """The whole file; treat it as read-only."""
    return tomllib.loads(resources.files("iglu.lab").joinpath("paper.toml").read_text(encoding="utf-8"))


def table1() -> dict[str, dict[str, float]]:
    """Table 1 by activation: time relative to Identity under cpu_forward, cpu_backward, gpu_forward,
    gpu_backward."""
    columns = paper()["table1"]["columns"]
    return {
        name: dict(zip(columns, numbers, strict=True)) for name, numbers in paper()["table1"]["rows"].items()
    }
