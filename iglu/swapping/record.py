"""What a swap did: a record to read, and all that is needed to undo it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from iglu.notebooks import html_table
from iglu.swapping.forwards import MISSING

if TYPE_CHECKING:
    from iglu.swapping.recalibrate import Recalibration


@dataclass(frozen=True)
class Replacement:
    """One activation that was replaced."""

    place: str
    old: str
    new: str


@dataclass(frozen=True)
class FunctionalCall:
    """A call of an activation inside a forward, out of reach from outside: the place of the module, the
    call as written, and where it is written."""

    place: str
    call: str
    source: str


class Change(Protocol):
    """One thing that is different since."""

    @property
    def place(self) -> str:
        """Where, as a reader knows it."""
        ...

    def stands(self) -> bool:
        """Whether it still is as the change left it."""
        ...

    def put_back(self) -> None:
        """Make it what it was before."""
        ...


@dataclass(frozen=True, eq=False)
class Attribute:
    """A child, an attribute or an item of ``owner`` that became another."""

    place: str
    owner: Any
    name: str
    old: Any
    new: Any

    def stands(self) -> bool:
        now = _read(self.owner, self.name)
        return now is self.new or (not isinstance(now, nn.Module) and bool(now == self.new))

    def put_back(self) -> None:
        if isinstance(self.old, nn.Module) and isinstance(self.new, nn.Module):
            self.old.train(self.new.training)
        _write(self.owner, self.name, self.old)


@dataclass(frozen=True, repr=False)
class Swap:
    """What :func:`swap` did, and what it saw and could not do."""

    replaced: list[Replacement] = field(default_factory=list)
    functional: list[FunctionalCall] = field(default_factory=list)
    not_saved: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list, compare=False)
    recalibration: Recalibration | None = None

    def undo(self) -> None:
        """Put everything back: modules, functions, names, the config of a transformers model, weights.

        Where something else was put there since, nothing is touched and a RuntimeError names it: swaps are
        undone in the reverse of their order.  A second call does nothing.
        """
        gone = [change.place for change in self.changes if not change.stands()]
        if gone:
            shown = ", ".join(gone[:3]) + (", ..." if len(gone) > 3 else "")
            raise RuntimeError(
                f"This swap cannot be undone: something else stands at {shown}. Undo later swaps first."
            )
        while self.changes:
            self.changes.pop().put_back()

    def __repr__(self) -> str:
        rows = [("replaced", each.place, f": {each.old} -> {each.new}") for each in self.replaced]
        rows += [("functional", each.place, f": {each.call} ({each.source})") for each in self.functional]
        rows += [("not saved", place, "") for place in self.not_saved]
        listed = "".join(f"\n  {title} {where}{text}" for title, where, text in grouped(rows))
        return self._title + listed + (f"\n{self.recalibration}" if self.recalibration is not None else "")

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = [("replaced", each.place, f"{each.old} → {each.new}") for each in self.replaced]
        rows += [("functional", each.place, f"{each.call} ({each.source})") for each in self.functional]
        rows += [("not saved", place, "") for place in self.not_saved]
        table = html_table(self._title, ["", "place", ""], list(grouped(rows)))
        return table + (self.recalibration._repr_html_() if self.recalibration is not None else "")

    @property
    def _title(self) -> str:
        return (
            f"Swap: {len(self.replaced)} replaced, {len(self.functional)} functional calls left, "
            f"{len(self.not_saved)} not saved"
        )


def change(place: str, owner: Any, name: str, new: Any) -> list[Change]:
    """Make it so, and say how to put it back; nothing if it is so already."""
    old = _read(owner, name)
    made = Attribute(place, owner, name, old, new)
    if made.stands():
        return []
    _write(owner, name, new)
    return [made]


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
        vars(owner).pop(name, None)
    elif isinstance(owner, nn.Module) and name in owner._modules and isinstance(value, nn.Module):
        owner._modules[name] = value  # keeps the order of a Sequential, and names such as "0"
    else:
        if isinstance(owner, nn.Module):
            owner._modules.pop(name, None)  # a function comes back to where a module stood
        setattr(owner, name, value)


def grouped(rows: list[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """One row for all places that differ only by their numbers."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for title, place, text in rows:
        groups.setdefault((title, re.sub(r"\d+", "*", place), text), []).append(place)
    for (title, pattern, text), places in groups.items():
        where = places[0] or "(the model)" if len(places) == 1 else f"{pattern} ({len(places)} times)"
        yield title, where, text
