"""Find and replace the activations of an existing model; record the changes and undo them."""

from iglu.surgery.record import FunctionalCall, Replacement, Swap
from iglu.surgery.replace import swap

__all__ = ["FunctionalCall", "Replacement", "Swap", "swap"]
