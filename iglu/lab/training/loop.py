"""One training loop for images and text; a run that is killed anywhere goes on as if nothing had happened.

Nothing is drawn from a generator that lives on from step to step: each draw is a function of the seed and
of the step (``derive_seed``).  A run's state is therefore weights, optimizer, sums and the step's number,
and a run that went on from a checkpoint repeats the uninterrupted one to the bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from iglu.lab.mistakes import MistakeError
from iglu.lab.recipes import Recipe
from iglu.lab.runs.folder import METRICS, STATE, Row, Run, begin, claim, open_run, set_aside
from iglu.lab.storage import write_json, write_json_lines
from iglu.lab.training.checkpoint import newest_checkpoint, save_checkpoint
from iglu.lab.training.diagnosis import first_nonfinite
from iglu.lab.training.processes import make_fabric, share_batch_norm, shared_by
from iglu.lab.training.tasks import Task, load_task
from iglu.modules import SigmaModule, weight_decay_groups


class Observer:
    """Watches a run; every method may be left as it is.  Only the first process calls them."""

    def started(self, training: Training) -> None:
        """Before the first step, or the first after going on."""

    def stepped(self, training: Training) -> bool:
        """After a step; True asks to stop here, with a checkpoint."""
        return False

    def epoch_ended(self, training: Training, row: Row) -> Mapping[str, Any]:
        """After evaluation; what is returned joins the epoch's line of metrics."""
        return {}

    def ended(self, run: Run) -> None:
        """When the run finished, stopped or diverged."""

    def found(self, run: Run, notes: Sequence[str]) -> None:
        """Instead of all else, when it had done so before and nothing is left to do; ``notes`` are worth
        telling the user."""

    def close(self) -> None:
        """However it ended, by an exception too."""


@dataclass
class Training:
    """A run on its way: what an observer may look at."""

    recipe: Recipe
    folder: Path
    task: Task
    model: nn.Module  # the plain network, not a compiled or distributed wrapper
    steps: int  # in an epoch
    epoch: int = 0  # finished ones
    step: int = 0  # inside the epoch
    loss: float = math.nan  # of the last step
    sums: dict[str, float] = field(default_factory=dict)  # of this epoch so far
    history: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # worth telling the user

    @property
    def total_steps(self) -> int:
        return self.epoch * self.steps + self.step

    @property
    def metrics(self) -> dict[str, float]:
        """Of the training set, over this epoch so far."""
        sums = self.sums
        return self.task.train_metrics(sums["loss"], sums["weight"], sums["correct"], int(sums["samples"]))

    @property
    def rate(self) -> float:
        """Images or tokens a second, in this epoch."""
        return self.sums["samples"] * self.task.units_a_sample / max(self.sums["seconds"], 1e-9)

    @property
    def words(self) -> list[str]:
        """Metrics and speed."""
        metrics = [f"{name.removeprefix('train_')} {value:.4g}" for name, value in self.metrics.items()]
        return [*metrics, f"{self.rate:,.0f} {self.task.unit}/s"]


class DivergedError(ArithmeticError):
    """The loss or the gradient is no longer a number."""


def fit(
    recipe: Recipe,
    *,
    data: Path | str | None = None,
    out: Path | str = "runs",
    observers: Iterable[Observer] = (),
) -> Run:
    """Carry out a recipe, or go on with it, in its own folder inside ``out``; a finished one is read back.

    A run whose loss turns NaN is not an exception but a result: its status is "diverged".
    """
    folder = Path(out) / recipe.folder_name
    fabric = make_fabric(recipe)
    watching = list(observers) if fabric.is_global_zero else []
    with contextlib.ExitStack() as stack:
        for observer in watching:
            stack.callback(observer.close)
        notes: list[str] = []

        def enter() -> Run | None:
            """Take the folder; the run in it if there is nothing left to do."""
            found = None
            if fabric.is_global_zero:
                stack.enter_context(claim(folder))
                found = _done(folder, recipe, notes)
            shared: Run | None = shared_by(fabric, found)
            return shared

        was_there = shared_by(fabric, folder.exists())
        done = enter() if was_there else None
        if done is None:
            stack.enter_context(_reproducible(recipe))
            # Before the folder is made: a start that fails, for want of data, leaves none.
            loop = Loop(recipe, folder, fabric, data, watching)
            done = None if was_there else enter()
            if done is None:
                return loop.run(notes)
        for observer in watching:
            observer.found(done, notes)
        return done


