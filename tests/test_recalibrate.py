"""Recalibration: the layers after a swapped activation compensate, or the record has the reason."""

import copy
import math
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

import iglu
from iglu.calibration import closed_form
from iglu.calibration.dataflow import find_targets

NO_BIAS = "it has no bias to shift, and least squares cannot fit it: "


def batches(count=10, size=128, features=6, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return list((torch.randn(count, size, features, generator=generator) * 1.5).to(dtype).unbind())


def perceptron(activation=nn.GELU, dtype=torch.float32, **options):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 24), activation(), nn.Linear(24, 12, **options), activation(), nn.Linear(12, 3)]
    return nn.Sequential(*layers).to(dtype).eval()


def swapped(model, to="relu"):
    other = copy.deepcopy(model)
    iglu.swap(other, to)
    return other


def error(model, like, data):
    x = torch.cat(data)
    with torch.no_grad():
        return ((model(x) - like(x)).norm() / like(x).norm()).item()


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# -- what it does ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["shift", "least-squares"])
def test_each_method_brings_the_swapped_model_nearer_to_the_original(method):
    like = perceptron()
    model = swapped(like)
    before = error(model, like, batches(seed=1))
    record = iglu.recalibrate(model, batches(), like=like, method=method)
    after = error(model, like, batches(seed=1))
    assert [each.place for each in record.corrected] == ["2", "4"]
    assert [each.activations for each in record.corrected] == [("1",), ("3",)]
    assert after < {"shift": 0.6, "least-squares": 0.35}[method] * before
    for each in record.corrected:
        assert each.method == method
        assert each.after < each.before


def test_the_shift_is_the_change_of_the_mean_and_changes_no_weight():
    like = perceptron(dtype=torch.float64)
    model = swapped(like)
    start = state(model)
    data = batches(5, dtype=torch.float64)
    iglu.recalibrate(model, data, like=like, method="shift")
    x = torch.cat(data[:4])  # the fifth batch is held out
    h = F.linear(x, start["0.weight"], start["0.bias"])
    first = (F.gelu(h) - F.relu(h)).mean(0) @ start["2.weight"].T
    torch.testing.assert_close(model[2].bias, start["2.bias"] + first)
    # the second, on the outputs of the corrected first
    wanted = like[2](like[1](like[0](x)))
    given = model[2](model[1](model[0](x)))
    second = (F.gelu(wanted) - F.relu(given)).mean(0) @ start["4.weight"].T
    torch.testing.assert_close(model[4].bias, start["4.bias"] + second)
    for name in ("0.weight", "0.bias", "2.weight", "4.weight"):
        assert torch.equal(model.state_dict()[name], start[name])


