"""Which activations a forward pass calls, on what, and where; nothing in the model is patched.

Modules are watched by hooks.  Functions (``F.relu`` inside a forward) are watched by a mode that torch
asks about each of its functions; it also keeps transformer layers from a fused path that would hide them.
Calls are told apart by where in the code they are made, so that one ``nn.ReLU`` used at two places of a
block gives two sites; those of a loop are one site, see :mod:`iglu.probing.turns`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from iglu import functional
from iglu.modules import IGLUGLU
from iglu.swapping.slots import find_slots, function_name, is_activation, is_replaced_by_default

# They live among the activations and look at more than one value at a time.
_NOT_POINTWISE = (nn.Softmax, nn.Softmax2d, nn.Softmin, nn.LogSoftmax, nn.GLU, IGLUGLU)

# Beside those that swap would replace: activations in which something else may rest on the shape.
_MORE_FUNCTIONS = {
    "tanh", "tanh_", "sigmoid", "sigmoid_", "softplus", "logsigmoid", "softsign", "hardtanh", "hardtanh_",
    "hardsigmoid", "tanhshrink", "hardshrink", "softshrink", "rrelu", "rrelu_", "threshold", "threshold_",
}  # fmt: skip
_OURS = (functional.iglu, functional.iglu_gate, functional.gelu_scaled)

# Frames between the code that calls a function of torch and the mode that is told of it.
_PLUMBING = {
    nn.Module.__module__,
    "torch.nn.functional",
    "torch.overrides",
    "torch._jit_internal",
    "torch._tensor",
    "iglu.functional",
    __name__,
}

_CALL = nn.Module._call_impl.__code__
Chain = tuple[tuple[CodeType, int], ...]


@dataclass(frozen=True, eq=False)
class Site:
    """A place in the code of one module where an activation is called."""

    name: str  # "layer1.0.act1", or "layer1.0: relu" for a function in a forward; not its own
    places: tuple[str, ...]  # as iglu.swap knows them, several if shared; none where swap cannot reach
    activation: str
    source: str  # "file.py:line"
    replaceable: bool  # swap puts an IGLU there without being asked for it by name
    function: Callable[[Tensor], Tensor]  # the activation by itself


class _Key(NamedTuple):
    owner: int  # the module whose forward makes the call
    module: int  # the activation, 0 for a function
    function: str
    chain: Chain


Receive = Callable[[Site, Tensor], None]


class Watch:
    """Reports each call of an activation in ``model`` while it is on."""

    def __init__(self, model: nn.Module, receive: Receive) -> None:
        self._receive = receive
        self._names = {id(module): name for name, module in model.named_modules()}
        self._modules = {
            id(module): module
            for module in model.modules()
            if is_activation(module) and not isinstance(module, _NOT_POINTWISE)
        }
        self._slots = list(find_slots(model))
        self._sites: dict[_Key, Site] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        handles = []
        try:
            for module in self._modules.values():
                # First of all hooks: what the activation is given, not what other hooks make of it.
                hook = module.register_forward_pre_hook(self._see_module, prepend=True, with_kwargs=True)
                handles.append(hook)
            with _Mode(self._see_function):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _see_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x: Any = args[0] if args else next(iter(kwargs.values()), None)
        if not _is_watchable(x):
            return
        with torch._C.DisableTorchFunction():
            owner, chain, source = _caller(sys._getframe(), skip=module)
            key = _Key(id(owner), id(module), "", chain)
            if key not in self._sites:
                name = self._names[id(module)]
                replaceable = is_replaced_by_default(module)
                places = tuple(slot.place for slot in self._slots if slot.content is module)
                site = Site(name, places, repr(module), source, replaceable, module.forward)
                self._sites[key] = site
            self._receive(self._sites[key], x)

    def _see_function(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        name: str = getattr(function, "__name__", "")
        if not args or not _is_watchable(args[0]):
            return
        with torch._C.DisableTorchFunction():
            owner, chain, source = _caller(sys._getframe())
            if id(owner) in self._modules:
                return  # its hook has told of it
            key = _Key(id(owner), 0, name, chain)
            if key not in self._sites:
                name = name.rstrip("_")
                home = self._names.get(id(owner), "")
                places = self._places(owner, function)
                label = places[0] if places else f"{home}: {name}".removeprefix(": ")
                alone = _alone(function, args[1:], kwargs)
                replaceable = is_replaced_by_default(function)
                site = Site(label, places, name, source, replaceable, alone)
                self._sites[key] = site
            self._receive(self._sites[key], args[0])

    def _places(self, owner: nn.Module | None, function: Any) -> tuple[str, ...]:
        """Where the owner keeps this function, or the name of it."""
        kept = [slot for slot in self._slots if slot.parent is owner]
        return tuple(slot.place for slot in kept if slot.content is function or isinstance(slot.content, str))


class _Mode(TorchFunctionMode):
    def __init__(self, see: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]) -> None:
        super().__init__()
        self._see = see

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_activation_function(func):
            self._see(func, args, kwargs)
        return func(*args, **kwargs)


@functools.lru_cache(maxsize=4096)  # asked about everything that torch does
def _is_activation_function(function: Any) -> bool:
    named = getattr(function, "__name__", "") in _MORE_FUNCTIONS
    return named or function in _OURS or function_name(function) is not None


def _is_watchable(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided and not x.is_nested


def _caller(frame: FrameType | None, skip: nn.Module | None = None) -> tuple[nn.Module | None, Chain, str]:
    """The module whose forward is being run, the way from there to the call, and the call's line."""
    frames: list[FrameType] = []
    owner = None
    while frame is not None:
        if frame.f_code is _CALL:
            owner = frame.f_locals["self"]
            if owner is not skip:
                break
            frames.clear()
        elif frame.f_globals.get("__name__") not in _PLUMBING:
            frames.append(frame)
        frame = frame.f_back
    chain = tuple((each.f_code, each.f_lasti) for each in frames)
    if not frames:
        return owner, chain, ""
    filename = frames[0].f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return owner, chain, f"{filename}:{frames[0].f_lineno}"


def _alone(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Tensor], Tensor]:
    """The function with the settings of one call, of x alone, which it leaves as it is."""

    def alone(x: Tensor) -> Tensor:
        result: Tensor = function(x.clone(), *args, **kwargs)
        return result

    return alone
