"""The documentation site: the notebook as a page, links, tables, and how it looks on a phone."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

for package in ("mkdocs", "latex2mathml"):
    pytest.importorskip(package, reason="needs the extra docs")
ROOT = Path(__file__).parents[2]
if not (ROOT / "mkdocs.yml").is_file():
    pytest.skip("needs a clone, which has the docs", allow_module_level=True)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools/site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_site(hooks: ModuleType, source: Path, text: str) -> str:
    page: Any = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(source)))
    return str(hooks.on_page_markdown(text, page, None, None))


def test_the_notebook_becomes_a_page_with_its_code_output_and_figures(hooks: ModuleType) -> None:
    notebook = json.loads((ROOT / "docs/notebooks/tour.ipynb").read_text(encoding="utf-8"))
    text, pictures = hooks.notebook_page(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert text.count("```python\n") == len(code)
    assert set(re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)) == set(pictures)
    assert pictures
    assert all(data.startswith(b"\x89PNG") for data in pictures.values())


@pytest.mark.parametrize(
    ("source", "written", "shown"),
    [
        ("docs/index.md", "[a](notebooks/tour.ipynb)", "[a](tour.md)"),
        ("docs/index.md", "[a](sigma.md#the-rules)", "[a](sigma.md#the-rules)"),
        ("docs/memory.md", "[a](../benchmarks/README.md#training)", "[a](benchmarks.md#training)"),
        ("lab/iglu_lab/results/README.md", "[a](evidence/README.md)", "[a](evidence.md)"),
        ("CONTRIBUTING.md", "[a](CITATION.cff)", "a"),
        ("docs/index.md", "[a](https://www.w3.org/b.md)", "[a](https://www.w3.org/b.md)"),
        ("docs/index.md", "![a](images/function.png)", "![a](images/function.png)"),
    ],
)
def test_a_link_to_a_file_becomes_one_to_its_page_on_the_site(
    hooks: ModuleType, source: str, written: str, shown: str
) -> None:
    assert on_site(hooks, ROOT / source, written) == shown


def test_every_table_that_a_page_includes_exists(hooks: ModuleType) -> None:
    names = {
        name
        for page in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"<!-- table: ([\w-]+) -->", page.read_text(encoding="utf-8"))
    }
    assert names
    assert names <= set(hooks.TABLES)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package, reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return folder


# What a reader would notice: a page wider than the window, text cut off at its right edge, a scrollbar in the
# middle of the page, a name that the table of contents lists twice, Markdown that was not rendered.
_FAULTS = r"""
const article = document.querySelector("article"), faults = [];
const scrolls = (box) => ["auto", "scroll", "hidden"].includes(getComputedStyle(box).overflowX);
if (document.documentElement.scrollWidth > window.innerWidth) faults.push("wider than the window");
for (const each of article.querySelectorAll("*")) {
  let box = each.parentElement;
  while (box !== article && box !== null && !scrolls(box)) box = box.parentElement;
  if (box === article && each.getBoundingClientRect().right > window.innerWidth + 1)
    faults.push("cut off: " + each.outerHTML.slice(0, 80));
  if (["auto", "scroll"].includes(getComputedStyle(each).overflowY) && each.scrollHeight > each.clientHeight)
    faults.push("scrollbar: " + each.outerHTML.slice(0, 80));
}
const contents = document.querySelector(".md-sidebar--secondary");
const names = [...contents.querySelectorAll("a")].map((link) => link.textContent.trim());
faults.push(...names.filter((name, at) => names.indexOf(name) !== at).map((name) => "twice: " + name));
const prose = article.cloneNode(true);
prose.querySelectorAll("pre, code").forEach((code) => code.remove());
const markup = prose.textContent.match(/\$\$|<!--|\*\*\w|\]\(\w|\\(?=\s)|:(func|class|mod):/);
if (markup) faults.push("not rendered: " + markup[0]);
return faults;
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390], ids=["desktop", "phone"])
def test_every_page_of_the_site_is_rendered_and_fits_the_window(width: int, site: Path, browser: Any) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    faults = {}
    for page in sorted(site.glob("*.html")):
        browser.get(page.as_uri())
        faults[page.name] = browser.execute_script(_FAULTS)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(faults) > 20
    assert {page: found for page, found in faults.items() if found and page != "404.html"} == {}


@pytest.mark.slow
def test_the_table_of_sigmas_shows_a_number_on_a_phone(site: Path, browser: Any) -> None:
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get((site / "sigma.html").as_uri())
    count = """
        const inside = (cell) => cell.getBoundingClientRect().right <= window.innerWidth;
        return [...document.querySelectorAll("article table")].map((table) => {
          const cells = [...table.querySelectorAll("tbody td:not(:first-child)")];
          const numbers = cells.filter((cell) => /\\d/.test(cell.textContent));
          return [numbers.length, numbers.filter(inside).length];
        })
    """
    found = browser.execute_script(count)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(found) >= 4
    assert any(numbers for numbers, _ in found)
    assert all(visible for numbers, visible in found if numbers), found


@pytest.mark.slow
def test_a_list_keeps_the_numbers_it_is_written_with(site: Path) -> None:
    """The rules of the second round continue those of the first, and other pages refer to them by number."""
    assert '<ol start="10">' in (site / "evidence.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_reference_shows_the_default_of_sigma_as_a_number(site: Path) -> None:
    text = re.sub(r"<[^>]*>", "", (site / "api.html").read_text(encoding="utf-8"))
    assert "DEFAULT_SIGMA" not in text
    assert "sigma: Sigma = 5.0," in text


@pytest.mark.slow
def test_long_signatures_are_wrapped(site: Path) -> None:
    text = re.sub(r"<[^>]*>", "", (site / "api.html").read_text(encoding="utf-8"))
    start = text.index("register_activation(")
    assert max(map(len, text[start:].split(")", 1)[0].splitlines())) <= 100
