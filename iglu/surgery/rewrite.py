"""Turn calls of activations inside a forward into child modules.

``F.relu(self.bn1(x))`` becomes ``self.relu_1(self.bn1(x))``: the source of the function is edited and
compiled again, and the module gets a subclass of its class with the new function.  Reasons:

- A TorchFunctionMode would slow every call and disable the native kernels; a forward on the instance would
  break ``DataParallel``, ``deepcopy`` and pickling.  A subclass keeps ``isinstance``, and it has the
  ``__module__``, ``__qualname__`` and ``__name__`` of the class, so that it prints as before.
- The new code has a file name of its own, whose text is in ``linecache``.  With the name of the original file
  ``torch.jit.script`` would silently compile the old source, and a second swap would see the old calls.  Line
  numbers stay those of the original file.
- A function is edited only if its source, unchanged, compiles to the code that runs.  Otherwise the file was
  edited after it was imported, or an import hook changed it.
- Globals, defaults and closure cells are those of the original function, bound by name: ``super()`` works.
- Decorators are not run a second time, since they may register something: wrappers made with
  ``functools.wraps`` are copied, around the new function.
- There is one generated class per class and set of edits, so that instances share compiled code.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import linecache
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from iglu.surgery.activations import in_container, is_table
from iglu.surgery.in_place import CannotRewriteError, variable_to_bind
from iglu.surgery.source_scan import (
    MISSING,
    CallSite,
    Scan,
    Step,
    cell_contents,
    is_plain_call,
    mangled,
    plain_function,
)
from iglu.surgery.source_text import (
    BREAKS,
    Edit,
    FunctionSource,
    cached_by_code,
    compile_like,
    imports_of,
    read_function,
    span_of,
)

Key = tuple[Any, ...]

_EXTRA_ARGUMENT = "swapped_module"  # gives a helper function access to the new children


@dataclass(frozen=True)
class FunctionPlan:
    """One function of a generated class: where the original is, and how it is edited."""

    attribute: str  # its name in the generated class
    home: tuple[str, str]  # module and qualified name of the class that defines it, or of the function itself
    name: str | None  # in that class, None if it is not in a class of the module
    takes_module: bool  # the module is passed to it in front of its own arguments
    edits: tuple[Edit, ...]
    digest: str  # of the original source


@dataclass(frozen=True)
class Plan:
    """All edits of one class, and the name of the child for each call site."""

    functions: tuple[FunctionPlan, ...]
    sites: tuple[tuple[Key, str], ...]
    number: int = 0  # distinguishes plans for different functions with the same source


class Rewritten:
    """The base of all generated classes."""

    _iglu_original_class: ClassVar[type]
    _iglu_plan: ClassVar[Plan]
    _iglu_holders: ClassVar[Mapping[str, Any]]  # the original functions, with their decorators

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """A new instance has no new children, so it gets the original class."""
        self.__class__ = type(self)._iglu_original_class
        self.__init__(*arguments, **options)  # type: ignore[misc]

    def __init_subclass__(cls, **options: Any) -> None:
        """Skip the method of the original class, which might register its subclasses."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the original class and the edits: the generated class cannot be imported."""
        reduced = super().__reduce_ex__(protocol)
        cls = type(self)
        if not isinstance(reduced, tuple) or reduced[1][:1] != (cls,):
            return reduced
        make, (_, *arguments), *rest = reduced
        generated = vars(cls)["_iglu_original_class"], vars(cls)["_iglu_plan"]
        return (_make_instance, (*generated, make, *arguments), *rest)


def _make_instance(original: type, plan: Plan, make: Callable[..., Any], *arguments: Any) -> Any:
    return make(generate(original, plan), *arguments)


def rewritten_sites(module: nn.Module) -> dict[Key, str]:
    """The call sites that earlier swaps turned into children, with the names of these."""
    plan = vars(type(module)).get("_iglu_plan")
    return {} if plan is None else dict(plan.sites)


