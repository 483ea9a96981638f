"""The paper's claims, each judged by our numbers: holds, does not hold, or not enough evidence.

This module has the claims about networks; those about the function are in computed.py, those about speed in
speeds.py.  At the paper's own scale, complete runs of its own recipe decide; at the reduced scale, the grids
that were planned for the claim (results/evidence), by the comparison that their plan names.  A diverged seed
has no number: it is reported, and no claim holds if a seed of its better side diverged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from iglu_lab import paper
from iglu_lab.probe.tail_tables import sample_tails
from iglu_lab.recipes import Recipe, get_recipe
from iglu_lab.report.comparisons import published_difference
from iglu_lab.report.computed import mathematical_claims
from iglu_lab.report.content import Claim, Judgment
from iglu_lab.report.gather import Gathered, PlannedGrid, seeds_of
from iglu_lab.report.speeds import speed_claims
from iglu_lab.report.tables import network_activation, own_probes, papers_probe
from iglu_lab.report.verdicts import INCONCLUSIVE, Verdict, combined, judge_side
from iglu_lab.stats.comparison import (
    Sample,
    counted,
    describe_setup,
    lower_is_better,
    setting_label,
    setting_of,
)
from iglu_lab.stats.statistics import Estimate, estimate, minimum_detectable_difference, seeds_needed

LOW, HIGH, START = "iglu:0.5", "iglu:5", "iglu:learnable=5"
_SIGMAS = (
    ("Low sigma wins on ResNet", LOW, HIGH, ("resnet20-cifar10", "resnet20-cifar100")),
    ("High sigma wins on transformers", HIGH, LOW, ("vit-cifar10", "vit-cifar100", "gpt2-wikitext103")),
)


def all_claims(found: Gathered) -> tuple[Claim, ...]:
    """All claims in the order of the paper: the function, its speed, then networks trained with it."""
    return (
        *mathematical_claims(),
        *speed_claims(found),
        *(
            _claim(
                found, text, better, worse, list(map(get_recipe, names)),
                f"{better} better than {worse}, paired by seed, with a 95% interval that excludes 0, for "
                "each recipe; accuracy for images, perplexity for text.",
            )
            for text, better, worse, names in _SIGMAS
        ),
        _claim(
            found, "IGLU gains on imbalanced data", LOW, "relu", _imbalanced_recipes(),
            f"{LOW} more accurate than ReLU, paired by seed, with a 95% interval that excludes 0, at every "
            "ratio.",
        ),
        _growing_with_imbalance(found),
        _learnable(found),
        _tails(found),
    )  # fmt: skip


# -- two activations in one setting ----------------------------------------------------------------


def compare(
    of: Mapping[str, Sample], better: str, worse: str, metric: str, label: str, bound: float | None = None
) -> tuple[Verdict, str]:
    """The verdict on whether ``better`` is better, or with a ``bound``, better by less; and its evidence."""
    one, other = of.get(better), of.get(worse)
    if one is None or other is None:
        missing = " and ".join(name for name in (better, worse) if name not in of)
        return INCONCLUSIVE, f"{label}: {missing} not run"
    lost = [f"{len(each.diverged)} of {each.activation} diverged" for each in (one, other) if each.diverged]
    found = one.minus(other, metric)
    if found is None:
        return INCONCLUSIVE, f"{label}: {', '.join(['no seed in common', *lost])}"
    gain = -found if lower_is_better(metric) else found
    text = f"{label}: {metric} {found.text(2, '+')} ({', '.join([counted(found.size, 'seed'), *lost])})"
    if bound is None:
        text += _seeds_to_detect(found)
    verdict, claimed = (judge_side(gain), one) if bound is None else (judge_side(-gain, -bound), other)
    return INCONCLUSIVE if verdict == "holds" and claimed.diverged else verdict, text


_MOST_SEEDS = 1000  # above, no exact number is shown


def _seeds_to_detect(found: Estimate) -> str:
    """How many seeds would detect a difference of the size found, if these do not."""
    if not found.has_interval or found.excludes(0) or found.value == 0:
        return ""
    seeds = seeds_needed(found.value, found.sd / math.sqrt(2))  # sd is that of paired differences
    return f"; a difference of that size needs {_seeds(seeds)}"


def _seeds(number: int) -> str:
    """
    >>> _seeds(1000), _seeds(1001)
    ('about n = 1000 seeds', 'more than 1000 seeds')
    """
    return f"about n = {number} seeds" if number <= _MOST_SEEDS else f"more than {_MOST_SEEDS} seeds"


def _label(recipe: Recipe) -> str:
    return recipe.name + (f" at {recipe.ratio:g}:1" if recipe.ratio > 1 else "")


def _metric(recipe: Recipe) -> str:
    return "perplexity" if recipe.kind == "text" else "test_acc"


def _claim(
    found: Gathered,
    text: str,
    better: str,
    worse: str,
    recipes: Sequence[Recipe],
    rule: str,
    bounds: Mapping[str, float] | None = None,
) -> Claim:
    """The claim that one activation is better than another on each recipe, or with ``bounds``, by less."""
    judged, published, sds = [], [], _authors_sds()
    for recipe in recipes:
        setting, metric, label = setting_of(recipe), _metric(recipe), _label(recipe)
        of, bound = found.samples.get(setting, {}), (bounds or {}).get(recipe.name)
        verdict, words = compare(of, better, worse, metric, label, bound)
        # With several recipes, each one that was run has its own verdict.
        is_part = len(recipes) > 1 and {better, worse} <= of.keys()
        judged.append((verdict, f"{words}: {verdict}" if is_part else words))
        gap = published_difference(setting, better, worse, metric)
        if gap is not None:
            power = ""
            if bounds is None and recipe.name in sds:
                power = f"; needs {_seeds(seeds_needed(gap, sds[recipe.name]))} at the authors' SD"
            published.append(f"{gap:+.2f} ({label}{power})")
    elsewhere = _uncounted_comparisons(found, recipes, better, worse)
    evidence = (
        f"{'; '.join(words for _, words in judged)}."
        + (f" Published, one run each: {', '.join(published)}." if published else "")
        + (f" Other runs, not counted: {elsewhere}." if elsewhere else "")
    )
    reduced = _reduced(found, text, is_bounded=bounds is not None)
    return Claim(text, combined([verdict for verdict, _ in judged]), evidence, rule, reduced)


def _authors_sds() -> dict[str, float]:
    """The authors' own SD of one run, for the recipes where it is known."""
    return {name: float(sd) for name, sd in paper.paper()["noise"].items()}


