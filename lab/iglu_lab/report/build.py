"""Build a report from folders of measurements, and write it in all formats.

Files that an earlier report wrote to the same folder are replaced if its manifest lists them; other files are
not touched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from iglu_lab.errors import check_writable
from iglu_lab.report.claims import all_claims
from iglu_lab.report.comparisons import all_tasks
from iglu_lab.report.content import Report
from iglu_lab.report.curves import curves, learned_sigmas
from iglu_lab.report.figures.functions import function_figures
from iglu_lab.report.figures.measured import measured_figures
from iglu_lab.report.figures.render import write_figures
from iglu_lab.report.gather import gather
from iglu_lab.report.page import render
from iglu_lab.report.summary import headlines, limits, summary_table
from iglu_lab.report.tables import all_tables
from iglu_lab.runs import provenance
from iglu_lab.stats.tabulate import Table, csv_text, environment, plain_latex, plain_markdown
from iglu_lab.stats.tabulate import markdown as table_markdown
from iglu_lab.storage import RESULTS, write_atomically, write_json

PAGE = "index.html"
_MANIFEST = "manifest.json"


def default_folders() -> list[Path]:
    """The user's own runs, then the installed results: of duplicate runs, the first counts."""
    runs = Path("runs")
    return [*([runs] if runs.is_dir() else []), RESULTS]


def build_report(folders: Sequence[Path | str], out: Path) -> Report:
    """Gather everything below the folders; write the figures to ``out/figures``."""
    found = gather([Path(folder) for folder in folders])
    tasks, over_epochs = all_tasks(found), curves(found.samples)
    figures = (*function_figures(), *measured_figures(found, over_epochs))
    return Report(
        tables=all_tables(found, tasks),
        claims=all_claims(found),
        figures=write_figures(figures, out / "figures"),
        tasks=tasks,
        curves=over_epochs,
        sigmas=learned_sigmas(found.samples),
        probes=found.probes,
        limits=limits(found),
        sources=found.sources,
        problems=found.problems,
        provenance=provenance.collect(),
    )


def write_report(folders: Sequence[Path | str], out: Path | str) -> Path:
    """Build the report, write it to ``out`` in all formats, and return the path of the page."""
    return write(folders, Path(out))[1]


def write(folders: Sequence[Path | str], out: Path) -> tuple[Report, Path]:
    check_writable(out)
    (out / "tables").mkdir(parents=True, exist_ok=True)
    before = _listed(out)
    report = build_report(folders, out)
    texts = texts_of(report, out)
    for path, text in texts.items():
        with write_atomically(path) as file:
            file.write(text.encode())
    written = [*texts, *(path for figure in report.figures for path in figure.paths)]
    for stale in before - set(written):
        stale.unlink(missing_ok=True)
    write_json(out / _MANIFEST, sorted(path.relative_to(out).as_posix() for path in written))
    return report, out / PAGE


def _listed(out: Path) -> set[Path]:
    """The files of the existing report, by its manifest; none if that cannot be read."""
    try:
        names = json.loads((out / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    inside = [Path(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return {out / path for path in inside if not path.is_absolute() and ".." not in path.parts}


def texts_of(report: Report, out: Path) -> dict[Path, str]:
    """The texts by path: page, Markdown, LaTeX, summary, and one CSV file per table and for the claims."""
    headers = ("claim", "kind", "scale", "verdict", "evidence", "rule")
    lines = [
        (claim.text, claim.kind, each.scale, each.verdict, each.evidence, claim.rule)
        for claim in report.claims
        for each in claim.judgments
    ]
    claims = Table.of("claims", "Claims of the paper", headers, lines)
    return {
        out / PAGE: render(report),
        out / "report.md": markdown(report, out),
        out / "summary.md": summary(report),
        out / "report.tex": latex(report),
        **{out / "tables" / f"{table.key}.csv": csv_text(table) for table in (*report.tables, claims)},
    }


def markdown(report: Report, out: Path) -> str:
    paths = [each.paths[0].relative_to(out).as_posix() if each.paths else "" for each in report.figures]
    figures = list(zip(report.figures, paths, strict=True))
    template = _template("report.md", plain_markdown)
    return template.render(report=report, figures=figures, summary=Markup(summary(report)))


def summary(report: Report) -> str:
    """How IGLU compares with ReLU and GELU, as Markdown, for example for a README."""
    lines = "".join(f"{plain_markdown(line)}\n\n" for line in headlines(report.tasks))
    return lines + (table_markdown(summary_table(report.tasks)) if report.tasks else "")


def latex(report: Report) -> str:
    """Tables for ``\\input``; they need the packages booktabs and graphicx."""
    return _template("report.tex", plain_latex).render(report=report)


def _template(name: str, escape: Callable[[str], str]) -> jinja2.Template:
    return environment(escape, jinja2.PackageLoader("iglu_lab.report", "assets")).get_template(name)
