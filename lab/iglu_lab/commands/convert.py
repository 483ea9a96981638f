"""``iglu convert``: replace the activations of a trained model and recalibrate it.

A model is a saved transformers model (``hf:FOLDER``) or a run of the lab (its folder).  It is calibrated on
one part of the data and evaluated on another: by perplexity for causal language models, by the agreement of
embeddings for other transformers, by its own metrics for a run.
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
from iglu.calibration.recalibrate import Recalibration, swap_and_recalibrate
from iglu.modules import IGLU
from iglu.probing import probe
from iglu.surgery import swap
from iglu.surgery.record import Swap
from iglu_lab.cli import DONE
from iglu_lab.errors import UserError, as_user_errors, check_writable
from iglu_lab.extensions import ExtensionFlags
from iglu_lab.models.saved import (
    load_tokenizer,
    load_transformer,
    row_length,
    token_rows,
    without_progress_bars,
)  # fmt: skip
from iglu_lab.runs import provenance
from iglu_lab.runs.archive import read_runs
from iglu_lab.storage import write_json
from iglu_lab.training.workloads import load_model, load_workload

_BATCH_SIZE = 16

Metrics = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Flags(ExtensionFlags):
    """Replace the activations of a trained model and recalibrate the following layers, without training."""

    model: Annotated[str, tyro.conf.Positional]
    """hf:FOLDER for a saved transformers model, or the folder of a run of the lab."""
    to: str
    """New activation: a name (relu, iglu:5 ...), or iglu:nearest or iglu_approx:nearest, which use the
    closest sigma for each layer."""
    out: Path
    """Output directory: a new or an empty one."""
    text: Path | None = None
    """Text file, for hf: its first half is for calibration, the rest for evaluation."""
    data: str | None = None
    """Data directory, for a run."""
    method: Literal["least-squares", "shift"] = "least-squares"
    """Correction of the following layers."""
    batches: int = 20
    """Number of calibration batches, and the maximum number of evaluation batches for hf."""

    def check(self) -> None:
        if self.batches < 2:
            raise UserError(f"--batches must be at least 2, got {self.batches}")
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise UserError(f"--out {self.out} is not empty: choose a new folder")
        check_writable(self.out)
        name, _, sigma = self.to.partition(":")
        if sigma == "nearest" and name not in ("iglu", "iglu_approx"):
            raise UserError(f"--to {self.to}: only iglu and iglu_approx have a nearest sigma")
        if sigma != "nearest":
            with as_user_errors("--to: "):
                zoo.create(self.to)


class Source(NamedTuple):
    """A model, its calibration data, its evaluation, and how to save it."""

    model: nn.Module
    data: str  # description
    batches: list[Any]
    evaluate: Callable[[nn.Module], Metrics]
    save: Callable[[nn.Module, Path], None]


def find(flags: Flags) -> Source:
    """Load the model named by the flags."""
    if flags.model.startswith("hf:"):
        return _transformer(Path(flags.model.removeprefix("hf:")), flags)
    if not Path(flags.model).is_dir():
        raise UserError(f"{flags.model!r} is neither hf:FOLDER nor a run folder")
    return _run(Path(flags.model), flags)


def _transformer(folder: Path, flags: Flags) -> Source:
    if flags.text is None:
        raise UserError("hf:FOLDER needs --text FILE for calibration")
    model = load_transformer(folder)
    rows = token_rows(folder, flags.text, row_length(model))
    batches = [{"input_ids": batch} for batch in torch.split(rows, _BATCH_SIZE)]
    if len(batches) < 4:
        raise UserError(
            f"{flags.text} has {len(rows)} rows of {rows.shape[1]} tokens; at least {3 * _BATCH_SIZE + 1} "
            "are needed for calibration and evaluation"
        )
    half = len(batches) // 2
    fitted, evaluated = batches[:half][: flags.batches], batches[half:][: flags.batches]

    def save(converted: Any, out: Path) -> None:
        with without_progress_bars():
            converted.save_pretrained(out)
        load_tokenizer(folder).save_pretrained(out)
        _check_reload(converted, load_transformer(out), evaluated[0])

    counts = [sum(len(batch["input_ids"]) for batch in part) for part in (fitted, evaluated)]
    data = f"calibrated on {counts[0]} rows of {rows.shape[1]} tokens, evaluated on {counts[1]} others"
    return Source(model, data, fitted, _make_evaluation(model, evaluated), save)


def _make_evaluation(model: Any, batches: list[dict[str, Tensor]]) -> Callable[[nn.Module], Metrics]:
    """Perplexity for a causal language model, otherwise agreement with the original model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return lambda other: {"perplexity": _perplexity(other, batches)}
    wanted = _embeddings(model, batches)

    def agreement(other: nn.Module) -> Metrics:
        got = _embeddings(other, batches)
        nearest = [(each @ each.T).fill_diagonal_(-math.inf).argmax(-1) for each in (got, wanted)]
        return {
            "cosine": (got * wanted).sum(-1).mean().item(),
            "same_neighbor": (nearest[0] == nearest[1]).float().mean().item(),
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
    """The normalized mean of the last hidden states of each row."""
    return F.normalize(torch.cat([model(**batch)[0].float().mean(1) for batch in batches]), dim=-1)


@torch.inference_mode()
def _check_reload(converted: nn.Module, reloaded: nn.Module, batch: dict[str, Tensor]) -> None:
    torch.testing.assert_close(
        reloaded(**batch)[0],
        converted(**batch)[0],
        msg=lambda text: f"the outputs of the saved model differ: {text}",
    )


def _run(folder: Path, flags: Flags) -> Source:
    runs, problems = read_runs(folder)
    if len(runs) != 1:
        found = f"{len(runs)} runs, choose one" if runs else f"no run. {' '.join(problems)}".rstrip()
        raise UserError(f"{folder} has {found}")
    workload = load_workload(runs[0].recipe, flags.data)
    order = torch.randperm(workload.samples, generator=torch.Generator().manual_seed(0))
    # augmented as in training
    batches = [
        workload.train_batch(rows, slice(None), seed)[0]
        for seed, rows in enumerate(torch.split(order, runs[0].recipe.batch_size)[: flags.batches])
    ]

    @torch.inference_mode()
    def evaluate(model: nn.Module) -> Metrics:
        sums = [workload.evaluate(model(x), y).double() for x, y in workload.test_batches()]
        return workload.test_metrics(torch.stack(sums).sum(0).tolist())

    def save(converted: nn.Module, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        save_model(converted, str(out / "model.safetensors"))

    data = f"calibrated on {sum(map(len, batches))} rows of its training set, evaluated on its test set"
    return Source(load_model(runs[0], flags.data), data, batches, evaluate, save)


class Converted(NamedTuple):
    """The model, its new activations by layer, and its metrics: original, swapped, and recalibrated."""

    model: nn.Module
    activations: dict[str, str]
    record: Recalibration
    original: Metrics
    swapped: Metrics
    recalibrated: Metrics


def convert(source: Source, flags: Flags) -> Converted:
    """Convert a copy of the source's model."""
    model = copy.deepcopy(source.model)
    activations = _names(model, source.batches, flags.to)

    def do() -> Swap:
        return _swap(model, activations)

    original = source.evaluate(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the config cannot express it: an error below
        alone = do()
        if all(each.old == each.new for each in alone.replaced):
            raise UserError(f"--to {flags.to}: the model already uses this activation")
        swapped = source.evaluate(model)
        alone.undo()
        done, record = swap_and_recalibrate(do, model, source.batches, flags.method)
    if done.not_saved and flags.model.startswith("hf:"):
        raise UserError(
            f"the config of {type(model).__name__} cannot express the new activation of {done.not_saved[0]}: "
            "the saved model would load with the old one"
        )
    return Converted(model, activations, record, original, swapped, source.evaluate(model))


def _names(model: nn.Module, batches: list[Any], to: str) -> dict[str, str]:
    """The new activation of each layer."""
    name, _, sigma = to.partition(":")
    with as_user_errors():
        suggestion = probe(model, batches).suggest_sigma(
            "nearest", "iglu_approx" if name == "iglu_approx" else "iglu"
        )
    places = dict(suggestion.by_layer)
    if not places:
        raise UserError(f"{type(model).__name__} has no activation that can be swapped")
    if sigma != "nearest":
        return dict.fromkeys(places, to)
    for place, text in places.items():
        if text.endswith((":inf", ":0")):
            raise UserError(f"the nearest sigma at {place} is {text}, a limit of IGLU: choose a sigma")
    return places


def _swap(model: nn.Module, activations: dict[str, str]) -> Swap:
    """Swap the activations.  A config can express only one activation for all layers, so several sigmas
    become learnable, which saves them with the weights."""
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
    """Print and write the result."""
    sigmas = [float(text.partition(":")[2]) for text in found.activations.values() if ":" in text]
    which = f", sigma {min(sigmas):.3g} to {max(sigmas):.3g}" if flags.to.endswith(":nearest") else ""
    print(f"{len(found.activations)} activations -> {flags.to}{which}")
    print(found.record)
    shown = [("original", found.original), ("swapped", found.swapped), ("recalibrated", found.recalibrated)]
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
    flags = tyro.cli(Flags, args=argv, prog="iglu convert")
    flags.check()
    source = find(flags)
    print(source.data, flush=True)
    found = convert(source, flags)
    source.save(found.model, flags.out)
    show(found, flags)
    return DONE
