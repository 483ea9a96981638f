"""The corrections of one layer in closed form, from its inputs before and after the swap.

For a linear layer W h + b whose input becomes h' instead of h:

- *shift*: b' = b + mean(W h + b) - mean(W h' + b);
- *least squares*: W' and b' that minimize the mean of |W' h' + b' - (W h + b)|^2, plus ridge |W' - W|^2; the
  ridge is RIDGE times the mean variance of an entry of h'.  Only the sums of h' h'^T and of h' e^T over the
  batches are stored, where e is the difference of the outputs;
- *batch norm*: a running mean and variance that give every channel of the output the mean and the variance
  that it had before.  If the layer's statistics are those of these batches, the new ones are too; if they
  are not, because the batches differ from the training data, only the change is corrected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from iglu.calibration.dataflow import CONVOLUTIONS, CalibrationTarget

RIDGE = 1e-4  # fixed in advance, for all models and layers

_NO_BETTER = "no correction reduces its error of {:.3g}"

Remember = Callable[[Tensor], Tensor]  # returns a copy


class Pair(NamedTuple):
    """For one batch: the input of a layer, its wanted output, and a mask of the tokens that count."""

    given: Tensor
    wanted: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class Correction:
    """A corrected layer: the method, and the relative error of its output before and after, on inputs from
    the corrected model and on batches that were not used for the fit."""

    place: str
    method: str
    activations: tuple[str, ...]
    before: float
    after: float


class CannotCorrectError(Exception):
    """Its message is the reason in the record."""


def compute(module: nn.Module, given: Tensor) -> Tensor:
    """Compute the output of a layer in the dtype of its weight, without its hooks; for a BatchNorm only the
    normalization, since a subclass may end with an activation."""
    if not isinstance(module, _BatchNorm):
        weight = module._parameters.get("weight")
        if weight is not None and weight.is_floating_point():
            given = given.to(weight.dtype)
        output: Tensor = module.forward(given)
        return output
    channels = given.shape[1] if given.dim() > 1 else 0
    if channels != module.num_features:
        raise CannotCorrectError(
            f"dimension 1 of its input has {channels} entries, not {module.num_features} channels"
        )
    assert module.running_mean is not None
    dtype = module.running_mean.dtype if module.weight is None else module.weight.dtype
    return _BatchNorm.forward(module, given.to(dtype))


def correct(
    target: CalibrationTarget, fitted: list[Pair], judged: list[Pair], method: str, remember: Remember
) -> Correction:
    """Fit corrections to the pairs ``fitted``; make the one with the smallest error on ``judged``, in place.
    ``remember`` is called with each tensor before it is overwritten."""
    if target.is_norm:
        return _renew_norm(target, fitted, judged, remember)
    layer = _Layer(target.module)
    steps = {"none": _Step(None, None)} | _steps(layer, target, fitted, method)
    old = [(tensor, remember(tensor)) for tensor in (layer.weight, layer.bias) if tensor is not None]

    def put(step: _Step) -> float:
        for tensor, value in old:
            tensor.copy_(value)
        layer.add(step)
        return _error(target, judged)

    errors = {name: put(step) for name, step in steps.items()}
    best = min(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
    put(steps[best])
    if best == "none":
        raise CannotCorrectError(_NO_BETTER.format(errors["none"]))
    return Correction(target.place, best, target.activations, errors["none"], errors[best])


# -- what a layer is given and gives, as rows -------------------------------------------------------


class _Step(NamedTuple):
    weight: Tensor | None  # outputs by inputs
    bias: Tensor | None


class _Layer:
    """A linear layer as a matrix that acts on rows."""

    def __init__(self, module: nn.Module) -> None:
        weight = module._parameters["weight"]
        assert weight is not None
        self.module = module
        self.weight = weight
        self.bias = module._parameters.get("bias")
        self._is_convolution = isinstance(module, CONVOLUTIONS)
        self._is_transposed = not isinstance(module, (nn.Linear, *CONVOLUTIONS))  # as in GPT-2

    def unsupported_reason(self, rows: int) -> str:
        """Why least squares cannot fit it to this number of rows, empty if it can."""
        module: Any = self.module
        kind = type(module)
        if self._is_convolution:
            if not isinstance(module, (nn.Conv1d, nn.Conv2d)):
                return f"its type, {kind.__name__}, is unsupported"
            if kind.forward not in (nn.Conv1d.forward, nn.Conv2d.forward):
                return f"its class, {kind.__name__}, overrides forward"
            if module.groups > 1:
                return f"it has {module.groups} groups"
            if module.padding_mode != "zeros":
                return f"its padding mode is {module.padding_mode!r}"
            if isinstance(module.padding, str):
                return f"its padding is {module.padding!r}"
        fan_in = self.weight.numel() // self.weight.shape[1 if self._is_transposed else 0]
        return f"{rows} rows for {fan_in} inputs are too few" if rows < fan_in else ""

    def inputs(self, x: Tensor, mask: Tensor | None) -> Tensor:
        module: Any = self.module
        if not self._is_convolution:
            return _rows(x, mask)
        x = self._batched(_computed(x))
        window = [module.kernel_size, module.dilation, module.padding, module.stride]
        if isinstance(module, nn.Conv1d):  # as an image of height 1
            x = x.unsqueeze(2)
            window = [(own, *each) for own, each in zip((1, 1, 0, 1), window, strict=True)]
        return F.unfold(x, *window).transpose(1, 2).flatten(0, 1)

    def outputs(self, y: Tensor, mask: Tensor | None) -> Tensor:
        return _rows(self._batched(y).movedim(1, -1), None) if self._is_convolution else _rows(y, mask)

    def _batched(self, x: Tensor) -> Tensor:
        """Add the batch dimension, which inputs and outputs of a convolution may lack."""
        module: Any = self.module
        return x if x.dim() == len(module.kernel_size) + 2 else x.unsqueeze(0)

    def add(self, step: _Step) -> None:
        if step.weight is not None:
            by_weight = step.weight.T if self._is_transposed else step.weight.reshape(self.weight.shape)
            self.weight.copy_(self.weight.to(by_weight.dtype) + by_weight)
        if step.bias is not None and self.bias is not None:
            self.bias.copy_(self.bias.to(step.bias.dtype) + step.bias)


def _rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """Flatten to rows; drop the masked ones if the mask has one entry per row."""
    flat = _computed(x).reshape(-1, x.shape[-1])
    if mask is None or mask.numel() != len(flat) or x.shape[:-1] not in (mask.shape, flat.shape[:1]):
        return flat
    return flat[mask.flatten()]


def _computed(x: Tensor) -> Tensor:
    """Convert to float32, unless it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def _error(target: CalibrationTarget, pairs: Iterable[Pair]) -> float:
    """|output - wanted|/|wanted|; if a BatchNorm follows, which removes the means, without them."""
    layer = None if target.is_norm else _Layer(target.module)
    off, whole = 0.0, 0.0
    for given, wanted, mask in pairs:
        output = compute(target.module, given)
        if layer is not None:
            output, wanted = layer.outputs(output, mask), layer.outputs(wanted, mask)
        output, wanted = _computed(output), _computed(wanted)
        difference = output - wanted
        if layer is not None and target.feeds_norm:
            difference, wanted = difference - difference.mean(0), wanted - wanted.mean(0)
        off += float(torch.linalg.vector_norm(difference)) ** 2
        whole += float(torch.linalg.vector_norm(wanted)) ** 2
    return math.sqrt(off / whole) if whole else math.nan


