"""Where commands print: names are text and never markup, and a file or a pipe has no width to keep to."""

from __future__ import annotations

import sys
from typing import IO, Any

from rich.console import Console
from rich.text import Text


class Terminal(Console):
    """A console of rich for tables and bars; sentences go through ``say``, whole, however long."""

    def __init__(self, file: IO[str] | None = None, width: int | None = None) -> None:
        is_terminal = (sys.stdout if file is None else file).isatty()
        super().__init__(
            file=file, highlight=False, markup=False, emoji=False,
            width=width if is_terminal or width is not None else 200,
        )  # fmt: skip

    def say(self, text: Any, style: str = "") -> None:
        self.print(Text(str(text), style), soft_wrap=True)
