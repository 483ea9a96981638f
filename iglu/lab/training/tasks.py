"""What images and text differ in: data, model, batches and metrics.  The training loop knows neither.

A new model is a row of ``MODELS``; a new set of images is a row of ``IMAGE_SETS`` in iglu.lab.data.sets; text
needs none, a path in the data folder is enough.
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
from iglu.lab.data import augment, cache_folder, data_folder, text
from iglu.lab.data.longtail import SHOTS, class_weights, long_tailed, shot_of
from iglu.lab.data.sets import IMAGE_SETS
from iglu.lab.mistakes import MistakeError, as_mistakes, unknown
from iglu.lab.models import MakeActivation
from iglu.lab.models.gpt2 import GPT2, GPT2Config
from iglu.lab.models.resnet import resnet
from iglu.lab.models.vit import ViT, ViTConfig
from iglu.lab.recipes import Recipe
from iglu.lab.runs.folder import Run
from iglu.lab.training.checkpoint import newest_checkpoint

# Of images: called with the number of classes, make_activation, and whether there is normalisation.
MakeImageModel = Callable[[int, MakeActivation, bool], nn.Module]

# A network of images by what makes it, a transformer by its sizes, of which the data decides some.  Those
# the paper does not have are for small machines.
MODELS: dict[str, MakeImageModel | ViTConfig | GPT2Config] = {
    **{f"resnet{depth}": functools.partial(resnet, depth) for depth in (8, 20, 32, 44, 56)},
    "vit-tiny": ViTConfig(),
    "vit-mini": ViTConfig(image=32, patch=4, width=96, heads=3, layers=4),
    "gpt2-small": GPT2Config(),
    "gpt2-mini": GPT2Config(width=128, heads=4, layers=4),
    "gpt2-nano": GPT2Config(width=64, heads=2, layers=2),
}


class Score(NamedTuple):
    """Sums over a batch, on the device."""

    loss: Tensor  # weighted as in training
    correct: Tensor


class Task(ABC):
    """One recipe's data and model."""

    unit: str  # what the speed is counted in
    units_a_sample: int
    samples: int  # in the training set
    probed: int  # samples in a batch of the tail probe, as many as the paper's, since an index depends on it

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe
        self.device = device

    @abstractmethod
    def make_model(self) -> nn.Module:
        """A new model with random weights, on the CPU."""

    @abstractmethod
    def train_batch(self, rows: Tensor, part: slice, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of ``part`` of the batch of these training samples.  Everything random is
        drawn for the whole batch, so that it does not matter how many processes share it."""

    @abstractmethod
    def weight(self, rows: Tensor) -> float:
        """What the summed loss of these training samples is divided by."""

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> Score:
        """The summed training loss, and how many targets were met."""

    def test_batches(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the test set."""
        return self._test_batches(
            slice(rank, None, world), max(self.recipe.batch // self.recipe.accumulate, 1)
        )

    def probe_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The test set in batches of the tail probe."""
        return self._test_batches(slice(None), self.probed)

    @abstractmethod
    def _test_batches(self, rows: slice, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """These samples of the test set, in batches of that size."""

    @abstractmethod
    def evaluate(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sums of a test batch, to be added up over batches and processes."""

    @abstractmethod
    def test_metrics(self, sums: list[float]) -> dict[str, float]:
        """Sample means, from those sums."""

    @abstractmethod
    def train_metrics(self, loss: float, weight: float, correct: float, samples: int) -> dict[str, float]:
        """Sample means, from an epoch's sums."""

    def make_activation(self) -> nn.Module:
        """What the recipe asks for at every place of an activation."""
        spec = zoo.parse(self.recipe.activation)
        return zoo.create(
            self.recipe.activation, **({"constrain": self.recipe.constrain} if spec.learnable else {})
        )


class ImageTask(Task):
    unit = "images"
    units_a_sample = 1
    probed = 128

    def __init__(self, recipe: Recipe, device: torch.device, root: Path) -> None:
        super().__init__(recipe, device)
        data = IMAGE_SETS[recipe.dataset](root)
        if recipe.ratio > 1:
            data = long_tailed(data, recipe.ratio, recipe.profile, recipe.subset_draw)
        self.counts = data.counts()
        weights = class_weights(self.counts) if recipe.class_weights else torch.ones(data.classes)
        self.sample_weights = weights[data.train.labels]  # on the CPU, where rows are chosen
        self.samples = len(data.train.labels)
        self.classes = data.classes
        self.data = data._replace(train=data.train.to(device), test=data.test.to(device))
        self.weights = weights.to(device)
        self.mean = torch.tensor(data.mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(data.std, device=device).view(-1, 1, 1)

    def make_model(self) -> nn.Module:
        model = MODELS[self.recipe.model]
        assert not isinstance(model, GPT2Config)
        if isinstance(model, ViTConfig):
            image = self.recipe.size or self.data.train.pixels.shape[-1]
            config = dataclasses.replace(model, image=image, dropout=self.recipe.dropout)
            model = functools.partial(ViT, config)
        return model(self.classes, self.make_activation, self.recipe.norm)

    def train_batch(self, rows: Tensor, part: slice, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        draws = augment.draw(len(rows), self.recipe.augmentation, generator).take(part).to(self.device)
        pixels, labels = self.data.train.take(rows[part].to(self.device))
        return self._normalise(augment.apply(pixels, draws, self.recipe.augmentation)), labels

    def weight(self, rows: Tensor) -> float:
        return self.sample_weights[rows].sum().item()

    def score(self, outputs: Tensor, targets: Tensor) -> Score:
        loss = F.cross_entropy(outputs, targets, self.weights, reduction="sum")
        return Score(loss, (outputs.detach().argmax(1) == targets).sum())

    def _test_batches(self, rows: slice, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        pixels, labels = (values[rows] for values in self.data.test)
        for chunk, targets in zip(torch.split(pixels, size), torch.split(labels, size), strict=True):
            images = augment.to_unit(chunk)
            if self.recipe.size is not None:
                images = augment.resize(images, self.recipe.size)
            yield self._normalise(images), targets

    def evaluate(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, then for each class how many were right, then how many there were."""
        is_right = outputs.argmax(1) == targets
        return torch.cat(
            [
                F.cross_entropy(outputs.float(), targets, reduction="sum").view(1),
                torch.bincount(targets[is_right], minlength=self.classes).float(),
                torch.bincount(targets, minlength=self.classes).float(),
            ]
        )

    def test_metrics(self, sums: list[float]) -> dict[str, float]:
        right = torch.tensor(sums[1 : 1 + self.classes], dtype=torch.float64)
        there = torch.tensor(sums[1 + self.classes :], dtype=torch.float64)
        metrics = {
            "test_loss": sums[0] / there.sum().item(),
            "test_acc": 100 * (right.sum() / there.sum()).item(),
        }
        if self.recipe.ratio > 1:
            shots = shot_of(self.counts)
            for index, shot in enumerate(SHOTS):
                is_in = shots == index
                if is_in.any():
                    metrics[f"test_acc_{shot}"] = 100 * (right[is_in].sum() / there[is_in].sum()).item()
        return metrics

    def train_metrics(self, loss: float, weight: float, correct: float, samples: int) -> dict[str, float]:
        return {"train_loss": loss / weight, "train_acc": 100 * correct / samples}

    def _normalise(self, images: Tensor) -> Tensor:
        images = (images - self.mean).div_(self.std)
        return images.contiguous(memory_format=torch.channels_last) if self.recipe.channels_last else images


class TextTask(Task):
    """Blocks of text; inside each, every token is predicted from those before it."""

    unit = "tokens"
    probed = 16

    def __init__(self, recipe: Recipe, device: torch.device, root: Path) -> None:
        super().__init__(recipe, device)
        self.data = text.load(recipe.dataset, root, recipe.tokenizer, cache_folder())
        self.lengths = self.data.lengths.to(device)
        self.train = self.data.blocks("train", recipe.context)
        self.test = self.data.blocks(recipe.evaluate, recipe.context)
        self.samples = len(self.train)
        self.units_a_sample = recipe.context - 1

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
        return float(len(rows) * self.units_a_sample)

    def score(self, outputs: Tensor, targets: Tensor) -> Score:
        loss = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
        return Score(loss, loss.new_zeros(()))  # a pass over 50,257 logits for a metric nobody reads

    def _test_batches(self, rows: slice, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for blocks in torch.split(self.test[rows], size):
            yield self._shifted(blocks)

    def evaluate(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs.float().flatten(0, 1), targets.flatten(), reduction="sum")
        counts = (targets.numel(), self.lengths[targets].sum().item())
        return torch.stack([loss, *map(loss.new_tensor, map(float, counts))])

    def test_metrics(self, sums: list[float]) -> dict[str, float]:
        """Perplexity is of a tokenizer's own tokens; bits a byte compare between tokenizers."""
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


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def load_task(recipe: Recipe, data: Path | str | None = None, device: torch.device | None = None) -> Task:
    """The data and model of a recipe; ``data`` names the folder, as in :func:`iglu.lab.data.data_folder`."""
    with as_mistakes():
        check_choice("model", recipe.model, MODELS)
    is_images, reads_text = recipe.dataset in IMAGE_SETS, isinstance(MODELS[recipe.model], GPT2Config)
    if is_images and reads_text:
        raise MistakeError(f"{recipe.model} reads text, {recipe.dataset} holds images")
    if not is_images and not reads_text:
        raise unknown(f"dataset for {recipe.model}, which reads images:", recipe.dataset, IMAGE_SETS)
    kind = ImageTask if is_images else TextTask
    return kind(recipe, torch.device("cpu") if device is None else device, data_folder(data))


def load_model(run: Run, data: Path | str | None = None) -> nn.Module:
    """A run's model with the weights of its last checkpoint, in evaluation mode."""
    state, complaints = newest_checkpoint(run.folder, run.recipe)
    reasons = ". ".join(complaints.values())
    if state is None:
        raise FileNotFoundError(f"No sound checkpoint in {run.folder}. {reasons}".rstrip())
    if complaints:
        place = f"epoch {state['epoch'] + 1}, step {state['step']}"
        warnings.warn(f"{reasons}. Instead the one before is taken, from {place}", stacklevel=2)
    model = load_task(run.recipe, data).make_model()
    model.load_state_dict(state["model"])
    return model.eval()
