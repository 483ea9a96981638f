"""Runs on a Ray cluster: one task per run, retried when its worker or node dies.

If the nodes share the folder of runs, a retried run resumes from its checkpoint.  Otherwise it starts again,
and its metrics (not its weights) are copied to this machine.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from iglu.install_hint import LAB, pip_install
from iglu_lab import extensions
from iglu_lab.errors import UserError
from iglu_lab.recipes import Recipe
from iglu_lab.runs.folder import METRICS, PROVENANCE, RECIPE, STATE
from iglu_lab.storage import write_atomically
from iglu_lab.sweep.pool import Given, PoolObserver, Progress, Report, Returned
from iglu_lab.sweep.worker import REPORT_EVERY, RunResult, SweepObserver, run_recipe

# A run that has not reported for this many seconds is not running.
REPORT_TIMEOUT = 10.0

# Copied from a node with its own disk.  The recipe is last: a folder with a recipe is a run.
_FILES = (PROVENANCE, METRICS, STATE, RECIPE)

RemoteResult = tuple[RunResult, dict[str, bytes]]


class HasFolderName(Protocol):
    @property
    def folder_name(self) -> str: ...


Named = TypeVar("Named", bound=HasFolderName)
Payload = TypeVar("Payload")
Result = TypeVar("Result")


class ProgressBoard:
    """A Ray actor to which runs report their progress, and which tells them whether to stop."""

    def __init__(self) -> None:
        self.reports: dict[int, tuple[float, Progress | None]] = {}
        self.should_stop = False

    def report(self, number: int, progress: Progress | None) -> bool:
        self.reports[number] = (time.monotonic(), progress)
        return self.should_stop

    def running(self) -> dict[int, Progress | None]:
        """The runs that reported recently."""
        oldest = time.monotonic() - REPORT_TIMEOUT
        return {number: progress for number, (when, progress) in self.reports.items() if when > oldest}

    def stop(self) -> None:
        self.should_stop = True


class Execute(Protocol[Given, Returned]):
    """What a node does with an item; pickled.  Its payload is returned to the driver."""

    def __call__(self, item: Given, report: Report) -> Returned: ...


def run_on_ray(
    recipes: Sequence[Recipe],
    *,
    address: str,
    out: Path,
    data: Path | str | None = None,
    cpus: float | None = None,
    gpus: float = 0.0,
    retries: int = 3,
    observer: SweepObserver | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[RunResult]:
    """Run the recipes on the cluster at ``address``, otherwise like :func:`iglu_lab.sweep.local.run_local`.

    ``cpus`` defaults to the threads of a run.  ``out`` and ``data`` are the same path on every node.
    """
    data = None if data is None else Path(data).expanduser().resolve()
    out = out.resolve()

    def convert(recipe: Recipe, payload: RemoteResult) -> RunResult:
        result, files = payload
        copy_files(files, out / recipe.folder_name)
        return result

    return run_cluster(
        recipes, _ExecuteRecipe(data, out, extensions.imported, os.getcwd()), convert,
        lambda recipe, reason: RunResult(recipe, None, reason), address=address,
        cpus=[cpus if cpus is not None else float(recipe.threads or 1) for recipe in recipes], gpus=gpus,
        retries=retries, observer=observer, should_stop=should_stop,
    )  # fmt: skip


def load_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError(f"--ray needs Ray: {pip_install('ray', distribution=LAB)}") from error
    return ray


def run_cluster(
    items: Sequence[Named],
    execute: Execute[Named, Payload],
    convert: Callable[[Named, Payload], Result],
    failed: Callable[[Named, str], Result],
    *,
    address: str,
    cpus: Sequence[float],
    gpus: float,
    retries: int,
    observer: PoolObserver[Named, Result] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Execute each item on a node with these CPUs and GPUs; ``convert`` converts a payload to a result."""
    ray = load_ray()
    was_initialized = ray.is_initialized()
    if not was_initialized:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    observer = PoolObserver() if observer is None else observer
    try:
        # The actor runs on the driver's node: without the driver there is no sweep.
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = ray.remote(ProgressBoard).options(num_cpus=0, scheduling_strategy=here).remote()
        task = ray.remote(_remote_run)
        pending: dict[Any, int] = {}
        for number, (item, count) in enumerate(zip(items, cpus, strict=True)):
            options = task.options(num_cpus=count, num_gpus=gpus, max_retries=retries, name=item.folder_name)
            pending[options.remote(number, item, execute, board)] = number
        needed = {"CPU": max(cpus, default=0.0), "GPU": gpus}
        if items and not any(_has_resources(node, needed) for node in ray.nodes()):
            observer.noted(
                f"No node has {needed['CPU']:g} CPUs and {gpus:g} GPUs; the runs wait for such a node."
            )
        results = []
        for number, payload in _follow(ray, board, items, pending, observer, should_stop):
            item = items[number]
            results.append(
                failed(item, payload.reason) if isinstance(payload, _Failure) else convert(item, payload)
            )
            observer.ended(results[-1])
        return results
    finally:
        if not was_initialized:
            ray.shutdown()  # also ends the tasks


