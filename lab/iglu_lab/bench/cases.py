"""The benchmark cases: each activation as a Python statement and the names it uses.

A statement avoids the call overhead of a wrapper, and the results quote exactly what was timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import iglu
from iglu.formulas import FAMILIES
from iglu.zoo import ZOO, Spec, parse

# Implementations other than our backends.
TORCH, DIRECT, COMPILED, COMPILED_DIRECT = "torch", "direct", "compiled", "compiled direct"

# Baselines that are not in the zoo.
COMPARISONS = ("gelu_tanh", "silu_glu")

# Ours: name in the zoo -> (public function, approximate).
_OURS = {
    "z": ("iglu_gate", "none"),
    "z_approx": ("iglu_gate", "rational"),
    "iglu": ("iglu", "none"),
    "iglu_approx": ("iglu", "rational"),
}
# The sigma of names that do not state one, also in all stored rows: the value of the paper's Table 1.  (The
# time does not depend on it.)
SIGMA = 1.0

# Built on our functions.
_BUILT_ON_OURS = ("atlu", "xatlu")

# The shortest public call of torch's own functions; the others are called through module.forward.
_FUNCTIONS = {
    "relu": "torch.relu(x)",
    "gelu": "F.gelu(x)",
    "gelu_tanh": "F.gelu(x, approximate='tanh')",
    "silu": "F.silu(x)",
    "sigmoid": "torch.sigmoid(x)",
    "tanh": "torch.tanh(x)",
}


@dataclass(frozen=True)
class Case:
    """One row of a table: a ``statement`` of x (and up), and the ``kernel`` that computes it."""

    name: str
    label: str
    kernel: str
    statement: str = ""
    names: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    is_pair: bool = False  # has a second input, up

    @property
    def is_ours(self) -> bool:
        """Whether ``kernel`` is one of our backends."""
        return self.kernel not in (TORCH, DIRECT, COMPILED, COMPILED_DIRECT)

    def on_backend(self) -> contextlib.AbstractContextManager[None]:
        """Select its backend."""
        return iglu.backend(self.kernel) if self.is_ours else contextlib.nullcontext()

    @property
    def parameters(self) -> list[nn.Parameter]:
        module = self.names.get("module")
        return list(module.parameters()) if isinstance(module, nn.Module) else []


class Direct(nn.Module):
    """The formula as printed in the paper, in torch operations with autograd."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        _, approximate = _OURS[spec.name]
        self.gate = FAMILIES[approximate].textbook_gate
        self.is_gate = not ZOO[spec.name].self_gated
        self.sigma = SIGMA if spec.sigma is None else spec.sigma

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x, self.sigma)
        return gate if self.is_gate else x * gate


def has_direct_form(spec: Spec) -> bool:
    return spec.name in _OURS and not spec.learnable


def is_ours(spec: Spec) -> bool:
    return spec.name in _OURS or spec.name in _BUILT_ON_OURS


def create(spec: Spec, **options: Any) -> nn.Module:
    """Make the activation to be timed."""
    if ZOO[spec.name].takes_sigma and spec.sigma is None:
        options["sigma"] = SIGMA
    return iglu.create(str(spec), **options)


def _statement(spec: Spec, call: str) -> str:
    if call == "module":
        return "module(x)"
    if spec.name in _OURS and not spec.learnable:
        function, approximate = _OURS[spec.name]
        arguments = ["x", repr(SIGMA if spec.sigma is None else spec.sigma)]
        if approximate != "none":
            arguments.append(f"approximate={approximate!r}")
        return f"{function}({', '.join(arguments)})"
    return _FUNCTIONS.get(spec.name, "module.forward(x)")


_NAMES = {
    "torch": torch, "F": F, "iglu": iglu.iglu, "iglu_gate": iglu.iglu_gate, "iglu_glu": iglu.iglu_glu,
}  # fmt: skip


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # Without fullgraph, a silent fallback to eager mode would be timed as compiled.
    return torch.compile(function, fullgraph=True, dynamic=False)


def cases(
    activations: Iterable[str],
    *,
    backends: Iterable[str] = ("auto",),
    call: str = "module",
    direct: bool = True,
    pairs: bool = True,
    compiled: bool = False,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[Case]:
    """The cases of these activations: ours once per backend, with direct and compiled forms."""
    backends = list(backends)
    result: list[Case] = []

    def add(name: str, label: str, kernel: str, statement: str, **rest: Any) -> None:
        names = {**_NAMES, **rest.pop("names", {})}
        result.append(Case(name, label, kernel, statement, names, **rest))

    for text in activations:
        spec = parse(text)
        name = str(spec)
        module = create(spec).to(device=device, dtype=dtype)
        for kernel in backends if is_ours(spec) else [TORCH]:
            statement = _statement(spec, call)
            add(name, spec.label, kernel, statement, names={"module": module})
        if spec.name == "gelu":
            tanh = nn.GELU(approximate="tanh")
            statement = "module(x)" if call == "module" else _FUNCTIONS["gelu_tanh"]
            add("gelu_tanh", "GELU (tanh)", TORCH, statement, names={"module": tanh})
        if has_direct_form(spec) and direct:
            add(name, spec.label, DIRECT, "direct(x)", names={"direct": Direct(spec).forward})
        if compiled and has_direct_form(spec):
            forms = {COMPILED: module.forward, COMPILED_DIRECT: Direct(spec).forward}
            for kernel, form in forms.items():
                add(name, spec.label, kernel, "compiled(x)", names={"compiled": _compiled(form)})
        elif compiled and spec.name in ("relu", "gelu", "silu"):
            form = _compiled(module.forward)
            add(name, spec.label, COMPILED, "compiled(x)", names={"compiled": form})

    if pairs:
        add("silu_glu", "SiLU(x) * up", TORCH, "F.silu(x) * up", is_pair=True)
        for kernel in backends:
            add("iglu_glu", "IGLU(x) * up", kernel, "iglu_glu(x, up)", is_pair=True)
            statement = "iglu_glu(x, up, approximate='rational')"
            add("iglu_approx_glu", "IGLU-Approx(x) * up", kernel, statement, is_pair=True)
    return result
