"""A session of ``iglu bench``: comparable rows, measured in one process, and their JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iglu_lab.errors import UserError
from iglu_lab.runs.provenance import describe_provenance
from iglu_lab.storage import write_atomically

FILES = ("bench.json", "train.json")

Timing = dict[str, Any]
"""The measurement of one case in one setting and pass."""


@dataclass
class Session:
    """The measurements so far."""

    path: Path
    heading: dict[str, Any]  # command, provenance, flags
    rows: list[Timing] = field(default_factory=list)
    not_run: list[dict[str, str]] = field(default_factory=list)
    interrupted: bool = False

    @property
    def date(self) -> str:
        provenance = self.heading.get("provenance")
        return str(provenance.get("date", "")) if isinstance(provenance, Mapping) else ""

    @property
    def origin(self) -> str:
        """Its provenance, for the notes of a table."""
        return describe_provenance(self.heading.get("provenance"))

    def add(self, rows: list[Timing]) -> None:
        self.rows += rows
        self.write()

    def skip(self, what: str, where: str, why: object) -> None:
        reason = str(why).strip().partition("\n")[0] or type(why).__name__
        entry = {"what": what, "where": where, "why": reason}
        if entry not in self.not_run:
            self.not_run.append(entry)

    def write(self) -> None:
        """Write the file atomically, one row per line."""
        head = json.dumps({**self.heading, "interrupted": self.interrupted, "not_run": self.not_run})
        rows = ",\n".join(json.dumps(row) for row in self.rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(self.path) as file:
            file.write(f'{head[:-1]}, "rows": [\n{rows}\n]}}\n'.encode())


def grouped(rows: Iterable[Timing], kind: str, *fields: str) -> dict[tuple[Any, ...], list[Timing]]:
    """Group the rows of one kind by these fields."""
    groups: dict[tuple[Any, ...], list[Timing]] = {}
    for row in rows:
        if row["kind"] == kind:
            groups.setdefault(tuple(row[field] for field in fields), []).append(row)
    return groups


def refuse_to_replace(path: Path) -> None:
    """Raise UserError if the file exists: measurements are never overwritten."""
    if path.exists():
        raise UserError(f"{path} already exists: remove it, or choose another --out")


# -- reading ---------------------------------------------------------------------------------------

_SUMMARY = ("median", "low", "high")
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "activation": str, "label": str, "kernel": str, "is_ours": bool, "device": str, "dtype": str,
    "threads": int, "rounds": int, "seconds": dict, "ratios": dict, "seconds_by_round": list,
}  # fmt: skip
_KIND_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "operation": {"elements": int, "pass": str},
    "training": {
        "model": str, "model_label": str, "unit": str, "items_a_second": dict,
        "kept_bytes": (int, float), "peak_bytes": (int, float),
    },
}  # fmt: skip


def read_session(path: Path, problems: list[str]) -> Session:
    """Read a session; raise UserError if it is not a file of ``iglu bench``.  Invalid rows are skipped and
    counted in ``problems``."""
    body = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(body, dict) or not isinstance(body.get("rows"), list):
        raise UserError("not a file of iglu bench: it has no rows")
    entries = body.pop("rows")
    rows = [row for row in entries if _is_timing(row)]
    if len(rows) < len(entries):
        problems.append(f"{path}: {len(entries) - len(rows)} entries are not rows of iglu bench")
    return Session(path, body, rows)


def _is_timing(row: Any) -> bool:
    kind = row.get("kind") if isinstance(row, dict) else None
    if kind not in tuple(_KIND_FIELDS):
        return False
    fields = {**_FIELDS, **_KIND_FIELDS[kind]}
    if not all(isinstance(row.get(name), types) for name, types in fields.items()):
        return False
    summaries = [row["seconds"], *row["ratios"].values(), row.get("items_a_second", row["seconds"])]
    numbers = [row[name] for name in ("kept_bytes", "peak_bytes", "elements") if name in row]
    return (
        all(
            isinstance(each, dict) and all(_is_positive(each.get(name)) for name in _SUMMARY)
            for each in summaries
        )
        and bool(row["seconds_by_round"])
        and all(map(_is_positive, [*row["seconds_by_round"], row["rounds"], row["threads"], *numbers]))
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and 0 < value < 2**63
