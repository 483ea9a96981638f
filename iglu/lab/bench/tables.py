"""Rows of a sitting as tables: Table 1 of the paper beside ours, times by pass or by size, training steps."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from iglu import zoo
from iglu.lab import paper
from iglu.lab.bench.sittings import Sitting, Timing, grouped
from iglu.lab.bench.subjects import COMPILED, COMPILED_DIRECT, DIRECT, TORCH
from iglu.lab.bench.timing import PASS_LABELS, PASSES, where_of
from iglu.lab.results.statistics import Estimate, median
from iglu.lab.results.tables import NONE, NOT_RUN, Cell, Mark, Table, Tone, numbered, ranked_marks

_Passes = dict[str, Timing]
_KERNEL_LABELS = {DIRECT: "direct", COMPILED: "compiled", COMPILED_DIRECT: "direct, compiled"}
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def quotient(row: Timing, reference: Timing) -> Estimate:
    """Of times within a round: both saw the same machine.  The median over rounds, and its 95% interval."""
    pairs = zip(row["seconds_by_round"], reference["seconds_by_round"], strict=False)
    return median([mine / other for mine, other in pairs])


def unit_for(seconds: Sequence[float]) -> str:
    """The one unit in which a column of times is read with least effort: its median is from 1 to 1,000."""
    middle = statistics.median(seconds)
    return next((unit for unit, factor in UNITS.items() if middle >= factor), "ns")


def three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def size_text(elements: int) -> str:
    for suffix, factor in (("M", 10**6), ("k", 10**3)):
        if elements >= factor and elements % factor == 0:
            return f"{elements // factor}{suffix}"
    return f"{elements:,}"


def row_label(row: Timing) -> str:
    """The activation, and the way it was computed where that is not the usual one."""
    kernel = row["kernel"]
    if kernel in (TORCH, "auto"):
        return str(row["label"])
    return f"{row['label']}, {_KERNEL_LABELS.get(kernel, kernel)}"


def _spread_cell(spread: dict[str, float]) -> Cell:
    """Half the distance between the 20% and 80% quantiles, in percent of the median."""
    share = 50 * (spread["high"] - spread["low"]) / spread["median"]
    return Cell(f"±{share:.0f}%", share)


def _ratio_cell(row: Timing | None, reference: str) -> Cell:
    return (
        NONE
        if row is None or reference not in row["ratios"]
        else numbered(row["ratios"][reference]["median"])
    )


def _tone(row: Timing) -> Tone:
    return "ours" if row["is_ours"] else ""


def _lines(rows: Iterable[Timing]) -> dict[tuple[str, str], Timing]:
    """One row for each line of a table, in the order measured."""
    lines: dict[tuple[str, str], Timing] = {}
    for row in rows:
        lines.setdefault((row["activation"], row["kernel"]), row)
    return lines


def _distinct(rows: Iterable[Any], key: Callable[[Any], Any]) -> list[Any]:
    return list(dict.fromkeys(map(key, rows)))


def tables_of(sitting: Sitting, against: Sequence[str]) -> list[Table]:
    """Every table its rows allow."""
    references = [name for name in against if name != "identity"] or list(against)
    result = [_measured_lines(table1([sitting]))] if any(map(is_papers_setting, sitting.rows)) else []
    for group in grouped(sitting.rows, "operation", "device", "dtype", "threads").values():
        if references:
            result.extend(_times(group, references[0]))
        result.extend(_ours_against(group, reference) for reference in references[1:])
    return [*result, *step_tables(sitting)]


def _measured_lines(table: Table) -> Table:
    """Of the activations that were asked for."""
    ours = [place for place, (_, name) in enumerate(table.headers) if name == "ours"]
    kept = [any(row[place] != NOT_RUN for place in ours) for row in table.rows]
    rows, tones = itertools.compress(table.rows, kept), itertools.compress(table.tones, kept)
    return dataclasses.replace(table, rows=tuple(rows), tones=tuple(tones))


# -- Table 1 ---------------------------------------------------------------------------------------

# paper's column -> heading, kind of device, the passes that fill it: the first that was measured
_TIMED = {
    "cpu_forward": ("CPU forward", "cpu", ("forward",)),
    "cpu_backward": ("CPU backward", "cpu", ("loss_backward", "backward")),
    "gpu_forward": ("GPU forward", "cuda", ("forward",)),
    "gpu_backward": ("GPU backward", "cuda", ("loss_backward", "backward")),
}


def is_papers_setting(row: Timing) -> bool:
    """Whether a row belongs into Table 1, whose times are multiples of Identity's."""
    is_setting = row["kind"] == "operation" and row["elements"] == 10_000 and row["dtype"] == "float32"
    return is_setting and "identity" in row["ratios"] and (row["device"] != "cpu" or row["threads"] == 1)


Form = tuple[str, bool]
"""An activation, and whether as the paper writes it or as it is served."""


