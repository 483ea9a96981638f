"""The callbacks of Trainer and Lightning log what a probe of the batch finds, and do not change the run."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import iglu
from iglu.probing import probe
from iglu.probing.training import TailMonitor


def inputs(rows: int = 400, seed: int = 0) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))


def network(*activations: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [[nn.Linear(8, 8), activation] for activation in activations]
    return nn.Sequential(*[module for pair in layers for module in pair])


# -- the monitor -----------------------------------------------------------------------------------


def test_the_metrics_are_those_of_a_probe_of_the_same_batch() -> None:
    model, x = network(nn.ReLU(), nn.GELU(), iglu.IGLU(0.5, learnable=True)), inputs()
    monitor = TailMonitor(model)
    with monitor.step():
        model(x).sum().backward()
    found = monitor.metrics()
    for layer in probe(model, x, training=True).layers:
        index = layer.index()
        assert found[f"tails/alpha/{layer.name}"] == pytest.approx(index.alpha)
        assert found[f"tails/gaussian/{layer.name}"] == pytest.approx(index.gaussian)
    assert found["sigma/5"] == pytest.approx(0.5)
    assert found.keys() == {
        *(f"tails/{kind}/{place}" for kind in ("alpha", "gaussian", "dead") for place in (1, 3, 5)),
        "sigma/5",
    }


def test_a_unit_is_dead_if_no_input_of_the_step_activates_it() -> None:
    model = network(nn.ReLU())
    with torch.no_grad():
        model[0].bias[:3] = -1e6  # never active
        model[0].weight[3] = 0.0
        model[0].bias[3] = -1.0  # never active either
    monitor = TailMonitor(model)
    with monitor.step():
        model(inputs())
    assert monitor.metrics()["tails/dead/1"] == pytest.approx(4 / 8)
    with monitor.step():  # two passes of one step: alive in one is alive
        model(inputs())
        with torch.no_grad():
            model[0].bias[:3] = 0.0
        model(inputs())
    assert monitor.metrics()["tails/dead/1"] == pytest.approx(1 / 8)


def test_the_units_of_an_image_are_its_channels_and_those_of_iglu_die_only_far_from_zero() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), iglu.IGLU(1.0))
    with torch.no_grad():
        model[0].bias[0] = model[2].bias[0] = -50.0
    monitor = TailMonitor(model)
    with monitor.step():
        model(torch.randn(2, 3, 12, 12))
    found = monitor.metrics()
    assert (found["tails/dead/1"], found["tails/dead/3"]) == (0.25, 0.25)  # IGLU'(-50) < 1e-3
    with torch.no_grad():
        model[2].bias[0] = -5.0
    with monitor.step():
        model(torch.randn(2, 3, 12, 12))
    assert monitor.metrics()["tails/dead/3"] == 0.0


def test_a_sigma_per_channel_is_logged_as_mean_minimum_and_maximum() -> None:
    model = nn.Sequential(iglu.IGLU(2.0, learnable=True, channels=3, channel_dim=-1))
    with torch.no_grad():
        model[0].log_sigma.copy_(torch.tensor([1.0, 2.0, 6.0]).log())
    monitor = TailMonitor(model)
    with monitor.step():
        model(torch.randn(50, 3))
    found = monitor.metrics()
    metrics = [found[f"{name}/0"] for name in ("sigma", "sigma_min", "sigma_max")]
    assert metrics == pytest.approx([3.0, 1.0, 6.0])


@pytest.mark.parametrize("fails", [False, True])
def test_a_monitored_step_leaves_no_hooks_and_draws_no_random_numbers(fails: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.random = nn.Linear(8, 8), nn.RReLU()

        def forward(self, x: Tensor) -> Tensor:
            x = self.random(F.relu(self.linear(x), inplace=True))
            if fails:
                raise RuntimeError("on purpose")
            return x

    model, monitor = Net(), None
    torch.manual_seed(1)
    if not fails:
        expected = model(inputs())
    torch.manual_seed(1)
    monitor = TailMonitor(model)
    if fails:
        with pytest.raises(RuntimeError, match="on purpose"), monitor.step():
            model(inputs())
    else:
        with monitor.step():
            assert torch.equal(model(inputs()), expected)
            model(inputs()).sum().backward()
        assert model.linear.weight.grad is not None
        assert "tails/dead/random" not in monitor.metrics()
        assert "tails/alpha/random" in monitor.metrics()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert torch._C._len_torch_function_stack() == 0


def test_each_call_in_a_loop_is_a_layer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = iglu.IGLU(1.0, learnable=True)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = 3 * self.act(x)
            return x

    monitor = TailMonitor(Net())
    with monitor.step():
        monitor.model(inputs())
    assert [name for name in monitor.metrics() if "alpha" in name] == [
        f"tails/alpha/{name}" for name in ("act", "act 2", "act 3")
    ]


def test_a_monitored_step_works_with_checkpointing() -> None:
    """Non-reentrant checkpointing counts the tensors that are saved; the monitor's are not among them."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(nn.GELU(), iglu.IGLU(1.0))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.net, x, use_reentrant=False)

    model, x = Checkpointed(), inputs()
    model(x).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    monitor = TailMonitor(model)
    with monitor.step():
        model(x).sum().backward()
    assert {"tails/dead/net.1", "tails/alpha/net.3"} <= monitor.metrics().keys()
    assert all(map(torch.equal, [parameter.grad for parameter in model.parameters()], expected))


