"""Pictures of a probe: Hill plots, quantile plots with a Gaussian and a Cauchy, and statistics over depth."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from iglu.probing import Probe
from iglu.probing.layers import Layer
from iglu.probing.table import Row
from iglu_lab.stats import style

_PANELS = 12  # the most layers in a Hill or quantile plot, spread over the depth


def draw(probe: Probe, rule: str, folder: Path) -> list[Path]:
    """Write the pictures as PNG and SVG, with sigma by ``rule``; return the paths of the PNG files."""
    rows = [row for row in probe.rows(rule) if "alpha" in row]
    if not rows:
        return []
    with style.pictures():
        figures = {
            "hill": _draw_hills(hill_curves(probe)),
            "quantiles": _draw_quantiles({row["layer"]: probe[row["layer"]] for row in rows}),
            "depth": _depth(rows),
        }
        return [style.save(figure, folder, name) for name, figure in figures.items()]


Hills = Mapping[str, Mapping[str, Sequence[float]]]


def hill_curves(found: Probe) -> Hills:
    """For a Hill plot of each layer that has a tail index: xi over k, its 95% band, and a Gaussian's xi."""
    curves = {}
    for layer in found.layers:
        with contextlib.suppress(ValueError):
            curve = layer.index().hill.curve()
            is_shown = (curve.k >= 10) & curve.xi.isfinite() & curve.xi_high.isfinite()
            curves[layer.name] = {
                name: [round(value, 5) for value in getattr(curve, name)[is_shown].tolist()]
                for name in ("k", "xi", "xi_low", "xi_high", "gaussian_xi")
            }
    return curves


def _draw_hills(hills: Hills) -> Any:
    """Plot xi over k for the data and for a Gaussian; only the distance between the two is meaningful."""
    figure, axes_of = style.panels(list(hills), _PANELS, 3, 3.0, 2.4, sharey=True)
    for name, axis in axes_of.items():
        k, curve = hills[name]["k"], hills[name]
        axis.fill_between(k, curve["xi_low"], curve["xi_high"], color=style.BLUE, alpha=0.2, linewidth=0)
        axis.plot(k, curve["xi"], color=style.BLUE, label="Hill's xi = 1/alpha, 95% if independent")
        axis.plot(k, curve["gaussian_xi"], color=style.BLACK, linestyle="--", label="Gaussian")
        axis.set_xscale("log")
    highest = max(0.25, 1.15 * max((value for name in axes_of for value in hills[name]["xi"]), default=0.0))
    figure.axes[0].set_ylim(0, highest)
    for axis in figure.axes:
        axis.set_xlabel("k" if axis.get_subplotspec().is_last_row() else "", fontsize=8)
    style.legend_below(figure, 2)
    return figure


def _draw_quantiles(layers: Mapping[str, Layer]) -> Any:
    """Plot quantiles of the inputs, divided by their robust SD, over a Gaussian's (the diagonal)."""
    figure, axes_of = style.panels(list(layers), _PANELS, 4, 3.2, 2.5)
    for name, axis in axes_of.items():
        values = layers[name].sample.sort().values
        p = (torch.arange(len(values)) + 0.5) / len(values)
        gaussian = torch.special.ndtri(p.double())
        cauchy = torch.tan(math.pi * (p.double() - 0.5)) * 0.67449  # with the same quartiles as the Gaussian
        measured = (values - values.quantile(0.5)) / layers[name].robust_sd
        axis.plot(gaussian, gaussian, color="black", linestyle="--", linewidth=1, label="Gaussian")
        axis.plot(gaussian, cauchy, color=style.VERMILION, linestyle=":", label="Cauchy")
        axis.plot(gaussian, measured, color=style.BLUE, label="inputs")
        reach = max(4.5, 1.1 * measured.abs().max().item())
        axis.set_ylim(-reach, reach)
        axis.set_xlabel("Gaussian quantile", fontsize=7)
    style.legend_below(figure, 3)
    return figure


def _depth(rows: list[Row]) -> Any:
    """Plot excess, robust SD and sigma from the first layer to the last."""
    places = range(len(rows))
    figure, grid = style.axes(3, 1, max(5.0, 2 + 0.32 * len(rows)), 6.5, sharex=True)
    excess, robust_sd, sigma = grid.flat
    for place, row in zip(places, rows, strict=True):
        ends = [row["excess_low"], row["excess_high"] or row["excess"]]
        excess.plot([place, place], ends, color=style.OTHER, linewidth=3)
    excess.plot(places, [row["excess"] for row in rows], "o", color=style.BLUE)
    excess.axhline(1, color="black", linestyle="--", linewidth=1)
    excess.set_ylabel("excess: xi / Gaussian xi\n(95%)")
    robust_sd.plot(places, [row["robust_sd"] for row in rows], "s", color=style.GREEN)
    robust_sd.set_ylabel("robust SD (1.4826 MAD)")
    robust_sd.set_ylim(bottom=0)
    sigma.plot(places, [row["sigma"] or math.nan for row in rows], "D", color=style.VERMILION)
    sigma.set_ylabel("suggested sigma")
    if any(row["sigma"] for row in rows):
        sigma.set_yscale("log")
    sigma.set_xticks(list(places), [row["layer"] for row in rows], rotation=90, fontsize=7)
    return figure
