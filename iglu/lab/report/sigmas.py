"""What the rules for sigma are worth: each one's suggestion against "take 1", on the grids that were planned.

Rule 9 of results/evidence/README.md: a rule sees the tails of the reference's runs, seed by seed; the value
of the grid nearest to its suggestion is taken, and what that gained over sigma = 1 is paired by seed.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from iglu import zoo
from iglu.lab.probe.tables import layers_of_run
from iglu.lab.recipes import Recipe
from iglu.lab.report.answer import planned
from iglu.lab.report.gather import Evidence
from iglu.lab.results.comparison import Sample, digits_of, is_number, lower_is_better, setting_label
from iglu.lab.results.statistics import Estimate, estimate
from iglu.lab.results.tables import Cell, Table, estimated
from iglu.lab.runs.folder import Run
from iglu.probing import sigma as suggestions

USUAL = 1.0  # what a rule has to be better than
ALWAYS = 5.0  # where learning starts in the paper; told beside the rules, and decides nothing


class Worth(NamedTuple):
    """Of one rule for one network."""

    rule: str
    suggested: Estimate  # of log sigma, over seeds
    gain: Estimate  # over sigma = 1, above 0 where it is better
    deviation: float  # of one run at sigma = 1


class Network(NamedTuple):
    setting: Recipe
    metric: str
    best: float  # by the mean over seeds, chosen afterwards
    best_gain: Estimate
    always_gain: Estimate | None  # of sigma = 5 in every network
    rules: tuple[Worth, ...]


def networks(evidence: Iterable[Evidence]) -> Iterator[Network]:
    """Those whose grid has sigma = 1 and another, on the seeds that every activation has."""
    for _, setting, of, metric, reference in itertools.chain(*map(planned, evidence)):
        values = {
            spec.sigma: found
            for name, sample in of.items()
            if (spec := zoo.parse(name)).name == "iglu" and not spec.learnable and spec.sigma is not None
            and (found := sample.values(metric))
        }  # fmt: skip
        if USUAL in values and len(values) > 1 and reference in of:
            yield _network(setting, metric, values, of[reference])


def _network(
    setting: Recipe, metric: str, values: Mapping[float, Mapping[int, float]], reference: Sample
) -> Network:
    sign = -1.0 if lower_is_better(metric) else 1.0
    usual = values[USUAL]

    def gain(sigmas: Mapping[int, float]) -> Estimate | None:
        """Over "take 1", each seed at a sigma of its own."""
        gains = [
            sign * (values[sigma][seed] - usual[seed])
            for seed, sigma in sigmas.items()
            if seed in usual and seed in values[sigma]
        ]
        return estimate(gains) if gains else None

    means = {sigma: sign * statistics.fmean(found.values()) for sigma, found in values.items()}
    best = max(means, key=means.__getitem__)
    best_gain = gain(dict.fromkeys(usual, best))
    assert best_gain is not None
    always_gain = gain(dict.fromkeys(usual, ALWAYS)) if ALWAYS in values else None
    spread = estimate(usual.values()).deviation
    rules = []
    for rule, about in suggestions.RULES.items():
        logs = {
            run.recipe.seed: math.log(found)
            for run in reference.runs
            if about.by_tail and (found := suggested_sigma(rule, run)) is not None
        }
        taken = {
            seed: min(values, key=lambda sigma: abs(math.log(sigma) - log)) for seed, log in logs.items()
        }
        worth = gain(taken)
        if worth is not None:
            rules.append(Worth(rule, estimate(logs.values()), worth, spread))
    return Network(setting, metric, best, best_gain, always_gain, tuple(rules))


def suggested_sigma(rule: str, run: Run) -> float | None:
    """By a rule that goes by tails, from the last line of a run; None where that has none."""
    names = ("excess", "excess_low", "excess_high", "scale")
    layers = [
        suggestions.Evidence(**{name: row[name] for name in names})
        for row in layers_of_run(run.last)
        if all(is_number(row.get(name)) and row[name] > 0 for name in names)
    ]
    return suggestions.sigma_of_model(rule, layers).sigma if layers else None


def rules_table(evidence: Iterable[Evidence]) -> list[Table]:
    """A line a network; none where no grid has sigma = 1."""
    found = [network for network in networks(evidence) if network.rules]
    if not found:
        return []
    rules = [worth.rule for worth in found[0].rules]
    rows = tuple(
        (
            setting_label(network.setting),
            Cell(f"{network.best:g}", network.best),
            estimated(network.best_gain, digits_of(network.metric), "+"),
            estimated(network.always_gain, digits_of(network.metric), "+"),
            *(cell for worth in network.rules for cell in _cells(worth, network.metric)),
        )
        for network in found
    )
    best, always = "best of the grid, chosen afterwards", f"always {ALWAYS:g}"
    headers = [("", "network"), (best, "sigma"), (best, "gain"), (always, "gain")]
    headers += [(f"rule {rule}", name) for rule in rules for name in ("sigma", "gain")]
    by_rule = {
        rule: [worth for network in found for worth in network.rules if worth.rule == rule] for rule in rules
    }
    notes = (
        "Gains over sigma = 1, in points of accuracy or of perplexity (signed so that above 0 is better), "
        "paired by seed, with 95% intervals. A rule sees the tails of the grid's reference, the network "
        "before IGLU; the value nearest to its suggestion is taken.",
        *(f"Rule {rule}: {in_words(worths)}" for rule, worths in by_rule.items()),
    )
    return [Table.of("sigma-rules", 'The rules for sigma against "take 1"', headers, rows, notes)]


def _cells(worth: Worth, metric: str) -> tuple[Cell, Cell]:
    sigma = math.exp(worth.suggested.value)
    return Cell(f"{sigma:.2g}", sigma), estimated(worth.gain, digits_of(metric), "+")


def in_words(found: Sequence[Worth]) -> str:
    """Over networks: whether the rule did better than "take 1"."""
    gained = sum(worth.gain.low > 0 for worth in found)
    lost = sum(worth.gain.high < 0 for worth in found)
    known = [worth.gain.value / worth.deviation for worth in found if worth.deviation > 0]
    mean = statistics.fmean(known) if known else math.nan
    is_worse = lost > gained or (lost == gained and mean < 0)
    return (
        f'better than "take 1" in {gained} of {len(found)} networks, worse in {lost}; on average '
        f"{mean:+.2f} standard deviations of one run: {'worse' if is_worse else 'not worse'} than it."
    )
