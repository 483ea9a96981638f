"""The published numbers are those that are printed, and the errata touch the cells they name."""

import math

import pytest

from iglu import zoo
from iglu_lab import paper


@pytest.mark.parametrize(
    ("number", "activation", "printed"),
    [
        (2, "iglu:0.5", (0.480, 91.10, 1.488, 65.46, 1.211, 85.23, 3.585, 57.55)),
        (2, "iglu_approx:learnable=5", (0.521, 90.70, 1.565, 64.48, 1.058, 87.18, 3.216, 61.17)),
        (2, "mish", (0.586, 90.08, 1.611, 64.61, 1.018, 87.96, 3.479, 61.28)),
        (3, "iglu_approx:0.1", (2.987, 19.84)),
        (3, "hardswish", (2.781, 16.15)),
        (4, "iglu:1", (2.833, 50.02, 3.514, 43.95, 4.482, 36.24, 5.352, 31.64, 6.192, 29.03)),
        (4, "silu", (2.988, 50.45, 3.737, 44.15, 4.933, 34.81, 5.693, 31.31, 6.377, 28.18)),
    ],
)
def test_rows_are_those_of_the_paper(number, activation, printed):
    columns = paper.run_table(number).columns
    assert tuple(column.numbers[activation].printed for column in columns if column.numbers) == printed


@pytest.mark.parametrize(("number", "rows", "columns"), [(2, 17, 8), (3, 17, 2), (4, 15, 12)])
def test_every_table_has_all_its_rows_and_columns(number, rows, columns):
    table = paper.run_table(number)
    assert len(table.rows) == rows
    assert len(table.columns) == columns
    assert all(tuple(column.numbers) == table.rows for column in table.columns if column.numbers)
    assert all(str(zoo.parse(name)) == name for name in table.rows)


def test_every_erratum_of_a_number_is_in_its_cell():
    cells = [
        value
        for number in paper.RUN_TABLES
        for column in paper.run_table(number).columns
        for value in column.numbers.values()
    ] + [row.alpha for row in paper.table5()]
    corrected = {(cell.printed, cell.right) for cell in cells if cell is not None and cell.is_erratum}
    assert corrected == {(62.28, 64.28), (16.69, 19.88), (4.448, 4.488), (11.28, 296325.875)}
    assert len(paper.errata()) == 17


def test_perplexity_is_the_exponential_of_the_loss_once_corrected():
    """Losses are printed to three digits; 0.4% covers the rounding of their logs."""
    loss, perplexity = (column.numbers for column in paper.run_table(3).columns)
    for name in paper.run_table(3).rows:
        assert perplexity[name].right == pytest.approx(math.exp(loss[name].right), rel=4e-3)


def test_numbers_printed_under_500_are_listed_at_200_where_they_were_run():
    table = paper.run_table(4)
    ratios = [recipe.ratio for recipe in table.recipes]
    assert ratios == [10, 20, 50, 100, 200, 500]
    assert table.columns[9].numbers["relu"].printed == 26.66
    assert [column.numbers for column in table.columns[10:]] == [{}, {}]


def test_table_5_has_each_network_with_and_without_normalization():
    rows = paper.table5()
    assert [(row.recipe.model, row.recipe.norm) for row in rows] == [
        ("resnet20", True), ("gpt2-small", True), ("vit-tiny", True),
        ("resnet20", False), ("gpt2-small", False), ("vit-tiny", False),
    ]  # fmt: skip
    assert [row.alpha and row.alpha.printed for row in rows] == [10.4, 20.7, 23.2, 11.28, None, None]
    assert [row.recipe.dataset for row in rows] == ["cifar100", "wikitext-103", "cifar100"] * 2


def test_a_table_without_runs_raises():
    with pytest.raises(ValueError, match=r"Tables of runs are \(2, 3, 4\), got 1"):
        paper.run_table(1)
