"""``iglu bench``: time activations; Ctrl-C keeps the results so far."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import iglu
from iglu.zoo import ZOO, parse
from iglu_lab.bench import slowdown, steps, timing
from iglu_lab.bench.cases import COMPARISONS, Case, cases
from iglu_lab.bench.figures import session_figures
from iglu_lab.bench.sessions import Session, read_session, refuse_to_replace
from iglu_lab.bench.timing import Inputs, Setting, Timed
from iglu_lab.bench.timing_tables import not_run_lines, tables_of
from iglu_lab.cli import INTERRUPTED
from iglu_lab.console import Terminal
from iglu_lab.errors import UserError, as_user_errors, check_least, check_writable, missing
from iglu_lab.extensions import ExtensionFlags
from iglu_lab.report.figures.render import write_figures
from iglu_lab.runs import provenance
from iglu_lab.stats.tabulate import markdown, terminal
from iglu_lab.storage import write_atomically

# The default activations of --train.
TRAINED = ("iglu", "iglu_approx", "relu", "gelu", "silu", "hardswish", "mish")


@dataclass(frozen=True, kw_only=True)
class BenchFlags(ExtensionFlags):
    """Time activations, forward and backward, as in the paper's Table 1, or in a training step."""

    activations: tuple[str, ...] = ()
    """Activation names (iglu, iglu_approx:0.5, gelu ...). If not given: all; with --train, common ones.
    Without a number, sigma is 1, as in the paper's Table 1; the time does not depend on it."""
    sizes: tuple[str, ...] = ("10k",)
    """Number of input elements: 1, 10k, 16M ..."""
    dtypes: tuple[Literal["float32", "bfloat16", "float16", "float64"], ...] = ("float32",)
    """Data types."""
    devices: tuple[str, ...] = ()
    """Devices (cpu, cuda, cuda:1 ...). If not given: the CPU, and CUDA if available."""
    threads: tuple[int, ...] = ()
    """CPU threads. If not given: 1, or with --train the default of torch."""
    backends: tuple[Literal["auto", "native", "triton", "reference"], ...] = ("auto",)
    """Backends of this library, one row each."""
    passes: tuple[Literal["forward", "recording", "backward", "node", "loss_backward"], ...] = (
        "forward", "recording", "backward", "loss_backward",
    )  # fmt: skip
    """forward: without autograd; recording: with autograd; backward: through the autograd engine; node:
    without the engine; loss_backward: loss.backward() of the sum, as in the paper."""
    call: Literal["module", "function"] = "module"
    """Time the module, as in the paper, or the function."""
    ratios_to: tuple[str, ...] = ("identity", "relu")
    """Baselines of the ratios; gelu_tanh and silu_glu are available too."""
    against: Path | None = None
    """bench.json (or train.json) of an earlier session to compare with. Exit status 1 if a ratio changed."""
    direct: bool = True
    """Include the direct formulas in torch operations."""
    pairs: bool = True
    """Include the gated pairs, iglu_glu and silu(x) * up."""
    compile: bool = False
    """Include compiled versions of our activations, the direct formulas, ReLU, GELU and SiLU (slow)."""
    rounds: int = 100
    """Number of interleaved rounds; ratios are medians over rounds."""
    iterations: int = 1_000
    """Total number of calls per case; adjusted to 0.2 to 1 ms per round."""
    train: bool = False
    """Time training steps instead: throughput and memory."""
    models: tuple[Literal["resnet20", "gpt2_block"], ...] = ("resnet20", "gpt2_block")
    """Models for --train."""
    warm_heap: bool = True
    """Keep freed memory for the next call, as in a long training run."""
    out: Path | None = None
    """Output directory for bench.json (or train.json) and plots. If not given: runs/bench/DATE."""
    pictures: bool = True
    """Write plots."""
    markdown: Path | None = None
    """Markdown file in which a section is replaced with the tables and this command."""
    section: str = "paper"
    """Name of the section, between <!-- bench:NAME --> and <!-- /bench:NAME -->."""

    def check(self) -> None:
        """Validate the flags."""
        with as_user_errors():
            for name in (*self.activations, *(each for each in self.ratios_to if each not in COMPARISONS)):
                parse(name)  # raises with a suggestion
        for size in self.sizes:
            elements(size)
        check_least(self, rounds=1, iterations=1)
        if any(count < 1 for count in self.threads):
            raise UserError(f"--threads must be at least 1, got {min(self.threads)}")
        for device in self.devices:
            _check_device(device)
        if self.markdown is not None:
            find_section(self.markdown, self.section)  # fail before measuring

    def earlier(self) -> Session | None:
        """The session of --against."""
        if self.against is None:
            return None
        if not self.against.exists():
            raise missing(self.against)
        try:
            return read_session(self.against, [])
        except (OSError, ValueError) as error:
            raise UserError(
                f"--against must name a file of iglu bench, got {self.against}: {error}"
            ) from error


