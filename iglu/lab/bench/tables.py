"""Rows of results as tables: once as data, then for a terminal or in Markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from iglu.lab.bench.subjects import COMPILED, COMPILED_DIRECT, DIRECT, TORCH
from iglu.lab.bench.timing import PASS_LABELS, PASSES, where
from iglu.lab.paper import table1

Row = dict[str, Any]
NOT_RUN = "not run"
_KERNEL_LABELS = {DIRECT: "direct", COMPILED: "compiled", COMPILED_DIRECT: "direct, compiled"}


@dataclass(frozen=True)
class Table:
    """Headers may have several lines; ``styles`` gives each row a style of the terminal."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    styles: list[str]
    caption: str = ""

    def to_rich(self) -> Group:
        table = RichTable(box=None, header_style="dim", pad_edge=False, collapse_padding=True)
        for index, header in enumerate(self.headers):
            table.add_column(header, justify="right" if index else "left", no_wrap=True)
        for cells, style in zip(self.rows, self.styles, strict=True):
            table.add_row(*(Text(cell) for cell in cells), style=style)
        # Beside the table rather than in it, which would wrap them to its width.
        return Group(Text(self.title, "bold"), table, Text(self.caption, "dim"))

    def to_markdown(self) -> str:
        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(cell.replace("\n", " ").replace("*", "\\*") for cell in cells) + " |"

        rule = "|---|" + "---:|" * (len(self.headers) - 1)
        body = "\n".join([line(header.strip() for header in self.headers), rule, *map(line, self.rows)])
        caption = f"\n\n{self.caption}" if self.caption else ""
        return f"**{self.title}**\n\n{body}{caption}\n"


UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


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


def _spread_text(spread: dict[str, float]) -> str:
    """Half the distance between the 20% and 80% quantiles, in percent of the median."""
    return f"±{50 * (spread['high'] - spread['low']) / spread['median']:.0f}%"


def _ratio_text(row: Row | None, reference: str) -> str:
    if row is None or reference not in row["ratios"]:
        return ""
    return f"{row['ratios'][reference]['median']:.2f}"


def row_label(row: Row) -> str:
    """The activation, and the way it was computed where that is not the usual one."""
    kernel = row["kernel"]
    if kernel in (TORCH, "auto"):
        return str(row["label"])
    return f"{row['label']}, {_KERNEL_LABELS.get(kernel, kernel)}"


def _style(row: Row) -> str:
    if row["is_ours"]:
        return "bold cyan"
    return "" if row["kernel"] == TORCH else "cyan"


