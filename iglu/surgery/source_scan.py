"""Find what a forward uses, by reading its source.

Nothing is executed: the source of ``forward``, of the methods it calls on itself and of the helper functions
it calls is parsed, and each dotted name in it is resolved against attributes that already exist (properties
are not evaluated).  A function without source contributes nothing.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from iglu.surgery.activations import (
    CONFIG_NAMES,
    TENSOR_METHODS,
    function_name,
    is_activation,
    is_activation_class,
    is_table,
    make_module,
    module_like,
    pointwise_name,
)
from iglu.surgery.source_text import FunctionSource, Position, cached_by_code, read_function

Chain = tuple[str, ...]

_SUPER = "super("
_EXPRESSION = "..."
MISSING = object()


class Context(NamedTuple):
    """Where in a function an expression is."""

    is_nested: bool = False  # in an inner function or comprehension
    hidden: frozenset[str] = frozenset()  # names that those functions bind themselves
    is_discarded: bool = False  # a statement of its own
    is_default: bool = False  # in the default of an argument
    alias: str | None = None  # the local variable that the value is assigned to


class Use(NamedTuple):
    """A dotted name that a function reads: ``F.relu``, ``self.act``, ``ACT2FN`` in ``ACT2FN[key]``."""

    chain: Chain
    name: ast.expr  # the dotted name only
    node: ast.expr  # the call or lookup that contains the name, or the name itself
    context: Context

    @property
    def call(self) -> ast.Call | None:
        return self.node if isinstance(self.node, ast.Call) else None

    @property
    def key(self) -> ast.expr | None:
        """The key of a lookup; None for other uses."""
        return self.node.slice if isinstance(self.node, ast.Subscript) else None

    @property
    def position(self) -> Position:
        return self.node.lineno, self.node.col_offset


@dataclass(frozen=True, eq=False)
class Step:
    """A function that is reached from a module, and the path of calls to it."""

    function: types.FunctionType  # without its decorators
    holder: Any  # with its decorators
    kind: str  # "root", "method", "super": of the module itself; "helper": any other function
    name: str
    owner: type | None = None  # the class of the module that defines it
    parent: Step | None = None
    use: Use | None = None  # where the parent uses it

    @property
    def of_self(self) -> bool:
        """Whether its first argument is the module."""
        return self.kind != "helper"

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the path to the function by its call sites."""
        if self.parent is None or self.use is None:
            return (self.name,)
        return (*self.parent.key, self.use.position)

    @property
    def source(self) -> FunctionSource | None:
        return read_function(self.function.__code__)

    @property
    def first_argument(self) -> str | None:
        code = self.function.__code__
        return code.co_varnames[0] if code.co_argcount else None

    @property
    def identity(self) -> tuple[int, bool]:
        """Equal for all paths to the same function."""
        return id(self.function.__code__), self.of_self

    def within(self) -> Iterator[Step]:
        """Yield the step itself and all its parents."""
        step: Step | None = self
        while step is not None:
            yield step
            step = step.parent


