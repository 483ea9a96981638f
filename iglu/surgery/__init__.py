"""Find and replace the activations of an existing model; the record of it; undo."""

from iglu.surgery.record import FunctionalCall, Replacement, Swap
from iglu.surgery.replace import swap

__all__ = ["FunctionalCall", "Replacement", "Swap", "swap"]
