"""The rules for sigma compared with sigma = 1, on planned grids.

Rule 9 of results/evidence/README.md: a rule sees the tails of the reference's runs, seed by seed; the gain
over sigma = 1 of the grid's value nearest to the suggestion is paired by seed.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from iglu.probing import sigma as suggestions
from iglu_lab.probe.tail_tables import layers_of_run
from iglu_lab.recipes import Recipe, spec_of
from iglu_lab.report.comparisons import settings_of
from iglu_lab.report.gather import PlannedGrid
from iglu_lab.runs.folder import Run
from iglu_lab.stats.comparison import Sample, digits_of, is_number, lower_is_better, setting_label
from iglu_lab.stats.statistics import Estimate, estimate
from iglu_lab.stats.tabulate import Cell, Table, estimated

BASELINE_SIGMA = 1.0  # the baseline of the rules
PAPER_SIGMA = 5.0  # the paper's initial value of a learnable sigma; shown with the rules, not part of rule 9


class RuleGain(NamedTuple):
    """The gain of one rule on one network."""

    rule: str
    suggested: Estimate  # of log sigma, over seeds
    gain: Estimate  # over sigma = 1, above 0 if it is better
    sd: float  # of one run at sigma = 1


class Network(NamedTuple):
    setting: Recipe
    metric: str
    best: float  # by the mean over seeds, chosen afterwards
    best_gain: Estimate
    always_gain: Estimate | None  # of sigma = 5 in every network
    rules: tuple[RuleGain, ...]


def networks(grids: Iterable[PlannedGrid]) -> Iterator[Network]:
    """The networks whose grid has sigma = 1 and another value, on the seeds that all activations have."""
    for task in itertools.chain(*map(settings_of, grids)):
        values = {
            spec.sigma: found
            for name, sample in task.samples.items()
            if (spec := spec_of(name)).name == "iglu" and not spec.learnable and spec.sigma is not None
            and (found := sample.values(task.metric))
        }  # fmt: skip
        if BASELINE_SIGMA in values and len(values) > 1 and task.reference in task.samples:
            yield _network(task.setting, task.metric, values, task.samples[task.reference])


def _network(
    setting: Recipe, metric: str, values: Mapping[float, Mapping[int, float]], reference: Sample
) -> Network:
    sign = -1.0 if lower_is_better(metric) else 1.0
    usual = values[BASELINE_SIGMA]

    def gain(sigmas: Mapping[int, float]) -> Estimate | None:
        """The gain over sigma = 1, with one sigma per seed."""
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
    always_gain = gain(dict.fromkeys(usual, PAPER_SIGMA)) if PAPER_SIGMA in values else None
    spread = estimate(usual.values()).sd
    rules = []
    for rule, about in suggestions.RULES.items():
        logs = {
            run.recipe.seed: math.log(sigma)
            for run in reference.runs
            if about.by_tail and (sigma := suggested_sigma(rule, run)) is not None
        }
        taken = {
            seed: min(values, key=lambda sigma: abs(math.log(sigma) - log)) for seed, log in logs.items()
        }
        found = gain(taken)
        if found is not None:
            rules.append(RuleGain(rule, estimate(logs.values()), found, spread))
    return Network(setting, metric, best, best_gain, always_gain, tuple(rules))


def suggested_sigma(rule: str, run: Run) -> float | None:
    """The suggestion of a rule from the tails in the last line of a run; None if that has none."""
    names = ("excess", "excess_low", "excess_high", "scale")
    layers = [
        suggestions.Evidence(*(row[name] for name in names))
        for row in layers_of_run(run.last)
        if all(is_number(row.get(name)) and row[name] > 0 for name in names)
    ]
    return suggestions.sigma_of_model(rule, layers).sigma if layers else None


def rules_table(grids: Iterable[PlannedGrid]) -> list[Table]:
    """One line per network; no table if no grid has sigma = 1."""
    found = [network for network in networks(grids) if network.rules]
    if not found:
        return []
    rules = [each.rule for each in found[0].rules]
    rows = tuple(
        (
            setting_label(network.setting),
            Cell(f"{network.best:g}", network.best),
            estimated(network.best_gain, digits_of(network.metric), "+"),
            estimated(network.always_gain, digits_of(network.metric), "+"),
            *(cell for each in network.rules for cell in _cells(each, network.metric)),
        )
        for network in found
    )
    best, always = "best of the grid, chosen afterwards", f"always {PAPER_SIGMA:g}"
    headers = [("", "network"), (best, "sigma"), (best, "gain"), (always, "gain")]
    headers += [(f"rule {rule}", name) for rule in rules for name in ("sigma", "gain")]
    by_rule = {
        rule: [each for network in found for each in network.rules if each.rule == rule] for rule in rules
    }
    notes = (
        "Gains over sigma = 1, in points of accuracy or of perplexity (signed so that above 0 is better), "
        "paired by seed, with 95% intervals. For each seed, a rule sees the tails of the grid's reference "
        "(the network before IGLU), and the value of the grid nearest to its suggestion is used, so that a "
        "rule can gain more than any one value. Sigma: the geometric mean of the suggestions over seeds, not "
        "limited to 0.1 to 10.",
        *(f"Rule {rule}: {describe_rule(gains)}" for rule, gains in by_rule.items()),
    )
    return [Table.of("sigma-rules", "The rules for sigma compared with sigma = 1", headers, rows, notes)]


def _cells(each: RuleGain, metric: str) -> tuple[Cell, Cell]:
    sigma = math.exp(each.suggested.value)
    return Cell(f"{sigma:.2g}", sigma), estimated(each.gain, digits_of(metric), "+")


def describe_rule(found: Sequence[RuleGain]) -> str:
    """How the rule compares with sigma = 1, over networks."""
    gained = sum(each.gain.low > 0 for each in found)
    lost = sum(each.gain.high < 0 for each in found)
    known = [each.gain.value / each.sd for each in found if each.sd > 0]
    mean = statistics.fmean(known) if known else math.nan
    is_worse = lost > gained or (lost == gained and mean < 0)
    return (
        f"better than sigma = 1 in {gained} of {len(found)} networks, worse in {lost}; on average "
        f"{mean:+.2f} standard deviations of one run; overall {'worse' if is_worse else 'not worse'}."
    )
