"""Register your own datasets, models and recipes by name, also for the command line.

``--import MODULE`` of every command imports a module that registers them (and activations, with
``iglu.register_activation``); an installed package can name such a module as an entry point of the group
``iglu.extensions``.  The worker processes of a sweep import the same modules.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import tyro

from iglu_lab.data.images import ImageSet
from iglu_lab.data.sets import CONTINUAL_SETS, IMAGE_SETS
from iglu_lab.errors import UserError
from iglu_lab.models.gpt2 import GPT2Config
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.training.workloads import MODELS, Model

ENTRY_POINTS = "iglu.extensions"

_BUILT_IN = frozenset((*IMAGE_SETS, *CONTINUAL_SETS, *MODELS, *RECIPES))

imported: list[str] = []  # by --import, for worker processes


def register_dataset(name: str, load: Callable[[Path], ImageSet]) -> None:
    """Add an image set; ``load`` takes the data folder.  Text needs no name: a dataset may be its path."""
    _register(IMAGE_SETS, "dataset", name, load)


def register_model(name: str, model: Model) -> None:
    """Add a model for images: a function of the number of classes, ``make_activation`` and ``norm``, or a
    configuration of a built-in model.  The name of a GPT2Config must start with ``gpt2``."""
    if isinstance(model, GPT2Config) and not name.startswith("gpt2"):
        raise ValueError(f"the name of a GPT2Config must start with 'gpt2', got {name!r}")
    _register(MODELS, "model", name, model)


def register_recipe(recipe: Recipe) -> None:
    """Add a recipe under its own name."""
    _register(RECIPES, "recipe", recipe.name, recipe)


def _register(table: dict[str, Any], what: str, name: str, row: Any) -> None:
    """Add a row, or replace the one of the same name; built-in rows cannot be replaced."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a {what} must be a string, got {name!r}")
    if name in _BUILT_IN:
        raise ValueError(f"{what} {name!r} is built in: choose another name")
    table[name] = row


@dataclass(frozen=True, kw_only=True)
class ExtensionFlags:
    """The flag that every command has.  :func:`take_imports` reads it before the others, whose valid values
    may depend on it."""

    imports: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="import", metavar="MODULE")
    ] = ()
    """Import this Python module first; the current folder is searched too. It may register your own
    activations, datasets, models and recipes. Can be repeated."""


def take_imports(prog: str, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of a command into the modules of ``--import`` and the rest."""
    parser = argparse.ArgumentParser(prog, add_help=False, allow_abbrev=False)
    parser.add_argument("--import", dest="modules", metavar="MODULE", action="append", default=[])
    found, rest = parser.parse_known_args(argv)
    return found.modules, rest


def load(modules: Sequence[str], folder: str | None = None) -> None:
    """Import the entry points and these modules, which may be in ``folder`` (the current one if None)."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        entry.load()
    for name in modules:
        import_named(name, folder)
        imported.append(name)


def import_named(name: str, folder: str | None = None) -> ModuleType:
    """Import a module of the user; raise UserError if it does not exist."""
    place = os.getcwd() if folder is None else folder
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        return importlib.import_module(name)
    except (ModuleNotFoundError, ValueError, TypeError) as error:
        missing = getattr(error, "name", name)
        if missing is None or not f"{name}.".startswith(f"{missing}."):  # an import inside the module
            raise
        raise UserError(f"There is no module {name!r} in {place} or among the installed packages") from error
