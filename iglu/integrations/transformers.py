"""Hugging Face transformers: iglu's activation names as ``hidden_act`` and similar settings.

    import iglu
    model = AutoModelForCausalLM.from_pretrained("gpt2", activation_function="iglu:learnable=5")

register() changes five things in transformers: ``ACT2FN``, the table that most models use; ``ACT2CLS``, a
plain dict that others import by name; the initialization of weights, since from_pretrained builds a model on
the meta device and would not initialize a sigma that is not in the checkpoint; save_pretrained, since a fixed
sigma is stored only in the config; and the Trainer, whose optimizer would decay a learnable sigma.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from types import FrameType
from typing import Any

import torch
from torch import nn

from iglu import zoo
from iglu.integrations import NameTable, require
from iglu.modules import SigmaModule, is_known, shape_parameters
from iglu.surgery.activations import is_activation, is_activation_name, name_of, signature
from iglu.surgery.record import Change, change
from iglu.surgery.sites import find_sites
from iglu.surgery.source_scan import MISSING

Path = tuple[str, ...]

# What a user without iglu needs to know: transformers alone only raises a KeyError.
_NOTE = "needs iglu-torch: import iglu before from_pretrained, or transformers raises a KeyError"
_CARD = """\
# {kind}

This model uses an activation function of the package `iglu-torch`. Install it and import it before you load
the model:

```python
import iglu
from transformers import {kind}

model = {kind}.from_pretrained("PATH")
```

Without `import iglu`, transformers does not know the name and stops with `KeyError: {name!r}`.
"""


def __getattr__(name: str) -> Any:
    """Define the callback at its first use, since only it needs transformers to be imported."""
    if name == "TailCallback":
        from iglu.integrations.trainer import TailCallback

        return TailCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Let transformers configs use iglu's activation names, and exempt the parameters of activations from the
    weight decay of the Trainer.

    ``import iglu`` does this as soon as transformers is imported too; call it yourself to get an error if it
    fails.  Names that transformers has keep their meaning.  Calling it again changes nothing."""
    activations, modeling = require("transformers", "activations", "modeling_utils")
    if not isinstance(activations.ACT2FN, NameTable):
        # In place, since every model's module holds a reference to this object.
        activations.ACT2FN.__class__ = _instantiating(type(activations.ACT2FN))
    if not isinstance(activations.ACT2CLS, NameTable):
        # A plain dict cannot change its class: replace it by another wherever it was imported.
        old, new = activations.ACT2CLS, NameTable(activations.ACT2CLS)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get("ACT2CLS") is old:
                vars(module)["ACT2CLS"] = new
    _wrap(modeling.PreTrainedModel, "_initialize_weights", _initialize)
    _wrap(modeling.PreTrainedModel, "save_pretrained", _save)
    # None if its import has not finished; register() is then called again afterwards.
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if trainer is not None:
        _wrap(trainer, "get_decay_parameter_names", _decay_names)


def _instantiating(base: type) -> type:
    class Activations(NameTable, base):  # type: ignore[misc]
        """transformers' table, which makes an instance at each lookup."""

        @staticmethod
        def value_of(name: str) -> Any:
            if zoo.parse(name).learnable and _in_a_forward():
                raise ValueError(
                    f"{name!r} is looked up again in every forward of this model, so its sigma could not be "
                    "learned: use a fixed sigma."
                )
            return functools.partial(zoo.create, name)

    return Activations


def _in_a_forward() -> bool:
    """Whether the innermost module on the stack is being called, not constructed."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__:
            return True
        if frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), nn.Module):
            return False
        frame = frame.f_back
    return False


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Make a method call ``wrapper``, with the original as its first argument; only once."""
    original = getattr(owner, name)
    if hasattr(original, "knows_iglu"):
        return

    @functools.wraps(original)
    def method(*arguments: Any, **options: Any) -> Any:
        return wrapper(original, *arguments, **options)

    method.knows_iglu = True  # type: ignore[attr-defined]
    setattr(owner, name, method)


def _initialize(original: Any, model: Any, module: nn.Module, *arguments: Any, **options: Any) -> None:
    # Models that use torch's PReLU initialize it themselves.
    is_torchs = type(module).__module__.startswith("torch.")
    reset = getattr(module, "reset_parameters", None)
    parameters = list(module.parameters()) if is_known(module) and not is_torchs else []
    if parameters and reset is not None and not getattr(module, "_is_hf_initialized", False):
        # Parameters from the checkpoint are marked.
        if not all(getattr(parameter, "_is_hf_initialized", False) for parameter in parameters):
            reset()
        vars(module)["_is_hf_initialized"] = True
        return
    original(model, module, *arguments, **options)


