"""Grids whose plan names its comparisons, on synthetic rows with a known outcome."""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import iglu

pytest.importorskip("tyro", reason="the lab")

from scipy import stats
from scipy.optimize import minimize_scalar

from iglu_lab.report.comparisons import all_tasks
from iglu_lab.report.curves import curves
from iglu_lab.report.figures.measured import measured_figures
from iglu_lab.report.gather import Gathered, gather
from iglu_lab.report.second_round import prediction_interval, second_round_tables
from iglu_lab.report.summary import per_sigma_table
from iglu_lab.report.tables import all_tables
from iglu_lab.runs.archive import add_to_archive
from iglu_lab.runs.folder import Run
from iglu_lab.stats.style import BLUE
from iglu_lab.stats.tabulate import Table
from iglu_lab.storage import RESULTS, read_toml
from iglu_lab.sweep.grid import read_grid

EVIDENCE = RESULTS / "evidence"
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
Value = Callable[[str, int, float], dict[str, Any]]  # of an activation, a seed and a learning rate


def write_grid(folder: Path, name: str, text: str, value: Value, seeds: int | None = None) -> Gathered:
    """The grid and recorded runs of it, whose last row has this value, or only of the first ``seeds``."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    grid = read_grid(str(path))
    runs = []
    for recipe in grid.runs:
        if seeds is None or recipe.seed in grid.seeds[:seeds]:
            last = value(recipe.activation, recipe.seed, recipe.lr)
            rows = [{"epoch": epoch, "train_loss": 1.0, "task_acc": 50.0, "dead_units": 0.1} for epoch in
                    range(1, recipe.epochs + 1)]  # fmt: skip
            status = "diverged" if last.pop("diverged", False) else "finished"
            rows[-1] |= last
            runs.append(Run(Path("nowhere"), recipe, status, tuple(rows), "", {"date": "today"}))
    add_to_archive(runs, folder / f"{name}.jsonl")
    return gather([folder])


def noise(seed: int, activation: str, size: float = 0.1) -> float:
    """The same on every run, and of mean 0 over many seeds."""
    return size * math.sin(7.0 * seed + 3.0 * len(activation) + sum(map(ord, activation)))


def table(found: Gathered, key: str) -> Table:
    return next(each for each in second_round_tables(found) if each.key == key)


def outcomes(found: Table) -> dict[str, str]:
    return {row[0].text: row[-1].text for row in found.rows}


# -- tail ----------------------------------------------------------------------------------------------

TAIL = (EVIDENCE / "tail.toml").read_text()


def test_the_baselines_of_the_grid_tail_have_the_sharpness_that_its_plan_states() -> None:
    """The Gaussian gate Phi(a x) has the derivative a / sqrt(2 pi) at 0, the Cauchy gate sigma / pi; 0.571 is
    the least-squares match of the outputs under N(0, 1) at sigma = 1."""
    arms = [name.partition(":") for name in read_toml(TAIL)["activations"]]
    sharpness = [float(number) for name, _, number in arms if name == "gelu_a"]
    for a, sigma in ((sharpness[0], 1.0), (sharpness[2], 0.5)):
        assert a / math.sqrt(2 * math.pi) == pytest.approx(sigma / math.pi, rel=1e-9)
    x = torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)
    target = iglu.iglu(x, 1.0)

    def distance(a: float) -> float:
        return (iglu.gelu_scaled(x, a) - target).square().mean().item()

    assert minimize_scalar(distance, bounds=(0.1, 2.0)).x == pytest.approx(sharpness[1], abs=5e-4)


def tail_values(primary: float, closest: float, size: float = 0.1) -> Value:
    gains = {"iglu:1": 0.0, "gelu_a:0.7978845608": -primary, "gelu_a:0.571": -closest}

    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        accuracy = 50 + seed + gains.get(activation, 0.0) + noise(seed, activation, size)
        return {"test_acc": accuracy, "test_loss": 1.0}

    return value


@pytest.mark.parametrize(
    ("primary", "closest", "size", "outcome", "conclusion"),
    [
        (0.9, 0.7, 0.1, "helped by 0.9", "The heavy tail is credited"),
        (-0.3, -0.4, 0.1, "cost 0.", "The heavy tail is blamed"),
        (0.9, -0.7, 0.1, "helped by 0.9", "differ in sign"),
        (0.0, 0.7, 0.1, "no difference of half a point", "the primary comparison is not significant"),
        (0.0, 0.7, 3.0, "inconclusive; about", "the primary comparison is not significant"),
    ],
)
def test_the_tail_is_credited_only_if_significant_and_both_at_sigma_1_agree(
    tmp_path: Path, primary: float, closest: float, size: float, outcome: str, conclusion: str
) -> None:
    found = table(write_grid(tmp_path, "tail", TAIL, tail_values(primary, closest, size)), "round2-tail")
    text = outcomes(found)["IGLU minus GELU_a of equal gate slope at 0, sigma = 1"]
    assert text.startswith(outcome)
    assert ("lies within half a point" in text) == (primary == -0.3)
    assert conclusion in found.notes[0]
    assert [row[1].text for row in found.rows] == ["primary", "secondary", "secondary"]


def test_a_sealed_grid_shows_the_number_of_its_runs_and_nothing_else(tmp_path: Path) -> None:
    found = write_grid(tmp_path, "tail", TAIL, tail_values(0.9, 0.7), seeds=19)
    (status,) = second_round_tables(found)
    assert [cell.text for cell in status.rows[0][2:]] == ["95", "100", "sealed until 20 complete seeds"]
    tasks = all_tasks(found)
    assert tasks == ()
    keys = [each.key for each in all_tables(found, tasks)]
    assert not any(key.startswith(("round2", "own", "grid")) for key in keys)


def test_a_grid_of_the_second_round_is_in_no_count_of_the_first(tmp_path: Path) -> None:
    found = write_grid(tmp_path, "tail", TAIL, tail_values(0.9, 0.7))
    assert all_tasks(found) == ()
    assert per_sigma_table(all_tasks(found)).rows == ()


def test_seeds_of_the_second_round_are_in_no_mean_of_the_first(tmp_path: Path) -> None:
    """The grids lt and tail have the same setting and different seeds."""
    for name in ("lt.toml", "lt.jsonl"):
        (tmp_path / name).write_text((EVIDENCE / name).read_text())
    first = gather([tmp_path])
    both = write_grid(tmp_path, "tail", TAIL, tail_values(0.9, 0.7))
    assert len(both.runs) == len(first.runs) + 100
    own, shared = all_tables(first, all_tasks(first)), all_tables(both, all_tasks(both))
    assert [each for each in shared if not each.key.startswith(("round2", "second-round"))] == [
        each for each in own if each.key != "second-round"
    ]
    assert curves(both.samples) == curves(first.samples)


def test_no_activation_is_better_over_a_diverged_run_of_its_own(tmp_path: Path) -> None:
    helped = tail_values(0.9, 0.7)

    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        is_lost = activation == "iglu:1" and seed == 12
        return helped(activation, seed, rate) | ({"diverged": True} if is_lost else {})

    found = table(write_grid(tmp_path, "tail", TAIL, value), "round2-tail")
    text = outcomes(found)["IGLU minus GELU_a of equal gate slope at 0, sigma = 1"]
    assert text.startswith("inconclusive: helped by 0.9")
    assert text.endswith("without the diverged runs")
    assert "neither credited nor blamed" in found.notes[0]
    assert "Diverged: 1 of iglu:1 at 0.001." in found.notes


def test_the_metrics_of_each_activation_of_an_open_grid_are_shown_without_a_verdict(tmp_path: Path) -> None:
    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        layers = {"act1": {"excess": 1.6}, "act2": {"excess": 0.4}}
        return {"test_acc": 50.0 + seed, "test_loss": 1.5, "test_acc_few": 20.0, "tails": layers}

    found = table(write_grid(tmp_path, "tail", TAIL, value), "round2-tail-activations")
    names = [name for _, name in found.headers]
    assert len(found.rows) == 5
    for line in found.rows:
        numbers = {name: cell.number for name, cell in zip(names, line, strict=True)}
        assert numbers["accuracy, %"] == pytest.approx(69.5)
        assert numbers["test loss"] == pytest.approx(1.5)
        assert numbers["few-shot, %"] == pytest.approx(20.0)
        assert numbers["tail relative to a Gaussian's"] == pytest.approx(0.8)


def test_planned_comparisons_are_a_figure_with_the_better_side_on_the_right(tmp_path: Path) -> None:
    found = write_grid(tmp_path, "tail", TAIL, tail_values(0.9, 0.0))
    (figure,) = [each for each in measured_figures(found, ()) if each.key == "comparisons-tail"]
    (panel,) = figure.panels
    points = [line for line in panel.lines if line.marker]
    bars = [line for line in panel.lines if not line.marker and line.x[0] != line.x[1]]
    rows = table(found, "round2-tail").rows
    assert panel.names == tuple(row[0].text for row in rows)
    for row, point, bar in zip(rows, points, bars, strict=True):
        assert point.x == (pytest.approx(row[2].number),)
        assert bar.x[0] < point.x[0] < bar.x[1]
    assert points[0].color == BLUE != points[1].color
    assert {line.x[0] for line in panel.lines if line.dash == "--"} == {-0.5, 0.5}


def test_a_comparison_whose_runs_diverged_stays_in_its_family(tmp_path: Path) -> None:
    """The p-value of another comparison must not fall because an activation diverged in every seed."""
    some, helped = tail_values(0.9, 0.1, 1.0), "gelu_a:0.3989422804"

    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        return some(activation, seed, rate) | ({"diverged": True} if activation == helped else {})

    def p_values(values: Value) -> dict[str, float | None]:
        return {row[0].text: row[3].number for row in found_rows(values)}

    def found_rows(values: Value) -> Any:
        return table(write_grid(tmp_path, "tail", TAIL, values), "round2-tail").rows

    complete = p_values(some)
    (tmp_path / "tail.jsonl").unlink()
    rows = found_rows(value)
    lost = {row[0].text: row for row in rows}["IGLU minus GELU_a of equal gate slope at 0, sigma = 0.5"]
    assert (lost[2].text, lost[3].number) == ("", 1.0)
    assert lost[4].text == "inconclusive: fewer than two seeds have a number for both"
    (tmp_path / "tail.jsonl").unlink()
    closest = "IGLU minus GELU_a of the closest output, sigma = 1"
    assert p_values(value)[closest] == pytest.approx(complete[closest])


def test_runs_that_stopped_early_do_not_unseal_a_grid(tmp_path: Path) -> None:
    found = write_grid(tmp_path, "tail", TAIL, tail_values(0.9, 0.7), seeds=19)
    path = tmp_path / "tail.toml"
    last = [recipe for recipe in read_grid(str(path)).runs if recipe.seed == 29]
    rows = tuple({"epoch": epoch, "train_loss": 1.0} for epoch in range(1, 40))
    rows[-1].update({"test_acc": 60.0, "test_loss": 1.0})
    early = [
        Run(Path("nowhere"), recipe.replace(stop_after=39), "stopped", rows, "", {"date": "today"})
        for recipe in last
    ]
    add_to_archive([*found.sealed, *early], tmp_path / "tail.jsonl")
    found = gather([tmp_path])
    (status,) = second_round_tables(found)
    assert [cell.text for cell in status.rows[0][2:]] == ["95", "100", "sealed until 20 complete seeds"]
    assert found.runs == []


def test_a_sealed_grid_includes_runs_in_another_memory_format_or_spelling(tmp_path: Path) -> None:
    found = write_grid(tmp_path, "tail", TAIL, tail_values(0.9, 0.7), seeds=3)
    others = [
        dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, channels_last=False))
        for run in found.sealed
    ]
    (tmp_path / "tail.jsonl").unlink()
    add_to_archive(others, tmp_path / "tail.jsonl")
    (tmp_path / "tail.toml").write_text(TAIL.replace('"iglu:1"', '"iglu:1.0"'))
    found = gather([tmp_path])
    assert found.runs == []
    assert len(found.sealed) == 15


# -- paper-lt ------------------------------------------------------------------------------------------

PAPER = (EVIDENCE / "paper-lt.toml").read_text()
PRIMARY = "Mean of the two IGLU forms minus mean of ReLU and GELU"


def paper_values(gain: float) -> Value:
    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        accuracy = (
            31 + 0.4 * seed + (gain if activation.startswith("iglu") else 0.0) + noise(seed, activation)
        )
        return {"test_acc": accuracy, "test_acc_batch_balanced": accuracy - 1.0, "test_loss": 3.0}

    return value


@pytest.mark.parametrize(("gain", "is_smaller"), [(0.8, True), (1.9, False)])
def test_the_papers_difference_is_compared_in_its_own_metric(
    tmp_path: Path, gain: float, is_smaller: bool
) -> None:
    found = write_grid(tmp_path, "paper-lt", PAPER, paper_values(gain))
    judged = table(found, "round2-paper-lt")
    assert outcomes(judged)[PRIMARY].startswith("helped by")
    assert "published, from one run each: +1.8" in judged.notes[0]  # (31.45 + 32.46 - 30.01 - 30.17) / 2
    assert ("smaller than published" in judged.notes[0]) == is_smaller
    assert "Only the ratio 100:1 was run" in judged.notes[1]


def test_a_published_number_is_like_one_more_run_if_it_is_in_the_prediction_interval(tmp_path: Path) -> None:
    found = table(write_grid(tmp_path, "paper-lt", PAPER, paper_values(4.0)), "round2-paper-lt-published")
    for row, activation in zip(found.rows, ("iglu:0.5", "iglu_approx:0.5", "relu", "gelu"), strict=True):
        values = [paper_values(4.0)(activation, seed, 0)["test_acc_batch_balanced"] for seed in range(5)]
        low, high = prediction_interval(values)
        printed = row[5].number
        assert printed is not None
        assert row[6].text == ("yes" if low <= printed <= high else "no")
        assert len(row[1].text.split(", ")) == 5
    assert {row[6].text for row in found.rows} == {"yes", "no"}


def test_a_prediction_interval_is_that_of_one_new_observation() -> None:
    values = [1.0, 2.0, 4.0, 5.5]
    low, high = prediction_interval(values)
    half = stats.t(3).ppf(0.975) * statistics.stdev(values) * math.sqrt(1.25)
    assert (low, high) == pytest.approx((3.125 - half, 3.125 + half))


# -- plasticity ----------------------------------------------------------------------------------------

PLASTICITY = """
recipes = ["plasticity-labels"]
activations = ["relu", "leaky_relu:0.3", "gelu_a:0.798", "iglu:1"]
seeds = 4
epochs = 5
threads = 1

