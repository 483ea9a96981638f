"""iglu.probing, compared with statistics of complete tensors and with inputs whose tails are known."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import iglu
from iglu.probing import probe
from iglu.probing import sigma as probing_sigma
from iglu.probing.layers import default_k
from iglu.probing.stream import Stream
from iglu.probing.table import COLUMNS, cells
from iglu.surgery import swap
from iglu.tails import hill, moment
from iglu.tails.fits import chi_square_range

# Most models here are fresh, which suggest_sigma warns about.
pytestmark = pytest.mark.filterwarnings("ignore:The model looks untrained")


class Functional(nn.Module):
    """Activations of every kind but modules."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.act = F.silu

    def forward(self, x):
        x = F.relu(self.second(F.relu(self.first(x), inplace=True)))
        x = torch.tanh(self.third(x))
        for _ in range(3):
            x = F.gelu(self.third(x), approximate="tanh")
        return iglu.iglu(self.act(self.third(x)), 2.0).relu().sum()


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.act = nn.Linear(8, 16), nn.Linear(16, 16), nn.ReLU()

    def forward(self, x):
        x = self.act(self.first(x))
        return self.act(self.second(x))


def mlp(*activations: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [[nn.Linear(8 if number == 0 else 32, 32), act] for number, act in enumerate(activations)]
    return nn.Sequential(*[module for pair in layers for module in pair])


def inputs(rows: int = 500, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))


def layer_of(values: torch.Tensor, activation: nn.Module | None = None):
    """The layer of a probe of exactly these values."""
    return probe(nn.Sequential(nn.Identity(), activation or nn.ReLU()), values).layers[0]


# -- what is seen ----------------------------------------------------------------------------------


def test_functions_with_another_internal_name_are_seen() -> None:
    class Renamed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            return F.logsigmoid(x) + F.threshold(x, 0.1, 0.0)  # log_sigmoid and _threshold

    model = nn.Sequential(Renamed(4, 4))
    assert [layer.name for layer in probe(model, torch.randn(64, 4)).layers] == [
        "0: log_sigmoid",
        "0: threshold",
    ]
    assert [each.place for each in swap(model, "iglu", only=F.logsigmoid).replaced] == ["0.logsigmoid_1"]


def test_each_call_of_a_function_in_a_forward_is_a_layer():
    found = probe(Functional(), inputs())
    assert [layer.name for layer in found.layers] == [
        "relu", "relu 2", "tanh", "gelu", "gelu 2", "gelu 3", "act", "iglu", "relu 3",
    ]  # fmt: skip
    assert [layer.calls for layer in found.layers] == [1] * 9
    assert all(layer.site.source.startswith("test_probing.py:") for layer in found.layers)


def test_inputs_are_recorded_before_an_in_place_activation_changes_them():
    model, x = Functional(), inputs()
    first = probe(model, x).layers[0]
    expected = model.first(x).detach()
    assert first.n == expected.numel()
    assert torch.equal(first.tail.values.float(), expected.abs().flatten().topk(len(first.tail)).values)
    assert first.negative == pytest.approx((expected < 0).float().mean().item(), abs=0.05)


def test_activation_modules_are_seen_once_and_not_the_calls_inside_them():
    model = mlp(nn.ReLU(), nn.GELU(), nn.Tanh(), iglu.IGLU(0.5), nn.PReLU(), iglu.IGLU(2.0, learnable=True))
    assert [layer.name for layer in probe(model, inputs()).layers] == ["1", "3", "5", "7", "9", "11"]


def test_a_module_used_at_two_places_gives_two_layers():
    found = probe(Shared(), inputs())
    assert [layer.name for layer in found.layers] == ["act", "act 2"]
    assert found.layers[0].site.places == found.layers[1].site.places == ("act",)


class Loop(nn.Module):
    """One activation, as a module or as a function, whose inputs have another scale in each iteration."""

    def __init__(self, act, turns=3):
        super().__init__()
        self.act, self.turns, self.passes = act, turns, 0

    def forward(self, x):
        self.passes += 1
        turns = self.turns(self.passes) if callable(self.turns) else self.turns
        for turn in range(turns):
            self.act(x * 10.0 ** (turn % 8))
        return x


