"""The command ``iglu``: ``doctor``, and one subcommand per entry point in the group ``iglu.commands``.

An entry point is a callable that takes the arguments after the subcommand and returns the exit status; its
attribute ``help`` is the line that ``iglu --help`` shows.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable

import torch

import iglu
from iglu import integrations
from iglu.install_hint import pip_install, pip_install_lab
from iglu.kernels import native, triton

ENTRY_POINTS = "iglu.commands"


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # now, while a closed pipe can still be handled
        return status
    except BrokenPipeError:
        if not _is_stdout_closed():
            raise
        return 141  # 128 + SIGPIPE, as shells report it
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _is_stdout_closed() -> bool:
    """Whether the reader of stdout has exited, as after ``| head``; if so, discard further output."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _run(arguments: list[str]) -> int:
    name, *rest = arguments or ["--help"]
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    if name in ("-V", "--version"):
        print(f"iglu-torch {iglu.__version__}")
        return 0
    if name in ("-h", "--help"):
        lines = {"doctor": run_doctor.__doc__} | {each.name: each.load().help for each in found}
        print("usage: iglu COMMAND [options]; see iglu COMMAND --help\n")
        print("\n".join(f"  {key:8} {text}" for key, text in lines.items()))
        if not found:
            print(f"\nTraining, sweeps, benchmarks and reports are commands of iglu-lab: {pip_install_lab()}")
        return 0
    if name == "doctor":
        return run_doctor(rest)
    if name in found.names:
        try:
            command: Callable[[list[str]], int] = found[name].load()
            return command(rest)
        except ModuleNotFoundError as error:
            ours = ("iglu", found[name].module.partition(".")[0])
            if error.name is None or error.name.partition(".")[0] in ours:
                raise
            print(f"iglu {name} needs {error.name}: {pip_install_lab()}", file=sys.stderr)
            return 1
    if found:
        near = difflib.get_close_matches(name, ["doctor", *found.names], n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Commands: {', '.join(['doctor', *found.names])}."
    else:
        hint = f"All commands except doctor are in iglu-lab, which is not installed: {pip_install_lab()}"
    print(f"iglu: unknown command {name!r}. {hint}", file=sys.stderr)
    return 2


# -- doctor ----------------------------------------------------------------------------------------


def run_doctor(argv: list[str]) -> int:
    """list versions, devices and available backends, and how to enable the missing ones"""
    parser = argparse.ArgumentParser(prog="iglu doctor", description=run_doctor.__doc__)
    try:
        parser.parse_args(argv)
    except SystemExit as ended:  # after --help, or with status 2 for an unknown flag
        return int(ended.code or 0)
    print(doctor())
    return 0


def doctor() -> str:
    """Describe the installation and list the commands that fix or add what is missing."""
    capability = torch.backends.cpu.get_cpu_capability()
    optional = {name: _optional(name) for name in _OPTIONAL}
    lines = [
        f"iglu-torch   {iglu.__version__}",
        f"Python       {platform.python_version()} on {platform.platform()}",
        f"torch        {torch.__version__}, {torch.get_num_threads()} threads, CPU capability {capability}",
        f"devices      {_devices()}",
        f"backend      {os.environ.get('IGLU_BACKEND', 'auto')}",
        f"C kernels    {_c_kernels()}",
        f"CPU tensors  {iglu.explain(torch.ones(1))}",
        *(f"GPU kernels  {line}" for line in _gpu_kernels()),
        f"optional     {', '.join(text for text, _ in optional.values())}",
    ]
    lines += [f"to fix       {fault}" for _, fault in optional.values() if fault]
    if native.loops is None:
        lines.append(f"to fix       {pip_install(rebuild=True)}   (needs a C compiler)")
    return "\n".join(lines)


def _devices() -> str:
    found = ["cpu"]
    found += [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(found + ["mps"] * torch.backends.mps.is_available())


def _c_kernels() -> str:
    if native.loops is None:
        return native.unavailable_reason
    is_threaded = native.parallel_for_address is not None
    threads = "torch's threads" if is_threaded else "one thread, since torch exports no torch_parallel_for"
    return f"{native.loops.capability()}, {threads}"


def _gpu_kernels() -> list[str]:
    """Check every GPU kernel on every GPU; takes a minute or two the first time, to compile them."""
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if not devices or triton.load()[1]:
        return [triton.load()[1] if devices else "torch finds no GPU"]
    lines = []
    for device in devices:
        failures = triton.check_all(device)
        failed = [
            f"{device}: {kernel} is disabled: {reason}" for kernel, reason in failures.items() if reason
        ]
        lines += [f"{device}: {len(failures) - len(failed)} of {len(failures)} passed their check", *failed]
    return lines


# Optional packages, and the modules of each that the integrations import.
_OPTIONAL = {
    "transformers": ("activations", "modeling_utils"),
    "timm": ("layers.create_act",),
    "lightning": ("pytorch",),
    "onnxruntime": (),
    "triton": (),
}


def _optional(name: str) -> tuple[str, str]:
    """Return the name and version of an optional package, and how to fix it if it cannot be imported."""
    try:
        version = importlib.metadata.version(name)
        integrations.require(name, *_OPTIONAL[name])
    except importlib.metadata.PackageNotFoundError:
        return f"no {name}", ""
    except ImportError as error:
        return f"{name} {version} (cannot be imported)", " ".join(str(error).split())
    return f"{name} {version}", ""
