"""Comparisons with ReLU and GELU, checked with scipy's paired t-test and a Holm correction by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tyro", reason="the lab")

from scipy.stats import ttest_rel

from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.report.comparisons import all_tasks
from iglu_lab.report.content import ComparedTask, Difference
from iglu_lab.report.curves import curves, learned_sigmas
from iglu_lab.report.gather import Gathered, gather
from iglu_lab.report.replication import repeated, replication_table
from iglu_lab.report.summary import categories, headlines, is_ours, per_sigma_table, summary_table
from iglu_lab.report.tables import all_tables
from iglu_lab.runs.archive import add_to_archive
from iglu_lab.runs.folder import Run
from iglu_lab.stats.comparison import samples
from iglu_lab.stats.statistics import Estimate, holm

LT = RECIPES["resnet20-cifar10-lt"].replace(model="resnet8", epochs=2, threads=1)
GRID = """
recipes = ["resnet20-cifar10-lt"]
activations = ["relu", "gelu", "iglu:0.5", "iglu:5"]
seeds = 4
model = "resnet8"
ratio = [100.0, 200.0]
epochs = 2
threads = 1
[plan]
metric = "test_acc"
reference = "relu"
"""
ACCURACIES = {
    ("relu", 100.0): (50.0, 51.0, 52.0, 53.0),
    ("gelu", 100.0): (51.0, 51.5, 53.5, 53.6),
    ("iglu:0.5", 100.0): (52.0, 53.1, 54.2, 54.9),
    ("iglu:5", 100.0): (50.5, 50.0, 53.0, 52.0),
    ("relu", 200.0): (40.0, 41.0, 42.0, 43.0),
    ("gelu", 200.0): (40.1, 41.2, 42.2, 43.2),
    ("iglu:0.5", 200.0): (38.0, 39.2, 39.9, 41.1),
    ("iglu:5", 200.0): (40.4, 41.9, 42.4, 43.9),
}


def run_of(recipe: Recipe, rows: dict[str, Any], status: str = "finished", date: str = "today") -> Run:
    history = tuple({"epoch": epoch, "train_loss": 1.0, **rows} for epoch in range(1, recipe.epochs + 1))
    return Run(Path("nowhere"), recipe, status, history, "", {"date": date, "cpu": date})


def grid_runs(status: str = "finished") -> list[Run]:
    return [
        run_of(
            LT.replace(activation=name, ratio=ratio, seed=seed), {"test_loss": 1.0, "test_acc": value},
            status if (name, seed) == ("iglu:0.5", 3) else "finished",
        )
        for (name, ratio), values in ACCURACIES.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip


def planned(folder: Path, runs: list[Run]) -> tuple[ComparedTask, ...]:
    add_to_archive(runs, folder / "mine.jsonl")
    (folder / "mine.toml").write_text(GRID)
    return all_tasks(gather([folder]))


def test_p_values_are_of_the_paired_t_test_holm_adjusted_over_the_grid(tmp_path: Path) -> None:
    tasks = planned(tmp_path, grid_runs())
    assert [task.grid for task in tasks] == ["mine", "mine"]
    own = {
        (name, ratio): float(ttest_rel(values, ACCURACIES["relu", ratio]).pvalue)
        for (name, ratio), values in ACCURACIES.items()
        if name != "relu"
    }
    largest, adjusted_p = 0.0, {}
    for place, key in enumerate(sorted(own, key=own.__getitem__)):
        largest = max(largest, min(1.0, (6 - place) * own[key]))
        adjusted_p[key] = largest
    found = {
        (one.activation, ratio): one.p_value
        for task, ratio in zip(tasks, (100.0, 200.0), strict=True)
        for one in task.differences
    }
    assert found == pytest.approx(adjusted_p, rel=1e-9)


def test_the_tables_of_a_grid_show_the_p_values_of_the_summary(tmp_path: Path) -> None:
    tasks = planned(tmp_path, grid_runs())
    tables = [each for each in all_tables(gather([tmp_path]), tasks) if each.key.startswith("grid-mine")]
    for task, table in zip(tasks, tables, strict=True):
        p_values = [row[3].number for row in table.rows if row[3].number is not None]
        assert p_values == pytest.approx([one.p_value for one in task.differences])


def test_the_summary_has_every_category_with_its_differences(tmp_path: Path) -> None:
    tasks = planned(tmp_path, grid_runs())
    found = [one for task in tasks for one in task.differences_to("relu") if is_ours(one.activation)]
    assert [one.category for one in found] == ["better", "inconclusive", "worse", "equivalent"]
    table = summary_table(tasks)
    first, last = ([cell.text for cell in row] for row in table.rows)
    assert [name for _, name in table.headers] == ["task", "vs. ReLU", "vs. GELU"]
    assert first[:2] == [
        "resnet8 on cifar10 at 100:1, 2 epochs, 4 seeds; accuracy, %",
        "better: iglu:0.5 +2.05 ± 0.21; inconclusive: iglu:5 -0.12 ± 1.64",
    ]
    assert last[0].startswith("resnet8 on cifar10 at 200:1")
    assert "worse: iglu:0.5 -2.1" in last[2]


def test_counts_are_per_activation_and_sigma(tmp_path: Path) -> None:
    tasks = planned(tmp_path, grid_runs())
    counts = {
        (row[0].text, row[1].text): [cell.number for cell in row[2:]] for row in per_sigma_table(tasks).rows
    }
    assert counts["IGLU (sigma = 0.5)", "ReLU"] == [1, 0, 0, 0, 1, 2]
    assert counts["IGLU (sigma = 5)", "ReLU"] == [0, 0, 1, 1, 0, 2]
    assert ("GELU", "ReLU") in counts  # baselines as well
    sentence = next(line for line in headlines(tasks) if "0.5" in line)
    assert sentence.startswith(
        "IGLU (sigma = 0.5) was better than ReLU on 1 of 2 tasks, worse on 1, equivalent on 0"
    )


@pytest.mark.parametrize(
    ("metric", "deviation", "mean", "margin"),
    [
        ("test_acc", 0.3, 50.0, "0.5 points"),
        ("test_acc", 0.8, 50.0, "1 point"),
        ("test_acc", 2.0, 50.0, None),
        ("perplexity", 0.8, 80.0, "1%"),
        ("perplexity", 0.8, 40.0, None),
        ("test_loss", 0.001, 2.0, None),
    ],
)
def test_equivalence_is_the_90_per_cent_interval_inside_a_margin(
    metric: str, deviation: float, mean: float, margin: str | None
) -> None:
    """Ten seeds: the 90% interval of a mean of 0.1 is 0.1 +- 1.833 SD / sqrt(10)."""
    half = 2.262 * deviation / math.sqrt(10)
    found = Estimate(0.1, 0.1 - half, 0.1 + half, 10, deviation)
    one = Difference("iglu", "relu", metric, found, 0.5, reference_mean=mean)
    assert (one.margin and one.margin.text) == margin
    assert one.category == ("equivalent" if margin else "inconclusive")
    significant = Difference("iglu", "relu", metric, found, 0.01, reference_mean=mean)
    assert significant.category == ("better" if metric == "test_acc" else "worse")


def test_the_summary_lists_the_best_first_and_marks_what_was_not_planned() -> None:
    def one(activation: str, value: float, p_value: float, diverged: int = 0) -> Difference:
        found = Estimate(value, value - 0.5, value + 0.5, 4, 0.3)
        return Difference(
            activation, "relu", "perplexity", found, p_value, diverged=diverged, reference_mean=10.0
        )

    found = (
        one("gelu", -9.0, 0.001), one("iglu:0.5", 3.0, 0.001, diverged=1), one("iglu:1", 2.0, 0.001),
        one("iglu:5", -2.0, 0.001), one("iglu:10", -3.0, 0.001), one("iglu:7", 0.3, 0.5),
    )  # fmt: skip
    table = summary_table([ComparedTask(LT, {}, "perplexity", "relu", title="a task", differences=found)])
    assert [cell.text for cell in table.rows[0]] == [
        "a task; perplexity (not planned)",
        "better: iglu:10 -3.00 ± 0.50, iglu:5 -2.00 ± 0.50; inconclusive: iglu:7 +0.30 ± 0.50; "
        "worse: iglu:1 +2.00 ± 0.50, iglu:0.5 +3.00 ± 0.50 (1 diverged)",
        "not run",
    ]
    assert any(note.startswith("Not planned:") for note in table.notes)


def test_an_activation_that_diverged_in_every_seed_is_inconclusive(tmp_path: Path) -> None:
    """It is counted, it is named, and it stays in the family of the p-values."""
    runs = [
        run_of(run.recipe, {}, "diverged") if run.recipe.activation == "iglu:5" else run
        for run in grid_runs()
    ]
    tasks = planned(tmp_path, runs)
    assert categories(tasks, "iglu:5", "relu") == {"inconclusive": 2}
    assert "no number: iglu:5 (4 diverged)" in summary_table(tasks).rows[0][1].text
    own = {
        (name, ratio): 1.0 if name == "iglu:5" else float(ttest_rel(values, ACCURACIES["relu", ratio]).pvalue)
        for (name, ratio), values in ACCURACIES.items()
        if name != "relu"
    }
    adjusted = holm(own)
    for task, ratio in zip(tasks, (100.0, 200.0), strict=True):
        for one in task.differences:
            assert one.p_value == pytest.approx(adjusted[one.activation, ratio])


def test_a_comparison_of_one_seed_is_inconclusive_and_marked(tmp_path: Path) -> None:
    tasks = planned(tmp_path, [run for run in grid_runs() if run.recipe.seed == 0])
    assert "inconclusive: iglu:0.5 +2.00 (one seed)" in summary_table(tasks).rows[0][1].text


def test_without_a_comparison_the_summary_states_that_nothing_was_run() -> None:
    assert headlines([]) == ["No runs compare IGLU with ReLU or GELU."]


def test_an_activation_with_a_diverged_seed_is_not_better_but_may_be_worse(tmp_path: Path) -> None:
    tasks = planned(tmp_path, grid_runs("diverged"))
    found = {
        task.title: next(one for one in task.differences if one.activation == "iglu:0.5") for task in tasks
    }
    assert [one.diverged for one in found.values()] == [1, 1]
    better, worse = found.values()
    assert better.gain.value > 0
    assert better.category == "inconclusive"
    sure = Difference("iglu", "relu", "perplexity", Estimate(2.0, 1.0, 3.0, 3, 0.1), 0.001, diverged=1)
    assert sure.category == "worse"
    assert worse.gain.value < 0


def test_the_published_difference_is_that_of_the_column_of_the_same_setting(tmp_path: Path) -> None:
    """Table 4 at 100:1 and 200:1 (printed as 500:1): accuracy of IGLU at 0.5 minus ReLU's."""
    tasks = planned(tmp_path, grid_runs())
    found = [
        next(one.published for one in task.differences if one.activation == "iglu:0.5") for task in tasks
    ]
    assert found == pytest.approx([1.44, 2.28])


