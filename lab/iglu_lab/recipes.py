"""Recipes: what determines the numbers of a run, in one frozen dataclass, and the paper's recipes by name.

For a new experiment, change a recipe: ``RECIPES["resnet20-cifar100"].replace(activation="iglu:5", seed=3)``.
*Execution* fields say how a run is executed, not what it computes: a run may be resumed with other values.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from iglu import zoo
from iglu.functional import check_choice
from iglu_lab.data.augment import Augmentation, Jitter
from iglu_lab.data.sets import CONTINUAL_SETS, IMAGE_SETS
from iglu_lab.data.text import check_tokenizer
from iglu_lab.errors import IMPORT_HINT, UserError, as_user_errors, unknown

FORMAT = 3  # of recipe.json

# Format 2 had other names for some fields.  Folder names keep them, so that runs of both formats are found.
_FORMAT_2 = {
    "epoch_steps": "steps_per_epoch", "batch": "batch_size", "accumulate": "gradient_accumulation",
    "decay_shapes": "decay_activations", "warmup": "warmup_ratio", "clip": "max_grad_norm",
    "size": "image_size", "jitter": "color_jitter", "evaluate": "eval_split", "tails": "tails_every",
}  # fmt: skip
_FOLDER_WORDS = {new: old for old, new in _FORMAT_2.items()}


def _execution(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"execution": True})


def _only(kind: str, default: Any) -> Any:
    """A field of runs on one kind of data only."""
    return dataclasses.field(default=default, metadata={"kind": kind})


@dataclass(frozen=True)
class Recipe:
    """One run.  The defaults are those of the paper's vision runs.

    Args:
        name: Name of the experiment in folders and tables.
        dataset: cifar10, cifar100, digits, digits-random-labels, digits-permuted-pixels, python,
            wikitext-103, wikitext-2, or the path of a text in the data folder.
        model: Model name (resnet20, vit-tiny, gpt2-small ...; all are in iglu_lab.training.workloads.MODELS).
        activation: Name of the activation: relu, iglu:5, iglu:learnable=5 ... A learnable sigma is trained as
            in the paper: unconstrained and with weight decay. To train it as iglu.IGLU does: --constrain
            --no-decay-activations.
        norm: Use normalization layers (batch norm or layer norm, depending on the model).
        constrain: Train the logarithm of a learnable sigma, as iglu.IGLU does. The paper trained sigma
            itself.
        seed: Random seed of weights, data order, augmentation and dropout.
        epochs: Number of epochs (length of the learning-rate schedule). For a sequence of tasks: number of
            rows of metrics.
        steps_per_epoch: Maximum optimizer steps per epoch; None is one pass over the data.
        batch_size: Global batch size, in images or blocks of text, over all devices.
        gradient_accumulation: Gradient-accumulation steps: micro-batches per optimizer step.
        lr: Peak learning rate of AdamW, after any warmup.
        weight_decay: Weight decay of AdamW, for all parameters unless decay_activations is off.
        decay_activations: Apply weight decay to the parameters of activations (a learnable sigma) too, as in
            the paper.
        schedule: Learning-rate schedule. cosine: decay to 0, updated per epoch; warmup-linear: linear warmup,
            then linear decay to 0, updated per step.
        warmup_ratio: Fraction of all steps used for the warmup of warmup-linear.
        max_grad_norm: Maximum gradient norm; None disables clipping.
        ratio: Imbalance ratio: size of the largest class / size of the smallest. Above 1, the set is
            long-tailed.
        profile: Class sizes of a long-tailed set. exponential: decreasing from class to class; step: half of
            the classes large, the others small.
        subset_seed: Random seed of the long-tailed subset, the same for every run, as in the paper; None uses
            ``seed``.
        subset: Long-tailed subset. seeded: drawn with subset_seed; authors: the subset of the authors' runs.
        class_weights: Weight the training loss of each class by 1 / class size.
        image_size: Resize images to this height and width in pixels.
        padding: Black pixels added on each side before the random crop of training images.
        flip: Mirror training images left to right at random.
        color_jitter: Largest random change of brightness, contrast, saturation and hue.
        task_epochs: Passes over the data of each task of a sequence.
        tasks_per_epoch: Tasks of a sequence per row of metrics.
        context: Length of a block of text, in tokens.
        tokenizer: bytes; gpt2 (BPE, from its two files in the data folder); gpt2:4096 (its first 4,096
            tokens).
        eval_split: Split of a text to evaluate on. Image sets have only test.
        dropout: Dropout probability of transformers.
        precision: float32, or mixed with a 16-bit type. 16-mixed needs a GPU.
        compile: Train the model through torch.compile.
        channels_last: Store images and feature maps in the channels-last memory format.
        threads: Number of CPU threads; None uses torch's default.
        stop_after: Stop after this many epochs of the full schedule.
        evaluate_every: Test the model every N epochs, and after the last epoch.
        tails_every: Log the tail index of each layer every N epochs, and after the last; None disables it.
        checkpoint_every: Seconds between checkpoints. One is always saved at the end.
        accelerator: Kind of device to train on: cpu, cuda, mps, or auto for the best available.
        devices: Devices (processes) per node. Under torchrun, the number that it started.
        nodes: Number of machines that train together, each with its own devices.
    """

    name: str
    dataset: str
    model: str
    activation: str = "relu"
    norm: bool = True
    constrain: bool = False
    seed: int = 0

    epochs: int = 200
    steps_per_epoch: int | None = None
    batch_size: int = 128
    gradient_accumulation: int = 1
    lr: float = 1e-3
    weight_decay: float = 1e-2
    decay_activations: bool = True
    schedule: Literal["cosine", "warmup-linear", "constant"] = "cosine"
    warmup_ratio: float = 0.05
    max_grad_norm: float | None = 1.0

    ratio: float = _only("images", 1.0)
    profile: Literal["exponential", "step"] = _only("images", "exponential")
    subset_seed: int | None = _only("images", 0)
    subset: Literal["seeded", "authors"] = _only("images", "seeded")
    class_weights: bool = _only("images", False)
    image_size: int | None = _only("images", None)
    padding: int = _only("images", 4)
    flip: bool = _only("images", True)
    color_jitter: tuple[float, float, float, float] = _only("images", (0.2, 0.2, 0.2, 0.1))
    task_epochs: int = _only("continual", 1)
    tasks_per_epoch: int = _only("continual", 1)
    context: int = _only("text", 1024)
    tokenizer: str = _only("text", "gpt2")
    eval_split: Literal["test", "valid"] = _only("text", "test")
    dropout: float = 0.1

    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    compile: bool = False
    channels_last: bool = _only("images", False)
    threads: int | None = _execution(None)
    stop_after: int | None = _execution(None)
    evaluate_every: int = _execution(1)
    tails_every: int | None = _execution(None)
    checkpoint_every: float = _execution(120.0)
    accelerator: str = _execution("auto")
    devices: int = _execution(1)
    nodes: int = _execution(1)

    def __post_init__(self) -> None:
        with as_user_errors():
            for name, choices in _CHOICES.items():
                check_choice(name, getattr(self, name), choices)
            check_tokenizer(self.tokenizer)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise UserError(f"{name} must be at least {least}, got {value}")
        if self.dropout > 1:
            raise UserError(f"dropout must be at most 1, got {self.dropout}")
        if self.seed >= 2**63:
            raise UserError(f"seed must be below 2**63, got {self.seed}")
        if self.subset == "authors" and self.subset_seed != 0:
            raise UserError(f"subset=authors needs subset_seed=0, got subset_seed={self.subset_seed}")
        # JSON turns a tuple into a list, which would make equal recipes differ.
        object.__setattr__(self, "color_jitter", tuple(self.color_jitter))
        # An unused field would still change the folder, as if it were another experiment.
        for name, field in _FIELDS.items():
            if not self._has(field) and getattr(self, name) != field.default:
                raise UserError(
                    f"{name} is a field of {field.metadata['kind']}, and {self.dataset} on {self.model} is "
                    f"{self.kind}"
                )

    @property
    def kind(self) -> str:
        """ "images", "continual" (a sequence of tasks), "text", or empty for unknown data and models."""
        if self.dataset in IMAGE_SETS:
            return "images"
        if self.dataset in CONTINUAL_SETS:
            return "continual"
        return "text" if self.model.startswith("gpt2") else ""

    def _has(self, field: dataclasses.Field[Any]) -> bool:
        """Whether a run on this kind of data has the field."""
        return field.metadata.get("kind", self.kind) == self.kind or not self.kind

    def replace(self, **changes: Any) -> Recipe:
        """This recipe with some fields changed."""
        if "activation" in changes:
            with as_user_errors():
                zoo.parse(changes["activation"])
        return dataclasses.replace(self, **{name: checked(name, value) for name, value in changes.items()})

    @property
    def last_epoch(self) -> int:
        """The epoch after which training ends."""
        return self.epochs if self.stop_after is None else min(self.epochs, self.stop_after)

    @property
    def subset_draw(self) -> int:
        """The random seed of the long-tailed subset."""
        return self.seed if self.subset_seed is None else self.subset_seed

    @property
    def augmentation(self) -> Augmentation:
        return Augmentation(self.image_size, self.padding, self.flip, Jitter(*self.color_jitter))

    @property
    def folder_name(self) -> str:
        """Name, activation, every difference from the named recipe, seed; valid on every file system."""
        changed = [f"{_FOLDER_WORDS.get(name, name)}={text}" for name, text in self.differences().items()]
        parts = [self.name, self.activation, *changed, f"seed={self.seed}"]
        return "_".join("".join(c if c.isalnum() or c in ".=+-" else "-" for c in part) for part in parts)

    def differences(self) -> dict[str, str]:
        """The fields that differ from the recipe of that name, without activation and seed, as text."""
        base = RECIPES.get(self.name) or Recipe(self.name, self.dataset, self.model)
        return {
            name: _short(value)
            for name, value in self.identity().items()
            if name not in ("name", "activation", "seed") and value != getattr(base, name)
        }

    def identity(self) -> dict[str, Any]:
        """The fields that decide what is computed."""
        return {name: value for name, value in self._fields().items() if name not in EXECUTION}

    def as_dict(self) -> dict[str, Any]:
        """The content of recipe.json: the format and the fields of this kind of data."""
        return {"format": FORMAT, **self._fields()}

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name, field in _FIELDS.items() if self._has(field)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """Read what ``as_dict`` wrote, in this format or format 2; raise UserError for an invalid field."""
        fields = dict(content)
        number = fields.pop("format", None)
        if number not in (2, FORMAT):
            raise UserError(f"The recipe has format {number!r}; this version of iglu reads 2 and {FORMAT}")
        if number == 2:
            fields = {_FORMAT_2.get(name, name): value for name, value in fields.items()}
        read = {name: checked(name, value) for name, value in fields.items()}
        missing = [name for name in ("name", "dataset", "model") if name not in read]
        if missing:
            raise UserError(f"The recipe has no {', '.join(missing)}")
        return cls(**read)


_FIELDS = {field.name: field for field in dataclasses.fields(Recipe)}
_TYPES: dict[str, Any] = get_type_hints(Recipe)
_LEAST = {
    **dict.fromkeys(("lr", "weight_decay", "warmup_ratio", "max_grad_norm", "padding", "dropout",
                     "checkpoint_every", "seed", "subset_seed"), 0),
    **dict.fromkeys(("epochs", "steps_per_epoch", "batch_size", "gradient_accumulation", "ratio",
                     "image_size", "task_epochs", "tasks_per_epoch", "threads", "stop_after",
                     "evaluate_every", "tails_every", "devices", "nodes"), 1),
    "context": 2,  # the last token is only predicted
}  # fmt: skip
_CHOICES = {name: get_args(kind) for name, kind in _TYPES.items() if get_origin(kind) is Literal}
EXECUTION = tuple(name for name, field in _FIELDS.items() if "execution" in field.metadata)


# Other common names of fields.
_ALSO_CALLED = _FORMAT_2 | {
    "learning_rate": "lr", "wd": "weight_decay", "num_epochs": "epochs", "block_size": "context"
}  # fmt: skip


def check_field(name: str, known: Iterable[str] = _TYPES) -> None:
    if name not in known:
        other = _ALSO_CALLED.get(name, "")
        if other in known:
            raise UserError(f"Unknown field {name!r}. Did you mean {other!r}?")
        raise unknown("field", name, known)


def checked(name: str, value: Any) -> Any:
    """Return ``value`` as the type of the field ``name``; raise UserError if it is invalid."""
    check_field(name)
    if name in _CHOICES:
        with as_user_errors():
            check_choice(name, value, _CHOICES[name])
        return value
    kind = _TYPES[name]
    alternatives = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value in (None, "none") and types.NoneType in alternatives:
        return None
    if float in alternatives and is_plain_number(value):
        return float(value)
    if type(value) in alternatives and (type(value) is not int or is_plain_number(value)):
        return value
    numbers = len(get_args(kind)) if get_origin(kind) is tuple else 0
    is_row = isinstance(value, list | tuple) and len(value) == numbers > 0
    if is_row and all(map(is_plain_number, value)):
        return tuple(map(float, value))
    texts = {int: "an integer", float: "a number", bool: "true or false", str: "a string",
             types.NoneType: "none"}  # fmt: skip
    expected = " or ".join(texts.get(each, f"a list of {numbers} numbers") for each in alternatives)
    raise UserError(f"{name} must be {expected}, got {value!r}")


def is_plain_number(value: Any) -> bool:
    """Whether it is a float, or an int (not a bool) of 64 bits."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "+".join(map(_short, value)) if isinstance(value, tuple) else str(value)


