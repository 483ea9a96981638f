"""Where commands print: names are text and never markup, and a file or a pipe has no width to keep to."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text


class Terminal(Console):
    """A console of rich for tables and bars; sentences go through ``say``, whole, however long."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False} | options)
        if not self.is_terminal and "width" not in options:
            self.width = 200

    def say(self, text: Any, style: str = "") -> None:
        self.print(Text(str(text), style), soft_wrap=True)
