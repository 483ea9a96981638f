"""Shared by the tests of the lab; runs before any of them is imported."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from iglu import zoo
from iglu_lab import extensions
from iglu_lab.recipes import RECIPES
from iglu_lab.training.workloads import IMAGE_SETS, MODELS

# pytest-xdist sets it for its workers; the output of commands must not depend on it.
os.environ.pop("COLUMNS", None)

with contextlib.suppress(ImportError):  # it is in the tests of the library, which the lab's archive lacks
    import torchvision_operators  # noqa: F401


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, and one thread: tests run in parallel."""
    monkeypatch.setenv("IGLU_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def registries() -> Iterator[None]:
    """Restore the tables to which extensions add rows, and the modules that were imported to do so."""
    tables: list[dict[str, Any]] = [zoo.ZOO, RECIPES, IMAGE_SETS, MODELS]
    before, path = [dict(table) for table in tables], list(sys.path)
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)
    sys.path[:] = path
    while extensions.imported:
        sys.modules.pop(extensions.imported.pop(), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window and without a network."""
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
    # Offline: any request of the page fails and is in the log.
    started.execute_cdp_cmd("Network.enable", {})
    conditions = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    started.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)
    yield started
    started.quit()


# Two files of this name: pytest would collect them as modules of doctests.
collect_ignore = ["conftest.py"]
