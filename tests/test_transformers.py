"""swap() and register() on transformers models, tiny and with random weights."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import iglu
from iglu import integrations
from iglu.integrations import transformers as integration
from iglu.swapping import Swap, swap
from iglu.swapping.slots import name_of

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

integration.register()
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {**SMALL, "vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def gpt2(**options: Any) -> Any:
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 32}
    config = transformers.GPT2Config(**size, bos_token_id=1, eos_token_id=2, **options)
    return transformers.GPT2LMHeadModel(config)


def vit(**options: Any) -> Any:
    config = transformers.ViTConfig(**SMALL, image_size=16, patch_size=8, num_labels=3, **options)
    return transformers.ViTForImageClassification(config)


def llama(**options: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT, **options))


def t5(**options: Any) -> Any:
    size = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 50}
    config = transformers.T5Config(**size, decoder_start_token_id=0, **options)
    return transformers.T5ForConditionalGeneration(config)


def clip() -> Any:
    vision = {**SMALL, "image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=vision, projection_dim=8)
    return transformers.CLIPModel(config)


def resnet() -> Any:
    size = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    config = transformers.ResNetConfig(**size, layer_type="basic")
    return transformers.ResNetModel(config)


def mamba(**options: Any) -> Any:
    config = transformers.MambaConfig(
        hidden_size=16, num_hidden_layers=2, vocab_size=50, state_size=4, pad_token_id=0, **options
    )
    return transformers.MambaForCausalLM(config)


def inputs(model: Any) -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    kind = type(model).__name__
    if kind.startswith("CLIP"):
        return {"input_ids": tokens, "pixel_values": pixels}
    if kind.startswith("T5"):
        return {"input_ids": tokens, "labels": tokens}
    return {"pixel_values": pixels} if kind.startswith(("ViT", "ResNet")) else {"input_ids": tokens}


def output(model: Any) -> torch.Tensor:
    """The first tensor a model gives that depends on its activations."""
    given = model(**inputs(model))
    for name in ("logits", "logits_per_image", "last_hidden_state"):
        if name in given:
            return given[name]
    raise AssertionError(f"nothing known in {list(given)}")


def reload(model: Any, path: Path) -> Any:
    model.save_pretrained(path)
    return type(model).from_pretrained(path)


def activations(model: nn.Module) -> dict[str, iglu.IGLU]:
    return {place: module for place, module in model.named_modules() if isinstance(module, iglu.IGLU)}


def silently(model: nn.Module, *arguments: Any, **options: Any) -> Swap:
    """A swap that has nothing to warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return swap(model, *arguments, **options)


# --------------------------------------------------------------------------------------- swap


