"""Numbers over epochs: for each recipe and activation the mean over seeds and its 95% band."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from iglu_lab.report.content import EpochCurve
from iglu_lab.report.gather import Samples
from iglu_lab.stats.comparison import Sample, is_number, lower_is_better, setting_label
from iglu_lab.stats.statistics import estimate

CURVED = ("train_loss", "test_loss", "test_acc", "perplexity")

Row = Mapping[str, Any]
Value = Callable[[str, Row], Any]
"""The value of a metric or a layer, by its name, in the row of an epoch."""


def curves(samples: Samples) -> tuple[EpochCurve, ...]:
    """The curves of every recipe, activation and metric, over the runs that are in its mean."""
    return tuple(
        curve for of in samples.values() for sample in of.values() for curve in epoch_curves(sample, CURVED)
    )


def epoch_curves(sample: Sample, metrics: Iterable[str]) -> Iterator[EpochCurve]:
    """The curves of one sample, for those metrics that its runs have."""
    for name in metrics:
        yield from _curve(sample, name, lambda name, row: row.get(name))


def learned_sigmas(samples: Samples) -> tuple[EpochCurve, ...]:
    """The learned sigmas of every activation, one curve per layer; for a sigma per channel, their mean."""
    every = (sample for of in samples.values() for sample in of.values())
    return tuple(
        curve for sample in every for layer in _layers(sample) for curve in _curve(sample, layer, _sigma)
    )


def _layers(sample: Sample) -> Iterable[str]:
    rows = (row.get("sigmas") for run in sample.runs for row in run.history)
    return dict.fromkeys(layer for sigmas in rows if isinstance(sigmas, Mapping) for layer in sigmas)


def _sigma(layer: str, row: Row) -> float | None:
    sigmas = row.get("sigmas")
    values = sigmas.get(layer) if isinstance(sigmas, Mapping) else None
    values = values if isinstance(values, list) else [values]
    return statistics.fmean(values) if values and all(map(is_number, values)) else None


def _curve(sample: Sample, name: str, value: Value) -> Iterator[EpochCurve]:
    """The curve over the epochs that all seeds have; a band whose seeds change would jump."""
    by_seed = [
        {row["epoch"]: float(found) for row in run.history if is_number(found := value(name, row))}
        for run in sample.runs
    ]
    yield from band(setting_label(sample.setting), sample.activation, name, by_seed, bounds(name))


def band(
    recipe: str,
    activation: str,
    name: str,
    by_seed: Sequence[Mapping[int, float]],
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Iterator[EpochCurve]:
    """Mean and 95% interval of values by epoch, one mapping per seed; nothing without a common epoch."""
    epochs = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    if not epochs:
        return
    found = [estimate(values[epoch] for values in by_seed) for epoch in epochs]
    least, most = limits
    ends = [
        (max(each.low, least), min(each.high, most)) if each.has_interval else (each.value, each.value)
        for each in found
    ]
    means = tuple(each.value for each in found)
    low, high = zip(*ends, strict=True)
    yield EpochCurve(recipe, activation, name, tuple(map(float, epochs)), means, low, high, len(by_seed))


def bounds(metric: str) -> tuple[float, float]:
    """The bounds of a metric, to which its intervals are clipped.

    >>> bounds("test_acc_few"), bounds("test_loss"), bounds("layer1.act")
    ((0.0, 100.0), (0.0, inf), (-inf, inf))
    """
    if not lower_is_better(metric):  # a percentage
        return 0.0, 100.0
    if metric == "dead_units":
        return 0.0, 1.0
    return (0.0 if metric in CURVED else -math.inf), math.inf
