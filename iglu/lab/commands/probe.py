"""The command ``iglu probe``: the tails of a model's pre-activations as a table, pictures and a suggestion.

A model is a run of the lab (its folder, or a folder of runs), a saved transformers model (``hf:FOLDER``), or
whatever a function of yours makes (``package.module:make_model``).
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import tyro
from rich.progress import track
from torch import nn

from iglu.lab.bench.sittings import refuse_to_replace
from iglu.lab.console import Terminal
from iglu.lab.mistakes import MistakeError, check_least, check_writable
from iglu.lab.models.saved import load_transformer, row_length, token_rows
from iglu.lab.probe import pictures
from iglu.lab.probe.tables import PROBE_FILE, Tails, layer_table, networks_table
from iglu.lab.recipes import Recipe
from iglu.lab.results.tables import terminal
from iglu.lab.runs import provenance
from iglu.lab.runs.record import read_runs
from iglu.lab.storage import write_json
from iglu.lab.training.checkpoint import newest_checkpoint
from iglu.lab.training.tasks import load_model, load_task
from iglu.probing import Probe, probe

_PAPER_K = 100


@dataclass(frozen=True)
class ProbeFlags:
    """Measure the tails of a model's pre-activations, and suggest a sigma."""

    targets: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of runs, hf:FOLDER for a saved transformers model, or package.module:make_model, whose code is
    run, also from the current folder."""
    data: str | None = None
    """For a run, the folder of the data; otherwise package.module:make_batches, which gives the batches."""
    text: Path | None = None
    """For hf: a text file, which the model's own tokenizer reads."""
    batches: int = 8
    """Batches to look at."""
    k: int | None = None
    """Largest values of a layer to estimate from; by default 1%, as far as they are kept."""
    keep: int = 2048
    """Largest values of a layer to keep."""
    rule: Literal["scaled", "regimes", "nearest"] = "scaled"
    """How sigma is chosen."""
    training: bool = False
    """Run the model in training mode."""
    out: Path = Path("runs/probe")
    """Folder for what was found in JSON and the pictures, one folder a model, none there yet."""
    pictures: bool = True
    """Draw them."""

    def check(self) -> None:
        if not self.targets:
            raise MistakeError(
                "name at least one model: a run's folder, hf:FOLDER or package.module:make_model"
            )
        check_least(self, batches=1)


class Target(NamedTuple):
    """A model and what it is run on."""

    name: str
    model: nn.Module
    batches: Iterable[Any]
    note: str = ""
    recipe: Recipe | None = None  # of a run of the lab


def targets(flags: ProbeFlags) -> Iterator[Target]:
    """What the targets name, one after the other."""
    for target in flags.targets:
        if target.startswith("hf:"):
            yield _saved_transformer(Path(target.removeprefix("hf:")), flags)
        elif Path(target).is_dir():
            yield from _runs(Path(target), flags)
        elif ":" in target:
            if flags.data is None:
                raise MistakeError(f"{target} needs --data package.module:make_batches")
            yield Target(target.replace(":", "."), _named(target)(), _named(flags.data)())
        else:
            raise MistakeError(
                f"{target!r} is neither a folder, nor hf:FOLDER, nor package.module:make_model"
            )


def _named(text: str) -> Callable[..., Any]:
    """``package.module:function``, also from the current folder."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise MistakeError(f"Write package.module:function, got {text!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MistakeError(f"There is no module {error.name!r} for {text!r}") from error
    except AttributeError as error:
        raise MistakeError(f"The module {module!r} has no {name!r}") from error
    return function


def _runs(folder: Path, flags: ProbeFlags) -> Iterator[Target]:
    runs, complaints = read_runs(folder)
    if not runs:
        raise MistakeError(f"No run in {folder}. {' '.join(complaints)}".rstrip())
    trained = [
        run
        for run in runs
        if run.folder.is_dir() and newest_checkpoint(run.folder, run.recipe)[0] is not None
    ]
    # Such as one that diverged before it was first saved.
    for run in runs:
        if run not in trained:
            complaints.append(f"{run.name} has no sound checkpoint (the run is {run.status})")
    for complaint in complaints:
        print(f"iglu probe: skipped: {complaint}", file=sys.stderr)
    if not trained:
        raise MistakeError(f"No run in {folder} has a checkpoint to probe")
    for run in trained:
        task = load_task(run.recipe, flags.data)
        yield Target(
            run.name,
            load_model(run, flags.data),
            task.probe_batches(),
            f"the run is {run.status}" if run.status != "finished" else "",
            run.recipe,
        )


def _saved_transformer(folder: Path, flags: ProbeFlags) -> Target:
    model: Any = load_transformer(folder)
    if flags.data is not None:
        return Target(folder.name, model, _named(flags.data)())
    length = row_length(model)
    if flags.text is None:
        generator = torch.Generator().manual_seed(0)
        vocabulary = model.config.get_text_config().vocab_size
        tokens = torch.randint(vocabulary, (flags.batches, 16, length), generator=generator)
        note = "random tokens, for want of --text or --data: its tails are not those of real text"
        return Target(folder.name, model, [{"input_ids": batch} for batch in tokens], note=note)
    rows = token_rows(folder, flags.text, length)
    return Target(folder.name, model, [{"input_ids": batch} for batch in torch.split(rows, 16)])


def examine(target: Target, flags: ProbeFlags, console: Terminal) -> tuple[Tails, Probe]:
    """The paper's way (first batch, k = 100) and ours (all batches); the first batch is looked at twice."""
    batches = iter(target.batches)
    start = list(itertools.islice(batches, 1))
    if not start:
        raise MistakeError(f"There are no batches for {target.name}")
    keep = max(flags.keep, _PAPER_K + 1)
    first = probe(target.model, start, k=_PAPER_K, keep=keep, training=flags.training)
    chosen = itertools.chain(start, itertools.islice(batches, flags.batches - 1))
    shown = track(chosen, f"probing {target.name}", flags.batches, console=console, transient=True)
    whole = probe(target.model, shown, k=flags.k, keep=flags.keep, training=flags.training)
    body = json.loads(whole.to_json(flags.rule))
    body |= {"first_batch": first.rows(), "provenance": provenance.collect()}
    body["hill"] = pictures.hill_curves(whole)
    if target.recipe is not None:
        body["recipe"] = target.recipe.as_dict()
    return Tails(target.name, body, target.recipe), whole


def _suggestion(found: Probe, rule: str) -> str:
    try:
        return repr(found.suggest_sigma(rule))
    except ValueError:
        return "No sigma to suggest here."


def main(argv: list[str]) -> int:
    """Run ``iglu probe``."""
    flags = tyro.cli(ProbeFlags, args=argv, prog="iglu probe")
    flags.check()
    check_writable(flags.out)
    console = Terminal()
    everything: list[Tails] = []
    for target in targets(flags):
        path = flags.out / target.name / PROBE_FILE
        refuse_to_replace(path)
        found, whole = examine(target, flags, console)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found.body)
        written = [path, *(pictures.draw(whole, flags.rule, path.parent) if flags.pictures else [])]
        if target.recipe is None:  # of runs there may be many, and a line each says enough
            console.print(terminal(layer_table(found, "layers")))
            console.say(_suggestion(whole, flags.rule))
        if target.note:
            console.say(f"{target.name}: {target.note}")
        for each in written:
            console.say(f"wrote {each}", "dim")
        everything.append(found)
    title = "Hill's alpha, mean over layers, the paper's way and ours"
    console.print(terminal(networks_table(everything, title)))
    console.say(f"Beside the paper's Table 5: iglu report {flags.out}", "dim")
    return 0
