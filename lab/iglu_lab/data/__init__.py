"""Data sets: images as uint8 tensors on the device, text as memory-mapped token ids."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder(named: Path | str | None = None) -> Path:
    """The data directory: ``named``, else IGLU_DATA, else the user's cache."""
    if named is not None:
        return Path(named).expanduser()
    if "IGLU_DATA" in os.environ:
        return Path(os.environ["IGLU_DATA"]).expanduser()
    return cache_folder()


def cache_folder() -> Path:
    """The directory for files computed from data: IGLU_CACHE, else the user's cache."""
    if "IGLU_CACHE" in os.environ:
        return Path(os.environ["IGLU_CACHE"]).expanduser()
    import pooch

    return Path(pooch.os_cache("iglu"))
