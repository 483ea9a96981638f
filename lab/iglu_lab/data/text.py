"""Text as one array of token ids, tokenized once and memory-mapped, so that it can be larger than memory.

The name of the cache file contains a hash of the text and of the tokenizer, so it is never stale, and its own
length and sha256, so a damaged file is detected and rebuilt.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from iglu.functional import check_choice
from iglu_lab.data.embedded import python_reference
from iglu_lab.errors import UserError
from iglu_lab.storage import UNFINISHED, write_atomically

SPLITS = ("train", "valid", "test")
TOKENIZERS = ("bytes", "gpt2", "gpt2:SIZE")
BYTES = 256

# File names in use for the splits of WikiText.
_FILE_NAMES = ("{}.txt", "wiki.{}.tokens", "wiki.{}.raw", "{}.tokens", "{}.raw")
_SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "validation"), "test": ("test",)}
# The two files of GPT-2's tokenizer, as named by OpenAI and by transformers.
_BPE_NAMES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
_HUB_NAMES = {"wikitext-103": "wikitext-103-v1", "wikitext-2": "wikitext-2-v1"}

# The share of a single text for each of validation and test; the rest is for training.
_HELD_OUT = 0.05

Lines = Callable[[], Iterator[str]]


class Tokenizer(NamedTuple):
    name: str
    vocabulary: int
    identity: str  # changes when its output changes
    encode: Callable[[Iterable[str]], Iterator[np.ndarray]]
    lengths: Tensor  # of each token, in bytes


class TextSet(NamedTuple):
    """The three splits as memory-mapped arrays of token ids."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: int
    lengths: Tensor  # of each token, in bytes; makes losses comparable between tokenizers

    def blocks(self, split: str, context: int) -> Tensor:
        """Cut a split into rows of ``context`` tokens; the remainder is dropped."""
        check_choice("split", split, SPLITS)
        tokens: Tensor = getattr(self, split)
        count = len(tokens) // context
        if count == 0:
            raise UserError(f"The {split} text has {len(tokens)} tokens, fewer than one block of {context}")
        return tokens[: count * context].view(count, context)


def load(name: str, root: Path, tokenizer: str, cache: Path) -> TextSet:
    """Load ``"python"`` (embedded), ``"wikitext-103"``, ``"wikitext-2"``, another folder of three splits in
    ``root``, or a plain text file by its path.  Blank lines of WikiText are removed: they have a space and a
    newline in its files, but are empty in the hub version, which the paper used."""
    coder = load_tokenizer(tokenizer, root)
    sources = _sources(name, root)
    if Path(name).name.startswith("wikitext"):
        sources = {split: functools.partial(_without_blank_lines, lines) for split, lines in sources.items()}
    splits = {split: _tokenize(lines, coder, cache) for split, lines in sources.items()}
    return TextSet(splits["train"], splits["valid"], splits["test"], coder.vocabulary, coder.lengths)


# -- sources ---------------------------------------------------------------------------------------


def _sources(name: str, root: Path) -> dict[str, Lines]:
    if name == "python":
        return _cut(python_reference())
    folder = root / name
    if folder.is_file():
        return _cut(folder.read_text(encoding="utf-8"))
    if (folder / "dataset_dict.json").is_file():
        from datasets import load_from_disk

        return _columns(load_from_disk(str(folder)))
    if folder.is_dir():
        return {split: functools.partial(_lines, _split_file(folder, split)) for split in SPLITS}
    if name in _HUB_NAMES:
        try:
            from datasets import load_dataset
        except ImportError:
            pass
        else:
            return _columns(load_dataset("Salesforce/wikitext", _HUB_NAMES[name]))
    raise FileNotFoundError(
        f"No text {name!r} in {root}: it must be a text file, a folder with train, valid and test files "
        f"({', '.join(pattern.format('train') for pattern in _FILE_NAMES)}) or a folder saved by `datasets`. "
        "Pass the data folder with --data or IGLU_DATA"
        + ("; with the package `datasets` installed it is downloaded." if name in _HUB_NAMES else ".")
    )


def _split_file(folder: Path, split: str) -> Path:
    candidates = [folder / p.format(word) for p in _FILE_NAMES for word in _SPLIT_NAMES[split]]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"No {split} text in {folder}: looked for {', '.join(p.name for p in candidates)}"
    )


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        yield from file


def _without_blank_lines(lines: Lines) -> Iterator[str]:
    return (line for line in lines() if not line.isspace())


def _columns(dataset: object) -> dict[str, Lines]:
    def rows(split: str) -> Iterator[str]:
        for row in dataset[split]:  # type: ignore[index]
            yield row["text"]

    names = {split: next((n for n in _SPLIT_NAMES[split] if n in dataset), split) for split in SPLITS}  # type: ignore[operator]
    return {split: functools.partial(rows, name) for split, name in names.items()}


