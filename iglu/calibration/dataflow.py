"""Which layers an activation feeds, seen in one forward.

The output of an activation is followed through dropout, reshapes, poolings and the product with the other
half of a gated pair.  The linear layers that it reaches first can compensate for a change of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from iglu.calibration.synchronized import first_tensor

_PASSED_ON = {
    "dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "swapaxes", "movedim", "contiguous",
    "squeeze", "unsqueeze", "expand", "repeat", "chunk", "split", "narrow", "select", "__getitem__",
    "__get__", "cat", "concat", "clone", "detach", "to", "type", "type_as", "float", "half", "bfloat16",
    "double", "pad", "mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply", "div", "__truediv__",
    "mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d", "interpolate",
}  # fmt: skip

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(eq=False)
class CalibrationTarget:
    """A layer that may be corrected, in the order of the forward."""

    place: str
    module: nn.Module
    activations: tuple[str, ...]  # that feed it; none for a BatchNorm
    calls: int = 1
    feeds_norm: bool = False  # a BatchNorm comes next and takes up its mean

    @property
    def is_norm(self) -> bool:
        return isinstance(self.module, _BatchNorm)


def is_linear(module: nn.Module) -> bool:
    """Linear, a convolution, or the transposed linear layer of GPT-2."""
    kind = type(module)
    is_transposed = (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) or is_transposed


def find_targets(
    model: nn.Module, activations: dict[str, nn.Module], forward: Callable[[], Any]
) -> list[CalibrationTarget]:
    """The linear layers that these activations feed, and every BatchNorm after the first, in their order."""
    trace = _Trace(model, activations)
    with trace.hooks(), _Follow(trace), torch.no_grad():
        forward()
    return trace.finish()


class _Trace:
    def __init__(self, model: nn.Module, activations: dict[str, nn.Module]) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model = model
        self._activations: dict[int, list[str]] = {}
        for place, module in activations.items():
            self._activations.setdefault(id(module), []).append(place)
        # By id, with the tensor itself, which must not be freed and its id given to another.
        self._fed: dict[int, tuple[Tensor, frozenset[str]]] = {}
        self._made: dict[int, tuple[Tensor, CalibrationTarget]] = {}
        self._by_module: dict[int, CalibrationTarget] = {}
        self._calls: dict[int, int] = {}
        self._is_after_first = False
        self.targets: list[CalibrationTarget] = []

    def finish(self) -> list[CalibrationTarget]:
        for target in self.targets:
            target.calls = self._calls[id(target.module)]
        return self.targets

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        handles = []
        try:
            for module in self._model.modules():
                if id(module) in self._activations:
                    handles.append(module.register_forward_hook(self._see_activation))
                elif is_linear(module) or isinstance(module, _BatchNorm):
                    handles.append(module.register_forward_pre_hook(self._see_layer, with_kwargs=True))
                    handles.append(module.register_forward_hook(self._see_output))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def follow(self, function: Any, inputs: Iterable[Any], output: Any) -> None:
        """A function of torch has been called."""
        fed: frozenset[str] = frozenset()
        if getattr(function, "__name__", "") in _PASSED_ON:
            fed = fed.union(*(self._fed_by(each) for each in inputs))
        for each in output if isinstance(output, list | tuple) else (output,):
            self._mark(each, fed)

    def _fed_by(self, value: Any) -> frozenset[str]:
        if isinstance(value, list | tuple):  # of cat
            return frozenset().union(*(self._fed_by(each) for each in value))
        found = self._fed.get(id(value))
        return frozenset() if found is None else found[1]

    def _mark(self, value: Any, fed: frozenset[str]) -> None:
        self._fed.pop(id(value), None)  # written over in place
        if isinstance(value, Tensor) and fed:
            self._fed[id(value)] = value, fed

    def _see_activation(self, module: nn.Module, args: Any, output: Any) -> None:
        self._is_after_first = True
        self._mark(output, frozenset(self._activations[id(module)]))

    def _see_layer(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls[id(module)] = self._calls.get(id(module), 0) + 1
        value = first_tensor(args, kwargs)
        fed = self._fed_by(value)
        if isinstance(module, _BatchNorm):
            _, maker = self._made.get(id(value), (None, None))
            if maker is not None:
                maker.feeds_norm = True
            fed = frozenset()
            if not self._is_after_first or not isinstance(module.running_mean, Tensor):
                return
        elif not fed:
            return
        known = self._by_module.get(id(module))
        if known is not None:
            known.activations = tuple(sorted({*known.activations, *fed}))
            return
        self._by_module[id(module)] = target = CalibrationTarget(
            self._names[id(module)], module, tuple(sorted(fed))
        )
        self.targets.append(target)

    def _see_output(self, module: nn.Module, args: Any, output: Any) -> None:
        self._mark(output, frozenset())
        if id(module) in self._by_module:
            self._made[id(output)] = output, self._by_module[id(module)]


class _Follow(TorchFunctionMode):
    def __init__(self, trace: _Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        self._trace.follow(func, (*args, *kwargs.values()), output)
        return output
