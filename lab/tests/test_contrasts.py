"""Planned comparisons compared with scipy, with least squares and with simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("tyro", reason="the lab")

from scipy import stats

from iglu_lab.stats.contrasts import MeanDifference, blocked, judge, paired

ARMS = ("relu", "gelu", "iglu:0.5", "iglu_approx:0.5")


def _values(table: np.ndarray) -> dict[str, dict[int, float]]:
    return {name: dict(enumerate(map(float, column))) for name, column in zip(ARMS, table.T, strict=False)}


def test_a_paired_contrast_is_the_paired_t_test_of_scipy() -> None:
    table = np.random.default_rng(0).normal(size=(8, 2))
    found = paired(_values(table), ["relu"], ["gelu"])
    expected = stats.ttest_rel(table[:, 0], table[:, 1])
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.freedom == 7


def test_a_blocked_contrast_is_that_of_least_squares_with_dummies_for_activation_and_seed() -> None:
    seeds, arms = 5, 4
    table = (
        np.random.default_rng(1).normal(size=(seeds, arms)) + np.arange(arms) + 3 * np.arange(seeds)[:, None]
    )
    design = np.zeros((seeds * arms, arms + seeds - 1))
    for seed in range(seeds):
        for arm in range(arms):
            design[seed * arms + arm, arm] = 1
            if seed:
                design[seed * arms + arm, arms + seed - 1] = 1
    solution, squares, *_ = np.linalg.lstsq(design, table.ravel(), rcond=None)
    contrast = np.zeros(design.shape[1])
    contrast[:arms] = [-0.5, -0.5, 0.5, 0.5]
    freedom = table.size - design.shape[1]
    variance = squares[0] / freedom * contrast @ np.linalg.inv(design.T @ design) @ contrast
    found = blocked(_values(table), ARMS[2:], ARMS[:2])
    assert found.freedom == freedom == 12
    assert found.value == pytest.approx(contrast @ solution)
    assert found.error == pytest.approx(math.sqrt(variance))


@pytest.mark.parametrize("model", [paired, blocked])
def test_an_effect_of_the_seed_on_every_activation_cancels(model: object) -> None:
    table = np.random.default_rng(2).normal(size=(6, 4))
    shifted = table + np.random.default_rng(3).normal(size=(6, 1)) * 100
    one, other = (model(_values(each), ["iglu:0.5"], ["relu"]) for each in (table, shifted))  # type: ignore[operator]
    assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize(
    ("difference", "category", "words"),
    [
        (MeanDifference(0.8, 0.1, 19, 20), "better", "helped by 0.80 points"),
        (MeanDifference(-0.3, 0.05, 19, 20), "worse", "cost 0.30 points and lies within half a point"),
        (MeanDifference(0.1, 0.2, 19, 20), "equivalent", "no difference of half a point"),
        (MeanDifference(0.3, 0.2, 19, 20), "inconclusive", "inconclusive; about"),
    ],
)
def test_significance_is_judged_before_equivalence(
    difference: MeanDifference, category: str, words: str
) -> None:
    (found,) = judge({"a - b": difference}, 0.5)
    assert found.category == category
    assert found.describe().startswith(words)
    (mirrored,) = judge({"a - b": difference}, 0.5, lower_is_better=True)
    opposite = {"better": "worse", "worse": "better"}
    assert mirrored.category == opposite.get(category, category)


def test_a_family_is_adjusted_by_holm() -> None:
    differences = {
        name: MeanDifference(value, 0.2, 19, 20) for name, value in (("a", 0.45), ("b", 0.5), ("c", 0.1))
    }
    found = {each.text: each.p_value for each in judge(differences, 0.5)}
    a, b, c = (2 * stats.t.sf(ratio, 19) for ratio in (2.25, 2.5, 0.5))
    assert found == pytest.approx({"b": 3 * b, "a": max(2 * a, 3 * b), "c": c})


def test_equivalence_is_two_one_sided_tests_at_five_per_cent() -> None:
    pairs = np.random.default_rng(4).normal(0.1, 0.7, size=20)
    found = paired({"a": dict(enumerate(pairs)), "b": dict.fromkeys(range(20), 0.0)}, ["a"], ["b"])
    for margin in (0.3, 0.4, 0.5, 0.6, 0.8):
        above = stats.ttest_1samp(pairs, -margin, alternative="greater").pvalue
        below = stats.ttest_1samp(pairs, margin, alternative="less").pvalue
        assert found.is_within(margin) is bool(max(above, below) < 0.05)


@pytest.mark.parametrize("deviation", [0.62, 0.80])
def test_the_planned_power_of_the_grid_tail_is_what_simulation_gives(deviation: float) -> None:
    """20 pairs: to detect 0.5 points .93 to .76, and of the equivalence test at a true difference of 0."""
    generator = np.random.default_rng(5)
    detected = equivalent = 0
    for _ in range(1000):
        noise = generator.normal(0, deviation, 20)
        zero = {"b": dict.fromkeys(range(20), 0.0)}
        detected += paired({"a": dict(enumerate(noise + 0.5)), **zero}, ["a"], ["b"]).p_value < 0.05
        equivalent += paired({"a": dict(enumerate(noise)), **zero}, ["a"], ["b"]).is_within(0.5)
    planned = {0.62: (0.93, 0.93), 0.80: (0.76, 0.70)}[deviation]
    assert detected / 1000 == pytest.approx(planned[0], abs=0.05)
    assert equivalent / 1000 == pytest.approx(planned[1], abs=0.06)


def test_fewer_than_two_common_seeds_raise() -> None:
    with pytest.raises(ValueError, match="two seeds"):
        paired({"a": {0: 1.0}, "b": {0: 2.0}}, ["a"], ["b"])
