"""A multilayer perceptron without normalization, with PyTorch's default initialization."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import nn

from iglu_lab.models import MakeActivation


@dataclass(frozen=True)
class MLPConfig:
    """Layer widths; the data set determines inputs and classes."""

    hidden: tuple[int, ...] = (100, 100)
    inputs: int = 64
    classes: int = 10


def mlp(config: MLPConfig, make_activation: MakeActivation) -> nn.Sequential:
    """Linear layers with activations between them."""
    widths = (config.inputs, *config.hidden, config.classes)
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), make_activation()]
    return nn.Sequential(*layers[:-1])
