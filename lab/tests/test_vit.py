"""The vision transformer against the paper's parameter counts and the formula of attention."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from iglu_lab.models.gpt2 import GPT2, GPT2Config
from iglu_lab.models.vit import ViT, ViTConfig, sinusoidal_positions
from iglu_lab.training.workloads import MODELS


def test_vit_tiny_has_the_parameters_and_activations_of_the_paper() -> None:
    for classes, count in ((10, 5_481_610), (100, 5_498_980)):
        model = ViT(classes=classes)
        assert sum(p.numel() for p in model.parameters()) == count
    assert sum(isinstance(module, nn.GELU) for module in model.modules()) == 12
    bare = ViT(norm=False)
    assert not any(isinstance(module, nn.LayerNorm) for module in bare.modules())
    assert sum(p.numel() for p in bare.parameters()) == 5_481_610 - 25 * 2 * 192


def test_the_small_transformers_have_the_documented_numbers_of_parameters() -> None:
    """A block has 12 w^2 weights; its biases and norms are 10 w, or 13 w with biases on q, k and v."""
    vit, mini, nano = (MODELS[name] for name in ("vit-mini", "gpt2-mini", "gpt2-nano"))
    count = sum(p.numel() for p in ViT(vit).parameters())
    assert count == (3 * 4 * 4 + 1) * 96 + 3 * 96 + 4 * (12 * 96**2 + 10 * 96) + 97 * 10
    assert (vit.image, vit.heads) == (32, 3)
    for config, width, heads, layers in ((mini, 128, 4, 4), (nano, 64, 2, 2)):
        count = sum(p.numel() for p in GPT2(config).parameters())
        assert count == (50_257 + 1_024 + 2) * width + layers * (12 * width**2 + 13 * width)
        assert config.heads == heads


def test_vit_computes_the_formula_of_attention() -> None:
    config = ViTConfig(image=12, patch=4, width=12, heads=3, layers=1, dropout=0.0)
    model = ViT(config, classes=4).eval().double()
    images = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    assert model.positions.shape == (1 + 9, 12)
    block = model.blocks[0]
    x = F.conv2d(images, model.patches.weight, model.patches.bias, stride=4).flatten(2).transpose(1, 2)
    x = torch.cat(
        [model.class_token.expand(2, 1, 12), F.layer_norm(x, (12,), model.norm.weight, model.norm.bias)], 1
    )
    x = x + model.positions
    q, k, v = block.attention.qkv(block.norm1(x)).chunk(3, -1)
    heads = []
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        scores = (q[..., part] @ k[..., part].transpose(1, 2) / 2).softmax(-1)
        heads.append(scores @ v[..., part])
    x = x + block.attention.out(torch.cat(heads, -1))
    x = x + block.down(F.gelu(block.up(block.norm2(x))))
    torch.testing.assert_close(model(images), model.head(x[:, 0]))


def test_the_class_token_starts_as_a_standard_normal() -> None:
    torch.manual_seed(0)
    token = ViT(ViTConfig(width=4_800, layers=0)).class_token
    assert token.shape == (1, 1, 4_800)
    assert 0.95 < token.std().item() < 1.05
    assert abs(token.mean().item()) < 0.05


def test_positions_are_sines_and_cosines_in_turn() -> None:
    found = sinusoidal_positions(5, 8)
    assert found.shape == (5, 8)
    for position in range(5):
        for index in range(4):
            angle = position / 10_000 ** (2 * index / 8)
            pair = (math.sin(angle), math.cos(angle))
            assert found[position, 2 * index : 2 * index + 2].tolist() == pytest.approx(pair, rel=1e-6)


def test_vit_applies_dropout_to_hidden_units_gpt2_does_not_and_neither_does_in_evaluation() -> None:
    models = (
        (ViT(ViTConfig(image=8, patch=4, width=12, heads=3, layers=1, dropout=0.5)), 3),
        (GPT2(GPT2Config(vocabulary=9, context=4, width=12, heads=3, layers=1, dropout=0.5)), 2),
    )
    for model, times in models:
        inputs = torch.randn(2, 3, 8, 8) if isinstance(model, ViT) else torch.randint(9, (2, 4))
        calls: list[int] = []
        model.blocks[0].dropout.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        first = model(inputs)
        assert len(calls) == times  # after attention, [the activation] and the following layer
        assert not torch.equal(first, model(inputs))
        model.eval()
        assert torch.equal(model(inputs), model(inputs))
