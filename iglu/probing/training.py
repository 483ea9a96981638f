"""Tail statistics during training, from the forward passes of the training steps themselves.

The monitor adds no pass and draws no random numbers, so it does not change the run.
``benchmarks/tail_callback.py`` measures the cost of a monitored step.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from iglu.model_runner import uncompiled
from iglu.modules import SigmaModule
from iglu.probing.layers import VANISHING, check_sizes, default_k, derivative
from iglu.probing.observe import Accumulators, ActivationObserver, ObservedSite
from iglu.probing.stream import Stream
from iglu.tails import TailWarning, hill


class TailMonitor:
    """Monitor the activations of a model during a training step.

    :meth:`metrics` returns, for the last monitored step:

    - ``tails/alpha/LAYER``: Hill's tail index of the layer's inputs, and ``tails/gaussian/LAYER``: the index
      of Gaussian data at the same n and k;
    - ``tails/dead/LAYER``: the share of dead units, whose derivative was below 1e-3 for all inputs of the
      step.  A unit is a channel (dimension 1) of inputs with four or more dimensions, else a feature (the
      last dimension);
    - ``sigma/PLACE`` for each learnable sigma, with ``sigma_min`` and ``sigma_max`` if it is per channel.

    Args:
        model: The model that is trained.
        k: The number of largest magnitudes per layer that the tail index uses; by default 1% of the values.
        keep: The number of largest magnitudes to keep per layer.
    """

    def __init__(self, model: nn.Module, *, k: int | None = None, keep: int = 2048) -> None:
        check_sizes(k, keep=keep)
        self.model = model
        self._k, self._keep = k, keep
        self.begin()
        self._observer = ActivationObserver(model, lambda site, x: self._inputs.add(site, x))

    def begin(self) -> None:
        """Start a step and discard the previous one."""
        self._inputs = Accumulators(lambda site: _Inputs(site, self._keep))

    @contextlib.contextmanager
    def one_pass(self) -> Iterator[None]:
        """Monitor the code inside as one forward pass of the step."""
        self._inputs.begin_pass()
        with uncompiled(), self._observer.on():
            yield

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Monitor each call of the model inside as a forward pass; gradient accumulation makes several."""
        self.begin()
        with (
            uncompiled(),
            contextlib.ExitStack() as running,
            self.model.register_forward_pre_hook(
                lambda *_: running.enter_context(self.one_pass()), prepend=True
            ),
            self.model.register_forward_hook(lambda *_: running.close(), always_call=True),
        ):
            yield

    def metrics(self) -> dict[str, float]:
        """Return the statistics of the last monitored step; a layer with constant inputs has no index."""
        found: dict[str, float] = {}
        for site, inputs in self._inputs.layers():
            if inputs.dead is not None:
                found[f"tails/dead/{site.name}"] = inputs.dead
            with contextlib.suppress(ValueError), warnings.catch_warnings():
                warnings.simplefilter("ignore", TailWarning)  # the Gaussian index shows the same
                index = hill(inputs.stream.tail(), default_k(inputs.stream.n, self._keep, self._k))
                found[f"tails/alpha/{site.name}"] = index.alpha
                found[f"tails/gaussian/{site.name}"] = index.gaussian.alpha
        return found | _sigmas(self.model)


def _sigmas(model: nn.Module) -> dict[str, float]:
    found: dict[str, float] = {}
    for place, module in model.named_modules():
        if isinstance(module, SigmaModule) and module.learnable:
            sigma = torch.as_tensor(module.sigma).detach().float()
            found[f"sigma/{place}"] = sigma.mean().item()
            if sigma.numel() > 1:
                found[f"sigma_min/{place}"] = sigma.min().item()
                found[f"sigma_max/{place}"] = sigma.max().item()
    return found


class _Inputs:
    """The inputs of one activation in a step."""

    def __init__(self, site: ObservedSite, keep: int) -> None:
        self.stream = Stream(keep, sample=2, seed=0)
        self._site = site
        self._alive: Tensor | None = None
        self._is_mixed = False  # inputs of different widths, which have different units

    def add(self, x: Tensor) -> None:
        self.stream.add(x)
        # RReLU would draw random numbers.
        if self._site.activation.lower().startswith("rrelu") or x.dim() < 2:
            return
        unit = 1 if x.dim() > 3 else x.dim() - 1
        others = [dim for dim in range(x.dim()) if dim != unit]
        alive = derivative(self._site.function, x).abs().amax(others) >= VANISHING
        if self._alive is not None and self._alive.shape != alive.shape:
            self._is_mixed = True
        if not self._is_mixed:
            self._alive = alive if self._alive is None else self._alive | alive

    @property
    def dead(self) -> float | None:
        if self._alive is None or self._is_mixed:
            return None
        return 1 - self._alive.float().mean().item()
