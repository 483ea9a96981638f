"""``iglu convert`` on small models."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("tyro", reason="the command needs the lab")

import iglu
from iglu_lab import cli

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "far", "away"]


@pytest.fixture
def text(tmp_path):
    order = torch.randint(len(WORDS), (4000,), generator=torch.Generator().manual_seed(0))
    path = tmp_path / "text.txt"
    path.write_text(" ".join(WORDS[index] for index in order), encoding="utf-8")
    return path


def saved(folder, make):
    """A small model with a tokenizer of words."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    make(transformers, len(vocabulary)).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    return f"hf:{folder}"


def gpt2(transformers, size):
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=size, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for block in model.transformer.h:  # so that the activation matters
            block.mlp.c_fc.weight.mul_(40)
            block.mlp.c_proj.weight.mul_(10)
    return model


def bert(transformers, size):
    config = transformers.BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    return transformers.BertModel(config)


def test_a_language_model_is_converted_and_loaded_from_its_folder(tmp_path, text, capsys):
    source = saved(tmp_path / "gpt2", gpt2)
    out = tmp_path / "converted"
    flags = [source, "--to", "iglu:nearest", "--text", str(text), "--out", str(out), "--batches", "4"]
    capsys.readouterr()  # of saving it
    assert cli.convert(flags) == 0
    shown, noise = capsys.readouterr()
    assert not noise  # no progress bar of transformers
    assert "calibrated on 64 rows of 16 tokens, evaluated on 64 others" in shown
    body = json.loads((out / "convert.json").read_text())
    sigmas = sorted(float(name.partition(":")[2]) for name in body["activations"].values())
    assert f"2 activations -> iglu:nearest, sigma {sigmas[0]:.3g} to {sigmas[1]:.3g}\n" in shown
    assert "transformer.h.1.mlp.c_proj: least-squares, error" in shown
    assert sigmas[0] < sigmas[1]  # each layer its own
    assert all(each["after"] < 0.7 * each["before"] for each in body["corrected"])
    from iglu_lab.models.saved import load_transformer

    before, again = load_transformer(tmp_path / "gpt2"), load_transformer(out)
    with torch.no_grad():
        for model, title in ((before, "original"), (again, "recalibrated")):
            rows = torch.randint(13, (64, 16), generator=torch.Generator().manual_seed(1))
            loss = model(input_ids=rows, labels=rows).loss  # of another text, made in the same way
            assert body["metrics"][title]["perplexity"] == pytest.approx(loss.exp().item(), rel=0.05)
    for place, name in body["activations"].items():
        assert again.get_submodule(place).sigma.item() == pytest.approx(
            float(name.partition(":")[2]), rel=1e-5
        )


def test_an_encoder_is_evaluated_by_its_embeddings(tmp_path, text, capsys):
    out = tmp_path / "converted"
    source = saved(tmp_path / "bert", bert)
    assert (
        cli.convert([source, "--to", "relu", "--text", str(text), "--out", str(out), "--batches", "4"]) == 0
    )
    shown = capsys.readouterr().out
    assert "exact zeros:" in shown
    metrics = json.loads((out / "convert.json").read_text())["metrics"]
    assert metrics["original"] == {"cosine": pytest.approx(1, abs=1e-6), "same_neighbor": 1}
    assert 1 > metrics["recalibrated"]["cosine"] > metrics["swapped"]["cosine"]


def test_a_run_of_the_lab_is_converted_by_its_own_metrics(tmp_path, capsys):
    pytest.importorskip("lightning_fabric")
    from iglu_lab.commands import train as train_command

    flags = ["digits", "--epochs", "1", "--steps-per-epoch", "3", "--activation", "iglu:2", "--out"]
    assert train_command.main([*flags, str(tmp_path / "runs")]) == 0
    out = tmp_path / "converted"
    out.mkdir()  # an empty folder is accepted
    assert cli.convert([str(tmp_path / "runs"), "--to", "relu", "--out", str(out), "--batches", "3"]) == 0
    body = json.loads((out / "convert.json").read_text())
    assert set(body["activations"].values()) == {"relu"}
    assert {"test_loss", "test_acc"} <= body["metrics"]["recalibrated"].keys()
    assert any(each["method"] == "batch norm" for each in body["corrected"])
    from safetensors.torch import load_file

    assert "layer1.0.bn1.running_mean" in load_file(out / "model.safetensors")


FUNCTIONAL = """
import torch.nn.functional as F
from torch import nn
from iglu_lab.extensions import register_model

class Functional(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.last = nn.Linear(192, 32), nn.Linear(32, classes)

    def forward(self, x):
        return self.last(F.gelu(self.first(x.flatten(1))))

register_model("functional", lambda classes, make_activation, norm: Functional(classes))
"""


@pytest.mark.usefixtures("registries")
def test_a_call_inside_a_forward_is_converted_like_a_layer(tmp_path, monkeypatch, capsys):
    pytest.importorskip("lightning_fabric")
    from iglu.cli import main

    (tmp_path / "functional_model.py").write_text(FUNCTIONAL)
    monkeypatch.chdir(tmp_path)
    options = ["--import", "functional_model"]
    train = ["train", "digits", "--model", "functional", "--epochs", "1", "--steps-per-epoch", "3"]
    assert main([*train, *options, "--out", "runs"]) == 0
    assert main(["convert", "runs", "--to", "relu", "--out", "converted", "--batches", "3", *options]) == 0
    body = json.loads((tmp_path / "converted" / "convert.json").read_text())
    assert body["activations"] == {"gelu_1": "relu"}
    assert [each["place"] for each in body["corrected"]] == ["last"]


def test_errors_end_with_one_line(tmp_path, text, capsys):
    def said(*flags, out="new"):
        try:
            status = cli.convert([*flags, "--out", str(tmp_path / out)])
        except SystemExit as ended:  # for flags that tyro itself refuses
            status = ended.code
        assert status == 2
        return " ".join(capsys.readouterr().err.split())

    assert "is neither hf:FOLDER nor a run folder" in said("nowhere", "--to", "relu")
    assert "has no config.json" in said(f"hf:{tmp_path}", "--to", "relu", "--text", str(text))
    assert "needs --text FILE" in said(f"hf:{tmp_path}", "--to", "relu")
    assert "Did you mean 'relu'?" in said(f"hf:{tmp_path}", "--to", "rleu")
    assert "only iglu and iglu_approx have a nearest sigma" in said(f"hf:{tmp_path}", "--to", "relu:nearest")
    assert "at least 2" in said(f"hf:{tmp_path}", "--to", "relu", "--batches", "1")
    assert "is not empty" in said(f"hf:{tmp_path}", "--to", "relu", out=".")
    assert "no run" in said(str(tmp_path), "--to", "relu")
    short = tmp_path / "short.txt"
    short.write_text("the cat " * 50, encoding="utf-8")
    source = saved(tmp_path / "gpt2", gpt2)
    assert "at least 49 are needed" in said(source, "--to", "relu", "--text", str(short))
    relu = saved(tmp_path / "relu", lambda *of: _with_relu(gpt2(*of)))
    assert "already uses this activation" in said(relu, "--to", "relu", "--text", str(text))
    assert not (tmp_path / "new").exists()


def _with_relu(model):
    iglu.swap(model, "relu")
    return model
