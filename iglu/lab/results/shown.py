"""Runs as tables in a terminal: one by one, and as means over seeds beside ReLU and GELU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from iglu import zoo
from iglu.lab.results.comparison import REFERENCES, Summary, setting_label
from iglu.lab.runs.folder import Run


def run_row(run: Run) -> dict[str, Any]:
    """A run as one flat row; what it has not got yet is None."""
    recipe = run.recipe
    has_epochs = bool(run.evaluated)
    return {
        "status": run.status,
        "recipe": setting_label(recipe),
        "activation": recipe.activation,
        "seed": recipe.seed,
        "epochs": len(run.history),
        "of": recipe.last_epoch,
        "metric": run.metric if has_epochs else None,
        "last": run.last[run.metric] if has_epochs else None,
        "best_on_test_set": run.best[run.metric] if has_epochs else None,
        "best_epoch": run.best["epoch"] if has_epochs else None,
        "seconds": round(run_seconds(run), 1),
        "folder": str(run.folder),
        "message": run.message,
    }


def run_seconds(run: Run) -> float:
    """Time of all its epochs, as far as their lines tell."""
    return math.fsum(row.get("seconds", 0.0) + row.get("test_seconds", 0.0) for row in run.history)


def runs_table(runs: Sequence[Run]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, caption="best*: chosen on the test set itself, so flattering"
    )
    for title in ("status", "recipe", "activation"):
        table.add_column(title)
    for title in ("seed", "epochs", "last", "best*", "in"):
        table.add_column(title, justify="right")
    for row in map(run_row, runs):
        metrics = ("", "", "")
        if row["metric"] is not None:
            unit = "" if row["metric"] == "perplexity" else "%"
            metrics = (
                f"{row['last']:.2f}{unit}", f"{row['best_on_test_set']:.2f}{unit}", str(row["best_epoch"])
            )  # fmt: skip
        table.add_row(
            row["status"], row["recipe"], row["activation"], str(row["seed"]), f"{row['epochs']}/{row['of']}",
            *metrics, style=None if row["status"] == "finished" else "dim",
        )  # fmt: skip
    return table


def summary_tables(rows: Iterable[Summary]) -> Iterator[Table]:
    """One for each setting and metric."""
    for (setting, metric), group in itertools.groupby(rows, key=lambda row: (row.setting, row.metric)):
        table = Table(
            title=f"{setting}: {metric} of the last epoch, mean and 95% interval over seeds",
            box=SIMPLE_HEAD, pad_edge=False, title_justify="left",
        )  # fmt: skip
        table.add_column("activation", no_wrap=True)
        labels = [zoo.ZOO[name].label for name in REFERENCES]
        for title in ("seeds", "mean", *(f"- {label}" for label in labels)):
            table.add_column(title, justify="right", no_wrap=True)
        for row in group:
            found = [row.differences.get(name) for name in REFERENCES]
            beside = ["" if difference is None else difference.text(sign="+") for difference in found]
            table.add_row(row.activation, str(row.mean.seeds), str(row.mean), *beside)
        yield table


def show_summary(rows: Sequence[Summary], console: Console) -> None:
    """The tables, and how to read them."""
    for table in summary_tables(rows):
        console.print(table)
    if rows:
        console.print(
            "Differences are paired by seed; one means something only where its interval excludes 0.",
            style="dim", highlight=False,
        )  # fmt: skip
