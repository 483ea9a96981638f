"""A grid of runs: which runs it has, and which of them are done.

A run is a recipe with its activation and seed.  Its folder shows whether it is done.  A sweep has no other
state, so it can be resumed at any time, also with more seeds or activations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from iglu.functional import check_choice
from iglu_lab import paper
from iglu_lab.errors import UserError, as_user_errors, collect_problems, missing, unknown
from iglu_lab.recipes import Recipe, check_field, get_recipe, is_plain_number, spec_of
from iglu_lab.runs.folder import RECIPE, Run, read_run
from iglu_lab.stats.comparison import setting_of
from iglu_lab.storage import read_toml
from iglu_lab.training.workloads import check_names

TABLES = (*(f"table{number}" for number in paper.RUN_TABLES), "table5")
SEEDS = 5  # the default number
RATES = "learning-rate"  # the grid whose plan compares activations at two learning rates each

# Set by the grid itself.
_GRID_FIELDS = {"name": "recipes", "activation": "activations", "seed": "seeds"}


Model = Literal["paired", "blocks"]
Key = tuple[Recipe, str, int]


def key_of(recipe: Recipe) -> Key:
    """Setting, activation and seed: equal for runs that a plan does not distinguish.  Memory format,
    compilation, the spelling of the activation and an early stop are ignored."""
    setting = setting_of(recipe.replace(stop_after=None))
    return setting, str(spec_of(recipe.activation)), recipe.seed


class Contrast(NamedTuple):
    """A comparison: the mean over some activations minus the mean over others."""

    text: str
    plus: tuple[str, ...]
    minus: tuple[str, ...]


class Plan(NamedTuple):
    """The analysis plan of a grid, registered before its first run; see results/evidence/README.md."""

    metric: str
    reference: str  # the baseline activation
    claims: dict[str, tuple[str, str]]  # by text: the activation expected to be better, and the other
    sd: float | None = None  # standard deviation over seeds, if known before the grid
    primary: tuple[Contrast, ...] = ()  # one family of Holm-adjusted comparisons
    secondary: tuple[Contrast, ...] = ()  # another family
    margin: float | None = None  # of equivalence, in units of the metric
    model: Model = "paired"  # paired t-test, or blocks with one pooled residual variance
    looks: tuple[int, ...] = ()  # planned looks (group-sequential): numbers of complete seeds
    looked: tuple[int, ...] = ()  # the looks that were taken, without the last
    look_level: float | None = None  # significance level of each look, if an early one was taken
    pilot: bool = False  # its runs choose a setting (a learning rate) and enter no comparison

    @property
    def opens_at(self) -> int:
        """The number of complete seeds from which on results may be shown; 0 without planned looks.

        The last look unseals a grid.  An earlier one is taken by adding it to ``looked``, so that the
        history of the file documents it."""
        return min(self.looked or self.looks[-1:], default=0)

    def is_sealed(self, seeds: int) -> bool:
        """Whether the results of this many complete seeds must not be shown yet."""
        return seeds < self.opens_at

    @property
    def level(self) -> float:
        """Significance level of the primary comparison: 5% unless an early look was taken."""
        return self.look_level if self.looked and self.look_level is not None else 0.05


class Grid(NamedTuple):
    """Recipes with their activation, and the seeds to run each with."""

    title: str
    recipes: tuple[Recipe, ...]
    seeds: tuple[int, ...]
    plan: Plan | None = None

    @property
    def runs(self) -> tuple[Recipe, ...]:
        """All runs, seed by seed, so that a complete comparison is available early."""
        recipes = (recipe.replace(seed=seed) for seed in self.seeds for recipe in self.recipes)
        return tuple(dict.fromkeys(recipes))

    @property
    def keys(self) -> dict[Key, Recipe]:
        """The runs by their key in a plan."""
        return {key_of(recipe): recipe for recipe in self.runs}

    def complete_seeds(self, runs: Iterable[Run]) -> int:
        """The number of seeds whose runs all diverged or have all epochs of the grid."""
        recipes = self.keys
        done = {
            key for run in runs if (key := key_of(run.recipe)) in recipes and run.is_done_for(recipes[key])
        }
        return sum(all(key in done for key in recipes if key[2] == seed) for seed in self.seeds)

    def sealed_reason(self, runs: Iterable[Run]) -> str:
        """Why the results of these runs must not be shown yet; empty if they may."""
        seeds = self.complete_seeds(runs)
        if self.plan is None or not self.plan.is_sealed(seeds):
            return ""
        return (
            f"The plan of {self.title} allows a look at {self.plan.opens_at} complete seeds, not at {seeds}"
        )


def read_grid(target: str, seeds: int | None = None, changes: Mapping[str, Any] | None = None) -> Grid:
    """Read a table of the paper by name, or a TOML file; ``changes`` apply to every recipe."""
    if target in TABLES:
        found = _table(int(target.removeprefix("table")))
    elif target.endswith(".toml"):
        found = _from_file(Path(target))
    else:
        if target == "table1":
            raise UserError("Table 1 has timings, not training runs: use iglu bench")
        raise unknown("sweep", target, [*TABLES, "FILE.toml"])
    # One thread by default: parallel runs are faster than parallel threads in one run.
    changed = tuple(
        _with_changes(recipe, {"threads": recipe.threads or 1, **(changes or {})}) for recipe in found.recipes
    )
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
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
        raise UserError(f"{path} is not TOML: {error}") from error
    try:
        return _from_content(content, path.stem)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _from_content(content: dict[str, Any], title: str) -> Grid:
    own = ("recipes", "activations", "seeds", "plan", "by_activation")
    fields = {key: value for key, value in content.items() if key not in own}
    for key in fields:
        if key in _GRID_FIELDS:
            raise UserError(f"Unknown field {key!r}. Did you mean {_GRID_FIELDS[key]!r}?")
        check_field(key, [*own, *(name for name in Recipe.__dataclass_fields__ if name not in _GRID_FIELDS)])
    names, activations = (_words(content, key) for key in ("recipes", "activations"))
    seeds = content.get("seeds", SEEDS)
    if type(seeds) is int and seeds >= 1:
        seeds = list(range(seeds))
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise UserError(f"seeds must be a number of seeds or a list of them, got {seeds!r}")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"each seed must be given once, got {seeds!r}")
    special = content.get("by_activation", {})
    if not isinstance(special, dict) or not all(isinstance(each, dict) for each in special.values()):
        raise UserError(f"by_activation must have a table of fields for each activation, got {special!r}")
    for activation in special:
        with as_user_errors():
            check_choice("an activation of by_activation", activation, activations)
    # Activation by activation, so that the comparison of a seed is complete early.
    arms = [list(_choices(fields | special.get(name, {}))) for name in activations]
    recipes = tuple(
        _with_changes(get_recipe(name), arm).replace(activation=activation)
        for name in names
        for row in itertools.zip_longest(*arms)
        for activation, arm in zip(activations, row, strict=True)
        if arm is not None
    )
    grid = Grid(title, recipes, tuple(seeds), _plan(content.get("plan"), activations))
    _check_plan_fits(grid)
    return grid


def _check_plan_fits(grid: Grid) -> None:
    """Check that comparisons are within one setting; only the grid of learning rates has two."""
    plan = grid.plan
    if plan is None:
        return
    if plan.looks and plan.looks[-1] > len(grid.seeds):
        raise UserError(f"the last look is at {plan.looks[-1]} seeds, but the grid has {len(grid.seeds)}")
    settings: dict[str, set[Recipe]] = {}
    for recipe in grid.recipes:
        setting = setting_of(recipe)
        same_rate = setting.replace(lr=1.0) if grid.title == RATES else setting
        settings.setdefault(recipe.activation, set()).add(same_rate)
    most = max(map(len, settings.values()))
    if (plan.primary or plan.secondary) and most > 1:
        raise UserError(f"the comparisons of a plan need one setting, got {most}: write one grid per setting")


def _choices(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the fields with a list of values."""
    several = {
        name: values for name, values in fields.items() if isinstance(values, list) and name != "color_jitter"
    }
    for name, values in several.items():
        if not values:
            raise UserError(f"{name} must have a value, got an empty list")
    for chosen in itertools.product(*several.values()):
        yield fields | dict(zip(several, chosen, strict=True))


