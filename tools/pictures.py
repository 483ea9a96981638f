"""The pictures of the README and of the documentation: python tools/pictures.py FOLDER [NAME ...]"""

from __future__ import annotations

import argparse
import csv
import functools
import pathlib
import re
import sys
import tempfile
import typing
from collections.abc import Callable
from typing import Any

import torch
from matplotlib import pyplot
from torch import Tensor
from torch.nn import functional as F

import iglu
from iglu.formulas import EXACT
from iglu_lab import compare
from iglu_lab.comparing.output import forest_figure
from iglu_lab.models.gpt2 import GPT2, GPT2Config
from iglu_lab.report.comparisons import all_tasks
from iglu_lab.report.content import ComparedTask, Difference
from iglu_lab.report.figures.measured import measured_figures
from iglu_lab.report.figures.render import draw
from iglu_lab.report.gather import gather
from iglu_lab.stats.style import BLACK, BLUE, GREEN, ORANGE, OTHER, VERMILION, line, pictures
from iglu_lab.storage import RESULTS

Function = Callable[[Tensor], Tensor]


def function_picture() -> Any:
    x = torch.linspace(-6, 4, 1001, dtype=torch.float64)
    figure, axes = pyplot.subplots(figsize=(7.2, 3.6))
    axes.plot(x, F.relu(x), label="ReLU", **line("relu"))
    axes.plot(x, F.gelu(x), label="GELU", **(line("gelu") | {"linestyle": ":"}))
    for sigma in (0.1, 0.5, 1.0, 5.0):
        axes.plot(x, iglu.iglu(x, sigma), label=f"IGLU, $\\sigma$ = {sigma:g}", **line(f"iglu:{sigma:g}"))
    axes.set(xlabel="x", ylim=(-2, 4), xlim=(-6, 4))
    axes.legend()
    return figure


def error_picture() -> Any:
    """The relative error of the gradient in the negative tail, of the direct formula and of this library: the
    worst in each of many short intervals."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4.0))
    for dtype, colors in ((torch.float32, (VERMILION, BLUE)), (torch.bfloat16, (ORANGE, GREEN))):
        u = torch.logspace(0, 5, 20_000, dtype=torch.float64).to(dtype)
        truth = EXACT.df_dx(-u.double(), 1.0)
        direct = _gradient(lambda x: x * EXACT.textbook_gate(x, 1.0), -u)
        ours = _gradient(functools.partial(iglu.iglu, sigma=1.0), -u)
        whose = ((direct, "textbook formula", "-"), (ours, "this library", "--"))
        for color, (slope, who, style) in zip(colors, whose, strict=True):
            error = (slope.double() / truth - 1).abs()
            middles, worst = u.double().view(100, -1).mean(1), error.view(100, -1).amax(1)
            label = f"{who}, {str(dtype).removeprefix('torch.')}"
            axes.plot(middles, worst, style, color=color, linewidth=1.6, label=label)
    axes.axhline(1, color=BLACK, linewidth=0.7)
    axes.annotate("relative error 100%", (9e4, 0.3), fontsize=8, ha="right")
    axes.set(xscale="log", yscale="log", xlim=(1, 1e5), ylim=(1e-8, 1e8))
    axes.set(xlabel=r"$-\sigma x$", ylabel="relative error of the gradient")
    axes.legend()
    return figure


def compare_picture() -> Any:
    """The forest plot of the example docs/examples/compare_digits.py."""
    sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "docs/examples"))
    names = ["relu", "gelu", "silu", "iglu:5"]
    with tempfile.TemporaryDirectory() as folder:
        work = "compare_digits:train"
        result = compare(work, names, metric="acc", seeds=5, margin=0.5, jobs=2, threads=1, out=folder)
    return draw(forest_figure(result, result.compared))


_FOREST = {  # activation and reference: color and marker
    ("iglu:5", "relu"): (BLUE, "o"),
    ("iglu:5", "gelu"): (BLUE, "D"),
    ("iglu:0.5", "relu"): (VERMILION, "o"),
    ("iglu:0.5", "gelu"): (VERMILION, "D"),
}


def forest_picture() -> Any:
    """sigma = 5 and sigma = 0.5 compared with ReLU and GELU on every planned task; right is better."""
    tasks = [task for task in all_tasks(gather([RESULTS / "evidence"])) if task.grid]
    panels = {
        "points of accuracy": [task for task in tasks if task.metric == "test_acc"],
        "per cent of perplexity": [task for task in tasks if task.metric == "perplexity"],
    }
    figure, grid = pyplot.subplots(
        2, 1, figsize=(8, 7.2), height_ratios=[len(chosen) + 0.8 for chosen in panels.values()]
    )
    for axes, (unit, chosen) in zip(grid, panels.items(), strict=True):
        for place, task in enumerate(chosen):
            _forest_line(axes, place, task)
        axes.axvline(0, color=BLACK, linewidth=0.9)
        names = [_forest_name(task) for task in chosen]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        for place in range(1, len(names)):
            axes.axhline(place - 0.5, color="#E5E5E5", linewidth=0.8)
        axes.set_xlabel(f"difference in {unit}      better \N{RIGHTWARDS ARROW}")
    labels = {
        "iglu:5": r"IGLU, $\sigma$ = 5",
        "iglu:0.5": r"IGLU, $\sigma$ = 0.5",
        "relu": "ReLU",
        "gelu": "GELU",
    }
    for (name, reference), (color, marker) in _FOREST.items():
        sigma = name.partition(":")[2]
        text = rf"IGLU, $\sigma$ = {sigma}, minus {labels[reference]}"
        grid[0].plot([], [], marker, color=color, markersize=5, label=text)
    handles, texts = grid[0].get_legend_handles_labels()
    title = "mean and 95% interval, paired by seed; filled: significant after Holm's correction"
    figure.legend(
        handles, texts, loc="outside lower center", ncols=2, fontsize=8.5, title=title, title_fontsize=8.5
    )
    return figure


def _forest_line(axes: Any, place: int, task: ComparedTask) -> None:
    """The four comparisons of a task, one below the other."""
    for number, ((name, reference), (color, marker)) in enumerate(_FOREST.items()):
        one = next((one for one in task.differences_to(reference) if one.activation == name), None)
        if one is not None:
            value, low, high = _forest_values(one)
            y = place + 0.19 * (number - 1.5)
            axes.plot([low, high], [y, y], color=color, linewidth=1.4)
            face = color if one.category in ("better", "worse") else "white"
            axes.plot(value, y, marker, color=color, markersize=4.5, markerfacecolor=face)


def _forest_values(one: Difference) -> tuple[float, float, float]:
    """Value and interval, signed so that above 0 is better; perplexities in percent of the reference's."""
    scale = 100 / one.reference_mean if one.metric == "perplexity" else 1.0
    return one.gain.value * scale, one.gain.low * scale, one.gain.high * scale


