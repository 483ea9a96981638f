"""The console of the commands: text is never markup; a file or a pipe is 200 wide unless COLUMNS is set."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.text import Text


class Terminal(Console):
    """A rich console for tables and progress bars; ``say`` prints text without wrapping it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False} | options)
        if not self.is_terminal and "width" not in options and "COLUMNS" not in os.environ:
            self.width = 200

    def say(self, text: Any, style: str = "") -> None:
        self.print(Text(str(text), style), soft_wrap=True)
