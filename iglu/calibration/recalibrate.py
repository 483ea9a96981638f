"""recalibrate(): after a swap, correct the following layers so that they compensate, without training.

:mod:`iglu.calibration.dataflow` finds the layers, :mod:`iglu.calibration.closed_form` corrects them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from iglu.calibration.closed_form import CannotCorrectError, Correction, Pair, compute, correct
from iglu.calibration.dataflow import CalibrationTarget, find_targets
from iglu.calibration.synchronized import PausedForward, no_autocast, paused_forwards
from iglu.functional import check_choice
from iglu.model_runner import Forward, device_of, each_batch, inputs_of, move, restored_afterwards, run
from iglu.modules import IGLU
from iglu.surgery.activations import has_parameters, is_activation, signature
from iglu.surgery.record import Change, Record, Row, Swap, put_back
from iglu.surgery.sites import find_sites

METHODS = ("least-squares", "shift", "norms")
_JUDGING = 5  # one batch in this many is held out to compare corrections


@dataclass(frozen=True)
class Uncorrected:
    """A layer, or an activation that no linear layer follows, that was not corrected, and why."""

    place: str
    reason: str


@dataclass(frozen=True, eq=False)
class _TensorChange(Change):
    """A weight, a bias or a statistic that was overwritten."""

    tensor: Tensor
    old: Tensor

    def put_back(self) -> None:
        with torch.no_grad():
            self.tensor.copy_(self.old)
        torch.clear_autocast_cache()  # of copies of the tensor in a lower precision


@dataclass(frozen=True, repr=False)
class Recalibration(Record):
    """What :func:`recalibrate` did, and what it could not do."""

    corrected: list[Correction] = field(default_factory=list)
    left: list[Uncorrected] = field(default_factory=list)
    zeros: dict[str, float] = field(default_factory=dict)
    """The share of exact zeros among the outputs of each new activation."""
    changes: list[Change] = field(default_factory=list, compare=False)

    def undo(self) -> None:
        """Restore the old weights and statistics.  A second call does nothing."""
        put_back(self.changes)

    def _title(self) -> str:
        count = len(self.corrected)
        return f"Recalibration: {count} layer{'' if count == 1 else 's'} corrected, {len(self.left)} left"

    def _rows(self) -> Iterator[Row]:
        for each in self.corrected:
            yield "", each.place, f"{each.method}, error {each.before:.3g} -> {each.after:.3g}"
        for layer in self.left:
            yield "left", layer.place, layer.reason

    def _notes(self) -> list[str]:
        shares = self.zeros.values()
        if not shares or max(shares) < 0.005:  # smooth activations have a few, at inputs of 0
            return []
        mean = sum(shares) / len(shares)
        return [f"exact zeros: {mean:.0%} of the activations, {min(shares):.0%} to {max(shares):.0%}"]


def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    like: nn.Module,
    method: str = "least-squares",
    forward: Forward | None = None,
) -> Recalibration:
    """Correct ``model``, whose activations were swapped, so that the outputs of its layers match those of
    ``like``, the model before the swap.  Nothing is trained; the batches need no targets.

    This corrects the linear layers and convolutions that a swapped activation feeds, and every BatchNorm
    after it: new statistics restore the mean and variance of its output.  Layers are corrected in the order
    of the forward, each on its inputs in the corrected model.  One batch in five is held out to compare
    corrections (a single batch is used for both): a layer keeps the best of no correction, shift and least
    squares; a BatchNorm keeps its old statistics if the new ones are not better.  Forwards run under autocast
    if the caller does; corrections are computed without it.  Statistics are summed in float32 or float64; the
    dtype of the model and its arithmetic do not change.  After an exception the model is unchanged;
    ``undo()`` of the record restores it.

    Args:
        model: The model after the swap; it is changed in place.
        batches: Batches as for :func:`iglu.probe`, all held in memory.  Tokens that the ``attention_mask`` of
            a batch excludes do not count.
        like: The model before the swap, as a separate copy.
        method: "least-squares" fits the weights of the following layers, "shift" corrects only their bias, by
            the change of their mean output, "norms" only the statistics of BatchNorm.
        forward: Called as ``forward(model, batch)`` instead of the model, for other kinds of batches.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
    >>> like = copy.deepcopy(model)
    >>> model[1] = IGLU(2.0)
    >>> recalibrate(model, torch.randn(20, 64, 8).unbind(), like=like)
    Recalibration: 1 layer corrected, 0 left
      2: least-squares, error 0.0616 -> 0.0379
    """
    check_choice("method", method, METHODS)
    for name, value in (("model", model), ("like", like)):
        if not isinstance(value, nn.Module):
            raise TypeError(f"{name} must be an nn.Module, got {type(value).__name__}")
    if model is like:
        raise ValueError("like must be a separate copy of the model before the swap, got the model itself")
    data = [move(batch, device_of(model)) for batch in each_batch(batches)]
    if not data:
        raise ValueError("batches is empty: there is nothing to calibrate on")
    call = run if forward is None else forward
    record = Recalibration()
    activations = _changed(model, like, record)
    try:
        with restored_afterwards(model, buffers=False), restored_afterwards(like):
            targets = find_targets(model, activations, lambda: call(model, data[0]))
            fed = {place for target in targets for place in target.activations}
            for place in activations.keys() - fed if method != "norms" else ():
                record.left.append(Uncorrected(place, "no linear layer follows it"))
            chosen = _correctable(targets, model, method, record)
            with _count_zeros(activations, record.zeros):
                _correct(chosen, model, like, data, call, method, record)
    except BaseException:
        record.undo()
        raise
    return record


def to_relu(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    method: str = "least-squares",
    forward: Forward | None = None,
) -> Recalibration:
    """Replace every IGLU of ``model`` by an exact ``nn.ReLU``, in place, and recalibrate.

    The record has the share of exact zeros in the output of each activation; its ``undo()`` also restores the
    IGLUs.

    Args:
        model: A model with IGLU modules; other activations are kept.
        batches: Batches to recalibrate on, as for :func:`iglu.recalibrate`.
        method: How the following layers compensate, as in :func:`iglu.recalibrate`.
        forward: Called as ``forward(model, batch)`` instead of the model, for other kinds of batches.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 32), IGLU(5.0), nn.Linear(32, 4))
    >>> to_relu(model, torch.randn(20, 64, 8).unbind())
    Recalibration: 1 layer corrected, 0 left
      2: least-squares, error 0.147 -> 0.0237
      exact zeros: 52% of the activations, 52% to 52%
    """
    from iglu.surgery import swap

    if not any(isinstance(site.content, IGLU) for site in find_sites(model)):
        raise ValueError(
            f"{type(model).__name__} has no IGLU to convert; "
            "iglu.swap(model, 'relu', recalibrate=batches) replaces other activations"
        )
    record, calibration = swap_and_recalibrate(
        lambda: swap(model, "relu", only=IGLU), model, batches, method, forward
    )
    calibration.changes[:] = record.changes
    return calibration


def swap_and_recalibrate(
    do: Callable[[], Swap],
    model: nn.Module,
    batches: Iterable[Any],
    method: str = "least-squares",
    forward: Forward | None = None,
) -> tuple[Swap, Recalibration]:
    """Swap and recalibrate, or neither if one fails; undoing the swap also restores the weights."""
    like = copy.deepcopy(model)
    record = do()
    try:
        calibration = recalibrate(model, batches, like=like, method=method, forward=forward)
    except BaseException:
        record.undo()
        raise
    record.changes.extend(calibration.changes)
    return record, calibration


# -- what has changed, and what can be corrected ----------------------------------------------------


def _changed(model: nn.Module, like: nn.Module, record: Recalibration) -> dict[str, nn.Module]:
    """The activations of the model that differ from those of ``like``, by place."""
    before = {site.place: site.content for site in find_sites(like)}
    found: dict[str, nn.Module] = {}
    for site in find_sites(model):
        if not is_activation(site.content) or _is_same(site.content, before.get(site.place)):
            continue
        if site.place not in before:
            raise ValueError(
                f"like must be the model before the swap: it has nothing at {site.place!r}, where the model "
                f"has {site.content}"
            )
        if isinstance(site.content, nn.Module):
            found[site.place] = site.content
        else:
            record.left.append(Uncorrected(site.place, "looked up by name inside a forward, so not traced"))
    if not found and not record.left:
        raise ValueError(f"{type(model).__name__} and like have the same activations: nothing was swapped")
    return found


def _is_same(one: Any, other: Any) -> bool:
    if signature(one) != signature(other):
        return False
    if not isinstance(one, nn.Module) or not has_parameters(one):
        return True
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(mine, its) for mine, its in pairs)


def _correctable(
    targets: list[CalibrationTarget], model: nn.Module, method: str, record: Recalibration
) -> list[CalibrationTarget]:
    """The targets of this method that can be corrected; record the reason for the others."""
    users = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    found = []
    for target in targets:
        if method == "norms" and not target.is_norm:
            continue
        reason = _unsupported_reason(target, method, users)
        if reason:
            record.left.append(Uncorrected(target.place, reason))
        else:
            found.append(target)
    return found


def _unsupported_reason(target: CalibrationTarget, method: str, users: Mapping[int, int]) -> str:
    """Why this layer cannot be corrected, empty if it can."""
    if target.calls > 1:
        return f"a shared layer, called {target.calls} times in a forward"
    if target.is_norm:
        return ""
    weight = target.module._parameters.get("weight")
    if weight is None:
        return "its weight is computed, not stored: parametrized or packed"
    if not weight.is_floating_point() or weight.element_size() < 2:
        return f"its weight is quantized, {weight.dtype}"
    if users[id(weight)] > 1:
        return f"its weight is tied: {users[id(weight)]} modules share it"
    if method == "shift" and target.module._parameters.get("bias") is None:
        norm = "; the BatchNorm that follows compensates" if target.feeds_norm else ""
        return "it has no bias for the shift" + norm
    return ""


# -- the corrections --------------------------------------------------------------------------------


def _correct(
    targets: list[CalibrationTarget],
    model: nn.Module,
    like: nn.Module,
    data: list[Any],
    call: Forward,
    method: str,
    record: Recalibration,
) -> None:
    def remember(tensor: Tensor) -> Tensor:
        old = tensor.detach().clone()
        record.changes.append(_TensorChange(tensor, old))
        return old

    ours = [functools.partial(call, model, batch) for batch in data]
    theirs = [functools.partial(call, like, batch) for batch in data]
    modules = [target.module for target in targets]
    originals = [like.get_submodule(target.place) for target in targets]
    with (
        paused_forwards(ours, modules) as given,
        paused_forwards(theirs, originals) as before,
        no_autocast(),
        torch.no_grad(),
    ):
        for number, (target, original) in enumerate(zip(targets, originals, strict=True)):
            reached = [
                (mine.run_to(number), its.run_to(number)) for mine, its in zip(given, before, strict=True)
            ]
            try:
                pairs = [
                    Pair(x, compute(original, y), _mask(batch, target.place))
                    for batch, (x, y) in zip(data, reached, strict=True)
                    if x is not None and y is not None
                ]
                judging = len(pairs) // _JUDGING or int(len(pairs) > 1)
                fitted, judged = (pairs[:-judging], pairs[-judging:]) if judging else (pairs, pairs)
                record.corrected.append(correct(target, fitted, judged, method, remember))
            except CannotCorrectError as why:
                record.left.append(Uncorrected(target.place, str(why)))
        for mine in given:
            mine.run_to(len(targets))


def _mask(batch: Any, place: str) -> Tensor | None:
    """The mask of the tokens that count: the attention mask, of the decoder for its layers."""
    inputs = inputs_of(batch)
    if not isinstance(inputs, Mapping):
        return None
    is_decoder = "decoder_input_ids" in inputs and "decoder" in place.split(".")
    mask = inputs.get("decoder_attention_mask" if is_decoder else "attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None


@contextlib.contextmanager
def _count_zeros(activations: dict[str, nn.Module], shares: dict[str, float]) -> Iterator[None]:
    """Measure the share of exact zeros in the outputs of these activations, in the forwards inside."""
    counts = {place: [0, 0] for place in activations}

    def hook(place: str, module: nn.Module, args: Any, output: Tensor) -> None:
        if isinstance(threading.current_thread(), PausedForward):
            counts[place][0] += output.numel() - int(output.count_nonzero())
            counts[place][1] += output.numel()

    with contextlib.ExitStack() as stack:
        for place, module in activations.items():
            stack.enter_context(module.register_forward_hook(functools.partial(hook, place)))
        yield
    shares.update({place: zeros / total for place, (zeros, total) in counts.items() if total})
