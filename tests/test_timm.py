"""swap() and register() on timm models, with random weights and small images."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

import iglu
from iglu import zoo
from iglu.integrations import timm as integration
from iglu.surgery import swap

timm = pytest.importorskip("timm", reason="timm is not installed")

integration.register()

SMALL_VIT = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 3}


def resnet(**options: Any) -> nn.Module:
    return timm.create_model("resnet10t", num_classes=3, **options)


def vit(**options: Any) -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", **SMALL_VIT, **options)


def regnet(**options: Any) -> nn.Module:
    """Its activations are inside BatchNormAct2d."""
    return timm.create_model("regnetx_002", num_classes=3, **options)


def iglus(model: nn.Module) -> list[iglu.IGLU]:
    return [module for module in model.modules() if isinstance(module, iglu.IGLU)]


def usual(model: nn.Module) -> list[str]:
    """Places of ReLU and GELU, found by class name alone."""
    return [place for place, module in model.named_modules() if type(module).__name__ in ("ReLU", "GELU")]


@pytest.mark.parametrize("build", [resnet, vit, regnet])
@pytest.mark.parametrize("name", ["iglu:0.5", "iglu_approx:learnable"])
def test_every_activation_is_replaced_and_trains(build: Any, name: str) -> None:
    model = build()
    expected = usual(model)
    record = swap(model, name)
    assert [each.place for each in record.replaced] == expected
    assert usual(model) == []
    assert (record.functional, record.not_saved) == ([], [])
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert len(iglus(model)) == len(expected)
    assert all(parameter.grad is not None for module in iglus(model) for parameter in module.parameters())


def test_the_activation_inside_a_norm_is_applied() -> None:
    from timm.layers import BatchNormAct2d

    norm = BatchNormAct2d(4).eval()
    swap(norm, "iglu:0.5")
    x = torch.randn(2, 4, 3, 3)
    plain = nn.functional.batch_norm(x, norm.running_mean, norm.running_var, eps=norm.eps)
    torch.testing.assert_close(norm(x), iglu.iglu(plain, 0.5))


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "quick_gelu", "hard_mish"])
def test_activation_classes_of_timm_are_replaced(kind: str) -> None:
    from timm.layers import create_act_layer

    assert len(swap(nn.Sequential(create_act_layer(kind)), "iglu").replaced) == 1


def test_the_relu_inside_starrelu_is_replaced_and_its_affine_form_stays() -> None:
    from timm.models.metaformer import StarReLU

    model = nn.Sequential(StarReLU(scale_value=0.8, bias_value=-0.4), nn.ReLU())
    assert [each.place for each in swap(model, "iglu:0.5").replaced] == ["0.relu", "1"]
    x = torch.randn(20)
    torch.testing.assert_close(model[0](x), 0.8 * iglu.iglu(x, 0.5) ** 2 - 0.4)
    assert [each.place for each in swap(model, "iglu", only=StarReLU).replaced] == ["0"]


def test_all_twelve_activations_of_poolformer_are_replaced() -> None:
    model = timm.create_model("poolformerv2_s12", num_classes=3)
    record = swap(model, "iglu")
    assert len(record.replaced) == 12
    assert usual(model) == []


def test_relu_squared_is_one_activation_whose_inner_relu_is_not_replaced() -> None:
    from timm.models.metaformer import SquaredReLU

    model = nn.Sequential(SquaredReLU(), nn.ReLU())
    assert [each.place for each in swap(model, "iglu").replaced] == ["1"]
    assert isinstance(model[0].relu, nn.ReLU)
    assert [each.place for each in swap(model, "iglu", only=SquaredReLU).replaced] == ["0"]


def test_gates_of_squeeze_and_excitation_are_not_replaced() -> None:
    model = timm.create_model("mobilenetv3_small_050", num_classes=3)
    gates = [place for place, module in model.named_modules() if isinstance(module, nn.Hardsigmoid)]
    assert gates
    swap(model, "iglu")
    assert [place for place, module in model.named_modules() if isinstance(module, nn.Hardsigmoid)] == gates


def test_a_model_that_ran_and_cannot_be_copied_can_be_swapped() -> None:
    model = timm.create_model("tiny_vit_5m_224", num_classes=3).eval()
    model(torch.randn(1, 3, 224, 224))
    assert swap(model, "iglu").replaced


def test_functions_called_with_inplace_are_reported() -> None:
    from timm.models.nfnet import GammaAct

    model = nn.Sequential(GammaAct("silu", gamma=1.5))
    with pytest.warns(UserWarning, match="Nothing was replaced"):
        record = swap(model, "iglu")
    assert record.replaced == []
    assert [each.call for each in record.functional] == ["self.act_fn(x, inplace=self.inplace)"]


# --------------------------------------------------------------------------------------- register


@pytest.mark.parametrize("build", [resnet, vit, regnet])
@pytest.mark.parametrize("name", ["iglu", "iglu:0.5", "iglu_approx:learnable=5", "IGLU_Approx:0.5"])
def test_a_name_as_act_layer_builds_and_trains(build: Any, name: str) -> None:
    model = build(act_layer=name)
    assert len(iglus(model)) == len(usual(build()))
    assert {str(module) for module in iglus(model)} == {str(iglu.create(name.lower()))}
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert all(parameter.grad is not None for module in iglus(model) for parameter in module.parameters())


class Sine(nn.Module):
    """An activation of the user."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_a_registered_activation_is_an_act_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "ZOO", dict(zoo.ZOO))
    iglu.register_activation("sine", Sine)
    kinds = [type(module) for module in resnet(act_layer="sine").modules()]
    assert kinds.count(Sine) == len(usual(resnet()))


