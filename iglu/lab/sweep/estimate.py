"""How long the cells of a sweep will take: from runs that are there, else from a few steps on random input.

Rough by design.  It needs no data, and even a step of GPT-2 Small is timed on a part of a batch that takes
about a second and scaled up.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from iglu.lab.data.cifar import ARCHIVES
from iglu.lab.data.images import Images, ImageSet
from iglu.lab.data.longtail import class_sizes
from iglu.lab.data.text import TextSet
from iglu.lab.recipes import Recipe
from iglu.lab.runs.folder import Run
from iglu.lab.training.schedule import steps_an_epoch
from iglu.lab.training.tasks import ImageTask, Task, TextTask, load_task

# Images of CIFAR.  Tokens of WikiText under GPT-2's byte pairs: those of WikiText-2 counted; WikiText-103 has
# the same test text, and its 101 million words at the same 1.19 tokens a word.
_CIFAR = (50_000, 10_000)
_TOKENS = {"wikitext-2": (2_448_382, 295_877), "wikitext-103": (121_000_000, 295_877)}
_GPT2_VOCABULARY = 50_257

_ENOUGH = 0.3  # seconds of a step that say what a larger one would take
_TOKENS_A_ROW = 128  # of a block of text, while timing
_FORWARD = 1 / 3  # of a step is what evaluation does as well

# What the time of an epoch depends on; the activation, to a few percent only.
_COSTS = (
    "dataset", "model", "epoch_steps", "batch", "accumulate", "ratio", "profile", "size", "context",
    "tokenizer", "precision", "compile", "channels_last", "threads", "accelerator",
)  # fmt: skip


class Duration(NamedTuple):
    """What a cell still takes, and how that is known."""

    seconds: float  # NaN where it cannot be known
    source: str


def durations(
    cells: Iterable[Recipe],
    runs: Iterable[Run] = (),
    begun: Mapping[Recipe, Run] | None = None,
    data: Path | str | None = None,
) -> dict[Recipe, Duration]:
    """For each cell the time of the epochs it has to go; ``runs`` are earlier ones of any recipe, ``begun``
    the cells' own."""
    measured = _epochs_of(runs)
    timed: dict[tuple[object, ...], _Speed | None] = {}
    found = {}
    for cell in cells:
        key = _cost(cell)
        run = (begun or {}).get(cell)
        left = cell.last_epoch - (len(run.history) if run is not None else 0)
        if key in measured:
            epoch, source = math.fsum(measured[key]) / len(measured[key]), "runs in the folder"
        else:
            # The size of the data does not change the speed.
            network = _cost(cell.replace(ratio=1.0, profile="exponential", epoch_steps=None))
            if network not in timed:
                timed[network] = _speed(cell, data)
            epoch, source = _epoch_seconds(cell, timed[network], data), "a few steps, roughly"
        found[cell] = Duration(
            left * epoch, source if math.isfinite(epoch) else "unknown: its data is missing"
        )
    return found


def wall_seconds(seconds: Iterable[float], jobs: int) -> float:
    """With ``jobs`` cells at a time: an even share of all, but no less than the longest cell."""
    known = [value for value in seconds if math.isfinite(value)]
    return max(math.fsum(known) / jobs, max(known, default=0.0))


