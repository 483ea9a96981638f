"""The source of a running function: read, checked against the code that runs, edited and compiled again."""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import hashlib
import inspect
import io
import linecache
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

Position = tuple[int, int]  # line in the file, counted from 1, and column in bytes of UTF-8, as ast has it

_FUTURES = functools.reduce(
    lambda flags, name: flags | getattr(__future__, name).compiler_flag, __future__.all_feature_names, 0
)


class Edit(NamedTuple):
    """Text that replaces a span; BREAKS in it marks where the line breaks of the span are kept."""

    start: Position
    end: Position
    text: str


BREAKS = "\0"


class FunctionSource(NamedTuple):
    """A function definition in its file, with the line numbers of the file."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    lines: tuple[str, ...]
    first: int  # the line in the file of the first of these lines

    @property
    def digest(self) -> str:
        return hashlib.sha256("".join(self.lines).encode()).hexdigest()[:16]

    def edited(self, edits: Sequence[Edit]) -> FunctionSource:
        """Return the source with these spans replaced.  Every line keeps its number, so a span of several
        lines is replaced by text with the same number of line breaks, inside parentheses."""
        text = "".join(self.lines).encode()
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line.encode()))
        for start, end, new in sorted(edits, reverse=True):
            begin, stop = (starts[line - self.first] + column for line, column in (start, end))
            breaks = "\n" * text[begin:stop].count(b"\n")
            if BREAKS not in new and breaks:
                new = f"({new}{BREAKS})"
            text = text[:begin] + new.replace(BREAKS, breaks).encode() + text[stop:]
        lines = tuple(io.StringIO(text.decode()).readlines())  # at "\n" only, as Python counts lines
        return FunctionSource(_parse(lines, self.first), lines, self.first)

    def padded(self) -> list[str]:
        """The lines of a file in which the function has its original line numbers."""
        return ["\n"] * (self.first - 1) + list(self.lines)


def span_of(node: ast.expr | ast.stmt) -> tuple[Position, Position]:
    """The start and end of a node."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


_Result = TypeVar("_Result")


