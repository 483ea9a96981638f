"""A report as one self-contained HTML file: no network, no folder of assets, no server.

Text and tables are plain HTML, from a template that escapes everything; scripts add what is interactive
(explorer, charts, sorting) and take their numbers from one block of JSON.  The page's content security policy
lists its scripts by their hashes and forbids everything else, so that a name in the results can neither run
code nor load anything.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2

from iglu import zoo
from iglu.tails import gaussian_index
from iglu_lab.probe.tail_tables import Tails, layer_table
from iglu_lab.recipes import spec_of
from iglu_lab.report.content import EpochCurve, Report
from iglu_lab.report.explorer import SIGMAS, explorer_data
from iglu_lab.report.figures.render import numbers
from iglu_lab.report.forest import forests
from iglu_lab.report.summary import (
    NOT_PLANNED,
    RULE,
    describe_difference,
    headlines,
    metric_of,
    task_outcomes,
)
from iglu_lab.report.verdicts import Verdict
from iglu_lab.stats.comparison import METRIC_LABELS, REFERENCES
from iglu_lab.stats.contrasts import Category
from iglu_lab.stats.tabulate import NONE, NOT_RUN, Table, finite

# A sign next to the word: color is never the only cue.
_VERDICTS: dict[Verdict, tuple[str, str]] = {
    "holds": ("✓", "yes"),
    "does not hold": ("✕", "no"),
    "not enough evidence": ("?", "open"),
}
_TAIL_SIGNS = {"heavier": "▲", "like": "●", "lighter": "▼"}
CATEGORIES: dict[Category, tuple[str, str]] = {
    "better": ("▲", "yes"),
    "equivalent": ("≈", "equal"),
    "inconclusive": ("?", "open"),
    "worse": ("▼", "no"),
}


def render(report: Report) -> str:
    """The page as text."""
    from plotly.offline import get_plotlyjs

    scripts = {
        "theme": asset("theme.js"),
        "plotly": get_plotlyjs(),
        "page": "\n".join(asset(name) for name in ("formulas.js", "charts.js", "page.js")),
    }
    scripts = {name: _inside_script(text) for name, text in scripts.items()}
    second_round = [table for table in report.tables if table.key.startswith(("second-round", "round2"))]
    per_sigma = [table for table in report.tables if table.key == "per-sigma"]
    measured, rest = _by_measured([each for each in report.tables if each not in (*second_round, *per_sigma)])
    labels = {name: zoo.ZOO[name].label for name in REFERENCES}
    page = html_environment().get_template("page.html")
    return page.render(
        plotly=packed(scripts["plotly"]),
        policy=_policy(scripts.values()),
        style=asset("page.css"),
        scripts=scripts,
        data=_json(_data(report)),
        report=report,
        forests=[(task, next(found := forests(task)), list(found)) for task in report.tasks],
        headlines=headlines(report.tasks),
        outcomes=[
            (task, metric_of(task), {labels[name]: task_outcomes(task, name) for name in REFERENCES})
            for task in report.tasks
        ],
        describe=describe_difference,
        rule=RULE if all(task.grid for task in report.tasks) else f"{RULE} {NOT_PLANNED}",
        categories=CATEGORIES,
        per_sigma=per_sigma,
        second_round=second_round,
        measured=measured,
        rest=rest,
        sigmas=SIGMAS,
        verdicts=_VERDICTS,
        is_prose=is_prose,
        recipes=list(dict.fromkeys(curve.recipe for curve in report.curves)),
        probes=[_shown_probe(number, tails) for number, tails in enumerate(report.probes)],
        figures=[figure for figure in report.figures if figure.is_on_page],
        learned=list(dict.fromkeys(_whose(curve) for curve in report.sigmas)),
        provenance={key: _readable(value) for key, value in report.provenance.items()},
    )


def html_environment(*loaders: jinja2.BaseLoader) -> jinja2.Environment:
    """The templates of the report and of other loaders, with everything escaped."""
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([*loaders, jinja2.PackageLoader("iglu_lab.report", "assets")]),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


# -- tables ----------------------------------------------------------------------------------------


_REDUCED = ": reduced"


def _by_measured(tables: Sequence[Table]) -> tuple[list[Table], list[Table]]:
    """Tables with measured numbers, without unmeasured columns and rows; and the other tables, complete."""
    measured: list[Table] = []
    rest: list[Table] = []
    for table in tables:
        own = [
            place
            for place, (group, name) in enumerate(table.headers)
            if "ours" in name or group.endswith(_REDUCED)
        ]
        places = [place for place in own if table.numeric[place]]
        if places:
            measured.append(_measured_part(table, places))
        else:
            (rest if own else measured).append(table)
    return measured, rest


def _measured_part(table: Table, places: Sequence[int]) -> Table:
    """The rows and column groups with a number in one of ``places``, including the paper's columns."""
    headings = [group.removesuffix(_REDUCED) for group, _ in table.headers]
    run = {headings[place] for place in places}
    shown = [
        place
        for place, heading in enumerate(headings)
        if not heading or (heading in run and table.numeric[place])
    ]
    empty_texts = (NONE.text, NOT_RUN.text)
    rows = [row for row in table.rows if any(row[place].text not in empty_texts for place in places)]
    groups_not_run = [heading for heading in dict.fromkeys(headings) if heading and heading not in run]
    left_out = len(table.rows) - len(rows)
    notes = [f"Not run: {', '.join(groups_not_run)}."] if groups_not_run else []
    notes += [f"Rows that were not run: {left_out}."] if left_out else []
    return dataclasses.replace(table, rows=tuple(rows), notes=(*notes, *table.notes)).columns(shown)


