"""What a report is made of, apart from how it is shown: gathered once, written as Markdown, LaTeX, CSV and
as a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from iglu.lab.probe.tables import Tails
from iglu.lab.report.verdicts import Verdict
from iglu.lab.results.comparison import lower_is_better
from iglu.lab.results.statistics import Estimate
from iglu.lab.results.tables import Table

Standing = Literal["better", "worse", "not told apart"]
LEVEL = 0.05  # of the p-value below which a difference counts as shown


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
class Difference:
    """One activation minus another in one task, paired by seed, as measured."""

    activation: str
    reference: str
    metric: str
    found: Estimate
    chance: float = math.nan  # the p-value, raised by Holm over all differences it is told among
    published: float | None = None  # the paper's own, one run each
    diverged: int = 0  # seeds of the activation that have no number

    @property
    def gain(self) -> Estimate:
        """Signed so that above 0 is better."""
        return -self.found if lower_is_better(self.metric) else self.found

    @property
    def standing(self) -> Standing:
        """A seed that diverged counts against its activation."""
        if not self.chance < LEVEL:
            return "not told apart"
        if self.gain.value < 0:
            return "worse"
        return "not told apart" if self.diverged else "better"


@dataclass(frozen=True)
class Task:
    """Activations beside each other in one setting."""

    key: str
    title: str  # "resnet8 on cifar10 at 100:1, 16 pixels, 40 epochs, 10 seeds"
    metric: str
    reference: str
    grid: str  # that was planned for it before it was run; empty without a plan
    differences: tuple[Difference, ...]  # to the reference
    beside: tuple[Difference, ...] = ()  # to GELU
    parts: tuple[Difference, ...] = ()  # to the reference, by the size of a class


Panel = dict[str, Any]
"""One pair of axes, in numbers: title, labels, scales, limits, and of each line its label, x, y, colour, dash
and marker."""


@dataclass(frozen=True)
class Figure:
    """A picture; ``paths`` are the files (PNG and SVG) that were written.  The page draws it anew from its
    ``panels``; what the page has in another form has none."""

    key: str
    title: str
    alt: str
    paths: tuple[Path, ...] = ()
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True)
class Curve:
    """One number over epochs for one recipe and activation: mean and band over seeds."""

    recipe: str
    activation: str
    metric: str  # or the layer whose sigma is learned
    epochs: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: int


@dataclass(frozen=True)
class Report:
    """Everything that was found, in the order in which it is shown."""

    tables: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    figures: Sequence[Figure] = ()
    tasks: Sequence[Task] = ()
    curves: Sequence[Curve] = ()
    sigmas: Sequence[Curve] = ()
    probes: Sequence[Tails] = ()
    sources: Sequence[str] = ()  # what was read, with its provenance, a line each
    complaints: Sequence[str] = ()  # what could not be read
    provenance: dict[str, Any] = field(default_factory=dict)  # of the report itself

    def count(self, verdict: Verdict) -> int:
        """Of claims, at the paper's own scale."""
        return sum(claim.verdict == verdict for claim in self.claims)
