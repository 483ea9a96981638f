"""A run's folder: what is written there, and how it is read back.

::

    recipe.json        every field of the recipe
    provenance.jsonl   one line for each start: commit, versions, device, threads
    metrics.jsonl      one line an epoch
    state.json         how the run ended; missing while it has not
    checkpoint-*       see iglu.lab.training.checkpoint
    lock               held by the process that is at it
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from iglu.lab.recipes import Recipe
from iglu.lab.training.checkpoint import newest_checkpoint

Row = dict[str, Any]

RECIPE, PROVENANCE, METRICS, STATE = "recipe.json", "provenance.jsonl", "metrics.jsonl", "state.json"

# One of these is in the line of every epoch, by the kind of data and whether it ended with an evaluation.
SHOWN_METRICS = frozenset(("train_loss", "test_acc", "perplexity"))

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
    def metric(self) -> str:
        """The name of the metric that tables show."""
        return "perplexity" if any("perplexity" in row for row in self.history) else "test_acc"

    @property
    def evaluated(self) -> tuple[Row, ...]:
        """The epochs that ended with an evaluation; the last of a run always does."""
        return tuple(row for row in self.history if self.metric in row)

    @property
    def last(self) -> Row:
        """The last of these: what the paper reports, and what means over seeds are made of."""
        if not self.evaluated:
            raise ValueError(f"{self.folder} has no finished epoch that was evaluated")
        return self.evaluated[-1]

    @property
    def best(self) -> Row:
        """The best epoch by the test set itself: flattering, to be shown beside the last and marked."""
        if not self.evaluated:
            raise ValueError(f"{self.folder} has no finished epoch that was evaluated")
        sign = -1 if self.metric == "perplexity" else 1
        return max(self.evaluated, key=lambda row: float(sign * row[self.metric]))

    def is_done_for(self, recipe: Recipe) -> bool:
        """Whether nothing is left to do for ``recipe``, which may ask for more epochs than this run's: it
        diverged, or has them all."""
        done = len(self.history) if self.status in ("finished", "stopped") else 0
        return self.status == "diverged" or done >= recipe.last_epoch

    @property
    def is_sound(self) -> bool:
        """Whether it may enter a mean: it has every epoch it was to have, and did not diverge."""
        return self.status != "diverged" and bool(self.evaluated) and self.is_done_for(self.recipe)

    def without_timings(self) -> list[Row]:
        """The history as far as it must be the same each time."""
        return [{key: row[key] for key in row if key not in TIMINGS} for row in self.history]

    def load_model(self, data: Path | str | None = None) -> nn.Module:
        """The model with the weights of the last checkpoint, in evaluation mode."""
        from iglu.lab.training.tasks import load_task

        state, complaints = newest_checkpoint(self.folder)
        if state is None:
            raise FileNotFoundError(f"No sound checkpoint in {self.folder}. {' '.join(complaints)}".rstrip())
        model = load_task(self.recipe, data).make_model()
        model.load_state_dict(state["model"])
        return model.eval()


def read_run(folder: Path | str, complaints: list[str] | None = None) -> Run:
    """The run in ``folder``; a ValueError says what is wrong with it.  With a list for ``complaints``, lines
    of metrics that cannot be read are left out and named there."""
    folder, bad_lines = Path(folder), list[str]()
    try:
        recipe = Recipe.from_dict(json.loads((folder / RECIPE).read_text()))
        state = json.loads(_text(folder / STATE) or '{"status": "unfinished"}')
        history = _history(folder / METRICS, bad_lines)
        if bad_lines and complaints is None:
            raise ValueError(bad_lines[0])
        run = Run(folder, recipe, state["status"], history, state.get("message", ""))
    except FileNotFoundError:
        raise ValueError(f"{folder} is not the folder of a run: it has no {RECIPE}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder} cannot be read: {error}") from error
    if complaints is not None:
        complaints += bad_lines
    return run


def read_runs(folder: Path | str) -> tuple[list[Run], list[str]]:
    """Every run below ``folder``, and what is wrong: folders that cannot be read, and lines of metrics, which
    are left out."""
    complaints: list[str] = []

    def read(path: Path) -> Run | None:
        try:
            return read_run(path.parent, complaints)
        except ValueError as error:
            complaints.append(str(error))
            return None

    runs = [read(path) for path in sorted(Path(folder).rglob(RECIPE))]
    return [run for run in runs if run is not None], complaints


def _history(path: Path, bad_lines: list[str]) -> tuple[Row, ...]:
    rows = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        row = _epoch(line)
        if row is None:
            bad_lines.append(f"line {number} of {path} is not an epoch's metrics")
        else:
            rows.append(row)
    return tuple(rows)


def _epoch(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_epoch = isinstance(row, dict) and isinstance(row.get("epoch"), int)
    return row if is_epoch and not SHOWN_METRICS.isdisjoint(row) else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
