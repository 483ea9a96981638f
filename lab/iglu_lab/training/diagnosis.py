"""Find the layer where the first NaN or infinity appeared."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from iglu_lab.training.workloads import Workload


def first_nonfinite(network: nn.Module, workload: Workload, inputs: Tensor, targets: Tensor) -> str | None:
    """The first layer whose output, or else whose gradient, is not finite; None if all are.

    The weights must be those before the update, and the caller sets the random state of the step.  Both
    passes always run: processes that share a batch synchronize in them.
    """
    with _watch(network) as bad_layers:
        loss = workload.score(network(inputs), targets).loss
    named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    # backward() would trigger the hooks of distributed data parallel.
    gradients = torch.autograd.grad(loss, [parameter for _, parameter in named], allow_unused=True)
    if bad_layers:
        name, module = bad_layers[0]
        bad_weights = [key for key, p in module.named_parameters() if not p.isfinite().all()]
        return f"the output of {name} ({type(module).__name__})" + (
            f", because of its {bad_weights[0]}" if bad_weights else ""
        )
    if not loss.isfinite():
        return "the loss; the outputs of all layers are finite"
    # In the order of the backward pass.
    for (name, _), gradient in zip(reversed(named), reversed(gradients), strict=True):
        if gradient is not None and not gradient.isfinite().all():
            return f"the gradient of {name}"
    return None


@contextlib.contextmanager
def _watch(network: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    """Collect the leaf modules whose output is not finite, in the order of execution."""
    found: list[tuple[str, nn.Module]] = []

    def note(name: str, module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not torch.isfinite(output).all():
            found.append((name, module))

    hooks = [
        module.register_forward_hook(functools.partial(note, name))
        for name, module in network.named_modules()
        if next(module.children(), None) is None
    ]
    try:
        yield found
    finally:
        for handle in hooks:
            handle.remove()
