"""The progress of a sweep: one live line per running run in a terminal, otherwise plain lines."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from iglu_lab.console import Terminal
from iglu_lab.sweep.estimate import format_duration
from iglu_lab.sweep.pool import PoolObserver, Progress


class SweepDisplay(PoolObserver[Any, Any]):
    """Shows ``total`` runs on the console while the context is active.  A run has a name, an activation, a
    seed and the name of a folder; a result has its run as ``item``, a failure and a description."""

    def __init__(self, console: Terminal, total: int) -> None:
        self.console, self.total = console, total
        self.running: dict[Any, Progress | None] = {}
        self.results: list[Any] = []
        self.shown_notes: set[tuple[Any, str]] = set()
        self.started = time.monotonic()
        self.live = Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=True)

    def __enter__(self) -> SweepDisplay:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def progressed(self, item: Any, progress: Progress | None) -> None:
        if item not in self.running and not self.console.is_terminal:
            self.noted(f"starts  {item.folder_name}")
        self.running[item] = progress
        for note in progress.notes if progress is not None else ():
            if (item, note) not in self.shown_notes:
                self.shown_notes.add((item, note))
                self.noted(f"{item.folder_name}: {note}")

    def ended(self, result: Any) -> None:
        self.running.pop(result.item, None)
        self.results.append(result)
        left = "" if self.console.is_terminal or len(self.results) == self.total else f"; {self._time_left()}"
        self.noted(
            f"{len(self.results):>4}/{self.total}  {result.item.folder_name}  {result.describe()}{left}"
        )

    def noted(self, text: str) -> None:
        self.console.say(text)

    def render(self) -> RenderableType:
        """One line per running run, and one for the others."""
        grid = Table.grid(padding=(0, 1))
        for column in range(4):
            grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if column == 3 else None)
        for item, progress in self.running.items():
            share, where, text = 0.0, "", "starts"
            if progress is not None:
                share, text = progress.share, progress.text
                where = f"epoch {progress.epoch}" + (f" of {progress.epochs}" if progress.epochs else "")
            name = f"{item.name} {item.activation} seed {item.seed}"
            grid.add_row(name, ProgressBar(100, 100 * share, width=16), where, text)
        return Group(grid, Text(self._totals(), style="dim"))

    def _totals(self) -> str:
        ended, elapsed = len(self.results), time.monotonic() - self.started
        failures = sum(bool(result.failure) for result in self.results)
        parts = [f"{ended} of {self.total} ended"]
        parts += [f"{failures} failed"] if failures else []
        parts += [f"{self.total - ended - len(self.running)} waiting", f"{format_duration(elapsed)} elapsed"]
        return ", ".join([*parts, self._time_left()] if ended else parts)

    def _time_left(self) -> str:
        done = len(self.results) + sum(progress.share for progress in self.running.values() if progress)
        seconds = (time.monotonic() - self.started) * (self.total - done) / done
        return f"about {format_duration(seconds)} left"