def _save(original: Any, model: Any, *arguments: Any, **options: Any) -> Any:
    lost = _update_config_sigmas(model)
    if lost:
        shown = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
        warnings.warn(
            f"No config can express the activations at {shown} of {type(model).__name__}: from_pretrained "
            "restores the old ones. Swap again after loading, then load the state dict.",
            stacklevel=3,
        )
    _note(model)
    saved = original(model, *arguments, **options)
    given = inspect.signature(original).bind(model, *arguments, **options).arguments
    if given.get("is_main_process", True):
        _write_card(model, pathlib.Path(given["save_directory"]))
    return saved


def _decay_names(original: Any, trainer: Any, model: nn.Module) -> list[str]:
    """Also exempt the parameters of activations; transformers exempts only biases and norms."""
    exempt = {id(parameter) for parameter in shape_parameters(model)}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return [name for name in original(trainer, model) if id(parameters[name]) not in exempt]


def _name_of_ours(model: Any) -> str | None:
    """The first activation name in the config that the model uses and transformers does not know."""
    theirs = sys.modules["transformers.activations"].ACT2CLS.keys()
    kinds = {type(module) for module in model.modules()} - {nn.Identity}  # "identity" also has other meanings
    for _, value in _fields(model.config.to_dict()):
        name = value.removeprefix("gated-")
        row = zoo.ZOO.get(name.partition(":")[0])
        if name not in theirs and row is not None and row.module_class in kinds:
            return name
    return None


def _note(model: Any) -> list[Change]:
    """Add a note on what loading needs to the config; remove it if the config has no name of iglu's."""
    config = model.config
    if _name_of_ours(model) is not None:
        return change("config.activation_note", config, "activation_note", _NOTE)
    if "activation_note" in vars(config):
        return change("config.activation_note", config, "activation_note", MISSING)
    return []


def _write_card(model: Any, folder: pathlib.Path) -> None:
    """Write the same note as a model card, if the folder has none."""
    name, card = _name_of_ours(model), folder / "README.md"
    if name is not None and folder.is_dir() and not card.exists():
        card.write_text(_CARD.format(kind=type(model).__name__, name=name), encoding="utf-8")


def _update_config_sigmas(model: Any) -> list[str]:
    """Update the config to the current sigmas of iglu's modules, as after ``act.sigma = 5``; return the
    places that no config can express."""
    ours = {place: module for place, module in model.named_modules() if isinstance(module, SigmaModule)}
    if not ours:
        return []
    texts = {place: name for place, module in ours.items() if (name := name_of(module)) is not None}
    # Always needed: a config that names an activation may not set it at every place.
    loaded = _rebuild(model, model.config.to_dict())
    if loaded is None:
        return []  # a model that cannot be built from its config cannot be loaded from it
    moved = [
        place for place, content in _contents(model).items() if place in ours and loaded.get(place) != content
    ]
    return _update_config(model, moved, texts, []) if moved else []


def update_configs(
    model: nn.Module, places: list[str], texts: dict[str, str]
) -> tuple[list[str], list[Change]]:
    """Update the configs of the transformers models in ``model`` after a swap at ``places``; ``texts`` has
    the names of the new activations by place.  Return the places that no config can express, and the
    changes."""
    base = sys.modules["transformers.modeling_utils"].PreTrainedModel
    unsaved: list[str] = []
    changes: list[Change] = []
    for prefix, pretrained in _outermost(model, base):
        start = f"{prefix}." if prefix else ""
        inside = [place.removeprefix(start) for place in places if place.startswith(start)]
        names = {key.removeprefix(start): text for key, text in texts.items() if key.startswith(start)}
        if not inside and not names:
            continue
        register()
        for place in inside:
            with suppress(AttributeError):  # a name in an attribute
                # Trained parameters must not be initialized again.
                vars(pretrained.get_submodule(place))["_is_hf_initialized"] = True
        unsaved += [start + place for place in _update_config(pretrained, inside, names, changes)]
    return unsaved, changes


