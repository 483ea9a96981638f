"""Execute work in processes of this machine, several at a time.

Processes are spawned (forking a process that has used threads may hang) and reused, since importing torch
takes seconds.  If one is killed, only its item fails.  If the program that started them is killed, they
detect it, stop at a checkpoint, and exit after a grace period in any case.

An isolated task has one process per item instead, in its own process group, which is killed with all its
children when the item exceeds its time limit, or the program stops or is killed.

This module imports neither torch nor other large packages, so that the memory of a process is that of its
work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

STOP = "stop"  # message to a worker; otherwise an item, or None to exit

# Seconds that a worker has to reach its next checkpoint after the program that started it has died.
GRACE = 30.0

# Seconds between two checks of a worker whether that program is alive.
_LOOK_EVERY = 0.5

Item = TypeVar("Item")
Result = TypeVar("Result")
Given = TypeVar("Given", contravariant=True)
Returned = TypeVar("Returned", covariant=True)


class Progress(NamedTuple):
    """The progress of a run."""

    epoch: int  # the current one, from 1
    epochs: int  # 0 if unknown
    share: float  # of all its steps
    text: str  # metrics and speed
    notes: tuple[str, ...] = ()  # from its start


Report = Callable[["Progress | None"], bool]
"""Reports progress; returns whether the run should stop."""


class Task(Protocol[Given, Returned]):
    """What the processes do; pickled if they are spawned."""

    @property
    def is_isolated(self) -> bool:
        """Whether each item has its own process."""
        ...

    def prepare(self) -> None:
        """Called once in each process."""
        ...

    def run(self, item: Given, report: Report) -> Returned: ...

    def failed(self, item: Given, reason: str) -> Returned:
        """The result of an item whose process ended without one."""
        ...


class PoolObserver(Generic[Item, Result]):
    """Callbacks of a pool.  Every method is optional."""

    def progressed(self, item: Item, progress: Progress | None) -> None:
        """A run has made progress; None: it has started and loads its data."""

    def ended(self, result: Result) -> None:
        """A run has ended or was stopped."""

    def noted(self, text: str) -> None:
        """A message about all runs."""


@dataclass(frozen=True)
class _Ended:
    result: Any


def run_pool(
    items: Sequence[Item],
    task: Task[Item, Result],
    *,
    jobs: int = 1,
    observer: PoolObserver[Item, Result] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    devices: Callable[[int], str | None] = lambda number: None,
    time_limit: float | None = None,
    start_method: Literal["spawn", "fork"] = "spawn",
) -> list[Result]:
    """Execute the items, ``jobs`` at a time; return the results in the order in which the items ended.  Once
    ``should_stop()``, running ones are asked to stop (isolated ones are killed and have no result) and the
    others are not started.

    ``devices`` is the CUDA_VISIBLE_DEVICES of a worker by its number, ``time_limit`` in seconds per item."""
    observer = PoolObserver() if observer is None else observer
    waiting, results = deque(items), list[Result]()
    workers: list[_Worker[Item, Result]] = []
    processes = multiprocessing.get_context(start_method)

    def free() -> _Worker[Item, Result] | None:
        """An idle worker, started if there are fewer than ``jobs``; None if all are busy."""
        for worker in [worker for worker in workers if worker.item is None]:
            if worker.process.is_alive() and not task.is_isolated:
                return worker
            workers.remove(worker)
            worker.end()
        if len(workers) == jobs:
            return None
        number = min(set(range(jobs)) - {worker.number for worker in workers})
        workers.append(_Worker(number, processes, task, devices(number)))
        return workers[-1]

    try:
        while True:
            if should_stop():
                if task.is_isolated:
                    break
                waiting.clear()
                for worker in workers:
                    worker.stop()
            while waiting and (idle := free()) is not None:
                idle.begin(waiting.popleft())
            busy = [worker for worker in workers if worker.item is not None]
            if not busy:
                break
            # A process started by a worker may keep its pipe open, so the sentinels are watched too.
            wait([each for worker in busy for each in (worker.connection, worker.process.sentinel)], 0.2)
            for worker in busy:
                item = worker.item
                assert item is not None
                for message in worker.messages(time_limit):
                    if isinstance(message, _Ended):
                        results.append(message.result)
                        observer.ended(message.result)
                    else:
                        observer.progressed(item, message)
        for worker in workers:
            if worker.item is None:
                worker.end()
    finally:
        for worker in workers:
            worker.kill()
    return results


class _Worker(Generic[Item, Result]):
    """A process that executes one item after the other."""

    def __init__(self, number: int, processes: Any, task: Task[Item, Result], device: str | None) -> None:
        self.number, self.task = number, task
        self.item: Item | None = None
        self.is_stopping = self.is_killed = False
        self.started = 0.0
        self.connection, theirs = processes.Pipe()
        # Not daemonic: the work may start processes, such as those of a DataLoader.
        self.process = processes.Process(target=_serve, args=(theirs, device, task, os.getpid()))
        with _hidden_main_module(), warnings.catch_warnings():
            # Python 3.12 warns of forks with threads; a caller that forks takes care of that.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()  # otherwise the pipe stays open when the worker dies

    def begin(self, item: Item) -> None:
        self.item, self.started = item, time.monotonic()
        self._send(item)

    def stop(self) -> None:
        if not self.is_stopping:
            self.is_stopping = True
            self._send(STOP)

    def messages(self, time_limit: float | None) -> list[_Ended | Progress | None]:
        """All new messages; if the process died or exceeded its time, also the failure of its item."""
        assert self.item is not None
        found: list[_Ended | Progress | None] = []
        was_alive = self.process.is_alive()  # checked before its last messages are read
        try:
            while self.connection.poll() and not (found and isinstance(found[-1], _Ended)):
                found.append(self.connection.recv())
        except (EOFError, OSError):
            was_alive = False
        if not (found and isinstance(found[-1], _Ended)):
            if not was_alive:
                self.process.join()
                found.append(_Ended(self.task.failed(self.item, describe_exit(self.process.exitcode))))
            elif time_limit is not None and time.monotonic() - self.started > time_limit:
                self.kill()
                found.append(_Ended(self.task.failed(self.item, f"time limit of {time_limit:g} s reached")))
        if found and isinstance(found[-1], _Ended):
            self.item = None
        return found

    def end(self) -> None:
        self._send(None)
        self.process.join(10)
        self.kill()

    def kill(self) -> None:
        if self.is_killed:
            return
        self.is_killed = True
        if self.task.is_isolated and self.process.pid is not None and hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)  # also its children
        self.process.kill()
        self.process.join()
        self.connection.close()

    def _send(self, message: Item | str | None) -> None:
        # messages() detects a dead worker.
        with contextlib.suppress(OSError):
            self.connection.send(message)


@contextlib.contextmanager
def _hidden_main_module() -> Iterator[None]:
    """Hide the main module: unless it has a guard, a spawned process would execute it up to this very call.
    The workers do not need that module."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def describe_exit(status: int | None) -> str:
    """Why a process has ended, from its exit status."""
    if status == -signal.SIGKILL:
        return "its process was killed (SIGKILL), by a user or because memory ran out"
    if status is not None and status < 0:
        return f"its process was ended by signal {-status} ({signal.Signals(-status).name})"
    return f"its process ended with status {status}"


