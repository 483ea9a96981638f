"""A probe as pictures: Hill plots, quantiles beside a Gaussian's and a Cauchy's, and a strip by depth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from iglu.lab.results.style import BLUE, GREEN, OTHER, VERMILION, pictures, save
from iglu.probing import Layer, Probe
from iglu.probing.table import Row

_PANELS = 12  # Hill and quantile plots of so many layers, spread over the depth


def draw(probe: Probe, rule: str, folder: Path) -> list[Path]:
    """Write all pictures that the layers allow, as PNG and SVG, with sigma by ``rule``; the paths of the PNG
    files."""
    rows = [row for row in probe.rows(rule) if "alpha" in row]
    if not rows:
        return []
    layers = [probe[row["layer"]] for row in rows]
    chosen = layers
    if len(layers) > _PANELS:
        chosen = [layers[round(i * (len(layers) - 1) / (_PANELS - 1))] for i in range(_PANELS)]
    with pictures():
        figures = {
            "hill": _panels(chosen, _hill),
            "quantiles": _panels(chosen, _quantiles),
            "depth": _depth(rows),
        }
        return [save(figure, folder, name) for name, figure in figures.items()]


def _panels(layers: list[Layer], fill: Any) -> Any:
    import matplotlib.pyplot as plt

    columns = min(4, len(layers))
    lines = math.ceil(len(layers) / columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.2 * columns, 2.5 * lines), squeeze=False)
    for axis in axes.flat[len(layers) :]:
        axis.set_axis_off()
    for axis, layer in zip(axes.flat, layers, strict=False):
        fill(axis, layer)
        axis.set_title(layer.name, fontsize=8)
        axis.tick_params(labelsize=7)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    return figure


def _hill(axis: Any, layer: Layer) -> None:
    """xi over k, and what a Gaussian would give: only the distance between the two means anything."""
    curve = layer.index().hill.curve()
    is_shown = curve.k >= 10
    k = curve.k[is_shown]
    axis.fill_between(k, curve.xi_low[is_shown], curve.xi_high[is_shown], color=BLUE, alpha=0.2, linewidth=0)
    axis.plot(k, curve.xi[is_shown], color=BLUE, label="Hill's xi = 1/alpha, 95% if independent")
    axis.plot(k, curve.gaussian_xi[is_shown], color="black", linestyle="--", label="a Gaussian's")
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("k", fontsize=7)


def _quantiles(axis: Any, layer: Layer) -> None:
    """Quantiles of the inputs, in units of their scale, against a Gaussian's; a Gaussian is the diagonal."""
    values = layer.sample.sort().values
    p = (torch.arange(len(values)) + 0.5) / len(values)
    gaussian = torch.special.ndtri(p.double())
    cauchy = torch.tan(math.pi * (p.double() - 0.5)) * 0.67449  # with the same quartiles as the Gaussian
    measured = (values - values.quantile(0.5)) / layer.scale
    axis.plot(gaussian, gaussian, color="black", linestyle="--", linewidth=1, label="Gaussian")
    axis.plot(gaussian, cauchy, color=VERMILION, linestyle=":", label="Cauchy")
    axis.plot(gaussian, measured, color=BLUE, label="inputs")
    reach = max(4.5, 1.1 * measured.abs().max().item())
    axis.set_ylim(-reach, reach)
    axis.set_xlabel("Gaussian quantile", fontsize=7)


def _depth(rows: list[Row]) -> Any:
    """Excess, scale and sigma from the first layer to the last."""
    import matplotlib.pyplot as plt

    places = range(len(rows))
    figure, axes = plt.subplots(3, 1, figsize=(max(5.0, 2 + 0.32 * len(rows)), 6.5), sharex=True)
    for place, row in zip(places, rows, strict=True):
        axes[0].plot(
            [place, place], [row["excess_low"], row["excess_high"] or row["excess"]], color=OTHER, linewidth=3
        )
    axes[0].plot(places, [row["excess"] for row in rows], "o", color=BLUE)
    axes[0].axhline(1, color="black", linestyle="--", linewidth=1)
    axes[0].set_ylabel("xi over a Gaussian's\n(95%)")
    axes[1].plot(places, [row["scale"] for row in rows], "s", color=GREEN)
    axes[1].set_ylabel("scale (1.4826 MAD)")
    axes[1].set_ylim(bottom=0)
    axes[2].plot(places, [row["sigma"] or math.nan for row in rows], "D", color=VERMILION)
    axes[2].set_ylabel("suggested sigma")
    if any(row["sigma"] for row in rows):
        axes[2].set_yscale("log")
    axes[2].set_xticks(list(places), [row["layer"] for row in rows], rotation=90, fontsize=7)
    return figure