def _lines(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """One row for each line of a table, in the order measured."""
    lines: dict[tuple[str, str], Row] = {}
    for row in rows:
        lines.setdefault((row["activation"], row["kernel"]), row)
    return lines


def _distinct(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[Any]:
    return list(dict.fromkeys(map(key, rows)))


def _where(row: Row) -> str:
    return where(row["dtype"], row["device"], row["threads"])


def tables_of(rows: Sequence[Row], against: Sequence[str]) -> list[Table]:
    """Every table these rows allow."""
    operations = [row for row in rows if row["kind"] == "operation"]
    training = [row for row in rows if row["kind"] == "training"]
    references = [name for name in against if name != "identity"] or list(against)
    papers_own = [row for row in operations if is_papers_setting(row)]
    result = [
        _beside_the_paper([row for row in papers_own if row["threads"] == threads])
        for threads in _distinct(papers_own, lambda row: row["threads"])
    ]
    for key in _distinct(operations, lambda row: (row["device"], row["dtype"], row["threads"])):
        group = [row for row in operations if (row["device"], row["dtype"], row["threads"]) == key]
        if references:
            result.extend(_times(group, references[0]))
        result.extend(_ours_against(group, reference) for reference in references[1:])
    for key in _distinct(training, lambda row: (row["model"], row["device"], row["threads"])):
        group = [row for row in training if (row["model"], row["device"], row["threads"]) == key]
        result.append(_training(group))
    return result


def is_papers_setting(row: Row) -> bool:
    """Whether a row belongs into Table 1, whose times are multiples of Identity's."""
    return row["elements"] == 10_000 and row["dtype"] == "float32" and "identity" in row["ratios"]


def is_published(row: Row) -> bool:
    """Whether the paper's number for the activation stands beside this row, not beside its direct form."""
    return row["kernel"] in (TORCH, "auto") and row["activation"] in table1()


def _beside_the_paper(rows: Sequence[Row]) -> Table:
    found = {(row["activation"], row["kernel"], row["device"][:4], row["pass"]): row for row in rows}
    has_gpu = any(row["device"].startswith("cuda") for row in rows)
    headers = ["", "CPU\nforward\npaper", "\n\nours", "\nours,\nrecord.", "CPU\nbackward\npaper", "\n\nours"]
    headers += ["\nours,\nof sum", "GPU\nforward\npaper", "\n\nours", "GPU\nbackward\npaper", "\n\nours"]
    columns: list[str | tuple[str, str]] = [
        "cpu_forward", ("cpu", "forward"), ("cpu", "recording"),
        "cpu_backward", ("cpu", "backward"), ("cpu", "loss_backward"),
        "gpu_forward", ("cuda", "forward"), "gpu_backward", ("cuda", "backward"),
    ]  # fmt: skip
    published = table1()
    cells, styles = [], []
    for (name, kernel), row in _lines(rows).items():
        line = [row_label(row)]
        for column in columns:
            if isinstance(column, str):
                line.append(f"{published[name][column]:.2f}" if is_published(row) else "")
            elif column[0] == "cuda" and not has_gpu:
                line.append(NOT_RUN)
            else:
                line.append(_ratio_text(found.get((name, kernel, column[0], column[1])), "identity"))
        cells.append(line)
        styles.append(_style(row))
    caption = (
        "Times as long as Identity, 10,000 elements, float32. The paper timed the direct formulas; its "
        "machine and torch are others, so compare the order within a column. Backward: autograd's engine "
        "alone, from a dense gradient; of sum: loss.backward(), as in the paper."
    )
    return Table("Table 1 of the paper, beside ours", headers, cells, styles, caption)


def _times(rows: Sequence[Row], reference: str) -> list[Table]:
    """Time and ratio: one column a pass for one size, else a table a pass with one column a size."""
    sizes = _distinct(rows, lambda row: row["elements"])
    passes = [name for name in PASSES if any(row["pass"] == name for row in rows)]
    if len(sizes) == 1:
        title = f"{sizes[0]:,} elements, {_where(rows[0])}"
        return [_time_table(rows, title, "pass", passes, PASS_LABELS.get, reference)]
    return [
        _time_table(
            [row for row in rows if row["pass"] == name],
            f"{PASS_LABELS[name].capitalize()}, {_where(rows[0])}", "elements", sizes, size_text, reference,
        )
        for name in passes
    ]  # fmt: skip


def _time_table(
    rows: Sequence[Row],
    title: str,
    field: str,
    values: Sequence[Any],
    name_of: Callable[[Any], str | None],
    reference: str,
) -> Table:
    """One group of columns (time, spread, ratio) for each of the ``values`` of ``field``."""
    found = {(row["activation"], row["kernel"], row[field]): row for row in rows}
    units = {
        value: unit_for([row["seconds"]["median"] for row in rows if row[field] == value]) for value in values
    }
    headers = [""]
    for value in values:
        headers += [f"{name_of(value)}\n{units[value]}", "", f"x {_label(rows, reference)}"]
    cells, styles = [], []
    for (name, kernel), first in _lines(rows).items():
        line = [row_label(first)]
        for value in values:
            row = found.get((name, kernel, value))
            if row is None:
                line += [NOT_RUN, "", ""]
            else:
                time = row["seconds"]["median"] / UNITS[units[value]]
                line += [three_digits(time), _spread_text(row["seconds"]), _ratio_text(row, reference)]
        cells.append(line)
        styles.append(_style(first))
    rounds = min(row["rounds"] for row in rows)
    caption = (
        f"Median of {rounds} interleaved rounds ± half the distance between the 20% and 80% quantiles; "
        "ratios are medians over rounds of the quotient within a round."
    )
    return Table(title, headers, cells, styles, caption)


def _label(rows: Sequence[Row], name: str) -> str:
    return next((str(row["label"]) for row in rows if row["activation"] == name), name)


def _ours_against(rows: Sequence[Row], reference: str) -> Table:
    """Our rows as multiples of one other row: a line for each pass, a column for each size."""
    mine = [row for row in rows if row["is_ours"] and reference in row["ratios"]]
    sizes = _distinct(mine, lambda row: row["elements"])
    found = {(row["activation"], row["kernel"], row["pass"], row["elements"]): row for row in mine}
    cells = [
        [row_label(first), PASS_LABELS[name]]
        + [_ratio_text(found.get((*key, name, size)), reference) for size in sizes]
        for key, first in _lines(mine).items()
        for name in PASSES
        if any(row["pass"] == name for row in mine)
    ]
    title = f"Times as long as {_label(rows, reference)}, {_where(rows[0])}"
    return Table(title, ["", "", *map(size_text, sizes)], cells, ["bold cyan"] * len(cells))


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


def _training(rows: Sequence[Row]) -> Table:
    first = rows[0]
    references = _distinct((name for row in rows for name in row["ratios"] if name != "direct"), str)
    labels = {row["activation"]: row["label"] for row in rows}
    headers = ["", f"{first['unit']}/s", "", *(f"time x\n{labels[name]}" for name in references)]
    headers += ["time x\ndirect", "kept\nMB", "peak\nMB"]
    cells = [
        [
            row_label(row),
            f"{row['items_a_second']['median']:,.0f}",
            _spread_text(row["items_a_second"]),
            *(_ratio_text(row, name) for name in [*references, "direct"]),
            f"{row['kept_bytes'] / 1e6:.0f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
        ]
        for row in rows
    ]
    title = f"One training step: {first['model_label']}, {_where(first)}"
    caption = (
        f"Forward, backward, clipping, AdamW; median of {min(row['rounds'] for row in rows)} interleaved "
        "rounds. Kept: tensors saved for the backward pass. Peak: the most that tensors made during the step "
        "held at a time, by the allocator's count, so without parameters and optimizer state."
    )
    return Table(title, headers, cells, [_style(row) for row in rows], caption)


def find_section(path: Path, section: str) -> re.Match[str]:
    """The part of a Markdown file from ``<!-- bench:section -->`` to ``<!-- /bench:section -->``."""
    if not path.is_file():
        raise ValueError(f"--markdown must name a file to fill in, got {path}, which is none")
    begin, end = f"<!-- bench:{section} -->", f"<!-- /bench:{section} -->"
    document = path.read_text(encoding="utf-8")
    found = re.search(f"({re.escape(begin)}).*?({re.escape(end)})", document, re.DOTALL)
    if found is None:
        known = ", ".join(re.findall(r"<!-- bench:(\S+) -->", document)) or "none"
        raise ValueError(
            f"{path} has no section {section!r}, from {begin} to {end}. Sections there: {known}."
        )
    return found


def fill_section(path: Path, section: str, text: str) -> None:
    """Replace what is between the two marks."""
    found = find_section(path, section)
    document = found.string
    filled = f"{found[1]}\n{text.strip()}\n{found[2]}"
    path.write_text(document[: found.start()] + filled + document[found.end() :], encoding="utf-8")
