"""What stands in a model: which modules, functions and names in it are activations, and where.

An activation can stand in a model in four ways: as a child module, as a function kept in an attribute
(``self.activation = F.relu``), as a name that a forward looks up in transformers' table, or as a call
inside a forward.  The first three are *slots*, which can be filled anew; the last is only *seen*.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from iglu import zoo
from iglu.swapping.forwards import MISSING, Sighting, is_plain_call, sightings

Path = tuple[str, ...]

# Replaced unless told otherwise, by module and name of the class that defines their forward, so that
# neither transformers nor timm has to be imported.  Not here, because something else rests on their
# shape: sigmoid and tanh (gates), softplus (keeps things positive), PReLU and all that learn.
_REPLACED = {
    "torch.nn.modules.activation": {
        "ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Hardswish",
    },
    "transformers.activations": {
        "GELUTanh", "NewGELUActivation", "GELUActivation", "FastGELUActivation", "QuickGELUActivation",
        "ClippedGELUActivation", "AccurateGELUActivation", "SiLUActivation", "MishActivation",
    },
    "transformers.models.bloom.modeling_bloom": {"BloomGelu"},
    "timm.layers.activations": {"Swish", "Mish", "HardSwish", "HardMish", "GELU", "GELUTanh", "QuickGELU"},
    "timm.layers.activations_me": {"SwishMe", "MishMe", "HardSwishMe", "HardMishMe"},
}  # fmt: skip

# Ours are replaced like any other, those that learn too, but for gates and what keeps things positive.
_OURS = {
    "iglu.modules": {"IGLU", "ScaledGELU", "XATLU"},
    "iglu.peers": {"ReLUSquared", "TeLU", "GoLU", "XIELU"},
}

# Activations built around another one: what is inside is not a place of its own.  timm's StarReLU is not
# here: it learns an affine form around a ReLU, and keeps it around another activation.
_WHOLE = {"timm.models.metaformer": {"SquaredReLU"}}

# Every class defined here is an activation, and may be replaced if it is named.
_HOMES = {
    "torch.nn.modules.activation",
    "transformers.activations",
    "timm.layers.activations",
    "timm.layers.activations_me",
    "iglu.modules",
    "iglu.peers",
}

# Functions are known by their names: torch's, timm's, and those that models write out for themselves.
_FUNCTION_NAMES = {
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "celu", "celu_", "selu", "selu_",
    "gelu", "gelu_new", "gelu_fast", "gelu_tanh", "quick_gelu", "silu", "swish", "mish", "hardswish",
    "hard_swish", "hard_mish", "swish_me", "mish_me", "hard_swish_me", "hard_mish_me", "iglu", "gelu_scaled",
}  # fmt: skip
_FUNCTION_TYPES = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)

# The names of the same activations in a transformers config.
_CONFIG_NAMES = {
    "gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "gelu_python_tanh",
    "gelu_accurate", "hardswish", "leaky_relu", "mish", "quick_gelu", "relu", "relu6", "silu", "swish",
    "elu", "celu", "selu",
}  # fmt: skip


class Slot(NamedTuple):
    """A place in a model, and what stands there: a module, a function, or the name of an activation."""

    place: str
    parent: nn.Module
    path: Path  # from the parent; longer than one name where it leads into a config
    content: Any
    twins: tuple[str, ...] = ()  # of a name: children made from it that the forward never uses


class Seen(NamedTuple):
    """A call of an activation inside a forward, and the module whose forward it is."""

    place: str
    call: str
    source: str


def find_slots(model: nn.Module, place: str = "", visited: set[int] | None = None) -> Iterator[Slot]:
    """Every module in the model, and every function and name that serves as an activation, in its order.

    A module is looked into once, even where it is shared, and an activation is not looked into at all.
    """
    visited = set() if visited is None else visited
    if id(model) in visited or _is_closed(model):
        return
    visited.add(id(model))
    seen = _read(model)
    paths = _paths_of_names(model, seen)
    twins = _twins(model, [read_path(model, path) for path in paths], seen) if paths else ()
    for name, child in model._modules.items():
        if child is not None and name not in twins:
            yield Slot(_join(place, name), model, (name,), child)
            yield from find_slots(child, _join(place, name), visited)
    for name, value in vars(model).items():
        if function_name(value) is not None and _is_called_plainly(name, seen):
            yield Slot(_join(place, name), model, (name,), value)
    for path in paths:
        yield Slot(_join(place, *path), model, path, read_path(model, path), twins)


def find_calls(model: nn.Module, settled: set[str]) -> Iterator[Seen]:
    """Every call of an activation in a forward, but for those by way of a slot that is settled."""
    for place, module in model.named_modules():
        if _is_closed(module) or type(module).__module__.startswith("torch.nn"):
            continue
        seen = _read(module)
        open_names = [path for path in _paths_of_names(module, seen) if _join(place, *path) not in settled]
        for sighting in seen:
            if sighting.path is not None and _join(place, *sighting.path) in settled:
                continue
            if _shows_activation(sighting, open_names):
                yield Seen(place, sighting.use.text, sighting.source)


def is_replaced_by_default(content: Any) -> bool:
    """Whether it is an activation of the kind that swap replaces without being asked for it by name."""
    if isinstance(content, str):
        row = zoo.ZOO.get(content.partition(":")[0])
        # relu2 is a name of transformers too, and then part of how a model was designed.
        return content in _CONFIG_NAMES or (row is not None and row.self_gated and content != "relu2")
    if isinstance(content, nn.Module):
        usual = _defined_in(type(content), _REPLACED) and not has_parameters(content)
        return usual or _defined_in(type(content), _OURS)
    return function_name(content) is not None


def is_activation(content: Any) -> bool:
    """Whether it is an activation of any kind, one that learns or gates included."""
    if not isinstance(content, nn.Module):
        return isinstance(content, str) or function_name(content) is not None
    if isinstance(content, nn.MultiheadAttention):
        return False  # which lives among them
    return is_replaced_by_default(content) or _definer(type(content))[0] in _HOMES


def is_activation_name(value: Any) -> bool:
    """Whether it names an activation that swap replaces, or one of the zoo."""
    return isinstance(value, str) and (value in _CONFIG_NAMES or value.partition(":")[0] in zoo.ZOO)


def function_name(value: Any) -> str | None:
    """The name of an activation function, None if it is something else."""
    if isinstance(value, functools.partial):
        return None if value.args else function_name(value.func)
    known = isinstance(value, _FUNCTION_TYPES) and value.__name__ in _FUNCTION_NAMES
    return value.__name__ if known else None


def has_parameters(module: nn.Module) -> bool:
    """Whether it learns."""
    return next(module.parameters(), None) is not None


def read_path(parent: nn.Module, path: Path) -> Any:
    """The attribute at the end of a path, None if it is not there."""
    value: Any = parent
    for name in path:
        value = getattr(value, name, None)
    return value


def signature(content: Any) -> Any:
    """Equal for two activations that compute the same function: class, settings, parameters by name and
    shape; not their values, nor what only concerns memory."""
    if not isinstance(content, nn.Module):
        return content if isinstance(content, str) else function_name(content)
    settings = {
        name: value
        for name, value in vars(content).items()
        if isinstance(value, bool | int | float | str)
        and not name.startswith("_")
        and name not in ("training", "inplace", "save")
    }
    shapes = [(name, tuple(parameter.shape)) for name, parameter in content.named_parameters(recurse=False)]
    return (_definer(type(content)), tuple(sorted(settings.items())), tuple(shapes))


def name_of(module: nn.Module) -> str | None:
    """The name in the grammar of the zoo that makes such a module, None if there is none."""
    start = getattr(module, "start", None)
    for name, row in zoo.ZOO.items():
        text = str(zoo.Spec(name, start, getattr(module, "learnable", False))) if row.takes_sigma else name
        try:
            if signature(zoo.create(text)) == signature(module):
                return text
        except ValueError:
            continue  # it has no start, or one that only constrain=False allows
    return None


def _is_closed(module: nn.Module) -> bool:
    return is_activation(module) or _defined_in(type(module), _WHOLE)


def _definer(cls: type) -> tuple[str, str]:
    """Module and name of the class that says what an instance computes: a subclass that overrides forward
    is another activation, one that does not is the same."""
    for base in cls.__mro__:
        # ReLU6 borrows the forward of Hardtanh, and is another activation all the same.
        if "forward" in vars(base) or base is nn.ReLU6:
            return base.__module__, base.__name__
    return cls.__module__, cls.__name__


def _defined_in(cls: type, table: Mapping[str, set[str]]) -> bool:
    home, name = _definer(cls)
    return name in table.get(home, ())


def _read(module: nn.Module) -> list[Sighting]:
    """What its forward uses.  torch.nn's own forwards use no activations but those of transformer layers,
    of which one learns here how they are called."""
    if type(module).__module__.startswith("torch.nn") and not isinstance(
        module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
    ):
        return []
    return list(sightings(module, stop=lambda value: function_name(value) is not None))


def _is_called_plainly(name: str, seen: list[Sighting]) -> bool:
    """Not as in ``self.act(x, inplace=True)``, which a module would refuse."""
    calls = [sighting.use.call for sighting in seen if sighting.path == (name,)]
    return all(call is None or is_plain_call(call) for call in calls)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and any(
        base.__module__ == "transformers.activations" for base in type(value).__mro__
    )


def _paths_of_names(module: nn.Module, seen: list[Sighting]) -> list[Path]:
    """Where the module keeps the names that its forward looks up in the table of activations."""
    paths: list[Path] = []
    for sighting in seen:
        if sighting.use.key is None or not _is_table(sighting.value):
            continue
        if sighting.key_path is not None:
            paths.append(sighting.key_path)
        elif not sighting.of_self:  # the name was handed to a helper function
            paths += [(name,) for name, value in vars(module).items() if isinstance(value, str)]
    return [path for path in dict.fromkeys(paths) if is_activation_name(read_path(module, path))]


def _twins(module: nn.Module, names: list[Any], seen: list[Sighting]) -> tuple[str, ...]:
    """Children that are what one of these names stands for and that the forward does not read: the same
    activation once more, as Mamba keeps it."""
    used = {sighting.path[0] for sighting in seen if sighting.path is not None}
    tables = [sighting.value for sighting in seen if _is_table(sighting.value)]
    meant = [signature(table[name]) for table in tables for name in names if name in table]
    children = module._modules.items()
    return tuple(name for name, child in children if name not in used and signature(child) in meant)


def _shows_activation(sighting: Sighting, open_names: list[Path]) -> bool:
    use, value = sighting.use, sighting.value
    if value is MISSING:  # x.relu() of some tensor
        return use.call is not None and use.chain[-1] in ("relu", "relu_") and not use.call.args
    if use.key is not None and _is_table(value):
        if sighting.key_path is not None:
            return sighting.key_path in open_names
        return bool(open_names) or getattr(use.key, "value", None) in _CONFIG_NAMES
    if isinstance(value, nn.Module):  # an object of the Python module, not of the model
        return sighting.path is None and is_replaced_by_default(value)
    if isinstance(value, type):
        return use.call is not None and issubclass(value, nn.Module) and _defined_in(value, _REPLACED)
    return function_name(value) is not None


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)
