"""Estimate the remaining time of a sweep from similar runs that exist."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

from iglu_lab.recipes import Recipe
from iglu_lab.runs.folder import Run

UNKNOWN = "unknown until the first run ends"

# The fields on which the time of an epoch depends.  The activation changes it by only a few percent.
_COSTS = (
    "dataset", "model", "steps_per_epoch", "batch_size", "gradient_accumulation", "ratio", "profile",
    "image_size", "context", "tokenizer", "precision", "compile", "channels_last", "evaluate_every",
    "threads", "accelerator",
)  # fmt: skip


def durations(
    recipes: Iterable[Recipe], runs: Iterable[Run] = (), started: Mapping[Recipe, Run] | None = None
) -> dict[Recipe, float]:
    """Seconds of the remaining epochs of each recipe, NaN if unknown; ``runs`` are earlier runs of any
    recipe, ``started`` those of the recipes themselves."""
    epochs: dict[tuple[object, ...], list[float]] = {}
    for run in runs:
        if run.history:
            epochs.setdefault(_cost(run.recipe), []).append(run.seconds / len(run.history))
    means = {cost: statistics.fmean(times) for cost, times in epochs.items()}
    done = {recipe: len(run.history) for recipe, run in (started or {}).items()}
    return {
        recipe: (recipe.last_epoch - done.get(recipe, 0)) * means.get(_cost(recipe), math.nan)
        for recipe in recipes
    }


def wall_seconds(seconds: Iterable[float], jobs: int) -> float:
    """Wall time with ``jobs`` runs at a time: an equal share, but at least the longest run."""
    known = [value for value in seconds if math.isfinite(value)]
    return max(math.fsum(known) / jobs, max(known, default=0.0))


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(5400), format_duration(40), format_duration(400_000), format_duration(math.nan)
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
