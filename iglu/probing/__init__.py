"""probe(): the tails of a model's pre-activations, layer by layer, and which sigma they suggest.

Works on any model, with torch alone: activations are found as modules and as functions inside a forward
(:mod:`iglu.probing.watch`), what they are given is reduced as it streams by (:mod:`iglu.probing.stream`),
and the model is left as it was.  How little a tail index says about sigma: :mod:`iglu.probing.sigma`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from iglu.formulas import EXACT
from iglu.functional import check_choice
from iglu.notebooks import html_table
from iglu.probing.sigma import RULES, Evidence, Suggestion, suggest
from iglu.probing.stream import Moments, Stream
from iglu.probing.table import COLUMNS, Row, cells, notes, text_table
from iglu.probing.turns import Turns
from iglu.probing.watch import Site, Watch
from iglu.running import Forward, as_it_was, device_of, each_batch, move, run
from iglu.tails import Tail, TailIndex, TailWarning, hill, moment
from iglu.tails.fits import chi_square_range

VANISHING = 1e-3  # |f'| below this passes next to nothing on
_NORMAL_MAD = 1.482602218505602  # a Gaussian's standard deviation over its MAD
_FRACTION = 0.01  # of the values, as far as they are kept
_FEWEST = 10  # k of a small sample


def default_k(n: int, kept: int, asked: int | None) -> int:
    """How many of n values Hill's estimate is from, of which the largest were kept."""
    wanted = max(round(_FRACTION * n), _FEWEST) if asked is None else asked
    return max(min(wanted, kept - 1), 1)


@dataclass(frozen=True)
class LayerIndex:
    """Hill's estimate for one layer, with an interval that knows that the values of one row (an image, a
    sequence) go together, and its excess: xi over a Gaussian's at the same n and k.

    For tails like exp(-x^theta) the excess tends to 2/theta whatever n and k are, which is what makes the
    figures of two layers, or of a paper, comparable: 1 is Gaussian, 2 exponential, more is heavier.
    """

    hill: TailIndex
    effective_k: float  # independent values that would be as informative as the k of the estimate
    alpha_low: float
    alpha_high: float

    @property
    def alpha(self) -> float:
        return self.hill.alpha

    @property
    def gaussian(self) -> float:
        return self.hill.gaussian.alpha

    @property
    def excess(self) -> float:
        return self.gaussian / self.alpha

    @property
    def excess_low(self) -> float:
        return self.gaussian / self.alpha_high

    @property
    def excess_high(self) -> float:
        return self.gaussian / self.alpha_low

    @property
    def verdict(self) -> str:
        """Beside a Gaussian: "heavier", "lighter", or "like" where the interval holds it."""
        if self.excess_low > 1:
            return "heavier"
        return "lighter" if self.excess_high < 1 else "like"


@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """What one activation was given, over all batches."""

    site: Site
    calls: int
    n: int  # finite values
    not_finite: int  # NaN and inf: counted here, left out of all else
    moments: Moments
    tail: Tail | None  # the largest magnitudes, for the functions of iglu.tails; None if there are no values
    rows_of_tail: Tensor  # for each of them, the row of the inputs it came from
    sample: Tensor  # a uniform sample of the values
    vanishing: float  # the share of inputs with |f'| < 1e-3; NaN where f cannot be evaluated by itself
    default_k: int | None = None

    @property
    def name(self) -> str:
        return self.site.name

    @cached_property
    def scale(self) -> float:
        """1.4826 times the median distance from the median; the standard deviation where that is 0."""
        if len(self.sample) == 0:
            return math.nan
        centre = self.sample.quantile(0.5)
        deviation = (self.sample - centre).abs().quantile(0.5).item() * _NORMAL_MAD
        return deviation or self.moments.deviation

    @property
    def negative(self) -> float:
        """The share of inputs below 0."""
        return (self.sample < 0).float().mean().item()

    @property
    def k(self) -> int:
        """As asked for, else 1% of the values; never more than were kept."""
        return default_k(self.n, 1 if self.tail is None else len(self.tail), self.default_k)

    def index(self, k: int | None = None) -> LayerIndex:
        """Hill's estimate from the k largest; a ValueError says why there is none."""
        if self.tail is None:
            raise ValueError(f"{self.name} was given no finite values")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TailWarning)  # the excess says it
            estimate = hill(self.tail, self.k if k is None else k)
        effective = _effective_k(estimate, self.rows_of_tail)
        low, high = chi_square_range(2 * effective)
        return LayerIndex(estimate, effective, estimate.alpha * low, estimate.alpha * high)

    @cached_property
    def _index(self) -> LayerIndex | str:
        try:
            return self.index()
        except ValueError as error:
            return str(error)

    def vanishing_under(self, sigma: float) -> float:
        """The share of inputs with |f'| < 1e-3 under IGLU."""
        if not 0 < sigma < math.inf:
            return (self.sample <= 0).float().mean().item() if sigma == math.inf else 0.0
        return (EXACT.slope(self.sample, sigma) < VANISHING).float().mean().item()

    def __repr__(self) -> str:
        shown = self._index
        tail = (
            shown
            if isinstance(shown, str)
            else f"alpha = {shown.alpha:.3g}, a Gaussian's {shown.gaussian:.3g}"
        )
        return f"Layer({self.name}: {self.site.activation}, n = {self.n}, {tail})"


