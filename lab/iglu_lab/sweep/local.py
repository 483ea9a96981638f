"""Runs of recipes on this machine, several at a time, in worker processes; see :mod:`iglu_lab.sweep.pool`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from iglu_lab import extensions
from iglu_lab.recipes import Recipe
from iglu_lab.sweep.pool import Report, run_pool
from iglu_lab.sweep.worker import RunResult, SweepObserver, run_recipe


@dataclass(frozen=True)
class RecipeTask:
    """Execute or resume the run of a recipe in its folder below ``out``."""

    data: Path | str | None
    out: Path
    modules: Sequence[str]  # of extensions
    is_isolated: bool = False

    def prepare(self) -> None:
        extensions.load(self.modules)

    def run(self, item: Recipe, report: Report) -> RunResult:
        return run_recipe(item, data=self.data, out=self.out, report=report)

    def failed(self, item: Recipe, reason: str) -> RunResult:
        return RunResult(item, None, reason)


def run_local(
    recipes: Sequence[Recipe],
    *,
    out: Path,
    data: Path | str | None = None,
    jobs: int = 1,
    observer: SweepObserver | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[RunResult]:
    """Execute the runs, ``jobs`` at a time; return the results in the order in which the runs ended.  Once
    ``should_stop()``, running ones stop at a checkpoint and the others are not started."""
    task = RecipeTask(data, out, extensions.imported)
    return run_pool(
        recipes, task, jobs=jobs, observer=observer, should_stop=should_stop, devices=visible_devices
    )


def visible_devices(number: int, gpus: int = 1) -> str | None:
    """CUDA_VISIBLE_DEVICES of a worker, round-robin over the GPUs; None without a GPU."""
    count = torch.cuda.device_count()
    if count == 0:
        return None
    named = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))).split(",")
    return ",".join(named[(number * gpus + place) % count] for place in range(gpus))
