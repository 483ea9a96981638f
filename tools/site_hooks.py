"""Hooks of the documentation site; mkdocs calls the functions named ``on_``.

- Pages outside docs/ (benchmarks, evidence, changelog) and the notebooks are added to the site.
- Links, which are written for a reader of the source tree, are resolved to pages of the site.
- ``<!-- table: NAME -->`` becomes a table made from the package itself, so that no number is typed twice.
- Formulas become MathML, so that the reader's browser needs no script and no network for them.
"""

from __future__ import annotations

import base64
import html
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import latex2mathml.converter
import torch
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from iglu import zoo
from iglu.formulas import FAMILIES
from iglu.probing.sigma import POINTS
from iglu_lab import paper
from iglu_lab.cli import COMMANDS
from iglu_lab.commands import demo

_ROOT = pathlib.Path(__file__).parent.parent
_DOCS = _ROOT / "docs"
_NOTEBOOKS = {  # notebook -> page
    _DOCS / "notebooks/tour.ipynb": "tour.md",
    _DOCS / "notebooks/compare.ipynb": "compare-notebook.md",
}
_ELSEWHERE = {
    "benchmarks.md": _ROOT / "benchmarks/README.md",
    "gpu.md": _ROOT / "benchmarks/gpu.md",
    "evidence.md": _ROOT / "lab/iglu_lab/results/evidence/README.md",
    "measured.md": _ROOT / "lab/iglu_lab/results/README.md",
    "changelog.md": _ROOT / "CHANGELOG.md",
    "contributing.md": _ROOT / "CONTRIBUTING.md",
}
_ON_SITE = {source: name for name, source in _ELSEWHERE.items()} | _NOTEBOOKS


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, source in _ELSEWHERE.items():
        files.append(File.generated(config, name, abs_src_path=str(source)))
    for source, page in _NOTEBOOKS.items():
        text, pictures = notebook_page(json.loads(source.read_text(encoding="utf-8")), source.stem)
        files.append(File.generated(config, page, content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, name, content=data))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = page.file.abs_src_path
    folder = pathlib.Path(source).parent if source else _DOCS
    markdown = re.sub(r"(?<!!)\[([^\]\n]+)\]\(([^)\s]+)\)", lambda found: _link(found, folder), markdown)
    markdown = re.sub(r"<!-- table: ([\w-]+) -->", lambda found: TABLES[found[1]](), markdown)
    return re.sub(r"<!--.*?-->\n?", "", markdown, flags=re.DOTALL)


def _link(found: re.Match[str], folder: pathlib.Path) -> str:
    """Resolve a link to a file of the tree to its page, or to plain text if the site has no such page."""
    text, target = found.groups()
    name, mark, anchor = target.partition("#")
    if not name or re.match(r"\w+:", target) or name in (*_ELSEWHERE, *_NOTEBOOKS.values()):
        return found[0]
    file = pathlib.Path(os.path.normpath(folder / name))
    if file in _ON_SITE:
        return f"[{text}]({_ON_SITE[file]}{mark}{anchor})"
    if file.is_relative_to(_DOCS):
        return f"[{text}]({file.relative_to(_DOCS).as_posix()}{mark}{anchor})"
    return text if file.exists() else found[0]


def notebook_page(notebook: dict[str, Any], stem: str = "tour") -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and the pictures it shows by their file names."""
    pictures: dict[str, bytes] = {}
    parts: list[str] = []
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts += _shown(output, f"images/{stem}-{number}.png", pictures)
    return "\n\n".join(parts) + "\n", pictures


def _shown(output: dict[str, Any], name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    data = {kind: "".join(lines) for kind, lines in output.get("data", {}).items()}
    if "image/png" in data:
        pictures[name] = base64.b64decode(data["image/png"])
        yield f"![Output of the cell above]({name})"
    elif "text/html" in data:
        yield f'<div class="output">{data["text/html"]}</div>'
    else:
        text = data.get("text/plain") or "".join(output.get("text", ()))
        yield f"```text\n{text.rstrip()}\n```"


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    content = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', _inline, content, flags=re.DOTALL)
    return re.sub(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', _block, content, flags=re.DOTALL)


def _inline(found: re.Match[str]) -> str:
    return latex2mathml.converter.convert(html.unescape(found[1]))


def _block(found: re.Match[str]) -> str:
    formula = latex2mathml.converter.convert(html.unescape(found[1]), display="block")
    return f'<div class="formula">{formula}</div>'


# -- tables ----------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()) -> str:
    """A Markdown table with the columns ``numbers`` right-aligned; bars inside cells are escaped."""
    right = set(numbers)
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |" for line in lines
    )


def errata() -> str:
    return table(
        ("where", "printed", "right", "how it is known"),
        ((each.place, each.printed, each.right, each.how) for each in paper.errata()),
    )


def recipes() -> str:
    """The tables of the paper that come from training runs, and the recipe of each column."""
    rows: list[tuple[object, ...]] = []
    for number in paper.RUN_TABLES:
        for column in paper.run_table(number).columns:
            recipe = column.recipe
            values = (f"`{recipe.name}`", recipe.epochs, recipe.batch_size, f"{recipe.lr:g}")
            row = (number, column.heading, *values)
            if row not in rows:
                rows.append(row)
    return table(("table", "column", "recipe", "epochs", "batch size", "learning rate"), rows, range(3, 6))


def activations() -> str:
    return table(
        ("name", "label in tables", "parameter"),
        ((f"`{name}`", row.label, row.number) for name, row in zoo.ZOO.items()),
    )


def regimes() -> str:
    """The three networks behind the rules of :mod:`iglu.probing.sigma`."""
    return table(
        ("network", "excess over a Gaussian", "best sigma", "within one SD of the best"),
        (
            (each.network, f"{each.excess:.2f}", f"{each.sigma:g}", f"{each.low:g} to {each.high:g}")
            for each in POINTS
        ),
    )


def commands() -> str:
    return table(
        ("command", "what it does"), ((f"`iglu {name}`", each.help) for name, each in COMMANDS.items())
    )


def accuracy() -> str:
    """The first table of ``iglu demo``, measured while the site is built."""
    rows = []
    for approximate in FAMILIES:
        name = "IGLU" if approximate == "none" else "IGLU-Approx"
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            found = demo.measure_accuracy(approximate, dtype)
            start = found["direct_wrong_sign_from"]
            errors = (
                f"{found[f'{who}_{what}_error']:.1e}"
                for what in ("value", "gradient")
                for who in ("direct", "library")
            )
            sign = "correct" if start is None else f"wrong from sigma x = -{start:.3g}"
            rows.append((f"{name}, {found['dtype']}", *errors, sign))
    header = (
        "", "value: textbook", "value: iglu", "gradient: textbook", "gradient: iglu",
        "sign of the textbook gradient",
    )  # fmt: skip
    return table(header, rows, range(1, 5))


TABLES: dict[str, Callable[[], str]] = {
    function.__name__: function for function in (accuracy, activations, commands, errata, recipes, regimes)
}