def test_inputs_of_varying_length_have_tails_but_no_share_of_dead_units() -> None:
    class Narrowing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.layers = nn.ReLU(), nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 32)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = self.act(layer(x))
            return x

    monitor = TailMonitor(model := Narrowing())
    with monitor.step():
        model(inputs())
    assert {"tails/dead/act", "tails/dead/act 2", "tails/alpha/act 2"} <= monitor.metrics().keys()
    monitor = TailMonitor(sounds := nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU()))
    with monitor.step():
        for length in (20, 30):
            sounds(torch.randn(64, 1, length))
    assert "tails/alpha/1" in monitor.metrics()
    assert "tails/dead/1" not in monitor.metrics()


def test_functions_called_with_keyword_arguments_are_monitored() -> None:
    class Keywords(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(input=super().forward(x), approximate="tanh")

    model = Keywords(8, 8)
    (layer,) = probe(model, inputs()).layers
    assert layer.n == 400 * 8
    monitor = TailMonitor(model)
    with monitor.step():
        model(inputs())
    assert monitor.metrics()[f"tails/dead/{layer.name}"] == 0


def test_constant_inputs_have_no_tail_index_and_invalid_options_raise() -> None:
    monitor = TailMonitor(nn.Sequential(nn.ReLU()))
    with monitor.step():
        monitor.model(torch.ones(100, 8))
    assert monitor.metrics() == {"tails/dead/0": 0.0}
    with pytest.raises(ValueError, match="k must be from 1 to keep - 1 = 2047, got 0"):
        TailMonitor(monitor.model, k=0)
    with pytest.raises(ValueError, match="keep must be at least 2, got 1"):
        TailMonitor(monitor.model, keep=1)
    TailMonitor(monitor.model, k=1, keep=2)


# -- transformers' Trainer -------------------------------------------------------------------------


def small_gpt2(name: str = "iglu:learnable=0.5") -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=16, bos_token_id=1, eos_token_id=2,
        activation_function=name,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def train_gpt2(folder: Path, every: int | None, **options: Any) -> tuple[Any, list[dict[str, float]]]:
    from transformers import Trainer, TrainingArguments

    from iglu.integrations.transformers import TailCallback

    tokens = torch.randint(3, 50, (64, 16), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=4, report_to=[], save_strategy="no",
        logging_steps=3, disable_tqdm=True, use_cpu=True, seed=0, learning_rate=1e-2, **options,
    )  # fmt: skip
    trainer = Trainer(small_gpt2(), arguments, train_dataset=data)
    if every is not None:
        trainer.add_callback(TailCallback(trainer, every=every))
    trainer.train()
    return trainer.model, trainer.state.log_history


@pytest.fixture
def trainer_here() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="Trainer needs accelerate")


@pytest.mark.usefixtures("trainer_here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*pin_memory.*:UserWarning")
def test_trainer_logs_every_layer_every_n_steps_and_trains_the_same_weights(tmp_path: Path) -> None:
    plain, _ = train_gpt2(tmp_path, None)
    model, history = train_gpt2(tmp_path, 2)
    assert all(
        torch.equal(value, other)
        for value, other in zip(plain.state_dict().values(), model.state_dict().values(), strict=True)
    )
    logged = [row for row in history if "tails/alpha/transformer.h.0.mlp.act" in row]
    assert [row["step"] for row in logged] == [2, 4, 6]
    for place in ("transformer.h.0.mlp.act", "transformer.h.1.mlp.act"):
        assert all(row[f"tails/gaussian/{place}"] > 1 for row in logged)
        assert all(0 <= row[f"tails/dead/{place}"] <= 1 for row in logged)
        sigmas = [row[f"sigma/{place}"] for row in logged]
        assert len(set(sigmas)) == 3  # they learn
        assert sigmas[-1] == pytest.approx(model.get_submodule(place).sigma.item())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.usefixtures("trainer_here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*pin_memory.*:UserWarning")
