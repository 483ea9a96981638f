"""``iglu train RECIPE``: a ready recipe, with every field of it as a flag."""

from __future__ import annotations

import errno
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from iglu.lab.data import data_folder
from iglu.lab.recipes import RECIPES, Recipe, get_recipe
from iglu.lab.runs.writing import FolderInUseError
from iglu.lab.training.loop import Observer, fit
from iglu.lab.training.progress import Display, StopOnSignal, TensorBoard
from iglu.lab.training.tails import tail_observers


@dataclass(frozen=True)
class Command:
    """Train one network; the same command goes on with a run that was stopped or killed."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder with the data; otherwise IGLU_DATA, or the cache, into which CIFAR is fetched."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Folder in which the run gets a folder of its own."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""

    def observers(self) -> list[Observer]:
        return [
            Display(),
            *([TensorBoard()] if self.tensorboard else []),
            *tail_observers(self.recipe),
        ]


def main(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-"):
        _list_recipes()
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    try:
        recipe = get_recipe(argv[0])
        command = tyro.cli(
            Command, args=argv[1:], default=Command(recipe), prog=f"iglu train {argv[0]}",
            description=f"Train {argv[0]}; the same command goes on with a run that was stopped or killed.",
        )  # fmt: skip
        with StopOnSignal().installed() as stop:
            observers = [*command.observers(), stop]
            run = fit(command.recipe, data=data_folder(command.data), out=command.out, observers=observers)
    except (FolderInUseError, OSError, ValueError, ImportError) as error:
        hint = "; the same command goes on when there is room" if _is_full_disk(error) else ""
        print(f"iglu train: {error}{hint}", file=sys.stderr)
        return 1
    return 1 if run.status == "diverged" else 0


def _is_full_disk(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _list_recipes() -> None:
    table = Table(
        "recipe", "data", "model", "epochs", "batch", "lr", title="iglu train RECIPE [--FIELD VALUE ...]"
    )
    for recipe in RECIPES.values():
        row = (recipe.name, recipe.dataset, recipe.model, recipe.epochs, recipe.batch, recipe.lr)
        table.add_row(*map(str, row))
    console = Console()
    console.print(table)
    console.print("iglu train RECIPE --help shows every field with its value in that recipe.")