@pytest.mark.parametrize("act", [nn.GELU(), F.gelu], ids=["module", "function"])
def test_the_calls_of_a_loop_are_separate_layers(act):
    found = probe(Loop(act), [inputs(seed=seed) for seed in range(2)])
    assert [layer.name for layer in found.layers] == ["act", "act 2", "act 3"]
    assert [layer.calls for layer in found.layers] == [2, 2, 2]
    for turn, layer in enumerate(found.layers):
        assert layer.robust_sd == pytest.approx(10**turn, rel=0.1)
        assert layer.n == 2 * 500 * 8
        # of a Gaussian, not of a mixture of three
        assert layer.index().verdict == "like"


@pytest.mark.parametrize(
    "turns",
    [lambda number: 1 + number % 3, lambda number: 4 - number, lambda number: number, lambda _: 40],
    ids=["other", "fewer", "more", "many"],
)
def test_calls_that_differ_between_passes_or_are_too_many_are_one_layer(turns):
    batches = [inputs(50, seed=seed) for seed in range(3)]
    (layer,) = probe(Loop(nn.GELU(), turns), batches).layers
    seen = torch.cat(
        [10.0 ** (turn % 8) * x for number, x in enumerate(batches, 1) for turn in range(turns(number))]
    ).abs()
    assert layer.calls == sum(turns(number) for number in (1, 2, 3))
    assert layer.n == seen.numel()
    expected = seen.double().flatten().topk(len(layer.tail)).values
    torch.testing.assert_close(layer.tail.values, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("turns", "layers"), [(32, 32), (33, 1)])
def test_a_loop_of_more_than_32_iterations_is_one_layer(turns, layers):
    assert len(probe(Loop(nn.GELU(), turns), inputs(20)).layers) == layers


def test_a_pass_that_skips_a_loop_does_not_make_it_one_layer():
    found = probe(Loop(nn.GELU(), lambda number: 0 if number == 2 else 3), [inputs(50)] * 3)
    assert [layer.calls for layer in found.layers] == [2, 2, 2]


def test_several_forward_passes_per_batch_have_the_layers_of_one():
    model = mlp(nn.GELU())
    found = probe(model, inputs(), forward=lambda model, x: [model(x), model(2 * x), model(x)])
    assert [(layer.name, layer.calls) for layer in found.layers] == [("1", 3)]
    assert not model._forward_pre_hooks


def test_loops_of_two_activations_keep_the_order_of_their_calls():
    class Two(nn.Module):
        def forward(self, x):
            for _ in range(2):
                x = F.relu(torch.tanh(x))
            return x

    found = probe(Two(), inputs())
    assert [layer.name for layer in found.layers] == ["tanh", "relu", "tanh 2", "relu 2"]


def test_softmax_and_gated_pairs_are_not_probed():
    model = nn.Sequential(nn.Linear(8, 8), nn.GLU(), nn.ReLU(), nn.Softmax(-1))
    assert [layer.name for layer in probe(model, inputs()).layers] == ["2"]


def test_the_fused_path_of_a_transformer_layer_does_not_hide_its_activation():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    found = probe(model, torch.randn(4, 5, 8))
    assert [layer.site.places for layer in found.layers] == [
        ("layers.0.activation",),
        ("layers.1.activation",),
    ]
    assert [layer.n for layer in found.layers] == [4 * 5 * 16] * 2


def test_a_compiled_model_can_be_probed():
    model = torch.compile(mlp(nn.ReLU()), backend="eager")
    model(inputs())
    assert probe(model, inputs()).layers[0].n == 500 * 32


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_models_of_other_libraries_are_seen_completely(library):
    pytest.importorskip(library)
    torch.manual_seed(0)
    if library == "transformers":
        from transformers import GPT2Config, GPT2Model

        model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=16))
        found = probe(model, {"input_ids": torch.randint(50, (4, 16))})
        assert [layer.n for layer in found.layers] == [4 * 16 * 64] * 2
    else:
        import timm

        model = timm.create_model("mobilenetv3_small_050", num_classes=2)
        found = probe(model, torch.randn(1, 3, 32, 32))
        assert {"Hardswish", "ReLU"} <= {layer.site.activation.partition("(")[0] for layer in found.layers}
    replaceable = [layer for layer in found.layers if layer.site.replaceable]
    assert replaceable
    assert all(layer.site.places for layer in replaceable)


