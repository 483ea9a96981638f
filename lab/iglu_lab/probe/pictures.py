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
from iglu_lab.report.figures.description import Figure, Line, Panel
from iglu_lab.report.figures.render import write_figures
from iglu_lab.stats import style

_PANELS = 12  # maximum number of layers in a Hill or quantile plot, evenly spaced over the depth

Hills = Mapping[str, Mapping[str, Sequence[float]]]


def draw(probe: Probe, rule: str, folder: Path) -> list[Path]:
    """Write the pictures as PNG and SVG, with sigma by ``rule``; return the paths of the PNG files."""
    rows = [row for row in probe.rows(rule) if "alpha" in row]
    if not rows:
        return []
    layers = [probe[row["layer"]] for row in rows]
    figures = (hill_figure("hill", "the model", hill_curves(probe), _PANELS), _quantile_figure(layers))
    written = [figure.paths[0] for figure in write_figures(figures, folder)]
    with style.pictures():
        return [*written, style.save(_depth(rows), folder, "depth")]


def hill_curves(found: Probe) -> Hills:
    """The data of a Hill plot for each layer with a tail index: xi over k, its 95% band, a Gaussian's xi."""
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


def hill_figure(key: str, name: str, hills: Hills, most: int) -> Figure:
    """Plot xi over k for the data and for a Gaussian; only the distance between the two is meaningful."""
    chosen = style.evenly_spaced([*hills.items()], most)
    highest = max(0.25, 1.15 * max((value for _, curve in chosen for value in curve["xi"]), default=0.0))
    return Figure(
        key,
        f"Hill plots: {name}",
        f"Hill's xi against k for {len(chosen)} of {len(hills)} layers of {name}, with the 95% band for "
        "independent values, and the xi of a Gaussian at the same k.",
        tuple(_hill_panel(layer, curve, highest) for layer, curve in chosen),
        size=_size(len(chosen)),
    )


def _size(panels: int) -> tuple[float, float]:
    return 3.0 * min(panels, 3), 0.6 + 2.4 * -(-panels // 3)


def _hill_panel(layer: str, curve: Mapping[str, Sequence[float]], highest: float) -> Panel:
    k, label = curve["k"], "Hill's xi = 1/alpha, 95% if independent"
    lines = (
        Line(label, k, curve["xi"], style.BLUE, low=curve["xi_low"], high=curve["xi_high"]),
        Line("Gaussian", k, curve["gaussian_xi"], style.BLACK, "--"),
    )
    return Panel(layer, ("k", ""), lines, ("log", "linear"), (None, (0, highest)))


def _quantile_figure(layers: Sequence[Layer]) -> Figure:
    chosen = style.evenly_spaced(layers, _PANELS)
    return Figure(
        "quantiles",
        "Quantiles of the inputs",
        f"Quantiles of the inputs of {len(chosen)} of {len(layers)} layers, divided by their robust SD, "
        "against those of a Gaussian (the diagonal), and of a Cauchy distribution with the same quartiles.",
        tuple(map(_quantile_panel, chosen)),
        size=_size(len(chosen)),
    )


def _quantile_panel(layer: Layer) -> Panel:
    values = layer.sample.sort().values
    p = (torch.arange(len(values), dtype=torch.float64) + 0.5) / len(values)
    gaussian = torch.special.ndtri(p).tolist()
    cauchy = torch.tan(math.pi * (p - 0.5)) * 0.67449  # with the same quartiles as the Gaussian
    measured = (values - values.quantile(0.5)) / layer.robust_sd
    reach = max(4.5, 1.1 * measured.abs().max().item())
    lines = (
        Line("Gaussian", gaussian, gaussian, style.BLACK, "--", width=1),
        Line("Cauchy", gaussian, cauchy.tolist(), style.VERMILION, ":"),
        Line("inputs", gaussian, measured.tolist(), style.BLUE),
    )
    return Panel(layer.name, ("Gaussian quantile", ""), lines, limits=(None, (-reach, reach)))


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
