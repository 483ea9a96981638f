"""The examples of ``iglu compare`` run: a plain loop, the Trainer of transformers, a script."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from iglu_lab import cli, compare
from iglu_lab.comparing.result import read_result

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
if not EXAMPLES.is_dir():
    pytest.skip("needs a clone, which has the docs", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_of_a_plain_loop_runs_on_digits() -> None:
    train = _example("compare_digits").train
    result = compare(train, ["relu", "iglu:5"], metric="acc", seeds=3, jobs=2)
    assert not result.missing
    assert all((row.metrics["acc"] or 0) > 80 for row in result.rows.values())
    assert result.verdicts["iglu:5"] is not None
    *_, last = train("iglu:5", 1)  # in this process
    assert result.rows["iglu:5", 1].metrics["acc"] == pytest.approx(last["acc"].item())


@pytest.mark.filterwarnings("default")  # of other packages
def test_the_example_of_the_trainer_runs_on_a_tiny_gpt2() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    short = functools.partial(_example("compare_trainer").train, steps=8)
    result = compare(short, ["gelu", "iglu:5"], metric="loss", seeds=3, jobs=2)
    assert not result.missing
    assert result.plan.lower_is_better
    assert all(3 < (row.metrics["loss"] or 0) < 5.6 for row in result.rows.values())  # log 256 = 5.5
    assert len({row.metrics["loss"] for row in result.rows.values()}) == 6


def test_the_example_script_runs_through_its_environment() -> None:
    words = [sys.executable, str(EXAMPLES / "compare_script.py"), "--steps", "20"]
    flags = ["--activations", "relu", "iglu:5", "--metric", "loss", "--seeds", "3", "--jobs", "2"]
    assert cli.compare([*flags, "--", *words]) == 0
    result = read_result("compare")
    assert result.verdicts["iglu:5"] is not None
    assert len({row.metrics["loss"] for row in result.rows.values()}) == 6
