"""Grids whose plan names its comparisons, judged by rules 10 to 16 of results/evidence/README.md.

A grid that is sealed is shown by the number of its runs alone, and so is a pilot.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from iglu_lab import paper
from iglu_lab.recipes import Recipe, spec_of
from iglu_lab.report.gather import Gathered, PlannedGrid
from iglu_lab.stats.comparison import METRIC_LABELS, Sample, counted, digits_of, lower_is_better, samples
from iglu_lab.stats.contrasts import (
    ComparisonResult,
    MeanDifference,
    Values,
    blocked,
    common_seeds,
    judge,
    paired,
)
from iglu_lab.stats.statistics import estimate, paired_difference, t_quantile
from iglu_lab.stats.tabulate import Table, estimated, numbered, p_cell
from iglu_lab.sweep.grid import Contrast

DEFAULT_MARGIN = 0.5  # points, where a plan names none
FIXED_RATE = 1e-3  # of the grid learning-rate, at which every activation is judged as well

Families = Mapping[str, Sequence[ComparisonResult]]


def second_round_tables(found: Gathered) -> list[Table]:
    """What was run of each grid, then the outcomes of those that are open."""
    grids = [planned for planned in found.planned if planned.is_second_round]
    if not grids:
        return []
    tables = [_status(grids)]
    for planned in grids:
        if planned.samples:
            tables += _judged(planned, found)
    return tables


def _status(grids: Sequence[PlannedGrid]) -> Table:
    rows = []
    for planned in grids:
        plan, recorded = planned.plan, len(planned.recorded)
        state = (
            "pilot, in no comparison" if plan.pilot
            else "not run" if not recorded
            else "open" if planned.samples
            else f"sealed until {min(plan.looked or plan.looks[-1:])} complete seeds"
        )  # fmt: skip
        rows.append((planned.grid.title, recorded, len(planned.grid.runs), state))
    note = "Results of a sealed grid are not shown before the look that its plan allows."
    return Table.of(
        "second-round", "Second round: what has been run", ("grid", "runs", "of", "state"), rows, [note]
    )


# -- values --------------------------------------------------------------------------------------------


def samples_of(planned: PlannedGrid) -> dict[tuple[str, float], Sample]:
    """By activation and learning rate: the settings of a grid may differ in the rate."""
    return {
        (name, setting.lr): sample for setting, of in planned.samples.items() for name, sample in of.items()
    }


def _values(planned: PlannedGrid, metric: str) -> dict[str, dict[int, float]]:
    """By activation, where each has one learning rate."""
    return {name: sample.values(metric) for (name, _), sample in samples_of(planned).items()}


def _differences(
    planned: PlannedGrid, values: Values, contrasts: Sequence[Contrast]
) -> dict[str, MeanDifference]:
    """Of the contrasts whose activations have at least two seeds in common, with blocks all activations."""
    is_blocked = planned.plan.model == "blocks"
    found = {}
    for each in contrasts:
        names = {*each.plus, *each.minus, *(values if is_blocked else ())}
        if len(common_seeds({name: values.get(name, {}) for name in names})) > 1:
            found[each.text] = (blocked if is_blocked else paired)(values, each.plus, each.minus)
    return found


def judged_contrasts(planned: PlannedGrid) -> dict[str, list[ComparisonResult]]:
    """The primary and the secondary family, each adjusted by itself."""
    plan, values = planned.plan, _values(planned, planned.plan.metric)
    families = {"primary": plan.primary, "secondary": plan.secondary}
    return {
        family: judge(
            _differences(planned, values, contrasts),
            plan.margin or DEFAULT_MARGIN,
            lower_is_better(plan.metric),
            plan.level if family == "primary" else 0.05,
        )
        for family, contrasts in families.items()
    }


# -- outcomes ------------------------------------------------------------------------------------------


def _judged(planned: PlannedGrid, found: Gathered) -> Iterator[Table]:
    """The table of outcomes, with the conclusion of the grid under it, and what else its rule asks for."""
    title = planned.grid.title
    if title == "learning-rate":
        yield _rates_table(planned, found)
        return
    families = judged_contrasts(planned)
    contrasts = {each.text: each for each in (*planned.plan.primary, *planned.plan.secondary)}
    conclude = _CONCLUSIONS.get(title)
    notes = [*(conclude(planned, families) if conclude else []), *_diverged_note(planned), _NOTE]
    yield _outcomes_table(
        planned, families, notes, lambda each: _outcome(each, contrasts[each.text], planned)
    )
    if next(iter(planned.samples)).kind == "continual":
        yield _plasticity_table(planned)
    if planned.plan.model == "blocks":
        yield from _published_table(planned)


_NOTE = (
    "Differences are paired by seed, with 95% intervals. p-values are Holm-adjusted within the primary and "
    "within the secondary comparisons. Inside the margin: judged by the 90% interval, which is not adjusted."
)


def _outcomes_table(
    planned: PlannedGrid,
    families: Families,
    notes: Sequence[str],
    outcome: Callable[[ComparisonResult], str],
) -> Table:
    digits, title = digits_of(planned.plan.metric), planned.grid.title
    rows = [
        (each.text, family, estimated(each.difference.estimate, digits, "+"), p_cell(each.p_value),
         outcome(each))
        for family, results in families.items()
        for each in results
    ]  # fmt: skip
    headers = ("comparison", "family", "difference", "p, Holm-adjusted", "outcome")
    return Table.of(f"round2-{title}", f"Outcomes of the grid {title}", headers, rows, notes)


def _outcome(each: ComparisonResult, contrast: Contrast, planned: PlannedGrid) -> str:
    """No activation is better over a seed of its own that diverged."""
    lost = sum(
        len(sample.diverged)
        for (name, _), sample in samples_of(planned).items()
        if name in (contrast.plus if each.gain > 0 else contrast.minus)
    )
    if lost and each.category != "inconclusive":
        return f"inconclusive; {counted(lost, 'run')} of the better side diverged"
    return each.describe("points" if "acc" in planned.plan.metric else "units")


def _diverged_note(planned: PlannedGrid) -> list[str]:
    known = samples_of(planned).items()
    lost = [f"{len(sample.diverged)} of {name}" for (name, _), sample in known if sample.diverged]
    return [f"Diverged: {', '.join(lost)}."] if lost else []


def _tail_conclusion(planned: PlannedGrid, families: Families) -> list[str]:
    """Rule 13: the primary comparison is significant and both at sigma = 1 have the same sign."""
    primary = next(iter(families["primary"]), None)
    closest = next((each for each in families["secondary"] if "closest output" in each.text), None)
    if primary is None or closest is None:
        return []
    if not primary.is_significant:
        return ["The tail is neither credited nor blamed: the primary comparison is not significant."]
    if primary.gain * closest.gain <= 0:
        return ["The tail is neither credited nor blamed: the two comparisons at sigma = 1 differ in sign."]
    return [f"The heavy tail is {'credited' if primary.gain > 0 else 'blamed'}: it {primary.describe()}."]


_PAPERS_METRIC = "test_acc_batch_balanced"


def _paper_conclusion(planned: PlannedGrid, families: Families) -> list[str]:
    """Rule 15: the primary difference in the paper's own metric against the published one."""
    contrast, setting = planned.plan.primary[0], next(iter(planned.samples))
    published = published_accuracies(setting)
    differences = _differences(planned, _values(planned, _PAPERS_METRIC), [contrast])
    if not differences or not {*contrast.plus, *contrast.minus} <= published.keys():
        return []
    one, other = (
        statistics.fmean(published[name] for name in side) for side in (contrast.plus, contrast.minus)
    )
    found = differences[contrast.text].estimate
    text = (
        f"In the paper's own metric the primary difference is {found.text(2, '+')} points; published, from "
        f"one run each: {one - other:+.2f}."
    )
    return [
        text + (" It is smaller than published." if found.high < one - other else ""),
        f"Only the ratio {setting.ratio:g}:1 was run; the paper's claim is about every ratio.",
    ]


