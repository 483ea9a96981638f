"""Activations that are called as functions inside a forward become modules.

The small models are written in the styles of research code; nothing is copied from anywhere.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import math
import pickle
import subprocess
import sys
import textwrap
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch import tanh as hyperbolic
from torch.nn import functional as F
from torch.nn import functional as functions
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import iglu
from iglu.surgery import swap
from iglu.surgery.source_text import is_same_code


def places(record: iglu.surgery.Swap) -> list[str]:
    return [each.place for each in record.replaced]


def line_of(text: str) -> int:
    """The line of this file that has this text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if text in line and "line_of" not in line]
    return found


# -- models --------------------------------------------------------------------------------------


class BasicBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)  # after the sum


class ResNet(nn.Module):
    def __init__(self, width: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(*[BasicBlock(width) for _ in range(blocks)])
        self.linear = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer1(out)
        out = F.avg_pool2d(out, 4).mean((2, 3))
        return self.linear(out)


class DenseLayer(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(width), nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = torch.cat(inputs, 1)
        out = self.conv(F.relu(self.bn(x), inplace=True))
        return torch.cat([out, x], 1)


class SqueezeExcite(nn.Module):
    """Two gates, and a ReLU between them."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        w = F.avg_pool2d(x, x.size(2))
        w = F.relu(self.fc1(w))
        w = F.sigmoid(self.fc2(w))
        return x * w * torch.tanh(w)


def swish(x):
    return x * x.sigmoid()


def smooth(x):
    """An activation that its body reveals, not its name."""
    y = torch.sigmoid(x)
    return y * x


def hard_gate(x):
    return F.relu6(x + 3.0) / 6.0


def tanh_of_softplus(x):
    """With names that are imported under other names."""
    return x * hyperbolic(functions.softplus(x))


def gated(x):
    return x * F.sigmoid(x)


class Inverted(nn.Module):
    """MobileNet-like, with helpers."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.expand, self.project = nn.Conv2d(width, 8, 1), nn.Conv2d(8, width, 1)
        self.gate = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = swish(self.expand(x))
        h = h * hard_gate(self.gate(h))
        return smooth(self.project(h)) + F.relu6(self.project(h))


class Spellings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.inplace = True

    def forward(self, x: Tensor) -> Tensor:
        a = F.gelu(self.fc(x), approximate="tanh") + torch.relu(self.fc(x)) + self.fc(x).relu()
        b = nn.functional.silu(self.fc(x), inplace=self.inplace) + nn.ReLU(inplace=True)(self.fc(x))
        c = F.leaky_relu(
            self.fc(x),  # spread over lines
            negative_slope=0.1,
        ) + F.elu(input=self.fc(x))
        act = F.mish if self.training else F.silu
        return a + b + c + act(self.fc(x))


X4 = torch.linspace(-2, 2, 12).reshape(3, 4)


def images() -> Tensor:
    return torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))


# -- what is replaced ----------------------------------------------------------------------------


def test_every_relu_of_a_functional_resnet_becomes_a_module_of_its_own() -> None:
    model = ResNet()
    record = swap(model, "iglu:5")
    assert places(record) == [
        "layer1.0.relu_1", "layer1.0.relu_2", "layer1.1.relu_1", "layer1.1.relu_2", "relu_1",
    ]  # fmt: skip
    assert record.functional == []
    assert [name for name, each in model.named_modules() if isinstance(each, iglu.IGLU)] == places(record)
    assert len({id(model.get_submodule(place)) for place in places(record)}) == 5


def test_the_record_has_the_original_file_and_line_of_each_call() -> None:
    record = swap(ResNet(blocks=1), "iglu:5")
    assert record.replaced[1].source == f"test_call_sites.py:{line_of('# after the sum')}"
    assert record.replaced[1].old == "F.relu"
    assert repr(record).splitlines()[1] == (
        f"  replaced layer1.0.relu_1: F.relu -> IGLU(sigma=5) "
        f"(test_call_sites.py:{line_of('# after the sum') - 3})"
    )


def test_the_new_modules_compute_what_a_rewrite_by_hand_would() -> None:
    class ByHand(BasicBlock):
        def forward(self, x: Tensor) -> Tensor:
            out = iglu.iglu(self.bn1(self.conv1(x)), 0.5)
            out = self.bn2(self.conv2(out)) + self.shortcut(x)
            return iglu.iglu(out, 0.5)

    model, by_hand = BasicBlock(4), ByHand(4)
    by_hand.load_state_dict(model.state_dict())
    swap(model, "iglu:0.5")
    assert torch.equal(model(images()), by_hand(images()))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (DenseLayer(), ["relu_1"]),
        (SqueezeExcite(), ["relu_1"]),
        (Inverted(), ["swish_1", "smooth_1", "relu6_1"]),
        (
            Spellings(),
            [
                "gelu_1", "relu_1", "relu_2", "silu_1", "relu_3", "leaky_relu_1", "elu_1", "mish_1",
                "silu_2",
            ],
        ),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_each_spelling_of_an_activation_is_replaced_and_gates_are_not(
    model: nn.Module, expected: list[str]
) -> None:
    record = swap(model, "iglu")
    assert places(record) == expected
    assert record.functional == []


swish_lambda = lambda x: x * torch.sigmoid(x)  # noqa: E731
first_of_a_line, second_of_a_line = lambda x: F.relu(x), lambda x: F.silu(x)


class Lambdas(nn.Module):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.kept = lambda x: F.gelu(x)
        self.scaled = lambda x: scale * F.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        x = swish_lambda(self.kept(self.fc(x)))
        return first_of_a_line(second_of_a_line(self.scaled(x)))


