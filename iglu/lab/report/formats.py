"""A report as Markdown, LaTeX and CSV.

A wide table is written in panels, a few groups of columns each, so that it fits a page; CSV has it whole.
Remarks of cells become letters, explained once under the table.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from iglu.lab.report.content import Cell, Claim, Figure, Report, Table
from iglu.lab.runs.storage import write_atomically

_WIDEST = 9  # columns of a panel
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_formats(report: Report, folder: Path) -> list[Path]:
    """``report.md``, ``report.tex``, and a CSV file for each table and for the claims."""
    tables = folder / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    texts = {folder / "report.md": markdown(report, folder), folder / "report.tex": latex(report)}
    texts |= {tables / f"{table.key}.csv": csv_text(table) for table in report.tables}
    texts[tables / "claims.csv"] = claims_csv(report.claims)
    for stale in set(tables.glob("*.csv")) - texts.keys():
        stale.unlink()
    for path, text in texts.items():
        with write_atomically(path) as file:
            file.write(text.encode())
    return list(texts)


def letter(number: int) -> str:
    """a, b ... z, aa, ab ...

    >>> letter(0), letter(26)
    ('a', 'aa')
    """
    rest, place = divmod(number, len(_LETTERS))
    return (letter(rest - 1) if rest else "") + _LETTERS[place]


def panels(table: Table) -> Iterator[Table]:
    """The table in pieces of at most so many columns, whole groups each; columns without a group at the left
    stand in every piece."""
    lead = 0
    while lead < len(table.headers) and not table.headers[lead][0]:
        lead += 1
    groups: list[list[int]] = []
    for place in range(lead, len(table.headers)):
        if groups and table.headers[place][0] == table.headers[groups[-1][0]][0]:
            groups[-1].append(place)
        else:
            groups.append([place])
    pieces: list[list[int]] = []
    for group in groups:
        if pieces and lead + len(pieces[-1]) + len(group) <= _WIDEST:
            pieces[-1] += group
        else:
            pieces.append(list(group))
    for piece in pieces or [[]]:
        chosen = [*range(lead), *piece]
        yield Table(
            table.key,
            table.title,
            tuple(table.headers[place] for place in chosen),
            tuple(tuple(row[place] for place in chosen) for row in table.rows),
            table.notes,
        )


class _Remarks:
    """Letters for the notes of cells, the same for the same note."""

    def __init__(self, table: Table) -> None:
        notes = dict.fromkeys(cell.note for row in table.rows for cell in row if cell.note)
        self.letters = {note: letter(number) for number, note in enumerate(notes)}

    def of(self, cell: Cell) -> str:
        return self.letters[cell.note] if cell.note else ""


# -- Markdown ------------------------------------------------------------------------------------------


def markdown(report: Report, folder: Path) -> str:
    parts = ["# IGLU: the paper's numbers beside ours\n"]
    parts.append("## Claims\n\n" + _markdown_claims(report.claims))
    parts += [_markdown_table(table) for table in report.tables]
    if report.figures:
        parts.append("## Figures\n\n" + "\n".join(_markdown_figure(each, folder) for each in report.figures))
    parts.append("## What was read\n\n" + _markdown_list(report.sources, "Nothing was found."))
    if report.complaints:
        parts.append("## What could not be read\n\n" + _markdown_list(report.complaints, ""))
    return "\n".join(parts)


def _plain_markdown(text: str) -> str:
    """Escaped, so that a name in somebody's results stays text."""
    for sign in ("\\", "`", "*", "_", "<", "[", "]", "|", "#"):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _markdown_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_claims(claims: Sequence[Claim]) -> str:
    lines = [_markdown_line(("claim", "verdict", "evidence")), "|---|---|---|"]
    lines += [
        _markdown_line((_plain_markdown(each.text), f"**{each.verdict}**", _plain_markdown(each.evidence)))
        for each in claims
    ]
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> str:
    remarks = _Remarks(table)

    def show(cell: Cell) -> str:
        text = _plain_markdown(cell.text)
        if cell.mark:
            text = f"**{text}**" if cell.mark == "best" else f"<u>{text}</u>"
        return text + (f" <sup>{remarks.of(cell)}</sup>" if cell.note else "")

    parts = [f"## {_plain_markdown(table.title)}\n"]
    for panel in panels(table):
        headers = [_plain_markdown(f"{group}: {name}" if group else name) for group, name in panel.headers]
        rule = "|---|" + "---:|" * (len(headers) - 1)
        lines = [_markdown_line(headers), rule, *(_markdown_line(map(show, row)) for row in panel.rows)]
        parts.append("\n".join(lines) + "\n")
    notes = [_plain_markdown(note) for note in table.notes]
    notes += [f"<sup>{sign}</sup> {_plain_markdown(note)}" for note, sign in remarks.letters.items()]
    return "\n".join([*parts, *(f"{note}\n" for note in notes)])


