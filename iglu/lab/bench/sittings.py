"""A sitting of ``iglu bench``: rows measured in one process, which may be compared with each other, and the
file they are kept in, a row a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iglu.lab.mistakes import MistakeError
from iglu.lab.runs.provenance import sentence_of
from iglu.lab.storage import write_atomically

FILES = ("bench.json", "train.json")

Timing = dict[str, Any]
"""What was measured of one subject in one setting and pass."""


@dataclass
class Sitting:
    """What has been measured so far."""

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
    def sentence(self) -> str:
        """Where it comes from, for under a table."""
        return sentence_of(self.heading.get("provenance"))

    def add(self, rows: list[Timing]) -> None:
        self.rows += rows
        self.write()

    def skip(self, what: str, where: str, why: object) -> None:
        reason = str(why).strip().partition("\n")[0] or type(why).__name__
        entry = {"what": what, "where": where, "why": reason}
        if entry not in self.not_run:
            self.not_run.append(entry)

    def write(self) -> None:
        """All or nothing: a reader never sees half a file."""
        head = json.dumps({**self.heading, "interrupted": self.interrupted, "not_run": self.not_run})
        rows = ",\n".join(json.dumps(row) for row in self.rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(self.path) as file:
            file.write(f'{head[:-1]}, "rows": [\n{rows}\n]}}\n'.encode())


def grouped(rows: Iterable[Timing], kind: str, *fields: str) -> dict[tuple[Any, ...], list[Timing]]:
    """Those of one kind, by their fields."""
    groups: dict[tuple[Any, ...], list[Timing]] = {}
    for row in rows:
        if row["kind"] == kind:
            groups.setdefault(tuple(row[field] for field in fields), []).append(row)
    return groups


def refuse_to_replace(path: Path) -> None:
    """Whatever was measured stays: a new sitting goes elsewhere."""
    if path.exists():
        raise MistakeError(
            f"{path} is there already, and is not replaced: remove it, or choose another --out"
        )


# -- reading ---------------------------------------------------------------------------------------

_SPREAD = ("median", "low", "high")
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "activation": str, "label": str, "kernel": str, "is_ours": bool, "device": str, "dtype": str,
    "threads": int, "rounds": int, "seconds": dict, "ratios": dict, "seconds_by_round": list,
}  # fmt: skip
_FIELDS_OF_A_KIND: dict[str, dict[str, type | tuple[type, ...]]] = {
    "operation": {"elements": int, "pass": str},
    "training": {
        "model": str, "model_label": str, "unit": str, "items_a_second": dict,
        "kept_bytes": (int, float), "peak_bytes": (int, float),
    },
}  # fmt: skip


def read_sitting(path: Path, complaints: list[str]) -> Sitting:
    """A MistakeError if the file is none of ``iglu bench``; entries that are no rows are counted, and left
    out."""
    body = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(body, dict) or not isinstance(body.get("rows"), list):
        raise MistakeError("not a file of iglu bench: it has no rows")
    entries = body.pop("rows")
    rows = [row for row in entries if _is_timing(row)]
    if len(rows) < len(entries):
        complaints.append(f"{path}: {len(entries) - len(rows)} entries are not rows of iglu bench")
    return Sitting(path, body, rows)


def _is_timing(row: Any) -> bool:
    kind = row.get("kind") if isinstance(row, dict) else None
    if kind not in tuple(_FIELDS_OF_A_KIND):
        return False
    fields = {**_FIELDS, **_FIELDS_OF_A_KIND[kind]}
    if not all(isinstance(row.get(name), types) for name, types in fields.items()):
        return False
    spreads = [row["seconds"], *row["ratios"].values(), row.get("items_a_second", row["seconds"])]
    numbers = [row[name] for name in ("kept_bytes", "peak_bytes", "elements") if name in row]
    return (
        all(
            isinstance(each, dict) and all(_is_positive(each.get(name)) for name in _SPREAD)
            for each in spreads
        )
        and bool(row["seconds_by_round"])
        and all(map(_is_positive, [*row["seconds_by_round"], row["rounds"], row["threads"], *numbers]))
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and 0 < value < 2**63
