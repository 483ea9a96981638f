"""``iglu compare MODULE:FUNCTION``, or ``iglu compare ... -- COMMAND``: compare activations in the user's own
model and training code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from iglu_lab.cli import DONE, FAILED, INTERRUPTED
from iglu_lab.commands.sweep import read_time
from iglu_lab.comparing.api import Options, run_comparison, run_pilot
from iglu_lab.comparing.output import PAGE, write_result
from iglu_lab.comparing.result import CompareResult, read_result
from iglu_lab.console import Terminal
from iglu_lab.errors import UserError, check_least
from iglu_lab.extensions import ExtensionFlags
from iglu_lab.stats.tabulate import terminal
from iglu_lab.training.progress import StopOnSignal


@dataclass(frozen=True, kw_only=True)
class CompareFlags(ExtensionFlags):
    """Train with each activation over several seeds, and judge the differences to the first one.

    The function takes activation and seed, and returns a number or a dict of metrics, or yields one dict per
    epoch. A command after -- reads IGLU_ACTIVATION and IGLU_SEED from its environment, and prints its metrics
    as a JSON line or writes them to the file named in IGLU_RESULT.

    Exit status: 0 all runs are done (diverged ones included), 1 some failed, 2 invalid input, 130 Ctrl-C. The
    same command resumes, also with more seeds or activations. Options that are not given are taken from
    plan.toml in the output directory."""

    function: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="MODULE:FUNCTION | -- COMMAND")
    ] = None
    """The function, such as mypackage.train:run. The current folder is searched too."""
    activations: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="NAME ...")] = None
    """Activations, the reference first: relu gelu iglu:5 ..."""
    seeds: int | None = None
    """Number of seeds, starting at 0. If not given: 5. Verdicts need at least 3."""
    margin: float | None = None
    """Largest difference that does not matter, in units of the metric. Required for equivalence."""
    metric: str | None = None
    """The metric to compare by, if the function returns several."""
    lower_is_better: bool | None = None
    """Whether a smaller metric is better. If not given: for names such as loss, error and perplexity."""
    looks: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="N ...")] = None
    """Numbers of seeds at which to give interim verdicts. The looks share the significance level of 5%."""
    spending: Annotated[tuple[float, ...] | None, tyro.conf.arg(metavar="LEVEL ...")] = None
    """Significance level of each look, at most 0.05 in total. If not given: equal shares."""
    pilot: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Run N seeds of the reference only, print their standard deviation and the seeds needed, and exit."""
    show: bool = False
    """Judge the existing runs in the output directory, and exit."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("compare")
    """Output directory."""
    jobs: int = 1
    """Number of parallel runs on this machine."""
    threads: int | None = None
    """CPU threads per run. If not given: the cores divided by --jobs. Functions of a notebook use 1."""
    run_time_limit: Annotated[str | None, tyro.conf.arg(metavar="2h|90m|30s")] = None
    """Time limit per run. A run that exceeds it counts as failed."""
    gpus: float | None = None
    """GPUs per run. If not given: one per job on this machine if it has any, none on Ray."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Run on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT (extra ray)."""
    retries: int = 3
    """Ray: retries of a run whose worker or node dies."""
    allow_unchanged: bool = False
    """Accept runs that never used their activation, for functions that build the activation themselves."""


def main(argv: list[str]) -> int:
    end = argv.index("--") if "--" in argv else len(argv)
    command = argv[end + 1 :]
    flags = tyro.cli(CompareFlags, args=argv[:end], prog="iglu compare")
    check_least(flags, jobs=1, retries=0)
    console = Terminal()
    if flags.show:
        result = read_result(flags.out)
        write_result(result, flags.out)
        return _conclude(result, flags, console)
    if bool(command) == (flags.function is not None):
        raise UserError("expected either a function MODULE:FUNCTION, or -- and a command")
    work = command or flags.function
    assert work is not None
    limit = None if flags.run_time_limit is None else read_time(flags.run_time_limit, "--run-time-limit")
    names = ("activations", "seeds", "margin", "metric", "lower_is_better", "looks", "spending")
    given: dict[str, Any] = {name: getattr(flags, name) for name in names}
    with StopOnSignal().installed() as signal:
        options = Options(
            flags.jobs, flags.threads, limit, flags.allow_unchanged, flags.ray, flags.gpus, flags.retries,
            lambda: signal.is_wanted, console,
        )  # fmt: skip
        if flags.pilot is not None:
            console.say(run_pilot(work, given, flags.out, flags.pilot, options))
            return DONE
        result = run_comparison(work, given, flags.out, options)
        status = _conclude(result, flags, console)
        if result.missing and signal.is_wanted:
            console.say("Stopped; the same command resumes.")
            return INTERRUPTED
    return status


def _conclude(result: CompareResult, flags: CompareFlags, console: Terminal) -> int:
    console.print(terminal(result.table()))
    for each in result.failures:
        console.say(f"failed: {each.item.folder_name}: {each.failure}")
    console.say(f"Written: {flags.out / PAGE}; in the same folder compare.md, compare.json, CSV, figures")
    return FAILED if result.missing else DONE
