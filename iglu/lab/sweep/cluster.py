"""The same runs on a Ray cluster: a task each, begun again when its worker or its node dies.

Where the folder of runs is shared by the nodes, a run that is begun again goes on from its checkpoint;
where it is not, it starts anew, and its metrics (not its weights) are brought to this machine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from iglu.installed import pip_install
from iglu.lab.mistakes import MistakeError
from iglu.lab.recipes import Recipe
from iglu.lab.runs.folder import METRICS, PROVENANCE, RECIPE, STATE
from iglu.lab.storage import write_atomically
from iglu.lab.sweep.work import REPORT_EVERY, Outcome, Progress, Watcher, carry_out

# A run that has said nothing for so many seconds is not running.
SILENCE = 10.0

# What is brought here from a node with a disk of its own; the recipe last, for with it the folder is a run's.
_FILES = (PROVENANCE, METRICS, STATE, RECIPE)

Answer = tuple[Outcome, dict[str, bytes]]


class Board:
    """An actor where the runs say how far they are, and learn whether to stop."""

    def __init__(self) -> None:
        self.said: dict[int, tuple[float, Progress | None]] = {}
        self.is_stop_wanted = False

    def report(self, number: int, progress: Progress | None) -> bool:
        self.said[number] = (time.monotonic(), progress)
        return self.is_stop_wanted

    def running(self) -> dict[int, Progress | None]:
        """The runs that have spoken lately."""
        now = time.monotonic()
        return {number: said for number, (when, said) in self.said.items() if now - when < SILENCE}

    def stop(self) -> None:
        self.is_stop_wanted = True


def run_on_ray(
    recipes: Sequence[Recipe],
    *,
    address: str,
    out: Path,
    data: Path | str | None = None,
    cpus: float | None = None,
    gpus: float = 0.0,
    retries: int = 3,
    watcher: Watcher | None = None,
    is_stop_wanted: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Carry out the runs on the cluster at ``address``; as :func:`iglu.lab.sweep.local.run_local` otherwise.

    ``cpus`` are by default a run's threads.  ``out`` and ``data`` are the same path on every node.
    """
    try:
        import ray
    except ImportError as error:
        raise MistakeError(f"--ray needs Ray: {pip_install('ray')}") from error
    is_guest = ray.is_initialized()
    if not is_guest:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        sweep = _Sweep(ray, recipes, out.resolve(), data, watcher or Watcher())
        sweep.begin(cpus, gpus, retries)
        return sweep.follow(is_stop_wanted)
    finally:
        if not is_guest:
            ray.shutdown()  # and with the driver its tasks end


class _Sweep:
    """The driver's side."""

    def __init__(
        self, ray: Any, recipes: Sequence[Recipe], out: Path, data: Path | str | None, watcher: Watcher
    ) -> None:
        self.ray, self.runs, self.out, self.watcher = ray, recipes, out, watcher
        self.data = None if data is None else Path(data).expanduser().resolve()
        self.pending: dict[Any, int] = {}

    def begin(self, cpus: float | None, gpus: float, retries: int) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray = self.ray
        # On the driver's node: should that die, there is no sweep any more.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
        task = ray.remote(_task)
        for number, recipe in enumerate(self.runs):
            wanted = {"CPU": cpus if cpus is not None else float(recipe.threads or 1), "GPU": gpus}
            options = task.options(
                num_cpus=wanted["CPU"], num_gpus=gpus, max_retries=retries, name=recipe.folder_name
            )
            self.pending[options.remote(number, recipe, self.data, self.out, self.board)] = number
        if self.runs and not any(_has(node, wanted) for node in ray.nodes()):
            self.watcher.noted(
                f"No node has {wanted['CPU']:g} CPUs and {gpus:g} GPUs; the runs wait until one joins."
            )

    def follow(self, is_stop_wanted: Callable[[], bool]) -> list[Outcome]:
        outcomes = []
        is_stopping = False
        while self.pending:
            running = self.ray.get(self.board.running.remote())
            for number in set(running) & set(self.pending.values()):
                self.watcher.progressed(self.runs[number], running[number])
            if is_stop_wanted():
                if not is_stopping:
                    self.ray.get(self.board.stop.remote())
                    is_stopping = True
                for task in [task for task, number in self.pending.items() if number not in running]:
                    self.ray.cancel(task)
            ready, _ = self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=REPORT_EVERY)
            for task in ready:
                outcome = self._outcome(task, self.pending.pop(task))
                if outcome is not None:
                    outcomes.append(outcome)
                    self.watcher.ended(outcome)
        return outcomes

    def _outcome(self, task: Any, number: int) -> Outcome | None:
        """None for a run that was not begun."""
        recipe = self.runs[number]
        try:
            answer: Answer | None = self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            return None
        except self.ray.exceptions.RayError as error:
            first = (str(error).splitlines() or [""])[0]
            return Outcome(recipe, None, f"{type(error).__name__}: {first}")
        if answer is None:
            return None
        outcome, files = answer
        keep(files, self.out / recipe.folder_name)
        return outcome


def keep(files: dict[str, bytes], folder: Path) -> None:
    """Write down what a run left on another machine, unless the folder is shared and has it."""
    state = folder / STATE
    if files and not (state.exists() and state.read_bytes() == files[STATE]):
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            with write_atomically(folder / name) as file:
                file.write(files[name])


def _has(node: dict[str, Any], wanted: dict[str, float]) -> bool:
    return bool(node["Alive"]) and all(
        node["Resources"].get(name, 0.0) >= count for name, count in wanted.items()
    )


# -- on a node -------------------------------------------------------------------------------------


def _task(number: int, recipe: Recipe, data: Path | None, out: Path, board: Any) -> Answer | None:
    """One run; None if the sweep is to stop before it has begun."""
    with _Line(board, number) as line:
        if line.report(None):
            return None
        outcome = carry_out(recipe, data=data, out=out, report=line.report)
    if outcome.run is None or outcome.run.status not in ("finished", "diverged", "stopped"):
        return outcome, {}
    return outcome, {name: (outcome.run.folder / name).read_bytes() for name in _FILES}


class _Line:
    """The line to the board, in a thread of its own: while the main thread of a task waits for an answer, Ray
    takes its CPU for free and begins another run on it."""

    def __init__(self, board: Any, number: int) -> None:
        self.board, self.number = board, number
        self.progress: Progress | None = None
        self.is_stop_wanted = False
        self.has_answer, self.is_over = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._talk, daemon=True)

    def __enter__(self) -> _Line:
        self.thread.start()
        self.has_answer.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join()

    def report(self, progress: Progress | None) -> bool:
        self.progress = progress
        return self.is_stop_wanted

    def _talk(self) -> None:
        import ray

        while not self.is_over.is_set():
            try:
                self.is_stop_wanted = ray.get(self.board.report.remote(self.number, self.progress))
            except ray.exceptions.RayError:
                self.is_stop_wanted = True  # the sweep is gone
                self.is_over.set()
            self.has_answer.set()
            self.is_over.wait(2 * REPORT_EVERY)
