"""Find the activations of a model.

An activation can be in a model in four ways: as a child module, as a function kept in an attribute
(``self.activation = F.relu``), as a name that a forward looks up in transformers' table, or as a call inside
a forward (``F.relu(x)``), which :mod:`iglu.surgery.rewrite` can turn into a child.
"""

from __future__ import annotations

import ast
import dis
import itertools
import sys
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

from torch import fx, nn

from iglu.surgery.activations import (
    function_name,
    has_parameters,
    is_activation_name,
    is_opaque,
    is_replaced_by_default,
    is_table,
    signature,
)
from iglu.surgery.rewrite import free_name, module_unsupported_reason, rewritten_sites, unsupported_reason
from iglu.surgery.source_scan import CallSite, Scan, Step, is_plain_call

Path = tuple[str, ...]


class Site(NamedTuple):
    """A place in a model, and what is there: a module, a function, or the name of an activation."""

    place: str
    parent: nn.Module
    path: Path  # from the parent; longer than one name where it leads into a config
    content: Any  # for a call, a module that computes the same
    unused_duplicates: tuple[str, ...] = ()  # for a name: children made from it that forward never uses
    lookups: tuple[CallSite, ...] = ()  # for a name
    call: CallSite | None = None
    scan: Scan | None = None  # for a call, the scan of the parent
    reason: str = ""  # why a call cannot be replaced, empty if it can

    @property
    def is_in_layer(self) -> bool:
        """Calls are replaced by default only in modules with parameters."""
        return self.call is None or has_parameters(self.parent)

    @property
    def is_default(self) -> bool:
        """Whether swap replaces it by default."""
        return is_replaced_by_default(self.content) and self.is_in_layer


def find_sites(model: nn.Module) -> Iterator[Site]:
    """Yield every module in the model, and every function, name and call that is an activation, in order.

    A shared module is visited once; the inside of an activation is not visited.
    """
    return _sites_in(model, "", set(), _scans(model))


def is_called_from(site: Site, frames: Sequence[tuple[CodeType, int]], name: str) -> bool:
    """Whether ``frames``, the code and offset of each, innermost first, belong to the call of a site.

    Before Python 3.11 an offset has a line but no column, so ``name`` selects among the calls on a line."""
    if site.call is None:
        return False
    names = (site.call.name.rpartition(".")[2], getattr(site.call.value, "__name__", ""))
    if sys.version_info < (3, 11) and name not in (each.strip("_") for each in names):
        return False
    use, step = site.call.use, site.call.step
    code, offset = frames[0]
    if not _is_at(use.node, step, code, offset):
        return False
    outer = iter(frames[1:])
    while step.parent is not None and step.use is not None:
        node, step = step.use.node, step.parent
        if not any(_is_at(node, step, code, offset) for code, offset in outer):  # decorators have frames too
            return False
    return True


