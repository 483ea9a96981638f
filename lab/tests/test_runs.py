"""Reading a folder of runs: all of it, in any state, and comparing the runs."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iglu_lab import cli
from iglu_lab.errors import UserError
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.runs.archive import add_to_archive, read_runs
from iglu_lab.runs.folder import Run, read_run
from iglu_lab.stats.comparison import Sample, marks, samples, setting_label, summarize
from iglu_lab.stats.contrasts import MeanDifference
from iglu_lab.stats.statistics import estimate, minimum_detectable_difference, seeds_needed
from iglu_lab.stats.tabulate import Table, csv_lines
from iglu_lab.sweep.filters import make_filter, read_field

BASE = RECIPES["digits-lt"].replace(epochs=2)


def _write(
    out: Path, recipe: Recipe, values: list[float], status: str = "finished", name: str = "test_acc"
) -> Path:
    """A folder as a run leaves it."""
    folder = out / recipe.folder_name
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(recipe.as_dict()))
    rows = [{"epoch": number, name: value, "seconds": 1.0} for number, value in enumerate(values, start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if status != "unfinished":
        message = "The loss is nan in epoch 2" if status == "diverged" else ""
        (folder / "state.json").write_text(json.dumps({"status": status, "message": message}))
    return folder


def _accuracy(activation: str, seed: int) -> float:
    """The effect of the seed is nearly the same on all activations."""
    draw = random.Random(f"{activation}/{seed}")
    return 60 + 5 * random.Random(seed).gauss(0, 1) + len(activation) + 0.3 * draw.gauss(0, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for activation in ("gelu", "iglu:0.5", "iglu:learnable=5", "relu"):
        for seed in range(4):
            _write(
                tmp_path, BASE.replace(activation=activation, seed=seed), [10.0, _accuracy(activation, seed)]
            )
    _write(tmp_path, BASE.replace(ratio=100.0), [90.0, 50.0])
    _write(tmp_path, BASE.replace(activation="silu"), [20.0], "diverged")
    _write(tmp_path, BASE.replace(activation="mish"), [20.0], "unfinished")
    return tmp_path


def test_differences_are_paired_by_seed_and_narrower_than_the_means(folder: Path) -> None:
    rows = {(row.setting, row.activation): row for row in summarize(read_runs(folder)[0])}
    found = rows["digits-lt epochs=2", "iglu:0.5"]
    pairs = [_accuracy("iglu:0.5", seed) - _accuracy("relu", seed) for seed in range(4)]
    assert found.differences["relu"].value == pytest.approx(statistics.mean(pairs))
    assert found.differences["relu"].sd == pytest.approx(statistics.stdev(pairs))
    widths = [each.high - each.low for each in (found.differences["gelu"], found.mean)]
    assert widths[0] < widths[1] / 3
    assert rows["digits-lt epochs=2", "relu"].differences.keys() == {"gelu"}


def test_a_mean_is_over_complete_runs_of_one_setting(folder: Path) -> None:
    rows = [
        (row.setting, row.activation, row.mean and row.mean.size) for row in summarize(read_runs(folder)[0])
    ]
    assert rows == [
        ("digits-lt epochs=2", "iglu:0.5", 4),
        ("digits-lt epochs=2", "iglu:learnable=5", 4),
        ("digits-lt epochs=2", "relu", 4),
        ("digits-lt epochs=2", "gelu", 4),
        ("digits-lt epochs=2", "silu", None),  # diverged: reported without a number
        ("digits-lt epochs=2 ratio=100", "relu", 1),
    ]


def test_a_run_that_exists_twice_counts_once(tmp_path: Path) -> None:
    for name in ("first", "second"):
        _write(tmp_path / name, BASE, [10.0, 61.0 if name == "first" else 99.0])
    (row,) = summarize(read_runs(tmp_path)[0])
    assert (row.mean.size, row.mean.value) == (1, 61.0)


def test_of_a_run_that_exists_twice_the_longer_one_counts(tmp_path: Path) -> None:
    _write(tmp_path / "first", BASE, [10.0], "unfinished")
    _write(tmp_path / "second", BASE, [10.0, 61.0])
    (row,) = summarize(read_runs(tmp_path)[0])
    assert (row.mean.size, row.mean.value) == (1, 61.0)
    assert not row.sample.unfinished


def test_half_written_folders_and_invalid_lines_are_named_and_skipped(folder: Path) -> None:
    complete, _ = read_runs(folder)
    cut = _write(folder, BASE.replace(seed=9), [10.0, 60.0])
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "test_a')
    _write(folder, BASE.replace(seed=10), [10.0, 60.0]).joinpath("recipe.json").write_text('{"name": ')
    (folder / "empty").mkdir()
    (folder / "odd").mkdir()
    (folder / "odd" / "recipe.json").write_text("[]")
    runs, problems = read_runs(folder)
    assert [run.folder for run in runs] == [run.folder for run in complete]
    assert len(problems) == 3
    with pytest.raises(UserError, match=re.escape(f"{cut / 'metrics.jsonl'} cannot be read: line 3")):
        read_run(cut)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", '{"epoch": 2, "test_acc": 1.0}\n{"epoch": 1, "test_acc": 2.0}\n'),
        ("metrics.jsonl", '{"epoch": 1, "test_acc": 1.0}\n{"epoch": 1, "test_acc": 1.0}\n'),
        ("metrics.jsonl", '{"epoch": 1, "test_acc": "many"}\n'),
        ("metrics.jsonl", '{"epoch": 1, "test_acc": ' + "9" * 400 + "}\n"),
        ("metrics.jsonl", '{"epoch": 1, "test_acc": true}\n'),
        ("metrics.jsonl", '{"epoch": 1, "test_acc": 1.0, "seconds": null}\n'),
        ("metrics.jsonl", '{"epoch": true, "test_acc": 1.0}\n'),
        ("metrics.jsonl", '{"epoch": 1}\n'),
        ("metrics.jsonl", "[1, 2]\n"),
        ("metrics.jsonl", "[" * 100_000),
        ("state.json", '{"status": "ended"}'),
        ("state.json", '{"status": ["finished"]}'),
        ("state.json", '{"status": "finished", "message": 3}'),
        ("state.json", "3"),
        ("recipe.json", '{"name": "digits", "dataset": "digits", "model": "resnet8", "epochs": "many"}'),
        ("recipe.json", '{"name": "digits", "dataset": "digits", "model": "resnet8", "format": 99}'),
        ("recipe.json", '{"name": "digits", "dataset": "digits"}'),
        (
            "recipe.json",
            '{"name": "digits", "dataset": "digits", "model": "resnet8", "seed": 1' + "0" * 30 + "}",
        ),
    ],
)
def test_a_file_with_an_invalid_value_is_named_and_its_run_left_out(
    name: str, content: str, tmp_path: Path
) -> None:
    good = _write(tmp_path, BASE, [10.0, 60.0])
    bad = _write(tmp_path, BASE.replace(seed=1), [10.0, 60.0])
    (bad / name).write_text(content)
    runs, problems = read_runs(tmp_path)
    assert [run.folder for run in runs] == [good]
    assert len(problems) == 1
    assert str(bad / name) in problems[0]


# -- many runs in one file -------------------------------------------------------------------------


def test_runs_recorded_in_one_file_are_read_as_from_their_folders(folder: Path, tmp_path: Path) -> None:
    (folder / BASE.replace(activation="gelu").folder_name / "provenance.jsonl").write_text(
        '{"torch": "2.0", "date": "2026-01-01"}\n{"torch": "2.1", "date": "2026-01-02", "step": 9}\n'
    )
    runs = [run for run in read_runs(folder)[0] if run.status != "unfinished"]
    file = tmp_path / "file" / "small.jsonl"
    assert add_to_archive(read_runs(folder)[0], file) == (len(runs), len(runs))
    found, problems = read_runs(file)
    assert not problems

    def described(run: Run) -> tuple[object, ...]:
        return run.recipe, run.status, run.history, run.message

    assert [described(run) for run in found] == [described(run) for run in runs]
    assert file.read_text().count("\n") == len(runs) + 1
    assert json.loads(file.read_text().splitlines()[0]) == {
        "iglu_runs": 1,
        "provenance": [{"torch": "2.1"}, {}],
    }
    (gelu,) = [run for run in found if run.name == BASE.replace(activation="gelu").folder_name]
    assert gelu.provenance == {"torch": "2.1", "date": "2026-01-02"}
    assert len(read_runs(tmp_path / "file")[0]) == len(runs)


def test_a_record_grows_and_keeps_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "small.jsonl"
    _write(tmp_path / "first", BASE, [10.0, 60.0])
    add_to_archive(read_runs(tmp_path / "first")[0], file)
    _write(tmp_path / "second", BASE, [10.0, 99.0])
    _write(tmp_path / "second", BASE.replace(seed=1), [10.0, 61.0])
    assert add_to_archive(read_runs(tmp_path / "second")[0], file) == (1, 2)
    assert [run.last["test_acc"] for run in read_runs(file)[0]] == [60.0, 61.0]


def test_a_recorded_run_that_stopped_early_is_replaced_by_the_complete_one(tmp_path: Path) -> None:
    file = tmp_path / "small.jsonl"
    complete = BASE.replace(epochs=2)
    _write(tmp_path / "first", complete.replace(stop_after=1), [10.0])
    _write(tmp_path / "first", complete.replace(seed=1), [10.0, 62.0])
    assert add_to_archive(read_runs(tmp_path / "first")[0], file) == (2, 2)
    _write(tmp_path / "second", complete, [10.0, 61.0])
    assert add_to_archive(read_runs(tmp_path / "second")[0], file) == (1, 2)
    assert {run.recipe.seed: run.last["test_acc"] for run in read_runs(file)[0]} == {0: 61.0, 1: 62.0}


def test_a_line_that_cannot_be_read_is_named_and_the_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "small.jsonl"
    for seed in range(2):
        _write(tmp_path / "runs", BASE.replace(seed=seed), [10.0, 60.0])
    runs, _ = read_runs(tmp_path / "runs")
    add_to_archive(runs, file)
    head, first, second = file.read_text().splitlines()
    file.write_text("\n".join([head, first.replace('"finished"', '"ended"'), second, "nonsense"]) + "\n")
    found, problems = read_runs(file)
    assert [run.recipe.seed for run in found] == [1]
    assert [problem.partition(" cannot")[0] for problem in problems] == [
        f"line {number} of {file}" for number in (2, 4)
    ]
    before = file.read_text()
    with pytest.raises(UserError, match="nothing was written"):
        add_to_archive(runs, file)
    assert file.read_text() == before
    file.write_text(head.replace('"iglu_runs": 1', '"iglu_runs": 2') + "\n")
    assert "has format 2; this version of iglu reads 1" in read_runs(file)[1][0]


def test_a_thousand_runs_are_read_and_summarized(tmp_path: Path) -> None:
    activations = ("relu", "gelu", "silu", "iglu:0.5", "iglu:1")
    for seed in range(200):
        for activation in activations:
            values = [10.0, _accuracy(activation, seed)]
            _write(tmp_path, BASE.replace(activation=activation, seed=seed), values)
    runs, problems = read_runs(tmp_path)
    assert (len(runs), problems) == (1000, [])
    rows = summarize(runs)
    assert [row.mean.size for row in rows] == [200] * len(activations)


# -- the command -----------------------------------------------------------------------------------


def test_the_command_lists_compares_and_names_what_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad").mkdir()
    (folder / "bad" / "recipe.json").write_text("{")
    assert cli.runs([str(folder)]) == 0
    shown = capsys.readouterr()
    assert re.search(r"best\*: .*test set", shown.out)
    assert "diverged: digits-lt epochs=2, silu, seed 0: The loss is nan" in shown.out
    assert "1 of 19 runs" in shown.out
    assert "Holm" in shown.out, "an unadjusted interval that excludes 0 decides nothing"
    line = next(line for line in shown.out.splitlines() if "ratio=100" in line)
    assert line.split()[-5:] == ["50.00%", "90.00%", "1", "2", "s"]
    assert f"{folder / 'bad' / 'recipe.json'} cannot be read" in shown.err


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["iglu"], 8),
        (["iglu:learnable"], 4),
        (["iglu:0.50", "relu"], 9),
        (["relu", "ratio=100"], 1),
        (["seed=1", "seed=2", "gelu", "relu"], 4),
        (["digits-lt"], 19),
    ],
)
def test_filters_of_the_same_kind_are_or_ed_and_different_kinds_are_and_ed(
    words: list[str], count: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.runs([str(folder), "--json", "--filter", *words]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == count


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["igul"], "Did you mean 'iglu'?"),
        (["ratoi=100"], "Did you mean 'ratio'?"),
        (["ratio=many"], "ratio must be a number, got 'many'"),
        (["celu"], "Available: digits-lt, gelu, iglu:0.5"),
        (["gelu", "ratio=100"], "No run matches gelu ratio=100 together"),
    ],
)
def test_a_filter_that_matches_nothing_raises_with_the_available_values(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.runs([str(folder), "--filter", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_runs_of_a_grid_are_selected_by_its_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text('recipes = ["digits-lt"]\nactivations = ["relu", "gelu"]\nseeds = 3\nepochs = 2\n')
    assert cli.runs([str(folder), "--json", "--grid", str(grid)]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert {(row["activation"], row["seed"]) for row in found} == {
        (name, seed) for name in ("relu", "gelu") for seed in range(3)
    }
    assert len(found) == 6  # without the one at 100:1
    assert cli.runs([str(folder), "--grid", "table3"]) == 2


def test_json_and_csv_have_the_same_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.runs([str(folder), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert cli.runs([str(folder), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["folder"] for row in rows] == [row["folder"] for row in body["runs"]]
    assert [row["last"] for row in rows] == [str(row["last"]) for row in body["runs"]]
    alone = next(row for row in body["summary"] if row["setting"].endswith("ratio=100"))
    assert alone["mean"]["high"] is None  # the interval of one seed is infinite


def test_another_metric_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path, RECIPES["gpt2-python"].replace(epochs=1), [31.5], name="perplexity")
    assert cli.runs([str(tmp_path), "--metric", "perplexity", "--summary"]) == 0
    assert "31.50" in capsys.readouterr().out
    assert cli.runs([str(tmp_path), "--metric", "test_los"]) == 2
    assert re.search(r"'test_los'.*epoch, perplexity", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["runs[/b]", "runs[red]x", "runs:smile:"])
def test_a_folder_name_is_never_read_as_markup(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / name
    _write(folder, BASE, [10.0, 60.0])
    _write(folder, BASE.replace(seed=1), [10.0], "diverged")
    assert cli.runs([str(folder)]) == 0
    assert f"iglu report {folder}" in capsys.readouterr().out
    argv = ["digits", "--epochs", "1", "--steps-per-epoch", "1", "--threads", "1", "--out", str(folder)]
    assert cli.train(argv) == 0
    assert str(folder) in capsys.readouterr().out


def test_a_closed_pipe_is_not_an_error(folder: Path, tmp_path: Path) -> None:
    """As head closes it; the status is the shell's for a broken pipe."""
    closed = tmp_path / "closed"
    writer = f"{sys.executable} -m iglu runs '{folder}' --csv; echo $? >&2"
    script = f"(until [ -e '{closed}' ]; do sleep 0.01; done; {writer}) | (exec 0<&-; touch '{closed}')"
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert shown.stderr.splitlines() == ["141"]