def test_least_squares_solves_the_ridge_problem():
    like = perceptron(dtype=torch.float64)[:3]
    model = swapped(like)
    data = batches(5, dtype=torch.float64)
    record = iglu.recalibrate(model, data, like=like)
    assert [each.method for each in record.corrected] == ["least-squares"]
    x = torch.cat(data[:4])
    with torch.no_grad():
        h, wanted = model[1](model[0](x)), like(x)
    # the same as one stacked least-squares problem: rows of data, then rows of the penalty
    centered, target = h - h.mean(0), wanted - wanted.mean(0)
    penalty = math.sqrt(closed_form.RIDGE * centered.square().mean() * len(x))
    eye = torch.eye(24, dtype=torch.float64) * penalty
    stacked = torch.linalg.lstsq(
        torch.cat([centered, eye]), torch.cat([target, like[2].weight.T * penalty])
    ).solution
    torch.testing.assert_close(model[2].weight, stacked.T, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(model[2].bias, wanted.mean(0) - stacked.T @ h.mean(0), rtol=1e-6, atol=1e-8)


def test_the_errors_of_the_record_are_those_of_held_out_batches():
    like = perceptron(dtype=torch.float64)[:3]
    model = swapped(like)
    data = batches(10, dtype=torch.float64)
    (correction,) = iglu.recalibrate(model, data, like=like).corrected
    assert correction.after == pytest.approx(error(model, like, data[8:]), rel=1e-5)
    assert correction.before == pytest.approx(error(swapped(like), like, data[8:]), rel=1e-5)


def test_a_fit_that_does_worse_on_held_out_batches_is_not_kept():
    """28 rows for 24 unknowns and a bias: least squares overfits, the shift helps."""
    like = perceptron()[:3]
    model = swapped(like)
    data = [batch[:14] for batch in batches(2)] + [batches(seed=3)[0]]
    (correction,) = iglu.recalibrate(model, data, like=like).corrected
    assert correction.method == "shift"
    # nothing helps where GELU and ReLU are the same
    model = swapped(like)
    start = state(model)
    record = iglu.recalibrate(model, [*batches(2), torch.full((64, 6), 300.0)], like=like)
    assert not record.corrected
    assert "no correction reduces its error" in record.left[0].reason
    assert same(state(model), start)


def test_a_layer_whose_units_are_all_dead_is_shifted():
    like = nn.Sequential(iglu.IGLU(1.0), nn.Linear(6, 3)).eval()
    model = swapped_type(like)
    (correction,) = iglu.recalibrate(model, [batch - 1000 for batch in batches(5)], like=like).corrected
    assert correction.after < 1e-3 * correction.before


def test_a_layer_without_a_bias_is_fitted_through_the_origin():
    like = perceptron(dtype=torch.float64, bias=False)[:3]
    model = swapped(like)
    before = error(model, like, batches(seed=1, dtype=torch.float64))
    record = iglu.recalibrate(model, batches(dtype=torch.float64), like=like)
    assert record.corrected[0].method == "least-squares"
    assert error(model, like, batches(seed=1, dtype=torch.float64)) < 0.7 * before
    record = iglu.recalibrate(swapped(like), batches(dtype=torch.float64), like=like, method="shift")
    assert [each.reason for each in record.left] == ["it has no bias for the shift"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_keep_their_dtype_and_improve_as_much(dtype):
    like = perceptron(dtype=dtype)
    model = swapped(like)
    before = error(model, like, batches(seed=1, dtype=dtype))
    iglu.recalibrate(model, batches(dtype=dtype), like=like)
    assert all(parameter.dtype == dtype for parameter in model.parameters())
    assert error(model, like, batches(seed=1, dtype=dtype)) < 0.4 * before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_half_precision_models_are_summed_in_float32(dtype):
    """4,096 values of 8 to 24 cannot be added in half precision, nor their squares be held."""
    generator = torch.Generator().manual_seed(0)
    like = nn.Sequential(nn.ReLU(), nn.Linear(8, 2)).to(dtype).eval()
    data = [(torch.rand(1024, 8, generator=generator) * 16 + 8).to(dtype) for _ in range(5)]
    model = copy.deepcopy(like)
    model[0] = nn.ReLU6()
    iglu.recalibrate(model, data, like=like, method="shift")
    x = torch.cat(data[:4])
    with torch.no_grad():
        wanted = like[1].bias.float() + (like(x).float() - like[1](model[0](x)).float()).mean(0)
    torch.testing.assert_close(model[1].bias.float(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_padding_is_excluded():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = perceptron()[:3]

        def forward(self, x, attention_mask):
            return self.body(x)

    like = Tagger()
    data = []
    for number, batch in enumerate(batches(5)):
        x = batch.view(16, 8, 6).clone()
        mask = torch.arange(8) < 5 + number % 3
        x[:, ~mask] = 0.3
        data.append({"x": x, "attention_mask": mask.expand(16, 8).long()})
    model = swapped(like)
    iglu.recalibrate(model, data, like=like, method="shift")
    real = torch.cat([each["x"][each["attention_mask"].bool()] for each in data[:4]])
    first, _, last = like.body
    with torch.no_grad():
        shift = (F.gelu(first(real)) - F.relu(first(real))).mean(0) @ last.weight.T
        torch.testing.assert_close(model.body[2].bias, last.bias + shift)
    for method in ("shift", "least-squares"):  # a model that flattens its tokens
        flat = swapped(like)
        forward = lambda model, batch: model(batch["x"].flatten(0, 1), None)  # noqa: E731
        iglu.recalibrate(flat, data, like=like, method=method, forward=forward)
        other = swapped(like)
        iglu.recalibrate(other, data, like=like, method=method)
        torch.testing.assert_close(flat.body[2].bias, other.body[2].bias)
    nothing = [each | {"attention_mask": torch.zeros(16, 8)} for each in data]
    record = iglu.recalibrate(swapped(like), nothing, like=like)
    assert record.left[0].reason == "the mask excludes all tokens"


def test_least_squares_needs_as_many_rows_as_inputs():
    like = perceptron(bias=False)[:3]
    few = [batch[:11] for batch in batches(3)]
    record = iglu.recalibrate(swapped(like), few, like=like)
    assert [each.reason for each in record.left] == [NO_BIAS + "22 rows for 24 inputs are too few"]
    enough = [batch[:12] for batch in batches(3)]
    (left,) = iglu.recalibrate(swapped(like), enough, like=like).left
    assert left.reason.startswith("no correction reduces its error")  # though fitted


class Encoder(nn.Module):
    """Tokens first, as some transformers have them."""

    def __init__(self, name="body"):
        super().__init__()
        self.name = name
        setattr(self, name, perceptron()[:3])

    def forward(self, x, **masks):
        return getattr(self, self.name)(x)


def test_a_mask_is_used_only_if_it_has_the_shape_of_the_rows():
    like = Encoder()
    mask = (torch.arange(16) < torch.arange(8)[:, None] + 4).long()  # 8 rows of 16 tokens
    data = [{"x": batch.view(16, 8, 6), "attention_mask": mask} for batch in batches(5)]
    model = swapped(like)
    iglu.recalibrate(model, data, like=like, method="shift")
    unmasked = swapped(like)
    iglu.recalibrate(unmasked, [each["x"] for each in data], like=like, method="shift")
    assert torch.equal(model.body[2].bias, unmasked.body[2].bias)


def test_the_layers_of_a_decoder_use_the_mask_of_the_decoder():
    biases = {}
    for name, key in (("decoder", "decoder_attention_mask"), ("encoder", "attention_mask")):
        like = Encoder(name)
        for other, length in (("attention_mask", 5), ("decoder_attention_mask", 3)):
            mask = (torch.arange(8) < length).expand(16, 8).long()
            both = {"attention_mask": torch.ones(16, 8), "decoder_attention_mask": torch.ones(16, 8)}
            data = [
                {"x": batch.view(16, 8, 6), "decoder_input_ids": None, **both, other: mask}
                for batch in batches(5)
            ]
            model = swapped(like)
            iglu.recalibrate(model, data, like=like, method="shift")
            biases[other == key] = getattr(model, name)[2].bias
        unmasked = swapped(like)
        iglu.recalibrate(unmasked, batches(5), like=like, method="shift")
        plain = getattr(unmasked, name)[2].bias
        torch.testing.assert_close(biases[False], plain)
        assert (biases[True] - plain).abs().max() > 1e-3


# -- autocast and the default device -----------------------------------------------------------------


def under_autocast(model, batch):
    with torch.autocast("cpu", torch.bfloat16):
        return model(batch)


def calibrate_inside(like):
    model = swapped(like)
    with torch.autocast("cpu", torch.bfloat16):
        return model, iglu.recalibrate(model, batches(), like=like)


def calibrate_by_swap(like):
    model = copy.deepcopy(like)
    with torch.autocast("cpu", torch.bfloat16):
        return model, iglu.swap(model, "relu", recalibrate=batches()).recalibration


def calibrate_with_forward(like):
    model = swapped(like)
    return model, iglu.recalibrate(model, batches(), like=like, forward=under_autocast)


@pytest.mark.parametrize("calibrate", [calibrate_inside, calibrate_by_swap, calibrate_with_forward])
def test_recalibration_under_autocast_is_as_accurate_as_in_float32(calibrate):
    like = perceptron()
    reference = swapped(like)
    iglu.recalibrate(reference, batches(), like=like)
    model, record = calibrate(like)
    assert [(each.place, each.method) for each in record.corrected] == [
        ("2", "least-squares"),
        ("4", "least-squares"),
    ]
    data = batches(seed=1)
    assert error(model, like, data) == pytest.approx(error(reference, like, data), rel=0.02)


def test_to_relu_under_autocast_is_as_accurate_as_in_float32():
    like = perceptron(lambda: iglu.IGLU(3.0))
    reference, model = copy.deepcopy(like), copy.deepcopy(like)
    iglu.to_relu(reference, batches())
    with torch.autocast("cpu", torch.bfloat16):
        iglu.to_relu(model, batches())
    data = batches(seed=1)
    assert error(model, like, data) == pytest.approx(error(reference, like, data), rel=0.02)


@pytest.mark.parametrize("undo", [False, True])
def test_autocast_has_no_cached_copies_of_the_weights_before_the_correction(undo):
    like = perceptron()
    model = swapped(like)
    x = batches(1, seed=1)[0]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(x)  # caches its weights in bfloat16
        record = iglu.recalibrate(model, batches(), like=like)
        if undo:
            model(x)
            record.undo()
        inside = model(x)
    with torch.no_grad():
        torch.testing.assert_close(inside, under_autocast(model, x), rtol=0, atol=0)


class Watched(nn.Module):
    """Notes the thread, the default device and autocast of each forward."""

    def __init__(self):
        super().__init__()
        self.body = perceptron()
        self.seen = set()

    def forward(self, x):
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        is_main = threading.current_thread() is threading.main_thread()
        self.seen.add((is_main, torch.get_default_device(), dtype))
        return self.body(x)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_all_forwards_run_with_the_default_device_and_the_autocast_of_the_caller(device, dtype):
    like = Watched()
    model, reference = swapped(like), swapped(like)
    iglu.recalibrate(reference, batches(), like=like)
    model.seen.clear()
    like.seen.clear()
    data = batches()
    with torch.device(device), torch.autocast("cpu", dtype, enabled=dtype is not None):
        iglu.recalibrate(model, data, like=like)
    assert model.seen == {(is_main, torch.device(device), dtype) for is_main in (True, False)}
    assert like.seen == {(False, torch.device(device), dtype)}
    if dtype is None:
        assert same(state(model), state(reference))


# -- BatchNorm and convolutions ----------------------------------------------------------------------


def convolutional(activation=nn.ReLU):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), activation(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), activation(),
        nn.Conv2d(8, 8, 3, groups=4), activation(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    for batch in images(20, seed=9):
        model(batch)
    return model.eval()


def images(count=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, 32, 3, 8, 8, generator=generator).unbind())


def moments(x):
    return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)


def test_every_following_batch_norm_keeps_the_mean_and_the_variance_of_its_output():
    like = convolutional().double()
    nn.init.uniform_(like[4].weight, 0.5, 2)
    nn.init.normal_(like[4].bias)
    model = swapped(like, "iglu:0.5")
    start = state(model)
    data = [batch.double() for batch in images(5)]
    record = iglu.recalibrate(model, data, like=like, method="norms")
    assert [(each.place, each.method) for each in record.corrected] == [("4", "batch norm")]
    assert not record.left
    x = torch.cat(data[:4])  # the fifth batch is held out
    for got, wanted in zip(moments(model[:5](x)), moments(like[:5](x)), strict=True):
        torch.testing.assert_close(got, wanted)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, start[name])}
    assert changed == {"4.running_mean", "4.running_var"}  # not the count, nor the norm before
    assert not model.training


