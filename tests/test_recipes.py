"""The recipes beside the protocol of the paper, and what a recipe accepts."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path

import pytest

from iglu.lab.mistakes import MistakeError
from iglu.lab.recipes import RECIPES, Recipe, get_recipe
from iglu.lab.training.tasks import IMAGE_SETS, MODELS


@pytest.mark.parametrize(
    "name", ["resnet20-cifar10", "resnet20-cifar100", "vit-cifar10", "vit-cifar100", "resnet20-cifar100-lt"]
)
def test_the_vision_recipes_are_the_papers(name: str) -> None:
    recipe = RECIPES[name]
    assert (recipe.epochs, recipe.batch, recipe.lr, recipe.weight_decay) == (200, 128, 1e-3, 1e-2)
    assert (recipe.clip, recipe.schedule, recipe.precision) == (1.0, "cosine", "32")
    assert (recipe.padding, recipe.flip, recipe.jitter) == (4, True, (0.2, 0.2, 0.2, 0.1))
    assert recipe.size == (224 if name.startswith("vit") else None)
    assert recipe.class_weights is name.endswith("-lt")
    assert recipe.decay_shapes
    assert not recipe.constrain


def test_the_language_recipe_is_the_papers() -> None:
    recipe = RECIPES["gpt2-wikitext103"]
    assert (recipe.dataset, recipe.model, recipe.context) == ("wikitext-103", "gpt2-small", 1024)
    assert (recipe.epochs, recipe.batch, recipe.lr, recipe.weight_decay) == (20, 32, 6e-4, 0.1)
    assert (recipe.schedule, recipe.warmup, recipe.clip, recipe.dropout) == ("warmup-linear", 0.05, 1.0, 0.1)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_every_recipe_names_a_model_and_data_that_exist(recipe: Recipe) -> None:
    assert recipe.model in MODELS
    assert recipe.model.startswith("gpt2") is (recipe.dataset not in IMAGE_SETS)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_comes_back_from_json_as_it_was(recipe: Recipe) -> None:
    assert Recipe.from_dict(json.loads(json.dumps(recipe.as_dict()))) == recipe


def test_a_recipe_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPES["digits"].lr = 1.0  # type: ignore[misc]


def test_every_field_has_help() -> None:
    source = inspect.getsource(Recipe)
    for field in dataclasses.fields(Recipe):
        _, _, after = source.partition(f"    {field.name}: ")
        assert after.splitlines()[1].strip().startswith('"""'), field.name


def test_folders_differ_whenever_what_is_computed_differs() -> None:
    base = RECIPES["resnet20-cifar100-lt"]
    changes = [
        {}, {"activation": "iglu:0.5"}, {"activation": "iglu:learnable=5"}, {"seed": 1}, {"ratio": 200.0},
        {"norm": False}, {"lr": 2e-3}, {"jitter": (0.0, 0.0, 0.0, 0.0)}, {"clip": None}, {"size": 64},
    ]  # fmt: skip
    names = [base.replace(**change).folder_name for change in changes]
    assert len(set(names)) == len(names)
    assert not any(set(name) & set(':/\\ *?"<>|') for name in names)
    assert names[1] == "resnet20-cifar100-lt_iglu-0.5_seed=0"


def test_how_a_run_is_carried_out_does_not_change_its_folder() -> None:
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
def test_a_field_out_of_range_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RECIPES["digits"].replace(**change)


def test_a_field_that_is_misspelt_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"no field 'epoch'. Did you mean 'epochs'"):
        RECIPES["digits"].replace(epoch=3)


def test_an_unknown_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"Unknown recipe 'digit'. Did you mean 'digits'"):
        get_recipe("digit")


def test_a_recipe_of_before_draws_its_long_tail_by_the_runs_seed() -> None:
    fields = get_recipe("digits-lt").replace(seed=3).as_dict()
    assert Recipe.from_dict(fields).subset_draw == 0
    del fields["subset_seed"], fields["format"]
    assert Recipe.from_dict(fields).subset_draw == 3


def test_a_recipe_of_before_with_all_the_images_is_the_same_recipe() -> None:
    fields = get_recipe("digits").as_dict()
    del fields["subset_seed"]
    assert Recipe.from_dict(fields).identity() == get_recipe("digits").identity()


@pytest.mark.parametrize("name", ["gpt3", "gpt2:", "gpt2:256", "gpt2:x", "bytes:300"])
def test_an_unknown_tokenizer_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="tokenizer must be"):
        get_recipe("gpt2-python").replace(tokenizer=name)


# -- formats ---------------------------------------------------------------------------------------

# recipe.json as the first versions wrote it, every field of either kind, and the folder it lay in.
FIXTURES = Path(__file__).parent / "fixtures"
BEFORE = {
    "recipe-1-images.json": "digits-lt_iglu-0.5_subset-seed=None_seed=3",
    "recipe-1-text.json": "gpt2-python_iglu-5_epochs=2_epoch-steps=45_lr=0.002_warmup=0.2_seed=2",
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_recipe_of_the_first_format_is_read_with_the_same_identity(name: str) -> None:
    fields = json.loads((FIXTURES / name).read_text())
    recipe = Recipe.from_dict(fields)
    assert recipe.folder_name == BEFORE[name]
    read = recipe.identity()
    assert read.pop("subset_seed", None) is None  # there was no such field, and the subset followed the seed
    as_lists = json.loads(json.dumps(read))
    assert {key: fields[key] for key in as_lists} == as_lists
    again = json.loads(json.dumps(recipe.as_dict()))
    assert again["format"] == 2
    assert Recipe.from_dict(again) == recipe


def test_a_recipe_holds_the_fields_of_its_kind_alone() -> None:
    images, text = RECIPES["digits"].as_dict(), RECIPES["gpt2-python"].as_dict()
    assert {"context", "tokenizer", "evaluate"} == text.keys() - images.keys()
    assert {"ratio", "padding", "jitter", "channels_last"} <= images.keys() - text.keys()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "resnet20-cifar10",
            {"context": 512},
            "context is a field of text, and cifar10 on resnet20 is images",
        ),
        ("digits", {"evaluate": "valid"}, "evaluate is a field of text"),
        ("gpt2-python", {"ratio": 10.0}, "ratio is a field of images, and python on gpt2-nano is text"),
        ("gpt2-python", {"channels_last": True}, "channels_last is a field of images"),
    ],
)
def test_a_field_of_the_other_kind_of_data_is_a_mistake_and_no_other_experiment(
    name: str, change: dict[str, object], message: str
) -> None:
    with pytest.raises(MistakeError, match=message):
        RECIPES[name].replace(**change)


def test_a_recipe_of_a_set_that_is_not_known_here_can_be_read() -> None:
    """A run on somebody's own images, read by a program that has not registered them."""
    fields = RECIPES["digits"].replace(padding=3).as_dict() | {"dataset": "stripes", "name": "stripes"}
    assert Recipe.from_dict(fields).padding == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "has format 3; this version of iglu reads 1 to 2"),
        ({"sigma": 1}, "Unknown field 'sigma'"),
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"norm": 1}, "norm must be true or false, got 1"),
        ({"seed": 10**30}, "seed must be a whole number, got 1000"),
        ({"jitter": [1]}, "jitter must be a list of 4 numbers"),
    ],
)
def test_what_is_no_recipe_is_refused_by_its_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(MistakeError, match=message):
        Recipe.from_dict(RECIPES["digits"].as_dict() | change)
