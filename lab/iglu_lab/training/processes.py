"""Distributed training: devices, processes, and batch normalization over the global batch, so that several
processes compute the same as one."""

from __future__ import annotations

import atexit
import os
import warnings
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from iglu_lab.errors import UserError
from iglu_lab.recipes import Recipe


def make_fabric(recipe: Recipe) -> Fabric:
    """Launch Fabric with the devices, nodes and precision of a recipe, or those of torchrun."""
    devices, nodes = recipe.devices, recipe.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    with warnings.catch_warnings():
        # Fabric warns and uses bf16 instead; below, this is an error.
        warnings.filterwarnings("ignore", ".*AMP with fp16 is not supported on CPU")
        try:
            fabric = Fabric(
                accelerator=recipe.accelerator, devices=devices, num_nodes=nodes,
                precision="32-true" if recipe.precision == "32" else recipe.precision,
            )  # fmt: skip
        except (ValueError, RuntimeError) as error:  # raised for an unavailable device
            raise UserError(f"accelerator={recipe.accelerator!r} is not available: {error}") from error
    if recipe.precision == "16-mixed" and fabric.device.type == "cpu":
        raise UserError("precision='16-mixed' needs a GPU; a CPU supports '32' and 'bf16-mixed'")
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_destroy_process_group)
    return fabric


def _destroy_process_group() -> None:
    """Fabric does this for NCCL only.  If the threads of gloo keep running, they often abort the process at
    exit."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def shared_by(fabric: Fabric, value: Any) -> Any:
    """Broadcast the value of the first process."""
    return fabric.broadcast(value) if fabric.world_size > 1 else value


class _Sum(torch.autograd.Function):
    """The differentiable sum over processes.  Each process has its own loss, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        values = values.clone()
        distributed.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


class SharedBatchNorm(_BatchNorm):
    """SyncBatchNorm for CPUs, which torch.nn.SyncBatchNorm does not support; same parameters and state."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        wide = x if x.dtype == torch.float64 else x.float()
        over = [dimension for dimension in range(x.dim()) if dimension != 1]
        shape = [-1 if dimension == 1 else 1 for dimension in range(x.dim())]
        count = wide.new_tensor([x.numel() / x.shape[1]])
        sums = _sum(torch.cat([wide.sum(over), count]))
        mean, total = sums[:-1] / sums[-1], sums[-1]
        centered = wide - mean.view(shape)
        variance = _sum(centered.square().sum(over)) / total
        self._track(mean.detach(), (variance * (total / (total - 1))).detach())
        y: Tensor = centered * (variance + self.eps).rsqrt().view(shape)
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
        """Accept 2 dimensions or more."""


def _sum(values: Tensor) -> Tensor:
    result: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return result


def share_batch_norm(network: nn.Module, device: torch.device) -> nn.Module:
    """Convert every BatchNorm of ``network`` to one over the global batch."""
    if device.type != "cpu":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        return converted
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = SharedBatchNorm  # keeps its state, replaces forward()
    return network
