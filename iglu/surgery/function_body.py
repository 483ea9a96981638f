"""Recognize an activation by what a short function computes: ``def f(x): return x * x.sigmoid()``.

The same function can be written in many ways, so values are compared, not the text.  A function is
called only if it is pure by its syntax: one argument, arithmetic, numbers, and calls of torch's pointwise
functions.  No other user code is ever run.
"""

from __future__ import annotations

import ast
import functools
import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from iglu.surgery.source_text import read_function, read_lambda

_PURE = {
    "sigmoid", "tanh", "softplus", "relu", "relu6", "exp", "erf", "sqrt", "pow", "clamp", "clamp_min",
    "clamp_max", "silu", "gelu", "hardsigmoid", "hardtanh", "square", "log", "log1p", "mul", "add", "div",
    "maximum", "mish", "hardswish", "logsigmoid", "leaky_relu", "elu",
}  # fmt: skip
_PURE_FUNCTIONS = {getattr(home, name, None) for home in (torch, F, math) for name in _PURE} - {None}
_MOST_NODES = 60

_KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "hardsigmoid": F.hardsigmoid,
}


@functools.lru_cache(maxsize=4096)
def name_of_body(function: types.FunctionType, is_method: bool = False) -> str | None:
    """The name of the activation that the function computes, None if it is something else."""
    code = function.__code__
    # Check that the bytecode is short before parsing anything.
    if code.co_argcount - is_method not in (1, 2) or len(code.co_code) > 600 or code.co_freevars:
        return None
    node = _definition(code)
    if node is None or not _is_pure(node, function.__globals__, is_method):
        return None
    # float64, and neither so large that exp overflows nor where a piecewise function has a kink
    x = torch.tensor(
        [-7.3, -3.7, -2.9, -1.1, -0.4, -0.03, 0.02, 0.6, 1.3, 2.8, 3.4, 7.9], dtype=torch.float64
    )
    itself = [types.SimpleNamespace(inplace=False)] if is_method else []
    try:
        with torch.no_grad():
            value = function(*itself, x.clone())
    except Exception:  # such as a torch function that is called with arguments it does not take
        return None
    if not isinstance(value, Tensor) or value.shape != x.shape:
        return None
    for name, known in _KNOWN.items():
        if torch.allclose(value.double(), known(x), rtol=1e-6, atol=1e-9):
            return name if name != "relu" or _is_relu_far_from_0(function, itself) else None
    return None


def _is_relu_far_from_0(function: types.FunctionType, itself: list[Any]) -> bool:
    """clamp(0, 255) keeps a range, and clamp(min=1e-12) keeps a logarithm finite: neither is a ReLU."""
    x = torch.tensor([-1e4, -300.0, 300.0, 1e4], dtype=torch.float64)
    with torch.no_grad():
        return torch.equal(function(*itself, x.clone()).double(), F.relu(x))


def _definition(code: types.CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    if code.co_name == "<lambda>":
        return read_lambda(code)
    source = read_function(code)
    return None if source is None else source.node


def name_called(method: types.FunctionType) -> str | None:
    """``f`` if the method is ``return f(x)`` and nothing else."""
    source = read_function(method.__code__) if method.__code__.co_argcount == 2 else None
    if source is None:
        return None
    match source.node.body:
        case [ast.Return(value=ast.Call(func=ast.Name(id=name), args=[ast.Name(id=argument)], keywords=[]))]:
            return name if argument == source.node.args.args[-1].arg else None
    return None


def _is_pure(node: ast.FunctionDef | ast.AsyncFunctionDef, names: dict[str, Any], is_method: bool) -> bool:
    """Whether it assigns the results of pure expressions to variables, and returns one."""
    arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    itself, (_, *flags) = arguments[:is_method], arguments[is_method:]
    # A second argument is accepted only if it is `inplace` with a default.
    if flags and (flags != ["inplace"] or not node.args.defaults):
        return False
    checker = _Pure(set(arguments[is_method:]), itself, names)
    body = node.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # a docstring
    for statement in body[:-1]:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if checker.accepts(value):
                checker.variables.add(name)
            case _:
                return False
    match body[-1:]:
        case [ast.Return(value=ast.expr() as value)]:
            return checker.accepts(value)
    return False


class _Pure:
    """Checks that an expression is a pure computation."""

    def __init__(self, variables: set[str], itself: list[str], names: dict[str, Any]) -> None:
        self.variables = variables
        self._itself = itself
        self._names = names
        self._left = _MOST_NODES

    def accepts(self, node: ast.expr) -> bool:
        self._left -= 1
        if self._left < 0:
            return False
        match node:
            case ast.Constant(value=bool() | int() | float()):
                return True
            case ast.BinOp(left=left, right=right):
                # A power of a power could take forever.
                is_power = isinstance(node.op, ast.Pow) and not isinstance(right, ast.Constant)
                return not is_power and self.accepts(left) and self.accepts(right)
            case ast.UnaryOp(operand=operand):
                return self.accepts(operand)
            case ast.Name(id=name) if name in self.variables:
                return True
            case ast.Attribute(value=ast.Name(id=holder), attr="inplace") if holder in self._itself:
                return True
            case ast.Name() | ast.Attribute():  # math.pi
                return isinstance(self._value(node), int | float)
            case ast.Call(func=function, args=arguments, keywords=options):
                values = [*arguments, *(option.value for option in options)]
                return self._is_pure_function(function) and all(map(self.accepts, values))
        return False

    def _is_pure_function(self, node: ast.expr) -> bool:
        value = self._value(node)
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            return value in _PURE_FUNCTIONS
        is_method = value is None and isinstance(node, ast.Attribute) and node.attr.rstrip("_") in _PURE
        return is_method and self.accepts(node.value)  # type: ignore[attr-defined]

    def _value(self, node: ast.expr) -> Any:
        """The object that a dotted name refers to if it starts with a global name, None if unknown."""
        match node:
            case ast.Name(id=name) if name not in self.variables:
                return self._names.get(name)
            case ast.Attribute(value=owner, attr=attr):
                module = self._value(owner)
                return vars(module).get(attr) if isinstance(module, types.ModuleType) else None
        return None
