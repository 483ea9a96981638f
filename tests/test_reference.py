"""help() explains every public name: what it is, and each of its parameters in a sentence."""

import inspect
import pydoc
import re

import pytest

import iglu
import iglu.distributions
import iglu.tails
from iglu.modules import SigmaModule
from iglu.probing.training import TailMonitor

CLASSES = [
    *(value for name in iglu.__all__ if inspect.isclass(value := getattr(iglu, name))),
    iglu.distributions.IGLUTransform, iglu.tails.Tail, iglu.tails.TailIndex, SigmaModule, TailMonitor,
]  # fmt: skip


def callbacks():
    return [
        pytest.importorskip(f"iglu.integrations.{name}", exc_type=ImportError).TailCallback
        for name in ("trainer", "lightning")
    ]


def public_functions():
    found = {f"iglu.{name}": getattr(iglu, name) for name in iglu.__all__}
    found |= {
        f"iglu.tails.{name}": value
        for name, value in vars(iglu.tails).items()
        if getattr(value, "__module__", "") == "iglu.tails"
    }
    return {
        name: value
        for name, value in found.items()
        if callable(value) and not inspect.isclass(value)
        and value.__module__.startswith("iglu") and not name.rpartition(".")[2].startswith("_")
    }  # fmt: skip


def documented(text):
    """The parameters in a docstring's section Args, with their descriptions."""
    _, _, section = f"\n{inspect.cleandoc(text or '')}\n".partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(description.split()) for name, description in entries}


def parameters(function):
    return [
        name for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls") and not name.startswith("_")
    ]  # fmt: skip


def says_more_than(name, description):
    """At least three words that are not in the name."""
    own = set(name.lower().split("_")) | {"the", "a", "an", "of", "see", "as", "in"}
    return len([word for word in re.findall(r"[\w'-]+", description.lower()) if word not in own]) >= 3


def check(name, wanted, described):
    assert list(described) == wanted, f"{name}: parameters without a description, or in another order"
    for parameter, description in described.items():
        assert says_more_than(parameter, description), f"{name}: {parameter}: {description}"


@pytest.mark.parametrize("name", public_functions())
def test_every_parameter_of_a_public_function_is_described(name):
    function = public_functions()[name]
    assert inspect.getdoc(function).splitlines()[0].strip()
    check(name, parameters(function), documented(function.__doc__))


def check_class(kind):
    assert kind.__doc__.strip()
    text = f"{inspect.cleandoc(kind.__doc__)}\n{inspect.cleandoc(vars(kind)['__init__'].__doc__ or '')}"
    check(kind.__name__, parameters(kind), documented(text))
    for name, method in vars(kind).items():
        function = getattr(method, "__func__", method)
        if inspect.isfunction(function) and function.__doc__ and not name.startswith(("_", "on_")):
            check(f"{kind.__name__}.{name}", parameters(function), documented(function.__doc__))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_parameter_of_a_public_class_and_its_methods_is_described(kind):
    check_class(kind)


def test_every_parameter_of_the_callbacks_is_described():
    for kind in callbacks():
        check_class(kind)


@pytest.mark.parametrize("kind", [iglu.IGLU, iglu.IGLUGate, iglu.IGLUGLU], ids=lambda kind: kind.__name__)
def test_help_of_a_module_and_of_its_constructor_shows_the_signature_and_the_parameters(kind):
    for subject in (kind, kind.__init__):
        text = pydoc.plain(pydoc.render_doc(subject))
        assert "learnable: 'bool' = False" in text
        for name in parameters(kind):
            assert re.search(rf"^\W*{name}: \S", text, re.MULTILINE), f"{subject}: {name}"
        assert "Initialize internal Module state" not in text  # nn.Module's own text


def test_a_missing_or_empty_description_is_detected():
    def function(x, channel_dim):
        """Do.

        Args:
            x: The input tensor, of any shape.
            channel_dim: The channel dim.
        """

    assert documented(function.__doc__) == {
        "x": "The input tensor, of any shape.",
        "channel_dim": "The channel dim.",
    }
    with pytest.raises(AssertionError, match="channel_dim: The channel dim"):
        check("function", parameters(function), documented(function.__doc__))
    with pytest.raises(AssertionError, match="without a description"):
        check("function", ["x", "y"], documented("Args:\n    x: The input tensor, of any shape."))
