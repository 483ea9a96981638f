"""``iglu probe``: measure the tails of a model's pre-activations and suggest sigma.

A model is a run of the lab (its folder, or a folder of runs), a saved transformers model (``hf:FOLDER``), or
the return value of your own function (``package.module:make_model``).
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import tyro
from rich.progress import track
from torch import nn

from iglu.model_runner import each_batch
from iglu.probing import Probe, probe
from iglu.probing.layers import check_sizes
from iglu.probing.sigma import RULES
from iglu_lab.console import Terminal
from iglu_lab.errors import UserError, as_user_errors, check_least, check_writable, no_runs
from iglu_lab.extensions import ExtensionFlags, import_named
from iglu_lab.models.saved import load_transformer, row_length, token_rows
from iglu_lab.probe import pictures
from iglu_lab.probe.tail_tables import PROBE_FILE, Tails, layer_table, networks_table
from iglu_lab.recipes import Recipe
from iglu_lab.runs import provenance
from iglu_lab.runs.archive import read_runs
from iglu_lab.stats.tabulate import terminal
from iglu_lab.storage import write_json
from iglu_lab.training.checkpoint import NoCheckpointError
from iglu_lab.training.workloads import load_model, load_workload

_PAPER_K = 100


@dataclass(frozen=True, kw_only=True)
class ProbeFlags(ExtensionFlags):
    """Measure the tails of a model's pre-activations and suggest sigma."""

    targets: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of runs, hf:FOLDER for a saved transformers model, or package.module:make_model, your own
    function; the current folder is searched too."""
    data: str | None = None
    """For a run, the folder of the data; otherwise package.module:make_batches, which returns the batches."""
    text: Path | None = None
    """For hf: a text file, which is tokenized with the model's own tokenizer."""
    batches: int = 8
    """Number of batches."""
    k: int | None = None
    """Number of largest values per layer for the tail index. If not given: 1% of the values, below --keep."""
    keep: int = 2048
    """Number of largest values per layer to keep."""
    rule: Literal["scaled", "regimes", "nearest"] = "scaled"
    """Rule that suggests sigma."""
    training: bool = False
    """Run the model in training mode."""
    out: Path = Path("runs/probe")
    """Output folder, with one folder per model for probe.json and pictures.  Probed runs are skipped."""
    pictures: bool = True
    """Draw pictures."""

    def check(self) -> None:
        if not self.targets:
            raise UserError(
                "expected at least one model: a run folder, hf:FOLDER or package.module:make_model"
            )
        check_least(self, batches=1)
        with as_user_errors():
            check_sizes(self.k, keep=self.keep)
        if self.text is not None and not self.text.is_file():
            raise UserError(f"--text {self.text} does not exist or is not a file")

    def path(self, name: str) -> Path:
        """The path of the result for the model of this name."""
        return self.out / name / PROBE_FILE


class Target(NamedTuple):
    """A model and its inputs."""

    name: str
    model: nn.Module
    batches: Iterable[Any]
    note: str = ""
    recipe: Recipe | None = None  # of a run of the lab
    is_one_of_many: bool = False  # then one line is printed instead of the layers


def targets(flags: ProbeFlags) -> Iterator[Target]:
    """Load the targets one after the other."""
    for target in flags.targets:
        if not Path(target).is_dir() and (path := flags.path(_name_of(target))).exists():
            raise UserError(f"{path} exists and is not overwritten: remove it, or choose another --out")
    for target in flags.targets:
        if target.startswith("hf:"):
            yield _saved_transformer(target, flags)
        elif Path(target).is_dir():
            yield from _runs(Path(target), flags)
        elif ":" in target:
            if flags.data is None:
                raise UserError(f"{target} needs --data package.module:make_batches")
            yield _own(target, flags.data)
        else:
            raise UserError(f"{target!r} is neither a folder, nor hf:FOLDER, nor package.module:make_model")


def _own(target: str, data: str) -> Target:
    """The model and the batches that functions of the user return."""
    model, batches = _named(target)(), _named(data)()
    if not isinstance(model, nn.Module):
        raise UserError(f"{target} must return an nn.Module, got {type(model).__name__}")
    with as_user_errors(f"{data} must return batches: "):
        return Target(_name_of(target), model, each_batch(batches))


def _name_of(target: str) -> str:
    """The name of hf:FOLDER or package.module:function in the output folder."""
    if target.startswith("hf:"):
        return Path(target.removeprefix("hf:")).resolve().name
    return target.replace(":", ".")