def test_a_cell_that_begins_like_a_formula_is_text_for_a_spreadsheet() -> None:
    lines = csv_lines([["=1+1", "+SUM(A1)", "@now", "-x", "-1.5", "+0.25 ± 0.1", None]])
    assert lines == "'=1+1,'+SUM(A1),'@now,'-x,-1.5,+0.25 ± 0.1,\n"


@pytest.mark.parametrize(("second", "expected"), [([1.0, 3.0], ["", ""]), ([9.0, 9.0], ["", "best"])])
@pytest.mark.parametrize("start", [5, 1])
def test_without_two_common_seeds_touching_intervals_do_not_count_as_different(
    start: int, second: list[float], expected: list[str], tmp_path: Path
) -> None:
    """Of equal values the interval is a point: 3 and 3 touch where the other has 1 and 3 as its ends.  One
    common seed has a difference, but no interval of it."""
    for seed, value in enumerate([3.0, 3.0]):
        _write(tmp_path, BASE.replace(seed=seed), [1.0, value])
    for seed, value in enumerate(second, start=start):
        _write(tmp_path, BASE.replace(activation="gelu", seed=seed), [1.0, value])
    (of,) = samples(read_runs(tmp_path)[0]).values()
    assert marks([of["relu"], of["gelu"]], "test_acc") == expected


