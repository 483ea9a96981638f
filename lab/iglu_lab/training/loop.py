"""The training loop.  An interrupted run resumes from its last checkpoint, bit for bit.

No random generator keeps state between steps: each draw is a function of the seed and the step
(``derive_seed``).  The state of a run is therefore weights, optimizer, running sums and the step number.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from iglu.modules import SigmaModule, weight_decay_groups
from iglu_lab.errors import UserError
from iglu_lab.recipes import Recipe
from iglu_lab.runs.folder import METRICS, STATE, Row, Run, lock_run, open_run, set_aside, write_start
from iglu_lab.storage import write_json, write_json_lines
from iglu_lab.training.checkpoint import Newest, newest_checkpoint, save_checkpoint
from iglu_lab.training.diagnosis import first_nonfinite
from iglu_lab.training.processes import make_fabric, share_batch_norm, shared_by
from iglu_lab.training.seeds import derive_seed
from iglu_lab.training.workloads import Workload, load_workload


class Observer:
    """Callbacks of a run.  Every method is optional.  Only the first process calls them."""

    def started(self, training: Training) -> None:
        """Before the first step, also after resuming."""

    def stepped(self, training: Training) -> bool:
        """After a step; return True to stop here with a checkpoint."""
        return False

    def epoch_ended(self, training: Training, row: Row) -> Mapping[str, Any]:
        """After evaluation; the returned values are added to the metrics of the epoch."""
        return {}

    def ended(self, run: Run) -> None:
        """After the run finished, stopped or diverged."""

    def found(self, run: Run, notes: Sequence[str]) -> None:
        """Instead of the other callbacks, if the run was already complete; ``notes`` are for the user."""

    def close(self) -> None:
        """In any case, also after an exception."""


@dataclass
class Training:
    """The state of a run that observers may read."""

    recipe: Recipe
    folder: Path
    workload: Workload
    model: nn.Module  # not the compiled or distributed wrapper
    steps: int  # per epoch
    epoch: int = 0  # number of finished epochs
    step: int = 0  # in the current epoch
    loss: float = math.nan  # of the last step
    sums: dict[str, float] = field(default_factory=dict)  # of this epoch so far
    history: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # for the user

    @property
    def total_steps(self) -> int:
        return self.epoch * self.steps + self.step

    @property
    def metrics(self) -> dict[str, float]:
        """Training metrics of the current epoch so far."""
        sums = self.sums
        return self.workload.train_metrics(
            sums["loss"], sums["weight"], sums["correct"], int(sums["samples"])
        )

    @property
    def rate(self) -> float:
        """Images or tokens per second in the current epoch."""
        return self.sums["samples"] * self.workload.units_per_sample / max(self.sums["seconds"], 1e-9)

    @property
    def status(self) -> list[str]:
        """Metrics and speed as text."""
        metrics = [f"{name.removeprefix('train_')} {value:.4g}" for name, value in self.metrics.items()]
        return [*metrics, f"{self.rate:,.0f} {self.workload.unit}/s"]


class DivergedError(ArithmeticError):
    """The loss or the gradient is not finite."""


def fit(
    recipe: Recipe,
    *,
    data: Path | str | None = None,
    out: Path | str = "runs",
    observers: Iterable[Observer] = (),
) -> Run:
    """Train by a recipe, or resume, in the run's own folder in ``out``; a finished run is only read.

    A loss that becomes NaN is a result, not an exception: the status of the run is "diverged".
    """
    folder = Path(out) / recipe.folder_name
    fabric = make_fabric(recipe)
    active = list(observers) if fabric.is_global_zero else []
    with contextlib.ExitStack() as stack:
        for observer in active:
            stack.callback(observer.close)
        notes: list[str] = []
        newest: Newest = (None, {})

        def enter() -> Run | None:
            """Lock the folder; return its run if it is complete."""
            nonlocal newest
            found = None
            if fabric.is_global_zero:
                stack.enter_context(lock_run(folder))
                newest = newest_checkpoint(folder, recipe)
                found = _done(folder, recipe, newest[0], notes)
            shared: Run | None = shared_by(fabric, found)
            return shared

        was_there = shared_by(fabric, folder.exists())
        done = enter() if was_there else None
        if done is None:
            stack.enter_context(_reproducible(recipe))
            # Before the folder is created, so that missing data leaves no folder.
            loop = _loop_class(recipe)(recipe, folder, fabric, data, active)
            done = None if was_there else enter()
            if done is None:
                return loop.run(newest, notes)
        for observer in active:
            observer.found(done, notes)
        return done


def _loop_class(recipe: Recipe) -> type[Loop]:
    if recipe.kind != "continual":
        return Loop
    from iglu_lab.training.continual import ContinualLoop  # imports this module

    return ContinualLoop


def _done(folder: Path, recipe: Recipe, state: dict[str, Any] | None, notes: list[str]) -> Run | None:
    """The run in the folder if it diverged or has all its epochs, and its metrics match those of the
    checkpoint ``state``, which has a checksum."""
    run = open_run(folder, recipe, notes, None if state is None else state.get("recipe"))
    if run is None or not run.is_done_for(recipe):
        return None
    history = list(run.history) if state is None else state["history"]
    # In JSON, NaN equals itself.
    if json.dumps(history) == json.dumps(run.history[: len(history)]):
        return run
    notes.append(set_aside(folder / METRICS, f"{folder / METRICS} differs from the checkpoint"))
    return None


class Loop:
    """One run in this process, which may be one of several."""

    def __init__(
        self, recipe: Recipe, folder: Path, fabric: Fabric, data: Path | str | None, observers: list[Observer]
    ) -> None:
        self.recipe, self.folder, self.fabric, self.observers = recipe, folder, fabric, observers
        self.workload = load_workload(recipe, data, fabric.device)
        torch.manual_seed(derive_seed(recipe.seed, "weights"))
        network = self.workload.make_model()
        if fabric.world_size > 1:
            network = share_batch_norm(network, fabric.device)
        network = fabric.to_device(network)
        if recipe.channels_last:
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = self._make_optimizer(network)
        wrapped: Any = torch.compile(network) if recipe.compile else network
        self.model, self.optimizer = fabric.setup(wrapped, optimizer)
        self.network = network
        steps = epoch_length(recipe, self.workload.samples)
        if recipe.batch_size < fabric.world_size:
            raise UserError(f"batch_size={recipe.batch_size} is too small for {fabric.world_size} processes")
        self.training = Training(recipe, folder, self.workload, network, steps, sums=_no_sums())
        self.last_save = time.monotonic()
        self.saved: tuple[int, int] | None = None  # epoch and step of the newest checkpoint

    def _make_optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        recipe, decay = self.recipe, self.recipe.weight_decay
        groups = network.parameters() if recipe.decay_activations else weight_decay_groups(network, decay)
        # Fused is fastest, but unscales the gradients of 16-mixed itself, after clipping.
        fused = self.fabric.device.type in ("cpu", "cuda") and recipe.precision != "16-mixed"
        return torch.optim.AdamW(groups, lr=recipe.lr, weight_decay=decay, fused=fused)

    def run(self, newest: Newest, notes: Iterable[str]) -> Run:
        """Train from the newest checkpoint, if any; ``notes`` are for the user."""
        training = self.training
        training.notes += notes
        self._resume(*newest)
        if self.fabric.is_global_zero:
            processes = {"device": str(self.fabric.device), "processes": self.fabric.world_size}
            start = {"step": training.total_steps, **processes}
            write_start(self.folder, self.recipe, training.history, start)
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
        """Run the rest of the current epoch; return True if an observer requested a stop."""
        training = self.training
        step = self._make_step()
        while training.step < training.steps:
            began = time.perf_counter()
            rate = learning_rate(self.recipe, training.epoch, training.total_steps, training.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            step(training.step)
            training.step += 1
            training.sums["seconds"] += time.perf_counter() - began
            if self._should_stop():
                return True
            if time.monotonic() - self.last_save >= self.recipe.checkpoint_every:
                self._save()
        self._finish_epoch()
        return False

    def _make_step(self) -> Callable[[int], None]:
        """The function that takes one step of the current epoch, by its number."""
        generator = torch.Generator().manual_seed(derive_seed(self.recipe.seed, "order", self.training.epoch))
        order = torch.randperm(self.workload.samples, generator=generator)
        batches = torch.split(order, self.recipe.batch_size)
        self.model.train()
        return lambda number: self.step(batches[number])

    def _add(self, loss: float, weight: float, correct: float, samples: int) -> None:
        """Add a step to the sums of the epoch."""
        sums = self.training.sums
        sums["loss"] += loss
        sums["weight"] += weight
        sums["correct"] += correct
        sums["samples"] += samples

    def step(self, rows: Tensor) -> None:
        """One optimizer step on these rows; each process takes its share, in micro-batches."""
        training, recipe, fabric = self.training, self.recipe, self.fabric
        self._seed_dropout()
        weight = self.workload.weight(rows)
        parts = batch_parts(len(rows), recipe.gradient_accumulation, fabric.global_rank, fabric.world_size)
        sums = torch.zeros(2, device=fabric.device)  # loss, correct
        for index, part in enumerate(parts):
            inputs, targets = self._batch(rows, part)
            with fabric.no_backward_sync(self.model, enabled=index < len(parts) - 1):
                score = self.workload.score(self.model(inputs), targets)
                # Divided by the weight of the global batch; gradients are averaged over processes.
                fabric.backward(score.loss * (fabric.world_size / weight))
            sums += torch.stack([score.loss.detach(), score.correct.to(score.loss.dtype)])
        norm = fabric.clip_gradients(
            self.model, self.optimizer, error_if_nonfinite=False,
            max_norm=math.inf if recipe.max_grad_norm is None else recipe.max_grad_norm,
        )  # fmt: skip
        assert norm is not None
        # The only synchronization with the device: a NaN must be detected before it reaches the weights.
        loss_sum, correct, norm_sum = self._summed(torch.cat([sums, norm.view(1)]))
        training.loss = loss_sum / weight
        # In 16-mixed an overflow is normal: the gradient scaler skips the step and reduces the scale.
        is_sound = math.isfinite(norm_sum) or recipe.precision == "16-mixed"
        if not (math.isfinite(training.loss) and is_sound):
            raise DivergedError(self._diagnose(rows, parts))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._add(loss_sum, weight, correct, len(rows))

    def _batch(self, rows: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        seed = derive_seed(self.recipe.seed, "augmentation", self.training.total_steps)
        return self.workload.train_batch(rows, part, seed)

    def _seed_dropout(self) -> None:
        """Dropout differs between processes, and is the same when a step is repeated."""
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
        is_evaluated = self._is_evaluated(row["epoch"])
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
            # So that the evaluation is not repeated if the run is killed.
            self._save()

    def _is_evaluated(self, epoch: int) -> bool:
        return epoch == self.recipe.last_epoch or epoch % self.recipe.evaluate_every == 0

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Metrics of the test set, without the distributed wrapper: it synchronizes at each batch, and
        processes may have unequal shares."""
        self.network.eval()
        total: Tensor | None = None
        for inputs, targets in self.workload.test_batches(self.fabric.global_rank, self.fabric.world_size):
            with self.fabric.autocast():
                outputs = self.network(inputs)
            sums = self.workload.evaluate(outputs, targets).cpu().double()
            total = sums if total is None else total + sums
        assert total is not None
        return self.workload.test_metrics(self._summed(total))

    def _summed(self, values: Tensor) -> list[float]:
        """Sum over all processes."""
        if self.fabric.world_size > 1:
            reduced = self.fabric.all_reduce(values.to(self.fabric.device), reduce_op="sum")
            assert isinstance(reduced, Tensor)
            values = reduced
        numbers: list[float] = values.tolist()
        return numbers

    def _should_stop(self) -> bool:
        wanted = [observer.stepped(self.training) for observer in self.observers]
        return bool(shared_by(self.fabric, any(wanted)))

    # -- checkpoints ------------------------------------------------------------------------------

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

    def _resume(self, state: dict[str, Any] | None, problems: dict[Path, str]) -> None:
        training = self.training
        instead = "starting again" if state is None else "resuming from the previous one"
        # The step numbers of damaged checkpoints may exceed those of new ones.
        training.notes += [f"{set_aside(*each)}; {instead}" for each in problems.items()]
        state = shared_by(self.fabric, state)
        if state is None:
            return
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for parameter, values in self.optimizer.state.items():
            for name, value in values.items():
                # In the memory format of the parameter, as the optimizer creates it.
                if value.shape == parameter.shape:
                    values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        training.epoch, training.step = state["epoch"], state["step"]
        training.sums, training.history = state["sums"], state["history"]
        self.saved = training.epoch, training.step
        training.notes.append(
            f"resuming from epoch {training.epoch + 1}, step {training.step} of {training.steps}"
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

    # -- diagnosis ---------------------------------------------------------------------------

    def _diagnose(self, rows: Tensor, parts: list[slice]) -> str:
        training = self.training
        found = []
        # All parts in all processes: layers may synchronize between processes.
        for part in parts:
            self._seed_dropout()
            with self.fabric.autocast():
                found.append(first_nonfinite(self.network, self.workload, *self._batch(rows, part)))
        where = next(filter(None, found), "a sum over the batch")
        return (
            f"The loss is {training.loss:g} in epoch {training.epoch + 1}, step {training.step + 1} of "
            f"{training.steps}; first non-finite value: {where}."
        )


def learned_sigmas(model: nn.Module) -> dict[str, list[float]]:
    """The learnable sigmas by layer: one number, or one per channel."""
    return {
        name: module.sigma.detach().tolist()
        for name, module in model.named_modules()
        if isinstance(module, SigmaModule) and isinstance(module.sigma, Tensor)
    }


def _no_sums() -> dict[str, float]:
    return dict.fromkeys(("loss", "weight", "correct", "samples", "seconds"), 0.0)


@contextlib.contextmanager
def _reproducible(recipe: Recipe) -> Iterator[None]:
    """Set the threads of the recipe and deterministic GPU algorithms; restore the settings at the end."""
    threads, was_deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is not deterministic without it
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


# -- functions of the recipe and the step number ---------------------------------------------------


def learning_rate(recipe: Recipe, epoch: int, step: int, steps: int) -> float:
    """The learning rate of ``step`` (from 0, over all epochs) in ``epoch`` (from 0) of ``steps`` each.

    cosine: lr (1 + cos(pi epoch/epochs))/2.  warmup-linear: lr step/w up to the w-th step, then
    lr (n - step)/(n - w), with n steps in total and w = int(warmup_ratio n).
    """
    if recipe.schedule == "cosine":
        return recipe.lr * (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2
    if recipe.schedule == "warmup-linear":
        total = recipe.epochs * steps
        rising = int(recipe.warmup_ratio * total)
        if step < rising:
            return recipe.lr * step / rising
        return recipe.lr * (total - step) / (total - rising)
    return recipe.lr


def epoch_length(recipe: Recipe, samples: int) -> int:
    """Steps per epoch.  The last batch may be smaller.  On a sequence of tasks, a step is one task."""
    if recipe.kind == "continual":
        return recipe.tasks_per_epoch
    steps = math.ceil(samples / recipe.batch_size)
    return steps if recipe.steps_per_epoch is None else min(steps, recipe.steps_per_epoch)


def batch_parts(count: int, gradient_accumulation: int, rank: int = 0, world: int = 1) -> list[slice]:
    """The slices of a batch of ``count`` samples that process ``rank`` takes: its share of each micro-batch.
    Micro-batches do not depend on the number of processes; a share may be empty.

    >>> batch_parts(10, 2, rank=1, world=2)
    [slice(2, 5, None), slice(7, 10, None)]
    """
    shares = min(gradient_accumulation, count) * world
    bounds = [index * count // shares for index in range(shares + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(bounds)][rank::world]
