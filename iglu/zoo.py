"""The table of activations: every name that command lines, configs and benchmarks accept.

Names follow the grammar ``name[:sigma | :learnable[=start]]``: ``"gelu"``, ``"iglu:5"``,
``"iglu_approx:learnable=5"``; for LeakyReLU the number is its negative slope.  To add an activation, add a
row to this table, or call :func:`register_activation` in your own code.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from iglu.baselines import XIELU, GoLU, ReLUSquared, TeLU
from iglu.modules import IGLU, XATLU, IGLUGate, ScaledGELU, SigmaModule, Squareplus


class Activation(NamedTuple):
    """One row of the table: label, factory and properties."""

    label: str
    make: Callable[..., nn.Module]
    self_gated: bool = False  # of the form x g(x)
    takes_sigma: bool = False
    replaceable: bool = True  # by swap, by default: not if models rely on the range (gates) or on weights
    parameter: str = ""  # what a number after the colon sets, if that is not sigma

    @property
    def number(self) -> str:
        """The keyword that a number after the colon is passed as; empty if the name takes none."""
        return "sigma" if self.takes_sigma else self.parameter

    @property
    def module_class(self) -> type[nn.Module]:
        """The class of its modules."""
        return _class_made_by(self.make)


@functools.cache
def _class_made_by(make: Callable[..., nn.Module]) -> type[nn.Module]:
    return make if isinstance(make, type) else type(make())


_rational_gate = functools.partial(IGLUGate, approximate="rational")
_rational_iglu = functools.partial(IGLU, approximate="rational")

# In the order of the paper's Table 1; after Identity, activations that the paper mentions but does not time,
# and common baselines.
ZOO: dict[str, Activation] = {
    "z": Activation("Z", IGLUGate, takes_sigma=True, replaceable=False),
    "z_approx": Activation("Z_approx", _rational_gate, takes_sigma=True, replaceable=False),
    "iglu": Activation("IGLU", IGLU, self_gated=True, takes_sigma=True),
    "iglu_approx": Activation("IGLU-Approx", _rational_iglu, self_gated=True, takes_sigma=True),
    "relu": Activation("ReLU", nn.ReLU, self_gated=True),
    "gelu": Activation("GELU", nn.GELU, self_gated=True),
    "silu": Activation("SiLU", nn.SiLU, self_gated=True),
    "celu": Activation("CELU", nn.CELU),
    "elu": Activation("ELU", nn.ELU),
    "hardshrink": Activation("Hardshrink", nn.Hardshrink, replaceable=False),
    "hardsigmoid": Activation("Hardsigmoid", nn.Hardsigmoid, replaceable=False),
    "hardswish": Activation("Hardswish", nn.Hardswish, self_gated=True),
    "hardtanh": Activation("HardTanh", nn.Hardtanh, replaceable=False),
    "leaky_relu": Activation("LeakyReLU", nn.LeakyReLU, parameter="negative_slope"),
    "mish": Activation("Mish", nn.Mish, self_gated=True),
    "prelu": Activation("PReLU", nn.PReLU, replaceable=False),
    "selu": Activation("SELU", nn.SELU),
    "sigmoid": Activation("Sigmoid", nn.Sigmoid, replaceable=False),
    "softplus": Activation("Softplus", nn.Softplus, replaceable=False),
    "softshrink": Activation("Softshrink", nn.Softshrink, replaceable=False),
    "squareplus": Activation("Squareplus", Squareplus, replaceable=False),
    "tanh": Activation("Tanh", nn.Tanh, replaceable=False),
    "tanhshrink": Activation("Tanhshrink", nn.Tanhshrink, replaceable=False),
    "identity": Activation("Identity", nn.Identity, replaceable=False),
    "gelu_a": Activation("GELU_a", ScaledGELU, self_gated=True, takes_sigma=True),
    "atlu": Activation("ATLU", functools.partial(IGLU, 1.0), self_gated=True),
    "xatlu": Activation("xATLU", XATLU, self_gated=True),
    "relu2": Activation("ReLU²", ReLUSquared, self_gated=True),
    "telu": Activation("TeLU", TeLU, self_gated=True),
    "golu": Activation("GoLU", GoLU, self_gated=True),
    "xielu": Activation("xIELU", XIELU),
}

# Other names in common use.
_ALSO_CALLED = {
    "swish": "silu", "swish1": "silu", "hard_swish": "hardswish", "relu_squared": "relu2",
    "squared_relu": "relu2", "rectified_linear": "relu", "linear": "identity",
}  # fmt: skip


class Spec(NamedTuple):
    """A parsed name; ``str`` gives its shortest form."""

    name: str
    sigma: float | None = None  # or the row's own parameter
    learnable: bool = False

    def __str__(self) -> str:
        # repr of a float reads back as the same float
        number = "" if self.sigma is None else repr(self.sigma).removesuffix(".0")
        if not self.learnable:
            return f"{self.name}:{number}" if number else self.name
        return f"{self.name}:learnable={number}" if number else f"{self.name}:learnable"

    @property
    def label(self) -> str:
        """The label in a table: ``IGLU (sigma = 5)``."""
        row = ZOO[self.name]
        if self.learnable:
            return f"{row.label} (learnable sigma)"
        number = row.number.replace("_", " ")
        return row.label if self.sigma is None else f"{row.label} ({number} = {self.sigma:g})"


def row_of(kind: type[nn.Module]) -> Activation | None:
    """Return the row whose modules compute the same as those of this class; None if there is none."""
    definer = definer_of(kind)
    related = (row for row in ZOO.values() if definer in row.module_class.__mro__)  # fast
    return next((row for row in related if definer_of(row.module_class) is definer), None)


def definer_of(kind: type) -> type:
    """Return the class that defines what an instance computes: a subclass is another activation only if it
    overrides forward."""
    for base in kind.__mro__:
        # ReLU6 inherits the forward of Hardtanh, but is another activation.
        if "forward" in vars(base) or base is nn.ReLU6:
            return base
    return kind


def register_activation(
    name: str,
    make: Callable[..., nn.Module],
    *,
    label: str | None = None,
    takes_sigma: bool = False,
    parameter: str = "",
    self_gated: bool = False,
    replaceable: bool = True,
) -> None:
    """Add an activation of your own to the table of names.

    The name then works wherever one is expected: in :func:`iglu.create` and :func:`iglu.swap`, as
    ``hidden_act`` of transformers and ``act_layer`` of timm (unless they have the name themselves), in the
    benchmarks and in the recipes of the lab.  Its parameters are excluded from weight decay.

    ``make`` is a class derived from ``nn.Module``, or a function that returns such a module.  The module
    maps a tensor to one of the same shape.  If it has parameters, it defines ``reset_parameters()``, which
    sets them to their starting values: transformers builds models on the meta device and then calls it.

    An activation with a sigma derives from :class:`iglu.modules.SigmaModule`, which holds the number or the
    learnable parameter, and reads ``self.sigma`` in ``forward``.  These requirements are checked.

    Args:
        name: Lower-case letters, digits and underscores, beginning with a letter.  A name that is taken is
            rejected, except to define the same class again, as in a notebook.
        make: Called without arguments for a plain ``name``; otherwise with the options of ``create``.
        label: The name in tables and figures; ``name`` if None.
        takes_sigma: Whether ``name:0.5`` and ``name:learnable`` work; they call ``make(sigma=0.5)`` and
            ``make(learnable=True)``.
        parameter: The argument of ``make`` that a number after the colon sets, if that is not sigma.
        self_gated: Whether the function has the form x g(x), and so is 0 at 0.
        replaceable: Whether ``swap`` replaces it by default.  Use False for gates and other activations
            whose range a model relies on.

    >>> register_activation("log_sigmoid", nn.LogSigmoid, label="LogSigmoid", replaceable=False)
    >>> create("log_sigmoid")(torch.zeros(1))
    tensor([-0.6931])
    """
    if not isinstance(name, str) or not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ValueError(
            "name must consist of lower-case letters, digits and underscores and begin with a letter, "
            f"got {name!r}"
        )
    if not callable(make) or isinstance(make, nn.Module):
        raise TypeError(f"make must be a class or a function that returns a module, got {make!r}")
    if name in ZOO and _source(ZOO[name].make) != _source(make):
        raise ValueError(f"{name!r} is taken by {_source(ZOO[name].make)}: choose another name")
    if takes_sigma and parameter:
        raise ValueError(f"a number after the colon sets sigma or {parameter!r}, not both")
    row = Activation(label or name, make, self_gated, takes_sigma, replaceable, parameter)
    _check_contract(name, row)
    ZOO[name] = row


def _source(make: Any) -> str:
    make = make.func if isinstance(make, functools.partial) else make
    return f"{make.__module__}.{make.__qualname__}"


def _check_contract(name: str, row: Activation) -> None:
    """Make and call the activation in each way that the library and the lab do."""
    cases: list[dict[str, Any]] = [{}]
    if row.takes_sigma:
        cases += [{"sigma": 2.0}, {"sigma": 2.0, "learnable": True}]
        cases += [{"sigma": 2.0, "learnable": True, "constrain": False}]
    elif row.parameter:
        cases += [{row.parameter: 0.5}]
    for options in cases:
        call = f"{name}: make({', '.join(f'{key}={value}' for key, value in options.items())})"
        try:
            module = row.make(**options)
        except TypeError as error:
            raise TypeError(f"{call} fails: {error}") from error
        if not isinstance(module, nn.Module) or isinstance(module, nn.Sequential | nn.ModuleList):
            raise TypeError(f"{call} must return a module with a forward of its own, got {module!r}")
        if row.takes_sigma and not isinstance(module, SigmaModule):
            raise TypeError(
                f"{call} must return a module derived from iglu.modules.SigmaModule, which holds sigma, "
                f"got {type(module).__name__}"
            )
        for key in options:
            if key != "sigma" and not hasattr(module, key):
                raise TypeError(f"{call} must return a module that stores {key} as its attribute {key!r}")
        if not all(_holds(module, key, value) for key, value in options.items() if key != "sigma") or (
            isinstance(module, SigmaModule) and module.start != options.get("sigma", module.start)
        ):
            raise ValueError(f"{call} ignores an argument, got {module!r}")
        if next(module.parameters(), None) is not None and not hasattr(module, "reset_parameters"):
            raise TypeError(f"{name}: {type(module).__name__} has parameters and needs reset_parameters()")
        x = torch.linspace(-1, 1, 6).view(2, 3)
        y = module(x)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            raise ValueError(f"{name}: forward must return a tensor of the shape of its input, got {y!r}")


def _holds(module: nn.Module, name: str, value: float) -> bool:
    """Whether an attribute is this number, or a tensor filled with it."""
    held = getattr(module, name)
    return bool((held == value).all()) if isinstance(held, Tensor) else bool(held == value)


def parse(text: str) -> Spec:
    """Read ``name[:sigma | :learnable[=start]]``.

    Args:
        text: A name of the table, alone or with a number or ``learnable`` after a colon.

    >>> parse("iglu_approx:learnable=5")
    Spec(name='iglu_approx', sigma=5.0, learnable=True)
    """
    if not isinstance(text, str):
        raise TypeError(f"an activation name must be a string, such as 'iglu:5', got {text!r}")
    name, colon, argument = text.partition(":")
    if name not in ZOO:
        written = name.strip().lower().replace("-", "_").replace(" ", "_")
        near = [_ALSO_CALLED[written]] if written in _ALSO_CALLED else difflib.get_close_matches(written, ZOO)
        near.sort(key=lambda each: sorted(each) != sorted(written))  # letters in another order first
        hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(ZOO)}."
        raise ValueError(f"Unknown activation {name!r}.{hint}")
    if not colon:
        return Spec(name)
    word, equals, start = argument.partition("=")
    is_learnable = word == "learnable"
    if not (ZOO[name].takes_sigma if is_learnable else ZOO[name].number):
        takers = ", ".join(key for key, row in ZOO.items() if row.takes_sigma)
        raise ValueError(f"Activation {name!r} takes no sigma, got {text!r}. Those that do: {takers}.")
    if is_learnable:
        return Spec(name, _number(start, text) if equals else None, learnable=True)
    return Spec(name, _number(argument, text))


def create(text: str, **options: Any) -> nn.Module:
    """Make an activation by its name.

    Args:
        text: A name, alone or with a number or ``learnable`` after a colon: "gelu", "iglu:5",
            "iglu:learnable=5".  ``iglu`` and ``iglu_approx`` without a number have sigma = 5.
        options: Arguments of the module, such as ``inplace=True`` or ``device="cuda"``.

    >>> create("iglu:5")
    IGLU(sigma=5)
    >>> create("iglu", learnable=True, channels=16, channel_dim=-1)
    IGLU(sigma=5, learnable=True, channels=16, channel_dim=-1)
    """
    spec = parse(text)
    stated: dict[str, Any] = {}
    if spec.sigma is not None:
        stated[ZOO[spec.name].number] = spec.sigma
    if spec.learnable:
        stated["learnable"] = True
    for key in stated.keys() & options.keys():
        raise TypeError(f"{text!r} already states {key}; got {key}={options[key]!r} as well")
    return ZOO[spec.name].make(**stated, **options)


def _number(word: str, text: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise ValueError(
            f"Malformed activation {text!r}: expected a number >= 0 or learnable[=start] after the colon, "
            f"got {word!r}"
        )
    return number