# -- what cannot be rewritten ---------------------------------------------------------------------


def unsupported_reason(site: CallSite, scan: Scan) -> str:
    """Why a call site of a module cannot become a child; empty if it can."""
    try:
        return _call_unsupported_reason(site, scan) or next(
            filter(None, map(_step_unsupported_reason, site.step.within())), ""
        )
    except CannotRewriteError as error:
        return str(error)


def module_unsupported_reason(scan: Scan) -> str:
    """Why no call site of a module can become a child; empty if they can."""
    module = scan.module
    if isinstance(module, torch.fx.GraphModule):
        return "its forward was generated by torch.fx"
    if parametrize.is_parametrized(module):
        return "the module is parametrized: swap first, then parametrize"
    # Such a forward would also run the new child as one of its layers.
    is_container = isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
    for site in scan.uses:
        chain = site.use.chain
        if site.path is not None and chain[-1] in _LISTS_CHILDREN and len(chain) == 2:
            return f"its forward iterates over its own children, by {'.'.join(chain)}"
        if not is_container or not site.step.of_self:
            continue
        is_inherited = chain[0].startswith("super(") and chain[1:] == ("forward",)
        if is_inherited or (len(chain) == 1 and chain[0] == site.step.first_argument):
            return f"its forward iterates over its own children, as {type(module).__mro__[1].__name__} does"
    return ""


_LISTS_CHILDREN = {"children", "named_children", "modules", "named_modules", "_modules"}


def _call_unsupported_reason(site: CallSite, scan: Scan) -> str:
    use, step = site.use, site.step
    argument = step.first_argument
    if step.of_self:
        if argument in use.context.hidden:
            return f"{argument} is another object in this nested function"
        if argument is None or argument in _assigned_names(step.function.__code__):
            return "the function does not keep its module in its first argument"
    if use.context.is_default:
        return "it is the default value of an argument"
    if use.key is not None and not is_table(site.value):
        return in_container(type(site.value))
    if use.context.is_discarded:
        return "its result is discarded: it changes its input in place, which a module does not"
    if use.call is not None and not isinstance(site.value, type):
        if not site.arguments:
            return "its arguments are not explicit"
        first, *others = site.arguments.values()
        if any(_is_tensor(each, step, scan) for each in others):
            return "it is given a tensor as a parameter"
        if use.chain[-1] == "relu6" and _is_plus_3(first):
            return "relu6(x + 3) is part of a hard sigmoid, a gate"
        variable_to_bind(site, scan)  # raises a CannotRewriteError if the change is visible in another way
    elif use.call is None and use.key is None and not isinstance(site.value, nn.Module):
        source, alias = step.source, use.context.alias
        if alias is None or source is None or not _is_only_called(source, alias):
            return "the function is passed on as a value"
    return ""


def _step_unsupported_reason(step: Step) -> str:
    if step.kind == "root" and step.owner is None:
        return f"the {step.name} of this instance was replaced"
    _wrapped_again(step.holder, step.function, step.function, not step.of_self)
    return _rebuild_unsupported_reason(step.function)


@functools.lru_cache(maxsize=4096)
def _rebuild_unsupported_reason(function: types.FunctionType) -> str:
    source = read_function(function.__code__)
    if source is None:
        return "its source is not available"
    try:
        imports = imports_of(source, function.__code__, function.__qualname__)
    except (SyntaxError, ValueError, StopIteration):
        return "its source cannot be compiled by itself"
    if imports is None:
        return "its source is not the code that runs: edited after the import, or changed by an import hook"
    return ""


@cached_by_code
def _assigned_names(code: types.CodeType) -> frozenset[str]:
    source = read_function(code)
    nodes = ast.walk(source.node) if source is not None else ()
    return frozenset(
        node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    )