def _column(out: Path, values: dict[str, list[float]], name: str = "test_acc") -> list[Sample]:
    base = BASE if name == "test_acc" else RECIPES["gpt2-python"].replace(epochs=2)
    for activation, seeds in values.items():
        for seed, value in enumerate(seeds):
            _write(out, base.replace(activation=activation, seed=seed), [1.0, value], name=name)
    (of,) = samples(read_runs(out)[0]).values()
    return [of[activation] for activation in values]


def test_best_is_the_highest_accuracy_and_the_lowest_perplexity(tmp_path: Path) -> None:
    values = {"relu": [1.0, 1.1], "gelu": [3.0, 3.1], "silu": [2.0, 2.1]}
    assert marks(_column(tmp_path / "a", values), "test_acc") == ["", "best", "second"]
    assert marks(_column(tmp_path / "b", values, "perplexity"), "perplexity") == ["best", "", "second"]


def test_the_best_epoch_has_the_highest_accuracy_or_the_lowest_perplexity(tmp_path: Path) -> None:
    images = _write(tmp_path, BASE, [60.0, 50.0])
    text = _write(tmp_path, RECIPES["gpt2-python"].replace(epochs=2), [9.0, 8.0], name="perplexity")
    assert [read_run(folder).best["epoch"] for folder in (images, text)] == [1, 2]