def in_words(seconds: float) -> str:
    """
    >>> in_words(5400), in_words(40), in_words(400_000)
    ('1.5 h', '40 s', '111 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h" if seconds < 36_000 else f"{seconds / 3600:,.0f} h"


def _cost(recipe: Recipe) -> tuple[object, ...]:
    return tuple(getattr(recipe, name) for name in _COSTS)


def _epochs_of(runs: Iterable[Run]) -> dict[tuple[object, ...], list[float]]:
    epochs: dict[tuple[object, ...], list[float]] = {}
    for run in runs:
        times = [row["seconds"] + row["test_seconds"] for row in run.history if "test_seconds" in row]
        if times:
            epochs.setdefault(_cost(run.recipe), []).extend(times)
    return epochs


# -- a few steps -----------------------------------------------------------------------------------


class _Speed(NamedTuple):
    sample: float  # seconds of forward and backward
    update: float  # seconds of the optimizer, whatever the batch


def _epoch_seconds(recipe: Recipe, speed: _Speed | None, data: Path | str | None) -> float:
    if speed is None:
        return math.nan
    train, test = _sizes(recipe, data)
    steps = steps_an_epoch(recipe, train, 1)
    samples = min(train, steps * recipe.batch) + test * _FORWARD
    return samples * speed.sample + steps * speed.update


def _sizes(recipe: Recipe, data: Path | str | None) -> tuple[int, int]:
    """Samples for training and for testing."""
    if recipe.dataset in ARCHIVES:
        classes = ARCHIVES[recipe.dataset].classes
        return sum(class_sizes(_CIFAR[0] // classes, classes, recipe.ratio, recipe.profile)), _CIFAR[1]
    if recipe.dataset in _TOKENS:
        train, test = _TOKENS[recipe.dataset]
        return train // recipe.context, test // recipe.context
    task = load_task(recipe, data)
    return task.samples, len(task.data.test.labels) if isinstance(task, ImageTask) else len(_test(task))


def _test(task: Task) -> Tensor:
    assert isinstance(task, TextTask)
    return task.test


def _speed(recipe: Recipe, data: Path | str | None) -> _Speed | None:
    """None where there is neither the data nor a stand-in for it."""
    is_cuda = recipe.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    device = torch.device("cuda" if is_cuda else "cpu")
    # A part of a row of text costs its part of the time, but for attention, a tenth at 1,024 tokens.
    short = min(recipe.context, _TOKENS_A_ROW)
    part = recipe.replace(context=short)
    try:
        task = _stand_in(part, device) or load_task(part, data, device)
    except (OSError, ValueError, ImportError):
        return None
    with torch.random.fork_rng(), _threads(recipe.threads):
        speed = _time(task, recipe.batch)
    rows = recipe.context / short if isinstance(task, TextTask) else 1.0
    return speed._replace(sample=speed.sample * rows)


def _time(task: Task, batch: int) -> _Speed:
    """Steps of more and more samples, until one takes long enough or is a whole batch; then another."""
    model = task.make_model().to(task.device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=task.device.type in ("cpu", "cuda"))
    is_mixed = task.recipe.precision != "32"

    def seconds(count: int) -> tuple[float, float]:
        began = time.perf_counter()
        inputs, targets = task.train_batch(torch.arange(count) % task.samples, slice(None), 0)
        with torch.autocast(task.device.type, torch.bfloat16, enabled=is_mixed):
            loss = task.score(model(inputs), targets).loss
        torch.autograd.backward(loss)
        loss.item()  # waits for the device
        middle = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        return middle - began, time.perf_counter() - middle

    count = 1
    passes, update = seconds(count)
    while passes < _ENOUGH and count < batch:
        count = min(4 * count, batch)
        passes, update = seconds(count)
    again, update = seconds(count)
    return _Speed(min(passes, again) / count, update)


def _stand_in(recipe: Recipe, device: torch.device) -> Task | None:
    """Random pixels or tokens in the shapes of a set that may not be here; None for any other set."""
    if recipe.dataset in ARCHIVES:
        return _RandomImages(recipe, device)
    return _RandomText(recipe, device) if recipe.dataset in _TOKENS else None


class _RandomImages(ImageTask):
    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        Task.__init__(self, recipe, device)
        self.samples, self.classes = recipe.batch, ARCHIVES[recipe.dataset].classes
        images = Images(
            torch.randint(256, (self.samples, 3, 32, 32), dtype=torch.uint8),
            torch.randint(self.classes, (self.samples,)),
        ).to(device)
        self.data = ImageSet(images, images, self.classes, (0.5,) * 3, (0.25,) * 3)
        self.weights = torch.ones(self.classes, device=device)
        self.mean = torch.full((3, 1, 1), 0.5, device=device)
        self.std = torch.full((3, 1, 1), 0.25, device=device)


class _RandomText(TextTask):
    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        Task.__init__(self, recipe, device)
        self.samples, self.units_a_sample = recipe.batch, recipe.context - 1
        tokens = torch.randint(_GPT2_VOCABULARY, (self.samples * recipe.context,))
        self.lengths = torch.ones(_GPT2_VOCABULARY, dtype=torch.int64, device=device)
        self.data = TextSet(tokens, tokens, tokens, _GPT2_VOCABULARY, self.lengths)
        self.train = self.test = self.data.blocks("train", recipe.context)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
