"""Tables of a benchmark session: Table 1 compared with the paper, times by pass or size, training steps."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from iglu import zoo
from iglu_lab import paper
from iglu_lab.bench.cases import COMPILED, COMPILED_DIRECT, DIRECT, SIGMA, TORCH
from iglu_lab.bench.sessions import Session, Timing, grouped
from iglu_lab.bench.timing import PASS_LABELS, PASSES, where_of
from iglu_lab.stats.statistics import Estimate, median
from iglu_lab.stats.tabulate import NONE, NOT_RUN, Cell, Mark, Table, Tone, numbered, ranked_marks
from iglu_lab.storage import shown

_Passes = dict[str, Timing]
_KERNEL_LABELS = {DIRECT: "direct", COMPILED: "compiled", COMPILED_DIRECT: "direct, compiled"}
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def quotient(row: Timing, reference: Timing) -> Estimate:
    """The ratio of times within a round: median over rounds, with its 95% interval."""
    pairs = zip(row["seconds_by_round"], reference["seconds_by_round"], strict=False)
    return median([mine / other for mine, other in pairs])


def unit_for(seconds: Sequence[float]) -> str:
    """The unit in which the median of a column of times is between 1 and 1,000."""
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
    """The activation, and its kernel unless that is the default."""
    kernel = row["kernel"]
    if kernel in (TORCH, "auto"):
        return str(row["label"])
    return f"{row['label']}, {_KERNEL_LABELS.get(kernel, kernel)}"


def _variation_cell(summary: dict[str, float]) -> Cell:
    """Half the distance between the 20% and 80% quantiles, in percent of the median."""
    share = 50 * (summary["high"] - summary["low"]) / summary["median"]
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
    """The first row of each line of a table, in the order measured."""
    lines: dict[tuple[str, str], Timing] = {}
    for row in rows:
        lines.setdefault((row["activation"], row["kernel"]), row)
    return lines


def _distinct(rows: Iterable[Any], key: Callable[[Any], Any]) -> list[Any]:
    return list(dict.fromkeys(map(key, rows)))


def tables_of(session: Session, against: Sequence[str]) -> list[Table]:
    """All tables for the rows of a session."""
    references = [name for name in against if name != "identity"] or list(against)
    result = [_measured_lines(table1([session]))] if any(map(is_papers_setting, session.rows)) else []
    for group in grouped(session.rows, "operation", "device", "dtype", "threads").values():
        if references:
            result.extend(_times(group, references[0]))
        result.extend(_ours_against(group, reference) for reference in references[1:])
    return [*result, *step_tables(session)]


def _measured_lines(table: Table) -> Table:
    """Only the rows that were measured."""
    ours = [place for place, (_, name) in enumerate(table.headers) if name == "ours"]
    kept = [any(row[place] != NOT_RUN for place in ours) for row in table.rows]
    rows, tones = itertools.compress(table.rows, kept), itertools.compress(table.tones, kept)
    return dataclasses.replace(table, rows=tuple(rows), tones=tuple(tones))


# -- Table 1 ---------------------------------------------------------------------------------------

# column of the paper -> heading, kind of device, passes: the first that was measured is shown
_TIMED = {
    "cpu_forward": ("CPU forward", "cpu", ("forward",)),
    "cpu_backward": ("CPU backward", "cpu", ("loss_backward", "backward")),
    "gpu_forward": ("GPU forward", "cuda", ("forward",)),
    "gpu_backward": ("GPU backward", "cuda", ("loss_backward", "backward")),
}


def is_papers_setting(row: Timing) -> bool:
    """Whether a row belongs in Table 1, whose times are relative to Identity."""
    is_setting = row["kind"] == "operation" and row["elements"] == 10_000 and row["dtype"] == "float32"
    return is_setting and "identity" in row["ratios"] and (row["device"] != "cpu" or row["threads"] == 1)


Form = tuple[str, bool]
"""An activation, and whether it is the direct formula of the paper."""


def papers_rows(sessions: Iterable[Session], device: str) -> tuple[Session | None, dict[Form, _Passes]]:
    """The session with most rows of Table 1 for that kind of device (ties: the newest), and its rows."""
    chosen: Session | None = None
    most: list[Timing] = []
    for session in sorted(sessions, key=lambda session: session.date, reverse=True):
        rows = [row for row in session.rows if is_papers_setting(row) and row["device"].startswith(device)]
        if len(rows) > len(most):
            chosen, most = session, rows
    forms: dict[Form, _Passes] = {}
    for row in most:
        if row["kernel"] in (TORCH, "auto", DIRECT):
            forms.setdefault((row["activation"], row["kernel"] == DIRECT), {})[row["pass"]] = row
    return chosen, forms


def table1(sessions: Sequence[Session]) -> Table:
    """Table 1: paper and measured; the direct formulas have their own rows."""
    chosen = {device: papers_rows(sessions, device) for device in ("cpu", "cuda")}
    published = paper.table1()
    both = [(activation, is_direct) for activation in published for is_direct in (False, True)]
    forms = [form for form in both if form in chosen["cpu"][1] or not form[1]]
    labels = [zoo.ZOO[name].label + (", direct" if is_direct else "") for name, is_direct in forms]
    columns: dict[tuple[str, str], Sequence[object]] = {("", "activation"): labels}
    for column, (heading, device, passes) in _TIMED.items():
        rows = [chosen[device][1].get(form, {}) for form in forms]
        timed = [next((of[name] for name in passes if name in of), None) for of in rows]
        printed = [None if is_direct else published[name][column] for name, is_direct in forms]
        cells = map(_cells, timed, itertools.repeat(passes), printed, _marks(forms, timed))
        headers = [(heading, name) for name in ("paper", "ours", "difference")]
        columns |= zip(headers, zip(*cells, strict=True), strict=True)
    notes = [
        "Time relative to Identity: 10,000 elements, float32, one thread on the CPU. Ours: median over "
        "rounds of the ratio within a round, and its 20% to 80% quantile range. The paper used other "
        f"hardware and software ({paper.paper()['table1']['setup']}), so compare the order within a "
        "column. Backward as in the paper: loss.backward() of a sum. The paper timed the direct formulas.",
        "Of the activations of the form x g(x), the fastest is bold and the second underlined, as in the "
        "paper, but only if the 95% interval of the median ratio to the next in rank excludes 1.",
    ]
    notes += [
        f"{'CPU' if device == 'cpu' else 'GPU'} rows: {shown(session.path)}; {session.origin}"
        for device, (session, _) in chosen.items()
        if session is not None
    ]
    title = f"Table 1. {paper.paper()['table1']['caption']}"
    tones: list[Tone] = ["ours" if name.startswith(("iglu", "z")) else "" for name, _ in forms]
    return Table.of_columns("table1", title, columns, notes, tones)


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
    note = "" if row["pass"] == passes[0] else f"{row['pass']} instead of {passes[0]}"
    gap = None if printed is None else ratio["median"] - printed
    return numbered(printed), Cell(text, ratio["median"], mark, note), numbered(gap, 2, "+")


# -- times -----------------------------------------------------------------------------------------


def _times(rows: Sequence[Timing], reference: str) -> list[Table]:
    """Time and ratio: for one size, one column per pass; otherwise one table per pass."""
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
    """One group of columns (time, variation, ratio) per value of ``field``."""
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
                line += [Cell(three_digits(time), time), _variation_cell(row["seconds"]), ratio]
        lines.append(line)
    caption = (
        f"Median of {min(row['rounds'] for row in rows)} interleaved rounds ± half the distance between the "
        "20% and 80% quantiles; ratios are medians over rounds of the ratio within a round. "
        f"{_SIGMA_NOTE}"
    )
    return Table.of(f"times-{field}", title, headers, lines, [caption], map(_tone, _lines(rows).values()))


_SIGMA_NOTE = f"sigma = {SIGMA:g} where a name does not state it."


def _label(rows: Sequence[Timing], name: str) -> str:
    return next((str(row["label"]) for row in rows if row["activation"] == name), name)


def _ours_against(rows: Sequence[Timing], reference: str) -> Table:
    """Our times relative to one baseline: one row per pass, one column per size."""
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
    title = f"Time relative to {_label(rows, reference)}, {where_of(rows[0])}"
    headers = ("activation", "pass", *map(size_text, sizes))
    return Table.of(f"against-{reference}", title, headers, lines, (), map(_tone, mine[: len(lines)]))


def not_run_lines(entries: Iterable[dict[str, str]]) -> list[str]:
    """What was not run, grouped by reason."""
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


def step_tables(session: Session) -> list[Table]:
    """One table per model, device and number of threads."""
    groups = grouped(session.rows, "training", "model", "device", "threads").values()
    return [_steps(session, group) for group in groups]


def _steps(session: Session, rows: Sequence[Timing]) -> Table:
    first = rows[0]
    references = _distinct((name for row in rows for name in row["ratios"] if name != "direct"), str)
    labels = {row["activation"]: row["label"] for row in rows}
    names = ["activation", f"{first['unit']}/s", "±"]
    names += [f"time x {labels.get(name, name)}" for name in references]
    lines = [
        (
            row_label(row),
            numbered(row["items_a_second"]["median"], 0),
            _variation_cell(row["items_a_second"]),
            *(_ratio_cell(row, name) for name in [*references, "direct"]),
            numbered(row["kept_bytes"] / 1e6, 0),
            numbered(row["peak_bytes"] / 1e6, 0),
        )
        for row in rows
    ]
    caption = (
        f"Forward, backward, clipping, AdamW; median of {min(row['rounds'] for row in rows)} interleaved "
        "rounds. Kept: tensors saved for the backward pass. Peak: maximum memory allocated during the step, "
        f"without parameters and optimizer state. {_SIGMA_NOTE}"
    )
    title = f"One training step: {first['model_label']}, {where_of(first)}"
    names += ["time x direct", "kept MB", "peak MB"]
    notes = (caption, f"{shown(session.path)}; {session.origin}")
    return Table.of(f"steps-{first['model']}", title, names, lines, notes, map(_tone, rows))
