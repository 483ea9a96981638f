"""The command ``iglu convert``: a trained model in, the same with other activations out, recalibrated.

A model is a saved transformers model (``hf:FOLDER``) or a run of the lab (its folder).  It is calibrated on
one part of the data and judged on another: by its perplexity if it predicts the next token, by the agreement
of its embeddings if it does not, by its own metrics if it is a run.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import tyro
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.nn import functional as F

from iglu import zoo
from iglu.lab.cli import DONE
from iglu.lab.mistakes import MistakeError, as_mistakes, check_writable
from iglu.lab.models.saved import (
    load_tokenizer,
    load_transformer,
    row_length,
    token_rows,
    without_progress_bars,
)  # fmt: skip
from iglu.lab.runs import provenance
from iglu.lab.runs.record import read_runs
from iglu.lab.storage import write_json
from iglu.lab.training.tasks import load_model, load_task
from iglu.modules import IGLU
from iglu.probing import probe
from iglu.swapping import swap
from iglu.swapping.recalibrate import Recalibration, swap_and_recalibrate
from iglu.swapping.record import Swap

_ROWS_A_BATCH = 16

Metrics = dict[str, float]


@dataclass(frozen=True)
class Flags:
    """Put other activations into a trained model and let its layers take up the change, without training."""

    model: Annotated[str, tyro.conf.Positional]
    """hf:FOLDER for a saved transformers model, or the folder of a run of the lab."""
    to: str
    """iglu:nearest or iglu_approx:nearest, each layer with the sigma closest to what it has; relu; a name."""
    out: Path
    """A new folder for the converted model and its record."""
    text: Path | None = None
    """For hf: a text file; its first half calibrates, the rest judges."""
    data: str | None = None
    """For a run, the folder of the data."""
    method: Literal["least-squares", "shift"] = "least-squares"
    """How the layers behind are corrected."""
    batches: int = 20
    """Batches to calibrate on, and at most as many to judge a transformers model."""

    def check(self) -> None:
        if self.batches < 2:
            raise MistakeError(
                f"--batches must be at least 2, one to fit and one to judge, got {self.batches}"
            )
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise MistakeError(f"--out {self.out} is there already: name a new folder")
        check_writable(self.out)
        name, _, sigma = self.to.partition(":")
        if sigma == "nearest" and name not in ("iglu", "iglu_approx"):
            raise MistakeError(f"--to {self.to}: only iglu and iglu_approx have a nearest sigma")
        if sigma != "nearest":
            with as_mistakes("--to: "):
                zoo.create(self.to)


class Source(NamedTuple):
    """A model, what it is calibrated on, how well it does, and how it is saved."""

    model: nn.Module
    data: str  # on what, in words
    batches: list[Any]
    judge: Callable[[nn.Module], Metrics]
    save: Callable[[nn.Module, Path], None]


def find(flags: Flags) -> Source:
    """What the flags name."""
    if flags.model.startswith("hf:"):
        return _transformer(Path(flags.model.removeprefix("hf:")), flags)
    if not Path(flags.model).is_dir():
        raise MistakeError(f"{flags.model!r} is neither hf:FOLDER nor the folder of a run")
    return _run(Path(flags.model), flags)


def _transformer(folder: Path, flags: Flags) -> Source:
    if flags.text is None:
        raise MistakeError("hf:FOLDER needs --text FILE: the layers are fitted to what they do on real text")
    model = load_transformer(folder)
    rows = token_rows(folder, flags.text, row_length(model))
    batches = [{"input_ids": batch} for batch in torch.split(rows, _ROWS_A_BATCH)]
    if len(batches) < 4:
        raise MistakeError(
            f"{flags.text} has {len(rows)} rows of {rows.shape[1]} tokens; at least {3 * _ROWS_A_BATCH + 1} "
            "are needed to calibrate and to judge"
        )
    half = len(batches) // 2
    fitted, judged = batches[:half][: flags.batches], batches[half:][: flags.batches]

    def save(converted: Any, out: Path) -> None:
        with without_progress_bars():
            converted.save_pretrained(out)
        load_tokenizer(folder).save_pretrained(out)
        _check_reload(converted, load_transformer(out), judged[0])

    counts = [sum(len(batch["input_ids"]) for batch in part) for part in (fitted, judged)]
    data = f"calibrated on {counts[0]} rows of {rows.shape[1]} tokens, judged on {counts[1]} others"
    return Source(model, data, fitted, _judge_of(model, judged), save)


def _judge_of(model: Any, batches: list[dict[str, Tensor]]) -> Callable[[nn.Module], Metrics]:
    """By perplexity where the model predicts the next token, else by agreement with the model as it is."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return lambda other: {"perplexity": _perplexity(other, batches)}
    wanted = _embeddings(model, batches)

    def agreement(other: nn.Module) -> Metrics:
        got = _embeddings(other, batches)
        nearest = [(each @ each.T).fill_diagonal_(-math.inf).argmax(-1) for each in (got, wanted)]
        return {
            "cosine": (got * wanted).sum(-1).mean().item(),
            "same_neighbour": (nearest[0] == nearest[1]).float().mean().item(),
        }

    return agreement


@torch.inference_mode()
def _perplexity(model: nn.Module, batches: list[dict[str, Tensor]]) -> float:
    loss, count = 0.0, 0
    for batch in batches:
        logits, tokens = model(**batch).logits[:, :-1].float(), batch["input_ids"][:, 1:]
        loss += F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum").item()
        count += tokens.numel()
    return math.exp(loss / count)


