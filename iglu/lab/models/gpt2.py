"""GPT-2 (Radford et al., 2019): pre-norm blocks, learned positions, the head tied to the embedding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, arange, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class GPT2Config:
    """The sizes; the defaults are GPT-2 Small."""

    vocabulary: int = 50_257
    context: int = 1_024  # the longest sequence: one learned position each
    width: int = 768
    heads: int = 12
    layers: int = 12
    dropout: float = 0.1  # on embeddings, attention probabilities and both residual branches

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, got width {self.width} and {self.heads} heads"
            )


def _norm(width: int, norm: bool) -> nn.Module:
    return nn.LayerNorm(width) if norm else nn.Identity()


class Attention(nn.Module):
    """Causal self-attention; one matrix makes queries, keys and values."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return mixed


class Block(nn.Module):
    """Attention, then the feed-forward layer in which the activation lives, each around a residual."""

    def __init__(
        self, config: GPT2Config, make_activation: Callable[[], nn.Module] = nn.GELU, norm: bool = True
    ) -> None:
        super().__init__()
        self.norm1 = _norm(config.width, norm)
        self.attention = Attention(config)
        self.norm2 = _norm(config.width, norm)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.activation = make_activation()
        self.down = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        result: Tensor = x + self.dropout(self.down(self.activation(self.up(self.norm2(x)))))
        return result


class GPT2(nn.Module):
    """Token numbers of shape (batch, length) to logits of shape (batch, length, vocabulary)."""

    def __init__(
        self,
        config: GPT2Config | None = None,
        make_activation: Callable[[], nn.Module] = nn.GELU,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.config = config = GPT2Config() if config is None else config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, make_activation, norm) for _ in range(config.layers))
        self.norm = _norm(config.width, norm)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """N(0, 0.02), biases 0; the two projections of a block that end in the residual stream, to which
        2 x layers of them add up, at 0.02/sqrt(2 layers)."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                into_residual = name.endswith((".attention.out", ".down"))
                depth = 2 * self.config.layers if into_residual else 1
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(depth))
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.config.context:
            raise ValueError(f"tokens must be at most {self.config.context} long (the context), got {length}")
        x = self.dropout(self.tokens(tokens) + self.positions(arange(length, device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)
