"""One training step of a whole network: items a second, and the memory it takes, for each activation.

Every contender has its own copy of the model and sees the same input; steps are interleaved in rounds like
the calls of :mod:`iglu.lab.bench.timing`.  Memory is counted, not sampled:

- *kept* is what the forward pass leaves behind for the backward pass: the distinct tensors that autograd
  saves, parameters aside;
- *peak* is the most that tensors made during one step held at a time, by the count of torch's own
  allocator.  The parameters and the state of the optimizer, there before, are the same for all.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import benchmark

import iglu
from iglu.lab.bench.subjects import DIRECT, TORCH, Direct, Subject, has_direct_form, is_ours
from iglu.lab.bench.timing import Block
from iglu.lab.models import MakeActivation
from iglu.lab.models.gpt2 import GPT2Config, gpt2_block
from iglu.lab.models.resnet import resnet20
from iglu.zoo import parse


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


# The forms of IGLU-Approx that need not keep their input.
_KEEPING_OUTPUT: dict[str, tuple[str, dict[str, Any]]] = {
    "output": ("output kept", {"save": "output"}),
    "inplace": ("in place", {"inplace": True}),
}


def contenders(activations: Iterable[str], backends: Sequence[str], direct: bool = True) -> list[Subject]:
    """The activations of these names, ours once a backend and once in its direct form."""
    result: list[Subject] = []

    def add(name: str, label: str, kernels: Sequence[str], make: MakeActivation) -> None:
        result.extend(Subject(name, label, kernel, names={"make": make}) for kernel in kernels)

    for text in activations:
        spec = parse(text)
        kernels = backends if is_ours(spec) else [TORCH]
        add(str(spec), spec.label, kernels, functools.partial(iglu.create, text))
        if spec.name == "iglu_approx":
            for form, (label, options) in _KEEPING_OUTPUT.items():
                make = functools.partial(iglu.create, text, **options)
                add(f"{spec}/{form}", f"{spec.label}, {label}", kernels, make)
        if direct and has_direct_form(spec):
            add(str(spec), spec.label, [DIRECT], functools.partial(Direct, spec))
    return result


class TrainingStep:
    """Forward, backward, clipping and AdamW as in the paper's recipes; a call is one step."""

    def __init__(self, workload: Workload, contender: Subject, device: str) -> None:
        torch.manual_seed(0)
        self.contender = contender
        self.device = device
        self.model = workload.build(contender.names["make"]).to(device)
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
