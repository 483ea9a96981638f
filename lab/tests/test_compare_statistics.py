"""The verdicts of ``iglu compare``: simulation with known truth, and the report's verdicts on our own grid.

Probabilities are estimated from ``REPEATS`` comparisons; bounds allow three standard errors of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from iglu_lab.comparing.judge import Case, Verdict, judge_all
from iglu_lab.comparing.plan import make_plan
from iglu_lab.report.comparisons import all_tasks
from iglu_lab.report.content import ComparedTask
from iglu_lab.report.gather import gather
from iglu_lab.stats.statistics import minimum_detectable_difference, seeds_needed
from iglu_lab.storage import RESULTS

REPEATS = 600
NAMES = ("a", "b", "c")
SEEDS = (3, 5, 10)


def most(probability: float) -> float:
    return probability + 3 * math.sqrt(probability * (1 - probability) / REPEATS)


def least(probability: float) -> float:
    return probability - 3 * math.sqrt(probability * (1 - probability) / REPEATS)


def _values(column: np.ndarray) -> dict[int, float]:
    return {seed: float(value) for seed, value in enumerate(column) if math.isfinite(value)}


def simulate(
    seeds: int,
    effects: tuple[float, ...] = (0.0, 0.0, 0.0),
    correlation: float = 0.0,
    margin: float | None = None,
    diverge: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None = None,
    level: float = 0.05,
) -> Iterator[dict[str, Verdict]]:
    """Comparisons of activations with these true differences to the reference.  Runs have a standard
    deviation of 1, and those of one seed the correlation that a shared initialization gives."""
    generator = np.random.default_rng(seeds)
    for _ in range(REPEATS):
        shared = generator.normal(size=(seeds, 1)) * math.sqrt(correlation)
        own = generator.normal(size=(seeds, 1 + len(effects))) * math.sqrt(1 - correlation)
        table = shared + own
        if diverge is not None:
            table[diverge(table, generator)] = math.nan
        table[:, 1:] += effects
        lost = np.isnan(table).sum(0)
        reference = _values(table[:, 0])
        cases = {
            name: Case(_values(table[:, place]), reference, int(lost[place]), int(lost[0]))
            for place, name in enumerate(NAMES[: len(effects)], start=1)
        }
        yield judge_all(cases, margin, level=level)


def share(found: list[bool]) -> float:
    return sum(found) / len(found)


def claims(verdicts: dict[str, Verdict]) -> bool:
    return any(each.category in ("better", "worse") for each in verdicts.values())


def _at_random(table: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return generator.random(table.shape) < 0.15


def _the_worst(table: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The runs that would have ended badly diverge, so that the others look too good."""
    return table < -1.2


