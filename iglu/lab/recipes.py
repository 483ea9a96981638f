"""Recipes: everything that decides the numbers of a run, in one frozen dataclass; the paper's by name.

A new experiment is a difference: ``RECIPES["resnet20-cifar100"].replace(activation="iglu:0.5", seed=3)``.
Fields marked as *execution* say how a run is carried out, not what it computes: a run that was stopped
may go on under other values of them.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from iglu import zoo
from iglu.functional import check_choice
from iglu.lab.data.augment import Augmentation, Jitter
from iglu.lab.data.longtail import PROFILES
from iglu.lab.data.text import check_tokenizer

PRECISIONS = ("32", "bf16-mixed", "16-mixed")
SCHEDULES = ("cosine", "warmup-linear", "constant")


def _execution(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"execution": True})


@dataclass(frozen=True)
class Recipe:
    """One run.  The defaults are those of the paper's vision runs."""

    name: str
    """What the run is called in folders and tables."""
    dataset: str
    """cifar10, cifar100, digits; python, wikitext-103, wikitext-2, or a text in the data folder by path."""
    model: str
    """One of the models of iglu.lab.training.tasks, such as resnet20, vit-tiny or gpt2-small."""
    activation: str = "relu"
    """A name of the zoo: relu, iglu:0.5, iglu:learnable=5 ..."""
    norm: bool = True
    """Normalisation layers; without them nothing else changes."""
    constrain: bool = False
    """Keep a learnable sigma positive; the paper's was free."""
    seed: int = 0
    """Decides weights, order, augmentation and dropout."""

    epochs: int = 200
    """The length of the schedule."""
    epoch_steps: int | None = None
    """End an epoch after so many steps; by default it goes once through the data."""
    batch: int = 128
    """Images or blocks of text in a step, over all devices."""
    accumulate: int = 1
    """Take a step's batch in so many parts, for less memory."""
    lr: float = 1e-3
    """Learning rate at its highest."""
    weight_decay: float = 1e-2
    """Of AdamW, on every parameter."""
    decay_shapes: bool = True
    """Decay the parameters of activations (a learnable sigma) as well, as the paper did."""
    schedule: Literal["cosine", "warmup-linear", "constant"] = "cosine"
    """cosine: to 0, once an epoch; warmup-linear: up, then down to 0, once a step."""
    warmup: float = 0.05
    """Share of all steps in which warmup-linear rises."""
    clip: float | None = 1.0
    """Largest norm of the gradient; None does not clip."""

    ratio: float = 1.0
    """Images of the largest class to those of the smallest: above 1, a long tail."""
    profile: Literal["exponential", "step"] = "exponential"
    """How the class sizes fall."""
    subset_seed: int | None = 0
    """Decides which images a long tail keeps: one draw for every seed, as the authors had it; None draws
    anew for each seed."""
    class_weights: bool = False
    """Weight the training loss by 1/n_k."""
    size: int | None = None
    """Resize images to this many pixels a side."""
    padding: int = 4
    """Random crop from a frame of so many black pixels."""
    flip: bool = True
    """Mirror images at random."""
    jitter: tuple[float, float, float, float] = (0.2, 0.2, 0.2, 0.1)
    """Of brightness, contrast, saturation and hue."""
    context: int = 1024
    """Tokens in a block of text."""
    tokenizer: str = "gpt2"
    """bytes; gpt2, its byte pairs from its files in the data folder; gpt2:4096, the first of them, so many
    tokens in all."""
    evaluate: Literal["test", "valid"] = "test"
    """The split of a text that the metrics of an epoch are from; image sets have test alone."""
    dropout: float = 0.1
    """In transformers."""

    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    """16-mixed needs a GPU."""
    compile: bool = False
    """torch.compile the model."""
    channels_last: bool = False
    """The memory format of images and convolutions."""
    threads: int | None = _execution(None)
    """CPU threads; by default torch decides."""
    stop_after: int | None = _execution(None)
    """End after so many epochs under the full schedule."""
    evaluate_every: int = _execution(1)
    """Epochs from one evaluation to the next; there is one after the last in any case."""
    tails: int | None = _execution(None)
    """Every so many epochs, and after the last, add the tail index of each layer to the metrics."""
    checkpoint_every: float = _execution(120.0)
    """Seconds between checkpoints; there is one at the end in any case."""
    accelerator: str = _execution("auto")
    """cpu, cuda, mps, or auto."""
    devices: int = _execution(1)
    """Devices (processes) a node; under torchrun as many as it started."""
    nodes: int = _execution(1)
    """Machines."""

    def __post_init__(self) -> None:
        zoo.parse(self.activation)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("profile", self.profile, PROFILES)
        check_tokenizer(self.tokenizer)
        for name in ("epochs", "batch", "accumulate", "context", "evaluate_every", "devices", "nodes"):
            _check_least(name, getattr(self, name), 1)
        for name in ("epoch_steps", "threads", "stop_after", "tails", "size"):
            _check_least(name, getattr(self, name), 1)
        for name in ("lr", "weight_decay", "warmup", "clip", "padding", "dropout", "checkpoint_every"):
            _check_least(name, getattr(self, name), 0)
        _check_least("ratio", self.ratio, 1)
        # From JSON a tuple comes back as a list, which would make equal recipes differ.
        object.__setattr__(self, "jitter", tuple(self.jitter))

    def replace(self, **changes: Any) -> Recipe:
        """This recipe with some fields changed."""
        for name in changes:
            if name not in _FIELDS:
                near = difflib.get_close_matches(name, _FIELDS, n=1)
                raise TypeError(
                    f"A recipe has no field {name!r}." + (f" Did you mean {near[0]!r}?" if near else "")
                )
        return dataclasses.replace(self, **changes)

    @property
    def last_epoch(self) -> int:
        return self.epochs if self.stop_after is None else min(self.epochs, self.stop_after)

    @property
    def subset_draw(self) -> int:
        """The seed of the draw that makes a long tail."""
        return self.seed if self.subset_seed is None else self.subset_seed

    @property
    def augmentation(self) -> Augmentation:
        return Augmentation(self.size, self.padding, self.flip, Jitter(*self.jitter))

    @property
    def folder_name(self) -> str:
        """Name, activation, every difference from the named recipe, seed; safe on every file system."""
        changed = [f"{name}={value}" for name, value in self.differences().items()]
        parts = [self.name, self.activation, *changed, f"seed={self.seed}"]
        return "_".join("".join(c if c.isalnum() or c in ".=+-" else "-" for c in part) for part in parts)

    def differences(self) -> dict[str, str]:
        """What differs from the recipe of that name, apart from activation and seed, written short."""
        base = RECIPES.get(self.name) or Recipe(self.name, self.dataset, self.model)
        return {
            name: _short(value)
            for name, value in self.identity().items()
            if name not in ("name", "activation", "seed") and value != getattr(base, name)
        }

    def identity(self) -> dict[str, Any]:
        """The fields that decide what is computed."""
        return {
            name: getattr(self, name) for name, field in _FIELDS.items() if "execution" not in field.metadata
        }

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Recipe:
        """As written by ``as_dict``; a field of a later version is refused by name.  Before there was a
        ``subset_seed`` the subset of a long tail followed the run's seed."""
        unknown = sorted(fields.keys() - _FIELDS.keys())
        if unknown:
            raise ValueError(f"Unknown fields of a recipe: {', '.join(unknown)}")
        before = {"subset_seed": None} if fields.get("ratio", 1.0) > 1 else {}
        return cls(**{**before, **fields})


