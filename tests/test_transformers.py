"""swap() and register() on transformers models, tiny and with random weights."""

from __future__ import annotations

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
from iglu import integrations, zoo
from iglu.integrations import transformers as integration
from iglu.surgery import Swap, swap

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


def swap_without_warnings(model: nn.Module, *arguments: Any, **options: Any) -> Swap:
    """A swap whose warnings are errors."""
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
    record = swap_without_warnings(model, name)
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


def test_the_activations_of_gpt2_are_in_the_record_and_the_new_one_in_its_config() -> None:
    model = gpt2()
    record = swap_without_warnings(model, "iglu:0.5")
    assert [each.place for each in record.replaced] == ["transformer.h.0.mlp.act", "transformer.h.1.mlp.act"]
    assert record.functional == []
    assert model.config.activation_function == "iglu:0.5"


@pytest.mark.parametrize(
    ("name", "stated"), [("iglu", "iglu:5"), ("iglu_approx:learnable", "iglu_approx:learnable=5")]
)
def test_a_config_states_the_sigma_also_where_the_swap_used_the_default(name: str, stated: str) -> None:
    model = gpt2()
    swap_without_warnings(model, name)
    assert model.config.activation_function == stated


def test_swapping_back_restores_the_model_and_its_config(tmp_path: Path) -> None:
    model = gpt2(activation_function="gelu").eval()
    before = output(model)
    swap_without_warnings(model, "iglu")
    swap_without_warnings(model, "gelu", only=iglu.IGLU)
    assert model.config.activation_function == "gelu"
    assert torch.allclose(output(reload(model, tmp_path)), before)


@pytest.mark.parametrize("build", [gpt2, t5, clip, mamba])
def test_undo_restores_the_model_and_its_config(build: Any) -> None:
    model = build().eval()
    before, stated = output(model), model.config.to_dict()
    modules = dict(model.named_modules())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mamba's F.silu, which its config cannot express
        record = swap(model, "iglu:0.5")
    assert model.config.to_dict() != stated
    record.undo()
    assert model.config.to_dict() == stated
    assert dict(model.named_modules()) == modules
    assert torch.equal(output(model), before)


def test_a_second_swap_replaces_the_first_and_updates_the_config(tmp_path: Path) -> None:
    model = gpt2()
    for name in ("iglu:0.5", "iglu:learnable=5", "telu", "xatlu", "relu2", "iglu_approx:2"):
        assert len(swap_without_warnings(model, name).replaced) == 2
        assert model.config.activation_function == name
        reload(model, tmp_path / name)
    model = mamba()
    for name in ("iglu:0.5", "iglu:3"):
        assert len(swap_without_warnings(model, name, only="*.activation").replaced) == 2
    assert model.backbone.layers[1].mixer.activation == "iglu:3"


def test_a_saved_model_documents_that_loading_it_needs_iglu(tmp_path: Path) -> None:
    model = gpt2()
    swap_without_warnings(model, "iglu")
    model.save_pretrained(tmp_path)
    for file in ("config.json", "README.md"):
        text = (tmp_path / file).read_text()
        assert "import iglu" in text
        assert "KeyError" in text
    swap_without_warnings(model, "gelu", only=iglu.IGLU)
    model.save_pretrained(tmp_path / "back")
    assert "iglu" not in (tmp_path / "back/config.json").read_text()
    assert not (tmp_path / "back/README.md").exists()


def test_a_model_built_from_a_name_is_saved_with_one_note_also_the_second_time(tmp_path: Path) -> None:
    gpt2(activation_function="iglu:0.5").save_pretrained(tmp_path)
    saved = (tmp_path / "config.json").read_text()
    assert "import iglu" in saved
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    again.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_text() == saved


def test_a_model_without_iglu_is_saved_without_a_note(tmp_path: Path) -> None:
    model = gpt2(head="identity", other="iglu")  # fields that only look like names of activations
    model.transformer.drop = nn.Identity()
    model.save_pretrained(tmp_path)
    assert "note" not in (tmp_path / "config.json").read_text()
    assert not (tmp_path / "README.md").exists()


def test_a_model_card_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    gpt2(activation_function="iglu:0.5").save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    gpt2(activation_function="iglu:0.5").save_pretrained(tmp_path / "worker", is_main_process=False)
    assert not (tmp_path / "worker/README.md").exists()


def test_an_instance_that_the_grammar_can_name_is_saved(tmp_path: Path) -> None:
    model = gpt2()
    assert swap_without_warnings(model, iglu.IGLU(0.123456789)).not_saved == []
    assert reload(model, tmp_path).transformer.h[0].mlp.act.sigma == 0.123456789


