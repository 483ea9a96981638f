"""Rows of results as pictures: time against size, bars, training speed.  PNG and SVG.

Ours are drawn thicker and direct or compiled forms dashed or dotted, so that nothing hangs on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iglu.lab.bench.sittings import Timing, grouped
from iglu.lab.bench.subjects import COMPILED, COMPILED_DIRECT, DIRECT, TORCH
from iglu.lab.bench.tables import row_label
from iglu.lab.bench.timing import PASS_LABELS, PASSES, where_of
from iglu.lab.results import style

_LINES = {DIRECT: "--", COMPILED: ":", COMPILED_DIRECT: "-."}


def draw(rows: Sequence[Timing], folder: Path) -> list[Path]:
    """Every picture these rows allow, written to ``folder``; the paths of the PNG files."""
    written = []
    with style.pictures():
        operations = grouped(rows, "operation", "device", "dtype", "threads")
        for (device, dtype, threads), group in operations.items():
            name = f"{device.replace(':', '')}-{dtype}-{threads}t"
            for elements in sorted({row["elements"] for row in group}):
                chosen = [row for row in group if row["elements"] == elements]
                written.append(style.save(_bars(chosen), folder, f"bars-{name}-{elements}"))
            if len({row["elements"] for row in group}) > 1:
                written.append(style.save(draw_sizes(group), folder, f"sizes-{name}"))
        steps = grouped(rows, "training", "model", "device", "threads")
        for (model, device, threads), group in steps.items():
            name = f"{model}-{device.replace(':', '')}-{threads}t"
            written.append(style.save(_training(group), folder, name))
    return written


def _line(row: Timing) -> tuple[str, str]:
    return row["activation"], row["kernel"]


def _bar(axis: Any, place: int, row: Timing, spread: Mapping[str, float]) -> None:
    """The whisker is the 20% to 80% range."""
    others = style.OTHER if row["kernel"] == TORCH else style.DIRECT_GREY
    colour = style.VERMILION if row["is_ours"] else others
    hatch = "////" if row["kernel"] == DIRECT else None
    axis.barh(place, spread["median"], color=colour, height=0.72, hatch=hatch, edgecolor="white")
    axis.plot([spread["low"], spread["high"]], [place, place], color="#333333", linewidth=1)


def _bars(rows: Sequence[Timing]) -> Any:
    """Ratio to ReLU of every activation, one panel a pass."""
    from matplotlib.patches import Patch

    passes = [name for name in PASSES if any(row["pass"] == name for row in rows)]
    labels = {_line(row): row_label(row) for row in rows}
    lines = list(labels)
    figure, grid = style.axes(1, len(passes), 2 + 2.5 * len(passes), 1.3 + 0.19 * len(lines), sharey=True)
    for axis, name in zip(grid[0], passes, strict=True):
        for row in rows:
            if row["pass"] == name and "relu" in row["ratios"]:
                _bar(axis, lines.index(_line(row)), row, row["ratios"]["relu"])
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_title(PASS_LABELS[name])
        axis.set_xlabel("times as long as ReLU")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")
        axis.tick_params(axis="x", which="both", labelsize=7)
    style.names_down(figure, list(labels.values()))
    handles = [
        Patch(color=style.VERMILION, label="this library"),
        Patch(facecolor=style.DIRECT_GREY, hatch="////", edgecolor="white", label="the same, direct formula"),
        Patch(color=style.OTHER, label="torch"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    figure.suptitle(f"{rows[0]['elements']:,} elements, {where_of(rows[0])}", fontsize=10)
    return figure


def draw_sizes(rows: Sequence[Timing]) -> Any:
    """Time against size in log-log for the activations one chooses among; one panel a pass."""
    passes = [name for name in PASSES if any(row["pass"] == name for row in rows)]
    figure, grid = style.axes(1, len(passes), 3.1 * len(passes), 3.9, sharey=True)
    for axis, pass_name in zip(grid[0], passes, strict=True):
        chosen = [row for row in rows if row["pass"] == pass_name and row["activation"] in style.MARKERS]
        for key in dict.fromkeys(map(_line, chosen)):
            points = sorted(
                (row for row in chosen if _line(row) == key), key=lambda row: int(row["elements"])
            )
            first, name = points[0], points[0]["activation"]
            axis.plot(
                [row["elements"] for row in points], [row["seconds"]["median"] * 1e6 for row in points],
                color=style.colour(name), marker=style.MARKERS[name], markersize=4,
                linewidth=2.2 if first["is_ours"] else 1.1, label=row_label(first),
                linestyle=_LINES.get(first["kernel"], "-"),
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(PASS_LABELS[pass_name])
        axis.set_xlabel("elements")
    grid[0][0].set_ylabel("microseconds")
    style.legend_below(figure, grid[0][0], 4)
    figure.suptitle(where_of(rows[0]), fontsize=10)
    return figure


def _training(rows: Sequence[Timing]) -> Any:
    """Items a second and kept memory, one bar a contender."""
    figure, ((speed, memory),) = style.axes(1, 2, 8, 1.2 + 0.28 * len(rows), sharey=True)
    for place, row in enumerate(rows):
        _bar(speed, place, row, row["items_a_second"])
        _bar(memory, place, row, dict.fromkeys(("median", "low", "high"), row["kept_bytes"] / 1e6))
    speed.set_xlabel(f"{rows[0]['unit']} a second")
    memory.set_xlabel("MB kept for the backward pass")
    style.names_down(figure, list(map(row_label, rows)))
    figure.suptitle(f"One training step: {rows[0]['model_label']}, {where_of(rows[0])}", fontsize=10)
    return figure