def _outermost(module: nn.Module, base: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(module, base):
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from _outermost(child, base, f"{prefix}.{name}" if prefix else name)


def _update_config(model: Any, places: list[str], texts: dict[str, str], changes: list[Change]) -> list[str]:
    """Update the fields of the config.  Only the model's own class knows what a field sets: for each field
    that names an activation, change it, build the model on the meta device, and see which places change.  A
    field is updated if all these places got the same new activation."""
    stated = model.config.to_dict()
    live = _contents(model) | {place: text for place, text in texts.items() if place not in places}
    before = _rebuild(model, stated)
    if before is None:
        return places
    unexpressed = [place for place in places if before.get(place) != live.get(place, MISSING)]
    fields = dict(_fields(stated))
    names = {path: _wanted(model, stated, path, value, before, texts) for path, value in fields.items()}
    changed = copy.deepcopy(stated)
    for path, value in fields.items():
        # T5 derives dense_act_fn from feed_forward_proj, and which one it uses depends on its version.
        source = (*path[:-1], "dense_act_fn") if path[-1] == "feed_forward_proj" else path
        name = names.get(source) or names[path]
        if name is not None:
            _write(changed, path, _like(value, name))
    after = _rebuild(model, changed)
    if after is None or any(
        after.get(place) != content == before.get(place) for place, content in live.items()
    ):
        return unexpressed
    reloaded = type(model.config).from_dict(copy.deepcopy(changed)).to_dict()
    for path, value in fields.items():
        new = _read(reloaded, path)  # not from `changed`: one field may be derived from another
        if new != value:
            changes += _write_live(model, path, value, new)
    changes += _note(model)
    return [place for place in places if after.get(place) != live.get(place, MISSING)]


def _wanted(
    model: Any, stated: dict[str, Any], path: Path, value: str, before: dict[str, Any], texts: dict[str, str]
) -> str | None:
    """The new name of all places that this field sets; None if there is no single one."""
    for text in dict.fromkeys(texts.values()):
        trial = copy.deepcopy(stated)
        _write(trial, path, _like(value, text))
        after = _rebuild(model, trial)
        if after is None:
            return None
        governed = [place for place in before.keys() | after.keys() if before.get(place) != after.get(place)]
        if governed:
            names = {texts.get(place) for place in governed}
            return names.pop() if len(names) == 1 else None
    return None


def _like(value: str, text: str) -> str:
    """Keep the prefix "gated-", which T5 puts before the name."""
    return f"gated-{text}" if value.startswith("gated-") else text


def _fields(data: Any, path: Path = ()) -> list[tuple[Path, str]]:
    """The fields of a config, nested ones too, that name an activation."""
    if isinstance(data, dict):
        return [found for key, value in data.items() for found in _fields(value, (*path, key))]
    named = isinstance(data, str) and is_activation_name(data.removeprefix("gated-"))
    return [(path, data)] if named else []


def _read(data: dict[str, Any], path: Path) -> Any:
    for key in path:
        data = data.get(key, {})
    return data


def _write(data: dict[str, Any], path: Path, value: str) -> None:
    *parents, last = path
    _read(data, tuple(parents))[last] = value


def _write_live(model: Any, path: Path, old: str, new: str) -> list[Change]:
    *parents, last = path
    owner = model.config
    for key in parents:
        owner = owner[key] if isinstance(owner, dict) else getattr(owner, key)
    place = ".".join(("config", *path))
    changes = change(place, owner, last, new)
    # Copies of the config in parts of the model, such as T5's encoder and decoder.
    for module in model.modules():
        config = vars(module).get("config")
        if type(config) is type(owner) and model.config is owner and getattr(config, last, None) == old:
            changes += change(place, config, last, new)
    return changes


def _rebuild(model: Any, data: dict[str, Any]) -> dict[str, Any] | None:
    """The activations of the model if it were loaded with this config; None if that fails."""
    initialization = sys.modules.get("transformers.initialization")
    safe = getattr(initialization, "meta_device_safe_creation_ops", nullcontext)
    with warnings.catch_warnings(), torch.device("meta"), safe():
        warnings.simplefilter("ignore")
        try:
            return _contents(type(model)(type(model.config).from_dict(copy.deepcopy(data))))
        except Exception:
            return None


def _contents(model: nn.Module) -> dict[str, Any]:
    """The signature of the activation at each place."""
    return {
        site.place: _same(signature(site.content))
        for site in find_sites(model)
        if is_activation(site.content)
    }


def _same(found: Any) -> Any:
    """Replace transformers' own classes by the equivalent classes of torch.nn or iglu."""
    homes = ("transformers.activations", "torch.nn.modules.activation", "iglu.baselines")
    if not isinstance(found, tuple) or found[0][0] not in homes:
        return found
    (_, name), settings, shapes = found
    if ("approximate", "tanh") in settings:
        name = "GELUTanh"
    known = _SAME_FUNCTION.get(name, name)
    return (known, () if known in ("GELU", "GELUTanh") else settings, shapes)


_SAME_FUNCTION = {
    "GELUActivation": "GELU", "SiLUActivation": "SiLU", "MishActivation": "Mish",
    "ReLUSquaredActivation": "ReLUSquared",
}  # fmt: skip
