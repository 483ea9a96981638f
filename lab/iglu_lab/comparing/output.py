"""The files of a comparison: compare.json, CSV, Markdown, the forest plot, learning curves, one HTML page."""

from __future__ import annotations

import base64
import math
from pathlib import Path

import jinja2

from iglu_lab.comparing.result import Compared, CompareResult
from iglu_lab.recipes import spec_of
from iglu_lab.report.content import EpochCurve
from iglu_lab.report.curves import band
from iglu_lab.report.figures.description import Figure, Line, Panel
from iglu_lab.report.figures.measured import curve_panel
from iglu_lab.report.figures.render import write_figures
from iglu_lab.report.page import asset, html_environment, is_prose
from iglu_lab.runs import provenance
from iglu_lab.stats.style import BLACK, GREEN, GREY, VERMILION
from iglu_lab.stats.tabulate import csv_text, finite, markdown
from iglu_lab.storage import write_atomically, write_json

PAGE = "compare.html"
_COLORS = {"better": GREEN, "worse": VERMILION}
_MOST_PANELS = 6  # of learning curves


def write_result(result: CompareResult, out: Path) -> None:
    """Write all files."""
    for stale in ("forest.png", "forest.svg", "curves.png", "curves.svg"):  # of fewer seeds
        (out / stale).unlink(missing_ok=True)
    shown = [each for each in result.compared if each.found is not None]
    figures = [forest_figure(result, shown) if shown else None, curve_figure(result)]
    written = write_figures([each for each in figures if each is not None], out)
    table = result.table()
    texts = {
        "compare.csv": csv_text(table),
        "runs.csv": result.runs_csv(),
        "compare.md": markdown(table),
        PAGE: page(result, written),
    }
    for name, text in texts.items():
        with write_atomically(out / name) as file:
            file.write(text.encode())
    write_json(out / "compare.json", finite({**result.as_dict(), "provenance": provenance.collect()}))


def forest_figure(result: CompareResult, shown: list[Compared]) -> Figure:
    """Each difference to the reference with its 95% interval, the best on top; the margin is dashed."""
    plan = result.plan
    found = [(each, each.found) for each in shown if each.found is not None]
    found.sort(key=lambda pair: pair[1].value, reverse=not plan.lower_is_better)
    height = (-0.6, len(found) - 0.4)
    bounds = () if plan.margin is None else (-plan.margin, plan.margin)
    lines = [Line("", (0, 0), height, BLACK, width=0.9)]
    lines += [Line("", (x, x), height, GREY, "--", width=0.9) for x in bounds]
    for place, (each, difference) in enumerate(found):
        look = _COLORS.get(each.category or "", GREY)
        if difference.has_interval:
            lines.append(Line("", (difference.low, difference.high), (place, place), look, width=2))
        lines.append(Line("", (difference.value,), (place,), look, "", "o"))
    labels = spec_of(plan.reference).label
    names = tuple(f"{spec_of(each.activation).label}\n{each.category or ''}".rstrip() for each, _ in found)
    better = "lower" if plan.lower_is_better else "higher"
    label = f"{plan.metric} minus that of {labels}; {better} is better"
    return Figure(
        "forest", result.title,
        f"Differences in {plan.metric} to {labels} with 95% intervals, one line per activation.",
        (Panel("", (label, ""), tuple(lines), names=names),), size=(7.2, 1.2 + 0.5 * len(found)),
        columns=1,
    )  # fmt: skip


def curve_figure(result: CompareResult) -> Figure | None:
    """Every metric over epochs: mean over seeds and its 95% interval; None if the runs have no epochs, or may
    not be looked at yet."""
    if result.is_sealed:
        return None
    panels: dict[str, list[EpochCurve]] = {}
    for activation in result.plan.activations:
        rows = result.rows_of(activation)
        histories = [row.history for row in rows if row.history and row.status == "finished"]
        for metric in dict.fromkeys(key for history in histories for row in history for key in row):
            by_seed = [
                {
                    epoch: value
                    for epoch, row in enumerate(history, start=1)
                    if (value := row.get(metric)) is not None
                }
                for history in histories
            ]
            panels.setdefault(metric, []).extend(band("", activation, metric, by_seed))
    panels = {metric: curves for metric, curves in panels.items() if curves and metric != "epoch"}
    ordered = sorted(panels, key=lambda metric: metric != result.plan.metric)[:_MOST_PANELS]
    if not ordered:
        return None
    return Figure(
        "curves", "Learning curves",
        f"{', '.join(ordered)} over epochs by activation: mean over seeds with 95% intervals.",
        tuple(curve_panel(metric, panels[metric], "epoch") for metric in ordered),
        size=(3.6 * min(3, len(ordered)), 0.8 + 2.8 * math.ceil(len(ordered) / 3)),
    )  # fmt: skip


def page(result: CompareResult, figures: tuple[Figure, ...]) -> str:
    """One self-contained file in the style of the report, without scripts."""
    loader = jinja2.PackageLoader("iglu_lab.comparing", "assets")
    return html_environment(loader).get_template(PAGE).render(
        result=result, table=result.table(), style=asset("page.css"), is_prose=is_prose,
        figures=[(each, picture_uri(each.paths[1])) for each in figures],
        provenance=provenance.describe_provenance(provenance.collect()),
    )  # fmt: skip


def picture_uri(path: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
