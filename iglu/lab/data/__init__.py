"""The data of the lab: images as bytes on the device, text as a memory-mapped row of tokens."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder(named: Path | str | None = None) -> Path:
    """Where data is looked for and fetched to: as named, or IGLU_DATA, or a folder of the user's cache."""
    if named is not None:
        return Path(named).expanduser()
    if "IGLU_DATA" in os.environ:
        return Path(os.environ["IGLU_DATA"]).expanduser()
    return cache_folder()


def cache_folder() -> Path:
    """Where what was computed from data is kept: IGLU_CACHE, or a folder of the user's cache."""
    if "IGLU_CACHE" in os.environ:
        return Path(os.environ["IGLU_CACHE"]).expanduser()
    import pooch

    return Path(pooch.os_cache("iglu"))