def published_accuracies(setting: Recipe) -> dict[str, float]:
    """By activation, in the column of Table 4 with the ratio of the setting."""
    for column in paper.run_table(4).columns:
        if column.metric == "test_acc" and column.recipe.ratio == setting.ratio:
            return {name: number.right for name, number in column.numbers.items()}
    return {}


def prediction_interval(values: Sequence[float]) -> tuple[float, float]:
    """That one new run lies in with 95% probability: mean +- t s sqrt(1 + 1/n)."""
    found = estimate(values)
    half = t_quantile(0.975, found.size - 1) * found.sd * math.sqrt(1 + 1 / found.size)
    return found.value - half, found.value + half


def _published_table(planned: PlannedGrid) -> Iterator[Table]:
    """Each run, mean and interval in both metrics, and whether the published value is like one more run."""
    published = published_accuracies(next(iter(planned.samples)))
    rows = []
    for (name, _), sample in samples_of(planned).items():
        values, plain = sample.values(_PAPERS_METRIC), sample.values("test_acc")
        if len(values) < 2:
            continue
        low, high = prediction_interval(list(values.values()))
        printed = published.get(name)
        inside = "" if printed is None else "yes" if low <= printed <= high else "no"
        rows.append(
            (
                spec_of(name).label, ", ".join(f"{value:.2f}" for _, value in sorted(plain.items())),
                estimated(sample.estimate("test_acc"), 2), estimated(estimate(values.values()), 2),
                f"{low:.2f} to {high:.2f}", numbered(printed, 2), inside,
            )
        )  # fmt: skip
    own = "the paper's own metric"
    headers = (
        "activation", ("accuracy, %", "each run"), ("accuracy, %", "mean"), (own, "mean"),
        (own, "95% prediction interval of one new run"), (own, "published, one run"), (own, "inside"),
    )  # fmt: skip
    note = "The paper's own metric: the mean over test batches of 128 of the mean accuracy over classes."
    title = f"Runs of the grid {planned.grid.title} and the published numbers"
    yield Table.of(f"round2-{planned.grid.title}-published", title, headers, rows, [note])


