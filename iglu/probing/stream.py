"""One layer's inputs as a stream, reduced to what fits in a fixed amount of memory.

Three things are kept of any number of values: the exact largest magnitudes, power sums, and a uniform
sample.  Each call costs a few passes over the data in pieces that stay in the cache; the largest are found
by the maxima of small blocks, since nearly all blocks lie below the threshold that is already reached.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from iglu.tails import Tail

_BLOCK = 64  # one maximum each
_PIECE = 1 << 20  # values at a time on a CPU: small enough for its cache, large enough to share among threads
_SLACK, _SMALLEST = 1e-6, 1e-22  # how far the root of a rounded square may be off, and where it is 0
_FIRST = 1 << 14  # values that show where the sums had best be centred


class Moments(NamedTuple):
    """``kurtosis`` is in excess of a Gaussian's 3."""

    mean: float
    deviation: float
    skewness: float
    kurtosis: float


class Stream:
    """What a layer has seen so far.

    Values that are not finite are counted and left out of everything else.  ``rows`` tells of each of the
    largest which row of the inputs (image, sequence) it came from: values of one row are not independent.
    """

    def __init__(self, keep: int, sample: int, seed: int) -> None:
        self.n = 0
        self.calls = 0
        self.not_finite = 0
        self._largest = _Largest(keep)
        self._sample = _Sample(sample, seed)
        self._rows = 0
        self._resolution = 0.0
        self._origin: tuple[float, float] | None = None  # sums are of (x - centre)/unit
        self._sums = torch.zeros(4, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Take in the values of a tensor whose first dimension counts rows."""
        self.calls += 1
        if x.numel() == 0:
            return
        flat, rows = _in_memory_order(x.detach()), x.shape[0] if x.dim() else 1
        first_row, a_row = self._rows, x.numel() // rows
        self._rows += rows
        self._resolution = max(self._resolution, torch.finfo(x.dtype).eps)
        sums, maxima = self._pass(flat)
        positions = None
        if not sums.isfinite().all():
            flat = (
                flat.cpu()
            )  # not every device has float64, in which the fourth power of a float32 is finite
            positions = flat.isfinite().nonzero().squeeze(1)
            self.not_finite += len(flat) - len(positions)
            flat = flat[positions].double()
            if len(flat) == 0:
                return
            self._origin = self._origin or _origin(flat)
            sums, maxima = self._pass(flat)
        self._sums += sums
        self.n += len(flat)
        values, where = self._largest.choose(flat, maxima)
        if len(values):
            where = where if positions is None else positions[where]
            self._largest.take(values, where // a_row + first_row)
        self._sample.add(flat)

    def _pass(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Power sums, and the largest magnitude of each block up to rounding, since the squares are there."""
        pieces = torch.split(flat, _PIECE) if flat.device.type == "cpu" else (flat,)
        wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
        if self._origin is None:
            self._origin = _origin(flat)
        centre, unit = self._origin or (0.0, 1.0)
        is_plain = (centre, unit) == (0.0, 1.0)
        sums = torch.zeros(4, dtype=torch.float64)
        maxima = []
        squares = flat.new_empty(len(pieces[0]), dtype=wide)  # fresh memory for each piece would cost more
        for piece in pieces:
            values = piece.to(wide)
            first = values if is_plain else (values - centre).mul_(1 / unit)
            second = torch.mul(first, first, out=squares[: len(first)])
            powers = [first.sum(), first.dot(first), second.dot(first), second.dot(second)]
            sums += torch.stack(powers).cpu()
            maxima += _block_maxima(second if is_plain else torch.mul(values, values, out=second))
        return sums, torch.cat(maxima).sqrt_()

    def moments(self) -> Moments:
        centre, unit = self._origin or (math.nan, math.nan)
        first, second, third, fourth = (self._sums / max(self.n, 1)).tolist()
        variance = second - first**2
        if not variance > 0:
            return Moments(centre + unit * first, 0.0 if self.n else math.nan, math.nan, math.nan)
        skew = third - 3 * first * second + 2 * first**3
        fourth = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        return Moments(
            centre + unit * first, unit * math.sqrt(variance), skew / variance**1.5, fourth / variance**2 - 3
        )

    def tail(self) -> Tail:
        return Tail(self._largest.values.double(), self.n, self._resolution)

    def rows_of_tail(self) -> Tensor:
        """The row of each value of the tail, in its order."""
        return self._largest.rows.cpu()

    def sample(self) -> Tensor:
        return self._sample.values.float().cpu()


def _in_memory_order(x: Tensor) -> Tensor:
    """Flat, without a copy where memory is dense; the first dimension stays the outermost."""
    if not x.is_contiguous() and x.dim() > 2:
        order = sorted(range(1, x.dim()), key=x.stride, reverse=True)
        x = x.permute(0, *order)
    return x.reshape(-1)


def _block_maxima(squares: Tensor) -> list[Tensor]:
    whole = len(squares) // _BLOCK * _BLOCK
    parts = [squares[:whole].view(-1, _BLOCK), squares[whole:].view(1, -1)]
    return [part.amax(1) for part in parts if part.numel()]


def _origin(flat: Tensor) -> tuple[float, float] | None:
    """Centre and unit for the sums, from the first values; None if they are not finite.

    A scale of 1e-12 would underflow without a unit, and a mean far from 0 would cancel without a centre;
    where neither threatens both are spared.
    """
    deviation, mean = torch.std_mean(flat[:_FIRST].cpu().double(), correction=0)
    centre, unit = mean.item(), deviation.item()
    if not math.isfinite(centre) or not math.isfinite(unit):
        return None
    if 1e-4 < unit < 1e4 and abs(centre) < 3 * unit:
        return 0.0, 1.0
    return centre, unit or abs(centre) or 1.0


class _Largest:
    """The ``keep`` largest magnitudes, exact, in descending order, each with its row."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.values = torch.empty(0)
        self.rows = torch.empty(0, dtype=torch.int64)

    def choose(self, flat: Tensor, maxima: Tensor) -> tuple[Tensor, Tensor]:
        """Magnitudes that may be among the largest, and their positions; all others are not."""
        is_full = len(self.values) == self.keep
        above = torch.gt if is_full else torch.ge  # ties with what is kept add nothing
        if is_full:
            threshold = self.values[-1].item()
        elif len(maxima) > self.keep:
            # As many values as blocks are at least as large as the least of their maxima.
            threshold = maxima.topk(self.keep, sorted=False).values.min().item() * (1 - _SLACK)
        else:
            threshold = 0.0
        blocks = (maxima >= threshold * (1 - _SLACK) - _SMALLEST).nonzero().squeeze(1)
        whole = len(flat) // _BLOCK
        if whole < len(maxima) and len(blocks) and blocks[-1] == whole:  # the last is shorter
            rest, blocks = flat[whole * _BLOCK :].abs(), blocks[:-1]
        else:
            rest = flat[:0]
        full = flat[: whole * _BLOCK].view(-1, _BLOCK).index_select(0, blocks).abs().view(-1)
        in_full, in_rest = (above(part, threshold).nonzero().squeeze(1) for part in (full, rest))
        values = torch.cat([full[in_full], rest[in_rest]])
        in_blocks = torch.div(in_full, _BLOCK, rounding_mode="floor")
        positions = blocks[in_blocks] * _BLOCK + in_full - in_blocks * _BLOCK
        return values.to(maxima.dtype), torch.cat([positions, in_rest + whole * _BLOCK])

    def take(self, values: Tensor, rows: Tensor) -> None:
        values = torch.cat([self.values.to(values), values])
        rows = torch.cat([self.rows.to(rows), rows])
        self.values, order = values.topk(min(self.keep, len(values)))
        self.rows = rows[order]


class _Sample:
    """A sample in which every value so far has the same expected share; all of them while they fit.

    Each of its slots takes one of m new values with probability m/n, n counting these too.  Those that do
    share them out, one from each of as many equal stretches.
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
        # in float64, as float32 cannot count beyond 2^24
        places = ((torch.arange(count) + draws[1, :count].double()) * (m / max(count, 1))).long()
        new = flat[places.clamp_(max=m - 1).to(flat.device)]
        self.values = new if count == self.size else kept.index_copy(0, slots.to(flat.device), new)
