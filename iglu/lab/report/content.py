"""What a report is made of, apart from how it is shown: gathered once, written as Markdown, LaTeX, CSV and
as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from iglu.lab.probe.tables import Tails
from iglu.lab.results.tables import Table

Verdict = Literal["holds", "does not hold", "not enough evidence"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "not enough evidence")


class Judgement(NamedTuple):
    """What numbers of one scale say about a claim."""

    verdict: Verdict
    scale: str  # "ResNet-8, 16 pixels, 40 epochs, 10 seeds"
    evidence: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and what our numbers say about it: at its own scale, or of the function itself,
    and at the reduced scale that was run.  Neither stands in for the other."""

    text: str
    verdict: Verdict
    evidence: str
    rule: str = ""
    reduced: Judgement | None = None

    @property
    def judgements(self) -> list[Judgement]:
        """One, or two where reduced runs have something to say."""
        own = Judgement(self.verdict, "the paper's own scale" if self.reduced else "", self.evidence)
        return [own, *([self.reduced] if self.reduced else [])]


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
    probes: tuple[Tails, ...] = ()
    sources: tuple[str, ...] = ()  # what was read, with its provenance, a line each
    complaints: tuple[str, ...] = ()  # what could not be read
    provenance: dict[str, Any] = field(default_factory=dict)  # of the report itself

    def count(self, verdict: Verdict) -> int:
        """Of claims, at the paper's own scale."""
        return sum(claim.verdict == verdict for claim in self.claims)
