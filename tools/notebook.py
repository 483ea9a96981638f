"""Run the notebooks of the docs and store their outputs.

    python tools/notebook.py

Writes the outputs into the files in docs/notebooks, from which the site takes them.  Needs Matplotlib but not
Jupyter.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import pathlib
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt

NOTEBOOKS = pathlib.Path(__file__).parent.parent / "docs/notebooks"


def run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Execute a cell; return its outputs as a notebook stores them."""
    body = ast.parse(source).body
    shows_value = bool(body) and isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";")
    last = ast.get_source_segment(source, body.pop()) if shows_value else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = eval(last, names) if last else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = lines(value._repr_html_())
        outputs.append(
            {"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"}
        )
    for number in plt.get_fignums():
        drawn = io.BytesIO()
        plt.figure(number).savefig(drawn, dpi=100, bbox_inches="tight", metadata={"Software": None})
        picture = base64.b64encode(drawn.getvalue()).decode()
        outputs.append({"data": {"image/png": picture}, "metadata": {}, "output_type": "display_data"})
    plt.close("all")
    return outputs


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        names: dict[str, Any] = {}
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code" and "install" not in cell["metadata"].get("tags", ()):
                cell["outputs"] = run("".join(cell["source"]), names)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