def test_a_batch_norm_with_the_statistics_of_these_batches_gets_those_after_the_swap():
    like = convolutional().double()
    data = [batch.double() for batch in images(5)]
    x = torch.cat(data[:4])
    like[4].running_mean, like[4].running_var = (each.detach() for each in moments(like[:4](x)))
    like[4].eps = 1e-30  # 0 is an error in older versions of torch
    model = swapped(like, "iglu:0.5")
    iglu.recalibrate(model, data, like=like, method="norms")
    mean, variance = moments(model[:4](x))
    torch.testing.assert_close(model[4].running_mean, mean)
    torch.testing.assert_close(model[4].running_var, variance)


def test_inputs_unlike_those_of_training_do_not_change_a_batch_norm_unaffected_by_the_swap():
    like = convolutional().double()
    model = swapped(like, "iglu:1e9")
    start = state(model)
    iglu.recalibrate(model, [batch.double() * 3 + 1 for batch in images(5)], like=like, method="norms")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, start[name], rtol=1e-6, atol=1e-7)


def test_a_channel_with_a_constant_input_or_output_keeps_its_statistics():
    like = convolutional().double()
    with torch.no_grad():
        like[4].weight[0] = 0  # its output is its bias
        like[3].weight[1] = 0  # its input is 0
    model = swapped(like, "iglu:0.5")
    start = state(model)
    iglu.recalibrate(model, [batch.double() for batch in images(5)], like=like, method="norms")
    for name in ("4.running_mean", "4.running_var"):
        moved = (model.state_dict()[name] - start[name]).abs() > 1e-12
        assert moved.tolist() == [False, False] + [True] * 6