class _Unregistered(zoo.Spec):
    @property
    def label(self) -> str:
        return self.name


def spec_of(activation: str) -> zoo.Spec:
    """Parse the activation of a stored run.  An unregistered activation keeps its name."""
    try:
        return zoo.parse(activation)
    except ValueError:
        return _Unregistered(activation)


def get_recipe(name: str) -> Recipe:
    """Return the predefined recipe of that name."""
    if name not in RECIPES:
        raise UserError(f"{unknown('recipe', name, RECIPES)} {IMPORT_HINT}")
    return RECIPES[name]


# Table 3 of the paper: perplexity on the test set after the last epoch.
_GPT2 = Recipe(
    "gpt2-wikitext103", "wikitext-103", "gpt2-small", activation="gelu",
    epochs=20, batch_size=32, lr=6e-4, weight_decay=0.1, schedule="warmup-linear",
    checkpoint_every=900.0,
)  # fmt: skip

_DIGITS = Recipe(
    "digits", "digits", "resnet8", epochs=12, batch_size=64, lr=4e-3, padding=1, flip=False,
    color_jitter=(0.0, 0.0, 0.0, 0.0),
)  # fmt: skip

# Loss of plasticity: 50 tasks with random labels, 500 with permuted pixels.
_TASKS = Recipe(
    "plasticity-labels", "digits-random-labels", "mlp", norm=False, epochs=50, task_epochs=60, batch_size=32,
    weight_decay=0.0, schedule="constant", max_grad_norm=None,
)  # fmt: skip

