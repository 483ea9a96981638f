"""What the documentation site needs beyond its Markdown; mkdocs calls the functions named ``on_``.

- Pages that live elsewhere in the tree (benchmarks, changelog) join the site; links to them are turned.
- ``<!-- table: NAME -->`` becomes a table made from the package itself, so that no number is typed twice.
- Formulas become MathML here, so that the reader's browser needs no script and no network for them.
"""

from __future__ import annotations

import html
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence

import address
import latex2mathml.converter
import torch
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from iglu import zoo
from iglu.formulas import FAMILIES
from iglu.lab import paper
from iglu.lab.cli import COMMANDS
from iglu.lab.commands import demo
from iglu.probing.sigma import POINTS

_ROOT = pathlib.Path(__file__).parent.parent
_ELSEWHERE = {
    "benchmarks.md": "benchmarks/README.md",
    "gpu.md": "benchmarks/gpu.md",
    "changelog.md": "CHANGELOG.md",
}
# Links as written, for a reader of the source tree, and as they are on the site.
_LINKS = {
    "](../benchmarks/README.md": "](benchmarks.md",
    "](../benchmarks/gpu.md": "](gpu.md",
    "](../CHANGELOG.md": "](changelog.md",
    "](README.md": "](benchmarks.md",  # from benchmarks/gpu.md
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.repo_url = address.REPOSITORY or None
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, source in _ELSEWHERE.items():
        files.append(File.generated(config, name, abs_src_path=str(_ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    for written, turned in _LINKS.items():
        markdown = markdown.replace(written, turned)
    markdown = re.sub(r"<!-- table: ([\w-]+) -->", lambda found: TABLES[found[1]](), markdown)
    return re.sub(r"<!--.*?-->\n?", "", markdown, flags=re.DOTALL)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    content = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', _inline, content, flags=re.DOTALL)
    return re.sub(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', _block, content, flags=re.DOTALL)


def _inline(found: re.Match[str]) -> str:
    return latex2mathml.converter.convert(html.unescape(found[1]))


def _block(found: re.Match[str]) -> str:
    formula = latex2mathml.converter.convert(html.unescape(found[1]), display="block")
    return f'<div class="formula">{formula}</div>'


# -- tables ----------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; a bar inside a cell would end it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |" for line in lines
    )


def errata() -> str:
    return table(
        ("where", "printed", "right", "known by"),
        ((each.place, each.printed, each.right, each.how) for each in paper.errata()),
    )


def recipes() -> str:
    """The tables of runs, and what fills each."""
    rows: list[tuple[object, ...]] = []
    for number in paper.RUN_TABLES:
        for column in paper.run_table(number).columns:
            recipe = column.recipe
            row = (number, column.heading, f"`{recipe.name}`", recipe.epochs, recipe.batch, f"{recipe.lr:g}")
            if row not in rows:
                rows.append(row)
    return table(("table", "column", "recipe", "epochs", "batch", "learning rate"), rows)


def activations() -> str:
    return table(
        ("name", "in print", "takes sigma"),
        ((f"`{name}`", row.label, "yes" if row.takes_sigma else "") for name, row in zoo.ZOO.items()),
    )


def regimes() -> str:
    """The three networks behind the rules of :mod:`iglu.probing.sigma`."""
    return table(
        ("network", "excess over a Gaussian tail", "best sigma", "as good within the spread of one run"),
        (
            (each.network, f"{each.excess:.2f}", f"{each.sigma:g}", f"{each.low:g} to {each.high:g}")
            for each in POINTS
        ),
    )


def commands() -> str:
    return table(("command", "what it does"), ((f"`iglu {name}`", about) for name, about in COMMANDS.items()))


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
            sign = "right" if start is None else f"wrong from sigma x = -{start:.3g}"
            rows.append((f"{name}, {found['dtype']}", *errors, sign))
    header = ("", "value, direct", "ours", "gradient, direct", "ours", "sign of the direct gradient")
    return table(header, rows)


TABLES: dict[str, Callable[[], str]] = {
    function.__name__: function for function in (accuracy, activations, commands, errata, recipes, regimes)
}
