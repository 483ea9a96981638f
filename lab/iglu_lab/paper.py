"""The published numbers, from paper.toml: as printed, and corrected."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import resources
from typing import Any, NamedTuple

from iglu_lab.recipes import Recipe, get_recipe
from iglu_lab.storage import read_toml

RUN_TABLES = (2, 3, 4)  # the tables of training runs


class Published(NamedTuple):
    """One number of a table; ``right`` is the corrected value, to compare with."""

    printed: float
    right: float
    how: str = ""  # how the erratum is known; empty without one

    @property
    def is_erratum(self) -> bool:
        return bool(self.how)


class Column(NamedTuple):
    """One metric of one recipe: a column of numbers."""

    heading: str  # shared by the metrics of one recipe
    metric: str
    recipe: Recipe  # with the activation and seed still to be set
    is_published: bool = True
    reduced_recipe: str = ""  # recipe of the reduced runs, if not this one


class RunTable(NamedTuple):
    """A table of runs: activations down, metrics of recipes across."""

    number: int
    caption: str
    setup: str
    columns: tuple[Column, ...]
    rows: dict[str, tuple[Published | None, ...]]  # by activation, one number per column

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Each recipe once, in the order of the columns."""
        return tuple(dict.fromkeys(column.recipe for column in self.columns))

    def distinguishing(self, recipe: Recipe) -> tuple[str, ...]:
        """The fields in which columns of one recipe differ, such as the ratio in Table 4; and norm."""
        alike = [other.identity() for other in self.recipes if other.name == recipe.name]
        return (*(name for name in recipe.identity() if len({other[name] for other in alike}) > 1), "norm")


class TailRow(NamedTuple):
    """A row of Table 5: a trained network and the tail index of its pre-activations."""

    model: str
    norm: str  # empty without normalization
    recipe: Recipe  # with the activation set
    alpha: Published | None  # None where the paper's run diverged
    sigma: float | None  # what the paper calls optimal
    outcome: str = ""
    reduced_recipe: str = ""  # as in Column


class Erratum(NamedTuple):
    """What is wrong in the paper, what is right, and how that is known."""

    place: str
    printed: str | float
    right: str | float
    how: str


def is_same_question(setting: Recipe, recipe: Recipe, reduced_recipe: str, fixed: Iterable[str]) -> bool:
    """Whether a setting has the name of either recipe and the same values of the ``fixed`` fields."""
    is_named = setting.name in (recipe.name, reduced_recipe)
    return is_named and all(getattr(setting, name) == getattr(recipe, name) for name in fixed)


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
    columns = tuple(
        Column(
            group["heading"],
            metric,
            get_recipe(group["recipe"]).replace(**group.get("changes", {})),
            group.get("published", True),
            group.get("reduced_recipe", ""),
        )
        for group in content["columns"]
        for metric in group["metrics"]
    )
    rows = {}
    for activation, printed in content["rows"].items():
        numbers = iter(printed)
        rows[activation] = tuple(
            _published(f"table{number}", activation, column.heading, column.metric, next(numbers))
            if column.is_published
            else None
            for column in columns
        )
    return RunTable(number, content["caption"], content["setup"], columns, rows)


@functools.cache
def table5() -> tuple[TailRow, ...]:
    """Models with and without normalization."""
    return tuple(
        TailRow(
            row["model"],
            row["norm"],
            get_recipe(row["recipe"]).replace(activation=row["activation"], norm=bool(row["norm"])),
            _published("table5", row["model"], row["norm"], "alpha", row["alpha"])
            if "alpha" in row
            else None,
            row.get("sigma"),
            row.get("outcome", ""),
            row.get("reduced_recipe", ""),
        )
        for row in paper()["table5"]["rows"]
    )


def errata() -> tuple[Erratum, ...]:
    """All errata, in the order of the paper."""
    return tuple(Erratum(**{name: row[name] for name in Erratum._fields}) for row in paper()["errata"])


def _published(table: str, row: str, heading: str, metric: str, printed: float) -> Published:
    where = {"table": table, "row": row, "heading": heading, "metric": metric}
    for erratum in paper()["errata"]:
        if all(erratum.get(key) == value for key, value in where.items()):
            return Published(printed, erratum["right"], erratum["how"])
    return Published(printed, printed)