_PREDEFINED = (
    Recipe("resnet20-cifar10", "cifar10", "resnet20"),
    Recipe("resnet20-cifar100", "cifar100", "resnet20"),
    Recipe("vit-cifar10", "cifar10", "vit-tiny", activation="gelu", image_size=224),
    Recipe("vit-cifar100", "cifar100", "vit-tiny", activation="gelu", image_size=224),
    _GPT2,
    Recipe("resnet20-cifar10-lt", "cifar10", "resnet20", ratio=100.0, class_weights=True),
    Recipe("resnet20-cifar100-lt", "cifar100", "resnet20", ratio=100.0, class_weights=True, subset="authors"),
    # Smaller recipes, for a machine without a GPU.
    Recipe("vit-mini-cifar10", "cifar10", "vit-mini", activation="gelu", epochs=20),
    _GPT2.replace(name="gpt2-mini-wikitext2", dataset="wikitext-2", model="gpt2-mini", context=128,
              epochs=10, batch_size=32, lr=1e-3),
    # On data that is installed with the package.
    _DIGITS,
    _DIGITS.replace(name="digits-lt", ratio=20.0, class_weights=True),
    _TASKS,
    _TASKS.replace(name="plasticity-pixels", dataset="digits-permuted-pixels", task_epochs=1,
              tasks_per_epoch=10, batch_size=16),
    _GPT2.replace(name="gpt2-python", dataset="python", model="gpt2-nano", tokenizer="bytes", context=64,
              epochs=3, batch_size=32, lr=3e-3, dropout=0.0, checkpoint_every=120.0),
)  # fmt: skip

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _PREDEFINED}
