"""Tables of the grids whose plan names its comparisons, by rules 10 to 16 of results/evidence/README.md.

For a sealed grid and for a pilot, only the number of runs is shown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from iglu_lab import paper
from iglu_lab.probe.tail_tables import sample_tails
from iglu_lab.recipes import Recipe, spec_of
from iglu_lab.report.gather import Gathered, PlannedGrid
from iglu_lab.report.planned import (
    FIXED_RATE,
    Judged,
    chosen_rates,
    differences,
    judged,
    pilot_means,
    samples_of,
    unit_of,
    values_of,
)
from iglu_lab.stats.comparison import METRIC_LABELS, digits_of
from iglu_lab.stats.contrasts import UNKNOWN
from iglu_lab.stats.statistics import estimate, t_quantile
from iglu_lab.stats.tabulate import Table, estimated, numbered, p_cell
from iglu_lab.sweep.grid import RATES


def second_round_tables(found: Gathered) -> list[Table]:
    """The status of each grid, then the outcomes of the open grids."""
    grids = [planned for planned in found.planned if planned.is_second_round]
    if not grids:
        return []
    tables = [_status(grids)]
    for planned in grids:
        if planned.samples:
            tables += _outcome_tables(planned, found)
    return tables


_QUESTIONS = {
    "tail": "Does the heavy tail of the gate help, compared with a GELU of the same sharpness?",
    "plasticity-labels": "Does IGLU stay able to learn? Tasks with random labels",
    "plasticity-pixels": "Does IGLU stay able to learn? Tasks with permuted pixels",
    "paper-lt": "Does IGLU gain at 100:1 under the paper's full protocol?",
    RATES: "Does the ranking change if each activation has its own learning rate?",
}


def _status(grids: Sequence[PlannedGrid]) -> Table:
    rows = []
    for planned in grids:
        plan, recorded, title = planned.plan, len(planned.recorded), planned.grid.title
        state = (
            "pilot, not in any comparison" if plan.pilot
            else "not run" if not recorded
            else "open" if planned.samples
            else f"sealed until {plan.opens_at} complete seeds"
        )  # fmt: skip
        question = "Which learning rate?" if plan.pilot else _QUESTIONS.get(title, "")
        rows.append((title, question, recorded, len(planned.grid.runs), state))
    note = "Results of a sealed grid are not shown before the look that its plan allows."
    headers = ("grid", "question", "runs", "planned", "state")
    return Table.of("second-round", "Planned comparisons: what has been run", headers, rows, [note])


# -- outcomes ------------------------------------------------------------------------------------------


def _outcome_tables(planned: PlannedGrid, found: Gathered) -> Iterator[Table]:
    """The outcomes, with the conclusion of the grid in the notes, and other tables that its rule requires."""
    comparisons = judged(planned)
    if planned.grid.title == RATES:
        notes = [*_rates_conclusion(planned, comparisons), *_rate_losses(planned, found), _RATES_NOTE]
    else:
        conclude = _CONCLUSIONS.get(planned.grid.title)
        notes = [*(conclude(planned, comparisons) if conclude else []), _NOTE]
    yield _outcomes_table(planned, comparisons, [*notes, *_diverged_note(planned)])
    if planned.plan.model == "blocks":
        yield from _published_table(planned)
    yield _activations_table(planned)


_NOTE = (
    "Differences are paired by seed, with 95% intervals. p-values are Holm-adjusted within the primary and "
    "within the secondary comparisons. Inside the margin: judged by the 90% interval, which is not adjusted."
)
_RATES_NOTE = (
    "p-values are Holm-adjusted over all pairs, and separately over the interactions: the difference of a "
    f"pair at its chosen rates minus that at {FIXED_RATE:g}."
)


def _outcomes_table(planned: PlannedGrid, comparisons: Sequence[Judged], notes: Sequence[str]) -> Table:
    metric, title = planned.plan.metric, planned.grid.title
    rows = [
        (each.result.text, each.family, estimated(each.estimate, digits_of(metric), "+"),
         p_cell(each.result.p_value), each.describe(unit_of(metric)))
        for each in comparisons
    ]  # fmt: skip
    headers = ("comparison", "family", "difference", "p, Holm-adjusted", "outcome")
    return Table.of(f"round2-{title}", f"Outcomes of the grid {title}", headers, rows, notes)


def side_by_side(found: Gathered, titles: Sequence[str], title: str) -> list[Table]:
    """One table with the outcomes of open grids that make the same comparisons; for the docs."""
    grids = [planned for planned in found.planned if planned.grid.title in titles and planned.samples]
    outcomes = {planned.grid.title: {each.result.text: each for each in judged(planned)} for planned in grids}
    texts = dict.fromkeys(text for of in outcomes.values() for text in of)
    rows = []
    for text in texts:
        cells: list[object] = [text]
        for planned in grids:
            each = outcomes[planned.grid.title].get(text)
            metric = planned.plan.metric
            cells += (
                ["", ""] if each is None
                else [estimated(each.estimate, digits_of(metric), "+"),
                      each.describe(unit_of(metric))]
            )  # fmt: skip
        rows.append(cells)
    headers: list[str | tuple[str, str]] = ["comparison"]
    for name in outcomes:
        columns = ("difference", "outcome")
        headers += columns if len(outcomes) == 1 else [(name, column) for column in columns]
    return [Table.of("-".join(titles), title, headers, rows, [_NOTE])] if rows else []


def _diverged_note(planned: PlannedGrid) -> list[str]:
    lost = [
        f"{len(sample.diverged)} of {name} at {rate:g}"
        for (name, rate), sample in samples_of(planned).items()
        if sample.diverged
    ]
    return [f"Diverged: {', '.join(lost)}."] if lost else []


_TAILS = "tail relative to a Gaussian's"
_CONTINUAL_NOTE = (
    "Accuracies are means over the last 20% of the tasks; a unit is dead if its derivative is below 0.01 in "
    "magnitude on every input; the last column is the accuracy on an ordinary task after one task with "
    "inputs 30 times as large."
)
_TAILS_NOTE = (
    "Tail: Hill's estimate of xi divided by that of Gaussian data, geometric mean over layers; above 1 is "
    "heavier."
)


def _activations_table(planned: PlannedGrid) -> Table:
    """Every metric of the last epoch, without a verdict."""
    known = samples_of(planned)
    metrics = [
        metric
        for metric in METRIC_LABELS
        if metric != "train_loss" and any(sample.values(metric) for sample in known.values())
    ]
    tails = {key: sample_tails(sample, "excess") for key, sample in known.items()}
    has_tails = any(tails.values())
    rows = [
        (
            spec_of(name).label, f"{rate:g}",
            *(estimated(sample.estimate(metric), digits_of(metric)) for metric in metrics),
            *([estimated(tails[name, rate], 2)] if has_tails else []),
        )
        for (name, rate), sample in known.items()
    ]  # fmt: skip
    headers = ["activation", "learning rate", *(METRIC_LABELS[metric] for metric in metrics)]
    is_continual = next(iter(planned.samples)).kind == "continual"
    notes = [
        "Means over seeds with 95% intervals, of the last epoch, without verdicts.",
        *([_CONTINUAL_NOTE] if is_continual else []),
        *([_TAILS_NOTE] if has_tails else []),
    ]
    return Table.of(
        f"round2-{planned.grid.title}-activations", f"The grid {planned.grid.title} by activation",
        [*headers, *([_TAILS] if has_tails else [])], rows, [" ".join(notes)],
    )  # fmt: skip


# -- conclusions ---------------------------------------------------------------------------------------


def _tail_conclusion(planned: PlannedGrid, comparisons: Sequence[Judged]) -> list[str]:
    """Rule 13: the primary comparison is significant and both at sigma = 1 have the same sign."""
    primary = next((each for each in comparisons if each.family == "primary"), None)
    closest = next((each for each in comparisons if "closest output" in each.result.text), None)
    if primary is None or closest is None:
        return []
    if not primary.is_significant:
        return ["The tail is neither credited nor blamed: the primary comparison is not significant."]
    if primary.result.gain * closest.result.gain <= 0:
        return ["The tail is neither credited nor blamed: the two comparisons at sigma = 1 differ in sign."]
    verb = "credited" if primary.category == "better" else "blamed"
    return [f"The heavy tail is {verb}: it {primary.describe()}."]


def _paper_conclusion(planned: PlannedGrid, comparisons: Sequence[Judged]) -> list[str]:
    """Rule 15: the primary difference in the paper's own metric against the published one."""
    contrast, setting = planned.plan.primary[0], next(iter(planned.samples))
    published = published_accuracies(setting)
    own = differences(planned, values_of(planned, paper.BALANCED), [contrast])
    if own[contrast.text] is UNKNOWN or not {*contrast.plus, *contrast.minus} <= published.keys():
        return []
    one, other = (
        statistics.fmean(published[name] for name in side) for side in (contrast.plus, contrast.minus)
    )
    found = own[contrast.text].estimate
    text = (
        f"In the paper's own metric the primary difference is {found.text(2, '+')} points; published, from "
        f"one run each: {one - other:+.2f}."
    )
    return [
        text + (" It is smaller than published." if found.high < one - other else ""),
        f"Only the ratio {setting.ratio:g}:1 was run; the paper's claim is about every ratio.",
    ]


