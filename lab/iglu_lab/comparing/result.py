"""The result of a comparison: the runs of its log, judged by its plan."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iglu.html_table import html_table
from iglu_lab.comparing.judge import Case, Verdict, judge_all
from iglu_lab.comparing.plan import FEWEST_SEEDS, LEVEL, LOG, Change, Log, Plan, make_plan, read_plan
from iglu_lab.comparing.worker import Job, Outcome
from iglu_lab.errors import UserError
from iglu_lab.recipes import spec_of
from iglu_lab.stats.comparison import counted, is_number
from iglu_lab.stats.contrasts import Category
from iglu_lab.stats.statistics import Estimate, estimate, paired_difference
from iglu_lab.stats.tabulate import Table, csv_lines, estimated, numbered, p_cell


@dataclass(frozen=True)
class Compared:
    """One activation."""

    activation: str
    mean: Estimate | None
    found: Estimate | None  # the difference to the reference, paired by seed
    verdict: Verdict
    finished: int
    diverged: int
    seconds: float | None  # per run, mean
    memory_mb: float | None  # the largest peak, of the GPU if it was used

    @property
    def category(self) -> Category | None:
        return self.verdict.category

    @property
    def verdict_text(self) -> str:
        """
        >>> verdict = Verdict("inconclusive", None, 0.3, "", 0.5, 12)
        >>> Compared("gelu", None, None, verdict, 5, 0, 1.0, None).verdict_text
        'inconclusive; needs about n = 12 seeds'
        """
        needed = f"; needs about n = {self.verdict.needed} seeds" if self.verdict.needed else ""
        reason = f" ({self.verdict.reason})" if self.verdict.reason else ""
        return f"{self.category or 'no verdict'}{reason}{needed}"


@dataclass(frozen=True, repr=False)
class CompareResult:
    """Runs and verdicts.  ``print(result)`` shows one line per activation; a notebook shows a table."""

    plan: Plan
    rows: Mapping[tuple[str, int], Outcome]
    changes: Sequence[Change] = ()  # of the plan, after the first run
    failures: Sequence[Outcome] = ()  # of the last call
    out: Path | None = None

    @functools.cached_property
    def missing(self) -> list[Job]:
        """The runs of the plan that have no result."""
        return [job for job in self.plan.jobs() if (job.activation, job.seed) not in self.rows]

    @functools.cached_property
    def look(self) -> int:
        """The number of seeds that are judged: all, those of the last complete look, or 0."""
        first = min((job.seed for job in self.missing), default=self.plan.seeds)
        reached = [look for look in (*self.plan.looks, self.plan.seeds) if look <= first]
        return max(reached, default=0) if self.plan.seeds >= FEWEST_SEEDS else 0

    @functools.cached_property
    def compared(self) -> list[Compared]:
        """Each activation except the reference, in the order of the plan."""
        return [self._compared(name) for name in self.plan.others]

    @property
    def all_compared(self) -> list[Compared]:
        """The reference, then the others."""
        return [self._compared(self.plan.reference), *self.compared]

    @property
    def verdicts(self) -> dict[str, Category | None]:
        """The verdict by activation: better, worse, equivalent, inconclusive, or None."""
        return {each.activation: each.category for each in self.compared}

    @property
    def _seeds(self) -> int:
        return self.look or self.plan.seeds

    def rows_of(self, activation: str) -> list[Outcome]:
        """The runs that are shown; while runs are missing, those of the last look."""
        return [row for (name, seed), row in self.rows.items() if name == activation and seed < self._seeds]

    def values(self, activation: str) -> dict[int, float]:
        """The metric of these runs, by seed, without the diverged ones."""
        found = {row.item.seed: row.metrics.get(self.plan.metric) for row in self.rows_of(activation)}
        return {
            seed: value for seed, value in sorted(found.items()) if value is not None and is_number(value)
        }

    def diverged(self, activation: str) -> int:
        """The number of these runs without a value."""
        return len(self.rows_of(activation)) - len(self.values(activation))

    @property
    def is_sealed(self) -> bool:
        """Whether runs are missing and no look is due: then only counts and means are shown, since the
        interval of a difference would reveal its verdict."""
        return bool(self.missing) and not self.look

    def _compared(self, activation: str) -> Compared:
        plan, rows = self.plan, self.rows_of(activation)
        values, reference = self.values(activation), self.values(plan.reference)
        mean = estimate(values.values()) if values else None
        if mean is not None and self.is_sealed:
            mean = mean._replace(low=-math.inf, high=math.inf)
        has_difference = activation != plan.reference and not self.is_sealed
        memory = [row.gpu_memory_mb or row.memory_mb for row in rows]
        return Compared(
            activation, mean, paired_difference(values, reference) if has_difference else None,
            self._verdicts.get(activation, Verdict(None, None)), len(values), self.diverged(activation),
            statistics.fmean(row.seconds for row in rows) if rows else None,
            max((each for each in memory if each is not None), default=None),
        )  # fmt: skip

    @functools.cached_property
    def _verdicts(self) -> dict[str, Verdict]:
        """Empty while runs are missing: looking more often than planned inflates the error rate."""
        if not self.look:
            return {}
        plan = self.plan
        reference, lost = self.values(plan.reference), self.diverged(plan.reference)
        cases = {name: Case(self.values(name), reference, self.diverged(name), lost) for name in plan.others}
        return judge_all(cases, plan.margin, plan.lower_is_better, plan.level(self.look))

    # -- in words ------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        plan = self.plan
        better = "lower" if plan.lower_is_better else "higher"
        return f"{plan.metric} of {plan.name}, {counted(self._seeds, 'seed')}, {better} is better"

    @property
    def notes(self) -> list[str]:
        """How it was judged, what is missing, and how the plan was changed."""
        plan, notes = self.plan, []
        if plan.seeds < FEWEST_SEEDS:
            notes.append(f"No verdicts: they need at least {FEWEST_SEEDS} seeds.")
        elif not self.look:
            notes.append(f"No verdicts while runs are missing: {self._progress}.")
        elif self.missing:
            notes.append(f"The planned look at {self.look} seeds; {self._progress}.")
        if self.look:
            level = plan.level(self.look)
            margin = "" if plan.margin is None else (
                f" Equivalent: not significant, and the {1 - 2 * level:.0%} interval lies within the "
                f"margin of {plan.margin:g}."
            )  # fmt: skip
            notes.append(
                f"Differences to {plan.reference} are paired by seed, with 95% intervals. Better, worse: "
                f"Holm-adjusted p below {level:.2g}.{margin} The minimum detectable difference and the seeds "
                "needed have 80% power at the level of the strictest comparison."
            )
        if plan.looks:
            spent = ", ".join(
                f"{level:.2g} at {look}" for look, level in zip(plan.looks, plan.spending, strict=True)
            )
            notes.append(f"Planned looks, with the level of each (Bonferroni): {spent} seeds.")
        notes += [
            f"{each.activation}: {counted(each.diverged, 'run')} diverged. A diverged run has no number and "
            "counts against its activation, which is then never better or equivalent."
            for each in self.all_compared
            if each.diverged
        ]
        if self.changes:
            notes.append(f"The plan was changed after the first run: {'; '.join(map(str, self.changes))}.")
            if self.look and any(change.field != "code" for change in self.changes):
                notes.append(f"If results influenced the change, the error rate exceeds {LEVEL:.0%}.")
        else:
            notes.append("The plan was not changed after the first run.")
        return notes

    @property
    def _progress(self) -> str:
        total = len(self.plan.jobs())
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"{total - len(self.missing)} of {total} runs are done{failed}"

    @functools.cached_property
    def digits(self) -> int:
        """Decimals such that half the narrowest interval has two significant digits."""
        found = [each.found for each in self.compared if each.found is not None and each.found.has_interval]
        halves = [half for each in found if (half := (each.high - each.low) / 2) > 0]
        return min(max(1 - math.floor(math.log10(min(halves))), 0), 8) if halves else 3

    def table(self) -> Table:
        """One line per activation, the reference first."""
        plan, digits = self.plan, self.digits
        rows = [
            (
                spec_of(each.activation).label, each.finished, estimated(each.mean, digits),
                estimated(each.found, digits, "+"), p_cell(each.verdict.p_value),
                "reference" if each.activation == plan.reference else each.verdict_text,
                numbered(each.verdict.detectable, digits), numbered(each.seconds, 1),
                numbered(each.memory_mb, 0),
            )
            for each in self.all_compared
        ]  # fmt: skip
        headers = (
            "activation", "seeds", plan.metric, f"- {spec_of(plan.reference).label}", "p, Holm-adjusted",
            "verdict", "minimum detectable", "seconds per run", "peak memory, MB",
        )  # fmt: skip
        return Table.of("compare", self.title, headers, rows, self.notes)

    def runs_csv(self) -> str:
        """One line per run, with every metric."""
        names = list(dict.fromkeys(name for row in self.rows.values() for name in row.metrics))
        head = ("activation", "seed", "status", *names, "seconds", "memory_mb", "gpu_memory_mb")
        lines = [
            (name, seed, row.status, *(row.metrics.get(each) for each in names), f"{row.seconds:.3f}",
             *(None if mb is None else f"{mb:.1f}" for mb in (row.memory_mb, row.gpu_memory_mb)))
            for (name, seed), row in sorted(self.rows.items(), key=lambda found: (found[0][1], found[0][0]))
        ]  # fmt: skip
        return csv_lines([head, *lines])

    def __repr__(self) -> str:
        width = max(map(len, self.plan.activations))
        lines = [self.title]
        for each in self.compared:
            found = "" if each.found is None else f"  {each.found.text(self.digits, '+')}"
            lines.append(f"  {each.activation:{width}}{found}  {each.verdict_text}")
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        """A table for notebooks, with the forest plot if it was written."""
        table = self.table()
        rows = [[cell.text for cell in row] for row in table.rows]
        shown = html_table(table.title, [name for _, name in table.headers], rows, table.notes)
        picture = None if self.out is None else self.out / "forest.svg"
        if picture is None or not picture.exists():
            return shown
        from iglu_lab.comparing.output import picture_uri

        return f'{shown}<img alt="Differences to {self.plan.reference}" src="{picture_uri(picture)}">'

    def as_dict(self) -> dict[str, Any]:
        """For compare.json."""
        return {
            "plan": {**self.plan.__dict__},
            "plan_changes": [str(each) for each in self.changes],
            "seeds_judged": self.look,
            "missing": [job.folder_name for job in self.missing],
            "failed": {each.item.folder_name: each.failure for each in self.failures},
            "activations": {each.activation: _body(each) for each in self.all_compared},
            "notes": self.notes,
        }


def _body(each: Compared) -> dict[str, Any]:
    verdict = each.verdict
    return {
        "seeds": each.finished,
        "diverged": each.diverged,
        "mean": None if each.mean is None else each.mean._asdict(),
        "difference": None if each.found is None else each.found._asdict(),
        "p_value_holm": verdict.p_value,
        "verdict": verdict.category,
        "reason": verdict.reason,
        "minimum_detectable_difference": verdict.detectable,
        "seeds_needed": verdict.needed,
        "seconds_per_run": each.seconds,
        "peak_memory_mb": each.memory_mb,
    }


def read_result(out: Path | str) -> CompareResult:
    """The result of the comparison in a folder, without running anything."""
    out = Path(out)
    given = read_plan(out)
    if not given:
        raise UserError(f"{out} contains no comparison: it has no plan.toml")
    plan, log = make_plan(given), Log(out / LOG)
    log.check(plan)
    return CompareResult(plan, log.rows, log.changes, out=out)
