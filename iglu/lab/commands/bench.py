"""``iglu bench``: flags, what is run in which order, and what is written when it ends, also by Ctrl-C."""

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
from typing import Any, Literal

import torch
import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import iglu
from iglu.lab.bench import drift, pictures, steps, timing
from iglu.lab.bench.sittings import Sitting, read_sitting, refuse_to_replace
from iglu.lab.bench.subjects import COMPARISONS, Subject, subjects
from iglu.lab.bench.tables import not_run_lines, tables_of
from iglu.lab.bench.timing import Block, Inputs, Rounds, Setting
from iglu.lab.cli import INTERRUPTED
from iglu.lab.console import Terminal
from iglu.lab.mistakes import MistakeError, as_mistakes, check_least, check_writable
from iglu.lab.results.tables import markdown, terminal
from iglu.lab.runs import provenance
from iglu.lab.storage import write_atomically
from iglu.zoo import ZOO, parse

# The activations one would train a network with, unless told otherwise.
TRAINED = ("iglu", "iglu_approx", "relu", "gelu", "silu", "hardswish", "mish")


@dataclass(frozen=True)
class BenchFlags:
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
    ratios_to: tuple[str, ...] = ("identity", "relu")
    """Ratios to these rows; besides names of the zoo: gelu_tanh, silu_glu."""
    against: Path | None = None
    """The bench.json (or train.json) of an earlier sitting: every ratio that has left its spread is named,
    and ends the command with status 1."""
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
    out: Path | None = None
    """Folder for bench.json (or train.json) and the pictures, none there yet; by default one of its own below
    runs/bench, named after the time."""
    pictures: bool = True
    """Draw them."""
    markdown: Path | None = None
    """A Markdown file in which to fill a section with the tables and this command."""
    section: str = "paper"
    """Which section of it, between <!-- bench:NAME --> and <!-- /bench:NAME -->."""

    def check(self) -> None:
        """Refuse what cannot be run, before anything is."""
        with as_mistakes():
            for name in (*self.activations, *(each for each in self.ratios_to if each not in COMPARISONS)):
                parse(name)  # raises with a suggestion
        for size in self.sizes:
            elements(size)
        check_least(self, rounds=1, iterations=1)
        if any(count < 1 for count in self.threads):
            raise MistakeError(f"--threads must be at least 1, got {min(self.threads)}")
        for device in self.devices:
            _check_device(device)
        if self.markdown is not None:
            find_section(self.markdown, self.section)  # now, not after an hour of measuring

    def earlier(self) -> Sitting | None:
        """What to hold the rows against."""
        if self.against is None:
            return None
        try:
            return read_sitting(self.against, [])
        except (OSError, ValueError) as error:
            raise MistakeError(
                f"--against must name a file of iglu bench, got {self.against}: {error}"
            ) from error


def _check_device(name: str) -> None:
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise MistakeError(f"--devices {name}: there is none here ({reason})") from error


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


Prepare = Callable[[Subject], tuple[Block, int, dict[str, Any]]]
"""What to time, how many calls of it in a round, and what is to be said of it."""