_FIELDS = {field.name: field for field in dataclasses.fields(Recipe)}


def _check_least(name: str, value: float | None, least: float) -> None:
    if value is not None and not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "+".join(map(_short, value)) if isinstance(value, tuple) else str(value)


def get_recipe(name: str) -> Recipe:
    """A ready recipe by its name."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(RECIPES)}."
        raise ValueError(f"Unknown recipe {name!r}. {hint}")
    return RECIPES[name]


_NO_IMAGES: dict[str, Any] = {"padding": 0, "flip": False, "jitter": (0.0, 0.0, 0.0, 0.0)}

# For text the paper's table 3; its perplexities are of the test set, after the last epoch.
_GPT2 = Recipe(
    "gpt2-wikitext103", "wikitext-103", "gpt2-small", activation="gelu",
    epochs=20, batch=32, lr=6e-4, weight_decay=0.1, schedule="warmup-linear",
    checkpoint_every=900.0, **_NO_IMAGES,
)  # fmt: skip

_DIGITS = Recipe(
    "digits", "digits", "resnet8", epochs=12, batch=64, lr=4e-3, padding=1, flip=False,
    jitter=(0.0, 0.0, 0.0, 0.0),
)  # fmt: skip

_READY = (
    Recipe("resnet20-cifar10", "cifar10", "resnet20"),
    Recipe("resnet20-cifar100", "cifar100", "resnet20"),
    Recipe("vit-cifar10", "cifar10", "vit-tiny", activation="gelu", size=224),
    Recipe("vit-cifar100", "cifar100", "vit-tiny", activation="gelu", size=224),
    _GPT2,
    Recipe("resnet20-cifar10-lt", "cifar10", "resnet20", ratio=100.0, class_weights=True),
    Recipe("resnet20-cifar100-lt", "cifar100", "resnet20", ratio=100.0, class_weights=True),
    # Small relatives, for a machine without a GPU.
    Recipe("vit-mini-cifar10", "cifar10", "vit-mini", activation="gelu", epochs=20),
    _GPT2.replace(name="gpt2-mini-wikitext2", dataset="wikitext-2", model="gpt2-mini", context=128,
              epochs=10, batch=32, lr=1e-3),
    # With the data that is already there.
    _DIGITS,
    _DIGITS.replace(name="digits-lt", ratio=20.0, class_weights=True),
    _GPT2.replace(name="gpt2-python", dataset="python", model="gpt2-nano", tokenizer="bytes", context=64,
              epochs=3, batch=32, lr=3e-3, dropout=0.0, checkpoint_every=120.0),
)  # fmt: skip

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _READY}
