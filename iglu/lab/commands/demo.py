"""``iglu demo``: the tour.  How right and how fast this library is, then what it is for: networks trained
over several seeds on data that is already there, with means and intervals.  No download, under four minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import Tensor

import iglu
from iglu import zoo
from iglu.formulas import FAMILIES
from iglu.functional import Approximate
from iglu.lab.bench.subjects import DIRECT, subjects
from iglu.lab.bench.timing import Inputs, Rounds, Setting, block_of, calls_in_a_block, interleave
from iglu.lab.commands.report import shipped_folders, write_report
from iglu.lab.recipes import RECIPES, Recipe
from iglu.lab.report.computed import negative_numbers
from iglu.lab.results.statistics import Estimate, estimate, paired_difference
from iglu.lab.runs import provenance
from iglu.lab.runs.folder import Run
from iglu.lab.runs.storage import write_json
from iglu.lab.sweep.cell import Outcome, Watcher
from iglu.lab.sweep.local import run_local

ACTIVATIONS = ("relu", "gelu", "silu", "iglu:0.5", "iglu:1", "iglu:5", "iglu_approx:1")
REFERENCE = "relu"

# Short enough for forty runs in three minutes on two cores.
TASKS = (
    RECIPES["digits-lt"].replace(threads=1),
    RECIPES["gpt2-python"].replace(threads=1, epochs=2, epoch_steps=45, lr=2e-3, warmup=0.2),
)


@dataclass(frozen=True)
class Demo:
    """How right and how fast, then seven activations on two small tasks over several seeds."""

    seeds: int = 4
    """Seeds for each activation and task."""
    jobs: int = 2
    """Runs at a time, one thread each."""
    out: Path = Path("runs/demo")
    """What is written goes there; runs that are there already are not repeated."""


def main(argv: list[str]) -> int:
    flags = tyro.cli(Demo, args=argv, prog="iglu demo")
    console = Console(highlight=False)
    console.rule("1. Right: the gradient in the negative tail")
    accuracy = [measure_accuracy(name, dtype) for name in get_args(Approximate) for dtype in _DTYPES]
    console.print(_accuracy_table(accuracy))
    console.rule("2. Fast: forward and backward, in multiples of ReLU's time")
    speed = measure_speed()
    console.print(_speed_table(speed))
    console.rule("3. In use: long-tailed digits, and Python's reference as text")
    runs = train_all(TASKS, flags, console)
    flags.out.mkdir(parents=True, exist_ok=True)
    summary = summarise(runs)
    console.print(_summary_table(summary, flags.seeds))
    console.print(
        f"ResNet-8 and a small GPT-2; means over {flags.seeds} seeds with 95% t-intervals, of the last "
        "epoch; differences to ReLU are paired by seed and mean something only where their interval "
        "excludes 0. Few-shot: classes of fewer than 20 training images."
    )
    diverged = [run for run in runs if run.status == "diverged"]
    for run in diverged:
        console.print(f"diverged: {run.message}")
    metrics = {"accuracy": accuracy, "speed": speed, "training": summary}
    write_json(flags.out / "demo.json", {**metrics, "provenance": provenance.collect().as_dict()})
    console.print(f"Written: {flags.out}/demo.json, and {len(runs)} runs beside it, a folder each.")
    console.rule("4. To look at: the paper beside these numbers, and an explorer")
    page = write_report([flags.out, *shipped_folders()], flags.out / "report")
    console.print(f"Open {page}", soft_wrap=True)
    return 0


# -- 1. right --------------------------------------------------------------------------------------

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def measure_accuracy(approximate: Approximate, dtype: torch.dtype) -> dict[str, Any]:
    """This library and the formula as it is written, beside the truth in double precision, on every
    negative number of a half precision and on a million of float32, for sigma = 1."""
    x = negative_numbers(dtype)
    family = FAMILIES[approximate]
    truth = {"value": family.value(x.double(), 1.0), "gradient": family.slope(x.double(), 1.0)}
    row: dict[str, Any] = {"approximate": approximate, "dtype": str(dtype).removeprefix("torch.")}
    for who in ("library", "direct"):
        leaf = x.clone().requires_grad_()
        y = (
            iglu.iglu(leaf, 1.0, approximate=approximate)
            if who == "library"
            else leaf * family.textbook_gate(leaf, 1.0)
        )
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
        is_wrong = gradient < 0
        row[f"{who}_wrong_sign_from"] = x[is_wrong].abs().min().item() if is_wrong.any() else None
        row[f"{who}_value_error"] = _worst_error(y.detach(), truth["value"])
        row[f"{who}_gradient_error"] = _worst_error(gradient, truth["gradient"])
    return row


def _worst_error(found: Tensor, truth: Tensor) -> float:
    """Relative, where the truth is a normal number of that precision."""
    is_normal = truth.abs() >= torch.finfo(found.dtype).tiny
    return ((found.double() - truth).abs() / truth.abs())[is_normal].max().item()


def _accuracy_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("", "", "negative gradient from", "its worst error", "error of the value")
    for row in rows:
        for who, label in (("library", "this library"), ("direct", "as written")):
            start = row[f"{who}_wrong_sign_from"]
            table.add_row(
                "IGLU" if row["approximate"] == "none" else "IGLU-Approx",
                f"{row['dtype']}, {label}",
                "never" if start is None else f"sigma x = -{start:.3g}",
                *(f"{row[f'{who}_{metric}_error']:.1e}" for metric in ("gradient", "value")),
                style=None if who == "library" else "dim",
            )
    return table


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
            **{name: asdict(times.ratio(subject, contenders[0])) for name, times in measured.items()},
        }
        for subject in contenders
    ]


def _speed_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("", "forward", "backward")
    for row in rows:
        table.add_row(row["label"], *(f"{row[name]['median']:.2f}" for name in ("forward", "backward")))
    return table


# -- 3. in use -------------------------------------------------------------------------------------


def train_all(tasks: Sequence[Recipe], flags: Demo, console: Console) -> list[Run]:
    """Every task, activation and seed, the seeds outermost so that a picture appears early."""
    recipes = [
        task.replace(activation=activation, seed=seed)
        for seed in range(flags.seeds) for task in tasks for activation in ACTIVATIONS
    ]  # fmt: skip
    with Live(console=console, refresh_per_second=4) as live:
        picture = _Picture(console, live, len(recipes), flags.seeds)
        run_local(recipes, out=flags.out, jobs=flags.jobs, watcher=picture)
        live.update("")
    return picture.runs


class _Picture(Watcher):
    """The table of means as it fills; outside a terminal a line a run."""

    def __init__(self, console: Console, live: Live, total: int, seeds: int) -> None:
        self.console, self.live, self.total, self.seeds = console, live, total, seeds
        self.runs: list[Run] = []

    def ended(self, outcome: Outcome) -> None:
        if outcome.run is None:
            raise RuntimeError(f"{outcome.recipe.folder_name}: {outcome.failure}")
        self.runs.append(outcome.run)
        if self.console.is_terminal:
            left = self.total - len(self.runs)
            self.live.update(_summary_table(summarise(self.runs), self.seeds, left))
        else:
            line = f"{len(self.runs):>3} of {self.total}  {outcome.run.folder.name}  {_metrics(outcome.run)}"
            self.console.print(line, soft_wrap=True)


def _metrics(run: Run) -> str:
    if not run.evaluated:
        return run.status
    unit = "" if run.metric == "perplexity" else "%"
    return f"{run.metric} {run.last[run.metric]:.2f}{unit}, {run.last['rate']:,.0f}/s"


# "recipe metric" -> heading; those that are also set beside ReLU.
COLUMNS = {
    "digits-lt test_acc": "digits, %",
    "digits-lt test_acc_few": "few-shot, %",
    "gpt2-python perplexity": "perplexity",
}
COMPARED = ("digits-lt test_acc", "gpt2-python perplexity")


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row an activation: for each metric the mean, its interval and the difference to ReLU."""
    sound = [run for run in runs if run.status == "finished"]
    rows = []
    for activation in ACTIVATIONS:
        row: dict[str, Any] = {"activation": activation, "label": zoo.parse(activation).label}
        for column in COLUMNS:
            name, metric = column.split()
            mine, other = (
                [run for run in sound if (run.recipe.name, run.recipe.activation) == (name, which)]
                for which in (activation, REFERENCE)
            )
            seeds = {run.recipe.seed for run in mine} & {run.recipe.seed for run in other}
            is_paired = activation != REFERENCE and len(seeds) > 1
            row[column] = estimate(run.last[metric] for run in mine)._asdict() if mine else None
            row[f"{column} difference"] = (
                paired_difference(mine, other, metric)._asdict() if is_paired else None
            )
        rows.append(row)
    return rows


def _summary_table(rows: Sequence[dict[str, Any]], seeds: int, left: int = 0) -> Table:
    title = f"{left} runs to go" if left else f"mean and 95% interval over {seeds} seeds"
    # narrow enough for a terminal of 80 columns
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("activation", no_wrap=True)
    for column, heading in COLUMNS.items():
        table.add_column(heading, justify="right", no_wrap=True)
        if column in COMPARED:
            table.add_column("- ReLU", justify="right", no_wrap=True, style="dim")
    for row in rows:
        cells = []
        for column in COLUMNS:
            cells.append(_cell(row[column]))
            if column in COMPARED:
                cells.append(_cell(row[f"{column} difference"], "+"))
        table.add_row(row["activation"], *cells)
    return table


def _cell(values: dict[str, Any] | None, sign: str = "") -> str:
    return "" if values is None else Estimate(**values).text(1, sign)
