"""One table of names, and a grammar that says what is wrong with a name."""

import pytest
import torch
from torch import nn

import iglu
from iglu import zoo

PAPER = [
    "Z", "Z_approx", "IGLU", "IGLU-Approx", "ReLU", "GELU", "SiLU", "CELU", "ELU", "Hardshrink",
    "Hardsigmoid", "Hardswish", "HardTanh", "LeakyReLU", "Mish", "PReLU", "SELU", "Sigmoid",
    "Softplus", "Softshrink", "Squareplus", "Tanh", "Tanhshrink", "Identity",
]  # fmt: skip


def test_the_table_is_the_papers_table_1_and_three_more():
    labels = [row.label for row in zoo.ZOO.values()]
    assert labels[:24] == PAPER
    assert labels[24:] == ["GELU_a", "ATLU", "xATLU"]


@pytest.mark.parametrize("name", zoo.ZOO)
def test_every_name_makes_a_module_that_runs_forward_and_backward(name):
    module = iglu.create(name)
    x = torch.randn(2, 5, requires_grad=True)
    y = module(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", [name for name, row in zoo.ZOO.items() if row.self_gated])
def test_self_gated_activations_vanish_at_zero(name):
    assert iglu.create(name)(torch.zeros(1)).item() == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iglu", iglu.IGLU(1.0)),
        ("iglu:0.5", iglu.IGLU(0.5)),
        ("iglu:0", iglu.IGLU(0)),
        ("iglu:1e-2", iglu.IGLU(0.01)),
        ("iglu_approx:inf", iglu.IGLU(torch.inf, approximate="rational")),
        ("iglu:learnable", iglu.IGLU(learnable=True)),
        ("iglu_approx:learnable=5", iglu.IGLU(5, learnable=True, approximate="rational")),
        ("z:2", iglu.IGLUGate(2)),
        ("relu", nn.ReLU()),
    ],
)
def test_the_grammar_gives_the_module_it_says(text, expected):
    made = iglu.create(text)
    assert repr(made) == repr(expected)
    assert str(zoo.parse(str(zoo.parse(text)))) == str(zoo.parse(text))


def test_a_name_written_back_loses_no_digit():
    assert str(zoo.parse("iglu:0.123456789012")) == "iglu:0.123456789012"
    assert str(zoo.parse("iglu:learnable=3.0")) == "iglu:learnable=3"


def test_options_go_to_the_module():
    assert iglu.create("relu", inplace=True).inplace
    assert iglu.create("iglu", sigma=0.5, learnable=True, channels=3).log_sigma.shape == (3,)


def test_labels_are_those_of_a_printed_table():
    assert zoo.parse("iglu:0.5").label == "IGLU (sigma = 0.5)"
    assert zoo.parse("iglu_approx:learnable=5").label == "IGLU-Approx (learnable sigma)"
    assert zoo.parse("gelu").label == "GELU"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("igul", "Unknown activation 'igul'. Did you mean 'iglu'?"),
        ("IGLU-Approx", "Did you mean 'iglu_approx'?"),
        ("qqqq", "Known: z, z_approx, iglu"),
        ("iglu:", "Malformed activation 'iglu:'"),
        ("iglu:x", "a number >= 0 or learnable"),
        ("iglu:-1", "got '-1'"),
        ("iglu:nan", "got 'nan'"),
        ("iglu:learnable=", "Malformed"),
        ("iglu:learnable=x", "got 'x'"),
        ("relu:0.5", "'relu' takes no sigma"),
    ],
)
def test_a_wrong_name_is_named_with_a_suggestion(text, message):
    with pytest.raises(ValueError, match=r"[aA]ctivation") as caught:
        zoo.parse(text)
    assert message in str(caught.value)


def test_stating_sigma_twice_is_refused():
    with pytest.raises(TypeError, match="already states sigma"):
        iglu.create("iglu:0.5", sigma=1.0)