# -- the corrections --------------------------------------------------------------------------------


def _steps(layer: _Layer, target: CalibrationTarget, fitted: list[Pair], method: str) -> dict[str, _Step]:
    rows = sum(len(layer.outputs(wanted, mask)) for _, wanted, mask in fitted)
    if rows == 0:
        raise CannotCorrectError("the mask excludes all tokens")
    reason = layer.unsupported_reason(rows)
    if layer.bias is None and reason:
        raise CannotCorrectError(f"it has no bias to shift, and least squares cannot fit it: {reason}")
    by_squares = method == "least-squares" and not reason
    h_mean, e_mean, hh, he = 0.0, 0.0, 0.0, 0.0  # type: Any, Any, Any, Any
    for given, wanted, mask in fitted:
        e = layer.outputs(wanted, mask) - layer.outputs(compute(target.module, given), mask)
        e_mean = e_mean + _wide(e.sum(0)) / rows
        if by_squares:
            h = layer.inputs(given, mask)
            h_mean = h_mean + _wide(h.sum(0)) / rows
            hh = hh + _wide(h.T @ h) / rows
            he = he + _wide(h.T @ e) / rows
    steps = {}
    if layer.bias is not None:
        steps["shift"] = _Step(None, e_mean)
    if by_squares:
        with_bias = layer.bias is not None or target.feeds_norm
        if with_bias:
            hh, he = hh - torch.outer(h_mean, h_mean), he - torch.outer(h_mean, e_mean)
        # not 0, even if every unit is dead and there is nothing to solve
        ridge = RIDGE * hh.diagonal().mean().clamp(min=torch.finfo(hh.dtype).tiny / RIDGE)
        eye = torch.eye(len(hh), dtype=hh.dtype, device=hh.device)
        weight = torch.linalg.solve(hh + ridge * eye, he).T
        steps["least-squares"] = _Step(weight, e_mean - weight @ h_mean if with_bias else None)
    return steps


