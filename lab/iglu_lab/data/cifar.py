"""CIFAR-10 and CIFAR-100 from the original pickles, downloaded if needed.

A pickle can execute code, so a file is unpickled only if its sha256 is the published one.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from iglu_lab.data import cache_folder
from iglu_lab.data.images import Images, ImageSet
from iglu_lab.errors import UserError


class Archive(NamedTuple):
    """The source of a set and the checksums of its files."""

    folder: str
    url: str
    sha256: str  # of the archive
    labels: bytes
    classes: int
    train: dict[str, str]  # file -> sha256
    test: dict[str, str]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


ARCHIVES = {
    "cifar10": Archive(
        "cifar-10-batches-py",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        b"labels",
        10,
        {
            "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
            "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
            "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
            "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
            "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
        },
        {"test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"},
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Archive(
        "cifar-100-python",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        b"fine_labels",
        100,
        {"train": "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b"},
        {"test": "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864"},
        (0.5071, 0.4867, 0.4408),
        (0.2675, 0.2565, 0.2761),
    ),
}


@functools.cache
def load(name: str, root: Path) -> ImageSet:
    """Load the set ``name`` from the folder ``root``; download it there if it is missing."""
    archive = ARCHIVES[name]
    folder = root / archive.folder
    if not folder.is_dir():
        _fetch(archive, root)
    return ImageSet(
        train=_split(archive, folder, archive.train),
        test=_split(archive, folder, archive.test),
        classes=archive.classes,
        mean=archive.mean,
        std=archive.std,
    )


def _split(archive: Archive, folder: Path, files: dict[str, str]) -> Images:
    pixels, labels = zip(*(_open(folder / name, sha, archive) for name, sha in files.items()), strict=True)
    return Images(torch.cat(pixels), torch.cat(labels))


def _open(path: Path, sha256: str, archive: Archive) -> tuple[Tensor, Tensor]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing. Remove the folder {path.parent} to download it again, "
            f"or unpack {archive.url} there."
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise UserError(
            f"{path} is not the published file: expected sha256 {sha256}, got {found}. It was not "
            f"opened. Remove the folder {path.parent} to download it again."
        )
    batch = pickle.loads(content, encoding="bytes")
    # The originals are (n, 3072) bytes: 1,024 red, 1,024 green, 1,024 blue, each row by row.
    pixels = np.ascontiguousarray(batch[b"data"]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(pixels), torch.tensor(batch[archive.labels])


def _fetch(archive: Archive, root: Path) -> None:
    import pooch

    if not root.is_dir() and root != cache_folder():
        raise FileNotFoundError(
            f"The data folder {root} does not exist. Create it, or use the cache by leaving out --data and "
            "IGLU_DATA."
        )
    try:
        pooch.retrieve(
            archive.url, f"sha256:{archive.sha256}", path=root, fname=Path(archive.url).name,
            processor=pooch.Untar(extract_dir="."), progressbar=True,
        )  # fmt: skip
    except OSError as error:
        raise OSError(
            f"Could not download {archive.url}: {_innermost(error)}. Download and unpack it yourself, then "
            f"pass the folder that contains {archive.folder} with --data or IGLU_DATA."
        ) from error


def _innermost(error: BaseException) -> str:
    """The cause of an exception that urllib3 and requests wrapped several times."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
