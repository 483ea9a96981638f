"""Checkpoints: one file, written atomically, with a checksum, that executes no code when loaded.

A checkpoint is a safetensors file: tensors, and everything else as JSON in its header.  Its name contains the
step and the first digits of its sha256, ``checkpoint-00000120-9f86d081884c.safetensors``, so that a damaged
one is detected and the previous one is used.  It contains its recipe, which identifies the run.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from iglu_lab.recipes import Recipe
from iglu_lab.runs.folder import describe_difference
from iglu_lab.storage import write_atomically

_NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{12})\.safetensors")
KEPT = 2  # the newest, and one to fall back to


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Save the state after ``step`` steps (nested dicts and lists), and delete all but the newest two."""
    tensors: dict[str, Tensor] = {}
    rest = json.dumps(_without_tensors(state, tensors))
    content = safetensors.torch.save(tensors, {"rest": rest})
    digest = hashlib.sha256(content).hexdigest()[:12]
    path = folder / f"checkpoint-{step:08d}-{digest}.safetensors"
    with write_atomically(path) as file:
        file.write(content)
    # An older one of the same step does not contain the evaluation that this one contains.
    others = [old for old in checkpoints(folder) if old != path]
    same = [old for old in others if old.name.startswith(f"checkpoint-{step:08d}-")]
    for old in (*same, *[old for old in others if old not in same][KEPT - 1 :]):
        old.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a saved state to the CPU; raise ValueError if the file is damaged."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not the file name of a checkpoint")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()[:12]
    if found != match[2]:
        raise ValueError(f"{path} is damaged: its sha256 starts with {found}, expected {match[2]}")
    try:
        # safetensors.torch.load omits the header: its length in 8 bytes, then JSON.
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        tensors = safetensors.torch.load(content)
        state: dict[str, Any] = _with_tensors(json.loads(header["__metadata__"]["rest"]), tensors)
    except (ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path} is not a checkpoint: {error}") from error
    return state


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, newest first."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


class NoCheckpointError(FileNotFoundError):
    """The run has no valid checkpoint."""


# The newest valid state of a run, and the problems of newer files.
Newest = tuple[dict[str, Any] | None, dict[Path, str]]


def newest_checkpoint(folder: Path, recipe: Recipe) -> Newest:
    """Load the newest valid checkpoint of that run."""
    problems: dict[Path, str] = {}
    for path in checkpoints(folder):
        try:
            state = load_checkpoint(path)
            difference = describe_difference(Recipe.from_dict(state["recipe"]), recipe)
        except (LookupError, ValueError, OSError) as error:
            problems[path] = str(error)
            continue
        if not difference:
            return state, problems
        problems[path] = f"{path} belongs to another run: {difference}"
    return None, problems


def _without_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace each tensor by {"tensor": name} and each dict by {"pairs": ...}: the keys of an optimizer's
    state are numbers, which JSON would turn into strings."""
    if isinstance(value, Tensor):
        # A copy: tied weights share memory, which safetensors rejects.
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"pairs": [[key, _without_tensors(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_without_tensors(item, tensors) for item in value]
    return value


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _with_tensors(item, tensors) for key, item in value["pairs"]}
    return value