def test_a_batch_norm_needs_two_values_per_channel():
    like = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)).eval()
    record = iglu.recalibrate(swapped(like, "iglu:1"), [torch.randn(1, 3)], like=like, method="norms")
    assert [each.reason for each in record.left] == ["fewer than two values per channel"]


def test_a_batch_norm_whose_new_statistics_do_worse_keeps_its_old_ones():
    """The last batch is held out; there GELU and ReLU are the same."""
    like = nn.Sequential(nn.GELU(), nn.BatchNorm1d(6)).eval()
    model = swapped(like)
    start = state(model)
    data = [*batches(4), batches(1, seed=1)[0] + 300]
    record = iglu.recalibrate(model, data, like=like)
    assert [(each.place, each.reason) for each in record.left] == [
        ("0", "no linear layer follows it"),
        ("1", "no correction reduces its error of 0"),
    ]
    assert not record.corrected
    assert same(state(model), start)


def test_a_batch_norm_that_another_follows_is_judged_per_channel():
    """Not per position, of which a single image has one each."""
    like = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3), nn.BatchNorm2d(3)).eval()
    data = [batch[:1] for batch in images(5)]
    record = iglu.recalibrate(swapped(like, "iglu:1"), data, like=like)
    assert record.corrected[0].place == "1"


class FusedNorm(nn.BatchNorm2d):
    """A BatchNorm that ends with its activation, as timm's BatchNormAct2d."""

    def __init__(self, features, inplace):
        super().__init__(features)
        self.act = nn.ReLU(inplace=inplace)

    def forward(self, x):
        return self.act(super().forward(x))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("method", ["least-squares", "shift", "norms"])