def _done(folder: Path, recipe: Recipe, notes: list[str]) -> Run | None:
    """The run in the folder if there is nothing left to do: it diverged, or has all its epochs.  Its metrics
    are then held against those of the checkpoint, which proves itself."""
    state, _ = newest_checkpoint(folder, recipe)
    run = open_run(folder, recipe, notes, None if state is None else state.get("recipe"))
    if run is None or not run.is_done_for(recipe):
        return None
    history = list(run.history) if state is None else state["history"]
    # As JSON a NaN is equal to itself.
    if json.dumps(history) == json.dumps(run.history[: len(history)]):
        return run
    notes.append(set_aside(folder / METRICS, f"{folder / METRICS} differs from the checkpoint"))
    return None


class Loop:
    """A run being carried out by this process, alone or as one of several."""

    def __init__(
        self, recipe: Recipe, folder: Path, fabric: Fabric, data: Path | str | None, observers: list[Observer]
    ) -> None:
        self.recipe, self.folder, self.fabric, self.observers = recipe, folder, fabric, observers
        task = load_task(recipe, data, fabric.device)
        self.task = task
        torch.manual_seed(derive_seed(recipe.seed, "weights"))
        network = task.make_model()
        if fabric.world_size > 1:
            network = share_batch_norm(network, fabric.device)
        network = fabric.to_device(network)
        if recipe.channels_last:
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        decay = recipe.weight_decay
        groups = network.parameters() if recipe.decay_shapes else weight_decay_groups(network, decay)
        # Fused is fastest, but would unscale the gradients of 16-mixed itself, too late for clipping.
        fused = fabric.device.type in ("cpu", "cuda") and recipe.precision != "16-mixed"
        optimizer = torch.optim.AdamW(groups, lr=recipe.lr, weight_decay=decay, fused=fused)
        wrapped: Any = torch.compile(network) if recipe.compile else network
        self.model, self.optimizer = fabric.setup(wrapped, optimizer)
        self.network = network
        steps = steps_an_epoch(recipe, task.samples)
        if recipe.batch < fabric.world_size:
            raise MistakeError(f"batch={recipe.batch} is too small for {fabric.world_size} processes")
        self.training = Training(recipe, folder, task, network, steps, sums=_no_sums())
        self.last_save = time.monotonic()
        self.saved: tuple[int, int] | None = None  # epoch and step of the newest checkpoint

    def run(self, notes: Iterable[str] = ()) -> Run:
        """From its newest checkpoint, if there is one; ``notes`` are for the user."""
        training = self.training
        training.notes += notes
        self._go_on()
        if self.fabric.is_global_zero:
            processes = {"device": str(self.fabric.device), "processes": self.fabric.world_size}
            start = {"step": training.total_steps, **processes}
            begin(self.folder, self.recipe, training.history, start)
        for observer in self.observers:
            observer.started(training)
        status, message = "finished", ""
        try:
            while training.epoch < self.recipe.last_epoch:
                if self._epoch():
                    status, message = "stopped", f"by request after {training.total_steps} steps"
                    break
            else:
                if training.epoch < self.recipe.epochs:
                    status, message = "stopped", f"after epoch {training.epoch} of {self.recipe.epochs}"
        except DivergedError as error:
            status, message = "diverged", str(error)
        else:
            self._save()
        return self._end(status, message)

    # -- one epoch ---------------------------------------------------------------------------------

    def _epoch(self) -> bool:
        """The rest of the current epoch; True if an observer asked to stop in it."""
        training, recipe = self.training, self.recipe
        order = torch.randperm(
            self.task.samples,
            generator=torch.Generator().manual_seed(derive_seed(recipe.seed, "order", training.epoch)),
        )
        batches = torch.split(order, recipe.batch)
        self.model.train()
        while training.step < training.steps:
            began = time.perf_counter()
            self.step(batches[training.step])
            training.step += 1
            training.sums["seconds"] += time.perf_counter() - began
            if self._is_stop_wanted():
                return True
            if time.monotonic() - self.last_save >= recipe.checkpoint_every:
                self._save()
        self._finish_epoch()
        return False

    def step(self, rows: Tensor) -> None:
        """One update from the batch of these rows, of which each process takes its share in parts."""
        training, recipe, fabric = self.training, self.recipe, self.fabric
        step = training.total_steps
        rate = learning_rate(recipe, training.epoch, step, training.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._seed_dropout()
        weight = self.task.weight(rows)
        parts = batch_parts(len(rows), recipe.accumulate, fabric.global_rank, fabric.world_size)
        sums = torch.zeros(2, device=fabric.device)  # loss, correct
        for index, part in enumerate(parts):
            inputs, targets = self._batch(rows, part)
            with fabric.no_backward_sync(self.model, enabled=index < len(parts) - 1):
                score = self.task.score(self.model(inputs), targets)
                # Divided by the weight of the whole batch; over processes gradients are averaged.
                fabric.backward(score.loss * (fabric.world_size / weight))
            sums += torch.stack([score.loss.detach(), score.correct.to(score.loss.dtype)])
        norm = fabric.clip_gradients(
            self.model, self.optimizer, max_norm=math.inf if recipe.clip is None else recipe.clip,
            error_if_nonfinite=False,
        )  # fmt: skip
        assert norm is not None
        # The one place where the host waits for the device: a NaN must be seen before it is in the weights.
        loss_sum, correct, norm_sum = self._summed(torch.cat([sums, norm.view(1)]))
        training.loss = loss_sum / weight
        # In 16-mixed a gradient that overflows is normal: the scaler skips the step and scales down.
        is_sound = math.isfinite(norm_sum) or recipe.precision == "16-mixed"
        if not (math.isfinite(training.loss) and is_sound):
            raise DivergedError(self._diagnose(rows, parts))
        self.optimizer.step()
        self.optimizer.zero_grad()
        training.sums["loss"] += loss_sum
        training.sums["weight"] += weight
        training.sums["correct"] += correct
        training.sums["samples"] += len(rows)

    def _batch(self, rows: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        seed = derive_seed(self.recipe.seed, "augmentation", self.training.total_steps)
        return self.task.train_batch(rows, part, seed)

    def _seed_dropout(self) -> None:
        """Each process drops other units; the same again when a step is repeated."""
        step, rank = self.training.total_steps, self.fabric.global_rank
        torch.manual_seed(derive_seed(self.recipe.seed, "dropout", step, rank))

    def _finish_epoch(self) -> None:
        training = self.training
        row: Row = {
            "epoch": training.epoch + 1,
            "step": training.total_steps,
            "lr": self.optimizer.param_groups[0]["lr"],
            **training.metrics,
        }
        sigmas = learned_sigmas(training.model)
        if sigmas:
            row["sigmas"] = sigmas
        began = time.perf_counter()
        is_last = row["epoch"] == self.recipe.last_epoch
        is_evaluated = is_last or row["epoch"] % self.recipe.evaluate_every == 0
        if is_evaluated:
            row |= self.evaluate()
        row |= {
            "seconds": round(training.sums["seconds"], 3),
            "test_seconds": round(time.perf_counter() - began, 3),
            "rate": round(training.rate, 1),
        }
        for observer in self.observers:
            row |= observer.epoch_ended(training, row)
        training.history.append(row)
        training.epoch, training.step, training.sums = training.epoch + 1, 0, _no_sums()
        if self.fabric.is_global_zero:
            write_json_lines(self.folder / METRICS, training.history)
        if is_evaluated:
            # Or a run that is killed often would be evaluated again and again.
            self._save()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Figures of the whole test set.  Not through the distributed wrapper: processes may have unequal
        shares, and it would wait for all at each batch."""
        self.network.eval()
        total: Tensor | None = None
        for inputs, targets in self.task.test_batches(self.fabric.global_rank, self.fabric.world_size):
            with self.fabric.autocast():
                outputs = self.network(inputs)
            sums = self.task.evaluate(outputs, targets).cpu().double()
            total = sums if total is None else total + sums
        assert total is not None
        return self.task.test_metrics(self._summed(total))

    def _summed(self, values: Tensor) -> list[float]:
        """Over all processes."""
        if self.fabric.world_size > 1:
            reduced = self.fabric.all_reduce(values.to(self.fabric.device), reduce_op="sum")
            assert isinstance(reduced, Tensor)
            values = reduced
        numbers: list[float] = values.tolist()
        return numbers

    def _is_stop_wanted(self) -> bool:
        wanted = [observer.stepped(self.training) for observer in self.observers]
        return bool(shared_by(self.fabric, any(wanted)))

    # -- what is kept ------------------------------------------------------------------------------

    def _save(self) -> None:
        self.last_save = time.monotonic()
        training = self.training
        if not self.fabric.is_global_zero or self.saved == (training.epoch, training.step):
            return
        self.saved = training.epoch, training.step
        state = {
            "recipe": self.recipe.as_dict(),
            "model": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "epoch": training.epoch,
            "step": training.step,
            "sums": training.sums,
            "history": training.history,
        }
        save_checkpoint(self.folder, training.total_steps, state)

    def _go_on(self) -> None:
        training, state = self.training, None
        if self.fabric.is_global_zero:
            state, complaints = newest_checkpoint(self.folder, self.recipe)
            instead = "starting from the beginning" if state is None else "going on from the one before"
            # By their numbers they would be in the way of those to come.
            training.notes += [f"{set_aside(*each)}; {instead}" for each in complaints.items()]
        state = shared_by(self.fabric, state)
        if state is None:
            return
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for parameter, values in self.optimizer.state.items():
            for name, value in values.items():
                # In the parameter's own memory format, as the optimizer would have made it.
                if value.shape == parameter.shape:
                    values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        training.epoch, training.step = state["epoch"], state["step"]
        training.sums, training.history = state["sums"], state["history"]
        self.saved = training.epoch, training.step
        training.notes.append(
            f"going on from epoch {training.epoch + 1}, step {training.step} of {training.steps}"
        )

    def _end(self, status: str, message: str) -> Run:
        training = self.training
        if self.fabric.is_global_zero:
            write_json_lines(self.folder / METRICS, training.history)
            write_json(self.folder / STATE, {
                "status": status, "message": message, "epoch": training.epoch, "step": training.total_steps,
            })  # fmt: skip
        run = Run(self.folder, self.recipe, status, tuple(training.history), message)
        for observer in self.observers:
            observer.ended(run)
        return run

    # -- what went wrong ---------------------------------------------------------------------------

    def _diagnose(self, rows: Tensor, parts: list[slice]) -> str:
        training = self.training
        found = []
        # Every part in every process, whatever another found: layers may wait for those of the others.
        for part in parts:
            self._seed_dropout()
            with self.fabric.autocast():
                found.append(first_nonfinite(self.network, self.task, *self._batch(rows, part)))
        where = next(filter(None, found), "a sum over the batch")
        return (
            f"The loss is {training.loss:g} in epoch {training.epoch + 1}, step {training.step + 1} of "
            f"{training.steps}; the first to be not finite: {where}. "
            f"Recipe: {json.dumps(self.recipe.as_dict())}"
        )


def learned_sigmas(model: nn.Module) -> dict[str, list[float]]:
    """Of each activation that learns its sigma: one number, or one a channel."""
    return {
        name: module.sigma.detach().tolist()
        for name, module in model.named_modules()
        if isinstance(module, SigmaModule) and isinstance(module.sigma, Tensor)
    }


def _no_sums() -> dict[str, float]:
    return dict.fromkeys(("loss", "weight", "correct", "samples", "seconds"), 0.0)


@contextlib.contextmanager
def _reproducible(recipe: Recipe) -> Iterator[None]:
    """The recipe's threads, and on a GPU algorithms that repeat themselves; afterwards all as it was."""
    threads, was_deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS does not repeat itself
    try:
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        if torch.cuda.is_available():
            torch.use_deterministic_algorithms(True, warn_only=True)
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(was_deterministic, warn_only=was_warning)


# -- the schedule: what a step is made of, by the recipe and the number of the step alone ----------


def derive_seed(seed: int, *purpose: object) -> int:
    """An independent seed for each purpose ("order" of epoch 3, "dropout" of step 17 ...) of one seed."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def learning_rate(recipe: Recipe, epoch: int, step: int, steps: int) -> float:
    """For the update number ``step``, from 0, which lies in ``epoch``, from 0, of ``steps`` each.

    cosine: lr (1 + cos(pi epoch/epochs))/2.  warmup-linear: lr step/w up to the w-th step, then
    lr (n - step)/(n - w), with n steps in all and w = int(warmup n).
    """
    if recipe.schedule == "cosine":
        return recipe.lr * (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2
    if recipe.schedule == "warmup-linear":
        total = recipe.epochs * steps
        rising = int(recipe.warmup * total)
        if step < rising:
            return recipe.lr * step / rising
        return recipe.lr * (total - step) / (total - rising)
    return recipe.lr


def steps_an_epoch(recipe: Recipe, samples: int) -> int:
    """Once through the data; the last batch may be smaller."""
    steps = math.ceil(samples / recipe.batch)
    return steps if recipe.epoch_steps is None else min(steps, recipe.epoch_steps)


def batch_parts(count: int, accumulate: int, rank: int = 0, world: int = 1) -> list[slice]:
    """What process ``rank`` takes of a batch of ``count`` samples: of each part its share.  The parts are
    the same for any number of processes; of a part with fewer samples than these, some get none.

    >>> batch_parts(10, 2, rank=1, world=2)
    [slice(2, 5, None), slice(7, 10, None)]
    """
    shares = min(accumulate, count) * world
    bounds = [index * count // shares for index in range(shares + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(bounds)][rank::world]