def _uncounted_comparisons(found: Gathered, recipes: Sequence[Recipe], one: str, other: str) -> str:
    """The comparison in other settings, neither the paper's nor planned, with a model of the same kind, and
    long-tailed if the recipes are."""
    kinds = tuple({recipe.model.partition("-")[0].rstrip("0123456789") for recipe in recipes})
    counted = {setting_of(recipe) for recipe in recipes}
    counted |= {setting for each in found.planned for setting in each.samples}
    return "; ".join(
        compare(of, one, other, _metric(setting), setting_label(setting))[1]
        for setting, of in found.samples.items()
        if setting not in counted and setting.model.startswith(kinds)
        and (setting.ratio > 1 or recipes[0].ratio == 1) and {one, other} <= of.keys()
    )  # fmt: skip


# -- at the reduced scale --------------------------------------------------------------------------


def _planned(found: Gathered, text: str) -> list[tuple[PlannedGrid, Recipe]]:
    """The settings of the grids that were planned for a claim."""
    return [
        (each, setting) for each in found.first_round if text in each.plan.claims for setting in each.common
    ]


def _reduced(found: Gathered, text: str, *, is_bounded: bool) -> Judgment | None:
    """The judgment by the comparison of each plan; ``is_bounded``: better by less than the SD of one run."""
    verdicts: list[Verdict] = []
    scales, parts = [], []
    for planned, setting in _planned(found, text):
        plan, of = planned.plan, planned.common[setting]
        better, worse = plan.claims[text]
        bound = plan.sd if is_bounded else None
        verdict, words = compare(of, better, worse, plan.metric, f"{better} - {worse}", bound)
        verdicts.append(verdict)
        scales.append(_scale(planned, setting, of))
        parts.append(words + _power(_mean_sd(of, plan.metric), seeds_of(of)))
    for scale, words in _not_run(found, text):
        if verdicts:
            parts.append(f"{scale}, not run: {words}")
        else:
            scales.append(scale)
            parts.append(f"not run: {words}")
    return Judgment(combined(verdicts), "; ".join(scales), f"{'; '.join(parts)}.") if parts else None


