"""probe(): the tails of a model's pre-activations per layer, and the sigma they suggest.

Works on any model, with torch alone.  :mod:`iglu.probing.observe` finds the activations,
:mod:`iglu.probing.stream` reduces their inputs to a fixed amount of memory, :mod:`iglu.probing.layers` has
the statistics of a layer, and :mod:`iglu.probing.sigma` suggests a sigma and describes the evidence.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from iglu.functional import check_choice
from iglu.html_table import html_table
from iglu.model_runner import Forward, device_of, each_batch, move, restored_afterwards, run
from iglu.probing.initial import untrained_reason
from iglu.probing.layers import Layer, LayerIndex, check_sizes
from iglu.probing.observe import Accumulators, ActivationObserver
from iglu.probing.sigma import RULES, Evidence, Suggestion, suggest
from iglu.probing.stream import Stream
from iglu.probing.table import COLUMNS, Row, cells, finite_or_none, notes, row_of, text_table


@dataclass(frozen=True, eq=False, repr=False)
class Probe:
    """The layers of a model in the order of their first calls; ``print`` shows a table.

    Args:
        layers: One :class:`~iglu.probing.layers.Layer` per activation.
        batches: The number of batches that the model was run on.
        untrained: Why the model looks untrained, see :mod:`iglu.probing.initial`; "" if it does not.
    """

    layers: list[Layer]
    batches: int
    untrained: str = ""

    def __getitem__(self, name: str) -> Layer:
        layers = {layer.name: layer for layer in self.layers}
        if name not in layers:
            raise KeyError(f"No layer {name!r}. Layers: {', '.join(layers)}")
        return layers[name]

    def suggest_sigma(self, rule: str = "scaled", activation: str = "iglu") -> Suggestion:
        """Suggest a sigma for the model and for each layer that is an IGLU or that IGLU could replace.

        Args:
            rule: "scaled", "regimes" or "nearest", see :mod:`iglu.probing.sigma`.  The first two stay within
                the tested range of sigma, 0.1 to 10, and warn if the model looks untrained.
            activation: "iglu" or "iglu_approx", the activation for :func:`iglu.swap` to insert.
        """
        suggestion = self._suggest(rule, activation)
        if self.untrained and RULES[rule].by_tail:
            warnings.warn(suggestion.notes[0], stacklevel=2)
        return suggestion

    def _suggest(self, rule: str, activation: str = "iglu") -> Suggestion:
        layers = []
        for layer in self.layers:
            index = layer.index_or_reason
            if layer.site.replaceable and isinstance(index, LayerIndex) and layer.robust_sd > 0:
                excess = index.excess, index.excess_low, index.excess_high
                evidence = Evidence(*excess, layer.robust_sd, layer.sample, layer.site.function)
                layers.append((layer.name, layer.site.places, evidence))
        return suggest(rule, layers, activation, self.untrained)

    def rows(self, rule: str = "scaled") -> list[Row]:
        """Return the table as plain values; missing values are None.

        Args:
            rule: The rule for the column sigma, as in :meth:`suggest_sigma`.
        """
        return self._content(rule)["layers"]  # type: ignore[no-any-return]

    def to_json(self, rule: str = "scaled") -> str:
        """Return the rows and the suggestion as JSON.

        Args:
            rule: The rule for the suggestion, as in :meth:`suggest_sigma`.
        """
        return json.dumps(self._content(rule), indent=1, allow_nan=False)

    def _content(self, rule: str) -> dict[str, Any]:
        check_choice("rule", rule, RULES)
        try:
            suggestion = self._suggest(rule).as_dict()
            sigmas = {each["layer"]: each["sigma"] for each in suggestion["layers"]}
        except ValueError:  # no layer has a tail
            suggestion, sigmas = None, {}
        rows = [row_of(layer, sigmas.get(layer.name)) for layer in self.layers]
        content = {"batches": self.batches, "layers": rows, "suggestion": suggestion}
        return finite_or_none(content)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        """The table as HTML, for notebooks."""
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
    """Run ``model`` on ``batches`` and measure the inputs of each of its activations.

    Hooks, modes, buffers and random states are restored afterwards, also after an exception.  An activation
    that is called several times per pass gives one layer per call (``relu``, ``relu 2``), if every pass makes
    the same number of calls.  Activations inside a fused operation (``nn.LSTM``) or TorchScript are not
    visible.  Gated pairs (``nn.GLU``) are excluded, since they are not functions of one value.

    Args:
        model: The model, on any device.
        batches: An iterable of batches.  A batch is a tensor, a mapping of keyword arguments, or a sequence
            that starts with one of these (inputs and targets).  A single tensor or mapping is one batch.
        forward: Called as ``forward(model, batch)`` instead of the model, for other kinds of batches.
        training: Run the model in training mode.
        k: How many of the largest magnitudes per layer Hill's estimator uses; by default 1% of the values,
            if as many were kept.
        keep: How many of the largest magnitudes to keep per layer, over all batches.
        sample: How many values to sample at random per layer, over all batches.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    >>> found = probe(model, torch.randn(1000, 8))
    >>> found["1"].n, round(found["1"].negative, 1)
    (64000, 0.5)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    check_sizes(k, keep=keep, sample=sample)
    seeds = itertools.count()
    streams = Accumulators(lambda _: Stream(keep, sample, seed=next(seeds)))
    observer = ActivationObserver(model, streams.add)
    device = device_of(model)
    count = 0
    # A batch may take several passes of the model, as when it generates text.
    each_pass = model.register_forward_pre_hook(lambda *_: streams.begin_pass(), prepend=True)
    with each_pass, restored_afterwards(model, training), torch.no_grad():
        for batch in each_batch(batches):
            streams.begin_pass()
            with observer.on():
                (forward or run)(model, move(batch, device))
            count += 1
        layers = [Layer.of(site, stream, k, device) for site, stream in streams.layers()]
    if count == 0:
        raise ValueError("batches is empty: there is nothing to measure")
    if not layers:
        raise ValueError(
            f"{type(model).__name__} called no visible activation in {count} batches, neither a module "
            "nor a torch function; those in fused operations and TorchScript are hidden"
        )
    return Probe(layers, count, untrained_reason(model))
