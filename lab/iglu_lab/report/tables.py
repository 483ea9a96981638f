"""The paper's tables with our numbers, in its layout, and tables of the same form for other runs.

A published number is followed by ours at the paper's scale; reduced runs, which ask the same question of a
smaller network, have separate columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from iglu import zoo
from iglu_lab import paper
from iglu_lab.bench.timing_tables import step_tables, table1
from iglu_lab.probe import tail_tables as tails
from iglu_lab.probe.tail_tables import Tails
from iglu_lab.recipes import Recipe, spec_of
from iglu_lab.report.content import ComparedTask
from iglu_lab.report.gather import Gathered, Samples, seeds_of
from iglu_lab.report.replication import replication_table
from iglu_lab.report.second_round import second_round_tables
from iglu_lab.report.sigmas import rules_table
from iglu_lab.report.summary import RULE, cost_table, loss_table, per_sigma_table
from iglu_lab.stats.comparison import (
    MARKING_RULE,
    METRIC_LABELS,
    REFERENCES,
    Sample,
    describe_setup,
    digits_of,
    marks,
    setting_label,
    setting_of,
)
from iglu_lab.stats.tabulate import NONE, NOT_RUN, Cell, Mark, Table, estimated, numbered, p_cell

_OURS_NOTE = (
    "Ours: runs of the paper's own recipe, mean over seeds ± the 95% t-interval, of the last epoch; the "
    "number of seeds is in brackets. Difference: ours minus the published number, corrected if it is wrong; "
    "the interval is ours only, since a published number is one run. Reduced: other runs for the same "
    "question, named in the remark; differences to ReLU and GELU are paired by seed."
)


def all_tables(found: Gathered, tasks: Sequence[ComparedTask]) -> tuple[Table, ...]:
    """The summary by activation and sigma, Tables 1 to 5, our other runs, probes and training steps, and the
    errata."""
    left = dict(found.samples)
    run_tables = []
    for number in paper.RUN_TABLES:
        table, used = _run_table(paper.run_table(number), left)
        run_tables.append(table)
        left = {
            setting: of
            for setting, of in left.items()
            if setting not in used and setting not in found.second_round_settings
        }
    own = [
        _own_run_table(setting, of, f"own{number}") for number, (setting, of) in enumerate(left.items(), 1)
    ]
    others = own_probes(found)
    steps = [table for session in found.sessions for table in step_tables(session)]
    planned = [task for task in tasks if task.grid]
    return (
        *([per_sigma_table(tasks)] if tasks else []),
        *cost_table(tasks, found.sessions),
        *loss_table(tasks),
        *second_round_tables(found),
        table1(found.sessions),
        *run_tables,
        table5(found),
        *(_grid_table(task, f"grid-{task.grid}-{task.key}") for task in planned),
        *rules_table(found.first_round),
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
    scale = describe_setup(sample.setting, len(sample.runs))
    note = "; ".join([scale, *sample.missing])
    if found is None:
        lost = "diverged" if sample.diverged else "not finished" if not sample.runs else "no such metric"
        return Cell(lost, note=note)
    return Cell(f"{found.text(digits_of(metric))} ({found.size})", found.value, mark, note)


def _ours_column(samples: Sequence[Sample | None], metric: str) -> list[Cell | str]:
    """The cells of a column, with the best marked."""
    marked = zip(samples, marks(samples, metric), strict=True)
    return [_ours_cell(each, metric, mark) for each, mark in marked]


def _difference_cell(sample: Sample | None, of: Mapping[str, Sample], reference: str, metric: str) -> Cell:
    """The difference to the reference, paired by seed."""
    other = of.get(reference)
    if sample is None or other is None or sample.activation == reference:
        return NONE
    return estimated(sample.minus(other, metric), digits_of(metric), "+")


def _errata_of(number: int) -> list[str]:
    """Errata about a table in general; a wrong number has a remark at its cell."""
    return [
        f"Erratum. {each.place}: printed {each.printed}; right: {each.right} ({each.how})."
        for each in paper.errata()
        if isinstance(each.right, str) and each.place.startswith(f"Table {number},")
    ]


# -- Tables 2 to 4 ---------------------------------------------------------------------------------


def _run_table(table: paper.RunTable, samples: Samples) -> tuple[Table, set[Recipe]]:
    """The table, and the settings it shows."""
    labels: list[Cell | str] = [spec_of(name).label for name in table.rows]
    columns = {("", "activation"): labels}
    used: set[Recipe] = set()
    for recipe, group in itertools.groupby(table.columns, key=lambda column: column.recipe):
        full = setting_of(recipe)
        used |= {full} & samples.keys()
        ours = [samples.get(full, {}).get(name) for name in table.rows]
        for column in group:
            heading, metric, plain = column.heading, column.metric, column.plain_metric
            published = [column.numbers.get(name) for name in table.rows]
            gaps = [_gap(each, metric, number) for each, number in zip(ours, published, strict=True)]
            label = METRIC_LABELS[metric]
            columns[heading, f"{label}: paper"] = [
                _published_cell(number, digits_of(metric)) for number in published
            ]
            columns[heading, f"{label}: ours"] = _ours_column(ours, metric)
            columns[heading, f"{label}: difference"] = [*gaps]
            if plain != metric:
                columns[heading, f"{METRIC_LABELS[plain]}: ours"] = _ours_column(ours, plain)
        reduced = reduced_setting(samples, column.question)
        if reduced is not None:
            used.add(reduced)
            of, heading = samples[reduced], f"{heading}: reduced"
            chosen = [of.get(name) for name in table.rows]
            columns[heading, METRIC_LABELS[plain]] = _ours_column(chosen, plain)
            for reference in REFERENCES:
                columns[heading, f"- {zoo.ZOO[reference].label}"] = [
                    _difference_cell(each, of, reference, plain) for each in chosen
                ]
    title = f"Table {table.number}. {table.caption}"
    notes = (f"The paper: {table.setup}.", _OURS_NOTE, MARKING_RULE, *_errata_of(table.number))
    return Table.of_columns(f"table{table.number}", title, columns, notes), used


def _gap(sample: Sample | None, metric: str, published: paper.Published | None) -> Cell:
    found = None if sample is None else sample.estimate(metric)
    if found is None or published is None:
        return NONE
    return estimated(found.moved(-published.right), digits_of(metric), "+")


def reduced_setting(samples: Samples, question: paper.Question) -> Recipe | None:
    """The reduced setting for a question, the one with the most runs."""
    candidates = [
        setting
        for setting, of in samples.items()
        if setting != setting_of(question.recipe)
        and question.is_asked_by(setting)
        and any(sample.runs for sample in of.values())
    ]
    return max(candidates, key=lambda each: sum(len(s.runs) for s in samples[each].values()), default=None)


# -- our own runs ----------------------------------------------------------------------------------


def _own_run_table(setting: Recipe, of: Mapping[str, Sample], key: str) -> Table:
    measured = {metric for sample in of.values() for run in sample.runs for metric in run.last}
    metrics = [metric for metric in METRIC_LABELS if metric in measured and metric != "train_loss"]
    labels: list[Cell | str] = [spec_of(name).label for name in of]
    columns = {("", "activation"): labels}
    for metric in metrics or [""]:
        label = METRIC_LABELS.get(metric, "runs")
        columns[label, "ours"] = _ours_column(list(of.values()), metric)
        columns[label, "minus ReLU"] = [
            _difference_cell(each, of, REFERENCES[0], metric) for each in of.values()
        ]
    notes = (
        f"{setting.model} on {setting.dataset}, {setting.epochs} epochs; not an experiment of the paper. "
        "Mean over seeds ± the 95% t-interval, of the last epoch; the number of seeds is in brackets. Minus "
        "ReLU: paired by seed.",
        MARKING_RULE,
    )
    title = f"Our own runs: {setting_label(setting)}"
    return Table.of_columns(key, title, columns, notes)


# -- planned grids ---------------------------------------------------------------------------------


def _grid_table(task: ComparedTask, key: str) -> Table:
    """Every activation of a task of a planned grid, with its category."""
    differences = {one.activation: one for one in task.differences}
    losses = {one.activation: one.found for one in task.losses}
    rows = []
    for name, sample in task.samples.items():
        one = differences.get(name)
        p_value = None if one is None or math.isnan(one.p_value) else one.p_value
        rows.append(
            (
                spec_of(name).label, _ours_cell(sample, task.metric),
                estimated(one.found if one else None, digits_of(task.metric), "+"), p_cell(p_value),
                f"{one.category} {one.within}".strip() if one else "",
                _ours_cell(sample, "test_loss"), estimated(losses.get(name), digits_of("test_loss"), "+"),
            )
        )  # fmt: skip
    label = f"- {spec_of(task.reference).label}"
    headers = (
        "activation", METRIC_LABELS.get(task.metric, task.metric), label, "p, Holm-adjusted", "category",
        METRIC_LABELS["test_loss"], label,
    )  # fmt: skip
    note = f"{seeds_of(task.samples)} of {task.planned_seeds} planned seeds. {RULE}"
    return Table.of(key, f"Grid {task.grid}: {task.title}", headers, rows, [note])


# -- Table 5 ---------------------------------------------------------------------------------------


def papers_probe(row: paper.TailRow, probes: Iterable[Tails]) -> Tails | None:
    """The probe of a network of Table 5, with the paper's recipe."""
    wanted = row.recipe.replace(seed=0).identity()
    known = ((each, each.recipe) for each in probes if each.recipe is not None)
    return next((each for each, recipe in known if recipe.replace(seed=0).identity() == wanted), None)


