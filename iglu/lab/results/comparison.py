"""Runs beside each other: which may share a mean, and how they differ.

The one answer, for the terminal, the report and the demo alike.  Runs of one setting (all that decides the
numbers but activation and seed) make a sample for each activation.  In its mean are the runs that have every
epoch they were to have; one that diverged is counted and told, since a mean of the others alone would
flatter; one with epochs to go is told.  Of a run that is there twice, the one that went furthest counts,
then the first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from iglu import zoo
from iglu.lab.recipes import EXECUTION, Recipe
from iglu.lab.results.statistics import Estimate, estimate, paired_difference
from iglu.lab.results.tables import Mark, Table, estimated, ranked_marks
from iglu.lab.runs.folder import Run

REFERENCES = ("relu", "gelu")  # what every activation is set beside

METRIC_LABELS = {
    "test_loss": "test loss", "test_acc": "accuracy, %", "perplexity": "perplexity",
    "test_acc_many": "many-shot, %", "test_acc_medium": "medium-shot, %", "test_acc_few": "few-shot, %",
    "bits_per_byte": "bits a byte", "train_loss": "training loss",
}  # fmt: skip
_HIGHER_IS_BETTER = "test_acc"  # and its parts; of all else less is better
_DIGITS = {"test_loss": 3, "train_loss": 3, "bits_per_byte": 3, "alpha": 1}

MARKING_RULE = (
    "Bold is best and underlined second-best, only where the 95% interval of the difference to the next in "
    "rank, paired by seed, excludes 0 (without common seeds: where the two intervals do not overlap). One "
    "seed marks nothing, nor is a sample with a diverged seed marked; intervals are for one comparison each, "
    "not corrected for their number."
)


def digits_of(metric: str) -> int:
    return _DIGITS.get(metric, 2)


def lower_is_better(metric: str) -> bool:
    return not metric.startswith(_HIGHER_IS_BETTER)


@dataclass(frozen=True)
class Sample:
    """Runs of one activation in one setting, each seed once."""

    setting: Recipe
    activation: str
    runs: tuple[Run, ...]  # those that may share a mean
    diverged: tuple[Run, ...] = ()
    unfinished: tuple[Run, ...] = ()

    @property
    def metric(self) -> str:
        """What tables show of it."""
        return self.runs[0].metric

    def values(self, metric: str) -> dict[int, float]:
        """By seed, after the last epoch."""
        found = {run.recipe.seed: run.last[metric] for run in self.runs if metric in run.last}
        return {seed: float(value) for seed, value in found.items() if is_number(value)}

    def estimate(self, metric: str) -> Estimate | None:
        values = self.values(metric)
        return estimate(values.values()) if values else None

    def minus(self, reference: Sample, metric: str) -> Estimate | None:
        """Paired by seed; None without a common seed."""
        return paired_difference(self.values(metric), reference.values(metric))

    @property
    def missing(self) -> list[str]:
        """What became of the seeds that are in no mean."""
        counts = {"diverged": len(self.diverged), "with epochs to go": len(self.unfinished)}
        return [f"{count} {what}" for what, count in counts.items() if count]


def is_number(value: Any) -> bool:
    """One to reckon with: neither NaN nor infinite nor so large that its square would be."""
    return type(value) in (int, float) and abs(value) < 1e100


def distinct(runs: Iterable[Run]) -> list[Run]:
    """Each run once, under one spelling of its activation."""
    return [max(same, key=lambda run: len(run.history)) for same in by_identity(runs)]


def by_identity(runs: Iterable[Run]) -> list[list[Run]]:
    """Those that are the same run, under one spelling of its activation, in the order they were found."""
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        recipe = run.recipe.replace(activation=str(zoo.parse(run.recipe.activation)))
        found.setdefault(tuple(recipe.identity().items()), []).append(dataclasses.replace(run, recipe=recipe))
    return list(found.values())


def setting_of(recipe: Recipe) -> Recipe:
    """What runs have in common that may be compared: all but activation, seed and the way of execution."""
    plain = Recipe(recipe.name, recipe.dataset, recipe.model)
    same = {name: getattr(plain, name) for name in ("activation", "seed", *EXECUTION)}
    if recipe.last_epoch < recipe.epochs:
        same["stop_after"] = recipe.last_epoch  # metrics of another epoch
    return recipe.replace(**same)


def setting_label(recipe: Recipe) -> str:
    """The recipe's name and what differs from the recipe of that name.

    >>> from iglu.lab.recipes import get_recipe
    >>> setting_label(get_recipe("digits-lt").replace(ratio=100.0, activation="gelu"))
    'digits-lt ratio=100'
    """
    words = [recipe.name, *(f"{name}={value}" for name, value in recipe.differences().items())]
    if recipe.last_epoch < recipe.epochs:
        words.append(f"stop_after={recipe.last_epoch}")
    return " ".join(words)


def scale_of(setting: Recipe, seeds: int) -> str:
    """
    >>> from iglu.lab.recipes import get_recipe
    >>> scale_of(get_recipe("resnet20-cifar10-lt").replace(model="resnet8", size=16, epochs=40), 10)
    'resnet8 on cifar10 at 100:1, 16 pixels, 40 epochs, 10 seeds'
    """
    parts = [
        f"{setting.model} on {setting.dataset}" + (f" at {setting.ratio:g}:1" if setting.ratio > 1 else "")
    ]
    parts += [f"{setting.size} pixels"] if setting.size else []
    parts += [f"{setting.tokenizer} tokens"] if setting.kind == "text" else []
    parts += [] if setting.norm else ["no normalisation"]
    return ", ".join([*parts, counted(setting.last_epoch, "epoch"), counted(seeds, "seed")])


def counted(number: int, what: str) -> str:
    """
    >>> counted(1, "seed"), counted(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def samples(runs: Iterable[Run]) -> dict[Recipe, dict[str, Sample]]:
    """By setting, then by activation in the order of the zoo."""
    groups: dict[Recipe, dict[str, list[Run]]] = {}
    for run in distinct(runs):
        groups.setdefault(setting_of(run.recipe), {}).setdefault(run.recipe.activation, []).append(run)
    return {
        setting: {name: _sample(setting, name, of[name]) for name in sorted(of, key=activation_order)}
        for setting, of in groups.items()
    }


def _sample(setting: Recipe, activation: str, runs: Sequence[Run]) -> Sample:
    ordered = sorted(runs, key=lambda run: run.recipe.seed)
    diverged = tuple(run for run in ordered if is_diverged(run))
    whole = tuple(run for run in ordered if run.is_whole and run not in diverged)
    rest = tuple(run for run in ordered if run not in diverged and run not in whole)
    return Sample(setting, activation, whole, diverged, rest)


def is_diverged(run: Run) -> bool:
    """It says so, or has all its epochs and what tables show of it is no number."""
    return run.status == "diverged" or (run.is_whole and not is_number(run.last.get(run.metric)))


def activation_order(activation: str) -> tuple[int, bool, float]:
    spec = zoo.parse(activation)
    return list(zoo.ZOO).index(spec.name), spec.learnable, spec.sigma or 0.0


def marks(column: Sequence[Sample | None], metric: str) -> list[Mark]:
    """For each of a column, by ``MARKING_RULE``."""
    values = {
        place: sample.values(metric)
        for place, sample in enumerate(column)
        if sample is not None and sample.values(metric) and not sample.diverged
    }
    sign = 1 if lower_is_better(metric) else -1
    ranked = sorted(values, key=lambda place: sign * estimate(values[place].values()).value)
    return ranked_marks(len(column), ranked, lambda one, other: _is_apart(values[one], values[other]))


def _is_apart(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    paired = paired_difference(one, other)
    if paired is not None and paired.size > 1:
        return paired.excludes(0)
    first, second = estimate(one.values()), estimate(other.values())
    return first.low > second.high or first.high < second.low


# -- in short --------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """One activation in one setting: the last epoch over seeds, alone and beside the references."""

    sample: Sample
    metric: str
    mean: Estimate | None  # None where every seed diverged
    differences: dict[str, Estimate]  # by reference, over the seeds that both have

    @property
    def setting(self) -> str:
        return setting_label(self.sample.setting)

    @property
    def activation(self) -> str:
        return self.sample.activation


def summarise(
    runs: Iterable[Run], metric: str | None = None, references: Sequence[str] = REFERENCES
) -> list[Summary]:
    """Of every setting, by ``metric`` or by the one that tables show."""
    rows = []
    for by_activation in samples(runs).values():
        for sample in by_activation.values():
            if not sample.runs and not sample.diverged:
                continue
            shown = metric or next(each.metric for each in (*sample.runs, *sample.diverged))
            beside = {
                name: sample.minus(by_activation[name], shown)
                for name in references
                if name != sample.activation and name in by_activation
            }
            differences = {name: found for name, found in beside.items() if found is not None}
            mean = sample.estimate(shown)
            if mean is not None or (sample.diverged and not sample.runs):
                rows.append(Summary(sample, shown, mean, differences))
    return rows


def summary_tables(rows: Iterable[Summary], references: Sequence[str] = REFERENCES) -> list[Table]:
    """One for each setting and metric."""
    groups: dict[tuple[str, str], list[Summary]] = {}
    for row in rows:
        groups.setdefault((row.setting, row.metric), []).append(row)
    return [_summary_table(*key, group, references) for key, group in groups.items()]


def _summary_table(setting: str, metric: str, rows: Sequence[Summary], references: Sequence[str]) -> Table:
    digits = digits_of(metric)
    lines = [
        (
            row.activation,
            len(row.sample.runs),
            "diverged" if row.mean is None else estimated(row.mean, digits),
            *(estimated(row.differences.get(name), digits, "+") for name in references),
            ", ".join(row.sample.missing),
        )
        for row in rows
    ]
    headers = ["activation", "seeds", METRIC_LABELS.get(metric, metric)]
    headers += [f"- {zoo.ZOO[name].label}" for name in references]
    title = f"{setting}: {metric} of the last epoch, mean and 95% interval over seeds"
    note = "Differences are paired by seed; one means something only where its interval excludes 0."
    table = Table.of(setting.replace(" ", "-"), title, [*headers, "besides"], lines, [note])
    return table if any(line[-1] for line in lines) else table.columns(range(len(headers)))


def summary_row(row: Summary) -> dict[str, Any]:
    """For JSON, which knows no infinity: what one seed leaves open is null."""
    return {
        "setting": row.setting,
        "activation": row.activation,
        "metric": row.metric,
        "seeds": len(row.sample.runs),
        "diverged": len(row.sample.diverged),
        "unfinished": len(row.sample.unfinished),
        "mean": None if row.mean is None else _bounded(row.mean),
        "differences": {name: _bounded(difference) for name, difference in row.differences.items()},
    }


def _bounded(found: Estimate) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in found._asdict().items()}
