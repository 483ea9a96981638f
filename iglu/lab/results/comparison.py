"""Runs beside each other: which may share a mean, and how they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from iglu import zoo
from iglu.lab.recipes import EXECUTION, Recipe
from iglu.lab.results.statistics import Estimate, estimate, paired_difference
from iglu.lab.runs.folder import Run

REFERENCES = ("relu", "gelu")  # what every activation is set beside


class Summary(NamedTuple):
    """One activation in one setting: the last epoch over seeds, alone and beside the references."""

    setting: str
    activation: str
    metric: str
    mean: Estimate
    differences: dict[str, Estimate]  # by reference, over the seeds that both have


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


def by_setting(runs: Iterable[Run]) -> dict[Recipe, dict[str, list[Run]]]:
    """Runs that may be compared, by activation in the order of the zoo; of two that repeat each other the
    first."""
    groups: dict[Recipe, dict[str, dict[int, Run]]] = {}
    for run in runs:
        activations = groups.setdefault(setting_of(run.recipe), {})
        activations.setdefault(str(zoo.parse(run.recipe.activation)), {}).setdefault(run.recipe.seed, run)
    return {
        setting: {
            name: list(activations[name].values()) for name in sorted(activations, key=_activation_order)
        }
        for setting, activations in groups.items()
    }


def summarise(
    runs: Iterable[Run], metric: str | None = None, references: Sequence[str] = REFERENCES
) -> list[Summary]:
    """Means over the seeds of whole runs and seed-paired differences, in every setting; of ``metric``, or of
    the one that tables show."""
    rows = []
    for setting, activations in by_setting(run for run in runs if run.is_whole).items():
        for activation, mine in activations.items():
            shown = mine[0].metric if metric is None else metric
            having = {
                name: [run for run in group if shown in run.last] for name, group in activations.items()
            }
            if not having[activation]:
                continue
            seeds = {run.recipe.seed for run in having[activation]}
            differences = {
                name: paired_difference(having[activation], having[name], shown)
                for name in references
                if name != activation and any(run.recipe.seed in seeds for run in having.get(name, ()))
            }
            mean = estimate(run.last[shown] for run in having[activation])
            rows.append(Summary(setting_label(setting), activation, shown, mean, differences))
    return rows


def _activation_order(activation: str) -> tuple[int, bool, float]:
    spec = zoo.parse(activation)
    return list(zoo.ZOO).index(spec.name), spec.learnable, spec.sigma or 0.0
