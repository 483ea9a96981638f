"""Observe which activations a forward pass calls, with which inputs, and where; nothing is patched.

Modules are observed by hooks.  Functions (``F.relu`` in a forward method) are observed by a
``TorchFunctionMode``, which also keeps transformer layers from a fused path that would hide them.  Calls are
identified by their place in the code, so one ``nn.ReLU`` used at two places of a block gives two sites.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from iglu import functional
from iglu.model_runner import first_tensor
from iglu.modules import IGLUGLU
from iglu.surgery.activations import function_name, is_activation, is_replaced_by_default
from iglu.surgery.sites import find_sites, is_called_from

_MOST_CALLS = 32  # per site and pass that become separate layers

# Modules that torch counts among the activations but that are not functions of one value.
_NOT_POINTWISE = (nn.Softmax, nn.Softmax2d, nn.Softmin, nn.LogSoftmax, nn.GLU, IGLUGLU)

# Also observed; swap does not replace them by default.
_MORE_FUNCTIONS = {
    "tanh", "sigmoid", "softplus", "log_sigmoid", "softsign", "hardtanh", "hardsigmoid", "tanhshrink",
    "hardshrink", "softshrink", "rrelu", "threshold",
}  # fmt: skip
_OURS = (functional.iglu, functional.iglu_gate, functional.gelu_scaled)

# Python modules of the frames between the call of a torch function and the mode.
_SKIPPED_MODULES = {
    nn.Module.__module__, "torch.nn.functional", "torch.overrides", "torch._jit_internal", "torch._tensor",
    "iglu.functional", __name__,
}  # fmt: skip

_CALL = nn.Module._call_impl.__code__
Chain = tuple[tuple[CodeType, int], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class ObservedSite:
    """A place in the code of one module where an activation is called."""

    name: str  # "layer1.0.act1", or "layer1.0: relu" for a function; not unique
    places: tuple[str, ...]  # names for iglu.swap, several if shared, none if swap cannot replace it
    activation: str
    source: str  # "file.py:line"
    replaceable: bool  # whether swap replaces it by default
    function: Callable[[Tensor], Tensor]  # the activation; it may work in place

    def __deepcopy__(self, memo: dict[int, Any]) -> ObservedSite:
        return self  # not a copy of the activation


class ActivationObserver(TorchFunctionMode):
    """Report each call of an activation of ``model`` to ``receive`` while :meth:`on` is active."""

    def __init__(self, model: nn.Module, receive: Callable[[ObservedSite, Tensor], None]) -> None:
        super().__init__()
        self._receive = receive
        self._names = {id(module): name for name, module in model.named_modules()}
        self._modules = {
            id(module): module
            for module in model.modules()
            if is_activation(module) and not isinstance(module, _NOT_POINTWISE)
        }
        self._replaceable = list(find_sites(model))
        # by the module whose forward makes the call, the activation module or function name, and the frames
        self._sites: dict[tuple[int, int | str, Chain], ObservedSite] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in self._modules.values():
                # Before all other hooks, which could change the inputs.
                hook = module.register_forward_pre_hook(self._see_module, prepend=True, with_kwargs=True)
                stack.enter_context(hook)
            stack.enter_context(self)
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_activation_function(func):
            self._see_function(func, args, kwargs)
        return func(*args, **kwargs)

    def _see_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_tensor(args, kwargs)
        if not _is_observable(x):
            return
        with torch._C.DisableTorchFunction():
            owner, chain, source = _caller(sys._getframe(), skip=module)
            key = id(owner), id(module), chain
            if key not in self._sites:
                places = tuple(site.place for site in self._replaceable if site.content is module)
                self._sites[key] = ObservedSite(
                    self._names[id(module)], places, repr(module), source, is_replaced_by_default(module),
                    module.forward,
                )  # fmt: skip
            self._receive(self._sites[key], x)

    def _see_function(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        name: str = getattr(function, "__name__", "")
        x = args[0] if args else kwargs.get("input")
        if x is None or not _is_observable(x):
            return
        with torch._C.DisableTorchFunction():
            owner, chain, source = _caller(sys._getframe())
            if id(owner) in self._modules:
                return  # the hook has reported it
            key = id(owner), name, chain
            if key not in self._sites:
                name = name.strip("_")
                label, places = self._label_and_places(owner, chain, function, name)
                options = {key: value for key, value in kwargs.items() if key != "input"}
                self._sites[key] = ObservedSite(
                    label, places, name, source, is_replaced_by_default(function),
                    lambda x: function(x, *args[1:], **options),
                )  # fmt: skip
            self._receive(self._sites[key], x)

    def _label_and_places(
        self, owner: nn.Module | None, chain: Chain, function: Any, name: str
    ) -> tuple[str, tuple[str, ...]]:
        """The name of a function call, and the places for swap: that of the call itself, or the attributes
        in which the owner keeps the function or its name."""
        label = f"{self._names.get(id(owner), '')}: {name}".removeprefix(": ")
        sites = [site for site in self._replaceable if site.parent is owner]
        layers = [site for site in sites if site.call is not None and site.is_in_layer]
        calls = [site for site in layers if chain and not site.reason and is_called_from(site, chain, name)]
        if calls:
            return label, tuple(site.place for site in calls)
        kept = [site for site in sites if site.call is None]
        places = [site.place for site in kept if site.content is function or isinstance(site.content, str)]
        return (places or [label])[0], tuple(places)


@functools.lru_cache(maxsize=4096)  # called for every torch function
def _is_activation_function(function: Any) -> bool:
    named = getattr(function, "__name__", "").strip("_") in _MORE_FUNCTIONS
    return named or function in _OURS or function_name(function) is not None


def _is_observable(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided and not x.is_nested


def _caller(frame: FrameType | None, skip: nn.Module | None = None) -> tuple[nn.Module | None, Chain, str]:
    """Return the module whose forward is running, the frames from there to the call, and the call's line."""
    frames: list[FrameType] = []
    owner = None
    while frame is not None:
        if frame.f_code is _CALL:
            owner = frame.f_locals["self"]
            if owner is not skip:
                break
            frames.clear()
        elif frame.f_globals.get("__name__") not in _SKIPPED_MODULES:
            frames.append(frame)
        frame = frame.f_back
    chain = tuple((each.f_code, each.f_lasti) for each in frames)
    if not frames:
        return owner, chain, ""
    filename = frames[0].f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return owner, chain, f"{filename}:{frames[0].f_lineno}"


