"""The report's page in a real browser, Debian's chromium without a window, opened from disk."""

from __future__ import annotations

import base64
import csv
import dataclasses
import gzip
import hashlib
import html
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import iglu
from iglu import zoo
from iglu.modules import SigmaModule
from iglu.tails import gaussian_index
from iglu_lab.probe.tail_tables import Tails
from iglu_lab.recipes import RECIPES
from iglu_lab.report.content import Claim, ComparedTask, Difference, EpochCurve, Judgment, Report
from iglu_lab.report.explorer import WITH_SLIDER, derivatives, explorer_data
from iglu_lab.report.figures.description import Figure, Line, Panel
from iglu_lab.report.forest import forest
from iglu_lab.report.page import render
from iglu_lab.stats.statistics import Estimate
from iglu_lab.stats.tabulate import Cell, Table

NASTY = """</script><script>harmed = 1</script><img src=x onerror="harmed = 2"><b>'"&amp;</b>\u2028"""


HILL = {
    "k": [10, 100], "xi": [0.2, 0.25], "xi_low": [0.1, 0.2], "xi_high": [0.3, 0.3],
    "gaussian_xi": [0.05, 0.07],
}  # fmt: skip
LINE = Line("IGLU", (1e4, 1e5, 1e6), (2.0, 20.0, 200.0), "#0072B2", "-", "o", 2, (1, 10, 100), (3, 30, 300))
PANEL = Panel("forward", ("elements", "microseconds"), (LINE,), ("log", "log"), ((1e4, 1e6), (1.0, 1e3)))
GAIN = Difference("iglu:0.5", "relu", "test_acc", Estimate(1.5, 0.5, 2.5, 4, 0.6), 0.01, 0.4)
LOSS = Difference("gelu", "relu", "test_acc", Estimate(-1.0, -1.5, -0.5, 4, 0.3), 0.02)
INCONCLUSIVE = Difference("iglu:5", "relu", "test_acc", Estimate(0.2, -1.0, 1.4, 4, 0.7), 0.4)


def _task(title: str, *differences: Difference, metric: str = "test_acc", grid: str = "") -> ComparedTask:
    recipe = RECIPES["digits"]
    return ComparedTask(recipe, {}, metric, "relu", grid, key="task1", title=title, differences=differences)


def small_report() -> Report:
    rows = (
        (Cell("relu"), Cell("9.22", 9.22), Cell("10.00 ± 0.10", 10.0, "second")),
        (Cell("iglu"), Cell("22.44", 22.44, note="an erratum"), Cell("9.00 ± 0.10", 9.0, "best")),
        (Cell("gelu"), Cell("16.40", 16.4), Cell("diverged")),
    )
    headers = (("", "activation"), ("CPU forward", "paper"), ("CPU forward", "ours"))
    epochs = (1.0, 2.0, 3.0)
    layer = {
        "layer": "act1", "n": 1000, "k": 10, "fraction": 0.01, "alpha": 7.5, "alpha_low": 6.0,
        "alpha_high": 9.0, "gaussian": 12.0, "excess": 1.6, "verdict": "heavier", "note": "", "not_finite": 0,
    }  # fmt: skip
    return Report(
        tables=(Table("table1", "Table 1. Speed", headers, rows, ("medians",)),),
        claims=(
            Claim(
                "IGLU-Approx is faster than GELU",
                "holds",
                "0.3 times",
                "below 1.",
                Judgment("does not hold", "resnet8, 10 seeds", "1.3 times"),
            ),
        ),
        figures=(Figure("speed", "Speed against size", "Time rises with size", (PANEL,), is_on_page=True),),
        tasks=(_task("resnet8 on digits, 4 seeds", GAIN, LOSS, INCONCLUSIVE),),
        sigmas=(
            EpochCurve("digits", "iglu:learnable=5", "act1", epochs, (5, 4, 3), (4, 3, 2), (6, 5, 4), 3),
        ),
        curves=(
            EpochCurve("digits", "iglu:0.5", "test_acc", epochs, (80, 90, 95), (78, 89, 94), (82, 91, 96), 3),
            EpochCurve(
                "digits", "relu", "test_acc", epochs, (70, math.nan, 94), (-math.inf,) * 3, (math.inf,) * 3, 1
            ),
            EpochCurve(
                "digits", "relu", "test_loss", epochs, (2.0, 1.0, 0.5), (1.9, 0.9, 0.4), (2.1, 1.1, 0.6), 3
            ),
        ),
        probes=(
            Tails(
                "small",
                {"batches": 2, "layers": [layer], "suggestion": {"sigma": 1.25}, "hill": {"act1": HILL}},
            ),
        ),
        sources=("rows.jsonl: 3 rows",),
        problems=("half.jsonl cannot be read",),
        provenance={"torch": torch.__version__, "gpu": None},
    )


