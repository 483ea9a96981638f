"""The tail index of each layer while a model trains."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from iglu.lab.recipes import Recipe
from iglu.lab.runs.folder import Row
from iglu.lab.training.loop import Observer, Training
from iglu.probing import probe


class TailObserver(Observer):
    """Every ``every`` epochs, and after the last, adds ``tails`` to the epoch's line of metrics: for each
    layer alpha, a Gaussian's at the same n and k, the excess over it with its interval, and the scale, from
    the first batches of the test set.  The probe restores what it touches, so that the run is the same with
    it as without."""

    def __init__(self, every: int = 10, batches: int = 1, k: int | None = 100) -> None:
        if every < 1 or batches < 1:
            raise ValueError(f"every and batches must be at least 1, got {every} and {batches}")
        self.every, self.batches, self.k = every, batches, k

    def epoch_ended(self, training: Training, row: Row) -> Mapping[str, Any]:
        if row["epoch"] % self.every and row["epoch"] != training.recipe.last_epoch:
            return {}
        found = probe(training.model, itertools.islice(training.task.probe_batches(), self.batches), k=self.k)
        kept = ("alpha", "gaussian", "excess", "excess_low", "excess_high", "scale")
        return {"tails": {each["layer"]: {name: each.get(name) for name in kept} for each in found.rows()}}


def tail_observers(recipe: Recipe) -> list[Observer]:
    """What a recipe that asks for tails is watched by."""
    return [] if recipe.tails is None else [TailObserver(recipe.tails)]