def test_names_of_timm_keep_their_meaning_and_registering_again_changes_nothing() -> None:
    from timm.layers import create_act

    table = create_act._ACT_LAYER_DEFAULT
    integration.register()
    assert create_act._ACT_LAYER_DEFAULT is table
    assert create_act.get_act_layer("gelu") is timm.layers.activations.GELU
    assert create_act.get_act_layer("relu") is nn.ReLU


@pytest.mark.parametrize("name", ["iglu:", "iglu:x", "iglu:learnable="])
def test_malformed_names_raise(name: str) -> None:
    with pytest.raises(ValueError, match="Malformed activation"):
        resnet(act_layer=name)


def test_unknown_names_raise_with_the_nearest_known_one() -> None:
    with pytest.raises(KeyError, match="Did you mean 'iglu'"):
        resnet(act_layer="igul")


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "elu", "tanh", "sigmoid", "softplus"])
def test_the_gain_of_a_normalizer_free_network_agrees_with_timms_own(name: str) -> None:
    from timm.models import nfnet

    # timm's constants were measured on a finite sample.
    assert nfnet._nonlin_gamma.value_of(name) == pytest.approx(dict(nfnet._nonlin_gamma)[name], rel=0.01)


@pytest.mark.parametrize("name", ["iglu:0.5", "iglu:learnable=0.5"])
def test_a_normalizer_free_network_accepts_the_names(name: str) -> None:
    from timm.models import nfnet

    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert nfnet._nonlin_gamma[name] * iglu.iglu(x, 0.5).std().item() == pytest.approx(1, rel=0.01)
    shape = {"depths": (1, 1, 1, 1), "channels": (16, 16, 16, 16), "stem_chs": 16, "group_size": 8}
    model = nfnet.NormFreeNet(nfnet.NfCfg(**shape, act_layer=name), num_classes=3)
    assert iglus(model)
    model(torch.randn(2, 3, 64, 64)).sum().backward()


def test_where_timm_needs_a_function_sigma_must_be_fixed() -> None:
    from timm.layers import get_act_fn

    x = torch.randn(5)
    assert torch.equal(get_act_fn("iglu:0.5")(x, inplace=True), iglu.iglu(x, 0.5))
    with pytest.raises(ValueError, match="cannot hold the learnable sigma"):
        get_act_fn("iglu:learnable")


def test_registered_activations_can_be_pickled() -> None:
    from timm.layers import get_act_fn, get_act_layer

    x = torch.randn(5)
    function = pickle.loads(pickle.dumps(get_act_fn("iglu:0.5")))
    assert torch.equal(function(x, inplace=True), iglu.iglu(x, 0.5))
    layer = pickle.loads(pickle.dumps(get_act_layer("iglu:0.5")))(inplace=True)
    assert torch.equal(layer(x), iglu.iglu(x, 0.5))
    again = pickle.loads(pickle.dumps(resnet(act_layer="iglu:0.5")))
    assert {module.sigma for module in iglus(again)} == {0.5}
