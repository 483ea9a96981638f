"""``iglu demo``: the tour.  How right and how fast this library is, then what it is for: networks trained
over several seeds on data that is already there, with means and intervals.  No download, under four minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import torch
import tyro
from torch import Tensor

import iglu
from iglu.formulas import FAMILIES
from iglu.functional import Approximate
from iglu.lab.bench.subjects import DIRECT, subjects
from iglu.lab.bench.timing import Inputs, Rounds, Setting, block_of, calls_in_a_block, interleave
from iglu.lab.cli import DONE, FAILED
from iglu.lab.console import Terminal
from iglu.lab.mistakes import check_least, check_writable
from iglu.lab.recipes import Recipe
from iglu.lab.report.build import shipped_folders, write_report
from iglu.lab.report.computed import PRECISIONS, Function, gradient, negative_numbers, signs
from iglu.lab.results.comparison import Summary, summarise, summary_row, summary_tables
from iglu.lab.results.tables import Cell, Table, Tone, numbered, terminal
from iglu.lab.runs import provenance
from iglu.lab.runs.folder import Run
from iglu.lab.storage import write_json
from iglu.lab.sweep.display import Lines
from iglu.lab.sweep.grid import read_grid
from iglu.lab.sweep.local import run_local

GRIDS = ("demo-images.toml", "demo-text.toml")
REFERENCES = ("relu",)


@dataclass(frozen=True)
class DemoFlags:
    """How right and how fast, then seven activations on two small tasks over several seeds."""

    seeds: int = 4
    """Seeds for each activation and task."""
    jobs: int = 2
    """Runs at a time, one thread each."""
    out: Path = Path("runs/demo")
    """What is written goes there; runs that are there already are not repeated."""


def main(argv: list[str]) -> int:
    flags = tyro.cli(DemoFlags, args=argv, prog="iglu demo")
    check_least(flags, seeds=1, jobs=1)
    check_writable(flags.out)
    console = Terminal()
    console.rule("1. Right: the gradient in the negative tail")
    accuracy = [measure_accuracy(name, dtype) for name in get_args(Approximate) for dtype in PRECISIONS]
    console.print(terminal(accuracy_table(accuracy)))
    console.rule("2. Fast: forward and backward, in multiples of ReLU's time")
    speed = measure_speed()
    console.print(terminal(speed_table(speed)))
    console.rule("3. In use: long-tailed digits, and Python's reference as text")
    recipes = demo_runs(flags.seeds)
    with Lines(console, len(recipes)) as lines:
        outcomes = run_local(recipes, out=flags.out, jobs=flags.jobs, watcher=lines)
    runs = [outcome.run for outcome in outcomes if outcome.run is not None]
    summary = summarise_demo(runs)
    for table in summary_tables(summary, REFERENCES):
        console.print(terminal(table))
    console.say("ResNet-8 and a small GPT-2. Few-shot: classes of fewer than 20 training images.")
    measured = {"accuracy": accuracy, "speed": speed, "training": [summary_row(row) for row in summary]}
    write_json(flags.out / "demo.json", {**measured, "provenance": provenance.collect()})
    console.say(f"Written: {flags.out}/demo.json, and {len(runs)} runs beside it, a folder each.")
    console.rule("4. To look at: the paper beside these numbers, and an explorer")
    page = write_report([flags.out, *shipped_folders()], flags.out / "report")
    console.say(f"Open {page}")
    return FAILED if len(runs) < len(recipes) else DONE


# -- 1. right --------------------------------------------------------------------------------------


def measure_accuracy(approximate: Approximate, dtype: torch.dtype) -> dict[str, Any]:
    """This library and the formula as it is written, beside the truth in double precision, on every
    negative number of a half precision and on a million of float32, for sigma = 1."""
    x = negative_numbers(dtype)
    family = FAMILIES[approximate]
    truth = {"value": family.value(x.double(), 1.0), "gradient": family.slope(x.double(), 1.0)}
    ways: dict[str, Function] = {
        "library": lambda x: iglu.iglu(x, 1.0, approximate=approximate),
        "direct": lambda x: x * family.textbook_gate(x, 1.0),
    }
    row: dict[str, Any] = {"approximate": approximate, "dtype": str(dtype).removeprefix("torch.")}
    for who, function in ways.items():
        row[f"{who}_wrong_sign_from"] = signs(function, dtype).negative_from
        row[f"{who}_value_error"] = _worst_error(function(x), truth["value"])
        row[f"{who}_gradient_error"] = _worst_error(gradient(function, x), truth["gradient"])
    return row


def _worst_error(found: Tensor, truth: Tensor) -> float:
    """Relative, where the truth is a normal number of that precision."""
    is_normal = truth.abs() >= torch.finfo(found.dtype).tiny
    return ((found.double() - truth).abs() / truth.abs())[is_normal].max().item()


def accuracy_table(rows: Sequence[dict[str, Any]]) -> Table:
    lines = []
    for row in rows:
        for who, label in (("library", "this library"), ("direct", "as written")):
            start = row[f"{who}_wrong_sign_from"]
            errors = (row[f"{who}_{what}_error"] for what in ("gradient", "value"))
            lines.append(
                (
                    "IGLU" if row["approximate"] == "none" else "IGLU-Approx",
                    f"{row['dtype']}, {label}",
                    Cell("never" if start is None else f"sigma x = -{start:.3g}", start),
                    *(Cell(f"{error:.1e}", error) for error in errors),
                )
            )
    names = ("", "", "negative gradient from", "its worst error", "error of the value")
    tones: tuple[Tone, ...] = ("", "quiet") * len(rows)
    return Table.of("accuracy", "", names, lines, (), tones)


# -- 2. fast ---------------------------------------------------------------------------------------


def measure_speed(elements: int = 1_000_000, rounds: int = 15) -> list[dict[str, Any]]:
    """The median over interleaved rounds of the quotient to ReLU within a round; one thread."""
    setting = Setting(elements=elements)
    inputs = Inputs.make(setting)
    contenders = subjects(("relu", "gelu", "silu", "iglu", "iglu_approx"), pairs=False)
    measured: dict[str, Rounds] = {}
    for pass_name in ("forward", "backward"):
        blocks = {subject: block_of(subject, pass_name, inputs, setting.threads) for subject in contenders}
        calls = {
            subject: calls_in_a_block(block(1), 10 * rounds, rounds) for subject, block in blocks.items()
        }
        measured[pass_name] = Rounds()
        for _ in interleave(blocks, calls, rounds, measured[pass_name]):
            pass
    return [
        {
            "label": subject.label + (", direct formula" if subject.kernel == DIRECT else ""),
            **{name: times.ratio(subject, contenders[0]) for name, times in measured.items()},
        }
        for subject in contenders
    ]


def speed_table(rows: Sequence[dict[str, Any]]) -> Table:
    passes = ("forward", "backward")
    lines = [(row["label"], *(numbered(row[name]["median"]) for name in passes)) for row in rows]
    return Table.of("speed", "", ("", *passes), lines)


# -- 3. in use -------------------------------------------------------------------------------------


def demo_runs(seeds: int) -> list[Recipe]:
    """Of both grids, the seeds outermost so that a whole picture appears early."""
    bundled = resources.files("iglu.lab.sweep")
    found = [recipe for name in GRIDS for recipe in read_grid(str(bundled / name), seeds).runs]
    return sorted(found, key=lambda recipe: recipe.seed)


def summarise_demo(runs: Sequence[Run]) -> list[Summary]:
    """As everywhere, and the rare classes by themselves."""
    return [
        *summarise(runs, references=REFERENCES),
        *summarise([run for run in runs if run.metric == "test_acc"], "test_acc_few", REFERENCES),
    ]
