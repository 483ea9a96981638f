"""The notebooks of the docs run from their first cell to their last."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for cell in cells(path):
        source = "".join(cell["source"])
        exec(compile(source, path.name, "exec"), names)
        shown = [each for each in cell["outputs"] if each.get("name") == "stdout"]
        words = "".join("".join(each["text"]) for each in shown).split()
        # numbers may differ in their last digits from one processor to the next
        assert [word for word in capsys.readouterr().out.split() if not word[0].isdigit()] == [
            word for word in words if not word[0].isdigit()
        ]


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
