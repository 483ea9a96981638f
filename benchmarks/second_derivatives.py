"""What a second derivative costs, beside SiLU, GELU and tanh: ``python benchmarks/second_derivatives.py``.

Two tables, one thread, one process, the activations taking turns; medians over the rounds.  The first is
``torch.autograd.grad`` of a gradient, towards x and towards the gradient it came with.  The second is a whole
step of a network that solves a Poisson equation on the square, whose loss holds second derivatives in space.
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
    "IGLU": iglu.iglu,
    "IGLU-Approx": lambda x: iglu.iglu(x, approximate="rational"),
    "SiLU": F.silu,
    "GELU": F.gelu,
    "tanh": torch.tanh,
}


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds a call; a round of each lasts a few milliseconds."""

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
    """Steps towards laplace(u) = -2 pi^2 sin(pi x) sin(pi y)."""
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
    print(
        f"torch {torch.__version__}, {iglu.explain(torch.ones(1))}; time, and its share of SiLU's / of GELU's"
    )
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
