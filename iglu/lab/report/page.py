"""A report as one HTML file that needs nothing beside it: no network, no folder of assets, no server.

What can be read is written here as plain HTML, through a template that escapes every text; the scripts add
what moves (explorer, charts, sorting) and take their numbers from one block of JSON.  The page's own security
policy names its scripts by their hashes and forbids all else, so that a name in somebody's results can
neither run nor call home.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2

from iglu import zoo
from iglu.lab.probe.tables import Tails, layer_table
from iglu.lab.report.answer import RULE, amount, headlines, metric_of, outcomes
from iglu.lab.report.content import Curve, Report, Standing
from iglu.lab.report.explorer import SIGMAS, explorer_data
from iglu.lab.report.forest import forests
from iglu.lab.report.verdicts import Verdict
from iglu.lab.results.comparison import METRIC_LABELS
from iglu.lab.results.tables import NONE, NOT_RUN, Table
from iglu.tails import gaussian_index

# A sign beside the word, so that nothing hangs on colour alone.
_VERDICTS: dict[Verdict, tuple[str, str]] = {
    "holds": ("✓", "yes"),
    "does not hold": ("✕", "no"),
    "not enough evidence": ("?", "open"),
}
_TAIL_SIGNS = {"heavier": "▲", "like": "●", "lighter": "▼"}
_STANDINGS: dict[Standing, tuple[str, str]] = {
    "better": ("▲", "yes"),
    "worse": ("▼", "no"),
    "not told apart": ("", "open"),
}


def render(report: Report) -> str:
    """The page as text."""
    from plotly.offline import get_plotlyjs

    scripts = {
        "theme": _asset("theme.js"),
        "plotly": get_plotlyjs(),
        "page": "\n".join(_asset(name) for name in ("formulas.js", "charts.js", "page.js")),
    }
    scripts = {name: _inside_script(text) for name, text in scripts.items()}
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    measured, rest = _by_measured(report.tables)
    return environment.from_string(_asset("page.html")).render(
        plotly=packed(scripts["plotly"]),
        policy=_policy(scripts.values()),
        style=_asset("page.css"),
        scripts=scripts,
        data=_json(_data(report)),
        report=report,
        forests=[(task, next(found := forests(task)), list(found)) for task in report.tasks],
        headlines=headlines(report.tasks),
        answers=[(task, metric_of(task), outcomes(task)) for task in report.tasks],
        amount=amount,
        rule=RULE,
        standings=_STANDINGS,
        measured=measured,
        rest=rest,
        sigmas=SIGMAS,
        verdicts=_VERDICTS,
        is_prose=is_prose,
        recipes=list(dict.fromkeys(curve.recipe for curve in report.curves)),
        probes=[_shown_probe(number, tails) for number, tails in enumerate(report.probes)],
        figures=[figure for figure in report.figures if figure.panels],
        learned=list(dict.fromkeys(_whose(curve) for curve in report.sigmas)),
        provenance={key: _readable(value) for key, value in report.provenance.items()},
    )


# -- tables ----------------------------------------------------------------------------------------


def _by_measured(tables: Sequence[Table]) -> tuple[list[Table], list[Table]]:
    """Tables with a number of ours, without the columns and lines that have none; and the others, whole."""
    measured: list[Table] = []
    rest: list[Table] = []
    for table in tables:
        own = [place for place, header in enumerate(table.headers) if _is_own(*header)]
        places = [place for place in own if any(row[place].number is not None for row in table.rows)]
        if own:
            (measured if places else rest).append(_measured_part(table, places) if places else table)
        else:
            (rest if table.key == "errata" else measured).append(table)
    return measured, rest


def _is_own(group: str, name: str) -> bool:
    return "ours" in name or group.endswith(_REDUCED)


_REDUCED = ": reduced"


def _measured_part(table: Table, places: Sequence[int]) -> Table:
    """The headings under which there is a number in one of ``places``, each with the paper's beside it."""
    headings = [group.removesuffix(_REDUCED) for group, _ in table.headers]
    run = {headings[place] for place in places}
    shown = [
        place
        for place, heading in enumerate(headings)
        if not heading or (heading in run and any(row[place].number is not None for row in table.rows))
    ]
    unsaid = (NONE.text, NOT_RUN.text)
    rows = [row for row in table.rows if any(row[place].text not in unsaid for place in places)]
    unrun = [heading for heading in dict.fromkeys(headings) if heading and heading not in run]
    left_out = len(table.rows) - len(rows)
    notes = [f"Not run: {', '.join(unrun)}."] if unrun else []
    notes += [f"Lines of which nothing was run: {left_out}."] if left_out else []
    return dataclasses.replace(table, rows=tuple(rows), notes=(*notes, *table.notes)).columns(shown)


_LONGEST_NUMBER = 30  # characters of a number with its interval and seeds


def is_prose(table: Table) -> bool:
    """Whether it has sentences, which are read from the left and need to wrap."""
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
        "figures": [
            {"title": figure.title, "panels": figure.panels} for figure in report.figures if figure.panels
        ],
    }


def _whose(curve: Curve) -> str:
    return f"{curve.recipe}: {_label(curve)}"


_HILL_POINTS = 40  # of a plot: neighbours share nearly all their values


def _hill(body: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Of each layer xi over k with its band, and the range that holds 95% of a Gaussian's at the same n."""
    sizes = {row["layer"]: row.get("n") for row in body["layers"]}
    found = {}
    for layer, curve in body.get("hill", {}).items():
        every = max(1, len(curve["k"]) // _HILL_POINTS)
        thin = {name: list(values[::every]) for name, values in curve.items()}
        n = sizes.get(layer)
        if isinstance(n, int) and all(1 <= k < n for k in thin["k"]):
            beside = [gaussian_index("hill", n, int(k)) for k in thin["k"]]
            thin["gaussian_low"] = [round(each.xi_low, 5) for each in beside]
            thin["gaussian_high"] = [round(each.xi_high, 5) for each in beside]
        found[layer] = thin
    return found


def _label(curve: Curve) -> str:
    return zoo.parse(curve.activation).label


def _probe_chart(layers: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    columns = ("layer", "alpha", "alpha_low", "alpha_high", "gaussian")
    return {name: [row.get(name) for row in layers if "alpha" in row] for name in columns}


def _json(value: Any) -> str:
    """JSON that may stand inside a script element: ASCII, and nothing that HTML could take for a tag."""
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no inf; a chart leaves a gap at null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _readable(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)


# -- files -----------------------------------------------------------------------------------------


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _inside_script(text: str) -> str:
    """As it may stand between script tags, unchanged by the parser, whose text the hash is of."""
    return "\n" + text.replace("\r\n", "\n").replace("</script", "<\\/script").strip() + "\n"


def packed(text: str) -> str:
    """For the browser's own DecompressionStream: a script of megabytes in a third of its length."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _policy(scripts: Iterable[str]) -> str:
    """No source but the page itself; plotly writes style rules, hence those inline."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