@dataclass(frozen=True, eq=False)
class CallSite:
    """A use, what its name stands for (MISSING if that is unknown), and the function that it is in."""

    use: Use
    value: Any
    holder: Any  # what the last name is an attribute of
    step: Step

    @property
    def text(self) -> str:
        return ast.unparse(self.use.node)

    @property
    def name(self) -> str:
        """The name of the function as written: ``F.relu``."""
        return self.use.chain[-1] if self.value is MISSING else ast.unparse(self.use.name)

    @functools.cached_property
    def make(self) -> Callable[[], Any] | None:
        """A factory of a module that computes the same; None if the use is not an activation."""
        use, value = self.use, self.value
        if value is MISSING:  # x.relu() of some tensor
            name, call = use.chain[-1].rstrip("_"), use.call
            is_method = len(use.chain) > 1 and call is not None and not (call.args or call.keywords)
            return functools.partial(module_like, name) if is_method and name in TENSOR_METHODS else None
        if use.key is not None:
            if not is_table(value):
                return self._kept_in_container()
            key = getattr(use.key, "value", None)
            return functools.partial(value.__getitem__, key) if key in CONFIG_NAMES else None
        if isinstance(value, nn.Module):  # an object of the Python module, not of the model
            is_called = self.path is None and use.call is not None
            return (lambda: value) if is_called and is_activation(value) else None
        if isinstance(value, type):
            is_called = use.call is not None and is_activation_class(value)
            return functools.partial(make_module, value, **self._constants()) if is_called else None
        if self.path is not None and len(self.path) > 1 and isinstance(self.holder, nn.Module):
            return None  # an attribute of another module, which is a site of that module
        known = pointwise_name(value)
        return None if known is None else functools.partial(module_like, known, **self._constants())

    def _kept_in_container(self) -> Callable[[], Any] | None:
        """The first activation function in a dict or list of the Python module or of a class; containers of
        an instance are found through its attributes."""
        is_of_instance = (
            self.path is not None
            and isinstance(self.holder, nn.Module)
            and (self.path[-1] in vars(self.holder))
        )
        if type(self.value) not in (dict, list, tuple) or is_of_instance:
            return None
        values = self.value.values() if isinstance(self.value, dict) else self.value
        names = filter(None, map(function_name, values))
        return next((functools.partial(module_like, name) for name in names), None)

    def _constants(self) -> dict[str, Any]:
        """The arguments of the call that are constants."""
        passed = self.arguments or {}
        return {name: node.value for name, node in passed.items() if isinstance(node, ast.Constant)}

    @property
    def arguments(self) -> dict[str, ast.expr] | None:
        """The arguments of the call, by parameter name and in parameter order; None if they are not
        explicit, as in ``f(*x)``."""
        call = self.use.call
        if call is None:
            return {}
        options = {each.arg: each.value for each in call.keywords if each.arg is not None}
        if len(options) < len(call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        if self.value is MISSING and isinstance(call.func, ast.Attribute):  # x.relu()
            return {"input": call.func.value}
        try:
            function = self.value.forward if isinstance(self.value, nn.Module) else self.value
            names = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):  # written in C, such as F.softplus
            names = ["input", "beta", "threshold"]
        names += map(str, range(len(names), len(call.args)))
        passed = dict(zip(names, call.args, strict=False)) | options
        return {name: passed[name] for name in names if name in passed} | passed

    @property
    def source(self) -> str:
        """``file.py:line``"""
        filename = self.step.function.__code__.co_filename.replace("\\", "/").rsplit("/", 1)[-1]
        return f"{filename}:{self.use.node.lineno}"

    @property
    def key(self) -> tuple[Any, ...]:
        return (*self.step.key, self.use.position)

    @property
    def path(self) -> Chain | None:
        """``("block", "act")`` for ``self.block.act``; None for a name that does not start at the module."""
        return self._from_self(self.use.chain)

    @property
    def key_path(self) -> Chain | None:
        """The path of the key of a lookup: ``("config", "hidden_act")``."""
        return self._from_self(_chain(self.use.key))

    def _from_self(self, chain: Chain | None) -> Chain | None:
        if chain is None or len(chain) < 2 or not self.step.of_self:
            return None
        return chain[1:] if chain[0] == self.step.first_argument else None


