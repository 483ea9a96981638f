"""GPT-2 (Radford et al., 2019): pre-norm blocks, learned positions, the head tied to the embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, arange, nn
from torch.nn import functional as F

from iglu_lab.models import MakeActivation
from iglu_lab.models.transformer import Block, layer_norm


@dataclass(frozen=True)
class GPT2Config:
    """The sizes; the defaults are GPT-2 Small."""

    vocabulary: int = 50_257
    context: int = 1_024  # maximum sequence length, with one learned embedding per position
    width: int = 768
    heads: int = 12
    layers: int = 12
    dropout: float = 0.1  # on embeddings, attention probabilities and both residual branches

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, got width {self.width} and {self.heads} heads"
            )


def gpt2_block(config: GPT2Config, make_activation: MakeActivation, norm: bool = True) -> Block:
    return Block(config, make_activation, norm, bias=True, causal=True, hidden_dropout=False)


class GPT2(nn.Module):
    """Token ids of shape (batch, length) to logits of shape (batch, length, vocabulary)."""

    def __init__(
        self, config: GPT2Config | None = None, make_activation: MakeActivation = nn.GELU, norm: bool = True
    ) -> None:
        super().__init__()
        self.config = config = GPT2Config() if config is None else config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(gpt2_block(config, make_activation, norm) for _ in range(config.layers))
        self.norm = layer_norm(config.width, norm)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights N(0, 0.02), biases 0.  The two projections of a block into the residual stream have the
        standard deviation 0.02 / sqrt(2 layers)."""
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
            raise ValueError(f"expected at most {self.config.context} tokens (the context), got {length}")
        x = self.dropout(self.tokens(tokens) + self.positions(arange(length, device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)
