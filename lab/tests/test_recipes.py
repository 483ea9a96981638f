"""Recipes match the protocol of the paper, validate their fields, and read the previous format."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest

from iglu_lab import cli
from iglu_lab.errors import UserError
from iglu_lab.recipes import RECIPES, Recipe, get_recipe
from iglu_lab.runs.archive import add_to_archive, read_runs
from iglu_lab.runs.folder import read_run
from iglu_lab.sweep.grid import grid_status
from iglu_lab.training.workloads import CONTINUAL_SETS, IMAGE_SETS, MODELS


@pytest.mark.parametrize(
    "name", ["resnet20-cifar10", "resnet20-cifar100", "vit-cifar10", "vit-cifar100", "resnet20-cifar100-lt"]
)
def test_the_vision_recipes_are_the_papers(name: str) -> None:
    recipe = RECIPES[name]
    assert (recipe.epochs, recipe.batch_size, recipe.lr, recipe.weight_decay) == (200, 128, 1e-3, 1e-2)
    assert (recipe.max_grad_norm, recipe.schedule, recipe.precision) == (1.0, "cosine", "32")
    assert (recipe.padding, recipe.flip, recipe.color_jitter) == (4, True, (0.2, 0.2, 0.2, 0.1))
    assert recipe.image_size == (224 if name.startswith("vit") else None)
    assert recipe.class_weights is name.endswith("-lt")
    assert recipe.decay_activations
    assert not recipe.constrain


def test_the_language_recipe_is_the_papers() -> None:
    recipe = RECIPES["gpt2-wikitext103"]
    assert (recipe.dataset, recipe.model, recipe.context) == ("wikitext-103", "gpt2-small", 1024)
    assert (recipe.epochs, recipe.batch_size, recipe.lr, recipe.weight_decay) == (20, 32, 6e-4, 0.1)
    assert (recipe.schedule, recipe.warmup_ratio, recipe.max_grad_norm, recipe.dropout) == (
        "warmup-linear",
        0.05,
        1.0,
        0.1,
    )


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_every_recipe_names_a_model_and_data_that_exist(recipe: Recipe) -> None:
    assert recipe.model in MODELS
    assert recipe.model.startswith("gpt2") is (recipe.dataset not in (*IMAGE_SETS, *CONTINUAL_SETS))
    assert (recipe.model == "mlp") is (recipe.dataset in CONTINUAL_SETS)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_is_equal_after_a_round_trip_through_json(recipe: Recipe) -> None:
    assert Recipe.from_dict(json.loads(json.dumps(recipe.as_dict()))) == recipe


def test_a_recipe_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPES["digits"].lr = 1.0  # type: ignore[misc]


def test_help_and_the_command_line_describe_every_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    with pytest.raises(SystemExit):
        cli.train(["digits", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    _, _, described = (inspect.getdoc(Recipe) or "").partition("Args:\n")
    for field in dataclasses.fields(Recipe):
        found = re.search(rf"^    {field.name}: (.*(?:\n {{8}}.*)*)", described, re.MULTILINE)
        assert found is not None, field.name
        text = " ".join(found[1].split())
        assert len(set(re.findall("[a-z]+", text.lower())) - set(field.name.split("_"))) >= 3, text
        assert text in shown


def test_folders_differ_whenever_what_is_computed_differs() -> None:
    base = RECIPES["resnet20-cifar100-lt"]
    changes = [
        {}, {"activation": "iglu:0.5"}, {"activation": "iglu:learnable=5"}, {"seed": 1}, {"ratio": 200.0},
        {"norm": False}, {"lr": 2e-3}, {"color_jitter": (0.0, 0.0, 0.0, 0.0)}, {"max_grad_norm": None},
        {"image_size": 64},
    ]  # fmt: skip
    names = [base.replace(**change).folder_name for change in changes]
    assert len(set(names)) == len(names)
    assert not any(set(name) & set(':/\\ *?"<>|') for name in names)
    assert names[1] == "resnet20-cifar100-lt_iglu-0.5_seed=0"


def test_execution_fields_do_not_change_the_folder() -> None:
    base = RECIPES["digits"]
    other = base.replace(threads=3, stop_after=1, devices=2, checkpoint_every=1.0)
    assert other.folder_name == base.folder_name
    assert other.identity() == base.identity()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "igul"}, "Unknown activation 'igul'. Did you mean 'iglu'"),
        ({"precision": "bf16"}, r"precision must be one of '32', 'bf16-mixed', '16-mixed', got 'bf16'"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"ratio": 0.01}, r"ratio must be at least 1, got 0\.01"),
        ({"lr": float("nan")}, "lr must be at least 0, got nan"),
    ],
)
def test_a_field_out_of_range_raises_and_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RECIPES["digits"].replace(**change)


def test_a_misspelt_field_raises_with_the_nearest_known_one() -> None:
    with pytest.raises(UserError, match=r"Unknown field 'epoch'. Did you mean 'epochs'"):
        RECIPES["digits"].replace(epoch=3)


def test_an_unknown_recipe_raises_with_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match=r"Unknown recipe 'digit'. Did you mean 'digits'"):
        get_recipe("digit")


@pytest.mark.parametrize("name", ["gpt3", "gpt2:", "gpt2:256", "gpt2:x", "bytes:300"])
def test_an_unknown_tokenizer_raises(name: str) -> None:
    with pytest.raises(ValueError, match="tokenizer must be"):
        get_recipe("gpt2-python").replace(tokenizer=name)


# -- formats ---------------------------------------------------------------------------------------

# recipe.json as format 2 wrote it, and the folder it was in: every field that has another name now differs
# from its default.
FORMAT_2 = {
    "resnet20-cifar10-lt_iglu-0.5_model=resnet8_epoch-steps=9_batch=16_accumulate=2_decay-shapes=False"
    "_warmup=0.1_clip=2_size=16_padding=2_jitter=0+0+0+0.1_channels-last=True_seed=10": {
        "format": 2, "name": "resnet20-cifar10-lt", "dataset": "cifar10", "model": "resnet8",
        "activation": "iglu:0.5", "seed": 10, "epoch_steps": 9, "batch": 16, "accumulate": 2,
        "decay_shapes": False, "warmup": 0.1, "clip": 2.0, "ratio": 100.0, "class_weights": True, "size": 16,
        "padding": 2, "jitter": [0.0, 0.0, 0.0, 0.1], "channels_last": True, "tails": 40,
    },
    "gpt2-python_relu_evaluate=valid_seed=0": {
        "format": 2, "name": "gpt2-python", "dataset": "python", "model": "gpt2-nano", "activation": "relu",
        "epochs": 3, "batch": 32, "lr": 0.003, "weight_decay": 0.1, "schedule": "warmup-linear",
        "context": 64, "tokenizer": "bytes", "dropout": 0.0, "evaluate": "valid", "clip": 1.0, "tails": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("folder", FORMAT_2)
def test_a_recipe_of_format_2_is_read_under_the_new_names(folder: str) -> None:
    recipe = Recipe.from_dict(FORMAT_2[folder])
    assert recipe.folder_name == folder
    again = json.loads(json.dumps(recipe.as_dict()))
    assert again["format"] == 3
    assert Recipe.from_dict(again) == recipe
    if recipe.kind == "images":
        assert (recipe.batch_size, recipe.gradient_accumulation, recipe.steps_per_epoch) == (16, 2, 9)
        assert (recipe.max_grad_norm, recipe.warmup_ratio, recipe.decay_activations) == (2.0, 0.1, False)
        assert (recipe.image_size, recipe.color_jitter) == (16, (0.0, 0.0, 0.0, 0.1))
        assert recipe.tails_every == 40
    else:
        assert (recipe.eval_split, recipe.max_grad_norm, recipe.tails_every) == ("valid", 1.0, None)


@pytest.mark.parametrize("folder", FORMAT_2)
def test_runs_of_format_2_are_found_in_their_folder_and_in_an_archive(folder: str, tmp_path: Path) -> None:
    rows = [{"epoch": epoch, "train_loss": 1.0, "test_acc": 50.0} for epoch in range(1, 201)]
    content = FORMAT_2[folder]
    if content["dataset"] == "python":
        rows = [{"epoch": epoch, "train_loss": 1.0, "perplexity": 9.0} for epoch in range(1, 4)]
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "recipe.json").write_text(json.dumps(content))
    (tmp_path / folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / folder / "state.json").write_text('{"status": "finished", "message": ""}')
    archive = tmp_path / "runs.jsonl"
    line = {"recipe": content, "status": "finished", "message": "", "provenance": 0, "history": rows}
    archive.write_text('{"iglu_runs": 1, "provenance": [{}]}\n' + json.dumps(line) + "\n")
    wanted = Recipe.from_dict(content)
    assert [run.recipe for run in grid_status([wanted], tmp_path).done] == [wanted]
    runs, problems = read_runs(archive)
    assert problems == []
    assert [run.recipe for run in grid_status([wanted], tmp_path / "none", runs).done] == [wanted]
    assert add_to_archive([read_run(tmp_path / folder)], archive) == (0, 1)  # it is the same run


def test_a_field_of_format_2_is_unknown_to_format_3() -> None:
    with pytest.raises(UserError, match="Unknown field 'batch'"):
        Recipe.from_dict({**RECIPES["digits"].as_dict(), "batch": 3})


def test_a_recipe_has_only_the_fields_of_its_kind() -> None:
    images, text = RECIPES["digits"].as_dict(), RECIPES["gpt2-python"].as_dict()
    assert {"context", "tokenizer", "eval_split"} == text.keys() - images.keys()
    assert {"ratio", "padding", "color_jitter", "channels_last"} <= images.keys() - text.keys()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "resnet20-cifar10",
            {"context": 512},
            "context is a field of text, and cifar10 on resnet20 is images",
        ),
        ("digits", {"eval_split": "valid"}, "eval_split is a field of text"),
        ("gpt2-python", {"ratio": 10.0}, "ratio is a field of images, and python on gpt2-nano is text"),
        ("gpt2-python", {"channels_last": True}, "channels_last is a field of images"),
    ],
)
def test_a_field_of_another_kind_of_data_raises(name: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RECIPES[name].replace(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": "3"}, "epochs must be an integer, got '3'"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"learning_rate": 1e-3}, "Did you mean 'lr'"),
    ],
)
def test_a_change_of_a_recipe_is_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RECIPES["digits"].replace(**change)


def test_a_recipe_of_an_unregistered_dataset_can_be_read() -> None:
    """A run on somebody's own images, read by a program that has not registered them."""
    fields = RECIPES["digits"].replace(padding=3).as_dict() | {"dataset": "stripes", "name": "stripes"}
    assert Recipe.from_dict(fields).padding == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 4}, "has format 4; this version of iglu reads 2 and 3"),
        ({"sigma": 1}, "Unknown field 'sigma'"),
        ({"epochs": "many"}, "epochs must be an integer, got 'many'"),
        ({"norm": 1}, "norm must be true or false, got 1"),
        ({"seed": 10**30}, "seed must be an integer, got 1000"),
        ({"color_jitter": [1]}, "color_jitter must be a list of 4 numbers"),
    ],
)
def test_an_invalid_recipe_raises_with_the_name_of_the_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Recipe.from_dict(RECIPES["digits"].as_dict() | change)