_CONCLUSIONS: dict[str, Callable[[PlannedGrid, Families], list[str]]] = {
    "tail": _tail_conclusion,
    "paper-lt": _paper_conclusion,
}


# -- plasticity ----------------------------------------------------------------------------------------

_CONTINUAL = ("final_acc", "acc_gap", "dead_units", "recovery_acc")


def _plasticity_table(planned: PlannedGrid) -> Table:
    rows = [
        (spec_of(name).label, f"{rate:g}", *(estimated(sample.estimate(each), 2) for each in _CONTINUAL))
        for (name, rate), sample in samples_of(planned).items()
    ]
    headers = ("activation", "learning rate", *(METRIC_LABELS[metric] for metric in _CONTINUAL))
    note = (
        "Mean over seeds with 95% intervals. Accuracies are means over the last 20% of the tasks; a unit is "
        "dead if its derivative is below 0.01 in size on every input; the last column is the accuracy on an "
        "ordinary task after one task with inputs 30 times as large. Without a verdict."
    )
    title = f"The grid {planned.grid.title} by activation"
    return Table.of(f"round2-{planned.grid.title}-activations", title, headers, rows, [note])


# -- learning rates ------------------------------------------------------------------------------------


def chosen_rates(planned: PlannedGrid) -> dict[str, float]:
    """By activation the rate that its plan chose: the one that is not the fixed one, if there are two."""
    rates: dict[str, list[float]] = {}
    for name, rate in samples_of(planned):
        rates.setdefault(name, []).append(rate)
    return {name: next((rate for rate in of if rate != FIXED_RATE), FIXED_RATE) for name, of in rates.items()}


