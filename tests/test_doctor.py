"""``iglu doctor``: what is installed, whether it works, and how to fix it."""

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
import torch

from iglu import cli
from iglu.install_hint import LAB, pip_install, pip_install_lab
from iglu.kernels import triton

DOCTOR = [sys.executable, "-m", "iglu", "doctor"]


def doctor(*first: Path) -> list[str]:
    """The output lines of the command, with these folders first on the path."""
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


def test_the_gpu_kernels_are_checked_on_every_gpu_and_failures_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = triton.Kernel("forward", "gate", False, "none", torch.float16, None)
    other = kernel._replace(operation="value")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(triton, "load", lambda: (None, ""))
    monkeypatch.setattr(
        triton, "check_all", lambda device: {kernel: "wrong" if device.index else "", other: ""}
    )
    first, second, failed = cli._gpu_kernels()
    assert first == "cuda:0: 2 of 2 passed their check"
    assert second == "cuda:1: 1 of 2 passed their check"
    assert re.search(r"cuda:1: .*'gate'.*float16.* disabled: wrong", failed)


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_a_library_with_a_broken_torchvision_is_reported_as_not_importable(
    library: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    package(tmp_path, "torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    needed = "timm" if library == "timm" else "transformers.modeling_utils"
    command = [sys.executable, "-c", f"import {needed}"]
    if subprocess.run(command, env=environment, capture_output=True).returncode == 0:
        pytest.skip(f"this version of {library} does not import torchvision")
    lines = doctor(tmp_path)
    (optional,) = [line for line in lines if line.startswith("optional")]
    assert re.search(rf"{library} [\d.]+ \(cannot be imported\)", optional)
    (advice,) = [line for line in lines if line.startswith(f"to fix       {library}")]
    assert "Install the torchvision that was built for torch" in advice
    assert ("uninstall" in advice) == (library == "transformers")


def test_a_library_that_fails_to_import_is_reported_with_its_error(tmp_path: Path) -> None:
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("onnxruntime is not installed")
    package(tmp_path, "torchvision", "")
    package(tmp_path, "onnxruntime", "raise ImportError('libonnx.so:\\n not found')")
    (advice,) = [line for line in doctor(tmp_path) if line.startswith("to fix       onnxruntime")]
    assert advice.endswith("onnxruntime is installed but cannot be imported: libonnx.so: not found")


@pytest.mark.parametrize("command", [["doctor"], ["--help"], ["--version"]])
def test_a_closed_pipe_ends_the_command_silently(command: list[str]) -> None:
    started = subprocess.Popen(
        [*DOCTOR[:-1], *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()  # as head does, before anything is written
    assert started.stderr.read() == ""
    assert started.wait() == 141
    started.stderr.close()


# Each way to call: no gradient, a gradient, in place; all go through the dispatch.
CALLS = """
import torch, iglu
calls = [
    lambda: iglu.iglu(torch.ones(3)),
    lambda: iglu.iglu(torch.ones(3, requires_grad=True), torch.tensor(1.0, requires_grad=True)),
    lambda: iglu.IGLU(5.0, inplace=True)(torch.ones(3)),
    lambda: iglu.iglu_gate(torch.ones(3, dtype=torch.float64)),
]
for call in calls:
    try:
        call()
    except RuntimeError as error:
        print(error)
with iglu.backend("auto"):
    print(iglu.iglu(torch.zeros(1)).item())
"""


@pytest.mark.parametrize(("name", "reason"), [("foo", "must be one of"), ("triton", "triton")])
def test_an_unusable_backend_in_the_environment_fails_at_the_first_call_and_names_the_variable(
    name: str, reason: str
) -> None:
    if name == "triton" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    environment = {**os.environ, "IGLU_BACKEND": name}
    found = subprocess.run(
        [sys.executable, "-c", CALLS], capture_output=True, text=True, check=True, env=environment
    )
    *errors, value = found.stdout.splitlines()
    assert value == "0.0"
    assert len(errors) == 4
    assert all(f"IGLU_BACKEND={name}" in error and reason in error for error in errors)
    shown = subprocess.run(DOCTOR, capture_output=True, text=True, check=True, env=environment)
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("CPU tensors")]
    assert f"IGLU_BACKEND={name}" in line
    assert reason in line


# -- the command line ------------------------------------------------------------------------------


def test_help_is_shown_and_an_unknown_flag_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: iglu doctor")
    assert cli.main(["doctor", "--unknown"]) == 2
    assert "--unknown" in capsys.readouterr().err


class _Command:
    """A command that a package registers."""

    help = "counts its arguments"

    def __call__(self, argv: list[str]) -> int:
        if argv == ["broken"]:
            raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")
        return len(argv)


def register(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make these the only commands that packages have registered."""
    monkeypatch.setattr(sys.modules[__name__], "command", _Command(), raising=False)
    entries = [importlib.metadata.EntryPoint(name, f"{__name__}:command", cli.ENTRY_POINTS) for name in names]
    found = importlib.metadata.EntryPoints(entries)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found.select(group=group))


def test_a_registered_command_gets_its_arguments_and_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(monkeypatch, "count")
    assert cli.main(["count", "one", "--two"]) == 2
    assert cli.main([]) == 0
    assert re.search(r"^ +count +counts its arguments$", capsys.readouterr().out, re.MULTILINE)
    assert cli.main(["cuont"]) == 2
    assert "Did you mean 'count'?" in capsys.readouterr().err
    assert cli.main(["count", "broken"]) == 1
    assert f"nowhere: {pip_install_lab()}" in capsys.readouterr().err


def test_without_the_lab_its_commands_say_in_one_line_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(monkeypatch)
    assert cli.main(["train", "digits"]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f": {pip_install_lab()}\n")
    assert said.count("\n") == 1
    assert cli.main(["--help"]) == 0
    assert pip_install_lab() in capsys.readouterr().out


# -- the command that installs what is missing -----------------------------------------------------


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, *notes: dict[str, Any] | None) -> None:
    """Fake the installed distributions, each with this direct_url.json or without one."""
    found = []
    for number, note in enumerate(notes):
        place = folder / f"{number}.dist-info"
        place.mkdir()
        if note is not None:
            (place / "direct_url.json").write_text(json.dumps(note))
        found.append(importlib.metadata.PathDistribution(place))
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: found)


def test_a_package_from_an_index_is_reinstalled_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    away = {"url": (tmp_path / "deleted").as_uri(), "dir_info": {}}
    wheel = {"url": (tmp_path / "a.whl").as_uri(), "archive_info": {}}
    installed(monkeypatch, tmp_path, None, away, wheel)
    assert pip_install("hf") == "pip install 'iglu-torch[hf]'"
    assert pip_install("ray", distribution=LAB) == "pip install 'iglu-lab[ray]'"
    assert pip_install_lab() == "pip install 'iglu-torch[lab]'"
    rebuilt = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary iglu-torch iglu-torch"
    assert pip_install(rebuild=True) == rebuilt


def test_a_package_from_a_folder_is_reinstalled_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    installed(monkeypatch, tmp_path, None, {"url": clone.as_uri(), "dir_info": {}})
    assert pip_install("hf") == f"pip install '{clone}[hf]'"
    assert pip_install_lab() == f"pip install '{clone}' '{clone}/lab'"
    assert pip_install(rebuild=True) == (f"pip install --force-reinstall --no-deps --no-cache-dir '{clone}'")


def test_an_editable_install_stays_editable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert pip_install("hf") == f"pip install --editable '{tmp_path}[hf]'"
    assert pip_install_lab() == f"pip install --editable {tmp_path} --editable {tmp_path}/lab"
    assert "--editable" in pip_install(rebuild=True).split()
