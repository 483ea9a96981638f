"""Atomic writes, TOML, and the results that are installed with the package."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import IO, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Suffix of a file that is being written.
UNFINISHED = ".unfinished"

# Measured rows and the plans of the grids (package data).
RESULTS = Path(str(resources.files("iglu_lab").joinpath("results")))


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces ``path`` once it is complete on disk.

    On any failure, such as a full disk, the old file stays and the new one is removed.
    """
    handle, name = tempfile.mkstemp(prefix=path.name + ".", suffix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError) and error.filename is None:  # as for a full disk
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    _sync_folder(path.parent)


def write_json(path: Path, content: Any) -> None:
    with write_atomically(path) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with write_atomically(path) as file:
        for row in rows:
            file.write(json.dumps(row).encode() + b"\n")


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raise ValueError if it is invalid."""
    content: dict[str, Any] = tomllib.loads(text)
    return content


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left behind."""
    for path in folder.glob("*" + UNFINISHED):
        path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Write the directory entry of a new file to disk."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def shown(path: Path) -> str:
    """A path as text; for an installed result, relative to the package."""
    return str(path.relative_to(RESULTS.parent.parent) if path.is_relative_to(RESULTS) else path)