# -- the model stays as it was ---------------------------------------------------------------------


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.act, self.drop = nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout()
        self.register_buffer("count", torch.zeros(1))
        self.fails = True

    def forward(self, x):
        self.count += 1
        x = self.drop(self.act(self.norm(x)))
        if self.fails:
            raise RuntimeError("on purpose")
        return x


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_model_mode_buffers_hooks_and_random_numbers_are_unchanged(fails, training):
    model = Fails()
    model.norm.eval()
    model.fails = fails
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    if fails:
        with pytest.raises(RuntimeError, match="on purpose"):
            probe(model, inputs(), training=training)
    else:
        probe(model, (inputs(seed=seed) for seed in range(3)), training=training)
    assert torch.equal(torch.rand(3), expected)
    assert [module.training for module in model.modules()] == [True, False, True, True]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert torch._C._len_torch_function_stack() == 0


def test_dropout_is_off_unless_training_is_true():
    model = nn.Sequential(nn.Dropout(0.5), nn.ReLU())
    zeros = [
        (probe(model, inputs() + 10, training=training).layers[0].sample == 0).any()
        for training in (False, True)
    ]
    assert zeros == [False, True]


# -- the stream ------------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "a cut": lambda x: x[:, :, 1:, ::2],
    "transposed": lambda x: x.transpose(0, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_largest_values_and_their_rows_are_exact(layout, dtype):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(7, 5, 33, 41, generator=generator).to(dtype) for _ in range(4)]
    parts = [LAYOUTS[layout](part) for part in parts]
    stream = Stream(keep=300, sample=100, seed=0)
    for part in parts:
        stream.add(part)
    values = torch.cat([part.reshape(-1) for part in parts]).abs()
    assert torch.equal(stream.tail().values, values.double().topk(300).values)
    size = parts[0].shape[0]
    rows = torch.cat(
        [
            (torch.arange(size).view(-1, 1, 1, 1) + size * number).expand(part.shape).reshape(-1)
            for number, part in enumerate(parts)
        ]
    )
    pairs = set(zip(values.tolist(), rows.tolist(), strict=True))
    found = zip(stream.tail().values.tolist(), stream.rows_of_tail().tolist(), strict=True)
    assert all(pair in pairs for pair in found)


