"""Recipes: everything that decides the numbers of a run, in one frozen dataclass; the paper's by name.

A new experiment is a difference: ``RECIPES["resnet20-cifar100"].replace(activation="iglu:0.5", seed=3)``.
Fields marked as *execution* say how a run is carried out, not what it computes: a run that was stopped
may go on under other values of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from iglu import zoo
from iglu.functional import check_choice
from iglu.lab.data.augment import Augmentation, Jitter
from iglu.lab.data.sets import IMAGE_SETS
from iglu.lab.data.text import check_tokenizer
from iglu.lab.mistakes import MistakeError, as_mistakes, unknown

# Of recipe.json.  1, which has no number: every field, of the other kind of data too.  2: those of its kind.
FORMAT = 2


def _execution(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"execution": True})


def _of(kind: str, default: Any) -> Any:
    """A field of runs on that kind of data alone."""
    return dataclasses.field(default=default, metadata={"kind": kind})


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

    ratio: float = _of("images", 1.0)
    """Images of the largest class to those of the smallest: above 1, a long tail."""
    profile: Literal["exponential", "step"] = _of("images", "exponential")
    """How the class sizes fall."""
    subset_seed: int | None = _of("images", 0)
    """Decides which images a long tail keeps: one draw for every seed, as the authors had it; None draws
    anew for each seed."""
    class_weights: bool = _of("images", False)
    """Weight the training loss by 1/n_k."""
    size: int | None = _of("images", None)
    """Resize images to this many pixels a side."""
    padding: int = _of("images", 4)
    """Random crop from a frame of so many black pixels."""
    flip: bool = _of("images", True)
    """Mirror images at random."""
    jitter: tuple[float, float, float, float] = _of("images", (0.2, 0.2, 0.2, 0.1))
    """Of brightness, contrast, saturation and hue."""
    context: int = _of("text", 1024)
    """Tokens in a block of text."""
    tokenizer: str = _of("text", "gpt2")
    """bytes; gpt2, its byte pairs from its files in the data folder; gpt2:4096, the first of them, so many
    tokens in all."""
    evaluate: Literal["test", "valid"] = _of("text", "test")
    """The split of a text that the metrics of an epoch are from; image sets have test alone."""
    dropout: float = 0.1
    """In transformers."""

    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    """16-mixed needs a GPU."""
    compile: bool = False
    """torch.compile the model."""
    channels_last: bool = _of("images", False)
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
        with as_mistakes():
            zoo.parse(self.activation)
            for name, choices in _CHOICES.items():
                check_choice(name, getattr(self, name), choices)
            check_tokenizer(self.tokenizer)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise MistakeError(f"{name} must be at least {least}, got {value}")
        # From JSON a tuple comes back as a list, which would make equal recipes differ.
        object.__setattr__(self, "jitter", tuple(self.jitter))
        # Nothing would read it, and the folder would say that it was another experiment.
        for name, field in _FIELDS.items():
            if self._is_foreign(field) and getattr(self, name) != field.default:
                raise MistakeError(
                    f"{name} is a field of {field.metadata['kind']}, and {self.dataset} on {self.model} is "
                    f"{self.kind}"
                )

    @property
    def kind(self) -> str:
        """ "images" or "text"; empty for data and a model of which neither is known here."""
        if self.dataset in IMAGE_SETS:
            return "images"
        return "text" if self.model.startswith("gpt2") else ""

    def _is_foreign(self, field: dataclasses.Field[Any]) -> bool:
        """Whether it is of the other kind of data."""
        return bool(self.kind) and field.metadata.get("kind", self.kind) != self.kind

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
            name: getattr(self, name)
            for name, field in _FIELDS.items()
            if name not in EXECUTION and not self._is_foreign(field)
        }

    def as_dict(self) -> dict[str, Any]:
        """The fields of its kind, and the number of the format."""
        fields = {name: getattr(self, name) for name, field in _FIELDS.items() if not self._is_foreign(field)}
        return {"format": FORMAT, **fields}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """As written by ``as_dict``, in this format or an earlier one; a MistakeError names what is wrong.

        Before formats had a number, fields of the other kind of data were written and not read; and before
        there was a ``subset_seed``, the subset of a long tail followed the run's seed."""
        fields = dict(content)
        number = fields.pop("format", 1)
        if number not in (1, FORMAT):
            raise MistakeError(f"The recipe has format {number!r}; this version of iglu reads 1 to {FORMAT}")
        read = {name: checked(name, value) for name, value in fields.items()}
        missing = [name for name in ("name", "dataset", "model") if name not in read]
        if missing:
            raise MistakeError(f"The recipe has no {', '.join(missing)}")
        if number == 1:
            plain = cls(read["name"], read["dataset"], read["model"])
            read = {name: value for name, value in read.items() if not plain._is_foreign(_FIELDS[name])}
            if read.get("ratio", 1.0) > 1:
                read.setdefault("subset_seed", None)
        return cls(**read)


_FIELDS = {field.name: field for field in dataclasses.fields(Recipe)}
_TYPES: dict[str, Any] = get_type_hints(Recipe)
_LEAST = {
    "epochs": 1, "batch": 1, "accumulate": 1, "context": 1, "evaluate_every": 1, "devices": 1, "nodes": 1,
    "epoch_steps": 1, "threads": 1, "stop_after": 1, "tails": 1, "size": 1, "lr": 0, "weight_decay": 0,
    "warmup": 0, "clip": 0, "padding": 0, "dropout": 0, "checkpoint_every": 0, "ratio": 1,
}  # fmt: skip
_CHOICES = {name: get_args(kind) for name, kind in _TYPES.items() if get_origin(kind) is Literal}
EXECUTION = tuple(name for name, field in _FIELDS.items() if "execution" in field.metadata)


def check_field(name: str, known: Iterable[str] = _TYPES) -> None:
    if name not in known:
        raise unknown("field", name, known)


def checked(name: str, value: Any) -> Any:
    """``value`` as the field ``name`` takes it; a MistakeError says what that would be."""
    check_field(name)
    kind = _TYPES[name]
    if name in _CHOICES:
        with as_mistakes():
            check_choice(name, value, _CHOICES[name])
        return value
    alternatives = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value in (None, "none") and types.NoneType in alternatives:
        return None
    if float in alternatives and is_short_number(value):
        return float(value)
    if type(value) in alternatives and (type(value) is not int or abs(value) < 2**63):
        return value
    is_row = get_origin(kind) is tuple and isinstance(value, list | tuple)
    if is_row and len(value) == len(get_args(kind)) and all(map(is_short_number, value)):
        return tuple(map(float, value))
    raise MistakeError(f"{name} must be {_in_words(kind)}, got {value!r}")


def is_short_number(value: Any) -> bool:
    """Neither true nor false, and if whole, of 64 bits."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _in_words(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word",
             types.NoneType: "none"}  # fmt: skip
    alternatives = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return " or ".join(words.get(each, f"a list of {len(get_args(each))} numbers") for each in alternatives)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "+".join(map(_short, value)) if isinstance(value, tuple) else str(value)


def get_recipe(name: str) -> Recipe:
    """A ready recipe by its name."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]


# For text the paper's table 3; its perplexities are of the test set, after the last epoch.
_GPT2 = Recipe(
    "gpt2-wikitext103", "wikitext-103", "gpt2-small", activation="gelu",
    epochs=20, batch=32, lr=6e-4, weight_decay=0.1, schedule="warmup-linear",
    checkpoint_every=900.0,
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
