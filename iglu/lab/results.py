"""A run's folder: what is written there, how it is read back, and statistics over seeds.

::

    recipe.json        every field of the recipe
    provenance.jsonl   one line for each start: commit, versions, device, threads
    metrics.jsonl      one line an epoch
    state.json         how the run ended; missing while it has not
    checkpoint-*       see iglu.lab.checkpoint
    lock               held by the process that is at it
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from iglu import zoo
from iglu.lab.checkpoint import newest_checkpoint
from iglu.lab.recipes import Recipe

Row = dict[str, Any]

RECIPE, PROVENANCE, METRICS, STATE = "recipe.json", "provenance.jsonl", "metrics.jsonl", "state.json"

# One of these is in the line of every epoch, by the kind of data and whether it ended with an evaluation.
FIGURES = frozenset(("train_loss", "test_acc", "perplexity"))

# What differs between two runs that are equal: time, and what is made of it.
TIMINGS = ("seconds", "test_seconds", "rate")


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it."""

    folder: Path
    recipe: Recipe
    status: str  # "finished", "stopped" (at an epoch or by request), "diverged", "unfinished"
    history: tuple[Row, ...]  # a row an epoch
    message: str = ""

    @property
    def figure(self) -> str:
        """The name of the figure that tables show."""
        return "perplexity" if any("perplexity" in row for row in self.history) else "test_acc"

    @property
    def evaluated(self) -> tuple[Row, ...]:
        """The epochs that ended with an evaluation; the last of a run always does."""
        return tuple(row for row in self.history if self.figure in row)

    @property
    def last(self) -> Row:
        """The last of these: what the paper reports, and what means over seeds are made of."""
        if not self.evaluated:
            raise ValueError(f"{self.folder} has no finished epoch that was evaluated")
        return self.evaluated[-1]

    @property
    def best(self) -> Row:
        """The best epoch by the test set itself: flattering, to be shown beside the last and marked."""
        if not self.evaluated:
            raise ValueError(f"{self.folder} has no finished epoch that was evaluated")
        sign = -1 if self.figure == "perplexity" else 1
        return max(self.evaluated, key=lambda row: float(sign * row[self.figure]))

    def is_done_for(self, recipe: Recipe) -> bool:
        """Whether nothing is left to do for ``recipe``, which may ask for more epochs than this run's: it
        diverged, or has them all."""
        done = len(self.history) if self.status in ("finished", "stopped") else 0
        return self.status == "diverged" or done >= recipe.last_epoch

    @property
    def is_sound(self) -> bool:
        """Whether it may enter a mean: it has every epoch it was to have, and did not diverge."""
        return self.status != "diverged" and bool(self.evaluated) and self.is_done_for(self.recipe)

    def without_timings(self) -> list[Row]:
        """The history as far as it must be the same each time."""
        return [{key: row[key] for key in row if key not in TIMINGS} for row in self.history]

    def load_model(self, data: Path | str | None = None) -> nn.Module:
        """The model with the weights of the last checkpoint, in evaluation mode."""
        from iglu.lab.tasks import load_task

        state, complaints = newest_checkpoint(self.folder)
        if state is None:
            raise FileNotFoundError(f"No sound checkpoint in {self.folder}. {' '.join(complaints)}".rstrip())
        model = load_task(self.recipe, data).make_model()
        model.load_state_dict(state["model"])
        return model.eval()


def read_run(folder: Path | str, complaints: list[str] | None = None) -> Run:
    """The run in ``folder``; a ValueError says what is wrong with it.  With a list for ``complaints``, lines
    of metrics that cannot be read are left out and named there."""
    folder, bad_lines = Path(folder), list[str]()
    try:
        recipe = Recipe.from_dict(json.loads((folder / RECIPE).read_text()))
        state = json.loads(_text(folder / STATE) or '{"status": "unfinished"}')
        history = _history(folder / METRICS, bad_lines)
        if bad_lines and complaints is None:
            raise ValueError(bad_lines[0])
        run = Run(folder, recipe, state["status"], history, state.get("message", ""))
    except FileNotFoundError:
        raise ValueError(f"{folder} is not the folder of a run: it has no {RECIPE}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder} cannot be read: {error}") from error
    if complaints is not None:
        complaints += bad_lines
    return run


def read_runs(folder: Path | str) -> tuple[list[Run], list[str]]:
    """Every run below ``folder``, and what is wrong: folders that cannot be read, and lines of metrics, which
    are left out."""
    complaints: list[str] = []

    def read(path: Path) -> Run | None:
        try:
            return read_run(path.parent, complaints)
        except ValueError as error:
            complaints.append(str(error))
            return None

    runs = [read(path) for path in sorted(Path(folder).rglob(RECIPE))]
    return [run for run in runs if run is not None], complaints