class Scan:
    """What the forward of a module uses, and all functions that it reaches, except functions that are
    activations."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.cls: type = vars(type(module)).get("_iglu_original_class", type(module))
        self.uses: list[CallSite] = []  # of every function once
        self.foreign: list[tuple[nn.Module, str]] = []  # methods that are called on other modules
        self._roots: dict[str, Step] = {}
        self._seen: set[tuple[int, bool]] = set()  # identities
        self._links_of: dict[Step, list[tuple[CallSite, Step | None]]] = {}
        self._has_activation: dict[tuple[int, bool], bool] = {}
        self.add_root("forward")

    def add_root(self, name: str) -> bool:
        """Read one more method; False if it was read before."""
        if name in self._roots:
            return False
        owner, holder = _class_attribute(self.cls.__mro__, name)
        if name in vars(self.module):
            owner, holder = None, vars(self.module)[name]
        function = plain_function(holder)
        if function is None:
            return False
        self._roots[name] = step = Step(function, holder, "root", name, owner)
        pending = [step]
        while pending:
            step = pending.pop()
            if step.identity in self._seen:
                continue
            self._seen.add(step.identity)
            for site, callee in self._links(step):
                self.uses.append(site)
                if callee is not None:
                    pending.append(callee)
                elif self._is_foreign(site):
                    self.foreign.append((site.holder, site.use.chain[-1]))
        return True

    def _is_foreign(self, site: CallSite) -> bool:
        is_method = isinstance(site.holder, nn.Module) and isinstance(site.value, types.FunctionType)
        return is_method and site.path is not None and site.holder is not self.module

    def activations(self) -> Iterator[CallSite]:
        """Yield every activation in source order, once for each call site of the function that contains
        it."""
        for step in self._roots.values():
            yield from self._activations(step)

    def _activations(self, step: Step) -> Iterator[CallSite]:
        for site, callee in self._links(step):
            if site.make is not None:
                yield site
            elif callee is not None and callee not in step.within() and self._contains(callee):
                yield from self._activations(callee)

    def calls(self, step: Step) -> Iterator[tuple[Use, Step]]:
        """The functions with activations that a function calls; for a recursive call, the step is one of its
        own parents."""
        for site, callee in self._links(step):
            if callee is not None and self._contains(callee):
                yield site.use, callee

    @property
    def roots(self) -> list[Step]:
        return list(self._roots.values())

    def value(self, node: ast.expr, step: Step) -> Any:
        """The object that a dotted name in a function refers to, MISSING if unknown."""
        chain = _chain(node)
        if chain is None:
            return MISSING
        return _resolve(Use(chain, node, node, Context()), step, self.module, self.cls)[0]

    def _callee(self, site: CallSite) -> Step | None:
        """The function that is called or passed on at this site; None if its source cannot be used."""
        use, value, step = site.use, site.value, site.step
        function = plain_function(value)
        if function is None or use.key is not None or use.context.is_default or site.make is not None:
            return None
        if str(function.__module__).partition(".")[0] == "torch" or read_function(function.__code__) is None:
            return None
        name = use.chain[-1]
        is_super = use.chain[0].startswith(_SUPER)
        if step.of_self and len(use.chain) == 2 and (is_super or use.chain[0] == step.first_argument):
            if is_super and use.call is None:
                return None
            classes = _after(self.cls, _super_owner(use.chain[0], step)) if is_super else self.cls.__mro__
            owner, holder = _class_attribute(classes, mangled(name, step.function))
            if holder is value and not isinstance(value, staticmethod | classmethod):
                kind = "super" if is_super else "method"
                return Step(function, value, kind, name, owner, step, use)
        if isinstance(site.holder, nn.Module) and site.holder is not self.module:
            return None  # a method of another module, which has its own scan
        is_bound = not isinstance(site.holder, types.ModuleType | type | None)
        if is_bound and site.holder is not self.module and not isinstance(value, staticmethod):
            return None
        return Step(function, value, "helper", name, None, step, use)

    def _contains(self, step: Step) -> bool:
        """Whether the function, or one that it calls, contains an activation."""
        if step.identity not in self._has_activation:
            found, seen, pending = False, {step.identity}, [step]
            while pending and not found:
                for site, callee in self._links(pending.pop()):
                    found = found or site.make is not None
                    if callee is not None and callee.identity not in seen:
                        seen.add(callee.identity)
                        pending.append(callee)
            self._has_activation[step.identity] = found
        return self._has_activation[step.identity]

    def _links(self, step: Step) -> list[tuple[CallSite, Step | None]]:
        """Each use in a function, with the function that it reaches."""
        if step not in self._links_of:
            found = self._links_of[step] = []
            for use in _uses(step.function.__code__):
                site = CallSite(use, *_resolve(use, step, self.module, self.cls), step)
                callee = self._callee(site)
                if callee is not None:
                    loops = (each for each in step.within() if each.identity == callee.identity)
                    callee = next(loops, callee)
                found.append((site, callee))
        return self._links_of[step]


def is_plain_call(call: ast.Call) -> bool:
    """Whether a call passes one positional argument and nothing else, as in a call of a module."""
    return len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)


def plain_function(value: Any) -> types.FunctionType | None:
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


# -- the names in a source ------------------------------------------------------------------------


@cached_by_code
def _uses(code: types.CodeType) -> tuple[Use, ...]:
    source = read_function(code)
    if source is None:
        return ()
    arguments, default = source.node.args, Context(is_default=True)
    defaults = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
    parts = [*((each, default) for each in defaults), *((each, Context()) for each in source.node.body)]
    return tuple(use for tree, context in parts for use in _uses_in(tree, context))


def _uses_in(tree: ast.AST, context: Context) -> Iterator[Use]:
    """Yield the uses in source order; for ``F.relu(x)`` the call, but not also the name in it."""
    if isinstance(tree, ast.JoinedStr):
        return  # before Python 3.12, what is inside has no position in the file
    skip: ast.AST | None = None
    if isinstance(tree, ast.expr):
        name = tree
        if isinstance(tree, ast.Call):
            name = tree.func
        elif isinstance(tree, ast.Subscript):
            name = tree.value
        chain = _chain(name)
        if chain is not None:
            yield Use(chain, name, tree, context)
            if name is tree:
                return
            skip = name
        elif isinstance(tree, ast.Call) and isinstance(name, ast.Attribute):
            # a method of the result of an expression, as in self.conv(x).relu()
            yield Use((_EXPRESSION, name.attr), name, tree, context._replace(alias=None))
    for field, child in ast.iter_fields(tree):
        for each in child if isinstance(child, list) else [child]:
            is_compared = isinstance(tree, ast.Compare) and _chain(each) is not None  # self.act is F.relu
            if isinstance(each, ast.AST) and each is not skip and not is_compared:
                yield from _uses_in(each, _inside(tree, field, context))


def _inside(tree: ast.AST, field: str, context: Context) -> Context:
    """The context of a child of a node."""
    match tree:
        case ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return Context(True, context.hidden | _bound_names(tree))
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return Context(True, context.hidden | _bound_names(tree))
        case ast.Expr():
            return context._replace(is_discarded=True)
        case ast.Assign(targets=[ast.Name(id=name)]) if field == "value":
            return context._replace(alias=name)
        case ast.IfExp() if field != "test":
            return context
        case ast.Call() if field == "func":  # nn.ReLU()(x)
            return context._replace(alias=None)
    return context._replace(is_discarded=False, alias=None)


def _bound_names(tree: ast.AST) -> frozenset[str]:
    """The names that a nested function or comprehension, or one inside it, binds."""
    bound, declared = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                bound.add(name)
            case ast.alias():
                bound.add(node.asname or node.name.partition(".")[0])
            case ast.Global(names=names):
                declared.update(names)
    return frozenset(bound - declared)


def _chain(node: ast.AST | None) -> Chain | None:
    """``a.b.c`` as ("a", "b", "c")."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return (node.id, *reversed(names))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super" and names:
        owner = ast.unparse(node.args[0]) if node.args else ""
        return (f"{_SUPER}{owner})", *reversed(names))
    return None


