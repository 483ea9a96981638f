"""Find the layers that an activation feeds, by tracing one forward.

The output of an activation is followed through dropout, reshapes, poolings and the product with the other
half of a gated pair.  The linear layers that it reaches first can compensate for a change of the activation.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from iglu.model_runner import first_tensor

_PASSED_ON = {
    "dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "swapaxes", "movedim", "contiguous",
    "squeeze", "unsqueeze", "expand", "repeat", "chunk", "split", "narrow", "select", "__getitem__",
    "__get__", "cat", "concat", "clone", "detach", "to", "type", "type_as", "float", "half", "bfloat16",
    "double", "pad", "mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply", "div", "__truediv__",
    "mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d", "interpolate",
}  # fmt: skip

CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip


@dataclass(eq=False)
class CalibrationTarget:
    """A layer that may be corrected, in the order of the forward."""

    place: str
    module: nn.Module
    activations: tuple[str, ...] = ()  # the places of those that feed it; none for a BatchNorm
    calls: int = 1
    feeds_norm: bool = False  # a BatchNorm comes next and removes its mean

    @property
    def is_norm(self) -> bool:
        return isinstance(self.module, _BatchNorm)


def is_linear(module: nn.Module) -> bool:
    """Whether it is a Linear, a convolution, or the transposed linear layer of GPT-2."""
    kind = type(module)
    is_transposed = (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) or is_transposed


def find_targets(
    model: nn.Module, activations: dict[str, nn.Module], forward: Callable[[], Any]
) -> list[CalibrationTarget]:
    """The linear layers that these activations feed, and every BatchNorm after the first activation."""
    trace = _Trace(model, activations)
    with trace.hooks(), trace, torch.no_grad():
        forward()
    for key, target in trace.targets.items():
        target.calls = trace.calls[key]
    return list(trace.targets.values())


class _Trace(TorchFunctionMode):
    def __init__(self, model: nn.Module, activations: dict[str, nn.Module]) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model = model
        self._activations: dict[int, list[str]] = {}
        for place, module in activations.items():
            self._activations.setdefault(id(module), []).append(place)
        # By id, with the tensor itself: if it were freed, another could get its id.
        self._fed: dict[int, tuple[Tensor, frozenset[str]]] = {}
        self._made: dict[int, tuple[Tensor, CalibrationTarget]] = {}
        self._is_after_first = False
        # by the id of the module
        self.calls: Counter[int] = Counter()
        self.targets: dict[int, CalibrationTarget] = {}

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in self._model.modules():
                if id(module) in self._activations:
                    stack.enter_context(module.register_forward_hook(self._see_activation))
                elif is_linear(module) or isinstance(module, _BatchNorm):
                    stack.enter_context(module.register_forward_pre_hook(self._see_layer, with_kwargs=True))
                    stack.enter_context(module.register_forward_hook(self._see_output))
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        fed: frozenset[str] = frozenset()
        if getattr(func, "__name__", "") in _PASSED_ON:
            fed = self._fed_by([*args, *kwargs.values()])
        for each in output if isinstance(output, list | tuple) else (output,):
            self._mark(each, fed)
        return output

    def _fed_by(self, value: Any) -> frozenset[str]:
        if isinstance(value, list | tuple):  # all arguments of a call, or the tensors of cat
            return frozenset().union(*(self._fed_by(each) for each in value))
        return self._fed[id(value)][1] if id(value) in self._fed else frozenset()

    def _mark(self, value: Any, fed: frozenset[str]) -> None:
        self._fed.pop(id(value), None)  # overwritten in place
        if isinstance(value, Tensor) and fed:
            self._fed[id(value)] = value, fed

    def _see_activation(self, module: nn.Module, args: Any, output: Any) -> None:
        self._is_after_first = True
        self._mark(output, frozenset(self._activations[id(module)]))

    def _see_layer(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls[id(module)] += 1
        value = first_tensor(args, kwargs)
        fed = self._fed_by(value)
        if isinstance(module, _BatchNorm):
            if id(value) in self._made:
                self._made[id(value)][1].feeds_norm = True
            fed = frozenset()
            if not self._is_after_first or not isinstance(module.running_mean, Tensor):
                return
        elif not fed:
            return
        new = CalibrationTarget(self._names[id(module)], module)
        target = self.targets.setdefault(id(module), new)
        target.activations = tuple(sorted({*target.activations, *fed}))

    def _see_output(self, module: nn.Module, args: Any, output: Any) -> None:
        if any(id(inner) in self._activations for inner in module.modules()):
            return  # the output may be that of the activation, as in timm's BatchNormAct2d
        self._mark(output, frozenset())
        if id(module) in self.targets:
            self._made[id(output)] = output, self.targets[id(module)]