def _is_positive(value: Any) -> bool:
    return is_plain_number(value) and value > 0


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and each > 0 for each in value)


def _is_lists(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, list) for each in value.values())


_TEXT = (lambda value: isinstance(value, str), "a string")
_NUMBER = (_is_positive, "a number above 0")
_COUNTS = (_is_counts, "a list of numbers of seeds")
_LISTS = (_is_lists, "a table that has a list of activations for each text")
_PLAN_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "metric": _TEXT, "reference": _TEXT, "sd": _NUMBER, "margin": _NUMBER, "look_level": _NUMBER,
    "looks": _COUNTS, "looked": _COUNTS, "claims": _LISTS, "primary": _LISTS, "secondary": _LISTS,
    "pilot": (lambda value: type(value) is bool, "true or false"),
}  # fmt: skip


def _plan(content: Any, activations: Sequence[str]) -> Plan | None:
    if content is None:
        return None
    if not isinstance(content, dict) or not {"metric", "reference"} <= content.keys() <= set(Plan._fields):
        optional = ", ".join(name for name in Plan._fields if name not in ("metric", "reference"))
        raise UserError(f"plan must have metric and reference, and may have {optional}, got {content!r}")
    for name, (is_right, expected) in _PLAN_FIELDS.items():
        if name in content and not is_right(content[name]):
            raise UserError(f"{name} of a plan must be {expected}, got {content[name]!r}")
    claims = {text: tuple(pair) for text, pair in content.get("claims", {}).items()}
    for pair in claims.values():
        if len(pair) != 2:
            raise UserError(f"a claim compares two activations, got {list(pair)!r}")
    contrasts = {key: tuple(_contrasts(content.get(key, {}))) for key in ("primary", "secondary")}
    sides = itertools.chain(*((*each.plus, *each.minus) for key in contrasts for each in contrasts[key]))
    for name in (content["reference"], *itertools.chain(*claims.values()), *sides):
        with as_user_errors():
            check_choice("an activation of the plan", name, activations)
    with as_user_errors():
        check_choice("model", content.get("model", "paired"), get_args(Model))
    looks, looked = (tuple(content.get(key, ())) for key in ("looks", "looked"))
    if list(looks) != sorted(looks) or not set(looked) <= set(looks[:-1]):
        raise UserError(
            f"looks must ascend, and looked may only have looks before the last, got {looks} and {looked}"
        )
    fields = {key: value for key, value in content.items() if key not in ("claims", *contrasts)}
    return Plan(**{**fields, "claims": claims, **contrasts, "looks": looks, "looked": looked})


