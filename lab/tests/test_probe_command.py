"""``iglu probe`` on small models."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("tyro", reason="the command needs the lab")
pytest.importorskip("matplotlib")

from iglu_lab import cli


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU())


def make_other_model() -> nn.Module:
    return make_model()


def make_list() -> list[nn.Module]:
    return [nn.ReLU()]


def make_number() -> int:
    return 3


def make_batches():
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(64, 8, generator=generator), torch.zeros(64)


OWN = (f"{__name__}:make_model", "--data", f"{__name__}:make_batches")


def test_a_model_of_the_user_gives_a_table_a_suggestion_json_and_figures(tmp_path, capsys):
    here = __name__
    flags = [f"{here}:make_model", "--data", f"{here}:make_batches", "--batches", "3", "--out", str(tmp_path)]
    assert cli.probe(flags) == 0
    shown = capsys.readouterr().out
    assert "evidence is weak" in shown.replace("\n", " ")
    # the suggestion and the table below it use the same definition of the mean excess
    (sentence,) = re.findall(r"mean excess is ([\d.]+)", shown)
    (table,) = re.findall(r"make_model .* ([\d.]+) \[", shown)
    assert sentence == table
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
    assert cli.probe(flags) == 0
    assert "random tokens" in capsys.readouterr().out
    body = json.loads((tmp_path / "saved" / "probe.json").read_text())
    assert [row["n"] for row in body["layers"]] == [2 * 16 * 16 * 64]


def test_a_run_is_probed_from_its_folder_and_its_tails_are_logged_during_training(tmp_path, capsys):
    pytest.importorskip("lightning_fabric")
    from iglu_lab.runs.archive import read_runs

    flags = ["digits", "--epochs", "2", "--steps-per-epoch", "2", "--activation", "iglu:0.5", "--out"]
    assert cli.train([*flags, str(tmp_path / "runs"), "--tails-every", "2"]) == 0
    assert cli.train([*flags, str(tmp_path / "plain")]) == 0
    (run,), (plain,) = (read_runs(tmp_path / name)[0] for name in ("runs", "plain"))
    assert "tails" not in run.history[0]
    assert all(each["alpha"] > 0 for each in run.history[1]["tails"].values())
    assert len(run.history[1]["tails"]) == 7
    assert run.without_timings()[1]["test_loss"] == plain.without_timings()[1]["test_loss"]
    assert cli.probe([str(tmp_path / "runs"), "--batches", "1", "--no-pictures", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "digits_iglu-0.5_epochs=2_epoch-steps=2" in shown
    assert "layer3.0.act2" in shown
    assert "evidence is weak" in shown
    body = json.loads((tmp_path / run.name / "probe.json").read_text())
    assert "layer3.0.act2" in [row["layer"] for row in body["layers"]]


@pytest.mark.parametrize(("name", "rows"), [("digits", 128), ("gpt2-python", 16)])
@pytest.mark.parametrize("batch", [8, 200])
def test_the_probe_uses_the_batch_size_of_the_paper_whatever_the_run_used(
    name, rows, batch, tmp_path, monkeypatch
):
    pytest.importorskip("lightning_fabric")
    from iglu.tails import gaussian_index
    from iglu_lab.recipes import RECIPES
    from iglu_lab.training.loop import fit
    from iglu_lab.training.tails import TailObserver

    monkeypatch.setenv("IGLU_CACHE", str(tmp_path / "cache"))
    recipe = RECIPES[name].replace(epochs=1, steps_per_epoch=1, batch_size=batch, threads=1)
    if recipe.kind == "text":
        recipe = recipe.replace(context=32)
    run = fit(recipe, out=tmp_path / "runs", observers=[TailObserver()])
    numbers = rows * (16 * 8 * 8 if name == "digits" else 31 * 256)  # of the first activation
    first = next(iter(run.last["tails"].values()))
    assert first["gaussian"] == pytest.approx(gaussian_index("hill", numbers, 100).alpha)
    flags = ["--batches", "1", "--no-pictures", "--out", str(tmp_path)]
    assert cli.probe([str(run.folder), *flags]) == 0
    body = json.loads((tmp_path / run.folder.name / "probe.json").read_text())
    assert body["first_batch"][0]["n"] == numbers


def test_runs_without_a_checkpoint_are_named_and_the_others_probed(tmp_path, capsys):
    pytest.importorskip("lightning_fabric")
    from iglu_lab.recipes import RECIPES
    from iglu_lab.training.loop import fit

    base = RECIPES["digits"].replace(epochs=1, steps_per_epoch=3, activation="iglu:5")
    runs = [fit(base.replace(norm=norm), out=tmp_path / "runs") for norm in (True, False)]
    diverged = fit(base.replace(lr=1e30, max_grad_norm=None), out=tmp_path / "runs")
    assert diverged.status == "diverged"
    flags = ["--batches", "1", "--no-pictures", "--out", str(tmp_path / "probes")]
    assert cli.probe([str(tmp_path / "runs"), *flags]) == 0
    shown = capsys.readouterr()
    assert f"skipped: {diverged.folder.name} has no complete checkpoint (the run is diverged)" in shown.err
    assert "layer3.0.act2" not in shown.out  # several runs have one line each; the layers are in the file
    assert shown.out.count("evidence is weak") == 1
    written = [tmp_path / "probes" / run.folder.name / "probe.json" for run in runs]
    assert all(path.is_file() for path in written)
    times = [path.stat().st_mtime_ns for path in written]
    assert cli.probe([str(tmp_path / "runs"), *flags]) == 0
    assert "2 of 3 runs, already probed" in capsys.readouterr().out
    assert times == [path.stat().st_mtime_ns for path in written]
    written[0].unlink()
    assert cli.probe([str(tmp_path / "runs"), *flags]) == 0
    assert written[0].is_file()
    assert times[1] == written[1].stat().st_mtime_ns
    assert cli.probe([str(diverged.folder), *flags]) == 2
    assert "has a checkpoint to probe" in capsys.readouterr().err


def test_probing_a_saved_transformer_on_text_without_its_tokenizer_is_an_error(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=60, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "saved")
    text = tmp_path / "text.txt"
    text.write_text("A sentence, and another one. " * 50)
    assert cli.probe([f"hf:{tmp_path / 'saved'}", "--text", str(text), "--out", str(tmp_path)]) == 2
    assert "has no tokenizer, which --text needs" in capsys.readouterr().err


def test_a_saved_transformer_without_the_package_names_the_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    (tmp_path / "config.json").write_text("{}")
    assert cli.probe([f"hf:{tmp_path}", "--out", str(tmp_path)]) == 2
    assert re.search(r"pip install .*\[hf\]", capsys.readouterr().err)


def test_a_config_that_transformers_does_not_know_is_a_user_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert cli.probe([f"hf:{tmp_path}"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"hf:{tmp_path}: " in said
    assert "model_type" in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nonsense"], "neither a folder, nor hf:FOLDER"),
        ([f"{__name__}:make_model"], "needs --data"),
        ([f"{__name__}:make_modle", "--data", f"{__name__}:make_batches"], "has no callable 'make_modle'"),
        (["no_such_module:f", "--data", f"{__name__}:make_batches"], "no module 'no_such_module'"),
        (["hf:nowhere"], "nowhere does not exist"),
        (["hf:openai-community/gpt2"], "hub"),
        ([f"hf:{Path(__file__).parent}"], "has no config.json"),
        ([*OWN, "--k", "-1"], "k must be from 1 to"),
        ([*OWN, "--k", "5000"], "k must be from 1 to"),
        ([*OWN, "--keep", "0"], "keep must be at least 2"),
        ([*OWN, "--text", "nofile"], "nofile"),
        (
            [f"{__name__}:make_list", "--data", f"{__name__}:make_batches"],
            "make_list must return an nn.Module",
        ),
        ([f"{__name__}:make_model", "--data", f"{__name__}:make_number"], "make_number must return batches"),
        (["."], "No run in .\n"),
    ],
)
def test_errors_end_with_status_2_and_one_line(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.probe([*flags, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert "Errno" not in said


def test_a_result_that_exists_is_reported_before_probing(tmp_path, capsys):
    def probe_both():
        targets = [f"{__name__}:make_model", f"{__name__}:make_other_model"]
        flags = ["--data", f"{__name__}:make_batches", "--batches", "1", "--no-pictures"]
        return cli.probe([*targets, *flags, "--out", str(tmp_path)])

    assert probe_both() == 0
    first, second = (tmp_path / f"{__name__}.{name}" for name in ("make_model", "make_other_model"))
    (first / "probe.json").unlink()
    assert probe_both() == 2
    assert str(second / "probe.json") in capsys.readouterr().err
    assert not (first / "probe.json").exists()


def test_a_trained_resnet20_is_not_called_untrained_and_a_random_one_is():
    from iglu.probing.initial import untrained_reason
    from iglu_lab.models.resnet import load_trained_resnet20, resnet20

    path = Path(os.environ.get("IGLU_DATA", "nowhere"), "cifar10-resnets", "resnet20-12fca82f.th")
    if not path.is_file():
        pytest.skip(f"needs {path}")
    assert not untrained_reason(load_trained_resnet20(path))
    assert "normalization" in untrained_reason(resnet20())
    for norm in (True, False):
        assert untrained_reason(resnet20(norm=norm))


def test_tables_keep_to_the_width_of_columns_when_piped(monkeypatch, capsys):
    from iglu_lab.console import Terminal

    for width in (60, 130):
        monkeypatch.setenv("COLUMNS", str(width))
        assert Terminal().width == width
    monkeypatch.delenv("COLUMNS")
    assert Terminal().width == 200
