"""A run that is killed, damaged or out of disk space resumes to the metrics of an uninterrupted one."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from iglu_lab import storage
from iglu_lab.errors import UserError
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.runs.folder import Run, RunLockedError, lock_run, read_run
from iglu_lab.training.checkpoint import checkpoints, load_checkpoint, newest_checkpoint, save_checkpoint
from iglu_lab.training.loop import Observer, Training, fit
from iglu_lab.training.workloads import load_model

# A checkpoint after every step, so that there is one to resume from after any kill.
IMAGES = RECIPES["digits-lt"].replace(
    activation="iglu:learnable=5", epochs=3, steps_per_epoch=4, batch_size=16, threads=1, checkpoint_every=0.0
)
TEXT = RECIPES["gpt2-python"].replace(
    activation="iglu:1", epochs=2, steps_per_epoch=6, batch_size=4, context=32, dropout=0.1,
    threads=1, checkpoint_every=0.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IGLU_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The uninterrupted run."""
    return fit(IMAGES, out=tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same, stopped after a step of its third epoch."""
    return fit(IMAGES, out=tmp_path_factory.mktemp("stopped"), observers=[_StopAt(9)])


# -- processes to be killed ------------------------------------------------------------------------
# From a server that has imported torch already and used none of its threads: a child starts at once.

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["iglu_lab.training.loop"])


def _train(
    recipe: Recipe, out: Path, cache: str, dies_at_write: int | None, largest_file: int | None
) -> None:
    os.environ["IGLU_CACHE"] = cache
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if dies_at_write is not None:
        calls = itertools.count()
        for name in ("fsync", "replace"):
            _kill_in(name, calls, dies_at_write)
    fit(recipe, out=out)


def _kill_in(name: str, calls: Iterator[int], number: int) -> None:
    """Make the function of os with this name end the process in the call of that number: before it does
    its work if the number is even, after it if odd."""
    original = getattr(os, name)

    def fatal(*arguments: Any) -> Any:
        is_last = next(calls) == number
        result = None if is_last and number % 2 == 0 else original(*arguments)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, name, fatal)


def _start(
    recipe: Recipe, out: Path, dies_at_write: int | None = None, largest_file: int | None = None
) -> ForkServerProcess:
    arguments = (recipe, out, os.environ["IGLU_CACHE"], dies_at_write, largest_file)
    process = _PROCESSES.Process(target=_train, args=arguments)
    process.start()
    return process


def _kill_often(recipe: Recipe, out: Path, seed: int) -> int:
    """Kill the run again and again, each time at a random moment after it wrote one more checkpoint, until
    it reaches the end; return how often it was killed."""
    draw = random.Random(seed)
    folder = out / recipe.folder_name
    deaths = 0
    while True:
        before = _newest(folder)
        process = _start(recipe, out)
        while process.is_alive() and _newest(folder) == before:
            time.sleep(0.001)
        process.join(draw.uniform(0, 0.02))
        process.kill()
        process.join()
        if process.exitcode == 0:
            return deaths
        assert process.exitcode == -signal.SIGKILL
        deaths += 1


def _newest(folder: Path) -> str | None:
    return max((path.name for path in folder.glob("checkpoint-*.safetensors")), default=None)


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(IMAGES, id="images", marks=pytest.mark.slow), pytest.param(TEXT, id="text")],
)
def test_a_run_killed_at_random_ends_like_an_uninterrupted_one(recipe: Recipe, tmp_path: Path) -> None:
    expected = fit(recipe, out=tmp_path / "quiet")
    assert _kill_often(recipe, tmp_path / "killed", seed=0) >= 2
    found = fit(recipe, out=tmp_path / "killed")
    assert found.status == "finished"
    assert found.without_timings() == expected.without_timings()
    assert read_run(found.folder).without_timings() == expected.without_timings()


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", [IMAGES.replace(epochs=12), TEXT.replace(epochs=10)], ids=["images", "text"]
)
def test_a_long_run_killed_many_times_ends_like_an_uninterrupted_one(recipe: Recipe, tmp_path: Path) -> None:
    expected = fit(recipe, out=tmp_path / "quiet")
    assert _kill_often(recipe, tmp_path / "killed", seed=1) >= 15
    found = fit(recipe, out=tmp_path / "killed")
    assert found.without_timings() == expected.without_timings()


def test_a_run_killed_while_it_writes_ends_like_an_uninterrupted_one(expected: Run, tmp_path: Path) -> None:
    deaths = 0
    # Three calls per file: the recipe, provenance, then checkpoints, and metrics at the end of an epoch.
    for at in (0, 3, 6, 7, 10, 13, 19):
        process = _start(IMAGES, tmp_path / "killed", dies_at_write=at)
        process.join()
        deaths += process.exitcode == -signal.SIGKILL
    assert deaths >= 6
    found = fit(IMAGES, out=tmp_path / "killed")
    assert found.without_timings() == expected.without_timings()
    assert not list(found.folder.glob("*" + storage.UNFINISHED))


def test_a_run_that_failed_on_a_full_disk_resumes_when_there_is_space(expected: Run, tmp_path: Path) -> None:
    process = _start(IMAGES, tmp_path / "full", largest_file=100_000)  # less than a checkpoint
    process.join()
    assert process.exitcode == 1
    folder = tmp_path / "full" / IMAGES.folder_name
    assert not checkpoints(folder)
    assert not list(folder.glob("*" + storage.UNFINISHED))
    assert fit(IMAGES, out=tmp_path / "full").without_timings() == expected.without_timings()


def test_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        storage.write_json(tmp_path / "state.json", {})
    finally:
        os.umask(mask)
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o640


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    storage.write_json(path, {"epoch": 1})

    def fail() -> None:
        with storage.write_atomically(path) as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=re.escape(f"No space left on device: '{path}'")) as caught:
        fail()
    assert caught.value.errno == errno.ENOSPC
    assert json.loads(path.read_text()) == {"epoch": 1}
    assert os.listdir(tmp_path) == ["state.json"]


class _Notes(Observer):
    """The messages of a run when it starts, or has nothing to do."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def started(self, training: Training) -> None:
        self.all = list(training.notes)

    def found(self, run: Run, notes: Sequence[str]) -> None:
        self.all = list(notes)


class _StopAt(Observer):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, training: Training) -> bool:
        return training.total_steps == self.step