def test_a_sigma_that_was_set_after_the_swap_is_saved(tmp_path: Path) -> None:
    model = gpt2()
    swap_without_warnings(model, "iglu:0.5")
    for block in model.transformer.h:
        block.mlp.act.sigma = 5.0
    again = reload(model, tmp_path)
    assert {module.sigma for module in activations(again).values()} == {5.0}
    assert torch.equal(output(again.eval()), output(model.eval()))


def test_a_sigma_of_a_nested_config_that_was_set_after_the_swap_is_saved(tmp_path: Path) -> None:
    model = clip()
    swap_without_warnings(model, {"text_model.*": "iglu:0.5", "vision_model.*": "iglu:2"})
    for module in activations(model.vision_model).values():
        module.sigma = 0.5
    again = reload(model, tmp_path)
    assert {module.sigma for module in activations(again).values()} == {0.5}


def test_saving_a_model_without_iglu_does_not_rebuild_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = clip()
    model.config.vision_config.hidden_act = "gelu"
    monkeypatch.setattr(integration, "_rebuild", lambda *_: pytest.fail("built the model once more"))
    model.save_pretrained(tmp_path)


def test_saving_different_sigmas_that_no_config_can_express_warns(tmp_path: Path) -> None:
    model = gpt2(activation_function="iglu:0.5")
    model.transformer.h[1].mlp.act.sigma = 5.0
    with pytest.warns(UserWarning, match=r"No config can express the activations at transformer\.h\.1\.mlp"):
        model.save_pretrained(tmp_path)
    assert model.config.activation_function == "iglu:0.5"


def test_t5_keeps_its_gate() -> None:
    model = t5(feed_forward_proj="gated-gelu")
    swap_without_warnings(model, "iglu:0.5")
    for config in (model.config, model.encoder.config, model.decoder.config):
        assert (config.feed_forward_proj, config.dense_act_fn) == ("gated-iglu:0.5", "iglu:0.5")
        assert config.is_gated_act


def test_parts_of_a_nested_config_are_set_separately(tmp_path: Path) -> None:
    model = clip()
    assert swap_without_warnings(model, {"text_model.*": "iglu:0.5"}).not_saved == []
    assert model.config.text_config.hidden_act == "iglu:0.5"
    assert model.config.vision_config.hidden_act == "quick_gelu"
    assert swap_without_warnings(model, {"vision_model.*": "iglu:2"}).not_saved == []
    again = reload(model, tmp_path)
    assert {module.sigma for module in activations(again.text_model).values()} == {0.5}
    assert {module.sigma for module in activations(again.vision_model).values()} == {2.0}


@pytest.mark.parametrize("to", ["iglu", {"transformer.h.0.*": "iglu:0.5", "transformer.h.1.*": "iglu:2"}])
def test_activations_that_one_field_cannot_express_leave_the_config_unchanged(to: Any) -> None:
    model = gpt2()
    only = "transformer.h.0.*" if to == "iglu" else None
    with pytest.warns(UserWarning, match="from_pretrained restores the old ones"):
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
    with pytest.warns(UserWarning, match="No config can express"):
        again = reload(model, tmp_path)
    assert sorted(activations(model).keys() - activations(again).keys()) == hard


def test_a_call_of_a_module_level_object_becomes_a_module_that_no_config_expresses(tmp_path: Path) -> None:
    model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**TEXT)).eval()
    with pytest.warns(UserWarning, match=r"of RobertaForMaskedLM \(lm_head\.gelu_1\)"):
        record = swap(model, "iglu:learnable=0.5")
    assert (record.functional, record.not_saved) == ([], ["lm_head.gelu_1"])
    assert record.replaced[-1].source.startswith("modeling_roberta.py:")
    nn.init.constant_(model.lm_head.gelu_1.log_sigma, 0.3)
    with pytest.warns(UserWarning, match="lm_head"):
        again = reload(model, tmp_path)
    with pytest.warns(UserWarning, match="lm_head"):
        swap(again, "iglu:learnable=0.5")
    again.load_state_dict(model.state_dict())
    assert torch.equal(output(again), output(model))


def test_calls_in_whispers_encoder_are_replaced() -> None:
    config = transformers.WhisperConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=64, num_mel_bins=8, max_source_positions=8,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperModel(config).eval()
    x, ids = torch.randn(1, 8, 16), torch.tensor([[1, 5, 6]])
    with torch.no_grad():
        before = model(x, decoder_input_ids=ids)[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record = swap(model, "gelu", only="encoder.gelu_*")
            assert [each.place for each in record.replaced] == ["encoder.gelu_1", "encoder.gelu_2"]
            assert torch.equal(model(x, decoder_input_ids=ids)[0], before)
            assert swap(model, "iglu:0.5").functional == []
        assert not torch.equal(model(x, decoder_input_ids=ids)[0], before)


def mobilenet() -> Any:
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=32)
    return transformers.MobileNetV2ForSemanticSegmentation(config)