def _is_only_called(source: FunctionSource, name: str) -> bool:
    """Whether a local variable is used for nothing but calls with one argument."""
    called = {
        id(node.func) for node in ast.walk(source.node) if isinstance(node, ast.Call) and is_plain_call(node)
    }
    loads = [
        node
        for node in ast.walk(source.node)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return bool(loads) and all(id(node) in called for node in loads)


def _is_tensor(argument: ast.expr, step: Step, scan: Scan) -> bool:
    """Whether it is computed, or a parameter or buffer of the module, such as a learned slope."""
    is_computed = any(isinstance(node, ast.Call) for node in ast.walk(argument))
    return is_computed or isinstance(scan.value(argument, step), Tensor)


def _is_plus_3(node: ast.expr) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return False
    return any(isinstance(each, ast.Constant) and each.value == 3 for each in (node.left, node.right))


# -- edits ----------------------------------------------------------------------------------------


class _Planner:
    """Plans the edits that turn the chosen call sites into children; ``steps`` has the original of each
    edited function."""

    def __init__(self, scan: Scan, chosen: Mapping[Key, str]) -> None:
        self._scan = scan
        self._chosen = chosen
        self._taken = set(chosen.values())
        self._sites: dict[Key, list[CallSite]] = {}
        for site in scan.activations():
            if site.key in chosen:
                self._sites.setdefault(site.step.key, []).append(site)
        self._changed = {key[:length] for key in self._sites for length in range(1, len(key) + 1)}
        self.steps: dict[str, Step] = {}
        self._names: dict[Step, str] = {}
        self._places: dict[str, list[Step]] = {}  # by method name, one step per call site
        for root in scan.roots:
            self._collect(root)

    def functions(self) -> Iterator[FunctionPlan]:
        for root in self._scan.roots:
            if self._is_changed(root):
                yield from self._function(root, root.name)

    def _collect(self, step: Step) -> None:
        for _, callee in self._scan.calls(step):
            if callee in step.within():
                continue
            if callee.kind == "method":
                self._places.setdefault(callee.name, []).append(callee)
            self._collect(callee)

    def _is_changed(self, step: Step) -> bool:
        return step.key in self._changed

    def _function(self, step: Step, attribute: str) -> Iterator[FunctionPlan]:
        source = step.source
        assert source is not None
        self._names[step] = attribute
        variable = step.first_argument if step.of_self else _free_name(_EXTRA_ARGUMENT, step)
        edits: list[Edit] = []
        for site in self._sites.get(step.key, ()):
            edits += _edits(site, f"{variable}.{self._chosen[site.key]}", self._scan)
        for use, callee in self._scan.calls(step):
            is_loop = callee in step.within()
            name = self._names[callee] if is_loop else self._attribute(callee)
            if name is not None and name != callee.name:
                edits.append(_span(use.name, f"{variable}.{name}"))
            if name is not None and not is_loop:
                yield from self._function(callee, name)
        if not step.of_self:
            edits.append(_first_argument(source, step, str(variable)))
        owner: Any = step.owner if step.of_self else step.function
        home = (owner.__module__, owner.__qualname__)
        name_in_class = _stored_name(step) if step.of_self else None
        if attribute == step.name and name_in_class is not None:
            attribute = name_in_class
        self.steps[attribute] = step
        yield FunctionPlan(
            attribute, home, name_in_class, not step.of_self, tuple(sorted(edits)), source.digest
        )

    def _attribute(self, callee: Step) -> str | None:
        """The name of the copy that this call site calls; None if it still calls the original.

        A method with one call site keeps its name, so that callers from outside find the new one.  With
        several call sites, each has its own copy, and the first keeps the name.
        """
        is_method = callee.kind == "method"
        is_root_changed = (callee.name,) in self._changed
        if not self._is_changed(callee):
            return self._new_name(callee) if is_method and is_root_changed else None
        if is_method and not is_root_changed:
            places = self._places[callee.name]
            if all(map(self._is_changed, places)) and places[0].key == callee.key:
                return callee.name
        return self._new_name(callee)

    def _new_name(self, callee: Step) -> str:
        name = free_name(callee.name.strip("_"), 1, self._scan.module, self._taken)
        self._taken.add(name)
        return name


def free_name(base: str, number: int, module: nn.Module, taken: set[str]) -> str:
    """``base_1``, or the next name that is neither an attribute of the module nor taken."""
    for count in itertools.count(number):
        name = f"{base}_{count}"
        is_attribute = name in module._modules or name in module._parameters or name in module._buffers
        is_free = not is_attribute and name not in taken
        if is_free and inspect.getattr_static(module, name, MISSING) is MISSING:
            return name
    raise AssertionError


def _free_name(name: str, step: Step) -> str:
    code = step.function.__code__
    used = {*code.co_varnames, *code.co_names, *code.co_freevars, *code.co_cellvars}
    while name in used:
        name += "_"
    return name


def _stored_name(step: Step) -> str:
    """The name of a method in its class, where private names are mangled; if the function has several names,
    the one by which it was found."""
    names = [name for name, value in vars(step.owner).items() if value is step.holder]
    found = mangled(step.name, step.function)
    return found if found in names else names[0]


def _edits(site: CallSite, new: str, scan: Scan) -> list[Edit]:
    use = site.use
    if use.call is None or isinstance(site.value, type):
        return [_span(use.node, new)]
    assert site.arguments
    first = next(iter(site.arguments.values()))
    name = variable_to_bind(site, scan)
    start, end = span_of(use.call)
    inner_start, inner_end = span_of(first)
    head, tail = (f"({name} := {new}(", "))") if name else (f"{new}(", ")")
    return [Edit(start, inner_start, head + BREAKS), Edit(inner_end, end, BREAKS + tail)]


def _span(node: ast.expr, text: str) -> Edit:
    return Edit(*span_of(node), text)


def _first_argument(source: FunctionSource, step: Step, variable: str) -> Edit:
    """Add an argument in front of the others."""
    line = source.node.lineno
    text = source.lines[line - source.first].encode()
    column = text.index(b"(", text.index(f"def {source.node.name}".encode())) + 1
    code = step.function.__code__
    has_arguments = code.co_argcount + code.co_kwonlyargcount or code.co_flags & (
        inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    )
    return Edit((line, column), (line, column), f"{variable}, " if has_arguments else variable)


# -- the generated class --------------------------------------------------------------------------

# Weak references: the functions of a class may keep a model alive in their cells.
_generated: weakref.WeakValueDictionary[tuple[type, Plan], type[Rewritten]] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def rewrite(scan: Scan, chosen: Mapping[Key, str]) -> type:
    """The class in which these call sites of the module are children.

    A class is shared only if the functions are the same objects: closures of instances have the same source
    but different cells, and a method may be replaced between two swaps."""
    planner = _Planner(scan, chosen)
    plan = Plan(tuple(planner.functions()), tuple(sorted(chosen.items(), key=repr)))
    holders = {attribute: (step.holder, step.function) for attribute, step in planner.steps.items()}
    for number in itertools.count():
        numbered = dataclasses.replace(plan, number=number)
        cls = _generated.get((scan.cls, numbered))
        if cls is None:
            return generate(scan.cls, numbered, holders)
        if all(cls._iglu_holders[name] is holder for name, (holder, _) in holders.items()):
            return cls
    raise AssertionError


def generate(
    original: type, plan: Plan, holders: Mapping[str, tuple[Any, types.FunctionType]] | None = None
) -> type:
    """A subclass of the original class with the edited functions; the same one for the same edits."""
    known = _generated.get((original, plan))
    if known is not None:
        return known
    functions, kept = {}, {}
    for each in plan.functions:
        holder, function = holders[each.attribute] if holders is not None else _find(original, each)
        new = _edited(function, each)
        functions[each.attribute] = _wrapped_again(holder, function, new, each.takes_module)
        kept[each.attribute] = holder
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "_iglu_original_class": original,
        "_iglu_plan": plan,
        "_iglu_holders": kept,
        **functions,
    }
    cls = types.new_class(original.__name__, (Rewritten, original), {}, lambda body: body.update(namespace))
    _generated[original, plan] = cls
    return cls


