"""Run a model on batches and restore its state; shared by probe() and recalibrate()."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[[nn.Module, Any], Any]


def run(model: nn.Module, batch: Any) -> Any:
    """Call a model on a batch: a tensor, a mapping of keyword arguments, or a sequence starting with one."""
    inputs = inputs_of(batch)
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def inputs_of(batch: Any) -> Any:
    """Return the inputs of a batch, without its targets."""
    return batch[0] if isinstance(batch, list | tuple) else batch


def each_batch(batches: Any) -> Iterable[Any]:
    """Return an iterable of batches; a single tensor or mapping is one batch."""
    if isinstance(batches, Tensor | Mapping):
        return [batches]
    if not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise TypeError(f"batches must be an iterable, a tensor or a mapping, got {type(batches).__name__}")
    return batches  # type: ignore[no-any-return]


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the first argument of a layer's forward."""
    return args[0] if args else next(iter(kwargs.values()), None)


def device_of(model: nn.Module) -> torch.device | None:
    """Return the device of the model's first parameter."""
    return next((parameter.device for parameter in model.parameters()), None)


def move(batch: Any, device: torch.device | None) -> Any:
    """Return the batch with all its tensors on the device."""
    if device is None:
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(move(value, device) for value in batch)
    return batch


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Run eagerly, since hooks do not see inside compiled code."""
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else contextlib.nullcontext()


@contextlib.contextmanager
def restored_afterwards(model: nn.Module, training: bool = False, buffers: bool = True) -> Iterator[None]:
    """Run in this mode, uncompiled; then restore modes, random states and, with ``buffers``, buffers."""
    modes = [(module, module.training) for module in model.modules()]
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffers
    ]
    devices = {each.device for each in (*model.parameters(), *model.buffers()) if each.device.type == "cuda"}
    with torch.random.fork_rng(sorted(devices, key=str)), uncompiled():
        try:
            for module, _ in modes:
                module.training = training  # not by train(), which some models override to do more
            yield
        finally:
            for module, was_training in modes:
                module.training = was_training
            with torch.no_grad():
                for module, name, buffer, value in kept:
                    module._buffers[name] = buffer
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)