def test_a_table_is_cut_only_where_it_is_wider_than_a_panel() -> None:
    headers = ["name", *((f"group {number // 2}", "ours") for number in range(8))]
    table = Table.of("wide", "", headers, [["a", *range(8)]])
    assert [len(panel.headers) for panel in table.panels(9)] == [9]
    assert [len(panel.headers) for panel in table.panels(8)] == [7, 3]
    assert [[cell.text for cell in panel.rows[0]] for panel in table.panels(8)][1] == ["a", "6", "7"]


def test_second_best_needs_a_best(tmp_path: Path) -> None:
    """The first two are similar, the third is far worse."""
    column = _column(tmp_path, {"relu": [9.0, 9.2], "gelu": [9.1, 9.1], "silu": [2.0, 2.1]})
    assert marks(column, "test_acc") == ["", "", ""]


def test_two_common_seeds_can_distinguish_samples_with_the_same_seed_effect(tmp_path: Path) -> None:
    column = _column(tmp_path, {"relu": [10.0, 90.0], "gelu": [11.0, 91.001]})
    assert marks(column, "test_acc") == ["", "best"]


def test_a_sample_with_a_diverged_seed_is_not_marked(tmp_path: Path) -> None:
    _write(tmp_path, BASE.replace(activation="gelu", seed=7), [1.0], "diverged")
    column = _column(tmp_path, {"relu": [1.0, 1.1], "gelu": [9.0, 9.1], "silu": [0.1, 0.2]})
    assert marks(column, "test_acc") == ["best", "", ""]


