"""The report's page in a real browser, Debian's chromium without a window, opened from disk."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from iglu import zoo
from iglu.lab.probe.tables import Tails
from iglu.lab.report.content import Claim, Curve, Figure, Judgement, Report
from iglu.lab.report.explorer import derivatives, explorer_data
from iglu.lab.report.page import render
from iglu.lab.results.tables import Cell, Table

pytest.importorskip("plotly", reason="the page embeds plotly: pip install 'iglu-torch[lab]'")

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><rect width="40" height="30"/></svg>'
NASTY = """</script><script>harmed = 1</script><img src=x onerror="harmed = 2"><b>'"&amp;</b>\u2028"""


def small_report(folder: Path) -> Report:
    picture = folder / "speed.svg"
    picture.write_text(SVG)
    rows = (
        (Cell("relu"), Cell("9.22", 9.22), Cell("10.00 ± 0.10", 10.0, "second")),
        (Cell("iglu"), Cell("22.44", 22.44, note="an erratum"), Cell("9.00 ± 0.10", 9.0, "best")),
        (Cell("gelu"), Cell("16.40", 16.4), Cell("not run")),
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
                Judgement("does not hold", "resnet8, 10 seeds", "1.3 times"),
            ),
        ),
        figures=(Figure("speed", "Speed against size", "Time rises with size", (picture,)),),
        curves=(
            Curve("digits", "iglu:0.5", "test_acc", epochs, (80, 90, 95), (78, 89, 94), (82, 91, 96), 3),
            Curve(
                "digits", "relu", "test_acc", epochs, (70, math.nan, 94), (-math.inf,) * 3, (math.inf,) * 3, 1
            ),
            Curve(
                "digits", "relu", "test_loss", epochs, (2.0, 1.0, 0.5), (1.9, 0.9, 0.4), (2.1, 1.1, 0.6), 3
            ),
        ),
        probes=(Tails("small", {"batches": 2, "layers": [layer], "suggestion": {"sigma": 1.25}}),),
        sources=("rows.jsonl: 3 rows",),
        complaints=("half.jsonl cannot be read",),
        provenance={"torch": torch.__version__, "gpu": None},
    )


def write_page(report: Report, folder: Path) -> Path:
    path = folder / "index.html"
    path.write_text(render(report), encoding="utf-8", newline="\n")
    return path


# -- without a browser -----------------------------------------------------------------------------


def test_numbers_that_json_lacks_become_gaps(tmp_path: Path) -> None:
    found = re.search(r'id="data">(.*?)</script>', render(small_report(tmp_path)), re.DOTALL)
    assert found is not None

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    curve = json.loads(found[1], parse_constant=refuse)["curves"][1]
    assert curve["mean"] == [70, None, 94]
    assert curve["low"] == [None] * 3


def test_a_table_of_sentences_wraps_and_one_of_figures_does_not() -> None:
    headers = (("", "place"), ("", "right"))
    figures = Table("a", "Figures", headers, ((Cell("relu"), Cell("100.00 ± 10.00 (5 seeds)", 100.0)),))
    sentences = Table("b", "Errata", headers, ((Cell("Figure 1"), Cell("GELU_a has the cube of a x in it")),))
    tables = re.findall(r'<table class="([^"]*)"', render(Report(tables=(figures, sentences))))
    assert tables == ["sortable", "sortable prose"]


def test_an_empty_report_says_which_commands_fill_it() -> None:
    text = render(Report())
    for command in ("iglu bench", "iglu train", "iglu probe", "iglu report"):
        assert f"<code>{command}" in text


