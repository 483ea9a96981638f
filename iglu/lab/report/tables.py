"""The paper's tables beside ours, in its layout, and tables of the same form for what it did not run.

Beside a number of the paper's stands ours at its own scale; reduced runs, which ask the same question of a
smaller network, have columns of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from iglu import zoo
from iglu.lab import paper
from iglu.lab.bench.tables import step_tables, table1
from iglu.lab.probe import tables as tails
from iglu.lab.probe.tables import Tails
from iglu.lab.recipes import Recipe
from iglu.lab.report.answer import compared, planned
from iglu.lab.report.content import LEVEL
from iglu.lab.report.gather import Evidence, Gathered, Samples, seeds_of
from iglu.lab.report.replication import replication_table
from iglu.lab.report.sigmas import rules_table
from iglu.lab.results.comparison import (
    MARKING_RULE,
    METRIC_LABELS,
    REFERENCES,
    Sample,
    digits_of,
    marks,
    scale_of,
    setting_label,
    setting_of,
)
from iglu.lab.results.tables import NONE, NOT_RUN, Cell, Mark, Table, estimated, numbered

_OURS_NOTE = (
    "Ours: runs of the paper's own recipe, mean over seeds ± the 95% t-interval, of the last epoch; in "
    "brackets the number of seeds. Difference: ours minus the published number, where that is right; the "
    "interval is ours alone, since a published number is one run. Reduced: other runs of the same question, "
    "which the remark names; differences to ReLU and GELU are paired by seed."
)


def all_tables(found: Gathered) -> tuple[Table, ...]:
    """Tables 1 to 5, then runs, probes and training steps of our own, then the errata."""
    left = dict(found.samples)
    run_tables = []
    for number in paper.RUN_TABLES:
        table, used = _run_table(paper.run_table(number), left)
        run_tables.append(table)
        left = {setting: of for setting, of in left.items() if setting not in used}
    own = [
        _own_run_table(setting, of, f"own{number}") for number, (setting, of) in enumerate(left.items(), 1)
    ]
    others = own_probes(found)
    steps = [table for sitting in found.sittings for table in step_tables(sitting)]
    return (
        table1(found.sittings),
        *run_tables,
        table5(found),
        *(table for each in found.evidence for table in _planned_tables(each)),
        *rules_table(found.evidence),
        *own,
        *([replication_table(found.repeats)] if found.repeats else []),
        *([tails.networks_table(others)] if others else []),
        *steps,
        _errata(),
    )


# -- cells -----------------------------------------------------------------------------------------


def _published_cell(number: paper.Published | None, digits: int) -> Cell:
    if number is None:
        return NONE
    note = f"printed {number.printed:g}; {number.how}" if number.is_erratum else ""
    return Cell(numbered(number.right, digits).text, number.right, note=note)


def _ours_cell(sample: Sample | None, metric: str, mark: Mark = "") -> Cell:
    if sample is None:
        return NOT_RUN
    found = sample.estimate(metric)
    scale = scale_of(sample.setting, len(sample.runs))
    note = "; ".join([scale, *sample.missing])
    if found is None:
        lost = "diverged" if sample.diverged else "not finished" if not sample.runs else "no such metric"
        return Cell(lost, note=note)
    return Cell(f"{found.text(digits_of(metric))} ({found.size})", found.value, mark, note)


def _ours_column(samples: Sequence[Sample | None], metric: str) -> list[Cell | str]:
    """With the best marked."""
    marked = zip(samples, marks(samples, metric), strict=True)
    return [_ours_cell(each, metric, mark) for each, mark in marked]


def _beside(sample: Sample | None, of: Mapping[str, Sample], reference: str, metric: str) -> Cell:
    """The difference to the reference, paired by seed."""
    other = of.get(reference)
    if sample is None or other is None or sample.activation == reference:
        return NONE
    return estimated(sample.minus(other, metric), digits_of(metric), "+")


def _errata_of(number: int) -> list[str]:
    """What is wrong about a table as a whole; a wrong number is told at its cell."""
    return [
        f"Erratum. {each.place}: printed {each.printed}; right: {each.right} ({each.how})."
        for each in paper.errata()
        if isinstance(each.right, str) and each.place.startswith(f"Table {number},")
    ]


# -- Tables 2 to 4 ---------------------------------------------------------------------------------


def _run_table(table: paper.RunTable, samples: Samples) -> tuple[Table, set[Recipe]]:
    """The table, and the settings it shows."""
    names = list(table.rows)
    headers = [("", "activation")]
    columns: list[list[Cell | str]] = [[zoo.parse(name).label for name in names]]
    used: set[Recipe] = set()
    for recipe in table.recipes:
        full = setting_of(recipe)
        used |= {full} & samples.keys()
        ours = [samples.get(full, {}).get(name) for name in names]
        mine = [column for column in table.columns if column.recipe == recipe]
        for column in mine:
            metric, place = column.metric, table.columns.index(column)
            published = [table.rows[name][place] for name in names]
            headers += [
                (column.heading, f"{METRIC_LABELS[metric]}: {name}")
                for name in ("paper", "ours", "difference")
            ]
            columns.append([_published_cell(number, digits_of(metric)) for number in published])
            columns.append(_ours_column(ours, metric))
            columns.append([_gap(each, metric, number) for each, number in zip(ours, published, strict=True)])
        reduced = reduced_setting(samples, recipe, mine[-1].beside, table.distinguishing(recipe))
        if reduced is not None:
            used.add(reduced)
            metric = mine[-1].metric
            of = samples[reduced]
            chosen = [of.get(name) for name in names]
            labels = [METRIC_LABELS[metric], *(f"- {zoo.ZOO[name].label}" for name in REFERENCES)]
            headers += [(f"{mine[-1].heading}: reduced", label) for label in labels]
            columns.append(_ours_column(chosen, metric))
            columns += [[_beside(each, of, reference, metric) for each in chosen] for reference in REFERENCES]
    title = f"Table {table.number}. {table.caption}"
    notes = (f"The paper: {table.setup}.", _OURS_NOTE, MARKING_RULE, *_errata_of(table.number))
    return Table.of(f"table{table.number}", title, headers, zip(*columns, strict=True), notes), used


def _gap(sample: Sample | None, metric: str, published: paper.Published | None) -> Cell:
    found = None if sample is None else sample.estimate(metric)
    if found is None or published is None:
        return NONE
    return estimated(found.moved(-published.right), digits_of(metric), "+")


def reduced_setting(samples: Samples, recipe: Recipe, beside: str, fixed: Iterable[str]) -> Recipe | None:
    """The setting of most runs that asks what ``recipe`` asks, of fewer or smaller things."""
    fields = tuple(fixed)
    candidates = [
        setting
        for setting, of in samples.items()
        if setting != setting_of(recipe)
        and paper.asks_the_same(setting, recipe, beside, fields)
        and any(sample.runs for sample in of.values())
    ]
    return max(candidates, key=lambda each: sum(len(s.runs) for s in samples[each].values()), default=None)


# -- our own runs ----------------------------------------------------------------------------------


def _own_run_table(setting: Recipe, of: Mapping[str, Sample], key: str) -> Table:
    measured = {metric for sample in of.values() for run in sample.runs for metric in run.last}
    metrics = [metric for metric in METRIC_LABELS if metric in measured and metric != "train_loss"]
    headers = [("", "activation")]
    columns: list[list[Cell | str]] = [[zoo.parse(name).label for name in of]]
    for metric in metrics or [""]:
        label = METRIC_LABELS.get(metric, "runs")
        headers += [(label, "ours"), (label, "minus ReLU")]
        columns.append(_ours_column(list(of.values()), metric))
        columns.append([_beside(each, of, REFERENCES[0], metric) for each in of.values()])
    notes = (
        f"{setting.model} on {setting.dataset}, {setting.epochs} epochs; not an experiment of the paper's. "
        "Mean over seeds ± the 95% t-interval, of the last epoch; in brackets the number of seeds. Minus "
        "ReLU: paired by seed.",
        MARKING_RULE,
    )
    title = f"Our own runs: {setting_label(setting)}"
    return Table.of(key, title, headers, zip(*columns, strict=True), notes)


# -- planned grids ---------------------------------------------------------------------------------


def _planned_tables(evidence: Evidence) -> Iterator[Table]:
    """A table for each setting of a grid, every activation beside the reference; the correction is over all
    of them."""
    group = planned(evidence)
    differences = compared(group)
    for number, (grid, setting, of, metric, reference) in enumerate(group, start=1):
        found = {one.activation: one for one in differences[setting]}
        seeds = seeds_of(of)
        rows = []
        for name, each in of.items():
            one = found.get(name)
            chance = None if one is None or math.isnan(one.chance) else one.chance
            rows.append(
                (
                    zoo.parse(name).label,
                    _ours_cell(each, metric),
                    estimated(None if one is None else one.found, digits_of(metric), "+"),
                    numbered(chance, 3),
                    "" if chance is None else "yes" if chance < LEVEL else "no",
                )
            )
        label, title = zoo.parse(reference).label, f"Grid {grid}: {scale_of(setting, seeds)}"
        names = ("activation", METRIC_LABELS.get(metric, metric), f"- {label}", "p, by Holm", "shown")
        note = (
            f"{seeds} of {len(evidence.grid.seeds)} seeds that were planned. Differences are paired by seed; "
            "one is shown where the p-value of its t-test, raised by Holm over all of the grid, is below 5%."
        )
        yield Table.of(f"grid-{grid}-{number}", title, names, rows, [note])


# -- Table 5 ---------------------------------------------------------------------------------------


def papers_probe(row: paper.TailRow, probes: Iterable[Tails]) -> Tails | None:
    """The probe of a network of Table 5, of its own recipe."""
    wanted = row.recipe.replace(seed=0).identity()
    known = ((each, each.recipe) for each in probes if each.recipe is not None)
    return next((each for each, recipe in known if recipe.replace(seed=0).identity() == wanted), None)


def own_probes(found: Gathered) -> list[Tails]:
    """Those that Table 5 does not show."""
    shown = [papers_probe(row, found.probes) for row in paper.table5()]
    return [each for each in found.probes if not any(each is other for other in shown)]


def network_activation(setting: Recipe) -> str:
    """Whose tails stand for a network's, with normalisation and without: those before IGLU is put in."""
    return "relu" if setting.kind == "images" else "gelu"


