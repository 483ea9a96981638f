"""The evidence as README.md and docs/ tell it, rebuilt from the rows of results/evidence; no figure is typed.

    python tools/evidence.py

What stands between ``<!-- evidence: NAME -->`` and ``<!-- /evidence -->`` is replaced by the block of that
name.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

from iglu.lab.report.answer import all_tasks, answer_table, headlines
from iglu.lab.report.claims import all_claims
from iglu.lab.report.gather import Gathered, gather
from iglu.lab.report.sigmas import rules_table
from iglu.lab.results.tables import Table, markdown

ROOT = pathlib.Path(__file__).parent.parent
EVIDENCE = ROOT / "results" / "evidence"
PAGES = (ROOT / "README.md", EVIDENCE / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"(<!-- evidence: ([\w-]+) -->\n).*?(<!-- /evidence -->)", re.DOTALL)


def answer(found: Gathered) -> str:
    """Where IGLU was better than ReLU and GELU, where not, and by how much."""
    tasks = all_tasks(found)
    return " ".join(headlines(tasks)) + "\n\n" + markdown(answer_table(tasks))


def claims(found: Gathered) -> str:
    """The verdicts at the reduced scale."""
    rows = [
        (claim.text, f"{claim.reduced.verdict}: {claim.reduced.evidence}", claim.reduced.scale)
        for claim in all_claims(found)
        if claim.reduced is not None
    ]
    names = ("claim of the paper", "at the reduced scale", "which is")
    return markdown(Table.of("claims", "What the claims come to", names, rows))


def sigma_rules(found: Gathered) -> str:
    """What the rules of ``iglu.probe`` gained over "take 1"."""
    return "\n\n".join(markdown(table) for table in rules_table(found.evidence))


def runs(found: Gathered) -> str:
    """What has been run of each grid, and the time it took."""
    rows: list[tuple[Any, ...]] = []
    for evidence in found.evidence:
        samples = [each for of in evidence.samples.values() for each in of.values()]
        done = [run for each in samples for run in (*each.runs, *each.diverged)]
        diverged = sum(len(each.diverged) for each in samples)
        minutes = sum(row["seconds"] + row["test_seconds"] for run in done for row in run.history) / 60
        where = dict.fromkeys(f"{run.provenance['commit'][:7]}, {run.provenance['cpu']}" for run in done)
        counts = (len(done), len(evidence.grid.runs), diverged, round(minutes))
        rows.append((f"{evidence.grid.title}.toml", *counts, "; ".join(where)))
    _, *counted, _ = zip(*rows, strict=True)
    rows.append(("together", *map(sum, counted), ""))
    names = ("grid", "runs", "of", "diverged", "minutes of one core", "commit and processor")
    return markdown(Table.of("runs", "What has been run", names, rows))


BLOCKS: dict[str, Callable[[Gathered], str]] = {
    "answer": answer,
    "claims": claims,
    "runs": runs,
    "sigma-rules": sigma_rules,
}


def told(text: str, found: Gathered) -> str:
    """A page with its blocks as the rows have them."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]](found).strip()}\n\n{block[3]}", text)


def main() -> None:
    found = gather([EVIDENCE])
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = told(text, found)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
