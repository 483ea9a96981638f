"""Numbers over epochs: for each recipe and activation the mean over seeds and its 95% band."""

from __future__ import annotations

import functools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from iglu.lab.recipes import Recipe
from iglu.lab.report.content import Curve
from iglu.lab.results.comparison import Sample, is_number, setting_label
from iglu.lab.results.statistics import estimate

CURVED = ("train_loss", "test_loss", "test_acc", "perplexity")
_PERCENT = "test_acc"  # and its parts

Row = Mapping[str, Any]


def curves(samples: Mapping[Recipe, Mapping[str, Sample]]) -> tuple[Curve, ...]:
    """Of every recipe, activation and metric: the runs that are in its mean, and no others."""
    return tuple(
        curve
        for setting, of in samples.items()
        for sample in of.values()
        for metric in CURVED
        for curve in _curve(setting_label(setting), sample, metric, operator.methodcaller("get", metric))
    )


def learned_sigmas(samples: Mapping[Recipe, Mapping[str, Sample]]) -> tuple[Curve, ...]:
    """Of every activation that learns its sigma, a curve a layer; of a sigma a channel, their mean."""
    return tuple(
        curve
        for setting, of in samples.items()
        for sample in of.values()
        for layer in _layers(sample)
        for curve in _curve(setting_label(setting), sample, layer, functools.partial(_sigma, layer))
    )


def _layers(sample: Sample) -> Iterable[str]:
    rows = (row.get("sigmas") for run in sample.runs for row in run.history)
    return dict.fromkeys(layer for sigmas in rows if isinstance(sigmas, Mapping) for layer in sigmas)


def _sigma(layer: str, row: Row) -> float | None:
    sigmas = row.get("sigmas")
    values = sigmas.get(layer) if isinstance(sigmas, Mapping) else None
    values = values if isinstance(values, list) else [values]
    return statistics.fmean(values) if values and all(map(is_number, values)) else None


def _curve(recipe: str, sample: Sample, name: str, value: Callable[[Row], Any]) -> Iterator[Curve]:
    """Over the epochs that every seed has: a band whose seeds change on the way would jump."""
    by_seed = [
        {row["epoch"]: float(value(row)) for row in run.history if is_number(value(row))}
        for run in sample.runs
    ]
    epochs = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    if not epochs:
        return
    found = [estimate(values[epoch] for values in by_seed) for epoch in epochs]
    least, most = bounds(name)
    ends = [
        (max(each.low, least), min(each.high, most)) if each.has_interval else (each.value, each.value)
        for each in found
    ]
    means = tuple(each.value for each in found)
    low, high = zip(*ends, strict=True)
    yield Curve(recipe, sample.activation, name, tuple(map(float, epochs)), means, low, high, len(by_seed))


def bounds(metric: str) -> tuple[float, float]:
    """What the metric cannot pass, and so no interval drawn of it.

    >>> bounds("test_acc_few"), bounds("test_loss"), bounds("layer1.act")
    ((0.0, 100.0), (0.0, inf), (-inf, inf))
    """
    if metric.startswith(_PERCENT):
        return 0.0, 100.0
    return (0.0 if metric in CURVED else -math.inf), math.inf