def test_an_incomplete_grid_is_compared_on_the_seeds_that_all_activations_have(tmp_path: Path) -> None:
    runs = [run for run in grid_runs() if run.recipe.seed < 2 or run.recipe.activation == "relu"]
    tasks = planned(tmp_path, runs)
    assert {one.found.size for task in tasks for one in task.differences} == {2}


def test_a_grid_with_an_activation_that_was_not_run_has_no_comparison(tmp_path: Path) -> None:
    assert planned(tmp_path, [run for run in grid_runs() if run.recipe.activation != "iglu:5"]) == ()


def test_an_activation_with_one_seed_is_inconclusive_and_does_not_change_the_other_p_values() -> None:
    chosen = [
        run for run in grid_runs() if run.recipe.ratio == 100 and run.recipe.activation in ("relu", "gelu")
    ]
    lone = run_of(LT.replace(activation="silu", ratio=100.0), {"test_acc": 99.0})
    (task,) = all_tasks(Gathered(runs=(*chosen, lone)))
    found = {one.activation: one for one in task.differences}
    own = ttest_rel(ACCURACIES["gelu", 100.0], ACCURACIES["relu", 100.0]).pvalue
    assert found["gelu"].p_value == pytest.approx(float(own))
    assert math.isnan(found["silu"].p_value)
    assert found["silu"].category == "inconclusive"