@pytest.mark.parametrize(("center", "scale"), [(0.0, 1.0), (0.3, 1e-12), (-5.0, 1e9), (1e4, 1.0)])
def test_moments_are_those_of_all_values_at_any_scale_and_center(center, scale):
    x = (torch.randn(4, 300_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3).mul(
        scale
    )
    x = x + center * scale
    stream = Stream(keep=10, sample=10, seed=0)
    for part in x:
        stream.add(part)
    moments = stream.moments()
    standard = (x - x.mean()) / x.std(correction=0)
    assert moments.mean == pytest.approx(x.mean().item(), rel=1e-9, abs=1e-9 * scale)
    assert moments.sd == pytest.approx(x.std(correction=0).item(), rel=1e-6)
    assert moments.kurtosis == pytest.approx((standard**4).mean().item() - 3, rel=1e-5)


def test_moments_of_float32_are_accurate_to_four_digits():
    x = torch.randn(2_000_000, generator=torch.Generator().manual_seed(0)).exp()
    stream = Stream(keep=10, sample=10, seed=0)
    stream.add(x)
    standard = (x.double() - x.double().mean()) / x.double().std(correction=0)
    assert stream.moments().kurtosis == pytest.approx((standard**4).mean().item() - 3, rel=1e-4)


def test_batches_are_sampled_in_proportion_to_their_sizes_even_if_the_first_ones_fit_completely():
    sizes = torch.tensor([30.0, 50.0, 1000.0, 200.0])
    counts = torch.zeros(4)
    for seed in range(400):
        stream = Stream(keep=2, sample=100, seed=seed)
        for number, size in enumerate(sizes.int().tolist()):
            stream.add(torch.full((size,), float(number)))
        counts += torch.bincount(stream.sample().long(), minlength=4)
    expected = sizes / sizes.sum() * counts.sum()
    # Batches that were kept completely are sampled twice, which at most doubles the variance of a count.
    assert ((counts - expected).abs() < 4 * (2 * expected).sqrt()).all(), (counts, expected)


def test_every_value_is_equally_likely_in_the_sample_whatever_its_batch():
    counts = torch.zeros(8)
    for seed in range(20):
        stream = Stream(keep=2, sample=2000, seed=seed)
        for number in range(8):
            stream.add(torch.full((5000 if number % 2 else 20_000,), float(number)))
        sample = stream.sample()
        assert len(sample) == 2000
        counts += torch.bincount(sample.long(), minlength=8)
    expected = torch.tensor([20_000, 5000] * 4) / 100_000 * counts.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 24.3  # the 99.9% point with 7 degrees of freedom


def test_memory_does_not_grow_with_the_number_of_batches():
    def kept(batches: int) -> int:
        layer = probe(
            mlp(nn.ReLU()), (inputs(seed=seed) for seed in range(batches)), keep=50, sample=60
        ).layers[0]
        assert layer.n == batches * 500 * 32
        return layer.tail.values.numel() + layer.rows_of_tail.numel() + layer.sample.numel()

    assert kept(2) == kept(12) == 50 + 50 + 60


def test_nan_and_inf_are_counted_and_left_out():
    x = inputs()
    x[3, 2], x[10, 1], x[11, 1] = math.nan, math.inf, -math.inf
    layer = layer_of(x)
    assert layer.not_finite == 3
    assert layer.n == x.numel() - 3
    assert torch.equal(layer.tail.values, x[x.isfinite()].abs().double().topk(len(layer.tail)).values)
    assert "3 values (NaN or inf) left out" in repr(probe(nn.Sequential(nn.ReLU()), x))
    assert probe(nn.Sequential(nn.ReLU()), [x, x]).layers[0].not_finite == 6


def test_a_layer_without_a_tail_has_a_note_with_the_reason():
    found = probe(nn.Sequential(nn.ReLU(), nn.Linear(8, 8), nn.GELU()), torch.full((300, 8), 2.0))
    row = found.rows()[0]
    assert "equal up to rounding" in row["note"]
    assert "alpha" not in row
    assert "equal up to rounding" in repr(found)


# -- statistics ------------------------------------------------------------------------------------


def test_index_is_hill_of_all_values_and_excess_is_one_for_a_gaussian():
    x = torch.randn(1000, 200, generator=torch.Generator().manual_seed(0))
    index = layer_of(x).index(500)
    assert index.alpha == pytest.approx(hill(x, 500).alpha, rel=1e-6)
    assert index.excess == pytest.approx(1, abs=0.15)
    assert index.verdict == "like"


def test_excess_of_an_exponential_tail_is_near_two_at_any_k():
    x = torch.empty(2000, 500).exponential_(generator=torch.Generator().manual_seed(0))
    layer = layer_of(x)
    assert [layer.index(k).excess for k in (100, 500, 2000)] == pytest.approx([2, 2, 2], rel=0.3)
    assert layer.index().verdict == "heavier"


def test_values_that_repeat_inside_a_row_count_once():
    x = torch.empty(20_000, 1).exponential_(generator=torch.Generator().manual_seed(0)).exp()
    alone, repeated = layer_of(x).index(400), layer_of(x.expand(-1, 10).clone()).index(4000 // 2)
    assert alone.effective_k == pytest.approx(400, rel=0.2)
    assert repeated.effective_k == pytest.approx(2000 / 10, rel=0.3)


def test_one_row_counts_as_much_as_one_value():
    x = torch.empty(1, 20_000).exponential_(generator=torch.Generator().manual_seed(0)).exp()
    index = layer_of(x).index(400)
    assert index.effective_k == 1
    assert index.alpha_high / index.alpha_low > 100


def test_the_interval_has_its_stated_coverage_for_correlated_rows():
    held = 0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        row = torch.empty(3000, 1).exponential_(generator=generator)
        x = (row / 2 + 1e-3 * torch.randn(3000, 5, generator=generator)).exp().clone()  # Pareto, alpha = 2
        index = layer_of(x).index(500)
        held += index.alpha_low <= 2 <= index.alpha_high
    assert held >= 86  # 95 of 100, less four standard deviations


def test_robust_sd_is_the_sd_of_a_gaussian_and_shares_are_those_of_all_values():
    x = 3 * torch.randn(400, 100, generator=torch.Generator().manual_seed(0)) + 1
    layer = probe(nn.Sequential(nn.ReLU()), x, sample=40_000).layers[0]
    assert layer.robust_sd == pytest.approx(3, rel=0.02)
    assert layer.negative == pytest.approx((x < 0).float().mean().item(), abs=0.01)
    assert layer.vanishing == pytest.approx((x <= 0).float().mean().item(), abs=0.01)
    assert layer.vanishing_under(math.inf) == pytest.approx(layer.vanishing, abs=1e-6)
    assert layer.vanishing_under(0.1) == 0
    derivatives = torch.func.vmap(torch.func.grad(lambda value: iglu.iglu(value, 3.0)))(layer.sample.double())
    assert layer.vanishing_under(3.0) == pytest.approx((derivatives < 1e-3).double().mean().item(), abs=1e-3)


def test_rows_are_json_and_the_table_has_a_line_per_layer():
    found = probe(mlp(nn.ReLU(), nn.Tanh()), inputs())
    body = json.loads(found.to_json())
    assert [row["layer"] for row in body["layers"]] == ["1", "3"]
    assert body["suggestion"]["sigma"] > 0
    assert len(repr(found).splitlines()) == 3
    with pytest.raises(KeyError, match="Layers: 1, 3"):
        found["2"]


# -- sigma -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "gaussian", "sigma"), [(23.2, 23.5, 10), (20.7, 25.3, 5), (10.4, 17.9, 0.5)]
)
def test_the_papers_networks_get_the_sigma_that_did_best_in_its_tables(alpha, gaussian, sigma):
    assert probing_sigma._by_excess(gaussian / alpha) == pytest.approx(sigma)


def test_heavier_tails_never_get_a_larger_sigma():
    sigmas = [probing_sigma._by_excess(0.5 + 0.01 * step) for step in range(300)]
    assert sigmas == sorted(sigmas, reverse=True)
    assert sigmas[0] > sigmas[-1]


def test_a_range_that_reaches_beyond_the_papers_points_is_open_at_that_end():
    first, last = probing_sigma.POINTS[0].excess, probing_sigma.POINTS[-1].excess

    def ends(low, high):
        evidence = probing_sigma.Evidence((low + high) / 2, low, high, 1.0, torch.zeros(1), F.relu)
        return probing_sigma._regimes(evidence)[1:]

    assert ends(last - 0.1, last + 0.1)[0] == 0.0
    assert ends(last - 0.1, last + 0.1)[1] < math.inf
    assert ends(first - 0.1, first + 0.1)[1] == math.inf
    assert ends(first - 0.1, first + 0.1)[0] > 0.0


def test_doubling_the_weights_halves_the_scaled_sigma_and_leaves_the_regimes():
    model, x = nn.Sequential(nn.Linear(8, 64, bias=False), nn.GELU()), inputs()
    model[0].weight.data *= 10
    before = probe(model, x)
    model[0].weight.data *= 2
    after = probe(model, x)
    assert after.suggest_sigma("scaled").sigma == pytest.approx(
        before.suggest_sigma("scaled").sigma / 2, rel=1e-4
    )
    assert after.suggest_sigma("regimes").sigma == pytest.approx(
        before.suggest_sigma("regimes").sigma, rel=1e-4
    )


@pytest.mark.parametrize(
    ("activation", "deviation", "sigma"),
    [
        # by scipy's minimize_scalar on a grid of two million points
        (F.gelu, 0.3, 1.4118), (F.gelu, 1.0, 2.2429), (F.gelu, 3.0, 5.2193),
        (F.silu, 0.3, 0.8230), (F.silu, 1.0, 1.0401), (F.silu, 3.0, 1.8494),
    ],
)  # fmt: skip
def test_nearest_sigma_is_the_least_squares_one_under_a_gaussian(activation, deviation, sigma):
    x = deviation * torch.special.ndtri((torch.arange(200_000).double() + 0.5) / 200_000)
    assert probing_sigma.nearest_sigma(activation, x) == pytest.approx(sigma, rel=1e-3)


def test_the_nearest_iglu_to_relu_is_its_limit():
    assert probing_sigma.nearest_sigma(F.relu, inputs().flatten()) == math.inf


def test_swap_accepts_a_suggestion_for_the_model_and_per_layer():
    suggestion = probe(mlp(nn.ReLU(), nn.GELU(), nn.Tanh()), 20 * inputs()).suggest_sigma()
    model = mlp(nn.ReLU(), nn.GELU(), nn.Tanh())
    swap(model, suggestion)
    assert [type(model[place]).__name__ for place in (1, 3, 5)] == ["IGLU", "IGLU", "Tanh"]
    assert model[1].sigma == model[3].sigma == pytest.approx(suggestion.sigma, rel=1e-3)
    model = mlp(nn.ReLU(), nn.GELU(), nn.Tanh())
    swap(model, suggestion.by_layer)
    assert [model[1].sigma, model[3].sigma] == pytest.approx(
        [each.sigma for each in suggestion.layers], rel=1e-3
    )
    assert model[1].sigma != model[3].sigma


@pytest.mark.parametrize("rule", ["scaled", "regimes"])
def test_a_suggestion_states_that_its_evidence_is_weak(rule):
    text = repr(probe(mlp(nn.ReLU()), inputs()).suggest_sigma(rule))
    assert "evidence is weak" in text
    assert "three networks" in text
    assert rule in text


def test_the_nearest_sigma_of_relu_and_gelu_is_one_per_layer():
    model = mlp(nn.ReLU(), nn.GELU(), nn.GELU())
    suggestion = probe(model, inputs()).suggest_sigma("nearest")
    sigmas = [layer.sigma for layer in suggestion.layers]
    assert sigmas[0] == math.inf
    assert all(0 < sigma < 10 for sigma in sigmas[1:])
    assert suggestion.sigma == pytest.approx(math.sqrt(sigmas[1] * sigmas[2]))
    assert f"{min(sigmas):.3g} to inf over 3 layers" in repr(suggestion)
    swap(model, suggestion)
    assert [model[place].sigma for place in (1, 3, 5)] == pytest.approx(sigmas, rel=1e-3)


def test_probe_and_suggestion_are_tables_in_a_notebook():
    found = probe(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), nn.GELU()), inputs())
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<th" in shown
    assert "Inputs of 2 activations over 1 batches" in shown
    assert "x &lt; 0" in shown
    shown = found.suggest_sigma()._repr_html_()
    assert shown.count("<tr>") == 3
    assert "evidence is weak" in shown


