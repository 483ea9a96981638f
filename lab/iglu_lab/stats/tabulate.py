"""A table of typed cells, and its rendering for the terminal, Markdown, LaTeX, CSV and HTML.

A wide table is split into panels of a few column groups each, except in CSV.  Notes of cells become letters,
explained below the table.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jinja2
from markupsafe import Markup
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from iglu_lab.stats.statistics import Estimate, rounded

Mark = Literal["", "best", "second"]
Tone = Literal["", "ours", "quiet"]

_TONES: dict[Tone, str] = {"": "", "ours": "bold cyan", "quiet": "dim"}


@dataclass(frozen=True)
class Cell:
    """The text, its number, its rank in the column, and a note."""

    text: str = ""
    number: float | None = None
    mark: Mark = ""
    note: str = ""


NONE = Cell()
NOT_RUN = Cell("not run")


def numbered(value: float | None, digits: int = 2, sign: str = "") -> Cell:
    if value is None or not math.isfinite(value):
        return NONE if value is None else Cell("none")
    return Cell(rounded(value, digits, sign), value)


def p_cell(value: float | None) -> Cell:
    """A p-value, which is never 0."""
    return Cell("< 0.001", value) if value is not None and value < 0.001 else numbered(value, 3)


def estimated(found: Estimate | None, digits: int, sign: str = "", note: str = "") -> Cell:
    return NONE if found is None else Cell(found.text(digits, sign), found.value, note=note)


def ranked_marks(count: int, ranked: Sequence[int], differ: Callable[[int, int], bool]) -> list[Mark]:
    """The marks of ``count`` rows: the first two in rank, each if it differs from the next."""
    result: list[Mark] = [""] * count
    names: tuple[Mark, ...] = ("best", "second")
    for name, place, following in zip(names, ranked, ranked[1:], strict=False):
        if not differ(place, following):
            break
        result[place] = name
    return result


@dataclass(frozen=True)
class Table:
    """Headers are (group, name), such as ("ResNet-20, CIFAR-10", "paper"); the group may be empty."""

    key: str  # used in file names and anchors
    title: str
    headers: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    tones: tuple[Tone, ...] = ()  # one per row, for the terminal

    @classmethod
    def of(
        cls,
        key: str,
        title: str,
        headers: Iterable[str | tuple[str, str]],
        rows: Iterable[Iterable[object]],
        notes: Iterable[str] = (),
        tones: Iterable[Tone] = (),
    ) -> Table:
        """Build a table from strings, numbers and cells; a header that is a string has no group."""
        named = tuple(("", each) if isinstance(each, str) else each for each in headers)
        cells = tuple(tuple(map(_cell, row)) for row in rows)
        return cls(key, title, named, cells, tuple(notes), tuple(tones))

    @classmethod
    def of_columns(
        cls,
        key: str,
        title: str,
        columns: Mapping[tuple[str, str], Sequence[object]],
        notes: Iterable[str] = (),
        tones: Iterable[Tone] = (),
    ) -> Table:
        """Build a table from its columns by header."""
        return cls.of(key, title, columns, zip(*columns.values(), strict=True), notes, tones)

    @property
    def remarks(self) -> dict[str, str]:
        """The letter of each distinct note."""
        notes = dict.fromkeys(cell.note for row in self.rows for cell in row if cell.note)
        return {note: letter(number) for number, note in enumerate(notes)}

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Runs of adjacent headers with the same group, and their lengths."""
        found: list[tuple[str, int]] = []
        for group, _ in self.headers:
            if group and found and found[-1][0] == group:
                found[-1] = (group, found[-1][1] + 1)
            else:
                found.append((group, 1))
        return found

    @property
    def numeric(self) -> list[bool]:
        """Whether each column has numbers, which are right-aligned."""
        return [any(row[place].number is not None for row in self.rows) for place in range(len(self.headers))]

    def columns(self, places: Sequence[int]) -> Table:
        """A table with some of the columns."""
        return replace(
            self,
            headers=tuple(self.headers[place] for place in places),
            rows=tuple(tuple(row[place] for place in places) for row in self.rows),
        )

    def panels(self, widest: int = 9) -> Iterator[Table]:
        """Split between groups into tables of at most ``widest`` columns.  Leading ungrouped columns are
        repeated."""
        lead = next((place for place, (group, _) in enumerate(self.headers) if group), len(self.headers))
        pieces: list[list[int]] = []
        place = lead
        for _, span in self.columns(range(lead, len(self.headers))).groups:
            group = list(range(place, place + span))
            place += span
            if pieces and lead + len(pieces[-1]) + span <= widest:
                pieces[-1] += group
            else:
                pieces.append(group)
        for piece in pieces or [[]]:
            yield self.columns([*range(lead), *piece])


