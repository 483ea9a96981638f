"""Suggest a sigma from the statistics of a model's pre-activations: three rules and their evidence.

A suggestion is only a starting point.  The paper trained three networks, once at each of five values of
sigma; it claims that heavy tails need a small sigma and light tails a large one.

*Excess* means Hill's xi divided by the xi that Gaussian data give at the same n and k: 1 is a Gaussian tail,
above 1 is heavier.  *Robust SD* means 1.4826 times the median absolute deviation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from iglu.formulas import EXACT
from iglu.functional import check_choice
from iglu.html_table import html_table

# The range of sigma in which networks were trained, by the paper or by us; outside it, nothing is known.
TESTED = (0.1, 10.0)


class Point(NamedTuple):
    """One network of the paper: Hill's alpha on the first batch at k = 100, the alpha of Gaussian data at the
    same n and k, and the sigma with the best result in the paper's tables (not the "optimal sigma" printed
    next to them), with the range of sigma that is as good up to the standard deviation of a run."""

    network: str
    alpha: float
    gaussian: float
    sigma: float
    low: float
    high: float

    @property
    def excess(self) -> float:
        return self.gaussian / self.alpha


# Best by accuracy on CIFAR (loss favors 0.1 on ResNet-20) and by perplexity on WikiText-103.
POINTS = (
    Point("ViT-Tiny", 23.2, 23.5, 10.0, 1.0, 10.0),
    Point("GPT-2 Small", 20.7, 25.3, 5.0, 5.0, 10.0),
    Point("ResNet-20", 10.4, 17.9, 0.5, 0.5, 1.0),
)


class Evidence(NamedTuple):
    """The statistics of one layer that a rule may use."""

    excess: float  # with its 95% interval
    excess_low: float
    excess_high: float
    robust_sd: float
    sample: Tensor = torch.empty(0)  # of the layer's inputs
    function: Callable[[Tensor], Tensor] = torch.relu  # the layer's activation


class Range(NamedTuple):
    """A sigma with the part of its 95% interval that comes from the tail index."""

    sigma: float
    low: float
    high: float


def _regimes(layer: Evidence) -> Range:
    # Outside its points the rule is constant, and sigma has no bound on that side.
    low = 0.0 if layer.excess_high > POINTS[-1].excess else _by_excess(layer.excess_high)
    high = math.inf if layer.excess_low < POINTS[0].excess else _by_excess(layer.excess_low)
    return Range(_by_excess(layer.excess), low, high)


def _scaled(layer: Evidence) -> Range:
    # Up to a factor, IGLU depends only on sigma x: doubled weights need half the sigma.
    return Range(*(sigma / layer.robust_sd for sigma in _regimes(layer)))


def _nearest(layer: Evidence) -> Range:
    try:
        sigma = nearest_sigma(layer.function, layer.sample)
    except (RuntimeError, ValueError):  # one parameter per channel, or a parameter on another device
        sigma = math.nan
    return Range(sigma, sigma, sigma)


class Rule(NamedTuple):
    find: Callable[[Evidence], Range]
    # Whether the rule uses tails.  If so, it gives the model's sigma from the means over layers (as in the
    # paper), and suggestions are limited to TESTED.  If not, each layer gets its own sigma.
    by_tail: bool
    about: str
    weakness: str


_BEST = ", ".join(f"{point.network} {point.sigma:g} at excess {point.excess:.2f}" for point in POINTS)
_FEW = (
    f"The evidence is weak: three networks of one paper, one run each (best sigma: {_BEST}). On five other "
    "small networks, the suggestion was better than sigma = 1 in 2 and worse in 0, and never better than "
    "sigma = 5. Before you rely on it, also train with half and with twice this sigma, on several seeds."
)

RULES = {
    "scaled": Rule(
        _scaled,
        True,
        "the rule 'regimes' divided by the robust SD of each layer's inputs, since sigma multiplies x",
        f"{_FEW} The paper does not publish the SD of its pre-activations; it is assumed to be 1.",
    ),
    "regimes": Rule(
        _regimes,
        True,
        "log sigma interpolated between the paper's three networks by their excess over a Gaussian tail, and "
        "constant outside them",
        f"{_FEW} This rule ignores the SD of the inputs, on which the right sigma must depend.",
    ),
    "nearest": Rule(
        _nearest,
        False,
        "the sigma whose IGLU is closest in mean square to the present activation on the layer's own inputs "
        "(inf where that is ReLU, the limit of IGLU)",
        "It changes a trained model least; it does not say what makes a model better, and uses no tails.",
    ),
}


def _by_excess(excess: float) -> float:
    """Interpolate log sigma linearly in the excess between the paper's points; constant outside them.

    >>> round(_by_excess(1.0), 2), round(_by_excess(3.0), 2)
    (10.0, 0.5)
    """
    for left, right in itertools.pairwise(POINTS):
        if excess < right.excess:
            share = max(0.0, (excess - left.excess) / (right.excess - left.excess))
            return math.exp((1 - share) * math.log(left.sigma) + share * math.log(right.sigma))
    return POINTS[-1].sigma


def nearest_sigma(function: Callable[[Tensor], Tensor], sample: Tensor) -> float:
    """Find the sigma whose IGLU is closest to ``function`` in mean square over ``sample``, to 0.1%.

    Args:
        function: A pointwise activation; it may work in place.
        sample: Inputs to compare on.

    >>> x = torch.special.ndtri((torch.arange(20_000) + 0.5) / 20_000)
    >>> round(nearest_sigma(torch.nn.functional.gelu, x), 2)
    2.24
    """
    x = sample.double()
    with torch.no_grad():
        target = function(sample.clone()).double()
    unit = x.square().mean().sqrt().item()
    if not unit > 0:
        return math.nan

    def error(log: float) -> float:
        return (EXACT.value(x, math.exp(log) / unit) - target).square().mean().item()

    logs = torch.linspace(math.log(1e-3), math.log(1e4), 60).tolist()
    errors = [error(log) for log in logs]
    best = min(range(len(logs)), key=errors.__getitem__)
    if best in (0, len(logs) - 1):
        return math.inf if best else 0.0
    low, high = logs[best - 1], logs[best + 1]
    while high - low > 1e-3:  # ternary search: one minimum lies between the neighbors of the best
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if error(left) < error(right) else (left, high)
    return math.exp((low + high) / 2) / unit


@dataclass(frozen=True)
class LayerSigma:
    """The suggestion for one layer."""

    layer: str
    places: tuple[str, ...]  # names that iglu.swap accepts
    sigma: float
    low: float
    high: float


@dataclass(frozen=True, eq=False, repr=False)
class Suggestion(Mapping[str, str]):
    """One sigma for the model and one per layer, the rule, and notes on the evidence.

    It is also a mapping from places to names of activations, which :func:`iglu.swap` accepts:
    ``iglu.swap(model, suggestion)`` uses the model's sigma everywhere, ``iglu.swap(model,
    suggestion.by_layer)`` each layer's own.  The rule "nearest" is always per layer.

    Args:
        rule: The name of the rule it was made by: "scaled", "regimes" or "nearest".
        sigma: The value for the model: what the rule gives for the geometric means over its layers.
        low: The lower end of its 95% interval, for the uncertainty of the tail index alone.
        high: The upper end of the same interval.
        layers: One :class:`~iglu.probing.sigma.LayerSigma` per layer, with its own sigma and interval.
        notes: Sentences on the evidence and its limits.
        activation: The activation to insert, "iglu" or "iglu_approx".
    """

    rule: str
    sigma: float
    low: float
    high: float
    layers: list[LayerSigma]
    notes: list[str]
    activation: str = "iglu"

    @property
    def by_layer(self) -> dict[str, str]:
        """The mapping that gives each layer its own sigma."""
        sigmas: dict[str, list[float]] = {}
        for layer in self.layers:
            for place in layer.places:
                sigmas.setdefault(place, []).append(layer.sigma)
        # A module that is called several times still has one sigma.
        return {place: f"{self.activation}:{_mean(values):.4g}" for place, values in sigmas.items()}

    def __getitem__(self, place: str) -> str:
        own = self.by_layer[place]
        return f"{self.activation}:{self.sigma:.4g}" if RULES[self.rule].by_tail else own

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_layer)

    def __len__(self) -> int:
        return len(self.by_layer)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"about": RULES[self.rule].about}

    def _texts(self) -> tuple[str, list[str]]:
        """The title and the lines below it."""
        sigmas = [layer.sigma for layer in self.layers]
        model = f"sigma = {self.sigma:.3g} [{self.low:.3g}, {self.high:.3g}] for the model"
        title = model if RULES[self.rule].by_tail else "one sigma per layer"
        title = f"Suggestion: {title}, {min(sigmas):.3g} to {max(sigmas):.3g} over {len(sigmas)} layers"
        return title, [f"rule {self.rule!r}: {RULES[self.rule].about}", *self.notes]

    def __repr__(self) -> str:
        title, lines = self._texts()
        return "\n  ".join([title, *lines])

    def _repr_html_(self) -> str:
        """The text and a table of the layers as HTML, for notebooks."""
        title, lines = self._texts()
        rows = [(it.layer, f"{it.sigma:.3g}", f"{it.low:.3g} to {it.high:.3g}") for it in self.layers]
        return html_table(title, ("layer", "sigma", "95%"), rows, lines)


def suggest(
    rule: str, layers: list[tuple[str, tuple[str, ...], Evidence]], activation: str, untrained: str
) -> Suggestion:
    """Apply ``rule`` to layers given as name, places and evidence; ``untrained`` as in :class:`Probe`."""
    check_choice("rule", rule, RULES)
    check_choice("activation", activation, ("iglu", "iglu_approx"))
    found = [(name, places, RULES[rule].find(evidence)) for name, places, evidence in layers]
    found = [each for each in found if not math.isnan(each[2].sigma)]
    if not found:
        raise ValueError("No sigma to suggest: no activation that IGLU could replace has a tail to measure")
    ranges = [each[2] for each in found]
    notes = []
    if RULES[rule].by_tail:
        tails = [evidence for _, _, evidence in layers]
        model = sigma_of_model(rule, tails)
        if untrained:
            notes.append(
                f"The model looks untrained: {untrained}. Its tails are those of the initialization and say "
                "nothing about sigma; probe a trained model, or start with sigma = 5."
            )
        notes += _cut_notes(model, ranges) + _tail_notes(tails)
        model, *ranges = (_cut(each) for each in (model, *ranges))
    else:
        usual = [each for each in ranges if 0 < each.sigma < math.inf] or ranges
        model = Range(*map(_mean, zip(*usual, strict=True)))
    notes.append(RULES[rule].weakness)
    if unreached := sum(not places for _, places, _ in found):
        notes.append(f"{unreached} of {len(found)} layers are function calls that swap cannot replace.")
    sigmas = [LayerSigma(name, places, *each) for (name, places, _), each in zip(found, ranges, strict=True)]
    return Suggestion(rule, *model, sigmas, notes, activation)


def sigma_of_model(rule: str, layers: list[Evidence]) -> Range:
    """The sigma for a model, by a rule that uses tails, from the means over layers; not limited to TESTED."""
    return RULES[rule].find(_mean_evidence(layers))


def _mean_evidence(layers: list[Evidence]) -> Evidence:
    """Geometric means over layers; the interval is not narrower than that of a layer, since layers depend on
    each other."""
    excess, low, high, sd = map(_mean, zip(*(layer[:4] for layer in layers), strict=True))
    return Evidence(excess, low, high, sd)


def _mean(values: Sequence[float]) -> float:
    """The geometric mean, which treats sigma and 1/sigma alike."""
    if 0 in values:
        return math.nan if math.inf in values else 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _cut(found: Range) -> Range:
    return Range(*(min(max(value, TESTED[0]), TESTED[1]) for value in found))


def _cut_notes(model: Range, layers: list[Range]) -> list[str]:
    is_cut = [not math.isclose(_cut(each).sigma, each.sigma) for each in (model, *layers)]
    parts = [f"the model's sigma, {model.sigma:.3g} by the rule"] if is_cut[0] else []
    parts += [f"{sum(is_cut[1:])} of {len(layers)} layers"] if any(is_cut[1:]) else []
    limits = f"{TESTED[0]:g} to {TESTED[1]:g}"
    text = f"Limited to the tested range of sigma, {limits}: {' and '.join(parts)}."
    return [text] if parts else []


def _tail_notes(layers: list[Evidence]) -> list[str]:
    mean = _mean_evidence(layers)
    heavier = sum(layer.excess_low > 1 for layer in layers)
    lighter = sum(layer.excess_high < 1 for layer in layers)
    sds = sorted(layer.robust_sd for layer in layers)
    notes = [
        f"The geometric mean excess is {mean.excess:.2f} [{mean.excess_low:.2f}, {mean.excess_high:.2f}]: xi "
        f"divided by a Gaussian's at the same n and k. Of {len(layers)} layers, {heavier} are heavier than a "
        f"Gaussian and {lighter} lighter. Robust SD {mean.robust_sd:.3g}, from {sds[0]:.3g} to {sds[-1]:.3g}."
    ]
    first, last = POINTS[0].excess, POINTS[-1].excess
    if outside := sum(not first <= layer.excess <= last for layer in layers):
        notes.append(
            f"{outside} of {len(layers)} layers are outside the paper's range of excess, {first:.2f} to "
            f"{last:.2f}, where the rule has no data and is constant."
        )
    return notes