def test_the_page_is_a_third_of_what_it_holds_and_the_policy_knows_the_script_inside(tmp_path: Path) -> None:
    text = render(small_report(tmp_path))
    found = re.search(r'id="plotly">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    script = gzip.decompress(base64.b64decode(found[1]))
    assert len(text) < 0.6 * len(script)
    policy = html.unescape(text.partition('content="')[2].partition('"')[0])
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" in policy


def test_a_claim_shows_both_verdicts_and_the_scale_of_the_reduced_one(tmp_path: Path) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", render(small_report(tmp_path)).partition("<body>")[2]))
    assert "the paper's own scale: 0.3 times ✓ holds" in html.unescape(text)
    assert "resnet8, 10 seeds: 1.3 times ✕ does not hold" in html.unescape(text)


def test_the_page_names_no_other_place_to_load_from(tmp_path: Path) -> None:
    text = render(small_report(tmp_path))
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*""", own)
    assert "default-src 'none'" in html.unescape(own)


def test_the_explorer_has_every_activation_and_straight_lines_have_no_curvature() -> None:
    found = {each["name"]: each for each in explorer_data()["activations"]}
    assert found.keys() == zoo.ZOO.keys()
    for name in ("relu", "leaky_relu", "prelu", "hardtanh", "hardsigmoid", "softshrink", "identity"):
        assert set(found[name]["curves"]["curvature"]) == {0.0}, name
    assert not found["sigmoid"]["has_gate"]
    assert found["tanh"]["has_gate"]


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="the browser is driven by selenium")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs chromium and chromedriver: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    started.set_script_timeout(20)
    # As on a train: whatever the page asked for would fail, and be in the log.
    started.execute_cdp_cmd("Network.enable", {})
    conditions = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    started.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)
    yield started
    started.quit()


class Page:
    """The page of a report, as its reader uses it."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get_log("browser")  # what is left of the page before
        browser.get(path.as_uri())
        self.settle()

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def settle(self) -> None:
        """Until what was asked for is drawn: charts are drawn in the next frame."""
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

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser")]


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Page:
    return Page(browser, write_page(small_report(tmp_path), tmp_path))


def test_the_slider_moves_the_curves_that_have_a_sigma_and_no_other(page: Page) -> None:
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
    assert page.complaints() == []


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
    assert set(found) == {name for name, row in zoo.ZOO.items() if row.takes_sigma}
    for name, by_sigma in found.items():
        for sigma, sampled in zip(sigmas, by_sigma, strict=True):
            for got, expected in zip(sampled, derivatives(f"{name}:{sigma}", x), strict=True):
                # below the smallest normal numbers there are no 12 digits
                torch.testing.assert_close(
                    torch.tensor(got, dtype=torch.float64), expected, rtol=1e-12, atol=1e-290,
                    msg=lambda text, name=name, sigma=sigma: f"{name}:{sigma}: {text}",
                )  # fmt: skip


def test_a_table_sorts_by_click_and_by_key_with_what_has_no_number_last(page: Page) -> None:
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


def test_names_and_texts_are_shown_as_they_are_and_never_run(browser: Any, tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    picture.write_text(SVG)
    layer = {"layer": NASTY, "alpha": 7.5, "gaussian": 12.0, "verdict": NASTY, "note": NASTY, "not_finite": 1}
    report = Report(
        tables=(Table(NASTY, NASTY, ((NASTY, NASTY),), ((Cell(NASTY, 1.0, note=NASTY),),), (NASTY,)),),
        claims=(Claim(NASTY, "holds", NASTY),),
        figures=(Figure(NASTY, NASTY, NASTY, (picture,)),),
        curves=(Curve(NASTY, NASTY, NASTY, (1.0, 2.0), (1.0, 2.0), (0.0, 1.0), (2.0, 3.0), 2),),
        probes=(Tails(NASTY, {"batches": NASTY, "layers": [layer], "suggestion": None}),),
        sources=(NASTY,),
        complaints=(NASTY,),
        provenance={NASTY: NASTY},
    )
    page = Page(browser, write_page(report, tmp_path))
    assert page.run("return window.harmed") is None
    assert page.all("img[src=x]") == []
    for selector in (
        "#tables h3", "#tables th.group", "#tables thead button", "#tables tbody th > span",
        "#tables .notes li", "#tables p.note", ".claim", ".told", "figcaption", "#recipe option",
        "#curves-shown label span", ".probe .name", ".probe tbody th > span", ".sources li", ".complaints li",
        "dt", "dd",
    ):  # fmt: skip
        assert page.run("return document.querySelector(arguments[0]).textContent", selector) == NASTY, (
            selector
        )
    assert page.all("figure img")[0].get_attribute("alt") == NASTY
    ticks = page.run("return document.querySelector('.probe .xtick text').textContent")
    assert """<b>'"&amp;</b>""" in ticks  # of which Plotly would make bold type
    assert page.complaints() == []


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
    assert page.complaints() == []


@pytest.mark.slow
def test_every_view_draws_every_activation_without_a_complaint(page: Page) -> None:
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
    assert page.complaints() == []


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
def test_nothing_reaches_beyond_the_screen_of_a_phone(page: Page) -> None:
    for width in (390, 1280):
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
        page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.browser.refresh()
        page.settle()
        assert page.run("return document.documentElement.scrollWidth") <= width
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_the_keyboard_reaches_every_control_and_the_focus_is_seen(page: Page) -> None:
    reached = set()
    for _ in range(80):
        page.browser.switch_to.active_element.send_keys("\ue004")  # tab
        found = page.run("""
            const focused = document.activeElement;
            const shows = (each) => each && getComputedStyle(each).outlineStyle !== "none";
            const seen = [focused, focused.nextElementSibling, focused.parentElement].some(shows);
            return [focused.id || focused.name || focused.tagName, seen || focused === document.body];
        """)
        assert found[1], f"the focus on {found[0]} is not seen"
        reached.add(found[0])
    assert {"theme", "view", "sigma", "sigma-number", "recipe", "metric", "BUTTON", "SUMMARY"} <= reached
