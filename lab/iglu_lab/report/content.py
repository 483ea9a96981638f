"""The content of a report, independent of its format: gathered once, written as Markdown, LaTeX, CSV and
HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from iglu_lab.probe.tail_tables import Tails
from iglu_lab.recipes import Recipe
from iglu_lab.report.figures.description import Figure
from iglu_lab.report.verdicts import Verdict
from iglu_lab.stats.comparison import Sample, lower_is_better
from iglu_lab.stats.contrasts import Category, MeanDifference, against_diverged
from iglu_lab.stats.statistics import Estimate
from iglu_lab.stats.tabulate import Table

LEVEL = 0.05  # of the Holm-adjusted p-value below which a difference is significant


class Judgment(NamedTuple):
    """The verdict on a claim at one scale."""

    verdict: Verdict
    scale: str  # "ResNet-8, 16 pixels, 40 epochs, 10 seeds"
    evidence: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper with a verdict at the paper's own scale (or of the function itself) and one at
    the reduced scale that was run.  Neither replaces the other."""

    text: str
    verdict: Verdict
    evidence: str
    rule: str = ""
    reduced: Judgment | None = None
    is_mathematical: bool = False  # about the function itself, computed and not measured

    @property
    def kind(self) -> str:
        return "mathematical" if self.is_mathematical else "measured"

    @property
    def judgments(self) -> list[Judgment]:
        """At the paper's scale, and at the reduced scale if there is a judgment."""
        own = Judgment(self.verdict, "the paper's own scale" if self.reduced else "", self.evidence)
        return [own, *([self.reduced] if self.reduced else [])]


class Margin(NamedTuple):
    """A difference smaller than ``size``, in units of the metric, is considered irrelevant."""

    size: float
    text: str  # "0.5 points"


@dataclass(frozen=True)
class Difference:
    """One activation minus another on one task, paired by seed."""

    activation: str
    reference: str
    metric: str
    found: Estimate
    p_value: float = math.nan  # Holm-adjusted over all differences to the same reference in the grid
    published: float | None = None  # the paper's difference, one run each
    diverged: int = 0  # seeds of the activation without a number
    reference_diverged: int = 0
    reference_mean: float = math.nan

    @property
    def lower_is_better(self) -> bool:
        return lower_is_better(self.metric)

    @property
    def gain(self) -> Estimate:
        """Signed so that above 0 is better."""
        return -self.found if self.lower_is_better else self.found

    @property
    def margin(self) -> Margin | None:
        """The narrowest margin that contains the 90% interval, which is not adjusted."""
        if not self.found.has_interval:
            return None
        difference = MeanDifference.of(self.found)
        known = margins(self.metric, self.reference_mean)
        return next((each for each in known if difference.is_within(each.size)), None)

    @property
    def category(self) -> Category:
        """Significance first, then equivalence.  A diverged seed counts against its activation."""
        if self.p_value < LEVEL:
            found: Category = "better" if self.gain.value > 0 else "worse"
        else:
            found = "equivalent" if self.margin else "inconclusive"
        return against_diverged(found, self.diverged, self.reference_diverged)

    @property
    def within(self) -> str:
        """The margin in words, "within 0.5 points", if the category is "equivalent"; otherwise empty."""
        return f"within {self.margin.text}" if self.category == "equivalent" and self.margin else ""


def margins(metric: str, reference_mean: float) -> tuple[Margin, ...]:
    """The margins of a metric, the narrowest first; none for a loss, whose unit is not familiar.

    >>> margins("perplexity", 80.0)
    (Margin(size=0.8, text='1%'),)
    """
    if metric == "perplexity":
        return (Margin(0.01 * reference_mean, "1%"),)
    return () if lower_is_better(metric) else (Margin(0.5, "0.5 points"), Margin(1.0, "1 point"))


@dataclass(frozen=True)
class ComparedTask:
    """The activations of one setting, compared with a reference and with GELU."""

    setting: Recipe
    samples: Mapping[str, Sample]  # by activation
    metric: str
    reference: str
    grid: str = ""  # the grid that was planned before it was run; empty without a plan
    planned_seeds: int = 0
    key: str = ""
    title: str = ""  # "resnet8 on cifar10 at 100:1, 16 pixels, 40 epochs, 10 seeds"
    differences: tuple[Difference, ...] = ()  # to the reference
    to_gelu: tuple[Difference, ...] = ()
    parts: tuple[Difference, ...] = ()  # to the reference, by the number of images of a class
    losses: tuple[Difference, ...] = ()  # to the reference, of the test loss

    def lost(self, reference: str) -> list[str]:
        """Activations without a difference to the reference because runs diverged: inconclusive."""
        other = self.samples.get(reference)
        if other is None:
            return []
        known = {reference, *(one.activation for one in self.differences_to(reference))}
        return [
            name
            for name, sample in self.samples.items()
            if name not in known and (sample.diverged or other.diverged)
        ]

    def differences_to(self, reference: str) -> list[Difference]:
        """The differences to ReLU or GELU; empty if that was not run."""
        found = self.differences if self.reference == reference else self.to_gelu
        return [one for one in found if one.reference == reference]


@dataclass(frozen=True)
class EpochCurve:
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
    """All content, in the order in which it is shown."""

    tables: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    figures: Sequence[Figure] = ()
    tasks: Sequence[ComparedTask] = ()
    curves: Sequence[EpochCurve] = ()
    sigmas: Sequence[EpochCurve] = ()
    probes: Sequence[Tails] = ()
    limits: Sequence[str] = ()  # of what these runs can show
    sources: Sequence[str] = ()  # what was read, with its provenance, one line each
    problems: Sequence[str] = ()  # what could not be read
    provenance: dict[str, Any] = field(default_factory=dict)  # of the report itself

    @property
    def measured_claims(self) -> list[Claim]:
        """All claims except those about the function itself, which are computed."""
        return [claim for claim in self.claims if not claim.is_mathematical]

    def count(self, verdict: Verdict) -> int:
        """The number of measured claims with this verdict at the paper's own scale."""
        return sum(claim.verdict == verdict for claim in self.measured_claims)