def _history(path: Path, bad_lines: list[str]) -> tuple[Row, ...]:
    rows = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        row = _epoch(line)
        if row is None:
            bad_lines.append(f"line {number} of {path} is not an epoch's figures")
        else:
            rows.append(row)
    return tuple(rows)


def _epoch(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_epoch = isinstance(row, dict) and isinstance(row.get("epoch"), int)
    return row if is_epoch and not FIGURES.isdisjoint(row) else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


class Estimate(NamedTuple):
    """A mean over seeds and its 95% t-interval; of one value the interval is the whole line."""

    mean: float
    deviation: float
    low: float
    high: float
    seeds: int

    def text(self, digits: int = 2, sign: str = "") -> str:
        """The mean, with half its interval where there is one; ``sign="+"`` for a difference.

        >>> Estimate(1.0, 0.5, 0.5, 1.5, 3).text(1, "+")
        '+1.0 ± 0.5'
        """
        mean = f"{self.mean:{sign},.{digits}f}"
        return mean if self.seeds < 2 else f"{mean} ± {(self.high - self.low) / 2:,.{digits}f}"

    def __str__(self) -> str:
        return self.text()


def estimate(values: Iterable[float]) -> Estimate:
    """
    >>> print(estimate([1.0, 2.0, 3.0]))
    2.00 ± 2.48
    """
    sample = list(values)
    if not sample:
        raise ValueError("No values to take the mean of")
    count = len(sample)
    mean = math.fsum(sample) / count
    if count < 2:
        return Estimate(mean, math.nan, -math.inf, math.inf, count)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in sample) / (count - 1))
    half = _quantile(count - 1) * deviation / math.sqrt(count)
    return Estimate(mean, deviation, mean - half, mean + half, count)


@functools.cache
def _quantile(freedom: int) -> float:
    """The 97.5% point of Student's t; scipy takes a while over each."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def smallest_difference(seeds: int, spread: float, comparisons: int = 1) -> float:
    """What so many seeds show four times out of five, at 5% shared by ``comparisons``, if one run has the
    standard deviation ``spread`` and pairing by seed gains nothing.

    >>> round(smallest_difference(10, 0.7), 2), round(smallest_difference(10, 0.7, 9), 2)
    (0.98, 1.41)
    """
    from scipy.stats import t

    if seeds < 2:
        return math.inf
    points = t.ppf(1 - 0.025 / comparisons, seeds - 1) + t.ppf(0.8, seeds - 1)
    return float(points * spread * math.sqrt(2 / seeds))


def holm(chances: Mapping[str, float]) -> dict[str, float]:
    """Chances of error (p-values) of several comparisons, each raised so that all together stay below a
    level: the smallest times their number, the next times one fewer, and none below the one before.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    raised, least = {}, 0.0
    for place, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        least = max(least, min((len(chances) - place) * chances[name], 1.0))
        raised[name] = least
    return raised


def paired_difference(runs: Sequence[Run], reference: Sequence[Run], figure: str) -> Estimate:
    """The figure of ``runs`` minus that of ``reference``, seed by seed: what the seeds share (the data's
    order, the long tail's choice) cancels, so that the interval is narrower than that of either mean."""
    other = {run.recipe.seed: run.last[figure] for run in reference}
    return estimate(run.last[figure] - other[run.recipe.seed] for run in runs if run.recipe.seed in other)


# -- runs beside each other ------------------------------------------------------------------------

REFERENCES = ("relu", "gelu")  # what every activation is set beside


class Summary(NamedTuple):
    """One activation in one setting: the last epoch over seeds, alone and beside the references."""

    setting: str
    activation: str
    figure: str
    mean: Estimate
    differences: dict[str, Estimate]  # by reference, over the seeds that both have


def setting_of(recipe: Recipe) -> Recipe:
    """What runs have in common that may be compared: all but activation, seed and the way of execution."""
    plain = Recipe(recipe.name, recipe.dataset, recipe.model)
    execution = recipe.as_dict().keys() - recipe.identity().keys()
    same = {name: getattr(plain, name) for name in ("activation", "seed", *execution)}
    if recipe.last_epoch < recipe.epochs:
        same["stop_after"] = recipe.last_epoch  # figures of another epoch
    return recipe.but(**same)


def setting_label(recipe: Recipe) -> str:
    """The recipe's name and what differs from the recipe of that name.

    >>> from iglu.lab.recipes import get_recipe
    >>> setting_label(get_recipe("digits-lt").but(ratio=100.0, activation="gelu"))
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
    runs: Iterable[Run], figure: str | None = None, references: Sequence[str] = REFERENCES
) -> list[Summary]:
    """Means over the seeds of sound runs and seed-paired differences, in every setting; of ``figure``, or of
    the one that tables show."""
    rows = []
    for setting, activations in by_setting(run for run in runs if run.is_sound).items():
        for activation, mine in activations.items():
            shown = mine[0].figure if figure is None else figure
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
