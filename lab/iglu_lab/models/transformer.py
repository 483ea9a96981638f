"""The pre-norm block of both transformers: attention, then the feed-forward layers."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional as F

from iglu_lab.models import MakeActivation


class BlockSizes(Protocol):
    """The configuration of a block."""

    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def dropout(self) -> float: ...


def layer_norm(width: int, norm: bool) -> nn.Module:
    return nn.LayerNorm(width) if norm else nn.Identity()


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, sizes: BlockSizes, *, bias: bool, causal: bool) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.dropout = sizes.dropout
        self.causal = causal
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=bias)
        self.out = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return mixed


class Block(nn.Module):
    """Attention, then feed-forward layers with the activation, each with a residual connection."""

    def __init__(
        self,
        sizes: BlockSizes,
        make_activation: MakeActivation,
        norm: bool,
        *,
        bias: bool,
        causal: bool,
        hidden_dropout: bool,
    ) -> None:
        super().__init__()
        self.norm1 = layer_norm(sizes.width, norm)
        self.attention = Attention(sizes, bias=bias, causal=causal)
        self.norm2 = layer_norm(sizes.width, norm)
        self.up = nn.Linear(sizes.width, 4 * sizes.width)
        self.activation = make_activation()
        self.down = nn.Linear(4 * sizes.width, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.hidden_dropout = hidden_dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = self.activation(self.up(self.norm2(x)))
        if self.hidden_dropout:
            hidden = self.dropout(hidden)
        result: Tensor = x + self.dropout(self.down(hidden))
        return result