_LONGEST_NUMBER = 30  # characters of a number with its interval and seeds


def is_prose(table: Table) -> bool:
    """Whether it has long texts, which are left-aligned and wrapped."""
    return any(len(cell.text) > _LONGEST_NUMBER for row in table.rows for cell in row[1:])


def _shown_probe(number: int, tails: Tails) -> dict[str, Any]:
    layers, sigma = tails.body["layers"], tails.sigma
    parts = [f"{len(layers)} activations", f"{tails.body.get('batches', '?')} batches"]
    return {
        "name": tails.name,
        "summary": ", ".join(parts + ([] if sigma is None else [f"suggested sigma {sigma:.3g}"])),
        "table": layer_table(tails, f"probe{number}"),
        "strip": [
            (_TAIL_SIGNS.get(row["verdict"], ""), row["verdict"], row["layer"])
            for row in layers
            if isinstance(row.get("verdict"), str)
        ],
        "has_chart": any("alpha" in row for row in layers),
        "layers": list(tails.body.get("hill", {})),  # that have a Hill plot
    }


# -- numbers ---------------------------------------------------------------------------------------


def _data(report: Report) -> dict[str, Any]:
    return {
        "explorer": explorer_data(),
        "curves": [dataclasses.asdict(curve) | {"label": _label(curve)} for curve in report.curves],
        "metrics": METRIC_LABELS,
        "sigmas": [dataclasses.asdict(curve) | {"whose": _whose(curve)} for curve in report.sigmas],
        "probes": [
            {"name": tails.name, **_probe_chart(tails.body["layers"]), "hill": _hill(tails.body)}
            for tails in report.probes
        ],
        "figures": [numbers(figure) for figure in report.figures if figure.is_on_page],
    }


def _whose(curve: EpochCurve) -> str:
    return f"{curve.recipe}: {_label(curve)}"


_HILL_POINTS = 40  # per plot: neighbors share nearly all their values


def _hill(body: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """By layer, xi over k with its band, and the central 95% of a Gaussian's xi at the same n."""
    sizes = {row["layer"]: row.get("n") for row in body["layers"]}
    found = {}
    for layer, curve in body.get("hill", {}).items():
        every = max(1, len(curve["k"]) // _HILL_POINTS)
        thin = {name: list(values[::every]) for name, values in curve.items()}
        n = sizes.get(layer)
        if isinstance(n, int) and all(1 <= k < n for k in thin["k"]):
            gaussian = [gaussian_index("hill", n, int(k)) for k in thin["k"]]
            thin["gaussian_low"] = [round(each.xi_low, 5) for each in gaussian]
            thin["gaussian_high"] = [round(each.xi_high, 5) for each in gaussian]
        found[layer] = thin
    return found


def _label(curve: EpochCurve) -> str:
    return spec_of(curve.activation).label


def _probe_chart(layers: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    columns = ("layer", "alpha", "alpha_low", "alpha_high", "gaussian")
    return {name: [row.get(name) for row in layers if "alpha" in row] for name in columns}


def _json(value: Any) -> str:
    """JSON for a script element: ASCII, without characters that HTML could interpret as a tag."""
    text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _readable(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)


# -- files -----------------------------------------------------------------------------------------


def asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _inside_script(text: str) -> str:
    """A script for a script element, such that the parser does not change it: the hash is of parsed text."""
    return "\n" + text.replace("\r\n", "\n").replace("</script", "<\\/script").strip() + "\n"


def packed(text: str) -> str:
    """Compress a large script to a third of its length, for the browser's DecompressionStream."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _policy(scripts: Iterable[str]) -> str:
    """A policy that allows only these scripts, and inline styles, which plotly writes."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