def _find(original: type, wanted: FunctionPlan) -> tuple[Any, types.FunctionType]:
    """Find the original of a function, when a saved model is loaded."""
    module, qualname = wanted.home
    holder: Any = MISSING
    if wanted.name is not None:
        for base in original.__mro__:
            if (base.__module__, base.__qualname__) == wanted.home:
                holder = vars(base).get(wanted.name, MISSING)
    else:
        holder = sys.modules.get(module)
        for name in qualname.split("."):
            holder = getattr(holder, name, MISSING)
    function = plain_function(holder)
    if function is None:
        raise RuntimeError(
            f"This model was saved after iglu.swap, which had rewritten {module}.{qualname}. That no "
            "longer exists: load the weights (the state dict) into a new model, and swap again."
        )
    return holder, function


def _edited(function: types.FunctionType, plan: FunctionPlan) -> types.FunctionType:
    source = read_function(function.__code__)
    if source is None or source.digest != plan.digest:
        raise RuntimeError(
            f"This model was saved after iglu.swap, which had rewritten {'.'.join(plan.home)}. Its "
            "source has changed since: load the weights (the state dict) into a new model, and swap again."
        )
    edited = source.edited(plan.edits)
    code = function.__code__
    original = code.co_filename.replace("\\", "/").rpartition("/")[2]
    filename = f"<iglu.swap {next(_numbers)}>/{original}"
    lines = edited.padded()
    # Without a modification time, linecache does not look for the file.
    linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
    imports = imports_of(source, code, function.__qualname__)
    if imports is None:
        raise CannotRewriteError(f"the source of {function.__qualname__} is not the code that runs")
    new_code = compile_like(edited, code, function.__qualname__, filename, imports)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in new_code.co_freevars)
    return _copied(function, new_code, closure)


