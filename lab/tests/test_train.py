"""The training loop agrees with a plain loop, with torch's and transformers' schedules, and with itself."""

from __future__ import annotations

import io
import itertools
import json
import math
import multiprocessing
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from iglu_lab import cli
from iglu_lab.commands import train as train_command
from iglu_lab.console import Terminal
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.runs.archive import read_runs
from iglu_lab.runs.folder import Row, Run, read_run
from iglu_lab.stats.comparison import samples
from iglu_lab.stats.statistics import estimate
from iglu_lab.training import loop, workloads
from iglu_lab.training.checkpoint import checkpoints, load_checkpoint
from iglu_lab.training.loop import (
    Observer,
    Training,
    batch_parts,
    derive_seed,
    epoch_length,
    fit,
    learning_rate,
)
from iglu_lab.training.processes import share_batch_norm
from iglu_lab.training.progress import Display, StopOnSignal, TensorBoard
from iglu_lab.training.workloads import ImageWorkload, load_model, load_workload

IMAGES = RECIPES["digits-lt"].replace(epochs=2, steps_per_epoch=4, batch_size=16, threads=1)
TEXT = RECIPES["gpt2-python"].replace(epochs=2, steps_per_epoch=6, batch_size=4, context=32, threads=1)
VIT = RECIPES["digits"].replace(
    name="digits-vit",
    model="vit-mini",
    activation="gelu",
    epochs=1,
    steps_per_epoch=3,
    batch_size=16,
    threads=1,
    image_size=16,
)


pytestmark = pytest.mark.usefixtures("alone")


def _weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = load_checkpoint(checkpoints(folder)[0])["model"]
    return weights


# -- what is computed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recipe",
    [IMAGES, TEXT.replace(dropout=0.1), VIT, IMAGES.replace(precision="bf16-mixed")],
    ids=["images", "text", "vit", "bf16"],
)
def test_the_same_seed_gives_the_same_numbers_to_the_bit(recipe: Recipe, tmp_path: Path) -> None:
    first = fit(recipe, out=tmp_path / "first")
    torch.rand(3)  # whatever else has drawn from torch's generator
    again = fit(recipe, out=tmp_path / "again")
    assert first.without_timings() == again.without_timings()
    other = fit(recipe.replace(seed=1), out=tmp_path)
    assert first.without_timings() != other.without_timings()