def papers_rows(sittings: Iterable[Sitting], device: str) -> tuple[Sitting | None, dict[Form, _Passes]]:
    """The sitting that has most of Table 1 on that kind of device, the newest of equals, and its rows."""
    chosen: Sitting | None = None
    most: list[Timing] = []
    for sitting in sorted(sittings, key=lambda sitting: sitting.date, reverse=True):
        rows = [row for row in sitting.rows if is_papers_setting(row) and row["device"].startswith(device)]
        if len(rows) > len(most):
            chosen, most = sitting, rows
    forms: dict[Form, _Passes] = {}
    for row in most:
        if row["kernel"] in (TORCH, "auto", DIRECT):
            forms.setdefault((row["activation"], row["kernel"] == DIRECT), {})[row["pass"]] = row
    return chosen, forms


def table1(sittings: Sequence[Sitting]) -> Table:
    """The direct formulas stand in lines of their own."""
    chosen = {device: papers_rows(sittings, device) for device in ("cpu", "cuda")}
    published = paper.table1()
    both = [(activation, is_direct) for activation in published for is_direct in (False, True)]
    forms = [form for form in both if form in chosen["cpu"][1] or not form[1]]
    headers: list[str | tuple[str, str]] = ["activation"]
    columns: list[list[str | Cell]] = [
        [zoo.ZOO[name].label + (", direct" if is_direct else "") for name, is_direct in forms]
    ]
    for column, (heading, device, passes) in _TIMED.items():
        headers += [(heading, name) for name in ("paper", "ours", "difference")]
        rows = [chosen[device][1].get(form, {}) for form in forms]
        timed = [next((of[name] for name in passes if name in of), None) for of in rows]
        printed = [None if is_direct else published[name][column] for name, is_direct in forms]
        cells = map(_cells, timed, itertools.repeat(passes), printed, _marks(forms, timed))
        columns += map(list, zip(*cells, strict=True))
    notes = [
        "Times as long as Identity: 10,000 elements, float32, one thread on the CPU. Ours: median over "
        "rounds of the quotient within a round, and the range from the 20% to the 80% quantile. The paper's "
        f"machine and torch are others ({paper.paper()['table1']['setup']}), so compare the order within a "
        "column. Backward as in the paper: loss.backward() of a sum. The paper timed the formulas as they "
        "are written, which here are the lines called direct.",
        "Bold is the fastest and underlined the second among those of the form x g(x), as in the paper, only "
        "where the 95% interval of the median quotient to the next in rank excludes 1.",
    ]
    notes += [
        f"{'CPU' if device == 'cpu' else 'GPU'} rows: {sitting.path}; {sitting.sentence}"
        for device, (sitting, _) in chosen.items()
        if sitting is not None
    ]
    title = f"Table 1. {paper.paper()['table1']['caption']}"
    tones: list[Tone] = ["ours" if name.startswith(("iglu", "z")) else "" for name, _ in forms]
    return Table.of("table1", title, headers, zip(*columns, strict=True), notes, tones)


def _marks(forms: Sequence[Form], timed: Sequence[Timing | None]) -> list[Mark]:
    rows = {
        place: row
        for place, ((name, is_direct), row) in enumerate(zip(forms, timed, strict=True))
        if row is not None and zoo.ZOO[name].self_gated and not is_direct
    }
    ranked = sorted(rows, key=lambda place: float(rows[place]["ratios"]["identity"]["median"]))
    return ranked_marks(len(forms), ranked, lambda one, other: quotient(rows[one], rows[other]).high < 1)


def _cells(row: Timing | None, passes: Sequence[str], printed: float | None, mark: Mark) -> tuple[Cell, ...]:
    """Paper, ours, difference."""
    if row is None:
        return numbered(printed), NOT_RUN, NONE
    ratio = row["ratios"]["identity"]
    text = f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    note = "" if row["pass"] == passes[0] else f"{row['pass']}, for want of {passes[0]}"
    gap = None if printed is None else ratio["median"] - printed
    return numbered(printed), Cell(text, ratio["median"], mark, note), numbered(gap, 2, "+")


# -- times -----------------------------------------------------------------------------------------


def _times(rows: Sequence[Timing], reference: str) -> list[Table]:
    """Time and ratio: one column a pass for one size, else a table a pass with one column a size."""
    sizes = _distinct(rows, lambda row: row["elements"])
    passes = [name for name in PASSES if any(row["pass"] == name for row in rows)]
    if len(sizes) == 1:
        title = f"{sizes[0]:,} elements, {where_of(rows[0])}"
        return [_time_table(rows, title, "pass", passes, PASS_LABELS.__getitem__, reference)]
    return [
        _time_table(
            [row for row in rows if row["pass"] == name],
            f"{PASS_LABELS[name].capitalize()}, {where_of(rows[0])}", "elements", sizes, size_text, reference,
        )
        for name in passes
    ]  # fmt: skip