def _named(text: str) -> Callable[..., Any]:
    """Import ``package.module:function``, also from the current folder."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise UserError(f"Expected package.module:function, got {text!r}")
    found: Callable[..., Any] | None = getattr(import_named(module), name, None)
    if not callable(found):
        raise UserError(f"The module {module!r} has no callable {name!r}")
    return found


def _runs(folder: Path, flags: ProbeFlags) -> Iterator[Target]:
    runs, problems = read_runs(folder)
    if not runs:
        raise UserError(no_runs(folder, problems))
    for problem in problems:
        print(f"iglu probe: skipped: {problem}", file=sys.stderr)
    done = [run for run in runs if flags.path(run.name).exists()]
    if done:
        print(f"iglu probe: skipped: {len(done)} of {len(runs)} runs, already probed in {flags.out}")
    is_any_trained = bool(done)
    for run in runs:
        if run in done:
            continue
        try:
            model = load_model(run, flags.data)
        except NoCheckpointError:  # such as a run that diverged before its first checkpoint
            print(
                f"iglu probe: skipped: {run.name} has no complete checkpoint (the run is {run.status})",
                file=sys.stderr,
            )
            continue
        is_any_trained = True
        note = f"the run is {run.status}" if run.status != "finished" else ""
        batches = load_workload(run.recipe, flags.data).probe_batches()
        yield Target(run.name, model, batches, note, run.recipe, is_one_of_many=len(runs) > 1)
    if not is_any_trained:
        raise UserError(f"No run in {folder} has a checkpoint to probe")


def _saved_transformer(target: str, flags: ProbeFlags) -> Target:
    folder, name = Path(target.removeprefix("hf:")), _name_of(target)
    model: Any = load_transformer(folder)
    if flags.data is not None:
        return Target(name, model, _named(flags.data)())
    length = row_length(model)
    if flags.text is None:
        generator = torch.Generator().manual_seed(0)
        vocabulary = model.config.get_text_config().vocab_size
        tokens = torch.randint(vocabulary, (flags.batches, 16, length), generator=generator)
        note = "probed on random tokens, whose tails differ from those of real text; pass --text or --data"
        return Target(name, model, [{"input_ids": batch} for batch in tokens], note=note)
    rows = token_rows(folder, flags.text, length)
    return Target(name, model, [{"input_ids": batch} for batch in torch.split(rows, 16)])


def examine(target: Target, flags: ProbeFlags, console: Terminal) -> tuple[Tails, Probe]:
    """Probe as the paper does (first batch, k = 100) and over all batches; the first batch is run twice."""
    batches = iter(target.batches)
    start = list(itertools.islice(batches, 1))
    if not start:
        raise UserError(f"No batches for {target.name}")
    keep = max(flags.keep, _PAPER_K + 1)
    first = probe(target.model, start, k=_PAPER_K, keep=keep, training=flags.training)
    chosen = itertools.chain(start, itertools.islice(batches, flags.batches - 1))
    shown = track(chosen, f"probing {target.name}", flags.batches, console=console, transient=True)
    complete = probe(target.model, shown, k=flags.k, keep=flags.keep, training=flags.training)
    body = json.loads(complete.to_json(flags.rule))
    body |= {"first_batch": first.rows(), "provenance": provenance.collect()}
    body["hill"] = pictures.hill_curves(complete)
    if target.recipe is not None:
        body["recipe"] = target.recipe.as_dict()
    return Tails(target.name, body, target.recipe), complete


def _suggestion(found: Probe, rule: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the notes repeat it
            return repr(found.suggest_sigma(rule))
    except ValueError as error:
        return str(error)


def main(argv: list[str]) -> int:
    flags = tyro.cli(ProbeFlags, args=argv, prog="iglu probe")
    flags.check()
    check_writable(flags.out)
    console = Terminal()
    everything: list[Tails] = []
    is_rule_due = False
    for target in targets(flags):
        path = flags.path(target.name)
        found, full_probe = examine(target, flags, console)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found.body)
        written = [path, *(pictures.draw(full_probe, flags.rule, path.parent) if flags.pictures else [])]
        if target.is_one_of_many:
            is_rule_due = True
            console.say(
                _suggestion(full_probe, flags.rule).partition("\n")[0].replace("Suggestion", target.name)
            )
        else:
            console.print(terminal(layer_table(found, "layers")))
            console.say(_suggestion(full_probe, flags.rule))
        if target.note:
            console.say(f"{target.name}: {target.note}")
        for each in written:
            console.say(f"wrote {each}", "dim")
        everything.append(found)
    if is_rule_due:
        console.say(f"rule {flags.rule!r}: {RULES[flags.rule].about}. {RULES[flags.rule].weakness}")
    if everything:
        title = "Hill's alpha, mean over layers, as in the paper and over all batches"
        console.print(terminal(networks_table(everything, title)))
    console.say(f"To compare with the paper's Table 5: iglu report {flags.out}", "dim")
    return 0