def test_fit_leaves_threads_and_random_state_unchanged(tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    fit(IMAGES, out=tmp_path)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


class _InDouble(ImageWorkload):
    """Trains in float64: Adam divides a gradient near 0 by its own size, and so makes the last bit of a
    float32 convolution, which depends on the processor, a visible difference of weights."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.weights = self.weights.double()

    def make_model(self) -> nn.Module:
        model = super().make_model()
        model.register_forward_pre_hook(lambda _, args: (args[0].double(),))
        return model.double()


def _fit_in_double(recipe: Recipe, out: Path) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workloads, "ImageWorkload", _InDouble)
        return fit(recipe, out=out)


def test_the_loop_computes_what_a_bare_loop_computes(tmp_path: Path) -> None:
    run = _fit_in_double(IMAGES, tmp_path)
    task = _InDouble(IMAGES, torch.device("cpu"), tmp_path)
    torch.manual_seed(derive_seed(0, "weights"))
    model = task.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    weights = task.counts.double().reciprocal()
    weights = (weights * 10 / weights.sum()).float().double()
    for epoch in range(2):
        generator = torch.Generator().manual_seed(derive_seed(0, "order", epoch))
        order = torch.randperm(task.samples, generator=generator)
        for step in range(4):
            rows = order[16 * step : 16 * step + 16]
            seed = derive_seed(0, "augmentation", 4 * epoch + step)
            inputs, targets = task.train_batch(rows, slice(None), seed)
            loss = F.cross_entropy(model(inputs), targets, weights)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
    found = _weights(run.folder)
    for name, value in model.state_dict().items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)
    model.eval()
    with torch.no_grad():
        batches = [(model(inputs), targets) for inputs, targets in task.test_batches()]
    outputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert run.last["test_acc"] == pytest.approx(100 * (outputs.argmax(1) == targets).double().mean().item())
    assert run.last["test_loss"] == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-6)


def test_how_often_a_run_is_evaluated_changes_none_of_its_numbers(tmp_path: Path) -> None:
    often = fit(IMAGES.replace(epochs=3), out=tmp_path / "often")
    seldom = fit(IMAGES.replace(epochs=3, evaluate_every=2), out=tmp_path / "seldom")
    assert [("test_acc" in row) for row in seldom.history] == [False, True, True]
    rows = zip(often.without_timings(), seldom.without_timings(), strict=True)
    assert all(row.items() <= complete.items() for complete, row in rows)
    assert seldom.last == seldom.history[-1]
    assert read_run(seldom.folder).history == seldom.history


def test_the_long_tail_is_the_same_for_all_seeds_unless_it_follows_the_seed() -> None:
    def kept(recipe: Recipe) -> Tensor:
        task = load_workload(recipe)
        assert isinstance(task, ImageWorkload)
        return task.data.train.pixels

    assert torch.equal(kept(IMAGES), kept(IMAGES.replace(seed=1)))
    assert torch.equal(kept(IMAGES.replace(seed=1, subset_seed=None)), kept(IMAGES.replace(subset_seed=1)))
    assert not torch.equal(kept(IMAGES), kept(IMAGES.replace(subset_seed=1)))


@pytest.mark.parametrize("constrain", [True, False])
def test_every_learned_sigma_is_in_the_metrics(constrain: bool, tmp_path: Path) -> None:
    run = fit(IMAGES.replace(activation="iglu:learnable=5", constrain=constrain), out=tmp_path)
    name = "log_sigma" if constrain else "free_sigma"
    parameters = {key: value for key, value in _weights(run.folder).items() if key.endswith("." + name)}
    assert len(parameters) == len(run.last["sigmas"]) == 7
    for key, value in parameters.items():
        sigma = value.exp() if constrain else value
        assert run.last["sigmas"][key.removesuffix("." + name)] == pytest.approx(sigma.tolist())
    assert run.history[0]["sigmas"] != run.last["sigmas"]
    assert "sigmas" not in fit(IMAGES, out=tmp_path).last


def test_bits_per_byte_take_the_length_of_tokens_into_account(tmp_path: Path) -> None:
    task = load_workload(TEXT)
    outputs = torch.zeros(2, 31, 256)
    targets = torch.randint(256, (2, 31), generator=torch.Generator().manual_seed(0))
    # Equal chances for 256 tokens are 8 bits each.
    task.lengths = torch.ones(256, dtype=torch.int64)  # type: ignore[attr-defined]
    assert task.test_metrics(task.evaluate(outputs, targets).tolist())["bits_per_byte"] == pytest.approx(8)
    task.lengths = torch.full((256,), 4)  # type: ignore[attr-defined]
    assert task.test_metrics(task.evaluate(outputs, targets).tolist())["bits_per_byte"] == pytest.approx(2)


@pytest.mark.parametrize(
    "recipe", [IMAGES.replace(norm=False), TEXT, VIT.replace(dropout=0.0)], ids=["images", "text", "vit"]
)
def test_gradient_accumulation_gives_the_numbers_of_the_complete_batch(
    recipe: Recipe, tmp_path: Path
) -> None:
    complete = fit(recipe, out=tmp_path)
    parts = fit(recipe.replace(gradient_accumulation=3), out=tmp_path)
    for row, other in zip(complete.history, parts.history, strict=True):
        assert row["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
        assert row["test_loss"] == pytest.approx(other["test_loss"], rel=1e-3)


class _TrainingMetrics(Observer):
    """Computes the training metrics of an epoch by hand."""

    def __init__(self) -> None:
        self.right, self.there, self.loss, self.rows = 0, 0, 0.0, list[dict[str, float]]()

    def started(self, training: Training) -> None:
        def hook(model: nn.Module, _: Any, outputs: Tensor) -> None:
            if model.training:
                self.outputs = outputs.detach()

        score = training.workload.score

        def scored(outputs: Tensor, targets: Tensor) -> workloads.Score:
            self.right += int((self.outputs.argmax(1) == targets).sum())
            self.there += len(targets)
            self.loss += F.cross_entropy(self.outputs, targets, reduction="sum").item()
            return score(outputs, targets)

        training.model.register_forward_hook(hook)
        training.workload.score = scored  # type: ignore[method-assign]

    def epoch_ended(self, training: Training, row: Row) -> Mapping[str, Any]:
        self.rows.append(
            {"train_acc": 100 * self.right / self.there, "train_loss": self.loss / self.there,
             "samples": self.there}
        )  # fmt: skip
        self.right, self.there, self.loss = 0, 0, 0.0
        return {}


def test_training_metrics_are_means_over_the_samples_of_the_epoch(tmp_path: Path) -> None:
    count = _TrainingMetrics()
    recipe = RECIPES["digits"].replace(
        epochs=2, steps_per_epoch=3, batch_size=20, gradient_accumulation=3, threads=1
    )
    run = fit(recipe, out=tmp_path, observers=[count])
    for row, own in zip(run.history, count.rows, strict=True):
        assert own["samples"] == 60
        assert row["train_acc"] == pytest.approx(own["train_acc"])
        assert row["train_loss"] == pytest.approx(own["train_loss"], rel=1e-5)
        assert 0 < row["train_acc"] < 100
        # The speed is rounded to a tenth, the seconds to a thousandth.
        assert row["rate"] == pytest.approx(60 / row["seconds"], rel=0.6e-3 / row["seconds"] + 1e-2)
    assert [row["step"] for row in run.history] == [3, 6]
    assert [row["lr"] for row in run.history] == pytest.approx([4e-3, 2e-3])


def test_shots_are_averaged_by_class_size(tmp_path: Path) -> None:
    task = load_workload(IMAGES)
    assert isinstance(task, ImageWorkload)
    assert task.counts.tolist() == [124, 88, 63, 45, 32, 23, 16, 12, 8, 6]
    right = [50.0, 40, 40, 40, 40, 40, 10, 10, 10, 0]
    figures = task.test_metrics([500.0, 0.5, 1.0, *right, *[50.0] * 10])
    assert figures["test_loss"] == 1
    assert figures["test_acc"] == pytest.approx(56)
    shots = [figures[f"test_acc_{shot}"] for shot in ("many", "medium", "few")]
    assert shots == pytest.approx([100, 80, 15])


def test_perplexity_falls_and_is_the_exponential_of_the_loss(tmp_path: Path) -> None:
    run = fit(TEXT.replace(batch_size=16, steps_per_epoch=15), out=tmp_path)
    first, last = run.history
    assert last["perplexity"] < first["perplexity"] < 256
    assert last["perplexity"] == pytest.approx(math.exp(last["test_loss"]))
    assert run.metric == "perplexity"


def test_all_metrics_of_an_epoch_are_on_its_line(tmp_path: Path) -> None:
    run = fit(IMAGES, out=tmp_path)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    wanted = {"train_loss", "train_acc", "test_loss", "test_acc", "seconds", "rate", "lr", "step"}
    assert wanted <= lines[0].keys()
    provenance = json.loads((run.folder / "provenance.jsonl").read_text())
    assert {"commit", "torch", "device", "threads"} <= provenance.keys()
    assert provenance["threads"] == 1
    assert ":" not in fit(IMAGES.replace(activation="iglu:0.5"), out=tmp_path).folder.name


# -- schedules and shares --------------------------------------------------------------------------


def test_warm_up_and_decay_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    recipe = RECIPES["gpt2-wikitext103"].replace(epochs=3, lr=0.5)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(0.05 * 3 * 45), 3 * 45)
    for step in range(135):
        assert learning_rate(recipe, step // 45, step, 45) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_cosine_is_stepped_once_per_epoch() -> None:
    recipe = RECIPES["resnet20-cifar10"]
    assert learning_rate(recipe, 0, 390, 391) == 1e-3
    assert learning_rate(recipe, 100, 39100, 391) == pytest.approx(5e-4)


def test_an_epoch_is_one_pass_over_the_data_unless_steps_per_epoch_is_set() -> None:
    recipe = IMAGES.replace(steps_per_epoch=None, batch_size=16)
    assert [epoch_length(recipe, samples) for samples in (15, 16, 17, 416, 417)] == [1, 1, 2, 26, 27]
    assert [epoch_length(recipe.replace(steps_per_epoch=2), samples) for samples in (16, 417)] == [1, 2]


class _Seeds(Observer):
    def __init__(self) -> None:
        self.all: list[int] = []

    def stepped(self, training: Training) -> bool:
        self.all.append(torch.initial_seed())
        return False


def test_every_step_of_every_seed_has_its_own_random_seed(tmp_path: Path) -> None:
    seen = []
    for seed in (0, 1):
        seeds = _Seeds()
        fit(IMAGES.replace(seed=seed), out=tmp_path, observers=[seeds])
        seen += seeds.all
    assert len(set(seen)) == len(seen) == 16


@pytest.mark.parametrize("count", [7, 8, 128])
@pytest.mark.parametrize("world", [1, 2, 7])
@pytest.mark.parametrize("gradient_accumulation", [1, 3, 50])
def test_the_shares_of_all_processes_make_up_the_batch(
    count: int, world: int, gradient_accumulation: int
) -> None:
    shares = [batch_parts(count, gradient_accumulation, rank, world) for rank in range(world)]
    complete = batch_parts(count, gradient_accumulation)
    for index, part in enumerate(complete):
        rows = [list(range(count)[parts[index]]) for parts in shares]
        assert list(itertools.chain(*rows)) == list(range(count)[part]) != []
        assert max(map(len, rows)) - min(map(len, rows)) <= 1
    assert {len(parts) for parts in shares} == {len(complete)} == {min(gradient_accumulation, count)}


# -- several processes -----------------------------------------------------------------------------
# From a server that has imported torch already, so that they start at once.

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["iglu_lab.training.loop"])


def _be_one_of(world: int, rank: int, port: int, work: Callable[..., object], *arguments: Any) -> None:
    """Set the environment variables that torchrun sets, then do the work."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    os.environ |= {"LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test"}
    torch.set_num_threads(1)
    work(*arguments)


def _together(world: int, work: Callable[..., object], *arguments: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        _PROCESSES.Process(target=_be_one_of, args=(world, rank, port, work, *arguments))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * world


def _fit_watched(recipe: Recipe, out: Path, observer: Observer) -> None:
    fit(recipe, out=out, observers=[observer])


def _assert_same_numbers(one: Run, other: Run, rel: float) -> None:
    assert len(one.history) == len(other.history)
    for row, its in zip(one.history, other.history, strict=True):
        for metric in ("train_loss", "test_loss"):
            assert row[metric] == pytest.approx(its[metric], rel=rel)


def _normalize(folder: Path) -> None:
    """Normalize the share of this process, of 3, 5 and 0 samples, and save the results."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    network = torch.load(folder / "network", weights_only=False)
    shared = share_batch_norm(network, torch.device("cpu"))
    assert not any(type(module) is nn.BatchNorm2d for module in shared.modules())
    batch, weights = torch.load(folder / "batch").split([3, 5, 0]), torch.load(folder / "weights")
    x = batch[rank].requires_grad_()
    (shared(x) * weights.split([3, 5, 0])[rank]).sum().backward()
    gradients = [parameter.grad for parameter in shared.parameters()]
    for gradient in gradients:
        distributed.all_reduce(gradient)
    found = (x.grad, gradients, shared.state_dict(), shared.eval()(x))
    torch.save(found, folder / f"found{rank}")
    distributed.destroy_process_group()


def test_batch_norm_over_processes_is_that_of_the_complete_batch(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.BatchNorm2d(4), nn.Sequential(nn.SiLU(), nn.BatchNorm2d(4, momentum=None)))
    network.double()
    batch, weights = torch.randn(2, 8, 4, 3, 3, dtype=torch.float64, generator=generator)
    batch = 3 * batch + 5
    for name, value in (("network", network), ("batch", batch), ("weights", weights)):
        torch.save(value, tmp_path / name)
    _together(3, _normalize, tmp_path)
    x = batch.clone().requires_grad_()
    (network(x) * weights).sum().backward()
    parts = [torch.load(tmp_path / f"found{rank}") for rank in range(3)]
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), x.grad)
    for _, gradients, state, _ in parts:
        torch.testing.assert_close(gradients, [parameter.grad for parameter in network.parameters()])
        assert list(state) == list(network.state_dict())
        torch.testing.assert_close(state, dict(network.state_dict()))
    torch.testing.assert_close(torch.cat([part[3] for part in parts]), network.eval()(x))


@pytest.mark.parametrize(
    "recipe",
    # The last batch of digits-lt's 417 images is of one, which leaves a process without any.
    [IMAGES.replace(epochs=1, steps_per_epoch=None), IMAGES.replace(gradient_accumulation=3), TEXT],
    ids=["images", "in parts", "text"],
)
def test_two_processes_give_the_numbers_of_one(recipe: Recipe, tmp_path: Path) -> None:
    alone = _fit_in_double(recipe, tmp_path / "alone")
    _together(2, _fit_in_double, recipe, tmp_path / "together")
    together = read_run(tmp_path / "together" / recipe.folder_name)
    _assert_same_numbers(alone, together, rel=1e-4)
    torch.testing.assert_close(_weights(together.folder), _weights(alone.folder), rtol=1e-3, atol=1e-4)


def test_two_processes_that_diverge_end_and_name_the_layer(tmp_path: Path) -> None:
    recipe = IMAGES.replace(gradient_accumulation=2)
    _together(2, _fit_watched, recipe, tmp_path, _Break("layer2.0.conv2.weight", 5))
    run = read_run(tmp_path / recipe.folder_name)
    assert run.status == "diverged"
    assert "the output of layer2.0.conv2 (Conv2d)" in run.message
    assert "weight" in run.message


# -- a run that goes wrong -------------------------------------------------------------------------


class _Break(Observer):
    """Puts a NaN into a weight after some steps."""

    def __init__(self, name: str, step: int) -> None:
        self.name, self.step = name, step

    def stepped(self, training: Training) -> bool:
        if training.total_steps == self.step:
            with torch.no_grad():
                training.model.get_parameter(self.name).view(-1)[0] = math.nan
        return False


def test_a_nan_stops_the_run_and_names_step_and_layer(tmp_path: Path) -> None:
    recipe = IMAGES.replace(activation="iglu:0.5")
    run = fit(recipe, out=tmp_path, observers=[_Break("layer2.0.conv2.weight", 5)])
    assert run.status == "diverged"
    assert "epoch 2, step 2 of 4" in run.message
    assert "the output of layer2.0.conv2 (Conv2d)" in run.message
    assert "weight" in run.message
    assert "activation" not in run.message, "the recipe is in recipe.json"
    assert len(run.history) == 1
    assert read_run(run.folder).status == "diverged"
    assert fit(recipe, out=tmp_path) == run


class _BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * math.nan


class _BreakBackward(Observer):
    def started(self, training: Training) -> None:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            return _BadGradient.apply(output)  # type: ignore[no-any-return, no-untyped-call]

        training.model.get_submodule("layer3.0.conv1").register_forward_hook(hook)


def test_a_nan_in_the_backward_pass_is_traced_to_its_layer(tmp_path: Path) -> None:
    run = fit(IMAGES, out=tmp_path, observers=[_BreakBackward()])
    assert run.status == "diverged"
    assert "the gradient of layer3.0.conv1.weight" in run.message


def test_a_learning_rate_that_is_far_too_high_diverges(tmp_path: Path) -> None:
    assert fit(IMAGES.replace(lr=1e30, norm=False), out=tmp_path).status == "diverged"


def test_fp16_on_a_cpu_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="16-mixed' needs a GPU"):
        fit(IMAGES.replace(precision="16-mixed"), out=tmp_path)


def test_a_model_for_another_kind_of_data_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gpt2-nano needs text, but digits has images"):
        fit(IMAGES.replace(model="gpt2-nano"), out=tmp_path)
    with pytest.raises(ValueError, match=r"model must be one of .*got 'resnet21'. Did you mean"):
        fit(IMAGES.replace(model="resnet21"), out=tmp_path)


# -- observers, results, command -------------------------------------------------------------------


class _Raise(Observer):
    """Sends this process a signal after some steps."""

    def __init__(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.number = number

    def stepped(self, training: Training) -> bool:
        if training.total_steps == 3:
            signal.raise_signal(self.number)
        return False


def test_a_signal_stops_the_run_at_a_checkpoint(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with StopOnSignal().installed() as stop:
        run = fit(IMAGES, out=tmp_path, observers=[_Raise(), stop])
    assert (run.status, run.message) == ("stopped", "by request after 3 steps")
    assert signal.getsignal(signal.SIGTERM) is handler
    again = fit(IMAGES, out=tmp_path)
    assert again.without_timings() == fit(IMAGES, out=tmp_path / "quiet").without_timings()


class _Fail(Observer):
    def __init__(self) -> None:
        self.is_closed = False

    def stepped(self, training: Training) -> bool:
        raise OSError("somewhere else")

    def close(self) -> None:
        self.is_closed = True


def test_observers_are_closed_when_the_run_fails(tmp_path: Path) -> None:
    observer = _Fail()
    with pytest.raises(OSError, match="somewhere else"):
        fit(IMAGES, out=tmp_path, observers=[observer])
    assert observer.is_closed


class _Extra(Observer):
    def epoch_ended(self, training: Training, row: Row) -> Mapping[str, Any]:
        return {"largest": max(p.abs().max().item() for p in training.model.parameters())}


def test_the_values_that_an_observer_returns_are_among_the_metrics(tmp_path: Path) -> None:
    run = fit(IMAGES, out=tmp_path, observers=[_Extra()])
    assert all(row["largest"] > 0 for row in run.history)
    weights = [value for name, value in _weights(run.folder).items() if name.endswith(("weight", "bias"))]
    largest = max(value.abs().max().item() for value in weights)
    assert read_run(run.folder).last["largest"] == largest


def test_the_trained_model_of_a_run_can_be_loaded(tmp_path: Path) -> None:
    run = fit(IMAGES, out=tmp_path)
    model = load_model(run)
    task = load_workload(IMAGES)
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in task.test_batches())
    assert 100 * right / 500 == pytest.approx(run.last["test_acc"])


def test_outside_a_terminal_there_is_one_plain_line_per_epoch(tmp_path: Path) -> None:
    text = io.StringIO()
    fit(IMAGES, out=tmp_path, observers=[Display(Terminal(file=text, width=80))])
    lines = text.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines[1:3]] == ["epoch   1", "epoch   2"]
    assert "best (selected on the test set)" in lines[3]
    assert "\x1b" not in text.getvalue()


def test_a_run_that_has_stopped_at_its_limit_states_so(tmp_path: Path) -> None:
    text = io.StringIO()
    for _ in range(2):
        fit(IMAGES.replace(stop_after=1), out=tmp_path, observers=[Display(Terminal(file=text, width=200))])
    assert "already stopped" in text.getvalue()


def test_the_rate_counts_images_or_predicted_tokens(tmp_path: Path) -> None:
    for recipe, units in ((IMAGES, 1), (TEXT, TEXT.context - 1)):
        task = load_workload(recipe)
        training = Training(recipe, tmp_path, task, nn.Identity(), 1, sums={"samples": 10.0, "seconds": 4.0})
        assert training.rate == 2.5 * units


def test_in_a_terminal_the_speed_is_shown(tmp_path: Path) -> None:
    text = io.StringIO()
    console = Terminal(file=text, width=120, force_terminal=True)
    fit(IMAGES, out=tmp_path, observers=[Display(console)])
    assert "images/s" in text.getvalue()
    assert "\x1b[" in text.getvalue()  # the line is rewritten in place


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = fit(IMAGES, out=tmp_path, observers=[TensorBoard()])
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    found = [event.value for event in events.Scalars("test_acc")]
    assert found == pytest.approx([row["test_acc"] for row in run.history], rel=1e-6)


def test_folders_that_cannot_be_read_are_named_and_skipped(tmp_path: Path) -> None:
    run = fit(IMAGES, out=tmp_path)
    for name, content in (
        ("half", "{"),
        ("later", '{"format": 3, "name": "x", "dataset": "y", "model": "z", "warp": 9}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").write_text(content)
    runs, problems = read_runs(tmp_path)
    assert [found.folder for found in runs] == [run.folder]
    assert len(problems) == 2
    assert "Unknown field 'warp'" in problems[1]


def test_the_interval_of_a_mean_is_that_of_students_t() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = [61.2, 60.4, 62.9, 61.7, 60.1]
    found = estimate(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert math.isinf(estimate([1.0]).high)


def test_a_paired_difference_is_taken_seed_by_seed(tmp_path: Path) -> None:
    runs = {
        activation: [
            fit(IMAGES.replace(activation=activation, seed=seed, epochs=1), out=tmp_path) for seed in (0, 1)
        ]
        for activation in ("relu", "silu")
    }
    ((relu, silu),) = [of.values() for of in samples([*runs["silu"], *runs["relu"][::-1]]).values()]
    found = silu.minus(relu, "test_loss")
    pairs = zip(runs["silu"], runs["relu"], strict=True)
    assert found is not None
    assert found.value == pytest.approx(sum(a.last["test_loss"] - b.last["test_loss"] for a, b in pairs) / 2)


def test_the_command_trains_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["digits-lt", "--activation", "iglu:0.5", "--epochs", "2", "--steps-per-epoch", "2", "--no-norm",
            "--threads", "1", "--out", str(tmp_path)]  # fmt: skip
    assert cli.train([*argv, "--stop-after", "1"]) == 0
    assert "stopped after epoch 1 of 2" in capsys.readouterr().out
    assert cli.train(argv) == 0
    shown = capsys.readouterr().out
    assert "resuming from epoch 2" in shown
    assert "finished" in shown
    (run,), _ = read_runs(tmp_path)
    assert run.recipe.norm is False
    assert str(run.folder) in shown


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_with_its_status_and_shows_how_to_resume(
    number: signal.Signals,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train_command, "tail_observers", lambda recipe: [_Raise(number)])
    out = str(tmp_path / "my runs")
    argv = ["digits-lt", "--epochs", "2", "--steps-per-epoch", "4", "--threads", "1", "--out", out]
    assert cli.train(argv) == status
    shown = capsys.readouterr().out
    command = shlex.split(shown.splitlines()[-1].removeprefix("to resume: "))
    assert command == ["iglu", "train", *argv]
    monkeypatch.undo()
    assert cli.train(command[2:]) == 0
    assert "resuming from epoch 1, step 3 of 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "ending"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_before_the_first_step_ends_at_once_and_leaves_no_folder(
    number: signal.Signals, ending: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "load_workload", lambda *_: signal.raise_signal(number))
    with pytest.raises(ending) as caught:
        cli.train(["digits", "--out", str(tmp_path / "runs")])
    assert number == signal.SIGINT or caught.value.code == 143
    assert not (tmp_path / "runs").exists()


def test_a_run_that_has_finished_states_so_and_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["digits-lt", "--epochs", "1", "--steps-per-epoch", "2", "--threads", "1", "--out", str(tmp_path)]
    assert cli.train(argv) == 0
    first = capsys.readouterr().out
    assert "before" not in first
    assert cli.train(argv) == 0
    again = capsys.readouterr().out
    assert "already finished" in again
    assert "train loss" not in again
    assert first.splitlines()[-3:] == again.splitlines()[-3:]  # the status, the folder and the next command
    assert again.splitlines()[-1] == f"next: iglu runs {tmp_path}"


@pytest.mark.parametrize(
    "argv",
    [
        ["resnet20-cifar10", "--data", "{}/nowhere"],
        ["digits", "--accelerator", "warp"],
        ["digits", "--model", "resnet21"],
        ["digits", "--dataset", "nosuch"],
        ["digits", "--dataset", "cifar-10"],
        ["gpt2-python", "--dataset", "nosuch"],
    ],
    ids=["data", "device", "model", "images", "misspelt", "text"],
)
def test_a_start_that_fails_gives_one_line_of_error_and_leaves_no_folder(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    argv = [word.format(tmp_path) for word in argv]
    assert cli.train([*argv, "--out", str(tmp_path / "runs")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    reasons = {
        "data": "nowhere",
        "device": "accelerator='warp' is not available",
        "model": "model must be one of",
        "images": "which needs images: 'nosuch'. Known: cifar10, cifar100, digits.",
        "misspelt": "'cifar-10'. Did you mean 'cifar10'?",
        "text": "No text 'nosuch'",
    }
    assert reasons[request.node.callspec.id] in said
    assert "tokenizer" not in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("name", "of_your_own"), [("igul:5", True), ("iglu:abc", False), ("relu:5", False)])
def test_only_for_an_unknown_activation_does_the_error_mention_the_flag_import(
    name: str, of_your_own: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.train(["digits", "--activation", name, "--out", str(tmp_path / "runs")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert name.partition(":")[0] in said
    assert ("--import MODULE" in said) == of_your_own


def test_a_name_with_brackets_is_printed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["digits", "--epochs", "1", "--steps-per-epoch", "1", "--threads", "1", "--out"]
    for name in ("runs[/b]", "runs[red]x"):
        assert cli.train([*argv, str(tmp_path / name)]) == 0
        shown = capsys.readouterr().out.splitlines()
        (run,), _ = read_runs(tmp_path / name)
        assert shown[0].endswith(f", in {run.folder}")
        assert shown[-2] == str(run.folder)


def test_an_unknown_recipe_is_an_error_with_the_nearest_known_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.train(["resnet20-cifar1000"]) == 2
    assert "Did you mean 'resnet20-cifar100'?" in capsys.readouterr().err


# -- slower ----------------------------------------------------------------------------------------


@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler here for torch.compile"
)
@pytest.mark.slow
def test_a_compiled_model_gives_the_numbers_of_the_plain_one(tmp_path: Path) -> None:
    recipe = IMAGES.replace(activation="iglu:1", norm=False)
    plain, compiled = fit(recipe, out=tmp_path), fit(recipe.replace(compile=True), out=tmp_path)
    for name in ("train_loss", "test_loss"):
        assert compiled.last[name] == pytest.approx(plain.last[name], rel=1e-3)


_UNDER_TORCHRUN = """
import atexit, json, os, sys
from pathlib import Path
from torch import distributed

def say_whether_it_left():  # registered first, so called last
    if not distributed.is_initialized():
        Path(sys.argv[0]).with_name("left-" + os.environ["RANK"]).touch()

atexit.register(say_whether_it_left)
from iglu_lab.recipes import Recipe
from test_train import _fit_in_double
_fit_in_double(Recipe.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]))
"""


def test_of_two_processes_that_the_command_starts_only_one_prints(tmp_path: Path) -> None:
    small = ["--epochs", "1", "--steps-per-epoch", "1", "--threads", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "iglu", "train", "digits-lt", *small]
    done = subprocess.run(
        [*command, "--devices", "2", "--accelerator", "cpu"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(word) for word in ("epoch   1 |", "finished:", "next:")] == [1, 1, 1]


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(IMAGES, id="images"),
        pytest.param(TEXT, id="text", marks=pytest.mark.slow),
        pytest.param(VIT.replace(dropout=0.0), id="vit", marks=pytest.mark.slow),
    ],
)
def test_two_processes_under_torchrun_give_the_numbers_of_one(recipe: Recipe, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_UNDER_TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    arguments = [str(script), json.dumps(recipe.as_dict()), str(tmp_path / "together")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run([*command, *arguments], check=True, env=environment, timeout=300)
    # one that ends with gloo's threads running is aborted more often than not
    assert {path.name for path in tmp_path.glob("left-*")} == {"left-0", "left-1"}
    together = read_run(tmp_path / "together" / recipe.folder_name)
    _assert_same_numbers(_fit_in_double(recipe, tmp_path / "alone"), together, rel=1e-4)


def test_the_papers_accuracy_of_a_long_tail_is_a_mean_over_batches_of_the_mean_over_their_classes() -> None:
    task = load_workload(RECIPES["digits-lt"].replace(batch_size=128))
    generator = torch.Generator().manual_seed(0)
    sums, expected = 0, []
    for _, targets in task.test_batches():
        outputs = torch.randn(len(targets), 10, generator=generator)
        sums = sums + task.evaluate(outputs, targets).double()
        right = outputs.argmax(1) == targets
        classes = [right[targets == label].double().mean().item() for label in targets.unique()]
        expected.append(sum(classes) / len(classes))
    found = task.test_metrics(sums.tolist())
    assert found["test_acc_batch_balanced"] == pytest.approx(100 * sum(expected) / len(expected), rel=1e-6)
    list(task.test_batches(0, 2))  # every second image: not the batches of the paper
    assert "test_acc_batch_balanced" not in task.test_metrics(sums.tolist())