[by_activation."relu"]
lr = 3e-4

[by_activation."iglu:1"]
lr = 1e-3

[plan]
metric = "final_acc"
reference = "leaky_relu:0.3"
margin = 1.0
looks = [4]

[plan.primary]
"IGLU minus LeakyReLU" = ["iglu:1", "leaky_relu:0.3"]
"IGLU minus GELU_a" = ["iglu:1", "gelu_a:0.798"]

[plan.secondary]
"IGLU minus ReLU" = ["iglu:1", "relu"]
"""


def plasticity_values(activation: str, seed: int, rate: float) -> dict[str, Any]:
    means = {"relu": 11.0, "leaky_relu:0.3": 41.0, "gelu_a:0.798": 45.0, "iglu:1": 45.0}
    accuracy = means[activation] + seed + noise(seed, activation)
    return {
        "final_acc": accuracy,
        "acc_gap": -5.0,
        "dead_units": 0.2,
        "recovery_acc": 30.0,
        "fresh_acc": 50.0,
    }


def test_activations_with_learning_rates_of_their_own_are_compared_by_seed(tmp_path: Path) -> None:
    found = write_grid(tmp_path, "plasticity-labels", PLASTICITY, plasticity_values)
    judged = outcomes(table(found, "round2-plasticity-labels"))
    assert judged["IGLU minus LeakyReLU"].startswith(("helped by 4.", "helped by 3.9"))
    assert judged["IGLU minus GELU_a"] == "no difference of one point"
    assert judged["IGLU minus ReLU"].startswith(("helped by 34.", "helped by 33.9"))
    shown = table(found, "round2-plasticity-labels-activations")
    rates = {row[0].text: row[1].text for row in shown.rows}
    assert rates["ReLU"] == "0.0003"
    assert rates["IGLU (sigma = 1)"] == "0.001"
    assert not any(each.key.startswith("own") for each in all_tables(found, all_tasks(found)))


def test_accuracy_over_tasks_is_a_figure_with_bands(tmp_path: Path) -> None:
    found = write_grid(tmp_path, "plasticity-labels", PLASTICITY, plasticity_values)
    (figure,) = [
        each
        for each in measured_figures(found, curves(found.samples))
        if each.key == "tasks-plasticity-labels"
    ]
    accuracy, dead = figure.panels
    assert [len(panel.lines) for panel in (accuracy, dead)] == [4, 4]
    line = accuracy.lines[0]
    assert len(line.x) == len(line.low) == len(line.high) == 5
    assert figure.is_on_page
    assert dataclasses.asdict(dead)["lines"][0]["y"][-1] == pytest.approx(0.2)


# -- learning rates ------------------------------------------------------------------------------------

RATES = """
recipes = ["resnet20-cifar10-lt"]
activations = ["relu", "gelu", "iglu:0.5"]
seeds = [50, 51, 52, 53, 54]
model = "resnet8"
epochs = 2
lr = 1e-3
threads = 1