def reduced_tails(row: paper.TailRow, samples: Samples) -> Sample | None:
    """Reduced runs of the same question, whose last line has their tails: of the network before IGLU is put
    in, or else with the activation of the row."""
    for activation in (network_activation(row.recipe), row.recipe.activation):
        with_tails = {
            setting: of
            for setting, of in samples.items()
            if activation in of and tails.sample_tails(of[activation], "alpha") is not None
        }
        chosen = reduced_setting(with_tails, row.recipe, row.beside, ("norm",))
        if chosen is not None:
            return with_tails[chosen][activation]
    return None


def table5(found: Gathered) -> Table:
    alpha = tails.HEADERS[0][0]
    reduced = {row: reduced_tails(row, found.samples) for row in paper.table5()}
    headers = (
        "network", "normalisation", (alpha, "paper"), tails.HEADERS[0], (alpha, "difference"),
        *tails.HEADERS[1:5], ("sigma", "paper"), tails.HEADERS[5],
        ("reduced, over seeds", "alpha"), ("reduced, over seeds", "xi over a Gaussian's"),
    )  # fmt: skip
    rows = []
    for row, sample in reduced.items():
        printed = Cell(row.outcome) if row.alpha is None else _published_cell(row.alpha, 1)
        probe = papers_probe(row, found.probes)
        if probe is None:
            cells = [NOT_RUN, NONE, *[NOT_RUN] * 4]
            suggested = NOT_RUN
        else:
            first, *rest, suggested = tails.tail_cells(probe)
            gap = None if row.alpha is None or first.number is None else first.number - row.alpha.right
            cells = [first, numbered(gap, 1, "+"), *rest]
        sigma = None if row.sigma is None else Cell(f"{row.sigma:g}", row.sigma)
        words = (row.model, row.norm or "none")
        rows.append((*words, printed, *cells, sigma, suggested, *_reduced_cells(sample)))
    has_reduced = any(reduced.values())
    content = paper.paper()["table5"]
    notes = (f"The paper: {content['setup']}.", tails.NOTE, *_errata_of(5))
    table = Table.of("table5", f"Table 5. {content['caption']}", headers, rows, notes)
    return table if has_reduced else table.columns(range(len(headers) - 2))


def _reduced_cells(sample: Sample | None) -> Sequence[Cell]:
    if sample is None:
        return (NOT_RUN, NOT_RUN)
    scale = f"{sample.activation}: {scale_of(sample.setting, len(sample.runs))}"
    note = "; ".join([scale, *sample.missing])
    alpha, excess = (tails.sample_tails(sample, name) for name in ("alpha", "excess"))
    return (estimated(alpha, 1, note=note), estimated(excess, 2))


def _errata() -> Table:
    rows = [(each.place, str(each.printed), str(each.right), each.how) for each in paper.errata()]
    return Table.of("errata", "Errata of the paper", ("place", "printed", "right", "how it is known"), rows)
