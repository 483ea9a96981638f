"""The plan of a comparison, written to plan.toml before its first run, and the log of its runs.

``runs.jsonl`` has one line per plan and one per finished or diverged run, in order of time, so that it shows
whether and how the plan was changed after the first run::

    {"iglu_compare": 1, "date": ..., "plan": {...}, "provenance": {...}}
    {"activation": "relu", "seed": 0, "status": "finished", "metrics": {"acc": 97.1}, "seconds": 12.3, ...}
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iglu import zoo
from iglu_lab.comparing.worker import Job, Outcome
from iglu_lab.errors import UserError, as_user_errors
from iglu_lab.runs import provenance
from iglu_lab.runs.folder import parsed
from iglu_lab.storage import read_toml, write_atomically

PLAN, LOG = "plan.toml", "runs.jsonl"
LEVEL = 0.05
FEWEST_SEEDS = 3  # for a verdict
NUMBER = "value"  # the metric of a function that returns a number
FORMAT = 1
_LOWER = frozenset(
    ("loss", "losses", "error", "err", "perplexity", "ppl", "mse", "rmse", "mae", "nll", "bits", "fid", "wer")
)


@dataclass(frozen=True)
class Plan:
    """What is compared, and how it will be judged."""

    task: str  # module:name of the function, or the command
    activations: tuple[str, ...]
    reference: str
    metric: str
    lower_is_better: bool
    seeds: int  # from 0
    margin: float | None = None  # of equivalence, in units of the metric
    correction: str = "holm"  # over the activations
    looks: tuple[int, ...] = ()  # numbers of seeds at which there are verdicts; the last is all of them
    spending: tuple[float, ...] = ()  # the share of the 5% for each look
    code: str = ""  # of the source: a hash of the function's module or of the script

    @property
    def others(self) -> list[str]:
        return [name for name in self.activations if name != self.reference]

    @property
    def name(self) -> str:
        """The name of the function or script, for titles and progress."""
        first, *others = self.task.split()
        if not others and "/" not in first:
            return first.rpartition(":")[2]
        return Path(next((word for word in (first, *others) if word.endswith(".py")), first)).name

    def jobs(self) -> list[Job]:
        """All runs; seeds are the outer loop, so that a complete comparison is available early."""
        return [Job(self.name, name, seed) for seed in range(self.seeds) for name in self.activations]

    def level(self, seeds: int) -> float:
        """The significance level of a verdict at this number of seeds."""
        return self.spending[self.looks.index(seeds)] if seeds in self.looks else LEVEL

    def text(self) -> str:
        """The plan as TOML."""
        lines = [
            f"{name} = {json.dumps(value)}"
            for name, value in dataclasses.asdict(self).items()
            if value not in (None, (), "")
        ]
        head = (
            "# The plan of this comparison, written before its first run. iglu compare reads it when it\n"
            "# resumes, with flags taking precedence, and reports what was changed after the first run.\n"
        )
        return head + "\n".join(lines) + "\n"


def make_plan(given: Mapping[str, Any]) -> Plan:
    """Check and complete the fields of a plan."""
    fields = {name: value for name, value in given.items() if value is not None}
    for name in ("activations", "looks", "spending"):
        if name in fields and (isinstance(fields[name], str) or not isinstance(fields[name], Sequence)):
            raise UserError(f"{name} must be a list, got {fields[name]!r}")
    names = fields.get("activations", ())
    if isinstance(names, str) or len(names) < 2:
        got = f"got {names!r}" if names else "got none"
        raise UserError(
            f"expected at least two activations, the reference first, such as relu gelu iglu:5, {got}"
        )
    with as_user_errors():
        activations = tuple(str(zoo.parse(name)) for name in names)
    if len(set(activations)) < len(activations):
        raise UserError(f"each activation must be given only once, got {', '.join(activations)}")
    reference = fields.get("reference", activations[0])
    if reference not in activations:
        raise UserError(f"the reference {reference!r} is not among the activations {', '.join(activations)}")
    seeds, margin, metric = fields.get("seeds", 5), fields.get("margin"), fields.get("metric", NUMBER)
    if type(seeds) is not int or seeds < 1:
        raise UserError(f"seeds must be an integer of at least 1, got {seeds!r}")
    if margin is not None and not (isinstance(margin, int | float) and 0 < margin < float("inf")):
        raise UserError(f"margin must be a number above 0, in units of the metric, got {margin!r}")
    lower = fields.get("lower_is_better")
    if lower is not None and type(lower) is not bool:
        raise UserError(f"lower_is_better must be true or false, got {lower!r}")
    for name, kinds in (("looks", (int,)), ("spending", (int, float))):
        if any(type(each) not in kinds for each in fields.get(name, ())):
            raise UserError(f"{name} must be a list of numbers, got {list(fields[name])!r}")
    if fields.get("correction", "holm") != "holm":
        raise UserError(f"correction must be 'holm', got {fields['correction']!r}")
    looks, spending = _looks(tuple(fields.get("looks", ())), tuple(fields.get("spending", ())), seeds)
    return Plan(
        task=fields["task"], activations=activations, reference=reference, metric=metric,
        lower_is_better=is_lower_better(metric) if lower is None else lower, seeds=seeds,
        margin=None if margin is None else float(margin), looks=looks, spending=spending,
        code=fields.get("code", ""),
    )  # fmt: skip


def is_lower_better(metric: str) -> bool:
    """Whether the name is that of a loss or an error; for every other metric, higher is better.

    >>> is_lower_better("val_loss"), is_lower_better("eval/perplexity"), is_lower_better("f1")
    (True, True, False)
    """
    words = "".join(sign if sign.isalnum() else " " for sign in metric.lower()).split()
    return not _LOWER.isdisjoint(words)


def _looks(looks: tuple[int, ...], spending: tuple[float, ...], seeds: int) -> tuple[Any, Any]:
    """Looks and the level of each, by default equal shares of 5%.  The levels add up (Bonferroni), which is
    valid however the looks are correlated."""
    if not looks:
        return (), ()
    if looks[-1] < seeds and not spending:
        looks = (*looks, seeds)
    if list(looks) != sorted(set(looks)) or looks[0] < FEWEST_SEEDS or looks[-1] != seeds:
        raise UserError(
            f"looks must ascend from at least {FEWEST_SEEDS} to the {seeds} seeds, got {list(looks)}"
        )
    spending = spending or (LEVEL / len(looks),) * len(looks)
    if len(spending) != len(looks) or min(spending) <= 0 or sum(spending) > LEVEL + 1e-9:
        raise UserError(
            f"spending must have a level above 0 for each of {len(looks)} looks, at most {LEVEL} in total, "
            f"got {list(spending)}"
        )
    return looks, spending


def read_plan(out: Path) -> dict[str, Any]:
    """The fields of plan.toml in a folder; empty if there is none."""
    path = out / PLAN
    if not path.exists():
        return {}
    try:
        content = read_toml(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    known = {field.name for field in dataclasses.fields(Plan)}
    if "task" not in content or not content.keys() <= known:
        raise UserError(
            f"{path} is not the plan of a comparison: it must have the field task, and only {sorted(known)}"
        )
    return content


@dataclass(frozen=True)
class Change:
    """A field of the plan that was changed after some runs."""

    runs: int
    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.field == "code":
            return f"after {self.runs} runs the source code was changed"
        return f"after {self.runs} runs {self.field} was changed from {self.before!r} to {self.after!r}"


class Log:
    """The lines of runs.jsonl."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plans: list[tuple[int, dict[str, Any]]] = []  # with the number of runs before it
        self.rows: dict[tuple[str, int], Outcome] = {}
        text = path.read_bytes() if path.exists() else b""
        *lines, self._torn = text.split(b"\n")  # the last line of a killed process may be incomplete
        for number, line in enumerate(lines, start=1):
            content = parsed(line.decode(errors="replace"), f"{path} cannot be read: line {number}")
            with as_user_errors(f"{path} cannot be read: line {number} is not a run or a plan: "):
                self._read(content)

    def _read(self, line: dict[str, Any]) -> None:
        if "plan" in line:
            if line.get("iglu_compare") != FORMAT:
                raise ValueError(f"its format is {line.get('iglu_compare')}, and this version reads {FORMAT}")
            self.plans.append((len(self.rows), line["plan"]))
            return
        job = Job("", line.pop("activation", ""), line.pop("seed", 0))
        history = tuple(line.pop("history", ()))
        self.rows.setdefault((job.activation, job.seed), Outcome(job, history=history, **line))

    def check(self, plan: Plan) -> None:
        """Raise UserError unless the runs are of this task and have its metric."""
        if self.rows and (old := self.plans[-1][1]["task"]) != plan.task:
            raise UserError(
                f"{self.path.parent} contains another comparison, of {old}; this one is of {plan.task}. "
                "Choose another --out."
            )
        for row in self.rows.values():
            if row.status == "finished" and plan.metric not in row.metrics:
                raise UserError(
                    f"the run of {row.item.activation} with seed {row.item.seed} has no metric "
                    f"{plan.metric!r}, only {', '.join(row.metrics)}. Choose another --metric or --out."
                )

    def begin(self, plan: Plan) -> None:
        """Append the plan unless it equals the last one; a comparison, not a pilot, also writes plan.toml."""
        self.check(plan)
        if self.path.name == LOG:
            with write_atomically(self.path.parent / PLAN) as file:
                file.write(plan.text().encode())
        content = json.loads(json.dumps(dataclasses.asdict(plan)))
        if not self.plans or self.plans[-1][1] != content:
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            head = {"iglu_compare": FORMAT, "date": now, "plan": content, "provenance": provenance.collect()}
            self._append(head)
            self.plans.append((len(self.rows), content))

    def add(self, outcome: Outcome) -> None:
        """Write a run that finished or diverged."""
        content = dataclasses.asdict(outcome)
        for name in ("item", "failure", "traceback", "is_input_error"):
            del content[name]
        self._append({"activation": outcome.item.activation, "seed": outcome.item.seed, **content})
        self.rows[outcome.item.activation, outcome.item.seed] = outcome

    def _append(self, line: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            if self._torn:
                file.truncate(file.tell() - len(self._torn))
                self._torn = b""
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def changes(self) -> list[Change]:
        """What was changed in the plan after the first run."""
        return [
            Change(runs, name, old.get(name), new.get(name))
            for (_, old), (runs, new) in zip(self.plans, self.plans[1:], strict=False)
            if runs
            for name in new
            if old.get(name) != new.get(name)
        ]
