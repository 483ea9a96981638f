"""The command: flags, what is run in which order, and what is written when it ends, also by Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

import iglu
from iglu.lab.bench import steps as training
from iglu.lab.bench import timing
from iglu.lab.bench.subjects import COMPARISONS, Subject, subjects
from iglu.lab.bench.tables import fill_section, find_section, not_run_lines, tables_of
from iglu.lab.bench.timing import Inputs, Rounds, Setting
from iglu.lab.mistakes import MistakeError
from iglu.lab.runs import provenance
from iglu.zoo import ZOO, parse

# The activations one would train a network with, unless told otherwise.
TRAINED = ("iglu", "iglu_approx", "relu", "gelu", "silu", "hardswish", "mish")


@dataclass(frozen=True)
class Bench:
    """Time activations, forward and backward, as the paper's Table 1 does, or in a training step."""

    activations: tuple[str, ...] = ()
    """Names as in iglu.zoo (iglu, iglu_approx:0.5, gelu, ...); none: the whole zoo, or with --train those
    that networks are trained with."""
    sizes: tuple[str, ...] = ("10k",)
    """Elements of the input: 1, 10k, 16M, ..."""
    dtypes: tuple[Literal["float32", "bfloat16", "float16", "float64"], ...] = ("float32",)
    """Precisions."""
    devices: tuple[str, ...] = ()
    """cpu, cuda, cuda:1, ...; none: the CPU, and CUDA where there is one."""
    threads: tuple[int, ...] = ()
    """CPU threads; none: 1, or with --train as many as torch would take."""
    backends: tuple[Literal["auto", "native", "triton", "plain"], ...] = ("auto",)
    """The backends of this library, a row each."""
    passes: tuple[Literal["forward", "recording", "backward", "node", "loss_backward"], ...] = (
        "forward", "recording", "backward", "loss_backward",
    )  # fmt: skip
    """forward: nothing recorded; recording: with a graph; backward: the derivative, through autograd's
    engine; node: the same without the engine; loss_backward: loss.backward() of the sum, as in the paper."""
    call: Literal["module", "function"] = "module"
    """Time the module, as in the paper, or the function beneath it."""
    against: tuple[str, ...] = ("identity", "relu")
    """Ratios to these rows; besides names of the zoo: gelu_tanh, silu_glu."""
    direct: bool = True
    """Rows for the direct formulas, one torch operation after the other."""
    pairs: bool = True
    """Rows for the gated pairs, iglu_glu beside silu(x) * up."""
    compile: bool = False
    """Rows for torch.compile of ours, the direct formulas, ReLU, GELU and SiLU; compiling takes time."""
    rounds: int = 100
    """Interleaved rounds; every ratio is a median over them."""
    iterations: int = 1_000
    """Calls in all; a round's share is stretched to 0.2 ms and cut at 1 ms."""
    train: bool = False
    """Time training steps instead: images or tokens a second, and memory."""
    models: tuple[Literal["resnet20", "gpt2_block"], ...] = ("resnet20", "gpt2_block")
    """With --train: which."""
    warm_heap: bool = True
    """Keep freed blocks of memory for the next call, as a long training run would."""
    out: Path = Path("runs/bench")
    """Folder for bench.json (or train.json) and the pictures."""
    pictures: bool = True
    """Draw them."""
    markdown: Path | None = None
    """A Markdown file in which to fill a section with the tables and this command."""
    section: str = "paper"
    """Which section of it, between <!-- bench:NAME --> and <!-- /bench:NAME -->."""

    def check(self) -> None:
        """Raise ValueError for what cannot be run, before anything is."""
        for name in (*self.activations, *(each for each in self.against if each not in COMPARISONS)):
            parse(name)  # raises with a suggestion
        for size in self.sizes:
            elements(size)
        for flag in ("rounds", "iterations"):
            if getattr(self, flag) < 1:
                raise MistakeError(f"--{flag} must be at least 1, got {getattr(self, flag)}")
        if any(count < 1 for count in self.threads):
            raise MistakeError(f"--threads must be at least 1, got {min(self.threads)}")
        if self.markdown is not None:
            find_section(self.markdown, self.section)  # now, not after an hour of measuring


