"""Training on a sequence of tasks: what a task is, what is measured, and that a run resumes exactly."""

from __future__ import annotations

import dataclasses
import math
import statistics
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("tyro", reason="the lab")

from iglu_lab.errors import UserError
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.runs.folder import Run
from iglu_lab.training import continual
from iglu_lab.training.continual import dead_units, learn
from iglu_lab.training.loop import Observer, Training, fit
from iglu_lab.training.workloads import ContinualWorkload, load_model, load_workload

LABELS = RECIPES["plasticity-labels"].replace(
    activation="iglu:1", epochs=5, task_epochs=2, threads=1, checkpoint_every=0.0
)
PIXELS = RECIPES["plasticity-pixels"].replace(
    activation="relu", epochs=5, tasks_per_epoch=2, threads=1, checkpoint_every=0.0
)


def _task(recipe: Recipe) -> ContinualWorkload:
    task = load_workload(recipe)
    assert isinstance(task, ContinualWorkload)
    return task


@pytest.fixture(scope="module", params=[LABELS, PIXELS], ids=["labels", "pixels"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(request.param, out=tmp_path_factory.mktemp("runs"))


def test_a_task_with_random_labels_keeps_the_images_and_draws_every_label_anew() -> None:
    task = _task(LABELS)
    (images, labels), (same, others) = task.data(0), task.data(1)
    assert images.shape == (1200, 64)
    assert torch.equal(images, same)
    assert 0.05 < (labels == others).double().mean() < 0.15  # one in ten by chance
    assert labels.bincount(minlength=10).min() > 80


def test_a_task_with_permuted_pixels_keeps_labels_and_the_pixels_of_each_image() -> None:
    task = _task(PIXELS)
    (images, labels), (permuted, same) = task.data(0), task.data(1)
    assert torch.equal(labels, same)
    assert not torch.equal(images, permuted)
    assert torch.equal(images.sort(1).values, permuted.sort(1).values)


@pytest.mark.parametrize("recipe", [LABELS, PIXELS], ids=["labels", "pixels"])
def test_a_seed_fixes_weights_and_tasks_for_every_activation(recipe: Recipe) -> None:
    one, other = (_task(recipe.replace(activation=name)) for name in ("relu", "iglu:5"))
    assert all(map(torch.equal, one.data(3), other.data(3)))
    weights = []
    for task in (one, other):
        torch.manual_seed(0)
        weights.append(task.make_model().state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    another = _task(recipe.replace(seed=1)).data(3)
    assert not all(map(torch.equal, one.data(3), another))


def test_the_network_is_an_mlp_with_two_hidden_layers_of_100() -> None:
    model = _task(LABELS).make_model()
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in layers] == [(100, 64), (100, 100), (10, 100)]


def test_a_unit_is_dead_if_its_derivative_is_small_on_every_input() -> None:
    network = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0], [1.0], [-1.0], [0.0]]))
        network[0].bias.copy_(torch.tensor([0.0, -5.0, -5.0, -1.0]))
    # On inputs up to 2 the first unit is alive, those with a bias of -5 and the constant one are dead.
    assert dead_units(network, torch.linspace(-2, 2, 9).view(-1, 1)) == 0.75
    assert dead_units(network, torch.linspace(-6, 6, 9).view(-1, 1)) == 0.25
    network[1] = nn.LeakyReLU(0.3)
    assert dead_units(network, torch.linspace(-2, 2, 9).view(-1, 1)) == 0.0


def test_learning_a_task_is_plain_adam_on_shuffled_batches() -> None:
    recipe = LABELS.replace(batch_size=500)
    task = _task(recipe)
    torch.manual_seed(0)
    network, reference = task.make_model(), task.make_model()
    reference.load_state_dict(network.state_dict())
    inputs, labels = task.data(0)
    found = learn(network, torch.optim.Adam(network.parameters(), lr=1e-3), (inputs, labels), 7, recipe)
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(7)
    for _ in range(2):
        order = torch.randperm(1200, generator=generator)
        for start in (0, 500, 1000):
            rows = order[start : start + 500]
            optimizer.zero_grad()
            nn.functional.cross_entropy(reference(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value)
    assert found.images == 2400
    right = (reference(inputs).argmax(1) == labels).double().mean().item()
    assert found.accuracy == pytest.approx(right, abs=0.002)


def test_the_score_is_the_mean_over_the_last_fifth_and_the_gap_is_to_a_fresh_network(finished: Run) -> None:
    assert finished.status == "finished"
    assert finished.is_complete
    assert finished.metric == "final_acc"
    *earlier, last = finished.history
    assert all("fresh_acc" not in row and "final_acc" not in row for row in earlier)
    assert last["final_acc"] == last["task_acc"]
    assert last["acc_gap"] == pytest.approx(last["task_acc"] - last["fresh_acc"])
    assert 0 <= last["recovery_acc"] <= 100
    assert all(0 <= row["dead_units"] <= 1 for row in finished.history)


def test_a_fresh_network_is_trained_on_one_task_only(tmp_path: Path) -> None:
    run = fit(PIXELS, out=tmp_path)
    task, recipe = _task(PIXELS), PIXELS
    accuracies = []
    for number in (8, 9):
        torch.manual_seed(continual.derive_seed(recipe.seed, "fresh weights", number))
        network = task.make_model()
        optimizer = torch.optim.Adam(network.parameters(), lr=recipe.lr)
        seed = continual.derive_seed(recipe.seed, "order", number)
        accuracies.append(100 * learn(network, optimizer, task.data(number), seed, recipe).accuracy)
    assert run.last["fresh_acc"] == pytest.approx(statistics.fmean(accuracies), abs=0.2)


class _StopAt(Observer):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, training: Training) -> bool:
        return training.total_steps == self.step


@pytest.mark.parametrize("step", [3, 4])  # in the middle and at the end of a row of two tasks
def test_a_stopped_run_resumes_to_the_same_numbers(finished: Run, step: int, tmp_path: Path) -> None:
    recipe = finished.recipe
    stopped = fit(recipe, out=tmp_path, observers=[_StopAt(step)])
    assert stopped.status == "stopped"
    resumed = fit(recipe, out=tmp_path)
    assert resumed.without_timings() == finished.without_timings()
    model = load_model(resumed)
    for name, value in load_model(finished).state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_loss_that_is_not_finite_is_a_diverged_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continual.F, "cross_entropy", lambda outputs, _: outputs.sum() * math.nan)
    run = fit(LABELS, out=tmp_path)
    assert run.status == "diverged"
    assert "task 1" in run.message


@pytest.mark.parametrize(
    "change", [{"gradient_accumulation": 2}, {"max_grad_norm": 1.0}, {"precision": "bf16-mixed"}]
)
def test_unsupported_options_of_a_sequence_of_tasks_raise_and_are_named(change: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        load_workload(dataclasses.replace(LABELS, **change))
