"""The one table of activations: every name that a command line, a config or a benchmark may use.

Names follow the grammar ``name[:sigma | :learnable[=start]]``: ``"gelu"``, ``"iglu:0.5"``,
``"iglu_approx:learnable=5"``.  To add an activation, add a row.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from iglu.modules import IGLU, XATLU, IGLUGate, ScaledGELU, Squareplus
from iglu.peers import XIELU, GoLU, ReLUSquared, TeLU


class Activation(NamedTuple):
    """One row: how it is written in print, how it is made, and what it is."""

    label: str
    make: Callable[..., nn.Module]
    self_gated: bool = False  # of the form x g(x)
    takes_sigma: bool = False


_rational_gate = functools.partial(IGLUGate, approximate="rational")
_rational_iglu = functools.partial(IGLU, approximate="rational")

# In the order of the paper's Table 1; after Identity, what the paper mentions and does not time, and what
# others compare with.
ZOO: dict[str, Activation] = {
    "z": Activation("Z", IGLUGate, takes_sigma=True),
    "z_approx": Activation("Z_approx", _rational_gate, takes_sigma=True),
    "iglu": Activation("IGLU", IGLU, self_gated=True, takes_sigma=True),
    "iglu_approx": Activation("IGLU-Approx", _rational_iglu, self_gated=True, takes_sigma=True),
    "relu": Activation("ReLU", nn.ReLU, self_gated=True),
    "gelu": Activation("GELU", nn.GELU, self_gated=True),
    "silu": Activation("SiLU", nn.SiLU, self_gated=True),
    "celu": Activation("CELU", nn.CELU),
    "elu": Activation("ELU", nn.ELU),
    "hardshrink": Activation("Hardshrink", nn.Hardshrink),
    "hardsigmoid": Activation("Hardsigmoid", nn.Hardsigmoid),
    "hardswish": Activation("Hardswish", nn.Hardswish, self_gated=True),
    "hardtanh": Activation("HardTanh", nn.Hardtanh),
    "leaky_relu": Activation("LeakyReLU", nn.LeakyReLU),
    "mish": Activation("Mish", nn.Mish, self_gated=True),
    "prelu": Activation("PReLU", nn.PReLU),
    "selu": Activation("SELU", nn.SELU),
    "sigmoid": Activation("Sigmoid", nn.Sigmoid),
    "softplus": Activation("Softplus", nn.Softplus),
    "softshrink": Activation("Softshrink", nn.Softshrink),
    "squareplus": Activation("Squareplus", Squareplus),
    "tanh": Activation("Tanh", nn.Tanh),
    "tanhshrink": Activation("Tanhshrink", nn.Tanhshrink),
    "identity": Activation("Identity", nn.Identity),
    "gelu_a": Activation("GELU_a", ScaledGELU, self_gated=True, takes_sigma=True),
    "atlu": Activation("ATLU", functools.partial(IGLU, 1.0), self_gated=True),
    "xatlu": Activation("xATLU", XATLU, self_gated=True),
    "relu2": Activation("ReLU²", ReLUSquared, self_gated=True),
    "telu": Activation("TeLU", TeLU, self_gated=True),
    "golu": Activation("GoLU", GoLU, self_gated=True),
    "xielu": Activation("xIELU", XIELU),
}

# What others call them.
_ALSO_CALLED = {
    "swish": "silu", "swish1": "silu", "hard_swish": "hardswish", "relu_squared": "relu2",
    "squared_relu": "relu2", "rectified_linear": "relu", "linear": "identity",
}  # fmt: skip


class Spec(NamedTuple):
    """A parsed name; ``str`` writes it back in its shortest form."""

    name: str
    sigma: float | None = None
    learnable: bool = False

    def __str__(self) -> str:
        # repr of a float reads back as the same float
        number = "" if self.sigma is None else repr(self.sigma).removesuffix(".0")
        if not self.learnable:
            return f"{self.name}:{number}" if number else self.name
        return f"{self.name}:learnable={number}" if number else f"{self.name}:learnable"

    @property
    def label(self) -> str:
        """As it is written in a table: ``IGLU (sigma = 0.5)``."""
        label = ZOO[self.name].label
        if self.learnable:
            return f"{label} (learnable sigma)"
        return label if self.sigma is None else f"{label} (sigma = {self.sigma:g})"


def parse(text: str) -> Spec:
    """Read ``name[:sigma | :learnable[=start]]``.

    >>> parse("iglu_approx:learnable=5")
    Spec(name='iglu_approx', sigma=5.0, learnable=True)
    """
    if not isinstance(text, str):
        raise TypeError(f"an activation is given by its name, such as 'iglu:0.5', got {text!r}")
    name, colon, argument = text.partition(":")
    if name not in ZOO:
        written = name.strip().lower().replace("-", "_").replace(" ", "_")
        near = [_ALSO_CALLED[written]] if written in _ALSO_CALLED else difflib.get_close_matches(written, ZOO)
        near.sort(key=lambda each: sorted(each) != sorted(written))  # letters in another order first
        hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(ZOO)}."
        raise ValueError(f"Unknown activation {name!r}.{hint}")
    if not colon:
        return Spec(name)
    if not ZOO[name].takes_sigma:
        takers = ", ".join(key for key, row in ZOO.items() if row.takes_sigma)
        raise ValueError(f"Activation {name!r} takes no sigma, got {text!r}. Those that do: {takers}.")
    word, equals, start = argument.partition("=")
    if word == "learnable":
        return Spec(name, _number(start, text) if equals else None, learnable=True)
    return Spec(name, _number(argument, text))


def create(text: str, **options: Any) -> nn.Module:
    """Make an activation by its name; options go to the module.

    >>> create("iglu:0.5")
    IGLU(sigma=0.5)
    >>> create("iglu", sigma=2.0, learnable=True)
    IGLU(sigma=2, learnable=True)
    """
    spec = parse(text)
    stated: dict[str, Any] = {}
    if spec.sigma is not None:
        stated["sigma"] = spec.sigma
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
            f"Malformed activation {text!r}: after the colon comes a number >= 0 or learnable[=start], "
            f"got {word!r}"
        )
    return number
