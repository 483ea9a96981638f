"""One training step of a whole network: items a second, and the memory it takes, for each activation.

Every contender has its own copy of the model and sees the same input; steps are interleaved in rounds like
the calls of :mod:`iglu.lab.bench.timing`.  Memory is counted, not sampled:

- *kept* is what the forward pass leaves behind for the backward pass: the distinct tensors that autograd
  saves, parameters aside;
- *peak* is the most that tensors made during one step held at a time, by the count of torch's own
  allocator.  The parameters and the state of the optimizer, there before, are the same for all.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import benchmark

import iglu
from iglu import backend
from iglu.lab.bench.subjects import DIRECT, TORCH, Direct, has_direct_form, is_ours
from iglu.lab.bench.timing import Block, Rounds, spread
from iglu.lab.models.gpt2 import GPT2Config, gpt2_block
from iglu.lab.models.resnet import resnet20
from iglu.zoo import parse

MakeActivation = Callable[[], nn.Module]


@dataclass(frozen=True)
class Workload:
    """A model with its input; ``loss`` of (output, target)."""

    name: str
    label: str
    unit: str
    items: int  # units a step
    build: Callable[[MakeActivation], nn.Module]
    example: Callable[[], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]


def resnet20_workload(batch: int = 128) -> Workload:
    """The paper's ResNet-20 on images of CIFAR's shape."""

    def example() -> tuple[Tensor, Tensor]:
        return torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    return Workload(
        "resnet20", f"ResNet-20, batch {batch}", "images", batch,
        functools.partial(resnet20, 10), example, F.cross_entropy,
    )  # fmt: skip


def gpt2_block_workload(sequences: int = 4, config: GPT2Config | None = None) -> Workload:
    """One block of GPT-2 Small, context 256, on a residual stream of unit variance."""
    config = GPT2Config(context=256) if config is None else config
    shape = (sequences, config.context, config.width)

    def example() -> tuple[Tensor, Tensor]:
        return torch.randn(shape), torch.randn(shape)

    return Workload(
        "gpt2_block", f"GPT-2 block, width {config.width}, {sequences} x {config.context} tokens", "tokens",
        sequences * config.context, functools.partial(gpt2_block, config), example, F.mse_loss,
    )  # fmt: skip


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "resnet20": resnet20_workload,
    "gpt2_block": gpt2_block_workload,
}


@dataclass(frozen=True)
class Contender:
    """An activation and the way it is computed."""

    name: str
    label: str
    kernel: str
    make_activation: MakeActivation = field(repr=False, compare=False)

    @property
    def is_ours(self) -> bool:
        return self.kernel not in (TORCH, DIRECT)

    def served(self) -> contextlib.AbstractContextManager[Any]:
        return backend(self.kernel) if self.is_ours else contextlib.nullcontext()


# The forms of IGLU-Approx that need not keep their input.
_KEEPING_OUTPUT: dict[str, tuple[str, dict[str, Any]]] = {
    "output": ("output kept", {"save": "output"}),
    "inplace": ("in place", {"inplace": True}),
}


def contenders(activations: Iterable[str], backends: Sequence[str], direct: bool = True) -> list[Contender]:
    """The activations of these names, ours once a backend and once in its direct form."""
    result: list[Contender] = []
    for text in activations:
        spec = parse(text)
        make = functools.partial(iglu.create, text)
        kernels = backends if is_ours(spec) else [TORCH]
        result += [Contender(str(spec), spec.label, kernel, make) for kernel in kernels]
        if spec.name == "iglu_approx":
            for form, (label, options) in _KEEPING_OUTPUT.items():
                make = functools.partial(iglu.create, text, **options)
                name, label = f"{spec}/{form}", f"{spec.label}, {label}"
                result += [Contender(name, label, kernel, make) for kernel in kernels]
        if direct and has_direct_form(spec):
            result.append(Contender(str(spec), spec.label, DIRECT, functools.partial(Direct, spec)))
    return result


class TrainingStep:
    """Forward, backward, clipping and AdamW as in the paper's recipes; a call is one step."""

    def __init__(self, workload: Workload, contender: Contender, device: str) -> None:
        torch.manual_seed(0)
        self.contender = contender
        self.device = device
        self.model = workload.build(contender.make_activation).to(device)
        self.input, self.target = (each.to(device) for each in workload.example())
        self.objective = workload.loss
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=1e-2)

    def forward(self) -> Tensor:
        return self.objective(self.model(self.input), self.target)

    def __call__(self) -> None:
        with self.contender.served():
            torch.autograd.backward(self.forward())
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def block(self, threads: int) -> Block:
        def run(calls: int) -> float:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            start = benchmark.timer()  # waits for a GPU
            for _ in range(calls):
                self()
            seconds = benchmark.timer() - start
            torch.set_num_threads(before)
            return seconds / calls

        return run


def kept_bytes(step: TrainingStep) -> int:
    """Bytes of the distinct storages that the forward pass saves for the backward pass."""
    own = {parameter.untyped_storage().data_ptr() for parameter in step.model.parameters()}
    kept: dict[int, Tensor] = {}  # holds them, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            kept[address] = tensor
        return tensor

    with step.contender.served(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step.forward()
        size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del loss
    return size


def peak_bytes(step: TrainingStep) -> int:
    """The most that the tensors made in one step held at a time."""
    if step.device.startswith("cuda"):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler announces its start and end
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    # The allocator counts from the start of the profile.
    return max(int(event["args"]["Total Allocated"]) for event in events if event.get("name") == "[memory]")


def rows_of(
    rounds: Rounds,
    memory: dict[Contender, tuple[int, int]],
    workload: Workload,
    device: str,
    threads: int,
    against: Sequence[str],
) -> list[dict[str, Any]]:
    """What was measured of one workload, ready for JSON; ratios are of time, above 1 is slower."""
    measured = list(rounds.seconds)
    first = {contender.name: contender for contender in reversed(measured) if contender.kernel != DIRECT}
    direct = {contender.name: contender for contender in measured if contender.kernel == DIRECT}
    rows = []
    for contender in memory:  # in the order of the table
        if contender not in rounds.seconds:
            continue
        ratios = {name: first[name] for name in against if name in first}
        if contender.is_ours and contender.name in direct:
            ratios["direct"] = direct[contender.name]
        seconds = rounds.seconds[contender]
        kept, peak = memory[contender]
        rows.append(
            {
                "kind": "training",
                "model": workload.name,
                "model_label": workload.label,
                "unit": workload.unit,
                "items_a_step": workload.items,
                "activation": contender.name,
                "label": contender.label,
                "kernel": contender.kernel,
                "is_ours": contender.is_ours,
                "device": device,
                "dtype": "float32",
                "threads": threads,
                "rounds": len(seconds),
                "seconds": spread(seconds),
                "items_a_second": spread([workload.items / each for each in seconds]),
                "ratios": {name: rounds.ratio(contender, other) for name, other in ratios.items()},
                "kept_bytes": kept,
                "peak_bytes": peak,
                "seconds_by_round": seconds,
            }
        )
    return rows