def write_page(report: Report, folder: Path) -> Path:
    path = folder / "index.html"
    path.write_text(render(report), encoding="utf-8", newline="\n")
    return path


# -- without a browser -----------------------------------------------------------------------------


def test_numbers_that_json_lacks_become_gaps() -> None:
    found = re.search(r'id="data">(.*?)</script>', render(small_report()), re.DOTALL)
    assert found is not None

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    curve = json.loads(found[1], parse_constant=refuse)["curves"][1]
    assert curve["mean"] == [70, None, 94]
    assert curve["low"] == [None] * 3


def test_a_forest_has_better_to_the_right_and_zero_where_the_tick_is() -> None:
    found = forest((LOSS, INCONCLUSIVE, GAIN))
    assert [line.label for line in found.lines] == ["IGLU (sigma = 0.5)", "IGLU (sigma = 5)", "GELU"]
    best, _, worst = found.lines
    zero = next(place for place, number in found.ticks if number == "0")
    assert worst.low < worst.value < worst.high < zero < best.low < best.value < best.high
    assert zero < best.published < best.value
    # The places are those of one straight line: 1.5 - 0 to 0 - (-1) is as 3 to 2.
    assert (best.value - zero) / (zero - worst.value) == pytest.approx(1.5, rel=1e-3)
    less = forest(
        [Difference(one.activation, "relu", "perplexity", one.found, one.p_value) for one in (LOSS, GAIN)]
    )
    best, worst = less.lines
    assert (best.label, best.text) == ("GELU", "-1.00 ± 0.50")
    zero = next(place for place, number in less.ticks if number == "0")
    assert worst.value < zero < best.value


@pytest.mark.parametrize(("published", "place", "sign"), [(-50.0, 0.0, "◁"), (50.0, 100.0, "▷")])
def test_a_published_number_far_outside_is_shown_at_the_edge_and_does_not_change_the_scale(
    published: float, place: float, sign: str
) -> None:
    outside = Difference(GAIN.activation, "relu", "test_acc", GAIN.found, GAIN.p_value, published)
    line, same = forest([outside]).lines[0], forest([GAIN]).lines[0]
    assert (line.published, line.published_sign) == (place, sign)
    assert (line.low, line.value, line.high) == (same.low, same.value, same.high)


def test_every_difference_is_in_one_of_four_categories_with_its_margin() -> None:
    alike = Difference("iglu:1", "relu", "test_acc", Estimate(0.1, -0.2, 0.4, 4, 0.19), 0.6)
    task = _task("digits", GAIN, LOSS, INCONCLUSIVE, alike)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", render(Report(tasks=(task,)))))
    for words in (
        "▲ better: iglu:0.5 +1.50 ± 1.00",
        "≈ equivalent: iglu:1 +0.10 ± 0.30 (within 0.5 points)",
        "? inconclusive: iglu:5 +0.20 ± 1.20",
        "not run",  # vs. GELU
    ):
        assert words in text