def mobilevit() -> Any:
    config = transformers.MobileViTConfig(
        image_size=32, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
        num_attention_heads=2, aspp_out_channels=8,
    )  # fmt: skip
    return transformers.MobileViTForSemanticSegmentation(config)


@pytest.mark.parametrize("build", [mobilenet, mobilevit])
def test_learned_sigmas_of_a_hard_coded_head_are_reported_as_not_saved(build: Any, tmp_path: Path) -> None:
    model = build().eval()
    hard = [
        f"{place}.activation"
        for place, module in model.named_modules()
        if place.startswith("segmentation_head") and isinstance(getattr(module, "activation", None), nn.ReLU)
    ]
    with pytest.warns(UserWarning, match=f"No config can express {len(hard)} of the new activations"):
        record = swap(model, "iglu:learnable=0.5")
    assert record.not_saved == hard
    for module in activations(model).values():
        nn.init.constant_(module.log_sigma, 0.3)
    with pytest.warns(UserWarning, match="No config can express"):
        again = reload(model, tmp_path)
    assert sorted(activations(model).keys() - activations(again).keys()) == sorted(hard)
    with pytest.warns(UserWarning, match=f"No config can express {len(hard)}"):
        swap(again, "iglu:learnable=0.5")
    again.load_state_dict(model.state_dict())
    assert {module.log_sigma.item() for module in activations(again).values()} == {
        model.get_parameter(f"{hard[0]}.log_sigma").item()
    }


