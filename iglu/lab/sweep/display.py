"""A sweep as it goes: a live line for each running run in a terminal, elsewhere a plain line when a run
begins and ends."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from iglu.lab.console import Terminal
from iglu.lab.recipes import Recipe
from iglu.lab.sweep.estimate import in_words
from iglu.lab.sweep.work import Outcome, Progress, Watcher
from iglu.lab.training.progress import conclude


class Lines(Watcher):
    """Shows ``total`` runs on the console while the context lasts."""

    def __init__(self, console: Terminal, total: int) -> None:
        self.console, self.total = console, total
        self.running: dict[Recipe, Progress | None] = {}
        self.ends: list[Outcome] = []
        self.told: set[tuple[Recipe, str]] = set()  # of the notes of runs
        self.began = time.monotonic()
        self.live = Live(console=console, get_renderable=self.picture, refresh_per_second=4, transient=True)

    def __enter__(self) -> Lines:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def progressed(self, recipe: Recipe, progress: Progress | None) -> None:
        if recipe not in self.running and not self.console.is_terminal:
            self.noted(f"begins  {recipe.folder_name}")
        self.running[recipe] = progress
        for note in progress.notes if progress is not None else ():
            if (recipe, note) not in self.told:
                self.told.add((recipe, note))
                self.noted(f"{recipe.folder_name}: {note}")

    def ended(self, outcome: Outcome) -> None:
        self.running.pop(outcome.recipe, None)
        self.ends.append(outcome)
        how = f"failed: {outcome.failure}" if outcome.run is None else conclude(outcome.run)
        self.noted(f"{len(self.ends):>4}/{self.total}  {outcome.recipe.folder_name}  {how}")

    def noted(self, text: str) -> None:
        self.console.say(text)

    def picture(self) -> RenderableType:
        """A line a running run, and one for the others."""
        grid = Table.grid(padding=(0, 1))
        for column in range(4):
            grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if column == 3 else None)
        for recipe, progress in self.running.items():
            share = 0.0 if progress is None else progress.share
            where, text = ("", "begins") if progress is None else (f"epoch {progress.epoch}", progress.text)
            if progress is not None:
                where += f" of {progress.epochs}"
            name = f"{recipe.name} {recipe.activation} seed {recipe.seed}"
            grid.add_row(name, ProgressBar(100, 100 * share, width=16), where, text)
        return Group(grid, Text(self._rest(), style="dim"))

    def _rest(self) -> str:
        waiting = self.total - len(self.ends) - len(self.running)
        elapsed = time.monotonic() - self.began
        parts = [
            f"{len(self.ends)} of {self.total} ended",
            f"{waiting} waiting",
            f"{in_words(elapsed)} so far",
        ]
        failures = sum(outcome.run is None for outcome in self.ends)
        if failures:
            parts.insert(1, f"{failures} failed")
        if self.ends:
            # Those that run count for what they have done.
            done = len(self.ends) + sum(progress.share for progress in self.running.values() if progress)
            parts.append(f"about {in_words(elapsed * (self.total - done) / done)} left")
        return ", ".join(parts)