def _cut(text: str) -> dict[str, Lines]:
    """Split a text: the last two shares are for validation and test."""
    lines = text.splitlines(keepends=True)
    held_out = max(round(len(lines) * _HELD_OUT), 1)
    pieces = (lines[: -2 * held_out], lines[-2 * held_out : -held_out], lines[-held_out:])
    return {split: functools.partial(iter, piece) for split, piece in zip(SPLITS, pieces, strict=True)}


# -- tokens ----------------------------------------------------------------------------------------


def check_tokenizer(name: str) -> int | None:
    """Validate the name; return the vocabulary size of ``gpt2:SIZE``."""
    kind, colon, size = name.partition(":")
    if not colon:
        check_choice("tokenizer", name, TOKENIZERS)
        return None
    if kind != "gpt2" or not size.isdecimal() or int(size) <= BYTES:
        raise UserError(f"tokenizer must be bytes, gpt2 or gpt2:SIZE with SIZE above {BYTES}, got {name!r}")
    return int(size)


def load_tokenizer(name: str, root: Path) -> Tokenizer:
    """Load ``"bytes"``: the 256 bytes of UTF-8; ``"gpt2"``: byte-pair encoding from the two files of GPT-2
    in ``root`` or one of its folders; or ``"gpt2:4096"``: the merges of GPT-2 are ordered, so the 256 bytes
    and its first 3,840 merges are a smaller tokenizer."""
    size = check_tokenizer(name)
    if name == "bytes":
        return Tokenizer(name, BYTES, name, _bytes, torch.ones(BYTES, dtype=torch.int64))
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import models, pre_tokenizers

    files = _bpe_files(root)
    vocabulary, merges = models.BPE.read_file(*map(str, files))
    if size is not None:
        if size > BYTES + len(merges):
            raise UserError(f"{name} needs more than the {BYTES + len(merges)} tokens of {files[1]}")
        merges = merges[: size - BYTES]
        vocabulary = {token: number for token, number in vocabulary.items() if number < size}
    coder = FastTokenizer(models.BPE(vocabulary, merges))
    coder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def encode(lines: Iterable[str]) -> Iterator[np.ndarray]:
        # Line by line, as in the paper; in batches for speed.
        for batch in _batches(lines, 10_000):
            yield np.concatenate([np.asarray(e.ids, np.uint16) for e in coder.encode_batch_fast(batch)])

    lengths = torch.zeros(len(vocabulary), dtype=torch.int64)
    for token, number in vocabulary.items():
        lengths[number] = len(token)  # one character per byte
    identity = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return Tokenizer(name.replace(":", "-"), len(vocabulary), f"{identity}{size or ''}", encode, lengths)


def _bpe_files(root: Path) -> tuple[Path, Path]:
    for folder in (root, *sorted(path for path in root.glob("*") if path.is_dir())):
        for pair in _BPE_NAMES:
            vocabulary, merges = (folder / name for name in pair)
            if vocabulary.is_file() and merges.is_file():
                return vocabulary, merges
    pairs = " or ".join(" and ".join(pair) for pair in _BPE_NAMES)
    raise FileNotFoundError(f"No GPT-2 tokenizer in {root} or its subfolders: expected {pairs}")


def _bytes(lines: Iterable[str]) -> Iterator[np.ndarray]:
    for batch in _batches(lines, 10_000):
        yield np.frombuffer("".join(batch).encode(), np.uint8).astype(np.uint16)


def _batches(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(lines)
    while batch := list(itertools.islice(rest, size)):
        yield batch


def _tokenize(lines: Lines, tokenizer: Tokenizer, cache: Path) -> Tensor:
    source = hashlib.sha256(tokenizer.identity.encode())
    for line in lines():
        source.update(line.encode())
    stem = f"tokens-{tokenizer.name}-{source.hexdigest()[:20]}"
    for path in sorted(cache.glob(f"{stem}-*.u16")):
        if path.name == _checked_name(stem, path):
            return _mapped(path)
        warnings.warn(f"{path} is damaged and was rebuilt", stacklevel=4)
        path.unlink(missing_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{stem}-{os.getpid()}{UNFINISHED}"  # another process may write the same file
    with write_atomically(path) as file:
        for tokens in tokenizer.encode(lines()):
            file.write(tokens.tobytes())
    return _mapped(path.replace(cache / _checked_name(stem, path)))


def _checked_name(stem: str, path: Path) -> str:
    """The file name of an array of tokens, with their number and the first digits of their sha256."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(2**20):
            digest.update(chunk)
        return f"{stem}-{file.tell() // 2}-{digest.hexdigest()[:12]}.u16"


def _mapped(path: Path) -> Tensor:
    if os.path.getsize(path) == 0:
        return torch.empty(0, dtype=torch.uint16)
    # Copy-on-write: torch requires a writable buffer, but the file must not change.
    return torch.from_numpy(np.memmap(path, np.uint16, mode="c"))