class _Failure(NamedTuple):
    """A task that ended without a payload."""

    reason: str


def _follow(
    ray: Any,
    board: Any,
    items: Sequence[Any],
    pending: dict[Any, int],
    observer: PoolObserver[Any, Any],
    should_stop: Callable[[], bool],
) -> Iterator[tuple[int, Any]]:
    """Pass progress to the observer until every task has ended; yield the number and payload of each."""
    is_stopping = False
    while pending:
        running = ray.get(board.running.remote())
        for number in set(running) & set(pending.values()):
            observer.progressed(items[number], running[number])
        if should_stop():
            if not is_stopping:
                ray.get(board.stop.remote())
                is_stopping = True
            for task in [task for task, number in pending.items() if number not in running]:
                ray.cancel(task)
        ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=REPORT_EVERY)
        for task in ready:
            number, payload = pending.pop(task), _payload(ray, task)
            if payload is not None:
                yield number, payload


def _payload(ray: Any, task: Any) -> Any:
    """What a task returned; None if the item was not started."""
    try:
        return ray.get(task)
    except ray.exceptions.TaskCancelledError:
        return None
    except ray.exceptions.RayError as error:
        first = (str(error).splitlines() or [""])[0]
        return _Failure(f"{type(error).__name__}: {first}")


def copy_files(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of a run on another machine, unless the folder is shared and has them."""
    state = folder / STATE
    if files and not (state.exists() and state.read_bytes() == files[STATE]):
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            with write_atomically(folder / name) as file:
                file.write(files[name])


def _has_resources(node: dict[str, Any], needed: dict[str, float]) -> bool:
    has = node["Resources"]
    return bool(node["Alive"]) and all(has.get(name, 0.0) >= count for name, count in needed.items())


# -- on a node -------------------------------------------------------------------------------------


def _remote_run(number: int, item: Any, execute: Execute[Any, Any], board: Any) -> Any:
    """Execute one item; None if the sweep stops before it has started."""
    with _Reporter(board, number) as reporter:
        return None if reporter.report(None) else execute(item, reporter.report)


class _ExecuteRecipe(NamedTuple):
    data: Path | None
    out: Path
    modules: Sequence[str]
    folder: str  # may contain the modules

    def __call__(self, item: Recipe, report: Report) -> RemoteResult:
        try:
            extensions.load(self.modules, self.folder)
        except UserError as error:
            return RunResult(item, None, str(error)), {}
        result = run_recipe(item, data=self.data, out=self.out, report=report)
        if result.run is None or result.run.status not in ("finished", "diverged", "stopped"):
            return result, {}
        return result, {name: (result.run.folder / name).read_bytes() for name in _FILES}


class _Reporter:
    """Reports to the board from its own thread.  While the main thread of a task waits for a remote call,
    Ray considers its CPU free and starts another run on it."""

    def __init__(self, board: Any, number: int) -> None:
        self.board, self.number = board, number
        self.progress: Progress | None = None
        self.should_stop = False
        self.has_reported, self.is_over = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._report_repeatedly, daemon=True)

    def __enter__(self) -> _Reporter:
        self.thread.start()
        self.has_reported.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join()

    def report(self, progress: Progress | None) -> bool:
        self.progress = progress
        return self.should_stop

    def _report_repeatedly(self) -> None:
        import ray

        while not self.is_over.is_set():
            try:
                self.should_stop = ray.get(self.board.report.remote(self.number, self.progress))
            except ray.exceptions.RayError:
                self.should_stop = True  # the sweep has ended
                self.is_over.set()
            self.has_reported.set()
            self.is_over.wait(2 * REPORT_EVERY)