# -- what a name stands for -----------------------------------------------------------------------


def _resolve(use: Use, step: Step, module: nn.Module, cls: type) -> tuple[Any, Any]:
    """The object that the name refers to, and the owner of its last attribute (None for a plain name)."""
    root, *rest = use.chain
    function = step.function
    code = function.__code__
    cells = _cells(function)
    holder: Any = None
    if root.startswith(_SUPER):
        if not step.of_self:
            return MISSING, None
        classes = _after(cls, _super_owner(root, step))
        _, value = _class_attribute(classes, mangled(rest[0], function))
        holder, rest = module, rest[1:]
    elif step.of_self and root == step.first_argument:
        value = module
    elif root in use.context.hidden:
        return MISSING, None
    elif root in code.co_varnames or root in code.co_cellvars:
        value = _imported(root, function)
    elif root in cells:
        value = cells[root]
    else:
        value = function.__globals__.get(root, vars(builtins).get(root, MISSING))
    for name in rest:
        if value is MISSING:
            break
        holder, value = value, _attribute(value, mangled(name, function), module, cls)
    return value, holder


def _imported(name: str, function: types.FunctionType) -> Any:
    """What an import in the function binds the name to, MISSING if another statement may bind it."""
    target = _imports(function.__code__).get(name)
    if target is None:
        return MISSING
    home, attribute = target
    value: Any = sys.modules.get(home, MISSING)
    if attribute is None or value is MISSING:
        return value
    return vars(value).get(attribute, sys.modules.get(f"{home}.{attribute}", MISSING))