@pytest.mark.parametrize("damage", ["cut short", "one bit", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    damage: str, expected: Run, tmp_path: Path
) -> None:
    stopped = fit(IMAGES, out=tmp_path / "damaged", observers=[_StopAt(7)])
    assert stopped.status == "stopped"
    newest = checkpoints(stopped.folder)[0]
    content = bytearray(newest.read_bytes())
    if damage == "one bit":
        content[-100] ^= 1
    else:
        content = content[: len(content) // 2 if damage == "cut short" else 0]
    newest.write_bytes(content)
    state, problems = newest_checkpoint(stopped.folder, IMAGES)
    assert state is not None
    assert (state["epoch"], state["step"]) == (1, 2)
    assert list(problems) == [newest]
    assert str(newest) in problems[newest]
    with pytest.warns(UserWarning, match=rf"{newest.name} is damaged.* from epoch 2"):
        load_model(stopped)
    notes = _Notes()
    found = fit(IMAGES, out=tmp_path / "damaged", observers=[notes])
    assert found.without_timings() == expected.without_timings()
    assert newest.name in notes.all[0]
    assert notes.all[0].endswith("; resuming from the previous one")
    assert notes.all[1] == "resuming from epoch 2, step 2 of 4"


def test_with_every_checkpoint_damaged_the_run_starts_again(expected: Run, tmp_path: Path) -> None:
    stopped = fit(IMAGES, out=tmp_path / "damaged", observers=[_StopAt(7)])
    for path in checkpoints(stopped.folder):
        path.write_bytes(b"nothing")
    notes = _Notes()
    again = fit(IMAGES, out=tmp_path / "damaged", observers=[notes, _StopAt(2)])
    assert [note.rpartition("; ")[2] for note in notes.all] == ["starting again"] * 2
    # Damaged checkpoints with higher numbers do not hide the new ones.
    assert [load_checkpoint(path)["step"] for path in checkpoints(again.folder)] == [2, 1]
    assert fit(IMAGES, out=tmp_path / "damaged").without_timings() == expected.without_timings()


def test_a_checkpoint_of_another_run_is_not_used(expected: Run, tmp_path: Path) -> None:
    other = fit(IMAGES.replace(seed=1), out=tmp_path / "other")
    stopped = fit(IMAGES, out=tmp_path / "mixed", observers=[_StopAt(5)])
    for path in checkpoints(other.folder):
        shutil.copy(path, stopped.folder)
    with pytest.warns(UserWarning, match="belongs to another run: seed was 1, now 0"):
        load_model(stopped)
    notes = _Notes()
    found = fit(IMAGES, out=tmp_path / "mixed", observers=[notes])
    assert "belongs to another run: seed was 1, now 0; set aside as" in notes.all[0]
    assert found.without_timings() == expected.without_timings()


def test_a_run_of_recipe_format_2_resumes(expected: Run, tmp_path: Path) -> None:
    """Its recipe.json and its checkpoints have the old names of the fields."""
    stopped = fit(IMAGES, out=tmp_path / "old", observers=[_StopAt(5)])
    new = {
        "steps_per_epoch": "epoch_steps", "batch_size": "batch", "max_grad_norm": "clip",
        "gradient_accumulation": "accumulate", "decay_activations": "decay_shapes", "warmup_ratio": "warmup",
        "image_size": "size", "color_jitter": "jitter", "tails_every": "tails",
    }  # fmt: skip
    old = {new.get(name, name): value for name, value in IMAGES.as_dict().items()} | {"format": 2}
    (stopped.folder / "recipe.json").write_text(json.dumps(old))
    for path in checkpoints(stopped.folder):
        state = load_checkpoint(path)
        path.unlink()
        step = 4 * state["epoch"] + state["step"]
        save_checkpoint(stopped.folder, step, {**state, "recipe": old})
    notes = _Notes()
    again = fit(IMAGES, out=tmp_path / "old", observers=[notes])
    assert again.without_timings() == expected.without_timings()
    assert notes.all == ["resuming from epoch 2, step 1 of 4"]


_ROW = '{"epoch": 1, "train_loss": 1.0, "test_acc": 10.0}\n'
_THREE_ROWS = _ROW + _ROW.replace("1,", "2,", 1) + _ROW.replace("1,", "3,", 1)  # valid by themselves


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state.json", '{"status": '),
        ("state.json", '{"status": 7}'),
        ("state.json", ""),
        ("state.json", '{"status": "going"}'),
        ("metrics.jsonl", "[1]\n"),
        ("metrics.jsonl", '{"epoch": 1, "test_a'),
        ("metrics.jsonl", "\x00" * 100),
        ("metrics.jsonl", _ROW + _ROW),
        ("metrics.jsonl", _THREE_ROWS),
        ("provenance.jsonl", "{"),
        ("recipe.json", ""),
        ("recipe.json", '{"name": "digits-lt"}'),
        ("provenance.jsonl", '7\n{"torch": "2.10"}\n{"torch": "2.1'),
    ],
)
@pytest.mark.parametrize("is_finished", [True, False], ids=["finished", "stopped"])
def test_a_damaged_side_file_is_set_aside_and_rebuilt(
    name: str, content: str, is_finished: bool, expected: Run, stopped: Run, tmp_path: Path
) -> None:
    folder = tmp_path / IMAGES.folder_name
    shutil.copytree(expected.folder if is_finished else stopped.folder, folder)
    (folder / name).write_text(content)
    notes = _Notes()
    found = fit(IMAGES, out=tmp_path, observers=[notes])
    assert found.without_timings() == expected.without_timings()
    assert read_run(folder).without_timings() == expected.without_timings()
    starts = (folder / "provenance.jsonl").read_text().splitlines()
    kept = ['{"torch": "2.10"}'] if "2.10" in content else []
    assert [start for start in starts if '"commit"' not in start] == kept
    assert len(starts) > len(kept) or is_finished
    assert all("torch" in json.loads(start) for start in starts)
    # A resumed run rewrites its metrics in any case.
    if is_finished or content != _THREE_ROWS:
        assert (folder / f"{name}.damaged").read_text() == content
        assert f"set aside as {name}.damaged" in notes.all[0]
        assert str(folder / name) in notes.all[0]


