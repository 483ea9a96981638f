"""``iglu compare`` on Ray gives the numbers of local runs, also after a worker was killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from iglu_lab import compare
from iglu_lab.comparing.result import CompareResult

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install './lab[ray]'")

# Ray leaves sockets and processes to the garbage collector, and warns about versions to come.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("alone")]


def _numbers(result: CompareResult) -> dict[tuple[str, int], Any]:
    return {key: (row.status, dict(row.metrics)) for key, row in result.rows.items()}


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same comparison on Ray and locally; a function by value, since nodes cannot import this file."""
    monkeypatch.chdir(tmp_path)

    def run(train: Any, **options: Any) -> tuple[CompareResult, CompareResult]:
        common = {"seeds": 2, "allow_unchanged": True, "progress": False, "threads": 1, **options}
        there = compare(train, ["relu", "gelu"], out=tmp_path / "there", ray="local", **common)
        here = compare(train, ["relu", "gelu"], out=tmp_path / "here", **common)
        return there, here

    return run


def test_runs_on_a_node_have_the_numbers_of_local_runs(both: Any) -> None:
    def train(activation: str, seed: int) -> Any:
        for epoch in range(2):
            yield {"acc": len(activation) + seed**0.5 + epoch}

    there, here = both(train, metric="acc")
    assert not there.missing
    assert _numbers(there) == _numbers(here)
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_killed_ray_worker_changes_no_number(both: Any, tmp_path: Path) -> None:
    flag = tmp_path / "killed"

    def train(activation: str, seed: int) -> float:
        if activation == "gelu" and seed == 0 and not flag.exists():
            flag.touch()
            os.kill(os.getppid(), signal.SIGKILL)  # the worker of Ray, whose child this process is
            signal.pause()
        return len(activation) + seed**0.5

    there, here = both(train)
    assert flag.exists()
    assert not there.failures
    assert _numbers(there) == _numbers(here)
    assert len(there.rows) == 4