# -- replicated runs -----------------------------------------------------------------------------------


def test_a_replicated_run_counts_as_a_replication_and_a_copy_does_not() -> None:
    first = [run_of(LT.replace(seed=seed), {"test_acc": 50.0 + seed}) for seed in range(3)]
    copy = run_of(LT.replace(seed=0), {"test_acc": 50.0})
    again = [
        run_of(LT.replace(seed=seed), {"test_acc": 50.0 + seed + move}, date="tomorrow")
        for seed, move in enumerate((0.0, 0.4, -1.0))
    ]
    found = repeated([*first, copy, *again])
    assert [each.difference for each in found] == pytest.approx([0.0, 0.4, -1.0])
    cells = {header[1]: cell for header, cell in zip(*_line(found), strict=True)}
    assert cells["runs"].number == 3
    assert cells["identical"].number == 1
    assert cells["mean"].number == pytest.approx(-0.2)
    assert cells["standard deviation"].number == pytest.approx(math.sqrt((0.04 + 0.36 + 0.64) / 2))
    assert cells["largest"].number == pytest.approx(-1.0)
    assert cells["standard deviation between seeds"].number == pytest.approx(1.0)


def test_replications_without_a_number_have_a_line_with_their_count() -> None:
    found = repeated([run_of(LT, {"test_acc": math.nan}, date=day) for day in ("today", "tomorrow")])
    headers, cells = _line(found)
    assert [cell.text for cell in cells[2:]] == ["1", "", "", "", "", ""]
    assert len(cells) == len(headers)


