"""Log the tail index of each layer during training."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from iglu.probing import probe
from iglu_lab.recipes import Recipe
from iglu_lab.runs.folder import Row
from iglu_lab.training.loop import Observer, Training


class TailObserver(Observer):
    """Every ``every`` epochs, and after the last, adds ``tails`` to the epoch's line of metrics: for each
    layer alpha, that of a Gaussian at the same n and k, the excess with its interval, and the robust SD (as
    "scale"), from the first batches of the test set.  The probe restores all state, so that it does not
    change the run."""

    def __init__(self, every: int = 10, batches: int = 1, k: int | None = 100) -> None:
        if every < 1 or batches < 1:
            raise ValueError(f"every and batches must be at least 1, got {every} and {batches}")
        self.every, self.batches, self.k = every, batches, k

    def epoch_ended(self, training: Training, row: Row) -> Mapping[str, Any]:
        if row["epoch"] % self.every and row["epoch"] != training.recipe.last_epoch:
            return {}
        found = probe(
            training.model, itertools.islice(training.workload.probe_batches(), self.batches), k=self.k
        )
        kept = ("alpha", "gaussian", "excess", "excess_low", "excess_high")
        return {
            "tails": {
                row["layer"]: {**{name: row.get(name) for name in kept}, "scale": row["robust_sd"]}
                for row in found.rows()
            }
        }


def tail_observers(recipe: Recipe) -> list[Observer]:
    """The observer for ``tails_every``, if it is set."""
    return [] if recipe.tails_every is None else [TailObserver(recipe.tails_every)]
