"""Timing in interleaved rounds: each round times every case once, in a new random order.

The speed of a shared machine drifts by more than the differences of interest.  The cases of one round run
under the same conditions, so a ratio is the median over rounds of the ratio within a round, not a ratio of
medians.  The random order removes effects of the preceding case.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import benchmark

from iglu_lab.bench.cases import DIRECT, Case
from iglu_lab.stats.comparison import counted

Block = Callable[[int], float]
"""Runs this many calls and returns the mean seconds per call."""

# A shorter block mostly measures the clock.  A block longer than a time slice of the scheduler is always
# interrupted on a shared machine.  All blocks have similar lengths, so that slow cases are not interrupted
# more often than fast ones.
SHORTEST_BLOCK, LONGEST_BLOCK = 0.2e-3, 1e-3

PASS_LABELS = {
    "forward": "forward", "recording": "recording", "backward": "backward", "node": "backward node",
    "loss_backward": "loss.backward()",
}  # fmt: skip
PASSES = tuple(PASS_LABELS)


def where_of(row: Mapping[str, Any]) -> str:
    """Dtype, device and threads, for titles."""
    place = f"{row['dtype']}, {row['device']}"
    return f"{place}, {counted(row['threads'], 'thread')}" if row["device"] == "cpu" else place


@dataclass(frozen=True)
class Setting:
    """The setting of a comparison.  Times of different settings are not compared."""

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    elements: int = 10_000

    def __str__(self) -> str:
        return f"{self.elements:,} elements, {where_of(vars(self))}"


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """The median and the 20% and 80% quantiles, as JSON."""
    low, median, high = np.quantile(values, (0.2, 0.5, 0.8)).tolist()
    return {"median": median, "low": low, "high": high}


@dataclass
class Timed:
    """A block of calls of a case, and its seconds per call by round."""

    case: Any
    block: Block
    calls: int = 1  # per block
    facts: Mapping[str, Any] = field(default_factory=dict)  # fields of its row
    seconds: list[float] = field(default_factory=list)

    def ratio(self, reference: Timed) -> dict[str, float]:
        """The time relative to the reference, within each round; the last round may be incomplete."""
        pairs = zip(self.seconds, reference.seconds, strict=False)
        return quantiles([mine / other for mine, other in pairs])


def interleave(timed: Iterable[Timed], rounds: int, seed: int = 0) -> Iterator[int]:
    """Time every block once per round; yield after each.  The seconds are valid at any moment."""
    order = list(timed)
    shuffle = random.Random(seed).shuffle
    for number in range(rounds):
        shuffle(order)
        for each in order:
            each.seconds.append(each.block(each.calls))
            yield number


def calls_per_block(seconds_per_call: float, iterations: int, rounds: int) -> int:
    """The calls per round, adjusted to a block of 0.2 to 1 ms."""
    share = -(-iterations // rounds)
    shortest = int(SHORTEST_BLOCK / seconds_per_call) + 1
    longest = max(1, int(LONGEST_BLOCK / seconds_per_call))
    return min(max(share, shortest), longest)


@dataclass(frozen=True)
class Inputs:
    """The inputs of all cases of a setting: x, up, and a dense gradient."""

    x: torch.Tensor
    up: torch.Tensor
    g: torch.Tensor

    @classmethod
    def make(cls, setting: Setting) -> Inputs:
        generator = torch.Generator().manual_seed(0)

        def normal() -> torch.Tensor:
            values = torch.randn(setting.elements, generator=generator)
            return values.to(setting.device, getattr(torch, setting.dtype))

        return cls(normal(), normal(), normal())


# The engine without the Python checks of torch.autograd.grad, which take tens of microseconds, more than the
# derivative of 10,000 elements.
_run_backward = torch.autograd.Variable._execution_engine.run_backward

# pass -> (statement, setup); {} is the case's own statement.
_PROGRAMS = {
    "forward": ("{}", "pass"),
    "recording": ("{}", "pass"),
    "backward": (
        "run_backward((y,), (g,), True, False, leaves, allow_unreachable=True, accumulate_grad=False)",
        "y = {}",
    ),
    "node": ("node(g)", "with torch.enable_grad(): node = ({}).grad_fn"),
    "loss_backward": ("loss.backward(retain_graph=True)", "loss = ({}).sum()"),
}


def block_of(case: Case, pass_name: str, inputs: Inputs, threads: int) -> Block:
    """Time one pass of a case with torch.utils.benchmark, which synchronizes with a GPU.

    - ``forward``: without autograd; ``recording``: with autograd, building the graph;
    - ``backward``: the derivative through the autograd engine, with the graph built before and a dense
      incoming gradient;
    - ``node``: the backward node without the engine; only for graphs of one node;
    - ``loss_backward``: as in the paper, ``sum().backward()``: an expanded gradient, Python checks, and
      accumulation into ``.grad``.
    """
    recording = pass_name != "forward"
    x = inputs.x.detach().requires_grad_(recording)
    up = inputs.up.detach().requires_grad_(recording and case.is_pair)
    leaves = (x, *([up] if case.is_pair else []), *case.parameters)
    names = {**case.names, "x": x, "up": up, "g": inputs.g, "leaves": leaves}
    names["run_backward"] = _run_backward
    if pass_name == "node":
        with case.on_backend():
            _require_one_node(eval(case.statement, names))
    statement, setup = (program.format(case.statement) for program in _PROGRAMS[pass_name])
    timer = benchmark.Timer(statement, setup, globals=names, num_threads=threads)

    def run(calls: int) -> float:
        # As in the engine, a node runs without autograd.
        with torch.set_grad_enabled(pass_name not in ("forward", "node")), case.on_backend():
            seconds: float = timer.timeit(calls).mean
        return seconds

    return run


def _require_one_node(y: torch.Tensor) -> None:
    node: Any = y.grad_fn
    if not callable(node):
        raise ValueError("its graph has no node that can be called directly")
    if any(following is not None and following.next_functions for following, _ in node.next_functions):
        raise ValueError("its graph has more than one node")


@contextlib.contextmanager
def fresh_compiler() -> Iterator[None]:
    """Reset the compiler for each setting (there is a limit on recompilations), and allow backward twice."""
    from torch._functorch import config

    torch.compiler.reset()
    with config.patch(donated_buffer=False):
        yield
    torch.compiler.reset()


# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@contextlib.contextmanager
def warm_heap(wanted: bool = True) -> Iterator[bool]:
    """Keep freed memory for the next call, as in a long training run; yield whether that is in effect.

    By default glibc returns blocks above 32 MB to the system, and every call on 16 M elements pays for new
    pages, several times the cost of the arithmetic.
    """
    is_linux = sys.platform.startswith("linux")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if wanted and is_linux else None
    if mallopt is None:
        yield False
        return
    in_force = mallopt(_M_MMAP_MAX, 0) == 1 and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) == 1
    try:
        yield in_force
    finally:
        mallopt(_M_MMAP_MAX, 65_536)
        mallopt(_M_TRIM_THRESHOLD, 128 * 1024)


def rows_of(kind: str, timed: Iterable[Timed], against: Sequence[str]) -> list[dict[str, Any]]:
    """The measurements as JSON, with ratios to the first case of each name, and the throughput of training
    steps.  They include the seconds of every round, from which any other ratio can be computed.
    """
    measured = [each for each in timed if each.seconds]
    first = {each.case.name: each for each in reversed(measured) if each.case.kernel != DIRECT}
    direct = {each.case.name: each for each in measured if each.case.kernel == DIRECT}
    rows = []
    for each in measured:
        case = each.case
        references = {name: first[name] for name in against if name in first}
        if kind == "training" and case.is_ours and case.name in direct:
            references["direct"] = direct[case.name]
        row = {
            "kind": kind,
            "activation": case.name,
            "label": case.label,
            "kernel": case.kernel,
            "is_ours": case.is_ours,
            **each.facts,
            "rounds": len(each.seconds),
            "seconds": quantiles(each.seconds),
            "ratios": {name: each.ratio(other) for name, other in references.items()},
            "seconds_by_round": each.seconds,
        }
        if "items_a_step" in row:
            row["items_a_second"] = quantiles([row["items_a_step"] / seconds for seconds in each.seconds])
        rows.append(row)
    return rows