def test_lost_metrics_are_restored_before_the_first_step(stopped: Run, tmp_path: Path) -> None:
    folder = tmp_path / IMAGES.folder_name
    shutil.copytree(stopped.folder, folder)
    (folder / "metrics.jsonl").unlink()
    seen: list[Run] = []

    class Look(Observer):
        def started(self, training: Training) -> None:
            seen.append(read_run(folder))

    fit(IMAGES, out=tmp_path, observers=[Look(), _StopAt(10)])
    assert seen[0].status == "unfinished"
    assert len(seen[0].history) == 2
    assert seen[0].history == stopped.history


def test_a_damaged_recipe_without_a_checkpoint_raises_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / IMAGES.folder_name / "recipe.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(UserError, match=rf"{re.escape(str(path))} cannot be read.*remove .* start again"):
        fit(IMAGES, out=tmp_path)


def test_files_that_are_set_aside_overwrite_nothing(tmp_path: Path) -> None:
    run = fit(IMAGES, out=tmp_path)
    for content in ("first", "second", "third"):
        (run.folder / "state.json").write_text(content)
        fit(IMAGES, out=tmp_path)
    names = ("state.json.damaged", "state.json.damaged2", "state.json.damaged3")
    assert [(run.folder / name).read_text() for name in names] == ["first", "second", "third"]