@pytest.mark.parametrize("differences", [[0.5, 0.5], [0.0, 0.0], [0.1 + 0.2, 0.3]])
def test_identical_differences_have_a_p_value_of_one(differences: list[float]) -> None:
    assert MeanDifference.of(estimate(differences)).p_value == 1


def test_the_p_value_of_a_difference_is_that_of_students_t() -> None:
    values = [0.3, 0.1, 0.4, -0.1]
    expected = pytest.importorskip("scipy.stats").ttest_1samp(values, 0).pvalue
    assert MeanDifference.of(estimate(values)).p_value == pytest.approx(expected)
    assert math.isnan(MeanDifference.of(estimate([0.3])).p_value)


@pytest.mark.parametrize(("difference", "spread"), [(1.0, 0.7), (-0.5, 0.7), (1.7, 0.33), (0.05, 0.62)])
def test_seeds_needed_is_the_smallest_number_that_detects_a_difference_with_80_percent_power(
    difference: float, spread: float
) -> None:
    """The power of the paired t-test, from the noncentral t distribution, is at most one point below 80%."""
    seeds = seeds_needed(difference, spread)
    assert (
        minimum_detectable_difference(seeds, spread)
        <= abs(difference)
        < minimum_detectable_difference(seeds - 1, spread)
    )
    stats = pytest.importorskip("scipy.stats")
    shift = abs(difference) / (spread * math.sqrt(2 / seeds))
    power = stats.nct.sf(stats.t.ppf(0.975, seeds - 1), seeds - 1, shift)
    assert 0.79 < power < 0.9
    assert seeds_needed(-difference, spread) == seeds


@pytest.mark.parametrize("difference", [0.0, math.nan, math.inf])
def test_seeds_needed_raises_if_the_difference_is_zero_or_not_finite(difference: float) -> None:
    with pytest.raises(ValueError, match="must be finite and not 0"):
        seeds_needed(difference, 0.7)


