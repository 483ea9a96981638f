"""A report as one HTML file that needs nothing beside it: no network, no folder of assets, no server.

What can be read is written here as plain HTML, through a template that escapes every text; the scripts add
what moves (explorer, charts, sorting) and take their numbers from one block of JSON.  The page's own security
policy names its scripts by their hashes and forbids all else, so that a name in somebody's results can
neither run nor call home.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from iglu import zoo
from iglu.lab.report.content import Cell, Curve, Figure, Report, Table, Verdict
from iglu.lab.report.explorer import SIGMAS, explorer_data
from iglu.probing.table import COLUMNS, cells, notes

# A sign beside the word, so that nothing hangs on colour alone.
_VERDICTS: dict[Verdict, tuple[str, str]] = {
    "holds": ("✓", "yes"),
    "does not hold": ("✕", "no"),
    "not enough evidence": ("?", "open"),
}
_TAIL_SIGNS = {"heavier": "▲", "like": "●", "lighter": "▼"}
_IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}  # the first that there is


def write_page(report: Report, folder: Path) -> Path:
    """Write ``folder/index.html``; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(render(report), encoding="utf-8", newline="\n")
    return path


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
        policy=_policy(scripts.values()),
        style=_asset("page.css"),
        scripts=scripts,
        data=_json(_data(report)),
        report=report,
        sigmas=SIGMAS,
        claims=[(claim, *_VERDICTS[claim.verdict]) for claim in report.claims],
        verdicts=_VERDICTS,
        count=lambda verdict: sum(claim.verdict == verdict for claim in report.claims),
        tables=[_shown_table(table) for table in report.tables],
        recipes=list(dict.fromkeys(curve.recipe for curve in report.curves)),
        probes=[_shown_probe(number, body) for number, body in enumerate(report.probes)],
        figures=[(figure, _data_uri(figure)) for figure in report.figures],
        provenance={key: _readable(value) for key, value in report.provenance.items()},
    )


# -- tables ----------------------------------------------------------------------------------------


_LONGEST_FIGURE = 30  # characters of a number with its interval and seeds


class _Group(NamedTuple):
    """Neighbouring headers of one group; a header without a group is alone in one."""

    name: str
    span: int


class _ShownTable(NamedTuple):
    table: Table
    groups: list[_Group]
    footnotes: dict[str, int]  # what cells remark, each once, by number

    @property
    def is_prose(self) -> bool:
        """Whether it has sentences, which are read from the left and need to wrap."""
        return any(len(cell.text) > _LONGEST_FIGURE for row in self.table.rows for cell in row[1:])


def _shown_table(table: Table) -> _ShownTable:
    groups: list[_Group] = []
    for group, _ in table.headers:
        if group and groups and groups[-1].name == group:
            groups[-1] = _Group(group, groups[-1].span + 1)
        else:
            groups.append(_Group(group, 1))
    remarks = dict.fromkeys(cell.note for row in table.rows for cell in row if cell.note)
    return _ShownTable(table, groups, {remark: number for number, remark in enumerate(remarks, 1)})


class _ShownProbe(NamedTuple):
    name: str
    summary: str
    shown: _ShownTable
    strip: list[tuple[str, str, str]]  # sign, verdict, layer
    has_chart: bool


def _shown_probe(number: int, body: Mapping[str, Any]) -> _ShownProbe:
    name, layers = str(body.get("name", "")), body.get("layers") or []
    rows = tuple(tuple(Cell(text, _leading_number(text)) for text in cells(row)) for row in layers)
    headers = tuple(("", title) for title in COLUMNS)
    table = Table(f"probe{number}", f"Tails of {name}, layer by layer", headers, rows, tuple(_notes(layers)))
    suggestion = body.get("suggestion") or {}
    parts = [f"{len(layers)} activations", f"{body.get('batches', '?')} batches"]
    if isinstance(suggestion.get("sigma"), float):
        parts.append(f"suggested sigma {suggestion['sigma']:.3g}")
    strip = [
        (_TAIL_SIGNS.get(row["verdict"], ""), str(row["verdict"]), str(row.get("layer", "")))
        for row in layers
        if row.get("verdict")
    ]
    return _ShownProbe(name, ", ".join(parts), _shown_table(table), strip, any(map(_has_alpha, layers)))


def _notes(layers: list[dict[str, Any]]) -> list[str]:
    """Those of the printed table, also of a file that lacks a field."""
    blank = {"layer": "", "note": "", "not_finite": 0}
    return notes([blank | row for row in layers])


def _leading_number(text: str) -> float | None:
    """
    >>> _leading_number("1,024 (0.01)"), _leading_number("37%"), _leading_number("-")
    (1024.0, 37.0, None)
    """
    found = re.match(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?", text)
    return float(found[0].replace(",", "")) if found else None


# -- numbers ---------------------------------------------------------------------------------------


def _data(report: Report) -> dict[str, Any]:
    return {
        "explorer": explorer_data(),
        "curves": [dataclasses.asdict(curve) | {"label": _label(curve)} for curve in report.curves],
        "probes": [_probe_chart(body.get("layers") or []) for body in report.probes],
    }


def _label(curve: Curve) -> str:
    try:
        return zoo.parse(curve.activation).label
    except ValueError:  # of another version, or somebody's own
        return curve.activation


def _has_alpha(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("alpha"), float)


def _probe_chart(layers: list[dict[str, Any]]) -> dict[str, list[Any]]:
    columns = ("layer", "alpha", "alpha_low", "alpha_high", "gaussian")
    return {name: [row.get(name) for row in layers if _has_alpha(row)] for name in columns}


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