def test_a_batch_norm_fused_with_its_activation_is_corrected_like_the_separate_layers(method, inplace):
    torch.manual_seed(0)
    first, second, last = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 4, 1)
    fused, plain = FusedNorm(16, inplace), nn.BatchNorm2d(16)
    nn.init.uniform_(fused.weight, 0.5, 1.5)
    nn.init.normal_(fused.bias, 0, 0.5)
    nn.init.normal_(fused.running_mean, 0, 0.1)
    nn.init.uniform_(fused.running_var, 0.05, 0.2)
    plain.load_state_dict(fused.state_dict())
    like = nn.Sequential(first, nn.ReLU(), second, fused, nn.Identity(), last).eval()
    apart = nn.Sequential(first, nn.ReLU(), second, plain, nn.ReLU(), last).eval()
    model, other = swapped(like, "iglu:1"), swapped(apart, "iglu:1")
    record = iglu.recalibrate(model, images(), like=like, method=method)
    expected = iglu.recalibrate(other, images(), like=apart, method=method)
    assert [(each.place, each.method) for each in record.corrected] == [
        (each.place, each.method) for each in expected.corrected
    ]
    places = {"least-squares": {"2", "5"}, "shift": {"3", "5"}, "norms": {"3"}}
    assert {each.place for each in record.corrected} >= places[method]
    assert [each.reason for each in record.left] == [each.reason for each in expected.left]
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two)
    x = torch.cat(images(seed=1))
    with torch.no_grad():
        torch.testing.assert_close(model(x), other(x))


def test_a_batch_norm_over_another_dimension_than_the_second_is_not_corrected():
    class TokenNorm(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x.transpose(1, 2)).transpose(1, 2)

    like = nn.Sequential(nn.ReLU(), TokenNorm(6)).eval()
    data = [batch.view(16, 8, 6) for batch in batches(5)]
    record = iglu.recalibrate(swapped(like, "iglu:1"), data, like=like, method="norms")
    assert [each.reason for each in record.left] == ["dimension 1 of its input has 8 entries, not 6 channels"]


def test_each_layer_of_a_convolutional_network_is_corrected_by_the_method_that_applies():
    like = convolutional()
    model = swapped(like, "iglu:0.5")
    before = error(model, like, images(seed=1))
    record = iglu.recalibrate(model, images(), like=like)
    methods = {each.place: each.method for each in record.corrected}
    assert methods == {"3": "least-squares", "4": "batch norm", "6": "shift", "10": "least-squares"}
    assert {each.place: each.activations for each in record.corrected}["10"] == ("7",)  # through the pooling
    assert error(model, like, images(seed=1)) < 0.5 * before