def _contrasts(content: Mapping[str, Any]) -> Iterator[Contrast]:
    for text, sides in content.items():
        if not isinstance(sides, list) or len(sides) != 2:
            raise UserError(f"a comparison has two sides, got {sides!r}")
        plus, minus = (tuple(side) if isinstance(side, list) else (side,) for side in sides)
        yield Contrast(text, plus, minus)


def _words(content: dict[str, Any], key: str) -> list[str]:
    words = content.get(key)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise UserError(f"{key} must be a list of names, got {words!r}")
    return words


def _with_changes(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    for name in changes:
        if name in _GRID_FIELDS:
            raise UserError(f"{name} cannot be set: use the {_GRID_FIELDS[name]} of the grid")
        if name in ("devices", "nodes"):
            raise UserError(f"{name} cannot be set: a run of a sweep has one process; for more use torchrun")
    changed = recipe.replace(**changes)
    check_names(changed)
    return changed


# -- what is done ----------------------------------------------------------------------------------


class GridStatus(NamedTuple):
    """Which runs of a grid are done."""

    done: list[Run]  # finished or diverged
    remaining: list[Recipe]
    started: dict[Recipe, Run]  # the remaining ones that have a folder
    problems: list[str]


def grid_status(recipes: Iterable[Recipe], out: Path, elsewhere: Iterable[Run] = ()) -> GridStatus:
    """Look for the runs in their folders below ``out``, and among the completed runs ``elsewhere``."""
    found = GridStatus([], [], {}, [])
    others = {run.name: run for run in elsewhere}
    for recipe in recipes:
        run = others.get(recipe.folder_name)
        if run is None or not run.is_done_for(recipe):
            run, folder = None, out / recipe.folder_name
            if (folder / RECIPE).exists():
                with collect_problems(found.problems):
                    run = read_run(folder)
        if run is not None and run.is_done_for(recipe):
            found.done.append(run)
        else:
            found.remaining.append(recipe)
            if run is not None:
                found.started[recipe] = run
    return found