class Accumulators:
    """One accumulator of inputs, ``make(site)``, per site and per number of the call within a pass.

    Three calls of F.relu in a loop are three layers: their inputs may have three different SDs, and their
    mixture would look heavy-tailed.  If passes differ in the number of calls, or make more than 32 (a
    recurrence), all calls of the site form one layer.
    """

    def __init__(self, make: Callable[[ObservedSite], Any]) -> None:
        self._make = make
        self._separate: dict[tuple[ObservedSite, int], Any] = {}  # in the order of their first calls
        self._pooled: dict[ObservedSite, Any] = {}  # over all calls of a pass, for sites with several
        self._expected: dict[ObservedSite, int] = {}  # calls per pass
        self._calls: dict[ObservedSite, int] = {}  # in this pass
        self._merged: set[ObservedSite] = set()

    def begin_pass(self) -> None:
        """Start a forward pass, which ends the previous one."""
        for site, count in self._calls.items():
            if self._expected.setdefault(site, count) != count:
                self._merged.add(site)
        self._calls = {}

    def add(self, site: ObservedSite, x: Tensor) -> None:
        number = self._calls.get(site, 0)
        self._calls[site] = number + 1
        if number and site not in self._pooled:
            self._pooled[site] = copy.deepcopy(self._separate[site, 0])  # all earlier calls were first ones
        if site in self._pooled:
            self._pooled[site].add(x)
        if number >= self._expected.get(site, _MOST_CALLS):
            self._merged.add(site)
        if site not in self._merged:
            if (site, number) not in self._separate:
                self._separate[site, number] = self._make(site)
            self._separate[site, number].add(x)

    def layers(self) -> Iterator[tuple[ObservedSite, Any]]:
        """Yield each layer under a unique name: relu, relu 2, relu 3."""
        self.begin_pass()
        taken: dict[str, int] = {}
        for (site, call), accumulator in self._separate.items():
            if site in self._merged and call:
                continue
            number = taken[site.name] = taken.get(site.name, 0) + 1
            named = dataclasses.replace(site, name=f"{site.name} {number}") if number > 1 else site
            yield named, self._pooled[site] if site in self._merged else accumulator
