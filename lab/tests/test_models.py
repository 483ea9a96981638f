"""The networks of the paper: sizes, agreement with others' code, and a trained one on real images."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import iglu
from iglu_lab.models.gpt2 import GPT2, GPT2Config
from iglu_lab.models.resnet import TRAINED_MEAN, TRAINED_STD, load_trained_resnet20, resnet, resnet20

TINY = GPT2Config(vocabulary=61, context=16, width=24, heads=3, layers=2)


class Marker(nn.ReLU):
    """An activation that no other module can be mistaken for."""


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def markers(model: nn.Module) -> int:
    return sum(isinstance(module, Marker) for module in model.modules())


# -- ResNet ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "parameters"), [(10, 272_474), (100, 278_324)])
def test_resnet20_has_the_published_number_of_parameters(classes: int, parameters: int) -> None:
    assert count(resnet20(classes)) == parameters


def test_option_a_shortcuts_have_no_parameters() -> None:
    # Two 1 x 1 convolutions (16 x 32 and 32 x 64) and their norms less: the 0.27 M of He et al.
    assert count(resnet20()) - count(resnet20(shortcut="A")) == 16 * 32 + 32 * 64 + 2 * (32 + 64)


@pytest.mark.parametrize("depth", [20, 32, 44, 56])
def test_resnet_of_depth_n_has_n_minus_one_places_for_an_activation(depth: int) -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(Marker())
        return made[-1]

    model = resnet(depth, make_activation=make)
    assert len(made) == markers(model) == depth - 1
    assert not any(
        isinstance(module, nn.ReLU) and not isinstance(module, Marker) for module in model.modules()
    )


def test_resnet_without_norm_lacks_the_norms_and_nothing_else() -> None:
    with_norm, without = resnet20(), resnet20(norm=False)
    norms = sum(count(module) for module in with_norm.modules() if isinstance(module, nn.BatchNorm2d))
    assert count(with_norm) - count(without) == norms
    assert not any(isinstance(module, nn.BatchNorm2d) for module in without.modules())


@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_every_parameter_of_resnet_gets_a_gradient(shortcut: str) -> None:
    model = resnet(8, 7, iglu.IGLU, shortcut=shortcut)
    logits = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_stages_halve_the_image_twice_and_double_the_channels() -> None:
    model = resnet20()
    x = model.layer1(torch.randn(1, 16, 32, 32))
    shapes = [tuple(x.shape)]
    for stage in (model.layer2, model.layer3):
        x = stage(x)
        shapes.append(tuple(x.shape))
    assert shapes == [(1, 16, 32, 32), (1, 32, 16, 16), (1, 64, 8, 8)]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"depth": 21}, r"depth must be 6n \+ 2 .*got 21"),
    ({"depth": 20, "shortcut": "C"}, "shortcut must be one of 'A', 'B', got 'C'"),
])  # fmt: skip
def test_invalid_arguments_of_resnet_raise_with_what_is_allowed(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        resnet(**arguments)  # type: ignore[arg-type]


def saved(path: Path, model: nn.Module) -> Path:
    weights = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": weights, "best_prec1": 0.0}, path)
    return path


def test_a_checkpoint_loads_whatever_the_activation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = resnet20(shortcut="A").eval()
    path = saved(tmp_path / "model.th", original)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(load_trained_resnet20(path)(x), original(x))
    learnable = load_trained_resnet20(path, functools.partial(iglu.IGLU, learnable=True))
    assert sum(isinstance(module, iglu.IGLU) for module in learnable.modules()) == 19


@pytest.mark.parametrize("write", [
    lambda path: path.write_bytes(b"not a checkpoint"),
    lambda path: torch.save([1, 2], path),
    lambda path: torch.save({"weights": torch.ones(1)}, path),
    lambda path: saved(path, resnet20(shortcut="B")),
    lambda path: saved(path, resnet20(100, shortcut="A")),
    lambda path: saved(path, resnet(32, shortcut="A")),
    lambda path: saved(path, resnet(8, shortcut="A")),
], ids=["text", "list", "other dict", "option B", "CIFAR-100", "depth 32", "depth 8"])  # fmt: skip
def test_a_wrong_file_is_named_with_what_was_expected(
    write: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "wrong.th"
    write(path)
    with pytest.raises(ValueError, match=r"wrong\.th is not a trained CIFAR-10 ResNet-20"):
        load_trained_resnet20(path)


class Explosive:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (self.path,))  # type: ignore[attr-defined]


def test_a_checkpoint_with_code_in_it_raises_without_running_it(tmp_path: Path) -> None:
    bomb = Explosive()
    bomb.path = str(tmp_path / "exploded")  # type: ignore[attr-defined]
    torch.save({"state_dict": bomb}, tmp_path / "bomb.th")
    with pytest.raises(ValueError, match=r"bomb\.th is not"):
        load_trained_resnet20(tmp_path / "bomb.th")
    assert not (tmp_path / "exploded").exists()


# -- the trained ResNet-20 on CIFAR-10 --------------------------------------------------------------

TEST_BATCH_SHA256 = "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"


@pytest.fixture(scope="module")
def trained() -> Path:
    return data("cifar10-resnets/resnet20-12fca82f.th")


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    """The 10,000 test images, normalized for the trained network, and their labels."""
    content = data("cifar-10-batches-py/test_batch").read_bytes()
    assert hashlib.sha256(content).hexdigest() == TEST_BATCH_SHA256
    batch = pickle.loads(content, encoding="bytes")
    pixels = torch.from_numpy(batch[b"data"]).reshape(-1, 3, 32, 32) / 255
    mean, std = (torch.tensor(each)[:, None, None] for each in (TRAINED_MEAN, TRAINED_STD))
    return (pixels - mean) / std, torch.tensor(batch[b"labels"])


def data(name: str) -> Path:
    root = os.environ.get("IGLU_DATA")
    if not root:
        pytest.skip("IGLU_DATA does not name a folder with data")
    path = Path(root) / name
    if not path.is_file():
        pytest.skip(f"$IGLU_DATA/{name} does not exist")
    return path


@torch.no_grad()
def accuracy(model: nn.Module, images: tuple[Tensor, Tensor]) -> float:
    model = model.to(memory_format=torch.channels_last)
    x, labels = images
    predicted = [model(some.contiguous(memory_format=torch.channels_last)).argmax(1) for some in x.split(250)]
    return (torch.cat(predicted) == labels).double().mean().item()


@pytest.mark.slow
def test_trained_resnet20_scores_its_published_accuracy(trained: Path, images: tuple[Tensor, Tensor]) -> None:
    # 91.73%; one image in ten thousand may fall the other way with the order of a sum.
    assert accuracy(load_trained_resnet20(trained), images) == pytest.approx(0.9173, abs=2e-4)


@pytest.mark.parametrize("approximate", ["none", pytest.param("rational", marks=pytest.mark.slow)])
def test_a_relu_network_regains_its_accuracy_as_sigma_grows(
    approximate: str, trained: Path, images: tuple[Tensor, Tensor]
) -> None:
    some = (images[0][:500], images[1][:500])
    with_relu = accuracy(load_trained_resnet20(trained), some)
    with_iglu = [
        accuracy(
            load_trained_resnet20(trained, functools.partial(iglu.IGLU, sigma, approximate=approximate)), some
        )
        for sigma in (1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
    ]
    assert with_iglu[0] < 0.5  # far from what it was trained with
    assert all(later > earlier - 0.01 for earlier, later in itertools.pairwise(with_iglu))
    assert with_iglu[-1] == pytest.approx(with_relu, abs=0.005)


# -- GPT-2 -------------------------------------------------------------------------------------------


def test_gpt2_small_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = GPT2(make_activation=Marker)
    assert count(model) == 124_439_808
    assert markers(model) == 12


def test_gpt2_starts_with_residual_projections_scaled_by_depth() -> None:
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocabulary=1_000, context=64, width=128, heads=4, layers=8))
    scaled = 0.02 / (2 * 8) ** 0.5
    for block in model.blocks:
        assert block.attention.out.weight.std().item() == pytest.approx(scaled, rel=0.05)
        assert block.down.weight.std().item() == pytest.approx(scaled, rel=0.05)
        assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert block.up.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert not block.up.bias.any()
    assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.05)


def from_transformers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of transformers' GPT-2 under our names; its matrices are stored transposed."""
    parts = {
        "wte": "tokens", "wpe": "positions", "ln_f": "norm", "h": "blocks", "ln_1": "norm1", "ln_2": "norm2",
        "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out",
        "mlp.c_fc": "up", "mlp.c_proj": "down",
    }  # fmt: skip
    result = {}
    for name, tensor in weights.items():
        if name.startswith("transformer."):
            ours = f".{name.removeprefix('transformer.')}."
            for theirs, part in parts.items():
                ours = ours.replace(f".{theirs}.", f".{part}.")
            is_matrix = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
            result[ours.strip(".")] = tensor.T if is_matrix else tensor
    return result


