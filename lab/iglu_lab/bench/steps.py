"""Throughput and memory of one training step of a complete model, for each activation.

Each activation has its own copy of the model and gets the same input.  Steps are interleaved in rounds, like
the calls of :mod:`iglu_lab.bench.timing`.  Memory:

- *kept*: the distinct tensors that autograd saves for the backward pass, without parameters;
- *peak*: the maximum memory of torch's allocator during one step, without parameters and optimizer state,
  which were allocated before.
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

from iglu.zoo import parse
from iglu_lab.bench.cases import DIRECT, TORCH, Case, Direct, create, has_direct_form, is_ours
from iglu_lab.bench.timing import Block
from iglu_lab.models import MakeActivation
from iglu_lab.models.gpt2 import GPT2Config, gpt2_block
from iglu_lab.models.resnet import resnet20


@dataclass(frozen=True)
class BenchModel:
    """A model with its input; ``loss`` takes (output, target)."""

    name: str
    label: str
    unit: str
    items: int  # units per step
    build: Callable[[MakeActivation], nn.Module]
    example: Callable[[], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]


def resnet20_model(batch: int = 128) -> BenchModel:
    """The paper's ResNet-20 on images of CIFAR's shape."""

    def example() -> tuple[Tensor, Tensor]:
        return torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    return BenchModel(
        "resnet20", f"ResNet-20, batch {batch}", "images", batch,
        functools.partial(resnet20, 10), example, F.cross_entropy,
    )  # fmt: skip


def gpt2_block_model(sequences: int = 4, config: GPT2Config | None = None) -> BenchModel:
    """One block of GPT-2 Small, context 256, on a residual stream of unit variance."""
    config = GPT2Config(context=256) if config is None else config
    shape = (sequences, config.context, config.width)

    def example() -> tuple[Tensor, Tensor]:
        return torch.randn(shape), torch.randn(shape)

    return BenchModel(
        "gpt2_block", f"GPT-2 block, width {config.width}, {sequences} x {config.context} tokens", "tokens",
        sequences * config.context, functools.partial(gpt2_block, config), example, F.mse_loss,
    )  # fmt: skip


BENCH_MODELS: dict[str, Callable[[], BenchModel]] = {
    "resnet20": resnet20_model,
    "gpt2_block": gpt2_block_model,
}


# The variants of IGLU-Approx that do not save their input.
_SAVING_OUTPUT: dict[str, tuple[str, dict[str, Any]]] = {
    "output": ("output kept", {"save": "output"}),
    "inplace": ("in place", {"inplace": True}),
}


def contenders(activations: Iterable[str], backends: Sequence[str], direct: bool = True) -> list[Case]:
    """The cases of these activations: ours once per backend, and in direct form."""
    result: list[Case] = []

    def add(name: str, label: str, kernels: Sequence[str], make: MakeActivation) -> None:
        result.extend(Case(name, label, kernel, names={"make": make}) for kernel in kernels)

    for text in activations:
        spec = parse(text)
        kernels = backends if is_ours(spec) else [TORCH]
        add(str(spec), spec.label, kernels, functools.partial(create, spec))
        if spec.name == "iglu_approx":
            for form, (label, options) in _SAVING_OUTPUT.items():
                make = functools.partial(create, spec, **options)
                add(f"{spec}/{form}", f"{spec.label}, {label}", kernels, make)
        if direct and has_direct_form(spec):
            add(str(spec), spec.label, [DIRECT], functools.partial(Direct, spec))
    return result


class TrainingStep:
    """One training step: forward, backward, gradient clipping and AdamW, as in the paper."""

    def __init__(self, bench_model: BenchModel, contender: Case, device: str) -> None:
        torch.manual_seed(0)
        self.contender = contender
        self.device = device
        self.model = bench_model.build(contender.names["make"]).to(device)
        self.input, self.target = (each.to(device) for each in bench_model.example())
        self.objective = bench_model.loss
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=1e-2)

    def forward(self) -> Tensor:
        return self.objective(self.model(self.input), self.target)

    def __call__(self) -> None:
        with self.contender.on_backend():
            torch.autograd.backward(self.forward())
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def block(self, threads: int) -> Block:
        def run(calls: int) -> float:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            start = benchmark.timer()  # synchronizes with a GPU
            for _ in range(calls):
                self()
            seconds = benchmark.timer() - start
            torch.set_num_threads(before)
            return seconds / calls

        return run


def kept_bytes(step: TrainingStep) -> int:
    """Bytes of the distinct storages saved for the backward pass."""
    own = {parameter.untyped_storage().data_ptr() for parameter in step.model.parameters()}
    kept: dict[int, Tensor] = {}  # references, so that no address is reused

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            kept[address] = tensor
        return tensor

    with step.contender.on_backend(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step.forward()
        size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del loss
    return size


def peak_bytes(step: TrainingStep) -> int:
    """Peak bytes allocated during one step."""
    if step.device.startswith("cuda"):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    # The allocator counts from the start of the profile.
    return max(int(event["args"]["Total Allocated"]) for event in events if event.get("name") == "[memory]")
