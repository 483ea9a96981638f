"""Figures of what was measured: speed against size, curves over epochs and tasks, Hill plots, shots."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from iglu_lab.bench.figures import speed_figure
from iglu_lab.bench.sessions import Timing, grouped
from iglu_lab.probe.pictures import hill_figure
from iglu_lab.recipes import spec_of
from iglu_lab.report.comparisons import SHOTS
from iglu_lab.report.content import EpochCurve
from iglu_lab.report.curves import CURVED, bounds, epoch_curves
from iglu_lab.report.figures.description import Figure, Line, Panel, activation_line, key_of
from iglu_lab.report.gather import Gathered
from iglu_lab.report.planned import Judged, judged, samples_of, unit_of
from iglu_lab.stats.comparison import METRIC_LABELS, Sample, setting_label
from iglu_lab.stats.style import BLACK, BLUE, GREY, OTHER, color

_MOST_LINES = 12  # activations per figure
_MOST_OF_A_KIND = 6
_HILL_PANELS = 6  # layers per figure, evenly spaced over the depth


def measured_figures(found: Gathered, curves: Sequence[EpochCurve]) -> Iterator[Figure]:
    """A limited number of each kind: a sweep may have hundreds of settings; tables and page have all."""
    kinds = (
        _speeds(found), _comparisons(found), _plasticity(found), _training(curves), _shots(found),
        _hills(found),
    )  # fmt: skip
    for figures in kinds:
        yield from itertools.islice(figures, _MOST_OF_A_KIND)


# -- speed ---------------------------------------------------------------------------------------------


def _speeds(found: Gathered) -> Iterator[Figure]:
    """For each device, precision and number of threads, the session with most sizes (ties: the newest)."""
    best: dict[tuple[Any, ...], tuple[int, list[Timing]]] = {}
    for session in sorted(found.sessions, key=lambda session: session.date, reverse=True):
        for key, rows in grouped(session.rows, "operation", "device", "dtype", "threads").items():
            sizes = len({row["elements"] for row in rows})
            if sizes > 1 and sizes > best.get(key, (0, []))[0]:
                best[key] = (sizes, rows)
    for _, rows in best.values():
        yield speed_figure(rows)


# -- planned comparisons -------------------------------------------------------------------------------


def _comparisons(found: Gathered) -> Iterator[Figure]:
    """For each open grid whose plan names its comparisons: the gains with their intervals, and the margin."""
    for planned in found.planned:
        is_open = planned.is_second_round and planned.samples
        shown = [each for each in (judged(planned) if is_open else ()) if each.estimate is not None]
        if not shown:
            continue
        margin, unit = shown[0].result.margin, unit_of(planned.plan.metric)
        height = (-0.5, len(shown) - 0.5)
        ends = [Line("", (end, end), height, GREY, "--", width=1.0) for end in (-margin, margin)]
        yield Figure(
            key_of(f"comparisons-{planned.grid.title}"),
            f"Planned comparisons: {planned.grid.title}",
            f"{len(shown)} differences, paired by seed, with 95% intervals; dashed: the margin of "
            f"{margin:g} {unit}; blue: significant after Holm's correction.",
            (
                Panel(
                    "", (f"difference in {unit}; right is better", ""),
                    (Line("", (0.0, 0.0), height, BLACK, width=0.9), *ends, *_comparison_lines(shown)),
                    names=tuple(each.result.text for each in shown),
                ),
            ),
            size=(8.4, 1.0 + 0.28 * len(shown)),
        )  # fmt: skip


def _comparison_lines(shown: Sequence[Judged]) -> Iterator[Line]:
    for place, each in enumerate(shown):
        sign = 1 if each.result.gain == each.result.difference.value else -1
        ends = tuple(sign * end for end in each.result.difference.interval())
        look = BLUE if each.is_significant else OTHER
        yield Line("", ends, (place, place), look)
        yield Line("", (each.result.gain,), (place,), look, "", "o")


# -- over epochs and tasks -----------------------------------------------------------------------------


def _curve_line(curve: EpochCurve, per_epoch: int = 1) -> Line:
    x = [per_epoch * epoch for epoch in curve.epochs]
    band = {"low": curve.low, "high": curve.high} if curve.seeds > 1 else {}
    return activation_line(curve.activation, spec_of(curve.activation).label, x, curve.mean, **band)


def curve_panel(title: str, curves: Sequence[EpochCurve], x_label: str, per_epoch: int = 1) -> Panel:
    """The y range is that of the means: the band of two seeds can be a hundred times as wide."""
    means = [value for curve in curves for value in curve.mean]
    margin = 0.15 * (max(means) - min(means)) or 1.0
    limits = (None, (min(means) - margin, max(means) + margin))
    return Panel(title, (x_label, ""), tuple(_curve_line(each, per_epoch) for each in curves), limits=limits)


def _training(curves: Sequence[EpochCurve]) -> Iterator[Figure]:
    for recipe in dict.fromkeys(curve.recipe for curve in curves if len(curve.epochs) > 1):
        mine = [curve for curve in curves if curve.recipe == recipe]
        names = list(dict.fromkeys(curve.activation for curve in mine))
        metrics = [name for name in CURVED if any(curve.metric == name for curve in mine)][:3]
        seeds = sorted({curve.seeds for curve in mine})
        count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        shown = names[:_MOST_LINES]
        more = f"; {len(names) - len(shown)} more are in the tables" if len(names) > len(shown) else ""
        chosen = {
            METRIC_LABELS[name]: [each for each in mine if each.metric == name and each.activation in shown]
            for name in metrics
        }
        yield Figure(
            key_of(f"curves-{recipe}"),
            f"Training: {recipe}",
            f"{', '.join(chosen)} over epochs for {len(shown)} activations: "
            f"mean over {count} seeds, with the 95% t-interval as a band if there are several{more}.",
            tuple(curve_panel(label, curves, "epoch") for label, curves in chosen.items()),
            size=(3.3 * len(metrics), 3.5),
        )


def _plasticity(found: Gathered) -> Iterator[Figure]:
    """For each open continual grid: accuracy and dead units over the tasks."""
    for planned in found.planned:
        samples = list(samples_of(planned).values())
        if not samples or samples[0].setting.kind != "continual":
            continue
        titles = {"task_acc": "accuracy on the current task, %", "dead_units": "share of dead units"}
        per_epoch = samples[0].setting.tasks_per_epoch
        panels = [
            curve_panel(title, found_curves, "task", per_epoch)
            for name, title in titles.items()
            if (found_curves := [curve for sample in samples for curve in epoch_curves(sample, [name])])
        ]
        yield Figure(
            key_of(f"tasks-{planned.grid.title}"),
            f"Continual learning: {planned.grid.title}",
            f"Accuracy and share of dead units over the tasks for {len(samples)} activations: mean over "
            "seeds with the 95% t-interval as a band.",
            tuple(panels),
            is_on_page=True,
            size=(8.4, 4.2),
        )


# -- many to few shots ---------------------------------------------------------------------------------


def _shots(found: Gathered) -> Iterator[Figure]:
    for setting, of in found.samples.items():
        known = [each for each in of.values() if all(each.values(metric) for metric in SHOTS)]
        chosen = known[:_MOST_LINES]
        if chosen:
            yield Figure(
                key_of(f"shots-{setting_label(setting)}"),
                f"Accuracy by the number of images of a class: {setting_label(setting)}",
                "Test accuracy on classes with many, medium and few training images, one line per "
                "activation, with 95% t-intervals over seeds.",
                tuple(_shot_panel(chosen, metric) for metric in SHOTS),
                size=(8.2, 1.2 + 0.26 * len(chosen)),
            )


def _shot_panel(samples: Sequence[Sample], metric: str) -> Panel:
    lines = []
    for place, sample in enumerate(samples):
        look = color(sample.activation)
        found = sample.estimate(metric)
        if found is not None:
            lines.append(Line("", (found.value,), (place,), look, "", "o"))
            if found.has_interval:
                low, high = bounds(metric)
                lines.append(Line("", (max(found.low, low), min(found.high, high)), (place, place), look))
    names = tuple(spec_of(sample.activation).label for sample in samples)
    return Panel("", (METRIC_LABELS[metric], ""), tuple(lines), names=names)


# -- Hill plots ----------------------------------------------------------------------------------------


def _hills(found: Gathered) -> Iterator[Figure]:
    """For each probe whose file has Hill curves."""
    for probe in found.probes:
        if probe.body["hill"]:
            yield hill_figure(key_of(f"hill-{probe.name}"), probe.name, probe.body["hill"], _HILL_PANELS)
