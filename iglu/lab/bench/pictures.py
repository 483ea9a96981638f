"""Rows of results as pictures: time against size, bars, training speed.  PNG and SVG.

Ours are drawn thicker and direct or compiled forms dashed or dotted, so that nothing hangs on colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iglu.lab.bench.sittings import Timing
from iglu.lab.bench.subjects import COMPILED, COMPILED_DIRECT, DIRECT, TORCH
from iglu.lab.bench.tables import row_label
from iglu.lab.bench.timing import PASS_LABELS, PASSES, where
from iglu.lab.results.style import DIRECT_GREY, MARKERS, OTHER, VERMILION, colour, pictures, save

_LINES = {DIRECT: "--", COMPILED: ":", COMPILED_DIRECT: "-."}


def draw(rows: Sequence[Timing], folder: Path) -> list[Path]:
    """Every picture these rows allow, written to ``folder``; the paths of the PNG files."""
    written = []
    with pictures():
        for key, group in _groups(rows, "operation", ("device", "dtype", "threads")).items():
            device, dtype, threads = key
            name = f"{device.replace(':', '')}-{dtype}-{threads}t"
            for elements in sorted({row["elements"] for row in group}):
                chosen = [row for row in group if row["elements"] == elements]
                written.append(save(_bars(chosen), folder, f"bars-{name}-{elements}"))
            if len({row["elements"] for row in group}) > 1:
                written.append(save(draw_sizes(group), folder, f"sizes-{name}"))
        for key, group in _groups(rows, "training", ("model", "device", "threads")).items():
            model, device, threads = key
            written.append(save(_training(group), folder, f"{model}-{device.replace(':', '')}-{threads}t"))
    return written


def _groups(
    rows: Sequence[Timing], kind: str, fields: tuple[str, ...]
) -> dict[tuple[Any, ...], list[Timing]]:
    groups: dict[tuple[Any, ...], list[Timing]] = {}
    for row in rows:
        if row["kind"] == kind:
            groups.setdefault(tuple(row[field] for field in fields), []).append(row)
    return groups


def _bar_colour(row: Timing) -> str:
    if row["is_ours"]:
        return VERMILION
    return OTHER if row["kernel"] == TORCH else DIRECT_GREY


def _where(row: Timing) -> str:
    return where(row["dtype"], row["device"], row["threads"])


def _bars(rows: Sequence[Timing]) -> Any:
    """Ratio to ReLU of every activation, one panel a pass; the whisker is the 20% to 80% range."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    passes = [name for name in PASSES if any(row["pass"] == name for row in rows)]
    lines = list(dict.fromkeys((row["activation"], row["kernel"]) for row in rows))
    labels = {(row["activation"], row["kernel"]): row_label(row) for row in rows}
    height = 1.3 + 0.19 * len(lines)
    figure, axes = plt.subplots(
        1, len(passes), figsize=(2 + 2.5 * len(passes), height), sharey=True, squeeze=False
    )
    for axis, name in zip(axes[0], passes, strict=True):
        for row in rows:
            if row["pass"] != name or "relu" not in row["ratios"]:
                continue
            place = lines.index((row["activation"], row["kernel"]))
            ratio = row["ratios"]["relu"]
            hatch = "////" if row["kernel"] == DIRECT else None
            axis.barh(
                place, ratio["median"], color=_bar_colour(row), height=0.72, hatch=hatch, edgecolor="white"
            )
            axis.plot([ratio["low"], ratio["high"]], [place, place], color="#333333", linewidth=1)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_title(PASS_LABELS[name])
        axis.set_xlabel("times as long as ReLU")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")
        axis.tick_params(axis="x", which="both", labelsize=7)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
    axes[0][0].set_yticks(range(len(lines)), [labels[line] for line in lines])
    axes[0][0].set_ylim(len(lines) - 0.4, -0.6)
    handles = [
        Patch(color=VERMILION, label="this library"),
        Patch(facecolor=DIRECT_GREY, hatch="////", edgecolor="white", label="the same, direct formula"),
        Patch(color=OTHER, label="torch"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    figure.suptitle(f"{rows[0]['elements']:,} elements, {_where(rows[0])}", fontsize=10)
    return figure


def draw_sizes(rows: Sequence[Timing]) -> Any:
    """Time against size in log-log for the activations one chooses among; one panel a pass."""
    import matplotlib.pyplot as plt

    passes = [name for name in PASSES if any(row["pass"] == name for row in rows)]
    figure, axes = plt.subplots(1, len(passes), figsize=(3.1 * len(passes), 3.9), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], passes, strict=True):
        chosen = [row for row in rows if row["pass"] == name and row["activation"] in MARKERS]
        for line in dict.fromkeys((row["activation"], row["kernel"]) for row in chosen):
            points = sorted(
                (row for row in chosen if (row["activation"], row["kernel"]) == line),
                key=lambda row: int(row["elements"]),
            )
            first = points[0]
            axis.plot(
                [row["elements"] for row in points], [row["seconds"]["median"] * 1e6 for row in points],
                color=colour(first["activation"]), marker=MARKERS[first["activation"]], markersize=4,
                linewidth=2.2 if first["is_ours"] else 1.1, label=row_label(first),
                linestyle=_LINES.get(first["kernel"], "-"),
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(PASS_LABELS[name])
        axis.set_xlabel("elements")
    axes[0][0].set_ylabel("microseconds")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.suptitle(_where(rows[0]), fontsize=10)
    return figure


def _training(rows: Sequence[Timing]) -> Any:
    """Items a second and kept memory, one bar a contender."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 1.2 + 0.28 * len(rows)), sharey=True)
    for place, row in enumerate(rows):
        hatch = "////" if row["kernel"] == DIRECT else None
        speed = row["items_a_second"]
        style = {"color": _bar_colour(row), "height": 0.72, "hatch": hatch, "edgecolor": "white"}
        axes[0].barh(place, speed["median"], **style)
        axes[0].plot([speed["low"], speed["high"]], [place, place], color="#333333", linewidth=1)
        axes[1].barh(place, row["kept_bytes"] / 1e6, **style)
    axes[0].set_xlabel(f"{rows[0]['unit']} a second")
    axes[1].set_xlabel("MB kept for the backward pass")
    axes[0].set_yticks(range(len(rows)), [row_label(row) for row in rows])
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    for axis in axes:
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0)
    figure.suptitle(f"One training step: {rows[0]['model_label']}, {_where(rows[0])}", fontsize=10)
    return figure
