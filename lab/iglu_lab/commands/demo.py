"""``iglu demo``: accuracy and speed of the library, then small models trained over several seeds on bundled
data, with means and intervals.  No download, under four minutes.
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
from iglu_lab.bench.cases import DIRECT, cases
from iglu_lab.bench.timing import Inputs, Setting, Timed, block_of, calls_per_block, interleave
from iglu_lab.cli import DONE, FAILED
from iglu_lab.console import Terminal
from iglu_lab.errors import check_least, check_writable
from iglu_lab.extensions import ExtensionFlags
from iglu_lab.recipes import Recipe
from iglu_lab.report.build import write_report
from iglu_lab.report.computed import PRECISIONS, Function, gradient, negative_numbers, signs
from iglu_lab.runs import provenance
from iglu_lab.runs.folder import Run
from iglu_lab.stats.comparison import Summary, summarize, summary_row, summary_tables
from iglu_lab.stats.tabulate import Cell, Table, Tone, numbered, terminal
from iglu_lab.storage import RESULTS, write_json
from iglu_lab.sweep.display import SweepDisplay
from iglu_lab.sweep.grid import read_grid
from iglu_lab.sweep.local import run_local

GRIDS = ("demo-images.toml", "demo-text.toml")
REFERENCES = ("relu",)


@dataclass(frozen=True, kw_only=True)
class DemoFlags(ExtensionFlags):
    """Show accuracy and speed, then train seven activations on two small tasks over several seeds."""

    seeds: int = 4
    """Seeds per activation and task."""
    jobs: int = 2
    """Number of parallel runs, one thread each."""
    out: Path = Path("runs/demo")
    """Output directory. Completed runs in it are not repeated."""


def main(argv: list[str]) -> int:
    flags = tyro.cli(DemoFlags, args=argv, prog="iglu demo")
    check_least(flags, seeds=1, jobs=1)
    check_writable(flags.out)
    console = Terminal()
    console.rule("1. Accuracy: the gradient in the negative tail")
    accuracy = [measure_accuracy(name, dtype) for name in get_args(Approximate) for dtype in PRECISIONS]
    console.print(terminal(accuracy_table(accuracy)))
    console.rule("2. Speed: forward and backward, relative to ReLU")
    speed = measure_speed()
    console.print(terminal(speed_table(speed)))
    console.rule("3. Training: long-tailed digits, and the Python reference as text")
    recipes = demo_runs(flags.seeds)
    with SweepDisplay(console, len(recipes)) as display:
        results = run_local(recipes, out=flags.out, jobs=flags.jobs, observer=display)
    runs = [result.run for result in results if result.run is not None]
    summary = summarize_demo(runs)
    for table in summary_tables(summary, REFERENCES):
        console.print(terminal(table))
    console.say("ResNet-8 and a small GPT-2. Few-shot: classes with fewer than 20 training images.")
    measured = {"accuracy": accuracy, "speed": speed, "training": [summary_row(row) for row in summary]}
    write_json(flags.out / "demo.json", {**measured, "provenance": provenance.collect()})
    console.say(f"Wrote {flags.out}/demo.json and {len(runs)} runs, one folder each.")
    console.rule("4. Report: the paper compared with these numbers")
    page = write_report([flags.out, RESULTS], flags.out / "report")
    console.say(f"Open {page}")
    return FAILED if len(runs) < len(recipes) else DONE


# -- 1. accuracy -----------------------------------------------------------------------------------


def measure_accuracy(approximate: Approximate, dtype: torch.dtype) -> dict[str, Any]:
    """The error of this library and of the direct formula relative to float64, on all negative numbers of a
    16-bit type and on a million of float32, for sigma = 1."""
    x = negative_numbers(dtype)
    family = FAMILIES[approximate]
    truth = {"value": family.value(x.double(), 1.0), "gradient": family.df_dx(x.double(), 1.0)}
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
    """The largest relative error where the true value is a normal number of the type."""
    is_normal = truth.abs() >= torch.finfo(found.dtype).tiny
    return ((found.double() - truth).abs() / truth.abs())[is_normal].max().item()


def accuracy_table(rows: Sequence[dict[str, Any]]) -> Table:
    lines = []
    for row in rows:
        for who, label in (("library", "this library"), ("direct", "direct formula")):
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
    names = ("", "", "negative gradient from", "worst error of the gradient", "of the value")
    tones: tuple[Tone, ...] = ("", "quiet") * len(rows)
    return Table.of("accuracy", "", names, lines, (), tones)


# -- 2. speed --------------------------------------------------------------------------------------


def measure_speed(elements: int = 1_000_000, rounds: int = 15) -> list[dict[str, Any]]:
    """The time relative to ReLU: median over interleaved rounds of the ratio within a round; one thread."""
    setting = Setting(elements=elements)
    inputs = Inputs.make(setting)
    contenders = cases(("relu", "gelu", "silu", "iglu", "iglu_approx"), pairs=False)
    ratios = {}
    for pass_name in ("forward", "backward"):
        timed = [Timed(case, block_of(case, pass_name, inputs, setting.threads)) for case in contenders]
        for each in timed:
            each.calls = calls_per_block(each.block(1), 10 * rounds, rounds)
        for _ in interleave(timed, rounds):
            pass
        ratios[pass_name] = [each.ratio(timed[0]) for each in timed]
    return [
        {
            "label": case.label + (", direct formula" if case.kernel == DIRECT else ""),
            **{name: found[place] for name, found in ratios.items()},
        }
        for place, case in enumerate(contenders)
    ]


def speed_table(rows: Sequence[dict[str, Any]]) -> Table:
    passes = ("forward", "backward")
    lines = [(row["label"], *(numbered(row[name]["median"]) for name in passes)) for row in rows]
    return Table.of("speed", "", ("", *passes), lines)


# -- 3. training -----------------------------------------------------------------------------------


def demo_runs(seeds: int) -> list[Recipe]:
    """The runs of both grids, seed by seed, so that a complete comparison is available early."""
    bundled = resources.files("iglu_lab.sweep")
    found = [recipe for name in GRIDS for recipe in read_grid(str(bundled / name), seeds).runs]
    return sorted(found, key=lambda recipe: recipe.seed)


def summarize_demo(runs: Sequence[Run]) -> list[Summary]:
    """Summaries by the usual metric, and for the rare classes."""
    return [
        *summarize(runs, references=REFERENCES),
        *summarize([run for run in runs if run.metric == "test_acc"], "test_acc_few", REFERENCES),
    ]