def _time_table(
    rows: Sequence[Timing],
    title: str,
    field: str,
    values: Sequence[Any],
    name_of: Callable[[Any], str],
    reference: str,
) -> Table:
    """One group of columns (time, spread, ratio) for each of the ``values`` of ``field``."""
    found = {(row["activation"], row["kernel"], row[field]): row for row in rows}
    units = {
        value: unit_for([row["seconds"]["median"] for row in rows if row[field] == value]) for value in values
    }
    headers: list[str | tuple[str, str]] = ["activation"]
    for value in values:
        headers += [(name_of(value), name) for name in (units[value], "±", f"x {_label(rows, reference)}")]
    lines = []
    for key, first in _lines(rows).items():
        line: list[Cell | str | None] = [row_label(first)]
        for value in values:
            row = found.get((*key, value))
            if row is None:
                line += [NOT_RUN, None, None]
            else:
                time = row["seconds"]["median"] / UNITS[units[value]]
                ratio = _ratio_cell(row, reference)
                line += [Cell(three_digits(time), time), _spread_cell(row["seconds"]), ratio]
        lines.append(line)
    caption = (
        f"Median of {min(row['rounds'] for row in rows)} interleaved rounds ± half the distance between the "
        "20% and 80% quantiles; ratios are medians over rounds of the quotient within a round."
    )
    return Table.of(f"times-{field}", title, headers, lines, [caption], map(_tone, _lines(rows).values()))


def _label(rows: Sequence[Timing], name: str) -> str:
    return next((str(row["label"]) for row in rows if row["activation"] == name), name)


def _ours_against(rows: Sequence[Timing], reference: str) -> Table:
    """Our rows as multiples of one other row: a line for each pass, a column for each size."""
    mine = [row for row in rows if row["is_ours"] and reference in row["ratios"]]
    sizes = _distinct(mine, lambda row: row["elements"])
    found = {(row["activation"], row["kernel"], row["pass"], row["elements"]): row for row in mine}
    lines = [
        (
            row_label(first),
            PASS_LABELS[name],
            *(_ratio_cell(found.get((*key, name, size)), reference) for size in sizes),
        )
        for key, first in _lines(mine).items()
        for name in PASSES
        if any(row["pass"] == name for row in mine)
    ]
    title = f"Times as long as {_label(rows, reference)}, {where_of(rows[0])}"
    headers = ("activation", "pass", *map(size_text, sizes))
    return Table.of(f"against-{reference}", title, headers, lines, (), map(_tone, mine[: len(lines)]))


def not_run_lines(entries: Iterable[dict[str, str]]) -> list[str]:
    """What was not run and why, each reason once."""
    reasons: dict[str, list[dict[str, str]]] = {}
    for entry in entries:
        reasons.setdefault(entry["why"], []).append(entry)
    lines = []
    for why, group in reasons.items():
        places = _distinct(group, lambda entry: entry["where"])
        what = "; ".join(_distinct(group, lambda entry: entry["what"]))
        place = places[0] if len(places) == 1 else f"in {len(places)} settings"
        lines.append(f"{what} ({place}): {why}" if place else f"{what}: {why}")
    return lines


# -- training steps --------------------------------------------------------------------------------


def step_tables(sitting: Sitting) -> list[Table]:
    """One for each model, device and number of threads."""
    groups = grouped(sitting.rows, "training", "model", "device", "threads").values()
    return [_steps(sitting, group) for group in groups]


def _steps(sitting: Sitting, rows: Sequence[Timing]) -> Table:
    first = rows[0]
    references = _distinct((name for row in rows for name in row["ratios"] if name != "direct"), str)
    labels = {row["activation"]: row["label"] for row in rows}
    names = ["activation", f"{first['unit']}/s", "±"]
    names += [f"time x {labels.get(name, name)}" for name in references]
    lines = [
        (
            row_label(row),
            numbered(row["items_a_second"]["median"], 0),
            _spread_cell(row["items_a_second"]),
            *(_ratio_cell(row, name) for name in [*references, "direct"]),
            numbered(row["kept_bytes"] / 1e6, 0),
            numbered(row["peak_bytes"] / 1e6, 0),
        )
        for row in rows
    ]
    caption = (
        f"Forward, backward, clipping, AdamW; median of {min(row['rounds'] for row in rows)} interleaved "
        "rounds. Kept: tensors saved for the backward pass. Peak: the most that tensors made during the step "
        "held at a time, by the allocator's count, so without parameters and optimizer state."
    )
    title = f"One training step: {first['model_label']}, {where_of(first)}"
    names += ["time x direct", "kept MB", "peak MB"]
    notes = (caption, f"{sitting.path}; {sitting.sentence}")
    return Table.of(f"steps-{first['model']}", title, names, lines, notes, map(_tone, rows))