def test_a_checkpoint_is_saved_after_each_evaluation(tmp_path: Path) -> None:
    recipe = IMAGES.replace(checkpoint_every=1e9, evaluate_every=2)
    saved: list[tuple[int, int]] = []

    class Look(Observer):
        def stepped(self, training: Training) -> bool:
            found, _ = newest_checkpoint(training.folder, recipe)
            saved.append((training.epoch, -1 if found is None else found["epoch"]))
            return False

    fit(recipe, out=tmp_path, observers=[Look()])
    assert dict(saved) == {0: -1, 1: -1, 2: 2}


def test_a_run_that_dies_after_each_evaluation_makes_progress(expected: Run, tmp_path: Path) -> None:
    recipe = IMAGES.replace(checkpoint_every=1e9)

    class Die(Observer):
        def stepped(self, training: Training) -> bool:
            if training.epoch and training.step == 1:
                raise KeyboardInterrupt
            return False

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fit(recipe, out=tmp_path / "dying", observers=[Die()])
        # the second process begins in epoch 2 and ends in its first step
    (state, _) = newest_checkpoint(tmp_path / "dying" / recipe.folder_name, recipe)
    assert state is not None
    assert state["epoch"] == 1
    assert fit(recipe, out=tmp_path / "dying").without_timings() == expected.without_timings()


def test_a_run_that_was_stopped_by_its_limit_resumes_with_the_same_schedule(
    expected: Run, tmp_path: Path
) -> None:
    first = fit(IMAGES.replace(stop_after=1), out=tmp_path / "limited")
    assert (first.status, len(first.history)) == ("stopped", 1)
    assert fit(IMAGES, out=tmp_path / "limited").without_timings() == expected.without_timings()


def test_a_run_in_channels_last_resumes_bit_for_bit(tmp_path: Path) -> None:
    recipe = IMAGES.replace(channels_last=True)
    expected = fit(recipe, out=tmp_path / "quiet")
    fit(recipe, out=tmp_path / "stopped", observers=[_StopAt(5)])
    assert fit(recipe, out=tmp_path / "stopped").without_timings() == expected.without_timings()


