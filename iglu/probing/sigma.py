"""Which sigma: three rules, what each rests on, and how little that is.

No rule here is more than a starting point.  The paper trained three networks, once for each of five values
of sigma; its claim is that heavy tails want a small sigma and light ones a large one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from iglu.formulas import EXACT
from iglu.functional import check_choice
from iglu.notebooks import html_table


class Point(NamedTuple):
    """One network of the paper: Hill's alpha on the first batch at k = 100, what a Gaussian gives there,
    and the sigma that did best in the paper's own tables (not the "optimal sigma" it prints beside them),
    with the range that did as well within the spread of one run."""

    network: str
    alpha: float
    gaussian: float
    sigma: float
    low: float
    high: float

    @property
    def excess(self) -> float:
        return self.gaussian / self.alpha


# Best by accuracy on CIFAR (loss favours 0.1 on ResNet-20) and by perplexity on WikiText-103.
POINTS = (
    Point("ViT-Tiny", 23.2, 23.5, 10.0, 1.0, 10.0),
    Point("GPT-2 Small", 20.7, 25.3, 5.0, 5.0, 10.0),
    Point("ResNet-20", 10.4, 17.9, 0.5, 0.5, 1.0),
)

_SOURCES = "; ".join(
    f"{point.network}: excess {point.excess:.2f}, best at {point.sigma:g} of 0.1, 0.5, 1, 5 and 10 "
    f"({point.low:g} to {point.high:g} did as well within the spread of one run)"
    for point in POINTS
)


class Evidence(NamedTuple):
    """What a rule may look at: one layer."""

    excess: float  # xi over a Gaussian's at the same n and k, with its 95% interval
    excess_low: float
    excess_high: float
    scale: float  # 1.4826 MAD
    sample: Tensor = torch.empty(0)  # of its inputs, and what it makes of them
    function: Callable[[Tensor], Tensor] = torch.relu


class Range(NamedTuple):
    """A sigma, and its 95% range as far as that comes from the tail index."""

    sigma: float
    low: float
    high: float


def _regimes(layer: Evidence) -> Range:
    # Beyond its points the rule holds the last value, and does not know how far off that is.
    low = 0.0 if layer.excess_high > POINTS[-1].excess else _by_excess(layer.excess_high)
    high = math.inf if layer.excess_low < POINTS[0].excess else _by_excess(layer.excess_low)
    return Range(_by_excess(layer.excess), low, high)


def _scaled(layer: Evidence) -> Range:
    # sigma acts on sigma x alone, so that weights twice as large need half of it.
    return Range(*(sigma / layer.scale for sigma in _regimes(layer)))


def _nearest(layer: Evidence) -> Range:
    try:
        sigma = nearest_sigma(layer.function, layer.sample)
    except (RuntimeError, ValueError):  # a parameter a channel, or one on another device
        sigma = math.nan
    return Range(sigma, sigma, sigma)


class Rule(NamedTuple):
    find: Callable[[Evidence], Range]
    # Then the model's value is that of the means over its layers, as the paper's are; else it is only the
    # mean over the layers that have one between 0 and inf, and each layer takes its own.
    by_tail: bool
    about: str
    weakness: str


_FEW = (
    f"The evidence is weak: three networks of one paper, one run each. {_SOURCES}. On five small networks it "
    "was not made from, what it suggests did better than sigma = 1 in 2 and worse in 0, and no better than "
    "sigma = 5 for all of them. Train with half and with twice this sigma as well, on several seeds, before "
    "you believe it."
)

RULES = {
    "scaled": Rule(
        _scaled,
        True,
        "the paper's regimes, divided by the scale of each layer's inputs: sigma multiplies x",
        f"{_FEW} The scale of the paper's pre-activations is not published; it is taken to be 1.",
    ),
    "regimes": Rule(
        _regimes,
        True,
        "the paper's regimes: log sigma interpolated between its three networks by their excess over a "
        "Gaussian tail, and held constant beyond them",
        f"{_FEW} This rule ignores the scale of the inputs, on which the right sigma must depend.",
    ),
    "nearest": Rule(
        _nearest,
        False,
        "the sigma whose IGLU is nearest in the mean square to the present activation on the layer's own "
        "inputs (inf where that is ReLU, the limit of IGLU)",
        "It says how to change a trained model least, not how to make it better, and looks at no tail.",
    ),
}


def _by_excess(excess: float) -> float:
    """log sigma, linear in the excess between the paper's points and constant beyond them.

    >>> round(_by_excess(1.0), 2), round(_by_excess(3.0), 2)
    (10.0, 0.5)
    """
    for left, right in itertools.pairwise(POINTS):
        if excess < right.excess:
            share = max(0.0, (excess - left.excess) / (right.excess - left.excess))
            return math.exp((1 - share) * math.log(left.sigma) + share * math.log(right.sigma))
    return POINTS[-1].sigma


def nearest_sigma(function: Callable[[Tensor], Tensor], sample: Tensor) -> float:
    """The sigma whose IGLU is nearest to ``function`` in the mean square over ``sample``, to 0.1%.

    >>> x = torch.special.ndtri((torch.arange(20_000) + 0.5) / 20_000)
    >>> round(nearest_sigma(torch.nn.functional.gelu, x), 2)
    2.24
    """
    x = sample.double()
    with torch.no_grad():
        target = function(sample).double()
    unit = x.square().mean().sqrt().item()
    if not unit > 0:
        return math.nan

    def error(log: float) -> float:
        return (EXACT.value(x, math.exp(log) / unit) - target).square().mean().item()

    logs = torch.linspace(math.log(1e-3), math.log(1e4), 60).tolist()
    errors = [error(log) for log in logs]
    best = min(range(len(logs)), key=errors.__getitem__)
    if best == len(logs) - 1:
        return math.inf
    if best == 0:
        return 0.0
    low, high = logs[best - 1], logs[best + 1]
    while high - low > 1e-3:  # thirds: the error is smooth with one minimum between its neighbours
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if error(left) < error(right) else (left, high)
    return math.exp((low + high) / 2) / unit


@dataclass(frozen=True)
class LayerSigma:
    """A suggestion for one layer."""

    layer: str
    places: tuple[str, ...]  # as iglu.swap knows them
    sigma: float
    low: float
    high: float


class Suggestion(Mapping[str, str]):
    """One sigma for the model and one a layer, the rule, and how much it is worth.

    As a mapping it is what :func:`iglu.swap` takes, from places to names: ``iglu.swap(model, suggestion)``
    puts the one value everywhere, ``iglu.swap(model, suggestion.by_layer)`` each layer's own.  The rule
    "nearest" has no value for a model, only one a layer: what is nearest to a GELU is not to a ReLU.
    """

    def __init__(
        self,
        rule: str,
        model: Range,
        layers: list[LayerSigma],
        notes: list[str],
        activation: str = "iglu",
        each: bool = False,
    ) -> None:
        self.rule = rule
        self.sigma, self.low, self.high = model
        self.layers = layers
        self.notes = notes  # plain words about the evidence
        self.activation = activation
        self._each = each

    @property
    def by_layer(self) -> Suggestion:
        """The same, which as a mapping gives each layer its own value."""
        model = Range(self.sigma, self.low, self.high)
        return Suggestion(self.rule, model, self.layers, self.notes, self.activation, each=True)

    def _names(self) -> dict[str, str]:
        sigmas: dict[str, list[float]] = {}
        for layer in self.layers:
            for place in layer.places:
                sigmas.setdefault(place, []).append(layer.sigma if self._each else self.sigma)
        # An activation that is called at several places has one sigma all the same.
        return {place: f"{self.activation}:{_mean(values):.4g}" for place, values in sigmas.items()}

    def __getitem__(self, place: str) -> str:
        return self._names()[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def as_dict(self) -> dict[str, object]:
        layers = [
            {
                "layer": each.layer,
                "places": list(each.places),
                "sigma": each.sigma,
                "low": each.low,
                "high": each.high,
            }
            for each in self.layers
        ]
        return {
            "rule": self.rule, "about": RULES[self.rule].about, "sigma": self.sigma, "low": self.low,
            "high": self.high, "layers": layers, "notes": self.notes,
        }  # fmt: skip

    def __repr__(self) -> str:
        about = f"rule {self.rule!r}: {RULES[self.rule].about}"
        return "Suggestion: " + "\n  ".join([self._title, about, *self.notes])

    def _repr_html_(self) -> str:
        """The same with a table of the layers, for notebooks."""
        rows = [
            (layer.layer, f"{layer.sigma:.3g}", f"{layer.low:.3g} to {layer.high:.3g}")
            for layer in self.layers
        ]
        about = f"rule {self.rule!r}: {RULES[self.rule].about}"
        return html_table(f"Suggestion: {self._title}", ("layer", "sigma", "95%"), rows, [about, *self.notes])

    @property
    def _title(self) -> str:
        sigmas = [layer.sigma for layer in self.layers]
        layers = f"{min(sigmas):.3g} to {max(sigmas):.3g} over {len(sigmas)} layers"
        if self._each:
            return f"one sigma a layer, {layers}"
        return f"sigma = {self.sigma:.3g} [{self.low:.3g}, {self.high:.3g}] for the model, {layers}"


def suggest(rule: str, layers: list[tuple[str, tuple[str, ...], Evidence]], activation: str) -> Suggestion:
    """By ``rule``, for layers given as name, places and evidence."""
    check_choice("rule", rule, RULES)
    check_choice("activation", activation, ("iglu", "iglu_approx"))
    found = []
    for name, places, evidence in layers:
        sigma, low, high = RULES[rule].find(evidence)
        if not math.isnan(sigma):
            found.append(LayerSigma(name, places, sigma, low, high))
    if not found:
        raise ValueError(
            "No sigma to suggest: no activation here that IGLU could replace has a tail to measure"
        )
    notes = []
    if RULES[rule].by_tail:
        tails = [evidence for _, _, evidence in layers]
        model = sigma_of_model(rule, tails)
        notes += _in_words(_mean_evidence(tails), tails)
    else:
        usual = [layer for layer in found if 0 < layer.sigma < math.inf] or found
        model = Range(*(_mean([getattr(layer, end) for layer in usual]) for end in ("sigma", "low", "high")))
    notes.append(RULES[rule].weakness)
    unreached = sum(not layer.places for layer in found)
    if unreached:
        notes.append(
            f"{unreached} of {len(found)} layers are calls inside a forward, which swap cannot reach."
        )
    return Suggestion(rule, model, found, notes, activation, each=not RULES[rule].by_tail)


def sigma_of_model(rule: str, layers: list[Evidence]) -> Range:
    """Of a rule that goes by tails: its value at the means over the layers, as the paper's points are."""
    return RULES[rule].find(_mean_evidence(layers))


