"""HTML tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()
) -> str:
    """Return a table as HTML; all text is escaped."""

    def line(cells: Sequence[str], tag: str) -> str:
        shown = "".join(f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in cells)
        return f"<tr>{shown}</tr>"

    body = "".join(line(row, "td") for row in rows)
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    head = line(columns, "th")
    return f"<p>{html.escape(title)}</p><table><thead>{head}</thead><tbody>{body}</tbody></table>{below}"
