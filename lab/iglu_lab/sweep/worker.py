"""Execute one run of a sweep, report its progress and return its result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from iglu_lab.errors import UserError
from iglu_lab.recipes import Recipe
from iglu_lab.runs.folder import Run, RunLockedError
from iglu_lab.sweep.pool import PoolObserver, Progress
from iglu_lab.training.loop import Observer, Training, fit
from iglu_lab.training.progress import conclude
from iglu_lab.training.tails import tail_observers
from iglu_lab.training.workloads import load_workload

# Seconds that a run waits for a folder locked by another process.  A process that was just killed may still
# hold the lock, and a file server keeps the lock of a dead machine for a minute or two.
LOCK_TIMEOUT = 300.0

# Seconds between two progress reports.
REPORT_EVERY = 0.5


@dataclass(frozen=True)
class RunResult:
    """The result of a run: the run (also one that diverged or was stopped), or a failure without one."""

    item: Recipe
    run: Run | None
    failure: str = ""  # one line
    traceback: str = ""  # of an unexpected exception

    def describe(self) -> str:
        """How it ended."""
        return f"failed: {self.failure}" if self.run is None else conclude(self.run)


SweepObserver = PoolObserver[Recipe, RunResult]


class ProgressReporter(Observer):
    """Reports the progress of a run, and stops it at a checkpoint when ``report`` returns True."""

    def __init__(self, report: Callable[[Progress], bool]) -> None:
        self.report = report
        self.last = -REPORT_EVERY
        self.notes: tuple[str, ...] = ()

    def started(self, training: Training) -> None:
        self.notes = tuple(training.notes)
        self._report(training, "starts")

    def found(self, run: Run, notes: Sequence[str]) -> None:
        epochs = run.recipe.last_epoch
        self.report(Progress(epochs, epochs, 1.0, "already complete", tuple(notes)))

    def stepped(self, training: Training) -> bool:
        now = time.monotonic()
        if now - self.last < REPORT_EVERY:
            return False
        self.last = now
        return self._report(training, ", ".join(training.status))

    def _report(self, training: Training, text: str) -> bool:
        """Every report has the notes: on a cluster, only the latest may arrive."""
        epochs = training.recipe.last_epoch
        share = training.total_steps / (epochs * training.steps)
        return self.report(Progress(training.epoch + 1, epochs, share, text, self.notes))


def run_recipe(
    recipe: Recipe,
    *,
    data: Path | str | None,
    out: Path,
    report: Callable[[Progress], bool],
    lock_timeout: float = LOCK_TIMEOUT,
) -> RunResult:
    """Execute or resume a run.  Any error is returned in the result, so that other runs continue."""
    deadline = time.monotonic() + lock_timeout
    while True:
        observers = [ProgressReporter(report), *tail_observers(recipe)]
        try:
            return RunResult(recipe, fit(recipe, data=data, out=out, observers=observers))
        except RunLockedError as error:
            waiting = Progress(0, recipe.last_epoch, 0.0, "waiting: its folder is locked by another process")
            if report(waiting) or time.monotonic() >= deadline:
                return RunResult(recipe, None, str(error))
        except (OSError, UserError, ImportError) as error:
            return RunResult(recipe, None, str(error))
        except Exception as error:
            return RunResult(recipe, None, f"{type(error).__name__}: {error}", traceback.format_exc())
        time.sleep(REPORT_EVERY)


def missing_data(recipes: Sequence[Recipe], data: Path | str | None) -> list[RunResult]:
    """The runs whose data cannot be loaded.  Each set is loaded once here: a download fails once instead of
    once per run, and a text is tokenized before several processes would do it."""
    problems: dict[tuple[str, str], str] = {}
    for recipe in recipes:
        key = recipe.dataset, recipe.tokenizer
        if key not in problems:
            try:
                load_workload(recipe, data)
                problems[key] = ""
            except (OSError, UserError, ImportError) as error:
                problems[key] = str(error)
    found = ((recipe, problems[recipe.dataset, recipe.tokenizer]) for recipe in recipes)
    return [RunResult(recipe, None, problem) for recipe, problem in found if problem]
