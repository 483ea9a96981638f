"""``iglu report``: compare the measurements with the paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from iglu_lab.console import Terminal
from iglu_lab.errors import missing
from iglu_lab.extensions import ExtensionFlags
from iglu_lab.report.build import default_folders, write
from iglu_lab.report.content import Report
from iglu_lab.report.verdicts import VERDICTS


@dataclass(frozen=True, kw_only=True)
class ReportFlags(ExtensionFlags):
    """Compare what was measured with the paper: tables, claims, figures, and an HTML page."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs, benchmarks and probes, or run archives. If not given: runs/, if it exists, and the
    results that are installed with iglu-lab."""
    out: Path = Path("runs/report")
    """Output directory."""


def main(argv: list[str]) -> int:
    flags = tyro.cli(ReportFlags, args=argv, prog="iglu report")
    for folder in flags.folders:
        if not folder.exists():
            raise missing(folder)
    report, page = write(flags.folders or default_folders(), flags.out)
    _show(report, page, Terminal())
    return 0


def _show(report: Report, page: Path, console: Terminal) -> None:
    for line in report.sources or ("No measurements found: the report has only the numbers of the paper.",):
        console.say(line, "dim")
    for line in report.problems:
        console.say(f"skipped: {line}")
    reduced = [claim.reduced.verdict for claim in report.claims if claim.reduced is not None]
    for verdict in VERDICTS:
        at_reduced = f"; at the reduced scale {reduced.count(verdict)} of {len(reduced)}" if reduced else ""
        measured = len(report.measured_claims)
        console.say(f"{report.count(verdict):>3} of {measured} measured claims: {verdict}{at_reduced}")
    console.say(f"Written: {page}; in the same folder summary.md, report.md, report.tex, tables, figures")
