"""recalibrate(): let the layers behind a swapped activation take up the change, without training.

Which layers: :mod:`iglu.swapping.feeding`.  How each is corrected: :mod:`iglu.swapping.fitting`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from iglu.functional import check_choice
from iglu.modules import IGLU
from iglu.notebooks import html_table
from iglu.running import Forward, as_it_was, device_of, each_batch, inputs_of, move, run
from iglu.swapping.feeding import Station, find_stations
from iglu.swapping.fitting import CannotCorrectError, Pair, correct
from iglu.swapping.lockstep import Walk, walks
from iglu.swapping.record import Change, Swap, grouped
from iglu.swapping.slots import find_slots, has_parameters, is_activation, signature

METHODS = ("least-squares", "shift", "norms")
_JUDGING = 5  # one batch in so many judges and is not fitted to


@dataclass(frozen=True)
class Correction:
    """One layer that was corrected: how, and the error of its output relative to the original's, both on what
    the corrected model gives it, over batches that the correction was not made from."""

    place: str
    method: str
    activations: tuple[str, ...]
    before: float
    after: float


@dataclass(frozen=True)
class Uncorrected:
    """A layer, or an activation with no layer behind it, that was not corrected, and why."""

    place: str
    reason: str


@dataclass(frozen=True, eq=False)
class _TensorChange:
    """A weight, a bias or a statistic that was written over."""

    place: str
    tensor: Tensor
    old: Tensor

    def stands(self) -> bool:
        return True

    def put_back(self) -> None:
        with torch.no_grad():
            self.tensor.copy_(self.old)


@dataclass(frozen=True, repr=False)
class Recalibration:
    """What :func:`recalibrate` did, and what it could not do."""

    corrected: list[Correction] = field(default_factory=list)
    left: list[Uncorrected] = field(default_factory=list)
    zeros: dict[str, float] = field(default_factory=dict)
    """The share of exact zeros among the outputs of each new activation."""
    changes: list[Change] = field(default_factory=list, compare=False)

    def undo(self) -> None:
        """Put back the old weights and statistics.  A second call does nothing."""
        while self.changes:
            self.changes.pop().put_back()

    def __repr__(self) -> str:
        listed = [f"{title} {place}{text}".lstrip() for title, place, text in grouped(self._rows(": "))]
        return "\n  ".join([self._title, *listed, *self._zeros()])

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        return html_table(self._title, ["", "place", ""], grouped(self._rows("")), self._zeros())

    @property
    def _title(self) -> str:
        count = len(self.corrected)
        return f"Recalibration: {count} layer{'' if count == 1 else 's'} corrected, {len(self.left)} left"

    def _rows(self, colon: str) -> list[tuple[str, str, str]]:
        rows = [
            ("", each.place, f"{colon}{each.method}, error {each.before:.3g} -> {each.after:.3g}")
            for each in self.corrected
        ]
        return rows + [("left", each.place, f"{colon}{each.reason}") for each in self.left]

    def _zeros(self) -> list[str]:
        shares = self.zeros.values()
        if not shares or max(shares) < 0.005:  # of smooth ones a few, where they are given 0
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
    """Correct ``model``, whose activations were swapped, so that its layers give what those of ``like`` give,
    the model before the swap.  Nothing is trained; the batches need no targets.

    The linear layers and convolutions that a swapped activation feeds are fitted by ``"least-squares"``, or
    have the change of their mean folded into their bias by ``"shift"``; every BatchNorm that follows gets
    statistics with which its output has the mean and the variance that it had (``"norms"``: nothing else).
    The layers are corrected in the order of the forward, each on what the corrected model gives it.  One
    batch in five judges (a single one does both): of no correction, the shift and least squares a layer keeps
    what does best there.  Statistics are summed in float32 or better; the dtype of the model and its
    arithmetic stay as they are.  An exception leaves the model as it was, and ``undo()`` of the record puts
    it back.

    Batches are as for :func:`iglu.probe`, all held in memory.  Tokens that the ``attention_mask`` of a batch
    excludes do not count.

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
        raise ValueError("like must be the model before the swap, a copy of its own; got the model itself")
    data = [move(batch, device_of(model)) for batch in each_batch(batches)]
    if not data:
        raise ValueError("batches is empty: there is nothing to calibrate on")
    call = run if forward is None else forward
    record = Recalibration()
    activations = _changed(model, like, record)
    try:
        with as_it_was(model, buffers=False), as_it_was(like):
            stations = find_stations(model, activations, lambda: call(model, data[0]))
            fed = {place for station in stations for place in station.activations}
            for place in activations.keys() - fed if method != "norms" else ():
                record.left.append(Uncorrected(place, "no linear layer behind it"))
            chosen = _correctable(stations, model, method, record)
            with _count_zeros(activations, record.zeros):
                _correct(chosen, model, like, data, call, method, record)
    except BaseException:
        record.undo()
        raise
    return record


