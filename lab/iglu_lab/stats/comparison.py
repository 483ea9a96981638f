"""Compare runs: group them into samples, and compute means and paired differences over seeds.

A sample has the runs of one activation in one setting (all deciding fields except activation and seed).  Its
mean uses complete runs.  Diverged runs are counted and reported, since a mean without them is too optimistic;
incomplete runs are reported.  Of duplicates, the one with the most epochs counts, then the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from iglu import zoo
from iglu_lab.recipes import EXECUTION, Recipe, spec_of
from iglu_lab.runs.folder import Run
from iglu_lab.stats.statistics import Estimate, estimate, paired_difference
from iglu_lab.stats.tabulate import Mark, Table, estimated, finite, ranked_marks

REFERENCES = ("relu", "gelu")  # the baselines

METRIC_LABELS = {
    "test_loss": "test loss", "test_acc": "accuracy, %", "perplexity": "perplexity",
    "test_acc_many": "many-shot, %", "test_acc_medium": "medium-shot, %", "test_acc_few": "few-shot, %",
    "bits_per_byte": "bits per byte", "train_loss": "training loss",
    "test_acc_batch_balanced": "batch-balanced accuracy, %", "final_acc": "accuracy on the last tasks, %",
    "acc_gap": "accuracy minus that of a fresh network", "dead_units": "share of dead units",
    "recovery_acc": "accuracy after large inputs, %",
}  # fmt: skip
_DIGITS = {"test_loss": 3, "train_loss": 3, "bits_per_byte": 3, "alpha": 1}

MARKING_RULE = (
    "The best is bold and the second-best underlined, but only if the 95% interval of the difference to the "
    "next in rank, paired by seed, excludes 0 (without common seeds: if the two intervals do not overlap). "
    "Activations with one seed or with a diverged run are not marked. The intervals are not corrected for "
    "multiple comparisons."
)


def digits_of(metric: str) -> int:
    return _DIGITS.get(metric, 2)


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value is better: all metrics except accuracies.

    >>> lower_is_better("test_loss"), lower_is_better("test_acc_few"), lower_is_better("perplexity")
    (True, False, True)
    """
    return "acc" not in metric.split("_")


@dataclass(frozen=True)
class Sample:
    """Runs of one activation in one setting, each seed once."""

    setting: Recipe
    activation: str
    runs: tuple[Run, ...]  # the complete ones
    diverged: tuple[Run, ...] = ()
    unfinished: tuple[Run, ...] = ()

    @property
    def metric(self) -> str:
        """The metric shown in tables."""
        return self.runs[0].metric

    def values(self, metric: str) -> dict[int, float]:
        """The values of the last epoch, by seed."""
        found = {run.recipe.seed: run.last[metric] for run in self.runs if metric in run.last}
        return {seed: float(value) for seed, value in found.items() if is_number(value)}

    def estimate(self, metric: str) -> Estimate | None:
        values = self.values(metric)
        return estimate(values.values()) if values else None

    def minus(self, reference: Sample, metric: str) -> Estimate | None:
        """The difference to ``reference``, paired by seed; None without a common seed."""
        return paired_difference(self.values(metric), reference.values(metric))

    @property
    def missing(self) -> list[str]:
        """The counts of seeds that are not in the mean."""
        counts = {"diverged": len(self.diverged), "incomplete": len(self.unfinished)}
        return [f"{count} {what}" for what, count in counts.items() if count]


def is_number(value: Any) -> bool:
    """Whether it is a finite number whose square is finite too."""
    return type(value) in (int, float) and abs(value) < 1e100


def distinct(runs: Iterable[Run]) -> list[Run]:
    """Remove duplicates; keep the one with the most epochs."""
    return [max(same, key=lambda run: len(run.history)) for same in by_identity(runs)]


def by_identity(runs: Iterable[Run]) -> list[list[Run]]:
    """Group runs that are the same, with one spelling of the activation, in the order found."""
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        recipe = dataclasses.replace(run.recipe, activation=str(spec_of(run.recipe.activation)))
        found.setdefault(tuple(recipe.identity().items()), []).append(dataclasses.replace(run, recipe=recipe))
    return list(found.values())


_SAME_SETTING = ("channels_last", "compile")


def setting_of(recipe: Recipe) -> Recipe:
    """The fields that comparable runs share: all except activation, seed and execution.  Memory format and
    compilation are excluded too: they only change rounding, as another CPU does."""
    plain = Recipe(recipe.name, recipe.dataset, recipe.model)
    same = {name: getattr(plain, name) for name in ("activation", "seed", *_SAME_SETTING, *EXECUTION)}
    if recipe.last_epoch < recipe.epochs:
        same["stop_after"] = recipe.last_epoch  # its metrics are of another epoch
    return recipe.replace(**same)


def setting_label(recipe: Recipe) -> str:
    """The name of the recipe and the fields that differ from it.

    >>> from iglu_lab.recipes import get_recipe
    >>> setting_label(get_recipe("digits-lt").replace(ratio=100.0, activation="gelu"))
    'digits-lt ratio=100'
    """
    words = [recipe.name, *(f"{name}={value}" for name, value in recipe.differences().items())]
    if recipe.last_epoch < recipe.epochs:
        words.append(f"stop_after={recipe.last_epoch}")
    return " ".join(words)