_MODELS = {"resnet8": "ResNet-8", "vit-mini": "ViT", "gpt2-mini": "GPT-2 mini", "gpt2-nano": "GPT-2 nano"}
_DATA = {"cifar10": "CIFAR-10", "digits": "digits", "wikitext-2": "WikiText-2", "python": "Python reference"}


def _forest_name(task: ComparedTask) -> str:
    setting = next(iter(task.samples.values())).setting
    ratio = f" {setting.ratio:g}:1" if setting.ratio > 1 else ""
    norm = "" if setting.norm else ", no norm."
    return f"{_MODELS[setting.model]}, {_DATA[setting.dataset]}{ratio}{norm}"


def report_picture(key: str) -> Any:
    """A figure of the report, from the evidence only."""
    figures = measured_figures(gather([RESULTS / "evidence"]), ())
    return draw(next(figure for figure in figures if figure.key == key))


def derivatives_picture() -> Any:
    """First and second derivatives."""
    x = torch.linspace(-6, 6, 1201, dtype=torch.float64)
    figure, panels = pyplot.subplots(1, 2, figsize=(8.4, 3.4))
    shown: dict[str, tuple[str, Function]] = {
        "iglu": (r"IGLU, $\sigma$ = 1", functools.partial(iglu.iglu, sigma=1.0)),
        "iglu_approx": (
            r"IGLU-Approx, $\sigma$ = 1",
            functools.partial(iglu.iglu, sigma=1.0, approximate="rational"),
        ),
        "gelu": ("GELU", F.gelu),
        "silu": ("SiLU", F.silu),
    }
    for name, (label, function) in shown.items():
        first = functools.partial(_derivative, function)
        for axes, values in zip(panels, (_gradient(function, x), _gradient(first, x)), strict=True):
            axes.plot(x, values, label=label, **line(name))
    for axes, title in zip(panels, ("first derivative", "second derivative"), strict=True):
        axes.axhline(0, color=BLACK, linewidth=0.7)
        axes.set(xlabel="x", title=title, xlim=(-6, 6))
    panels[0].axhline(1, color=BLACK, linewidth=0.7)
    panels[1].legend(loc="upper right", fontsize=8)
    return figure


