"""Load a saved transformers model, and a text file as rows of its tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from iglu.install_hint import pip_install
from iglu_lab.errors import UserError, as_user_errors

_LONGEST = 128


def load_transformer(folder: Path) -> nn.Module:
    """Load a model in evaluation mode, with its original class if known: the head may contain activations."""
    if not folder.is_dir():
        raise UserError(
            f"hf:{folder}: the folder {folder} does not exist. Models of the Hugging Face hub are not "
            "downloaded: save one with model.save_pretrained(FOLDER) first"
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a saved transformers model: it has no config.json")
    from iglu.integrations.transformers import register

    try:
        register()
    except ImportError as error:
        raise UserError(f"hf:FOLDER needs transformers, {pip_install('hf')}: {error}") from error
    import transformers

    with as_user_errors(f"hf:{folder}: "):
        config = transformers.AutoConfig.from_pretrained(folder)
    architecture = getattr(transformers, (config.architectures or ["AutoModel"])[0], transformers.AutoModel)
    with without_progress_bars():
        model: nn.Module = architecture.from_pretrained(folder).eval()
    return model


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Disable the progress bars of transformers, which it shows for every file."""
    from transformers.utils import logging

    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()


def row_length(model: nn.Module) -> int:
    """Tokens per row: the model's maximum, up to 128."""
    config: Any = model.config
    return min(getattr(config, "max_position_embeddings", _LONGEST), _LONGEST)


def load_tokenizer(folder: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


def token_rows(folder: Path, file: Path, length: int) -> Tensor:
    """Tokenize a text with the model's tokenizer and cut it into rows of ``length``."""
    text = file.read_text(encoding="utf-8")
    found = load_tokenizer(folder)(text, add_special_tokens=False, verbose=False)["input_ids"]
    if text and not found:  # a folder without a tokenizer
        raise UserError(
            f"{folder} has no tokenizer, which --text needs: save it there with tokenizer.save_pretrained"
        )
    rows = torch.tensor(found[: len(found) // length * length]).view(-1, length)
    if len(rows) == 0:
        raise UserError(f"{file} has {len(found)} tokens, fewer than one row of {length}")
    return rows
