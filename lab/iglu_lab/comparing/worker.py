"""One run of a comparison, in its own process: a function, or a script through its environment.

A run must use the activation that it was given; otherwise a model would be compared with itself.  For
functions this is checked: :func:`iglu.swap` replaced something, or, if it was not called, a module of the
activation was created.

This module imports nothing large, so that the measured peak memory is that of the run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import math
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iglu_lab.sweep.pool import Progress, Report, describe_exit

ACTIVATION, SEED, RESULT = "IGLU_ACTIVATION", "IGLU_SEED", "IGLU_RESULT"  # in the environment of a script
OUTPUT = "output"  # folder for what the runs print

Work = str | tuple[str, ...] | Callable[..., Any]
"""``module:name`` of a function, the words of a command, or a function itself."""

Numbers = dict[str, float]


class InputError(ValueError):
    """The function or script cannot be compared: every other run would fail in the same way."""


class ScriptError(RuntimeError):
    """A script failed; the arguments are one line about it and its stderr."""


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str  # of the function or script
    activation: str
    seed: int

    @property
    def folder_name(self) -> str:
        """
        >>> Job("train", "iglu:learnable=5", 3).folder_name
        'iglu-learnable-5_seed=3'
        """
        return f"{re.sub('[^a-z0-9_]', '-', self.activation)}_seed={self.seed}"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``finished``, ``diverged`` (its metric is NaN or infinite) or ``failed``."""

    item: Job
    status: str
    metrics: Mapping[str, float | None] = field(default_factory=dict)  # None for NaN and infinity
    history: tuple[Mapping[str, float | None], ...] = ()  # one row per epoch, if the run has several
    seconds: float = 0.0
    memory_mb: float | None = None  # peak of the process
    gpu_memory_mb: float | None = None  # peak that torch allocated
    failure: str = ""  # one line
    traceback: str = ""
    is_input_error: bool = False

    def describe(self) -> str:
        """How it ended, in one line."""
        if self.status == "failed":
            return f"failed: {self.failure}"
        shown = ", ".join(f"{name} {value:.6g}" for name, value in self.metrics.items() if value is not None)
        return f"{self.status}{': ' if shown else ''}{shown} ({self.seconds:.1f} s)"


@dataclass(frozen=True)
class RunTask:
    """What a process does: one run of ``work``, whose output goes to a file below ``out``."""

    work: Work
    metric: str
    out: Path
    folder: str  # the current one, which may contain modules
    threads: int
    modules: tuple[str, ...] = ()  # that register activations
    allow_unchanged: bool = False
    is_forked: bool = False
    is_isolated: bool = True

    def prepare(self) -> None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(self.threads)
        if self.is_forked:
            import torch

            torch.set_num_threads(1)  # OpenMP hangs with more, if the parent has used it

    def run(self, item: Job, report: Report) -> Outcome:
        started = time.monotonic()
        is_script = isinstance(self.work, tuple)
        try:
            (self.out / OUTPUT).mkdir(parents=True, exist_ok=True)
            run = self._run_script if is_script else self._run_function
            outcome = _make_outcome(item, run(item, report), self.metric)
        except InputError as error:
            outcome = replace(self.failed(item, str(error)), is_input_error=True)
        except ScriptError as error:
            line, stderr = error.args
            outcome = replace(self.failed(item, line), traceback=stderr)
        except (Exception, SystemExit) as error:
            line = " ".join(f"{type(error).__name__}: {error}".split())
            outcome = replace(self.failed(item, line), traceback=traceback.format_exc())
        return replace(
            outcome, seconds=time.monotonic() - started, memory_mb=_peak_memory(is_script),
            gpu_memory_mb=_peak_gpu_memory(),
        )  # fmt: skip

    def failed(self, item: Job, reason: str) -> Outcome:
        return Outcome(item, "failed", failure=reason)

    # -- a function ---------------------------------------------------------------------------------

    def _run_function(self, job: Job, report: Report) -> list[Numbers]:
        _redirect(self.out / OUTPUT / f"{job.folder_name}.txt")
        sys.path.insert(0, self.folder)
        if self.modules:
            from iglu_lab import extensions

            extensions.load(self.modules, self.folder)
        observing = contextlib.nullcontext(str) if self.allow_unchanged else _observe_use(job.activation)
        with observing as reason_unused:

            def checked(row: Any) -> Numbers:
                if reason := reason_unused():
                    raise InputError(
                        f"{reason}: all activations would train the same model. Call iglu.swap(model, "
                        "activation) or iglu.create(activation), or allow it with --allow-unchanged "
                        "(allow_unchanged=True)"
                    )
                return read_numbers(row, self.metric)

            function: Any = load_function(self.work) if isinstance(self.work, str) else self.work
            returned = function(activation=job.activation, seed=job.seed)
            if not isinstance(returned, Iterator):
                return [checked(returned)]
            rows = []
            for epoch, row in enumerate(returned, start=1):
                rows.append(checked(row))
                report(Progress(epoch, 0, 0.0, _text(rows[-1])))
            if not rows:
                raise InputError("the function yielded nothing: expected one dict of metrics per epoch")
            return rows

    # -- a script -----------------------------------------------------------------------------------

    def _run_script(self, job: Job, report: Report) -> list[Numbers]:
        output = self.out / OUTPUT / job.folder_name
        paths = [output.with_name(f"{output.name}.{kind}") for kind in ("txt", "err.txt", "result.json")]
        stdout_path, errors, result = (path.resolve() for path in paths)
        result.unlink(missing_ok=True)
        given = {ACTIVATION: job.activation, SEED: str(job.seed), RESULT: str(result)}
        assert isinstance(self.work, tuple)
        with stdout_path.open("wb") as stdout, errors.open("wb") as stderr:
            try:
                ended = subprocess.run(
                    self.work, cwd=self.folder, env={**os.environ, **given}, stdin=subprocess.DEVNULL,
                    stdout=stdout, stderr=stderr, check=False,
                )  # fmt: skip
            except OSError as error:
                raise InputError(f"{self.work[0]} cannot be started: {error.strerror}") from error
        if ended.returncode != 0:
            shown = errors.read_text(encoding="utf-8", errors="replace").rstrip() or "(nothing on stderr)"
            raise ScriptError(f"{describe_exit(ended.returncode)}: {shown.splitlines()[-1]}", shown)
        rows = _json_rows(result) if result.exists() else []
        rows = rows or [row for row in _json_rows(stdout_path) if isinstance(row, dict)]
        if not rows:
            raise InputError(
                'the script printed no JSON line such as {"acc": 0.97} to standard output, and wrote '
                f"nothing to the file named in {RESULT}"
            )
        if isinstance(rows[-1], dict):
            rows = [row for row in rows if isinstance(row, dict) and (self.metric in row or row is rows[-1])]
        return [read_numbers(row, self.metric) for row in rows]