def elements(text: str) -> int:
    """Read a size.

    >>> elements("1"), elements("10k"), elements("16M")
    (1, 10000, 16000000)
    """
    factor = {"k": 10**3, "M": 10**6}.get(text[-1:], 1)
    digits = text if factor == 1 else text[:-1]
    if not digits.replace("_", "").isdecimal() or int(digits) < 1:
        raise MistakeError(f"--sizes must be numbers like 1, 10k or 16M, got {text!r}")
    return int(digits) * factor


@dataclass
class Record:
    """What has been measured so far; written again whenever something is added."""

    path: Path
    heading: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    not_run: list[dict[str, str]] = field(default_factory=list)
    interrupted: bool = False

    def add(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows
        self.write()

    def skip(self, what: str, where: str, why: object) -> None:
        reason = str(why).strip().partition("\n")[0] or type(why).__name__
        entry = {"what": what, "where": where, "why": reason}
        if entry not in self.not_run:
            self.not_run.append(entry)

    def write(self) -> None:
        """All or nothing: a reader never sees half a file."""
        body = {
            **self.heading, "interrupted": self.interrupted, "not_run": self.not_run, "rows": self.rows,
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".tmp")
        beside.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, self.path)


Tick = Callable[[str], None]


def _devices(flags: Bench, record: Record) -> list[str]:
    found = []
    for device in flags.devices or ("cpu", "cuda"):
        if device.startswith("cuda") and not torch.cuda.is_available():
            record.skip(device, "", "torch finds no CUDA device")
        else:
            found.append(device)
    return found


def _operation_settings(flags: Bench, record: Record) -> list[Setting]:
    return [
        Setting(device, dtype, threads, elements(size))
        for device in _devices(flags, record)
        for dtype in flags.dtypes
        for threads in (flags.threads or (1,) if device == "cpu" else (1,))
        for size in flags.sizes
    ]


def _subjects_of(flags: Bench, setting: Setting) -> list[Subject]:
    names = list(flags.activations or ZOO)
    extra = [name for name in dict.fromkeys(flags.against) if name in ZOO and name not in names]
    if "gelu_tanh" in flags.against and "gelu" not in names + extra:
        extra.append("gelu")
    return subjects(
        names + extra, backends=flags.backends, call=flags.call, direct=flags.direct, pairs=flags.pairs,
        compiled=flags.compile, device=setting.device, dtype=getattr(torch, setting.dtype),
    )  # fmt: skip


def run_operations(flags: Bench, record: Record, tick: Tick, settings: Sequence[Setting]) -> None:
    for setting in settings:
        inputs = Inputs.make(setting)
        for pass_name in flags.passes:
            what = f"{pass_name}, {setting}"
            everyone = _subjects_of(flags, setting)
            with timing.compilation_of_its_own() if flags.compile else contextlib.nullcontext():
                blocks, calls, served = {}, {}, {}
                for subject in everyone:
                    try:
                        block = timing.block_of(subject, pass_name, inputs, setting.threads)
                        block(1)  # compiles, allocates, and shows whether it runs at all
                        estimate = block(1)
                    except Exception as error:
                        record.skip(f"{subject.label}, {subject.kernel}", what, error)
                        continue
                    blocks[subject] = block
                    if subject.is_ours:
                        with timing.served_by(subject):
                            served[subject] = iglu.explain(inputs.x)
                    calls[subject] = timing.calls_in_a_block(estimate, flags.iterations, flags.rounds)
                rounds = Rounds()
                try:
                    for _ in timing.interleave(blocks, calls, flags.rounds, rounds):
                        tick(what)
                finally:
                    record.add(
                        timing.rows_of(rounds, everyone, calls, setting, pass_name, flags.against, served)
                    )


def run_training(flags: Bench, record: Record, tick: Tick) -> None:
    names = list(flags.activations or TRAINED)
    names += [name for name in flags.against if name in ZOO and name != "identity" and name not in names]
    for device in _devices(flags, record):
        for threads in (flags.threads or (torch.get_num_threads(),)) if device == "cpu" else (1,):
            for model in flags.models:
                workload = training.WORKLOADS[model]()
                _train(workload, names, flags, record, tick, device, threads)


