"""The command ``iglu probe``: the tails of a model's pre-activations as a table, pictures and a suggestion.

A model is a run of the lab (its folder, or a folder of runs), a saved transformers model (``hf:FOLDER``), or
whatever a function of yours makes (``package.module:make_model``).
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from iglu.lab.mistakes import MistakeError
from iglu.lab.recipes import Recipe
from iglu.lab.runs import provenance
from iglu.probing import Probe, probe
from iglu.probing.sigma import Suggestion
from iglu.probing.table import COLUMNS, cells, notes

_PAPER_K = 100


@dataclass(frozen=True)
class Flags:
    """Measure the tails of a model's pre-activations, and suggest a sigma."""

    targets: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of runs, hf:FOLDER for a saved transformers model, or package.module:make_model."""
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
    """Folder for the figures in JSON and the pictures, one folder a model."""
    pictures: bool = True
    """Draw them."""

    def __post_init__(self) -> None:
        if not self.targets:
            raise MistakeError(
                "name at least one model: a run's folder, hf:FOLDER or package.module:make_model"
            )
        if self.batches < 1:
            raise MistakeError(f"--batches must be at least 1, got {self.batches}")


class Subject(NamedTuple):
    """A model and what it is run on."""

    name: str
    model: nn.Module
    batches: Iterable[Any]
    norm: str = ""
    note: str = ""
    recipe: Recipe | None = None  # of a run of the lab


class Found(NamedTuple):
    """The paper's way (first batch, k = 100, mean over layers) beside ours."""

    subject: Subject
    first: Probe
    probe: Probe
    suggestion: Suggestion | None


def subjects(flags: Flags) -> Iterator[Subject]:
    """What the targets name, one after the other."""
    for target in flags.targets:
        if target.startswith("hf:"):
            yield _saved_transformer(Path(target.removeprefix("hf:")), flags)
        elif Path(target).is_dir():
            yield from _runs(Path(target), flags)
        elif ":" in target:
            if flags.data is None:
                raise MistakeError(f"{target} needs --data package.module:make_batches")
            yield Subject(target.partition(":")[2], _named(target)(), _named(flags.data)())
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


def _runs(folder: Path, flags: Flags) -> Iterator[Subject]:
    from iglu.lab.runs.record import read_runs
    from iglu.lab.training.checkpoint import newest_checkpoint
    from iglu.lab.training.tasks import load_model, load_task

    runs, complaints = read_runs(folder)
    if not runs:
        raise MistakeError(f"No run in {folder}. {' '.join(complaints)}".rstrip())
    trained = [run for run in runs if newest_checkpoint(run.folder)[0] is not None]
    # Such as one that diverged before it was first saved.
    for run in runs:
        if run not in trained:
            complaints.append(f"{run.folder.name} has no sound checkpoint (the run is {run.status})")
    for complaint in complaints:
        print(f"iglu probe: skipped: {complaint}", file=sys.stderr)
    if not trained:
        raise MistakeError(f"No run in {folder} has a checkpoint to probe")
    for run in trained:
        task = load_task(run.recipe, flags.data)
        yield Subject(
            run.folder.name,
            load_model(run, flags.data),
            task.probe_batches(),
            "yes" if run.recipe.norm else "no",
            f"the run is {run.status}" if run.status != "finished" else "",
            run.recipe,
        )


def _saved_transformer(folder: Path, flags: Flags) -> Subject:
    from iglu.lab.models.saved import load_transformer, row_length, token_rows

    model: Any = load_transformer(folder)
    if flags.data is not None:
        return Subject(folder.name, model, _named(flags.data)())
    length = row_length(model)
    if flags.text is None:
        generator = torch.Generator().manual_seed(0)
        vocabulary = model.config.get_text_config().vocab_size
        tokens = torch.randint(vocabulary, (flags.batches, 16, length), generator=generator)
        note = "random tokens, for want of --text or --data: its tails are not those of real text"
        return Subject(folder.name, model, [{"input_ids": batch} for batch in tokens], note=note)
    rows = token_rows(folder, flags.text, length)
    return Subject(folder.name, model, [{"input_ids": batch} for batch in torch.split(rows, 16)])


