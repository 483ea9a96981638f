"""The state of a run in one file that is whole or not there, proves itself, and runs no code when loaded.

A checkpoint is a safetensors file: tensors, and in its header everything else as JSON.  Its name holds the
step and the first digits of its own sha256, ``checkpoint-00000120-9f86d081884c.safetensors``, so that a
damaged one is recognised and the one before it is taken.  It holds its recipe, so that another run's is too.
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

from iglu.lab.recipes import Recipe
from iglu.lab.runs.folder import unlike
from iglu.lab.storage import write_atomically

_NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{12})\.safetensors")
KEPT = 2  # the newest, and the one to fall back on


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write the state after ``step`` steps, a nest of dicts and lists; then drop all but the newest two."""
    tensors: dict[str, Tensor] = {}
    rest = json.dumps(_take_out(state, tensors))
    content = safetensors.torch.save(tensors, {"rest": rest})
    digest = hashlib.sha256(content).hexdigest()[:12]
    path = folder / f"checkpoint-{step:08d}-{digest}.safetensors"
    with write_atomically(path) as file:
        file.write(content)
    # One of the same step is of before an evaluation that this one knows.
    others = [old for old in checkpoints(folder) if old != path]
    same = [old for old in others if old.name.startswith(f"checkpoint-{step:08d}-")]
    for old in (*same, *[old for old in others if old not in same][KEPT - 1 :]):
        old.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state as it was saved, on the CPU; a ValueError if the file is damaged."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not the name of a checkpoint")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()[:12]
    if found != match[2]:
        raise ValueError(f"{path} is damaged: its sha256 begins with {found}, not with {match[2]}")
    try:
        # safetensors.torch.load leaves the header out: its length in 8 bytes, then JSON.
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        tensors = safetensors.torch.load(content)
        state: dict[str, Any] = _put_back(json.loads(header["__metadata__"]["rest"]), tensors)
    except (ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path} is not a checkpoint: {error}") from error
    return state


def checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def newest_checkpoint(folder: Path, recipe: Recipe) -> tuple[dict[str, Any] | None, dict[Path, str]]:
    """The newest state that is sound and of that run, and what is wrong with those that are newer."""
    complaints: dict[Path, str] = {}
    for path in checkpoints(folder):
        state, complaint = _load(path, recipe)
        if state is not None:
            return state, complaints
        complaints[path] = complaint
    return None, complaints


def _load(path: Path, recipe: Recipe) -> tuple[dict[str, Any] | None, str]:
    try:
        state = load_checkpoint(path)
        # The first ones had no recipe.
        difference = unlike(Recipe.from_dict(state["recipe"]), recipe) if "recipe" in state else ""
    except (ValueError, OSError) as error:
        return None, str(error)
    return (None, f"{path} is of another run: {difference}") if difference else (state, "")


def _take_out(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON in which {"tensor": number} stands for each tensor; a dict becomes {"pairs": ...}, since the
    keys of an optimizer's state are numbers, which JSON would turn into words."""
    if isinstance(value, Tensor):
        # A copy of its own: tied weights share memory, which safetensors refuses.
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"pairs": [[key, _take_out(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_take_out(item, tensors) for item in value]
    return value


def _put_back(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_back(item, tensors) for item in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _put_back(item, tensors) for key, item in value["pairs"]}
    return value
