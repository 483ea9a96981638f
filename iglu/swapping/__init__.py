"""swap(): put an activation into any existing model, and say what was and what was not replaced."""

from __future__ import annotations

import copy
import fnmatch
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from iglu import zoo
from iglu.swapping.record import Change, FunctionalCall, Replacement, Swap, change
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
    *,
    recalibrate: Iterable[Any] | None = None,
) -> Swap:
    """Replace the activations of ``model``, in place, and return a record of it.

    ``to`` is a name (``"iglu:0.5"``), a callable that makes a module, a module (copied for each place), or
    a mapping from places or patterns to these.  Every place gets an instance of its own, on the device, in
    the dtype and in the mode of its surroundings.  ``only`` narrows the choice: a pattern for the place
    (``"layer1.*"``), a type, a callable ``(place, module) -> bool``, or several of them, one of which must
    agree.  Sigmoids, tanhs and whatever learns are replaced only if their type or exact place is given.

    Hooks on a module that is replaced go on with the new one.  The config of a transformers model is brought
    up to date, so that ``save_pretrained`` and ``from_pretrained`` agree with the model; places that no
    config can express are in ``not_saved``.  A warning says if nothing was replaced, with what is there;
    ``record.undo()`` puts back what was.

    ``recalibrate=batches`` lets the layers behind take up the change, see :func:`iglu.recalibrate`.

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
    if recalibrate is not None:
        from iglu.swapping.recalibrate import swap_and_recalibrate

        done, calibration = swap_and_recalibrate(lambda: swap(model, to, only), model, recalibrate)
        return replace(done, recalibration=calibration)
    slots = list(find_slots(model))
    rules = _rules(only)
    fillings = [_fill(slot, maker, model) for slot, maker in _choose(slots, to, rules)]

    put = [filling for filling in fillings if _can_hold(filling) and len(filling.slot.path) == 1]
    instances = [id(filling.slot.content) for filling in put]
    changes: list[Change] = []
    for filling in put:
        changes += _put(filling, is_shared=instances.count(id(filling.slot.content)) > 1)
    replaced = [_replacement(filling) for filling in put]
    changes += _leave_fused_paths(model)
    not_saved: list[str] = []
    if fillings and "transformers.modeling_utils" in sys.modules:
        from iglu.integrations import transformers as integration

        names = {each.slot.place: each.text for each in fillings if each.text is not None and _can_hold(each)}
        not_saved, settled = integration.settle_configs(model, [each.place for each in replaced], names)
        changes += settled
    for filling in fillings:  # names in a config, if it was rewritten
        slot, _, text = filling
        if len(slot.path) > 1 and text is not None and read_path(slot.parent, slot.path) == text:
            replaced.append(_replacement(filling))
    untold = {slot.place for slot in slots} - {each.slot.place for each in fillings}
    calls = list(find_calls(model, settled=untold | {each.place for each in replaced}))
    record = Swap(replaced, [FunctionalCall(*call) for call in calls], not_saved, changes)
    for text in _complaints(record, type(model).__name__, slots, rules):
        warnings.warn(text, stacklevel=2)
    return record


def _complaints(record: Swap, model: str, slots: list[Slot], rules: list[Rule] | None) -> Iterator[str]:
    """What a user has to know even if the record is not looked at."""
    unmatched = [rule for rule in rules or () if not any(_agrees(rule, slot) for slot in slots)]
    patterns = [rule for rule in unmatched if isinstance(rule, str)]
    if rules is not None and len(unmatched) == len(rules):
        yield f"only matches no activation of {model}, so nothing was replaced. {_inventory(record, slots)}"
    elif patterns:
        stated = ", ".join(map(repr, patterns))
        yield f"only={stated} matches no activation of {model}. {_inventory(record, slots)}"
    elif not record.replaced:
        yield f"Nothing was replaced in {model}. {_inventory(record, slots)}"
    if record.not_saved:
        yield (
            f"No config can express {len(record.not_saved)} of the new activations of {model} "
            f"({_shown(record.not_saved, 3)}): from_pretrained brings the old ones back. Swap again after "
            "loading, then load the state dict."
        )


def _inventory(record: Swap, slots: list[Slot]) -> str:
    """The activations of a model, by how they can be reached."""
    usual: list[str] = []
    named: list[str] = []
    for slot in slots:
        if is_activation(slot.content):
            kind = usual if is_replaced_by_default(slot.content) else named
            by_name = ", a name looked up at every forward" if isinstance(slot.content, str) else ""
            kind.append(f"{slot.place}: {_written(slot.content)}{by_name}")
    calls = list(dict.fromkeys(f"{each.call} ({each.source})" for each in record.functional))
    parts = [
        f"It has {_shown(usual, 5)}." if usual else "",
        f"Only by type or exact place: {_shown(named, 5)}." if named else "",
        f"Called inside a forward, out of reach: {_shown(calls, 5)}." if calls else "",
    ]
    return " ".join(part for part in parts if part) or "It has no activation that swap knows."


def _shown(items: list[str], most: int) -> str:
    return "; ".join(items[:most]) + (f"; and {len(items) - most} more" if len(items) > most else "")


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
        raise ValueError(
            f"There is no activation at {key!r}. Places of this model: {_shown(places, 5) or 'none'}."
        )
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


def _put(filling: _Filling, is_shared: bool) -> list[Change]:
    slot, new, text = filling
    (name,) = slot.path
    if isinstance(slot.content, str):
        changes = change(slot.place, slot.parent, name, text)
        for twin in slot.twins:
            changes += change(slot.place, slot.parent, twin, copy.deepcopy(new))
        return changes
    if isinstance(slot.content, nn.Module):
        _keep_hooks(slot.content, new, is_shared)
    changes = change(slot.place, slot.parent, name, new)
    if isinstance(slot.parent, nn.TransformerEncoderLayer):
        # or evaluation would run a fused ReLU or GELU
        changes += change(slot.place, slot.parent, "activation_relu_or_gelu", 0)
    return changes


def _replacement(filling: _Filling) -> Replacement:
    slot, new, text = filling
    return Replacement(
        slot.place, _written(slot.content), str(text) if isinstance(slot.content, str) else repr(new)
    )


def _written(content: Any) -> str:
    """As a reader knows it: a module by its repr, a function by its name, a name as it is."""
    if isinstance(content, nn.Module | str):
        return str(content)
    return str(function_name(content))


_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


def _keep_hooks(old: nn.Module, new: nn.Module, is_shared: bool) -> None:
    """The new one shares the hooks of the old one, so that their handles go on removing them; of one that
    stands at several places each new one has a copy, or a hook added later would be called for all."""
    if not any(getattr(old, kind) for kind in _HOOKS):
        return
    for kind in _HOOKS:
        hooks = getattr(old, kind)
        vars(new)[kind] = type(hooks)(hooks) if is_shared else hooks
    vars(new)["_is_full_backward_hook"] = old._is_full_backward_hook


def _leave_fused_paths(model: nn.Module) -> list[Change]:
    """An encoder hands nested tensors to layers that run fused; those that do not cannot take them."""
    changes: list[Change] = []
    for place, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(layer, nn.TransformerEncoderLayer) and not layer.activation_relu_or_gelu
            for layer in module.layers
        ):
            changes += change(place, module, "use_nested_tensor", False)
    return changes