def _mean_evidence(layers: list[Evidence]) -> Evidence:
    """Means of figures over layers.  The range is no narrower than a layer's: layers see the same inputs."""
    return layers[0]._replace(
        excess=_mean([layer.excess for layer in layers]),
        excess_low=_mean([layer.excess_low for layer in layers]),
        excess_high=_mean([layer.excess_high for layer in layers]),
        scale=_mean([layer.scale for layer in layers]),
    )


def _in_words(whole: Evidence, layers: list[Evidence]) -> list[str]:
    heavier = sum(layer.excess_low > 1 for layer in layers)
    lighter = sum(layer.excess_high < 1 for layer in layers)
    scales = sorted(layer.scale for layer in layers)
    words = [
        f"Hill's xi is {whole.excess:.2f} [{whole.excess_low:.2f}, {whole.excess_high:.2f}] times a "
        f"Gaussian's at the same n and k, on average; {heavier} of {len(layers)} layers are heavier than a "
        f"Gaussian, {lighter} lighter. Scale {whole.scale:.3g}, from {scales[0]:.3g} to {scales[-1]:.3g}."
    ]
    first, last = POINTS[0].excess, POINTS[-1].excess
    beyond = sum(not first <= layer.excess <= last for layer in layers)
    if beyond:
        words.append(
            f"{beyond} of {len(layers)} layers lie outside the paper's range of excess, {first:.2f} to "
            f"{last:.2f}, where the rule knows nothing and holds the last value."
        )
    return words


def _mean(values: list[float]) -> float:
    """Geometric: sigma and 1/sigma are on an equal footing."""
    if any(value == 0 for value in values):
        return 0.0 if math.inf not in values else math.nan
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))
