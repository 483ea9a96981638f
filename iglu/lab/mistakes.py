"""What the user got wrong, told apart from what this program did: a mistake ends a command with one line and
status 2, anything else that nobody foresaw with its traceback."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


class MistakeError(ValueError):
    """A flag, a field, a file or a folder that cannot be meant; the message says what would do."""


@contextlib.contextmanager
def as_mistakes(prefix: str = "") -> Iterator[None]:
    """What the library refuses inside is a mistake; to be put around the check alone, never around a run."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise MistakeError(f"{prefix}{error}") from error


@contextlib.contextmanager
def complaining(complaints: list[str], path: Path | None = None) -> Iterator[None]:
    """What a damaged or foreign file does to those who read it is told, by its path, and stops nobody."""
    try:
        yield
    except (MistakeError, OSError, UnicodeError, json.JSONDecodeError, RecursionError) as error:
        text = str(error) or type(error).__name__
        complaints.append(text if path is None or str(path) in text else f"{path}: {text}")


def unknown(what: str, name: str, known: Iterable[str]) -> MistakeError:
    """
    >>> print(unknown("recipe", "digit", ["digits", "vit"]))
    Unknown recipe 'digit'. Did you mean 'digits'?
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
    return MistakeError(f"Unknown {what} {name!r}. {hint}")


def missing(path: Path) -> MistakeError:
    """A folder or a file, with the nearest name that is beside where it should be."""
    beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    hint = f". Did you mean {path.parent / near[0]}?" if near else ""
    return MistakeError(f"There is no folder or file {path}{hint}")


def check_least(flags: object, **least: float) -> None:
    """Of flags that are numbers."""
    for name, bound in least.items():
        found = getattr(flags, name)
        if found < bound:
            raise MistakeError(f"--{name} must be at least {bound}, got {found}")


def check_writable(folder: Path) -> None:
    """Before hours of work: whether files can be made in ``folder``, or a folder where it is to be."""
    place = folder
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        reason = "it is not a folder" if not place.is_dir() else "it may not be written to"
        raise MistakeError(f"{folder} cannot be written: {place} is in the way, {reason}")
