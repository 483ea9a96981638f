"""One run of a sweep, wherever it runs: carried out, told about, and how it went."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from iglu.lab.mistakes import MistakeError
from iglu.lab.recipes import Recipe
from iglu.lab.runs.folder import FolderInUseError, Run
from iglu.lab.training.loop import Observer, Training, fit
from iglu.lab.training.tails import tail_observers
from iglu.lab.training.tasks import load_task

# How long a run waits for a folder that another process holds: one that was killed a moment ago may not be
# gone yet, and a file server may keep the lock of a dead machine for its lease, a minute or two.
PATIENCE = 300.0

# Seconds between two words of a run about itself.
REPORT_EVERY = 0.5


class Progress(NamedTuple):
    """How far a run is."""

    epoch: int  # the one it is in, from 1
    epochs: int
    share: float  # of all its steps
    text: str  # metrics and speed
    notes: tuple[str, ...] = ()  # what it said when it began


@dataclass(frozen=True)
class Outcome:
    """How it went.  One that diverged or was stopped is a run; without a run it failed."""

    recipe: Recipe
    run: Run | None
    failure: str = ""  # in one line
    traceback: str = ""  # of an error that nobody foresaw


class Watcher:
    """Is told how a sweep goes; every method may be left as it is."""

    def progressed(self, recipe: Recipe, progress: Progress | None) -> None:
        """A run works; without ``progress`` it has begun and prepares its data."""

    def ended(self, outcome: Outcome) -> None:
        """A run has ended or was stopped."""

    def noted(self, text: str) -> None:
        """Something that concerns them all."""


class Relay(Observer):
    """Passes a run's progress on, and stops it at a checkpoint when the answer is True."""

    def __init__(self, report: Callable[[Progress], bool]) -> None:
        self.report = report
        self.last = -REPORT_EVERY
        self.notes: tuple[str, ...] = ()

    def started(self, training: Training) -> None:
        self.notes = tuple(training.notes)
        self._tell(training, "begins")

    def found(self, run: Run, notes: Sequence[str]) -> None:
        epochs = run.recipe.last_epoch
        self.report(Progress(epochs, epochs, 1.0, "was done before", tuple(notes)))

    def stepped(self, training: Training) -> bool:
        now = time.monotonic()
        if now - self.last < REPORT_EVERY:
            return False
        self.last = now
        return self._tell(training, ", ".join(training.words))

    def _tell(self, training: Training, text: str) -> bool:
        """With the notes each time: of what a run on a cluster says, the last alone may be heard."""
        epochs = training.recipe.last_epoch
        share = training.total_steps / (epochs * training.steps)
        return self.report(Progress(training.epoch + 1, epochs, share, text, self.notes))


def carry_out(
    recipe: Recipe,
    *,
    data: Path | str | None,
    out: Path,
    report: Callable[[Progress], bool],
    patience: float = PATIENCE,
) -> Outcome:
    """Carry it out, or go on with it; whatever goes wrong is in the outcome, so that the others go on."""
    deadline = time.monotonic() + patience
    while isinstance(found := _attempt(recipe, data, out, Relay(report)), FolderInUseError):
        waiting = Progress(0, recipe.last_epoch, 0.0, "waits for its folder, which another process holds")
        if report(waiting) or time.monotonic() >= deadline:
            return Outcome(recipe, None, str(found))
        time.sleep(REPORT_EVERY)
    return found


def _attempt(
    recipe: Recipe, data: Path | str | None, out: Path, observer: Observer
) -> Outcome | FolderInUseError:
    try:
        return Outcome(recipe, fit(recipe, data=data, out=out, observers=[observer, *tail_observers(recipe)]))
    except FolderInUseError as error:
        return error
    except (OSError, MistakeError, ImportError) as error:
        return Outcome(recipe, None, str(error))
    except Exception as error:
        return Outcome(recipe, None, f"{type(error).__name__}: {error}", traceback.format_exc())


def missing_data(recipes: Sequence[Recipe], data: Path | str | None) -> list[Outcome]:
    """The runs whose data cannot be had, found by loading each set once: better one failed download than
    one a run, and a text is tokenised before several processes would do it at the same time."""
    reasons: dict[tuple[str, str], str] = {}
    for recipe in recipes:
        if (recipe.dataset, recipe.tokenizer) not in reasons:
            reasons[recipe.dataset, recipe.tokenizer] = _why_not(recipe, data)
    return [
        Outcome(recipe, None, reason)
        for recipe in recipes
        if (reason := reasons[recipe.dataset, recipe.tokenizer])
    ]


def _why_not(recipe: Recipe, data: Path | str | None) -> str:
    try:
        load_task(recipe, data)
    except (OSError, MistakeError, ImportError) as error:
        return str(error)
    return ""
