"""What a report is made of, apart from how it is shown: gathered once, written as Markdown, LaTeX, CSV and
as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["holds", "does not hold", "not enough evidence"]


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, what it sorts by, how it stands among its column, and a remark."""

    text: str
    sort: float | None = None
    mark: Literal["", "best", "second"] = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Headers have a group ("ResNet-20, CIFAR-10") and a name ("paper acc"); an empty group stands alone."""

    key: str  # "table2": names of files and anchors
    title: str
    headers: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and what our numbers say about it."""

    text: str
    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Figure:
    """A picture; ``paths`` are the files (PNG and SVG) that were written."""

    key: str
    title: str
    alt: str
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Curve:
    """One metric over epochs for one recipe and activation: mean and band over seeds."""

    recipe: str
    activation: str
    metric: str
    epochs: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: int


@dataclass(frozen=True)
class Report:
    """Everything that was found, in the order in which it is shown."""

    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()
    figures: tuple[Figure, ...] = ()
    curves: tuple[Curve, ...] = ()
    probes: tuple[dict[str, Any], ...] = ()  # the contents of probe.json, with "name"
    sources: tuple[str, ...] = ()  # what was read, with its provenance, a line each
    complaints: tuple[str, ...] = ()  # what could not be read
    provenance: dict[str, Any] = field(default_factory=dict)  # of the report itself