@pytest.mark.parametrize("build", [gpt2, vit, llama, t5, clip])
@pytest.mark.parametrize("name", ["iglu:0.5", "iglu_approx:learnable=0.5"])
def test_a_swapped_model_trains_and_survives_saving(build: Any, name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build().eval()
    before = output(model)
    record = silently(model, name)
    assert record.replaced
    assert record.not_saved == []
    after = output(model)
    assert not torch.equal(before, after)
    after.square().sum().backward()
    for module in activations(model).values():
        for parameter in module.parameters():
            assert parameter.grad is not None
            with torch.no_grad():
                parameter.add_(torch.rand(1))  # "trained": all different, none at its start
    again = reload(model, tmp_path)
    assert {place: str(module) for place, module in activations(again).items()} == {
        place: str(module) for place, module in activations(model).items()
    }
    assert torch.equal(output(again), output(model))


def test_the_record_of_gpt2() -> None:
    model = gpt2()
    record = silently(model, "iglu:0.5")
    assert [each.place for each in record.replaced] == ["transformer.h.0.mlp.act", "transformer.h.1.mlp.act"]
    assert record.functional == []
    assert model.config.activation_function == "iglu:0.5"


def test_swapping_back_restores_the_model_and_its_config(tmp_path: Path) -> None:
    model = gpt2(activation_function="gelu").eval()
    before = output(model)
    silently(model, "iglu")
    silently(model, "gelu", only=iglu.IGLU)
    assert model.config.activation_function == "gelu"
    assert torch.allclose(output(reload(model, tmp_path)), before)


@pytest.mark.parametrize("build", [gpt2, t5, clip, mamba])
def test_undo_restores_the_model_and_its_config(build: Any) -> None:
    model = build().eval()
    before, stated = output(model), model.config.to_dict()
    modules = dict(model.named_modules())
    record = silently(model, "iglu:0.5")
    assert model.config.to_dict() != stated
    record.undo()
    assert model.config.to_dict() == stated
    assert dict(model.named_modules()) == modules
    assert torch.equal(output(model), before)


def test_a_second_swap_replaces_ours_and_the_config_follows(tmp_path: Path) -> None:
    model = gpt2()
    for name in ("iglu:0.5", "iglu:learnable", "telu", "xatlu", "relu2", "iglu_approx:2"):
        assert len(silently(model, name).replaced) == 2
        assert model.config.activation_function == name
        reload(model, tmp_path / name)
    model = mamba()
    for name in ("iglu:0.5", "iglu:3"):
        assert len(silently(model, name).replaced) == 2
    assert model.backbone.layers[1].mixer.activation == "iglu:3"


def test_a_saved_config_says_what_loading_it_needs(tmp_path: Path) -> None:
    model = gpt2()
    silently(model, "iglu")
    model.save_pretrained(tmp_path)
    assert "import iglu before from_pretrained" in (tmp_path / "config.json").read_text()
    silently(model, "gelu", only=iglu.IGLU)
    model.save_pretrained(tmp_path)
    assert "iglu" not in (tmp_path / "config.json").read_text()


def test_an_instance_that_the_grammar_can_name_is_saved(tmp_path: Path) -> None:
    model = gpt2()
    assert silently(model, iglu.IGLU(0.123456789)).not_saved == []
    assert reload(model, tmp_path).transformer.h[0].mlp.act.sigma == 0.123456789


def test_a_sigma_that_was_set_since_is_saved(tmp_path: Path) -> None:
    model = gpt2()
    silently(model, "iglu:0.5")
    for block in model.transformer.h:
        block.mlp.act.sigma = 5.0
    again = reload(model, tmp_path)
    assert {module.sigma for module in activations(again).values()} == {5.0}
    assert torch.equal(output(again.eval()), output(model.eval()))


def test_a_sigma_of_a_nested_config_that_was_set_since_is_saved(tmp_path: Path) -> None:
    model = clip()
    silently(model, {"text_model.*": "iglu:0.5", "vision_model.*": "iglu:2"})
    for module in activations(model.vision_model).values():
        module.sigma = 0.5
    again = reload(model, tmp_path)
    assert {module.sigma for module in activations(again).values()} == {0.5}


def test_saving_a_model_without_ours_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = clip()
    model.config.vision_config.hidden_act = "gelu"
    monkeypatch.setattr(integration, "_rebuild", lambda *_: pytest.fail("built the model once more"))
    model.save_pretrained(tmp_path)


def test_sigmas_set_apart_that_no_config_can_express_are_warned_of_when_saved(tmp_path: Path) -> None:
    model = gpt2(activation_function="iglu:0.5")
    model.transformer.h[1].mlp.act.sigma = 5.0
    with pytest.warns(UserWarning, match=r"No config can express what now stands at transformer\.h\.1\.mlp"):
        model.save_pretrained(tmp_path)
    assert model.config.activation_function == "iglu:0.5"


def test_t5_keeps_its_gate() -> None:
    model = t5(feed_forward_proj="gated-gelu")
    silently(model, "iglu:0.5")
    for config in (model.config, model.encoder.config, model.decoder.config):
        assert (config.feed_forward_proj, config.dense_act_fn) == ("gated-iglu:0.5", "iglu:0.5")
        assert config.is_gated_act


def test_parts_of_a_nested_config_are_set_apart(tmp_path: Path) -> None:
    model = clip()
    assert silently(model, {"text_model.*": "iglu:0.5"}).not_saved == []
    assert model.config.text_config.hidden_act == "iglu:0.5"
    assert model.config.vision_config.hidden_act == "quick_gelu"
    assert silently(model, {"vision_model.*": "iglu:2"}).not_saved == []
    again = reload(model, tmp_path)
    assert {module.sigma for module in activations(again.text_model).values()} == {0.5}
    assert {module.sigma for module in activations(again.vision_model).values()} == {2.0}


@pytest.mark.parametrize("to", ["iglu", {"transformer.h.0.*": "iglu:0.5", "transformer.h.1.*": "iglu:2"}])
def test_what_one_field_cannot_say_leaves_the_config_alone(to: Any) -> None:
    model = gpt2()
    only = "transformer.h.0.*" if to == "iglu" else None
    with pytest.warns(UserWarning, match="from_pretrained brings the old ones back"):
        record = swap(model, to, only=only)
    assert model.config.activation_function == "gelu_new"
    assert record.not_saved == [each.place for each in record.replaced]


def test_hard_coded_activations_are_reported_as_not_saved(tmp_path: Path) -> None:
    model = resnet()
    with pytest.warns(UserWarning, match="of the new activations of ResNetModel"):
        record = swap(model, "iglu:0.5")
    hard = [f"encoder.stages.{stage}.layers.0.layer.0.activation" for stage in (0, 1)]
    assert record.not_saved == hard
    assert len(record.replaced) == 5
    # The record is right: those, and only those, come back as they were.
    lost = activations(model).keys() - activations(reload(model, tmp_path)).keys()
    assert sorted(lost) == hard


def test_a_call_of_a_module_level_object_is_reported() -> None:
    model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**TEXT))
    (call,) = silently(model, "iglu").functional
    assert (call.place, call.call) == ("lm_head", "gelu(x)")
    assert call.source.startswith("modeling_roberta.py:")


