"""The examples in the documentation work: Python code runs, and commands are valid.

The Python blocks of a page run in order in one namespace.  Lines ``# → ...`` in a block are its expected
output.  Two comments, which are invisible on the rendered page, control this: ``<!-- setup ... -->`` contains
code that runs at that point, ``<!-- needs: PACKAGE -->`` skips the rest of the page if it is missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import tyro

import iglu
from iglu.cli import main
from iglu_lab.sweep.grid import read_grid

if importlib.util.find_spec("tomllib"):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").is_dir():
    pytest.skip("needs a clone, which has the docs", allow_module_level=True)
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "lab/README.md",
]

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
    """The lines of shell blocks, and inline code that looks like a command."""
    for part in parts(page):
        if part.kind in ("bash", "sh", "console"):
            yield from part.text.replace("\\\n", " ").splitlines()
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`((?:iglu|make|pip|python) [^`]+)`", prose)


def every_command(program: str) -> list[Any]:
    """Each command of ``program`` once, split into words, with the page as its test id."""
    found = {}
    for page in PAGES:
        for line in shown_commands(page):
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and words[0] == program:
                found.setdefault(tuple(words[1:]), page.name)
    return [pytest.param(list(words), id=f"{page}: {' '.join(words)}") for words, page in found.items()]


# -- Python ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")  # of other packages; ours are errors in their own tests
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_and_prints_the_expected_output(
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
        # Padded with empty lines, so that a traceback has the line numbers of the page.
        code = compile("\n" * (line - 1) + text, page, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        promised = re.findall(r"^ *# → ?(.*)$", text, re.MULTILINE)
        if promised:
            said = [each.rstrip() for each in printed.getvalue().splitlines()]
            assert said == promised, f"{page.name}, line {line}: unexpected output"


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


# Placeholders for names that must exist; folders and files may have any name.
_PLACEHOLDERS = {"COMMAND": "bench", "RECIPE": "digits"}


class FlagsParsed(BaseException):
    """Raised instead of running a command, after its flags were parsed."""


def write_the_module_of_the_docs(folder: Path) -> None:
    """What extending.md asks its reader to put into a file, for ``--import my_activations``."""
    block = next(part.text for part in parts(ROOT / "docs/extending.md") if part.kind == "python")
    (folder / "my_activations.py").write_text(block, encoding="utf-8")


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("words", every_command("iglu"))
def test_iglu_accepts_every_command_in_the_docs(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_the_module_of_the_docs(tmp_path)
    read_flags = tyro.cli

    def only_read(*arguments: Any, **options: Any) -> None:
        read_flags(*arguments, **options)
        raise FlagsParsed

    if len(words) == 1:  # a command that is mentioned, without its arguments
        words = [*words, "--help"]
    monkeypatch.setattr(tyro, "cli", only_read)
    try:
        status = main([_PLACEHOLDERS.get(word, word) for word in words])
    except FlagsParsed:
        return
    except SystemExit as asked:  # 0 after --help, 2 after an unknown flag
        status = asked.code
    assert status == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_grid_in_the_docs_is_valid(page: Path, tmp_path: Path) -> None:
    for part in parts(page):
        if part.kind == "toml":
            file = tmp_path / "grid.toml"
            file.write_text(part.text, encoding="utf-8")
            assert read_grid(str(file)).recipes


def test_the_docs_have_a_grid() -> None:
    assert any(part.kind == "toml" for page in PAGES for part in parts(page))


@pytest.mark.parametrize("words", every_command("make"))
def test_every_make_target_in_the_docs_exists(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words[0] in targets


@pytest.mark.parametrize("words", every_command("pip"))
def test_every_extra_in_the_docs_exists(words: list[str]) -> None:
    text = " ".join(words)
    for folder, name in ((ROOT, r"(?:iglu-torch|(?<!\S)\.)"), (ROOT / "lab", r"(?:iglu-lab|\./lab)")):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for extras in re.findall(rf"{name}\[([\w,]+)\]", text):
            assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert ".[lab" not in text, "the lab is not on an index: pip install . ./lab"


@pytest.mark.parametrize("words", every_command("python"))
def test_every_program_in_the_docs_exists(words: list[str]) -> None:
    assert words[0] == "-m" or (ROOT / words[0]).is_file()


# -- a new user ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_can_install_swap_train_probe_extend_and_report(tmp_path: Path) -> None:
    """The steps of README and docs in their order, outside the clone, with what pip installed from it."""
    for package in ("setuptools", "transformers", "accelerate"):
        pytest.importorskip(package)
    clone, installed, home = (tmp_path / name for name in ("clone", "installed", "home"))
    left_out = shutil.ignore_patterns(".*", "build", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=left_out)
    home.mkdir()
    # torch and the other requirements are here already; no isolation, which would download setuptools
    pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(installed)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(installed), str(ROOT / "tests"))),
        "IGLU_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }

    def python(*words: str, folder: Path = home) -> str:
        found = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert found.returncode == 0, f"{words}: {found.stdout}\n{found.stderr}"
        return found.stdout

    python(*pip, ".", "./lab", folder=clone)
    shutil.rmtree(clone)
    assert str(installed) in python("iglu", "doctor") + python("inspect", "--details", "iglu")

    for page in ("README.md", "docs/training.md", "docs/sigma.md"):  # swap, Trainer, probe
        code = [
            "import contextlib",
            "with contextlib.suppress(ImportError):",
            "    import torchvision_operators",
        ]
        for part in parts(ROOT / page):
            if part.kind == "needs" and importlib.util.find_spec(part.text) is None:
                break
            if part.kind in ("setup", "python"):
                code.append(part.text)
        script = home / f"{Path(page).stem.lower()}_steps.py"
        script.write_text("\n".join(code), encoding="utf-8")
        python(script.stem)

    write_the_module_of_the_docs(home)
    short = ("--epochs", "1", "--steps-per-epoch", "3", "--threads", "1")
    python("iglu", "train", "digits", "--import", "my_activations", "--activation", "snake:2", *short)
    (run,) = (home / "runs").glob("digits_snake*")
    assert "excess" in python("iglu", "probe", str(run), "--import", "my_activations").lower()
    assert "snake:2" in python("iglu", "runs", "runs")
    python("iglu", "report")  # no argument: these runs and the rows that the lab installs
    text = (home / "runs/report/report.md").read_text(encoding="utf-8")
    assert "snake:2" in text
    assert "WikiText" in text