def test_a_fitted_convolution_is_the_least_squares_of_its_patches():
    like = convolutional().double()
    model = swapped(like, "iglu:0.5")
    data = [batch.double() for batch in images(5)]
    iglu.recalibrate(model, data, like=like)
    x = torch.cat(data[:4])
    patches = F.unfold(model[:3](x), 3, padding=1, stride=2).transpose(1, 2).flatten(0, 1)
    wanted = like[:4](x).movedim(1, -1).flatten(0, 2)
    # a BatchNorm follows, so a mean is free
    centered, target = patches - patches.mean(0), wanted - wanted.mean(0)
    gram = centered.T @ centered / len(centered)
    ridge = closed_form.RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    old = like[3].weight.flatten(1).T
    expected = torch.linalg.solve(gram + ridge, centered.T @ target / len(centered) + ridge @ old)
    torch.testing.assert_close(model[3].weight.flatten(1).T, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_fitted_conv1d_is_the_least_squares_of_its_windows(has_bias):
    torch.manual_seed(0)
    options = {"stride": 2, "padding": 2, "dilation": 2, "bias": has_bias}
    like = nn.Sequential(nn.Conv1d(4, 8, 3), nn.GELU(), nn.Conv1d(8, 5, 3, **options)).double().eval()
    model = swapped(like)
    data = [batch.view(32, 4, 6) for batch in batches(5, dtype=torch.float64)]
    (correction,) = iglu.recalibrate(model, data, like=like).corrected
    assert (correction.method, correction.after < correction.before) == ("least-squares", True)
    x = torch.cat(data[:4])
    padded = F.pad(model[:2](x), (2, 2))
    # the three taps of each window, 2 apart; windows start at every second position
    taps = padded.unfold(-1, 5, 2)[..., ::2]
    h = taps.permute(0, 2, 1, 3).flatten(0, 1).flatten(1)
    wanted = like(x).movedim(1, -1).flatten(0, 1)
    if has_bias:
        h_mean, mean = h.mean(0), wanted.mean(0)
        h, wanted = h - h_mean, wanted - mean
    gram = h.T @ h / len(h)
    ridge = closed_form.RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    old = like[2].weight.flatten(1).T
    expected = torch.linalg.solve(gram + ridge, h.T @ wanted / len(h) + ridge @ old)
    torch.testing.assert_close(model[2].weight.flatten(1).T, expected, rtol=1e-6, atol=1e-8)
    if has_bias:
        torch.testing.assert_close(model[2].bias, mean - h_mean @ expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("kind", "sizes"), [(nn.Conv1d, (20,)), (nn.Conv2d, (8, 8)), (nn.Conv3d, (4, 4, 4))])
def test_unbatched_inputs_are_treated_as_batches_of_one(kind, sizes):
    torch.manual_seed(0)
    like = nn.Sequential(kind(3, 6, 3, padding=1), nn.GELU(), kind(6, 4, 3, padding=1)).eval()
    data = list(torch.randn(10, 3, *sizes))
    model, batched = swapped(like), swapped(like)
    record = iglu.recalibrate(model, data, like=like)
    iglu.recalibrate(batched, [x.unsqueeze(0) for x in data], like=like)
    assert [each.place for each in record.corrected] == ["2"]
    for one, other in zip(model.state_dict().values(), batched.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)


# -- models of transformers and timm -----------------------------------------------------------------


def recalibrate_swapped(make, key, data, method="least-squares"):
    torch.manual_seed(0)
    like = make().eval()
    model = copy.deepcopy(like)
    iglu.swap(model, key)
    record = iglu.recalibrate(model, data, like=like, method=method)
    return record, {each.place for each in record.corrected}


def test_bert_gpt2_and_llama_are_corrected_in_their_down_projections():
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    data = [
        {"input_ids": torch.randint(50, (4, 16), generator=generator), "attention_mask": torch.ones(4, 16)}
        for _ in range(5)
    ]
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    bert = transformers.BertConfig(**small, intermediate_size=32)
    record, places = recalibrate_swapped(lambda: transformers.BertModel(bert), "relu", data)
    assert places == {f"encoder.layer.{layer}.output.dense" for layer in range(2)}
    gpt2 = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    record, places = recalibrate_swapped(lambda: transformers.GPT2LMHeadModel(gpt2), "relu", data)
    assert places == {f"transformer.h.{layer}.mlp.c_proj" for layer in range(2)}
    assert all(each.after < 0.5 * each.before for each in record.corrected)
    llama = transformers.LlamaConfig(**small, intermediate_size=32)
    record, places = recalibrate_swapped(lambda: transformers.LlamaForCausalLM(llama), "relu", data)
    assert places == {f"model.layers.{layer}.mlp.down_proj" for layer in range(2)}
    assert all(each.after < each.before for each in record.corrected)


def test_all_layers_of_timm_resnets_and_vits_are_corrected():
    timm = pytest.importorskip("timm")
    generator = torch.Generator().manual_seed(0)
    data = list(torch.randn(3, 8, 3, 32, 32, generator=generator).unbind())
    record, places = recalibrate_swapped(lambda: timm.create_model("resnet18"), "iglu:2", data, "norms")
    norms = {each.place for each in record.corrected if each.method == "batch norm"}
    kept = {each.place for each in record.left if "no correction reduces its error" in each.reason}
    assert len(norms | kept) == 19  # all but the first of 20
    assert len(norms) > len(kept)
    assert all(each.after < each.before for each in record.corrected)
    record, places = recalibrate_swapped(
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2), "relu", data
    )
    assert places == {"blocks.0.mlp.fc2", "blocks.1.mlp.fc2"}


# -- layers that cannot be corrected, and errors ---------------------------------------------------------