@dataclass(frozen=True, eq=False, repr=False)
class Probe:
    """The layers of a model in the order in which they were first called; ``print`` shows the table."""

    layers: list[Layer]
    batches: int

    def __getitem__(self, name: str) -> Layer:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"No layer {name!r}. Layers: {', '.join(layer.name for layer in self.layers)}")

    def suggest_sigma(self, rule: str = "scaled", activation: str = "iglu") -> Suggestion:
        """A sigma for the model and for each layer by ``rule``: "scaled", "regimes" or "nearest"; see
        :mod:`iglu.probing.sigma`.  Only for activations that IGLU could replace, and IGLU itself."""
        layers = []
        for layer in self.layers:
            index = layer._index
            if not layer.site.replaceable or isinstance(index, str) or not layer.scale > 0:
                continue
            evidence = Evidence(
                index.excess,
                index.excess_low,
                index.excess_high,
                layer.scale,
                layer.sample,
                layer.site.function,
            )
            layers.append((layer.name, layer.site.places, evidence))
        return suggest(rule, layers, activation)

    def mean_alpha(self, k: int = 100) -> tuple[float, float]:
        """Hill's alpha at k and a Gaussian's at the same n and k, as means over the layers that have one:
        the paper's figure, if the probe saw one batch."""
        found = []
        for layer in self.layers:
            with contextlib.suppress(ValueError):
                found.append(layer.index(k))
        if not found:
            return math.nan, math.nan
        return (
            math.fsum(index.alpha for index in found) / len(found),
            math.fsum(index.gaussian for index in found) / len(found),
        )

    def rows(self, rule: str = "scaled") -> list[Row]:
        """The table as plain values, None where there is none; sigma by ``rule``."""
        suggestion = self._suggestion_or_none(rule)
        sigmas = {} if suggestion is None else {each.layer: each.sigma for each in suggestion.layers}
        return [_row(layer, sigmas.get(layer.name)) for layer in self.layers]

    def to_json(self, rule: str = "scaled") -> str:
        """The rows and the suggestion."""
        suggestion = self._suggestion_or_none(rule)
        body = {
            "batches": self.batches,
            "layers": self.rows(rule),
            "suggestion": None if suggestion is None else _plain(suggestion.as_dict()),
        }
        return json.dumps(body, indent=1, allow_nan=False)

    def _suggestion_or_none(self, rule: str) -> Suggestion | None:
        check_choice("rule", rule, RULES)
        try:
            return self.suggest_sigma(rule)
        except ValueError:
            return None

    def __repr__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = self.rows()
        title = f"Inputs of {len(rows)} activations over {self.batches} batches"
        return html_table(title, list(COLUMNS), map(cells, rows), notes(rows))


