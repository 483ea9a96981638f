"""What README.md and docs/*.md show is true: Python runs, and commands are understood.

The Python blocks of a page run in order in one namespace.  Lines ``# → ...`` in a block are what it prints.
Two comments, which a reader of the page does not see, prepare the ground: ``<!-- setup ... -->`` holds code
that runs where it stands, ``<!-- needs: PACKAGE -->`` skips the rest of the page where that is missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import iglu
from iglu import zoo
from iglu.__main__ import main

if importlib.util.find_spec("tyro") is None:
    pytest.skip("the lab is not installed", allow_module_level=True)

import tyro

from iglu.lab import recipes
from iglu.lab.sweep.grid import read_grid
from iglu.lab.training import tasks

if importlib.util.find_spec("tomllib"):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_PART = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->"
    r"|^<!-- needs: (?P<needs>[\w.]+) -->"
    r"|^ *```(?P<language>\w+)\n(?P<block>.*?)^ *```",
    re.DOTALL | re.MULTILINE,
)


class Part(NamedTuple):
    """A piece of a page: ``kind`` is setup, needs, or the language of a block."""

    kind: str
    text: str
    line: int


def parts(page: Path) -> Iterator[Part]:
    text = page.read_text(encoding="utf-8")
    for found in _PART.finditer(text):
        group = found.lastgroup
        assert group is not None
        line = text.count("\n", 0, found.start(group)) + 1
        yield Part(found["language"] or group, found[group], line)


def shown_commands(page: Path) -> Iterator[str]:
    """The lines of shell blocks, and what stands in the text as code and looks like a command."""
    for part in parts(page):
        if part.kind in ("bash", "sh", "console"):
            yield from part.text.replace("\\\n", " ").splitlines()
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`((?:iglu|make|pip|python) [^`]+)`", prose)


def every_command(program: str) -> list[Any]:
    """Each shown command of ``program`` once, as its words, named by page and text."""
    found = {}
    for page in PAGES:
        for line in shown_commands(page):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and words[0] == program:
                found.setdefault(tuple(words[1:]), page.name)
    return [pytest.param(list(words), id=f"{page}: {' '.join(words)}") for words, page in found.items()]


# -- Python ----------------------------------------------------------------------------------------


@pytest.fixture
def registries() -> Iterator[None]:
    """A page may add rows to the tables of the package; other tests must not see them."""
    tables: list[dict[str, Any]] = [zoo.ZOO, recipes.RECIPES, tasks.IMAGE_SETS, tasks.MODELS]
    before = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)


@pytest.mark.filterwarnings("default")  # of other packages; ours are errors in their own tests
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IGLU_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": page.stem}
    for kind, text, line in parts(page):
        if kind == "needs":
            pytest.importorskip(text, reason=f"from line {line} on {page.name} needs {text}")
        if kind not in ("setup", "python"):
            continue
        printed = io.StringIO()
        # Moved down to its own lines, so that a traceback points into the page.
        code = compile("\n" * (line - 1) + text, page, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        promised = re.findall(r"^ *# → ?(.*)$", text, re.MULTILINE)
        if promised:
            said = [each.rstrip() for each in printed.getvalue().splitlines()]
            assert said == promised, f"{page.name}, line {line}, prints something else"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "block",
    [pytest.param(part, id=f"line {part.line}") for part in parts(PAGES[0]) if part.kind == "python"],
)
def test_a_snippet_of_the_readme_runs_when_pasted_alone(block: Part) -> None:
    for name in re.findall(r"^from (transformers|timm) ", block.text, re.MULTILINE):
        pytest.importorskip(name)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile("\n" * (block.line - 1) + block.text, PAGES[0], "exec"), {"__name__": "pasted"})


# -- the reference ---------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    shown = re.findall(r"^::: iglu\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert set(iglu.__all__) <= set(shown)


# -- commands --------------------------------------------------------------------------------------


# What stands for a name that the reader puts in; folders and files may be called anything.
_PLACEHOLDERS = {"COMMAND": "bench", "RECIPE": "digits"}


class Understood(BaseException):
    """Raised in the place of what a command would do, once its flags are read."""


@pytest.mark.parametrize("words", every_command("iglu"))
def test_a_shown_command_is_one_that_iglu_understands(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_flags = tyro.cli

    def only_read(*arguments: Any, **options: Any) -> None:
        read_flags(*arguments, **options)
        raise Understood

    if len(words) == 1:  # a command that is named, not called
        words = [*words, "--help"]
    monkeypatch.setattr(tyro, "cli", only_read)
    try:
        status = main([_PLACEHOLDERS.get(word, word) for word in words])
    except Understood:
        return
    except SystemExit as asked:  # --help ends so, a flag that does not exist with 2
        status = asked.code
    assert status == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_shown_grid_is_one_that_a_sweep_reads(page: Path, tmp_path: Path) -> None:
    for part in parts(page):
        if part.kind == "toml":
            file = tmp_path / "grid.toml"
            file.write_text(part.text, encoding="utf-8")
            assert read_grid(str(file)).recipes


@pytest.mark.parametrize("words", every_command("make"))
def test_a_shown_target_is_in_the_makefile(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words[0] in targets


@pytest.mark.parametrize("words", every_command("pip"))
def test_a_shown_extra_is_in_pyproject(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"iglu-torch\[([\w,]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()


@pytest.mark.parametrize("words", every_command("python"))
def test_a_shown_program_is_in_the_tree(words: list[str]) -> None:
    assert words[0] == "-m" or (ROOT / words[0]).is_file()
