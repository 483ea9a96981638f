"""What a forward uses, read from its source: the activations that are no modules and cannot be seen
among a model's children.

Nothing is executed: the source of ``forward``, of the methods it calls on itself and of the helper
functions it calls is parsed, and each dotted name in it is resolved against attributes that are already
there (properties are not asked).  A function without source contributes nothing.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn

Chain = tuple[str, ...]

_SUPER = "super()"
_EXPRESSION = "..."
MISSING = object()


class Use(NamedTuple):
    """A dotted name that a function reads: ``F.relu``, ``self.act``, ``ACT2FN`` in ``ACT2FN[key]``."""

    chain: Chain
    text: str  # the call or the lookup around it, as written
    line: int
    call: ast.Call | None = None
    key: ast.expr | None = None  # of a lookup


class Sighting(NamedTuple):
    """A use, what its name stands for (MISSING if that cannot be told), and where it is written."""

    use: Use
    value: Any
    code: types.CodeType  # of the function it is in
    of_self: bool  # the function is a method called on the module itself

    @property
    def source(self) -> str:
        """``file.py:line``"""
        filename = self.code.co_filename.replace("\\", "/").rsplit("/", 1)[-1]
        return f"{filename}:{self.use.line}"

    @property
    def path(self) -> Chain | None:
        """``("block", "act")`` for ``self.block.act``; None for a name that does not start at the module."""
        return self._from_self(self.use.chain)

    @property
    def key_path(self) -> Chain | None:
        """The same for the key of a lookup: ``("config", "hidden_act")``."""
        return self._from_self(_chain(self.use.key))

    def _from_self(self, chain: Chain | None) -> Chain | None:
        if chain is None or len(chain) < 2 or not self.of_self:
            return None
        return chain[1:] if chain[0] == _first_argument(self.code) else None


def sightings(module: nn.Module, stop: Callable[[Any], bool]) -> Iterator[Sighting]:
    """Every dotted name in the module's own forward and in the functions reached from it; a function for
    which ``stop`` is true is seen and not looked into."""
    of_class = inspect.getattr_static(type(module), "forward", None)
    forward = _plain_function(vars(module).get("forward", of_class))
    pending = [(forward, True)] if forward is not None else []
    seen = set()
    while pending:
        function, of_self = pending.pop()
        if (function.__code__, of_self) in seen:
            continue
        seen.add((function.__code__, of_self))
        for use in _uses(function.__code__):
            value = _resolve(use.chain, function, module if of_self else None)
            yield Sighting(use, value, function.__code__, of_self)
            callee = _plain_function(value) if use.call is not None and not stop(value) else None
            if callee is not None and not callee.__module__.startswith("torch."):
                of_module = of_self and use.chain[0] in (_SUPER, _first_argument(function.__code__))
                pending.append((callee, of_module and len(use.chain) == 2))


def is_plain_call(call: ast.Call) -> bool:
    """Whether it passes one positional argument and nothing else, as one calls a module."""
    return len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)


def _plain_function(value: Any) -> types.FunctionType | None:
    """The Python function under methods, static methods, decorators and wrappers, if there is one."""
    for _ in range(8):
        if isinstance(value, types.MethodType | staticmethod | classmethod):
            value = value.__func__
        elif isinstance(getattr(value, "__dict__", None), dict) and "__wrapped__" in value.__dict__:
            value = value.__dict__["__wrapped__"]
        elif isinstance(value, functools.partial):
            value = value.func
        else:
            break
    return value if isinstance(value, types.FunctionType) else None


@functools.lru_cache(maxsize=4096)
def _uses(code: types.CodeType) -> tuple[Use, ...]:
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return ()
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return ()  # a lambda: its source is the line it stands in
    return tuple(use for statement in definition.body for use in _uses_in(statement, first - 1))


def _uses_in(tree: ast.AST, offset: int) -> Iterator[Use]:
    """Outermost first: of ``F.relu(x)`` the call, not once more the name inside it."""
    if isinstance(tree, ast.Compare):
        return  # "if self.act is F.relu" uses nothing
    skip: ast.AST | None = None
    target = tree
    if isinstance(tree, ast.Call):
        target = tree.func
    elif isinstance(tree, ast.Subscript):
        target = tree.value
    chain = _chain(target)
    if chain is not None and isinstance(tree, ast.expr):
        call = tree if isinstance(tree, ast.Call) else None
        key = tree.slice if isinstance(tree, ast.Subscript) else None
        yield Use(chain, ast.unparse(tree), tree.lineno + offset, call, key)
        if target is tree:
            return
        skip = target
    elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute):
        # a method of whatever an expression gives, as in self.conv(x).relu()
        yield Use((_EXPRESSION, tree.func.attr), ast.unparse(tree), tree.lineno + offset, tree)
    for child in ast.iter_child_nodes(tree):
        if child is not skip:
            yield from _uses_in(child, offset)


def _chain(node: ast.AST | None) -> Chain | None:
    """``a.b.c`` as ("a", "b", "c")."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return (node.id, *reversed(names))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super" and names:
        return (_SUPER, *reversed(names))
    return None


def _first_argument(code: types.CodeType) -> str | None:
    return code.co_varnames[0] if code.co_argcount else None


def _resolve(chain: Chain, function: types.FunctionType, module: nn.Module | None) -> Any:
    root, *rest = chain
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
    if root == _SUPER:
        owner = _contents(cells.get("__class__"))
        if module is None or owner not in type(module).__mro__:
            return MISSING
        ancestors = type(module).__mro__[type(module).__mro__.index(owner) + 1 :]
        value = next((vars(cls)[rest[0]] for cls in ancestors if rest[0] in vars(cls)), MISSING)
        rest = rest[1:]
    elif module is not None and root == _first_argument(code):
        value = module
    elif root in code.co_varnames or root in code.co_cellvars:
        return MISSING
    elif root in cells:
        value = _contents(cells[root])
    else:
        value = function.__globals__.get(root, vars(builtins).get(root, MISSING))
    for name in rest:
        value = _attribute(value, name)
        if value is MISSING:
            break
    return value


def _contents(cell: types.CellType | None) -> Any:
    try:
        return MISSING if cell is None else cell.cell_contents
    except ValueError:
        return MISSING  # not yet filled


def _attribute(value: Any, name: str) -> Any:
    """An attribute without running code of the object: no property, no lazy import."""
    if isinstance(value, types.ModuleType):
        return vars(value).get(name, MISSING)
    if isinstance(value, nn.Module) and name in value._modules:
        return value._modules[name]
    found = inspect.getattr_static(value, name, MISSING)
    return MISSING if isinstance(found, property | functools.cached_property) else found