def probe(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    forward: Forward | None = None,
    training: bool = False,
    k: int | None = None,
    keep: int = 2048,
    sample: int = 4096,
) -> Probe:
    """Run ``model`` on ``batches`` and measure what each of its activations is given.

    A batch is a tensor, a mapping of keyword arguments, or a sequence whose first element is one of these
    (inputs and targets); one tensor or mapping in the place of ``batches`` is one batch.  ``forward`` is
    called as ``forward(model, batch)`` where that does not fit.  Hooks, modes, buffers and random numbers
    are put back afterwards, also after an exception.  ``training`` runs in training mode.

    Of each layer the ``keep`` largest magnitudes are kept exactly and ``sample`` values at random, however
    many batches there are; Hill's estimate is from the largest ``k``, by default 1% of the values or as many
    as were kept.  An activation that is called several times in a pass is as many layers (``relu``,
    ``relu 2``), if every pass calls it as often.  Not seen: what runs inside one fused operation
    (``nn.LSTM``) or in TorchScript, and gated pairs (``nn.GLU``), which are no function of one value.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    >>> found = probe(model, torch.randn(1000, 8))
    >>> found["1"].n, round(found["1"].negative, 1)
    (64000, 0.5)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    for name, value in (("keep", keep), ("sample", sample)):
        if value < 2:
            raise ValueError(f"{name} must be at least 2, got {value}")
    if k is not None and not 1 <= k < keep:
        raise ValueError(f"k must be from 1 to keep - 1 = {keep - 1}, got {k}")
    seeds = itertools.count()
    turns = Turns(lambda _: Stream(keep, sample, seed=next(seeds)))
    call = run if forward is None else forward
    device = device_of(model)
    count = 0
    watch = Watch(model, turns.receive)
    with as_it_was(model, training), torch.no_grad(), _at_each_call(model, turns.begin):
        for batch in each_batch(batches):
            turns.begin()
            with watch.on():
                call(model, move(batch, device))
            count += 1
        streams = list(turns.layers())
        if count == 0:
            raise ValueError("batches is empty: there is nothing to measure")
        if not streams:
            raise ValueError(
                f"{type(model).__name__} called no activation that could be seen in {count} batches, neither "
                "a module nor a function of torch; fused operations and TorchScript hide theirs"
            )
        layers = [_layer(site, stream, k, device) for site, stream in streams]
    return Probe(layers, count)


@contextlib.contextmanager
def _at_each_call(model: nn.Module, begin: Callable[[], None]) -> Iterator[None]:
    """A batch may take several passes of the model, as in generating text."""
    handle = model.register_forward_pre_hook(lambda *_: begin(), prepend=True)
    try:
        yield
    finally:
        handle.remove()


def _layer(site: Site, stream: Stream, k: int | None, device: torch.device | None) -> Layer:
    sample = stream.sample()
    return Layer(
        site=site,
        calls=stream.calls,
        n=stream.n,
        not_finite=stream.not_finite,
        moments=stream.moments(),
        tail=stream.tail() if stream.n else None,
        rows_of_tail=stream.rows_of_tail(),
        sample=sample,
        vanishing=_vanishing(site.function, sample.to(device)),
        default_k=k,
    )


def _vanishing(function: Callable[[Tensor], Tensor], sample: Tensor) -> float:
    """Measured through autograd.  An activation with a parameter a channel is no function of x alone."""
    if len(sample) == 0:
        return math.nan
    try:
        with torch.enable_grad():
            x = sample.clone().requires_grad_()
            (slope,) = torch.autograd.grad(function(x.clone()).sum(), x)
    except (RuntimeError, ValueError, TypeError):
        return math.nan
    return (slope.abs() < VANISHING).float().mean().item()


def _effective_k(estimate: TailIndex, rows: Tensor) -> float:
    """k over the factor by which dependence inside rows raises the variance of xi.

    xi is the mean of l_i = ln(X_(i)/X_(k+1)), whose variance is xi^2 if all are independent; if only rows
    are, the variance of the mean is the sum over rows of (sum in the row of (l_i - xi))^2, over k^2.
    """
    k = estimate.k
    logs = torch.log(estimate.tail.values[:k] / estimate.threshold) - estimate.xi
    _, group = torch.unique(rows[:k], return_inverse=True)
    sums = torch.zeros(int(group.max()) + 1, dtype=logs.dtype).index_add_(0, group, logs)
    # A few rows cannot show how much rows differ; with m of them the sums have lost a degree of freedom.
    m = len(sums)
    if m == 1:
        return 1.0
    variance = sums.square().sum().item() / k**2 * m / (m - 1)
    independent = estimate.xi**2 / k
    return max(k / max(variance / independent, 1.0), 1.0)


def _row(layer: Layer, sigma: float | None) -> Row:
    index = layer._index
    row: Row = {
        "layer": layer.name, "activation": layer.site.activation, "source": layer.site.source,
        "calls": layer.calls, "n": layer.n, "not_finite": layer.not_finite,
        "mean": layer.moments.mean, "deviation": layer.moments.deviation, "scale": layer.scale,
        "kurtosis": layer.moments.kurtosis, "negative": layer.negative, "vanishing": layer.vanishing,
        "sigma": sigma, "vanishing_iglu": None if sigma is None else layer.vanishing_under(sigma),
        "note": index if isinstance(index, str) else "",
    }  # fmt: skip
    if not isinstance(index, str):
        row |= {
            "k": index.hill.k, "fraction": index.hill.k / layer.n, "effective_k": index.effective_k,
            "alpha": index.alpha, "alpha_low": index.alpha_low, "alpha_high": index.alpha_high,
            "gaussian": index.gaussian, "excess": index.excess, "excess_low": index.excess_low,
            "excess_high": index.excess_high, "verdict": index.verdict, "moment_xi": _moment_xi(index.hill),
        }  # fmt: skip
    return {key: _plain(value) for key, value in row.items()}


def _moment_xi(estimate: TailIndex) -> float | None:
    """A second opinion, from an estimator that can also see a light tail."""
    try:
        return moment(estimate.tail, estimate.k).xi
    except ValueError:
        return None


def _plain(value: Any) -> Any:
    """As JSON can hold it: NaN and inf become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
