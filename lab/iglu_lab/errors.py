"""User errors, as opposed to bugs: a UserError ends a command with one line and status 2, an unexpected
exception with its traceback."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


class UserError(ValueError):
    """An invalid flag, field, file or folder; the message says what would be valid."""


# Added to the error for an unknown name that an extension may define.
IMPORT_HINT = "To use your own, add --import MODULE."


@contextlib.contextmanager
def as_user_errors(prefix: str = "") -> Iterator[None]:
    """Turn a ValueError or TypeError of the library into a UserError.  Wrap only checks, never a run."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UserError(f"{prefix}{error}") from error


@contextlib.contextmanager
def collect_problems(problems: list[str], path: Path | None = None) -> Iterator[None]:
    """Append the error of a damaged or foreign file, with its path, to ``problems`` instead of raising it."""
    try:
        yield
    except (UserError, OSError, UnicodeError, json.JSONDecodeError, RecursionError) as error:
        text = str(error) or type(error).__name__
        problems.append(text if path is None or str(path) in text else f"{path}: {text}")


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """
    >>> print(unknown("recipe", "digit", ["digits", "vit"]))
    Unknown recipe 'digit'. Did you mean 'digits'?
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
    return UserError(f"Unknown {what} {name!r}. {hint}")


def missing(path: Path) -> UserError:
    """The error for a path that does not exist, with the most similar name in its folder."""
    siblings = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=1)
    hint = f". Did you mean {path.parent / near[0]}?" if near else ""
    return UserError(f"{path} does not exist{hint}")


def no_runs(folder: Path, problems: Iterable[str]) -> str:
    """The message for a folder without runs; it has no full stop, with which "." would look like ".."."""
    return "; ".join([f"No run in {folder}", *problems])


def check_least(flags: object, **least: float) -> None:
    """Check the minimum of numeric flags."""
    for name, bound in least.items():
        found = getattr(flags, name)
        if found < bound:
            raise UserError(f"--{name} must be at least {bound}, got {found}")


def check_writable(folder: Path) -> None:
    """Check, before hours of work, that ``folder`` is writable or can be created."""
    place = folder
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        reason = "writable" if place.is_dir() else "a folder"
        raise UserError(f"{folder} cannot be written: {place} is not {reason}")
