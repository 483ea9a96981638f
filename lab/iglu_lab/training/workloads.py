"""Workloads: data, model, batches and metrics for images, text and task sequences.

To add a model, add a row to ``MODELS``; to add an image set, a row to ``IMAGE_SETS`` in iglu_lab.data.sets.
Text needs no row: the dataset is a path in the data folder.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iglu import zoo
from iglu.functional import check_choice
from iglu_lab.data import augment, cache_folder, data_folder, text
from iglu_lab.data.longtail import SHOTS, class_weights, long_tailed, shot_of
from iglu_lab.data.sets import CONTINUAL_SETS, IMAGE_SETS
from iglu_lab.errors import IMPORT_HINT, UserError, unknown
from iglu_lab.models import MakeActivation
from iglu_lab.models.gpt2 import GPT2, GPT2Config
from iglu_lab.models.mlp import MLPConfig, mlp
from iglu_lab.models.resnet import resnet
from iglu_lab.models.vit import ViT, ViTConfig
from iglu_lab.recipes import Recipe
from iglu_lab.runs.folder import Run
from iglu_lab.training.checkpoint import NoCheckpointError, newest_checkpoint
from iglu_lab.training.seeds import derive_seed

# Called with the number of classes, make_activation, and whether to use normalization.
MakeImageModel = Callable[[int, MakeActivation, bool], nn.Module]

# A function, or a configuration with some fields set by the data.  Models that are not in the paper are for
# small machines.
Model = MakeImageModel | ViTConfig | GPT2Config | MLPConfig
MODELS: dict[str, Model] = {
    **{f"resnet{depth}": functools.partial(resnet, depth) for depth in (8, 20, 32, 44, 56)},
    "vit-tiny": ViTConfig(),
    "vit-mini": ViTConfig(image=32, patch=4, width=96, heads=3, layers=4),
    "gpt2-small": GPT2Config(),
    "gpt2-mini": GPT2Config(width=128, heads=4, layers=4),
    "gpt2-nano": GPT2Config(width=64, heads=2, layers=2),
    "mlp": MLPConfig(),
}


class Score(NamedTuple):
    """Sums over a batch, on the device."""

    loss: Tensor  # weighted as in training
    correct: Tensor


class Workload(ABC):
    """The data and the model of a recipe."""

    unit: str  # of the training speed
    units_per_sample: int
    samples: int  # in the training set
    probe_batch_size: int  # batch size of the tail probe, as in the paper: the tail index depends on it

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe
        self.device = device

    @abstractmethod
    def make_model(self) -> nn.Module:
        """A new model with random weights, on the CPU."""

    @abstractmethod
    def train_batch(self, rows: Tensor, part: slice, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of ``part`` of the batch ``rows``.  Random numbers are drawn for the complete
        batch, so that the result does not depend on the number of processes."""

    @abstractmethod
    def weight(self, rows: Tensor) -> float:
        """The divisor of the summed loss of these training samples."""

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> Score:
        """The summed training loss and the number of correct predictions."""

    def test_batches(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the test set, in batches."""
        return self._test_batches(
            slice(rank, None, world), max(self.recipe.batch_size // self.recipe.gradient_accumulation, 1)
        )

    def probe_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The test set, in batches for the tail probe."""
        return self._test_batches(slice(None), self.probe_batch_size)

    @abstractmethod
    def _test_batches(self, rows: slice, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """These samples of the test set, in batches."""

    @abstractmethod
    def evaluate(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sums over a test batch, to be added over batches and processes."""

    @abstractmethod
    def test_metrics(self, sums: list[float]) -> dict[str, float]:
        """Test metrics from these sums."""

    @abstractmethod
    def train_metrics(self, loss: float, weight: float, correct: float, samples: int) -> dict[str, float]:
        """Training metrics from the sums of an epoch."""

    def make_activation(self) -> nn.Module:
        """Create the activation of the recipe."""
        spec = zoo.parse(self.recipe.activation)
        return zoo.create(
            self.recipe.activation, **({"constrain": self.recipe.constrain} if spec.learnable else {})
        )


class ImageWorkload(Workload):
    unit = "images"
    units_per_sample = 1
    probe_batch_size = 128
    # Whether the last test batches allow the paper's long-tail "accuracy": the mean over batches of 128, in
    # file order, of the mean over the classes in a batch.
    _has_papers_batches = False

    def __init__(self, recipe: Recipe, device: torch.device, root: Path) -> None:
        super().__init__(recipe, device)
        data = IMAGE_SETS[recipe.dataset](root)
        if recipe.ratio > 1:
            data = long_tailed(data, recipe.ratio, recipe.profile, recipe.subset_draw, recipe.subset)
        self.counts = data.counts()
        weights = class_weights(self.counts) if recipe.class_weights else torch.ones(data.classes)
        self.sample_weights = weights[data.train.labels]  # on the CPU, like the row numbers
        self.samples = len(data.train.labels)
        self.classes = data.classes
        self.data = data._replace(train=data.train.to(device), test=data.test.to(device))
        self.weights = weights.to(device)
        self.mean = torch.tensor(data.mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(data.std, device=device).view(-1, 1, 1)

    def make_model(self) -> nn.Module:
        model = MODELS[self.recipe.model]
        assert not isinstance(model, GPT2Config | MLPConfig)
        if isinstance(model, ViTConfig):
            image = self.recipe.image_size or self.data.train.pixels.shape[-1]
            config = dataclasses.replace(model, image=image, dropout=self.recipe.dropout)
            model = functools.partial(ViT, config)
        return model(self.classes, self.make_activation, self.recipe.norm)

    def train_batch(self, rows: Tensor, part: slice, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        draws = augment.draw(len(rows), self.recipe.augmentation, generator).take(part).to(self.device)
        pixels, labels = self.data.train.take(rows[part].to(self.device))
        return self._normalize(augment.apply(pixels, draws, self.recipe.augmentation)), labels

    def weight(self, rows: Tensor) -> float:
        return self.sample_weights[rows].sum().item()

    def score(self, outputs: Tensor, targets: Tensor) -> Score:
        loss = F.cross_entropy(outputs, targets, self.weights, reduction="sum")
        return Score(loss, (outputs.detach().argmax(1) == targets).sum())

    def _test_batches(self, rows: slice, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        self._has_papers_batches = size == 128 and (rows.step or 1) == 1
        pixels, labels = (values[rows] for values in self.data.test)
        for chunk, targets in zip(torch.split(pixels, size), torch.split(labels, size), strict=True):
            images = augment.to_unit(chunk)
            if self.recipe.image_size is not None:
                images = augment.resize(images, self.recipe.image_size)
            yield self._normalize(images), targets

    def evaluate(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, the class-balanced accuracy of the batch, the number of batches (1), and per class the
        number of correct predictions, then of samples."""
        is_correct = outputs.argmax(1) == targets
        correct = torch.bincount(targets[is_correct], minlength=self.classes).float()
        counts = torch.bincount(targets, minlength=self.classes).float()
        is_present = counts > 0
        return torch.cat(
            [
                F.cross_entropy(outputs.float(), targets, reduction="sum").view(1),
                (correct[is_present] / counts[is_present]).mean().view(1),
                counts.new_ones(1),
                correct,
                counts,
            ]
        )

    def test_metrics(self, sums: list[float]) -> dict[str, float]:
        loss, balanced, batches, *by_class = sums
        correct, counts = torch.tensor(by_class, dtype=torch.float64).view(2, self.classes)
        metrics = {
            "test_loss": loss / counts.sum().item(),
            "test_acc": 100 * (correct.sum() / counts.sum()).item(),
        }
        if self.recipe.ratio > 1:
            if self._has_papers_batches:
                metrics["test_acc_batch_balanced"] = 100 * balanced / batches
            shots = shot_of(self.counts)
            for index, shot in enumerate(SHOTS):
                is_in = shots == index
                if is_in.any():
                    metrics[f"test_acc_{shot}"] = 100 * (correct[is_in].sum() / counts[is_in].sum()).item()
        return metrics

    def train_metrics(self, loss: float, weight: float, correct: float, samples: int) -> dict[str, float]:
        return {"train_loss": loss / weight, "train_acc": 100 * correct / samples}

    def _normalize(self, images: Tensor) -> Tensor:
        images = (images - self.mean).div_(self.std)
        return images.contiguous(memory_format=torch.channels_last) if self.recipe.channels_last else images


class TextWorkload(Workload):
    """Blocks of text, with next-token prediction."""

    unit = "tokens"
    probe_batch_size = 16

    def __init__(self, recipe: Recipe, device: torch.device, root: Path) -> None:
        super().__init__(recipe, device)
        self.data = text.load(recipe.dataset, root, recipe.tokenizer, cache_folder())
        self.lengths = self.data.lengths.to(device)
        self.train = self.data.blocks("train", recipe.context)
        self.test = self.data.blocks(recipe.eval_split, recipe.context)
        self.samples = len(self.train)
        self.units_per_sample = recipe.context - 1

    def make_model(self) -> nn.Module:
        size = MODELS[self.recipe.model]
        assert isinstance(size, GPT2Config)
        config = dataclasses.replace(
            size, vocabulary=self.data.vocabulary, context=self.recipe.context, dropout=self.recipe.dropout
        )
        return GPT2(config, self.make_activation, self.recipe.norm)

    def train_batch(self, rows: Tensor, part: slice, seed: int) -> tuple[Tensor, Tensor]:
        return self._shifted(self.train[rows[part]])

    def weight(self, rows: Tensor) -> float:
        return float(len(rows) * self.units_per_sample)

    def score(self, outputs: Tensor, targets: Tensor) -> Score:
        loss = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
        return Score(loss, loss.new_zeros(()))  # accuracy would cost a pass over 50,257 logits

    def _test_batches(self, rows: slice, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for blocks in torch.split(self.test[rows], size):
            yield self._shifted(blocks)

    def evaluate(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs.float().flatten(0, 1), targets.flatten(), reduction="sum")
        counts = (targets.numel(), self.lengths[targets].sum().item())
        return torch.stack([loss, *map(loss.new_tensor, map(float, counts))])

    def test_metrics(self, sums: list[float]) -> dict[str, float]:
        """Perplexity is per token of the tokenizer; bits per byte are comparable between tokenizers."""
        total, tokens, length = sums
        loss = total / tokens
        return {
            "test_loss": loss,
            "perplexity": _exp(loss),
            "bits_per_byte": total / math.log(2) / length,
        }

    def train_metrics(self, loss: float, weight: float, correct: float, samples: int) -> dict[str, float]:
        return {"train_loss": loss / weight, "train_perplexity": _exp(loss / weight)}

    def _shifted(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        tokens = blocks.to(torch.int64).to(self.device)
        return tokens[:, :-1], tokens[:, 1:]


class ContinualWorkload(Workload):
    """A sequence of tasks on one set of images.  ``number`` is the current task."""

    unit = "images"
    units_per_sample = 1
    probe_batch_size = 128

    def __init__(self, recipe: Recipe, device: torch.device, root: Path) -> None:
        super().__init__(recipe, device)
        needed = {
            "gradient_accumulation": 1,
            "max_grad_norm": None,
            "precision": "32",
            "compile": False,
            "decay_activations": True,
        }
        for name, value in needed.items():
            if getattr(recipe, name) != value:
                raise UserError(
                    f"{recipe.name} needs {name}={value}: training on a sequence of tasks supports no "
                    f"other value, got {getattr(recipe, name)}"
                )
        self.images, self.labels, self.classes = CONTINUAL_SETS[recipe.dataset].images()
        self.samples = len(self.labels)
        self.number = recipe.last_epoch * recipe.tasks_per_epoch - 1

    def make_model(self) -> nn.Module:
        config = MODELS[self.recipe.model]
        assert isinstance(config, MLPConfig)
        sized = MLPConfig(config.hidden, self.images.shape[1], self.classes)
        return mlp(sized, self.make_activation)

    def data(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a task, a function of the seed and its number."""
        generator = torch.Generator().manual_seed(derive_seed(self.recipe.seed, "task", number))
        if CONTINUAL_SETS[self.recipe.dataset].has_new_labels:
            labels = torch.randint(self.classes, (self.samples,), generator=generator)
            return self.images.to(self.device), labels.to(self.device)
        order = torch.randperm(self.images.shape[1], generator=generator)
        return self.images[:, order].to(self.device), self.labels.to(self.device)

    def train_batch(self, rows: Tensor, part: slice, seed: int) -> tuple[Tensor, Tensor]:
        inputs, labels = self.data(self.number)
        return inputs[rows[part]], labels[rows[part]]

    def weight(self, rows: Tensor) -> float:
        return float(len(rows))

    def score(self, outputs: Tensor, targets: Tensor) -> Score:
        is_correct = outputs.detach().argmax(1) == targets
        return Score(F.cross_entropy(outputs, targets, reduction="sum"), is_correct.sum())

    def _test_batches(self, rows: slice, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, labels = (torch.split(values[rows], size) for values in self.data(self.number))
        yield from zip(inputs, labels, strict=True)

    def evaluate(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([*self.score(outputs, targets), torch.tensor(len(targets), device=self.device)])

    def test_metrics(self, sums: list[float]) -> dict[str, float]:
        loss, correct, samples = sums
        return {"task_loss": loss / samples, "task_acc": 100 * correct / samples}

    def train_metrics(self, loss: float, weight: float, correct: float, samples: int) -> dict[str, float]:
        return {"train_loss": loss / weight, "task_acc": 100 * correct / samples}


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def check_names(recipe: Recipe) -> None:
    """Check that model and activation are registered; those of a stored run may not be."""
    try:
        check_choice("model", recipe.model, MODELS)
        zoo.parse(recipe.activation)
    except ValueError as error:
        is_known = recipe.model in MODELS and recipe.activation.partition(":")[0] in zoo.ZOO
        raise UserError(str(error) if is_known else f"{error} {IMPORT_HINT}") from error


def load_workload(
    recipe: Recipe, data: Path | str | None = None, device: torch.device | None = None
) -> Workload:
    """Load the data of a recipe from the folder ``data`` (see :func:`iglu_lab.data.data_folder`)."""
    check_names(recipe)
    model = MODELS[recipe.model]
    kind: type[TextWorkload | ContinualWorkload | ImageWorkload]
    if isinstance(model, GPT2Config):
        kind, sets = TextWorkload, None
    elif isinstance(model, MLPConfig):
        kind, sets = ContinualWorkload, list(CONTINUAL_SETS)
    else:
        kind, sets = ImageWorkload, list(IMAGE_SETS)
    if sets is None and recipe.dataset in (*IMAGE_SETS, *CONTINUAL_SETS):
        raise UserError(f"{recipe.model} needs text, but {recipe.dataset} has images")
    if sets is not None and recipe.dataset not in sets:
        error = unknown(f"dataset for {recipe.model}, which needs images:", recipe.dataset, sets)
        raise UserError(f"{error} {IMPORT_HINT}")
    return kind(recipe, torch.device("cpu") if device is None else device, data_folder(data))


def load_model(run: Run, data: Path | str | None = None) -> nn.Module:
    """Load the model of a run from its newest valid checkpoint, in evaluation mode."""
    state, problems = newest_checkpoint(run.folder, run.recipe) if run.folder.is_dir() else (None, {})
    reasons = ". ".join(problems.values())
    if state is None:
        raise NoCheckpointError(f"No valid checkpoint in {run.folder}. {reasons}".rstrip())
    if problems:
        place = f"epoch {state['epoch'] + 1}, step {state['step']}"
        warnings.warn(f"{reasons}. Using the previous one, from {place}", stacklevel=2)
    model = load_workload(run.recipe, data).make_model()
    model.load_state_dict(state["model"])
    return model.eval()