def test_equal_samples_do_not_count_as_different(tmp_path: Path) -> None:
    for activation in ("relu", "gelu"):
        for seed in range(3):
            _write(tmp_path, BASE.replace(activation=activation, seed=seed), [1.0, 60.0])
    (of,) = samples(read_runs(tmp_path)[0]).values()
    assert marks(list(of.values()), "test_acc") == ["", ""]


# -- fields and filters on the command line ----------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("epochs=3", 3),
        ("lr=1", 1.0),
        ("max_grad_norm=none", None),
        ("norm=False", False),
        ("precision=32", "32"),
        ("dataset=texts/mine.txt", "texts/mine.txt"),
        ("color_jitter=[0, 0, 0, 0.1]", (0.0, 0.0, 0.0, 0.1)),
    ],
)
def test_a_field_is_read_with_its_type_in_the_recipe(word: str, value: Any) -> None:
    name, found = read_field(word)
    assert found == value
    assert type(found) is type(value)
    assert getattr(BASE.replace(**{name: found}), name) == value


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("epochs=3.5", "epochs must be an integer, got 3.5"),
        ("norm=1", "norm must be true or false, got 1"),
        ("color_jitter=[1]", "color_jitter must be a list of 4 numbers"),
        ("schedule=cosin", "Did you mean 'cosine'?"),
        ("epochs", "expected field=value"),
    ],
)
def test_an_invalid_field_raises_with_what_is_allowed(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_field(word)


def test_an_empty_filter_selects_everything() -> None:
    assert make_filter((), [BASE])(BASE)


def test_a_setting_is_labeled_by_its_differences_from_the_recipe() -> None:
    assert setting_label(BASE.replace(threads=3, seed=5, stop_after=1)) == "digits-lt epochs=2 stop_after=1"


def test_a_recipe_in_the_folder_of_another_run_is_named_and_left_out(tmp_path: Path) -> None:
    own = _write(tmp_path, BASE, [10.0, 60.0])
    for change in ({"seed": 1}, {"activation": "gelu"}, {"lr": 0.5}):
        other = _write(tmp_path, BASE.replace(**change), [10.0, 60.0])
        (other / "recipe.json").write_text((own / "recipe.json").read_text())
    runs, problems = read_runs(tmp_path)
    assert [run.folder for run in runs] == [own]
    assert len(problems) == 3
    assert all(f"it is the recipe of {own.name}, but its folder has another name" in c for c in problems)


def test_reading_a_recipe_in_the_folder_of_another_run_raises(tmp_path: Path) -> None:
    content = json.dumps(RECIPES["digits-lt"].replace(activation="iglu:0.5", seed=3).as_dict())
    for name in ("digits-lt_iglu-0.5_seed=4", "digits-lt_relu_seed=3", "digits_iglu-0.5_seed=3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").write_text(content)
        with pytest.raises(UserError, match="another name"):
            read_run(tmp_path / name)


def test_an_unknown_metric_raises_with_the_known_ones(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ([], ["--json"], ["--csv"]):
        assert cli.runs([str(folder), "--metric", "foo", *form]) == 2
        said = capsys.readouterr().err
        assert "'foo'" in said
        assert "test_acc" in said


def test_a_filter_keeps_the_references_in_the_differences(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def summary(*words: str) -> list[dict[str, Any]]:
        assert cli.runs([str(folder), "--json", *words]) == 0
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["summary"]
        return rows

    everything = {row["activation"]: row for row in summary() if "ratio" not in row["setting"]}
    for word in (["--filter", "iglu"], ["--filter", "iglu:0.5", "seed=0", "seed=1"]):
        for row in summary(*word):
            assert row["activation"].startswith("iglu")
            assert row["differences"].keys() == {"relu", "gelu"}
    for row in summary("--filter", "iglu"):
        assert row == everything[row["activation"]]


def test_errors_name_the_folder_and_the_record_without_error_codes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nothing").mkdir()
    monkeypatch.chdir(tmp_path / "nothing")
    assert cli.runs(["."]) == 2
    assert capsys.readouterr().err == "iglu runs: No run in .\n"
    (tmp_path / "file").write_text("")
    assert cli.runs([str(folder), "--record", str(tmp_path / "file" / "runs.jsonl")]) == 2
    said = capsys.readouterr().err
    assert "Errno" not in said
    assert str(tmp_path / "file") in said
