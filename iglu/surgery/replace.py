"""swap(): replace the activations of any existing model, and record what was and what was not replaced."""

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
from iglu.modules import SigmaModule
from iglu.surgery.activations import (
    function_name,
    has_parameters,
    in_container,
    is_activation,
    is_replaced_by_default,
    module_like,
    name_of,
    pointwise_name,
)
from iglu.surgery.in_place import CannotRewriteError
from iglu.surgery.record import Change, FunctionalCall, Replacement, Swap, change, put_back
from iglu.surgery.rewrite import rewrite, rewritten_sites
from iglu.surgery.sites import Site, find_sites, read_path

Factory = Callable[[], nn.Module]
Replacing = str | nn.Module | Factory
Rule = str | type | Callable[[str, Any], bool]


class _Maker(NamedTuple):
    make: Factory
    text: str | None  # its name, as iglu.create takes it, if it was given by name


class _Insertion(NamedTuple):
    site: Site
    new: nn.Module
    text: str | None  # the name of the new activation, if it has one


def swap(
    model: nn.Module,
    to: Replacing | Mapping[str, Replacing],
    only: Rule | Iterable[Rule] | None = None,
    *,
    recalibrate: Iterable[Any] | None = None,
) -> Swap:
    """Replace the activations of ``model`` in place, and return a record of the changes.

    This replaces modules (``nn.ReLU()``), functions in attributes (``self.act = F.relu``) and calls inside a
    forward (``F.relu(x)``); each such call becomes a child module, ``relu_1``, ``relu_2`` and so on.

    Every place gets its own instance, with the device, dtype and training mode of the modules around it.

    Hooks of a replaced module are kept.  The config of a transformers model is updated, so that
    ``save_pretrained`` and ``from_pretrained`` agree with the model; places that no config can express are in
    ``not_saved``.  Calls that cannot be replaced are in ``functional``, with the reason.  Warns if nothing
    was replaced, or if such calls remain.  ``record.undo()`` restores the model.

    Args:
        model: The model to change; it must not be an activation itself.
        to: What to insert: a name (``"iglu:5"``), a callable that makes a module, a module (copied for each
            place), or a mapping from places or patterns to these.
        only: Which activations to replace: a pattern for the place (``"layer1.*"``), a type, an activation
            function (``F.relu``), a callable ``(place, module) -> bool``, or several of these, one of which
            must match.  Sigmoids, tanhs and activations with parameters are replaced only if their type,
            function or exact place is given.
        recalibrate: Batches on which to correct the following layers, so that they compensate; see
            :func:`iglu.recalibrate`.

    >>> swap(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "iglu:5")
    Swap: 1 replaced, 0 functional calls left, 0 not saved
      replaced 1: ReLU() -> IGLU(sigma=5)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if is_activation(model):
        raise ValueError(
            f"model must contain activations, but is one itself, {model}. Use iglu.create to make another."
        )
    if recalibrate is not None:
        from iglu.calibration.recalibrate import swap_and_recalibrate

        done, calibration = swap_and_recalibrate(lambda: swap(model, to, only), model, recalibrate)
        return replace(done, recalibration=calibration)
    sites = list(find_sites(model))
    rules = _rules(only)
    chosen = _choose(sites, to, rules)
    reasons = {site.place: site.reason for site, _ in chosen if site.reason}
    classes = _classes([site for site, _ in chosen if site.call is not None and not site.reason], reasons)
    fillings = [_make_insertion(site, maker, model) for site, maker in chosen if site.place not in reasons]
    record = Swap(
        functional=[_left(site, reasons[site.place]) for site, _ in chosen if site.place in reasons]
    )
    try:
        for place, module, cls in classes:
            record.changes.extend(change(place, module, "__class__", cls))
        _insert_all(fillings, model, record)
        if fillings and "transformers.modeling_utils" in sys.modules:
            _settle_configs(fillings, model, record)
    except BaseException:
        put_back(record.changes)
        raise
    held = {each.place for each in record.replaced}
    for filling in fillings:
        if filling.site.place not in held:
            record.functional.extend(_left_lookups(filling))
    if rules is None and not isinstance(to, Mapping):
        record.functional.extend(_left(site, _NO_PARAMETERS) for site in sites if _is_skipped(site))
        record.functional.extend(_left_in_containers(model))
    for text in _warnings(record, type(model).__name__, sites, rules):
        warnings.warn(text, stacklevel=2)
    return record


_NO_PARAMETERS = (
    "the module has no parameters, so its calls are not replaced by default; pass only=<exact place>"
)


def _is_skipped(site: Site) -> bool:
    return site.call is not None and is_replaced_by_default(site.content) and not site.is_default


def _left(site: Site, reason: str) -> FunctionalCall:
    assert site.call is not None
    return FunctionalCall(site.place.rpartition(".")[0], site.call.text, site.call.source, reason)


def _left_in_containers(model: nn.Module) -> Iterator[FunctionalCall]:
    """Functions that a module keeps in a list or a dict, where they cannot be replaced."""
    for place, module in model.named_modules():
        for name, value in vars(module).items():
            kind = type(value)
            if kind not in (dict, list, tuple):
                continue
            for key, each in value.items() if kind is dict else enumerate(value):
                if function_name(each) is not None:
                    call = f"{name}[{key!r}]"
                    yield FunctionalCall(place, call, type(module).__name__, in_container(kind))


def _left_lookups(filling: _Insertion) -> Iterator[FunctionalCall]:
    site = filling.site
    place = site.place.removesuffix(".".join(site.path)).rstrip(".")
    reason = (
        "a name that is looked up in every forward cannot have learnable parameters"
        if has_parameters(filling.new)
        else "a name in a config that could not be rewritten"
    )
    for lookup in site.lookups:
        yield FunctionalCall(place, lookup.text, lookup.source, reason)


def _classes(sites: list[Site], reasons: dict[str, str]) -> list[tuple[str, nn.Module, type]]:
    """The place of each module with calls to replace, and the class that replaces them; if that fails, add a
    reason for each call to ``reasons``."""
    by_module: dict[int, list[Site]] = {}
    for site in sites:
        by_module.setdefault(id(site.parent), []).append(site)
    classes = []
    for calls in by_module.values():
        first = calls[0]
        assert first.scan is not None
        new = {site.call.key: site.path[0] for site in calls if site.call is not None}
        try:
            cls = rewrite(first.scan, rewritten_sites(first.parent) | new)
        except (CannotRewriteError, SyntaxError) as error:
            reasons |= {site.place: f"the rewritten source does not compile: {error}" for site in calls}
        else:
            classes.append((first.place.rpartition(".")[0], first.parent, cls))
    return classes


def _warnings(record: Swap, model: str, sites: list[Site], rules: list[Rule] | None) -> Iterator[str]:
    """What a user must know even without reading the record."""
    unmatched = [rule for rule in rules or () if not any(_agrees(rule, site) for site in sites)]
    patterns = [rule for rule in unmatched if isinstance(rule, str)]
    left = [each for each in record.functional if each.reason != _NO_PARAMETERS]
    if rules is not None and len(unmatched) == len(rules):
        yield f"only=... matches nothing in {model}, so nothing was replaced. {_inventory(record, sites)}"
    elif patterns:
        stated = ", ".join(map(repr, patterns))
        yield f"No activation of {model} matches only={stated}. {_inventory(record, sites)}"
    elif not record.replaced:
        yield f"Nothing was replaced in {model}. {_inventory(record, sites)}"
    elif left:
        shown = _shown([f"{each.call} ({each.source}): {each.reason}" for each in left], 3)
        yield f"{len(left)} calls of activations in {model} were not replaced. {shown}."
    if record.not_saved:
        yield (
            f"No config can express {len(record.not_saved)} of the new activations of {model} "
            f"({_shown(record.not_saved, 3)}): from_pretrained restores the old ones. Swap again after "
            "loading, then load the state dict."
        )


def _inventory(record: Swap, sites: list[Site]) -> str:
    """The activations of a model, by how they can be replaced."""
    usual: list[str] = []
    named: list[str] = []
    for site in sites:
        if is_activation(site.content) and not _is_skipped(site) and not site.reason:
            by_name = ", a name looked up in every forward" if isinstance(site.content, str) else ""
            (usual if site.is_default else named).append(f"{_written(site)} at {site.place!r}{by_name}")
    calls = list(dict.fromkeys(f"{each.call} ({each.source}): {each.reason}" for each in record.functional))
    parts = [
        f"It has {_shown(usual, 5)}." if usual else "",
        f"Replaced only by type or exact place: {_shown(named, 5)}." if named else "",
        f"Calls inside a forward that cannot be replaced: {_shown(calls, 5)}." if calls else "",
    ]
    return " ".join(part for part in parts if part) or "It has no activation that swap recognizes."


def _shown(items: list[str], most: int) -> str:
    return "; ".join(items[:most]) + (f"; and {len(items) - most} more" if len(items) > most else "")


def _rules(only: Any) -> list[Rule] | None:
    if only is None:
        return None
    several = isinstance(only, Iterable) and not isinstance(only, str) and not callable(only)
    return _checked(only if several else [only], "only")


def _checked(rules: Iterable[Any], name: str) -> list[Rule]:
    rules = list(rules)
    for rule in rules:
        if isinstance(rule, nn.Module) or not (isinstance(rule, str) or callable(rule)):
            raise TypeError(f"{name} must be a pattern, a type, a callable or several of these, got {rule!r}")
    return rules


def _maker(to: Any) -> _Maker:
    if isinstance(to, str):
        made = zoo.create(to)  # raises for an unknown or malformed name before anything is touched
        spec = zoo.parse(to)
        if spec.sigma is None and isinstance(made, SigmaModule):
            spec = spec._replace(sigma=made.start)  # so that a saved config does not depend on the default
        return _Maker(functools.partial(zoo.create, to), str(spec))
    if isinstance(to, nn.Module):
        return _Maker(functools.partial(copy.deepcopy, to), None)
    if callable(to):
        return _Maker(to, None)
    raise TypeError(f"to must be a name, a module, a callable or a mapping to these, got {to!r}")


def _choose(sites: list[Site], to: Any, rules: list[Rule] | None) -> list[tuple[Site, _Maker]]:
    """Return the sites to replace, each with the maker of its new activation."""
    is_mapping = isinstance(to, Mapping)
    by_key = {key: _maker(to[key]) for key in _checked(to, "keys of to")} if is_mapping else None
    everywhere = _maker(to) if by_key is None else None
    unused = set(by_key or ())
    chosen: list[tuple[Site, _Maker]] = []
    inside_chosen: list[str] = []
    for site in sites:
        maker = everywhere
        if by_key is not None:
            # An exact place takes precedence over a pattern.
            keys = sorted((key for key in by_key if _agrees(key, site)), key=lambda key: key != site.place)
            unused -= set(keys[:1])
            maker = by_key[keys[0]] if keys else None
        narrowed = rules is None or any(_agrees(rule, site) for rule in rules)
        if rules is None and by_key is None:
            narrowed = site.is_default
        if maker is not None and narrowed and not site.place.startswith(tuple(inside_chosen)):
            chosen.append((site, maker))
            inside_chosen.append(f"{site.place}.")
    for key in sorted(unused, key=str):
        places = [site.place for site in sites if site.is_default]
        raise ValueError(
            f"There is no activation at {key!r}. Places of this model: {_shown(places, 5) or 'none'}."
        )
    return chosen


def _agrees(rule: Rule, site: Site) -> bool:
    """Whether a rule selects a site.  A type, a function or an exact place selects any activation; patterns
    and callables only those that are replaced by default."""
    usual = site.is_default
    if isinstance(rule, type):
        return site.is_in_layer and isinstance(site.content, rule) and (usual or rule is not nn.Module)
    if isinstance(rule, str):
        named = rule == site.place and is_activation(site.content)
        return named or (usual and fnmatch.fnmatchcase(site.place, rule))
    name = pointwise_name(rule)
    if name is not None:
        is_called = site.call is not None and type(site.content) is type(module_like(name))
        return site.is_in_layer and (is_called or site.content is rule)
    return usual and bool(rule(site.place, site.content))


def _make_insertion(site: Site, maker: _Maker, model: nn.Module) -> _Insertion:
    try:
        new = maker.make()
    except TypeError as error:
        raise TypeError(f"to must return an nn.Module when called without arguments: {error}") from error
    if not isinstance(new, nn.Module):
        raise TypeError(f"to must return an nn.Module, got {new!r}")
    nearby = _nearest_tensor(site, model)
    if nearby is not None:
        new.to(device=nearby.device, dtype=nearby.dtype)
    is_child = isinstance(site.content, nn.Module) and site.call is None
    new.train(site.content.training if is_child else site.parent.training)
    return _Insertion(site, new, maker.text if maker.text is not None else name_of(new))


def _nearest_tensor(site: Site, model: nn.Module) -> torch.Tensor | None:
    """The nearest tensor that gives the dtype and device of a site: floating-point, not quantized."""
    line = [model]
    for name in site.place.split("."):
        child = line[-1]._modules.get(name)
        if child is None:
            break
        line.append(child)
    for home in (site.parent, *reversed(line)):
        for tensor in (*home.parameters(), *home.buffers()):
            if tensor.is_floating_point() and tensor.element_size() > 1:
                return tensor
    return None


def _can_hold(filling: _Insertion) -> bool:
    """Whether the site can have this activation: a name looked up in every forward has no parameters."""
    if not isinstance(filling.site.content, str):
        return True
    return filling.text is not None and not has_parameters(filling.new)


def _insert_all(fillings: list[_Insertion], model: nn.Module, record: Swap) -> None:
    """Set the new activations that are in the model itself, not in one of its configs."""
    put = [filling for filling in fillings if _can_hold(filling) and len(filling.site.path) == 1]
    instances = [id(filling.site.content) for filling in put]
    for filling in put:
        record.changes.extend(_put(filling, is_shared=instances.count(id(filling.site.content)) > 1))
        record.replaced.append(_replacement(filling))
    record.changes.extend(_leave_fused_paths(model))


def _settle_configs(fillings: list[_Insertion], model: nn.Module, record: Swap) -> None:
    """Write the names of the new activations into the configs of transformers models."""
    from iglu.integrations import transformers as integration

    names = {each.site.place: each.text for each in fillings if each.text is not None and _can_hold(each)}
    not_saved, changes = integration.update_configs(model, [each.place for each in record.replaced], names)
    record.not_saved.extend(not_saved)
    record.changes.extend(changes)
    for filling in fillings:  # names in a config, if it was rewritten
        site, _, text = filling
        if len(site.path) > 1 and text is not None and read_path(site.parent, site.path) == text:
            record.replaced.append(_replacement(filling))


def _put(filling: _Insertion, is_shared: bool) -> list[Change]:
    site, new, text = filling
    (name,) = site.path
    if isinstance(site.content, str):
        changes = change(site.place, site.parent, name, text)
        for duplicate in site.unused_duplicates:
            copied = copy.deepcopy(new)
            copied.train(site.parent.get_submodule(duplicate).training)
            changes += change(site.place, site.parent, duplicate, copied)
        return changes
    if isinstance(site.content, nn.Module) and site.call is None:
        _keep_hooks(site.content, new, is_shared)
    changes = change(site.place, site.parent, name, new)
    if isinstance(site.parent, nn.TransformerEncoderLayer):
        # otherwise, evaluation would run a fused ReLU or GELU
        changes += change(site.place, site.parent, "activation_relu_or_gelu", 0)
    return changes


def _replacement(filling: _Insertion) -> Replacement:
    site, new, text = filling
    written = str(text) if isinstance(site.content, str) else repr(new)
    found = site.call or next(iter(site.lookups), None)
    return Replacement(site.place, _written(site), written, "" if found is None else found.source)


def _written(site: Site) -> str:
    """Describe the old activation: the repr of a module, the name of a function or of a called function."""
    if site.call is not None:
        return site.call.name
    if isinstance(site.content, nn.Module | str):
        return str(site.content)
    return str(function_name(site.content))


_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


def _keep_hooks(old: nn.Module, new: nn.Module, is_shared: bool) -> None:
    """The new module shares the hooks of the old one, so that their handles still remove them.  If one module
    is at several places, each new one gets a copy; otherwise a hook added later would be called for all."""
    if not any(getattr(old, kind) for kind in _HOOKS):
        return
    for kind in _HOOKS:
        hooks = getattr(old, kind)
        vars(new)[kind] = type(hooks)(hooks) if is_shared else hooks
    vars(new)["_is_full_backward_hook"] = old._is_full_backward_hook


def _leave_fused_paths(model: nn.Module) -> list[Change]:
    """Disable nested tensors in encoders with swapped layers: only fused layers accept them."""
    changes: list[Change] = []
    for place, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(layer, nn.TransformerEncoderLayer) and not layer.activation_relu_or_gelu
            for layer in module.layers
        ):
            changes += change(place, module, "use_nested_tensor", False)
    return changes
