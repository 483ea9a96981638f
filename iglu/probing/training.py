"""Tails while a model trains: what its activations are given in the very passes of a training step.

No pass is added and nothing random is drawn, so that a run is the same with it as without.  What a watched
step costs: ``benchmarks/tail_callback.py``.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from iglu.modules import SigmaModule
from iglu.probing import VANISHING, default_k
from iglu.probing.stream import Stream
from iglu.probing.turns import Turns
from iglu.probing.watch import Site, Watch
from iglu.tails import TailWarning, hill


class TailMonitor:
    """Watches the activations of ``model`` in a training step, and tells of the last one that it watched.

    The figures of :meth:`metrics` by name:

    - ``tails/alpha/LAYER``: Hill's tail index of the layer's inputs, from the ``k`` largest magnitudes (1% of
      the values unless told), and ``tails/gaussian/LAYER``, what a Gaussian gives at the same n and k;
    - ``tails/dead/LAYER``: the share of dead units, at which no input of the step had a slope above 1e-3.  A
      unit is a channel (dimension 1) of inputs with four dimensions or more, else a feature of the last;
    - ``sigma/PLACE`` for each learnable sigma, with ``sigma_min`` and ``sigma_max`` if it has channels.
    """

    def __init__(self, model: nn.Module, *, k: int | None = None, keep: int = 2048) -> None:
        if k is not None and not 1 <= k < keep:
            raise ValueError(f"k must be from 1 to keep - 1 = {keep - 1}, got {k}")
        self.model = model
        self._k, self._keep = k, keep
        self._turns = self._fresh()
        self._watch = Watch(model, lambda site, x: self._turns.receive(site, x))

    def _fresh(self) -> Turns[_Inputs]:
        return Turns(lambda site: _Inputs(site, self._keep))

    def begin(self) -> None:
        """A step begins: forget the one before."""
        self._turns = self._fresh()

    @contextlib.contextmanager
    def one_pass(self) -> Iterator[None]:
        """Watch what runs inside as one forward pass of the step."""
        self._turns.begin()
        with _uncompiled(), self._watch.on():
            yield

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Watch each call of the model inside as a forward pass; there are several where gradients are
        accumulated."""
        self.begin()
        running = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_uncompiled())
            for handle in (
                self.model.register_forward_pre_hook(
                    lambda *_: running.enter_context(self.one_pass()), prepend=True
                ),
                self.model.register_forward_hook(lambda *_: running.close(), always_call=True),
            ):
                stack.callback(handle.remove)
            stack.callback(running.close)
            yield

    def metrics(self) -> dict[str, float]:
        """Of the last watched step; a layer without a tail, all of whose inputs are equal, has no index."""
        found: dict[str, float] = {}
        for site, inputs in self._turns.layers():
            if inputs.dead is not None:
                found[f"tails/dead/{site.name}"] = inputs.dead
            with contextlib.suppress(ValueError), warnings.catch_warnings():
                warnings.simplefilter("ignore", TailWarning)  # the Gaussian's figure says it
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


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Compiled code would not be seen."""
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else contextlib.nullcontext()


class _Inputs:
    """What one activation was given in a step."""

    def __init__(self, site: Site, keep: int) -> None:
        self.stream = Stream(keep, sample=2, seed=0)
        self._site = site
        self._alive: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Inputs:
        twin = copy.copy(self)  # the site holds the activation itself
        twin.stream = copy.deepcopy(self.stream, memo)
        return twin

    def add(self, x: Tensor) -> None:
        self.stream.add(x)
        is_random = self._site.activation.lower().startswith("rrelu")  # and must draw nothing
        if is_random or x.dim() < 2:
            return
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self._site.function(leaf.clone()).sum(), leaf)
        unit = 1 if x.dim() > 3 else x.dim() - 1
        steepest = slope.abs().amax([dim for dim in range(x.dim()) if dim != unit])
        alive = steepest >= VANISHING
        self._alive = alive if self._alive is None else self._alive | alive

    @property
    def dead(self) -> float | None:
        return None if self._alive is None else 1 - self._alive.float().mean().item()
