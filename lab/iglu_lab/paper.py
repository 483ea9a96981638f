"""The published numbers, from paper.toml: as printed, and corrected."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any, NamedTuple

from iglu_lab.recipes import Recipe, get_recipe
from iglu_lab.storage import read_toml

RUN_TABLES = (2, 3, 4)  # the tables of training runs

# The metric of Table 4: the mean over test batches of 128 of the mean accuracy over the classes in a batch.
BALANCED = "test_acc_batch_balanced"


class Published(NamedTuple):
    """One number of a table; ``right`` is the corrected value, to compare with."""

    printed: float
    right: float
    how: str = ""  # how the erratum is known; empty if there is none

    @property
    def is_erratum(self) -> bool:
        return bool(self.how)


class Question(NamedTuple):
    """A recipe to measure, and the settings that count as a reduced version of it."""

    recipe: Recipe
    reduced_recipe: str = ""  # recipe of the reduced runs, if not this one
    fixed: tuple[str, ...] = ("norm",)  # fields that must agree with the recipe

    def is_asked_by(self, setting: Recipe) -> bool:
        is_named = setting.name in (self.recipe.name, self.reduced_recipe)
        return is_named and all(getattr(setting, name) == getattr(self.recipe, name) for name in self.fixed)


class Column(NamedTuple):
    """One metric of one recipe: a column of a table."""

    heading: str  # shared by the metrics of one recipe
    metric: str
    question: Question  # its recipe has the activation and seed still to be set
    numbers: dict[str, Published]  # by activation; empty if none were published

    @property
    def recipe(self) -> Recipe:
        return self.question.recipe

    @property
    def plain_metric(self) -> str:
        """The metric by which our runs are compared: accuracy over the complete test set, not per batch."""
        return "test_acc" if self.metric == BALANCED else self.metric


class RunTable(NamedTuple):
    """A table of runs: one row per activation, one column per metric and recipe."""

    number: int
    caption: str
    setup: str
    columns: tuple[Column, ...]
    rows: tuple[str, ...]  # activations

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Each recipe once, in the order of the columns."""
        return tuple(dict.fromkeys(column.recipe for column in self.columns))


class TailRow(NamedTuple):
    """A row of Table 5: a trained network and the tail index of its pre-activations."""

    model: str
    norm: str  # empty without normalization
    question: Question  # its recipe has the activation set
    alpha: Published | None  # None if the paper's run diverged
    sigma: float | None  # what the paper calls optimal
    outcome: str = ""

    @property
    def recipe(self) -> Recipe:
        return self.question.recipe


class Erratum(NamedTuple):
    """What is wrong in the paper, what is right, and how that is known."""

    place: str
    printed: str | float
    right: str | float
    how: str


@functools.cache
def paper() -> dict[str, Any]:
    """The parsed file.  Do not modify it."""
    return read_toml(resources.files("iglu_lab").joinpath("paper.toml").read_text(encoding="utf-8"))


def table1() -> dict[str, dict[str, float]]:
    """Table 1: time relative to Identity by activation, then by column (cpu_forward ... gpu_backward)."""
    columns = paper()["table1"]["columns"]
    return {
        name: dict(zip(columns, numbers, strict=True)) for name, numbers in paper()["table1"]["rows"].items()
    }


@functools.cache
def run_table(number: int) -> RunTable:
    """Table 2, 3 or 4."""
    if number not in RUN_TABLES:
        raise ValueError(f"Tables of runs are {RUN_TABLES}, got {number}")
    content = paper()[f"table{number}"]
    groups = content["columns"]
    recipes = [get_recipe(group["recipe"]).replace(**group.get("changes", {})) for group in groups]
    printed = {activation: iter(numbers) for activation, numbers in content["rows"].items()}
    columns = []
    for group, recipe in zip(groups, recipes, strict=True):
        alike = [other.identity() for other in recipes if other.name == recipe.name]
        differing = (name for name in recipe.identity() if len({other[name] for other in alike}) > 1)
        question = Question(recipe, group.get("reduced_recipe", ""), (*differing, "norm"))
        for metric in group["metrics"]:
            numbers = {
                activation: _published(f"table{number}", activation, group["heading"], metric, next(row))
                for activation, row in printed.items()
                if group.get("published", True)
            }
            columns.append(Column(group["heading"], metric, question, numbers))
    return RunTable(number, content["caption"], content["setup"], tuple(columns), tuple(printed))


@functools.cache
def table5() -> tuple[TailRow, ...]:
    """Models with and without normalization."""
    rows = []
    for row in paper()["table5"]["rows"]:
        recipe = get_recipe(row["recipe"]).replace(activation=row["activation"], norm=bool(row["norm"]))
        alpha = None
        if "alpha" in row:
            alpha = _published("table5", row["model"], row["norm"], "alpha", row["alpha"])
        question = Question(recipe, row["reduced_recipe"])
        rows.append(
            TailRow(row["model"], row["norm"], question, alpha, row.get("sigma"), row.get("outcome", ""))
        )
    return tuple(rows)


def errata() -> tuple[Erratum, ...]:
    """All errata, in the order of the paper."""
    return tuple(Erratum(**{name: row[name] for name in Erratum._fields}) for row in paper()["errata"])


def _published(table: str, row: str, heading: str, metric: str, printed: float) -> Published:
    where = {"table": table, "row": row, "heading": heading, "metric": metric}
    for erratum in paper()["errata"]:
        if all(erratum.get(key) == value for key, value in where.items()):
            return Published(printed, erratum["right"], erratum["how"])
    return Published(printed, printed)
