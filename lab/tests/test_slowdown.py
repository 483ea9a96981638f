"""Which ratios changed between two sessions by more than their rounds vary, of the same measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iglu_lab.bench.slowdown import Ratio, compared
from iglu_lab.commands import bench


def row(median: float, low: float, high: float, **fields: Any) -> dict[str, Any]:
    plain = {
        "kind": "operation", "activation": "iglu", "label": "IGLU", "kernel": "auto", "device": "cpu",
        "dtype": "float32", "threads": 1, "elements": 10_000, "pass": "forward",
        "ratios": {"relu": {"median": median, "low": low, "high": high}},
    }  # fmt: skip
    return plain | fields


BEFORE = row(2.0, 1.9, 2.2)


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[Ratio]:
    return [each for each in compared([before], [now]) if each.has_changed]


@pytest.mark.parametrize(
    ("now", "has_changed"),
    [
        (row(2.5, 2.4, 2.6), True),  # slower, and no range reaches the other's median
        (row(1.5, 1.4, 1.6), True),  # faster
        (row(2.2, 2.1, 2.3), False),  # at the edge of what it was
        (row(2.5, 1.95, 3.0), False),  # so uncertain that it may be unchanged
        (row(2.1, 2.09, 2.11), False),  # sharper now, and within what it was
        (row(2.0, 1.9, 2.2), False),
    ],
)
def test_a_ratio_has_changed_where_each_median_is_outside_the_others_range(
    now: dict[str, Any], has_changed: bool
) -> None:
    assert bool(changed(BEFORE, now)) == has_changed
    assert bool(changed(now, BEFORE)) == has_changed


@pytest.mark.parametrize(
    "other",
    [
        {"activation": "gelu"}, {"kernel": "plain"}, {"elements": 100}, {"pass": "backward"},
        {"dtype": "bfloat16"}, {"threads": 2}, {"device": "cuda"}, {"kind": "training", "model": "resnet20"},
    ],
)  # fmt: skip
def test_only_the_same_measurement_is_compared(other: dict[str, Any]) -> None:
    now = row(9.0, 8.9, 9.1, **other)
    assert compared([BEFORE], [now]) == []


def test_a_reference_that_only_one_session_has_is_left_out() -> None:
    now = row(2.0, 1.9, 2.2)
    now["ratios"]["silu"] = {"median": 5.0, "low": 4.9, "high": 5.1}
    (found,) = compared([BEFORE], [now])
    assert found.reference == "relu"


def test_a_changed_ratio_is_reported_in_one_line_with_both_ranges() -> None:
    (found,) = changed(BEFORE, row(2.5, 2.4, 2.6))
    assert str(found) == (
        "IGLU (auto), forward, 10,000 elements, float32, cpu, 1 thread: "
        "2.50 [2.40, 2.60] times relu, was 2.00 [1.90, 2.20]"
    )
    step = {"kind": "training", "model": "resnet20", "model_label": "ResNet-20, batch 128"}
    (found,) = changed(row(1.0, 1.0, 1.0, **step), row(1.2, 1.1, 1.3, **step))
    assert str(found).startswith(
        "IGLU (auto) in a step of ResNet-20, batch 128, float32, cpu, 1 thread: 1.20 "
    )


def test_the_command_names_the_changed_ratios_and_ends_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = [
        "--rounds", "2", "--iterations", "2", "--sizes", "64", "--activations", "gelu", "--passes", "forward",
        "--no-warm-heap", "--no-pictures", "--no-pairs", "--no-direct",
    ]  # fmt: skip
    assert bench.main([*quick, "--out", str(tmp_path / "first")]) == 0
    measured = (tmp_path / "first" / "bench.json").read_text(encoding="utf-8")
    # One range includes everything; in the other the case took a millionth of the time, which cannot recur.
    before = {
        "wide": {"median": 1.0, "low": 1e-9, "high": 1e9},
        "faster": {"median": 1e-6, "low": 0.9e-6, "high": 1.1e-6},
    }
    for name, spread in before.items():
        content = json.loads(measured)
        for each in content["rows"]:
            each["ratios"] = dict.fromkeys(each["ratios"], spread)
        earlier = tmp_path / f"{name}.json"
        earlier.write_text(json.dumps(content), encoding="utf-8")
        capsys.readouterr()
        status = bench.main([*quick, "--out", str(tmp_path / name), "--against", str(earlier)])
        printed = " ".join(capsys.readouterr().out.split())
        assert status == int(name == "faster")
        assert ("Changed: GELU (torch), forward, 64 elements" in printed) == bool(status)
        assert "ratios changed since" in printed
