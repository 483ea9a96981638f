"""Metrics over epochs: for each recipe and activation the mean over seeds and its 95% band."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from iglu.lab.recipes import Recipe
from iglu.lab.report.content import Curve
from iglu.lab.results.comparison import Sample, is_number, setting_label
from iglu.lab.results.statistics import estimate

CURVED = ("train_loss", "test_loss", "test_acc", "perplexity")


def curves(samples: Mapping[Recipe, Mapping[str, Sample]]) -> tuple[Curve, ...]:
    """Of every recipe, activation and metric: the runs that are in its mean, and no others."""
    return tuple(
        curve
        for setting, of in samples.items()
        for sample in of.values()
        for metric in CURVED
        for curve in _curve(setting_label(setting), sample, metric)
    )


def _curve(recipe: str, sample: Sample, metric: str) -> Iterator[Curve]:
    """Over the epochs that every seed has: a band whose seeds change on the way would jump."""
    by_seed = [
        {row["epoch"]: float(row[metric]) for row in run.history if is_number(row.get(metric))}
        for run in sample.runs
    ]
    epochs = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    if not epochs:
        return
    found = [estimate(values[epoch] for values in by_seed) for epoch in epochs]
    ends = [(each.low, each.high) if each.has_interval else (each.value, each.value) for each in found]
    means = tuple(each.value for each in found)
    low, high = zip(*ends, strict=True)
    yield Curve(recipe, sample.activation, metric, tuple(map(float, epochs)), means, low, high, len(by_seed))