def _markdown_figure(figure: Figure, folder: Path) -> str:
    path = next(iter(figure.paths), None)
    if path is None:
        return f"{_plain_markdown(figure.title)}: {_plain_markdown(figure.alt)}\n"
    place = Path(os.path.relpath(path, folder)).as_posix()
    return f"**{_plain_markdown(figure.title)}**\n\n![{_plain_markdown(figure.alt)}](<{place}>)\n"


def _markdown_list(lines: Sequence[str], empty: str) -> str:
    return "\n".join(f"- {_plain_markdown(line)}" for line in lines) + "\n" if lines else empty + "\n"


# -- LaTeX ---------------------------------------------------------------------------------------------

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#",
    "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$",
    "<": r"$<$", ">": r"$>$", "|": r"$|$",
}  # fmt: skip


def _plain_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def latex(report: Report) -> str:
    """Tables to be read in with ``\\input``; they need the packages booktabs and graphicx."""
    parts = ["% Needs \\usepackage{booktabs,graphicx}.", _latex_claims(report.claims)]
    parts += [_latex_panel(panel, _Remarks(table).of) for table in report.tables for panel in panels(table)]
    return "\n\n".join(parts) + "\n"


def _latex_line(cells: Iterable[str]) -> str:
    return "  " + " & ".join(cells) + r" \\"


def _latex_claims(claims: Sequence[Claim]) -> str:
    lines = [_latex_line((_plain_latex(each.text), each.verdict)) for each in claims]
    body = "\n".join([_latex_line(("claim", "verdict")), r"  \midrule", *lines])
    return _latex_frame("The paper's claims", "claims", "ll", body)


def _latex_panel(table: Table, remark: Callable[[Cell], str]) -> str:
    def show(cell: Cell) -> str:
        text = _plain_latex(cell.text)
        if cell.mark:
            text = rf"\textbf{{{text}}}" if cell.mark == "best" else rf"\underline{{{text}}}"
        return text + (rf"\textsuperscript{{{remark(cell)}}}" if cell.note else "")

    head = [_latex_line(_latex_groups(table.headers))] if any(group for group, _ in table.headers) else []
    head.append(_latex_line(_plain_latex(name) for _, name in table.headers))
    lines = [_latex_line(map(show, row)) for row in table.rows]
    remarks = dict.fromkeys(cell.note for row in table.rows for cell in row if cell.note)
    notes = [_plain_latex(note) for note in table.notes]
    notes += [rf"\textsuperscript{{{remark(Cell('', note=note))}}} {_plain_latex(note)}" for note in remarks]
    columns = "l" + "r" * (len(table.headers) - 1)
    body = "\n".join([*head, r"  \midrule", *lines])
    return _latex_frame(table.title, table.key, columns, body, r" \\ ".join(notes))


def _latex_groups(headers: Sequence[tuple[str, str]]) -> Iterator[str]:
    place = 0
    while place < len(headers):
        group, width = headers[place][0], 1
        while group and place + width < len(headers) and headers[place + width][0] == group:
            width += 1
        yield rf"\multicolumn{{{width}}}{{c}}{{{_plain_latex(group)}}}" if group else ""
        place += width


def _latex_frame(title: str, key: str, columns: str, body: str, notes: str = "") -> str:
    under = f"\n\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {notes}}}" if notes else ""
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{_plain_latex(title)}}} % {key}\n"
        f"\\resizebox{{\\linewidth}}{{!}}{{\\begin{{tabular}}{{{columns}}}\n  \\toprule\n{body}\n"
        f"  \\bottomrule\n\\end{{tabular}}}}{under}\n\\end{{table}}"
    )


# -- CSV -----------------------------------------------------------------------------------------------


def csv_text(table: Table) -> str:
    """A column each for a cell's text, number, mark and remark, so that nothing has to be parsed."""
    headers: list[str] = []
    has_more = [any(row[place].sort is not None for row in table.rows) for place in range(len(table.headers))]
    has_note = [any(row[place].note for row in table.rows) for place in range(len(table.headers))]
    for (group, name), more, note in zip(table.headers, has_more, has_note, strict=True):
        title = f"{group}: {name}" if group else name
        headers += [title, *([f"{title} (number)"] if more else []), *([f"{title} (remark)"] if note else [])]
    lines = []
    for row in table.rows:
        line: list[str] = []
        for cell, more, note in zip(row, has_more, has_note, strict=True):
            line.append(cell.text + (f" ({cell.mark})" if cell.mark else ""))
            line += ["" if cell.sort is None else repr(cell.sort)] if more else []
            line += [cell.note] if note else []
        lines.append(line)
    return _csv([headers, *lines])


def claims_csv(claims: Sequence[Claim]) -> str:
    return _csv(
        [["claim", "verdict", "evidence"], *([each.text, each.verdict, each.evidence] for each in claims)]
    )


def _csv(lines: Iterable[Sequence[str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()