def _make_outcome(job: Job, rows: list[Numbers], metric: str) -> Outcome:
    """The last row is the result; if there are several, all of them are the history."""
    rows = [{name: value if math.isfinite(value) else None for name, value in row.items()} for row in rows]  # type: ignore[misc]
    status = "diverged" if rows[-1][metric] is None else "finished"
    history = [{"epoch": number, **row} for number, row in enumerate(rows, start=1)] if len(rows) > 1 else []
    return Outcome(job, status, rows[-1], tuple(history))


def load_function(name: str) -> Any:
    """The object ``module:name``."""
    module, _, place = name.partition(":")
    return functools.reduce(getattr, place.split("."), importlib.import_module(module))


def check_signature(function: Callable[..., Any], name: str) -> None:
    """Raise InputError unless the function can be called with an activation and a seed."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # built-in functions may have no signature
    try:
        signature.bind(activation="relu", seed=0)
    except TypeError:
        raise InputError(
            f"{name} must take the arguments activation and seed, and no others without a default; it takes "
            f"{signature}"
        ) from None


def read_numbers(found: Any, metric: str) -> Numbers:
    """The metrics that a run returned or yielded: one number, or a mapping that has ``metric``."""
    if not isinstance(found, Mapping):
        value = _number(found)
        if value is None:
            raise InputError(
                f"a run must return a number or a dict of metrics, got {found!r:.80} ({type(found).__name__})"
            )
        return {metric: value}
    if metric not in found:
        names = ", ".join(map(str, found)) or "nothing"
        raise InputError(f"the run returned no metric {metric!r}, only {names}: choose one with --metric")
    if _number(found[metric]) is None:
        raise InputError(f"the metric {metric!r} must be a number, got {found[metric]!r:.80}")
    return {str(name): value for name, each in found.items() if (value := _number(each)) is not None}


def _number(value: Any) -> float | None:
    """A number, also as a tensor or an array of one element."""
    if hasattr(value, "item"):
        with contextlib.suppress(ValueError, RuntimeError, TypeError):
            value = value.item()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(row: Numbers) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in row.items())


def _json_rows(path: Path) -> list[Any]:
    """The JSON objects and numbers of a file: one per line, or one in the complete file."""
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    rows = []
    for part in [text] if text.startswith("{\n") else text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            rows.append(json.loads(part))
    return [row for row in rows if isinstance(row, dict | int | float) and not isinstance(row, bool)]


@contextlib.contextmanager
def _observe_use(activation: str) -> Iterator[Callable[[], str]]:
    """Watch for swaps and for modules of the activation; yield a function that returns why it is unused."""
    from iglu import zoo
    from iglu.surgery import replace as swapping

    surgery: Any = swapping
    swaps: list[Any] = []
    made = False
    kind: Any = zoo.ZOO[zoo.parse(activation).name].module_class
    original_swap, original_init = surgery.Swap, kind.__init__

    def record(*arguments: Any, **options: Any) -> Any:
        swaps.append(original_swap(*arguments, **options))
        return swaps[-1]

    @functools.wraps(original_init)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal made
        made = True
        original_init(self, *arguments, **options)

    def reason_unused() -> str:
        if swaps:
            return "" if any(each.replaced for each in swaps) else "iglu.swap replaced nothing in the model"
        return "" if made else f"the run neither called iglu.swap nor created a module of {activation!r}"

    surgery.Swap, kind.__init__ = record, init
    try:
        yield reason_unused
    finally:
        surgery.Swap, kind.__init__ = original_swap, original_init


def _redirect(path: Path) -> None:
    """Redirect the output of the process, including that of C code, to a file."""
    file = path.open("w", encoding="utf-8", buffering=1)
    for descriptor in (1, 2):
        os.dup2(file.fileno(), descriptor)
    sys.stdout = sys.stderr = file


def _peak_memory(of_children: bool) -> float | None:
    """Peak memory in MB.  VmHWM counts this program only; the counter of getrusage starts at the parent's."""
    if not of_children:
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
            if found:
                return int(found[1]) / 1e3 * 1.024
    try:
        import resource
    except ImportError:  # Windows
        return None
    usage = resource.getrusage(resource.RUSAGE_CHILDREN if of_children else resource.RUSAGE_SELF).ru_maxrss
    return usage / 1e6 * (1 if sys.platform == "darwin" else 1024)


def _peak_gpu_memory() -> float | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    peaks = map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count()))
    return float(max(peaks)) / 1e6
