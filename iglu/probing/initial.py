"""Check whether a model's parameters still look like initial values.

The tails of an untrained model are those of its random weights: nearly Gaussian, and scaled by the
initialization.  They say nothing about a sigma for training.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

_MOVED = 0.01  # RMS change of normalization parameters
_OUTSIDE = 0.05  # share of weights beyond the bound of the initialization
_RMS = 0.1  # relative deviation of the mean square


def untrained_reason(model: nn.Module) -> str:
    """Say why ``model`` looks untrained; "" if it does not, or if that cannot be decided.

    - With normalization layers (parameters of a class named ...Norm...): each starts with equal weights and
      zero bias.  The model looks untrained if the RMS deviation from that over all of them is below 0.01.
    - Otherwise, by linear and convolution layers: torch draws their weights uniformly within 1/sqrt(fan_in).
      The model looks untrained if the weights have the mean square of that distribution, to 10%, and fewer
      than 5% lie outside its bounds.

    The result is "" for a model without either, or one that was initialized in another way.
    """
    moved, weights = [], []
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.numel() == 0:
            continue
        if "norm" in type(module).__name__.lower():
            moved.append(weight - weight.mean())
            if isinstance(bias := getattr(module, "bias", None), Tensor):
                moved.append(bias)
        elif isinstance(module, nn.Linear | _ConvNd) and not getattr(module, "transposed", False):
            weights.append(weight * weight[0].numel() ** 0.5)  # fan_in inputs to each output
    if moved and _joined(moved).square().mean().sqrt() < _MOVED:
        return "its normalization layers have their initial weights and biases"
    if moved or not weights:
        return ""
    z = _joined(weights)
    is_uniform = abs(3 * z.square().mean() - 1) < _RMS and (z.abs() > 1 + 1e-3).float().mean() < _OUTSIDE
    return "its weights are distributed as torch initializes them" if is_uniform else ""


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([each.detach().flatten().float().cpu() for each in tensors])