def _line(found: Any) -> tuple[Any, Any]:
    table = replication_table(found)
    return table.headers, table.rows[0]


def test_replications_are_listed_in_the_sources_and_count_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        add_to_archive([run_of(LT, {"test_acc": 50.0}, date=name)], tmp_path / f"{name}.jsonl")
    found = gather([tmp_path])
    assert len(found.runs) == 1
    assert any(line.startswith("repeated and counted once: 1 run") for line in found.sources)
    assert not any("more than once" in line for line in found.sources)


# -- over epochs ---------------------------------------------------------------------------------------


def test_a_learned_sigma_has_one_curve_per_layer_averaged_over_channels() -> None:
    runs = [
        run_of(
            LT.replace(activation="iglu:learnable=5", seed=seed),
            {"test_acc": 1.0, "sigmas": {"act1": [1.0 + seed, 3.0 + seed], "act2": [4.0]}},
        )
        for seed in range(2)
    ]
    found = {curve.metric: curve for curve in learned_sigmas(samples(runs))}
    assert found["act1"].mean == (2.5, 2.5)
    assert found["act2"].mean == (4.0, 4.0)
    assert found["act1"].epochs == (1.0, 2.0)
    assert found["act1"].seeds == 2


def test_a_curve_has_the_epochs_that_every_seed_has() -> None:
    runs = [run_of(LT.replace(seed=seed), {"test_acc": 50.0 + seed}) for seed in range(2)]
    runs[1].history[0].pop("test_acc")  # it was evaluated after the last epoch alone
    found = {curve.metric: curve for curve in curves(samples(runs))}
    assert found["test_acc"].epochs == (2.0,)
    assert found["test_acc"].mean == (50.5,)
    assert found["train_loss"].epochs == (1.0, 2.0)


def test_no_band_of_an_accuracy_exceeds_100_and_none_of_a_loss_is_below_0() -> None:
    runs = [
        run_of(LT.replace(seed=seed), {"test_acc": 99.0 + seed, "test_loss": 0.1 + seed}) for seed in range(2)
    ]
    found = {curve.metric: curve for curve in curves(samples(runs))}
    assert max(found["test_acc"].high) == 100.0
    assert min(found["test_acc"].low) < 99.0
    assert min(found["test_loss"].low) == 0.0