def _scale(planned: PlannedGrid, setting: Recipe, of: Mapping[str, Sample]) -> str:
    seeds, wanted = seeds_of(of), len(planned.grid.seeds)
    return describe_setup(setting, seeds) + (f" of {wanted} planned" if seeds < wanted else "")


def _not_run(found: Gathered, text: str) -> list[tuple[str, str]]:
    """The settings that were planned for a claim but not run, and what their seeds would detect at the SD of
    the same network on the same data in other grids."""
    result = []
    for planned in found.first_round:
        plan = planned.plan
        if text not in plan.claims or planned.samples:
            continue
        for setting in dict.fromkeys(setting_of(recipe) for recipe in planned.grid.recipes):
            seen = [
                own
                for each in found.first_round
                for other, of in each.common.items()
                if (other.model, other.dataset, other.norm) == (setting.model, setting.dataset, setting.norm)
                and (own := _mean_sd(of, plan.metric)) is not None
            ]
            sd = statistics.fmean(seen) if seen else None
            power = _power(sd, len(planned.grid.seeds), " in other grids")
            result.append((_scale(planned, setting, {}), " - ".join(plan.claims[text]) + power))
    return result


def _mean_sd(of: Mapping[str, Sample], metric: str) -> float | None:
    """The standard deviation of one run over seeds, averaged over activations."""
    found = [each for sample in of.values() if (each := sample.estimate(metric)) is not None]
    sds = [each.sd for each in found if each.has_interval]
    return statistics.fmean(sds) if sds else None


def _power(sd: float | None, seeds: int, where: str = "") -> str:
    """The minimum detectable difference with ``seeds`` seeds at this SD, and the seeds for one point."""
    if sd is None:
        return ""
    return (
        f"; SD of one run{where} {sd:.2f}, minimum detectable difference "
        f"{minimum_detectable_difference(seeds, sd):.2f} at n = {seeds} (80% power); one point needs "
        f"{_seeds(seeds_needed(1.0, sd))}"
    )


# -- the claims ------------------------------------------------------------------------------------


def _imbalanced_recipes() -> list[Recipe]:
    return list(dict.fromkeys(column.recipe for column in paper.run_table(4).columns if column.numbers))


def _growing_with_imbalance(found: Gathered) -> Claim:
    """The slope of the gain over log10 of the ratio, seed by seed."""
    text = "IGLU's gains grow with the imbalance"
    full = {recipe.ratio: found.samples.get(setting_of(recipe), {}) for recipe in _imbalanced_recipes()}
    verdict, evidence = _slopes(full, LOW, "relu", "test_acc")
    rule = (
        f"the gain of {LOW} over ReLU rises with log10 of the ratio; the mean slope over seeds has a 95% "
        "interval above 0."
    )
    return Claim(text, verdict, evidence, rule, _reduced_growth(found, text))


def _reduced_growth(found: Gathered, text: str) -> Judgment | None:
    """The judgment by the grid that was planned for the claim, together with all other planned settings that
    differ only in the ratio."""
    planned = _planned(found, text)
    if not planned:
        return _reduced(found, text, is_bounded=False)  # lists what was not run
    grid, setting = planned[0]
    alike = {
        other.ratio: of
        for each in found.first_round
        for other, of in each.common.items()
        if other.kind == setting.kind and other.replace(ratio=setting.ratio) == setting
    }
    by_ratio = {ratio: alike[ratio] for ratio in sorted(alike)}
    verdict, words = _slopes(by_ratio, *grid.plan.claims[text], grid.plan.metric)
    ratios = ", ".join(f"{ratio:g}" for ratio in by_ratio)
    scale = _scale(grid, setting.replace(ratio=1.0), by_ratio[setting.ratio])
    return Judgment(verdict, f"{scale}, at ratios {ratios}", words)


def _slopes(
    by_ratio: Mapping[float, Mapping[str, Sample]], one: str, other: str, metric: str
) -> tuple[Verdict, str]:
    """The slope of the gain over log10 of the ratio, for the seeds that all ratios have."""
    gains: dict[int, dict[float, float]] = {}
    lost = 0
    for ratio, of in by_ratio.items():
        if one in of and other in of:
            mine, reference = of[one].values(metric), of[other].values(metric)
            lost += len(of[one].diverged)
            for seed in mine.keys() & reference.keys():
                gains.setdefault(seed, {})[math.log10(ratio)] = mine[seed] - reference[seed]
    complete = [gain for _, gain in sorted(gains.items()) if len(gain) == len(by_ratio) > 1]
    if not complete:
        ratios = ", ".join(f"{ratio:g}" for ratio in by_ratio)
        return INCONCLUSIVE, f"No seed has complete runs of {one} and {other} at all ratios {ratios}."
    found = estimate(statistics.linear_regression(list(gain), list(gain.values())).slope for gain in complete)
    words = f", {lost} of {one} diverged" if lost else ""
    verdict = judge_side(found)
    return (INCONCLUSIVE if lost and verdict == "holds" else verdict), (
        f"{found.text(2, '+')} points per tenfold ratio ({counted(found.size, 'seed')}{words})"
        f"{_seeds_to_detect(found)}."
    )