@torch.inference_mode()
def _embeddings(model: nn.Module, batches: list[dict[str, Tensor]]) -> Tensor:
    """The mean of the last hidden states of a row, of length 1."""
    return F.normalize(torch.cat([model(**batch)[0].float().mean(1) for batch in batches]), dim=-1)


@torch.inference_mode()
def _check_reload(converted: nn.Module, reloaded: nn.Module, batch: dict[str, Tensor]) -> None:
    torch.testing.assert_close(
        reloaded(**batch)[0],
        converted(**batch)[0],
        msg=lambda text: f"the saved model gives something else: {text}",
    )


def _run(folder: Path, flags: Flags) -> Source:
    runs, complaints = read_runs(folder)
    if len(runs) != 1:
        said = f"{len(runs)} runs, name one of them" if runs else f"no run. {' '.join(complaints)}".rstrip()
        raise MistakeError(f"{folder} holds {said}")
    task = load_task(runs[0].recipe, flags.data)
    order = torch.randperm(task.samples, generator=torch.Generator().manual_seed(0))
    # augmented as in training, so that they are as many different images
    batches = [
        task.train_batch(rows, slice(None), seed)[0]
        for seed, rows in enumerate(torch.split(order, runs[0].recipe.batch)[: flags.batches])
    ]

    @torch.inference_mode()
    def judge(model: nn.Module) -> Metrics:
        sums = [task.evaluate(model(x), y).double() for x, y in task.test_batches()]
        return task.test_metrics(torch.stack(sums).sum(0).tolist())

    def save(converted: nn.Module, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        save_model(converted, str(out / "model.safetensors"))

    data = f"calibrated on {sum(map(len, batches))} rows of its training set, judged on its test set"
    return Source(load_model(runs[0], flags.data), data, batches, judge, save)


class Converted(NamedTuple):
    """The model, the names of its new activations by place, and how well it did as it was, with the new
    activations alone, and recalibrated."""

    model: nn.Module
    activations: dict[str, str]
    record: Recalibration
    original: Metrics
    swapped: Metrics
    recalibrated: Metrics


def convert(source: Source, flags: Flags) -> Converted:
    """The source's own model is left as it is."""
    model = copy.deepcopy(source.model)
    activations = _names(model, source.batches, flags.to)

    def do() -> Swap:
        return _swap(model, activations)

    original = source.judge(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of what no config can express: said below
        alone = do()
        if all(each.old == each.new for each in alone.replaced):
            raise MistakeError(f"--to {flags.to}: that is what the model has already")
        swapped = source.judge(model)
        alone.undo()
        done, record = swap_and_recalibrate(do, model, source.batches, flags.method)
    if done.not_saved and flags.model.startswith("hf:"):
        raise MistakeError(
            f"the config of {type(model).__name__} cannot express the new activation of {done.not_saved[0]}: "
            "the saved model would come back with the old one"
        )
    return Converted(model, activations, record, original, swapped, source.judge(model))


def _names(model: nn.Module, batches: list[Any], to: str) -> dict[str, str]:
    """What is to stand at each place."""
    name, _, sigma = to.partition(":")
    with as_mistakes():
        suggestion = probe(model, batches).suggest_sigma(
            "nearest", "iglu_approx" if name == "iglu_approx" else "iglu"
        )
    places = dict(suggestion.by_layer)
    if not places:
        raise MistakeError(f"{type(model).__name__} has no activation that a swap can reach")
    if sigma != "nearest":
        return dict.fromkeys(places, to)
    for place, text in places.items():
        if text.endswith((":inf", ":0")):
            raise MistakeError(
                f"the nearest to what stands at {place} is {text}, which IGLU only tends to: name a sigma"
            )
    return places


def _swap(model: nn.Module, activations: dict[str, str]) -> Swap:
    """One name everywhere goes into a config.  Several sigmas do not; as learnable ones they are among the
    weights, and the config need only say so."""
    names = list(activations.values())
    if len(set(names)) == 1:
        return swap(model, names[0], only=list(activations))
    name, _, first = names[0].partition(":")
    done = swap(model, f"{name}:learnable={first}", only=list(activations))
    for place, text in activations.items():
        module = model.get_submodule(place)
        assert isinstance(module, IGLU)
        nn.init.constant_(module.get_parameter("log_sigma"), math.log(float(text.partition(":")[2])))
    return done


def show(found: Converted, flags: Flags) -> None:
    """The record, the metrics, and the files."""
    sigmas = [float(text.partition(":")[2]) for text in found.activations.values() if ":" in text]
    which = f", sigma {min(sigmas):.3g} to {max(sigmas):.3g}" if flags.to.endswith(":nearest") else ""
    print(f"{len(found.activations)} activations -> {flags.to}{which}")
    print(found.record)
    shown = [("as it was", found.original), ("swapped", found.swapped), ("recalibrated", found.recalibrated)]
    for title, metrics in shown:
        print(f"{title:14}" + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    body = {
        "model": flags.model,
        "to": flags.to,
        "method": flags.method,
        "activations": found.activations,
        "metrics": dict(shown),
        "corrected": [dataclasses.asdict(each) for each in found.record.corrected],
        "left": [dataclasses.asdict(each) for each in found.record.left],
        "zeros": found.record.zeros,
        "provenance": provenance.collect(),
    }
    write_json(flags.out / "convert.json", body)
    print(f"wrote {flags.out}")


def main(argv: list[str]) -> int:
    """Run ``iglu convert``."""
    flags = tyro.cli(Flags, args=argv, prog="iglu convert")
    flags.check()
    source = find(flags)
    print(source.data, flush=True)
    found = convert(source, flags)
    source.save(found.model, flags.out)
    show(found, flags)
    return DONE
