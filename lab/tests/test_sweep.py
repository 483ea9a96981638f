"""Sweeps: the grids are the paper's, and an interrupted sweep resumes to the same numbers."""

from __future__ import annotations

import io
import itertools
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from iglu_lab import cli, paper
from iglu_lab.commands import sweep as command
from iglu_lab.console import Terminal
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.runs.archive import read_runs
from iglu_lab.runs.folder import lock_run
from iglu_lab.storage import RESULTS
from iglu_lab.sweep.display import SweepDisplay
from iglu_lab.sweep.estimate import durations, wall_seconds
from iglu_lab.sweep.filters import read_field
from iglu_lab.sweep.grid import Contrast, grid_status, read_grid
from iglu_lab.sweep.local import run_local
from iglu_lab.sweep.worker import Progress, RunResult, SweepObserver, missing_data, run_recipe
from iglu_lab.training.loop import Observer, Training, fit

RECIPE = RECIPES["digits-lt"].replace(epochs=2, steps_per_epoch=3, batch_size=8, threads=1)

FILE = """
recipes = ["digits-lt"]
activations = ["relu", "iglu:0.5"]
seeds = 2
epochs = 2
steps_per_epoch = 3
batch_size = 8
"""


pytestmark = pytest.mark.usefixtures("alone")


def _file(folder: Path, content: str = FILE) -> str:
    path = folder / "small.toml"
    path.write_text(content)
    return str(path)


def _metrics(out: Path) -> dict[str, object]:
    runs, problems = read_runs(out)
    assert not problems
    assert {run.status for run in runs} == {"finished"}
    return {run.folder.name: run.without_timings() for run in runs}


# -- the grid --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", paper.RUN_TABLES)
def test_a_table_has_every_row_and_column_of_the_paper(number: int) -> None:
    recipes = read_grid(f"table{number}", seeds=3).runs
    table = paper.run_table(number)
    expected = {
        (column.recipe.name, column.recipe.ratio, activation, seed)
        for column in table.columns for activation in table.rows for seed in range(3)
    }  # fmt: skip
    assert {(recipe.name, recipe.ratio, recipe.activation, recipe.seed) for recipe in recipes} == expected
    assert len(recipes) == len(expected)
    assert len({recipe.folder_name for recipe in recipes}) == len(recipes)


def test_table_4_has_the_printed_ratios_and_the_one_that_was_run() -> None:
    assert {recipe.ratio for recipe in read_grid("table4").runs} == {10, 20, 50, 100, 200, 500}


def test_tables_2_and_3_have_the_learnable_sigmas() -> None:
    for name in ("table2", "table3"):
        assert {"iglu:learnable=5", "iglu_approx:learnable=5"} <= {c.activation for c in read_grid(name).runs}


def test_table_5_has_six_networks_with_and_without_normalization() -> None:
    recipes = read_grid("table5", seeds=1).runs
    assert sorted((recipe.model, recipe.norm) for recipe in recipes) == sorted(
        itertools.product(("resnet20", "gpt2-small", "vit-tiny"), (True, False))
    )


def test_seeds_are_outermost_and_fields_are_changed(tmp_path: Path) -> None:
    recipes = read_grid(_file(tmp_path), changes={"lr": 0.5}).runs
    assert [(recipe.seed, recipe.activation) for recipe in recipes] == [
        (0, "relu"), (0, "iglu:0.5"), (1, "relu"), (1, "iglu:0.5"),
    ]  # fmt: skip
    assert {(recipe.epochs, recipe.batch_size, recipe.lr) for recipe in recipes} == {(2, 8, 0.5)}


def test_a_run_has_one_thread_unless_the_file_or_the_flag_says_more(tmp_path: Path) -> None:
    assert {recipe.threads for recipe in read_grid("table2", seeds=1).runs} == {1}
    file = _file(tmp_path, FILE + "threads = 2\n")
    assert {recipe.threads for recipe in read_grid(file).runs} == {2}
    assert {recipe.threads for recipe in read_grid(file, changes={"threads": 3}).runs} == {3}


