"""``iglu doctor``: what is there, whether it works, and what would mend it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iglu.installed import pip_install

DOCTOR = [sys.executable, "-m", "iglu", "doctor"]


def doctor(*first: Path) -> list[str]:
    """Its lines, with these folders before all others on the path."""
    path = os.pathsep.join([*map(str, first), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        DOCTOR, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert found.stderr == ""
    return found.stdout.splitlines()


def package(folder: Path, name: str, source: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)


def test_every_line_has_a_title_and_torch_is_named(tmp_path: Path) -> None:
    lines = doctor()
    assert all(re.match(r"[a-zA-Z-]+( [a-z]+)? {2,}\S", line) for line in lines)
    assert [line.split()[0] for line in lines[:3]] == ["iglu-torch", "Python", "torch"]


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_a_library_beside_a_broken_torchvision_is_not_called_fine(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    package(tmp_path, "torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    lines = doctor(tmp_path)
    (beside,) = [line for line in lines if line.startswith("beside it")]
    assert re.search(rf"{library} [\d.]+ \(cannot be imported\)", beside)
    (advice,) = [line for line in lines if line.startswith(f"to mend      {library}")]
    assert "Install the torchvision that was built for torch" in advice
    assert ("uninstall" in advice) == (library == "transformers")


def test_a_library_that_breaks_for_another_reason_shows_it(tmp_path: Path) -> None:
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("onnxruntime is not installed")
    package(tmp_path, "torchvision", "")
    package(tmp_path, "onnxruntime", "raise ImportError('libonnx.so:\\n not found')")
    (advice,) = [line for line in doctor(tmp_path) if line.startswith("to mend      onnxruntime")]
    assert advice.endswith("onnxruntime is installed but cannot be imported: libonnx.so: not found")


@pytest.mark.parametrize("command", [["doctor"], ["--help"], ["--version"]])
def test_a_reader_that_has_gone_ends_it_in_silence(command: list[str]) -> None:
    started = subprocess.Popen(
        [*DOCTOR[:-1], *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()  # as head does, sooner than anything is written
    assert started.stderr.read() == ""
    assert started.wait() == 141
    started.stderr.close()


# -- the command that brings what is missing -----------------------------------------------------------


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, *notes: dict[str, Any] | None) -> None:
    """Metadata of the package, each with what its installer noted of where it came from, or with nothing."""
    found = []
    for number, note in enumerate(notes):
        place = folder / f"{number}.dist-info"
        place.mkdir()
        if note is not None:
            (place / "direct_url.json").write_text(json.dumps(note))
        found.append(importlib.metadata.PathDistribution(place))
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: found)


def test_what_came_from_an_index_is_installed_again_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    away = {"url": (tmp_path / "deleted").as_uri(), "dir_info": {}}
    wheel = {"url": (tmp_path / "a.whl").as_uri(), "archive_info": {}}
    installed(monkeypatch, tmp_path, None, away, wheel)
    assert pip_install("lab") == "pip install 'iglu-torch[lab]'"
    rebuilt = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary iglu-torch iglu-torch"
    assert pip_install(is_rebuilt=True) == rebuilt


def test_what_came_from_a_folder_is_installed_again_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    installed(monkeypatch, tmp_path, None, {"url": clone.as_uri(), "dir_info": {}})
    assert pip_install("lab") == f"pip install '{clone}[lab]'"
    assert pip_install(is_rebuilt=True) == (
        f"pip install --force-reinstall --no-deps --no-cache-dir '{clone}'"
    )


def test_what_is_used_in_place_stays_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert pip_install("ray") == f"pip install --editable '{tmp_path}[ray]'"
    assert "--editable" in pip_install(is_rebuilt=True).split()
