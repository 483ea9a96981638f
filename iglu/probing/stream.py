"""Reduce a stream of one layer's inputs to a fixed amount of memory.

Three statistics are kept of any number of values: the exact largest magnitudes, power sums, and a uniform
random sample.  On a CPU the data are read in pieces that fit into its cache.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from iglu.tails import Tail

_PIECE = 1 << 20  # values at a time on a CPU: few enough for its cache, enough for several threads
_BLOCK = 64
_SLACK = 1e-5  # more than the relative error of a float32 square
_FIRST = 1 << 14  # values that determine the center


class Moments(NamedTuple):
    """``kurtosis`` is the excess kurtosis, 0 for a Gaussian."""

    mean: float
    sd: float
    skewness: float
    kurtosis: float


class Stream:
    """The statistics of all values so far.

    NaN and inf are counted and otherwise left out.  ``rows_of_tail`` gives the row of the inputs (image,
    sequence) that each of the largest values came from: values of one row are not independent.
    """

    def __init__(self, keep: int, sample: int, seed: int) -> None:
        self.n = self.calls = self.not_finite = 0
        self._keep = keep
        self._largest, self._largest_rows = torch.empty(0), torch.empty(0, dtype=torch.int64)
        self._sample = _Sample(sample, seed)
        self._rows = 0
        self._resolution = 0.0
        # Sums are of x in float32; where that would overflow, underflow or cancel, of x - center in float64.
        self._center: float | None = None
        self._dtype = torch.float32
        self._sums = torch.zeros(4, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Add the values of a tensor whose first dimension counts rows."""
        self.calls += 1
        if x.numel() == 0:
            return
        if x.device.type == "mps":
            x = x.cpu()  # MPS has no float64
        flat = _in_memory_order(x.detach())
        rows = x.shape[0] if x.dim() else 1
        row_length = len(flat) // rows
        self._resolution = max(self._resolution, torch.finfo(x.dtype).eps)
        if self._center is None:
            self._choose_center(flat)
        size = _PIECE if flat.device.type == "cpu" else len(flat)
        buffer = flat.new_empty(min(size, len(flat)), dtype=self._dtype)  # new memory per piece is slower
        for start in range(0, len(flat), size):
            piece = flat[start : start + size]
            positions = self._add_piece(piece, buffer)
            if len(positions):
                self._keep_largest(piece[positions].abs(), (positions + start) // row_length + self._rows)
        self._rows += rows

    def _add_piece(self, piece: Tensor, buffer: Tensor) -> Tensor:
        """Update sums and sample; return the positions of values that may be among the largest."""
        values = piece.to(self._dtype)
        sums, squares = self._power_sums(values, buffer)
        finite = None
        if not sums.isfinite().all():
            finite = piece.isfinite().nonzero().squeeze(1)
            self.not_finite += len(piece) - len(finite)
            if len(finite) == 0:
                return finite
            piece = piece[finite]
            values = piece.double()  # the fourth power of any float32 is finite
            sums, squares = self._power_sums(values, torch.empty_like(values))
        self._sums += sums
        self.n += len(piece)
        self._sample.add(piece)
        if len(self._largest) < self._keep:
            positions = piece.abs().topk(min(self._keep, len(piece))).indices
        else:
            squares = squares if self._center == 0 else torch.mul(values, values, out=squares)
            least = self._largest[-1].item() ** 2 * (1 - _SLACK)
            positions = _positions_above(squares, least).to(piece.device)
        return positions if finite is None else finite[positions]

    def _power_sums(self, values: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        first = values - self._center if self._center else values
        second = torch.mul(first, first, out=buffer[: len(first)])
        powers = [first.sum(), first.dot(first), second.dot(first), second.dot(second)]
        return torch.stack(powers).cpu().double(), second

    def _choose_center(self, flat: Tensor) -> None:
        first = flat[:_FIRST].cpu().double()
        first = first[first.isfinite()]
        if len(first) == 0:
            return
        sd, mean = (each.item() for each in torch.std_mean(first, correction=0))
        is_easy = 1e-4 < sd < 1e4 and abs(mean) < 3 * sd and flat.dtype != torch.float64
        self._center, self._dtype = (0.0, torch.float32) if is_easy else (mean, torch.float64)

    def _keep_largest(self, values: Tensor, rows: Tensor) -> None:
        values = torch.cat([self._largest.to(values), values])
        self._largest, order = values.topk(min(self._keep, len(values)))
        self._largest_rows = torch.cat([self._largest_rows.to(rows), rows])[order]

    def moments(self) -> Moments:
        center = math.nan if self._center is None else self._center
        first, second, third, fourth = (self._sums / max(self.n, 1)).tolist()
        variance = second - first**2
        if not variance > 0:
            return Moments(center + first, 0.0 if self.n else math.nan, math.nan, math.nan)
        skew = third - 3 * first * second + 2 * first**3
        fourth = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        return Moments(center + first, math.sqrt(variance), skew / variance**1.5, fourth / variance**2 - 3)

    def tail(self) -> Tail:
        return Tail(self._largest.double(), self.n, self._resolution)

    def rows_of_tail(self) -> Tensor:
        """The row of each value of the tail, in the same order."""
        return self._largest_rows.cpu()

    def sample(self) -> Tensor:
        return self._sample.values.float().cpu()


def _in_memory_order(x: Tensor) -> Tensor:
    """Flatten x without a copy if its memory is dense; the first dimension stays the outermost."""
    if not x.is_contiguous() and x.dim() > 2:
        order = sorted(range(1, x.dim()), key=x.stride, reverse=True)
        x = x.permute(0, *order)
    return x.reshape(-1)


def _positions_above(values: Tensor, least: float) -> Tensor:
    """Indices of values > least; skipping most blocks by their maximum is faster than nonzero."""
    end = len(values) // _BLOCK * _BLOCK
    blocks = values[:end].view(-1, _BLOCK)
    hits = (blocks.amax(1) > least).nonzero().squeeze(1)
    block, inner = (blocks[hits] > least).nonzero().unbind(1)
    return torch.cat([hits[block] * _BLOCK + inner, (values[end:] > least).nonzero().squeeze(1) + end])


class _Sample:
    """A sample in which every value so far has the same expected share; all values while they fit.

    Each slot is replaced by one of m new values with probability m/n, where n includes them.  The new values
    are drawn by stratified sampling, one from each of as many equal ranges as slots to replace.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.values = torch.empty(0)
        self.seen = 0
        self.generator = torch.Generator().manual_seed(seed)

    def add(self, flat: Tensor) -> None:
        m, kept = len(flat), self.values.to(flat)
        self.seen += m
        if self.seen <= self.size:
            self.values = torch.cat([kept, flat])
            return
        if 0 < len(kept) < self.size:
            kept = kept[torch.randint(len(kept), (self.size,), generator=self.generator).to(flat.device)]
        draws = torch.rand(2, self.size, generator=self.generator)
        slots = (draws[0] < m / self.seen).nonzero().squeeze(1)
        count = len(slots)
        # in float64, since float32 cannot count beyond 2^24
        places = ((torch.arange(count) + draws[1, :count].double()) * (m / max(count, 1))).long()
        new = flat[places.clamp_(max=m - 1).to(flat.device)]
        self.values = new if count == self.size else kept.index_copy(0, slots.to(flat.device), new)
