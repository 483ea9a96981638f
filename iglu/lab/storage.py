"""Files that are either whole or not there, whatever happens to the process or to the disk; and TOML."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# How a file is called until it is whole.
UNFINISHED = ".unfinished"


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under ``path`` once everything is on the disk, replacing what was there.

    On any failure, a full disk too, the old file stays and the new one is removed.
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
        if isinstance(error, OSError) and error.filename is None:  # as of a disk that is full
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
    """A ValueError where it is none."""
    return tomllib.loads(text)


def remove_unfinished(folder: Path) -> None:
    """What a killed process left behind."""
    for path in folder.glob("*" + UNFINISHED):
        path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """The name of a file is data of its folder."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
