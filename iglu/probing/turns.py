"""Which call is which: one activation may be called several times in a forward pass.

Three F.relu in a loop are three layers, and their inputs of three scales in one pot would look heavy-tailed.
They are told apart by their turn, as long as every pass has as many; where passes differ, or a recurrence has
more than a few, all turns are one layer.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from iglu.probing.watch import Site

MOST_TURNS = 32


class Sink(Protocol):
    """Takes in what an activation is given."""

    def add(self, x: Tensor) -> None: ...


S = TypeVar("S", bound=Sink)


class Turns(Generic[S]):
    """One ``make(site)`` for each site and turn."""

    def __init__(self, make: Callable[[Site], S]) -> None:
        self._make = make
        self._sinks: dict[tuple[Site, int], S] = {}  # in the order of their first calls
        self._whole: dict[Site, S] = {}  # of all turns, where there are several
        self._expected: dict[Site, int] = {}
        self._merged: set[Site] = set()
        self._turn: dict[Site, int] = {}

    def begin(self) -> None:
        """A forward pass begins, and the one before has ended."""
        for site, count in self._turn.items():
            if self._expected.setdefault(site, count) != count:
                self._merged.add(site)
        self._turn = {}

    def receive(self, site: Site, x: Tensor) -> None:
        turn = self._turn.get(site, 0)
        self._turn[site] = turn + 1
        if turn and site not in self._whole:
            self._whole[site] = copy.deepcopy(self._sinks[site, 0])  # so far every call was a first turn
        if site in self._whole:
            self._whole[site].add(x)
        if turn >= self._expected.get(site, MOST_TURNS):
            self._merged.add(site)
        if site not in self._merged:
            if (site, turn) not in self._sinks:
                self._sinks[site, turn] = self._make(site)
            self._sinks[site, turn].add(x)

    def layers(self) -> Iterator[tuple[Site, S]]:
        """Each layer by a name of its own: relu, relu 2, relu 3."""
        self.begin()
        taken: dict[str, int] = {}
        for (site, turn), sink in self._sinks.items():
            if site in self._merged and turn:
                continue
            number = taken[site.name] = taken.get(site.name, 0) + 1
            named = dataclasses.replace(site, name=f"{site.name} {number}") if number > 1 else site
            yield named, self._whole[site] if site in self._merged else sink
