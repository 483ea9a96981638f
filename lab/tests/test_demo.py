"""The demo: its numbers match known values, and it ends with a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from iglu_lab import cli
from iglu_lab.commands import demo
from iglu_lab.runs.archive import read_runs

# Where the direct formula has its first gradient of the wrong sign: the errata of the paper, with a margin
# for the spacing of the points.
KNOWN = {torch.float32: (210, 290), torch.float16: (9, 12), torch.bfloat16: (4, 6)}


@pytest.mark.parametrize("dtype", KNOWN, ids=str)
def test_the_demo_shows_where_the_direct_formula_fails_and_the_library_does_not(dtype: torch.dtype) -> None:
    row = demo.measure_accuracy("none", dtype)
    low, high = KNOWN[dtype]
    assert low < row["direct_wrong_sign_from"] < high
    assert row["library_wrong_sign_from"] is None
    assert row["library_gradient_error"] < 8 * torch.finfo(dtype).eps
    assert row["library_value_error"] < 4 * torch.finfo(dtype).eps
    assert row["direct_gradient_error"] > 1


def test_speeds_are_relative_to_relu() -> None:
    rows = demo.measure_speed(elements=1_000, rounds=2)
    assert rows[0]["label"] == "ReLU"
    assert rows[0]["forward"]["median"] == rows[0]["backward"]["median"] == 1
    assert {"IGLU", "IGLU-Approx", "GELU", "SiLU"} <= {row["label"] for row in rows}


def test_the_demo_ends_with_tables_and_the_path_of_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IGLU_CACHE", str(tmp_path / "cache"))
    small = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 8}
    chosen = [each for each in demo.demo_runs(2) if each.activation in ("relu", "iglu:0.5")]
    assert [each.seed for each in chosen] == [0] * 4 + [1] * 4
    monkeypatch.setattr(demo, "demo_runs", lambda _: [each.replace(**small) for each in chosen])
    out = tmp_path / "demo"
    assert cli.demo(["--seeds", "2", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert f"{out}/demo.json" in shown
    rows = json.loads((out / "demo.json").read_text())["training"]
    assert {(row["activation"], row["metric"]) for row in rows} == {
        (name, metric)
        for name in ("relu", "iglu:0.5")
        for metric in ("test_acc", "test_acc_few", "perplexity")
    }
    runs, problems = read_runs(out)
    assert len(runs) == 8
    assert not problems
    accuracies = {
        (run.recipe.activation, run.recipe.seed): run.last["test_acc"]
        for run in runs
        if run.recipe.name == "digits-lt"
    }
    (row,) = [row for row in rows if (row["activation"], row["metric"]) == ("iglu:0.5", "test_acc")]
    assert row["mean"]["value"] == pytest.approx((accuracies["iglu:0.5", 0] + accuracies["iglu:0.5", 1]) / 2)
    assert row["differences"]["relu"]["value"] == pytest.approx(
        sum(accuracies["iglu:0.5", seed] - accuracies["relu", seed] for seed in (0, 1)) / 2
    )


def test_the_demo_needs_at_least_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.demo(["--seeds", "0"]) == 2
    assert "--seeds must be at least 1, got 0" in capsys.readouterr().err
