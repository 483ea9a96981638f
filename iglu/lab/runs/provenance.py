"""Where a number comes from: versions, machine, commit.  Everything the lab writes carries one of these.

Nothing that names a person or a place is recorded: no host, no user, no path.
"""

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


def sentence_of(found: object) -> str:
    """For under a table; "no provenance" where there is none, or not a whole one."""
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
    """The provenance of numbers measured here and now: one machine, one moment, one state of the code."""
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
        "cores": _cores(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # the set that torch chose
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "cuda": torch.version.cuda if has_gpu else None,
    }


def cpu_name() -> str:
    """As the system calls it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        name = _output("sysctl", "-n", "machdep.cpu.brand_string")
        if name is not None:
            return name
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Those this process may use, which a container may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _commit() -> tuple[str | None, bool | None]:
    package = Path(iglu.__file__).parent
    # Installed into an environment that happens to lie in somebody else's repository, iglu is not
    # one of its files, and that repository's commit says nothing about it.
    if _output("git", "-C", str(package), "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    changes = _output("git", "-C", str(package), "status", "--porcelain", "--", ".")
    return _output("git", "-C", str(package), "rev-parse", "HEAD"), bool(changes)


def _output(*command: str) -> str | None:
    """What the command prints, or None where it is missing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