def own_probes(found: Gathered) -> list[Tails]:
    """The probes that Table 5 does not show."""
    shown = [papers_probe(row, found.probes) for row in paper.table5()]
    return [each for each in found.probes if not any(each is other for other in shown)]


def network_activation(setting: Recipe) -> str:
    """The activation whose tails represent a network: the one before a swap to IGLU."""
    return "relu" if setting.kind == "images" else "gelu"


def reduced_tails(row: paper.TailRow, samples: Samples) -> Sample | None:
    """Reduced runs for the same question, with tails in their last line: of the network before a swap to
    IGLU, or else with the activation of the row."""
    for activation in (network_activation(row.recipe), row.recipe.activation):
        with_tails = {
            setting: of
            for setting, of in samples.items()
            if activation in of and tails.sample_tails(of[activation], "alpha") is not None
        }
        chosen = reduced_setting(with_tails, row.question)
        if chosen is not None:
            return with_tails[chosen][activation]
    return None


def table5(found: Gathered) -> Table:
    alpha = tails.HEADERS[0][0]
    reduced = {row: reduced_tails(row, found.samples) for row in paper.table5()}
    headers = (
        "network", "normalization", (alpha, "paper"), tails.HEADERS[0], (alpha, "difference"),
        *tails.HEADERS[1:5], ("sigma", "paper"), tails.HEADERS[5],
        (f"{alpha}: reduced", "over seeds"), ("excess: reduced", "over seeds"),
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
    scale = f"{sample.activation}: {describe_setup(sample.setting, len(sample.runs))}"
    note = "; ".join([scale, *sample.missing])
    alpha, excess = (tails.sample_tails(sample, name) for name in ("alpha", "excess"))
    return (estimated(alpha, 1, note=note), estimated(excess, 2))


def _errata() -> Table:
    rows = [(each.place, str(each.printed), str(each.right), each.how) for each in paper.errata()]
    return Table.of("errata", "Errata of the paper", ("place", "printed", "right", "how it is known"), rows)
