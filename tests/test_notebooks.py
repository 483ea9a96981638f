"""The notebooks of the docs run from their first cell to their last."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib").use("agg")

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs/notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    """The code cells of a notebook, except those that install packages."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        cell
        for cell in found
        if cell["cell_type"] == "code" and "install" not in cell["metadata"].get("tags", ())
    ]


def split_numbers(text: str) -> tuple[list[str], list[float]]:
    """The words without the numbers, and the numbers."""
    number = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
    return number.sub("#", text).split(), [float(each) for each in number.findall(text)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for cell in cells(path):
        source = "".join(cell["source"])
        exec(compile(source, path.name, "exec"), names)
        shown = [each for each in cell["outputs"] if each.get("name") == "stdout"]
        expected = split_numbers("".join("".join(each["text"]) for each in shown))
        printed = split_numbers(capsys.readouterr().out)
        assert printed[0] == expected[0]
        # numbers may differ in their last digits from one processor to the next, rounding errors more
        assert printed[1] == pytest.approx(expected[1], rel=0.05, abs=1e-4)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