def _train(
    workload: training.Workload,
    names: Sequence[str],
    flags: Bench,
    record: Record,
    tick: Tick,
    device: str,
    threads: int,
) -> None:
    memory, blocks, calls = {}, {}, {}
    for contender in training.contenders(names, flags.backends, flags.direct):
        tick(f"{workload.label}: memory")
        try:
            step = training.TrainingStep(workload, contender, device)
            step()  # the state of the optimizer is there from now on
            memory[contender] = (training.kept_bytes(step), training.peak_bytes(step))
        except Exception as error:
            record.skip(f"{contender.label}, {contender.kernel}", workload.label, error)
            continue
        blocks[contender], calls[contender] = step.block(threads), 1
    rounds = Rounds()
    try:
        for _ in timing.interleave(blocks, calls, flags.rounds, rounds):
            tick(workload.label)
    finally:
        record.add(training.rows_of(rounds, memory, workload, device, threads, flags.against))


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Tick]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)

        def tick(description: str) -> None:
            progress.update(task, advance=1, description=description)

        yield tick


def run(flags: Bench, command: Sequence[str], console: Console) -> Record:
    """Measure everything the flags ask for; stopped by Ctrl-C, the record holds what there is."""
    heading = {
        "command": shlex.join(["iglu", "bench", *command]),
        "provenance": provenance.collect().as_dict(),
        "flags": json.loads(json.dumps(dataclasses.asdict(flags), default=str)),
    }
    record = Record(flags.out / ("train.json" if flags.train else "bench.json"), heading)
    with timing.warm_heap(flags.warm_heap) as is_warm:
        heading["warm_heap"] = is_warm
        try:
            if flags.train:
                count = len(training.contenders(flags.activations or TRAINED, flags.backends, flags.direct))
                total = count * (flags.rounds + 1) * len(flags.models)
                with _progress(console, total) as tick:
                    run_training(flags, record, tick)
            else:
                settings = _operation_settings(flags, record)
                count = sum(len(_subjects_of(flags, setting)) for setting in settings)
                with _progress(console, count * len(flags.passes) * flags.rounds) as tick:
                    run_operations(flags, record, tick, settings)
        except KeyboardInterrupt:
            record.interrupted = True
    record.write()
    return record


def show(record: Record, flags: Bench, console: Console) -> None:
    """Print the tables, draw the pictures, fill the Markdown."""
    found = provenance.Provenance(**record.heading["provenance"])
    shown = tables_of(record.rows, flags.against)
    for table in shown:
        console.print(table.to_rich())
        console.print()
    not_run = not_run_lines(record.not_run)
    for line in not_run:
        console.print(Text(f"Not run: {line}"))
    console.print(f"[dim]{found.sentence()}[/]", highlight=False)
    if record.interrupted:
        console.print("Interrupted: the tables hold what was measured until then.")
    written = [record.path]
    if flags.pictures and record.rows:
        from iglu.lab.bench import pictures

        written += pictures.draw(record.rows, flags.out)
    if flags.markdown is not None:
        skipped = "".join(f"Not run: {line}.\n\n" for line in not_run)
        text = "\n".join(table.to_markdown() for table in shown)
        text = f"`{record.heading['command']}`\n\n{text}\n{skipped}\n{found.sentence()}."
        fill_section(flags.markdown, flags.section, text)
        written.append(flags.markdown)
    for path in written:
        console.print(f"[dim]wrote[/] {path}", highlight=False)


def main(argv: list[str]) -> int:
    """Run ``iglu bench``; 2 for a mistake in the flags, 130 after Ctrl-C."""
    flags = tyro.cli(Bench, args=argv, prog="iglu bench")
    try:
        flags.check()
    except ValueError as error:
        print(f"iglu bench: {error}", file=sys.stderr)
        return 2
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # a file or a pipe has no width to keep to
    record = run(flags, argv, console)
    show(record, flags, console)
    return 130 if record.interrupted else 0