def judged_rates(planned: PlannedGrid) -> dict[str, list[ComparisonResult]]:
    """Rule 16: the pairs at the chosen rates and at the fixed one, and their interactions, each a family."""
    plan, rates = planned.plan, chosen_rates(planned)
    values = {key: sample.values(plan.metric) for key, sample in samples_of(planned).items()}

    def gap(one: tuple[str, float], other: tuple[str, float]) -> dict[int, float]:
        first, second = values.get(one, {}), values.get(other, {})
        return {seed: first[seed] - second[seed] for seed in first.keys() & second.keys()}

    pairs: dict[str, MeanDifference] = {}
    interactions: dict[str, MeanDifference] = {}
    for text, (one,), (other,) in (*plan.primary, *plan.secondary):
        fixed = gap((one, FIXED_RATE), (other, FIXED_RATE))
        chosen = gap((one, rates[one]), (other, rates[other]))
        if min(len(fixed), len(chosen)) < 2:
            continue
        pairs[f"{text}, at {FIXED_RATE:g}"] = MeanDifference.of(estimate(fixed.values()))
        if {rates[one], rates[other]} != {FIXED_RATE}:
            at_chosen = f"{text}, at {rates[one]:g} and {rates[other]:g}"
            pairs[at_chosen] = MeanDifference.of(estimate(chosen.values()))
            change = paired_difference(chosen, fixed)
            if change is not None and change.has_interval:
                interactions[f"{text}, interaction"] = MeanDifference.of(change)
    margin = plan.margin or DEFAULT_MARGIN
    return {"pairs": judge(pairs, margin), "interactions": judge(interactions, margin)}


def _rates_table(planned: PlannedGrid, found: Gathered) -> Table:
    families = judged_rates(planned)
    reasons = []
    for text, *_ in (*planned.plan.primary, *planned.plan.secondary):
        both = [each for each in families["pairs"] if each.text.startswith(f"{text}, at ")]
        is_told = len(both) == 2 and all(each.is_significant for each in both)
        if is_told and both[0].gain * both[1].gain < 0:
            reasons.append(f"{text} has opposite signs")
    reasons += [each.text for each in families["interactions"] if each.is_significant]
    changes = f"changes: {'; '.join(reasons)}" if reasons else "does not change with the learning rate"
    notes = (
        f"The ranking {changes}.",
        "The rates were chosen on the test accuracy of other seeds.",
        *_rate_losses(planned, found),
        "p-values are Holm-adjusted over all pairs, and separately over the interactions: the difference of "
        f"a pair at its chosen rates minus that at {FIXED_RATE:g}.",
    )
    return _outcomes_table(planned, families, notes, ComparisonResult.describe)


def _rate_losses(planned: PlannedGrid, found: Gathered) -> Iterator[str]:
    """From the pilot: what a third and three times the chosen rate cost."""
    title = f"{planned.grid.title}-pilot"
    pilot = next((each for each in found.planned if each.grid.title == title), None)
    means = pilot_means(pilot) if pilot else {}
    for name, chosen in chosen_rates(planned).items():
        of = means.get(name, {})
        near = [rate for rate in sorted(of) if 2 < max(rate / chosen, chosen / rate) < 4]
        if chosen in of and near:
            parts = ", ".join(f"{of[rate] - of[chosen]:+.2f} points at {rate:g}" for rate in near)
            yield f"{spec_of(name).label}, best at {chosen:g} in the pilot: {parts}."


def pilot_means(pilot: PlannedGrid) -> dict[str, dict[float, float]]:
    """By activation and learning rate, the mean over seeds; a rate at which a run diverged has none."""
    found: dict[str, dict[float, float]] = {}
    for of in samples(pilot.recorded).values():
        for name, sample in of.items():
            means = found.setdefault(name, {})
            mean = sample.estimate(pilot.plan.metric)
            if mean is not None and not sample.diverged:
                means[sample.setting.lr] = mean.value
    return found


def chosen_rate(means: Mapping[float, float], within: float = 0.0) -> float:
    """The rate with the highest mean; of several within ``within`` of it, the one nearest to 1e-3.

    >>> chosen_rate({3e-4: 50.0, 1e-3: 49.8, 3e-3: 40.0}), chosen_rate({3e-4: 50.0, 1e-3: 49.8}, within=0.3)
    (0.0003, 0.001)
    """
    tied = [rate for rate, mean in means.items() if mean >= max(means.values()) - within]
    return min(tied, key=lambda rate: abs(math.log(rate / FIXED_RATE)))
