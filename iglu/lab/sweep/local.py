"""Runs on this machine, several at a time, each in a process of its own that may die without the others.

Workers are fresh processes (a fork of one that has used threads may hang) and live on from run to run,
since importing torch takes seconds.  One that is killed takes its run down and nothing else; when the sweep
itself is killed, its workers see the pipe close, stop at a checkpoint, and are gone soon in any case.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from iglu.lab.recipes import Recipe
from iglu.lab.sweep.work import Outcome, Progress, Watcher, carry_out

STOP = "stop"  # what a worker is told; otherwise a recipe, or None to go home

# Seconds a worker may take to its next checkpoint once nobody waits for it any more.
GRACE = 30.0

_PROCESSES = multiprocessing.get_context("spawn")


def run_local(
    recipes: Sequence[Recipe],
    *,
    out: Path,
    data: Path | str | None = None,
    jobs: int = 1,
    watcher: Watcher | None = None,
    is_stop_wanted: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Carry out the runs, ``jobs`` at a time, until all have ended or a stop is wanted: then those that run
    stop at a checkpoint and the others are not begun.  In the order in which they ended."""
    watcher = Watcher() if watcher is None else watcher
    waiting, outcomes = deque(recipes), list[Outcome]()
    workers: list[_Worker] = []
    try:
        while True:
            if is_stop_wanted():
                waiting.clear()
                for worker in workers:
                    worker.stop()
            while waiting and (free := _free(workers, jobs, data, out)) is not None:
                free.begin(waiting.popleft())
            busy = {worker.connection: worker for worker in workers if worker.recipe is not None}
            if not busy:
                break
            for connection in wait(list(busy), timeout=0.2):
                worker = busy[connection]  # type: ignore[index]
                recipe, message = worker.recipe, worker.hear()
                assert recipe is not None
                if isinstance(message, Outcome):
                    outcomes.append(message)
                    watcher.ended(message)
                else:
                    watcher.progressed(recipe, message)
        for worker in workers:
            worker.dismiss()
    finally:
        for worker in workers:
            worker.kill()
    return outcomes


class _Worker:
    """A process that carries out one run after the other."""

    def __init__(self, number: int, data: Path | str | None, out: Path) -> None:
        self.number = number
        self.recipe: Recipe | None = None
        self.is_stopping = False
        self.connection, theirs = _PROCESSES.Pipe()
        arguments = (theirs, _device(number), data, out)
        self.process = _PROCESSES.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()  # or its end would stay open when the worker dies

    def begin(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._tell(recipe)

    def stop(self) -> None:
        if not self.is_stopping:
            self.is_stopping = True
            self._tell(STOP)

    def hear(self) -> Outcome | Progress | None:
        """What it has to say; if it is dead, that its run failed."""
        assert self.recipe is not None
        message: Outcome | Progress | None
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            message = Outcome(self.recipe, None, _death(self.process.exitcode))
        if isinstance(message, Outcome):
            self.recipe = None
        return message

    def dismiss(self) -> None:
        self._tell(None)
        self.process.join(10)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def _tell(self, message: Recipe | str | None) -> None:
        # That a worker has died is seen when it is listened to.
        with contextlib.suppress(OSError):
            self.connection.send(message)


def _free(workers: list[_Worker], jobs: int, data: Path | str | None, out: Path) -> _Worker | None:
    """A worker with nothing to do, made if there may be one more; None if all are busy."""
    for worker in [worker for worker in workers if worker.recipe is None]:
        if worker.process.is_alive():
            return worker
        workers.remove(worker)
        worker.kill()
    if len(workers) == jobs:
        return None
    number = min(set(range(jobs)) - {worker.number for worker in workers})
    workers.append(_Worker(number, data, out))
    return workers[-1]


def _death(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return "its process was killed (SIGKILL), by hand or for want of memory"
    if status is not None and status < 0:
        return f"its process was ended by signal {-status} ({signal.Signals(-status).name})"
    return f"its process ended with status {status}"


def _device(number: int) -> str | None:
    """What CUDA_VISIBLE_DEVICES is to be for a worker: the GPUs in turn; None where there are none."""
    count = torch.cuda.device_count()
    if count == 0:
        return None
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    return named.split(",")[number % count]


# -- in the worker ---------------------------------------------------------------------------------


def _serve(connection: Connection, device: str | None, data: Path | str | None, out: Path) -> None:
    # Ctrl-C and a batch system signal everyone; it is for the sweep to decide, which then tells its workers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    inbox: queue.SimpleQueue[Recipe | None] = queue.SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(connection, inbox, stop), daemon=True).start()

    def report(progress: Progress | None) -> bool:
        try:
            connection.send(progress)
        except OSError:
            return True
        return stop.is_set()

    while (recipe := inbox.get()) is not None:
        report(None)
        outcome = carry_out(recipe, data=data, out=out, report=report)
        with contextlib.suppress(OSError):
            connection.send(outcome)


def _listen(connection: Connection, inbox: queue.SimpleQueue[Recipe | None], stop: threading.Event) -> None:
    try:
        while True:
            message = connection.recv()
            if message == STOP:
                stop.set()
            else:
                inbox.put(message)
    except (EOFError, OSError):
        stop.set()
        inbox.put(None)
        time.sleep(GRACE)
        os._exit(1)
