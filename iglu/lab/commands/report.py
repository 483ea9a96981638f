"""The command ``iglu report``: tables, claims, figures and a page from what was measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

import iglu
from iglu.lab.report.claims import all_claims
from iglu.lab.report.content import Report
from iglu.lab.report.curves import curves
from iglu.lab.report.figures import draw_figures
from iglu.lab.report.formats import write_formats
from iglu.lab.report.gather import gather
from iglu.lab.report.tables import all_tables
from iglu.lab.runs import provenance


@dataclass(frozen=True)
class Flags:
    """Set what was measured beside the paper: tables, claims, figures, and a page. Only reads."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs, benchmarks and probes; by default runs, if it is here, and what ships with the
    checkout that iglu was imported from: results and benchmarks/measured."""
    out: Path = Path("runs/report")
    """Folder for the report."""


def shipped_folders() -> list[Path]:
    """Measured rows of the checkout that iglu was imported from; none where it was installed."""
    checkout = Path(iglu.__file__).parent.parent
    if checkout == Path.cwd():
        checkout = Path()  # shorter to read, and no path of a machine in a page that may be passed on
    return [folder for folder in (checkout / "results", checkout / "benchmarks/measured") if folder.is_dir()]


def default_folders() -> list[Path]:
    """One's own runs first: of a run that is in several places the first counts."""
    runs = Path("runs")
    return [*([runs] if runs.is_dir() else []), *shipped_folders()]


def build_report(folders: Sequence[Path | str], out: Path) -> Report:
    """Everything found below the folders; the figures are drawn into ``out/figures``."""
    found = gather([Path(folder) for folder in folders])
    drawn = curves(found.runs)
    return Report(
        tables=all_tables(found),
        claims=all_claims(found),
        figures=draw_figures(found, drawn, out / "figures"),
        curves=drawn,
        probes=tuple(probe.body for probe in found.probes),
        sources=found.sources,
        complaints=found.complaints,
        provenance=provenance.collect().as_dict(),
    )


def write_report(folders: Sequence[Path | str], out: Path | str) -> Path:
    """Build the report, write it to ``out`` in all its forms, and return the path of the page."""
    return _write(folders, Path(out))[1]


def _write(folders: Sequence[Path | str], out: Path) -> tuple[Report, Path]:
    from iglu.lab.report.page import write_page

    out.mkdir(parents=True, exist_ok=True)
    report = build_report(folders, out)
    write_formats(report, out)
    return report, write_page(report, out)


def main(argv: list[str]) -> int:
    """Run ``iglu report``; 2 for a folder that is none, or a place that cannot be written."""
    flags = tyro.cli(Flags, args=argv, prog="iglu report")
    console = Console(highlight=False, soft_wrap=True)
    for folder in flags.folders:
        if not folder.is_dir():
            print(f"iglu report: {folder} is not a folder", file=sys.stderr)
            return 2
    try:
        report, page = _write(flags.folders or default_folders(), flags.out)
    except OSError as error:
        print(f"iglu report: {error}", file=sys.stderr)
        return 2
    _show(report, page, console)
    return 0


def _show(report: Report, page: Path, console: Console) -> None:
    for line in report.sources or ("Nothing measured was found: the report has the paper's numbers alone.",):
        console.print(line, markup=False, style="dim")
    for line in report.complaints:
        console.print(f"skipped: {line}", markup=False)
    for verdict in ("holds", "does not hold", "not enough evidence"):
        count = sum(claim.verdict == verdict for claim in report.claims)
        console.print(f"{count:>3} of {len(report.claims)} claims: {verdict}")
    console.print(f"Written: {page}, and beside it report.md, report.tex, tables, figures", markup=False)