def examine(subject: Subject, flags: Flags, console: Console) -> Found:
    """Both probes; the first batch is looked at twice."""
    batches = iter(subject.batches)
    start = list(itertools.islice(batches, 1))
    if not start:
        raise MistakeError(f"There are no batches for {subject.name}")
    keep = max(flags.keep, _PAPER_K + 1)
    first = probe(subject.model, start, k=_PAPER_K, keep=keep, training=flags.training)
    chosen = itertools.chain(start, itertools.islice(batches, flags.batches - 1))
    shown = track(chosen, f"probing {subject.name}", flags.batches, console=console, transient=True)
    whole = probe(subject.model, shown, k=flags.k, keep=flags.keep, training=flags.training)
    try:
        suggestion = whole.suggest_sigma(flags.rule)
    except ValueError:
        suggestion = None
    return Found(subject, first, whole, suggestion)


def show(found: Found, flags: Flags, console: Console) -> None:
    """Table, suggestion, files."""
    rows = found.probe.rows(flags.rule)
    table = Table(
        title=f"{found.subject.name}: inputs of {len(rows)} activations, {found.probe.batches} batches"
    )
    for number, title in enumerate(COLUMNS):
        table.add_column(title, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
    for note in notes(rows):
        console.print(note, highlight=False, markup=False)
    if found.subject.note:
        console.print(found.subject.note, highlight=False, markup=False)
    shown = "No sigma to suggest here." if found.suggestion is None else repr(found.suggestion)
    console.print(shown, highlight=False, markup=False)
    folder = flags.out / found.subject.name
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "probe.json"]
    body = json.loads(found.probe.to_json(flags.rule))
    body |= {"first_batch": found.first.rows(), "provenance": provenance.collect().as_dict()}
    body["hill"] = _hill_curves(found.probe)
    if found.subject.recipe is not None:
        body["recipe"] = found.subject.recipe.as_dict()
    written[0].write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    if flags.pictures:
        from iglu.lab.probe import pictures

        written += pictures.draw(found.probe, flags.rule, folder)
    for path in written:
        console.print(f"wrote {path}", highlight=False, style="dim")


def _hill_curves(found: Probe) -> dict[str, dict[str, list[float]]]:
    """For a Hill plot of each layer that has an index: xi over k, its band, and a Gaussian's."""
    curves = {}
    for layer in found.layers:
        with contextlib.suppress(ValueError):
            curve = layer.index().hill.curve()
            is_shown = (curve.k >= 10) & curve.xi.isfinite() & curve.xi_high.isfinite()
            curves[layer.name] = {
                name: [round(value, 5) for value in getattr(curve, name)[is_shown].tolist()]
                for name in ("k", "xi", "xi_low", "xi_high", "gaussian_xi")
            }
    return curves


def side_by_side(everything: list[Found]) -> Table:
    """The paper's Table 5: its way and ours."""
    table = Table(
        title="Hill's alpha, mean over layers (and a Gaussian's at the same n and k)",
        caption="paper's way: first batch, k = 100; ours: all batches; excess: xi over a Gaussian's, 95%",
    )
    for title in ("model", "norm", "paper's way", "ours", "excess", "sigma"):
        table.add_column(title, justify="left" if title in ("model", "norm") else "right")
    for subject, first, whole, suggestion in everything:
        rows = [row for row in whole.rows() if "alpha" in row]
        table.add_row(
            subject.name,
            subject.norm or "-",
            "{:.1f} ({:.1f})".format(*first.mean_alpha(_PAPER_K)),
            "{:.1f} ({:.1f})".format(*_means(rows, "alpha", "gaussian")),
            "{:.2f} [{:.2f}, {:.2f}]".format(*_means(rows, "excess", "excess_low", "excess_high")),
            "-" if suggestion is None else f"{suggestion.sigma:.3g}",
        )
    return table


def _means(rows: list[dict[str, Any]], *names: str) -> list[float]:
    return [sum(row[name] for row in rows) / len(rows) if rows else math.nan for name in names]


def main(argv: list[str]) -> int:
    """Run ``iglu probe``; 2 for a mistake in the flags or a model that cannot be probed."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a file or a pipe has no width to keep to
    everything = []
    try:
        flags = tyro.cli(Flags, args=argv, prog="iglu probe")
        for subject in subjects(flags):
            everything.append(examine(subject, flags, console))
            show(everything[-1], flags, console)
    except (ValueError, FileNotFoundError) as error:
        print(f"iglu probe: {error}", file=sys.stderr)
        return 2
    console.print(side_by_side(everything))
    return 0
