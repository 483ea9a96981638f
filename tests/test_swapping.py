"""swap() on plain torch models; transformers and timm have files of their own."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import iglu
from iglu.surgery import swap
from iglu.surgery.activations import name_of


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Sigmoid()),
        nn.Linear(8, 2),
    )


def places(record: iglu.surgery.Swap) -> list[str]:
    return [each.place for each in record.replaced]


def swap_without_matches(model: nn.Module) -> iglu.surgery.Swap:
    """A swap that finds nothing to replace."""
    with pytest.warns(UserWarning, match="Nothing was replaced"):
        return swap(model, "iglu")


@pytest.mark.parametrize(
    "activation",
    [
        nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.ELU(), nn.CELU(), nn.SELU(), nn.GELU(), nn.GELU("tanh"),
        nn.SiLU(), nn.Mish(), nn.Hardswish(),
    ],
    ids=str,
)  # fmt: skip
def test_the_usual_activations_are_replaced(activation: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 2), activation)
    assert places(swap(model, "iglu:0.5")) == ["1"]
    x = torch.randn(3, 2)
    assert torch.equal(model(x), iglu.iglu(model[0](x), 0.5))


@pytest.mark.parametrize(
    "left",
    [
        nn.Sigmoid(), nn.Tanh(), nn.Softplus(), nn.Softmax(-1), nn.GLU(), nn.PReLU(), nn.Hardsigmoid(),
        nn.Hardtanh(), nn.RReLU(), nn.Identity(), nn.Dropout(), iglu.IGLUGate(), iglu.create("squareplus"),
    ],
    ids=str,
)  # fmt: skip
def test_gates_and_learnable_activations_are_not_replaced(left: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 2), left)
    record = swap_without_matches(model)
    assert model[1] is left
    assert (record.replaced, record.functional, record.not_saved) == ([], [], [])


def test_a_subclass_is_replaced_only_if_it_computes_the_same() -> None:
    class Renamed(nn.ReLU):
        pass

    class Squared(nn.ReLU):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).square()

    class Scaled(nn.ReLU):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    assert places(swap(nn.Sequential(Renamed(), Squared(), Scaled()), "iglu")) == ["0"]


def test_the_record_and_its_repr_name_old_and_new_activations() -> None:
    record = swap(small_net(), "iglu:0.5")
    assert [(each.place, each.old, each.new) for each in record.replaced] == [
        ("1", "ReLU(inplace=True)", "IGLU(sigma=0.5)"),
        ("2.1", "GELU(approximate='none')", "IGLU(sigma=0.5)"),
    ]
    assert repr(record).splitlines() == [
        "Swap: 2 replaced, 0 functional calls left, 0 not saved",
        "  replaced 1: ReLU(inplace=True) -> IGLU(sigma=0.5)",
        "  replaced 2.1: GELU(approximate='none') -> IGLU(sigma=0.5)",
    ]


def test_the_repr_of_the_record_puts_similar_layers_on_one_line() -> None:
    record = swap(nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(12)]), "iglu")
    assert repr(record).splitlines()[1:] == ["  replaced *.* (12 times): ReLU() -> IGLU(sigma=5)"]


@pytest.mark.parametrize(
    ("model", "there"),
    [
        (nn.Sequential(nn.Linear(2, 2)), "It has no activation that swap recognizes."),
        (nn.Sequential(nn.Tanh(), nn.PReLU()), "Replaced only by type or exact place: Tanh() at '0'; PReLU("),
        (nn.Sequential(*[nn.Tanh()] * 9), "Tanh() at '4'; and 4 more."),
    ],
)
def test_a_swap_without_matches_warns_and_lists_the_activations_of_the_model(
    model: nn.Module, there: str
) -> None:
    with pytest.warns(UserWarning, match="Nothing was replaced in Sequential") as caught:
        record = swap(model, "iglu")
    assert there in str(caught[0].message)
    assert caught[0].filename == __file__
    assert (record.replaced, record.functional, record.not_saved) == ([], [], [])


def test_the_warning_of_a_swap_without_matches_names_the_calls_that_cannot_be_replaced() -> None:
    class Discards(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            F.relu(x, inplace=True)
            return super().forward(x)

    with pytest.warns(
        UserWarning, match=r"cannot be replaced: F\.relu\(x, inplace=True\) \(test_swapping\.py:"
    ):
        swap(nn.Sequential(Discards(2, 2)), "iglu")


def test_a_swap_that_fails_half_way_leaves_the_model_as_it_was() -> None:
    class Frozen(nn.Linear):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "relu_2":
                raise AttributeError(name)
            super().__setattr__(name, value)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(F.relu(super().forward(x)))

    model = nn.Sequential(Frozen(2, 2), nn.ReLU())
    relu = model[1]
    with pytest.raises(AttributeError, match="relu_2"):
        swap(model, "iglu")
    assert type(model[0]) is Frozen
    assert list(model[0]._modules) == []
    assert model[1] is relu


def test_inplace_is_dropped_unless_requested() -> None:
    model = small_net()
    swap(model, "iglu")
    assert not model[1].inplace
    swap(model, lambda: iglu.IGLU(inplace=True))
    assert model[1].inplace


# ------------------------------------------------------------------------------------ repeated swaps and undo


@pytest.mark.parametrize(
    "first", ["iglu", "iglu_approx:learnable", "atlu", "xatlu", "gelu_a:2", "relu2", "telu", "golu", "xielu"]
)
def test_a_second_swap_replaces_the_activations_of_this_library_too(first: str) -> None:
    model = small_net()
    swap(model, first)
    for sigma in (0.1, 1.0, 10.0):
        assert places(swap(model, f"iglu:{sigma}")) == ["1", "2.1"]
        assert (model[1].sigma, model[2][1].sigma) == (sigma, sigma)
    swap(model, "relu")
    assert (type(model[1]), type(model[2][1])) == (nn.ReLU, nn.ReLU)


def test_an_iglu_function_in_an_attribute_is_replaced() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=iglu.iglu, batch_first=True)
    record = swap(layer, "iglu:0.5")
    assert [(each.place, each.old) for each in record.replaced] == [("activation", "iglu")]


def test_undo_restores_the_same_modules_functions_and_flags() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.ModuleDict({"net": small_net(), "encoder": nn.TransformerEncoder(layer, 1)}).eval()
    relu, function = model["net"][1], model["encoder"].layers[0].activation
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    record = swap(model, "iglu:learnable=0.5")
    assert not model["encoder"].use_nested_tensor
    record.undo()
    assert model["net"][1] is relu
    assert model["encoder"].layers[0].activation is function
    assert "activation" not in model["encoder"].layers[0]._modules
    assert model["encoder"].layers[0].activation_relu_or_gelu == 1
    assert model["encoder"].use_nested_tensor
    assert [name for name, _ in model["net"].named_children()] == ["0", "1", "2", "3"]
    assert model.state_dict().keys() == kept.keys()
    record.undo()  # once more does nothing
    assert model["net"][1] is relu


def test_restored_modules_have_the_training_mode_of_the_model() -> None:
    model = small_net()
    record = swap(model, "iglu")
    model.eval()
    record.undo()
    assert not model[1].training


def test_swaps_are_undone_in_reverse_order_and_not_otherwise() -> None:
    model = small_net()
    relu = model[1]
    first = swap(model, "iglu:1")
    second = swap(model, "iglu:2", only="2.1")
    with pytest.raises(RuntimeError, match=r"2\.1 was changed after this swap\. Undo later"):
        first.undo()
    assert model[1].sigma == 1.0  # nothing was touched
    second.undo()
    first.undo()
    assert model[1] is relu


def test_hooks_move_to_the_new_module_and_their_handles_remove_them() -> None:
    model, seen = small_net(), []
    handles = [
        model[1].register_forward_hook(lambda *_, **__: seen.append("after"), with_kwargs=True),
        model[1].register_forward_pre_hook(lambda *_, **__: seen.append("before")),
        model[1].register_forward_pre_hook(lambda *given: seen.append(len(given)), with_kwargs=True),
        model[1].register_full_backward_hook(lambda *_: seen.append("backward")),
    ]
    swap(model, "iglu")
    model(torch.randn(2, 4)).sum().backward()
    assert seen == ["before", 3, "after", "backward"]
    for handle in handles:
        handle.remove()
    model(torch.randn(2, 4)).sum().backward()
    assert len(seen) == 4


def test_a_hook_with_always_call_runs_after_a_failure_too() -> None:
    model, seen = small_net(), []
    model[1].register_forward_hook(lambda *_: seen.append("after"), always_call=True)
    swap(model, "iglu")
    with pytest.raises(Exception, match=r"."):
        model[1]("no tensor")
    assert seen == ["after"]


def test_the_hooks_of_a_module_used_twice_become_independent() -> None:
    shared, seen = nn.ReLU(), []
    shared.register_forward_hook(lambda module, *_: seen.append(module))
    model = nn.Sequential(shared, nn.Linear(2, 2), shared)
    swap(model, "iglu")
    model(torch.randn(3, 2))
    assert seen == [model[0], model[2]]
    model[0].register_forward_hook(lambda *_: seen.append(None))
    model(torch.randn(3, 2))
    assert seen.count(None) == 1


def test_the_record_is_a_table_in_a_notebook() -> None:
    model = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.Linear(2, 2))
    model.add_module("<b>", nn.GELU())
    shown = swap(model, "iglu:0.5")._repr_html_()
    assert "Swap: 3 replaced" in shown
    assert "* (2 times)" in shown
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert shown.count("<tr>") == shown.count("</tr>") == 3


# -------------------------------------------------------------------------------------- the new activation


def test_a_factory_is_called_once_for_each_place() -> None:
    made = []

    def factory() -> nn.Module:
        made.append(iglu.IGLU(0.25))
        return made[-1]

    model = small_net()
    swap(model, factory)
    assert [model[1], model[2][1]] == made
    assert made[0] is not made[1]


def test_a_class_is_a_factory() -> None:
    model = small_net()
    swap(model, nn.SiLU)
    assert isinstance(model[1], nn.SiLU)


def test_an_instance_is_copied_for_each_place() -> None:
    model = small_net()
    instance = iglu.IGLU(2.0, learnable=True)
    swap(model, instance)
    assert len({id(instance), id(model[1]), id(model[2][1])}) == 3
    assert model[1].log_sigma.item() == pytest.approx(math.log(2))


def test_a_mapping_gives_each_place_its_own_and_leaves_the_rest() -> None:
    model = nn.Sequential(*[nn.ReLU() for _ in range(4)])
    to = {"0": "iglu:0.5", "1": lambda: iglu.IGLU(3.0), "[23]": nn.SiLU(), "3": "iglu_approx"}
    record = swap(model, to)
    assert [each.new for each in record.replaced] == [
        "IGLU(sigma=0.5)", "IGLU(sigma=3)", "SiLU()", "IGLU(sigma=5, approximate='rational')",
    ]  # fmt: skip
    model = small_net()
    assert places(swap(model, {"1": "iglu"})) == ["1"]
    assert isinstance(model[2][1], nn.GELU)


def test_a_mapping_to_a_place_that_does_not_exist_raises_and_changes_nothing() -> None:
    model = small_net()
    with pytest.raises(ValueError, match=r"no activation at '7.act'. Places of this model: 1; 2.1"):
        swap(model, {"1": "iglu", "7.act": "iglu"})
    assert isinstance(model[1], nn.ReLU)


def test_a_pattern_whose_places_are_all_named_exactly_raises() -> None:
    with pytest.raises(ValueError, match=r"no activation at '\[1\]'"):
        swap(small_net(), {"1": "iglu", "[1]": "iglu:2"})


@pytest.mark.parametrize("name", ["iglu:", "iglu:x", "iglu:learnable=", "relu:2", "igul", "iglu:-1", "IGLU"])
def test_malformed_and_unknown_names_raise_and_change_nothing(name: str) -> None:
    model = small_net()
    with pytest.raises(ValueError, match=r"[Aa]ctivation"):
        swap(model, name)
    assert isinstance(model[1], nn.ReLU)


def test_an_unknown_name_raises_with_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match=r"Did you mean 'iglu'"):
        swap(small_net(), "igul")


def test_arguments_of_invalid_types_raise() -> None:
    with pytest.raises(TypeError, match=r"to must be a name, a module, a callable or a mapping .* got 0.5"):
        swap(small_net(), 0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"to must return an nn\.Module"):
        swap(small_net(), lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="only must be"):
        swap(small_net(), "iglu", only=[3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"only must be a pattern, a type, .* got ReLU\(\)"):
        swap(small_net(), "iglu", only=nn.ReLU())
    with pytest.raises(TypeError, match=r"keys of to must be a pattern, a type, .* got 1"):
        swap(small_net(), {1: "iglu"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"to must return an nn\.Module when called without .* relu\(\)"):
        swap(small_net(), F.relu)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got str"):
        swap("resnet50", "iglu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="but is one itself"):
        swap(nn.ReLU(), "iglu")


# -------------------------------------------------------------------------------------- places


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("1", ["1"]),
        ("2.*", ["2.1"]),
        ("*", ["1", "2.1"]),
        (nn.GELU, ["2.1"]),
        (nn.Sigmoid, ["2.2"]),
        ("2.2", ["2.2"]),
        (nn.Module, ["1", "2.1"]),
        (lambda place, module: isinstance(module, nn.ReLU), ["1"]),
        ([nn.GELU, "1"], ["1", "2.1"]),
        ((nn.Sigmoid, lambda place, module: place == "1"), ["1", "2.2"]),
        ([nn.GELU, nn.SiLU], ["2.1"]),
    ],
)
def test_only_selects_the_activations_to_replace(only: object, expected: list[str]) -> None:
    assert places(swap(small_net(), "iglu", only=only)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("only", [[], "nowhere.*", "2", nn.SiLU, [nn.SiLU, "nowhere"]])
def test_an_only_that_matches_nothing_warns_and_lists_the_activations_of_the_model(only: object) -> None:
    model = small_net()
    with pytest.warns(UserWarning, match=r"only=... matches nothing in Sequential.*It has ReLU\(.*\) at '1'"):
        assert swap(model, "iglu", only=only).replaced == []  # type: ignore[arg-type]
    assert isinstance(model[1], nn.ReLU)


def test_a_pattern_that_matches_nothing_is_named_if_others_match() -> None:
    with pytest.warns(UserWarning, match=r"No activation of Sequential matches only='layer9\.\*'"):
        record = swap(small_net(), "iglu", only=["1", "layer9.*"])
    assert places(record) == ["1"]


def test_a_module_selected_by_its_type_is_replaced_with_everything_inside() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

    assert places(swap(nn.Sequential(Pair(), nn.ReLU()), "iglu", only=[Pair, nn.ReLU])) == ["0", "1"]


def test_one_instance_at_two_places_becomes_two_modules() -> None:
    shared = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), shared, nn.Linear(2, 2), shared)
    assert places(swap(model, "iglu:learnable")) == ["1", "3"]
    assert model[1] is not model[3]
    assert len([name for name, _ in model.named_parameters() if "log_sigma" in name]) == 2


def test_a_block_used_twice_stays_one_block() -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(block, block)
    assert places(swap(model, "iglu:learnable")) == ["0.1"]
    assert model[0] is model[1]


def test_an_empty_sequential_is_skipped() -> None:
    model = nn.ModuleDict({"empty": nn.Sequential(), "act": nn.ReLU()})
    assert places(swap(model, "iglu")) == ["act"]


# -------------------------------------------------------------------------------------- mode, dtype and state


def test_new_modules_have_the_training_mode_of_the_old_ones() -> None:
    model = small_net().eval()
    model[2].train()
    swap(model, "iglu")
    assert not model[1].training
    assert model[2][1].training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_learnable_sigma_has_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    model = small_net().to(dtype)
    swap(model, "iglu:learnable=0.5")
    assert model[1].log_sigma.dtype == dtype
    model(torch.randn(3, 4, dtype=dtype)).sum().backward()
    assert 0 < model[1].log_sigma.grad.abs() < math.inf


def test_dtype_and_device_are_those_of_the_nearest_layer() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(2, 2, device="meta"), nn.Sequential(nn.ReLU())),
        nn.Sequential(nn.Linear(2, 2, dtype=torch.bfloat16), nn.Sequential(nn.ReLU())),
    )
    swap(model, "iglu:learnable")
    assert model[0][1][0].log_sigma.device.type == "meta"
    assert model[1][1][0].log_sigma.dtype == torch.bfloat16


def test_a_quantized_neighbor_does_not_decide_the_dtype() -> None:
    linear = nn.Linear(2, 2)
    linear.weight = nn.Parameter(linear.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    linear.bias = nn.Parameter(linear.bias.detach().bfloat16())
    model = nn.Sequential(linear, nn.ReLU())
    swap(model, "iglu:learnable")
    assert model[1].log_sigma.dtype == torch.bfloat16


def test_a_fixed_sigma_adds_nothing_to_the_state_dict() -> None:
    model = small_net()
    before = list(model.state_dict())
    swap(model, "iglu:0.5")
    assert list(model.state_dict()) == before


def test_sigma_is_learned_in_every_place() -> None:
    model = small_net()
    swap(model, "iglu:learnable")
    model(torch.randn(5, 4)).square().sum().backward()
    assert model[1].log_sigma.grad.abs() > 0
    assert model[2][1].log_sigma.grad.abs() > 0


@pytest.mark.parametrize("activation", ["relu", "gelu", F.relu, nn.ReLU()])
@pytest.mark.parametrize("padded", [False, True])
def test_a_swapped_transformer_layer_does_not_use_its_fused_path(activation: object, padded: bool) -> None:
    def encoder(activation: object) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True)  # type: ignore[arg-type]
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=activation is not iglu.iglu).eval()

    model, expected = encoder(activation), encoder(iglu.iglu)
    expected.load_state_dict(model.state_dict())
    assert places(swap(model, "iglu")) == ["layers.0.activation", "layers.1.activation"]
    x = torch.randn(2, 5, 8)
    mask = torch.arange(5).expand(2, 5) >= torch.tensor([[5], [3]]) if padded else None
    with torch.no_grad():
        got, want = (each(x, src_key_padding_mask=mask) for each in (model, expected))
    keep = ~mask if mask is not None else torch.ones(2, 5, dtype=torch.bool)
    torch.testing.assert_close(got[keep], want[keep])


# -------------------------------------------------------------------------------------- functional calls


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        x = torch.nn.functional.gelu(x, approximate="tanh")
        x = torch.relu(x) + self.conv(x).relu() + self.helper(x) + halved_silu(x)
        return module_level_gelu(x) + nn.Mish()(x) + torch.sigmoid(x)

    def helper(self, x: Tensor) -> Tensor:
        act = F.leaky_relu
        return act(x)


def halved_silu(x: Tensor) -> Tensor:
    return F.silu(x) / 2 + swish(x)


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


module_level_gelu = nn.GELU()


class FunctionalChild(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize("kind", [Functional, FunctionalChild])
def test_calls_inside_a_forward_are_replaced_and_listed_in_their_order(kind: type[nn.Module]) -> None:
    record = swap(nn.ModuleDict({"block": kind(), "act": nn.ReLU()}), "iglu")
    assert record.functional == []
    assert [(each.place, each.old) for each in record.replaced] == [
        ("block.relu_1", "F.relu"),
        ("block.gelu_1", "torch.nn.functional.gelu"),
        ("block.relu_2", "torch.relu"),
        ("block.relu_3", "relu"),
        ("block.leaky_relu_1", "F.leaky_relu"),
        ("block.silu_1", "F.silu"),
        ("block.swish_1", "swish"),
        ("block.module_level_gelu_1", "module_level_gelu"),
        ("block.mish_1", "nn.Mish"),
        ("act", "ReLU()"),
    ]
    assert all(each.source.startswith("test_swapping.py:") for each in record.replaced[:-1])


def test_the_line_of_a_call_is_the_line_in_the_file() -> None:
    record = swap(nn.ModuleDict({"block": Functional()}), "iglu")
    (source,) = [each.source for each in record.replaced if each.old == "torch.relu"]
    with open(__file__, encoding="utf-8") as file:
        assert "x = torch.relu(x)" in file.readlines()[int(source.split(":")[1]) - 1]


def test_analyzing_a_forward_runs_no_code_and_does_not_need_its_source() -> None:
    class Trap(nn.Module):
        @property
        def activation(self) -> object:
            raise AssertionError("a property was asked")

        def forward(self, x: Tensor) -> Tensor:
            return self.activation(x)

    without_source = type("Unseen", (nn.Module,), {"forward": eval("lambda self, x: F.relu(x)", {"F": F})})
    assert swap_without_matches(nn.Sequential(Trap(), without_source())).functional == []


def test_names_of_locals_are_not_taken_for_functions() -> None:
    class Shadow(nn.Module):
        def forward(self, module_level_gelu: Tensor) -> Tensor:
            return module_level_gelu * 2 if self.training is not F.relu else module_level_gelu

    assert swap_without_matches(nn.Sequential(Shadow())).functional == []


def test_a_function_kept_in_an_attribute_is_replaced() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = F.gelu
            self.other = functools.partial(F.leaky_relu, negative_slope=0.2)
            self.gate = torch.sigmoid

        def forward(self, x: Tensor) -> Tensor:
            return self.act(x) + self.other(x) * self.gate(x)

    model = nn.Sequential(Block())
    record = swap(model, "iglu:0.5")
    assert [(each.place, each.old) for each in record.replaced] == [
        ("0.act", "gelu"),
        ("0.other", "leaky_relu"),
    ]
    assert record.functional == []
    x = torch.randn(4)
    torch.testing.assert_close(model(x), iglu.iglu(x, 0.5) * (1 + torch.sigmoid(x)))


def test_a_function_in_an_attribute_that_is_called_with_options_is_replaced_where_it_is_called() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.fc = F.relu, nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.fc(self.act(x)), inplace=True)

    model = nn.Sequential(Block())
    record = swap(model, "iglu:1")
    assert places(record) == ["0.act_1", "0.act_2"]
    x = torch.randn(3, 2)
    assert torch.equal(model(x), iglu.iglu(model[0].fc(iglu.iglu(x, 1.0)), 1.0))


def test_the_self_of_another_module_is_not_taken_for_this_one() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = F.relu

        def helper(self, x: Tensor) -> Tensor:
            return self.act(x, inplace=False)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.act = Inner(), F.gelu

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.inner.helper(x))

    assert "act" in places(swap(Outer(), "iglu"))


def test_a_method_called_relu_with_arguments_is_not_taken_for_a_tensors() -> None:
    class Block(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            library = type("Library", (), {"relu": staticmethod(lambda value, slope: value * slope)})
            return library.relu(x, 2) + (x + 1).relu()

    record = swap_without_matches(nn.Sequential(Block()))
    assert [each.call for each in record.functional] == ["(x + 1).relu()"]


def test_a_function_that_was_not_selected_is_not_reported() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = F.relu
            self.last = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.act(x))

    record = swap(nn.Sequential(Block()), "iglu", only=nn.ReLU)
    assert (places(record), record.functional) == (["0.last"], [])


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (iglu.IGLU(), "iglu:5"),
        (iglu.IGLU(0.123456789), "iglu:0.123456789"),
        (iglu.IGLU(5.0, learnable=True, approximate="rational"), "iglu_approx:learnable=5"),
        (nn.SiLU(inplace=True), "silu"),
        (nn.GELU(), "gelu"),
        (nn.GELU("tanh"), None),
        (nn.LeakyReLU(0.3), None),
        (iglu.IGLU(learnable=True, channels=3, channel_dim=1), None),
        (iglu.IGLU(0.0, learnable=True, constrain=False), None),
        (nn.Linear(1, 1), None),
    ],
    ids=str,
)
def test_a_module_has_a_name_only_if_that_name_creates_it(module: nn.Module, name: str | None) -> None:
    assert name_of(module) == name
