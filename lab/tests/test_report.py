"""The report's content, on synthetic results whose tables are known."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("tyro", reason="the command needs the lab")
pytest.importorskip("matplotlib")


from iglu import zoo
from iglu_lab import cli, paper
from iglu_lab.probe.tail_tables import Tails, networks_table
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.report import build, claims, computed
from iglu_lab.report.comparisons import all_tasks
from iglu_lab.report.content import Claim, Report
from iglu_lab.report.figures.functions import function_figures
from iglu_lab.report.figures.render import draw, numbers
from iglu_lab.report.gather import Gathered, gather
from iglu_lab.report.page import render
from iglu_lab.report.tables import all_tables as tables_of
from iglu_lab.report.tables import table5
from iglu_lab.report.verdicts import judge_side
from iglu_lab.stats.statistics import Estimate, median
from iglu_lab.stats.style import pictures
from iglu_lab.stats.tabulate import Cell, Table, csv_text
from iglu_lab.storage import RESULTS

CIFAR = RECIPES["resnet20-cifar10"]


def write_run(
    folder: Path,
    recipe: Recipe,
    metrics: dict[str, float],
    epochs: int | None = None,
    status: str = "finished",
) -> Path:
    """A run whose epochs all have the same metrics."""
    place = folder / recipe.folder_name
    place.mkdir(parents=True)
    (place / "recipe.json").write_text(json.dumps(recipe.as_dict()))
    count = recipe.epochs if epochs is None else epochs
    rows = [{"epoch": epoch, "train_loss": 1.0, **metrics} for epoch in range(1, count + 1)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "state.json").write_text(json.dumps({"status": status, "message": ""}))
    return place


def write_bench(folder: Path, times: dict[str, float], rounds: int = 20) -> Path:
    """Rows of Table 1's setting: ``times`` by activation, relative to Identity, the same in each round
    except for 1% up and down."""
    rows = [
        {
            "kind": "operation", "activation": name, "label": name, "kernel": kernel,
            "is_ours": kernel == "auto", "device": "cpu", "dtype": "float32", "threads": 1,
            "elements": 10_000, "pass": which, "rounds": rounds,
            "seconds": {"median": time, "low": time, "high": time},
            "ratios": {"identity": {"median": time, "low": time, "high": time}},
            "seconds_by_round": [time * (1.01 if number % 2 else 0.99) for number in range(rounds)],
        }
        for which in ("forward", "loss_backward")
        for name, time in times.items()
        for kernel in ("auto" if name.startswith("iglu") else "torch",)
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.json"
    path.write_text(json.dumps({"command": "iglu bench", "provenance": {}, "rows": rows}))
    return path


def all_tables(found: Gathered) -> tuple[Table, ...]:
    return tables_of(found, all_tasks(found))


def table(tables: tuple[Table, ...], key: str) -> Table:
    return next(each for each in tables if each.key == key)


def row(found: Table, label: str) -> dict[tuple[str, str], Cell]:
    line = next(each for each in found.rows if each[0].text == label)
    return dict(zip(found.headers, line, strict=True))


def claim(found: tuple[Claim, ...], start: str) -> Claim:
    return next(each for each in found if each.text.startswith(start))


ACCURACY = ("ResNet-20, CIFAR-10", "accuracy, %: ours")
DIFFERENCE = ("ResNet-20, CIFAR-10", "accuracy, %: difference")


# -- reading -------------------------------------------------------------------------------------------


def test_an_empty_folder_gives_all_tables_of_the_paper_and_says_not_run(tmp_path):
    found = all_tables(gather([tmp_path]))
    assert [each.key for each in found] == ["table1", "table2", "table3", "table4", "table5", "errata"]
    for each in found[:5]:
        ours = [line[place].text for line in each.rows for place, (_, name) in enumerate(each.headers)
                if "ours" in name]  # fmt: skip
        assert ours
        assert set(ours) == {"not run"}


def test_files_that_cannot_be_read_are_named_and_the_others_are_shown(tmp_path):
    good = write_run(tmp_path, CIFAR.replace(seed=0), {"test_loss": 0.5, "test_acc": 90.0})
    half = tmp_path / "half"
    half.mkdir()
    (half / "recipe.json").write_text('{"name": "resn')
    bad_line = write_run(tmp_path, CIFAR.replace(seed=1), {"test_loss": 0.5, "test_acc": 90.0})
    lines = (bad_line / "metrics.jsonl").read_text().splitlines()
    (bad_line / "metrics.jsonl").write_text("\n".join(["nonsense", *lines[1:]]) + "\n")
    no_epoch = write_run(tmp_path, CIFAR.replace(seed=2), {}, epochs=0, status="unfinished")
    foreign = {
        "recipe.json": '["soup"]',
        "bench.json": "[]",
        "probe.json": '{"layers": 3}',
        "train.json": "\xff",
    }
    for number, (name, text) in enumerate(foreign.items()):
        (tmp_path / f"foreign{number}").mkdir()
        (tmp_path / f"foreign{number}" / name).write_text(text)
    found = gather([tmp_path])
    assert [run.folder for run in found.runs] == [good, no_epoch]
    named = "\n".join(found.problems)
    for place in (half, bad_line, *(tmp_path / f"foreign{number}" for number in range(4))):
        assert str(place) in named
    assert len(found.problems) == 7
    assert row(table(all_tables(found), "table2"), "ReLU")[ACCURACY].text == "90.00 (1)"


def test_invalid_rows_of_a_benchmark_are_left_out_and_counted(tmp_path):
    path = write_bench(tmp_path, {"relu": 4.0, "identity": 1.0})
    body = json.loads(path.read_text())
    body["rows"] += [3, {"kind": "operation"}, {**body["rows"][0], "seconds": {"median": "fast"}}]
    path.write_text(json.dumps(body))
    found = gather([tmp_path])
    assert len(found.sessions[0].rows) == 4
    assert found.problems == [f"{path}: 3 entries are not rows of iglu bench"]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_the_same_run_in_two_places_counts_once_and_the_longer_one_wins(tmp_path, order):
    write_run(tmp_path / "a", CIFAR, {"test_loss": 0.5, "test_acc": 80.0}, epochs=3, status="unfinished")
    write_run(tmp_path / "b", CIFAR, {"test_loss": 0.5, "test_acc": 90.0})
    found = gather([*(tmp_path / name for name in order), tmp_path])
    assert [run.history[-1]["test_acc"] for run in found.runs] == [90.0]
    assert any("found more than once" in line for line in found.sources)


# -- tables --------------------------------------------------------------------------------------------


def test_our_mean_has_its_t_interval_and_the_difference_is_to_the_corrected_number(tmp_path):
    recipe = RECIPES["resnet20-cifar100"]
    for seed, accuracy in enumerate((65.0, 66.0, 67.0)):
        write_run(tmp_path, recipe.replace(seed=seed), {"test_loss": 1.5, "test_acc": accuracy})
    cells = row(table(all_tables(gather([tmp_path])), "table2"), "ReLU")
    group = "ResNet-20, CIFAR-100"
    published = cells[group, "accuracy, %: paper"]
    assert published.text == "64.28"
    assert published.note == "printed 62.28; log"
    # t(0.975, 2) = 4.3027; 4.3027 * 1 / sqrt(3) = 2.48
    assert cells[group, "accuracy, %: ours"].text == "66.00 ± 2.48 (3)"
    assert cells[group, "accuracy, %: ours"].note == "resnet20 on cifar100, 200 epochs, 3 seeds"
    assert cells[group, "accuracy, %: difference"].text == "+1.72 ± 2.48"
    assert cells["ResNet-20, CIFAR-10", "accuracy, %: ours"].text == "not run"


REDUCED = ("ResNet-20, CIFAR-10: reduced", "accuracy, %")


def test_reduced_runs_have_columns_of_their_own_next_to_the_papers(tmp_path):
    write_run(tmp_path, CIFAR, {"test_loss": 0.5, "test_acc": 90.0})
    for seed in range(2):
        for name, accuracy in (("relu", 70.0), ("gelu", 71.0 + seed), ("iglu:0.5", 73.0 + 2 * seed)):
            recipe = CIFAR.replace(activation=name, seed=seed, epochs=3, batch_size=64)
            write_run(tmp_path, recipe, {"test_loss": 1.0, "test_acc": accuracy + seed})
    tables = all_tables(gather([tmp_path]))
    cells = row(table(tables, "table2"), "ReLU")
    assert cells[ACCURACY].text == "90.00 (1)"
    assert cells[REDUCED].text == "70.50 ± 6.35 (2)"
    assert cells[REDUCED].note == "resnet20 on cifar10, 3 epochs, 2 seeds"
    cells = row(table(tables, "table2"), "IGLU (sigma = 0.5)")
    assert cells[ACCURACY].text == "not run"
    assert cells[REDUCED[0], "- ReLU"].number == 4.0
    assert cells[REDUCED[0], "- GELU"].number == 2.5
    assert not any(each.key.startswith("own") for each in tables)


def test_of_several_reduced_settings_the_one_with_most_runs_is_in_the_papers_table(
    tmp_path,
):
    for seed in range(2):
        write_run(tmp_path, CIFAR.replace(epochs=3, seed=seed), {"test_loss": 1.5, "test_acc": 60.0})
    write_run(
        tmp_path,
        CIFAR.replace(stop_after=5),
        {"test_loss": 1.0, "test_acc": 71.0},
        epochs=5,
        status="stopped",
    )
    tables = all_tables(gather([tmp_path]))
    assert row(table(tables, "table2"), "ReLU")[REDUCED].text == "60.00 ± 0.00 (2)"
    own = table(tables, "own1")
    assert own.title == "Our own runs: resnet20-cifar10 stop_after=5"
    assert row(own, "ReLU")["accuracy, %", "ours"].text == "71.00 (1)"


def test_the_ratio_of_a_long_tail_chooses_the_column(tmp_path):
    recipe = RECIPES["resnet20-cifar100-lt"]
    write_run(tmp_path, recipe.replace(ratio=500.0), {"test_loss": 6.0, "test_acc": 20.0})
    write_run(tmp_path, recipe.replace(ratio=30.0), {"test_loss": 4.0, "test_acc": 40.0})
    tables = all_tables(gather([tmp_path]))
    cells = row(table(tables, "table4"), "ReLU")
    assert cells["500:1", "accuracy, %: ours"].text == "20.00 (1)"
    assert cells["500:1", "batch-balanced accuracy, %: paper"].text == ""
    assert cells["200:1", "accuracy, %: ours"].text == "not run"
    assert table(tables, "own1").title == "Our own runs: resnet20-cifar100-lt ratio=30"


def test_published_accuracy_of_long_tails_is_compared_in_the_papers_own_metric(tmp_path):
    """Table 4 has 30.01% for ReLU at 100:1, a mean over batches of the accuracy over classes."""
    ours = {"test_loss": 5.0, "test_acc": 29.0, "test_acc_batch_balanced": 31.01}
    write_run(tmp_path, RECIPES["resnet20-cifar100-lt"].replace(ratio=100.0), ours)
    cells = row(table(all_tables(gather([tmp_path])), "table4"), "ReLU")
    assert cells["100:1", "batch-balanced accuracy, %: paper"].number == 30.01
    assert cells["100:1", "batch-balanced accuracy, %: difference"].number == pytest.approx(1.0)
    assert cells["100:1", "accuracy, %: ours"].text == "29.00 (1)"


def test_the_long_tail_of_another_set_is_next_to_the_column_of_its_ratio(tmp_path):
    recipe = RECIPES["resnet20-cifar10-lt"].replace(model="resnet8", image_size=16, padding=2, epochs=2)
    for ratio in (10.0, 200.0):
        write_run(tmp_path, recipe.replace(ratio=ratio), {"test_loss": 1.0, "test_acc": ratio / 4})
    cells = row(table(all_tables(gather([tmp_path])), "table4"), "ReLU")
    assert cells["10:1: reduced", "accuracy, %"].text == "2.50 (1)"
    assert cells["200:1: reduced", "accuracy, %"].text == "50.00 (1)"
    assert ("100:1: reduced", "accuracy, %") not in cells
    assert cells["10:1: reduced", "accuracy, %"].note == (
        "resnet8 on cifar10 at 10:1, 16 pixels, 2 epochs, 1 seed"
    )


def test_diverged_runs_are_reported_and_excluded_from_means(tmp_path):
    for seed in range(2):
        write_run(tmp_path, CIFAR.replace(seed=seed), {"test_loss": 0.5, "test_acc": 90.0 + seed})
    write_run(
        tmp_path, CIFAR.replace(seed=2), {"test_loss": 9.0, "test_acc": 10.0}, epochs=4, status="diverged"
    )
    write_run(tmp_path, CIFAR.replace(activation="mish"), {}, epochs=0, status="diverged")
    tables = all_tables(gather([tmp_path]))
    cell = row(table(tables, "table2"), "ReLU")[ACCURACY]
    assert cell.number == 90.5
    assert cell.note.endswith("2 seeds; 1 diverged")
    assert row(table(tables, "table2"), "Mish")[ACCURACY].text == "diverged"
    assert not any(each.key.startswith("own") for each in tables)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        # by seed: each clearly above the next
        ({"relu": (90, 91, 92), "gelu": (88, 89.1, 90), "silu": (80, 81, 82.1)}, ("best", "second", "")),
        # the means differ, but not by more than the seeds do
        ({"relu": (90, 95, 85), "gelu": (88, 89, 92), "silu": (80, 81, 82)}, ("", "", "")),
        # wide apart, but one seed
        ({"relu": (90,), "gelu": (50,), "silu": (10,)}, ("", "", "")),
    ],
)
def test_best_is_marked_only_where_the_interval_to_the_next_excludes_zero(tmp_path, accuracies, expected):
    for name, values in accuracies.items():
        for seed, value in enumerate(values):
            write_run(
                tmp_path, CIFAR.replace(activation=name, seed=seed), {"test_loss": 1.0, "test_acc": value}
            )
    found = table(all_tables(gather([tmp_path])), "table2")
    assert tuple(row(found, label)[ACCURACY].mark for label in ("ReLU", "GELU", "SiLU")) == expected


def test_table_1_uses_rows_of_its_setting_and_states_that_no_gpu_was_run(tmp_path):
    write_bench(tmp_path, {"relu": 4.0, "identity": 1.0})
    cells = row(table(all_tables(gather([tmp_path])), "table1"), "ReLU")
    assert cells["CPU forward", "paper"].text == "9.22"
    assert cells["CPU forward", "ours"].text == "4.00 [4.00, 4.00]"
    assert cells["CPU forward", "difference"].text == "-5.22"
    assert cells["GPU forward", "ours"].text == "not run"


def write_probe(folder: Path, name: str, excess: float, **more: Any) -> None:
    layer = {"layer": "act1", "n": 1000, "k": 100, "alpha": 20 / excess, "gaussian": 20.0, "excess": excess,
             "excess_low": excess - 0.1, "excess_high": excess + 0.1}  # fmt: skip
    (folder / name).mkdir(parents=True)
    body = {
        "layers": [layer],
        "first_batch": [{**layer, "alpha": 12.0}],
        "suggestion": {"sigma": 0.5},
        **more,
    }
    (folder / name / "probe.json").write_text(json.dumps(body))


def test_a_probe_of_a_network_of_the_paper_is_in_table_5_and_any_other_in_a_table_of_its_own(tmp_path):
    recipe = RECIPES["resnet20-cifar100"].replace(activation="iglu:0.1")
    write_probe(tmp_path, "resnet", 2.0, recipe=recipe.as_dict())
    write_probe(tmp_path, "mine", 1.5)
    tables = all_tables(gather([tmp_path]))
    cells = row(table(tables, "table5"), "ResNet-20")
    alpha = "alpha, first batch, k = 100"
    assert (cells[alpha, "paper"].text, cells[alpha, "ours"].text) == ("10.4", "12.0")
    assert cells[alpha, "difference"].text == "+1.6"
    assert [line[0].text for line in table(tables, "probes").rows] == ["mine"]


def test_table_5_has_the_tails_of_reduced_networks_with_normalization_and_without(tmp_path):
    """Of ReLU's networks, so that the two compare; where those were not run, with the row's activation."""
    small = RECIPES["resnet20-cifar10-lt"].replace(model="resnet8", epochs=1)
    for activation, norm, alpha in (("relu", True, 9.0), ("iglu:0.1", True, 7.0), ("iglu:0.1", False, 5.0)):
        metrics: Any = {"test_acc": 50.0, "tails": {"act1": {"alpha": alpha, "excess": 18 / alpha}}}
        write_run(tmp_path, small.replace(activation=activation, norm=norm), metrics)

    def reduced() -> list[tuple[str, str]]:
        found = table5(gather([tmp_path]))
        at = found.headers.index(("alpha, first batch, k = 100: reduced", "over seeds"))
        cells = [line[at] for line in found.rows if line[0].text == "ResNet-20"]
        return [(cell.text.split()[0], cell.note.partition(": ")[0]) for cell in cells]

    assert reduced() == [("9.0", "relu"), ("5.0", "iglu:0.1")]
    metrics = {"test_acc": 50.0, "tails": {"act1": {"alpha": 4.0, "excess": 4.5}}}
    write_run(tmp_path, small.replace(activation="relu", norm=False), metrics)
    assert reduced() == [("9.0", "relu"), ("4.0", "relu")]
    page = render(Report(tables=(table5(gather([tmp_path])),)))
    shown = page.partition('id="table5"')[2].partition("</table>")[0]
    assert "not run here" not in page
    assert all(f"<span>{text}</span>" in shown for text in ("10.4", "9.0", "4.0"))


# -- claims --------------------------------------------------------------------------------------------


def test_probes_of_runs_that_differ_in_the_seed_share_a_line_of_means():
    recipe = RECIPES["digits"]
    probes = [
        Tails(each.folder_name, {"layers": rows, "first_batch": rows}, each)
        for seed, each in enumerate(recipe.replace(seed=seed, activation="gelu") for seed in range(2))
        for rows in [[{"layer": "act", "alpha": 3.0 + seed, "gaussian": 9.0}]]
    ]
    own = Tails("mine", {"layers": [], "first_batch": []})
    first, second = networks_table([*probes, own]).rows
    assert [cell.text for cell in first[:3]] == ["digits_gelu", "2", "1"]
    assert first[3].number == 3.5
    assert first[4].text == "9.00 ± 0.00"
    assert [cell.text for cell in second[:4]] == ["mine", "1", "0", "none"]


def test_the_computed_claims_agree_with_the_errata():
    largest, near, far = computed.gate_error()
    assert (largest, near, far) == pytest.approx((0.0226365, 0.313436, 3.190440), rel=1e-4)
    found = tuple(computed.mathematical_claims())
    assert "(-3.290, -1.019)" in claim(found, "IGLU's gradient is larger").evidence
    # 2/(3 pi |x|^3) at the far end.
    assert f"is {2 / (3 * math.pi) * 1e-300:.3g} in double" in found[0].evidence
    assert [each.verdict for each in found] == [
        "holds", "does not hold", "does not hold", "holds", "holds", "does not hold", "holds",
    ]  # fmt: skip


@pytest.mark.parametrize(("dtype", "low", "high"), [(torch.float16, 9, 12), (torch.bfloat16, 4, 6)])
def test_the_direct_formula_changes_sign_where_the_errata_say(dtype, low, high):
    assert low < computed.signs(computed.direct, dtype).negative_from < high


def test_the_figures_of_the_functions_show_what_the_formulas_say():
    drawn = {each.key: numbers(each)["panels"] for each in function_figures()}
    assert [len(each) for each in drawn.values()] == [2, 1, 1, 3]
    for line in drawn["figure2"][0]["lines"]:
        sigma = float(line["label"].split(" = ")[1])
        truth = [x * (0.5 + math.atan(sigma * x) / math.pi) for x in line["x"]]
        assert line["y"] == pytest.approx(truth, rel=1e-4, abs=1e-4)
    (gates,) = drawn["figure3"]
    assert gates["limits"][0] == (-30, 30)
    for line in gates["lines"][:3]:
        u = [float(line["label"].split(" = ")[1]) * x for x in line["x"]]
        assert (line["x"][0], line["x"][-1]) == pytest.approx((-30.0, 30.0), rel=1e-3)
        truth = [math.atan(each) / math.pi - each / (2 * (1 + abs(each))) for each in u]
        assert line["y"] == pytest.approx(truth, rel=1e-3, abs=1e-4)
    for panel in drawn["tails"]:
        (law,) = (each for each in panel["lines"] if each["label"] == "2/(3\N{GREEK SMALL LETTER PI}|x|³)")
        assert law["y"] == pytest.approx([2 / (3 * math.pi * x**3) for x in law["x"]], rel=1e-3, abs=0)
    (ours,) = (each for each in drawn["tails"][0]["lines"] if each["label"] == "this library")
    assert ours["y"][-1] == pytest.approx(2 / (3 * math.pi * ours["x"][-1] ** 3), rel=1e-3, abs=0)
    assert ours["x"][-1] == pytest.approx(1e6, rel=1e-3)


def test_matplotlib_and_the_page_draw_the_same_numbers():
    """Of every figure of the functions: lines, limits, scales and what the legend names."""
    with pictures():
        for figure in function_figures():
            for axis, panel in zip(draw(figure).axes, numbers(figure)["panels"], strict=True):
                assert (axis.get_xscale(), axis.get_yscale()) == panel["scales"]
                assert axis.get_xlim() == pytest.approx(panel["limits"][0])
                for drawn, line in zip(axis.lines, panel["lines"], strict=True):
                    assert list(drawn.get_ydata()) == pytest.approx(line["y"], rel=1e-4)
                    assert drawn.get_color() == line["color"]


def test_an_interval_of_the_median_has_its_ends_among_the_order_statistics():
    """For n = 10 the ranks 2 and 9 leave 2 * 11/1024 = 2.1% outside; 3 and 8 would leave 10.9%."""
    assert median([float(value) for value in range(1, 11)])[:3] == (5.5, 2.0, 9.0)
    assert median([1.0, 2.0]).high == math.inf


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 2.0, "holds"),
        (-2.0, -0.1, "does not hold"),
        (-0.1, 2.0, "not enough evidence"),
        (0.0, 2.0, "not enough evidence"),  # an interval that ends at the bound does not exclude it
        (-2.0, 0.0, "not enough evidence"),
    ],
)
def test_a_verdict_needs_the_complete_interval_on_one_side(low, high, verdict):
    assert judge_side(Estimate((low + high) / 2, low, high, 4)) == verdict


def test_table_1_marks_the_fastest_self_gated_activations_only_if_their_rounds_differ(tmp_path):
    times = {"iglu_approx": 4.1, "relu": 4.0, "gelu": 8.0, "silu": 8.0, "hardtanh": 3.0, "identity": 1.0}
    write_bench(tmp_path, times)
    shown = table(all_tables(gather([tmp_path])), "table1")
    marks = {line[0].text: line[2].mark for line in shown.rows if line[2].mark}
    assert shown.headers[2] == ("CPU forward", "ours")
    assert marks == {"ReLU": "best", "IGLU-Approx": "second"}
    write_bench(tmp_path, {**times, "iglu_approx": 4.0})
    shown = table(all_tables(gather([tmp_path])), "table1")
    assert not any(line[2].mark for line in shown.rows)


def test_speed_claims_are_judged_by_the_ratios_of_rounds(tmp_path):
    write_bench(tmp_path, {"iglu_approx": 4.1, "relu": 4.0, "gelu": 8.0, "identity": 1.0})
    found = claims.all_claims(gather([tmp_path]))
    assert claim(found, "IGLU-Approx is faster than GELU (as this").verdict == "holds"
    assert claim(found, "IGLU-Approx is as fast as ReLU (as this").verdict == "holds"
    assert claim(found, "IGLU-Approx is faster than GELU (as the paper").verdict == "not enough evidence"


def test_speeds_at_other_sizes_are_listed_by_size_and_not_counted(tmp_path):
    write_bench(tmp_path / "papers", {"iglu_approx": 4.0, "relu": 4.0, "gelu": 8.0, "identity": 1.0})
    other = write_bench(tmp_path / "small", {"iglu_approx": 9.0, "gelu": 6.0})
    other.write_text(other.read_text().replace("10000", "1000"))
    judged = claim(claims.all_claims(gather([tmp_path])), "IGLU-Approx is faster than GELU (as this")
    assert judged.verdict == "holds"
    assert "not counted: 1k: 1.50 [1.50, 1.50]." in judged.evidence


@pytest.mark.parametrize(
    ("changes", "gain", "verdict"),
    [
        ({}, 1.0, "holds"),
        ({}, -1.0, "does not hold"),
        ({"epochs": 3}, 1.0, "not enough evidence"),
    ],
)
def test_the_claim_that_low_sigma_wins_on_resnet_is_judged_by_full_runs_alone(
    tmp_path, changes, gain, verdict
):
    for name in ("resnet20-cifar10", "resnet20-cifar100"):
        for seed in range(3):
            base = 60.0 + 3 * seed
            for activation, accuracy in (("iglu:0.5", base + gain + 0.1 * seed), ("iglu:5", base)):
                recipe = RECIPES[name].replace(activation=activation, seed=seed, **changes)
                write_run(tmp_path, recipe, {"test_loss": 1.0, "test_acc": accuracy})
    found = claim(claims.all_claims(gather([tmp_path])), "Low sigma wins")
    assert found.verdict == verdict
    assert "Other runs, not counted:" in found.evidence if changes else "Other" not in found.evidence


def test_a_claim_about_every_ratio_names_the_one_that_was_run_and_its_verdict(tmp_path):
    for seed in range(3):
        for activation, accuracy in (("iglu:0.5", 31.5 + 0.1 * seed), ("relu", 30.0)):
            recipe = RECIPES["resnet20-cifar100-lt"].replace(activation=activation, seed=seed)
            write_run(tmp_path, recipe, {"test_loss": 1.0, "test_acc": accuracy})
    found = claim(claims.all_claims(gather([tmp_path])), "IGLU gains on imbalanced")
    assert found.verdict == "not enough evidence"
    assert "at 100:1: test_acc +1.60 ± 0.25 (3 seeds): holds" in found.evidence
    assert "at 10:1: iglu:0.5 and relu not run" in found.evidence


def test_gains_that_grow_with_the_ratio_support_the_claim(tmp_path):
    for ratio in (10.0, 20.0, 50.0, 100.0, 200.0):
        for seed in range(3):
            for activation, gain in (("iglu:0.5", (2 + 0.1 * seed) * math.log10(ratio)), ("relu", 0.0)):
                recipe = RECIPES["resnet20-cifar100-lt"].replace(
                    ratio=ratio, activation=activation, seed=seed
                )
                write_run(tmp_path, recipe, {"test_loss": 1.0, "test_acc": 40 + gain})
                if ratio < 50 and seed == 0:  # a fourth seed, which did not get to the other ratios
                    metrics = {"test_loss": 1.0, "test_acc": 43.0 if gain else 40.0}
                    write_run(tmp_path, recipe.replace(seed=3), metrics)
    found = claims.all_claims(gather([tmp_path]))
    assert claim(found, "IGLU gains on imbalanced").verdict == "holds"
    growing = claim(found, "IGLU's gains grow")
    assert growing.verdict == "holds"
    assert growing.evidence.startswith("+2.10 ± 0.25 points per tenfold ratio (3 seeds)")


def test_heavier_tails_are_claimed_only_with_all_networks_probed(tmp_path):
    for number, tail in enumerate(each for each in paper.table5() if each.norm):
        write_probe(tmp_path, f"net{number}", 1.0 + (number == 0), recipe=tail.recipe.as_dict())
        verdict = claim(claims.all_claims(gather([tmp_path])), "ResNet's pre-act").verdict
        assert verdict == ("holds" if number == 2 else "not enough evidence")


# -- formats and the command ---------------------------------------------------------------------------

NASTY = Report(
    tables=(
        Table(
            "t", "A & B_1 | 100%", (("", "name"), ("group", "x | y")),
            ((Cell("<b>a*b</b>"), Cell("1 ± 2", 1.0, "best", "50% & more_so")),), ("note_1",),
        ),
    ),
    claims=(Claim("x < 0 & y", "holds", "a|b"),),
)  # fmt: skip


def test_markdown_keeps_its_columns_whatever_the_names_hold(tmp_path):
    text = build.markdown(NASTY, tmp_path)
    assert r"| \<b>a\*b\</b> | **1 ± 2** <sup>a</sup> |" in text
    assert r"<sup>a</sup> 50% & more\_so" in text
    assert r"| name | group: x \| y |" in text


def test_latex_escapes_and_marks():
    text = build.latex(NASTY)
    assert r"\textbf{1 $\pm$ 2}\textsuperscript{a}" in text
    assert r"A \& B\_1 $|$ 100\%" in text
    assert r"50\% \& more\_so" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2


def test_csv_reads_back_as_text_number_and_remark():
    lines = list(csv.DictReader(io.StringIO(csv_text(NASTY.tables[0]))))
    assert lines == [
        {"name": "<b>a*b</b>", "group: x | y": "1 ± 2 (best)", "group: x | y (number)": "1.0",
         "group: x | y (remark)": "50% & more_so"}
    ]  # fmt: skip


def test_a_wide_table_is_cut_between_groups_and_loses_nothing(tmp_path):
    complete = table(all_tables(gather([tmp_path])), "table4")
    pieces = list(complete.panels())
    assert all(len(piece.headers) <= 9 and piece.headers[0] == ("", "activation") for piece in pieces)
    assert [header for piece in pieces for header in piece.headers[1:]] == list(complete.headers[1:])


def test_the_command_writes_every_format_and_names_what_it_skipped(tmp_path, capsys, monkeypatch):
    pytest.importorskip("plotly")
    runs = tmp_path / "runs"
    shots = {"test_acc_many": 95.0, "test_acc_medium": 90.0, "test_acc_few": 80.0}
    for seed in range(2):
        recipe = RECIPES["digits-lt"].replace(seed=seed, activation="iglu:0.5")
        write_run(runs, recipe, {"test_loss": 0.5 + seed, "test_acc": 90.0, **shots})
    write_bench(runs / "bench", {"iglu_approx": 4.1, "relu": 4.0, "gelu": 8.0, "identity": 1.0})
    (runs / "half").mkdir()
    (runs / "half" / "recipe.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(build, "RESULTS", tmp_path / "empty")
    out = tmp_path / "report"
    assert cli.report(["--out", str(out)]) == 0
    shown = capsys.readouterr().out.replace("\n", "")
    assert f"{out}/index.html" in shown
    assert "skipped: runs/half/recipe.json cannot be read" in shown
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    names = ("figure1", "figure2", "figure3", "tails", "curves-digits-lt", "shots-digits-lt")
    figures = {f"figures/{name}.{kind}" for name in names for kind in ("png", "svg")}
    keys = ("table1", "table2", "table3", "table4", "table5", "own1", "errata", "claims")
    assert written == figures | {f"tables/{key}.csv" for key in keys} | {
        "summary.md",
        "index.html",
        "manifest.json",
        "report.md",
        "report.tex",
    }
    assert "![" in (out / "report.md").read_text()


def test_a_folder_that_does_not_exist_ends_with_status_2(tmp_path, capsys):
    (tmp_path / "evidence").mkdir()
    for name, hint in (("nowhere", ""), ("evidnce", f". Did you mean {tmp_path / 'evidence'}?")):
        assert cli.report([str(tmp_path / name), "--out", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert f"iglu report: {tmp_path / name} does not exist" in said
        assert said.count("\n") == 1
        assert hint in said


def test_a_thousand_runs_are_read_into_one_table(tmp_path):
    names = list(paper.run_table(2).rows)
    for number in range(1000):
        recipe = CIFAR.replace(activation=names[number % 17], seed=number // 17, epochs=2)
        write_run(tmp_path, recipe, {"test_loss": 1.0, "test_acc": 50.0 + number % 7})
    found = gather([tmp_path])
    assert len(found.runs) == 1000
    cells = row(table(all_tables(found), "table2"), zoo.parse(names[0]).label)
    assert cells[REDUCED].text.endswith("(59)")


def test_the_recorded_results_can_be_read():
    found = gather([RESULTS])
    assert not found.problems
    by_file = Counter(run.folder.name for run in [*found.runs, *found.sealed])
    assert by_file["demo.jsonl"] == 56
    assert all(by_file[path.name] for path in (RESULTS / "evidence").glob("*.jsonl"))
    assert {run.status for run in found.runs} == {"finished"}
    assert not any("no provenance" in line for line in found.sources)
