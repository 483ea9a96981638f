"""The command ``iglu``: ``doctor`` needs torch alone, all else is handed to the lab."""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import os
import platform
import sys

import torch

import iglu
from iglu import integrations
from iglu.installed import pip_install
from iglu.kernels import cpu

_USAGE = "usage: iglu COMMAND [options]; iglu COMMAND --help says more"


def main(argv: list[str] | None = None) -> int:
    """Run a command; its exit status."""
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # here, where a reader that has gone can be told from a fault
        return status
    except BrokenPipeError:
        if not _has_reader_gone():
            raise
        return 141  # 128 + SIGPIPE, as a shell says it


def _has_reader_gone() -> bool:
    """Whether nobody reads what we print, as after ``| head``; then nothing more is printed."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name == "doctor":
        print(doctor())
        return 0
    from iglu.lab import cli

    commands = {"doctor": "versions, device, and which kernel serves and why"}
    commands |= cli.COMMANDS
    if name in ("-h", "--help"):
        print(_USAGE + "\n\n" + "\n".join(f"  {key:8} {about}" for key, about in commands.items()))
        return 0
    if name in ("-V", "--version"):
        print(f"iglu-torch {iglu.__version__}")
        return 0
    if name not in commands:
        near = difflib.get_close_matches(name, commands, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Commands: {', '.join(commands)}."
        print(f"iglu: unknown command {name!r}. {hint}", file=sys.stderr)
        return 2
    try:
        return cli.run(name, arguments[1:])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "iglu":
            raise
        print(f"iglu {name} needs {error.name}: {pip_install('lab')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def doctor() -> str:
    """What is here, which kernel serves, and the one command that would mend what is missing."""
    capability = torch.backends.cpu.get_cpu_capability()
    lines = [
        f"iglu-torch   {iglu.__version__}",
        f"Python       {platform.python_version()} on {platform.platform()}",
        f"torch        {torch.__version__}, {torch.get_num_threads()} threads, CPU capability {capability}",
        f"devices      {_devices()}",
        f"backend      {os.environ.get('IGLU_BACKEND', 'auto')}",
        f"loops        {_loops()}",
        f"CPU tensors  {iglu.explain(torch.ones(1))}",
        f"beside it    {', '.join(_beside(name) for name in _BESIDE)}",
    ]
    lines += [f"to mend      {fault}" for fault in map(_fault, _BESIDE) if fault is not None]
    if cpu.loops is None:
        lines.append(f"to mend      {pip_install(is_rebuilt=True)}   (needs a C compiler)")
    return "\n".join(lines)


def _devices() -> str:
    found = ["cpu"]
    found += [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return ", ".join(found)


def _loops() -> str:
    if cpu.loops is None:
        return cpu.why_none
    is_threaded = cpu.parallel_for_address is not None
    threads = "threads of torch" if is_threaded else "one thread, since torch exports no torch_parallel_for"
    return f"{cpu.loops.capability()}, {threads}"


# What the integrations need of each.
_BESIDE = {
    "transformers": ("activations", "modeling_utils"),
    "timm": ("layers.create_act",),
    "lightning": ("pytorch",),
    "onnxruntime": (),
    "triton": (),
}


def _beside(name: str) -> str:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"no {name}"
    return f"{name} {version}" + ("" if _fault(name) is None else " (cannot be imported)")


@functools.cache
def _fault(name: str) -> str | None:
    """Why a library that is installed cannot be imported, and what would mend it."""
    try:
        importlib.metadata.version(name)
        integrations.require(name, *_BESIDE[name])
    except importlib.metadata.PackageNotFoundError:
        return None
    except ImportError as error:
        return " ".join(str(error).split())
    return None


if __name__ == "__main__":
    sys.exit(main())