def _wrapped_again(
    holder: Any, old: types.FunctionType, new: types.FunctionType, takes_module: bool
) -> types.FunctionType:
    """The new function in copies of the wrappers that decorators put around the old one."""
    if isinstance(holder, staticmethod):
        return _wrapped_again(holder.__func__, old, new, takes_module)
    if holder is old:
        return new
    inner = getattr(holder, "__wrapped__", None)
    if not isinstance(holder, types.FunctionType) or inner is None:
        raise CannotRewriteError(f"it is called in a {type(holder).__name__}, not in a function")
    if takes_module and not holder.__code__.co_flags & inspect.CO_VARARGS:
        raise CannotRewriteError("its decorator does not pass on further arguments")
    again = _wrapped_again(inner, old, new, takes_module)
    old_cells = holder.__closure__ or ()
    cells = [types.CellType(again) if cell_contents(cell) is inner else cell for cell in old_cells]
    if all(map(operator.is_, cells, old_cells)):
        raise CannotRewriteError("its decorator keeps the function where it cannot be replaced")
    copied = _copied(holder, holder.__code__, tuple(cells))
    # __wrapped__, and where torch.compile keeps what it compiles
    vars(copied).update({name: again for name, value in vars(holder).items() if value is inner})
    return copied


def _copied(
    old: types.FunctionType, code: types.CodeType, closure: tuple[types.CellType, ...]
) -> types.FunctionType:
    """Copy a function with other code or other cells."""
    new = types.FunctionType(code, old.__globals__, old.__name__, old.__defaults__, closure)
    new.__kwdefaults__ = old.__kwdefaults__
    new.__annotations__ = dict(old.__annotations__)
    new.__qualname__, new.__module__, new.__doc__ = old.__qualname__, old.__module__, old.__doc__
    vars(new).update(vars(old))
    return new
