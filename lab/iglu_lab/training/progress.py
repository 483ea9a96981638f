"""Observers of a run: console output, TensorBoard, and stopping on a signal."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from iglu.install_hint import LAB, pip_install
from iglu_lab.console import Terminal
from iglu_lab.data.longtail import SHOTS
from iglu_lab.errors import UserError
from iglu_lab.runs.folder import Row, Run
from iglu_lab.training.loop import Observer, Training


def describe(row: Row) -> str:
    """The metrics of an epoch in one line."""
    shown = {
        "train_loss": "train loss {:.4f}", "train_acc": "train acc {:.2f}%", "test_loss": "test loss {:.4f}",
        "perplexity": "perplexity {:.2f}", "test_acc": "test acc {:.2f}%", "task_acc": "task acc {:.2f}%",
        "dead_units": "dead {:.0%}",
    }  # fmt: skip
    parts = [f"epoch {row['epoch']:>3}"]
    parts += [text.format(row[name]) for name, text in shown.items() if name in row]
    shots = [f"{shot} {row[key]:.1f}%" for shot in SHOTS if (key := f"test_acc_{shot}") in row]
    if shots:
        parts.append(", ".join(shots))
    parts.append(f"{row['rate']:,.0f}/s, {row['seconds'] + row['test_seconds']:.1f} s")
    return " | ".join(parts)


def conclude(run: Run) -> str:
    """How a run ended: the metric of the last and of the best epoch."""
    head = f"{run.status}" + (f" {run.message}" if run.status == "stopped" else "")
    if not run.evaluated:
        return head
    last, best = run.last, run.best
    if run.metric == "final_acc":
        return (
            f"{head}: accuracy {last['final_acc']:.2f}% over the last fifth of the tasks, "
            f"{last['acc_gap']:+.2f} vs. a fresh network; {last['dead_units']:.0%} of units dead"
        )
    metric, unit = ("perplexity", "") if run.metric == "perplexity" else ("test acc", "%")
    return (
        f"{head}: {metric} {last[run.metric]:.2f}{unit} in the last epoch, {last['epoch']}; "
        f"best (selected on the test set) {best[run.metric]:.2f}{unit} in epoch {best['epoch']}"
    )


class Display(Observer):
    """A progress bar with loss, speed and remaining time in a terminal; otherwise one line per epoch, and one
    per minute in long epochs."""

    def __init__(self, console: Terminal | None = None) -> None:
        self.console = Terminal() if console is None else console
        self.bar: Progress | None = None
        self.last_line = time.monotonic()

    def started(self, training: Training) -> None:
        recipe = training.recipe
        self.console.say(
            f"{recipe.name}, {recipe.activation}, seed {recipe.seed}: {training.workload.samples:,} samples, "
            f"{training.steps} steps per epoch, {recipe.last_epoch} of {recipe.epochs} epochs, "
            f"in {training.folder}"
        )
        for note in training.notes:
            self.console.say(note)
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
                console=self.console, speed_estimate_period=300,
            )  # fmt: skip
            total = recipe.last_epoch * training.steps
            self.line = self.bar.add_task("starting", total=total, completed=training.total_steps)
            self.bar.start()

    def stepped(self, training: Training) -> bool:
        text = " | ".join([f"epoch {training.epoch + 1}", *training.status])
        if self.bar is not None:
            self.bar.update(self.line, completed=training.total_steps, description=text)
        elif time.monotonic() - self.last_line > 60:
            self._print(f"{text} | step {training.step} of {training.steps}")
        return False

    def epoch_ended(self, training: Training, row: Row) -> Mapping[str, Any]:
        self._print(describe(row))
        return {}

    def ended(self, run: Run) -> None:
        self.close()
        self._print(run.message if run.status == "diverged" else conclude(run))
        self._print(str(run.folder))

    def found(self, run: Run, notes: Sequence[str]) -> None:
        for note in notes:
            self._print(note)
        self._print(f"nothing to do: this run is already {run.status}")
        self.ended(run)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _print(self, text: str) -> None:
        self.last_line = time.monotonic()
        self.console.say(text)


class TensorBoard(Observer):
    """Logs all metrics to TensorBoard, in the folder of the run."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                f"--tensorboard needs TensorBoard: {pip_install('tensorboard', distribution=LAB)}"
            ) from error
        self.open = SummaryWriter
        self.writer: Any = None

    def started(self, training: Training) -> None:
        self.writer = self.open(str(training.folder / "tensorboard"), purge_step=training.epoch + 1)

    def epoch_ended(self, training: Training, row: Row) -> Mapping[str, Any]:
        for name, value in row.items():
            if isinstance(value, int | float) and name != "epoch":
                self.writer.add_scalar(name, value, row["epoch"])
        return {}

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class StopOnSignal(Observer):
    """The first Ctrl-C or SIGTERM stops the run at a checkpoint, the second one immediately.  With
    ``is_idle``, the first one also stops immediately until a run has started."""

    def __init__(self, is_idle: bool = False) -> None:
        self.is_idle = is_idle
        self.number: int | None = None  # of the received signal

    @property
    def is_wanted(self) -> bool:
        return self.number is not None

    def started(self, training: Training) -> None:
        self.is_idle = False

    def stepped(self, training: Training) -> bool:
        return self.is_wanted

    @contextlib.contextmanager
    def installed(self) -> Iterator[StopOnSignal]:
        def ask(number: int, frame: FrameType | None) -> None:
            self.number = number
            signal.signal(number, old[number])
            if self.is_idle:
                raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

        numbers = (int(signal.SIGINT), int(signal.SIGTERM))
        old = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            signal.signal(number, ask)
        try:
            yield self
        finally:
            for number in numbers:
                signal.signal(number, old[number])