def test_a_lambda_that_computes_an_activation_is_replaced_if_its_source_is_unambiguous() -> None:
    model = Lambdas()
    before = model(X4)
    record = swap(model, {"kept": "gelu", "swish_lambda_1": "silu"})
    assert sorted(places(record)) == ["kept", "swish_lambda_1"]
    torch.testing.assert_close(model(X4), before)
    record.undo()
    # Neither a multiple of ReLU, nor one of two lambdas on a line.
    assert sorted(places(swap(model, "iglu"))) == ["kept", "swish_lambda_1"]


def test_functions_in_a_list_or_a_dict_are_not_replaced_but_reported_with_a_reason() -> None:
    class Choosing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return self.by_name["rectified"](self.in_turn[1](F.relu(super().forward(x))))

    model = Choosing(4, 4)
    model.by_name, model.in_turn = {"rectified": F.relu, "none": str}, [None, torch.tanh, F.gelu]
    with pytest.warns(UserWarning, match="2 calls of activations in Choosing were not replaced"):
        record = swap(model, "iglu")
    assert places(record) == ["relu_1"]
    assert [each.call for each in record.functional] == ["by_name['rectified']", "in_turn[2]"]
    assert "it is in a dict" in record.functional[0].reason


def test_names_in_a_helper_are_resolved_in_its_own_module() -> None:
    class Step:
        @staticmethod
        def sigmoid(x: Tensor) -> Tensor:
            return (x > 0).to(x.dtype)

    class Block(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return other_gated(tanh_of_softplus(super().forward(x)))

    other_gated = types.FunctionType(gated.__code__, {"F": Step})  # a file in which F is another module
    assert places(swap(nn.Sequential(Block(4, 4)), "iglu")) == ["0.tanh_of_softplus_1"]


def test_a_gate_is_replaced_if_only_selects_it() -> None:
    assert places(swap(SqueezeExcite(), "z", only="sigmoid_1")) == ["sigmoid_1"]
    assert places(swap(SqueezeExcite(), "z", only=nn.Tanh)) == ["tanh_1"]
    assert places(swap(SqueezeExcite(), "z", only=torch.sigmoid)) == ["sigmoid_1"]
    assert places(swap(Inverted(), "z", only=nn.Hardsigmoid)) == ["hard_gate_1"]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("layer1.*", ["layer1.0.relu_1", "layer1.0.relu_2", "layer1.1.relu_1", "layer1.1.relu_2"]),
        ("*.relu_2", ["layer1.0.relu_2", "layer1.1.relu_2"]),
        (F.relu, ["layer1.0.relu_1", "layer1.0.relu_2", "layer1.1.relu_1", "layer1.1.relu_2", "relu_1"]),
        (lambda place, module: isinstance(module, nn.ReLU) and "." not in place, ["relu_1"]),
    ],
)
def test_only_matches_call_sites(only: Any, expected: list[str]) -> None:
    model = ResNet().eval()
    x = torch.randn(2, 3, 8, 8)
    before = model(x)
    assert places(swap(model, "iglu", only=only)) == expected
    assert not torch.equal(model(x), before)


def test_a_mapping_gives_call_sites_different_activations() -> None:
    model = BasicBlock(4)
    record = swap(model, {"relu_1": "iglu:1", "relu_*": "iglu:2"})
    assert [each.new for each in record.replaced] == ["IGLU(sigma=1)", "IGLU(sigma=2)"]


def test_a_call_site_in_a_loop_becomes_one_module() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = F.relu(layer(x))
            return x

    model = Loop()
    assert places(swap(model, "iglu:learnable")) == ["relu_1"]
    model(X4).sum().backward()
    assert 0 < model.relu_1.log_sigma.grad.abs() < math.inf


def test_names_of_new_modules_do_not_clash_with_attributes() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu_1, self.fc = nn.Linear(4, 4), nn.Linear(4, 4)

        def relu_2(self) -> None: ...

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.fc(torch.relu(self.relu_1(x))))

    model = Clash()
    record = swap(model, "iglu")
    assert len(set(places(record)) - {"relu_1", "relu_2"}) == 2
    model(X4)