class _Bench:
    """What the flags ask for, measured into the record."""

    tick: Callable[[str], None]  # one block more, and of what

    def __init__(self, flags: BenchFlags, record: Sitting, console: Terminal) -> None:
        self.flags, self.record, self.console = flags, record, console

    def run(self) -> None:
        flags = self.flags
        threads = flags.threads or (torch.get_num_threads() if flags.train else 1,)
        places = [
            (device, count) for device in self._devices() for count in (threads if device == "cpu" else (1,))
        ]
        if flags.train:
            names = self._names(TRAINED, "identity")
            everyone = steps.contenders(names, flags.backends, flags.direct)
            with self._progress(len(places) * len(everyone) * (flags.rounds + 1) * len(flags.models)):
                for (device, count), model in itertools.product(places, flags.models):
                    self._steps(steps.WORKLOADS[model](), everyone, device, count)
            return
        settings = [
            Setting(device, dtype, count, elements(size))
            for device, count in places
            for dtype in flags.dtypes
            for size in flags.sizes
        ]
        count = sum(len(self._subjects(setting)) for setting in settings)
        with self._progress(count * len(flags.passes) * flags.rounds):
            for setting, pass_name in itertools.product(settings, flags.passes):
                with timing.compilation_of_its_own() if flags.compile else contextlib.nullcontext():
                    self._operations(setting, self._subjects(setting), pass_name)

    def _devices(self) -> list[str]:
        if not self.flags.devices and not torch.cuda.is_available():
            self.record.skip("cuda", "", "torch finds no CUDA device")
            return ["cpu"]
        return list(self.flags.devices or ("cpu", "cuda"))

    def _names(self, default: Iterable[str], *but: str) -> list[str]:
        """The activations asked for, and those that ratios are to."""
        wanted = [name for name in self.flags.ratios_to if name in ZOO and name not in but]
        return list(dict.fromkeys([*(self.flags.activations or default), *wanted]))

    def _subjects(self, setting: Setting) -> list[Subject]:
        flags, names = self.flags, self._names(ZOO)
        if "gelu_tanh" in flags.ratios_to and "gelu" not in names:
            names.append("gelu")
        return subjects(
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

    def _operations(self, setting: Setting, everyone: Sequence[Subject], pass_name: str) -> None:
        flags, inputs = self.flags, Inputs.make(setting)

        def prepare(subject: Subject) -> tuple[Block, int, dict[str, Any]]:
            block = timing.block_of(subject, pass_name, inputs, setting.threads)
            block(1)  # compiles, allocates, and shows whether it runs at all
            calls = timing.calls_in_a_block(block(1), flags.iterations, flags.rounds)
            with subject.served():
                served_by = iglu.explain(inputs.x) if subject.is_ours else None
            what = {"is_pair": subject.is_pair, "statement": subject.statement, "served_by": served_by}
            where = dataclasses.asdict(setting)
            return block, calls, {**what, "calls_a_round": calls, **where, "pass": pass_name}

        self._measure("operation", everyone, f"{pass_name}, {setting}", prepare)

    def _steps(
        self, workload: steps.Workload, everyone: Sequence[Subject], device: str, threads: int
    ) -> None:
        def prepare(contender: Subject) -> tuple[Block, int, dict[str, Any]]:
            self.tick(f"{workload.label}: memory")
            step = steps.TrainingStep(workload, contender, device)
            step()  # the state of the optimizer is there from now on
            what = {"model": workload.name, "model_label": workload.label, "unit": workload.unit}
            where = {"device": device, "dtype": "float32", "threads": threads}
            memory = {"kept_bytes": steps.kept_bytes(step), "peak_bytes": steps.peak_bytes(step)}
            return step.block(threads), 1, {**what, "items_a_step": workload.items, **where, **memory}

        self._measure("training", everyone, workload.label, prepare)

    def _measure(self, kind: str, everyone: Sequence[Subject], where: str, prepare: Prepare) -> None:
        """In interleaved rounds; one that cannot be prepared is told and left out, and what was measured
        until Ctrl-C is kept."""
        blocks, calls, facts = {}, {}, {}
        for subject in everyone:
            try:
                blocks[subject], calls[subject], facts[subject] = prepare(subject)
            except Exception as error:  # noqa: PERF203
                self.record.skip(f"{subject.label}, {subject.kernel}", where, error)
        rounds = Rounds()
        try:
            for _ in timing.interleave(blocks, calls, self.flags.rounds, rounds):
                self.tick(where)
        finally:
            self.record.add(timing.rows_of(kind, rounds, facts, self.flags.ratios_to))


def run(flags: BenchFlags, command: Sequence[str], console: Terminal) -> Sitting:
    """Measure everything the flags ask for; stopped by Ctrl-C, the sitting holds what there is."""
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
    record = Sitting(path, heading)
    with timing.warm_heap(flags.warm_heap) as is_warm:
        heading["warm_heap"] = is_warm
        try:
            _Bench(flags, record, console).run()
        except KeyboardInterrupt:
            record.interrupted = True
    record.write()
    return record


def show(record: Sitting, flags: BenchFlags, console: Terminal) -> None:
    """Print the tables, draw the pictures, fill the Markdown."""
    shown = tables_of(record, flags.ratios_to)
    for table in shown:
        console.print(terminal(table))
        console.print()
    not_run = not_run_lines(record.not_run)
    for line in not_run:
        console.say(f"Not run: {line}")
    console.say(record.sentence, "dim")
    if record.interrupted:
        console.say("Interrupted: the tables hold what was measured until then.")
    written = [record.path]
    if flags.pictures and record.rows:
        written += pictures.draw(record.rows, record.path.parent)
    if flags.markdown is not None:
        skipped = "".join(f"Not run: {line}.\n\n" for line in not_run)
        text = "\n".join(map(markdown, shown))
        text = f"`{record.heading['command']}`\n\n{text}\n{skipped}\n{record.sentence}."
        fill_section(flags.markdown, flags.section, text)
        written.append(flags.markdown)
    for path in written:
        console.say(f"wrote {path}", "dim")
    console.say(f"Beside the paper, with figures and a page: iglu report {record.path.parent}", "dim")


def show_moved(earlier: Sitting, record: Sitting, console: Terminal) -> bool:
    """Name every ratio that has left its spread; whether there was one."""
    ratios = drift.compared(earlier.rows, record.rows)
    found = [each for each in ratios if each.has_moved]
    for each in found:
        console.say(f"Moved: {each}")
    console.say(f"{len(found)} of {len(ratios)} ratios have left their spread since: {earlier.sentence}")
    return bool(found)


def find_section(path: Path, section: str) -> re.Match[str]:
    """The part of a Markdown file from ``<!-- bench:section -->`` to ``<!-- /bench:section -->``."""
    if not path.is_file():
        raise MistakeError(f"--markdown must name a file to fill in, got {path}, which is none")
    begin, end = f"<!-- bench:{section} -->", f"<!-- /bench:{section} -->"
    document = path.read_text(encoding="utf-8")
    found = re.search(f"({re.escape(begin)}).*?({re.escape(end)})", document, re.DOTALL)
    if found is None:
        known = ", ".join(re.findall(r"<!-- bench:(\S+) -->", document)) or "none"
        raise MistakeError(
            f"{path} has no section {section!r}, from {begin} to {end}. Sections there: {known}."
        )
    return found


def fill_section(path: Path, section: str, text: str) -> None:
    """Replace what is between the two marks."""
    found = find_section(path, section)
    document = found.string
    filled = f"{found[1]}\n{text.strip()}\n{found[2]}"
    with write_atomically(path) as file:
        file.write((document[: found.start()] + filled + document[found.end() :]).encode())


def main(argv: list[str]) -> int:
    """Run ``iglu bench``; 130 after Ctrl-C, 1 where a ratio has left its spread."""
    flags = tyro.cli(BenchFlags, args=argv, prog="iglu bench")
    flags.check()
    earlier = flags.earlier()
    console = Terminal()
    record = run(flags, argv, console)
    show(record, flags, console)
    if record.interrupted:
        return INTERRUPTED
    return int(earlier is not None and show_moved(earlier, record, console))
