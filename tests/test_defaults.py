"""The documented defaults of the public functions and modules, as numbers."""

from __future__ import annotations

import inspect

import pytest

import iglu
from iglu import baselines, distributions, modules

# sigma: 5 where our experiments support it, elsewhere 1, the standard Cauchy distribution.
DEFAULTS = {
    iglu.iglu: {"sigma": 5.0},
    iglu.iglu_gate: {"sigma": 1.0},
    iglu.iglu_glu: {"sigma": 1.0},
    iglu.iglu_inverse: {"sigma": 1.0},
    iglu.iglu_log_derivative: {"sigma": 1.0},
    iglu.bounds: {"sigma": 1.0},
    iglu.gain: {"sigma": 5.0},
    iglu.gelu_scaled: {"a": 1.0},
    iglu.probe: {"keep": 2048, "sample": 4096},
    iglu.IGLU: {"sigma": 5.0},
    iglu.IGLUGate: {"sigma": 1.0},
    iglu.IGLUGLU: {"sigma": 1.0, "dim": -1},
    modules.ScaledGELU: {"sigma": 1.0},
    modules.XATLU: {"alpha": 0.0},  # ATLU, where training starts
    modules.Squareplus: {"b": 4.0},  # a derivative of 1/2 and a value of 1 at 0 (Barron, 2021)
    baselines.XIELU: {"alpha_p": 0.8, "alpha_n": 0.8},  # Huang and Schlag, 2024
    distributions.IGLUTransform: {"sigma": 1.0, "cache_size": 0},
}


@pytest.mark.parametrize("function", DEFAULTS, ids=lambda each: each.__name__)
def test_numbers_have_the_documented_defaults(function):
    parameters = inspect.signature(function).parameters.values()
    found = {each.name: each.default for each in parameters if type(each.default) in (int, float)}
    assert found == DEFAULTS[function]