def test_modules_without_parameters_are_skipped_and_listed() -> None:
    class HingeLoss(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(1 - x).mean()

    model = nn.ModuleDict({"net": BasicBlock(4), "loss": HingeLoss()})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = swap(model, "iglu")
    assert places(record) == ["net.relu_1", "net.relu_2"]
    ((left),) = record.functional
    assert left.place == "loss"
    assert "no parameters" in left.reason
    assert places(swap(model, "iglu", only="loss.relu_1")) == ["loss.relu_1"]


def test_an_activation_class_of_the_user_is_replaced_as_one_module() -> None:
    class MyMish(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tanh(F.softplus(x))

    class HardSwish(nn.Module):
        def __init__(self, inplace: bool = True) -> None:
            super().__init__()
            self.inplace = inplace

        def forward(self, x: Tensor) -> Tensor:
            return x * F.relu6(x + 3, inplace=self.inplace) / 6

    class HardSigmoid(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu6(x + 3, inplace=True) / 6

    class Wrapper(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return swish(x)

    model = nn.Sequential(nn.Linear(4, 4), MyMish(), HardSwish(), HardSigmoid(), Wrapper())
    record = swap(model, "iglu")
    assert places(record) == ["1", "2", "4"]
    assert record.functional == []


# -- what is not replaced, with its reason -----------------------------------------------------------------


def test_calls_whose_result_is_discarded_are_not_replaced_but_reported_with_a_warning() -> None:
    class Discards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc(x)
            F.relu(x, inplace=True)
            x.relu_()
            return F.relu(self.fc(x))

    with pytest.warns(UserWarning, match=r"2 calls of activations in Discards were not replaced.*discarded"):
        record = swap(Discards(), "iglu")
    assert places(record) == ["relu_3"]
    assert [each.call for each in record.functional] == ["F.relu(x, inplace=True)", "x.relu_()"]
    assert all("discarded" in each.reason for each in record.functional)


def _left(model: nn.Module) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [each.reason for each in swap(model, "iglu").functional]


def test_calls_that_cannot_be_rewritten_are_reported_with_the_reason() -> None:
    class Starred(nn.Linear):
        def forward(self, *args: Tensor) -> Tensor:
            return F.relu(*args)

    class Value(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return functools.partial(F.relu)(x)

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return F.leaky_relu(x, self.slope)

    class Stack(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(super().forward(x))

    class Children(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.children():
                x = F.relu(layer(x))
            return x

    class Inline(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x * F.relu6(x + 3) / 6

    class OfTheClass(nn.Linear):
        @classmethod
        def act(cls, x: Tensor) -> Tensor:
            return F.relu(x) * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.act(super().forward(x))

    class Partial(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return partly_scaled(super().forward(x))

    class Default(nn.Linear):
        def forward(self, x: Tensor, act: Callable[[Tensor], Tensor] = F.relu) -> Tensor:
            return act(super().forward(x))

    for model, reason in [
        (Default(4, 4), "default value of an argument"),
        (Starred(4, 4), "arguments are not explicit"),
        (Value(4, 4), "passed on as a value"),
        (Slope(), "tensor as a parameter"),
        (Stack(nn.Linear(4, 4)), "iterates over its own children"),
        (Children(), "iterates over its own children, by self.children"),
        (Inline(4, 4), "hard sigmoid"),
        (OfTheClass(4, 4), "classmethod"),
        (Partial(4, 4), "partial"),
    ]:
        (found,) = _left(nn.Sequential(model))
        assert reason in found, type(model)


def test_a_call_with_a_computed_negative_slope_is_not_replaced_but_the_call_inside_it_is() -> None:
    class Computed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.leaky_relu(x, torch.relu(self.bias).mean().item())

    model = nn.Sequential(Computed(4, 4))
    with pytest.warns(UserWarning, match="tensor as a parameter"):
        record = swap(model, "relu")
    assert places(record) == ["0.relu_1"]
    torch.testing.assert_close(model(X4), F.leaky_relu(X4, F.relu(model[0].bias).mean().item()))


def test_calls_in_a_forward_set_on_the_instance_are_not_replaced() -> None:
    model = BasicBlock(4)
    model.forward = functools.partial(BasicBlock.forward, model)  # type: ignore[method-assign]
    assert all("this instance" in reason for reason in _left(nn.Sequential(model)))
    assert len(_left(nn.Sequential(model))) == 2


def test_a_function_whose_file_changed_since_it_was_imported_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "stale_model.py"
    text = (
        "from torch import nn\nfrom torch.nn import functional as F\nclass Net(nn.Linear):\n"
        "    def forward(self, x):\n        return F.relu(super().forward(x) + 1)\n"
    )
    path.write_text(text)
    names: dict[str, Any] = {"__name__": "stale_model"}
    exec(compile(text, str(path), "exec"), names)
    path.write_text(text.replace("+ 1", "+ 2"))
    linecache.checkcache()
    (reason,) = _left(nn.Sequential(names["Net"](4, 4)))
    assert "not the code that runs" in reason


def test_calls_in_a_traced_graph_are_not_replaced_but_reported_with_the_reason() -> None:
    with pytest.warns(UserWarning, match=r"Nothing was replaced"):
        record = swap(torch.fx.symbolic_trace(Base()), "iglu")
    assert [("relu" in each.call, "torch.fx" in each.reason) for each in record.functional] == [(True, True)]


def test_torchs_own_modules_are_not_rewritten() -> None:
    model = nn.Sequential(nn.LSTM(4, 4), nn.TransformerEncoderLayer(4, 1, 4))
    swap(model, "iglu")
    assert type(model[0]) is nn.LSTM
    assert type(model[1]) is nn.TransformerEncoderLayer


# -- how functions are reached ---------------------------------------------------------------------


class Helpers(nn.Module):
    """The same method and the same helper at two places each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def act(self, x: Tensor) -> Tensor:
        return F.relu(x) * 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.a(x))
        x = scaled(self.act(self.b(x)))
        return scaled(x, factor=3.0)


def scaled(x: Tensor, *, factor: float = 0.5) -> Tensor:
    return factor * F.silu(x)


partly_scaled = functools.partial(scaled, factor=2.0)


def test_a_helper_has_one_copy_per_call_site() -> None:
    model = Helpers()
    before = model(X4)
    record = swap(model, {"relu_*": "relu", "silu_*": "silu"})
    assert sorted(places(record)) == ["relu_1", "relu_2", "silu_1", "silu_2"]
    assert torch.equal(model(X4), before)
    swap(model, "iglu:1", only="relu_2")
    h = F.relu(model.a(X4)) * 2
    h = iglu.iglu(model.b(h), 1.0) * 2
    torch.testing.assert_close(model(X4), 3 * F.silu(0.5 * F.silu(h)))


def test_swapping_at_one_call_of_a_helper_leaves_its_other_call_unchanged() -> None:
    model = Helpers()
    swap(model, "iglu:1", only="relu_2")
    h = F.relu(model.a(X4)) * 2
    h = iglu.iglu(model.b(h), 1.0) * 2
    torch.testing.assert_close(model(X4), 3 * F.silu(0.5 * F.silu(h)))


def test_a_method_called_from_outside_is_replaced_too() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def features(self, x: Tensor) -> Tensor:
            return F.relu(self.fc(x))

        def forward(self, x: Tensor) -> Tensor:
            return self.features(x).sum()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Other()

        def forward(self, x: Tensor) -> Tensor:
            return self.net.embed(x)

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def embed(self, x: Tensor) -> Tensor:
            return F.relu(self.fc(x))

    model = Net()
    swap(model, "iglu:1")
    assert torch.equal(model.features(X4), iglu.iglu(model.fc(X4), 1.0))
    outer = Outer()
    assert places(swap(outer, "iglu:1")) == ["net.relu_1"]
    assert torch.equal(outer(X4), iglu.iglu(outer.net.fc(X4), 1.0))


class Recursive(nn.Module):
    """A method and a function that call themselves, the method from two places."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def again(self, x: Tensor, count: int) -> Tensor:
        return x if count == 0 else self.again(F.relu(self.fc(x)), count - 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.again(x, 2) + halved(self.again(x + 1, 1), 2)


def halved(x: Tensor, count: int) -> Tensor:
    return x if count == 0 else halved(F.silu(x) / 2, count - 1)


@pytest.mark.parametrize(
    "chosen", [["relu_1", "relu_2", "silu_1"], ["relu_2"], ["silu_1"], ["relu_1", "silu_1"]]
)
def test_a_recursive_function_calls_the_copy_of_its_call_site(chosen: list[str]) -> None:
    model = Recursive()
    assert sorted(places(swap(model, "iglu:1", only=chosen))) == chosen
    first, second, third = (
        functools.partial(iglu.iglu, sigma=1.0) if name in chosen else function
        for name, function in [("relu_1", F.relu), ("relu_2", F.relu), ("silu_1", F.silu)]
    )
    y = third(second(model.fc(X4 + 1))) / 2
    torch.testing.assert_close(model(X4), first(model.fc(first(model.fc(X4)))) + third(y) / 2)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(x))


class NewStyle(Base):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.gelu(x)


class OldStyle(NewStyle):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(super(OldStyle, self).forward(x))  # noqa: UP008


class Inherits(OldStyle):
    pass


@pytest.mark.parametrize("kind", [NewStyle, OldStyle, Inherits])
def test_bodies_reached_through_super_are_rewritten(kind: type[nn.Module]) -> None:
    model = kind()
    before = model(X4)
    record = swap(
        model, {"relu_*": "relu", "gelu_*": "gelu"} | ({} if kind is NewStyle else {"silu_*": "silu"})
    )
    assert {"relu_1", "gelu_1"} <= set(places(record))
    assert torch.equal(model(X4), before)
    swap(model, "iglu:1", only="relu_1")
    h = iglu.iglu(model.fc(X4), 1.0) + F.gelu(X4)
    torch.testing.assert_close(model(X4), h if kind is NewStyle else F.silu(h))


def test_closures_private_names_defaults_and_nested_functions_keep_working() -> None:
    scale = 3.0

    class Private(nn.Module):
        __factor = 2.0

        def __init__(self) -> None:
            super().__init__()
            self.__fc = nn.Linear(4, 4)

        def __act(self, x: Tensor, shift: float = 0.25, *, gain: float = 0.5) -> Tensor:
            return F.relu(self.__fc(x) + shift) * self.__factor * gain

        def forward(self, x: Tensor, bias: float = 1.0) -> Tensor:
            def inner(y: Tensor) -> Tensor:
                return F.silu(y) * scale

            return inner(self.__act(x)) + sum(F.gelu(row) for row in x) + bias

    model = Private()
    before = model(X4)
    record = swap(model, {"relu_1": "relu", "silu_1": "silu", "gelu_1": "gelu"})
    assert len(record.replaced) == 3
    assert torch.equal(model(X4), before)
    scale = 4.0  # the cell is shared, not copied
    assert not torch.equal(model(X4), before)


def test_decorators_are_kept() -> None:
    def doubled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(function)
        def wrapper(self: nn.Module, *args: Any) -> Tensor:
            return 2 * function(self, *args)

        return wrapper

    def bare(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrapper(self: nn.Module, x: Tensor) -> Tensor:
            return function(self, x) + 1

        return wrapper

    class Decorated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        @torch.no_grad()
        @doubled
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.fc(x)) + self.other(x)

        @bare
        def other(self, x: Tensor) -> Tensor:
            return F.silu(self.fc(x))

    model = Decorated()
    before = model(X4)
    record = swap(model, {"relu_1": "relu", "silu_1": "silu"})
    assert len(record.replaced) == 2
    assert torch.equal(model(X4), before)
    assert not model(X4).requires_grad
    swap(model, "iglu:1")
    h = model.fc(X4)
    torch.testing.assert_close(model(X4), 2 * (iglu.iglu(h, 1.0) + iglu.iglu(h, 1.0) + 1))


def test_a_checkpointed_method_is_rewritten() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def inner(self, x: Tensor) -> Tensor:
            return F.relu(self.fc(x))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointed()
    assert places(swap(model, "iglu:1")) == ["relu_1"]
    assert torch.equal(model(X4), iglu.iglu(model.fc(X4), 1.0))


def test_a_variable_changed_in_place_and_read_again_has_the_new_value() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc(x)
            y = F.relu(x, inplace=True)
            return x + 2 * y

    model = InPlace()
    before = model(X4)
    swap(model, "relu")
    assert torch.equal(model(X4), before)
    swap(model, "iglu:1")
    assert torch.equal(model(X4), 3 * iglu.iglu(model.fc(X4), 1.0))


class InPlaceByFlag(nn.Module):
    """In place by an attribute or by position, and the changed variable is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.inplace = nn.Linear(4, 4), True

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        y = F.relu(x, inplace=self.inplace)
        z = self.fc(y)
        return F.elu(z, 1.0, True) + x + z


def test_inplace_is_recognized_as_a_positional_argument_and_as_an_attribute() -> None:
    model = InPlaceByFlag()
    assert places(swap(model, "iglu:1")) == ["relu_1", "elu_1"]
    x = iglu.iglu(model.fc(X4), 1.0)
    torch.testing.assert_close(model(X4), x + 2 * iglu.iglu(model.fc(x), 1.0))


def test_in_place_calls_that_cannot_be_rewritten_are_reported_with_the_reason() -> None:
    class ReadBefore(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            return x + F.relu(x, inplace=True)

    class Renamed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            y = x
            x = F.relu(x, inplace=True)
            return x + y

    class Attribute(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = super().forward(x)
            return torch.relu_(self.kept) + self.kept

    class Item(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            xs = [super().forward(x)]
            return xs[0].relu_() + xs[0]

    class Argument(nn.Linear):
        def forward(self, x: Tensor, inplace: bool = True) -> Tensor:
            x = super().forward(x)
            return F.relu(x, inplace=inplace) + x

    for kind, reason in [
        (ReadBefore, "changes x in place, which the same statement reads before the call"),
        (Renamed, "changes x in place, which has another name"),
        (Attribute, "changes self.kept in place"),
        (Item, r"changes xs[0] in place"),
        (Argument, "may change x in place"),
    ]:
        (found,) = _left(nn.Sequential(kind(4, 4)))
        assert reason in found, kind

    class Residual(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            shortcut = x
            x = super().forward(x)
            x = F.relu(x, inplace=True)  # not the tensor that has another name
            self.kept = super().forward(x)
            self.kept = F.relu(self.kept, inplace=True)
            return self.kept + shortcut

    assert places(swap(Residual(4, 4), "iglu")) == ["relu_1", "relu_2"]


def test_a_call_inside_a_comparison_is_replaced_but_a_compared_function_is_not() -> None:
    class Compared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if (y := F.relu(self.fc(x))).sum() > 1e9 or F.relu is F.gelu:
                raise ValueError
            return y * (torch.relu(x) > 0)

    model = Compared()
    record = swap(model, "iglu:1")
    assert places(record) == ["relu_1", "relu_2"]
    assert record.functional == []
    assert torch.equal(model(X4), iglu.iglu(model.fc(X4), 1.0) * (X4 > 0))


def test_a_static_method_that_is_an_activation_is_replaced_where_it_is_called() -> None:
    class Static(nn.Linear):
        activation = staticmethod(F.relu)

        def forward(self, x: Tensor) -> Tensor:
            return self.activation(super().forward(x))

    model = nn.Sequential(Static(4, 4))
    assert places(swap(model, "iglu:1")) == ["0.activation_1"]
    assert torch.equal(model(X4), iglu.iglu(F.linear(X4, model[0].weight, model[0].bias), 1.0))


def relu(x, other):
    return x * F.relu(other)


def silu(x, *, scale):
    return scale * F.silu(x)


def test_a_function_of_several_values_is_not_an_activation_whatever_its_name() -> None:
    class Named(nn.Linear):
        def swish(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(self.weight[0] * x)  # learns

        def gelu(self, x: Tensor) -> Tensor:
            return F.gelu(super().forward(x))

        def mish(self, x: Tensor) -> Tensor:
            return x * torch.tanh(F.softplus(x))

        def forward(self, x: Tensor) -> Tensor:
            return relu(self.swish(x), self.mish(x)) + silu(self.gelu(x), scale=3.0)

    model = Named(4, 4)
    weight, bias = model.weight, model.bias
    record = swap(model, {"relu_*": "relu", "silu_*": "silu", "gelu_*": "gelu", "mish_*": "iglu:1"})
    assert sorted(places(record)) == ["gelu_1", "mish_1", "relu_1", "silu_1"]
    expected = X4 * torch.sigmoid(weight[0] * X4) * F.relu(iglu.iglu(X4, 1.0))
    torch.testing.assert_close(model(X4), expected + 3 * F.silu(F.gelu(F.linear(X4, weight, bias))))


class WithOwnFunction(nn.Module):
    """Each instance has functions of its own, made from the same source."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

        def body(x: Tensor) -> Tensor:
            return scale * F.relu(self.fc(x))

        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_functions_stored_on_different_instances_are_not_mixed_up() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(WithOwnFunction(), WithOwnFunction(100.0))
    before = [block(X4) for block in model]
    swap(model, "relu")
    assert all(map(torch.equal, [block(X4) for block in model], before))
    assert len({type(block) for block in model}) == 2
    assert all(map(torch.equal, [block(X4) for block in copy.deepcopy(model)], before))
    other = WithOwnFunction(5.0)
    expected = other(X4)
    swap(other, "relu")
    assert torch.equal(other(X4), expected)


def test_a_forward_that_was_decorated_between_two_swaps_keeps_its_decorator() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.fc(x))

    plain, decorated = Net(), Net()
    decorated.load_state_dict(plain.state_dict())
    swap(plain, "relu")
    forward = Net.forward

    @functools.wraps(forward)
    def doubled(self: Net, x: Tensor) -> Tensor:
        return 2 * forward(self, x)

    Net.forward = doubled  # type: ignore[method-assign]
    swap(decorated, "relu")
    assert torch.equal(decorated(X4), 2 * plain(X4))


class TwoNames(nn.Linear):
    def _computed(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))

    forward = _computed


class TwoNamesOfAMethod(nn.Linear):
    def features(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))

    _features = features

    def forward(self, x: Tensor) -> Tensor:
        return self._features(x)


@pytest.mark.parametrize("kind", [TwoNames, TwoNamesOfAMethod])
def test_a_method_with_two_names_is_replaced_under_the_one_that_is_called(kind: type[nn.Linear]) -> None:
    model = kind(4, 4)
    linear = F.linear(X4, model.weight, model.bias)
    assert places(swap(model, "iglu:1")) == ["relu_1"]
    torch.testing.assert_close(model(X4), iglu.iglu(linear, 1.0))


def act(x: Tensor) -> Tensor:
    y = F.gelu(x)
    return y  # noqa: RET504


class OtherMeaning(nn.Linear):
    """Names of activations stand for something else inside nested functions."""

    def forward(self, x: Tensor) -> Tensor:
        x = act(super().forward(x))

        def gated(h: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
            return h * act(h)

        def local(h: Tensor) -> Tensor:
            hyperbolic = torch.sin
            return hyperbolic(h)

        x = gated(x, torch.sigmoid) + local(x) + (lambda act: act(x))(torch.cos)
        return x + sum(act(x) for act in (torch.sin, torch.cos))


def test_a_name_bound_in_a_nested_function_is_not_taken_for_the_global_one() -> None:
    model = OtherMeaning(4, 4)
    before = model(X4)
    assert places(swap(model, "gelu", only=lambda *_: True)) == ["act_1"]
    torch.testing.assert_close(model(X4), before)


def test_an_import_inside_a_function_is_followed() -> None:
    class Importing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            import torch.nn.functional as inner
            from torch.nn.functional import gelu as smooth

            return smooth(inner.relu(super().forward(x)))

    model = Importing(4, 4)
    before = model(X4)
    record = swap(model, {"relu_1": "relu", "smooth_1": "gelu"})
    assert sorted(places(record)) == ["relu_1", "smooth_1"]
    assert torch.equal(model(X4), before)


TABLE = {"rectified": F.relu, "none": str}


def test_functions_in_a_dict_of_the_module_or_class_are_not_replaced_but_reported_with_a_reason() -> None:
    class Choosing(nn.Linear):
        table: ClassVar[list[Any]] = [F.gelu]

        def forward(self, x: Tensor) -> Tensor:
            return TABLE["rectified"](self.table[0](F.silu(super().forward(x))))

    with pytest.warns(UserWarning, match="2 calls of activations in Choosing were not replaced"):
        record = swap(Choosing(4, 4), "iglu")
    assert places(record) == ["silu_1"]
    assert {each.call: each.reason.partition(":")[0] for each in record.functional} == {
        "TABLE['rectified']": "it is in a dict",
        "self.table[0]": "it is in a list",
    }


class Pixels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0, 255)


class AboveZero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(x, min=1e-12)


class Rectified(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(x, min=0)


def test_a_clamp_counts_as_relu_only_if_its_only_bound_is_0() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Pixels(), AboveZero(), Rectified())
    assert places(swap(model, "iglu")) == ["3"]


def test_a_model_with_a_compiled_forward_runs_the_new_forward() -> None:
    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        @torch.compile(backend="eager")
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.fc(x))

    model = Compiled()
    swap(model, "iglu:1")
    torch._dynamo.reset()
    for each in (model, torch.compile(model, backend="eager")):
        torch.testing.assert_close(each(X4), iglu.iglu(model.fc(X4), 1.0))


# -- swapping in the same activation changes nothing -------------------------------------------------

ORIGINAL = {
    "relu_*": "relu", "relu6_*": nn.ReLU6, "gelu_*": lambda: nn.GELU("tanh"), "silu_*": "silu",
    "swish_*": swish, "smooth_*": smooth, "leaky_relu_*": lambda: nn.LeakyReLU(0.1), "elu_*": "elu",
    "mish_*": "mish",
}  # fmt: skip


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def original_activations(model: nn.Module) -> dict[str, Any]:
    """The present activation of each call site of the model."""
    from iglu.surgery.sites import find_sites

    found = {}
    for site in find_sites(model):
        if site.call is not None and site.is_default:
            name = site.path[0].rpartition("_")[0]
            made = ORIGINAL[f"{name}_*"]
            helper = functools.partial(_Function, made) if made in (swish, smooth) else made
            found[site.place] = helper
    return found


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (ResNet(), torch.randn(2, 3, 8, 8)),
        (DenseLayer(), images()),
        (SqueezeExcite(), images()),
        (Inverted(), images()),
        (Spellings(), X4),
        (Helpers(), X4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_swapping_in_the_same_activation_gives_bit_identical_outputs_and_gradients(
    model: nn.Module, x: Tensor
) -> None:
    swapped = copy.deepcopy(model)
    record = swap(swapped, original_activations(swapped))
    assert record.replaced
    results = []
    for each in (model, swapped):
        leaf = x.clone().requires_grad_()
        out = each(leaf)
        out.square().sum().backward()
        results.append([out, leaf.grad, *(p.grad for p in each.parameters())])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


# -- undo and repeated swaps -------------------------------------------------------------------------


def test_undo_restores_classes_children_and_state_exactly() -> None:
    model = ResNet()
    kept = {name: list(vars(module)) for name, module in model.named_modules()}
    classes = {name: type(module) for name, module in model.named_modules()}
    swap(model, "iglu:learnable").undo()
    assert {name: list(vars(module)) for name, module in model.named_modules()} == kept
    assert {name: type(module) for name, module in model.named_modules()} == classes


def test_a_second_swap_replaces_the_modules_of_the_first_and_undo_runs_in_reverse_order() -> None:
    model = BasicBlock(4)
    first = swap(model, "iglu:1", only="relu_2")
    second = swap(model, "iglu:2")
    assert places(second) == ["relu_2", "relu_1"]
    with pytest.raises(RuntimeError, match="Undo later swaps first"):
        first.undo()
    second.undo()
    assert model.relu_2.sigma == 1.0
    assert not hasattr(model, "relu_1")
    first.undo()
    assert type(model) is BasicBlock


def test_undo_raises_if_the_class_was_changed_after_the_swap() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x * self.weight)

    model = Weighted()
    record = swap(model, "iglu:1")
    parametrize.register_parametrization(model, "weight", Doubled())
    torch.testing.assert_close(model(X4), iglu.iglu(2 * X4, 1.0))
    with pytest.raises(RuntimeError, match=r"class of the model is now ParametrizedWeighted, which was set"):
        record.undo()
    parametrize.remove_parametrizations(model, "weight")
    record.undo()
    assert type(model) is Weighted


# -- state -----------------------------------------------------------------------------------------


def test_without_learnable_parameters_the_state_dict_is_unchanged() -> None:
    model = ResNet()
    before = list(model.state_dict())
    swap(model, "iglu:5")
    assert list(model.state_dict()) == before
    model.load_state_dict(ResNet().state_dict())


def test_learned_sigmas_save_and_load_after_the_same_swap() -> None:
    model, other = ResNet().eval(), ResNet().eval()
    for each in (model, other):
        swap(each, "iglu:learnable=2")
    with torch.no_grad():
        model.relu_1.log_sigma.fill_(0.3)
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(x), other(x))
    assert "layer1.0.relu_2.log_sigma" in model.state_dict()
    groups = iglu.weight_decay_groups(model, 0.1)
    assert len(groups[1]["params"]) == 5


# -- with the rest of torch --------------------------------------------------------------------------


@pytest.fixture
def swapped() -> nn.Module:
    model = ResNet().eval()
    swap(model, "iglu:2")
    return model


X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


def test_a_swapped_model_keeps_isinstance_and_the_names_of_its_class(swapped: nn.Module) -> None:
    assert isinstance(swapped, ResNet)
    cls = type(swapped)
    assert (cls.__name__, cls.__qualname__, cls.__module__) == ("ResNet", "ResNet", __name__)
    assert repr(swapped).startswith("ResNet(")


def test_a_new_instance_of_the_class_of_a_swapped_model_is_not_swapped(swapped: nn.Module) -> None:
    new = type(swapped)(width=2, blocks=1)
    assert type(new) is ResNet
    new(X)


def test_deepcopy_is_independent(swapped: nn.Module) -> None:
    other = copy.deepcopy(swapped)
    assert torch.equal(other(X), swapped(X))
    other.relu_1.sigma = 7.0
    assert swapped.relu_1.sigma == 2.0
    assert type(other) is type(swapped)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickle_restores_the_model(swapped: nn.Module, protocol: int) -> None:
    other = pickle.loads(pickle.dumps(swapped, protocol))
    assert torch.equal(other(X), swapped(X))
    assert type(other) is type(swapped)


def test_torch_save_of_a_complete_model_loads_in_another_process(swapped: nn.Module, tmp_path: Path) -> None:
    torch.save((swapped, X, swapped(X)), tmp_path / "model.pt")
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import torch\nmodel, x, y = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "assert torch.equal(model(x), y) and model.relu_1.sigma == 2.0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_loading_a_model_whose_source_has_changed_reports_the_change(tmp_path: Path) -> None:
    text = (
        "from torch import nn\nfrom torch.nn import functional as F\nclass Net(nn.Linear):\n"
        "    def forward(self, x):\n        return F.relu(super().forward(x) + 1)\n"
    )
    (tmp_path / "changing_model.py").write_text(text)
    run = functools.partial(subprocess.run, capture_output=True, text=True, cwd=tmp_path, check=False)
    save = (
        "import torch, iglu, changing_model as m; n = m.Net(2, 2); iglu.swap(n, 'iglu'); "
        "torch.save(n, 'n.pt')"
    )
    load = "import torch; torch.load('n.pt', weights_only=False)"
    assert run([sys.executable, "-c", save]).returncode == 0
    assert run([sys.executable, "-c", load]).returncode == 0
    (tmp_path / "changing_model.py").write_text(text.replace("+ 1", "+ 22"))
    assert "source has changed since" in run([sys.executable, "-c", load]).stderr


def test_jit_trace_gives_the_same_outputs(swapped: nn.Module) -> None:
    assert torch.allclose(torch.jit.trace(swapped, X)(X), swapped(X))


def test_jit_script_compiles_the_new_source() -> None:
    model = BasicBlock(4).eval()
    swap(model, nn.Softsign)
    assert torch.equal(torch.jit.script(model)(images()), model(images()))


def test_compile_captures_one_full_graph_and_instances_share_a_class(swapped: nn.Module) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(swapped, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X), swapped(X))
    one, other = BasicBlock(4), BasicBlock(4)
    swap(one, "iglu:1")
    swap(other, "iglu:1")
    assert type(one) is type(other)


def test_export_and_fx_give_the_same_outputs(swapped: nn.Module) -> None:
    exported = torch.export.export(swapped, (X,)).module()
    torch.testing.assert_close(exported(X), swapped(X))
    traced = torch.fx.symbolic_trace(swapped)
    torch.testing.assert_close(traced(X), swapped(X))


def test_replicas_for_data_parallel_run_the_new_forward() -> None:
    model = BasicBlock(4).eval()
    swap(model, "iglu:2")
    replica = model._replicate_for_data_parallel()
    assert torch.equal(replica(images()), model(images()))


def test_two_instances_of_a_class_may_have_different_activations() -> None:
    one, other, third = BasicBlock(4).eval(), BasicBlock(4).eval(), BasicBlock(4).eval()
    other.load_state_dict(one.state_dict())
    third.load_state_dict(one.state_dict())
    swap(one, "iglu:1")
    swap(other, "iglu:9")
    assert not torch.equal(one(images()), other(images()))
    h = F.relu(one.bn1(one.conv1(images())))
    assert torch.equal(third(images()), F.relu(one.bn2(one.conv2(h)) + images()))


def test_a_shared_instance_is_swapped_once() -> None:
    block = BasicBlock(4)
    model = nn.Sequential(block, block)
    assert places(swap(model, "iglu:1")) == ["0.relu_1", "0.relu_2"]
    assert model[0] is model[1]


def test_swapping_an_instance_of_a_subclass_does_not_call_init_subclass() -> None:
    class Named(BasicBlock):
        registered: ClassVar[list[type]] = []

        def __init_subclass__(cls) -> None:
            Named.registered.append(cls)

    model = Named(4)
    swap(model, "iglu:1")
    assert isinstance(model, Named)
    assert Named.registered == []


def test_tracebacks_show_the_rewritten_line_with_its_original_number(swapped: nn.Module) -> None:
    import inspect

    lines, first = inspect.getsourcelines(type(swapped).forward)
    assert any("self.relu_1(self.bn1(self.conv1(x)))" in line for line in lines)
    assert first == inspect.getsourcelines(ResNet.forward)[1]


def test_hooks_on_new_modules_are_called() -> None:
    model, seen = BasicBlock(4), []
    swap(model, "iglu:1")
    model.relu_2.register_forward_hook(lambda *_: seen.append("relu_2"))
    model(images())
    assert seen == ["relu_2"]


# -- with the rest of iglu -----------------------------------------------------------------------------


def test_probe_gives_calls_the_same_names_before_and_after_a_swap() -> None:
    model = ResNet(blocks=1).eval()
    x = torch.randn(4, 3, 8, 8)
    before = iglu.probe(model, [x]).suggest_sigma("nearest").by_layer
    record = swap(model, "iglu:2")
    assert sorted(before) == sorted(places(record))
    after = iglu.probe(model, [x])
    assert {layer.name for layer in after.layers} == set(places(record))


def test_probe_distinguishes_the_calls_of_a_helper() -> None:
    found = iglu.probe(Helpers(), [torch.randn(64, 4)]).suggest_sigma("nearest").by_layer
    assert sorted(found) == ["relu_1", "relu_2", "silu_1", "silu_2"]


def test_recalibrate_and_to_relu_treat_call_sites_as_layers() -> None:
    torch.manual_seed(0)
    model = ResNet(8, 1).eval()
    batches = list(torch.randn(6, 16, 3, 8, 8))
    swap(model, "iglu:2", recalibrate=batches)
    record = iglu.to_relu(model, batches)
    assert {"layer1.0.conv1", "layer1.0.conv2", "linear"} <= {
        each.place for each in (*record.corrected, *record.left)
    }
    assert all(isinstance(model.get_submodule(place), nn.ReLU) for place in ("relu_1", "layer1.0.relu_1"))
    record.undo()
    assert isinstance(model.relu_1, iglu.IGLU)


def test_a_functional_iglu_is_converted_to_relu() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(iglu.iglu(self.a(x), 5.0))

    model = Net()
    iglu.to_relu(model, torch.randn(8, 16, 4).unbind())
    torch.testing.assert_close(model(X4), model.b(F.relu(model.a(X4))))


def test_code_objects_are_compared_without_the_order_of_their_sets() -> None:
    code = (lambda number: number in {0, 8}).__code__

    def having(constant: frozenset[int]) -> types.CodeType:
        constants = (constant if isinstance(each, frozenset) else each for each in code.co_consts)
        return code.replace(co_consts=tuple(constants))

    one, other = frozenset([0, 8]), frozenset([8, 0])  # 0 and 8 collide in a table of eight
    assert repr(one) != repr(other)
    assert is_same_code(having(one), having(other))
    assert not is_same_code(having(one), having(frozenset([0])))
    assert not is_same_code(having(one), having(frozenset([False, 8])))  # False == 0


def test_the_number_of_parses_does_not_grow_with_the_calls_in_a_forward() -> None:
    lines = "\n".join(f"        x = F.relu(self.fc(x) + {number})" for number in range(200))
    text = f"class Long(nn.Module):\n    def forward(self, x):\n{lines}\n        return x\n"
    names: dict[str, Any] = {"nn": nn, "F": F, "__name__": "long_model"}
    filename = "<long model>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(textwrap.dedent(text), filename, "exec"), names)
    model = names["Long"]()
    model.fc = nn.Linear(4, 4)
    counted, parse = [], ast.parse

    def counting(*args: Any, **options: Any) -> Any:
        counted.append(args)
        return parse(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ast, "parse", counting)
        assert len(swap(model, "iglu:1").replaced) == 200
    assert len(counted) < 12
    assert model(X4).isfinite().all()
