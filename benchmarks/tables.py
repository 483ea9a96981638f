"""Write the tables of benchmarks/README.md from the measured rows: python benchmarks/tables.py."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from iglu_lab import paper

HERE = pathlib.Path(__file__).parent
ROWS = HERE.parent / "lab" / "iglu_lab" / "results" / "benchmarks"
SIZES = {1: "1", 1_000: "1k", 10_000: "10k", 100_000: "100k", 1_000_000: "1M", 16_000_000: "16M"}
KERNELS = {"direct": ", direct", "compiled": ", compiled", "compiled direct": ", direct, compiled"}
Row = dict[str, Any]


def read(name: str) -> tuple[list[Row], str]:
    """The rows of a section, and where and when they were measured."""
    (path,) = (ROWS / name).glob("*.json")
    session = json.loads(path.read_text())
    stamp = session["provenance"]
    commit = f" at {stamp['commit'][:10]}" if stamp["commit"] else ""
    machine = f"{stamp['cpu']}, {stamp['instructions']}, torch {stamp['torch']}, Python {stamp['python']}"
    return session["rows"], f"`benchmarks/run {name}`{commit}: {machine}, {stamp['date'][:10]}."


def label(row: Row) -> str:
    return str(row["label"]).replace("*", "\\*").replace("_", "\\_") + KERNELS.get(row["kernel"], "")


def table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *lines))


def ratios(rows: list[Row], column: Callable[[Row], str | None]) -> str:
    """Times relative to ReLU, whose own line has microseconds; columns in the order of the rows."""
    heads = list(dict.fromkeys(found for row in rows if (found := column(row)) is not None))
    lines: dict[str, dict[str, str]] = {"ReLU (us)": {}}
    for row in rows:
        if (head := column(row)) is None:
            continue
        if row["activation"] == "relu" and row["kernel"] == "torch":
            microseconds = row["seconds"]["median"] * 1e6
            lines["ReLU (us)"][head] = f"{microseconds:,.{0 if microseconds >= 100 else 2}f}"
        else:
            lines.setdefault(label(row), {})[head] = f"{row['ratios']['relu']['median']:.2f}"
    return table(
        ["activation", *heads],
        ([name, *(cells.get(head, "") for head in heads)] for name, cells in lines.items()),
    )


def sizes(pass_name: str) -> Callable[[Row], str | None]:
    return lambda row: SIZES[row["elements"]] if row["pass"] == pass_name else None


def papers_table() -> str:
    rows, origin = read("paper")
    found = {(row["activation"], row["kernel"], row["pass"]): row for row in rows}
    lines = []
    for name, published in paper.table1().items():
        for (activation, kernel, way), row in found.items():
            if activation != name or way != "forward":
                continue
            line = [label(row)]
            for column, timed in (("cpu_forward", "forward"), ("cpu_backward", "loss_backward")):
                ratio = found[name, kernel, timed]["ratios"]["identity"]
                line.append("" if kernel == "direct" else f"{published[column]:.2f}")
                line.append(f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})")
            lines.append(line)
    heads = ["activation", "forward: paper", "forward: measured", "backward: paper", "backward: measured"]
    return f"{table(heads, lines)}\n\n{origin}"


def float32() -> str:
    parts = [read(name) for name in ("call", "sizes", "large")]
    rows = [row for found, _ in parts for row in found]
    titles = {"forward": "Forward", "recording": "Forward, recorded for autograd", "backward": "Backward"}
    tables = (f"**{title}**\n\n{ratios(rows, sizes(way))}" for way, title in titles.items())
    return "\n\n".join([*tables, *(origin for _, origin in parts)])


def halves() -> str:
    rows, origin = read("halves")
    forward = [row for row in rows if row["pass"] == "forward"]
    by_size = ratios(forward, lambda row: f"{row['dtype']} {SIZES[row['elements']]}")
    return f"{by_size}\n\n{origin}"


def compiled() -> str:
    rows, origin = read("compiled")
    return f"{ratios(rows, lambda row: row['pass'])}\n\n{origin}"


def training() -> str:
    rows, origin = read("training")
    parts = []
    for model in dict.fromkeys(row["model_label"] for row in rows):
        steps = [row for row in rows if row["model_label"] == model]
        heads = ["activation", f"{steps[0]['unit']}/s", "time x ReLU", "saved MB", "peak MB"]
        lines = []
        for row in steps:
            speed, ratio = row["items_a_second"]["median"], row["ratios"]["relu"]["median"]
            memory = (f"{row[name] / 1e6:.0f}" for name in ("kept_bytes", "peak_bytes"))
            lines.append([label(row), f"{speed:,.0f}", f"{ratio:.2f}", *memory])
        parts.append(f"**{model}**\n\n{table(heads, lines)}")
    return "\n\n".join([*parts, origin])


SECTIONS = {
    "paper": papers_table, "float32": float32, "halves": halves, "compiled": compiled, "training": training
}  # fmt: skip


if __name__ == "__main__":
    path = HERE / "README.md"
    text = path.read_text()
    for name, write in SECTIONS.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        assert end, f"{path} must have a section from <!-- {name} --> to <!-- /{name} -->"
        text = f"{before}{begin}{write()}\n{end}{after}"
    path.write_text(text)