def log_picture() -> Any:
    """What the Lightning callback logs while a small GPT-2 with learnable sigmas trains on Python source."""
    with tempfile.TemporaryDirectory() as folder:
        rows = _watched_training(pathlib.Path(folder))
    steps = [int(row["step"]) for row in rows]
    figure, panels = pyplot.subplots(1, 2, figsize=(7.2, 3.2))
    titles = {"tails/alpha": "tail index", "sigma": r"learned $\sigma$"}
    for axes, (kind, title) in zip(panels, titles.items(), strict=True):
        layers = [key for key in rows[0] if key.startswith(f"{kind}/")]
        for number, (key, color) in enumerate(zip(layers, (BLUE, GREEN, ORANGE, VERMILION), strict=True)):
            axes.plot(steps, [float(row[key]) for row in rows], color=color, label=f"block {number}")
        axes.set(xlabel="step", title=title)
    gaussian = next(key for key in rows[0] if key.startswith("tails/gaussian/"))
    panels[0].plot(steps, [float(row[gaussian]) for row in rows], ":", color=BLACK, label="a Gaussian's")
    panels[0].set(yscale="log", yticks=(5, 10, 20, 50), yticklabels=("5", "10", "20", "50"))
    panels[0].legend(fontsize=8)
    return figure


def _watched_training(folder: pathlib.Path) -> list[dict[str, str]]:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger

    from iglu.integrations.lightning import TailCallback

    source = b"".join(pathlib.Path(each.__file__).read_bytes() for each in (argparse, typing))
    text = torch.frombuffer(bytearray(source), dtype=torch.uint8).long()
    blocks = text[: len(text) // 129 * 129].view(-1, 129)

    class Learner(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            sizes = GPT2Config(vocabulary=256, context=128, width=64, heads=2, layers=4)
            self.model = GPT2(sizes, lambda: iglu.create("iglu:learnable=1"))

        def training_step(self, tokens: Tensor, index: int) -> Tensor:
            return F.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(iglu.weight_decay_groups(self, 0.01), lr=3e-3)

    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(blocks, batch_size=16, shuffle=True)
    Trainer(
        max_steps=400, accelerator="cpu", devices=1, logger=CSVLogger(folder, name="", version=""),
        callbacks=[TailCallback(every=10)], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Learner(), data)  # fmt: skip
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _gradient(function: Function, x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf)[0]


def _derivative(function: Function, x: Tensor) -> Tensor:
    """The derivative, with its graph for another derivative."""
    return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]


def _page(name: str) -> dict[str, Any]:
    """The variables that the code of a docs page defines: the picture shows what the page computes."""
    text = (pathlib.Path(__file__).parent.parent / "docs" / f"{name}.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(block, namespace)
    return namespace


def flow_picture() -> Any:
    """A density fitted by a flow that contains IGLU."""
    page = _page("inverse")
    figure, axes = pyplot.subplots(figsize=(7.2, 3.4))
    axes.hist(page["data"], bins=60, density=True, color=OTHER, label="2,000 samples of a gamma distribution")
    y = torch.linspace(-2, 9, 1101, dtype=torch.float64)
    above = y[y > page["data"].min()]
    with torch.no_grad():
        density = page["flow"]().log_prob(above).exp()
    normal = torch.distributions.Normal(page["data"].mean(), page["data"].std())
    axes.plot(above, density, color=BLUE, linewidth=1.8, label="normal through IGLU, five parameters")
    axes.plot(y, normal.log_prob(y).exp(), color=VERMILION, linestyle="--", label="normal density")
    axes.set(xlim=(-2, 9), xlabel="y", ylabel="density")
    axes.legend()
    return figure


def convex_picture() -> Any:
    """A network that is convex by construction: level sets, and the second derivative along a line."""
    net = _page("inverse")["net"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.4, 3.6))
    side = torch.linspace(-3, 3, 121)
    across, up = torch.meshgrid(side, side, indexing="xy")
    with torch.no_grad():
        height = net(torch.stack([across, up], -1))
    left.contour(across, up, height, levels=14, cmap="viridis", linewidths=1)
    left.set(title="level sets", xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    line_of_points = torch.stack([torch.linspace(-6, 6, 601), torch.full((601,), 0.5)], -1)
    along = torch.tensor([1.0, 0.0]).expand_as(line_of_points)
    gradient = torch.func.grad(lambda x: net(x).sum())
    _, product = torch.func.jvp(gradient, (line_of_points,), (along,))
    right.plot(line_of_points[:, 0], product[:, 0].detach(), color=BLUE)
    right.set(title="second derivative along $x_2 = 0.5$", xlabel="$x_1$", yscale="log")
    return figure


DRAWN = {
    "function": function_picture,
    "error": error_picture,
    "forest": forest_picture,
    "tail": functools.partial(report_picture, "comparisons-tail"),
    "plasticity": functools.partial(report_picture, "tasks-plasticity-labels"),
    "derivatives": derivatives_picture,
    "log": log_picture,
    "flow": flow_picture,
    "convex": convex_picture,
    "compare": compare_picture,
}

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with pictures():
        for name in sys.argv[2:] or DRAWN:
            DRAWN[name]().savefig(folder / f"{name}.png", dpi=150)
            print(folder / f"{name}.png")