def _hold(folder: Path, ready: Any, release: Any) -> None:
    with lock_run(folder):
        ready.set()
        release.wait(60)


def test_a_second_process_on_the_folder_raises_until_the_first_ends(tmp_path: Path) -> None:
    folder = tmp_path / IMAGES.folder_name
    ready, release = _PROCESSES.Event(), _PROCESSES.Event()
    holder = _PROCESSES.Process(target=_hold, args=(folder, ready, release))
    holder.start()
    assert ready.wait(60)
    with pytest.raises(RunLockedError, match="is locked by another process"):
        fit(IMAGES, out=tmp_path)
    holder.kill()  # without releasing the lock
    holder.join()
    deadline = time.monotonic() + 30
    while True:
        try:
            run = fit(IMAGES.replace(stop_after=1), out=tmp_path)
            break
        except RunLockedError:
            assert time.monotonic() < deadline
    assert len(run.history) == 1


def test_a_folder_of_another_recipe_raises_with_the_difference(tmp_path: Path) -> None:
    run = fit(IMAGES.replace(stop_after=1), out=tmp_path)
    fields = json.loads((run.folder / "recipe.json").read_text())
    (run.folder / "recipe.json").write_text(json.dumps({**fields, "lr": 0.5}))
    with pytest.raises(UserError, match=r"it is the recipe of .*_lr=0\.5_.*, but its folder has another"):
        fit(IMAGES, out=tmp_path)
    # The name of a folder has six digits of a number.
    other = IMAGES.replace(lr=0.5)
    run = fit(other.replace(stop_after=1), out=tmp_path)
    (run.folder / "recipe.json").write_text(json.dumps({**other.as_dict(), "lr": 0.50000001}))
    with pytest.raises(UserError, match=r"contains another run: lr was 0\.50000001, now 0\.5\."):
        fit(other, out=tmp_path)


# -- checkpoints -----------------------------------------------------------------------------------


def test_a_checkpoint_restores_what_was_saved(tmp_path: Path) -> None:
    shared = torch.randn(3, 2)
    state = {
        "model": {"weight": shared, "tied": shared, "scalar": torch.tensor(0.1, dtype=torch.float64)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0)}},
            "groups": [{"lr": 0.1, "betas": (0.9, 0.999)}],
        },
        "history": [{"epoch": 1, "loss": 1 / 3, "note": None}],
    }
    save_checkpoint(tmp_path, 7, state)
    (path,) = checkpoints(tmp_path)
    found = load_checkpoint(path)
    assert torch.equal(found["model"]["weight"], shared)
    assert torch.equal(found["model"]["tied"], shared)
    assert found["model"]["scalar"].item() == 0.1
    assert list(found["optimizer"]["state"]) == [0]
    assert found["optimizer"]["groups"] == [{"lr": 0.1, "betas": [0.9, 0.999]}]
    assert found["history"] == state["history"]


def test_the_newest_two_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save_checkpoint(tmp_path, step, {"step": step})
    assert [load_checkpoint(path)["step"] for path in checkpoints(tmp_path)] == [10, 3]


def test_of_two_checkpoints_after_the_same_step_the_later_is_kept(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 3, {"epoch": 0})
    for epoch in range(10):  # about half of the digests sort before the previous one, half after it
        save_checkpoint(tmp_path, 4, {"epoch": epoch})
        assert [load_checkpoint(path)["epoch"] for path in checkpoints(tmp_path)] == [epoch, 0]


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_loading_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    content = pickle.dumps(_Bomb(tmp_path / "exploded"))
    digest = hashlib.sha256(content).hexdigest()[:12]
    (tmp_path / f"checkpoint-00000001-{digest}.safetensors").write_bytes(content)
    state, problems = newest_checkpoint(tmp_path, IMAGES)
    assert state is None
    assert len(problems) == 1
    assert not (tmp_path / "exploded").exists()