def test_a_name_looked_up_in_forward_is_replaced_if_sigma_is_fixed(tmp_path: Path) -> None:
    model = mamba()
    before = output(model)
    record = silently(model, "iglu:0.5")
    # The mixer keeps the same activation as a module too, which it never calls: one entry a layer.
    assert [each.place for each in record.replaced] == [
        f"backbone.layers.{layer}.mixer.activation" for layer in (0, 1)
    ]
    assert {each.sigma for each in activations(model).values()} == {0.5}
    assert {each.call for each in record.functional} == {"F.silu(z)"}
    assert not torch.allclose(output(model), before)
    assert torch.equal(output(reload(model, tmp_path)), output(model))


HYBRIDS = {
    "FalconMamba": {"state_size": 4},
    "NemotronH": {
        "layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 8,
        "ssm_state_size": 4, "n_groups": 2, "head_dim": 8,
    },
    "Jamba": {
        "mamba_d_state": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1,
        "use_mamba_kernels": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", HYBRIDS)
def test_a_mixer_that_keeps_its_activation_twice_is_one_entry(kind: str) -> None:
    options = {**TEXT, "num_key_value_heads": 2, **HYBRIDS[kind]}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**options))
    record = swap(model, "iglu:0.5")
    mixers = [each.place for each in record.replaced if each.place.endswith(".activation")]
    assert mixers
    owners = [each.place.rpartition(".")[0] for each in record.replaced]
    assert len(owners) == len(set(owners))
    for place in mixers:
        mixer = model.get_submodule(place.rpartition(".")[0])
        assert (mixer.activation, mixer.act.sigma) == ("iglu:0.5", 0.5)
    output(model)


def test_a_name_looked_up_in_forward_is_reported_if_sigma_learns() -> None:
    model = mamba()
    with pytest.warns(UserWarning, match="mixer.activation: silu, a name looked up at every forward"):
        record = swap(model, "iglu:learnable")
    assert record.replaced == []
    assert "ACT2FN[activation]" in {each.call for each in record.functional}
    assert model.config.hidden_act == "silu"
    output(model)


def test_a_name_looked_up_in_the_config_follows_it() -> None:
    config = transformers.ConvBertConfig(**TEXT, embedding_size=16, num_labels=3)
    model = transformers.ConvBertForSequenceClassification(config).eval()
    record = silently(model, "iglu:0.5")
    assert {each.place: each.new for each in record.replaced}["classifier.config.hidden_act"] == "iglu:0.5"
    assert record.functional == []
    output(model)


