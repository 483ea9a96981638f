"""Activations, datasets, models and recipes of the user's own, by name on the command line."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from torch import nn

from iglu import zoo
from iglu.cli import main
from iglu_lab import extensions
from iglu_lab.cli import COMMANDS
from iglu_lab.extensions import register_dataset, register_model, register_recipe
from iglu_lab.models.gpt2 import GPT2Config
from iglu_lab.recipes import RECIPES, get_recipe

pytestmark = pytest.mark.usefixtures("alone", "registries")

MODULE = """
import iglu
from torch import nn
from iglu_lab.data.embedded import digits
from iglu_lab.extensions import register_dataset, register_model, register_recipe
from iglu_lab.recipes import Recipe

def tiny(classes, make_activation, norm):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), make_activation(), nn.Linear(8, classes))

class Snake(nn.Module):
    def forward(self, x):
        return x + x.sin().square()

iglu.register_activation("snake", Snake, label="Snake!")
register_dataset("numerals", lambda root: digits())
register_model("tiny", tiny)
register_recipe(Recipe("mine", "numerals", "tiny", "snake", epochs=1, steps_per_epoch=2, threads=1))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has the module ``my_activations``."""
    (tmp_path / "my_activations.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("module")
def test_a_module_of_the_user_adds_names_to_train_and_to_the_workers_of_a_sweep(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--import", "my_activations", "mine"]) == 0
    Path("grid.toml").write_text('recipes = ["mine"]\nactivations = ["snake", "relu"]\nseeds = 1\n')
    assert main(["sweep", "grid.toml", "--import", "my_activations"]) == 0
    assert "2 finished, 0 failed" in capsys.readouterr().out
    assert main(["train", "--import", "my_activations"]) == 2  # lists the recipes
    assert "numerals" in capsys.readouterr().out


@pytest.mark.usefixtures("module")
def test_a_module_of_the_user_adds_names_to_the_benchmark() -> None:
    few = ["--sizes", "100", "--rounds", "2", "--iterations", "2", "--passes", "forward", "--no-direct"]
    few += ["--no-pairs", "--no-pictures", "--ratios-to", "relu", "--out", "bench"]
    assert main(["bench", "--import", "my_activations", "--activations", "snake", *few]) == 0
    assert '"snake"' in Path("bench/bench.json").read_text()
    assert main(["report", "bench", "--out", "report"]) == 0


@pytest.mark.usefixtures("module")
def test_a_run_with_names_that_are_not_registered_is_listed_and_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["train", "mine", "--import", "my_activations"]) == 0
    del zoo.ZOO["snake"], RECIPES["mine"]  # as another process, without the module, sees it
    monkeypatch.setattr("iglu_lab.recipes.IMAGE_SETS", {})
    capsys.readouterr()
    assert main(["runs", "runs", "--filter", "snake", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["activation"] for row in listed["runs"]] == ["snake"]
    assert listed["problems"] == []
    assert main(["probe", "runs"]) == 2
    assert "'snake'" in (said := capsys.readouterr().err)
    assert "--import" in said
    assert main(["report", "runs", "--out", "report"]) == 0
    assert "snake" in Path("report/report.md").read_text()


def test_an_installed_package_registers_through_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "my_package-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{extensions.ENTRY_POINTS}]\nmine = installed_activations\n")
    (tmp_path / "installed_activations.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert main(["train", "--help"]) == 0
    assert "numerals" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_describes_the_flag_import(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, *(["digits"] if command == "train" else []), "--help"])
    assert ended.value.code == 0
    assert "--import MODULE" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["nothere", "json.nothere", ".json", ""])
def test_a_module_that_does_not_exist_gives_one_line_of_error(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", ".", "--import", name]) == 2
    said = capsys.readouterr().err
    assert repr(name) in said
    assert said.count("\n") == 1


def test_an_import_that_fails_inside_the_module_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken_module.py").write_text("import nothere\n")
    with pytest.raises(ModuleNotFoundError, match="nothere"):
        extensions.load(["broken_module"], str(tmp_path))
    assert "broken_module" not in sys.modules


def test_built_in_names_cannot_be_replaced_but_registered_ones_can() -> None:
    with pytest.raises(ValueError, match="'digits' is built in"):
        register_recipe(get_recipe("digits"))
    with pytest.raises(ValueError, match="'cifar10' is built in"):
        register_dataset("cifar10", lambda root: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="must be a string, got None"):
        register_model(None, lambda *_: nn.Identity())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must start with 'gpt2'"):
        register_model("mine", GPT2Config())
    mine = get_recipe("digits").replace(name="mine")
    register_recipe(mine)
    register_recipe(mine.replace(lr=1.0))
    assert get_recipe("mine").lr == 1.0