def test_a_suggestion_beyond_the_papers_range_ends_at_the_tested_range_and_says_so():
    x = torch.empty(2000, 100).cauchy_(generator=torch.Generator().manual_seed(0))
    suggestion = probe(nn.Sequential(nn.ReLU()), x).suggest_sigma()
    assert suggestion.low == 0.1  # the end of the tested range, not the end of the rule
    assert "outside the paper's range" in repr(suggestion)


@pytest.mark.parametrize("rule", ["scaled", "regimes"])
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_suggestion_stays_in_the_tested_range_and_says_when_it_was_cut(rule, factor):
    suggestion = probe(mlp(nn.ReLU(), nn.GELU()), factor * inputs()).suggest_sigma(rule)
    raw = probing_sigma.sigma_of_model(
        rule,
        [
            probing_sigma.Evidence(index.excess, index.excess_low, index.excess_high, layer.robust_sd)
            for layer in probe(mlp(nn.ReLU(), nn.GELU()), factor * inputs()).layers
            for index in [layer.index()]
        ],
    ).sigma
    values = [suggestion, *suggestion.layers]
    assert all(0.1 <= end <= 10 for each in values for end in (each.sigma, each.low, each.high))
    assert all(0.1 <= float(name.partition(":")[2]) <= 10 for name in suggestion.by_layer.values())
    is_cut = not math.isclose(min(max(raw, 0.1), 10), raw)
    assert is_cut == (rule == "scaled")
    assert (f"{raw:.3g} by the rule" in repr(suggestion)) == is_cut
    assert ("2 of 2 layers" in suggestion.notes[1]) == is_cut
    assert suggestion.sigma == pytest.approx(min(max(raw, 0.1), 10))