def test_a_transformers_model_inside_another_keeps_its_own_config() -> None:
    model = nn.ModuleDict({"backbone": llama(), "head": nn.Sequential(nn.Linear(16, 2), nn.ReLU())})
    record = silently(model, "iglu:0.5")
    assert model["backbone"].config.hidden_act == "iglu:0.5"
    assert [each.place for each in record.replaced][-1] == "head.1"
    assert record.not_saved == []


def test_a_bf16_model_takes_a_learnable_sigma(tmp_path: Path) -> None:
    model = llama()
    for parameter in model.parameters():  # the frequencies of the positions are loaded in float32
        parameter.data = parameter.data.bfloat16()
    silently(model, "iglu:learnable=0.5")
    output(model).sum().backward()
    model.save_pretrained(tmp_path)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {module.log_sigma.dtype for module in activations(again).values()} == {torch.bfloat16}
    assert torch.equal(output(again), output(model))


def test_swapping_draws_no_random_numbers() -> None:
    model = gpt2()
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    swap(model, "iglu:learnable")
    assert torch.equal(torch.rand(1), expected)


# --------------------------------------------------------------------------------------- register


@pytest.mark.parametrize(
    "model",
    [
        lambda name: gpt2(activation_function=name),
        lambda name: vit(hidden_act=name),
        lambda name: llama(hidden_act=name),
        lambda name: t5(feed_forward_proj=f"gated-{name}"),
    ],
    ids=["gpt2", "vit", "llama", "t5"],
)
@pytest.mark.parametrize("name", ["iglu", "iglu:0.5", "iglu_approx:learnable=5"])
def test_a_name_in_the_config_builds_trains_and_reloads(model: Any, name: str, tmp_path: Path) -> None:
    built = model(name).eval()
    found = activations(built)
    assert len({id(module) for module in found.values()}) == 2
    assert {str(module) for module in found.values()} == {str(iglu.create(name))}
    output(built).square().sum().backward()
    assert all(parameter.grad is not None for module in found.values() for parameter in module.parameters())
    assert torch.equal(output(reload(built, tmp_path)), output(built))


def test_a_learnable_sigma_that_the_checkpoint_lacks_starts_at_its_stated_value(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    # Freed memory that is not zero, for an uninitialised sigma to be found out.
    waste = [torch.full((1,), 777.0) for _ in range(1000)]
    del waste
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, activation_function="iglu:learnable=0.25")
    starts = [module.log_sigma.item() for module in activations(model).values()]
    assert starts == [pytest.approx(math.log(0.25))] * 2


def test_a_learned_sigma_in_the_checkpoint_is_not_reset(tmp_path: Path) -> None:
    model = gpt2(activation_function="iglu:learnable=0.25")
    with torch.no_grad():
        model.transformer.h[1].mlp.act.log_sigma.fill_(3.0)
    again = reload(model, tmp_path)
    assert again.transformer.h[0].mlp.act.log_sigma.item() == pytest.approx(math.log(0.25))
    assert again.transformer.h[1].mlp.act.log_sigma.item() == 3.0


def test_a_swapped_sigma_survives_another_initialisation() -> None:
    model = gpt2()
    swap(model, "iglu:learnable")
    with torch.no_grad():
        model.transformer.h[0].mlp.act.log_sigma.fill_(3.0)
    model.init_weights()
    assert model.transformer.h[0].mlp.act.log_sigma.item() == 3.0


def test_models_that_look_into_the_other_table_know_the_names() -> None:
    config = transformers.PatchTSTConfig(
        d_model=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, activation_function="iglu:0.5"
    )
    assert len(activations(transformers.PatchTSTModel(config))) == 1


def test_names_of_transformers_keep_their_meaning_and_registering_again_changes_nothing() -> None:
    table, classes = transformers.activations.ACT2FN, transformers.activations.ACT2CLS
    integration.register()
    assert transformers.activations.ACT2FN is table
    assert transformers.activations.ACT2CLS is classes
    assert type(table["gelu"]) is transformers.activations.GELUActivation
    assert type(table["relu"]) is nn.ReLU
    assert classes["silu"] is transformers.activations.SiLUActivation
    assert "iglu" not in table.keys()  # noqa: SIM118 (the keys are those of transformers)


