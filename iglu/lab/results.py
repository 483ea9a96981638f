"""A run's folder: what is written there, how it is read back, and statistics over seeds.

::

    recipe.json        every field of the recipe
    provenance.jsonl   one line for each start: commit, versions, device, threads
    metrics.jsonl      one line an epoch
    state.json         how the run ended; missing while it has not
    checkpoint-*       see iglu.lab.checkpoint
    lock               held by the process that is at it
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from iglu.lab.checkpoint import newest_checkpoint
from iglu.lab.recipes import Recipe

Row = dict[str, Any]

RECIPE, PROVENANCE, METRICS, STATE = "recipe.json", "provenance.jsonl", "metrics.jsonl", "state.json"

# What differs between two runs that are equal: time, and what is made of it.
TIMINGS = ("seconds", "test_seconds", "rate")


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it."""

    folder: Path
    recipe: Recipe
    status: str  # "finished", "stopped" (at an epoch or by request), "diverged", "unfinished"
    history: tuple[Row, ...]  # a row an epoch
    message: str = ""

    @property
    def figure(self) -> str:
        """The name of the figure that tables show."""
        return "perplexity" if self.history and "perplexity" in self.history[-1] else "test_acc"

    @property
    def last(self) -> Row:
        """The last epoch: what the paper reports, and what means over seeds are made of."""
        if not self.history:
            raise ValueError(f"{self.folder} has no finished epoch")
        return self.history[-1]

    @property
    def best(self) -> Row:
        """The best epoch by the test set itself: flattering, to be shown beside the last and marked."""
        if not self.history:
            raise ValueError(f"{self.folder} has no finished epoch")
        sign = -1 if self.figure == "perplexity" else 1
        return max(self.history, key=lambda row: sign * row[self.figure])

    def without_timings(self) -> list[Row]:
        """The history as far as it must be the same each time."""
        return [{key: row[key] for key in row if key not in TIMINGS} for row in self.history]

    def load_model(self, data: Path | str | None = None) -> nn.Module:
        """The model with the weights of the last checkpoint, in evaluation mode."""
        from iglu.lab.tasks import load_task

        state, complaints = newest_checkpoint(self.folder)
        if state is None:
            raise FileNotFoundError(f"No sound checkpoint in {self.folder}. {' '.join(complaints)}".rstrip())
        model = load_task(self.recipe, data).make_model()
        model.load_state_dict(state["model"])
        return model.eval()


def read_run(folder: Path | str) -> Run:
    """The run in ``folder``; a ValueError says what is wrong with it."""
    folder = Path(folder)
    try:
        recipe = Recipe.from_dict(json.loads((folder / RECIPE).read_text()))
        state = json.loads(_text(folder / STATE) or '{"status": "unfinished"}')
        history = [json.loads(line) for line in _text(folder / METRICS).splitlines()]
        return Run(folder, recipe, state["status"], tuple(history), state.get("message", ""))
    except FileNotFoundError:
        raise ValueError(f"{folder} is not the folder of a run: it has no {RECIPE}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{folder} cannot be read: {error}") from error


def read_runs(folder: Path | str) -> tuple[list[Run], list[str]]:
    """Every run below ``folder``, and what is wrong with the folders that cannot be read."""
    complaints: list[str] = []

    def read(path: Path) -> Run | None:
        try:
            return read_run(path.parent)
        except ValueError as error:
            complaints.append(str(error))
            return None

    runs = [read(path) for path in sorted(Path(folder).rglob(RECIPE))]
    return [run for run in runs if run is not None], complaints


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


class Estimate(NamedTuple):
    """A mean over seeds and its 95% t-interval; of one value the interval is the whole line."""

    mean: float
    deviation: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        if self.seeds < 2:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {(self.high - self.low) / 2:.2f}"


def estimate(values: Iterable[float]) -> Estimate:
    """
    >>> print(estimate([1.0, 2.0, 3.0]))
    2.00 ± 2.48
    """
    sample = list(values)
    if not sample:
        raise ValueError("No values to take the mean of")
    count = len(sample)
    mean = math.fsum(sample) / count
    if count < 2:
        return Estimate(mean, math.nan, -math.inf, math.inf, count)
    from scipy.stats import t

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in sample) / (count - 1))
    half = float(t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
    return Estimate(mean, deviation, mean - half, mean + half, count)


def paired_difference(runs: Sequence[Run], reference: Sequence[Run], figure: str) -> Estimate:
    """The figure of ``runs`` minus that of ``reference``, seed by seed: what the seeds share (the data's
    order, the long tail's choice) cancels, so that the interval is narrower than that of either mean."""
    other = {run.recipe.seed: run.last[figure] for run in reference}
    return estimate(run.last[figure] - other[run.recipe.seed] for run in runs if run.recipe.seed in other)