def test_a_swap_and_its_undo_leave_every_training_flag_unchanged() -> None:
    model = mamba()
    model.backbone.layers[0].mixer.act.eval()  # alone
    model.backbone.layers[1].mixer.eval().act.train()
    flags = {name: module.training for name, module in model.named_modules()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = swap(model, "iglu:0.5")
    now = {name: module.training for name, module in model.named_modules()}
    assert {name: now[name] for name in flags} == flags
    record.undo()
    assert {name: module.training for name, module in model.named_modules()} == flags


def test_a_name_looked_up_in_forward_is_replaced_if_sigma_is_fixed(tmp_path: Path) -> None:
    model = mamba()
    before = output(model)
    record = swap_without_warnings(model, "iglu:0.5", only="*.activation")
    # The mixer keeps the same activation as a module too, which it never calls: one entry per layer.
    assert [each.place for each in record.replaced] == [
        f"backbone.layers.{layer}.mixer.activation" for layer in (0, 1)
    ]
    assert all(each.source.startswith("modeling_mamba.py:") for each in record.replaced)
    assert {each.sigma for each in activations(model).values()} == {0.5}
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the config of Jamba governs another place too
        record = swap(model, "iglu:0.5", only="*.activation")
    mixers = [each.place for each in record.replaced if each.place.endswith(".activation")]
    assert mixers
    owners = [each.place.rpartition(".")[0] for each in record.replaced]
    assert len(owners) == len(set(owners))
    for place in mixers:
        mixer = model.get_submodule(place.rpartition(".")[0])
        assert (mixer.activation, mixer.act.sigma) == ("iglu:0.5", 0.5)
    output(model)


def test_each_activation_of_a_linear_attention_is_one_entry() -> None:
    config = transformers.OlmoHybridConfig(**TEXT, num_key_value_heads=2)
    model = transformers.OlmoHybridForCausalLM(config)
    with pytest.warns(UserWarning, match=r"No config can express 1 .*linear_attn\.o_norm\.activation"):
        record = swap(model, "iglu:0.5")
    assert sorted(each.place for each in record.replaced) == [
        "model.layers.0.linear_attn.activation", "model.layers.0.linear_attn.o_norm.activation",
        "model.layers.0.mlp.act_fn", "model.layers.1.mlp.act_fn",
    ]  # fmt: skip
    output(model)


def test_a_name_looked_up_in_forward_is_reported_if_sigma_learns() -> None:
    model = mamba()
    with pytest.warns(UserWarning, match="looked up in every forward"):
        record = swap(model, "iglu:learnable", only="*.activation")
    assert record.replaced == []
    assert {each.reason for each in record.functional} == {
        "a name that is looked up in every forward cannot have learnable parameters"
    }
    assert "ACT2FN[activation]" in {each.call for each in record.functional}
    assert model.config.hidden_act == "silu"
    output(model)


def test_a_name_looked_up_in_the_config_follows_it() -> None:
    config = transformers.ConvBertConfig(**TEXT, embedding_size=16, num_labels=3)
    model = transformers.ConvBertForSequenceClassification(config).eval()
    record = swap_without_warnings(model, "iglu:0.5")
    assert {each.place: each.new for each in record.replaced}["classifier.config.hidden_act"] == "iglu:0.5"
    assert record.functional == []
    output(model)


def test_a_transformers_model_inside_another_keeps_its_own_config() -> None:
    model = nn.ModuleDict({"backbone": llama(), "head": nn.Sequential(nn.Linear(16, 2), nn.ReLU())})
    record = swap_without_warnings(model, "iglu:0.5")
    assert model["backbone"].config.hidden_act == "iglu:0.5"
    assert [each.place for each in record.replaced][-1] == "head.1"
    assert record.not_saved == []


def test_a_bf16_model_supports_a_learnable_sigma(tmp_path: Path) -> None:
    model = llama()
    for parameter in model.parameters():  # the frequencies of the positions are loaded in float32
        parameter.data = parameter.data.bfloat16()
    swap_without_warnings(model, "iglu:learnable=0.5")
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
    # Freed memory that is not zero, so that an uninitialized sigma would be detected.
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


def test_a_swapped_sigma_survives_another_initialization() -> None:
    model = gpt2()
    swap(model, "iglu:learnable")
    with torch.no_grad():
        model.transformer.h[0].mlp.act.log_sigma.fill_(3.0)
    model.init_weights()
    assert model.transformer.h[0].mlp.act.log_sigma.item() == 3.0


def test_models_that_use_the_table_act2cls_know_the_names() -> None:
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


def test_unknown_names_in_a_config_raise_with_the_nearest_known_one() -> None:
    with pytest.raises(KeyError, match="Did you mean 'iglu'"):
        transformers.activations.ACT2FN["igul"]
    assert "igul" not in transformers.activations.ACT2FN
    assert transformers.activations.ACT2FN.get("igul") is None


def test_a_learnable_name_looked_up_in_forward_raises_instead_of_never_learning() -> None:
    model = mamba(hidden_act="iglu:learnable")
    with pytest.raises(ValueError, match="looked up again in every forward"):
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
import transformers.trainer
assert hasattr(transformers.trainer.Trainer.get_decay_parameter_names, "knows_iglu")
assert not any(type(finder).__module__.startswith("iglu") for finder in sys.meta_path)
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import iglu; assert 'transformers' not in sys.modules",
        "import transformers, iglu",
        "import transformers.trainer, iglu",
        "import iglu, transformers.trainer",
    ],
)
def test_a_config_may_name_iglu_wherever_iglu_is_imported(imports: str) -> None:
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import torchvision_operators\n"
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
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import torchvision_operators\n"
    found = subprocess.run(
        [sys.executable, "-c", script + _RETRIED], capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "IGLU(sigma=0.5)", found.stderr


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_a_broken_torchvision_is_named_as_the_cause(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(integrations, "import_module", broken)
    with pytest.raises(ImportError, match=f"{library} .*torchvision::nms does not exist") as caught:
        integrations.require(library, "anything")
    # timm cannot be imported without torchvision either
    assert ("uninstall" in str(caught.value)) == (library == "transformers")


def test_a_missing_library_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(ImportError, match="not_there is not installed: pip install not_there"):
        integrations.require("not_there", "anything")


class Factor(nn.Module):
    """An activation of the user that learns a factor, which starts at 3."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.factor, 3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * torch.sin(x)


def test_a_registered_activation_is_a_name_and_is_initialized_where_a_checkpoint_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "ZOO", dict(zoo.ZOO))
    iglu.register_activation("factor", Factor)
    gpt2().save_pretrained(tmp_path)
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, activation_function="factor")
    assert [block.mlp.act.factor.item() for block in model.transformer.h] == [3.0, 3.0]
    with torch.no_grad():
        model.transformer.h[1].mlp.act.factor.fill_(7.0)
    again = reload(model, tmp_path / "again")
    assert [block.mlp.act.factor.item() for block in again.transformer.h] == [3.0, 7.0]


# --------------------------------------------------------------------------------------- Trainer


def decayed(model: Any, folder: Path) -> set[str]:
    """The names of the parameters that the Trainer's own optimizer decays."""
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    arguments = transformers.TrainingArguments(str(folder), weight_decay=0.1, use_cpu=True, report_to=[])
    groups = transformers.Trainer(model, arguments).create_optimizer().param_groups
    found = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert len(found) == len(list(model.parameters()))
    return {name for name, parameter in model.named_parameters() if found[id(parameter)] > 0}


@pytest.mark.parametrize("name", ["iglu:learnable=5", "iglu_approx:learnable", "factor"])
def test_the_optimizer_of_the_trainer_decays_no_parameter_of_an_activation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "ZOO", dict(zoo.ZOO))
    iglu.register_activation("factor", Factor)
    model = gpt2()
    expected = decayed(gpt2(), tmp_path)
    assert "transformer.h.0.mlp.c_fc.weight" in expected
    iglu.swap(model, name)
    assert any(".act." in parameter for parameter, _ in model.named_parameters())
    assert decayed(model, tmp_path) == expected
