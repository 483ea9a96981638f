"""The cost of a training step with tail monitoring: ``python benchmarks/tail_callback.py``.

The callbacks for transformers and Lightning monitor one step in ``every``.  This measures the same monitor on
steps of a ResNet-20 on 128 random images and of a small GPT-2 on 16 x 256 tokens, as the median ratio of
monitored to ordinary steps in interleaved rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iglu.probing.training import TailMonitor
from iglu_lab.models.gpt2 import GPT2, GPT2Config
from iglu_lab.models.resnet import resnet20

EVERY = 100


def images() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x, y = torch.randn(128, 3, 32, 32), torch.randint(10, (128,))
    return resnet20(), lambda model: F.cross_entropy(model(x), y)


def text() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    tokens = torch.randint(1000, (16, 257))
    model = GPT2(GPT2Config(vocabulary=1000, context=256, width=128, heads=4, layers=4))
    return model, lambda model: F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def ratios(model: nn.Module, loss: Callable[[nn.Module], Tensor], rounds: int) -> list[float]:
    optimizer, monitor = torch.optim.AdamW(model.parameters()), TailMonitor(model)

    def step(is_watched: bool) -> float:
        start = time.perf_counter()
        with monitor.step() if is_watched else contextlib.nullcontext():
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
        if is_watched:
            monitor.metrics()
        return time.perf_counter() - start

    found = []
    for number in range(rounds + 1):
        times = {is_watched: step(is_watched) for is_watched in (number % 2 == 0, number % 2 == 1)}
        if number:  # the first round warms up
            found.append(times[True] / times[False])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; {arguments.rounds} interleaved rounds"
    )
    for name, make in (("ResNet-20, 128 images", images), ("GPT-2, 4 x 128, 16 x 256 tokens", text)):
        found = ratios(*make(), arguments.rounds)
        ratio = statistics.median(found)
        low, high = statistics.quantiles(found, n=4)[::2]
        print(
            f"{name:32} a monitored step takes {ratio:.2f} [{low:.2f}, {high:.2f}] times an ordinary one: "
            f"{(ratio - 1) / EVERY:.2%} more with every={EVERY}"
        )


if __name__ == "__main__":
    main()