def _is_at(node: ast.expr, step: Step, code: CodeType, offset: int) -> bool:
    if code.co_filename != step.function.__code__.co_filename:
        return False
    if sys.version_info >= (3, 11):
        span = next(itertools.islice(code.co_positions(), offset // 2, None))
        return bool(span == (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset))
    line = max((line for start, line in dis.findlinestarts(code) if start <= offset), default=0)
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def read_path(parent: nn.Module, path: Path) -> Any:
    """The attribute at the end of a path, None if it does not exist."""
    value: Any = parent
    for name in path:
        value = getattr(value, name, None)
    return value


def _scans(model: nn.Module) -> dict[int, Scan]:
    """What each module uses; a method that another module calls counts like a forward."""
    scans = {id(module): Scan(module) for module in model.modules() if _is_readable(module)}
    pending = list(scans.values())
    while pending:
        scan = pending.pop()
        while scan.foreign:
            module, name = scan.foreign.pop()
            if id(module) in scans and scans[id(module)].add_root(name):
                pending.append(scans[id(module)])
    return scans


def _is_readable(module: nn.Module) -> bool:
    """Whether to read the source of a module.  Of torch.nn's own modules, only transformer layers call
    activations in their forward."""
    if is_opaque(module):
        return False
    is_transformer = isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    return is_transformer or not type(module).__module__.startswith("torch.nn")


def _sites_in(model: nn.Module, place: str, visited: set[int], scans: dict[int, Scan]) -> Iterator[Site]:
    if id(model) in visited or is_opaque(model):
        return
    visited.add(id(model))
    scan = scans.get(id(model))
    uses = [] if scan is None else scan.uses
    lookups = [site for site in uses if site.use.key is not None and is_table(site.value)]
    paths = _paths_of_names(model, lookups)
    duplicates = _unused_duplicates(model, [read_path(model, path) for path in paths], uses) if paths else ()
    for name, child in list(model._modules.items()):
        if child is not None and name not in duplicates:
            yield Site(_join(place, name), model, (name,), child)
            yield from _sites_in(child, _join(place, name), visited, scans)
    for name, value in list(vars(model).items()):
        if function_name(value) is not None and _is_called_plainly(name, uses):
            yield Site(_join(place, name), model, (name,), value)
    for path in paths:
        its = tuple(site for site in lookups if site.key_path == path or not site.step.of_self)
        yield Site(_join(place, *path), model, path, read_path(model, path), duplicates, its)
    is_torchs = type(model).__module__.startswith("torch.") and not isinstance(model, fx.GraphModule)
    if scan is not None and not is_torchs:
        yield from _call_sites(scan, place)


def _call_sites(scan: Scan, place: str) -> Iterator[Site]:
    """The calls in the module's own functions, named after the function and their order in the source."""
    module = scan.module
    done = rewritten_sites(module)
    module_reason = module_unsupported_reason(scan)
    numbers: dict[str, Iterator[int]] = {}
    taken: set[str] = set()
    for site in scan.activations():
        content = None if site.make is None or _is_in_attribute(site, module, scan.uses) else site.make()
        if not isinstance(content, nn.Module):
            continue
        base = _base_name(site)
        number = next(numbers.setdefault(base, itertools.count(1)))
        if site.key in done:
            taken.add(done[site.key])
            continue
        name = free_name(base, number, module, taken)
        taken.add(name)
        reason = module_reason or unsupported_reason(site, scan)
        yield Site(_join(place, name), module, (name,), content, call=site, scan=scan, reason=reason)


def _base_name(site: CallSite) -> str:
    key = site.use.key
    name = str(key.value) if isinstance(key, ast.Constant) else site.use.chain[-1]
    if isinstance(site.value, type):
        name = name.lower()
    name = "".join(letter if letter.isalnum() else "_" for letter in name).strip("_")
    return name or "activation"


def _is_in_attribute(site: CallSite, module: nn.Module, uses: list[CallSite]) -> bool:
    """Whether the function is in an attribute, which is then the site."""
    path = site.path
    return path is not None and path[0] in vars(module) and _is_called_plainly(path[0], uses)


def _is_called_plainly(name: str, uses: list[CallSite]) -> bool:
    """Whether every call passes one argument: modules reject ``self.act(x, inplace=True)``."""
    calls = [site.use.call for site in uses if site.path == (name,)]
    return all(call is None or is_plain_call(call) for call in calls)


def _paths_of_names(module: nn.Module, lookups: list[CallSite]) -> list[Path]:
    """Where the module keeps the names that its forward looks up in the table of activations."""
    paths: list[Path] = []
    for site in lookups:
        if site.key_path is not None:
            paths.append(site.key_path)
        elif not site.step.of_self:  # the name was passed to a helper function
            paths += [(name,) for name, value in vars(module).items() if isinstance(value, str)]
    return [path for path in dict.fromkeys(paths) if is_activation_name(read_path(module, path))]


def _unused_duplicates(module: nn.Module, names: list[Any], uses: list[CallSite]) -> tuple[str, ...]:
    """Children that are the same activation as one of these names and that the forward does not use, as in
    Mamba."""
    used = {site.path[0] for site in uses if site.path is not None}
    tables = [site.value for site in uses if is_table(site.value)]
    meant = [signature(table[name]) for table in tables for name in names if name in table]
    children = module._modules.items()
    return tuple(name for name, child in children if name not in used and signature(child) in meant)


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)