def _wide(x: Tensor) -> Tensor:
    """Convert to float64, except on a device that does not support it."""
    return x if x.device.type == "mps" else x.double()


def _renew_norm(
    target: CalibrationTarget, fitted: list[Pair], judged: list[Pair], remember: Remember
) -> Correction:
    norm: Any = target.module
    before = _error(target, judged)
    values, mean, variance = _moments(compute(norm, pair.given) for pair in fitted)
    _, wanted_mean, wanted_variance = _moments(pair.wanted for pair in fitted)
    if values < 2:
        raise CannotCorrectError("fewer than two values per channel")
    old = [remember(tensor) for tensor in (norm.running_mean, norm.running_var)]
    old_mean, old_var = map(_wide, old)
    scale, offset = (_wide(norm.weight), _wide(norm.bias)) if norm.affine else (1.0, 0.0)
    # The output is scale (x - mean)/spread + offset.  The spread of a channel that does not vary cannot be
    # corrected, and neither spread nor mean of a channel whose scale is 0.
    ratio = (variance / wanted_variance).sqrt()
    spread = (old_var + norm.eps).sqrt()
    new_spread = spread * torch.where(ratio.isfinite() & (ratio > 0), ratio, 1)
    shift = ((mean - offset) * spread - (wanted_mean - offset) * new_spread) / scale
    norm.running_mean.copy_(old_mean + torch.where(shift.isfinite(), shift, 0))
    norm.running_var.copy_((new_spread.square() - norm.eps).clamp(min=0))
    after = _error(target, judged)
    if not after < before:
        norm.running_mean.copy_(old[0])
        norm.running_var.copy_(old[1])
        raise CannotCorrectError(_NO_BETTER.format(before))
    return Correction(target.place, "batch norm", target.activations, before, after)


def _moments(batches: Iterable[Tensor]) -> tuple[int, Tensor, Tensor]:
    """The number of values per channel, and their mean and variance."""
    count, around, total, squares = 0, 0.0, 0.0, 0.0  # type: int, Any, Any, Any
    for batch in batches:
        rows = _wide(batch.movedim(1, -1).reshape(-1, batch.shape[1]))
        around = around if count else rows[0]  # so that a channel that does not vary has a variance of 0
        count += len(rows)
        total = total + (rows - around).sum(0)
        squares = squares + (rows - around).square().sum(0)
    return count, around + total / count, squares / count - (total / count).square()
