"""Figures over epochs: for each recipe and activation the mean over seeds and its 95% band."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from iglu.lab.report.content import Curve
from iglu.lab.results.comparison import by_setting, setting_label
from iglu.lab.results.statistics import estimate
from iglu.lab.runs.folder import Run

CURVED = ("train_loss", "test_loss", "test_acc", "perplexity")


def curves(runs: Iterable[Run]) -> tuple[Curve, ...]:
    """Of every recipe, activation and metric that has an epoch."""
    return tuple(_curves(runs))


def _curves(runs: Iterable[Run]) -> Iterator[Curve]:
    for setting, by_activation in by_setting(run for run in runs if run.history).items():
        for activation, mine in by_activation.items():
            for metric in CURVED:
                curve = _curve(setting_label(setting), activation, metric, mine)
                if curve is not None:
                    yield curve


def _curve(recipe: str, activation: str, metric: str, runs: Sequence[Run]) -> Curve | None:
    """Over the epochs that every seed has: a band whose seeds change on the way would jump."""
    by_seed = [
        {
            row["epoch"]: float(row[metric])
            for row in run.history
            if isinstance(row.get(metric), int | float) and math.isfinite(row[metric])
        }
        for run in runs
    ]
    by_seed = [values for values in by_seed if values]
    if not by_seed:
        return None
    epochs = sorted(set.intersection(*(set(values) for values in by_seed)))
    if not epochs:
        return None
    found = [estimate([values[epoch] for values in by_seed]) for epoch in epochs]
    has_band = len(by_seed) > 1
    return Curve(
        recipe,
        activation,
        metric,
        tuple(float(epoch) for epoch in epochs),
        tuple(each.mean for each in found),
        tuple(each.low if has_band else each.mean for each in found),
        tuple(each.high if has_band else each.mean for each in found),
        len(by_seed),
    )