def _check_device(name: str) -> None:
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"--devices {name}: not available ({reason})") from error


def elements(text: str) -> int:
    """Parse a size.

    >>> elements("1"), elements("10k"), elements("16M")
    (1, 10000, 16000000)
    """
    factor = {"k": 10**3, "M": 10**6}.get(text[-1:], 1)
    digits = text if factor == 1 else text[:-1]
    if not digits.replace("_", "").isdecimal() or int(digits) < 1:
        raise UserError(f"--sizes must be numbers like 1, 10k or 16M, got {text!r}")
    return int(digits) * factor


class _Bench:
    """Measures what the flags request."""

    tick: Callable[[str], None]  # advances the progress bar

    def __init__(self, flags: BenchFlags, session: Session, console: Terminal) -> None:
        self.flags, self.session, self.console = flags, session, console

    def run(self) -> None:
        flags = self.flags
        threads = flags.threads or (torch.get_num_threads() if flags.train else 1,)
        places = [
            (device, count) for device in self._devices() for count in (threads if device == "cpu" else (1,))
        ]
        if flags.train:
            names = self._names(TRAINED, "identity")
            timed = steps.contenders(names, flags.backends, flags.direct)
            with self._progress(len(places) * len(timed) * (flags.rounds + 1) * len(flags.models)):
                for (device, count), model in itertools.product(places, flags.models):
                    self._steps(steps.BENCH_MODELS[model](), timed, device, count)
            return
        settings = [
            Setting(device, dtype, count, elements(size))
            for device, count in places
            for dtype in flags.dtypes
            for size in flags.sizes
        ]
        count = sum(len(self._cases(setting)) for setting in settings)
        with self._progress(count * len(flags.passes) * flags.rounds):
            for setting, pass_name in itertools.product(settings, flags.passes):
                with timing.fresh_compiler() if flags.compile else contextlib.nullcontext():
                    self._operations(setting, self._cases(setting), pass_name)

    def _devices(self) -> list[str]:
        if not self.flags.devices and not torch.cuda.is_available():
            self.session.skip("cuda", "", "torch finds no CUDA device")
            return ["cpu"]
        return list(self.flags.devices or ("cpu", "cuda"))

    def _names(self, default: Iterable[str], *but: str) -> list[str]:
        """The requested activations and the baselines."""
        wanted = [name for name in self.flags.ratios_to if name in ZOO and name not in but]
        return list(dict.fromkeys([*(self.flags.activations or default), *wanted]))

    def _cases(self, setting: Setting) -> list[Case]:
        flags, names = self.flags, self._names(ZOO)
        if "gelu_tanh" in flags.ratios_to and "gelu" not in names:
            names.append("gelu")
        return cases(
            names, backends=flags.backends, call=flags.call, direct=flags.direct, pairs=flags.pairs,
            compiled=flags.compile, device=setting.device, dtype=getattr(torch, setting.dtype),
        )  # fmt: skip

    @contextlib.contextmanager
    def _progress(self, total: int) -> Iterator[None]:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        )  # fmt: skip
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task("", total=total)
            self.tick = lambda text: progress.update(task, advance=1, description=text)
            yield

    def _operations(self, setting: Setting, chosen: Sequence[Case], pass_name: str) -> None:
        flags, inputs = self.flags, Inputs.make(setting)

        def prepare(case: Case) -> Timed:
            block = timing.block_of(case, pass_name, inputs, setting.threads)
            block(1)  # compiles and allocates; raises if unsupported
            calls = timing.calls_per_block(block(1), flags.iterations, flags.rounds)
            with case.on_backend():
                served_by = iglu.explain(inputs.x) if case.is_ours else None
            what = {"is_pair": case.is_pair, "statement": case.statement, "served_by": served_by}
            where = dataclasses.asdict(setting)
            return Timed(case, block, calls, {**what, "calls_a_round": calls, **where, "pass": pass_name})

        self._measure("operation", chosen, f"{pass_name}, {setting}", prepare)

    def _steps(self, model: steps.BenchModel, chosen: Sequence[Case], device: str, threads: int) -> None:
        def prepare(case: Case) -> Timed:
            self.tick(f"{model.label}: memory")
            step = steps.TrainingStep(model, case, device)
            step()  # creates the optimizer state
            what = {"model": model.name, "model_label": model.label, "unit": model.unit}
            where = {"device": device, "dtype": "float32", "threads": threads}
            memory = {"kept_bytes": steps.kept_bytes(step), "peak_bytes": steps.peak_bytes(step)}
            facts = {**what, "items_a_step": model.items, **where, **memory}
            return Timed(case, step.block(threads), facts=facts)

        self._measure("training", chosen, model.label, prepare)

    def _measure(
        self, kind: str, chosen: Sequence[Case], where: str, prepare: Callable[[Case], Timed]
    ) -> None:
        """Measure in interleaved rounds; Ctrl-C keeps the results.  Skip cases that fail."""
        timed = []
        for case in chosen:
            try:
                timed.append(prepare(case))
            except Exception as error:  # noqa: PERF203
                self.session.skip(f"{case.label}, {case.kernel}", where, error)
        try:
            for _ in timing.interleave(timed, self.flags.rounds):
                self.tick(where)
        finally:
            self.session.add(timing.rows_of(kind, timed, self.flags.ratios_to))


