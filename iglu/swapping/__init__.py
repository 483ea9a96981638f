"""swap(): put an activation into any existing model, and say what was and what was not replaced."""

from __future__ import annotations

import copy
import fnmatch
import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from iglu import zoo
from iglu.swapping.slots import (
    Slot,
    find_calls,
    find_slots,
    function_name,
    has_parameters,
    is_activation,
    is_replaced_by_default,
    name_of,
    read_path,
)

Factory = Callable[[], nn.Module]
Replacing = str | nn.Module | Factory
Rule = str | type | Callable[[str, Any], bool]


@dataclass(frozen=True)
class Replacement:
    """One activation that was replaced."""

    place: str
    old: str
    new: str


@dataclass(frozen=True)
class FunctionalCall:
    """A call of an activation inside a forward, out of reach from outside: the place of the module, the
    call as written, and where it is written."""

    place: str
    call: str
    source: str


@dataclass(frozen=True, repr=False)
class Swap:
    """What :func:`swap` did, and what it saw and could not do."""

    replaced: list[Replacement] = field(default_factory=list)
    functional: list[FunctionalCall] = field(default_factory=list)
    not_saved: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        rows = [("replaced", each.place, f": {each.old} -> {each.new}") for each in self.replaced]
        rows += [("functional", each.place, f": {each.call} ({each.source})") for each in self.functional]
        rows += [("not saved", place, "") for place in self.not_saved]
        return (
            f"Swap: {len(self.replaced)} replaced, {len(self.functional)} functional calls left, "
            f"{len(self.not_saved)} not saved" + "".join(f"\n  {line}" for line in _summary(rows))
        )


class _Maker(NamedTuple):
    make: Factory
    text: str | None  # its name in the grammar of the zoo, if that is how it was given


class _Filling(NamedTuple):
    slot: Slot
    new: nn.Module
    text: str | None  # the name of the new one, if it has one


