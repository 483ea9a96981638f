"""A picture before it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Drawing(NamedTuple):
    """``draw`` makes the figure of matplotlib; ``alt`` says in words what it shows."""

    key: str
    title: str
    alt: str
    draw: Callable[[], Any]