@cached_by_code
def _imports(code: types.CodeType) -> dict[str, tuple[str, str | None]]:
    """The module and the name in it of each import of a function, for names that are bound only once."""
    source = read_function(code)
    found: dict[str, tuple[str, str | None]] = {}
    bound: list[str] = []
    for node in ast.walk(source.node) if source is not None else ():
        match node:
            case ast.Import(names=names):
                for each in names:
                    top = each.name.partition(".")[0]
                    found[each.asname or top] = (each.name if each.asname else top, None)
                    bound.append(each.asname or top)
            case ast.ImportFrom(module=str(home), names=names, level=0):
                for each in names:
                    found[each.asname or each.name] = (home, each.name)
                    bound.append(each.asname or each.name)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound.append(name)
    return {name: target for name, target in found.items() if bound.count(name) == 1}


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """The values of the free variables of a function."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: cell_contents(cell) for name, cell in cells}


def cell_contents(cell: types.CellType) -> Any:
    """The content of a closure cell, MISSING if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _after(cls: type, owner: Any) -> tuple[type, ...]:
    """The classes that ``super()`` in a method of ``owner`` searches."""
    order = cls.__mro__
    return order[order.index(owner) + 1 :] if owner in order else ()


def _super_owner(root: str, step: Step) -> Any:
    """The class in ``super()`` or ``super(Name, self)``."""
    name = root[len(_SUPER) : -1]
    cells = _cells(step.function)
    if not name:
        return cells.get("__class__")
    return cells.get(name, step.function.__globals__.get(name))


def _class_attribute(classes: tuple[type, ...], name: str) -> tuple[type | None, Any]:
    for base in classes:
        if name in vars(base):
            return base, vars(base)[name]
    return None, MISSING


def mangled(name: str, function: types.FunctionType) -> str:
    """The name of an attribute as stored: private names of a class are mangled."""
    scopes = function.__qualname__.split(".")
    if not name.startswith("__") or name.endswith("__") or len(scopes) < 2:
        return name
    owner = scopes[-2].lstrip("_")
    return f"_{owner}{name}" if owner and owner != "<locals>" else name


def _attribute(value: Any, name: str, module: nn.Module, cls: type) -> Any:
    """Get an attribute without running code of the object: no property, no lazy import."""
    if isinstance(value, types.ModuleType):
        return vars(value).get(name, MISSING)
    if isinstance(value, nn.Module):
        for places in (value._modules, value._parameters, value._buffers):
            if name in places:
                return places[name]
    if value is module and name not in vars(module):
        found = _class_attribute(cls.__mro__, name)[1]  # of the class as it was before an earlier swap
    else:
        found = inspect.getattr_static(value, name, MISSING)
    return MISSING if isinstance(found, property | functools.cached_property) else found
