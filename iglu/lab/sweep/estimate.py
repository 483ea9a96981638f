"""How long what is left of a sweep will take: known from runs of the same kind that are there, else not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

from iglu.lab.recipes import Recipe
from iglu.lab.runs.folder import Run

UNKNOWN = "unknown until the first run ends"

# What the time of an epoch depends on; the activation, to a few percent only.
_COSTS = (
    "dataset", "model", "epoch_steps", "batch", "accumulate", "ratio", "profile", "size", "context",
    "tokenizer", "precision", "compile", "channels_last", "evaluate_every", "threads", "accelerator",
)  # fmt: skip


def durations(
    recipes: Iterable[Recipe], runs: Iterable[Run] = (), begun: Mapping[Recipe, Run] | None = None
) -> dict[Recipe, float]:
    """For each the seconds of the epochs it has to go, NaN where nothing tells; ``runs`` are earlier ones of
    any recipe, ``begun`` those of the recipes themselves."""
    epochs: dict[tuple[object, ...], list[float]] = {}
    for run in runs:
        if run.history:
            epochs.setdefault(_cost(run.recipe), []).append(run.seconds / len(run.history))
    means = {cost: statistics.fmean(times) for cost, times in epochs.items()}
    done = {recipe: len(run.history) for recipe, run in (begun or {}).items()}
    return {
        recipe: (recipe.last_epoch - done.get(recipe, 0)) * means.get(_cost(recipe), math.nan)
        for recipe in recipes
    }


def wall_seconds(seconds: Iterable[float], jobs: int) -> float:
    """With ``jobs`` runs at a time: an even share of all, but no less than the longest run."""
    known = [value for value in seconds if math.isfinite(value)]
    return max(math.fsum(known) / jobs, max(known, default=0.0))


def in_words(seconds: float) -> str:
    """
    >>> in_words(5400), in_words(40), in_words(400_000), in_words(math.nan)
    ('1.5 h', '40 s', '111 h', '?')
    """
    if math.isnan(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h" if seconds < 36_000 else f"{seconds / 3600:,.0f} h"


def _cost(recipe: Recipe) -> tuple[object, ...]:
    return tuple(getattr(recipe, name) for name in _COSTS)
