"""timm: iglu's activation names as ``act_layer``.

    iglu.integrations.timm.register()
    model = timm.create_model("resnet50", act_layer="iglu:5")

Some timm models do not accept a string as ``act_layer``, and some ignore it; ``iglu.swap`` does not depend on
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from iglu import zoo
from iglu.integrations import NameTable, require


def register() -> None:
    """Let ``act_layer`` of timm accept iglu's activation names.

    Names that timm has keep their meaning.  Calling it again changes nothing."""
    tables, nfnet = require("timm", "layers.create_act", "models.nfnet")
    _extend_table(tables, "_ACT_LAYER_DEFAULT", NameTable)
    _extend_table(tables, "_ACT_FN_DEFAULT", _Functions)
    _extend_table(nfnet, "_nonlin_gamma", _Gammas)


def _extend_table(module: Any, name: str, kind: type[NameTable]) -> None:
    table = getattr(module, name)
    if not isinstance(table, NameTable):
        setattr(module, name, kind(table))


class _Functions(NameTable):
    @staticmethod
    def value_of(name: str) -> Callable[..., Tensor]:
        if zoo.parse(name).learnable:
            raise ValueError(
                f"timm needs a function for this model, which cannot hold the learnable sigma of {name!r}: "
                "use a fixed sigma, as in 'iglu:5'"
            )
        return functools.partial(_apply, zoo.create(name))


def _apply(module: nn.Module, x: Tensor, inplace: bool = False) -> Tensor:
    """Call a module as timm calls a function; ``inplace`` is ignored as in ``iglu.integrations._make``."""
    result: Tensor = module(x)
    return result


class _Gammas(NameTable):
    """Gains that keep the variance in a network without normalization: 1/std f(X), X standard normal."""

    @staticmethod
    def value_of(name: str) -> float:
        x = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
        weight = torch.exp(-x * x / 2)
        weight /= weight.sum()
        with torch.no_grad():
            y = zoo.create(name, **({"dtype": torch.float64} if zoo.parse(name).learnable else {}))(x)
        mean = (weight * y).sum()
        return float(((weight * (y - mean) ** 2).sum()) ** -0.5)