def test_tables_without_measured_numbers_are_folded_and_unmeasured_columns_are_left_out() -> None:
    headers = (("", "name"), ("CPU", "paper"), ("CPU", "ours"), ("GPU", "paper"), ("GPU", "ours"))
    row = (Cell("relu"), Cell("1", 1.0), Cell("2", 2.0), Cell("3", 3.0), Cell("not run"))
    empty = (Cell("gelu"), Cell("1", 1.0), Cell("not run"), Cell("3", 3.0), Cell("not run"))
    some = Table("some", "Some. Measured", headers, (row, empty))
    none = Table("none", "None. Measured", headers, (empty,))
    text = render(Report(tables=(some, none)))
    shown, folded = re.split(r'<details class="rest">', text.partition('id="tables"')[2])
    assert "relu" in shown
    assert "gelu" not in shown
    assert "Not run: GPU." in shown
    assert "not run here: None<" in re.sub(r"\s+<", "<", folded.partition("</summary>")[0] + "<")


def test_a_table_of_sentences_wraps_and_one_of_numbers_does_not() -> None:
    headers = (("", "place"), ("", "right"))
    figures = Table("a", "Figures", headers, ((Cell("relu"), Cell("100.00 ± 10.00 (5 seeds)", 100.0)),))
    sentences = Table("b", "Errata", headers, ((Cell("Figure 1"), Cell("GELU_a has the cube of a x in it")),))
    tables = re.findall(r'<table class="([^"]*)"', render(Report(tables=(figures, sentences))))
    assert tables == ["sortable", "sortable prose"]


def test_an_empty_report_says_which_commands_fill_it() -> None:
    text = render(Report())
    for command in ("iglu bench", "iglu train", "iglu probe", "iglu report"):
        assert f"<code>{command}" in text


