"""Pictures of what was measured: speed against size, curves over epochs, Hill plots, many to few shots."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from iglu import zoo
from iglu.lab.bench.pictures import draw_sizes
from iglu.lab.bench.sittings import Timing, grouped
from iglu.lab.probe.pictures import draw_hills
from iglu.lab.report.answer import SHOTS
from iglu.lab.report.content import Curve
from iglu.lab.report.curves import CURVED, bounds
from iglu.lab.report.figures.drawing import Drawing
from iglu.lab.report.gather import Gathered
from iglu.lab.results.comparison import METRIC_LABELS, Sample, counted, setting_label
from iglu.lab.results.style import axes, legend_below, line, names_down

_MOST_LINES = 12  # of curves in one picture
_MOST_OF_A_KIND = 6
_PANELS = 6  # Hill plots of so many layers, spread over the depth


def measured_figures(found: Gathered, curves: Sequence[Curve]) -> Iterator[Drawing]:
    """Of each kind at most so many, for a sweep may have hundreds of settings; tables and page have all."""
    for drawings in (_speeds(found), _all_curves(curves), _all_shots(found), _all_hills(found)):
        yield from itertools.islice(drawings, _MOST_OF_A_KIND)


def _key(text: str) -> str:
    """Safe as a file's name and as an anchor.

    >>> _key("curves-gpt2-python lr=0.002")
    'curves-gpt2-python-lr-0.002'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")[:100]


# -- speed ---------------------------------------------------------------------------------------------


def _speeds(found: Gathered) -> Iterator[Drawing]:
    """For each device, precision and number of threads, the sitting with most sizes, the newest of equals."""
    best: dict[tuple[Any, ...], tuple[int, list[Timing]]] = {}
    for sitting in sorted(found.sittings, key=lambda sitting: sitting.date, reverse=True):
        for key, rows in grouped(sitting.rows, "operation", "device", "dtype", "threads").items():
            sizes = len({row["elements"] for row in rows})
            if sizes > 1 and sizes > best.get(key, (0, []))[0]:
                best[key] = (sizes, rows)
    for (device, dtype, threads), (_, rows) in best.items():
        yield Drawing(
            _key(f"speed-{device}-{dtype}-{threads}t"),
            f"Speed against size: {dtype}, {device}",
            f"Microseconds a call against the number of elements in log-log, one panel a pass, for IGLU and "
            f"IGLU-Approx of this library, their direct formulas, ReLU, GELU and SiLU; {dtype}, {device}, "
            f"{counted(threads, 'thread')}.",
            functools.partial(draw_sizes, rows),
            is_redrawn=True,
        )


# -- curves --------------------------------------------------------------------------------------------


def _all_curves(curves: Sequence[Curve]) -> Iterator[Drawing]:
    recipes = dict.fromkeys(curve.recipe for curve in curves if len(curve.epochs) > 1)
    for recipe in recipes:
        mine = [curve for curve in curves if curve.recipe == recipe]
        metrics = [name for name in CURVED if any(curve.metric == name for curve in mine)][:3]
        seeds = sorted({curve.seeds for curve in mine})
        count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        yield Drawing(
            _key(f"curves-{recipe}"),
            f"Training: {recipe}",
            f"{', '.join(METRIC_LABELS[name] for name in metrics)} over epochs for "
            f"{len({curve.activation for curve in mine})} activations: mean over {count} seeds, and where "
            "there are several the 95% t-interval as a band.",
            functools.partial(_draw_curves, mine, metrics),
        )


def _draw_curves(curves: Sequence[Curve], metrics: Sequence[str]) -> Any:
    names = list(dict.fromkeys(curve.activation for curve in curves))
    shown = names[:_MOST_LINES]
    figure, grid = axes(1, len(metrics), 3.3 * len(metrics), 3.5)
    for axis, name in zip(grid[0], metrics, strict=True):
        for curve in curves:
            if curve.metric != name or curve.activation not in shown:
                continue
            style = line(curve.activation)
            axis.plot(curve.epochs, curve.mean, label=zoo.parse(curve.activation).label, **style)
            if curve.seeds > 1:
                axis.fill_between(
                    curve.epochs, curve.low, curve.high, color=style["color"], alpha=0.12, linewidth=0
                )
        _keep_to_means(axis, [curve for curve in curves if curve.metric == name])
        axis.set(xlabel="epoch", title=METRIC_LABELS[name])
        axis.xaxis.get_major_locator().set_params(integer=True)
    left_out = f" ({len(names) - len(shown)} more in the tables)" if len(names) > len(shown) else None
    legend_below(figure, grid[0][0], 4, fontsize=8, title=left_out, title_fontsize=8)
    return figure


def _keep_to_means(axis: Any, curves: Sequence[Curve]) -> None:
    """A band of two seeds can be a hundred times as wide as all means lie apart."""
    means = [value for curve in curves for value in curve.mean]
    low, high = min(means), max(means)
    margin = 0.15 * (high - low) or 1.0
    axis.set_ylim(low - margin, high + margin)


# -- many to few shots ---------------------------------------------------------------------------------


def _all_shots(found: Gathered) -> Iterator[Drawing]:
    for setting, of in found.samples.items():
        chosen = {name: each for name, each in of.items() if all(each.values(metric) for metric in SHOTS)}
        if chosen:
            yield Drawing(
                _key(f"shots-{setting_label(setting)}"),
                f"Accuracy by the size of a class: {setting_label(setting)}",
                "Test accuracy on classes with many, medium and few training images, a line an activation, "
                "with 95% t-intervals over seeds.",
                functools.partial(_draw_shots, dict(list(chosen.items())[:_MOST_LINES])),
            )


def _draw_shots(chosen: dict[str, Sample]) -> Any:
    figure, grid = axes(1, 3, 8.2, 1.2 + 0.26 * len(chosen), sharey=True)
    for axis, name in zip(grid[0], SHOTS, strict=True):
        for place, (activation, sample) in enumerate(chosen.items()):
            found = sample.estimate(name)
            if found is None:
                continue
            axis.plot(found.value, place, "o", color=line(activation)["color"])
            if found.has_interval:
                low, high = bounds(name)
                ends = [max(found.low, low), min(found.high, high)]
                axis.plot(ends, [place, place], color=line(activation)["color"], linewidth=1.5)
        axis.set(xlabel=METRIC_LABELS[name])
    names_down(figure, [zoo.parse(name).label for name in chosen])
    return figure


# -- Hill plots ----------------------------------------------------------------------------------------


def _all_hills(found: Gathered) -> Iterator[Drawing]:
    """Of probes whose file has the curve."""
    for probe in found.probes:
        hills = probe.body["hill"]
        if hills:
            yield Drawing(
                _key(f"hill-{probe.name}"),
                f"Hill plots: {probe.name}",
                f"Hill's xi against k for {min(len(hills), _PANELS)} of {len(hills)} layers of {probe.name}, "
                "with the 95% band it would have for independent values, beside the xi that a Gaussian gives "
                "at the same k.",
                functools.partial(draw_hills, hills, _PANELS),
            )
