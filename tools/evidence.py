"""Rebuild the measured results in README.md and docs/ from the rows; no number is typed by hand.

    python tools/evidence.py

The text between ``<!-- evidence: NAME -->`` and ``<!-- /evidence -->`` is replaced by the block of that name.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

from iglu_lab.report.claims import all_claims
from iglu_lab.report.comparisons import all_tasks
from iglu_lab.report.gather import Gathered, gather
from iglu_lab.report.second_round import second_round_tables, side_by_side
from iglu_lab.report.sigmas import rules_table
from iglu_lab.report.summary import cost_table, headlines, limits, loss_table, per_sigma_table, summary_table
from iglu_lab.stats.tabulate import Table, markdown, plain_markdown
from iglu_lab.storage import RESULTS

ROOT = pathlib.Path(__file__).parent.parent
EVIDENCE = RESULTS / "evidence"
PAGES = (ROOT / "README.md", EVIDENCE / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"(<!-- evidence: ([\w-]+) -->\n).*?(<!-- /evidence -->)", re.DOTALL)


def read_rows() -> Gathered:
    """The grids and the step times that are shown next to them."""
    return gather([EVIDENCE, RESULTS / "benchmarks"])


def _joined(tables: list[Table]) -> str:
    return "\n\n".join(markdown(table).strip() for table in tables)


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {plain_markdown(line)}" for line in lines)


def claims(found: Gathered) -> str:
    """The verdicts at the reduced scale."""
    rows = [
        (claim.text, f"{claim.reduced.verdict}: {claim.reduced.evidence}", claim.reduced.scale)
        for claim in all_claims(found)
        if claim.reduced is not None
    ]
    names = ("claim of the paper", "at the reduced scale", "scale")
    return markdown(Table.of("claims", "The paper's claims at the reduced scale", names, rows))


def runs(found: Gathered) -> str:
    """The number of runs of each grid, and the time they took."""
    rows: list[tuple[Any, ...]] = []
    for planned in found.planned:
        done = [run for run in planned.recorded if run.is_complete or run.status == "diverged"]
        diverged = sum(run.status == "diverged" for run in done)
        minutes = sum(run.seconds for run in done) / 60
        where = dict.fromkeys(f"{run.provenance['commit'][:7]}, {run.provenance['cpu']}" for run in done)
        counts = (len(done), len(planned.grid.runs), diverged, minutes)
        rows.append((f"{planned.grid.title}.toml", *counts, "; ".join(where)))
    _, *counted, _ = zip(*rows, strict=True)
    rows.append(("total", *map(sum, counted), ""))
    rows = [(*row[:4], round(row[4]), row[5]) for row in rows]
    names = ("grid", "runs", "planned", "diverged", "minutes of one core", "commit and processor")
    return markdown(Table.of("runs", "What has been run", names, rows))


BLOCKS: dict[str, Callable[[Gathered], str]] = {
    "headline": lambda found: _bullets(headlines(all_tasks(found))),
    "summary": lambda found: _joined([summary_table(all_tasks(found))]),
    "per-sigma": lambda found: _joined([per_sigma_table(all_tasks(found))]),
    "test-loss": lambda found: _joined(loss_table(all_tasks(found))),
    "cost": lambda found: _joined(cost_table(all_tasks(found), found.sessions)),
    "limits": lambda found: _bullets(limits(found)),
    "second-round": lambda found: _joined(second_round_tables(found)),
    "tail": lambda found: _joined(side_by_side(found, ["tail"], "The heavy tail at equal sharpness")),
    "plasticity": lambda found: _joined(
        side_by_side(found, ["plasticity-pixels", "plasticity-labels"], "Continual learning")
    ),
    "claims": claims,
    "runs": runs,
    "sigma-rules": lambda found: _joined(rules_table(found.first_round)),
}


def with_blocks(text: str, found: Gathered) -> str:
    """A page with its blocks rebuilt from the rows."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]](found).strip()}\n\n{block[3]}", text)


def main() -> None:
    found = read_rows()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = with_blocks(text, found)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
