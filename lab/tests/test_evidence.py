"""The recorded evidence: every row belongs to its grid and is finished, and the pages show its results."""

from __future__ import annotations

import collections
import math
import pathlib
import sys

import pytest

pytest.importorskip("tyro", reason="the lab")

from scipy.optimize import brentq
from scipy.stats import nct as noncentral
from scipy.stats import t as student

from iglu.probing.sigma import RULES
from iglu_lab.report.comparisons import all_tasks
from iglu_lab.report.gather import Gathered, gather
from iglu_lab.report.sigmas import networks
from iglu_lab.report.summary import categories, headlines, is_ours, limits, loss_table
from iglu_lab.runs.archive import read_runs
from iglu_lab.storage import RESULTS
from iglu_lab.sweep.grid import read_grid

ROOT = pathlib.Path(__file__).parents[2]
EVIDENCE = RESULTS / "evidence"
pytestmark = pytest.mark.skipif(not (ROOT / "tools").is_dir(), reason="needs a clone")
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture(scope="module")
def found() -> Gathered:
    import evidence

    return evidence.read_rows()


@pytest.mark.parametrize("file", sorted(EVIDENCE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_recorded_runs_are_complete_and_of_the_grid_of_the_same_name(file: pathlib.Path) -> None:
    planned = {recipe.folder_name for recipe in read_grid(str(file.with_suffix(".toml"))).runs}
    runs, problems = read_runs(file)
    assert problems == []
    assert runs
    assert {run.name for run in runs} <= planned
    assert all(run.is_complete or run.status == "diverged" for run in runs)
    tasks = [run for run in runs if run.recipe.kind != "continual" and run.status == "finished"]
    assert all("tails" in run.last for run in tasks)


def test_pages_show_the_results_of_the_rows(found: Gathered) -> None:
    import evidence

    pages = {page.name: page.read_text(encoding="utf-8") for page in evidence.PAGES}
    assert sum("<!-- evidence: " in text for text in pages.values()) >= 2
    for name, text in pages.items():
        assert evidence.with_blocks(text, found) == text, f"{name}: run python tools/evidence.py"


def test_the_text_of_each_rule_has_the_counts_of_the_recorded_runs(found: Gathered) -> None:
    every = [each for network in networks(found.first_round) for each in network.rules]
    for rule in {each.rule for each in every}:
        gains = [each.gain for each in every if each.rule == rule]
        assert len(gains) == 5, "the text says five"
        gained, lost = sum(gain.low > 0 for gain in gains), sum(gain.high < 0 for gain in gains)
        assert f"better than sigma = 1 in {gained} and worse in {lost}" in RULES[rule].weakness


def detectable(error: float, freedom: int, level: float) -> float:
    """The difference that a two-sided t-test finds with 80% power, from the noncentral t distribution."""
    bound = student.ppf(1 - level / 2, freedom)
    return error * brentq(lambda shift: noncentral.sf(bound, freedom, shift) - 0.8, 0.0, 30.0)


def test_the_plan_states_the_minimum_detectable_differences_of_its_seeds() -> None:
    """Ten seeds at an SD of .7, if pairing gains nothing; three and five blocks of four at .68."""
    text = " ".join((EVIDENCE / "README.md").read_text(encoding="utf-8").split())
    one, nine = (detectable(0.7 * math.sqrt(2 / 10), 9, 0.05 / comparisons) for comparisons in (1, 9))
    assert f"{one:.2f} points for the comparison of a claim and {nine:.2f} for the strictest" in text
    numbers = [
        f"{detectable(0.68 / math.sqrt(seeds), 3 * (seeds - 1), level):.2f}"
        for level in (0.05, 0.024)
        for seeds in (5, 3)
    ]
    assert (
        "{} points with five seeds and {} with three; at the level of a look it is {} and {}.".format(
            *numbers
        )
    ) in text


def test_only_text_between_the_markers_is_replaced(found: Gathered) -> None:
    import evidence

    text = "before\n<!-- evidence: sigma-rules -->\nold\n<!-- /evidence -->\nafter\n"
    new = evidence.with_blocks(text, found)
    assert new.startswith("before\n<!-- evidence: sigma-rules -->\n\n")
    assert new.endswith("\n\n<!-- /evidence -->\nafter\n")
    assert "old" not in new
    assert evidence.with_blocks(new, found) == new


def test_a_sealed_grid_is_only_counted(tmp_path: pathlib.Path) -> None:
    """Four seeds of a grid whose plan allows a look after five: no sample, no table, only their number."""
    lines = (EVIDENCE / "sigma-resnet.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    rows = "".join(line for line in lines if '"seed": 4,' not in line)
    plan = (EVIDENCE / "sigma-resnet.toml").read_text(encoding="utf-8")
    (tmp_path / "sigma-resnet.jsonl").write_text(rows, encoding="utf-8")
    (tmp_path / "sigma-resnet.toml").write_text(plan, encoding="utf-8")
    open_, looks = gather([tmp_path]), "\nlooks = [{}]\n"
    (tmp_path / "sigma-resnet.toml").write_text(plan + looks.format(4), encoding="utf-8")
    due = gather([tmp_path])
    (tmp_path / "sigma-resnet.toml").write_text(plan + looks.format(5), encoding="utf-8")
    sealed = gather([tmp_path])
    assert len(open_.runs) == len(due.runs) == len(sealed.sealed) == 56
    assert open_.planned[0].samples
    assert due.planned[0].samples
    assert sealed.runs == []
    assert sealed.samples == {}
    assert sealed.planned[0].samples == {}
    assert len(sealed.planned[0].recorded) == 56
    assert any("56 of 70 runs" in source for source in sealed.sources)


# -- what is known of the first round, counted independently -------------------------------------------


def test_differences_without_significance_are_equivalent_or_inconclusive(found: Gathered) -> None:
    """Of the first round's 46: 5 equivalent within 0.5 points, 12 within 1 point or 1%, 29 inconclusive."""
    counts = collections.Counter(
        one.margin.text if one.category == "equivalent" and one.margin else one.category
        for task in all_tasks(found)
        for reference in ("relu", "gelu")
        for one in task.differences_to(reference)
        if is_ours(one.activation) and one.category in ("equivalent", "inconclusive")
    )
    assert counts == {"0.5 points": 5, "1 point": 11, "1%": 1, "inconclusive": 29}


@pytest.mark.parametrize(
    ("activation", "better", "worse", "tasks"), [("iglu:5", 1, 1, 10), ("iglu:0.5", 0, 5, 11)]
)
def test_counts_per_sigma_are_those_counted_independently(
    found: Gathered, activation: str, better: int, worse: int, tasks: int
) -> None:
    counts = categories(all_tasks(found), activation, "relu")
    assert (counts["better"], counts["worse"], counts.total()) == (better, worse, tasks)
    (line,) = [line for line in headlines(all_tasks(found)) if f"sigma = {activation[5:]})" in line]
    assert f"better than ReLU on {better} of {tasks} tasks, worse on {worse}" in line


def test_a_small_sigma_has_the_lower_loss_and_the_lower_accuracy_at_100_and_200_to_1(found: Gathered) -> None:
    (table,) = loss_table(all_tasks(found))
    opposite = {(row[0].text[:27], row[1].text) for row in table.rows if row[5].text == "yes"}
    expected = {f"resnet8 on cifar10 at {ratio}:1" for ratio in (100, 200)}
    assert {task for task, name in opposite if name == "IGLU (sigma = 0.5)"} == expected


def test_the_stated_limitations_have_the_numbers_of_the_rows(found: Gathered) -> None:
    text = " ".join(limits(found))
    for fact in ("62% on the training set", "52% on the test set", "5 of the tasks", "4.87 and 5.64"):
        assert fact in text