class PaddedConv2d(nn.Conv2d):
    """Pads by itself, as timm's Conv2dSame."""

    def forward(self, x):
        return super().forward(F.pad(x, (1, 1, 1, 1)))


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (nn.Conv2d, {"padding": 1, "padding_mode": "circular"}, "its padding mode is 'circular'"),
        (nn.Conv2d, {"padding": "same"}, "its padding is 'same'"),
        (nn.Conv2d, {"groups": 3}, "it has 3 groups"),
        (nn.Conv3d, {"padding": 1}, "its type, Conv3d, is unsupported"),
        (nn.ConvTranspose1d, {}, "its type, ConvTranspose1d, is unsupported"),
        (nn.ConvTranspose2d, {"groups": 3}, "its type, ConvTranspose2d, is unsupported"),
        (nn.ConvTranspose3d, {}, "its type, ConvTranspose3d, is unsupported"),
        (PaddedConv2d, {}, "its class, PaddedConv2d, overrides forward"),
    ],
)
def test_a_convolution_that_cannot_be_fitted_is_shifted_or_reported_with_the_reason(kind, options, reason):
    torch.manual_seed(0)
    sizes = {"1d": (16,), "2d": (8, 8), "3d": (4, 4, 4)}[kind.__name__[-2:]]
    data = list(torch.randn(5, 32, 3, *sizes))
    for has_bias in (True, False):
        like = nn.Sequential(nn.GELU(), kind(3, 6, 3, bias=has_bias, **options)).eval()
        model = swapped(like)
        record = iglu.recalibrate(model, data, like=like)
        if has_bias:
            assert [each.method for each in record.corrected] == ["shift"]
            x = torch.cat(data[:4])
            with torch.no_grad():
                means = [each(x).movedim(1, -1).flatten(0, -2).mean(0) for each in (model, like)]
            torch.testing.assert_close(*means)
        else:
            assert [each.reason for each in record.left] == [NO_BIAS + reason]


def test_a_convolution_before_a_batch_norm_is_judged_without_its_mean():
    """Far to the right IGLU is x - 1/(pi sigma): a change of the mean, which the BatchNorm removes."""
    like = nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).double().eval()
    data = [batch.double() + 100 for batch in images(5)]
    first, second = iglu.recalibrate(swapped(like, "iglu:1"), data, like=like).corrected
    assert (first.place, second.place) == ("1", "2")
    assert 0 < first.before < 1e-4
    alone = nn.Sequential(*like[:2])
    (first,) = iglu.recalibrate(swapped(alone, "iglu:1"), data, like=alone).corrected
    assert first.before > 1e-3


def test_a_norm_without_running_statistics_is_skipped():
    like = nn.Sequential(nn.GELU(), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)).eval()
    record = iglu.recalibrate(swapped(like), batches(), like=like)
    assert [each.place for each in record.left] == ["0"]
    assert not record.corrected


def test_different_learned_sigmas_are_different_activations():
    like = perceptron(lambda: iglu.IGLU(3.0, learnable=True))
    model = copy.deepcopy(like)
    with torch.no_grad():
        model[3].log_sigma.fill_(0.0)
    record = iglu.recalibrate(model, batches(), like=like)
    assert [each.activations for each in record.corrected] == [("3",)]


def test_the_original_model_is_unchanged():
    like = convolutional().train()
    model = swapped(like, "iglu:0.5")
    start = state(like)
    iglu.recalibrate(model, images(5), like=like)
    assert same(state(like), start)
    assert like.training
    assert model.training