def describe_setup(setting: Recipe, seeds: int) -> str:
    """
    >>> from iglu_lab.recipes import get_recipe
    >>> describe_setup(get_recipe("resnet20-cifar10-lt").replace(image_size=16, epochs=40), 10)
    'resnet20 on cifar10 at 100:1, 16 pixels, 40 epochs, 10 seeds'
    """
    parts = [
        f"{setting.model} on {setting.dataset}" + (f" at {setting.ratio:g}:1" if setting.ratio > 1 else "")
    ]
    parts += [f"{setting.image_size} pixels"] if setting.image_size else []
    parts += [f"{setting.tokenizer} tokens"] if setting.kind == "text" else []
    parts += [] if setting.norm else ["no normalization"]
    return ", ".join([*parts, counted(setting.last_epoch, "epoch"), counted(seeds, "seed")])


def counted(number: int, what: str) -> str:
    """
    >>> counted(1, "seed"), counted(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def samples(runs: Iterable[Run]) -> dict[Recipe, dict[str, Sample]]:
    """Group runs by setting, then by activation in the order of the zoo."""
    groups: dict[Recipe, dict[str, dict[int, Run]]] = {}
    for run in distinct(runs):
        of = groups.setdefault(setting_of(run.recipe), {}).setdefault(run.recipe.activation, {})
        # Two runs of a seed with different memory formats: the one with more epochs counts.
        other = of.setdefault(run.recipe.seed, run)
        if len(run.history) > len(other.history):
            of[run.recipe.seed] = run
    return {
        setting: {
            name: _sample(setting, name, [*of[name].values()]) for name in sorted(of, key=activation_order)
        }
        for setting, of in groups.items()
    }


def _sample(setting: Recipe, activation: str, runs: Sequence[Run]) -> Sample:
    ordered = sorted(runs, key=lambda run: run.recipe.seed)
    diverged = tuple(run for run in ordered if is_diverged(run))
    complete = tuple(run for run in ordered if run.is_complete and run not in diverged)
    rest = tuple(run for run in ordered if run not in diverged and run not in complete)
    return Sample(setting, activation, complete, diverged, rest)


def is_diverged(run: Run) -> bool:
    """Whether its status says so, or its final metric is not a number."""
    return run.status == "diverged" or (run.is_complete and not is_number(run.last.get(run.metric)))


def activation_order(activation: str) -> tuple[int, bool, float]:
    spec, names = spec_of(activation), list(zoo.ZOO)
    return names.index(spec.name) if spec.name in names else len(names), spec.learnable, spec.sigma or 0.0


def marks(column: Sequence[Sample | None], metric: str) -> list[Mark]:
    """The mark of each sample of a column, by ``MARKING_RULE``."""
    values = {
        place: sample.values(metric)
        for place, sample in enumerate(column)
        if sample is not None and sample.values(metric) and not sample.diverged
    }
    sign = 1 if lower_is_better(metric) else -1
    ranked = sorted(values, key=lambda place: sign * estimate(values[place].values()).value)
    return ranked_marks(len(column), ranked, lambda one, other: _differ(values[one], values[other]))


def _differ(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    paired = paired_difference(one, other)
    if paired is not None and paired.size > 1:
        return paired.excludes(0)
    first, second = estimate(one.values()), estimate(other.values())
    return first.low > second.high or first.high < second.low


# -- summaries --------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """One activation in one setting: mean over seeds, and differences to the baselines."""

    sample: Sample
    metric: str
    mean: Estimate | None  # None if all seeds diverged
    differences: dict[str, Estimate]  # by baseline, paired by seed

    @property
    def setting(self) -> str:
        return setting_label(self.sample.setting)

    @property
    def activation(self) -> str:
        return self.sample.activation


def summarize(
    runs: Iterable[Run], metric: str | None = None, references: Sequence[str] = REFERENCES
) -> list[Summary]:
    """Summarize every sample, by ``metric`` or by the metric shown in tables."""
    rows = []
    for by_activation in samples(runs).values():
        for sample in by_activation.values():
            if not sample.runs and not sample.diverged:
                continue
            shown = metric or next(each.metric for each in (*sample.runs, *sample.diverged))
            found = {
                name: sample.minus(by_activation[name], shown)
                for name in references
                if name != sample.activation and name in by_activation
            }
            differences = {name: each for name, each in found.items() if each is not None}
            mean = sample.estimate(shown)
            if mean is not None or (sample.diverged and not sample.runs):
                rows.append(Summary(sample, shown, mean, differences))
    return rows


def summary_tables(rows: Iterable[Summary], references: Sequence[str] = REFERENCES) -> list[Table]:
    """One table per setting and metric."""
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
    note = (
        "Differences are paired by seed. Intervals are not corrected for multiple comparisons: among several "
        "activations, one may exclude 0 by chance. iglu report uses Holm-adjusted p-values."
    )
    table = Table.of(setting.replace(" ", "-"), title, [*headers, "excluded"], lines, [note])
    return table if any(line[-1] for line in lines) else table.columns(range(len(headers)))


def summary_row(row: Summary) -> dict[str, Any]:
    """The summary as JSON; infinite bounds (one seed) become null."""
    found = {
        "setting": row.setting,
        "activation": row.activation,
        "metric": row.metric,
        "seeds": len(row.sample.runs),
        "diverged": len(row.sample.diverged),
        "unfinished": len(row.sample.unfinished),
        "mean": None if row.mean is None else row.mean._asdict(),
        "differences": {name: difference._asdict() for name, difference in row.differences.items()},
    }
    return {name: finite(value) for name, value in found.items()}