def harden(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    method: str = "least-squares",
    forward: Forward | None = None,
) -> Recalibration:
    """Every IGLU of ``model`` becomes an exact ``nn.ReLU``, in place, and the layers behind are recalibrated.

    The record tells the share of exact zeros that each activation gives; its ``undo()`` brings the IGLUs
    back, too.  See :func:`recalibrate`.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 32), IGLU(5.0), nn.Linear(32, 4))
    >>> harden(model, torch.randn(20, 64, 8).unbind())
    Recalibration: 1 layer corrected, 0 left
      2: least-squares, error 0.147 -> 0.0237
      exact zeros: 52% of the activations, 52% to 52%
    """
    from iglu.swapping import swap

    if not any(isinstance(module, IGLU) for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} has no IGLU to harden; "
            "iglu.swap(model, 'relu', recalibrate=batches) takes any activation"
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
    """Both or neither; undoing the swap then puts back the weights as well."""
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
    """The activations of the model that are others in ``like``, by place."""
    before = {slot.place: slot.content for slot in find_slots(like)}
    found: dict[str, nn.Module] = {}
    for slot in find_slots(model):
        if not is_activation(slot.content) or _is_same(slot.content, before.get(slot.place)):
            continue
        if slot.place not in before:
            raise ValueError(
                f"like must be the model before the swap: it has nothing at {slot.place!r}, where the model "
                f"has {slot.content}"
            )
        if isinstance(slot.content, nn.Module):
            found[slot.place] = slot.content
        else:
            record.left.append(Uncorrected(slot.place, "called by name inside a forward, so not followed"))
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
    stations: list[Station], model: nn.Module, method: str, record: Recalibration
) -> list[Station]:
    """Those that are to be corrected and can be; of the others the record says why."""
    users: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    found = []
    for station in stations:
        if method == "norms" and not station.is_norm:
            continue
        reason = _why_not(station, method, users)
        if reason:
            record.left.append(Uncorrected(station.place, reason))
        else:
            found.append(station)
    return found


def _why_not(station: Station, method: str, users: Mapping[int, int]) -> str:
    """Why this layer cannot be corrected, empty if it can."""
    if station.calls > 1:
        return f"a shared layer, called {station.calls} times in a forward"
    if station.is_norm:
        return ""
    weight = station.module._parameters.get("weight")
    if weight is None:
        return "its weight is computed, not held: parametrized or packed"
    if not weight.is_floating_point() or weight.element_size() < 2:
        return f"its weight is quantised, {weight.dtype}"
    if users[id(weight)] > 1:
        return f"its weight is tied, {users[id(weight)]} places hold it"
    if method == "shift" and station.module._parameters.get("bias") is None:
        return "it has no bias to take up the shift" + ("; the BatchNorm does" if station.feeds_norm else "")
    return ""


# -- side by side -----------------------------------------------------------------------------------


def _correct(
    stations: list[Station],
    model: nn.Module,
    like: nn.Module,
    data: list[Any],
    call: Forward,
    method: str,
    record: Recalibration,
) -> None:
    def remember(tensor: Tensor) -> Tensor:
        change = _TensorChange(station.place, tensor, tensor.detach().clone())
        record.changes.append(change)
        return change.old

    ours = [functools.partial(call, model, batch) for batch in data]
    theirs = [functools.partial(call, like, batch) for batch in data]
    modules = [station.module for station in stations]
    originals = [like.get_submodule(station.place) for station in stations]
    with walks(ours, modules, after=False) as given, walks(theirs, originals, after=True) as wanted:
        for number, station in enumerate(stations):
            pairs = []
            for batch, mine, its in zip(data, given, wanted, strict=True):
                x, y = mine.reach(number), its.reach(number)
                if x is not None and y is not None:
                    pairs.append(Pair(x, y, _mask(batch, station.place)))
            judging = len(pairs) // _JUDGING or int(len(pairs) > 1)
            fitted, judged = (pairs[:-judging], pairs[-judging:]) if judging else (pairs, pairs)
            try:
                with torch.no_grad():
                    outcome = correct(station, fitted, judged, method, remember)
            except CannotCorrectError as why:
                record.left.append(Uncorrected(station.place, str(why)))
                continue
            if outcome.method == "none":
                reason = f"no correction does better than an error of {outcome.before:.3g}"
                record.left.append(Uncorrected(station.place, reason))
            else:
                record.corrected.append(
                    Correction(
                        station.place, outcome.method, station.activations, outcome.before, outcome.after
                    )
                )
        for walk in given:
            walk.finish()


def _mask(batch: Any, place: str) -> Tensor | None:
    """The tokens that count: the attention mask of the batch, the decoder's own for its layers."""
    inputs = inputs_of(batch)
    if not isinstance(inputs, Mapping):
        return None
    is_decoder = "decoder_input_ids" in inputs and "decoder" in place.split(".")
    mask = inputs.get("decoder_attention_mask" if is_decoder else "attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None


@contextlib.contextmanager
def _count_zeros(activations: dict[str, nn.Module], shares: dict[str, float]) -> Iterator[None]:
    """The share of exact zeros among what these activations give in the forwards inside."""
    counts = {place: [0, 0] for place in activations}

    def hook(place: str, module: nn.Module, args: Any, output: Tensor) -> None:
        if isinstance(threading.current_thread(), Walk):
            counts[place][0] += output.numel() - int(output.count_nonzero())
            counts[place][1] += output.numel()

    handles = [
        module.register_forward_hook(functools.partial(hook, place)) for place, module in activations.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    shares.update({place: zeros / total for place, (zeros, total) in counts.items() if total})
