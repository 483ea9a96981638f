"""The cost of second derivatives, relative to SiLU and GELU: ``python benchmarks/second_derivatives.py``.

Two tables, single-threaded; medians over interleaved rounds.  The first is double backward:
``torch.autograd.grad`` of a gradient, with respect to x and to the incoming gradient.  The second is a
training step of a network that solves a Poisson equation on a square, whose loss contains second derivatives.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import iglu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "IGLU": lambda x: iglu.iglu(x, 1.0),
    "IGLU-Approx": lambda x: iglu.iglu(x, 1.0, approximate="rational"),
    "SiLU": F.silu,
    "GELU": F.gelu,
    "tanh": torch.tanh,
}


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds per call; each round takes a few milliseconds per activation."""

    def seconds(call: Callable[[], object], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count

    counts = {name: max(1, int(0.003 / seconds(call, 3))) for name, call in calls.items()}
    measured: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            measured[name].append(seconds(call, counts[name]))
    return {name: statistics.median(each) for name, each in measured.items()}


def gradients_of_gradients(size: int) -> dict[str, Callable[[], object]]:
    x, grad = (torch.randn(size, requires_grad=True) for _ in range(2))
    through = torch.randn(size)

    def second(activation: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        (first,) = torch.autograd.grad(activation(x), x, grad, create_graph=True)
        return lambda: torch.autograd.grad(first, (x, grad), through, retain_graph=True)

    return {name: second(activation) for name, activation in ACTIVATIONS.items()}


class Network(nn.Module):
    """Two inputs, two hidden layers, one output."""

    def __init__(self, activation: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, 1)])
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]


def poisson_steps(points: int, width: int) -> dict[str, Callable[[], object]]:
    """Training steps for laplace(u) = -2 pi^2 sin(pi x) sin(pi y)."""
    x = torch.rand(points, 2, requires_grad=True)
    source = 2 * torch.pi**2 * torch.sin(torch.pi * x).prod(1).detach()

    def step_of(activation: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        network = Network(activation, width)
        optimizer = torch.optim.Adam(network.parameters())

        def step() -> None:
            u = x.prod(1) * (1 - x).prod(1) * network(x)[:, 0]
            (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            laplacian = sum(
                torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(2)
            )
            optimizer.zero_grad()
            (laplacian + source).square().mean().backward()
            optimizer.step()

        return step

    return {name: step_of(activation) for name, activation in ACTIVATIONS.items()}


def table(title: str, rows: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n")
    print("| | " + " | ".join(ACTIVATIONS) + " |")
    print("|---" * (len(ACTIVATIONS) + 1) + "|")
    for label, row in rows.items():
        silu, gelu = row["SiLU"], row["GELU"]
        cells = [f"{row[each] * 1e6:.0f} us, {row[each] / silu:.2f} / {row[each] / gelu:.2f}" for each in row]
        print(f"| {label} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {iglu.explain(torch.ones(1))}; time, and its ratio to SiLU / to GELU")
    table(
        "The gradients of a gradient",
        {f"{n:,}": medians(gradients_of_gradients(n), rounds) for n in (10_000, 100_000, 1_000_000)},
    )
    table(
        "A step of a Poisson solver",
        {
            f"{points:,} points, width {width}": medians(poisson_steps(points, width), rounds)
            for points, width in ((1_000, 64), (4_000, 128))
        },
    )
