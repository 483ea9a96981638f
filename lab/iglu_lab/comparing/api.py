"""Run a comparison on this machine or on a Ray cluster, and judge it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from iglu_lab import extensions
from iglu_lab.comparing.output import write_result
from iglu_lab.comparing.plan import LOG, PLAN, Log, Plan, make_plan, read_plan
from iglu_lab.comparing.result import CompareResult
from iglu_lab.comparing.worker import (
    OUTPUT,
    InputError,
    Job,
    Outcome,
    RunTask,
    Work,
    check_signature,
    load_function,
)
from iglu_lab.console import Terminal
from iglu_lab.errors import UserError, check_writable
from iglu_lab.runs.folder import lock_run
from iglu_lab.runs.provenance import cores
from iglu_lab.stats.statistics import estimate, minimum_detectable_difference, seeds_needed
from iglu_lab.sweep.cluster import load_ray, run_cluster
from iglu_lab.sweep.display import SweepDisplay
from iglu_lab.sweep.local import visible_devices
from iglu_lab.sweep.pool import PoolObserver, Progress, Report, run_pool

FAILURES = "failures"  # folder of tracebacks
PILOT = "pilot.jsonl"
PILOT_SEED = 1_000_000  # the first seed of a pilot, which shares no seed with the comparison
_DEPENDENT_FIELDS = {
    "seeds": ("looks", "spending"), "metric": ("lower_is_better",), "activations": ("reference",),
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """How runs are executed, not what they compute."""

    jobs: int = 1
    threads: int | None = None
    time_limit: float | None = None  # seconds per run
    allow_unchanged: bool = False
    ray: str | None = None
    gpus: float | None = None  # per run
    retries: int = 3  # on Ray, of a run whose node dies
    should_stop: Callable[[], bool] = lambda: False
    console: Terminal | None = None


def compare(
    work: Callable[..., Any] | str | Sequence[str],
    activations: Sequence[str] | None = None,
    *,
    seeds: int | None = None,
    margin: float | None = None,
    metric: str | None = None,
    lower_is_better: bool | None = None,
    looks: Sequence[int] | None = None,
    spending: Sequence[float] | None = None,
    out: Path | str = "compare",
    jobs: int = 1,
    threads: int | None = None,
    time_limit: float | None = None,
    gpus: float | None = None,
    ray: str | None = None,
    allow_unchanged: bool = False,
    progress: bool = True,
) -> CompareResult:
    """Train with each activation over several seeds, and judge the differences to the first one.

    The same call resumes an interrupted comparison; more seeds or activations extend it.  Arguments that are
    None are taken from the plan in ``out``, if there is one.

    Args:
        work: A function of ``activation`` and ``seed`` that returns a number or a dict of metrics, or yields
            one dict per epoch; its ``"module:name"``; or the words of a command, which reads the
            environment variables IGLU_ACTIVATION and IGLU_SEED.
        activations: Names such as ``"iglu:5"``, the reference first.
        seeds: Number of seeds, starting at 0; 5 if None.  Verdicts need at least 3.
        margin: Largest difference that does not matter, in units of the metric.
        metric: The key of the dict by which activations are compared.
        lower_is_better: If None, true for names such as loss, error and perplexity.
        looks: Numbers of seeds at which to give interim verdicts; they share the significance level of 5%.
        spending: Significance level of each look; equal shares if None.
        out: Output directory.
        jobs: Number of parallel runs.
        threads: CPU threads per run; if None, the cores divided by ``jobs``.
        time_limit: Seconds per run.
        gpus: GPUs per run; if None, one if available.
        ray: Address of a Ray cluster.
        allow_unchanged: Accept runs that never used their activation.
        progress: Print a line when a run starts and ends.
    """
    options = Options(
        jobs, threads, time_limit, allow_unchanged, ray, gpus, console=Terminal() if progress else None
    )
    given = {
        "activations": activations, "seeds": seeds, "margin": margin, "metric": metric,
        "lower_is_better": lower_is_better, "looks": looks, "spending": spending,
    }  # fmt: skip
    return run_comparison(work, given, Path(out), options)


def run_comparison(
    work: Callable[..., Any] | str | Sequence[str], given: dict[str, Any], out: Path, options: Options
) -> CompareResult:
    """Run the missing jobs, judge the results, and write all files to ``out``."""
    source = _source(work)
    _check_folder(out)
    with lock_run(out):
        log = Log(out / LOG)
        plan = _plan(source, given, out)
        log.begin(plan)
        failures = _run(CompareResult(plan, log.rows).missing, source, plan.metric, out, log, options)
        result = CompareResult(plan, log.rows, log.changes, failures, out)
        write_result(result, out)
    return result


def _plan(source: _Source, given: dict[str, Any], out: Path) -> Plan:
    """The plan in ``out``, updated with ``given``; fields that depend on a changed one are recomputed."""
    before = read_plan(out)
    stated = {name: value for name, value in given.items() if value is not None}
    for name, dependents in _DEPENDENT_FIELDS.items():
        if name in stated and stated[name] != before.get(name):
            before = {field: value for field, value in before.items() if field not in dependents}
    return make_plan({**before, **stated, "task": source.name, "code": source.code})


def _check_folder(out: Path) -> None:
    """Raise UserError unless the folder is writable and contains only a comparison."""
    check_writable(out)
    if out.is_dir() and not (out / LOG).exists():
        known = {PILOT, FAILURES, OUTPUT, PLAN, "lock"}
        if strange := sorted({each.name for each in out.iterdir()} - known):
            raise UserError(f"{out} has other files, such as {strange[0]}: choose another --out")


class Pilot(NamedTuple):
    """The standard deviation of the reference over seeds, and what it means for the plan."""

    values: tuple[float, ...]
    margin: float | None
    seeds: int

    def __str__(self) -> str:
        from scipy.stats import chi2

        found, freedom = estimate(self.values), len(self.values) - 1
        ends = (found.sd * (freedom / chi2.ppf(share, freedom)) ** 0.5 for share in (0.975, 0.025))
        low, high = (f"{end:.3g}" for end in ends)
        detectable = minimum_detectable_difference(self.seeds, found.sd)
        lines = [
            f"Pilot of {len(self.values)} seeds: mean {found.value:.6g}, standard deviation {found.sd:.3g} "
            f"(95% interval {low} to {high}).",
            f"{self.seeds} seeds detect a difference of {detectable:.3g} with 80% power, if pairs are not "
            "correlated, for one comparison at 5%.",
        ]
        if self.margin is not None and found.sd > 0:
            needed = seeds_needed(self.margin, found.sd)
            lines.append(f"A difference of the margin, {self.margin:g}, needs about n = {needed} seeds.")
        return "\n".join([*lines, "Pilot runs are not counted in the comparison."])


def run_pilot(
    work: Callable[..., Any] | str | Sequence[str],
    given: dict[str, Any],
    out: Path,
    seeds: int,
    options: Options,
) -> Pilot:
    """Run only the reference, on seeds that the comparison does not use."""
    if seeds < 2:
        raise UserError(f"--pilot must be at least 2, got {seeds}")
    source = _source(work)
    _check_folder(out)
    with lock_run(out):
        log = Log(out / PILOT)
        plan = _plan(source, given, out)
        log.begin(plan)
        jobs = [Job(plan.name, plan.reference, PILOT_SEED + number) for number in range(seeds)]
        missing = [job for job in jobs if (job.activation, job.seed) not in log.rows]
        failures = _run(missing, source, plan.metric, out, log, options)
        rows = [log.rows.get((job.activation, job.seed)) for job in jobs]
    values = [row.metrics[plan.metric] for row in rows if row is not None and row.status == "finished"]
    numbers = tuple(value for value in values if value is not None)
    if len(numbers) < 2:
        raise UserError(
            f"{len(numbers)} of {seeds} pilot runs have a number, and {len(failures)} failed; a standard "
            "deviation needs at least two"
        )
    return Pilot(numbers, plan.margin, plan.seeds)


# -- what is run -----------------------------------------------------------------------------------------


class _Source(NamedTuple):
    work: Work
    name: str
    code: str
    is_forked: bool


def _source(work: Callable[..., Any] | str | Sequence[str]) -> _Source:
    """Check a function, or the words of a command."""
    if not isinstance(work, str) and not callable(work):
        words = tuple(map(str, work))
        if not words:
            raise UserError("expected a function module:name, or -- and the words of a command")
        files = [path for word in words if (path := Path(word)).is_file()]
        return _Source(words, shlex.join(words), _hash(b"".join(map(Path.read_bytes, files))), False)
    if isinstance(work, str):
        module, colon, place = work.partition(":")
        if not colon or not module or not place:
            raise UserError(f"expected a function as module:name, such as mypackage.train:run, got {work!r}")
        extensions.import_named(module)
        try:
            function = load_function(work)
        except AttributeError:
            raise UserError(f"The module {module!r} has no function {place!r}") from None
        if not callable(function):
            raise UserError(f"{work} is not a function but {type(function).__name__}")
        name = work
    else:
        function = work
        name = f"{getattr(work, '__module__', '?')}:{getattr(work, '__qualname__', type(work).__name__)}"
    try:
        check_signature(function, name)
    except InputError as error:
        raise UserError(str(error)) from None
    is_named = isinstance(work, str) or _is_importable(function, name)
    if not is_named:
        _check_fork()
    return _Source(name if is_named else function, name, _hash(_code_of(function, is_named)), not is_named)


def _is_importable(function: Any, name: str) -> bool:
    module = sys.modules.get(name.partition(":")[0])
    if module is None or module.__name__ == "__main__" or getattr(module, "__spec__", None) is None:
        return False
    try:
        return load_function(name) is function
    except (AttributeError, ImportError):
        return False


def _check_fork() -> None:
    """Another process cannot import a function of a notebook; a forked process already has it."""
    advice = "Define the function in a module and import it from there."
    if not hasattr(os, "fork"):
        raise UserError(f"Another process cannot import this function, and this system cannot fork. {advice}")
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise UserError(f"CUDA is initialized in this process, so a forked process cannot use it. {advice}")


def _code_of(function: Any, is_named: bool) -> bytes:
    try:
        found = inspect.getmodule(function) if is_named else function
        return inspect.getsource(found).encode()  # type: ignore[arg-type]
    except (OSError, TypeError):
        return b""


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12] if text else ""


# -- running ---------------------------------------------------------------------------------------------


class _Recorder(PoolObserver[Job, Outcome]):
    """Records each result as it arrives, and detects that the comparison cannot succeed."""

    def __init__(self, log: Log, out: Path, per_seed: int, inner: PoolObserver[Job, Outcome]) -> None:
        self.log, self.out, self.per_seed, self.inner = log, out, per_seed, inner
        self.failures: list[Outcome] = []
        self.done = 0

    def progressed(self, item: Job, progress: Progress | None) -> None:
        self.inner.progressed(item, progress)

    def noted(self, text: str) -> None:
        self.inner.noted(text)

    def ended(self, result: Outcome) -> None:
        path = self.out / FAILURES / f"{result.item.folder_name}.txt"
        if result.status == "failed":
            self.failures.append(result)
            if result.is_input_error:  # the error that ends the comparison
                return
            if result.traceback:
                path.parent.mkdir(exist_ok=True)
                path.write_text(result.traceback, encoding="utf-8")
                result = replace(result, failure=f"{result.failure} (traceback in {path})")
        else:
            path.unlink(missing_ok=True)
            self.log.add(result)
            self.done += 1
        self.inner.ended(result)

    @property
    def is_hopeless(self) -> bool:
        """Whether the input is wrong, or every activation of the first seed failed."""
        is_wrong = any(each.is_input_error for each in self.failures)
        return is_wrong or (not self.done and len(self.failures) >= max(self.per_seed, 2))


def _run(
    jobs: Sequence[Job], source: _Source, metric: str, out: Path, log: Log, options: Options
) -> list[Outcome]:
    """Execute the jobs; return the failures."""
    if options.jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {options.jobs}")
    if not jobs:
        return []
    threads = options.threads or max(1, cores() // options.jobs)
    task = RunTask(
        source.work, metric, out.resolve(), os.getcwd(), threads, tuple(extensions.imported),
        options.allow_unchanged, source.is_forked,
    )  # fmt: skip
    display = SweepDisplay(options.console, len(jobs)) if options.console is not None else None
    with display or contextlib.nullcontext(PoolObserver[Job, Outcome]()) as shown:
        per_seed = len({job.activation for job in jobs})
        recorder = _Recorder(log, out, per_seed, shown)

        def should_stop() -> bool:
            return recorder.is_hopeless or options.should_stop()

        if options.ray is not None:
            _run_on_ray(jobs, task, options, recorder, should_stop)
        else:
            run_pool(
                jobs, task, jobs=options.jobs, observer=recorder, should_stop=should_stop,
                devices=lambda number: visible_devices(number, _gpu_count(options.gpus)),
                time_limit=options.time_limit, start_method="fork" if source.is_forked else "spawn",
            )  # fmt: skip
    for failure in recorder.failures:
        if failure.is_input_error:
            raise UserError(f"{failure.item.folder_name}: {failure.failure}. Finished runs are in {out}.")
    return recorder.failures


def _gpu_count(gpus: float | None) -> int:
    if gpus is None:
        return 1
    if gpus < 1 or gpus != int(gpus):
        raise UserError(f"--gpus must be an integer of at least 1 on this machine, got {gpus:g}")
    return int(gpus)


def _run_on_ray(
    jobs: Sequence[Job],
    task: RunTask,
    options: Options,
    recorder: _Recorder,
    should_stop: Callable[[], bool],
) -> None:
    ray = load_ray()
    if task.is_forked:  # by value, since a node cannot fork this process
        pickled = functools.partial(_call_pickled, ray.cloudpickle.dumps(task.work))
        task = replace(task, work=pickled, is_forked=False)
    assert options.ray is not None
    run_cluster(
        jobs, _Execute(task, options.time_limit), lambda job, outcome: outcome, task.failed,
        address=options.ray, cpus=[float(task.threads)] * len(jobs), gpus=options.gpus or 0.0,
        retries=options.retries, observer=recorder, should_stop=should_stop,
    )  # fmt: skip


def _call_pickled(function: bytes, activation: str, seed: int) -> Any:
    from ray import cloudpickle

    return cloudpickle.loads(function)(activation=activation, seed=seed)


class _Last(PoolObserver[Job, Outcome]):
    progress: Progress | None = None

    def progressed(self, item: Job, progress: Progress | None) -> None:
        self.progress = progress


class _Execute(NamedTuple):
    """One run on a node, in its own process."""

    task: RunTask
    time_limit: float | None

    def __call__(self, item: Job, report: Report) -> Any:
        """Execute the run; return its outcome, or None if it was stopped."""
        last = _Last()
        found = run_pool(
            [item], self.task, observer=last, should_stop=lambda: report(last.progress),
            time_limit=self.time_limit,
        )  # fmt: skip
        return found[0] if found else None
