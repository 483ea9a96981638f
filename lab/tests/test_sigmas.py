"""The rules for sigma compared with sigma = 1: against gains computed by hand and scipy's paired interval."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tyro", reason="the lab")

from scipy.stats import ttest_rel

from iglu.probing.sigma import POINTS
from iglu_lab.recipes import RECIPES
from iglu_lab.report.gather import gather
from iglu_lab.report.sigmas import RuleGain, describe_rule, networks, rules_table
from iglu_lab.runs.archive import add_to_archive
from iglu_lab.runs.folder import Run
from iglu_lab.stats.statistics import Estimate

RECIPE = {
    "test_acc": RECIPES["digits-lt"].replace(epochs=2, threads=1),
    "perplexity": RECIPES["gpt2-python"].replace(epochs=2, threads=1),
}
GRID = """
recipes = ["{recipe}"]
activations = ["relu", "iglu:0.5", "iglu:1", "iglu:5", "iglu:10"]
seeds = 4
epochs = 2
threads = 1
[plan]
metric = "{metric}"
reference = "relu"
"""
METRICS = {
    "relu": (50.0, 51.0, 52.0, 53.0),
    "iglu:0.5": (52.0, 53.5, 54.5, 56.0),
    "iglu:1": (51.0, 52.0, 53.0, 54.0),
    "iglu:5": (51.25, 52.25, 53.25, 54.25),
    "iglu:10": (50.0, 50.5, 52.5, 53.0),
}
LIGHT, _, HEAVY = POINTS  # the rule says 10 for the tails of the first, 0.5 for those of the last


def tails(excess: float, scale: float) -> dict[str, Any]:
    """Two layers whose mean excess (arithmetic or geometric) is the one given, as is their scale."""
    layer = {"alpha": 10.0, "gaussian": 10.0, "excess": excess, "excess_low": 0.9 * excess,
             "excess_high": 1.1 * excess, "scale": scale}  # fmt: skip
    return {"tails": {"a": layer, "b": layer}}


def found_in(folder: Path, excess: float, scale: float, metric: str = "test_acc") -> Any:
    recipe = RECIPE[metric]
    runs = []
    for name, values in METRICS.items():
        for seed, value in enumerate(values):
            rows: dict[str, Any] = {"train_loss": 1.0, "test_loss": 1.0, metric: value}
            rows |= tails(excess, scale) if name == "relu" else {}
            history = tuple({"epoch": epoch, **rows} for epoch in (1, 2))
            mine = recipe.replace(activation=name, seed=seed)
            runs.append(Run(Path("nowhere"), mine, "finished", history, "", {"date": "today"}))
    add_to_archive(runs, folder / "mine.jsonl")
    (folder / "mine.toml").write_text(GRID.format(recipe=recipe.name, metric=metric))
    (network,) = networks(gather([folder]).first_round)
    return network


def by_rule(network: Any) -> dict[str, RuleGain]:
    return {worth.rule: worth for worth in network.rules}


def test_a_gain_is_that_of_the_grid_value_nearest_to_the_suggestion_compared_with_sigma_1(
    tmp_path: Path,
) -> None:
    network = found_in(tmp_path, HEAVY.excess, scale=1.0)
    worth = by_rule(network)["regimes"]
    assert math.exp(worth.suggested.value) == pytest.approx(0.5)
    truth = ttest_rel(METRICS["iglu:0.5"], METRICS["iglu:1"]).confidence_interval(0.95)
    assert (worth.gain.low, worth.gain.high) == pytest.approx(tuple(truth))
    assert worth.gain.value == pytest.approx(1.5)
    assert network.best == 0.5
    assert network.best_gain == worth.gain


def test_light_tails_get_the_large_sigma_even_if_it_is_worse(tmp_path: Path) -> None:
    network = found_in(tmp_path, LIGHT.excess, scale=1.0)
    assert by_rule(network)["regimes"].gain.value == pytest.approx(-1.0)
    assert network.best == 0.5
    assert network.best_gain.value == pytest.approx(1.5)


def test_the_scaled_rule_divides_by_the_scale_and_the_other_does_not(tmp_path: Path) -> None:
    rules = by_rule(found_in(tmp_path, LIGHT.excess, scale=20.0))
    assert math.exp(rules["regimes"].suggested.value) == pytest.approx(10.0)
    assert math.exp(rules["scaled"].suggested.value) == pytest.approx(0.5)
    assert (rules["regimes"].gain.value, rules["scaled"].gain.value) == pytest.approx((-1.0, 1.5))


def test_a_lower_perplexity_is_a_gain(tmp_path: Path) -> None:
    network = found_in(tmp_path, LIGHT.excess, scale=1.0, metric="perplexity")
    assert network.best == 10.0
    assert by_rule(network)["regimes"].gain.value == pytest.approx(1.0)


def test_the_table_has_one_line_per_network_and_one_sentence_per_rule(tmp_path: Path) -> None:
    found_in(tmp_path, HEAVY.excess, scale=1.0)
    (table,) = rules_table(gather([tmp_path]).first_round)
    (row,) = table.rows
    assert row[1].text == "0.5"
    assert row[2].text.startswith("+1.50 ± ")
    assert row[3].text == "+0.25 ± 0.00"
    assert [header for header in table.headers if header[0]] == [
        ("best of the grid, chosen afterwards", "sigma"), ("best of the grid, chosen afterwards", "gain"),
        ("always 5", "gain"), ("rule scaled", "sigma"), ("rule scaled", "gain"),
        ("rule regimes", "sigma"), ("rule regimes", "gain"),
    ]  # fmt: skip
    assert sum(note.startswith("Rule ") for note in table.notes) == 2


def test_without_tails_or_without_sigma_1_there_is_no_table(tmp_path: Path) -> None:
    found_in(tmp_path, math.nan, scale=1.0)
    assert rules_table(gather([tmp_path]).first_round) == []
    assert rules_table([]) == []


def gain_of(value: float, half: float, deviation: float = 1.0) -> RuleGain:
    return RuleGain(
        "regimes", Estimate(0.0, 0.0, 0.0, 4), Estimate(value, value - half, value + half, 4), deviation
    )


def test_a_rule_that_is_worse_in_more_networks_is_worse_overall_whatever_its_mean() -> None:
    assert "in 1 of 3 networks, worse in 2; on average +3.00" in describe_rule(
        [gain_of(11.0, 0.5), gain_of(-1.0, 0.5), gain_of(-1.0, 0.5)]
    )
    twice = [gain_of(11.0, 0.5), gain_of(-1.0, 0.5), gain_of(-1.0, 0.5)]
    assert describe_rule(twice).endswith("; overall worse.")
    assert describe_rule([gain_of(-9.0, 0.5), gain_of(1.0, 0.5), gain_of(1.0, 0.5)]).endswith(
        "; overall not worse."
    )


def test_if_that_is_even_the_mean_in_standard_deviations_of_one_run_decides() -> None:
    assert describe_rule([gain_of(1.0, 5.0, 1.0), gain_of(-3.0, 5.0, 10.0)]).endswith(
        "+0.35 standard deviations of one run; overall not worse."
    )
    assert describe_rule([gain_of(1.0, 5.0, 10.0), gain_of(-3.0, 5.0, 10.0)]).endswith("; overall worse.")