def test_gpt2_agrees_with_transformers_given_the_same_weights() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=TINY.vocabulary, n_positions=TINY.context, n_embd=TINY.width, n_layer=TINY.layers,
        n_head=TINY.heads, initializer_range=0.3, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for parameter in theirs.parameters():  # biases start at 0, which would hide a wrong one
        nn.init.normal_(parameter, std=0.3)
    ours = GPT2(TINY, lambda: nn.GELU("tanh")).eval()
    ours.load_state_dict(from_transformers(theirs.state_dict()))
    tokens = torch.randint(TINY.vocabulary, (3, TINY.context))
    mine, other = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    mine.square().mean().backward()
    other.square().mean().backward()
    torch.testing.assert_close(
        ours.tokens.weight.grad, theirs.transformer.wte.weight.grad, rtol=1e-3, atol=1e-3
    )


def test_the_outputs_of_gpt2_do_not_depend_on_later_tokens() -> None:
    model = GPT2(TINY).eval()
    tokens = torch.randint(TINY.vocabulary, (1, TINY.context))
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % TINY.vocabulary
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[0, :9], after[0, :9])
    assert not torch.allclose(before[0, 9:], after[0, 9:])


def test_gpt2_applies_dropout_in_training_only() -> None:
    model = GPT2(TINY)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_gpt2_without_norm_lacks_the_norms_and_nothing_else() -> None:
    with_norm, without = GPT2(TINY), GPT2(TINY, norm=False)
    assert count(with_norm) - count(without) == (2 * TINY.layers + 1) * 2 * TINY.width


def test_a_sequence_longer_than_the_context_raises() -> None:
    with pytest.raises(ValueError, match=r"at most 16 .*, got 17"):
        GPT2(TINY)(torch.zeros(1, 17, dtype=torch.long))


def test_heads_that_do_not_divide_the_width_raise() -> None:
    with pytest.raises(ValueError, match="width must be a multiple of heads, got width 24 and 5 heads"):
        GPT2Config(width=24, heads=5)