@pytest.mark.parametrize("name", ["iglu:", "iglu:x", "iglu:learnable="])
def test_malformed_names_in_a_config_raise(name: str) -> None:
    with pytest.raises(ValueError, match="Malformed activation"):
        gpt2(activation_function=name)


def test_unknown_names_in_a_config_raise_with_the_nearest() -> None:
    with pytest.raises(KeyError, match="Did you mean 'iglu'"):
        transformers.activations.ACT2FN["igul"]
    assert "igul" not in transformers.activations.ACT2FN
    assert transformers.activations.ACT2FN.get("igul") is None


def test_a_learnable_name_looked_up_in_forward_raises_instead_of_never_learning() -> None:
    model = mamba(hidden_act="iglu:learnable")
    with pytest.raises(ValueError, match="looked up anew at every forward"):
        output(model)
    output(mamba(hidden_act="iglu:0.5"))


_NAMED = """
import sys
{imports}
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.patchtst import modeling_patchtst
config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, activation_function="iglu:0.5")
print(GPT2LMHeadModel(config).transformer.h[0].mlp.act, modeling_patchtst.ACT2CLS["iglu:2"]())
assert sys.modules["transformers.modeling_utils"].__loader__.get_filename().endswith("modeling_utils.py")
assert not any(type(finder).__module__.startswith("iglu") for finder in sys.meta_path)
"""


@pytest.mark.parametrize(
    "imports", ["import iglu; assert 'transformers' not in sys.modules", "import transformers, iglu"]
)
def test_a_config_may_name_ours_wherever_iglu_is_imported(imports: str) -> None:
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import conftest\n"
    found = subprocess.run(
        [sys.executable, "-c", script + _NAMED.format(imports=imports)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout.strip() == "IGLU(sigma=0.5) IGLU(sigma=2)", found.stderr


_RETRIED = """
import sys
import iglu
sys.modules["transformers.activations"] = None
try:
    import transformers.modeling_utils
except ImportError:
    pass
del sys.modules["transformers.activations"]
import transformers.modeling_utils
print(transformers.activations.ACT2FN["iglu:0.5"])
"""


def test_an_import_of_transformers_that_failed_may_be_tried_again() -> None:
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import conftest\n"
    found = subprocess.run(
        [sys.executable, "-c", script + _RETRIED], capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "IGLU(sigma=0.5)", found.stderr


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_a_broken_torchvision_is_named_as_the_cause(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(integrations, "import_module", broken)
    with pytest.raises(ImportError, match=f"{library} cannot be imported, because the torchvision") as caught:
        integrations.require(library, "anything")
    # timm cannot be imported without torchvision either
    assert ("uninstall" in str(caught.value)) == (library == "transformers")


def test_a_missing_library_is_named_with_its_remedy() -> None:
    with pytest.raises(ImportError, match="not_there is not installed: pip install not_there"):
        integrations.require("not_there", "anything")


# --------------------------------------------------------------------------------------- what 0.1.0 saved

FIRST = Path(__file__).parent / "fixtures" / "0.1.0"


def test_a_model_saved_by_0_1_0_is_loaded_with_its_learned_sigmas() -> None:
    model = transformers.GPT2LMHeadModel.from_pretrained(FIRST / "gpt2-learnable").eval()
    assert [module.log_sigma.item() for module in activations(model).values()] == [0.25, -1.5]
    with torch.no_grad():
        logits = model(torch.arange(8).unsqueeze(0)).logits[0]
    expected = torch.tensor(json.loads((FIRST / "gpt2-learnable" / "logits.json").read_text()))
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize(
    ("folder", "kind", "expected"),
    [
        ("gpt2-fixed", "GPT2LMHeadModel", {"iglu_approx:5"}),
        ("t5", "T5ForConditionalGeneration", {"iglu:0.5"}),
        ("clip", "CLIPModel", {"iglu:0.5", "iglu:2"}),
    ],
)
def test_configs_saved_by_0_1_0_build_their_models(folder: str, kind: str, expected: set[str]) -> None:
    config = transformers.AutoConfig.from_pretrained(FIRST / folder)
    model = getattr(transformers, kind)(config)
    assert {name_of(module) for module in activations(model).values()} == expected