def cached_by_code(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Cache by the identity of a code object and further arguments: hashing a code object is slow."""
    results: dict[tuple[Any, ...], tuple[types.CodeType, _Result]] = {}

    @functools.wraps(function)
    def cached(code: types.CodeType, *arguments: Any) -> _Result:
        key = (id(code), *arguments)
        if key not in results:
            results[key] = code, function(code, *arguments)  # keep the code, so that its id is not reused
        return results[key][1]

    return cached


@cached_by_code
def read_function(code: types.CodeType) -> FunctionSource | None:
    """The source of the function with this code; None if there is none, as for a lambda."""
    try:
        lines, first = inspect.getsourcelines(code)
        node = _parse(lines, first)
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    return FunctionSource(node, tuple(lines), first) if node.name == code.co_name else None


@cached_by_code
def read_lambda(code: types.CodeType) -> ast.FunctionDef | None:
    """A lambda as a function definition; None if its file has changed or has several on that line."""
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.parse("".join(lines))
        compiled = compile(tree, "<check>", "exec", flags=code.co_flags & _FUTURES, dont_inherit=True)
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    lambdas = (node for node in ast.walk(tree) if isinstance(node, ast.Lambda))
    found = [node for node in lambdas if node.lineno == code.co_firstlineno]
    codes = (each for each in _codes(compiled) if each.co_firstlineno == code.co_firstlineno)
    if len(found) != 1 or not any(is_same_code(each, code) for each in codes):
        return None
    return ast.FunctionDef("f", found[0].args, [ast.Return(found[0].body)], [])


def _parse(lines: Sequence[str], first: int) -> ast.FunctionDef | ast.AsyncFunctionDef:
    is_indented = lines[0][:1] in (" ", "\t")
    # Put it into a block instead of dedenting it, which would change multi-line strings.
    head = "\n" * (first - 2) + "if True:\n" if is_indented else "\n" * (first - 1)
    if is_indented and first < 2:
        raise ValueError("an indented function has a line before it")
    tree = ast.parse(head + "".join(lines)).body[0]
    node = tree.body[0] if isinstance(tree, ast.If) else tree
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        raise ValueError("not a function definition")
    return node


def imports_of(source: FunctionSource, code: types.CodeType, qualname: str) -> frozenset[str] | None:
    """The names to import so that the source, unchanged, compiles to this code; None if it does not.

    Python compiles F.relu(x) differently where F is imported by the same file, or by the same block of code
    if the file is not Python, such as a notebook or a text file.
    """
    used = frozenset(name for each in (code, *_codes(code)) for name in each.co_names)
    for imports in (_imported_names(code.co_filename) & used, frozenset[str](), used):
        if is_same_code(compile_like(source, code, qualname, "<check>", imports), code):
            return imports
    return None


def compile_like(
    source: FunctionSource, code: types.CodeType, qualname: str, filename: str, imported: frozenset[str]
) -> types.CodeType:
    """Compile the function in surroundings like those of the running one.

    Inside ``class Name:``, so that private names are mangled and ``super()`` finds its cell; inside a
    function that has the other free variables, so that they are free again.  Decorators are omitted:
    the code is only taken from the compiled module, which is never run.
    """
    node = copy.copy(source.node)
    node.decorator_list = []
    inner: ast.stmt = node
    scopes = qualname.split(".")[:-1]
    free = [name for name in code.co_freevars if name != "__class__"]
    while scopes:
        scope = scopes.pop()
        if scope == "<locals>":
            scope = scopes.pop()
            name = scope if scope.isidentifier() else "surroundings"
            inner = _inside(f"def {name}({', '.join(free)})", inner)
            free = []
        else:
            inner = _inside(f"class {scope}", inner)
    if free:
        inner = _inside(f"def surroundings({', '.join(free)})", inner)
    imports: list[ast.stmt] = [ast.Import([ast.alias(name)]) for name in sorted(imported)]
    module = ast.fix_missing_locations(ast.Module([*imports, inner], []))
    compiled = compile(module, filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True)
    wanted = (node.name, node.lineno)
    return next(each for each in _codes(compiled) if (each.co_name, each.co_firstlineno) == wanted)


@functools.lru_cache(maxsize=512)
def _imported_names(filename: str) -> frozenset[str]:
    """The names that a file imports, outside of its functions and classes."""
    names: set[str] = set()
    try:
        pending: list[ast.AST] = [ast.parse("".join(linecache.getlines(filename)))]
    except (SyntaxError, ValueError):
        return frozenset()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {each.asname or each.name.partition(".")[0] for each in node.names}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            pending += ast.iter_child_nodes(node)
    return frozenset(names)


def is_same_code(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether two code objects are equal except for file name and line numbers."""
    parts = (
        "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount",
        "co_posonlyargcount", "co_kwonlyargcount", "co_flags",
    )  # fmt: skip
    if any(getattr(one, part) != getattr(other, part) for part in parts):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    return all(map(_is_same_constant, one.co_consts, other.co_consts))


def _is_same_constant(one: Any, other: Any) -> bool:
    if isinstance(one, types.CodeType) and isinstance(other, types.CodeType):
        return is_same_code(one, other)
    if isinstance(one, frozenset) and isinstance(other, frozenset):  # in any order
        return sorted(map(repr, one)) == sorted(map(repr, other))
    return type(one) is type(other) and repr(one) == repr(other)


def _inside(header: str, body: ast.stmt) -> ast.stmt:
    """Wrap a statement in a class or a function."""
    tree = ast.parse(f"{header}: pass").body[0]
    assert isinstance(tree, ast.ClassDef | ast.FunctionDef)
    tree.body = [body]
    return tree


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)
