"""Derived properties, formatting of numbers, defaults, and limits of arguments."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tyro", reason="the lab")

from iglu_lab.bench import timing, timing_tables
from iglu_lab.bench.sessions import Session
from iglu_lab.bench.slowdown import compared
from iglu_lab.commands.bench import BenchFlags
from iglu_lab.commands.convert import Flags as ConvertFlags
from iglu_lab.commands.demo import DemoFlags
from iglu_lab.commands.probe import ProbeFlags
from iglu_lab.commands.sweep import SweepFlags, read_time
from iglu_lab.data.longtail import class_sizes, shot_of
from iglu_lab.data.text import check_tokenizer
from iglu_lab.errors import UserError, check_least
from iglu_lab.paper import Published
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.report.content import EpochCurve
from iglu_lab.report.figures import measured
from iglu_lab.report.planned import chosen_rate
from iglu_lab.report.sigmas import suggested_sigma
from iglu_lab.report.summary import loss_table
from iglu_lab.runs.folder import Row, Run
from iglu_lab.stats.statistics import Estimate
from iglu_lab.stats.style import shade
from iglu_lab.stats.tabulate import letter, numbered, p_cell
from iglu_lab.sweep.estimate import format_duration, wall_seconds
from iglu_lab.sweep.grid import Plan
from iglu_lab.training.tails import TailObserver

DIGITS = RECIPES["digits"].replace(epochs=3, seed=2)


def image_run(status: str = "finished", recipe: Recipe = DIGITS, epochs: int = 3) -> Run:
    accuracies = (50.0, 70.0, 60.0)
    rows: list[Row] = [
        {"epoch": epoch, "test_acc": accuracies[epoch - 1], "seconds": 2.0, "test_seconds": 0.5, "rate": 9.0}
        for epoch in range(1, epochs + 1)
    ]
    return Run(Path("runs") / recipe.folder_name, recipe, status, tuple(rows))


# -- derived properties ----------------------------------------------------------------------------


def test_a_run_is_named_after_its_recipe() -> None:
    assert image_run().name == DIGITS.folder_name == "digits_relu_epochs=3_seed=2"


def test_the_last_epoch_is_reported_and_the_best_is_found() -> None:
    run = image_run()
    assert run.metric == "test_acc"
    assert (run.last["epoch"], run.best["epoch"]) == (3, 2)
    assert run.seconds == 7.5
    assert run.without_timings() == [
        {"epoch": row["epoch"], "test_acc": row["test_acc"]} for row in run.history
    ]


def test_of_perplexities_the_best_is_the_smallest() -> None:
    recipe = RECIPES["gpt2-python"]
    rows: list[Row] = [{"epoch": n, "perplexity": value} for n, value in enumerate((9.0, 7.0, 8.0), start=1)]
    run = Run(Path(), recipe, "finished", tuple(rows))
    assert (run.metric, run.best["epoch"], run.last["epoch"]) == ("perplexity", 2, 3)


def test_a_run_on_a_sequence_of_tasks_is_measured_by_its_final_accuracy() -> None:
    assert Run(Path(), RECIPES["plasticity-labels"], "unfinished", ()).metric == "final_acc"


def test_epochs_without_an_evaluation_are_not_evaluated() -> None:
    run = Run(Path(), DIGITS, "unfinished", ({"epoch": 1, "train_loss": 1.0},))
    assert run.evaluated == ()
    assert not run.is_complete
    with pytest.raises(ValueError, match=DIGITS.folder_name):
        _ = run.last


@pytest.mark.parametrize(
    ("status", "epochs", "is_done", "is_complete"),
    [("finished", 3, True, True), ("stopped", 3, True, True), ("stopped", 2, False, False),
     ("unfinished", 3, False, False), ("diverged", 1, True, False)],
)  # fmt: skip
def test_a_run_is_done_and_complete_by_status_and_epochs(
    status: str, epochs: int, is_done: bool, is_complete: bool
) -> None:
    run = image_run(status, epochs=epochs)
    assert run.is_done_for(DIGITS) is is_done
    assert run.is_complete is is_complete
    assert run.is_done_for(DIGITS.replace(epochs=4)) is (status == "diverged")


def test_a_recipe_ends_at_the_earlier_of_epochs_and_stop_after() -> None:
    assert [DIGITS.replace(stop_after=n).last_epoch for n in (None, 2, 9)] == [3, 2, 3]


def test_the_subset_follows_its_own_seed_unless_that_is_none() -> None:
    recipe = RECIPES["digits-lt"].replace(seed=5)
    assert recipe.subset_draw == 0
    assert recipe.replace(subset_seed=7).subset_draw == 7
    assert recipe.replace(subset_seed=None).subset_draw == 5


def test_the_augmentation_has_the_fields_of_the_recipe() -> None:
    recipe = RECIPES["resnet20-cifar10"].replace(image_size=16, padding=2, flip=False)
    assert recipe.augmentation == (16, 2, False, (0.2, 0.2, 0.2, 0.1))


def test_a_session_knows_its_date_and_origin_even_without_provenance() -> None:
    assert Session(Path(), {}).date == ""
    assert Session(Path(), {"provenance": {"date": "2026-01-02"}}).date == "2026-01-02"
    assert Session(Path(), {}).origin == "no provenance"


def test_a_published_number_is_an_erratum_only_with_a_reason() -> None:
    assert [Published(1.0, 1.0).is_erratum, Published(1.0, 2.0, "recomputed").is_erratum] == [False, True]


@pytest.mark.parametrize(
    ("looks", "looked", "seeds", "is_sealed"),
    [((), (), 0, False), ((5, 10), (), 9, True), ((5, 10), (), 10, False), ((5, 10), (5,), 4, True),
     ((5, 10), (5,), 5, False)],
)  # fmt: skip
def test_a_plan_is_sealed_until_its_first_look(
    looks: tuple[int, ...], looked: tuple[int, ...], seeds: int, is_sealed: bool
) -> None:
    plan = Plan("test_acc", "relu", {}, looks=looks, looked=looked, look_level=0.03)
    assert plan.is_sealed(seeds) is is_sealed
    assert plan.level == (0.03 if looked else 0.05)


def test_an_interval_excludes_what_is_outside_its_closed_bounds() -> None:
    found = Estimate(1.0, 0.5, 1.5, 3, 0.2)
    assert [found.excludes(bound) for bound in (0.4, 0.5, 1.5, 1.6)] == [True, False, False, True]
    assert -found == Estimate(-1.0, -1.5, -0.5, 3, 0.2)
    assert found.moved(2.0) == Estimate(3.0, 2.5, 3.5, 3, 0.2)
    assert not Estimate(1.0, -math.inf, math.inf, 1).has_interval


def test_a_ratio_of_times_is_the_median_of_the_ratios_of_rounds() -> None:
    rows = [{"seconds_by_round": [factor * each for each in (1.0, 4.0, 2.0)]} for factor in (3.0, 2.0)]
    assert timing_tables.quotient(*rows).value == 1.5


@pytest.mark.parametrize(
    ("accuracy", "loss", "text"), [(0.5, -0.2, "yes"), (-0.5, 0.2, "yes"), (0.5, 0.2, ""), (0.5, -0.05, "")]
)
def test_accuracy_and_loss_are_opposite_if_one_is_better_and_one_worse(
    accuracy: float, loss: float, text: str
) -> None:
    def difference(metric: str, gain: float) -> Any:
        found = Estimate(gain, gain - 0.1, gain + 0.1, 5, 0.1)
        return SimpleNamespace(activation="iglu:5", reference="relu", metric=metric, found=found, gain=found)

    task: Any = SimpleNamespace(
        grid="", title="digits", metric="test_acc", differences=[difference("test_acc", accuracy)],
        losses=[difference("test_loss", loss)],
    )  # fmt: skip
    (table,) = loss_table([task])
    assert table.rows[0][-1].text == text


# -- formatting of numbers -------------------------------------------------------------------------


def test_the_variation_is_half_the_quantile_range_in_percent_of_the_median() -> None:
    cell = timing_tables._variation_cell({"median": 4.0, "low": 3.0, "high": 6.0})
    assert (cell.text, cell.number) == ("±38%", 37.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.004, "0.00"), (9.994, "9.99"), (9.996, "10.0"), (99.94, "99.9"), (99.96, "100"), (1234.5, "1234")],
)
def test_times_have_three_digits(value: float, text: str) -> None:
    assert timing_tables.three_digits(value) == text


@pytest.mark.parametrize(
    ("elements", "text"),
    [(1, "1"), (999, "999"), (1000, "1k"), (1500, "1,500"), (10**6, "1M"), (16 * 10**6, "16M")],
)
def test_sizes_are_short_where_that_is_exact(elements: int, text: str) -> None:
    assert timing_tables.size_text(elements) == text


@pytest.mark.parametrize(
    ("seconds", "unit"), [(2.0, "s"), (1.0, "s"), (0.999, "ms"), (2e-6, "us"), (3e-9, "ns"), (1e-12, "ns")]
)
def test_the_unit_of_a_column_fits_its_median(seconds: float, unit: str) -> None:
    assert timing_tables.unit_for([seconds, seconds, 1e9]) == unit


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (35_999, "10.0 h"),
     (36_000, "10 h"), (7_200_000, "2,000 h"), (math.nan, "?")],
)  # fmt: skip
def test_durations_are_in_the_largest_fitting_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("text", "seconds"), [("2h", 7200), ("1.5h", 5400), ("1h30m", 5400), ("1m1s", 61)])
def test_a_time_limit_is_the_sum_of_its_parts(text: str, seconds: float) -> None:
    assert read_time(text) == seconds


def test_wall_time_is_an_equal_share_but_at_least_the_longest_run() -> None:
    assert wall_seconds([10.0, 20.0, 30.0], 2) == 30.0
    assert wall_seconds([20.0, 20.0, 20.0, math.nan], 2) == 30.0
    assert wall_seconds([], 2) == 0.0


def test_missing_and_undefined_numbers_are_shown_as_text() -> None:
    assert [numbered(value).text for value in (None, math.nan, -0.005, 1234.567)] == [
        "",
        "none",
        "-0.01",
        "1,234.57",
    ]


def test_numbers_that_round_to_zero_have_no_minus_sign() -> None:
    texts = [numbered(value, 2, "+").text for value in (-0.004, -0.0, 0.004, -0.006)]
    assert texts == ["+0.00", "+0.00", "+0.00", "-0.01"]
    assert Estimate(-1e-17, -1.0, 1.0, 4).text(2, "+") == "+0.00 ± 1.00"
    assert Estimate(-1e-17, -1e-17, 1.0, 4).span() == "0.00 [0.00, 1.00]"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.000"), (0.0012, "0.001"), (0.001, "0.001"), (0.0009, "< 0.001"), (0.0, "< 0.001"), (None, "")],
)
def test_no_p_value_is_shown_as_zero(value: float | None, text: str) -> None:
    assert p_cell(value).text == text
    assert p_cell(value).number == value


def test_letters_continue_after_z() -> None:
    assert [letter(number) for number in (0, 25, 26, 27, 52)] == ["a", "z", "aa", "ab", "ba"]


def test_quantiles_are_those_of_numpys_linear_rule() -> None:
    assert timing.quantiles([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == {"median": 3.5, "low": 2.0, "high": 5.0}


def test_a_shade_is_lighter_below_one_and_darker_above() -> None:
    def brightness(color: str) -> int:
        return sum(int(color[start : start + 2], 16) for start in (1, 3, 5))

    assert shade("#0072B2", 1.0) == "#0072B2"
    assert brightness(shade("#0072B2", 0.1)) > brightness("#0072B2") > brightness(shade("#0072B2", 10.0))
    assert shade("#0072B2", 1e-9) == shade("#0072B2", 0.01)


@pytest.mark.parametrize(
    ("seeds", "text"), [((5, 5), "mean over 5 seeds"), ((3, 5), "mean over 3 to 5 seeds")]
)
def test_a_figure_names_the_number_of_seeds_or_their_range(seeds: tuple[int, int], text: str) -> None:
    numbers = (1.0, 2.0)
    curves = [
        EpochCurve("digits", name, "test_acc", numbers, numbers, numbers, numbers, count)
        for name, count in zip(("relu", "gelu"), seeds, strict=True)
    ]
    (figure,) = measured._training(curves)
    assert text in figure.alt


# -- defaults --------------------------------------------------------------------------------------


def defaults(flags: type[Any]) -> dict[str, Any]:
    return {
        field.name: field.default
        for field in dataclasses.fields(flags)
        if isinstance(field.default, int | float)
    }


def test_the_flags_have_the_documented_defaults() -> None:
    assert defaults(SweepFlags) == {"jobs": 1, "dry_run": False, "gpus": 0.0, "retries": 3}
    assert defaults(DemoFlags) == {"seeds": 4, "jobs": 2}
    assert defaults(ProbeFlags) == {"batches": 8, "keep": 2048, "training": False, "pictures": True}
    assert defaults(ConvertFlags) == {"batches": 20}
    assert defaults(BenchFlags) == {
        "direct": True, "pairs": True, "compile": False, "rounds": 100, "iterations": 1000, "train": False,
        "warm_heap": True, "pictures": True,
    }  # fmt: skip


def test_the_setting_of_the_benchmarks_is_that_of_the_papers_table_1() -> None:
    assert dataclasses.astuple(timing.Setting()) == ("cpu", "float32", 1, 10_000)


def test_a_tail_observer_measures_every_tenth_epoch_as_the_paper_did() -> None:
    observer = TailObserver()
    assert (observer.every, observer.batches, observer.k) == (10, 1, 100)


def test_learning_rates_are_tied_only_by_equal_means_unless_a_margin_is_given() -> None:
    assert chosen_rate({3e-4: 50.005, 1e-3: 50.0}) == 3e-4
    assert chosen_rate({3e-4: 50.0, 1e-3: 50.0}) == 1e-3


# -- limits of arguments ---------------------------------------------------------------------------

# field -> smallest valid value, and the largest that is too small
SMALLEST = {
    **dict.fromkeys(("lr", "weight_decay", "warmup_ratio", "max_grad_norm", "dropout"), (0.0, -0.1)),
    "checkpoint_every": (0.0, -0.1),
    "ratio": (1.0, 0.9),
    "padding": (0, -1),
    **dict.fromkeys(
        ("epochs", "steps_per_epoch", "batch_size", "gradient_accumulation", "image_size", "threads",
         "stop_after", "evaluate_every", "tails_every", "devices", "nodes"), (1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALLEST)
def test_a_field_of_a_recipe_has_a_smallest_value(name: str) -> None:
    smallest, too_small = SMALLEST[name]
    assert getattr(DIGITS.replace(**{name: smallest}), name) == smallest
    with pytest.raises(UserError, match=rf"{name} must be at least .*, got {too_small}"):
        DIGITS.replace(**{name: too_small})


@pytest.mark.parametrize(
    ("recipe", "name", "smallest"),
    [
        ("gpt2-python", "context", 2),  # the last token of a sequence is only predicted
        ("plasticity-labels", "task_epochs", 1),
        ("plasticity-labels", "tasks_per_epoch", 1),
    ],
)
def test_a_field_of_text_or_tasks_has_a_smallest_value(recipe: str, name: str, smallest: int) -> None:
    assert getattr(RECIPES[recipe].replace(**{name: smallest}), name) == smallest
    with pytest.raises(UserError, match=f"{name} must be at least {smallest}, got {smallest - 1}"):
        RECIPES[recipe].replace(**{name: smallest - 1})


def test_a_vocabulary_has_more_than_the_256_bytes() -> None:
    assert check_tokenizer("gpt2:257") == 257
    with pytest.raises(ValueError, match="above 256"):
        check_tokenizer("gpt2:256")


def test_flags_may_be_equal_to_their_minimum() -> None:
    check_least(SweepFlags(target="table2", jobs=1, retries=0), jobs=1, retries=0)
    with pytest.raises(UserError, match="--jobs must be at least 1, got 0"):
        check_least(SweepFlags(target="table2", jobs=0), jobs=1)


@pytest.mark.parametrize(("every", "batches"), [(0, 1), (1, 0)])
def test_a_tail_observer_needs_an_interval_and_a_batch(every: int, batches: int) -> None:
    TailObserver(1, 1)
    with pytest.raises(ValueError, match="at least 1"):
        TailObserver(every, batches)


def test_a_balanced_set_has_ratio_one_and_no_class_is_empty() -> None:
    assert class_sizes(5, 3, 1.0) == [5, 5, 5]
    assert class_sizes(5, 3, 100.0) == [5, 1, 1]
    with pytest.raises(ValueError, match="at least 1"):
        class_sizes(5, 3, 0.99)


def test_classes_are_few_shot_below_20_and_many_shot_above_100() -> None:
    import torch

    assert shot_of(torch.tensor([101, 100, 20, 19])).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("seconds_per_call", "iterations", "calls"),
    [(1e-6, 100_000, 1000), (1e-6, 1_000, 201), (50e-6, 1_000, 10), (1.0, 1_000, 1)],
)
def test_a_block_of_calls_takes_between_a_fifth_and_one_millisecond(
    seconds_per_call: float, iterations: int, calls: int
) -> None:
    assert timing.calls_per_block(seconds_per_call, iterations, 100) == pytest.approx(calls, abs=1)


@pytest.mark.parametrize(("now", "has_changed"), [(1.0, False), (1.2, False), (1.35, True)])
def test_a_ratio_has_changed_if_each_median_is_outside_the_other_range(now: float, has_changed: bool) -> None:
    def row(median: float) -> dict[str, Any]:
        ratio = {"median": median, "low": median - 0.2, "high": median + 0.2}
        return {"kind": "operation", "activation": "iglu", "ratios": {"relu": ratio}}

    (ratio,) = compared([row(1.0)], [row(now)])
    assert ratio.has_changed is has_changed


def test_a_layer_counts_for_the_suggested_sigma_if_its_tail_is_above_zero() -> None:
    def run(value: float) -> Run:
        layer = dict.fromkeys(("excess", "excess_low", "excess_high", "scale"), value)
        return Run(Path(), DIGITS, "finished", ({"epoch": 1, "test_acc": 50.0, "tails": {"a": layer}},))

    assert suggested_sigma("scaled", run(0.5)) is not None
    assert suggested_sigma("scaled", run(0.0)) is None
