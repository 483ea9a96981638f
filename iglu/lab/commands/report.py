"""``iglu report``: tables, claims, figures and a page from what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from iglu.lab.console import Terminal
from iglu.lab.mistakes import missing
from iglu.lab.report.build import default_folders, write
from iglu.lab.report.content import Report
from iglu.lab.report.verdicts import VERDICTS


@dataclass(frozen=True)
class ReportFlags:
    """Set what was measured beside the paper: tables, claims, figures, and a page. Only reads."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs, benchmarks and probes, and files of recorded runs; by default runs, if it is here, and
    what ships with the checkout that iglu was imported from: results and benchmarks/measured."""
    out: Path = Path("runs/report")
    """Folder for the report."""


def main(argv: list[str]) -> int:
    """Run ``iglu report``."""
    flags = tyro.cli(ReportFlags, args=argv, prog="iglu report")
    for folder in flags.folders:
        if not folder.exists():
            raise missing(folder)
    report, page = write(flags.folders or default_folders(), flags.out)
    _show(report, page, Terminal())
    return 0


def _show(report: Report, page: Path, console: Terminal) -> None:
    for line in report.sources or ("Nothing measured was found: the report has the paper's numbers alone.",):
        console.say(line, "dim")
    for line in report.complaints:
        console.say(f"skipped: {line}")
    reduced = [claim.reduced.verdict for claim in report.claims if claim.reduced is not None]
    for verdict in VERDICTS:
        beside = f"; at the reduced scale {reduced.count(verdict)} of {len(reduced)}" if reduced else ""
        console.say(f"{report.count(verdict):>3} of {len(report.claims)} claims: {verdict}{beside}")
    console.say(f"Written: {page}, and beside it report.md, report.tex, tables, figures")
