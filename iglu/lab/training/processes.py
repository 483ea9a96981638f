"""The processes of a run: how they begin and end, what they share, and batch normalisation over the batch of
all of them, so that several compute what one does."""

from __future__ import annotations

import atexit
import os
import warnings
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from iglu.lab.mistakes import MistakeError
from iglu.lab.recipes import Recipe


def make_fabric(recipe: Recipe) -> Fabric:
    """Devices, nodes and precision; under torchrun, as many processes as it started."""
    devices, nodes = recipe.devices, recipe.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    with warnings.catch_warnings():
        # That it takes bf16 instead; here what was asked for by name and cannot be had is an error.
        warnings.filterwarnings("ignore", ".*AMP with fp16 is not supported on CPU")
        try:
            fabric = Fabric(
                accelerator=recipe.accelerator, devices=devices, num_nodes=nodes,
                precision="32-true" if recipe.precision == "32" else recipe.precision,
            )  # fmt: skip
        except (ValueError, RuntimeError) as error:  # so it says that there is no such device
            raise MistakeError(f"accelerator={recipe.accelerator!r} cannot be had here: {error}") from error
    if recipe.precision == "16-mixed" and fabric.device.type == "cpu":
        raise MistakeError("precision='16-mixed' needs a GPU; on a CPU there are '32' and 'bf16-mixed'")
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_leave)
    return fabric


def _leave() -> None:
    """Fabric parts from the other processes by itself with NCCL alone; gloo's threads, left running, often
    abort a process that has done all its work."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def shared_by(fabric: Fabric, value: Any) -> Any:
    """The first process's value, in all of them."""
    return fabric.broadcast(value) if fabric.world_size > 1 else value


class _Sum(torch.autograd.Function):
    """The sum over processes.  Each of them goes on with it to a loss of its own, so that the gradient is
    their sum too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        values = values.clone()
        distributed.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


class SharedBatchNorm(_BatchNorm):
    """BatchNorm on CPUs, for which torch.nn.SyncBatchNorm, made for GPUs, has nothing; with the same
    parameters and the same state."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        wide = x if x.dtype == torch.float64 else x.float()
        over = [dimension for dimension in range(x.dim()) if dimension != 1]
        shape = [-1 if dimension == 1 else 1 for dimension in range(x.dim())]
        count = wide.new_tensor([x.numel() / x.shape[1]])
        sums = _sum(torch.cat([wide.sum(over), count]))
        mean, total = sums[:-1] / sums[-1], sums[-1]
        centred = wide - mean.view(shape)
        variance = _sum(centred.square().sum(over)) / total
        self._track(mean.detach(), (variance * (total / (total - 1))).detach())
        y: Tensor = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(x.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        rate = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(variance.to(self.running_var.dtype), rate)

    def _check_input_dim(self, x: Tensor) -> None:
        """Of 2 dimensions or more."""


def _sum(values: Tensor) -> Tensor:
    result: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return result


def share_batch_norm(network: nn.Module, device: torch.device) -> nn.Module:
    """``network`` with every BatchNorm over the batch of all processes."""
    if device.type != "cpu":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        return converted
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = SharedBatchNorm  # all that it holds stays, its forward pass is another
    return network
