"""`iglu runs`, `iglu report` and the demo show the same means, intervals and seed counts for a folder,
whatever state its runs are in, and a damaged file does not keep them from reading the others."""

from __future__ import annotations

import copy
import itertools
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iglu_lab import cli, paper
from iglu_lab.commands.demo import summarize_demo
from iglu_lab.probe.tail_tables import layer_table
from iglu_lab.recipes import RECIPES, Recipe
from iglu_lab.report import claims
from iglu_lab.report.claims import all_claims
from iglu_lab.report.comparisons import all_tasks
from iglu_lab.report.content import Claim
from iglu_lab.report.curves import curves
from iglu_lab.report.gather import gather
from iglu_lab.report.tables import all_tables
from iglu_lab.runs.archive import add_to_archive, read_runs
from iglu_lab.runs.folder import Run
from iglu_lab.stats.comparison import is_diverged, samples
from iglu_lab.stats.tabulate import Cell

BASE = RECIPES["digits-lt"].replace(epochs=2)
SHOTS = ("test_acc_many", "test_acc_medium", "test_acc_few")


def write(
    out: Path, recipe: Recipe, accuracy: float, status: str = "finished", epochs: int | None = None
) -> Path:
    """A folder as a run leaves it."""
    folder = out / recipe.folder_name
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(recipe.as_dict()))
    rows = [
        {"epoch": epoch, "train_loss": 1.0, "test_loss": 1.0, "seconds": 1.0,
         **dict.fromkeys(("test_acc", *SHOTS) if recipe.kind == "images" else ["perplexity"], accuracy)}
        for epoch in range(1, (recipe.last_epoch if epochs is None else epochs) + 1)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if status != "unfinished":
        (folder / "state.json").write_text(json.dumps({"status": status, "message": ""}))
    return folder


def unfinished(out: Path) -> None:
    write(out, BASE.replace(activation="gelu", seed=7), 99.0, "unfinished", 1)
    write(out, BASE.replace(activation="gelu", seed=8), 99.0, "stopped", 1)
    write(out, BASE.replace(activation="mish"), 99.0, "unfinished", 0)


def diverged(out: Path) -> None:
    write(out, BASE.replace(activation="gelu", seed=7), 10.0, "diverged", 1)
    write(out, BASE.replace(activation="mish"), 10.0, "diverged", 0)
    write(out, BASE.replace(activation="silu", seed=3), math.nan)  # it finished with no number


def duplicate(out: Path) -> None:
    """Seed 0 again: shorter, then under another spelling, then in a file."""
    write(out / "z", BASE.replace(activation="iglu:0.5"), 1.0, "unfinished", 1)
    write(out / "zz", BASE.replace(activation="iglu:0.50"), 2.0)
    write(out.parent / "elsewhere", BASE.replace(activation="gelu"), 3.0)
    add_to_archive(read_runs(out.parent / "elsewhere")[0], out / "again.jsonl")


def foreign(out: Path) -> None:
    write(out, BASE.replace(ratio=50.0), 33.0)
    (out / "foreign").mkdir()
    (out / "foreign" / "recipe.json").write_text('{"soup": 1}')
    (out / "notes.jsonl").write_text('{"some": "notes"}\n')
    write(out, BASE.replace(stop_after=1, seed=5), 44.0, "stopped")


@pytest.mark.parametrize("odd", [unfinished, diverged, duplicate, foreign], ids=lambda odd: odd.__name__)
def test_runs_report_and_demo_show_the_same_numbers_for_the_same_folder(
    odd: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    for seed in range(3):
        for place, name in enumerate(("relu", "gelu", "silu", "iglu:0.5")):
            write(out, BASE.replace(activation=name, seed=seed), 60.0 + place + seed * (1 + 0.1 * place))
    odd(out)
    assert cli.runs([str(out), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["summary"]
    by_runs = {
        (row["setting"], row["activation"]): (
            row["seeds"],
            row["mean"] and row["mean"]["value"],
            row["diverged"],
        )
        for row in listed
    }
    by_demo = {
        (row.setting, row.activation): (
            len(row.sample.runs),
            row.mean and row.mean.value,
            len(row.sample.diverged),
        )
        for row in summarize_demo(read_runs(out)[0])
        if row.metric == "test_acc"
    }
    assert by_demo == by_runs
    tables = [
        each for each in all_tables(gather([out]), all_tasks(gather([out]))) if each.key.startswith("own")
    ]
    labels = {
        "relu": "ReLU",
        "gelu": "GELU",
        "silu": "SiLU",
        "mish": "Mish",
        "iglu:0.5": "IGLU (sigma = 0.5)",
    }
    for row in listed:
        (table,) = [each for each in tables if each.title == f"Our own runs: {row['setting']}"]
        (line,) = [line for line in table.rows if line[0].text == labels[row["activation"]]]
        cells = dict(zip(table.headers, line, strict=True))
        cell = cells["accuracy, %", "ours"]
        if row["mean"] is None:
            assert cell.text == "diverged"
            continue
        half = (
            "" if row["mean"]["low"] is None else f" ± {(row['mean']['high'] - row['mean']['low']) / 2:.2f}"
        )
        assert cell.text == f"{row['mean']['value']:.2f}{half} ({row['seeds']})"
        assert (f"{row['diverged']} diverged" in cell.note) == bool(row["diverged"])
        relu = row["differences"].get("relu")
        assert cells["accuracy, %", "minus ReLU"].number == (relu and pytest.approx(relu["value"]))
    shown = {(curve.recipe, curve.activation): curve.seeds for curve in curves(samples(read_runs(out)[0]))}
    assert shown == {key: seeds for key, (seeds, mean, _) in by_runs.items() if mean is not None}


def test_a_finished_run_without_a_number_counts_as_diverged(tmp_path: Path) -> None:
    folder = write(tmp_path, BASE, math.inf)
    ((run,), _) = read_runs(folder)
    assert is_diverged(run)
    ((sample,),) = [of.values() for of in samples([run]).values()]
    assert (sample.runs, sample.diverged) == ((), (run,))


# -- claims and diverged runs ------------------------------------------------------------------------

CIFAR = ("resnet20-cifar10", "resnet20-cifar100")


def claim(found: tuple[Claim, ...], start: str) -> Claim:
    return next(each for each in found if each.text.startswith(start))


def test_no_claim_holds_if_a_seed_of_its_better_side_diverged(tmp_path: Path) -> None:
    for name, seed in itertools.product(CIFAR, range(10)):
        recipe = RECIPES[name].replace(epochs=1, seed=seed)
        full = RECIPES[name].replace(seed=seed)
        assert recipe.folder_name != full.folder_name
        better = full.replace(activation="iglu:0.5")
        is_dead = name == CIFAR[0] and seed < 8
        write(
            tmp_path, better, 10.0 if is_dead else 62.0 + 0.01 * seed, "diverged" if is_dead else "finished"
        )
        write(tmp_path, full.replace(activation="iglu:5"), 60.0)
    found = claim(all_claims(gather([tmp_path])), "Low sigma wins")
    assert found.verdict == "not enough evidence"
    assert "8 of iglu:0.5 diverged" in found.evidence
    for folder in tmp_path.glob("resnet20-cifar10_iglu-0.5*"):
        shutil.rmtree(folder)
    for seed in range(10):
        write(tmp_path, RECIPES[CIFAR[0]].replace(activation="iglu:0.5", seed=seed), 62.0 + 0.01 * seed)
    assert claim(all_claims(gather([tmp_path])), "Low sigma wins").verdict == "holds"


@pytest.mark.parametrize(
    ("dead", "verdict"), [("iglu:5", "not enough evidence"), ("iglu:learnable=5", "holds")]
)
def test_the_claim_of_no_better_does_not_hold_if_a_seed_of_the_fixed_side_diverged(
    dead: str, verdict: str, tmp_path: Path
) -> None:
    """The claim says that the fixed side is as good."""
    for name, seed in itertools.product(("iglu:5", "iglu:learnable=5"), range(4)):
        is_dead = name == dead and seed == 3
        recipe = BASE.replace(activation=name, seed=seed)
        write(tmp_path, recipe, 60.0 + seed + 0.01 * len(name) * seed, "diverged" if is_dead else "finished")
    (of,) = samples(read_runs(tmp_path)[0]).values()
    found, text = claims.compare(of, "iglu:learnable=5", "iglu:5", "test_acc", "here", bound=1.0)
    assert found == verdict
    assert f"1 of {dead} diverged" in text


def _learnable_everywhere(out: Path, gains: dict[str, float], seeds: int = 4) -> None:
    """Runs of each of the paper's settings that have the pair: 60 with an SD of 1 over seeds."""
    for number, seed in itertools.product((2, 3), range(seeds)):
        for recipe in paper.run_table(number).recipes:
            for name, gain in (("iglu:5", 0.0), ("iglu:learnable=5", gains.get(recipe.name, 0.01 * seed))):
                value = 60.0 + math.sqrt(0.6) * seed + gain
                write(out, recipe.replace(activation=name, seed=seed), value)


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ({}, "holds"),
        ({"resnet20-cifar100": 0.5}, "does not hold"),  # more than the .33 of the authors
        ({"vit-cifar10": 0.5}, "holds"),  # less than the SD of a run here, 1
        ({"vit-cifar10": 1.5}, "does not hold"),
        ({"gpt2-wikitext103": 1.5}, "holds"),  # of a perplexity more is worse
        ({"gpt2-wikitext103": -1.5}, "does not hold"),
    ],
)
def test_a_learnable_sigma_is_compared_in_every_setting_of_the_paper_that_has_the_pair(
    gains: dict[str, float], verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "mathematical_claims", list)
    _learnable_everywhere(tmp_path, gains)
    found = claim(all_claims(gather([tmp_path])), "A learnable sigma")
    assert found.verdict == verdict
    assert found.evidence.count("4 seeds") == 5


@pytest.mark.parametrize("lost", ["resnet20-cifar10_", "vit-cifar100", "gpt2"])
def test_a_setting_that_was_not_run_leaves_the_claim_about_learnable_sigmas_open(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "mathematical_claims", list)
    _learnable_everywhere(tmp_path, {})
    for folder in tmp_path.glob(f"{lost}*learnable*"):
        shutil.rmtree(folder)
    found = claim(all_claims(gather([tmp_path])), "A learnable sigma")
    assert found.verdict == "not enough evidence"
    assert "iglu:learnable=5 not run" in found.evidence


GRID = """
recipes = ["digits-lt"]
activations = ["relu", "iglu:0.5", "iglu:5", "iglu:learnable=5"]
seeds = 4
epochs = 2
ratio = {ratio}

[plan]
metric = "test_acc"
reference = "relu"
sd = 0.5

[plan.claims]
"IGLU gains on imbalanced data" = ["iglu:0.5", "relu"]
"A learnable sigma is no better than a fixed one" = ["iglu:learnable=5", "iglu:5"]
{more}
"""


def planned(folder: Path, name: str, ratio: float, gain: float, seeds: int = 4, more: str = "") -> None:
    """A grid and the runs recorded of it: 2 points for sigma = 5, and ``gain`` for 0.5."""
    (folder / f"{name}.toml").write_text(GRID.format(ratio=ratio, more=more))
    gains = {"relu": 0.0, "iglu:0.5": gain, "iglu:5": 2.0, "iglu:learnable=5": 2.1}
    runs = folder / "unrecorded" / name
    for seed, (activation, more_points) in itertools.product(range(seeds), gains.items()):
        recipe = BASE.replace(activation=activation, seed=seed, ratio=ratio)
        write(runs, recipe, 60.0 + 3 * seed + more_points + 0.01 * seed * len(activation))
    add_to_archive(read_runs(runs)[0], folder / f"{name}.jsonl")
    shutil.rmtree(folder / "unrecorded")


def test_a_planned_grid_decides_at_its_own_scale_and_leaves_the_papers_open(tmp_path: Path) -> None:
    planned(tmp_path, "lt", 100.0, gain=1.5)
    found = all_claims(gather([tmp_path]))
    gains = claim(found, "IGLU gains on imbalanced")
    assert gains.verdict == "not enough evidence"
    assert gains.reduced is not None
    assert gains.reduced.verdict == "holds"
    assert gains.reduced.scale == "resnet8 on digits at 100:1, 2 epochs, 4 seeds"
    assert "iglu:0.5 - relu: test_acc +1.5" in gains.reduced.evidence
    assert (
        "SD of one run 3.98, minimum detectable difference 11.99 at n = 4 (80% power); one point"
        in gains.reduced.evidence
    )
    learnable = claim(found, "A learnable sigma").reduced
    assert learnable is not None
    assert learnable.verdict == "holds"  # better by .1, less than the SD of .5
    assert claim(found, "Low sigma wins").reduced is None


@pytest.mark.parametrize(("gain", "verdict"), [(-1.5, "does not hold"), (0.0, "not enough evidence")])
def test_a_planned_grid_may_contradict_its_claim_or_be_inconclusive(
    gain: float, verdict: str, tmp_path: Path
) -> None:
    planned(tmp_path, "lt", 100.0, gain)
    (folder,) = tmp_path.glob("*.jsonl")
    if gain == 0:  # the seeds disagree
        text = folder.read_text().replace('"test_acc": 60.0,', '"test_acc": 90.0,')
        folder.write_text(text)
    reduced = claim(all_claims(gather([tmp_path])), "IGLU gains on imbalanced").reduced
    assert reduced is not None
    assert reduced.verdict == verdict


def test_inconclusive_evidence_states_how_many_seeds_are_needed(tmp_path: Path) -> None:
    """Four pairs that differ by 1 on average and by 1.63 around it."""
    values = {"relu": (50.0, 51.0, 52.0, 53.0), "iglu:0.5": (49.0, 52.0, 53.0, 56.0)}
    recipe = RECIPES["resnet20-cifar100-lt"]
    for activation, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            write(tmp_path, recipe.replace(activation=activation, seed=seed), accuracy)
    evidence = claim(all_claims(gather([tmp_path])), "IGLU gains on imbalanced").evidence
    assert (
        f"at {recipe.ratio:g}:1: test_acc +1.00 ± 2.60 (4 seeds); a difference of that size needs about n = "
        "23 seeds" in evidence
    )


def test_a_grid_without_runs_states_so_and_its_minimum_detectable_difference(tmp_path: Path) -> None:
    planned(tmp_path, "lt", 100.0, gain=1.5)
    more = '[plan.claims]\n"{text}" = ["iglu:0.5", "relu"]\n'
    for name, text, recipe, norm in (
        ("low", "Low sigma wins on ResNet", "digits-lt", "true"),
        ("high", "High sigma wins on transformers", "digits-lt", "false"),
        ("grow", "IGLU's gains grow with the imbalance", "resnet20-cifar10-lt", "true"),
        ("other", "IGLU gains on imbalanced data", "digits-lt", "true"),
    ):
        head = GRID.partition("[plan.claims]")[0].format(ratio=20.0).replace("digits-lt", recipe)
        (tmp_path / f"{name}.toml").write_text(
            f'norm = {norm}\nmodel = "resnet8"\n{head}{more.format(text=text)}'
        )
    found = all_claims(gather([tmp_path]))
    for text in (
        "High sigma wins",
        "IGLU's gains grow",
    ):  # of another network, of other data: no SD is known
        elsewhere = claim(found, text).reduced
        assert elsewhere is not None
        assert elsewhere.evidence == "not run: iglu:0.5 - relu."
    low = claim(found, "Low sigma wins").reduced
    assert low is not None
    assert low.verdict == "not enough evidence"
    assert low.scale == "resnet8 on digits at 20:1, 2 epochs, 0 seeds of 4 planned"
    spread = "SD of one run in other grids 3.98, minimum detectable difference 11.99 at n = 4"
    assert low.evidence.startswith(f"not run: iglu:0.5 - relu; {spread}")
    gains = claim(found, "IGLU gains on imbalanced").reduced
    assert gains is not None
    assert gains.verdict == "holds"  # at the scale that was run, and no other
    assert gains.scale == "resnet8 on digits at 100:1, 2 epochs, 4 seeds"
    assert "resnet8 on digits at 20:1, 2 epochs, 0 seeds of 4 planned, not run:" in gains.evidence


def test_a_file_next_to_the_grids_that_is_not_a_grid_is_named(tmp_path: Path) -> None:
    planned(tmp_path, "lt", 100.0, gain=1.5)
    (tmp_path / "other.toml").write_text("[tool]\nx = 1\n")
    (problem,) = gather([tmp_path]).problems
    assert "other.toml" in problem
    assert "tool" in problem
    (tmp_path / "lt.toml").unlink()  # runs without their grid: another file there belongs to no plan
    assert gather([tmp_path]).problems == []


def test_a_grid_that_was_stopped_early_is_judged_on_common_seeds_and_says_so(tmp_path: Path) -> None:
    planned(tmp_path, "lt", 100.0, gain=1.5, seeds=3)
    write(tmp_path / "more", BASE.replace(activation="iglu:0.5", seed=3, ratio=100.0), 0.0)
    reduced = claim(all_claims(gather([tmp_path])), "IGLU gains on imbalanced").reduced
    assert reduced is not None
    assert reduced.verdict == "holds"  # without seed 3, which ReLU has not
    assert reduced.scale.endswith("3 seeds of 4 planned")


def test_a_claim_of_a_grid_does_not_hold_for_a_side_with_a_diverged_seed(tmp_path: Path) -> None:
    planned(tmp_path, "lt", 100.0, gain=1.5, seeds=3)
    for activation in ("relu", "iglu:5", "iglu:learnable=5"):
        write(tmp_path / "more", BASE.replace(activation=activation, seed=3, ratio=100.0), 69.0)
    write(tmp_path / "more", BASE.replace(activation="iglu:0.5", seed=3, ratio=100.0), 1.0, "diverged", 1)
    reduced = claim(all_claims(gather([tmp_path])), "IGLU gains on imbalanced").reduced
    assert reduced is not None
    assert reduced.verdict == "not enough evidence"
    assert "1 of iglu:0.5 diverged" in reduced.evidence


def test_growing_gains_use_every_planned_ratio(tmp_path: Path) -> None:
    more = '"IGLU\'s gains grow with the imbalance" = ["iglu:0.5", "relu"]'
    planned(tmp_path, "lt", 100.0, gain=2.0)
    planned(tmp_path, "ratio", 10.0, gain=1.0, more=more)
    reduced = claim(all_claims(gather([tmp_path])), "IGLU's gains grow").reduced
    assert reduced is not None
    assert reduced.verdict == "holds"
    assert reduced.evidence.startswith("+1.00 ± 0.0")
    assert reduced.scale.endswith("at ratios 10, 100")
    assert ":1" not in reduced.scale


def test_every_other_difference_of_a_planned_grid_is_adjusted_by_holm(tmp_path: Path) -> None:
    planned(tmp_path, "lt", 100.0, gain=1.5)
    found = gather([tmp_path])
    (table,) = [each for each in all_tables(found, all_tasks(found)) if each.key.startswith("grid-lt-")]
    assert table.title == "Grid lt: resnet8 on digits at 100:1, 2 epochs, 4 seeds"
    rows = {row[0].text: row for row in table.rows}
    assert rows["ReLU"][2:5] == (Cell(), Cell(), Cell(""))
    stats = pytest.importorskip("scipy.stats")
    gaps = {
        label: [gain + 0.01 * seed * (len(name) - 4) for seed in range(4)]
        for label, name, gain in (
            ("IGLU (sigma = 0.5)", "iglu:0.5", 1.5), ("IGLU (sigma = 5)", "iglu:5", 2.0),
            ("IGLU (learnable sigma)", "iglu:learnable=5", 2.1),
        )
    }  # fmt: skip
    single = {label: stats.ttest_1samp(values, 0).pvalue for label, values in gaps.items()}
    for place, label in enumerate(sorted(single, key=single.__getitem__)):
        assert rows[label][2].number == pytest.approx(sum(gaps[label]) / 4)
        assert rows[label][3].number >= (3 - place) * single[label] * 0.999
        assert rows[label][4].text == "better"


# -- damaged and foreign files ----------------------------------------------------------------------


def test_a_report_replaces_what_its_manifest_lists_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    mine = [out / "figures" / "holiday.png", out / "figures" / "own.svg", out / "tables" / "own.csv"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    write(tmp_path / "runs", BASE, 60.0)
    assert cli.report([str(tmp_path / "runs"), "--out", str(out)]) == 0
    listed = json.loads((out / "manifest.json").read_text())
    assert "tables/own1.csv" in listed
    assert all((out / name).is_file() for name in listed)
    (out / "manifest.json").write_text(json.dumps([*listed, "../runs", "/etc/hostname", 3]))
    (tmp_path / "empty").mkdir()
    assert cli.report([str(tmp_path / "empty"), "--out", str(out)]) == 0
    assert not (out / "tables" / "own1.csv").exists()
    assert [path.read_text() for path in mine] == ["mine"] * 3
    assert (tmp_path / "runs").is_dir()


ODD_VALUES = (None, True, -1, 10**400, 1e300, "soup", [], {}, [[]], {"a": []})


def _damaged(body: Any) -> Iterator[Any]:
    """The content again and again, with one value of it replaced each time."""

    def places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, below in items:
            yield (*path, key)
            yield from places(below, (*path, key))

    for number, path in enumerate(places(body, ())):
        changed = copy.deepcopy(body)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = ODD_VALUES[number % len(ODD_VALUES)]
        yield changed


def _everything(folder: Path) -> None:
    found = gather([folder])
    all_tables(found, all_tasks(found))
    all_claims(found)
    curves(found.samples)
    for tails in found.probes:
        layer_table(tails, "layers")
    found.planned  # noqa: B018


DAMAGED = {
    "recipe.json": BASE.as_dict(),
    "state.json": {"status": "finished", "message": ""},
    "metrics.jsonl": {"epoch": 1, "train_loss": 1.0, "test_acc": 60.0, "seconds": 1.0, "tails": {
        "act": {"alpha": 3.0, "gaussian": 4.0, "excess": 1.2, "excess_low": 1.0, "excess_high": 1.4}}},
    "probe.json": {
        "layers": [{"layer": "act", "n": 10, "k": 3, "alpha": 3.0, "excess": 1.2, "excess_low": 1.0,
                    "excess_high": 1.4, "verdict": "heavier", "note": "", "not_finite": 0}],
        "first_batch": [{"layer": "act", "alpha": 3.0, "gaussian": 4.0}],
        "suggestion": {"sigma": 1.0}, "batches": 2, "provenance": {"torch": "2.0"},
        "hill": {"act": {name: [1.0, 2.0] for name in ("k", "xi", "xi_low", "xi_high", "gaussian_xi")}},
    },
    "bench.json": {"provenance": {"date": "2026"}, "rows": [
        {"kind": "operation", "activation": "relu", "label": "ReLU", "kernel": "torch", "is_ours": False,
         "device": "cpu", "dtype": "float32", "threads": 1, "elements": 10_000, "pass": "forward",
         "rounds": 2, "seconds": {"median": 1.0, "low": 1.0, "high": 1.0},
         "ratios": {"identity": {"median": 1.0, "low": 1.0, "high": 1.0}}, "seconds_by_round": [1.0, 1.0]}]},
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("shift", [0, 5])
def test_one_invalid_value_in_a_file_stops_no_reader(
    name: str, shift: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value of every file in turn, each with one of the odd ones."""
    monkeypatch.setattr(claims, "mathematical_claims", list)  # which no file decides, and which take a while
    monkeypatch.setattr(__name__ + ".ODD_VALUES", ODD_VALUES[shift:] + ODD_VALUES[:shift])
    write(tmp_path, BASE.replace(activation="gelu"), 61.0)
    folder = write(tmp_path, BASE, 60.0)
    for body in _damaged(DAMAGED[name]):
        (folder / name).write_text(json.dumps(body) + "\n")
        _everything(tmp_path)
        runs, _ = read_runs(tmp_path)
        assert "gelu" in {run.recipe.activation for run in runs}


def test_one_invalid_value_in_an_archive_stops_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "mathematical_claims", list)
    write(tmp_path / "runs", BASE, 60.0)
    runs, _ = read_runs(tmp_path / "runs")
    add_to_archive(runs, tmp_path / "all.jsonl")
    head, line = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    for body in _damaged([head, line]):
        (tmp_path / "all.jsonl").write_text("".join(json.dumps(each) + "\n" for each in body))
        _everything(tmp_path)
        assert any(isinstance(run, Run) for run in read_runs(tmp_path)[0])
