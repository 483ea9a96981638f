"""Runs sorted into samples: those that may share a mean, and how far they are from the recipe asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from iglu.lab.recipes import Recipe
from iglu.lab.report.gather import metric_of
from iglu.lab.results.statistics import Estimate, estimate, paired_difference
from iglu.lab.runs.folder import Run

Mark = Literal["", "best", "second"]

# What a sample's runs may differ in, and what names the recipe rather than being part of it.
_FREE = ("name", "activation", "seed")

MARKING_RULE = (
    "Bold is best and underlined second-best, only where the 95% interval of the difference to the next in "
    "rank, paired by seed, excludes 0 (without common seeds: where the two intervals do not overlap). One "
    "seed marks nothing, nor does a column whose runs differ in more than activation and seed; intervals are "
    "for one comparison each, not corrected for their number."
)


@dataclass(frozen=True)
class Sample:
    """Runs of one activation that differ in nothing but the seed, and went equally far."""

    runs: tuple[Run, ...]
    differences: tuple[str, ...] = ()  # from the recipe asked for
    left_out: tuple[str, ...] = ()  # runs that have no metric, and why

    @property
    def recipe(self) -> Recipe:
        return self.runs[0].recipe

    @property
    def epochs(self) -> int:
        return int(self.runs[0].history[-1]["epoch"])

    @property
    def is_reduced(self) -> bool:
        return bool(self.differences) or self.epochs < self.recipe.epochs

    @property
    def conditions(self) -> tuple[Any, ...]:
        return (self.differences, self.epochs)

    def having(self, metric: str) -> list[Run]:
        return [run for run in self.runs if metric_of(run, metric) is not None]

    def estimate(self, metric: str) -> Estimate | None:
        values = [value for run in self.runs if (value := metric_of(run, metric)) is not None]
        return estimate(values) if values else None

    @property
    def note(self) -> str:
        """Seeds, epochs, data, and what is not as the recipe has it."""
        seeds, epochs = len(self.runs), self.epochs
        parts = [
            f"{seeds} {'seed' if seeds == 1 else 'seeds'}, {epochs} {'epoch' if epochs == 1 else 'epochs'}, "
            f"{self.recipe.dataset}"
        ]
        shortened = list(self.differences)
        if epochs < self.recipe.epochs:
            shortened.append(f"stopped after {epochs} of {self.recipe.epochs} epochs")
        if shortened:
            parts.append("reduced: " + ", ".join(shortened))
        return "; ".join([*parts, *self.left_out])


def differences(recipe: Recipe, base: Recipe) -> tuple[str, ...]:
    """The fields that decide what is computed and are not those of ``base``, in words."""
    mine, other = recipe.identity(), base.identity()
    return tuple(
        f"{name} {_text(mine[name])} instead of {_text(other[name])}"
        for name in mine
        if name not in _FREE and mine[name] != other[name]
    )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def samples(runs: Iterable[Run], base: Recipe) -> list[Sample]:
    """The samples among runs of one activation, nearest to ``base`` first, then by epochs and seeds."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    failed: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        apart = differences(run.recipe, base)
        if run.status == "diverged" or not run.history:
            failed.setdefault(apart, []).append(run)
        else:
            groups.setdefault((apart, int(run.history[-1]["epoch"])), []).append(run)
    found = []
    for (apart, epochs), members in groups.items():
        rest = [f"{_count(failed[apart])} more"] if apart in failed else []
        elsewhere = [len(others) for key, others in groups.items() if key[0] == apart and key[1] != epochs]
        rest += [f"{sum(elsewhere)} more went to another epoch"] if elsewhere else []
        found.append(Sample(tuple(members), apart, tuple(rest)))
    return sorted(found, key=lambda each: (len(each.differences), -each.epochs, -len(each.runs)))


def _count(failed: Sequence[Run]) -> str:
    diverged = sum(run.status == "diverged" for run in failed)
    words = [f"{diverged} diverged"] if diverged else []
    words += [f"{len(failed) - diverged} without a finished epoch"] if len(failed) > diverged else []
    return " and ".join(words)


def failure(runs: Sequence[Run]) -> str:
    """What became of runs of which none gave a metric; empty if there are none."""
    if not runs:
        return ""
    return "diverged" if any(run.status == "diverged" for run in runs) else "no finished epoch"


def difference(sample: Sample, reference: Sample, metric: str) -> Estimate | None:
    """Paired by seed; None without a common seed."""
    mine, other = sample.having(metric), reference.having(metric)
    if not {run.recipe.seed for run in mine} & {run.recipe.seed for run in other}:
        return None
    return paired_difference(mine, other, metric)


def marks(column: Sequence[Sample | None], metric: str, lower_is_better: bool) -> list[Mark]:
    """For each cell of a column, by the rule of ``MARKING_RULE``."""
    result: list[Mark] = [""] * len(column)
    present = {place: sample for place, sample in enumerate(column) if sample and sample.having(metric)}
    if len({sample.conditions for sample in present.values()}) != 1:
        return result
    means = {place: _mean(sample, metric) for place, sample in present.items()}
    ranked = sorted(present, key=lambda place: means[place] if lower_is_better else -means[place])
    names: tuple[Mark, ...] = ("best", "second")
    for name, place, following in zip(names, ranked, ranked[1:], strict=False):
        if not _is_clear(present[place], present[following], metric):
            break
        result[place] = name
    return result


def _mean(sample: Sample, metric: str) -> float:
    found = sample.estimate(metric)
    assert found is not None
    return found.mean


def _is_clear(one: Sample, other: Sample, metric: str) -> bool:
    paired = difference(one, other, metric)
    if paired is not None and paired.seeds > 1:
        return paired.low > 0 or paired.high < 0
    first, second = one.estimate(metric), other.estimate(metric)
    assert first is not None
    assert second is not None
    return first.low > second.high or first.high < second.low
