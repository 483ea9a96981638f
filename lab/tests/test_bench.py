"""The benchmark's machinery: what is timed, how rounds become ratios, what is written.  No time is tested."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import iglu
from iglu.zoo import ZOO
from iglu_lab import cli
from iglu_lab.bench import cases, timing
from iglu_lab.bench import steps as training
from iglu_lab.bench.figures import session_figures
from iglu_lab.bench.sessions import Session
from iglu_lab.bench.timing import Inputs, Setting, Timed, quantiles
from iglu_lab.commands import bench as command
from iglu_lab.models.gpt2 import GPT2Config
from iglu_lab.models.resnet import resnet
from iglu_lab.paper import table1
from iglu_lab.report.figures.render import write_figures
from iglu_lab.runs.provenance import collect, describe_provenance

QUICK = ["--rounds", "2", "--iterations", "2", "--sizes", "64", "--no-warm-heap", "--no-pictures"]


def run(out: Path, *flags: str) -> dict[str, Any]:
    assert cli.bench([*QUICK, "--out", str(out), *flags]) == 0
    content: dict[str, Any] = json.loads((out / "bench.json").read_text())
    return content


# -- the paper's numbers -----------------------------------------------------------------------------


def test_table_1_has_the_24_rows_of_the_zoo_in_its_order() -> None:
    assert list(table1()) == list(ZOO)[:24]


@pytest.mark.parametrize(("name", "numbers"), [
    ("z", (21.95, 3.43, 14.77, 2.80)), ("iglu", (22.44, 4.39, 14.89, 2.68)),
    ("iglu_approx", (10.17, 3.63, 15.05, 2.23)), ("relu", (9.22, 3.39, 14.85, 2.66)),
    ("gelu", (16.40, 4.32, 15.36, 2.27)), ("mish", (64.08, 7.77, 14.75, 2.39)),
    ("prelu", (9.86, 11.00, 18.34, 3.39)), ("squareplus", (10.72, 3.52, 14.90, 2.20)),
    ("tanhshrink", (27.02, 4.73, 15.05, 2.99)), ("identity", (1, 1, 1, 1)),
])  # fmt: skip
def test_table_1_holds_the_printed_numbers(name: str, numbers: tuple[float, ...]) -> None:
    assert tuple(table1()[name].values()) == numbers
    assert list(table1()[name]) == ["cpu_forward", "cpu_backward", "gpu_forward", "gpu_backward"]


def test_the_columns_of_table_1_have_the_sums_of_the_printed_ones() -> None:
    sums = [sum(column) for column in zip(*(row.values() for row in table1().values()), strict=True)]
    assert sums == pytest.approx([386.44, 97.46, 355.26, 66.67])


# -- rounds ------------------------------------------------------------------------------------------


class FakeMachine:
    """Blocks whose times are known: base seconds times a load that grows with every block run."""

    def __init__(self, loads: Callable[[int], float] = lambda _: 1.0) -> None:
        self.loads = loads
        self.ran: list[str] = []

    def timed(self, name: str, seconds: float) -> Timed:
        def run_block(calls: int) -> float:
            self.ran.append(name)
            return seconds * self.loads(len(self.ran) - 1)

        return Timed(name, run_block)


def measured(*seconds: float) -> Timed:
    return Timed("", lambda calls: math.nan, seconds=list(seconds))


def test_every_round_runs_each_case_once_in_varying_order() -> None:
    machine = FakeMachine()
    list(timing.interleave([machine.timed(name, 1.0) for name in "abcd"], 10))
    rounds = [machine.ran[start : start + 4] for start in range(0, 40, 4)]
    assert all(sorted(each) == list("abcd") for each in rounds)
    assert len(set(map(tuple, rounds))) > 1


def test_ratio_is_exact_on_a_machine_whose_speed_changes_between_rounds() -> None:
    machine = FakeMachine(loads=lambda index: 10.0 ** (index // 2))  # ten times slower every round
    slow, fast = machine.timed("slow", 3e-6), machine.timed("fast", 2e-6)
    list(timing.interleave([slow, fast], 7))
    assert slow.ratio(fast) == dict.fromkeys(("median", "low", "high"), pytest.approx(1.5))


def test_ratio_is_the_median_of_quotients_not_the_quotient_of_medians() -> None:
    one, other = measured(1.0, 2.0, 9.0), measured(1.0, 4.0, 3.0)
    assert one.ratio(other)["median"] == 1.0  # of 1, 1/2 and 3
    middles = [quantiles(each.seconds)["median"] for each in (one, other)]
    assert middles[0] / middles[1] == pytest.approx(2 / 3)


def test_quantiles_are_the_median_and_the_outer_fifths() -> None:
    assert quantiles(range(11)) == {"median": 5, "low": 2, "high": 8}


def test_a_round_cut_short_is_left_out_of_ratios() -> None:
    assert measured(2.0, 2.0).ratio(measured(1.0))["high"] == 2


@pytest.mark.parametrize(("seconds", "calls"), [(1e-8, 20_001), (10e-6, 20), (1e-3, 1), (1.0, 1)])
def test_blocks_are_neither_too_short_nor_too_long(seconds: float, calls: int) -> None:
    assert timing.calls_per_block(seconds, 1_000, 50) == pytest.approx(calls, abs=1)


# -- what is timed -----------------------------------------------------------------------------------


def evaluate(case: cases.Case, x: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    with case.on_backend():
        y: torch.Tensor = eval(case.statement, {**case.names, "x": x, "up": up})
    return y


@pytest.mark.parametrize("call", ["module", "function"])
def test_every_statement_computes_the_activation_it_is_named_after(call: str) -> None:
    x, up = torch.linspace(-3, 3, 50), torch.linspace(1, 2, 50)
    names = [*ZOO, "iglu:0.5", "iglu_approx:3", "iglu:learnable=2"]
    for case in cases.cases(names, call=call):
        y = evaluate(case, x, up)
        if case.is_pair:
            plain = {"silu_glu": nn.SiLU(), "iglu_glu": iglu.IGLU(1.0)}
            expected = plain.get(case.name, iglu.IGLU(1.0, approximate="rational"))(x) * up
        elif case.name == "gelu_tanh":
            expected = nn.GELU("tanh")(x)
        else:
            # Without a number, sigma is that of the paper's Table 1.
            is_bare = ZOO.get(case.name, ZOO["relu"]).takes_sigma
            expected = iglu.create(f"{case.name}:1" if is_bare else case.name)(x)
        torch.testing.assert_close(y, expected, msg=f"{case.label}: {case.statement}")


def test_the_complete_zoo_is_timed_by_default_with_direct_forms_and_pairs() -> None:
    found = {(case.name, case.kernel) for case in cases.cases(ZOO)}
    ours = {"z", "z_approx", "iglu", "iglu_approx"}
    assert {name for name, _ in found} == set(ZOO) | {"gelu_tanh", "silu_glu", "iglu_glu", "iglu_approx_glu"}
    assert {name for name, kernel in found if kernel == "direct"} == ours


def test_only_iglu_has_one_row_per_backend() -> None:
    found = cases.cases(["iglu", "relu"], backends=["auto", "reference"], pairs=False, direct=False)
    assert [(case.name, case.kernel) for case in found] == [
        ("iglu", "auto"), ("iglu", "reference"), ("relu", "torch"),
    ]  # fmt: skip


@pytest.mark.parametrize("pass_name", timing.PASSES)
def test_each_pass_runs_for_a_single_node_and_leaves_no_gradient_on_the_inputs(pass_name: str) -> None:
    inputs = Inputs.make(Setting(elements=32))
    (case,) = cases.cases(["relu"])[:1]
    assert timing.block_of(case, pass_name, inputs, 1)(3) > 0
    assert inputs.x.grad is None
    assert not inputs.x.requires_grad


def test_backward_statement_gives_the_gradient_of_every_leaf() -> None:
    x = torch.randn(20, requires_grad=True)
    up = torch.randn(20, requires_grad=True)
    g = torch.randn(20)
    y = torch.nn.functional.silu(x) * up
    program, _ = timing._PROGRAMS["backward"]
    names = {"y": y, "g": g, "leaves": (x, up), "run_backward": timing._run_backward}
    for mine, theirs in zip(eval(program, names), torch.autograd.grad(y, (x, up), g), strict=True):
        assert torch.equal(mine, theirs)


def test_timing_a_node_raises_for_a_graph_of_several_nodes() -> None:
    direct = next(each for each in cases.cases(["iglu"]) if each.kernel == "direct")
    with pytest.raises(ValueError, match="more than one node"):
        timing.block_of(direct, "node", Inputs.make(Setting(elements=8)), 1)


# -- the command -------------------------------------------------------------------------------------


def test_rows_carry_everything_and_the_file_its_provenance(tmp_path: Path) -> None:
    content = run(tmp_path, "--activations", "iglu", "gelu")
    assert content["command"].startswith("iglu bench --rounds 2")
    assert content["provenance"]["torch"] == torch.__version__
    assert content["provenance"]["cpu"]
    assert not content["interrupted"]
    rows = content["rows"]
    assert {row["pass"] for row in rows} == {"forward", "recording", "backward", "loss_backward"}
    assert {row["activation"] for row in rows} >= {
        "iglu",
        "gelu",
        "gelu_tanh",
        "relu",
        "identity",
        "iglu_glu",
    }
    for row in rows:
        assert row["rounds"] == len(row["seconds_by_round"]) == 2
        assert row["seconds"]["low"] <= row["seconds"]["median"] <= row["seconds"]["high"]
        assert set(row["ratios"]) == {"identity", "relu"}
        assert (row["device"], row["dtype"], row["threads"], row["elements"]) == ("cpu", "float32", 1, 64)
        assert bool(row["served_by"]) == row["is_ours"]
    relu = next(row for row in rows if row["activation"] == "relu")
    assert relu["ratios"]["relu"] == {"median": 1.0, "low": 1.0, "high": 1.0}


def test_a_name_without_a_number_is_timed_at_the_sigma_of_table_1_and_tables_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.linspace(-3, 3, 50)
    found = [
        *(evaluate(case, x, x) for call in ("module", "function")
          for case in cases.cases(["iglu"], call=call, pairs=False)),
        *(case.names["make"]()(x) for case in training.contenders(["iglu"], ["auto"])),
    ]  # fmt: skip
    assert len(found) == 6
    for y in found:
        torch.testing.assert_close(y, x * (0.5 + torch.atan(x) / torch.pi))
    run(tmp_path, "--activations", "iglu")
    assert "sigma = 1 where" in " ".join(capsys.readouterr().out.split())


def test_without_a_gpu_the_gpu_is_reported_as_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.bench([*QUICK, "--out", str(tmp_path), "--sizes", "10k", "--activations", "iglu"]) == 0
    printed = capsys.readouterr().out
    assert "not run" in printed
    assert "cuda: torch finds no CUDA device" in printed
    assert "22.44" in printed  # the number of the paper


def test_a_case_that_fails_is_reported_and_the_others_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel\nand a long story")

    monkeypatch.setattr(nn.SiLU, "forward", fail)
    content = run(tmp_path, "--activations", "silu", "gelu", "--passes", "forward")
    assert [(entry["what"], entry["why"]) for entry in content["not_run"]][-1] == (
        "SiLU, torch", "no such kernel",
    )  # fmt: skip
    assert "gelu" in {row["activation"] for row in content["rows"]}
    assert "silu" not in {row["activation"] for row in content["rows"]}


@pytest.mark.parametrize(("flags", "message"), [
    (["--activations", "igul"], "Unknown activation 'igul'. Did you mean 'iglu'?"),
    (["--activations", "relu:2"], "takes no sigma"),
    (["--sizes", "ten"], "--sizes must be numbers like 1, 10k or 16M, got 'ten'"),
    (["--rounds", "0"], "--rounds must be at least 1, got 0"),
    (["--ratios-to", "igul"], "Did you mean 'iglu'?"),
    (["--against", "nowhere.json"], "nowhere.json does not exist"),
    (["--against", "empty.json"], "--against must name a file of iglu bench, got empty.json"),
    (["--markdown", "nowhere.md"], "nowhere.md"),
])  # fmt: skip
def test_an_invalid_flag_gives_one_line_and_status_2(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.json").touch()
    assert cli.bench(flags) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_session_is_never_overwritten_and_a_new_one_has_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "mine", "--activations", "iglu", "--passes", "forward")
    before = (tmp_path / "mine" / "bench.json").read_bytes()
    assert before.count(b"\n") == len(json.loads(before)["rows"]) + 2  # one line per row
    for flags in (["--activations", "relu"], ["--devices", "cuda:99"]):
        assert cli.bench([*QUICK, *flags, "--out", str(tmp_path / "mine")]) == 2
    error = capsys.readouterr().err
    assert "bench.json already exists" in error
    assert "--devices cuda:99: not available" in error
    assert error.count("\n") == 2
    assert (tmp_path / "mine" / "bench.json").read_bytes() == before
    monkeypatch.chdir(tmp_path)
    assert cli.bench([*QUICK, "--activations", "relu", "--passes", "forward"]) == 0
    assert len(list((tmp_path / "runs" / "bench").glob("*/bench.json"))) == 1


def test_a_folder_that_cannot_be_written_is_reported_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(timing, "interleave", lambda *_: pytest.fail("it measured"))
    assert cli.bench([*QUICK, "--out", str(tmp_path / "file" / "below")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_ctrl_c_writes_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interleave, blocks_run = timing.interleave, 0

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal blocks_run
        for step in interleave(*arguments, **options):
            blocks_run += 1
            if blocks_run == 12:
                raise KeyboardInterrupt  # as of SIGINT, which a shell may have had ignored
            yield step

    monkeypatch.setattr(timing, "interleave", interrupted)
    # 7 cases a round: the signal comes in the second round of the first pass.
    flags = ["--activations", "gelu", "--rounds", "5", "--no-pairs", "--ratios-to", "relu", "gelu"]
    assert cli.bench([*QUICK, *flags, "--out", str(tmp_path)]) == 130
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["interrupted"]
    assert sum(row["rounds"] for row in content["rows"]) == 12
    assert "Interrupted" in capsys.readouterr().out


def test_a_file_is_never_half_written(tmp_path: Path) -> None:
    record = Session(tmp_path / "bench.json", {})
    record.add([{"kind": "operation"}])
    with pytest.raises(TypeError):
        record.add([{"kind": object()}])
    assert json.loads((tmp_path / "bench.json").read_text())["rows"] == [{"kind": "operation"}]


# -- tables and figures -----------------------------------------------------------------------------


def test_markdown_fills_its_section_and_leaves_the_rest(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text("before\n<!-- bench:paper -->\nold\n<!-- /bench:paper -->\nafter\n")
    run(tmp_path, "--activations", "iglu", "--markdown", str(document))
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| IGLU |" in text
    assert "iglu bench --rounds 2" in text
    with pytest.raises(ValueError, match=r"no section 'speed'.*Its sections: paper"):
        command.fill_section(document, "speed", "")


def test_bar_charts_and_a_chart_over_sizes_are_drawn(tmp_path: Path) -> None:
    content = run(tmp_path, "--activations", "iglu", "--sizes", "16", "64", "--passes", "forward")
    described = list(session_figures(content["rows"]))
    small = [row for row in content["rows"] if row["elements"] == 16]
    assert [len(figure.panels[0].names) for figure in described] == [len(small), len(small), 0]
    bars = described[0].panels[0].lines[::2]  # each is followed by the line over its quantiles
    assert [bar.x[1] for bar in bars] == [row["ratios"]["relu"]["median"] for row in small]
    paths = [path for figure in write_figures(described, tmp_path) for path in figure.paths[:1]]
    assert len(paths) == 3
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.with_suffix(".svg").read_text().startswith("<?xml")


# -- training ----------------------------------------------------------------------------------------


def small_workload() -> training.BenchModel:
    def example() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(4, 3, 32, 32), torch.randint(10, (4,))

    return training.BenchModel(
        "resnet20", "ResNet-8, batch 4", "images", 4,
        lambda make: resnet(8, 10, make), example, nn.functional.cross_entropy,
    )  # fmt: skip


def test_training_rows_have_speed_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(training.BENCH_MODELS, "resnet20", small_workload)
    flags = ["--train", "--models", "resnet20", "--activations", "iglu_approx", "relu", "--threads", "1"]
    assert cli.bench([*QUICK, *flags, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "train.json").read_text())["rows"]
    found = {(row["activation"], row["kernel"]): row for row in rows}
    forms = {("iglu_approx", "auto"), ("iglu_approx/output", "auto"), ("iglu_approx/inplace", "auto")}
    assert set(found) == forms | {("iglu_approx", "direct"), ("relu", "torch")}
    for row in rows:
        assert row["peak_bytes"] >= row["kept_bytes"] > 0
        assert row["items_a_second"]["median"] > 0
        assert "relu" in row["ratios"]
    assert "direct" in found["iglu_approx", "auto"]["ratios"]
    # The fused operation keeps its input alone; the direct formula several intermediate results.
    assert found["iglu_approx", "auto"]["kept_bytes"] < found["iglu_approx", "direct"]["kept_bytes"]
    # Keeping the output, which the next layer keeps anyway, costs no more than ReLU.
    for form in ("output", "inplace"):
        assert found[f"iglu_approx/{form}", "auto"]["kept_bytes"] == found["relu", "torch"]["kept_bytes"]


def test_kept_and_peak_memory_of_a_known_network_are_counted_to_the_byte() -> None:
    elements = 1_000

    class Squares(nn.Module):
        def __init__(self, activation: nn.Module) -> None:
            super().__init__()
            self.activation = activation
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.scale).exp().exp()

    bench_model = training.BenchModel(
        "squares", "squares", "items", 1, lambda make: Squares(make()),
        lambda: (torch.zeros(elements), torch.zeros(())), lambda y, _: y.sum(),
    )  # fmt: skip
    (relu,) = training.contenders(["relu"], ["auto"])
    step = training.TrainingStep(bench_model, relu, "cpu")
    step()
    # x for the scale, and the results of both exponentials.
    assert training.kept_bytes(step) == 3 * 4 * elements
    # x was there before; the most is held when the last exponential has its gradient: two results and it.
    assert 3 * 4 * elements <= training.peak_bytes(step) < 3 * 4 * elements + 100


@pytest.mark.parametrize("name", list(training.BENCH_MODELS))
def test_workloads_have_the_shapes_of_their_labels(name: str) -> None:
    bench_model = training.BENCH_MODELS[name]()
    x, _ = bench_model.example()
    assert x.shape == {"resnet20": (128, 3, 32, 32), "gpt2_block": (4, 256, 768)}[name]
    assert bench_model.items == {"resnet20": 128, "gpt2_block": 1_024}[name]


def test_a_step_of_each_workload_changes_the_parameters() -> None:
    tiny = GPT2Config(context=8, width=12, heads=3)
    for bench_model in (training.resnet20_model(batch=2), training.gpt2_block_model(1, tiny)):
        (contender,) = training.contenders(["iglu"], ["auto"], direct=False)
        step = training.TrainingStep(bench_model, contender, "cpu")
        before = [parameter.detach().clone() for parameter in step.model.parameters()]
        step()
        after = step.model.parameters()
        assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


# -- provenance --------------------------------------------------------------------------------------


def test_provenance_names_versions_and_machine_and_no_person_or_place() -> None:
    found = collect()
    assert found["iglu"] == iglu.__version__
    assert found["torch"] == torch.__version__
    assert found["cores"] >= 1
    assert found["cpu"] in describe_provenance(found)
    text = json.dumps(found)
    assert str(Path.home()) not in text or str(Path.home()) == "/"


def test_an_installed_package_has_no_commit_of_a_repository_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iglu, "__file__", str(tmp_path / "iglu" / "__init__.py"))
    assert collect()["commit"] is None
    assert collect()["modified"] is None
