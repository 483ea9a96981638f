"""Continual learning: does a network lose plasticity over a sequence of tasks?

The images are always the same; a task has new random labels, or permuted pixels. Weights and optimizer
state carry over from task to task. A row of metrics (an epoch) covers ``tasks_per_epoch`` tasks. In the
last fifth of the rows, a freshly initialized network also learns each task. After the last row, a copy of
the network learns one task with inputs multiplied by 30, then an ordinary one.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iglu_lab.recipes import Recipe
from iglu_lab.training.loop import DivergedError, Loop
from iglu_lab.training.seeds import derive_seed
from iglu_lab.training.workloads import ContinualWorkload

SCORED = 0.2  # the score is the mean over this last part of the rows
SHOCK = 30.0  # factor on the inputs of one task after the last scored one
DEAD = 0.01  # a unit is dead if the magnitude of its derivative is smaller on every input


class TaskResult(NamedTuple):
    """The result of training on one task."""

    loss: float  # mean over batches
    accuracy: float  # after the task, or online for a single epoch
    images: int  # seen in training


def learn(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: tuple[Tensor, Tensor],
    seed: int,
    recipe: Recipe,
) -> TaskResult:  # fmt: skip
    """Train on one task; raise DivergedError if the loss is not finite."""
    inputs, labels = data
    generator = torch.Generator().manual_seed(seed)
    losses, correct = [], torch.zeros((), device=inputs.device)
    for _ in range(recipe.task_epochs):
        order = torch.randperm(len(labels), generator=generator).to(inputs.device)
        batches = [torch.split(values[order], recipe.batch_size) for values in (inputs, labels)]
        for images, targets in zip(*batches, strict=True):
            outputs = network(images)
            loss = F.cross_entropy(outputs, targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
            if recipe.task_epochs == 1:
                correct += (outputs.detach().argmax(1) == targets).sum()
    seen = recipe.task_epochs * len(labels)
    if recipe.task_epochs > 1:
        with torch.no_grad():
            correct = (network(inputs).argmax(1) == labels).sum()
    mean = torch.stack(losses).double().mean().item()
    if not math.isfinite(mean):
        raise DivergedError(f"The loss is {mean:g}")
    return TaskResult(mean, correct.item() / len(labels), seen)


def dead_units(network: nn.Module, inputs: Tensor) -> float:
    """The share of units whose derivative is smaller than ``DEAD`` on every input."""
    is_dead = []
    x = inputs
    for layer in network.children():
        if not isinstance(layer, nn.Linear):
            at = x.detach().requires_grad_()
            (derivative,) = torch.autograd.grad(layer(at).sum(), at)
            is_dead.append((derivative.abs() < DEAD).all(0))
        with torch.no_grad():
            x = layer(x)
    return torch.cat(is_dead).double().mean().item()


class ContinualLoop(Loop):
    """A Loop whose step is one task."""

    workload: ContinualWorkload

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        """The optimizer without Fabric's wrapper, which costs as much as a step of a small network."""
        inner: torch.optim.Optimizer = self.optimizer.optimizer
        return inner

    def _make_step(self) -> Callable[[int], None]:
        def step(_: int) -> None:
            result = self._learn(self.training.total_steps, self.network, self._optimizer)
            self.training.loss = result.loss
            self._add(
                result.loss * result.images, result.images, result.accuracy * result.images, result.images
            )

        return step

    def _learn(
        self, number: int, network: nn.Module, optimizer: torch.optim.Optimizer, scale: float = 1.0
    ) -> TaskResult:
        self.workload.number = number
        inputs, labels = self.workload.data(number)
        seed = derive_seed(self.recipe.seed, "order", number)
        try:
            return learn(network, optimizer, (inputs * scale, labels), seed, self.recipe)
        except DivergedError as error:
            raise DivergedError(f"{error} in task {number + 1}") from error

    def _is_evaluated(self, epoch: int) -> bool:
        return True

    def evaluate(self) -> dict[str, float]:
        training, recipe = self.training, self.recipe
        self.workload.number = training.total_steps - 1  # after resuming, no task was learned in this process
        found = {"dead_units": dead_units(self.network, self.workload.data(self.workload.number)[0])}
        first = math.floor((1 - SCORED) * recipe.epochs)  # of the rows that are scored
        if training.epoch >= first:
            tasks = range(training.epoch * training.steps, (training.epoch + 1) * training.steps)
            found["fresh_acc"] = 100 * statistics.fmean(self._fresh(number) for number in tasks)
        if training.epoch + 1 == recipe.epochs:
            scored = [*training.history[first:], {**training.metrics, **found}]
            found["final_acc"] = statistics.fmean(row["task_acc"] for row in scored)
            found["acc_gap"] = statistics.fmean(row["task_acc"] - row["fresh_acc"] for row in scored)
            found |= self._recovery()
        return found

    def _fresh(self, number: int) -> float:
        """The accuracy of a freshly initialized network on this task."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.recipe.seed, "fresh weights", number))
            network = self.workload.make_model().to(self.fabric.device)
        return self._learn(number, network, self._make_optimizer(network)).accuracy

    def _recovery(self) -> dict[str, float]:
        """The accuracy of a copy on a task with large inputs, and on the ordinary task that follows."""
        network = copy.deepcopy(self.network)
        optimizer = self._make_optimizer(network)
        optimizer.load_state_dict(copy.deepcopy(self._optimizer.state_dict()))
        last, tasks = self.workload.number, self.training.total_steps
        try:
            shock = self._learn(tasks + 1, network, optimizer, SHOCK)
            recovery = self._learn(tasks + 2, network, optimizer)
        except DivergedError:
            return {"shock_acc": 0.0, "recovery_acc": 0.0}
        finally:
            self.workload.number = last
        return {"shock_acc": 100 * shock.accuracy, "recovery_acc": 100 * recovery.accuracy}
