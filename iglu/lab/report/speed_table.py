"""Table 1: times in multiples of Identity's, the paper's beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from iglu import zoo
from iglu.lab import paper
from iglu.lab.bench.subjects import DIRECT
from iglu.lab.bench.tables import is_papers_setting, is_published
from iglu.lab.report.cells import MISSING, NONE, number_text
from iglu.lab.report.content import Cell, Table
from iglu.lab.report.gather import Bench
from iglu.lab.report.samples import Mark
from iglu.lab.runs.folder import Row


class Interval(NamedTuple):
    """A figure and the interval that holds it with 95%."""

    value: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """The median and its 95% interval from order statistics: with n rounds, the number of them below the
    true median is binomial(n, 1/2), whatever the distribution.

    >>> median_interval([5.0, 1.0, 4.0, 2.0, 3.0, 6.0])
    Interval(value=3.5, low=1.0, high=6.0)
    """
    from scipy.stats import binom

    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    rank = int(binom.ppf(0.025, count, 0.5))  # so many are below the low end, and above the high one
    if rank == 0 or binom.cdf(rank - 1, count, 0.5) > 0.025:
        return Interval(middle, -math.inf, math.inf)
    return Interval(middle, ordered[rank - 1], ordered[count - rank])


def quotient(row: Row, reference: Row) -> Interval:
    """Of times within a round: both saw the same machine."""
    pairs = zip(row["seconds_by_round"], reference["seconds_by_round"], strict=False)
    return median_interval([mine / other for mine, other in pairs])


# paper's column -> heading, kind of device, the passes that fill it: the first that was measured
_TIMED = {
    "cpu_forward": ("CPU forward", "cpu", ("forward",)),
    "cpu_backward": ("CPU backward", "cpu", ("loss_backward", "backward")),
    "gpu_forward": ("GPU forward", "cuda", ("forward",)),
    "gpu_backward": ("GPU backward", "cuda", ("loss_backward", "backward")),
}


def papers_rows(benches: Iterable[Bench], device: str) -> tuple[Bench | None, list[Row]]:
    """The sitting that has most of Table 1 on that kind of device, the newest of equals, and its rows."""
    chosen: tuple[Bench | None, list[Row]] = (None, [])
    for bench in sorted(benches, key=lambda bench: bench.date, reverse=True):
        rows = [
            row
            for row in bench.rows
            if row["kind"] == "operation" and is_papers_setting(row) and row["device"].startswith(device)
            and (device != "cpu" or row["threads"] == 1)
        ]  # fmt: skip
        if len(rows) > len(chosen[1]):
            chosen = (bench, rows)
    return chosen


class _Line(NamedTuple):
    """A row of the table: an activation, as it is served or as the paper writes it."""

    activation: str
    is_direct: bool

    @property
    def label(self) -> str:
        return zoo.ZOO[self.activation].label + (", direct" if self.is_direct else "")

    @property
    def is_ranked(self) -> bool:
        return zoo.ZOO[self.activation].self_gated and not self.is_direct

    def timed(self, rows: Iterable[Row], passes: Sequence[str]) -> Row | None:
        """The first pass of these that was measured."""
        mine = {
            row["pass"]: row
            for row in rows
            if row["activation"] == self.activation
            and (row["kernel"] == DIRECT if self.is_direct else is_published(row))
        }
        return next((mine[name] for name in passes if name in mine), None)


def table1(benches: Sequence[Bench]) -> Table:
    """The direct formulas stand in lines of their own."""
    sittings = {device: papers_rows(benches, device) for device in ("cpu", "cuda")}
    published = paper.table1()
    measured_directly = {row["activation"] for row in sittings["cpu"][1] if row["kernel"] == DIRECT}
    lines = [
        _Line(activation, is_direct)
        for activation in published
        for is_direct in ((False, True) if activation in measured_directly else (False,))
    ]
    headers = [("", "activation")]
    columns = []
    for column, (heading, device, passes) in _TIMED.items():
        headers += [(heading, name) for name in ("paper", "ours", "difference")]
        timed = [line.timed(sittings[device][1], passes) for line in lines]
        columns.append(
            [
                _cells(row, passes, None if line.is_direct else published[line.activation][column], mark)
                for line, row, mark in zip(lines, timed, _marks(lines, timed), strict=True)
            ]
        )
    rows = tuple(
        (Cell(line.label), *(cell for column in columns for cell in column[number]))
        for number, line in enumerate(lines)
    )
    notes = [
        "Times as long as Identity: 10,000 elements, float32, one thread on the CPU. Ours: median over "
        "rounds of the quotient within a round, and the range from the 20% to the 80% quantile. The paper's "
        f"machine and torch are others ({paper.paper()['table1']['setup']}), so compare the order within a "
        "column. Backward as in the paper: loss.backward() of a sum. The paper timed the formulas as they "
        "are written, which here are the lines called direct.",
        "Bold is the fastest and underlined the second among those of the form x g(x), as in the paper, only "
        "where the 95% interval of the median quotient to the next in rank excludes 1.",
    ]
    for device, (bench, _) in sittings.items():
        if bench is not None:
            notes.append(f"{'CPU' if device == 'cpu' else 'GPU'} rows: {bench.path}; {bench.sentence}")
    caption = paper.paper()["table1"]["caption"]
    return Table("table1", f"Table 1. {caption}", tuple(headers), rows, tuple(notes))


def _marks(lines: Sequence[_Line], timed: Sequence[Row | None]) -> list[Mark]:
    ranked = sorted(
        (row["ratios"]["identity"]["median"], place)
        for place, (line, row) in enumerate(zip(lines, timed, strict=True))
        if row is not None and line.is_ranked
    )
    places = [place for _, place in ranked]
    result: list[Mark] = [""] * len(lines)
    names: tuple[Mark, ...] = ("best", "second")
    for name, place, following in zip(names, places, places[1:], strict=False):
        faster, slower = timed[place], timed[following]
        assert faster is not None
        assert slower is not None
        if not quotient(faster, slower).high < 1:
            break
        result[place] = name
    return result


def _cells(row: Row | None, passes: Sequence[str], printed: float | None, mark: Mark) -> tuple[Cell, ...]:
    """Paper, ours, difference."""
    paper_cell = NONE if printed is None else Cell(number_text(printed, 2), printed)
    if row is None:
        return paper_cell, MISSING, NONE
    ratio = row["ratios"]["identity"]
    is_first = row["pass"] == passes[0]
    ours = Cell(
        f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        ratio["median"],
        mark,
        "" if is_first else f"{row['pass']}, for want of {passes[0]}",
    )
    if printed is None:
        return paper_cell, ours, NONE
    gap = ratio["median"] - printed
    return paper_cell, ours, Cell(number_text(gap, 2, "+"), gap)
