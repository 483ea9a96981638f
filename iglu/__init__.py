"""IGLU, the Integrated Gaussian Linear Unit, for PyTorch."""

from iglu import integrations
from iglu.calibration import recalibrate, to_relu
from iglu.functional import gain, gelu_scaled, iglu, iglu_gate, iglu_glu
from iglu.intervals import bounds
from iglu.inverse import iglu_inverse, iglu_log_derivative
from iglu.kernels import backend, explain
from iglu.modules import IGLU, IGLUGLU, IGLUGate, weight_decay_groups
from iglu.probing import Probe, probe
from iglu.probing.sigma import Suggestion
from iglu.surgery import swap
from iglu.zoo import create, register_activation

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
    "iglu",
    "iglu_gate",
    "iglu_glu",
    "iglu_inverse",
    "iglu_log_derivative",
    "probe",
    "recalibrate",
    "register_activation",
    "swap",
    "to_relu",
    "weight_decay_groups",
]
__version__ = "0.1.0"

integrations.register_on_import()
