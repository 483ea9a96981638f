"""The same runs on a real Ray cluster of two nodes, one of which is lost on the way."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iglu.lab.recipes import RECIPES, Recipe
from iglu.lab.runs.folder import read_run
from iglu.lab.sweep.cluster import keep, run_on_ray
from iglu.lab.sweep.grid import survey
from iglu.lab.sweep.local import run_local
from iglu.lab.sweep.work import Outcome, Progress, Watcher
from iglu.lab.training.checkpoint import checkpoints

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'iglu-torch[ray]'")

# Ray leaves sockets and processes to the garbage collector, and warns about versions to come.
pytestmark = pytest.mark.filterwarnings("ignore")

_MEMORY = 80 * 2**20
RECIPES = [
    RECIPES["digits-lt"].replace(
        activation=name, epochs=12, epoch_steps=20, batch=16, threads=1, checkpoint_every=0.0
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


class _LosesItsNode(Watcher):
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
    recipe = RECIPES[1].replace(epochs=1, epoch_steps=2)
    said = _Hears()
    (outcome,) = run_on_ray([recipe], address="local", out=tmp_path / "ray", watcher=said)
    (local,) = run_local([recipe], out=tmp_path / "local")
    assert outcome.run is not None
    assert local.run is not None
    assert outcome.run.without_timings() == local.run.without_timings()
    assert read_run(outcome.run.folder).status == "finished"
    assert said.ends == [outcome]
    assert not ray.is_initialized()


class _Hears(Watcher):
    def __init__(self) -> None:
        self.ends: list[Outcome] = []

    def ended(self, outcome: Outcome) -> None:
        self.ends.append(outcome)


@pytest.mark.slow
def test_with_a_node_lost_every_cell_ends_with_the_numbers_of_the_local_run(
    cluster: Any, tmp_path: Path
) -> None:
    watcher = _LosesItsNode(cluster)
    outcomes = run_on_ray(RECIPES, address=cluster.address, out=tmp_path / "ray", watcher=watcher)
    assert watcher.losses == 1
    assert sorted(outcome.failure for outcome in outcomes) == [""] * len(RECIPES)
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
def test_a_stop_leaves_runs_at_a_checkpoint_and_others_unbegun(cluster: Any, tmp_path: Path) -> None:
    stop = threading.Event()

    class StopsEarly(Watcher):
        def progressed(self, recipe: Recipe, progress: Progress | None) -> None:
            if progress is not None:
                stop.set()

    recipes = [recipe.replace(epochs=200) for recipe in RECIPES]
    outcomes = run_on_ray(
        recipes, address=cluster.address, out=tmp_path, watcher=StopsEarly(), is_stop_wanted=stop.is_set
    )
    assert {outcome.run.status for outcome in outcomes if outcome.run is not None} == {"stopped"}
    found = survey(recipes, tmp_path)
    assert len(found.left) == 3
    assert 1 <= len(found.begun) <= 2
    assert all(checkpoints(outcome.run.folder) for outcome in outcomes if outcome.run is not None)


def test_figures_from_a_node_with_its_own_disk_are_written_down(tmp_path: Path) -> None:
    (outcome,) = run_local([RECIPES[0].replace(epochs=1)], out=tmp_path / "node")
    assert outcome.run is not None
    names = ("recipe.json", "provenance.jsonl", "metrics.jsonl", "state.json")
    files = {name: (outcome.run.folder / name).read_bytes() for name in names}
    here = tmp_path / "here" / outcome.run.folder.name
    keep(files, here)
    assert read_run(here).history == outcome.run.history
    later = (here / "metrics.jsonl").stat().st_mtime_ns
    time.sleep(0.01)
    keep(files, here)  # as if the folder were shared: it has it all
    assert (here / "metrics.jsonl").stat().st_mtime_ns == later
