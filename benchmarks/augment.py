"""The cost of data loading when training ResNet-20: python benchmarks/augment.py [--threads 2]

Prints two figures from interleaved rounds on images of CIFAR's shape: the share of a training step spent on
augmentation and batching, and the throughput of the complete pipeline with IGLU-Approx relative to a minimal
ReLU loop on one fixed batch, without gradient clipping or metrics.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from iglu_lab.data.images import Images, ImageSet
from iglu_lab.models.resnet import resnet20
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.runs import provenance
from iglu_lab.runs.folder import lock_run
from iglu_lab.training.loop import Loop
from iglu_lab.training.processes import make_fabric
from iglu_lab.training.workloads import IMAGE_SETS


def noise(_: Path) -> ImageSet:
    """As many random images as CIFAR-10 has; their content does not affect the time."""
    pixels = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.randint(0, 10, (50_000,)))
    return ImageSet(images, images, 10, (0.5,) * 3, (0.25,) * 3)


def bare_relu_loop(batch: int, channels_last: bool) -> Callable[[], None]:
    """A minimal training step on one fixed batch."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = resnet20(10, nn.ReLU).to(memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.randn(batch, 3, 32, 32).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (batch,))

    def step() -> None:
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline(recipe: Recipe, folder: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step of the lab's loop on a new batch, and the preparation of that batch alone."""
    loop = Loop(recipe, folder, make_fabric(recipe), None, [])
    loop.model.train()
    generator = torch.Generator().manual_seed(0)

    def rows() -> torch.Tensor:
        return torch.randint(0, loop.workload.samples, (recipe.batch_size,), generator=generator)

    def batch_alone() -> None:
        chosen = rows()
        loop.workload.weight(chosen)
        loop.workload.train_batch(chosen, slice(None), seed=0)

    return lambda: loop.step(rows()), batch_alone


def seconds(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--activation", default="iglu_approx:1")
    parser.add_argument("--channels-last", action="store_true")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    IMAGE_SETS["noise"] = noise
    recipe = RECIPES["resnet20-cifar10"].replace(
        name="noise", dataset="noise", activation=flags.activation, batch_size=flags.batch,
        channels_last=flags.channels_last,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name, lock_run(Path(name)):
        step, batch = pipeline(recipe, Path(name))
        contenders = {
            "pipeline": step,
            "batch": batch,
            "bare": bare_relu_loop(flags.batch, flags.channels_last),
        }
        for function in contenders.values():
            function()
        rounds = [
            {key: seconds(function) for key, function in contenders.items()} for _ in range(flags.rounds)
        ]
    share = statistics.median(times["batch"] / times["pipeline"] for times in rounds)
    speed = statistics.median(times["bare"] / times["pipeline"] for times in rounds)
    rates = {
        key: flags.batch / statistics.median(times[key] for times in rounds) for key in ("pipeline", "bare")
    }
    print(f"augmentation and batching: {share:.1%} of a step")
    print(
        f"{flags.activation}, complete pipeline: {rates['pipeline']:.0f} images/s; minimal ReLU loop: "
        f"{rates['bare']:.0f} images/s; {speed:.2f} of it, median over {flags.rounds} rounds"
    )
    print(provenance.describe_provenance(provenance.collect()))


if __name__ == "__main__":
    main()