[by_activation."relu"]
lr = [1e-3, 3e-3]

[plan]
metric = "test_acc"
reference = "relu"
margin = 0.5

[plan.primary]
"IGLU minus ReLU" = ["iglu:0.5", "relu"]
"IGLU minus GELU" = ["iglu:0.5", "gelu"]
"""


@pytest.mark.parametrize(
    ("better_rate", "conclusion"), [(3.0, "The ranking changes"), (0.0, "does not change")]
)
def test_the_ranking_changes_only_with_opposite_signs_or_an_interaction(
    tmp_path: Path, better_rate: float, conclusion: str
) -> None:
    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        gain = {"relu": -1.0, "gelu": 0.0, "iglu:0.5": 0.0}[activation] + (
            better_rate if rate > 2e-3 else 0.0
        )
        return {"test_acc": 50 + seed + gain + noise(seed, f"{activation}{rate}"), "test_loss": 1.0}

    found = write_grid(tmp_path, "learning-rate", RATES, value)
    judged = table(found, "round2-learning-rate")
    assert conclusion in judged.notes[0]
    families = [(row[0].text, row[1].text) for row in judged.rows]
    assert families == [
        ("IGLU minus ReLU, at 0.001", "pairs"),
        ("IGLU minus ReLU, at 0.001 and 0.003", "pairs"),
        ("IGLU minus GELU, at 0.001", "pairs"),  # both chose 0.001: no interaction
        ("IGLU minus ReLU, interaction", "interactions"),
    ]
    assert "IGLU minus ReLU has opposite signs" in judged.notes[0] or not better_rate


def test_a_ranking_does_not_change_over_a_run_that_diverged(tmp_path: Path) -> None:
    """ReLU is 3 points better at its own rate, where one of its runs diverged."""

    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        gain = (3.0 if rate > 2e-3 else -1.0) if activation == "relu" else 0.0
        is_lost = activation == "relu" and seed == 52 and rate > 2e-3
        return {"test_acc": 50 + seed + gain + noise(seed, f"{activation}{rate}"), "diverged": is_lost}

    judged = table(write_grid(tmp_path, "learning-rate", RATES, value), "round2-learning-rate")
    found = outcomes(judged)
    assert found["IGLU minus ReLU, at 0.001"].startswith("helped by")
    assert found["IGLU minus ReLU, at 0.001 and 0.003"].startswith("inconclusive: cost")
    assert found["IGLU minus ReLU, interaction"].startswith("inconclusive: cost")
    assert "The ranking does not change with the learning rate." in judged.notes
    assert "Diverged: 1 of relu at 0.003." in judged.notes


def test_rates_whose_runs_diverged_in_different_seeds_have_an_unknown_interaction(tmp_path: Path) -> None:
    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        is_lost = activation == "relu" and (seed > 51) == (rate > 2e-3)
        gain = noise(seed, f"{activation}{rate}")
        return {"test_acc": math.nan if is_lost else 50 + seed + gain, "test_loss": 1.0}

    judged = table(write_grid(tmp_path, "learning-rate", RATES, value), "round2-learning-rate")
    assert [row[0].text for row in judged.rows] == [
        "IGLU minus ReLU, at 0.001",
        "IGLU minus ReLU, at 0.001 and 0.003",
        "IGLU minus GELU, at 0.001",
        "IGLU minus ReLU, interaction",
    ]
    assert outcomes(judged)["IGLU minus ReLU, interaction"].startswith("inconclusive: fewer than two seeds")


# -- pilots --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", ["plasticity-labels", "plasticity-pixels"])
def test_a_pilot_prints_the_learning_rates_of_its_grid(tmp_path: Path, title: str) -> None:
    pilot = pytest.importorskip("pilot", reason="needs a clone")

    higher = {"relu": 3e-4, "silu": 1e-3}  # the others tie

    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        is_lost = activation == "gelu" and rate == 1e-3 and seed == 101
        return {"final_acc": 50.0 + seed + (rate == higher.get(activation)), "diverged": is_lost}

    text = (EVIDENCE / f"{title}-pilot.toml").read_text()
    found = write_grid(tmp_path, f"{title}-pilot", text, value)
    lines = pilot.grid_lines(tmp_path, title)
    (tmp_path / "main.toml").write_text(text.partition("[plan]")[0].replace("lr = ", "# ") + "\n".join(lines))
    main = read_grid(str(tmp_path / "main.toml"))
    rates = {recipe.activation: recipe.lr for recipe in main.recipes}
    assert len(main.recipes) == len(rates) == 10
    assert {name for name, rate in rates.items() if rate == 3e-4} == {"relu", "gelu"}
    assert set(rates.values()) == {3e-4, 1e-3}
    assert [each.key for each in second_round_tables(found)] == ["second-round"]  # a pilot shows no result


def test_the_pilot_of_learning_rate_prefers_the_rate_nearer_to_1e_3_within_its_bound(tmp_path: Path) -> None:
    pilot = pytest.importorskip("pilot", reason="needs a clone")

    means = {"relu": (50, 50.2, 50.1, 40), "gelu": (49, 50, 50.25, 40), "iglu:0.5": (49, 50, 50.4, 40),
             "iglu:5": (30, 40, 50, 51)}  # fmt: skip

    def value(activation: str, seed: int, rate: float) -> dict[str, Any]:
        return {"test_acc": means[activation][(3e-4, 1e-3, 3e-3, 1e-2).index(rate)] + seed, "test_loss": 1.0}

    text = (EVIDENCE / "learning-rate-pilot.toml").read_text()
    write_grid(tmp_path, "learning-rate-pilot", text, value)
    lines = pilot.grid_lines(tmp_path, "learning-rate", within=0.3, also_fixed=True)
    found = read_toml("\n".join(lines))["by_activation"]
    assert {name: fields["lr"] for name, fields in found.items()} == {
        "relu": 1e-3, "gelu": 1e-3, "iglu:0.5": [1e-3, 3e-3], "iglu:5": [1e-3, 1e-2]
    }  # fmt: skip
    assert ["at the edge" in line for line in lines if "iglu:5" in line] == [True]


def test_an_incomplete_pilot_chooses_nothing(tmp_path: Path) -> None:
    pilot = pytest.importorskip("pilot", reason="needs a clone")

    text = (EVIDENCE / "plasticity-labels-pilot.toml").read_text()
    write_grid(tmp_path, "plasticity-labels-pilot", text, lambda *_: {"final_acc": 50.0}, seeds=2)
    with pytest.raises(SystemExit, match="20 runs"):
        pilot.grid_lines(tmp_path, "plasticity-labels")
