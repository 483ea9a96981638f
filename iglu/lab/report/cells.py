"""Cells that more than one kind of table is made of."""

from __future__ import annotations

from iglu.lab import paper
from iglu.lab.bench.tables import NOT_RUN
from iglu.lab.report.content import Cell

_DIGITS = {"test_loss": 3, "alpha": 1}
METRIC_LABELS = {
    "test_loss": "test loss", "test_acc": "accuracy, %", "perplexity": "perplexity",
    "test_acc_many": "many-shot, %", "test_acc_medium": "medium-shot, %", "test_acc_few": "few-shot, %",
    "train_loss": "training loss",
}  # fmt: skip
MISSING = Cell(NOT_RUN)
NONE = Cell("")


def number_text(value: float, digits: int, sign: str = "") -> str:
    return f"{value:{sign},.{digits}f}"


def digits_of(metric: str) -> int:
    return _DIGITS.get(metric, 2)


def published_cell(number: paper.Published | None, digits: int) -> Cell:
    if number is None:
        return NONE
    note = f"printed {number.printed:g}; {number.how}" if number.is_erratum else ""
    return Cell(number_text(number.right, digits), number.right, note=note)


def errata_of(number: int) -> list[str]:
    """What is wrong about a table as a whole; a wrong number is told at its cell."""
    return [
        f"Erratum. {each.place}: printed {each.printed}; right: {each.right} ({each.how})."
        for each in paper.errata()
        if isinstance(each.right, str) and each.place.startswith(f"Table {number},")
    ]
