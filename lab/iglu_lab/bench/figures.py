"""Figures of a benchmark session: ratios to ReLU, time against size, training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from iglu_lab.bench.cases import COMPILED, COMPILED_DIRECT, DIRECT, TORCH
from iglu_lab.bench.sessions import Timing, grouped
from iglu_lab.bench.timing import PASS_LABELS, PASSES, where_of
from iglu_lab.bench.timing_tables import row_label
from iglu_lab.report.figures.description import Figure, Line, Panel, key_of
from iglu_lab.stats.style import DIRECT_GREY, MARKERS, OTHER, VERMILION, color

_DASHES = {DIRECT: "--", COMPILED: ":", COMPILED_DIRECT: "-."}


def session_figures(rows: Sequence[Timing]) -> Iterator[Figure]:
    """All figures for these rows."""
    for group in grouped(rows, "operation", "device", "dtype", "threads").values():
        sizes = sorted({row["elements"] for row in group})
        yield from (_ratios([row for row in group if row["elements"] == size]) for size in sizes)
        if len(sizes) > 1:
            yield speed_figure(group)
    for group in grouped(rows, "training", "model", "device", "threads").values():
        yield _training(group)


def speed_figure(rows: Sequence[Timing]) -> Figure:
    """Time against size, one panel per pass, for rows of one device, dtype and number of threads."""
    place, passes = where_of(rows[0]), _passes(rows)
    return Figure(
        key_of(f"speed-{place}"),
        f"Speed against size: {place}",
        "Microseconds per call against the number of elements in log-log, one panel per pass, for IGLU and "
        f"IGLU-Approx of this library, their direct formulas, ReLU, GELU and SiLU; {place}.",
        tuple(_speed_panel(rows, name) for name in passes),
        is_on_page=True,
        size=(3.1 * len(passes), 3.9),
        columns=len(passes),
    )


def _passes(rows: Sequence[Timing]) -> list[str]:
    return [name for name in PASSES if any(row["pass"] == name for row in rows)]


def _speed_panel(rows: Sequence[Timing], pass_name: str) -> Panel:
    chosen = [row for row in rows if row["pass"] == pass_name and row["activation"] in MARKERS]
    lines = []
    for name, kernel in dict.fromkeys((row["activation"], row["kernel"]) for row in chosen):
        mine = [row for row in chosen if (row["activation"], row["kernel"]) == (name, kernel)]
        points = sorted((row["elements"], row["seconds"]["median"] * 1e6) for row in mine)
        x, y = zip(*points, strict=True)
        width = 2.2 if mine[0]["is_ours"] else 1.1
        dash = _DASHES.get(kernel, "-")
        lines.append(Line(row_label(mine[0]), x, y, color(name), dash, MARKERS[name], width))
    return Panel(PASS_LABELS[pass_name], ("elements", "microseconds"), tuple(lines), ("log", "log"))


def _ratios(rows: Sequence[Timing]) -> Figure:
    """The time relative to ReLU of every activation, one panel per pass."""
    labels, passes = tuple(dict.fromkeys(map(row_label, rows))), _passes(rows)
    by_pass = [
        {labels.index(row_label(row)): row for row in rows if row["pass"] == name and "relu" in row["ratios"]}
        for name in passes
    ]
    title = f"{rows[0]['elements']:,} elements, {where_of(rows[0])}"
    return Figure(
        key_of(f"ratios-{title}"), title,
        f"Time relative to ReLU, median and 20% to 80% quantiles over rounds, one panel per pass; {title}.",
        tuple(
            _bars(PASS_LABELS[name], "time / time of ReLU", found, lambda row: row["ratios"]["relu"], labels)
            for name, found in zip(passes, by_pass, strict=True)
        ),
        size=(2 + 2.5 * len(passes), 1.3 + 0.19 * len(labels)), columns=len(passes),
    )  # fmt: skip


def _training(rows: Sequence[Timing]) -> Figure:
    """Throughput and saved memory."""
    labels, by_place = tuple(map(row_label, rows)), dict(enumerate(rows))
    title = f"One training step: {rows[0]['model_label']}, {where_of(rows[0])}"

    def memory(row: Timing) -> Mapping[str, float]:
        return dict.fromkeys(("median", "low", "high"), row["kept_bytes"] / 1e6)

    return Figure(
        key_of(f"steps-{rows[0]['model']}-{where_of(rows[0])}"), title,
        f"{rows[0]['unit']} per second, and memory saved for the backward pass, by activation. {title}.",
        (
            _bars("", f"{rows[0]['unit']} per second", by_place, lambda row: row["items_a_second"], labels),
            _bars("", "MB saved for the backward pass", by_place, memory, labels),
        ),
        size=(8, 1.2 + 0.28 * len(rows)), columns=2,
    )  # fmt: skip


def _bars(
    title: str,
    label: str,
    rows: Mapping[int, Timing],
    summary: Callable[[Timing], Mapping[str, float]],
    names: tuple[str, ...],
) -> Panel:
    """One bar per row up to its median, and a line over its quantiles."""
    lines = []
    for place, row in rows.items():
        found = summary(row)
        look = VERMILION if row["is_ours"] else OTHER if row["kernel"] == TORCH else DIRECT_GREY
        lines.append(Line("", (0, found["median"]), (place, place), look, width=7))
        lines.append(Line("", (found["low"], found["high"]), (place, place), "#333333", width=1))
    return Panel(title, (label, ""), tuple(lines), names=names)
