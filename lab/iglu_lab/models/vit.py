"""A vision transformer (Dosovitskiy et al., 2021) in the form of the paper: a norm after the patch
embedding, fixed sinusoidal positions, no bias on queries, keys and values, no final norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from iglu_lab.models import MakeActivation
from iglu_lab.models.transformer import Block, layer_norm


@dataclass(frozen=True)
class ViTConfig:
    """The sizes; the defaults are ViT-Tiny."""

    image: int = 224
    patch: int = 16
    width: int = 192
    heads: int = 3
    layers: int = 12
    dropout: float = 0.1  # on attention probabilities, attention output, MLP hidden and MLP output

    def __post_init__(self) -> None:
        if self.image % self.patch:
            raise ValueError(f"image must be a multiple of patch, got {self.image} and {self.patch}")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be even and a multiple of heads, got width {self.width} and {self.heads} heads"
            )


def sinusoidal_positions(count: int, width: int) -> Tensor:
    """sin and cos of position / 10000^(2i/width), interleaved (Vaswani et al., 2017)."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(count, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], 2).reshape(count, width).float()


class ViT(nn.Module):
    """Images of shape (batch, 3, image, image) to logits, from the class token.

    >>> [sum(p.numel() for p in ViT(classes=classes).parameters()) for classes in (10, 100)]
    [5481610, 5498980]
    """

    positions: Tensor

    def __init__(
        self,
        config: ViTConfig | None = None,
        classes: int = 10,
        make_activation: MakeActivation = nn.GELU,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.config = config = ViTConfig() if config is None else config
        self.patches = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        self.norm = layer_norm(config.width, norm)
        self.class_token = nn.Parameter(torch.randn(1, 1, config.width))
        count = (config.image // config.patch) ** 2 + 1
        # Determined by the configuration, so not saved.
        self.register_buffer("positions", sinusoidal_positions(count, config.width), persistent=False)
        self.blocks = nn.ModuleList(
            Block(config, make_activation, norm, bias=False, causal=False, hidden_dropout=True)
            for _ in range(config.layers)
        )
        self.head = nn.Linear(config.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        size = self.config.image
        if images.shape[-2:] != (size, size):
            raise ValueError(f"images must be of {size} x {size} pixels, got {tuple(images.shape[-2:])}")
        x = self.norm(self.patches(images).flatten(2).transpose(1, 2))
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x[:, 0])
        return logits
