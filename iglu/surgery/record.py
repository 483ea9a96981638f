"""The record of a swap: what was replaced and what was not, and how to undo it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from iglu.html_table import html_table
from iglu.surgery.source_scan import MISSING

if TYPE_CHECKING:
    from iglu.calibration.recalibrate import Recalibration


Row = tuple[str, str, str]


@dataclass(frozen=True)
class Replacement:
    """One activation that was replaced.

    ``place`` is that of a module, or of an attribute that names an activation (then ``new`` is a name too).
    ``source`` is the file and line that called it as a function, or that looks up its name; otherwise empty.
    """

    place: str
    old: str
    new: str
    source: str = ""


@dataclass(frozen=True)
class FunctionalCall:
    """A call of an activation inside a forward that was not replaced: the place of the module, the call as
    written, its file and line, and the reason."""

    place: str
    call: str
    source: str
    reason: str = ""


class Record:
    """What was done to a model, as text and, for notebooks, as a table."""

    def _title(self) -> str:
        raise NotImplementedError

    def _rows(self) -> Iterator[Row]:
        """Yield what was done, the place, and details."""
        raise NotImplementedError

    def _notes(self) -> list[str]:
        return []

    def __repr__(self) -> str:
        lines = [
            ": ".join(filter(None, (f"{what} {where}".lstrip(), text)))
            for what, where, text in self._grouped()
        ]
        return "\n  ".join([self._title(), *lines, *self._notes()])

    def _repr_html_(self) -> str:
        return html_table(self._title(), ["", "place", ""], self._grouped(), self._notes())

    def _grouped(self) -> Iterator[Row]:
        """One row for all places that differ only by their numbers."""
        groups: dict[Row, list[str]] = {}
        for what, place, text in self._rows():
            groups.setdefault((what, re.sub(r"\d+", "*", place), text), []).append(place)
        for (what, pattern, text), places in groups.items():
            where = places[0] or "(the model)" if len(places) == 1 else f"{pattern} ({len(places)} times)"
            yield what, where, text


class Change:
    """One change made by a swap."""

    def obstacle(self) -> str:
        """Why it cannot be undone; empty if it can."""
        return ""

    def put_back(self) -> None:
        """Undo the change."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Attribute(Change):
    """A child, an attribute (also the class of a module) or an item of ``owner`` that was set."""

    place: str
    owner: Any
    name: str
    old: Any
    new: Any

    def is_set(self) -> bool:
        now = _read(self.owner, self.name)
        return now is self.new or (not isinstance(now, nn.Module) and bool(now == self.new))

    def obstacle(self) -> str:
        if self.is_set():
            return ""
        where = self.place or "the model"
        now = _read(self.owner, self.name)
        if isinstance(self.new, type) and issubclass(now, self.new) and "_iglu_plan" not in vars(now):
            return (
                f"the class of {where} is now {now.__name__}, which was set after the swap (as parametrize "
                "and fully_shard do). Remove that first."
            )
        return f"{where} was changed after this swap. Undo later swaps first."

    def put_back(self) -> None:
        if isinstance(self.old, nn.Module) and isinstance(self.new, nn.Module):
            self.old.train(self.new.training)
        _write(self.owner, self.name, self.old)


@dataclass(frozen=True, repr=False)
class Swap(Record):
    """What :func:`swap` replaced, and what it found but did not replace."""

    replaced: list[Replacement] = field(default_factory=list)
    functional: list[FunctionalCall] = field(default_factory=list)
    not_saved: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list, compare=False)
    recalibration: Recalibration | None = None

    def undo(self) -> None:
        """Restore everything: modules, classes, functions, names, transformers configs, weights.

        If something was changed again after the swap, raise a RuntimeError that names it and change nothing:
        undo several swaps in reverse order.  A second call does nothing.
        """
        obstacle = next(filter(None, (change.obstacle() for change in self.changes)), None)
        if obstacle is not None:
            raise RuntimeError(f"This swap cannot be undone: {obstacle}")
        put_back(self.changes)

    def __repr__(self) -> str:
        return super().__repr__() + (f"\n{self.recalibration}" if self.recalibration is not None else "")

    def _repr_html_(self) -> str:
        below = self.recalibration._repr_html_() if self.recalibration is not None else ""
        return super()._repr_html_() + below

    def _title(self) -> str:
        return (
            f"Swap: {len(self.replaced)} replaced, {len(self.functional)} functional calls left, "
            f"{len(self.not_saved)} not saved"
        )

    def _rows(self) -> Iterator[Row]:
        for each in self.replaced:
            source = f" ({each.source})" if each.source else ""
            yield "replaced", each.place, f"{each.old} -> {each.new}{source}"
        for call in self.functional:
            reason = f": {call.reason}" if call.reason else ""
            yield "functional", call.place, f"{call.call} ({call.source}){reason}"
        for place in self.not_saved:
            yield "not saved", place, ""


def change(place: str, owner: Any, name: str, new: Any) -> list[Change]:
    """Set an attribute or item and return the change; empty if it is set already."""
    made = Attribute(place, owner, name, _read(owner, name), new)
    if made.is_set():
        return []
    _write(owner, name, new)
    return [made]


def put_back(changes: list[Change]) -> None:
    """Undo and forget the changes, the last one first."""
    while changes:
        changes.pop().put_back()


def _read(owner: Any, name: str) -> Any:
    if isinstance(owner, dict):
        return owner.get(name, MISSING)
    if isinstance(owner, nn.Module) and name in owner._modules:
        return owner._modules[name]
    return getattr(owner, name, MISSING)


def _write(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    elif value is MISSING:
        if isinstance(owner, nn.Module):
            owner._modules.pop(name, None)
        vars(owner).pop(name, None)
    elif isinstance(owner, nn.Module) and name in owner._modules and isinstance(value, nn.Module):
        owner._modules[name] = value  # keeps the order of a Sequential, and names such as "0"
    else:
        if isinstance(owner, nn.Module):
            owner._modules.pop(name, None)  # a function replaces a module
        setattr(owner, name, value)
