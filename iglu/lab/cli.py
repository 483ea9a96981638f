"""The commands of the lab, each loaded only when it is called."""

from __future__ import annotations

import importlib

# name -> (module, what it does); the module has main(argv: list[str]) -> int
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "iglu.lab.commands.demo",
        "the tour: how right, how fast, and small networks trained over seeds",
    ),
    "train": ("iglu.lab.commands.train", "train a network by a recipe of the paper, or go on with it"),
    "sweep": ("iglu.lab.commands.sweep", "a whole table of the paper over seeds, here or on a Ray cluster"),
    "runs": ("iglu.lab.commands.runs", "list, filter and compare the runs of a folder"),
    "bench": ("iglu.lab.commands.bench", "time every activation: Table 1 of the paper, and beyond"),
    "probe": (
        "iglu.lab.commands.probe",
        "the tails of a model's pre-activations, and which sigma they suggest",
    ),
    "convert": (
        "iglu.lab.commands.convert",
        "put other activations into a trained model, and recalibrate it without training",
    ),
    "report": (
        "iglu.lab.commands.report",
        "what was measured beside the paper: tables, claims, figures, a page",
    ),
}


def run(name: str, argv: list[str]) -> int:
    """Run one command; its exit status."""
    module, _ = COMMANDS[name]
    status: int = importlib.import_module(module).main(argv)
    return status