# -- in the worker ---------------------------------------------------------------------------------


def _serve(connection: Connection, device: str | None, task: Task[Any, Any], parent: int) -> None:
    # Ctrl-C and batch systems signal all processes of the group; only the parent handles it.
    if task.is_isolated and hasattr(os, "setsid"):
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # a forked process has the handlers of its parent
    else:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    task.prepare()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    stop = threading.Event()
    listening = (connection, inbox, stop, parent, task.is_isolated)
    threading.Thread(target=_listen, args=listening, daemon=True).start()

    def report(progress: Progress | None) -> bool:
        try:
            connection.send(progress)
        except OSError:
            return True
        return stop.is_set()

    while (item := inbox.get()) is not None:
        report(None)
        result = task.run(item, report)
        with contextlib.suppress(OSError):
            connection.send(_Ended(result))


def _listen(
    connection: Connection,
    inbox: queue.SimpleQueue[Any],
    stop: threading.Event,
    parent: int,
    is_isolated: bool,
) -> None:
    try:
        while True:
            # Forked processes keep each other's pipes open: only the parent's id shows that it has died.
            while not connection.poll(_LOOK_EVERY):
                if os.name == "posix" and os.getppid() != parent:
                    raise EOFError
            message = connection.recv()
            if message == STOP:
                stop.set()
            else:
                inbox.put(message)
    except (EOFError, OSError):
        if is_isolated and hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        stop.set()
        inbox.put(None)
        time.sleep(GRACE)
        os._exit(1)
