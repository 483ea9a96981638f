"""The paper's claims, each with what our numbers say: holds, does not hold, or not enough evidence.

The rule is the same for all that was measured.  A claim says that some metric lies on one side of a bound; it
holds where the 95% interval of ours lies wholly on that side, does not hold where it lies on the other, and
otherwise the evidence is not enough.  A claim about several settings holds if it does in all of them, and
does not if it fails in one.  Only runs of the paper's own recipe, carried through, decide; others are told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from iglu import zoo
from iglu.lab import paper
from iglu.lab.bench.subjects import DIRECT, TORCH
from iglu.lab.bench.tables import size_text
from iglu.lab.bench.timing import PASS_LABELS
from iglu.lab.recipes import Recipe, get_recipe
from iglu.lab.report.computed import mathematical_claims
from iglu.lab.report.content import Claim, Verdict
from iglu.lab.report.gather import Gathered, metric_of
from iglu.lab.report.probe_tables import mean_of, papers_probe, probe_differences
from iglu.lab.report.samples import Sample, difference, samples
from iglu.lab.report.speed_table import Interval, papers_rows, quotient
from iglu.lab.results.comparison import by_setting, setting_label
from iglu.lab.results.statistics import Estimate, estimate
from iglu.lab.runs.folder import Row, Run

LOW, HIGH, START = "iglu:0.5", "iglu:5", "iglu:learnable=5"
_AS_FAST = 1.10


def all_claims(found: Gathered) -> tuple[Claim, ...]:
    """In the order of the paper: the function, its speed, then what networks made of it."""
    return (
        *mathematical_claims(),
        *_speed(found),
        _by_recipe(
            "Low sigma wins on ResNet", LOW, HIGH, ("resnet20-cifar10", "resnet20-cifar100"), found.runs
        ),
        _by_recipe(
            "High sigma wins on transformers", HIGH, LOW,
            ("vit-cifar10", "vit-cifar100", "gpt2-wikitext103"), found.runs,
        ),
        _imbalanced(found.runs),
        _growing_with_imbalance(found.runs),
        _learnable(found.runs),
        _tails(found),
    )  # fmt: skip


def side(interval: Interval | Estimate, bound: float = 0.0) -> Verdict:
    """Of the claim that the metric is above the bound."""
    if interval.low > bound:
        return "holds"
    return "does not hold" if interval.high < bound else "not enough evidence"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim about several settings."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if verdicts and set(verdicts) == {"holds"} else "not enough evidence"


# -- speed ---------------------------------------------------------------------------------------------


def _speed(found: Gathered) -> list[Claim]:
    _, rows = papers_rows(found.benches, "cpu")
    by_key = {(row["activation"], row["kernel"] == DIRECT, row["pass"]): row for row in rows}
    has_gpu = papers_rows(found.benches, "cuda")[0] is not None
    gpu = "decided on the CPU" if has_gpu else "on a GPU not run"
    claims = []
    for is_direct, how in ((False, "as this library computes it"), (True, "as the paper writes it")):
        for reference, text, bound, rule in (
            ("gelu", "IGLU-Approx is faster than GELU", 1.0, "below 1"),
            ("relu", "IGLU-Approx is as fast as ReLU", _AS_FAST, f"at most {_AS_FAST:g}"),
        ):
            verdicts, parts = [], []
            for name in ("forward", "loss_backward"):
                mine = by_key.get(("iglu_approx", is_direct, name))
                other = by_key.get((reference, False, name))
                if mine is None or other is None:
                    continue
                ratio = quotient(mine, other)
                verdicts.append(side(Interval(-ratio.value, -ratio.high, -ratio.low), -bound))
                parts.append(
                    f"{PASS_LABELS[name]} {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] times "
                    f"{zoo.ZOO[reference].label}'s"
                )
            evidence = "; ".join(parts) or "No rows of iglu bench for it: run iglu bench --threads 1"
            setting = "10,000 elements, float32, CPU, one thread. " if parts else ""
            sizes = _at_other_sizes(found, is_direct, reference)
            setting += f"At other sizes, not counted: {sizes}. " if sizes else ""
            claims.append(
                Claim(
                    f"{text} ({how})",
                    together(verdicts) if len(verdicts) == 2 else "not enough evidence",
                    f"{evidence}. {setting}Rule: the 95% interval of the median quotient is {rule}, forward "
                    f"and backward; {gpu}.",
                )
            )
    return claims


def _at_other_sizes(found: Gathered, is_direct: bool, reference: str) -> str:
    """Forward on the CPU with one thread in float32, by size; of several sittings the newest."""
    ratios: dict[int, Interval] = {}
    for bench in sorted(found.benches, key=lambda bench: bench.date):
        rows = {
            (row["activation"], row["kernel"], row["elements"]): row
            for row in bench.rows
            if row["kind"] == "operation" and row["pass"] == "forward" and row["device"] == "cpu"
            and row["dtype"] == "float32" and row["threads"] == 1
        }  # fmt: skip
        for (name, kernel, elements), row in rows.items():
            other = rows.get((reference, TORCH, elements))
            is_meant = name == "iglu_approx" and kernel == (DIRECT if is_direct else "auto")
            if is_meant and other is not None and elements != 10_000:
                ratios[elements] = quotient(row, other)
    return ", ".join(
        f"{size_text(elements)} {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
        for elements, ratio in sorted(ratios.items())
    )


# -- runs ----------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """One activation minus another under one recipe; signed so that above 0 is better."""

    verdict: Verdict
    text: str


def _metric(recipe: Recipe) -> str:
    return "perplexity" if recipe.name.startswith("gpt2") else "test_acc"


def _runs_of(runs: Iterable[Run], recipe: Recipe, activation: str) -> list[Run]:
    return [
        run
        for run in runs
        if run.recipe.name == recipe.name and run.recipe.ratio == recipe.ratio
        and run.recipe.activation == activation
    ]  # fmt: skip


def _nearest(runs: Iterable[Run], recipe: Recipe, activation: str) -> Sample | None:
    return next(iter(samples(_runs_of(runs, recipe, activation), recipe)), None)


def _label(recipe: Recipe) -> str:
    return recipe.name + (f" at {recipe.ratio:g}:1" if recipe.ratio > 1 else "")


def _compare(runs: Sequence[Run], recipe: Recipe, better: str, worse: str) -> Compared:
    metric = _metric(recipe)
    sign = -1 if metric == "perplexity" else 1
    one, other = _nearest(runs, recipe, better), _nearest(runs, recipe, worse)
    missing = [name for name, sample in ((better, one), (worse, other)) if sample is None]
    if one is None or other is None:
        return Compared("not enough evidence", f"{_label(recipe)}: {' and '.join(missing)} not run")
    if one.conditions != other.conditions:
        return Compared(
            "not enough evidence", f"{_label(recipe)}: {better} and {worse} ran under other terms"
        )
    found = difference(one, other, metric)
    if found is None:
        return Compared("not enough evidence", f"{_label(recipe)}: no seed in common")
    text = f"{_label(recipe)}: {metric} {found.text(2, '+')} ({found.seeds} seeds)"
    if one.is_reduced:
        return Compared("not enough evidence", f"{text}, {one.note.partition('; ')[2]}")
    signed = found if sign > 0 else Interval(-found.mean, -found.high, -found.low)
    return Compared(side(signed), text)


def _published_text(numbers: Sequence[int], recipe: Recipe, one: str, other: str) -> str:
    """The published difference, of one run each."""
    for number in numbers:
        table = paper.run_table(number)
        for place, column in enumerate(table.columns):
            if column.recipe == recipe and column.metric == _metric(recipe) and column.is_published:
                first, second = table.rows[one][place], table.rows[other][place]
                if first is not None and second is not None:
                    return f"{first.right - second.right:+.2f} ({_label(recipe)})"
    return ""


def _decided(
    text: str, reading: str, one: str, other: str, recipes: Sequence[Recipe], runs: Sequence[Run]
) -> Claim:
    compared = [_compare(runs, recipe, one, other) for recipe in recipes]
    printed = [_published_text(paper.RUN_TABLES, recipe, one, other) for recipe in recipes]
    published = ", ".join(filter(None, printed))
    own = _own_differences(runs, recipes, one, other)
    return Claim(
        text,
        together([each.verdict for each in compared]),
        f"{'; '.join(each.text for each in compared)}. "
        + (f"Published, one run each: {published}. " if published else "")
        + (f"Not the paper's experiments, and not counted: {own}. " if own else "")
        + f"Rule: {reading}.",
    )


def _by_recipe(text: str, better: str, worse: str, names: Sequence[str], runs: Sequence[Run]) -> Claim:
    reading = (
        f"{better} better than {worse}, paired by seed, with a 95% interval that excludes 0, on each; "
        "accuracy for images, perplexity for text"
    )
    return _decided(text, reading, better, worse, [get_recipe(name) for name in names], runs)


def _own_differences(runs: Sequence[Run], recipes: Sequence[Recipe], one: str, other: str) -> str:
    """In settings of other recipes with a model of the same kind, and a long tail where these have one."""
    kinds = {recipe.model.partition("-")[0].rstrip("0123456789") for recipe in recipes}
    names = {recipe.name for recipe in recipes}
    parts = []
    for setting, by_activation in by_setting(run for run in runs if run.recipe.name not in names).items():
        is_alike = setting.model.startswith(tuple(kinds)) and (setting.ratio > 1 or recipes[0].ratio == 1)
        if not is_alike or not {one, other} <= by_activation.keys():
            continue
        mine = next(iter(samples(by_activation[one], setting)), None)
        reference = next(iter(samples(by_activation[other], setting)), None)
        if mine is None or reference is None or mine.conditions != reference.conditions:
            continue
        metric = mine.runs[0].metric
        found = difference(mine, reference, metric)
        if found is not None:
            parts.append(f"{setting_label(setting)}: {metric} {found.text(2, '+')}")
    return "; ".join(parts)


def _imbalanced_recipes() -> list[Recipe]:
    columns = paper.run_table(4).columns
    return list(dict.fromkeys(column.recipe for column in columns if column.is_published))


def _imbalanced(runs: Sequence[Run]) -> Claim:
    reading = (
        f"{LOW} more accurate than ReLU, paired by seed, with a 95% interval that excludes 0, at every ratio"
    )
    return _decided("IGLU gains on imbalanced data", reading, LOW, "relu", _imbalanced_recipes(), runs)


def _growing_with_imbalance(runs: Sequence[Run]) -> Claim:
    """The slope of the gain over log10 of the ratio, seed by seed."""
    recipes = _imbalanced_recipes()
    gains: dict[int, dict[float, float]] = {}
    for recipe in recipes:
        full = {
            name: {run.recipe.seed: run for run in _full_runs(runs, recipe, name)} for name in (LOW, "relu")
        }
        for seed in full[LOW].keys() & full["relu"].keys():
            one, other = (metric_of(full[name][seed], "test_acc") for name in (LOW, "relu"))
            if one is not None and other is not None:
                gains.setdefault(seed, {})[math.log10(recipe.ratio)] = one - other
    slopes = [_slope(gain) for gain in gains.values() if len(gain) == len(recipes)]
    rule = (
        f"Rule: the gain of {LOW} over ReLU rises with log10 of the ratio; the mean slope over seeds has a "
        "95% interval above 0."
    )
    text = "IGLU's gains grow with the imbalance"
    if not slopes:
        ratios = ", ".join(f"{recipe.ratio:g}" for recipe in recipes)
        return Claim(
            text, "not enough evidence",
            f"No seed of {recipes[0].name} ran in full with {LOW} and ReLU at all of {ratios}. {rule}",
        )  # fmt: skip
    found = estimate(slopes)
    evidence = f"{found.text(2, '+')} points for each tenfold ratio ({found.seeds} seeds). {rule}"
    return Claim(text, side(found), evidence)


def _full_runs(runs: Sequence[Run], recipe: Recipe, activation: str) -> tuple[Run, ...]:
    sample = _nearest(runs, recipe, activation)
    return () if sample is None or sample.is_reduced else sample.runs


def _slope(points: dict[float, float]) -> float:
    """Of the least-squares line."""
    x_mean, y_mean = math.fsum(points) / len(points), math.fsum(points.values()) / len(points)
    return math.fsum((x - x_mean) * (y - y_mean) for x, y in points.items()) / math.fsum(
        (x - x_mean) ** 2 for x in points
    )


def _learnable(runs: Sequence[Run]) -> Claim:
    """No better: the interval of the gain ends below the spread of one run."""
    recipe = get_recipe("resnet20-cifar100")
    margin = float(paper.paper()["noise"][recipe.name])
    published = _published_text(paper.RUN_TABLES, recipe, START, HIGH)
    rule = (
        f"Published, one run each: {published}. Rule: the 95% interval of {START} minus {HIGH}, paired by "
        f"seed, ends below {margin:g} points, the standard deviation of one run of the authors."
    )
    one, other = _nearest(runs, recipe, START), _nearest(runs, recipe, HIGH)
    compared = _compare(runs, recipe, START, HIGH)
    verdict: Verdict = "not enough evidence"
    if one is not None and other is not None and not one.is_reduced and one.conditions == other.conditions:
        found = difference(one, other, _metric(recipe))
        if found is not None:
            verdict = side(Interval(-found.mean, -found.high, -found.low), -margin)
    return Claim("A learnable sigma is no better than a fixed one", verdict, f"{compared.text}. {rule}")


# -- tails ---------------------------------------------------------------------------------------------


def _tails(found: Gathered) -> Claim:
    """Of the networks of Table 5 that have normalisation."""
    text = "ResNet's pre-activations have heavier tails than those of transformers"
    rule = (
        "Rule: Hill's xi over a Gaussian's at the same n and k, mean over layers; ResNet's lower end lies "
        "above the upper end of each transformer."
    )
    resnet: list[Interval] = []
    transformers: list[Interval] = []
    parts, is_complete = [], True
    for row in paper.table5():
        if not row.norm:
            continue
        probe = papers_probe(row, found.probes)
        if probe is None:
            parts.append(f"{row.model}: not probed")
            is_complete = False
            continue
        layers = probe.body["layers"]
        excess = _excess(layers)
        (resnet if row.model.startswith("ResNet") else transformers).append(excess)
        apart = probe_differences(probe, row)
        is_complete = is_complete and not apart
        reduced = f", reduced: {', '.join(apart)}" if apart else ""
        parts.append(f"{row.model}: {_excess_text(excess)}{reduced}")
    own = [
        f"{probe.name} {_excess_text(_excess(probe.body['layers']))}"
        for probe in found.probes
        if math.isfinite(_excess(probe.body["layers"]).value)
        and not any(probe is papers_probe(row, found.probes) for row in paper.table5())
    ]
    others = f" Other networks, not counted: {'; '.join(own)}." if own else ""
    verdict: Verdict = "not enough evidence"
    if is_complete:
        verdict = together(
            [side(Interval(one.value - other.value, one.low - other.high, one.high - other.low))
             for one in resnet for other in transformers]
        )  # fmt: skip
    return Claim(text, verdict, f"{'; '.join(parts)}.{others} {rule}")


def _excess(layers: Sequence[Row]) -> Interval:
    return Interval(*(mean_of(layers, name) for name in ("excess", "excess_low", "excess_high")))


def _excess_text(excess: Interval) -> str:
    return f"{excess.value:.2f} [{excess.low:.2f}, {excess.high:.2f}]"