def run(flags: BenchFlags, command: Sequence[str], console: Terminal) -> Session:
    """Measure what the flags request; after Ctrl-C the session has the results so far."""
    stamp = provenance.collect()
    folder = flags.out or Path("runs/bench") / stamp["date"].partition("+")[0].replace(":", "-")
    path = folder / ("train.json" if flags.train else "bench.json")
    refuse_to_replace(path)
    check_writable(folder)
    heading = {
        "command": shlex.join(["iglu", "bench", *command]),
        "provenance": stamp,
        "flags": json.loads(json.dumps(dataclasses.asdict(flags), default=str)),
    }
    session = Session(path, heading)
    with timing.warm_heap(flags.warm_heap) as is_warm:
        heading["warm_heap"] = is_warm
        try:
            _Bench(flags, session, console).run()
        except KeyboardInterrupt:
            session.interrupted = True
    session.write()
    return session


def show(session: Session, flags: BenchFlags, console: Terminal) -> None:
    """Print the tables, write the plots, update the Markdown file."""
    shown = tables_of(session, flags.ratios_to)
    for table in shown:
        console.print(terminal(table))
        console.print()
    not_run = not_run_lines(session.not_run)
    for line in not_run:
        console.say(f"Not run: {line}")
    console.say(session.origin, "dim")
    if session.interrupted:
        console.say("Interrupted: the tables have the results so far.")
    written = [session.path]
    if flags.pictures and session.rows:
        figures = write_figures(session_figures(session.rows), session.path.parent)
        written += [figure.paths[0] for figure in figures]
    if flags.markdown is not None:
        skipped = "".join(f"Not run: {line}.\n\n" for line in not_run)
        text = "\n".join(map(markdown, shown))
        text = f"`{session.heading['command']}`\n\n{text}\n{skipped}\n{session.origin}."
        fill_section(flags.markdown, flags.section, text)
        written.append(flags.markdown)
    for path in written:
        console.say(f"wrote {path}", "dim")
    console.say(f"To compare with the paper: iglu report {session.path.parent}", "dim")


def show_changes(earlier: Session, session: Session, console: Terminal) -> bool:
    """Report the ratios that changed since an earlier session; return whether any did."""
    ratios = slowdown.compared(earlier.rows, session.rows)
    found = [each for each in ratios if each.has_changed]
    for each in found:
        console.say(f"Changed: {each}")
    console.say(f"{len(found)} of {len(ratios)} ratios changed since: {earlier.origin}")
    return bool(found)


def find_section(path: Path, section: str) -> re.Match[str]:
    """The part of a Markdown file from ``<!-- bench:section -->`` to ``<!-- /bench:section -->``."""
    if not path.is_file():
        raise UserError(f"--markdown must be an existing file, got {path}")
    begin, end = f"<!-- bench:{section} -->", f"<!-- /bench:{section} -->"
    document = path.read_text(encoding="utf-8")
    found = re.search(f"({re.escape(begin)}).*?({re.escape(end)})", document, re.DOTALL)
    if found is None:
        known = ", ".join(re.findall(r"<!-- bench:(\S+) -->", document)) or "none"
        raise UserError(f"{path} has no section {section!r}, from {begin} to {end}. Its sections: {known}.")
    return found


def fill_section(path: Path, section: str, text: str) -> None:
    """Replace the text between the two markers."""
    found = find_section(path, section)
    document = found.string
    filled = f"{found[1]}\n{text.strip()}\n{found[2]}"
    with write_atomically(path) as file:
        file.write((document[: found.start()] + filled + document[found.end() :]).encode())


def main(argv: list[str]) -> int:
    """Run ``iglu bench``; exit status 130 after Ctrl-C, 1 if a ratio changed."""
    flags = tyro.cli(BenchFlags, args=argv, prog="iglu bench")
    flags.check()
    earlier = flags.earlier()
    console = Terminal()
    session = run(flags, argv, console)
    show(session, flags, console)
    if session.interrupted:
        return INTERRUPTED
    return int(earlier is not None and show_changes(earlier, session, console))
