"""Random seeds derived from the seed of a recipe."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *purpose: object) -> int:
    """An independent seed per purpose ("order" of epoch 3, "dropout" of step 17 ...)."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
