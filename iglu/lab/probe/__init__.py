"""``iglu probe``: the tails of a model's pre-activations as a table, pictures and a suggestion."""

from iglu.lab.probe.command import main

__all__ = ["main"]
