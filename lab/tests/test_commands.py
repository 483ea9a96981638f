"""The commands that the lab adds to ``iglu``."""

from __future__ import annotations

import errno
import importlib.metadata
import pkgutil
from pathlib import Path

import pytest

import iglu
import iglu_lab
from iglu.cli import ENTRY_POINTS, main
from iglu_lab import cli, commands
from iglu_lab.storage import RESULTS, shown


def test_every_command_is_registered_and_has_its_file() -> None:
    registered = {each.name: each.load() for each in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    assert registered == cli.COMMANDS
    assert {each.name for each in pkgutil.iter_modules(commands.__path__)} == cli.COMMANDS.keys()


def test_the_lab_has_the_version_of_the_library() -> None:
    assert iglu_lab.__version__ == iglu.__version__ == importlib.metadata.version("iglu-lab")
    assert f"iglu-torch=={iglu.__version__}" in (importlib.metadata.requires("iglu-lab") or [])


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {each.name:8} {each.help}\n" in said for each in cli.COMMANDS.values())


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "here"), cli.USER_ERROR, "here"),
        (OSError(errno.ENOSPC, "No space left on device"), cli.FAILED, "free some space"),
        (OSError(errno.EIO, "Input/output error"), cli.FAILED, "Input/output error"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_errors_of_the_system_end_with_one_line(
    error: OSError,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("iglu_lab.commands.runs.main", fail)
    assert cli.runs([]) == status
    said = capsys.readouterr().err
    assert said.startswith("iglu runs: ")
    assert message in said
    assert said.count("\n") == 1


def test_a_closed_pipe_is_left_to_the_command_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(argv: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("iglu_lab.commands.runs.main", fail)
    with pytest.raises(BrokenPipeError):
        cli.runs([])


def test_a_path_of_package_data_is_shown_without_the_folder_of_this_machine() -> None:
    assert shown(RESULTS / "demo.jsonl") == str(Path("iglu_lab/results/demo.jsonl"))
    assert shown(Path("runs/x")) == str(Path("runs/x"))