_CONCLUSIONS: dict[str, Callable[[PlannedGrid, Sequence[Judged]], list[str]]] = {
    "tail": _tail_conclusion,
    "paper-lt": _paper_conclusion,
}


def _rates_conclusion(planned: PlannedGrid, comparisons: Sequence[Judged]) -> list[str]:
    """Rule 16: whether the ranking changes with the learning rate."""
    reasons = []
    for text, *_ in (*planned.plan.primary, *planned.plan.secondary):
        both = [each for each in comparisons if each.result.text.startswith(f"{text}, at ")]
        both_significant = len(both) == 2 and all(each.is_significant for each in both)
        if both_significant and both[0].result.gain * both[1].result.gain < 0:
            reasons.append(f"{text} has opposite signs")
    reasons += [
        each.result.text for each in comparisons if each.family == "interactions" and each.is_significant
    ]
    changes = f"changes: {'; '.join(reasons)}" if reasons else "does not change with the learning rate"
    return [f"The ranking {changes}.", "The rates were chosen on the test accuracy of other seeds."]


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


# -- the published numbers -----------------------------------------------------------------------------


def published_accuracies(setting: Recipe) -> dict[str, float]:
    """The published accuracies by activation, from the column of Table 4 with the ratio of the setting."""
    for column in paper.run_table(4).columns:
        if column.metric == paper.BALANCED and column.recipe.ratio == setting.ratio:
            return {name: number.right for name, number in column.numbers.items()}
    return {}


def prediction_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval that contains one new run with 95% probability: mean +- t s sqrt(1 + 1/n)."""
    found = estimate(values)
    half = t_quantile(0.975, found.size - 1) * found.sd * math.sqrt(1 + 1 / found.size)
    return found.value - half, found.value + half


def _published_table(planned: PlannedGrid) -> Iterator[Table]:
    """Runs, mean and interval in both metrics, and whether the published value is like a new run."""
    published = published_accuracies(next(iter(planned.samples)))
    rows = []
    for (name, _), sample in samples_of(planned).items():
        values, plain = sample.values(paper.BALANCED), sample.values("test_acc")
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