def swap(
    model: nn.Module,
    to: Replacing | Mapping[str, Replacing],
    only: Rule | Iterable[Rule] | None = None,
) -> Swap:
    """Replace the activations of ``model``, in place, and return a record of it.

    ``to`` is a name (``"iglu:0.5"``), a callable that makes a module, a module (copied for each place), or
    a mapping from places or patterns to these.  Every place gets an instance of its own, on the device, in
    the dtype and in the mode of its surroundings.  ``only`` narrows the choice: a pattern for the place
    (``"layer1.*"``), a type, a callable ``(place, module) -> bool``, or several of them, one of which must
    agree.  Sigmoids, tanhs and whatever learns are replaced only if their type or exact place is given.

    The config of a transformers model is brought up to date, so that ``save_pretrained`` and
    ``from_pretrained`` agree with the model; places that no config can express are in ``not_saved``.

    >>> swap(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "iglu:0.5")
    Swap: 1 replaced, 0 functional calls left, 0 not saved
      replaced 1: ReLU() -> IGLU(sigma=0.5)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if is_activation(model):
        raise ValueError(
            f"The model is itself an activation, {model}: there is no place in it for another. "
            "Use iglu.create."
        )
    slots = list(find_slots(model))
    fillings = [_fill(slot, maker, model) for slot, maker in _choose(slots, to, _rules(only))]

    replaced = [_put(filling) for filling in fillings if _can_hold(filling) and len(filling.slot.path) == 1]
    _leave_fused_paths(model)
    not_saved: list[str] = []
    if fillings and "transformers.modeling_utils" in sys.modules:
        from iglu.integrations import transformers as integration

        names = {each.slot.place: each.text for each in fillings if each.text is not None and _can_hold(each)}
        not_saved = integration.settle_configs(model, [each.place for each in replaced], names)
    for slot, _, text in fillings:  # names in a config, if it was rewritten
        if len(slot.path) > 1 and text is not None and read_path(slot.parent, slot.path) == text:
            replaced.append(Replacement(slot.place, slot.content, text))
    if not_saved:
        shown = ", ".join(not_saved[:3]) + (", ..." if len(not_saved) > 3 else "")
        warnings.warn(
            f"No config can express {len(not_saved)} of the new activations of {type(model).__name__} "
            f"({shown}): from_pretrained brings the old ones back. Swap again after loading, then load the "
            "state dict.",
            stacklevel=2,
        )
    untold = {slot.place for slot in slots} - {each.slot.place for each in fillings}
    calls = find_calls(model, settled=untold | {each.place for each in replaced})
    return Swap(replaced, [FunctionalCall(*call) for call in calls], not_saved)


def _rules(only: Any) -> list[Rule] | None:
    if only is None:
        return None
    several = isinstance(only, Iterable) and not isinstance(only, str) and not callable(only)
    rules = list(only) if several else [only]
    for rule in rules:
        if not isinstance(rule, str) and not callable(rule):
            raise TypeError(f"only must be a pattern, a type, a callable or a list of these, got {rule!r}")
    return rules


def _maker(to: Any) -> _Maker:
    if isinstance(to, str):
        zoo.create(to)  # raises for an unknown or malformed name before anything is touched
        return _Maker(functools.partial(zoo.create, to), to)
    if isinstance(to, nn.Module):
        return _Maker(functools.partial(copy.deepcopy, to), None)
    if callable(to):
        return _Maker(to, None)
    raise TypeError(f"to must be a name, a module, a callable or a mapping to these, got {to!r}")


def _choose(slots: list[Slot], to: Any, rules: list[Rule] | None) -> Iterator[tuple[Slot, _Maker]]:
    """The slots to fill, each with what makes its new content."""
    by_key = {key: _maker(value) for key, value in to.items()} if isinstance(to, Mapping) else None
    everywhere = _maker(to) if by_key is None else None
    unused = set(by_key or ())
    chosen: list[tuple[Slot, _Maker]] = []
    inside_chosen: list[str] = []
    for slot in slots:
        maker = everywhere
        if by_key is not None:
            # An exact place comes before a pattern.
            keys = sorted((key for key in by_key if _agrees(key, slot)), key=lambda key: key != slot.place)
            unused -= set(keys[:1])
            maker = by_key[keys[0]] if keys else None
        narrowed = rules is None or any(_agrees(rule, slot) for rule in rules)
        if rules is None and by_key is None:
            narrowed = is_replaced_by_default(slot.content)
        if maker is not None and narrowed and not slot.place.startswith(tuple(inside_chosen)):
            chosen.append((slot, maker))
            inside_chosen.append(f"{slot.place}.")
    for key in sorted(unused):
        places = [slot.place for slot in slots if is_replaced_by_default(slot.content)]
        shown = ", ".join(places[:5]) + (", ..." if len(places) > 5 else "")
        raise ValueError(f"There is no activation at {key!r}. Places of this model: {shown or 'none'}.")
    return iter(chosen)


def _agrees(rule: Rule, slot: Slot) -> bool:
    """A type or an exact place names what it means; patterns and callables choose among the usual."""
    usual = is_replaced_by_default(slot.content)
    if isinstance(rule, type):
        return isinstance(slot.content, rule) and (usual or rule is not nn.Module)
    if isinstance(rule, str):
        named = rule == slot.place and is_activation(slot.content)
        return named or (usual and fnmatch.fnmatchcase(slot.place, rule))
    return usual and bool(rule(slot.place, slot.content))


def _fill(slot: Slot, maker: _Maker, model: nn.Module) -> _Filling:
    new = maker.make()
    if not isinstance(new, nn.Module):
        raise TypeError(f"to must make an nn.Module, got {new!r}")
    nearby = _nearest_tensor(slot, model)
    if nearby is not None:
        new.to(device=nearby.device, dtype=nearby.dtype)
    new.train(slot.content.training if isinstance(slot.content, nn.Module) else slot.parent.training)
    return _Filling(slot, new, maker.text if maker.text is not None else name_of(new))


def _nearest_tensor(slot: Slot, model: nn.Module) -> torch.Tensor | None:
    """The first tensor around the slot that shows dtype and device: floating-point, not quantised."""
    line = [model]
    for name in slot.place.split("."):
        child = line[-1]._modules.get(name)
        if child is None:
            break
        line.append(child)
    for home in (slot.parent, *reversed(line)):
        for tensor in (*home.parameters(), *home.buffers()):
            if tensor.is_floating_point() and tensor.element_size() > 1:
                return tensor
    return None


def _can_hold(filling: _Filling) -> bool:
    """A name that is looked up anew at each forward cannot hold what is learned."""
    if not isinstance(filling.slot.content, str):
        return True
    return filling.text is not None and not has_parameters(filling.new)


def _put(filling: _Filling) -> Replacement:
    slot, new, text = filling
    (name,) = slot.path
    if isinstance(slot.content, str):
        setattr(slot.parent, name, text)
        return Replacement(slot.place, slot.content, str(text))
    if name in slot.parent._modules:
        slot.parent._modules[name] = new  # keeps the order of a Sequential, and names such as "0"
    else:
        setattr(slot.parent, name, new)
    if isinstance(slot.parent, nn.TransformerEncoderLayer):
        slot.parent.activation_relu_or_gelu = 0  # or evaluation would run a fused ReLU or GELU
    old = repr(slot.content) if isinstance(slot.content, nn.Module) else str(function_name(slot.content))
    return Replacement(slot.place, old, repr(new))


def _leave_fused_paths(model: nn.Module) -> None:
    """An encoder hands nested tensors to layers that run fused; those that do not cannot take them."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(layer, nn.TransformerEncoderLayer) and not layer.activation_relu_or_gelu
            for layer in module.layers
        ):
            module.use_nested_tensor = False


def _summary(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    """One line for all places that differ only by their numbers."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for title, place, text in rows:
        groups.setdefault((title, re.sub(r"\d+", "*", place), text), []).append(place)
    for (title, pattern, text), places in groups.items():
        where = places[0] or "(the model)" if len(places) == 1 else f"{pattern} ({len(places)} times)"
        yield f"{title} {where}{text}"
