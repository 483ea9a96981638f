"""The evidence in the tree: every row is of its grid and finished, and the pages tell what the rows say."""

from __future__ import annotations

import math
import pathlib
import sys

import pytest

pytest.importorskip("tyro", reason="the lab")

from scipy.stats import t as student

from iglu.lab.report.gather import Gathered, gather
from iglu.lab.report.sigmas import networks
from iglu.lab.runs.record import read_runs
from iglu.lab.sweep.grid import read_grid
from iglu.probing.sigma import RULES

ROOT = pathlib.Path(__file__).parent.parent
EVIDENCE = ROOT / "results" / "evidence"
pytestmark = pytest.mark.skipif(not EVIDENCE.is_dir(), reason="needs a checkout")
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture(scope="module")
def found() -> Gathered:
    return gather([EVIDENCE])


@pytest.mark.parametrize("file", sorted(EVIDENCE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_recorded_runs_are_of_the_grid_beside_them_and_carried_through(file: pathlib.Path) -> None:
    planned = {recipe.folder_name for recipe in read_grid(str(file.with_suffix(".toml"))).runs}
    runs, complaints = read_runs(file)
    assert complaints == []
    assert {run.name for run in runs} <= planned
    assert all(run.is_whole or run.status == "diverged" for run in runs)
    assert all("tails" in run.last for run in runs if run.status == "finished")


def test_pages_tell_the_evidence_as_the_rows_have_it(found: Gathered) -> None:
    import evidence

    told = {page.name: page.read_text(encoding="utf-8") for page in evidence.PAGES}
    assert sum("<!-- evidence: " in text for text in told.values()) >= 2
    for name, text in told.items():
        assert evidence.told(text, found) == text, f"{name}: python tools/evidence.py brings it up to date"


def test_the_rules_say_of_themselves_what_the_rows_say(found: Gathered) -> None:
    worths = [worth for network in networks(found.evidence) for worth in network.rules]
    for rule in {worth.rule for worth in worths}:
        gains = [worth.gain for worth in worths if worth.rule == rule]
        assert len(gains) == 5, "the text says five"
        gained, lost = sum(gain.low > 0 for gain in gains), sum(gain.high < 0 for gain in gains)
        assert f"better than sigma = 1 in {gained} and worse in {lost}" in RULES[rule].weakness


def test_the_plan_says_what_ten_seeds_can_show() -> None:
    """At a spread of .7, if pairing gains nothing: the quantiles of 5% over the comparisons and of 80%."""
    text = " ".join((EVIDENCE / "README.md").read_text(encoding="utf-8").split())
    one, nine = (
        0.7 * math.sqrt(2 / 10) * (student.ppf(1 - 0.025 / comparisons, 9) + student.ppf(0.8, 9))
        for comparisons in (1, 9)
    )
    assert f"{one:.2f} points for the one comparison of a claim and {nine:.2f} for".lstrip("0") in text


def test_only_what_stands_between_the_marks_is_replaced(found: Gathered) -> None:
    import evidence

    text = "before\n<!-- evidence: sigma-rules -->\nold\n<!-- /evidence -->\nafter\n"
    new = evidence.told(text, found)
    assert new.startswith("before\n<!-- evidence: sigma-rules -->\n\n")
    assert new.endswith("\n\n<!-- /evidence -->\nafter\n")
    assert "old" not in new
    assert evidence.told(new, found) == new
