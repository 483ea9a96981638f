"""Provenance of measurements: versions, hardware, commit.  No host, user or path is recorded."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import iglu
import iglu_lab


def describe_provenance(found: object) -> str:
    """One line for the notes of a table; "no provenance" if it is missing or incomplete."""
    if not isinstance(found, Mapping):
        return "no provenance"
    try:
        commit = ""
        if found["commit"] is not None:
            commit = f" ({found['commit'][:10]}{', modified' if found['modified'] else ''})"
        return (
            f"{found['cpu']}, {found['cores']} cores, {found['instructions']}; {found['gpu'] or 'no GPU'}; "
            f"iglu {found['iglu']}{commit}; torch {found['torch']}; Python {found['python']}; "
            f"{found['system']}; {found['date'][:10]}"
        )
    except (KeyError, TypeError):
        return "no provenance"


def collect() -> dict[str, Any]:
    """The provenance of a measurement made now, on this machine."""
    commit, modified = _commit()
    has_gpu = torch.cuda.is_available()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "iglu": iglu.__version__,
        "commit": commit,  # of the checkout iglu was imported from; None for an installed package
        "modified": modified,  # whether that checkout differs from its commit
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": cores(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # the set that torch chose
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "cuda": torch.version.cuda if has_gpu else None,
    }


def cpu_name() -> str:
    """The CPU model."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        name = _output("sysctl", "-n", "machdep.cpu.brand_string")
        if name is not None:
            return name
    return platform.processor() or platform.machine()


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _commit() -> tuple[str | None, bool | None]:
    package = Path(iglu.__file__).parent
    # An environment inside an unrelated repository: its commit says nothing about iglu.
    if _output("git", "-C", str(package), "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    lab = Path(iglu_lab.__file__).parent
    # New rows among the results do not change what the next run computes.
    changes = [
        _output("git", "-C", str(each), "status", "--porcelain", "--", ".", ":!results")
        for each in (package, lab)
    ]
    return _output("git", "-C", str(package), "rev-parse", "HEAD"), any(changes)


def _output(*command: str) -> str | None:
    """The output of a command, or None if it is missing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