def _learnable(found: Gathered) -> Claim:
    """No better means: the interval of the gain ends below the SD of one run, in each of the paper's
    settings with both activations."""
    text = "A learnable sigma is no better than a fixed one"
    tables = [table for table in map(paper.run_table, paper.RUN_TABLES) if {START, HIGH} <= {*table.rows}]
    recipes = [recipe for table in tables for recipe in table.recipes]
    noise = _authors_sds()
    bounds = {recipe.name: noise.get(recipe.name, _own_sd(found, recipe)) for recipe in recipes}
    known = ", ".join(f"{noise[name]:g} points for the authors' {name}" for name in bounds if name in noise)
    rule = (
        f"the 95% interval of {START} minus {HIGH}, paired by seed, ends below the standard deviation of one "
        f"run, for each recipe ({known}; for other recipes, the SD of our runs of {HIGH}; for a reduced "
        "grid, the SD in its plan)."
    )
    return _claim(found, text, START, HIGH, recipes, rule, bounds)


def _own_sd(found: Gathered, recipe: Recipe) -> float:
    """The SD of one run with the fixed sigma; NaN, which decides nothing, with fewer than two seeds."""
    sample = found.samples.get(setting_of(recipe), {}).get(HIGH)
    seen = None if sample is None else sample.estimate(_metric(recipe))
    return math.nan if seen is None else seen.sd


# -- tails -----------------------------------------------------------------------------------------


def _tails(found: Gathered) -> Claim:
    """The claim about tails, for the networks of Table 5 with normalization."""
    text = "ResNet's pre-activations have heavier tails than those of transformers"
    rule = (
        "Hill's xi divided by that of a Gaussian at the same n and k, mean over layers; ResNet's interval "
        "lies above that of each transformer. At the reduced scale the intervals are over seeds."
    )
    probes = {row.model: papers_probe(row, found.probes) for row in paper.table5() if row.norm}
    verdict, evidence = _heavier({model: probe and probe.excess for model, probe in probes.items()})
    own = [each for each in own_probes(found) if math.isfinite(each.excess.value)]
    words = "; ".join(f"{each.name} {each.excess.span()}" for each in own)
    others = f" Other networks, not counted: {words}." if own else ""
    return Claim(text, verdict, evidence + others, rule, _reduced_tails(found))


def _heavier(networks: Mapping[str, Estimate | None]) -> tuple[Verdict, str]:
    known = {model: excess for model, excess in networks.items() if excess is not None}
    parts = [f"{model}: {known[model].span() if model in known else 'not probed'}" for model in networks]
    resnets = {model for model in known if model.lower().startswith("resnet")}
    gaps = [
        Estimate(one.value - other.value, one.low - other.high, one.high - other.low, one.size)
        for one in (known[model] for model in resnets)
        for other in (known[model] for model in known.keys() - resnets)
    ]
    is_complete = len(known) == len(networks)
    verdict = combined([judge_side(gap) for gap in gaps]) if is_complete else INCONCLUSIVE
    return verdict, f"{'; '.join(parts)}."


def _reduced_tails(found: Gathered) -> Judgment | None:
    """The judgment from the last epochs of planned runs with normalization: relu on images, gelu on text."""
    networks = {
        _scale(planned, setting, of): excess
        for planned in found.first_round
        for setting, of in planned.common.items()
        if setting.norm and (sample := of.get(network_activation(setting))) is not None
        and (excess := sample_tails(sample, "excess")) is not None
    }  # fmt: skip
    if not networks:
        return None
    kinds = {network.startswith("resnet") for network in networks}
    verdict, words = _heavier(networks)
    scale = counted(len(networks), "network")
    return Judgment(verdict if kinds == {True, False} else INCONCLUSIVE, scale, words)