def test_the_page_is_compressed_and_its_policy_allows_the_script_inside() -> None:
    text = render(small_report())
    found = re.search(r'id="plotly">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    script = gzip.decompress(base64.b64decode(found[1]))
    assert len(text) < min(0.6 * len(script), 3_000_000)
    policy = html.unescape(text.partition('content="')[2].partition('"')[0])
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" in policy


def test_a_claim_shows_both_verdicts_and_the_scale_of_the_reduced_one() -> None:
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", render(small_report()).partition("<body>")[2]))
    line = "IGLU-Approx is faster than GELU ✓ holds the paper's own scale ✕ does not hold resnet8, 10 seeds"
    assert line in html.unescape(text)
    assert "resnet8, 10 seeds: 1.3 times" in html.unescape(text)


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = render(small_report())
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*""", own)
    assert "default-src 'none'" in html.unescape(own)


def test_the_explorer_has_every_activation_and_piecewise_linear_ones_have_no_curvature() -> None:
    found = {each["name"]: each for each in explorer_data()["activations"]}
    assert found.keys() == zoo.ZOO.keys()
    assert {name for name, each in found.items() if each["is_shown"]} == {
        "iglu", "iglu_approx", "relu", "gelu", "silu"
    }  # fmt: skip
    for name in ("relu", "leaky_relu", "prelu", "hardtanh", "hardsigmoid", "softshrink", "identity"):
        assert set(found[name]["curves"]["curvature"]) == {0.0}, name
    assert not found["sigmoid"]["has_gate"]
    assert found["tanh"]["has_gate"]


@pytest.mark.usefixtures("registries")
def test_a_registered_activation_with_a_sigma_is_drawn_at_its_default() -> None:
    class Snake(SigmaModule):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.sin(self.sigma * x) ** 2 / self.sigma

    iglu.register_activation("snake", Snake, takes_sigma=True)
    data = explorer_data()
    (snake,) = (each for each in data["activations"] if each["name"] == "snake")
    x, sigma = torch.tensor(data["x"], dtype=torch.float64), Snake().sigma
    expected = 1 + torch.sin(2 * sigma * x)
    torch.testing.assert_close(torch.tensor(snake["curves"]["slope"]).double(), expected, rtol=0, atol=1e-5)


# -- in a browser ----------------------------------------------------------------------------------


class Page:
    """The page of a report in the browser."""

    def __init__(self, browser: Any, path: Path, address: str = "") -> None:
        self.browser = browser
        browser.get_log("browser")  # what is left of the page before
        browser.get("about:blank")
        browser.get(path.as_uri() + address)
        self.settle()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait until everything is drawn: charts are drawn in the next frame."""
        self.browser.execute_async_script(
            "const done = arguments[0]; "
            "plotly.then(() => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
        )

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def press(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)
        self.settle()

    def type_into(self, selector: str, *keys: str) -> None:
        self.run("document.querySelector(arguments[0]).focus()", selector)
        self.browser.switch_to.active_element.send_keys(*keys)
        self.settle()

    def traces(self, chart: str) -> dict[str, dict[str, list[float | None]]]:
        """The curves of a chart by name, as Plotly has them."""
        script = """
            const traces = document.querySelector(arguments[0]).data.filter((each) => each.name);
            return Object.fromEntries(traces.map(({name, x, y}) => [name, {x, y}]));
        """
        return dict(self.run(script, chart))

    def column(self, number: int) -> list[str]:
        return [
            cell.text for cell in self.all(f"#table1 tbody tr > :nth-child({number + 1}) > span:first-child")
        ]

    def problems(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser")]


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Page:
    return Page(browser, write_page(small_report(), tmp_path))


def test_the_slider_changes_only_the_curves_that_have_a_sigma(page: Page) -> None:
    before = page.traces("#explorer-chart")
    page.type_into("#sigma", *["\ue014"] * 10)  # arrow right
    after = page.traces("#explorer-chart")
    assert before["IGLU"] != after["IGLU"]
    assert before["ReLU"] == after["ReLU"]
    sigma = float(page.all("#sigma-number")[0].get_property("value"))
    assert sigma == pytest.approx(10**0.2, rel=1e-2)
    x = torch.tensor(after["IGLU"]["x"], dtype=torch.float64)
    expected = zoo.create(f"iglu:{sigma}")(x)
    torch.testing.assert_close(
        torch.tensor(after["IGLU"]["y"], dtype=torch.float64), expected, rtol=1e-12, atol=0
    )
    assert page.problems() == []


def test_the_address_stores_and_restores_what_is_shown(browser: Any, tmp_path: Path) -> None:
    path = write_page(small_report(), tmp_path)
    page = Page(browser, path, "#sigma=2.5&view=slope&show=iglu,mish")
    assert set(page.traces("#explorer-chart")) == {"IGLU", "Mish"}
    assert page.run("return document.querySelector('#views input:checked').value") == "slope"
    assert float(page.all("#sigma-number")[0].get_property("value")) == 2.5
    page.press("#views input[value=tail]")
    assert page.run("return location.hash") == "#sigma=2.5&view=tail&show=iglu,mish"
    page.run("location.hash = '#sigma=0.5&view=value&show=relu'")
    page.settle()
    assert set(page.traces("#explorer-chart")) == {"ReLU"}
    assert page.problems() == []


def test_smooth_curves_are_drawn_through_every_point(page: Page) -> None:
    """By default Plotly drops points on nearly straight parts, which makes corners."""
    drawn = page.run("""
        const chart = document.querySelector("#explorer-chart");
        const place = chart.data.findIndex(({ name }) => name === "GELU");
        const path = chart.querySelectorAll(".trace")[place].querySelector("path.js-line").getAttribute("d");
        return [path.match(/[LHV]/g).length, chart.data[place].x.filter((x) => x > -4 && x < 0).length];
    """)
    segments, points = drawn
    assert segments >= points > 70


def test_the_numbers_of_each_figure_can_be_saved_as_csv(page: Page) -> None:
    def rows(script: str) -> list[list[str]]:
        return list(csv.reader(io.StringIO(page.run(f"return csvText({script})"))))

    found = rows("rowsOfCharts([document.querySelector('#curves-chart')])")
    assert found[0] == ["panel", "series", "x", "y", "low", "high"]
    assert ["IGLU (sigma = 0.5), 3 seeds", "2", "90", "89", "91"] in [line[1:] for line in found]
    found = rows("rowsOfTable(document.querySelector('table.forest'))")
    assert any(line[0] == "IGLU (sigma = 0.5)" and "1.5" in line for line in found)
    assert rows("""[["=1+1", 'a "b", c', null, -2.5]]""") == [["'=1+1", 'a "b", c', "", "-2.5"]]
    names = page.run("return [...document.querySelectorAll('.tools button')].map((each) => each.ariaLabel)")
    for name in (
        "explorer",
        "curves",
        "sigmas",
        "tails-small",
        "hill-small",
        "speed",
        "task1",
        "table1",
        "summary",
    ):
        assert f"Data (CSV): {name}" in names
    page.press("[aria-label='Data (CSV): curves']")
    assert page.problems() == []


def test_a_figure_can_fill_the_screen_and_escape_restores_the_page(page: Page) -> None:
    chart = "document.querySelector('#curves-chart')"
    before = page.run(f"return {chart}.clientHeight")
    page.press("[aria-label='Enlarge: curves']")
    assert page.run(f"return {chart}.closest('dialog').open && {chart}.clientHeight") > 1.5 * before
    page.type_into("#shrink", "\ue00c")  # escape
    assert page.run(f"return {chart}.closest('dialog')") is None
    assert page.run(f"return {chart}.clientHeight") == before
    assert page.run("return document.activeElement.ariaLabel") == "Enlarge: curves"


def test_the_ticks_of_epochs_are_integers(page: Page) -> None:
    for chart in ("#curves-chart", "#sigmas-chart"):
        ticks = page.run(
            f"return [...document.querySelectorAll('{chart} .xtick text')].map((e) => e.textContent)"
        )
        assert ticks
        assert all(tick.isdigit() for tick in ticks)


def test_a_hill_plot_has_the_range_of_a_gaussian(page: Page) -> None:
    bands = page.run(
        "return document.querySelector('.hill').data.filter((each) => each.fill === 'toself').map(({y}) => y)"
    )
    gaussian = [gaussian_index("hill", 1000, k) for k in (10, 100)]
    expected = [gaussian[0].xi_high, gaussian[1].xi_high, gaussian[1].xi_low, gaussian[0].xi_low]
    assert bands[1] == pytest.approx(expected, abs=1e-5)


def test_every_control_has_a_name_for_screen_readers(page: Page) -> None:
    page.browser.execute_cdp_cmd("Accessibility.enable", {})
    nodes = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    controls = ("button", "slider", "spinbutton", "checkbox", "radio", "combobox", "link")
    seen = set()
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in controls and not node.get("ignored"):
            seen.add(role)
            assert node.get("name", {}).get("value", "").strip(), node
    assert seen == set(controls)
    unnamed = page.run("""
        return [...document.querySelectorAll("[role=img], summary")]
            .filter((each) => !(each.ariaLabel ?? each.textContent).trim()).length;
    """)
    assert unnamed == 0


def screenshot(page: Page, width: int, theme: str) -> Any:
    """The complete page as RGB values from 0 to 255."""
    image = pytest.importorskip("PIL.Image")
    numpy = pytest.importorskip("numpy")
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.browser.refresh()
    page.settle()
    height = page.run("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = page.browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return numpy.asarray(image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB"))


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")])
def test_a_screenshot_of_the_dark_page_has_no_white_areas_and_of_the_light_one_no_black_areas(
    page: Page, width: int, theme: str
) -> None:
    seen = screenshot(page, width, theme).astype(int)
    light = (seen.min(axis=2) > 230).mean()
    dark = (seen.max(axis=2) < 70).mean()
    assert (dark if theme == "dark" else light) > 0.75
    assert (light if theme == "dark" else dark) < 0.06
    # The line of IGLU, in its color of the theme, is on the first screen.
    blue = (74, 168, 232) if theme == "dark" else (0, 114, 178)
    assert (abs(seen[:844] - blue).sum(axis=2) < 12).sum() > 300
    assert page.problems() == []


def test_on_a_phone_the_text_of_figures_is_large_enough(page: Page) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.browser.refresh()
    page.settle()
    heights = page.run("""
        return [...document.querySelectorAll("figure text, .forest text")]
            .filter((each) => each.textContent.trim())
            .map((each) => parseFloat(getComputedStyle(each).fontSize));
    """)
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(heights) > 20
    assert min(heights) >= 11


def test_formulas_of_the_page_are_those_of_the_library_far_into_the_tails(page: Page) -> None:
    magnitudes = torch.logspace(-6, 6, 97, dtype=torch.float64)
    x = torch.cat([-magnitudes, magnitudes])
    sigmas = [0.01, 0.1, 0.5, 1.0, 7.0, 100.0]
    script = """
        const [x, sigmas] = arguments;
        const sample = (f) => ["value", "slope", "curvature"].map((key) => x.map((each) => f(key, each)));
        return Object.entries(FORMULAS).map(([name, formula]) => [
            name, sigmas.map((sigma) => sample((key, each) => formula[key](each, sigma))),
        ]);
    """
    found = dict(page.run(script, x.tolist(), sigmas))
    assert set(found) == set(WITH_SLIDER)
    for name, by_sigma in found.items():
        for sigma, sampled in zip(sigmas, by_sigma, strict=True):
            for got, expected in zip(sampled, derivatives(f"{name}:{sigma}", x), strict=True):
                # below the smallest normal numbers there are no 12 digits
                torch.testing.assert_close(
                    torch.tensor(got, dtype=torch.float64), expected, rtol=1e-12, atol=1e-290,
                    msg=lambda text, name=name, sigma=sigma: f"{name}:{sigma}: {text}",
                )  # fmt: skip


def test_a_table_sorts_by_click_and_by_key_with_missing_numbers_last(page: Page) -> None:
    header = "#table1 th[data-column='2']"
    assert page.column(0) == ["relu", "iglu", "gelu"]
    page.press(f"{header} button")
    assert page.all(header)[0].get_attribute("aria-sort") == "ascending"
    assert page.column(0) == ["iglu", "relu", "gelu"]
    page.type_into(f"{header} button", "\ue007")  # enter
    assert page.all(header)[0].get_attribute("aria-sort") == "descending"
    assert page.column(0) == ["relu", "iglu", "gelu"]
    page.press("#table1 th[data-column='0'] button")
    assert page.column(0) == ["gelu", "iglu", "relu"]
    assert page.all(header)[0].get_attribute("aria-sort") is None


def test_names_and_texts_are_shown_literally_and_never_executed(browser: Any, tmp_path: Path) -> None:
    layer = {"layer": NASTY, "alpha": 7.5, "gaussian": 12.0, "verdict": NASTY, "note": NASTY, "not_finite": 1}
    nasty_panel = dataclasses.replace(PANEL, title=NASTY, labels=(NASTY, NASTY))
    report = Report(
        tables=(Table(NASTY, NASTY, ((NASTY, NASTY),), ((Cell(NASTY, 1.0, note=NASTY),),), (NASTY,)),),
        claims=(Claim(NASTY, "holds", NASTY),),
        figures=(Figure(NASTY, NASTY, NASTY, (nasty_panel,), is_on_page=True),),
        tasks=(_task(NASTY, GAIN, metric=NASTY, grid=NASTY),),
        sigmas=(EpochCurve(NASTY, "relu", NASTY, (1.0, 2.0), (1.0, 2.0), (0.0, 1.0), (2.0, 3.0), 2),),
        curves=(EpochCurve(NASTY, "relu", NASTY, (1.0, 2.0), (1.0, 2.0), (0.0, 1.0), (2.0, 3.0), 2),),
        probes=(
            Tails(NASTY, {"batches": NASTY, "layers": [layer], "suggestion": None, "hill": {NASTY: HILL}}),
        ),
        sources=(NASTY,),
        problems=(NASTY,),
        provenance={NASTY: NASTY},
    )
    page = Page(browser, write_page(report, tmp_path))
    assert page.run("return window.harmed") is None
    assert page.all("img[src=x]") == []
    for selector in (
        "#tables h3", "#tables th.group", "#tables thead button", "#tables tbody th > span",
        "#tables .notes li", "#tables .notes p", ".words", ".found", "figcaption", "#figures p.hidden",
        "#recipe option", "#forest h3", ".outcomes a", ".layer option",
        ".probe .name", ".probe tbody th > span", ".sources li", ".problems li",
        "dt", "dd",
    ):  # fmt: skip
        assert page.run("return document.querySelector(arguments[0]).textContent", selector) == NASTY, (
            selector
        )
    ticks = page.run("return document.querySelector('.probe .xtick text').textContent")
    assert """<b>'"&amp;</b>""" in ticks  # which Plotly would show in bold
    assert page.problems() == []


@pytest.mark.slow
def test_the_theme_follows_the_system_until_one_is_chosen(page: Page) -> None:
    def background() -> str:
        return str(page.run("return getComputedStyle(document.body).backgroundColor"))

    def prefer(theme: str) -> str:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        page.settle()
        return background()

    light, dark = prefer("light"), prefer("dark")
    assert light != dark
    page.press("#theme")
    assert background() == light
    assert page.all("#theme")[0].get_attribute("aria-pressed") == "false"
    page.browser.refresh()
    page.settle()
    assert background() == light
    page.run("localStorage.clear()")
    assert page.problems() == []


@pytest.mark.slow
def test_every_view_draws_every_activation_without_a_problem(page: Page) -> None:
    for box in page.all("#explorer .chips input:not(:checked)"):
        page.run("arguments[0].click()", box)
    without_gate = {each["label"] for each in explorer_data()["activations"] if not each["has_gate"]}
    labels = {row.label for row in zoo.ZOO.values()}
    for view in ("value", "gate", "slope", "curvature", "tail"):
        page.press(f"#views input[value={view}]")
        shown = page.traces("#explorer-chart")
        assert shown.keys() == (labels - without_gate if view == "gate" else labels), view
        for name, curve in shown.items():
            assert all(y is None or math.isfinite(y) for y in curve["y"]), (view, name)
    page.press("#views input[value=slope]")
    relu = page.traces("#explorer-chart")["ReLU"]
    jump = relu["y"].index(None)  # the line is left open at the kink
    assert (relu["y"][jump - 1], relu["x"][jump], relu["y"][jump + 1]) == (0, 0, 1)
    assert page.problems() == []


@pytest.mark.slow
def test_curves_are_chosen_by_metric_and_activation(page: Page) -> None:
    assert set(page.traces("#curves-chart")) == {"IGLU (sigma = 0.5), 3 seeds", "ReLU, 1 seed"}
    bands = (
        "return document.querySelector('#curves-chart').data.filter((each) => each.fill === 'toself').length"
    )
    assert page.run(bands) == 1  # one seed has no band
    page.press("#curves-shown input")
    assert set(page.traces("#curves-chart")) == {"ReLU, 1 seed"}
    page.run("""const metric = document.querySelector("#metric"); metric.value = "test_loss";
        metric.dispatchEvent(new Event("change"))""")
    page.settle()
    assert page.traces("#curves-chart")["ReLU, 3 seeds"]["y"] == [2.0, 1.0, 0.5]


@pytest.mark.slow
def test_nothing_is_wider_than_the_screen_of_a_phone(page: Page) -> None:
    for width in (390, 1280):
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
        page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.browser.refresh()
        page.settle()
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert page.run("""return [...document.querySelectorAll(".forest")].every(
            each => each.clientWidth <= each.parentElement.clientWidth + 1)""")
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_the_keyboard_reaches_every_control_and_the_focus_is_visible(page: Page) -> None:
    reached = set()
    for _ in range(110):
        page.browser.switch_to.active_element.send_keys("\ue004")  # tab
        found = page.run("""
            const focused = document.activeElement;
            const shows = (each) => each && getComputedStyle(each).outlineStyle !== "none";
            const seen = [focused, focused.nextElementSibling, focused.parentElement].some(shows);
            return [focused.id || focused.name || focused.tagName, seen || focused === document.body];
        """)
        assert found[1], f"the focus on {found[0]} is not seen"
        reached.add(found[0])
    wanted = {"theme", "view", "sigma", "sigma-number", "recipe", "metric", "learned", "BUTTON", "SUMMARY"}
    assert wanted <= reached
