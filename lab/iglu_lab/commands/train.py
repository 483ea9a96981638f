"""``iglu train RECIPE``: train by a predefined recipe; every field is a flag."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from torch import distributed

from iglu_lab.cli import DONE, FAILED
from iglu_lab.console import Terminal
from iglu_lab.data import data_folder
from iglu_lab.errors import check_writable
from iglu_lab.extensions import ExtensionFlags
from iglu_lab.recipes import RECIPES, Recipe, get_recipe
from iglu_lab.stats.tabulate import Cell, Table, terminal
from iglu_lab.training.loop import fit
from iglu_lab.training.progress import Display, StopOnSignal, TensorBoard
from iglu_lab.training.tails import tail_observers


@dataclass(frozen=True, kw_only=True)
class TrainFlags(ExtensionFlags):
    """Train one model. The same command resumes an interrupted run."""

    recipe: tyro.conf.OmitArgPrefixes[Recipe]
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Data directory. If not given: IGLU_DATA, or the cache, to which CIFAR is downloaded."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Output directory. The run gets its own subdirectory."""
    tensorboard: bool = False
    """Log metrics to TensorBoard."""


def main(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-"):
        _list_recipes()
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    recipe = get_recipe(argv[0])
    flags = tyro.cli(
        TrainFlags, args=argv[1:], default=TrainFlags(recipe=recipe), prog=f"iglu train {argv[0]}",
        description=f"Train {argv[0]}. The same command resumes an interrupted run.",
    )  # fmt: skip
    check_writable(flags.out)
    # With several processes, only the first one calls observers, so the others would stay idle.
    with StopOnSignal(is_idle="LOCAL_RANK" not in os.environ).installed() as stop:
        board = [TensorBoard()] if flags.tensorboard else []
        observers = [Display(), *board, *tail_observers(flags.recipe), stop]
        run = fit(flags.recipe, data=data_folder(flags.data), out=flags.out, observers=observers)
    is_first = not distributed.is_initialized() or distributed.get_rank() == 0
    if stop.number is not None and run.status == "stopped":
        launcher = "torchrun ... -m " if "TORCHELASTIC_RUN_ID" in os.environ else ""
        if is_first:
            print(f"to resume: {launcher}{shlex.join(['iglu', 'train', *argv])}")
        return 128 + stop.number
    if is_first:
        print(f"next: {shlex.join(['iglu', 'runs', str(flags.out)])}")
    return FAILED if run.status == "diverged" else DONE


def _list_recipes() -> None:
    names = ("recipe", "data", "model", "epochs", "batch size", "lr")
    rows = [
        (each.name, each.dataset, each.model, each.epochs, each.batch_size, Cell(f"{each.lr:g}", each.lr))
        for each in RECIPES.values()
    ]
    note = "iglu train RECIPE --help lists all fields with their values in that recipe."
    title = "iglu train RECIPE [--FIELD VALUE ...]"
    Terminal().print(terminal(Table.of("recipes", title, names, rows, [note])))