def test_means_over_layers_are_geometric():
    layers = [probing_sigma.Evidence(*each) for each in ((1.0, 0.8, 1.2, 1.0), (4.0, 0.2, 2.7, 4.0))]
    assert probing_sigma._mean_evidence(layers)[:4] == pytest.approx((2.0, 0.4, 1.8, 2.0))


def test_a_suggestion_shows_three_digits_and_gives_swap_four():
    found = probe(mlp(nn.ReLU(), nn.GELU()), 20 * inputs())
    suggestion = found.suggest_sigma()
    sigmas = [layer.sigma for layer in suggestion.layers]
    title = repr(suggestion).splitlines()[0]
    assert f"sigma = {suggestion.sigma:.3g} [{suggestion.low:.3g}, {suggestion.high:.3g}]" in title
    assert f"{min(sigmas):.3g} to {max(sigmas):.3g} over 2 layers" in title
    assert dict(suggestion) == dict.fromkeys(("1", "3"), f"iglu:{suggestion.sigma:.4g}")
    assert dict(found.suggest_sigma(activation="iglu_approx").by_layer) == {
        place: f"iglu_approx:{sigma:.4g}" for place, sigma in zip(("1", "3"), sigmas, strict=True)
    }
    body = json.loads(found.to_json())["suggestion"]
    assert (body["sigma"], body["low"], body["high"]) == (suggestion.sigma, suggestion.low, suggestion.high)
    assert [each["sigma"] for each in body["layers"]] == sigmas
    index = [layer.index() for layer in found.layers]
    mean = math.sqrt(index[0].excess * index[1].excess)
    assert f"mean excess is {mean:.2f} [" in repr(suggestion)


