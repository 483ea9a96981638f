"""Which modules, functions and names are activations, and which of them swap replaces by default.

Classes are recognized by the module and name of the class that defines their forward, so that neither
transformers nor timm has to be imported; functions by their name, or by what they compute (see
:mod:`.function_body`).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from iglu import zoo
from iglu.modules import IGLU, ScaledGELU, is_known
from iglu.surgery import function_body

# Replaced by default, in addition to the replaceable rows of the zoo.  Excluded, because models rely on their
# range: sigmoid and tanh (gates), softplus (positive values).
_REPLACED = {
    "torch.nn.modules.activation": {"ReLU6"},
    "transformers.activations": {
        "GELUTanh", "NewGELUActivation", "GELUActivation", "FastGELUActivation", "QuickGELUActivation",
        "ClippedGELUActivation", "AccurateGELUActivation", "SiLUActivation", "MishActivation",
    },
    "transformers.models.bloom.modeling_bloom": {"BloomGelu"},
    "timm.layers.activations": {"Swish", "Mish", "HardSwish", "HardMish", "GELU", "GELUTanh", "QuickGELU"},
    "timm.layers.activations_me": {"SwishMe", "MishMe", "HardSwishMe", "HardMishMe"},
}  # fmt: skip

# Activations built around another one, which is not a site of its own.  timm's StarReLU is not included: it
# learns an affine map around a ReLU, which also works around another activation.
_COMPOSITE = {"timm.models.metaformer": {"SquaredReLU"}}

# Every class defined in these modules is an activation, and is replaced if it is named.
_HOMES = {
    "torch.nn.modules.activation",
    "transformers.activations",
    "timm.layers.activations",
    "timm.layers.activations_me",
}

_tanh_gelu = functools.partial(nn.GELU, "tanh")

# Functions by name (torch's, timm's and those that models define themselves), and the module that computes
# (nearly) the same, which represents a call in rules and records.  A trailing underscore of the name means in
# place.
_FUNCTIONS: dict[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU, "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU, "celu": nn.CELU,
    "selu": nn.SELU, "gelu": nn.GELU, "gelu_new": _tanh_gelu, "gelu_fast": _tanh_gelu,
    "gelu_tanh": _tanh_gelu, "quick_gelu": _tanh_gelu, "silu": nn.SiLU, "swish": nn.SiLU,
    "swish_me": nn.SiLU, "mish": nn.Mish, "mish_me": nn.Mish, "hard_mish": nn.Mish, "hard_mish_me": nn.Mish,
    "hardswish": nn.Hardswish, "hard_swish": nn.Hardswish, "h_swish": nn.Hardswish, "hswish": nn.Hardswish,
    "hard_swish_me": nn.Hardswish, "iglu": IGLU, "gelu_scaled": ScaledGELU,
}  # fmt: skip

# Replaced only if named: gates, and functions that keep values positive.
_GATES: dict[str, Callable[..., nn.Module]] = {
    "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "softplus": nn.Softplus, "hardsigmoid": nn.Hardsigmoid,
    "hard_sigmoid": nn.Hardsigmoid, "h_sigmoid": nn.Hardsigmoid, "hsigmoid": nn.Hardsigmoid,
    "hardtanh": nn.Hardtanh, "log_sigmoid": nn.LogSigmoid, "softsign": nn.Softsign,
}  # fmt: skip
_FUNCTION_TYPES = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)

# Methods of a tensor.
TENSOR_METHODS = {"relu", "sigmoid", "tanh"}

# transformers' names of activations that swap replaces.
CONFIG_NAMES = {
    "gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "gelu_python_tanh",
    "gelu_accurate", "hardswish", "leaky_relu", "mish", "quick_gelu", "relu", "relu6", "silu", "swish",
    "elu", "celu", "selu",
}  # fmt: skip


def is_replaced_by_default(content: Any) -> bool:
    """Whether it is an activation that swap replaces by default."""
    if isinstance(content, str):
        row = zoo.ZOO.get(content.partition(":")[0])
        # Also names in transformers, where they are part of the design of a model.
        is_design = content in ("relu2", "xielu")
        return content in CONFIG_NAMES or (row is not None and row.replaceable and not is_design)
    if not isinstance(content, nn.Module):
        return function_name(content) is not None
    kind = type(content)
    if _defined_in(kind, _REPLACED):
        return not has_parameters(content)
    row = zoo.row_of(kind)
    if row is not None:
        # A subclass of a torch module that adds parameters is another activation.
        is_torchs = row.module_class.__module__.startswith("torch.")
        return row.replaceable and not (is_torchs and has_parameters(content))
    return _body(kind) in _FUNCTIONS and not has_parameters(content)


def is_activation(content: Any) -> bool:
    """Whether it is an activation of any kind, including gates and those with parameters."""
    if not isinstance(content, nn.Module):
        return isinstance(content, str) or function_name(content) is not None
    if isinstance(content, nn.MultiheadAttention | nn.Identity):
        return False  # attention, which torch defines in the same file, and placeholders
    if is_known(content) or _definer(type(content))[0] in _HOMES or is_replaced_by_default(content):
        return True
    return _body(type(content)) is not None and not has_parameters(content)


def is_opaque(module: nn.Module) -> bool:
    """Whether the children of a module are not sites of their own."""
    return is_activation(module) or _defined_in(type(module), _COMPOSITE)


def is_activation_class(value: Any) -> bool:
    """Whether its instances, made without arguments, are activations."""
    if not (isinstance(value, type) and issubclass(value, nn.Module)):
        return False
    if zoo.row_of(value) is not None or _definer(value)[0] in _HOMES:
        return True
    return _defined_in(value, _REPLACED) or _body(value) is not None


def is_activation_name(value: Any) -> bool:
    """Whether it names an activation that swap replaces, or one of the zoo."""
    return isinstance(value, str) and (value in CONFIG_NAMES or value.partition(":")[0] in zoo.ZOO)


def function_name(value: Any) -> str | None:
    """The name of an activation function that swap replaces, None if it is something else."""
    name = pointwise_name(value)
    return name if name in _FUNCTIONS else None


def pointwise_name(value: Any) -> str | None:
    """The name of an activation function, gates included: its own name, or that of what its body computes."""
    if isinstance(value, functools.partial):
        return None if value.args else pointwise_name(value.func)
    if isinstance(value, staticmethod):
        return pointwise_name(value.__func__)
    if not isinstance(value, _FUNCTION_TYPES):
        return None
    name = value.__name__.rstrip("_")
    is_named = name in _FUNCTIONS or name in _GATES
    if not isinstance(value, types.FunctionType):
        return name if is_named else None
    if is_named and _required_arguments(value) <= 1:
        return name
    is_method = value.__code__.co_varnames[:1] == ("self",)
    return function_body.name_of_body(value, is_method)


def _required_arguments(function: types.FunctionType) -> int:
    """Count required arguments: a function of several is not an activation, whatever its name."""
    code = function.__code__
    optional = len(function.__defaults__ or ()) + len(function.__kwdefaults__ or ())
    return code.co_argcount + code.co_kwonlyargcount - optional


def in_container(kind: type) -> str:
    """Why a function in a list or a dict is not replaced."""
    return f"it is in a {kind.__name__}: replace it there, or keep it in an attribute"


def module_like(name: str, **options: Any) -> nn.Module:
    """A module that computes what the function of this name does with these settings."""
    options.pop("inplace", None)
    return make_module(_FUNCTIONS.get(name) or _GATES[name], **options)


def make_module(make: Callable[..., nn.Module], **options: Any) -> nn.Module:
    """Make a module with these settings, or without them if it does not accept them."""
    try:
        return make(**options)
    except (TypeError, ValueError):
        return make()


def has_parameters(module: nn.Module) -> bool:
    """Whether a module has parameters."""
    return next(module.parameters(), None) is not None


def signature(content: Any) -> Any:
    """A key that is equal for two activations that compute the same function: class, settings, names and
    shapes of parameters, but not their values or options that only affect memory."""
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
    """The name with which iglu.create makes an equal module, None if there is none."""
    start = getattr(module, "start", None)
    for name, row in zoo.ZOO.items():
        text = str(zoo.Spec(name, start, getattr(module, "learnable", False))) if row.takes_sigma else name
        try:
            if signature(zoo.create(text)) == signature(module):
                return text
        except ValueError:
            continue  # it has no start, or one that only constrain=False allows
    return None


def is_table(value: Any) -> bool:
    """Whether it is transformers' table of activations."""
    return isinstance(value, dict) and any(
        base.__module__ == "transformers.activations" for base in type(value).__mro__
    )


def _definer(cls: type) -> tuple[str, str]:
    """Module and name of the class that defines what an instance computes."""
    definer = zoo.definer_of(cls)
    return definer.__module__, definer.__name__


def _defined_in(cls: type, table: Mapping[str, set[str]]) -> bool:
    home, name = _definer(cls)
    return name in table.get(home, ())


def _body(cls: type) -> str | None:
    """The activation that the forward of a class outside the known libraries computes, None if it is
    something else: ``class Swish(nn.Module)`` as models define it themselves."""
    forward = next((vars(base)["forward"] for base in cls.__mro__ if "forward" in vars(base)), None)
    if not isinstance(forward, types.FunctionType):
        return None
    if str(forward.__module__).startswith(("torch.", "iglu.")):
        return None
    known = function_body.name_of_body(forward, is_method=True)
    if known is not None:
        return known
    # def forward(self, x): return gelu(x)
    value = forward.__globals__.get(function_body.name_called(forward) or "")
    if isinstance(value, nn.Module):  # an object of the Python module, such as transformers' gelu
        return "gelu" if is_replaced_by_default(value) else None
    return pointwise_name(value)
