"""A report from what lies in some folders, written in all its forms.

What an earlier report left in the same folder is replaced, as far as its manifest lists it; nothing else is
touched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

import iglu
from iglu.lab.mistakes import check_writable
from iglu.lab.report.answer import all_tasks, answer_table, headlines
from iglu.lab.report.claims import all_claims
from iglu.lab.report.content import Report
from iglu.lab.report.curves import curves, learned_sigmas
from iglu.lab.report.figures import draw_figures
from iglu.lab.report.gather import gather
from iglu.lab.report.page import render
from iglu.lab.report.tables import all_tables
from iglu.lab.results.tables import Table, csv_text, environment, plain_latex, plain_markdown
from iglu.lab.results.tables import markdown as table_markdown
from iglu.lab.runs import provenance
from iglu.lab.storage import write_atomically, write_json

PAGE = "index.html"
_MANIFEST = "manifest.json"


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
    drawn = curves(found.samples)
    return Report(
        tables=all_tables(found),
        claims=all_claims(found),
        figures=draw_figures(found, drawn, out / "figures"),
        tasks=all_tasks(found),
        curves=drawn,
        sigmas=learned_sigmas(found.samples),
        probes=found.probes,
        sources=found.sources,
        complaints=found.complaints,
        provenance=provenance.collect(),
    )


def write_report(folders: Sequence[Path | str], out: Path | str) -> Path:
    """Build the report, write it to ``out`` in all its forms, and return the path of the page."""
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
    """What the report that is there wrote; nothing where no manifest can be read."""
    try:
        names = json.loads((out / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    inside = [Path(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return {out / path for path in inside if not path.is_absolute() and ".." not in path.parts}


def texts_of(report: Report, out: Path) -> dict[Path, str]:
    """The page, Markdown, LaTeX, a CSV file for each table and for the claims, and the answer alone."""
    return {
        out / PAGE: render(report),
        out / "report.md": markdown(report, out),
        out / "answer.md": answer(report),
        out / "report.tex": latex(report),
        **{
            out / "tables" / f"{table.key}.csv": csv_text(table)
            for table in (*report.tables, claims_table(report))
        },
    }


def claims_table(report: Report) -> Table:
    headers = ("claim", "scale", "verdict", "evidence", "rule")
    lines = [
        (claim.text, judgement.scale, judgement.verdict, judgement.evidence, claim.rule)
        for claim in report.claims
        for judgement in claim.judgements
    ]
    return Table.of("claims", "Claims of the paper", headers, lines)


def markdown(report: Report, out: Path) -> str:
    figures = [
        (figure, figure.paths[0].relative_to(out).as_posix() if figure.paths else "")
        for figure in report.figures
    ]
    return _template("report.md", plain_markdown).render(
        report=report, figures=figures, answer=Markup(answer(report))
    )


def answer(report: Report) -> str:
    """Where IGLU was better here and where not, as Markdown that may stand in a README."""
    lines = "".join(f"{plain_markdown(line)}\n\n" for line in headlines(report.tasks))
    return lines + (table_markdown(answer_table(report.tasks)) if report.tasks else "")


def latex(report: Report) -> str:
    """Tables to be read in with ``\\input``; they need the packages booktabs and graphicx."""
    return _template("report.tex", plain_latex).render(report=report)


def _template(name: str, escape: Callable[[str], str]) -> jinja2.Template:
    return environment(escape, jinja2.PackageLoader("iglu.lab.report", "assets")).get_template(name)
