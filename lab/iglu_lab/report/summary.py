"""Where IGLU was better or worse than ReLU and GELU, equivalent or inconclusive: by task, by activation and
sigma, with its cost and the limitations of these runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from iglu import zoo
from iglu_lab.bench.sessions import Session
from iglu_lab.recipes import spec_of
from iglu_lab.report.content import LEVEL, ComparedTask, Difference
from iglu_lab.report.gather import Gathered
from iglu_lab.stats.comparison import METRIC_LABELS, REFERENCES, activation_order, digits_of
from iglu_lab.stats.contrasts import Category
from iglu_lab.stats.tabulate import Cell, Table, estimated

CATEGORIES: tuple[Category, ...] = ("better", "equivalent", "inconclusive", "worse")
RULE = (
    "Differences are paired by seed. Better and worse: significant, that is a Holm-adjusted p-value (over "
    f"all differences to the same reference in the grid) below {LEVEL:.0%}. Equivalent: not significant, and "
    "the 90% interval, which is not adjusted, lies within 0.5 points of accuracy, within 1 point, or within "
    "1% of the reference's perplexity. Inconclusive: neither. The margins were chosen after these runs."
)
NOT_PLANNED = "Not planned: no rules were fixed before these runs, and they are not counted."


def is_ours(activation: str) -> bool:
    return activation.startswith("iglu")


def counted_tasks(tasks: Sequence[ComparedTask]) -> list[ComparedTask]:
    """The planned tasks, or all if none was planned."""
    return [task for task in tasks if task.grid] or list(tasks)


# -- by activation and sigma ---------------------------------------------------------------------------


def categories(tasks: Sequence[ComparedTask], activation: str, reference: str) -> Counter[str]:
    """The number of tasks in each category; equivalence within 0.5 points is counted separately."""
    found: Counter[str] = Counter()
    for task in tasks:
        for one in task.differences_to(reference):
            if one.activation == activation:
                is_narrow = one.within == "within 0.5 points"
                found["equivalent within 0.5 points" if is_narrow else one.category] += 1
        found["inconclusive"] += activation in task.lost(reference)
    return found


def per_sigma_table(tasks: Sequence[ComparedTask]) -> Table:
    """One line per activation, sigma and reference."""
    chosen = counted_tasks(tasks)
    names = {one.activation for task in chosen for one in (*task.differences, *task.to_gelu)}
    rows = [
        (
            spec_of(name).label, zoo.ZOO[reference].label, found["better"],
            found["equivalent within 0.5 points"], found["equivalent"], found["inconclusive"],
            found["worse"], found.total(),
        )
        for reference in REFERENCES
        for name in sorted(names - {reference}, key=lambda name: (not is_ours(name), activation_order(name)))
        if (found := categories(chosen, name, reference))
    ]  # fmt: skip
    headers = (
        "activation", "compared with", "better", ("equivalent", "within 0.5 points"),
        ("equivalent", "within 1 point or 1%"), "inconclusive", "worse", "tasks",
    )  # fmt: skip
    return Table.of("per-sigma", "Number of tasks, by activation and sigma", headers, rows, [RULE])


def headlines(tasks: Sequence[ComparedTask]) -> list[str]:
    """One sentence for each of two sigmas: 5 and 0.5, or those with the most tasks."""
    chosen = counted_tasks(tasks)
    runs = Counter(
        one.activation
        for task in chosen
        for reference in REFERENCES
        for one in task.differences_to(reference)
        if is_ours(one.activation)
    )
    names = [name for name in ("iglu:5", "iglu:0.5") if name in runs] or [
        name for name, _ in runs.most_common(2)
    ]
    return [_headline(chosen, name) for name in names] or ["No runs compare IGLU with ReLU or GELU."]


def _headline(tasks: Sequence[ComparedTask], name: str) -> str:
    parts = []
    for reference in REFERENCES:
        found = categories(tasks, name, reference)
        found["equivalent"] += found.pop("equivalent within 0.5 points", 0)
        total = found.total()
        if total:
            of = "the 1 task" if total == 1 else f"{total} tasks"
            parts.append(
                f"better than {zoo.ZOO[reference].label} on {found['better']} of {of}, worse on "
                f"{found['worse']}, equivalent on {found['equivalent']} and inconclusive on "
                f"{found['inconclusive']}"
            )
    return f"{spec_of(name).label} was {'; '.join(parts)}."


# -- by task -------------------------------------------------------------------------------------------


def task_outcomes(task: ComparedTask, reference: str) -> dict[Category, list[Difference]]:
    """The IGLU activations of a task by category, the best first."""
    found = [one for one in task.differences_to(reference) if is_ours(one.activation)]
    ordered = sorted(found, key=lambda one: one.gain.value, reverse=True)
    grouped = {each: [one for one in ordered if one.category == each] for each in CATEGORIES}
    return {category: members for category, members in grouped.items() if members}


def describe_difference(one: Difference) -> str:
    """
    >>> from iglu_lab.stats.statistics import Estimate
    >>> describe_difference(Difference("iglu:5", "relu", "test_acc", Estimate(0.1, -0.2, 0.4, 10, 0.3), 0.4))
    '+0.10 ± 0.30 (within 0.5 points)'
    """
    remarks = [f"{one.diverged} diverged"] if one.diverged else []
    if not one.found.has_interval:
        remarks.append("one seed")
    if one.within:
        remarks.append(one.within)
    return one.found.text(digits_of(one.metric), "+") + (f" ({', '.join(remarks)})" if remarks else "")


def summary_table(tasks: Sequence[ComparedTask]) -> Table:
    """One line per task."""
    rows = [
        (f"{task.title}; {metric_of(task)}", *(_outcomes_text(task, reference) for reference in REFERENCES))
        for task in tasks
    ]
    headers = ("task", *(f"vs. {zoo.ZOO[reference].label}" for reference in REFERENCES))
    notes = [RULE, *([NOT_PLANNED] if any(not task.grid for task in tasks) else [])]
    return Table.of("summary", "IGLU compared with ReLU and GELU, by task", headers, rows, notes)


def metric_of(task: ComparedTask) -> str:
    return METRIC_LABELS.get(task.metric, task.metric) + ("" if task.grid else " (not planned)")


def _outcomes_text(task: ComparedTask, reference: str) -> str:
    parts = [
        f"{category}: {', '.join(f'{one.activation} {describe_difference(one)}' for one in found)}"
        for category, found in task_outcomes(task, reference).items()
    ]
    lost = [f"{name} ({len(task.samples[name].diverged)} diverged)" for name in task.lost(reference)]
    parts += [f"no number: {', '.join(lost)}"] if lost else []
    return "; ".join(parts) or "not run"


def loss_table(tasks: Sequence[ComparedTask]) -> list[Table]:
    """Accuracy and test loss of the same runs, which may disagree.  Perplexity cannot: it is exp(loss)."""
    rows = []
    for task in counted_tasks(tasks):
        losses = {one.activation: one for one in task.losses}
        for one in task.differences if task.metric == "test_acc" else ():
            loss = losses.get(one.activation)
            if is_ours(one.activation) and loss is not None:
                cells = (estimated(each.found, digits_of(each.metric), "+") for each in (one, loss))
                is_split = one.gain.low > 0 > loss.gain.high or one.gain.high < 0 < loss.gain.low
                labels = (spec_of(one.activation).label, zoo.ZOO[one.reference].label)
                rows.append((task.title, *labels, *cells, "yes" if is_split else ""))
    headers = ("task", "activation", "compared with", "accuracy, points", "test loss", "opposite")
    note = (
        "Differences of the last epoch, paired by seed, with 95% intervals that are not adjusted. Opposite: "
        "both intervals exclude 0, and one of the two is better and the other worse."
    )
    return [Table.of("test-loss", "Accuracy and test loss", headers, rows, [note])] if rows else []


# -- quality and cost ----------------------------------------------------------------------------------

_COST_GRIDS = ("lt", "resnet", "vit", "text")  # CIFAR-10 and WikiText-2, with normalization


def cost_table(tasks: Sequence[ComparedTask], sessions: Iterable[Session]) -> list[Table]:
    """The time of a training step of each activation, and its difference to ReLU."""
    steps = {
        (row["model_label"], row["activation"]): row["ratios"]["relu"]
        for session in sorted(sessions, key=lambda session: session.date)
        for row in session.rows
        if row["kind"] == "training" and row["kernel"] in ("auto", "torch") and "relu" in row["ratios"]
    }
    chosen = [task for task in tasks if task.grid in _COST_GRIDS]
    if not steps or not chosen:
        return []
    models = list(dict.fromkeys(model for model, _ in steps))
    names = {one.activation for task in chosen for one in task.differences_to("relu")}
    rows = []
    for name in sorted(names, key=activation_order):
        spec = spec_of(name)
        times = [None if spec.learnable else steps.get((model, spec.name)) for model in models]
        timed = [
            None if time is None
            else Cell(f"{time['median']:.2f} [{time['low']:.2f}, {time['high']:.2f}]", time["median"])
            for time in times
        ]  # fmt: skip
        gains = ({one.activation: one.found for one in task.differences_to("relu")} for task in chosen)
        cells = [
            estimated(found.get(name), digits_of(task.metric), "+")
            for task, found in zip(chosen, gains, strict=True)
        ]
        rows.append((spec.label, *timed, *cells))
    headers: list[str | tuple[str, str]] = ["activation"]
    headers += [("step time relative to ReLU", model) for model in models]
    headers += [(f"{METRIC_LABELS[task.metric]} minus ReLU", task.title) for task in chosen]
    note = (
        "Step times: medians of iglu bench --train on one CPU and their 20% to 80% range, at sigma = 1; the "
        "time does not depend on sigma. Differences: 95% intervals, paired by seed; a lower perplexity is "
        "better."
    )
    return [Table.of("cost", "Quality and cost", headers, rows, [note])]


# -- limits --------------------------------------------------------------------------------------------


def limits(found: Gathered) -> list[str]:
    """The limitations of the first round's runs, with numbers from its rows; empty if these were not read."""
    grids = {planned.grid.title: planned for planned in found.first_round if planned.samples}
    if not {"lt", "text"} <= grids.keys():
        return []
    setting, of = next(iter(grids["lt"].common.items()))
    if not all(name in of and of[name].runs for name in ("relu", "iglu:learnable=5")):
        return []
    train, test = (statistics.fmean(of["relu"].values(name).values()) for name in ("train_acc", "test_acc"))
    sigmas = [
        sigma
        for run in of["iglu:learnable=5"].runs
        for layer in run.last["sigmas"].values()
        for sigma in (layer if isinstance(layer, list) else [layer])
    ]
    alike = sum(
        (other.model, other.dataset, other.image_size) == (setting.model, setting.dataset, setting.image_size)
        for planned in grids.values()
        for other in planned.common
    )
    return [
        f"The networks are small and underfit: ReLU at 100:1 ends at {train:.0f}% on the training set and "
        f"{test:.0f}% on the test set; the runs on WikiText-2 have one epoch.",
        "Each long-tailed set is one fixed subset; another draw may rank the activations differently.",
        f"{alike} of the tasks share network, test set and seeds (ResNet-8, CIFAR-10), so that they are not "
        f"{alike} independent results.",
        f"A learnable sigma was tested only where it hardly moved: from 5 to between {min(sigmas):.2f} and "
        f"{max(sigmas):.2f}.",
        'The comparison with "always 5" was added to the rules for sigma after its runs were complete.',
        "The mean gain of the rules for sigma comes from one network.",
        "p-values are adjusted within a grid and not over all grids.",
        "The margins of equivalence were chosen after the first round's runs.",
        "In the first round the learning rate is the same for every activation and was not tuned.",
        "The machine of these runs masks the name of its processor, so that its model is not known.",
    ]