def _cell(content: object) -> Cell:
    if isinstance(content, Cell):
        return content
    text = "" if content is None else str(content)
    return Cell(text, content if isinstance(content, int) else None)


def letter(number: int) -> str:
    """a, b ... z, aa, ab ...

    >>> letter(0), letter(26)
    ('a', 'aa')
    """
    rest, place = divmod(number, len(string.ascii_lowercase))
    return (letter(rest - 1) if rest else "") + string.ascii_lowercase[place]


# -- terminal --------------------------------------------------------------------------------


def terminal(table: Table) -> Group:
    """The title, the panels and the notes (outside the table, which would wrap them)."""
    parts: list[Any] = [Text(table.title, "bold")]
    parts += [_panel(panel, table.remarks) for panel in table.panels()]
    parts += [Text(f"{sign}: {note}", "dim") for note, sign in table.remarks.items()]
    return Group(*parts, *(Text(note, "dim") for note in table.notes))


def _panel(panel: Table, remarks: dict[str, str]) -> RichTable:
    shown = RichTable(box=None, header_style="dim", pad_edge=False, collapse_padding=True)
    before, is_grouped = None, any(group for group, _ in panel.headers)
    for (group, name), is_numeric in zip(panel.headers, panel.numeric, strict=True):
        head = f"{group if group != before else ''}\n{name}" if is_grouped else name
        shown.add_column(Text(head), justify="right" if is_numeric else "left", no_wrap=is_numeric)
        before = group
    tones: Iterable[Tone] = panel.tones or itertools.repeat("")
    for row, tone in zip(panel.rows, tones, strict=False):
        cells = [Text(cell.text + (f" {remarks[cell.note]}" if cell.note else "")) for cell in row]
        for text, cell in zip(cells, row, strict=True):
            text.stylize({"best": "bold", "second": "underline", "": ""}[cell.mark])
        shown.add_row(*cells, style=_TONES[tone])
    return shown


# -- text formats ---------------------------------------------------------------------------------------

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#",
    "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$",
    "<": r"$<$", ">": r"$>$", "|": r"$|$",
}  # fmt: skip


def plain_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def plain_markdown(text: str) -> str:
    """Escape Markdown."""
    return re.sub(r"([\\`*_<\[\]|#])", r"\\\1", " ".join(text.split()))


def environment(escape: Callable[[str], str], *loaders: jinja2.BaseLoader) -> jinja2.Environment:
    """A Jinja environment that escapes all values."""

    def finalize(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(str(value)))

    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([*loaders, jinja2.PackageLoader("iglu_lab.stats")]), autoescape=True,
        finalize=finalize, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip


def markdown(table: Table) -> str:
    """
    >>> headers = (("", "name"), ("CPU", "ours"), ("", "remark"))
    >>> print(markdown(Table("t", "Speed", headers, ((Cell("a|b"), Cell("1", 1.0), Cell("c")),))))
    **Speed**
    <BLANKLINE>
    | name | CPU: ours | remark |
    |---|---:|---|
    | a\\|b | 1 | c |
    <BLANKLINE>
    """
    found = environment(plain_markdown).from_string(
        '{% import "table.md" as tables %}**{{ table.title }}**\n\n{{ tables.body(table) }}'
    )
    return found.render(table=table)


def csv_text(table: Table) -> str:
    """One column each for the text, number and note of the cells, so that nothing has to be parsed."""
    columns: list[list[object]] = []
    for place, (group, name) in enumerate(table.headers):
        cells = [row[place] for row in table.rows]
        title = f"{group}: {name}" if group else name
        columns.append([title, *(cell.text + (f" ({cell.mark})" if cell.mark else "") for cell in cells)])
        if table.numeric[place]:
            columns.append([f"{title} (number)", *(cell.number for cell in cells)])
        if any(cell.note for cell in cells):
            columns.append([f"{title} (remark)", *(cell.note for cell in cells)])
    return csv_lines(zip(*columns, strict=True))


def finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, with None; a chart then has a gap."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def csv_lines(lines: Iterable[Iterable[object]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(map(_escape_formula, line) for line in lines)
    return file.getvalue()


def _escape_formula(cell: object) -> str:
    """Escape text that a spreadsheet would interpret as a formula."""
    text = "" if cell is None else str(cell)
    return f"'{text}" if re.match(r"[=@\t\r]|[+-](?![\d.])", text) else text
