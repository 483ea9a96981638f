"""IGLU, the Integrated Gaussian Linear Unit, for PyTorch."""

from iglu import integrations
from iglu.functional import gain, gelu_scaled, iglu, iglu_gate, iglu_glu
from iglu.intervals import bounds
from iglu.inverse import iglu_inverse, iglu_log_slope
from iglu.kernels import backend, explain
from iglu.modules import IGLU, IGLUGLU, IGLUGate, weight_decay_groups
from iglu.probing import Probe, probe
from iglu.probing.sigma import Suggestion
from iglu.swapping import swap
from iglu.swapping.recalibrate import harden, recalibrate
from iglu.zoo import create

__all__ = [
    "IGLU",
    "IGLUGLU",
    "IGLUGate",
    "Probe",
    "Suggestion",
    "backend",
    "bounds",
    "create",
    "explain",
    "gain",
    "gelu_scaled",
    "harden",
    "iglu",
    "iglu_gate",
    "iglu_glu",
    "iglu_inverse",
    "iglu_log_slope",
    "probe",
    "recalibrate",
    "swap",
    "weight_decay_groups",
]
__version__ = "0.1.0"

integrations.teach_transformers()
