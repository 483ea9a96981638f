"""The same runs on a real Ray cluster of two nodes, one of which is lost during the runs."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.runs.folder import read_run
from iglu_lab.sweep.cluster import copy_files, run_on_ray
from iglu_lab.sweep.grid import grid_status
from iglu_lab.sweep.local import run_local
from iglu_lab.sweep.worker import Progress, RunResult, SweepObserver
from iglu_lab.training.checkpoint import checkpoints

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install './lab[ray]'")

# Ray leaves sockets and processes to the garbage collector, and warns about versions to come.
pytestmark = pytest.mark.filterwarnings("ignore")

_MEMORY = 80 * 2**20
RECIPES = [
    RECIPES["digits-lt"].replace(
        activation=name, epochs=12, steps_per_epoch=20, batch_size=16, threads=1, checkpoint_every=0.0
    )
    for name in ("relu", "iglu:0.5", "iglu:learnable=5")
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one CPU each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("IGLU_CACHE", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = {"num_cpus": 1, "object_store_memory": _MEMORY, "include_dashboard": False}
        found = Cluster(initialize_head=True, head_node_args=head)
        found.add_node(num_cpus=1, object_store_memory=_MEMORY)
        found.wait_for_nodes()
        yield found
        ray.shutdown()
        found.shutdown()


class _LosesItsNode(SweepObserver):
    """Takes a node away once both have a run in its second epoch."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.epochs: dict[Recipe, int] = {}
        self.losses = 0

    def progressed(self, recipe: Recipe, progress: Progress | None) -> None:
        self.epochs[recipe] = 0 if progress is None else progress.epoch
        if sum(epoch >= 2 for epoch in self.epochs.values()) == 2 and self.losses == 0:
            self.losses += 1
            (lost,) = self.cluster.worker_nodes
            self.cluster.remove_node(lost, allow_graceful=False)


def test_a_run_on_a_node_has_the_numbers_of_the_local_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGLU_CACHE", str(tmp_path / "cache"))
    recipe = RECIPES[1].replace(epochs=1, steps_per_epoch=2)
    said = _Ends()
    (result,) = run_on_ray([recipe], address="local", out=tmp_path / "ray", observer=said)
    (local,) = run_local([recipe], out=tmp_path / "local")
    assert result.run is not None
    assert local.run is not None
    assert result.run.without_timings() == local.run.without_timings()
    assert read_run(result.run.folder).status == "finished"
    assert said.ends == [result]
    assert not ray.is_initialized()


class _Ends(SweepObserver):
    def __init__(self) -> None:
        self.ends: list[RunResult] = []

    def ended(self, result: RunResult) -> None:
        self.ends.append(result)


@pytest.mark.slow
def test_after_the_loss_of_a_node_every_run_has_the_numbers_of_the_local_run(
    cluster: Any, tmp_path: Path
) -> None:
    observer = _LosesItsNode(cluster)
    results = run_on_ray(RECIPES, address=cluster.address, out=tmp_path / "ray", observer=observer)
    assert observer.losses == 1
    assert sorted(result.failure for result in results) == [""] * len(RECIPES)
    run_local(RECIPES, out=tmp_path / "local", jobs=2)
    for recipe in RECIPES:
        there, here = (read_run(tmp_path / name / recipe.folder_name) for name in ("ray", "local"))
        assert there.status == here.status == "finished"
        assert there.without_timings() == here.without_timings()
    starts = [
        [json.loads(line)["step"] for line in path.read_text().splitlines()]
        for path in (tmp_path / "ray").glob("*/provenance.jsonl")
    ]
    assert any(len(steps) > 1 and steps[-1] >= 20 for steps in starts)  # from its checkpoint


@pytest.mark.slow
def test_a_stop_leaves_started_runs_at_a_checkpoint_and_does_not_start_the_others(
    cluster: Any, tmp_path: Path
) -> None:
    stop = threading.Event()

    class StopsEarly(SweepObserver):
        def progressed(self, recipe: Recipe, progress: Progress | None) -> None:
            if progress is not None:
                stop.set()

    recipes = [recipe.replace(epochs=200) for recipe in RECIPES]
    results = run_on_ray(
        recipes, address=cluster.address, out=tmp_path, observer=StopsEarly(), should_stop=stop.is_set
    )
    assert {result.run.status for result in results if result.run is not None} == {"stopped"}
    found = grid_status(recipes, tmp_path)
    assert len(found.remaining) == 3
    assert 1 <= len(found.started) <= 2
    assert all(checkpoints(result.run.folder) for result in results if result.run is not None)


def test_files_from_a_node_with_its_own_disk_are_copied(tmp_path: Path) -> None:
    (result,) = run_local([RECIPES[0].replace(epochs=1)], out=tmp_path / "node")
    assert result.run is not None
    names = ("recipe.json", "provenance.jsonl", "metrics.jsonl", "state.json")
    files = {name: (result.run.folder / name).read_bytes() for name in names}
    here = tmp_path / "here" / result.run.folder.name
    copy_files(files, here)
    assert read_run(here).history == result.run.history
    later = (here / "metrics.jsonl").stat().st_mtime_ns
    time.sleep(0.01)
    copy_files(files, here)  # as if the folder were shared: it has all files already
    assert (here / "metrics.jsonl").stat().st_mtime_ns == later