def _the_worst_of_one(table: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    is_lost = table < -0.5
    is_lost[:, [0, 2, 3]] = False
    return is_lost


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_without_a_true_difference_a_family_has_a_claim_at_most_one_time_in_twenty(
    seeds: int, correlation: float
) -> None:
    assert share([claims(found) for found in simulate(seeds, correlation=correlation)]) <= most(0.05)


@pytest.mark.parametrize("seeds", [5, 10])
@pytest.mark.parametrize("diverge", [_at_random, _the_worst, _the_worst_of_one])
def test_diverged_runs_do_not_add_false_claims(
    seeds: int, diverge: Callable[[np.ndarray, np.random.Generator], np.ndarray]
) -> None:
    found = list(simulate(seeds, diverge=diverge, margin=0.5))
    assert share([claims(each) for each in found]) <= most(0.05)
    assert share([any(one.difference is not None for one in each.values()) for each in found]) > 0.5


def test_without_the_rule_for_diverged_runs_there_would_be_false_claims() -> None:
    """What the rule is for: an activation whose worst runs diverge looks better by the others alone.  Without
    a difference it may do so 2.5% of the time: half of what a two-sided family has."""
    found = simulate(20, diverge=_the_worst_of_one)
    assert share([each["a"].reason.startswith("better") for each in found]) > most(0.025)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_intervals_cover_the_true_difference_nineteen_times_in_twenty(seeds: int, correlation: float) -> None:
    inside = []
    for found in simulate(seeds, (0.7,), correlation):
        difference = found["a"].difference
        assert difference is not None
        low, high = difference.interval()
        inside.append(low < 0.7 < high)
    assert least(0.95) <= share(inside) <= most(0.95)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_a_difference_of_the_margin_is_called_equivalent_at_most_one_time_in_twenty(
    seeds: int, correlation: float
) -> None:
    """Two margins: one that the test cannot reach with this noise, and one at which its size is near 5%."""
    for margin in (0.5, 4.0):
        found = simulate(seeds, (margin,), correlation, margin)
        assert share([each["a"].category == "equivalent" for each in found]) <= most(0.05)


def test_a_difference_well_inside_the_margin_is_called_equivalent() -> None:
    found = simulate(10, (0.0,), 0.8, margin=1.0)
    assert share([each["a"].category == "equivalent" for each in found]) > 0.8


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_minimum_detectable_difference_is_detected_four_times_in_five(seeds: int) -> None:
    """At the level of the strictest comparison: with one true difference among three, Holm asks for it."""
    size = minimum_detectable_difference(seeds, 1.0, 0.05 / 3)
    detected = share([each["a"].category == "better" for each in simulate(seeds, (size, 0.0, 0.0))])
    assert least(0.8) <= detected <= most(0.8) + 0.03  # Holm gives a little more than Bonferroni


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_as_many_seeds_as_promised_detect_the_margin(correlation: float) -> None:
    sd = math.sqrt(1 - correlation)
    seeds = seeds_needed(1.5, sd, 0.05 / 3)
    assert 3 <= seeds <= 20
    found = simulate(seeds, (1.5, 0.0, 0.0), correlation)
    assert share([each["a"].category == "better" for each in found]) >= least(0.8)


def test_looks_at_the_levels_of_the_plan_keep_the_familywise_error() -> None:
    """At 3 and 6 seeds, each time all comparisons, and a claim at either look counts."""
    plan = make_plan({"task": "m:f", "activations": ["relu", "gelu"], "seeds": 6, "looks": [3]})
    assert plan.looks == (3, 6)
    generator = np.random.default_rng(0)
    planned, naive = [], []
    for _ in range(REPEATS):
        table = generator.normal(size=(6, 4))
        looks: dict[bool, list[bool]] = {True: [], False: []}
        for seeds in plan.looks:
            reference = _values(table[:seeds, 0])
            cases = {
                name: Case(_values(table[:seeds, place]), reference) for place, name in enumerate(NAMES, 1)
            }
            for is_planned in looks:
                level = plan.level(seeds) if is_planned else 0.05
                looks[is_planned].append(claims(judge_all(cases, level=level)))
        planned.append(any(looks[True]))
        naive.append(any(looks[False]))
    assert share(planned) <= most(0.05)
    assert share(naive) > share(planned)


# -- rules -------------------------------------------------------------------------------------------


def test_fewer_than_three_seeds_have_numbers_and_no_verdict() -> None:
    found = judge_all({"a": Case({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.5})})["a"]
    assert found.category is None
    assert found.difference is not None
    assert found.difference.value == pytest.approx(1.25)


@pytest.mark.parametrize("shift", [0.0, 1.0, 0.1])
def test_the_same_difference_in_every_seed_has_no_verdict(shift: float) -> None:
    """Also if it is the same up to rounding, as for accuracies that differ by one image each."""
    reference = {0: 50.1, 1: 50.3, 2: 50.7}
    values = {seed: round(value + shift, 3) for seed, value in reference.items()}
    found = judge_all({"a": Case(values, reference)}, margin=0.5)["a"]
    assert found.category is None
    assert "every seed" in found.reason


@pytest.mark.parametrize(
    ("sign", "lost", "category"),
    [
        (1, (0, 0), "better"), (1, (1, 0), "inconclusive"), (1, (0, 1), "better"),
        (-1, (0, 0), "worse"), (-1, (1, 0), "worse"), (-1, (0, 1), "inconclusive"),
        (0, (0, 0), "equivalent"), (0, (1, 0), "inconclusive"), (0, (0, 1), "inconclusive"),
    ],
)  # fmt: skip
def test_a_diverged_run_never_counts_in_favor_of_its_side(
    sign: int, lost: tuple[int, int], category: str
) -> None:
    noise = (0.01, -0.02, 0.03, 0.0, -0.01)
    values = {seed: sign + each for seed, each in enumerate(noise)}
    case = Case(values, dict.fromkeys(values, 0.0), *lost)
    assert judge_all({"a": case}, margin=0.5)["a"].category == category


def test_an_activation_without_numbers_stays_in_the_family() -> None:
    clear = Case({0: 1.0, 1: 1.3, 2: 0.8, 3: 1.1}, dict.fromkeys(range(4), 0.0))
    alone = judge_all({"a": clear})["a"].p_value
    both = judge_all({"a": clear, "b": Case({}, clear.reference, diverged=4)})
    assert both["a"].p_value == pytest.approx(2 * alone)
    assert both["b"].category is None


@pytest.fixture(scope="module")
def report_tasks() -> list[ComparedTask]:
    return list(all_tasks(gather([RESULTS / "evidence"])))


@pytest.mark.parametrize("grid", ["sigma-resnet", "lt", "ratio", "text"])
def test_our_own_grids_get_the_verdicts_of_the_report(grid: str, report_tasks: list[ComparedTask]) -> None:
    """sigma-resnet, all of whose verdicts are inconclusive, and three grids with others.  The settings of a
    grid are one family; the margin is the report's widest: one point, or 1% of the perplexity."""
    cases, expected = {}, {}
    tasks = [task for task in report_tasks if task.grid == grid]
    for task in tasks:
        reference = task.samples[task.reference]
        for one in task.differences:
            sample = task.samples[one.activation]
            key = f"{task.key} {one.activation}"
            cases[key] = Case(
                sample.values(task.metric), reference.values(task.metric), len(sample.diverged),
                len(reference.diverged),
            )  # fmt: skip
            expected[key] = one
    first = next(iter(expected.values()))
    margin = 0.01 * first.reference_mean if first.metric == "perplexity" else 1.0
    found = judge_all(cases, margin, first.lower_is_better)
    assert {key: each.category for key, each in found.items()} == {
        key: each.category for key, each in expected.items()
    }
    assert {key: each.p_value for key, each in found.items()} == pytest.approx(
        {key: each.p_value for key, each in expected.items()}
    )
    if grid == "sigma-resnet":
        assert len(cases) == 12
    else:
        assert len({each.category for each in expected.values()}) > 1
