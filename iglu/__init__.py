"""IGLU, the Integrated Gaussian Linear Unit, for PyTorch."""

from iglu.functional import gain, gelu_scaled, iglu, iglu_gate, iglu_glu
from iglu.kernels import backend, explain
from iglu.modules import IGLU, IGLUGLU, IGLUGate, weight_decay_groups
from iglu.swapping import swap
from iglu.zoo import create

__all__ = [
    "IGLU",
    "IGLUGLU",
    "IGLUGate",
    "backend",
    "create",
    "explain",
    "gain",
    "gelu_scaled",
    "iglu",
    "iglu_gate",
    "iglu_glu",
    "swap",
    "weight_decay_groups",
]
__version__ = "0.1.0"