def test_a_suggestion_leaves_the_sample_of_an_activation_in_place_unchanged():
    found = probe(mlp(nn.ReLU(inplace=True)), inputs())
    before = found.layers[0].sample.clone()
    found.suggest_sigma("nearest")
    assert torch.equal(found.layers[0].sample, before)


# -- trained or not --------------------------------------------------------------------------------


def convolutional(norm: bool) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm2d(16)] if norm else []
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), *middle, nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


def transformer(_: bool) -> nn.Sequential:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def train(model: nn.Module, x: torch.Tensor, steps: int, lr: float) -> nn.Module:
    """Fit a fixed random target."""
    with torch.no_grad():
        target = torch.randn(model(x).shape, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        optimizer.step()
    return model


NETWORKS = {
    "mlp": (lambda: mlp(nn.ReLU(), nn.GELU(), nn.ReLU()), (64, 8)),
    "conv": (lambda: convolutional(False), (16, 1, 8, 8)),
    "conv with norm": (lambda: convolutional(True), (16, 1, 8, 8)),
    "transformer": (lambda: transformer(True), (16, 5, 8)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("steps", "lr"), [(0, 0.0), (1, 1e-3), (30, 1e-2)])
@pytest.mark.filterwarnings("default:The model looks untrained")
def test_an_untrained_model_gets_a_warning_and_a_trained_one_does_not(name, steps, lr, recwarn):
    make, shape = NETWORKS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = probe(train(make(), x, steps, lr), x)
    suggestion = found.suggest_sigma()
    said = [str(each.message) for each in recwarn if "untrained" in str(each.message)]
    assert bool(found.untrained) == bool(said) == ("untrained" in repr(suggestion)) == (steps < 2)
    assert len(said) <= 1
    found.suggest_sigma("nearest")  # about the present activations, whatever their training
    repr(found)
    assert len([each for each in recwarn if "untrained" in str(each.message)]) == len(said)


def test_a_model_with_another_initialization_is_not_called_untrained():
    model = mlp(nn.ReLU(), nn.ReLU())
    for linear in model[::2]:
        nn.init.xavier_normal_(linear.weight)
    assert not probe(model, inputs()).untrained
    assert not probe(nn.Sequential(nn.ReLU()), inputs()).untrained


# -- numbers and limits ----------------------------------------------------------------------------


def test_effective_k_is_k_over_the_inflation_of_the_variance():
    """Two rows with log excesses (a, b) and (c, d): by hand, from the formula in the docstring."""
    x = torch.tensor([[80.0, 70.0], [1.5, 1.4], [1.0, 1.0]]).double()
    index = layer_of(x).index(4)
    logs = [math.log(value) for value in (80, 70, 1.5, 1.4)]
    xi = sum(logs) / 4
    sums = [logs[0] + logs[1] - 2 * xi, logs[2] + logs[3] - 2 * xi]
    variance = sum(each**2 for each in sums) / 4**2 * 2 / (2 - 1)
    assert index.hill.xi == pytest.approx(xi)
    assert index.effective_k == pytest.approx(4 / max(variance / (xi**2 / 4), 1))
    assert 1 < index.effective_k < 4


def test_derived_values_of_an_index_follow_from_alpha_and_its_interval():
    index = layer_of(inputs()).index(50)
    gaussian = index.hill.gaussian.alpha
    assert index.gaussian == gaussian
    assert index.excess == pytest.approx(index.hill.xi / index.hill.gaussian.xi)
    assert (index.excess_low, index.excess_high) == (gaussian / index.alpha_high, gaussian / index.alpha_low)
    low, high = chi_square_range(2 * index.effective_k)
    assert (index.alpha_low, index.alpha_high) == pytest.approx((index.alpha * low, index.alpha * high))


@pytest.mark.parametrize(
    ("n", "kept", "given", "k"),
    [(100_000, 2048, None, 1000), (500, 2048, None, 10), (10**6, 2048, None, 2047), (8, 8, None, 7),
     (100_000, 2048, 55, 55), (100, 20, 55, 19), (1, 1, None, 1)],
)  # fmt: skip
def test_the_default_k_is_one_percent_of_the_values_from_10_to_what_is_kept(n, kept, given, k):
    assert default_k(n, kept, given) == k


def test_rows_have_the_numbers_of_the_layers_and_cells_show_them():
    found = probe(mlp(nn.ReLU()), 50 * inputs(), k=200)
    (layer,), (row,) = found.layers, found.rows()
    index = layer.index()
    assert (row["k"], row["n"], row["fraction"]) == (200, 16_000, 200 / 16_000)
    for name in ("alpha", "alpha_low", "excess", "excess_high", "effective_k", "verdict"):
        assert row[name] == getattr(index, name)
    assert row["moment_xi"] == moment(layer.tail, 200).xi
    assert (row["mean"], row["sd"], row["kurtosis"]) == (
        layer.moments.mean, layer.moments.sd, layer.moments.kurtosis,
    )  # fmt: skip
    assert row["vanishing_iglu"] == layer.vanishing_under(row["sigma"])
    texts = dict(zip(COLUMNS, cells(row), strict=True))
    assert texts["n"] == "16,000"
    assert texts["k"] == f"200 ({200 / 16_000:.2g})"
    assert texts["alpha [95%]"] == f"{index.alpha:.3g} [{index.alpha_low:.3g}, {index.alpha_high:.3g}]"
    assert texts["excess"] == f"{index.excess:.2f} {index.verdict}"
    assert texts["robust SD"] == f"{layer.robust_sd:.3g}"
    assert texts["x < 0"] == f"{100 * layer.negative:.0f}%"
    assert texts["f' ~ 0"] == f"{100 * layer.vanishing:.1f}%"
    assert texts["sigma"] == f"{row['sigma']:.3g}"
    assert cells({"layer": "one"}) == ["one"] + ["-"] * (len(COLUMNS) - 1)
    assert f"alpha = {index.alpha:.3g}, Gaussian {index.gaussian:.3g}" in repr(layer)


def test_skewness_is_the_third_standardized_moment_and_constants_have_an_sd_of_zero():
    x = torch.rand(50_000, generator=torch.Generator().manual_seed(0)) ** 4
    layer = layer_of(x)
    standard = (x - x.mean()) / x.std(correction=0)
    assert layer.moments.skewness == pytest.approx((standard**3).mean().item(), rel=1e-3)
    assert layer_of(torch.ones(50)).moments[:2] == (1.0, 0.0)
    assert layer_of(torch.cat([torch.zeros(60), torch.tensor([3.0])])).robust_sd == pytest.approx(
        3 * math.sqrt(60) / 61, rel=1e-5
    )  # the MAD is 0


@pytest.mark.parametrize(
    ("options", "message"),
    [({"keep": 1}, "keep must be at least 2, got 1"), ({"sample": 1}, "sample must be at least 2, got 1"),
     ({"k": 0}, "k must be from 1 to keep - 1 = 2047, got 0"), ({"k": 2, "keep": 2}, "= 1, got 2")],
)  # fmt: skip
def test_keep_sample_and_k_have_limits(options, message):
    with pytest.raises(ValueError, match=message):
        probe(mlp(nn.ReLU()), inputs(), **options)
    assert probe(mlp(nn.ReLU()), inputs(), k=1, keep=2, sample=2).layers[0].k == 1


def test_errors_name_the_invalid_argument():
    model = mlp(nn.ReLU())
    with pytest.raises(TypeError, match=r"must be an nn\.Module, got function"):
        probe(F.relu, inputs())
    with pytest.raises(TypeError, match="batches must be an iterable, a tensor or a mapping, got int"):
        probe(model, 5)
    with pytest.raises(ValueError, match="batches is empty"):
        probe(model, [])
    with pytest.raises(ValueError, match="no visible activation"):
        probe(nn.Linear(8, 8), inputs())
    with pytest.raises(ValueError, match="k must be from 1 to keep - 1 = 9, got 10"):
        probe(model, inputs(), k=10, keep=10)
    with pytest.raises(ValueError, match="Did you mean 'scaled'"):
        probe(model, inputs()).suggest_sigma("scale")