class Special(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.act = nn.GELU()
        self.last = nn.Linear(6, 6)
        self.kind = kind
        if kind == "tied":
            self.other = nn.Linear(6, 6)
            self.other.weight = self.last.weight
        if kind == "parametrized":
            parametrize.register_parametrization(self.last, "weight", nn.Tanh())
        if kind == "quantized":
            self.last.weight = nn.Parameter(self.last.weight.to(torch.int8), requires_grad=False)
            self.last.forward = lambda x: F.linear(x, self.last.weight.to(x.dtype))
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        x = self.act(x)
        if self.kind == "norm":
            x = self.norm(x)
        if self.kind == "added":
            x = x + 1
        if self.kind == "added in place":
            x += 1
        x = self.last(x)
        return self.last(x) if self.kind == "shared" else x


@pytest.mark.parametrize(
    ("kind", "place", "reason"),
    [
        ("norm", "act", "no linear layer follows it"),
        ("added", "act", "no linear layer follows it"),
        ("added in place", "act", "no linear layer follows it"),
        ("tied", "last", "its weight is tied: 2 modules share it"),
        ("parametrized", "last", "its weight is computed, not stored: parametrized or packed"),
        ("quantized", "last", "its weight is quantized, torch.int8"),
    ],
)
def test_layers_that_cannot_be_corrected_are_listed_with_the_reason(kind, place, reason):
    like = Special(kind)
    model = swapped(like)
    start = state(model)
    record = iglu.recalibrate(model, batches(), like=like)
    assert [(each.place, each.reason) for each in record.left] == [(place, reason)]
    assert not record.corrected
    assert same(state(model), start)


def test_a_layer_called_twice_after_activations_is_reported_as_shared():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.GELU(), nn.GELU(), nn.Linear(6, 6)

        def forward(self, x):
            return self.last(self.second(self.last(self.first(x))))

    like = Twice()
    record = iglu.recalibrate(swapped(like), batches(), like=like)
    assert [each.reason for each in record.left] == ["a shared layer, called 2 times in a forward"]


def test_an_exception_leaves_the_model_unchanged():
    like = perceptron().train()
    model = swapped(like)
    start = state(model)
    calls = []

    def breaks(module, batch):
        out = module(batch)
        calls.append(module is model)
        if sum(calls) > 3:
            raise RuntimeError("out of luck")
        return out

    with pytest.raises(RuntimeError, match="out of luck"):
        iglu.recalibrate(model, batches(), like=like, forward=breaks)
    assert same(state(model), start)
    assert model.training
    assert like.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        iglu.swap(like, "relu", recalibrate=[torch.ones(2, 7)])
    assert isinstance(like[1], nn.GELU)


def test_undo_restores_weights_and_activations():
    model = perceptron()
    start = state(model)
    record = iglu.swap(model, "iglu:2", recalibrate=batches())
    assert isinstance(model[1], iglu.IGLU)
    assert record.recalibration is not None
    assert len(record.recalibration.corrected) == 2
    assert "2: least-squares, error" in repr(record)
    assert "exact zeros" not in repr(record)
    shown = record._repr_html_()
    assert "Swap: 2 replaced" in shown
    assert ">least-squares, error" in shown
    assert not same(state(model), start)
    record.undo()
    assert isinstance(model[1], nn.GELU)
    assert same(state(model), start)


def test_the_repr_of_the_record_has_one_line_for_layers_with_the_same_reason():
    torch.manual_seed(0)
    like = nn.Sequential(*(each for _ in range(3) for each in (nn.GELU(), nn.Linear(6, 6, bias=False))))
    record = iglu.recalibrate(swapped(like), batches(), like=like, method="shift")
    shares = sorted(record.zeros.values())
    share = f"exact zeros: {sum(shares) / 3:.0%} of the activations, {shares[0]:.0%} to {shares[2]:.0%}"
    assert repr(record) == (
        "Recalibration: 0 layers corrected, 3 left\n"
        f"  left * (3 times): it has no bias for the shift\n  {share}"
    )
    assert f"<p>{share}</p>" in record._repr_html_()


def test_errors_name_the_invalid_argument():
    model = perceptron()
    with pytest.raises(ValueError, match="got the model itself"):
        iglu.recalibrate(model, batches(), like=model)
    with pytest.raises(ValueError, match="have the same activations: nothing was swapped"):
        iglu.recalibrate(model, batches(), like=copy.deepcopy(model))
    with pytest.raises(ValueError, match="batches is empty"):
        iglu.recalibrate(swapped(model), [], like=model)
    with pytest.raises(ValueError, match="method must be one of 'least-squares', 'shift', 'norms', got 'ls'"):
        iglu.recalibrate(swapped(model), batches(), like=model, method="ls")
    with pytest.raises(TypeError, match=r"like must be an nn.Module, got NoneType"):
        iglu.recalibrate(swapped(model), batches(), like=None)
    with pytest.raises(ValueError, match="like must be the model before the swap: it has nothing at '3'"):
        iglu.recalibrate(swapped(model), batches(), like=model[:2])
    with pytest.raises(ValueError, match="no IGLU to convert"):
        iglu.to_relu(model, batches())


# -- to_relu --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learnable", [False, True])
def test_to_relu_gives_exact_relu_and_counts_its_zeros(learnable):
    model = perceptron(lambda: iglu.IGLU(3.0, learnable=learnable))
    like = copy.deepcopy(model)
    record = iglu.to_relu(model, batches())
    assert [type(model[place]) for place in (1, 3)] == [nn.ReLU, nn.ReLU]
    x = torch.cat(batches())
    with torch.no_grad():
        hidden = model[:2](x)
    assert record.zeros["1"] == pytest.approx((hidden == 0).float().mean().item(), abs=1e-6)
    assert 0.2 < record.zeros["3"] < 0.8
    assert error(model, like, batches(seed=1)) < 0.5 * error(swapped_type(like), like, batches(seed=1))
    record.undo()
    assert same(state(model), state(like))
    assert isinstance(model[1], iglu.IGLU)


def swapped_type(like):
    other = copy.deepcopy(like)
    iglu.swap(other, "relu", only=iglu.IGLU)
    return other


def test_the_layers_after_an_activation_are_found_through_products_dropout_and_reshapes():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.drop = nn.SiLU(), nn.Dropout(0.1)
            self.gate, self.up, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)
            self.aside = nn.Linear(4, 4)

        def forward(self, x):
            pair = self.act(self.gate(x)) * self.up(x)
            return self.down(self.drop(pair).reshape(-1, 8).contiguous()) + self.aside(x)

    model = Gated().eval()
    targets = find_targets(model, {"act": model.act}, lambda: model(torch.randn(2, 3, 4)[0]))
    assert [(each.place, each.activations) for each in targets] == [("down", ("act",))]
