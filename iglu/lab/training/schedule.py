"""What a step is made of, as functions of the recipe and of the step's number alone."""

from __future__ import annotations

import hashlib
import itertools
import math

from iglu.lab.recipes import Recipe


def derive_seed(seed: int, *purpose: object) -> int:
    """An independent seed for each purpose ("order" of epoch 3, "dropout" of step 17 ...) of one seed."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def learning_rate(recipe: Recipe, epoch: int, step: int, steps: int) -> float:
    """For the update number ``step``, from 0, which lies in ``epoch``, from 0, of ``steps`` each.

    cosine: lr (1 + cos(pi epoch/epochs))/2.  warmup-linear: lr step/w up to the w-th step, then
    lr (n - step)/(n - w), with n steps in all and w = int(warmup n).
    """
    if recipe.schedule == "cosine":
        return recipe.lr * (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2
    if recipe.schedule == "warmup-linear":
        total = recipe.epochs * steps
        rising = int(recipe.warmup * total)
        if step < rising:
            return recipe.lr * step / rising
        return recipe.lr * (total - step) / (total - rising)
    return recipe.lr


def steps_an_epoch(recipe: Recipe, samples: int) -> int:
    """Once through the data; the last batch may be smaller."""
    steps = math.ceil(samples / recipe.batch)
    return steps if recipe.epoch_steps is None else min(steps, recipe.epoch_steps)


def batch_parts(count: int, accumulate: int, rank: int = 0, world: int = 1) -> list[slice]:
    """What process ``rank`` takes of a batch of ``count`` samples: of each part its share.  The parts are
    the same for any number of processes; of a part with fewer samples than these, some get none.

    >>> batch_parts(10, 2, rank=1, world=2)
    [slice(2, 5, None), slice(7, 10, None)]
    """
    shares = min(accumulate, count) * world
    bounds = [index * count // shares for index in range(shares + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(bounds)][rank::world]
