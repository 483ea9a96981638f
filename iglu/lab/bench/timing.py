"""Interleaved rounds: in every round each subject is timed once, in a new random order.

A machine that others use drifts by more than the differences of interest.  Two subjects of one round see
the same machine, so a ratio is the median over rounds of the quotient within a round, never a quotient of
medians; and a subject that follows another by chance only, not always the same, owes it nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import benchmark

from iglu.lab.bench.subjects import DIRECT, Subject
from iglu.lab.results.comparison import counted

Block = Callable[[int], float]
"""Run so many calls; the seconds a call took on average."""

# A block of calls shorter than this is mostly the clock; one longer than a scheduler's time slice is sure to
# be interrupted on a machine that others use, where of short ones most are not, and the median is theirs.
# Much the same length for all, or the slow would be interrupted more often than the fast.
SHORTEST_BLOCK, LONGEST_BLOCK = 0.2e-3, 1e-3

PASSES = ("forward", "recording", "backward", "node", "loss_backward")
PASS_LABELS = {
    "forward": "forward",
    "recording": "recording",
    "backward": "backward",
    "node": "backward node",
    "loss_backward": "loss.backward()",
}


def where_of(row: Mapping[str, Any]) -> str:
    """For titles; threads count on the CPU only."""
    place = f"{row['dtype']}, {row['device']}"
    return f"{place}, {counted(row['threads'], 'thread')}" if row["device"] == "cpu" else place


@dataclass(frozen=True)
class Setting:
    """Where subjects are compared; times of different settings are not."""

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    elements: int = 10_000

    def __str__(self) -> str:
        return f"{self.elements:,} elements, {where_of(vars(self))}"


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median over rounds, and the 20% and 80% quantiles, as they are written down."""
    low, median, high = np.quantile(values, (0.2, 0.5, 0.8)).tolist()
    return {"median": median, "low": low, "high": high}


@dataclass
class Rounds:
    """Seconds a call, by subject and round; subjects go by any key."""

    seconds: dict[Any, list[float]] = field(default_factory=dict)

    def ratio(self, key: Any, reference: Any) -> dict[str, float]:
        """How many times as long as the reference, round by round."""
        pairs = zip(self.seconds[key], self.seconds[reference], strict=False)  # the last may be cut short
        return spread([mine / other for mine, other in pairs])


def interleave(
    blocks: Mapping[Any, Block], calls: Mapping[Any, int], rounds: int, into: Rounds, seed: int = 0
) -> Iterator[int]:
    """Time every block once a round, yielding after each; what is in ``into`` is good at any moment."""
    order = list(blocks)
    shuffle = random.Random(seed).shuffle
    for number in range(rounds):
        shuffle(order)
        for key in order:
            into.seconds.setdefault(key, []).append(blocks[key](calls[key]))
            yield number


def calls_in_a_block(seconds_a_call: float, iterations: int, rounds: int) -> int:
    """The share of a round in the iterations asked for, stretched or cut to a sensible length of time."""
    share = -(-iterations // rounds)
    shortest = int(SHORTEST_BLOCK / seconds_a_call) + 1
    longest = max(1, int(LONGEST_BLOCK / seconds_a_call))
    return min(max(share, shortest), longest)


@dataclass(frozen=True)
class Inputs:
    """Shared by all subjects of a setting: x (recording and not), up, and a dense gradient."""

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


# The engine without the checks that torch.autograd.grad makes in Python before it: tens of microseconds,
# under which the derivative of 10,000 elements would vanish.
_run_backward = torch.autograd.Variable._execution_engine.run_backward

# pass -> (statement, setup); {} is the subject's own statement.
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


def block_of(subject: Subject, pass_name: str, inputs: Inputs, threads: int) -> Block:
    """The subject's statement in one of the passes, on torch's own clock, which waits for a GPU.

    - ``forward`` records nothing, ``recording`` makes (and drops) the graph as well;
    - ``backward`` is the derivative through autograd's engine: the graph is built before the clock starts,
      and the gradient that comes in is dense and ready;
    - ``node`` leaves the engine out too; only for activations whose graph is one node;
    - ``loss_backward`` is the way of the paper: ``sum()`` on top, whose gradient is one number expanded,
      Python's checks, and what comes out accumulated in ``.grad``.
    """
    recording = pass_name != "forward"
    x = inputs.x.detach().requires_grad_(recording)
    up = inputs.up.detach().requires_grad_(recording and subject.is_pair)
    leaves = (x, *([up] if subject.is_pair else []), *subject.parameters)
    names = {**subject.names, "x": x, "up": up, "g": inputs.g, "leaves": leaves}
    names["run_backward"] = _run_backward
    if pass_name == "node":
        with subject.served():
            _require_one_node(eval(subject.statement, names))
    statement, setup = (program.format(subject.statement) for program in _PROGRAMS[pass_name])
    timer = benchmark.Timer(statement, setup, globals=names, num_threads=threads)

    def run(calls: int) -> float:
        # As in the engine, nothing is recorded while a node runs.
        with torch.set_grad_enabled(pass_name not in ("forward", "node")), subject.served():
            seconds: float = timer.timeit(calls).mean
        return seconds

    return run


def _require_one_node(y: torch.Tensor) -> None:
    node: Any = y.grad_fn
    if not callable(node):
        raise ValueError("its graph has no node that can be called by itself")
    if any(following is not None and following.next_functions for following, _ in node.next_functions):
        raise ValueError("its graph is more than one node")


@contextlib.contextmanager
def compilation_of_its_own() -> Iterator[None]:
    """Compiled subjects start afresh in each setting, so that none runs into the limit on recompiling,
    and their backward may be called twice."""
    from torch._functorch import config

    torch.compiler.reset()
    with config.patch(donated_buffer=False):
        yield
    torch.compiler.reset()


# glibc's names for what follows.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@contextlib.contextmanager
def warm_heap(wanted: bool = True) -> Iterator[bool]:
    """Keep freed blocks of any size for the next call, as a network that runs for hours does.

    As it comes, glibc hands blocks above 32 MB back to the system, and every call on 16 M elements pays
    for new pages, several times what the arithmetic costs.  Says whether it is in force.
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


def rows_of(
    kind: str, rounds: Rounds, facts: Mapping[Subject, Mapping[str, Any]], against: Sequence[str]
) -> list[dict[str, Any]]:
    """What was measured, ready for JSON, with ratios of time to the first subject of each name; of a step of
    training also how many items that is a second.

    The seconds of every round stay in it, so that a reader can form any other ratio the same way.
    """
    measured = [subject for subject in facts if subject in rounds.seconds]
    first = {subject.name: subject for subject in reversed(measured) if subject.kernel != DIRECT}
    direct = {subject.name: subject for subject in measured if subject.kernel == DIRECT}
    rows = []
    for subject in measured:
        references = {name: first[name] for name in against if name in first}
        if kind == "training" and subject.is_ours and subject.name in direct:
            references["direct"] = direct[subject.name]
        seconds, own = rounds.seconds[subject], facts[subject]
        row = {
            "kind": kind,
            "activation": subject.name,
            "label": subject.label,
            "kernel": subject.kernel,
            "is_ours": subject.is_ours,
            **own,
            "rounds": len(seconds),
            "seconds": spread(seconds),
            "ratios": {name: rounds.ratio(subject, other) for name, other in references.items()},
            "seconds_by_round": seconds,
        }
        if "items_a_step" in own:
            row["items_a_second"] = spread([own["items_a_step"] / each for each in seconds])
        rows.append(row)
    return rows