def test_accumulated_batches_are_one_sample(tmp_path: Path) -> None:
    _, history = train_gpt2(tmp_path, 3, gradient_accumulation_steps=2)
    _, once = train_gpt2(tmp_path, 3)
    name = "tails/gaussian/transformer.h.0.mlp.act"
    double, single = ([row[name] for row in rows if name in row] for rows in (history, once))
    assert len(double) == len(single) == 2
    # 1% of n = 4 * 16 * 64 values or of twice as many: the same fraction, so nearly the same for a Gaussian
    assert double[0] == pytest.approx(single[0], rel=0.05)
    assert double[0] != single[0]


@pytest.mark.usefixtures("trainer_here")
def test_the_trainer_callback_is_a_callback_of_transformers_and_rejects_invalid_arguments() -> None:
    from transformers import TrainerCallback

    from iglu.integrations.transformers import TailCallback

    assert issubclass(TailCallback, TrainerCallback)
    assert (TailCallback(None).every, TailCallback(None, every=1).every) == (100, 1)
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        TailCallback(None, every=0)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        iglu.integrations.transformers.Nothing  # noqa: B018


# -- Lightning -------------------------------------------------------------------------------------


def train_lightning(folder: Path, every: int | None, accumulate: int = 1, **options: Any) -> Any:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from lightning.pytorch.loggers import CSVLogger

    from iglu.integrations.lightning import TailCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = network(nn.ReLU(), iglu.IGLU(0.5, learnable=True))

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return self.net(batch[0]).square().sum()  # not through self.forward

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = Module()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs()), batch_size=20)
    callback = [] if every is None else [TailCallback(every=every, **options)]
    trainer = lightning.Trainer(
        max_steps=6, accelerator="cpu", devices=1, logger=CSVLogger(folder, name="", version=""),
        callbacks=callback, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accumulate_grad_batches=accumulate,
    )  # fmt: skip
    trainer.fit(module, data)
    return module


def rows_of(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_every_layer_every_n_steps_and_trains_the_same_weights(tmp_path: Path) -> None:
    plain = train_lightning(tmp_path / "plain", None)
    module = train_lightning(tmp_path / "watched", 2)
    assert all(
        torch.equal(value, other)
        for value, other in zip(plain.state_dict().values(), module.state_dict().values(), strict=True)
    )
    rows = rows_of(tmp_path / "watched")
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    assert {*rows[0]} == {
        "step", "sigma/net.3", *(f"tails/{kind}/net.{place}" for kind in ("alpha", "gaussian", "dead")
                                 for place in (1, 3)),
    }  # fmt: skip
    assert float(rows[-1]["sigma/net.3"]) == pytest.approx(module.net[3].sigma.item())
    assert not any(each._forward_pre_hooks or each._forward_hooks for each in module.modules())
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.filterwarnings("ignore")
def test_lightning_treats_accumulated_batches_as_one_sample(tmp_path: Path) -> None:
    train_lightning(tmp_path / "two", 3, accumulate=2, k=100)
    train_lightning(tmp_path / "one", 3, k=100)
    two, one = (float(rows_of(tmp_path / name)[0]["tails/gaussian/net.1"]) for name in ("two", "one"))
    assert two > one  # k = 100 of 320 values and of 160


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's own
def test_lightning_logs_every_n_steps_of_several_optimizers(tmp_path: Path) -> None:
    """The global step counts the steps of both, so that it is even before every batch."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from lightning.pytorch.loggers import CSVLogger

    from iglu.integrations.lightning import TailCallback

    class Alternating(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.nets = nn.ModuleList([network(nn.ReLU()), network(nn.GELU())])

        def training_step(self, batch: list[Tensor], index: int) -> None:
            for net, optimizer in zip(self.nets, self.optimizers(), strict=True):
                optimizer.zero_grad()
                self.manual_backward(net(batch[0]).square().sum())
                optimizer.step()

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.SGD(net.parameters(), lr=1e-4) for net in self.nets]

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs()), batch_size=20)
    trainer = lightning.Trainer(
        max_epochs=1, limit_train_batches=12, accelerator="cpu", devices=1,
        logger=CSVLogger(tmp_path, name="", version=""), callbacks=[TailCallback(every=8)],
        log_every_n_steps=4, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Alternating(), data)
    with open(tmp_path / "metrics.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("tails/alpha/nets.1.1")]
    assert [int(row["step"]) for row in rows] == [8, 16, 24]


def test_the_lightning_callback_logs_every_100_steps_by_default_and_rejects_every_below_1() -> None:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from iglu.integrations.lightning import TailCallback

    assert TailCallback().every == 100
    assert TailCallback(every=1, k=5).options == {"k": 5}
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        TailCallback(every=0)
