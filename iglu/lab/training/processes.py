"""Batch normalisation over the batch of all processes, so that several compute what one does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm


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
