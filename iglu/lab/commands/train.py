"""``iglu train RECIPE``: a ready recipe, with every field of it as a flag."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from torch import distributed

from iglu.lab.cli import DONE, FAILED
from iglu.lab.console import Terminal
from iglu.lab.data import data_folder
from iglu.lab.mistakes import check_writable
from iglu.lab.recipes import RECIPES, Recipe, get_recipe
from iglu.lab.results.tables import Cell, Table, terminal
from iglu.lab.training.loop import fit
from iglu.lab.training.progress import Display, StopOnSignal, TensorBoard
from iglu.lab.training.tails import tail_observers


@dataclass(frozen=True)
class TrainFlags:
    """Train one network; the same command goes on with a run that was stopped or killed."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder with the data; otherwise IGLU_DATA, or the cache, into which CIFAR is fetched."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Folder in which the run gets a folder of its own."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""


def main(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-"):
        _list_recipes()
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    recipe = get_recipe(argv[0])
    flags = tyro.cli(
        TrainFlags, args=argv[1:], default=TrainFlags(recipe), prog=f"iglu train {argv[0]}",
        description=f"Train {argv[0]}; the same command goes on with a run that was stopped or killed.",
    )  # fmt: skip
    check_writable(flags.out)
    # Of several processes the first decides for all, and is the only one to be told of the start.
    with StopOnSignal(is_idle="LOCAL_RANK" not in os.environ).installed() as stop:
        board = [TensorBoard()] if flags.tensorboard else []
        observers = [Display(), *board, *tail_observers(flags.recipe), stop]
        run = fit(flags.recipe, data=data_folder(flags.data), out=flags.out, observers=observers)
    is_first = not distributed.is_initialized() or distributed.get_rank() == 0
    if stop.number is not None and run.status == "stopped":
        launcher = "torchrun ... -m " if "TORCHELASTIC_RUN_ID" in os.environ else ""
        if is_first:
            print(f"to go on: {launcher}{shlex.join(['iglu', 'train', *argv])}")
        return 128 + stop.number
    if is_first:
        print(f"next: {shlex.join(['iglu', 'runs', str(flags.out)])}")
    return FAILED if run.status == "diverged" else DONE


def _list_recipes() -> None:
    names = ("recipe", "data", "model", "epochs", "batch", "lr")
    rows = [
        (each.name, each.dataset, each.model, each.epochs, each.batch, Cell(f"{each.lr:g}", each.lr))
        for each in RECIPES.values()
    ]
    note = "iglu train RECIPE --help shows every field with its value in that recipe."
    title = "iglu train RECIPE [--FIELD VALUE ...]"
    Terminal().print(terminal(Table.of("recipes", title, names, rows, [note])))
