"""A grid of runs: which runs it has, and which of them are left.

A run is a recipe with its activation and seed set; its folder tells whether it is done, so that a sweep
keeps no state of its own and goes on after anything, also with more seeds or activations than before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from iglu.functional import check_choice
from iglu.lab import paper
from iglu.lab.mistakes import MistakeError, as_mistakes, complaining, missing, unknown
from iglu.lab.recipes import Recipe, check_field, checked, get_recipe
from iglu.lab.runs.folder import RECIPE, Run, read_run
from iglu.lab.storage import read_toml
from iglu.lab.training.tasks import MODELS

TABLES = (*(f"table{number}" for number in paper.RUN_TABLES), "table5")
SEEDS = 5  # where nothing else is said

# Chosen by the grid itself.
_OF_THE_GRID = {"name": "recipes", "activation": "activations", "seed": "seeds"}


class Plan(NamedTuple):
    """What a grid is run for, said before it is: the rules are in results/evidence/README.md."""

    metric: str
    reference: str  # every other activation is set beside this one
    claims: dict[str, tuple[str, str]]  # by its words, the activation that is to be better, and the other
    spread: float | None = None  # standard deviation of one run over seeds, where it was seen before


class Grid(NamedTuple):
    """Recipes with their activation set, and the seeds each is to be run with."""

    title: str
    recipes: tuple[Recipe, ...]
    seeds: tuple[int, ...]
    plan: Plan | None = None

    @property
    def runs(self) -> tuple[Recipe, ...]:
        """The seeds outermost, so that a whole picture appears early."""
        recipes = (recipe.replace(seed=seed) for seed in self.seeds for recipe in self.recipes)
        return tuple(dict.fromkeys(recipes))


def read_grid(target: str, seeds: int | None = None, changes: Mapping[str, Any] | None = None) -> Grid:
    """A table of the paper by its name, or a TOML file; ``changes`` are made to every recipe."""
    if target in TABLES:
        found = _table(int(target.removeprefix("table")))
    elif target.endswith(".toml"):
        found = _from_file(Path(target))
    else:
        if target == "table1":
            raise MistakeError("Table 1 is time, not training: iglu bench measures it")
        raise unknown("sweep", target, [*TABLES, "FILE.toml"])
    # One thread unless more are asked for: runs beside each other are faster than threads inside one.
    changed = tuple(
        _but(recipe, {"threads": recipe.threads or 1, **(changes or {})}) for recipe in found.recipes
    )
    if seeds is not None and seeds < 1:
        raise MistakeError(f"--seeds must be at least 1, got {seeds}")
    return found._replace(recipes=changed, seeds=found.seeds if seeds is None else tuple(range(seeds)))


def _table(number: int) -> Grid:
    if number == 5:
        recipes = [row.recipe for row in paper.table5()]
    else:
        table = paper.run_table(number)
        recipes = [recipe.replace(activation=name) for recipe in table.recipes for name in table.rows]
    caption = paper.paper()[f"table{number}"]["caption"]
    return Grid(f"Table {number}: {caption}", tuple(recipes), tuple(range(SEEDS)))


def _from_file(path: Path) -> Grid:
    try:
        content = read_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise missing(path) from None
    except ValueError as error:
        raise MistakeError(f"{path} is not TOML: {error}") from error
    try:
        return _from_content(content, path.stem)
    except MistakeError as error:
        raise MistakeError(f"{path}: {error}") from error


def _from_content(content: dict[str, Any], title: str) -> Grid:
    own = ("recipes", "activations", "seeds", "plan")
    fields = {key: value for key, value in content.items() if key not in own}
    for key in fields:
        if key in _OF_THE_GRID:
            raise MistakeError(f"Unknown field {key!r}. Did you mean {_OF_THE_GRID[key]!r}?")
        check_field(key, [*own, *(name for name in Recipe.__dataclass_fields__ if name not in _OF_THE_GRID)])
    names, activations = (_words(content, key) for key in ("recipes", "activations"))
    seeds = content.get("seeds", SEEDS)
    if type(seeds) is int and seeds >= 1:
        seeds = list(range(seeds))
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise MistakeError(f"seeds must be a number of seeds or a list of them, got {seeds!r}")
    bases = [_but(get_recipe(name), choice) for name in names for choice in _choices(fields)]
    recipes = tuple(base.replace(activation=activation) for base in bases for activation in activations)
    return Grid(title, recipes, tuple(seeds), _plan(content.get("plan"), activations))


def _choices(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A field with a list of values is run with each of them."""
    several = {
        name: values for name, values in fields.items() if isinstance(values, list) and name != "jitter"
    }
    for chosen in itertools.product(*several.values()):
        yield fields | dict(zip(several, chosen, strict=True))


def _plan(content: Any, activations: Sequence[str]) -> Plan | None:
    if content is None:
        return None
    if not isinstance(content, dict) or not {"metric", "reference"} <= content.keys() <= set(Plan._fields):
        raise MistakeError(
            f"plan must have metric and reference, may have claims and spread, got {content!r}"
        )
    claims = {text: tuple(pair) for text, pair in content.get("claims", {}).items()}
    for pair in claims.values():
        if len(pair) != 2:
            raise MistakeError(f"a claim compares two activations, got {list(pair)!r}")
    for name in (content["reference"], *itertools.chain(*claims.values())):
        with as_mistakes():
            check_choice("an activation of the plan", name, activations)
    return Plan(content["metric"], content["reference"], claims, content.get("spread"))


def _words(content: dict[str, Any], key: str) -> list[str]:
    words = content.get(key)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise MistakeError(f"{key} must be a list of names, got {words!r}")
    return words


def _but(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    for name in changes:
        if name in _OF_THE_GRID:
            raise MistakeError(f"{name} cannot be set: the {_OF_THE_GRID[name]} of a sweep are its grid")
        if name in ("devices", "nodes"):
            raise MistakeError(
                f"{name} cannot be set: a run has one process; for more, torchrun and iglu train"
            )
    changed = recipe.replace(**{name: checked(name, value) for name, value in changes.items()})
    with as_mistakes():
        check_choice("model", changed.model, MODELS)
    return changed


# -- what is left ----------------------------------------------------------------------------------


class Survey(NamedTuple):
    """The runs as their folders tell of them."""

    done: list[Run]  # finished or diverged
    left: list[Recipe]
    begun: dict[Recipe, Run]  # those of the ones left that have a folder
    complaints: list[str]


def survey(recipes: Iterable[Recipe], out: Path, elsewhere: Iterable[Run] = ()) -> Survey:
    """In their folders below ``out``, or among runs that are done ``elsewhere``."""
    found = Survey([], [], {}, [])
    others = {run.name: run for run in elsewhere}
    for recipe in recipes:
        run = others.get(recipe.folder_name)
        if run is None or not run.is_done_for(recipe):
            run, folder = None, out / recipe.folder_name
            if (folder / RECIPE).exists():
                with complaining(found.complaints):
                    run = read_run(folder)
        if run is not None and run.is_done_for(recipe):
            found.done.append(run)
        else:
            found.left.append(recipe)
            if run is not None:
                found.begun[recipe] = run
    return found