def test_a_field_may_be_spelled_like_its_flag() -> None:
    assert read_field("steps-per-epoch=3") == ("steps_per_epoch", 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FILE + "rato = 3", "Unknown field 'rato'. Did you mean 'ratio'?"),
        (FILE + 'activation = "relu"', "Unknown field 'activation'. Did you mean 'activations'?"),
        (FILE + "lr = 'fast'", "lr must be a number, got 'fast'"),
        (FILE + "ratio = 0.5", "ratio must be at least 1, got 0.5"),
        (FILE + 'model = "resnet21"', "model must be one of"),
        (FILE.replace("iglu:0.5", "igul:0.5"), "Unknown activation 'igul'. Did you mean 'iglu'?"),
        (FILE.replace("digits-lt", "digit-lt"), "Unknown recipe 'digit-lt'. Did you mean 'digits-lt'?"),
        (FILE.replace("seeds = 2", "seeds = 0"), "seeds must be a number of seeds or a list of them, got 0"),
        (FILE.replace("recipes", "recipe"), "Unknown field 'recipe'. Did you mean 'recipes'?"),
        (FILE + "devices = 2", "devices cannot be set"),
        (FILE + "epochs = 3", "is not TOML"),
    ],
)
def test_an_invalid_file_is_named_with_its_key(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.sweep([_file(tmp_path, content), "--dry-run"]) == cli.USER_ERROR
    shown = capsys.readouterr().err
    assert "small.toml" in shown
    assert message in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["table6"], "Unknown sweep 'table6'. Did you mean"),
        (["table1"], "iglu bench"),
        (["table4", "--data", "/nowhere"], "--data /nowhere is not a folder"),
        (["nowhere.toml"], "nowhere.toml does not exist"),
        (["table4", "--only", "ratio=30"], "Available: resnet20-cifar100-lt, iglu:0.1"),
        (["table4", "--only", "igul"], "Did you mean 'iglu'?"),
        (["table4", "--set", "epoch=3"], "Did you mean 'epochs'?"),
        (["table4", "--set", "learning_rate=1"], "Did you mean 'lr'?"),
        (["table4", "--set", "seed=3"], "seed cannot be set"),
        (["table4", "--seeds", "0"], "--seeds must be at least 1"),
        (["table4", "--jobs", "0"], "--jobs must be at least 1"),
        (["table4", "--time-limit", "soon"], "--time-limit must be"),
    ],
)
def test_an_invalid_flag_is_an_error_with_the_reason(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.sweep([*flags, "--dry-run"]) == cli.USER_ERROR
    assert message in capsys.readouterr().err


# -- the estimate ----------------------------------------------------------------------------------


def test_the_estimate_is_made_from_existing_runs(tmp_path: Path) -> None:
    (result,) = run_local([RECIPE], out=tmp_path)
    assert result.run is not None
    epoch = sum(row["seconds"] + row["test_seconds"] for row in result.run.history) / 2
    longer = RECIPE.replace(activation="iglu:1", seed=7, epochs=40)
    assert durations([longer], [result.run])[longer] == pytest.approx(40 * epoch)
    half = durations([longer], [result.run], {longer: result.run})
    assert half[longer] == pytest.approx(38 * epoch)
    other = RECIPE.replace(ratio=5.0)
    assert math.isnan(durations([other], [result.run])[other])


def test_the_wall_time_is_an_even_share_but_no_less_than_the_longest_run() -> None:
    assert wall_seconds([10, 10, 10, 10], jobs=2) == 20
    assert wall_seconds([10, 50, math.nan], jobs=2) == 50


def test_a_dry_run_counts_the_runs_and_runs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--dry-run",
        "--only",
        "iglu",
        "ratio=200",
        "ratio=500",
        "--seeds",
        "2",
        "--out",
        str(tmp_path / "o"),
    ]
    assert cli.sweep(["table4", *flags, "--data", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "table4: 20 runs" in shown
    assert "20 of 20 runs remaining" in shown
    assert "unknown" in shown
    assert not (tmp_path / "o").exists()


# -- running ---------------------------------------------------------------------------------------


def test_a_sweep_with_tails_writes_them_to_the_last_line_of_each_run(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'recipes = ["digits-lt"]\nactivations = ["relu"]\nseeds = 1\nepochs = 2\nsteps_per_epoch = 2'
    )
    assert cli.sweep([str(grid), "--tails-every", "5", "--out", str(tmp_path / "runs")]) == 0
    (run,), _ = read_runs(tmp_path / "runs")
    assert ["tails" in row for row in run.history] == [False, True]
    layers = run.last["tails"]
    assert len(layers) == 7
    assert all(layer["alpha"] > 0 and layer["gaussian"] > 0 for layer in layers.values())


def test_a_field_with_several_values_is_run_with_each(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'recipes = ["digits-lt"]\nactivations = ["relu", "gelu"]\nseeds = 1\nratio = [10.0, 50.0]'
    )
    recipes = read_grid(str(grid)).runs
    assert [(recipe.ratio, recipe.activation) for recipe in recipes] == [
        (10.0, "relu"), (10.0, "gelu"), (50.0, "relu"), (50.0, "gelu"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ('metric = "test_acc"', "plan must have metric and reference"),
        ('metric = "test_acc"\nreference = "silu"', "an activation of the plan"),
        ('metric = "test_acc"\nreference = "relu"\nclaims = {a = ["relu"]}', "compares two activations"),
        ('metric = "test_acc"\nreference = "relu"\nprimary = {a = ["relu"]}', "two sides"),
        ('metric = "test_acc"\nreference = "relu"\nprimary = {a = ["relu", "silu"]}', "silu"),
        ('metric = "test_acc"\nreference = "relu"\nmodel = "pairs"', "paired"),
        ('metric = "test_acc"\nreference = "relu"\nlooks = [5, 3]', "ascend"),
        ('metric = "test_acc"\nreference = "relu"\nlooks = [3, 5]\nlooked = [5]', "before the last"),
        ('metric = "test_acc"\nreference = "relu"\nlooks = 4', "looks of a plan must be a list"),
        ('metric = "test_acc"\nreference = "relu"\nlooks = [9]', "at 9 seeds, but the grid has 5"),
        ('metric = "test_acc"\nreference = "relu"\nmargin = "0.5"', "margin of a plan must be a number"),
        ('metric = "test_acc"\nreference = "relu"\npilot = "false"', "pilot of a plan must be true or false"),
        ('metric = "test_acc"\nreference = "relu"\nclaims = 3', "claims of a plan must be a table"),
    ],
)
def test_a_plan_that_does_not_fit_its_grid_raises(plan: str, message: str, tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(f'recipes = ["digits"]\nactivations = ["relu", "gelu"]\n[plan]\n{plan}')
    with pytest.raises(ValueError, match=message):
        read_grid(str(grid))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("seeds = [1, 1, 2]", "each seed must be given once"),
        ("lr = []", "lr must have a value, got an empty list"),
        ("by_activation = 3", "by_activation must have a table"),
        ("by_activation = { relu = 3 }", "by_activation must have a table"),
        ("lr = [1e-3, 3e-3]", "the comparisons of a plan need one setting, got 2"),
    ],
)
def test_an_invalid_grid_file_raises(fields: str, message: str, tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    plan = '[plan]\nmetric = "test_acc"\nreference = "relu"\nprimary = { a = ["gelu", "relu"] }'
    grid.write_text(f'recipes = ["digits"]\nactivations = ["relu", "gelu"]\n{fields}\n{plan}')
    with pytest.raises(ValueError, match=message):
        read_grid(str(grid))


def test_a_plan_is_sealed_until_a_look_and_an_early_look_costs_significance(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    text = """recipes = ["digits"]\nactivations = ["relu", "gelu", "silu"]
[plan]\nmetric = "test_acc"\nreference = "relu"\nlooks = [3, 5]\nlook_level = 0.03
[plan.primary]\nmean = [["gelu", "silu"], "relu"]"""
    grid.write_text(text)
    plan = read_grid(str(grid)).plan
    assert plan is not None
    assert plan.primary == (Contrast("mean", ("gelu", "silu"), ("relu",)),)
    assert [plan.is_sealed(seeds) for seeds in (0, 3, 4, 5, 6)] == [True, True, True, False, False]
    assert plan.level == 0.05
    grid.write_text(text.replace("look_level", "looked = [3]\nlook_level"))
    plan = read_grid(str(grid)).plan
    assert plan is not None
    assert [plan.is_sealed(seeds) for seeds in (2, 3, 4)] == [True, False, False]
    assert plan.level == 0.03


def test_an_activation_may_have_values_of_its_own(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'recipes = ["digits"]\nactivations = ["relu", "gelu"]\nseeds = 1\nlr = 1e-3\n'
        "[by_activation.gelu]\nlr = [1e-3, 3e-3]"
    )
    assert [(run.activation, run.lr) for run in read_grid(str(grid)).runs] == [
        ("relu", 1e-3), ("gelu", 1e-3), ("gelu", 3e-3),
    ]  # fmt: skip
    grid.write_text('recipes = ["digits"]\nactivations = ["relu"]\n[by_activation.geluu]\nlr = 1.0')
    with pytest.raises(ValueError, match="geluu"):
        read_grid(str(grid))


@pytest.mark.parametrize("grid", sorted((RESULTS / "evidence").glob("*.toml")))
def test_every_grid_of_the_evidence_has_a_plan(grid: Path) -> None:
    found = read_grid(str(grid))
    assert found.plan is not None
    assert all(recipe.threads == 1 for recipe in found.runs)
    assert all(recipe.tails_every == recipe.last_epoch for recipe in found.runs if recipe.kind != "continual")


def test_a_stopped_sweep_resumes_with_more_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [_file(tmp_path), "--out", str(tmp_path / "out"), "--jobs", "2"]
    assert cli.sweep([*flags, "--seeds", "1", "--only", "relu"]) == 0
    (first,) = read_runs(tmp_path / "out")[0]
    before = (first.folder / "provenance.jsonl").read_text()
    assert cli.sweep(flags) == 0
    shown = capsys.readouterr().out
    assert "3 of 4 runs remaining" in shown
    assert "4 finished, 0 failed, 0 remaining" in shown
    assert "- ReLU" in shown
    assert (first.folder / "provenance.jsonl").read_text() == before
    assert len(_metrics(tmp_path / "out")) == 4
    assert cli.sweep(flags) == 0
    assert "0 of 4 runs remaining" in capsys.readouterr().out


def test_a_sweep_shows_no_means_before_the_first_look_of_its_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = '\n[plan]\nmetric = "test_acc"\nreference = "relu"\nlooks = [2]\n'
    flags = [_file(tmp_path, FILE + plan), "--out", str(tmp_path / "out")]
    listed = [str(tmp_path / "out"), "--summary", "--grid", flags[0]]
    for seeds, is_sealed in (("1", True), ("2", False)):
        assert cli.sweep([*flags, "--seeds", seeds]) == 0
        swept = capsys.readouterr().out
        assert cli.runs(listed) == 0
        shown, problems = capsys.readouterr()
        assert ("- ReLU" in swept) == ("- ReLU" in shown) == (not is_sealed)
        text = "The plan of small allows a look at 2 complete seeds, not at 1"
        assert (text in swept.replace("\n", " ")) == (text in shown) == is_sealed
        assert ("iglu report" in swept) == (not is_sealed)
        assert problems == ""
    assert cli.runs([*listed, "--filter", "relu"]) == 0
    assert "No numbers are shown" not in capsys.readouterr().out


def test_a_sweep_resumes_on_another_machine_from_an_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seed 0 was run and recorded there; only seed 1 is run here, and the mean is of both."""
    file = str(tmp_path / "there.jsonl")
    assert cli.sweep([_file(tmp_path), "--out", str(tmp_path / "there"), "--seeds", "1"]) == 0
    assert cli.runs([str(tmp_path / "there"), "--record", file]) == 0
    capsys.readouterr()
    assert cli.sweep([_file(tmp_path), "--out", str(tmp_path / "here"), "--known", file]) == 0
    shown = capsys.readouterr().out
    assert "2 of 4 runs remaining" in shown
    assert "4 finished, 0 failed, 0 remaining" in shown
    assert {run.recipe.seed for run in read_runs(tmp_path / "here")[0]} == {1}
    assert cli.sweep([_file(tmp_path), "--known", str(tmp_path / "nowhere")]) == 2


def test_numbers_do_not_depend_on_the_number_of_jobs(tmp_path: Path) -> None:
    recipes = read_grid(_file(tmp_path), changes={"threads": 1}).runs
    for jobs in (1, 2):
        run_local(recipes, out=tmp_path / str(jobs), jobs=jobs)
    assert _metrics(tmp_path / "1") == _metrics(tmp_path / "2")


class _Kills(SweepObserver):
    """Kills the first worker that reports progress, as the system does when memory runs out."""

    def __init__(self) -> None:
        self.is_done = False

    def progressed(self, recipe: Recipe, progress: Progress | None) -> None:
        if progress is not None and not self.is_done:
            self.is_done = True
            (worker,) = multiprocessing.active_children()
            worker.kill()


def test_a_killed_worker_fails_its_run_alone_and_the_next_call_repeats_it(tmp_path: Path) -> None:
    recipes = [RECIPE.replace(seed=seed, steps_per_epoch=20) for seed in range(2)]
    results = run_local(recipes, out=tmp_path / "out", observer=_Kills())
    assert [result.run is None for result in results] == [True, False]
    assert results[0].failure.startswith("its process was killed (SIGKILL)")
    assert grid_status(recipes, tmp_path / "out").remaining == recipes[:1]
    run_local(recipes[:1], out=tmp_path / "out")
    run_local(recipes, out=tmp_path / "quiet")
    assert _metrics(tmp_path / "out") == _metrics(tmp_path / "quiet")


def test_failed_and_diverged_runs_are_named_and_the_others_finish(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    damaged = out / RECIPE.replace(activation="iglu:0.5", seed=1).folder_name
    damaged.mkdir(parents=True)
    (damaged / "recipe.json").write_text("{")
    flags = [_file(tmp_path), "--out", str(out)]
    assert cli.sweep(flags) == cli.FAILED
    shown = capsys.readouterr().out
    assert f"failed: {damaged.name}: {damaged / 'recipe.json'} cannot be read" in shown
    assert "3 finished, 1 failed, 0 remaining" in shown
    assert cli.sweep([*flags, "--seeds", "1", "--set", "lr=1e30", "max_grad_norm=none"]) == 0
    shown = capsys.readouterr().out
    assert "diverged: digits-lt_relu_epochs=2" in shown
    assert "2 diverged, 0 failed, 0 remaining" in shown


def test_runs_without_data_fail_at_once_with_the_reason(tmp_path: Path) -> None:
    missing = RECIPES["gpt2-python"].replace(dataset="nowhere.txt", epochs=2, threads=1)
    (found,) = missing_data([RECIPE, missing], tmp_path)
    assert found.item == missing
    assert "No text 'nowhere.txt'" in found.failure


def test_a_run_waits_for_a_locked_folder_and_fails_after_the_timeout(tmp_path: Path) -> None:
    said: list[Progress] = []

    def report(progress: Progress) -> bool:
        said.append(progress)
        return False

    with lock_run(tmp_path / RECIPE.folder_name):
        given_up = run_recipe(RECIPE, data=None, out=tmp_path, report=report, lock_timeout=0.0)
    assert given_up.run is None
    assert "is locked by another process" in given_up.failure
    assert "locked by another process" in said[0].text
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_run(tmp_path / RECIPE.folder_name):
            is_held.set()
            may_go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(60)

    def release(progress: Progress) -> bool:
        may_go.set()
        return False

    result = run_recipe(RECIPE, data=None, out=tmp_path, report=release)
    holder.join()
    assert result.run is not None
    assert result.run.status == "finished"


def test_a_sweep_shows_the_messages_of_a_starting_run_once(tmp_path: Path) -> None:
    class StopAt(Observer):
        def stepped(self, training: Training) -> bool:
            return training.total_steps == 4

    folder = fit(RECIPE, out=tmp_path, observers=[StopAt()]).folder
    (folder / "state.json").write_text('{"status": "going"}')
    text = io.StringIO()
    lines = SweepDisplay(Terminal(file=text, width=300), 1)

    def report(progress: Progress) -> bool:
        lines.progressed(RECIPE, progress)
        lines.progressed(RECIPE, progress)
        return False

    assert run_recipe(RECIPE, data=None, out=tmp_path, report=report).run is not None
    shown = text.getvalue().splitlines()
    assert shown[0] == f"starts  {folder.name}"
    assert shown[1].startswith(f"{folder.name}: {folder / 'state.json'} cannot be read")
    assert shown[2:] == [f"{folder.name}: resuming from epoch 2, step 1 of 3"]
    (folder / "state.json").write_text("{")
    assert run_recipe(RECIPE, data=None, out=tmp_path, report=report).run is not None
    assert "set aside as state.json.damaged2" in text.getvalue()


def test_a_running_sweep_shows_the_progress_of_each_run() -> None:
    lines = SweepDisplay(Terminal(file=io.StringIO()), 3)
    lines.progressed(RECIPE, Progress(2, 12, 0.5, "loss 0.5"))
    lines.progressed(RECIPE.replace(seed=7), None)
    text = io.StringIO()
    Terminal(file=text, width=120).print(lines.render())
    first, second, rest = (" ".join(line.split()) for line in text.getvalue().splitlines()[:3])
    assert first.endswith("epoch 2 of 12 loss 0.5")
    assert second.endswith("starts")
    assert "seed 7" in second
    assert "epoch" not in second
    assert rest.startswith("0 of 3 ended, 1 waiting")


def test_an_unexpected_error_fails_its_run_with_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iglu_lab.sweep.worker.fit", lambda *_, **__: 1 // 0)
    result = run_recipe(RECIPE, data=None, out=tmp_path, report=lambda progress: False)
    assert result.failure.startswith("ZeroDivisionError")
    assert result.traceback.rstrip().splitlines()[-1].startswith("ZeroDivisionError")


# -- stopped from outside --------------------------------------------------------------------------

# Two runs, of which one waits while the other is stopped.
LONG = FILE.replace("steps_per_epoch = 3", "steps_per_epoch = 30").replace("seeds = 2", "seeds = 1")
LONG += "checkpoint_every = 0.2\n"


def _start(target: str, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "iglu", "sweep", target, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def _wait_for_checkpoint(out: Path) -> None:
    deadline = time.monotonic() + 120
    while not list(out.glob("*/checkpoint-*")):
        assert time.monotonic() < deadline, "no run has begun"
        time.sleep(0.02)


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The metrics of an uninterrupted sweep."""
    folder = tmp_path_factory.mktemp("quiet")
    run_local(read_grid(_file(folder, LONG), changes={"threads": 1}).runs, out=folder / "out")
    return _metrics(folder / "out")


@pytest.mark.parametrize("way", ["ctrl-c", "kill", "time limit"])
def test_an_interrupted_sweep_resumes_to_the_numbers_of_an_uninterrupted_one(
    way: str, quiet: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, out = _file(tmp_path, LONG), tmp_path / "out"
    if way == "time limit":
        assert cli.sweep([target, "--out", str(out), "--time-limit", "0.1s"]) == command.TIME_LIMIT_REACHED
        shown = capsys.readouterr().out
    else:
        process = _start(target, out)
        _wait_for_checkpoint(out)
        if way == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)  # to all processes, as a terminal does
        else:
            process.kill()
        shown = process.communicate(timeout=120)[0]
        assert process.returncode == (cli.INTERRUPTED if way == "ctrl-c" else -signal.SIGKILL)
        deadline = time.monotonic() + 60
        while _is_alive(process.pid):  # the workers of a killed sweep end by themselves
            assert time.monotonic() < deadline
            time.sleep(0.1)
    if way != "kill":
        assert "the same command resumes" in shown
        assert " remaining" in shown
    recipes = read_grid(target, changes={"threads": 1}).runs
    found = grid_status(recipes, out)
    assert found.remaining
    if way == "ctrl-c":
        states = [json.loads(path.read_text())["status"] for path in out.glob("*/state.json")]
        assert states
        assert set(states) <= {"stopped", "finished"}
    run_local(found.remaining, out=out)
    assert _metrics(out) == quiet


def test_results_are_in_the_order_in_which_runs_end(tmp_path: Path) -> None:
    ends: list[RunResult] = []

    class Notes(SweepObserver):
        def ended(self, result: RunResult) -> None:
            ends.append(result)

    assert run_local([RECIPE, RECIPE.replace(seed=1)], out=tmp_path, jobs=2, observer=Notes()) == ends
    assert len(ends) == 2
