"""Calls that change their input in place, which the module that replaces them does not.

``y = F.relu(x, inplace=True)`` also changes ``x``.  If ``x`` is read later it is bound to the result,
``y = (x := self.relu_1(x))``; if the change is visible in another way, the call is not replaced.
"""

from __future__ import annotations

import ast

from iglu.surgery.source_scan import CallSite, Scan
from iglu.surgery.source_text import span_of


class CannotRewriteError(Exception):
    """Its message is the reason in the record."""


def variable_to_bind(site: CallSite, scan: Scan) -> str | None:
    """The variable that the call changes and that is read later, None if there is none; a CannotRewriteError
    says in which other way the change is visible."""
    call, source, in_place = site.use.call, site.step.source, _is_in_place(site, scan)
    changed = next(iter((site.arguments or {}).values()), None)
    if in_place is False or not isinstance(changed, ast.Name | ast.Attribute | ast.Subscript):
        return None  # an intermediate result without a name
    assert call is not None
    assert source is not None
    text = ast.unparse(changed)
    reason = f"it {'changes' if in_place else 'may change'} {text} in place"
    nodes = list(ast.walk(source.node))
    around = [node for node in nodes if isinstance(node, ast.stmt) and call in ast.walk(node)]
    statement = around[-1]  # the innermost
    is_assigned = False
    match statement:
        case ast.Return(value=value) if value is call and isinstance(changed, ast.Name):
            return None
        case ast.Assign(targets=[target], value=value) if value is call:
            is_assigned = ast.unparse(target) == text  # x = F.relu(x, inplace=True)
    if not isinstance(changed, ast.Name):
        if is_assigned:
            return None
        raise CannotRewriteError(reason)

    start, call_start, call_end = span_of(statement)[0], *span_of(call)
    names = [(node, span_of(node)[0]) for node in nodes if isinstance(node, ast.Name) and node is not changed]
    loads = [(node.id, position) for node, position in names if isinstance(node.ctx, ast.Load)]
    in_loop = any(isinstance(each, ast.For | ast.While) for each in around)
    read_later = {name for name, position in loads if in_loop or position >= call_end}
    stores = [position for node, position in names if node.id == text and isinstance(node.ctx, ast.Store)]
    bound_at = max((position for position in stores if position < start), default=(0, 0))
    for node in nodes:
        match node:
            case ast.Assign(value=ast.Name(id=name)) if bound_at <= span_of(node)[0] < start:  # y = x
                same = {name, *map(ast.unparse, node.targets)}
                seen = {each for each in same if each in read_later or not each.isidentifier()}
                if text in same and seen - {text}:
                    raise CannotRewriteError(f"{reason}, which has another name")
    if any(name == text and start <= position < call_start for name, position in loads):
        raise CannotRewriteError(f"{reason}, which the same statement reads before the call")
    if is_assigned or text not in read_later:
        return None
    if in_place is None:
        raise CannotRewriteError(reason)
    if site.use.context.is_nested:
        raise CannotRewriteError("it changes a variable of the enclosing function in place")
    return text


def _is_in_place(site: CallSite, scan: Scan) -> bool | None:
    """Whether a call changes its input; None if that depends on a variable."""
    if site.use.chain[-1].endswith("_"):
        return True
    flag = (site.arguments or {}).get("inplace", ast.Constant(False))
    value = flag.value if isinstance(flag, ast.Constant) else scan.value(flag, site.step)
    return value if isinstance(value, bool) else None
