"""The claims of ``iglu probe``, run in small."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
from torch import nn

pytest.importorskip("tyro", reason="the command needs the lab")
pytest.importorskip("matplotlib")

from iglu.lab import cli


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU())


def make_batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(64, 8, generator=generator), torch.zeros(64)


def test_a_model_of_ones_own_gives_table_suggestion_json_and_pictures(tmp_path, capsys):
    here = __name__
    flags = [f"{here}:make_model", "--data", f"{here}:make_batches", "--batches", "3", "--out", str(tmp_path)]
    assert cli.run("probe", flags) == 0
    shown = capsys.readouterr().out
    assert "evidence is weak" in shown.replace("\n", " ")
    assert "first batch, k = 100" in shown
    body = json.loads((tmp_path / f"{here}.make_model" / "probe.json").read_text())
    assert [row["layer"] for row in body["layers"]] == ["1", "3"]
    assert [row["n"] for row in body["layers"]] == [3 * 64 * 32] * 2
    assert [row["n"] for row in body["first_batch"]] == [64 * 32] * 2
    assert [row["k"] for row in body["first_batch"]] == [100] * 2
    assert {path.name for path in (tmp_path / f"{here}.make_model").glob("*.png")} == {
        "hill.png", "quantiles.png", "depth.png",
    }  # fmt: skip


def test_a_saved_transformer_is_probed_on_random_tokens_and_says_so(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=60, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "saved")
    flags = [f"hf:{tmp_path / 'saved'}", "--batches", "2", "--no-pictures", "--out", str(tmp_path)]
    assert cli.run("probe", flags) == 0
    assert "random tokens" in capsys.readouterr().out
    body = json.loads((tmp_path / "saved" / "probe.json").read_text())
    assert [row["n"] for row in body["layers"]] == [2 * 16 * 16 * 64]


def test_a_run_is_probed_from_its_folder_and_its_tails_are_logged_on_the_way(tmp_path, capsys):
    pytest.importorskip("lightning_fabric")
    from iglu.lab.runs.record import read_runs

    flags = ["digits", "--epochs", "2", "--epoch-steps", "2", "--activation", "iglu:0.5", "--out"]
    assert cli.run("train", [*flags, str(tmp_path / "runs"), "--tails", "2"]) == 0
    assert cli.run("train", [*flags, str(tmp_path / "plain")]) == 0
    (run,), (plain,) = (read_runs(tmp_path / name)[0] for name in ("runs", "plain"))
    assert "tails" not in run.history[0]
    assert all(each["alpha"] > 0 for each in run.history[1]["tails"].values())
    assert len(run.history[1]["tails"]) == 7
    assert run.without_timings()[1]["test_loss"] == plain.without_timings()[1]["test_loss"]
    assert (
        cli.run("probe", [str(tmp_path / "runs"), "--batches", "1", "--no-pictures", "--out", str(tmp_path)])
        == 0
    )
    shown = capsys.readouterr().out
    assert "digits_iglu-0.5_epochs=2_epoch-steps=2" in shown
    assert "layer3.0.act2" not in shown  # of many runs a line each; the layers are in the file
    body = json.loads((tmp_path / run.name / "probe.json").read_text())
    assert "layer3.0.act2" in [row["layer"] for row in body["layers"]]


@pytest.mark.parametrize(("name", "rows"), [("digits", 128), ("gpt2-python", 16)])
@pytest.mark.parametrize("batch", [8, 200])
def test_the_probe_takes_the_papers_batch_whatever_the_run_had(name, rows, batch, tmp_path, monkeypatch):
    pytest.importorskip("lightning_fabric")
    from iglu.lab.recipes import RECIPES
    from iglu.lab.training.loop import fit
    from iglu.lab.training.tails import TailObserver
    from iglu.tails import gaussian_index

    monkeypatch.setenv("IGLU_CACHE", str(tmp_path / "cache"))
    recipe = RECIPES[name].replace(epochs=1, epoch_steps=1, batch=batch, threads=1)
    if recipe.kind == "text":
        recipe = recipe.replace(context=32)
    run = fit(recipe, out=tmp_path / "runs", observers=[TailObserver()])
    numbers = rows * (16 * 8 * 8 if name == "digits" else 31 * 256)  # of the first activation
    first = next(iter(run.last["tails"].values()))
    assert first["gaussian"] == pytest.approx(gaussian_index("hill", numbers, 100).alpha)
    flags = ["--batches", "1", "--no-pictures", "--out", str(tmp_path)]
    assert cli.run("probe", [str(run.folder), *flags]) == 0
    body = json.loads((tmp_path / run.folder.name / "probe.json").read_text())
    assert body["first_batch"][0]["n"] == numbers


def test_runs_without_a_checkpoint_are_named_and_the_others_probed(tmp_path, capsys):
    pytest.importorskip("lightning_fabric")
    from iglu.lab.recipes import RECIPES
    from iglu.lab.training.loop import fit

    base = RECIPES["digits"].replace(epochs=1, epoch_steps=3, activation="iglu:5")
    runs = [fit(base.replace(norm=norm), out=tmp_path / "runs") for norm in (True, False)]
    diverged = fit(base.replace(lr=1e30, clip=None), out=tmp_path / "runs")
    assert diverged.status == "diverged"
    flags = ["--batches", "1", "--no-pictures", "--out", str(tmp_path / "probes")]
    assert cli.run("probe", [str(tmp_path / "runs"), *flags]) == 0
    shown = capsys.readouterr()
    assert f"skipped: {diverged.folder.name} has no sound checkpoint (the run is diverged)" in shown.err
    assert all((tmp_path / "probes" / run.folder.name / "probe.json").is_file() for run in runs)
    assert cli.run("probe", [str(diverged.folder), *flags]) == 2
    assert "has a checkpoint to probe" in capsys.readouterr().err


def test_a_saved_transformer_without_its_tokenizer_says_so(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=60, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "saved")
    text = tmp_path / "text.txt"
    text.write_text("A sentence, and another one. " * 50)
    assert cli.run("probe", [f"hf:{tmp_path / 'saved'}", "--text", str(text), "--out", str(tmp_path)]) == 2
    assert "has no tokenizer, which --text needs" in capsys.readouterr().err


def test_a_saved_transformer_without_the_package_names_the_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    (tmp_path / "config.json").write_text("{}")
    assert cli.run("probe", [f"hf:{tmp_path}", "--out", str(tmp_path)]) == 2
    assert re.search(r"pip install .*\[hf\]", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nonsense"], "neither a folder, nor hf:FOLDER"),
        ([f"{__name__}:make_model"], "needs --data"),
        ([f"{__name__}:make_modle", "--data", f"{__name__}:make_batches"], "has no 'make_modle'"),
        (["no_such_module:f", "--data", f"{__name__}:make_batches"], "no module 'no_such_module'"),
        (["hf:nowhere"], "has no config.json"),
    ],
)
def test_mistakes_end_with_status_2_and_a_sentence(flags, message, capsys, tmp_path):
    assert cli.run("probe", [*flags, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
