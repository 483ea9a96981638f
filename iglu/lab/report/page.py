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
from typing import Any, NamedTuple

import jinja2

from iglu import zoo
from iglu.lab.probe.tables import Tails, layer_table
from iglu.lab.report.content import Curve, Figure, Report, Verdict
from iglu.lab.report.explorer import SIGMAS, explorer_data
from iglu.lab.results.comparison import is_number
from iglu.lab.results.tables import Table

# A sign beside the word, so that nothing hangs on colour alone.
_VERDICTS: dict[Verdict, tuple[str, str]] = {
    "holds": ("✓", "yes"),
    "does not hold": ("✕", "no"),
    "not enough evidence": ("?", "open"),
}
_TAIL_SIGNS = {"heavier": "▲", "like": "●", "lighter": "▼"}
_IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}  # the first that there is


def render(report: Report) -> str:
    """The page as text."""
    scripts = {
        "theme": _asset("theme.js"),
        "plotly": _plotly(),
        "page": "\n".join(_asset(name) for name in ("formulas.js", "charts.js", "page.js")),
    }
    scripts = {name: _inside_script(text) for name, text in scripts.items()}
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_asset("page.html")).render(
        plotly=packed(scripts["plotly"]),
        policy=_policy(scripts.values()),
        style=_asset("page.css"),
        scripts=scripts,
        data=_json(_data(report)),
        report=report,
        sigmas=SIGMAS,
        verdicts=_VERDICTS,
        is_prose=is_prose,
        recipes=list(dict.fromkeys(curve.recipe for curve in report.curves)),
        probes=[_shown_probe(number, tails) for number, tails in enumerate(report.probes)],
        figures=[(figure, _data_uri(figure)) for figure in report.figures],
        provenance={key: _readable(value) for key, value in report.provenance.items()},
    )


# -- tables ----------------------------------------------------------------------------------------

_LONGEST_NUMBER = 30  # characters of a number with its interval and seeds


def is_prose(table: Table) -> bool:
    """Whether it has sentences, which are read from the left and need to wrap."""
    return any(len(cell.text) > _LONGEST_NUMBER for row in table.rows for cell in row[1:])


class _ShownProbe(NamedTuple):
    name: str
    summary: str
    table: Table
    strip: list[tuple[str, str, str]]  # sign, verdict, layer
    has_chart: bool


def _shown_probe(number: int, tails: Tails) -> _ShownProbe:
    layers = tails.body["layers"]
    suggestion = tails.body.get("suggestion")
    sigma = suggestion.get("sigma") if isinstance(suggestion, Mapping) else None
    parts = [f"{len(layers)} activations", f"{tails.body.get('batches', '?')} batches"]
    parts += [f"suggested sigma {sigma:.3g}"] if is_number(sigma) else []
    strip = [
        (_TAIL_SIGNS.get(row["verdict"], ""), row["verdict"], row["layer"])
        for row in layers
        if isinstance(row.get("verdict"), str)
    ]
    table = layer_table(tails, f"probe{number}")
    return _ShownProbe(tails.name, ", ".join(parts), table, strip, any("alpha" in row for row in layers))


# -- numbers ---------------------------------------------------------------------------------------


def _data(report: Report) -> dict[str, Any]:
    return {
        "explorer": explorer_data(),
        "curves": [dataclasses.asdict(curve) | {"label": _label(curve)} for curve in report.curves],
        "probes": [_probe_chart(tails.body["layers"]) for tails in report.probes],
    }


def _label(curve: Curve) -> str:
    try:
        return zoo.parse(curve.activation).label
    except ValueError:  # of another version, or somebody's own
        return curve.activation


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
    return str(value) if not isinstance(value, Mapping | list | tuple) else json.dumps(value, default=str)


# -- files -----------------------------------------------------------------------------------------


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("The page needs plotly for its charts: pip install 'iglu-torch[lab]'") from error
    return str(get_plotlyjs())


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


def _data_uri(figure: Figure) -> str | None:
    """The picture itself, as SVG where there is one; None if no file can be read."""
    for suffix, kind in _IMAGES.items():
        for path in figure.paths:
            if path.suffix == suffix and path.is_file():
                return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return None
