"""What the files around the package promise: versions, addresses, workflows and what the archive holds."""

from __future__ import annotations

import ast
import graphlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import iglu

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = dict(
    re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
)


def tool(name: str) -> ModuleType:
    """A program of tools/, imported."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


address = tool("address")
SOMEWHERE = "https://example.org/owner/name"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# -- versions --------------------------------------------------------------------------------------


def imports_of(path: Path) -> set[str]:
    """Every module of ours that a file names in an import, wherever in the file it does so."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("iglu.")}


def test_the_rooms_of_the_lab_point_one_way_and_the_library_never_at_the_lab() -> None:
    rooms: dict[str, set[str]] = {}
    for path in (ROOT / "iglu").rglob("*.py"):
        of_the_lab = {name.split(".")[2] for name in imports_of(path) if name.startswith("iglu.lab.")}
        place = path.relative_to(ROOT / "iglu").with_suffix("").parts
        if place[0] == "lab":
            rooms.setdefault(place[1], set()).update(of_the_lab - {place[1]})
        elif place != ("__main__",):  # the command, which is the lab's
            assert not of_the_lab, path
    assert rooms["training"] >= {"data", "models", "runs"}
    graphlib.TopologicalSorter(rooms).prepare()  # raises where they go round


def test_the_version_stands_in_one_place_and_the_citation_agrees() -> None:
    assert PROJECT["dynamic"].count("version") == 1
    assert re.findall(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE) == [iglu.__version__]


def test_every_supported_python_has_its_classifier_from_the_oldest_on() -> None:
    named = re.findall(r"Python :: 3\.(\d+)'", str(PROJECT["classifiers"]))
    minors = [int(minor) for minor in named]
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_the_changelog_begins_with_what_is_not_released_or_with_this_version() -> None:
    headings = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    version = rf"{re.escape(iglu.__version__)} \(\d{{4}}-\d\d-\d\d\)"
    assert re.fullmatch(rf"Unreleased|{version}", headings[0])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading) for heading in headings[1:])


def test_pre_commit_formats_as_lint_does() -> None:
    assert set(re.findall(r"ruff==([\w.]+)", read(".pre-commit-config.yaml"))) == {CONSTRAINTS["ruff"]}


def test_a_release_that_is_not_ready_says_everything_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    release = tool("release")
    monkeypatch.setattr(address, "REPOSITORY", "")
    said = " ".join(release.disagreements("v0.0.0"))
    for part in (f"v{iglu.__version__}, as in iglu/__init__.py, got 'v0.0.0'", "REPOSITORY"):
        assert part in said
    assert ("CHANGELOG" in said) == read("CHANGELOG.md").startswith("# Changelog\n\n## Unreleased")


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL")
def test_a_python_without_a_gil_stays_without() -> None:
    assert not sys._is_gil_enabled()


def test_a_release_is_ready_once_tag_citation_changelog_and_address_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tool("release")
    monkeypatch.setattr(address, "ROOT", tmp_path)
    monkeypatch.setattr(address, "REPOSITORY", SOMEWHERE)
    good = {
        "iglu/__init__.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.3 (2030-01-31)\n",
        "CITATION.cff": f"repository-code: {SOMEWHERE}\nlicense: MIT\nversion: 1.2.3\n",
        "README.md": f"<!-- badges -->\n{address.badges(SOMEWHERE)}<!-- /badges -->\n",
    }
    bad = {
        "iglu/__init__.py": '__version__ = "1.2.4"\n',
        "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n## 1.2.3 (2030-01-31)\n",
        "CITATION.cff": f"repository-code: {SOMEWHERE}\nlicense: MIT\nversion: 1.2.2\n",
        "README.md": "<!-- badges -->\n<!-- /badges -->\n",
    }
    (tmp_path / "iglu").mkdir()
    for name, text in good.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert list(release.disagreements("v1.2.3")) == []
    for name, text in bad.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert any(name in line for line in release.disagreements("v1.2.3")), name
        (tmp_path / name).write_text(good[name], encoding="utf-8")


# -- the build -------------------------------------------------------------------------------------


def run_in(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "IGLU_REQUIRE_LOOPS"}
    environment |= {"PYTHONPATH": str(folder), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def without_loops(tmp_path: Path) -> Path:
    """The tree as it is before anything is built."""
    for name in ("iglu", "tools"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "lab", "__pycache__")
        )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="there CC is not asked")
@pytest.mark.parametrize("compiler", ["/bin/false", "/nowhere/cc"])
def test_a_compiler_that_fails_is_an_error_only_where_the_loops_are_required(
    without_loops: Path, compiler: str
) -> None:
    pytest.importorskip("setuptools")
    build = ("setup.py", "-q", "build_ext", "--inplace")
    optional = run_in(without_loops, *build, CC=compiler)
    assert optional.returncode == 0, optional.stderr
    assert "iglu._kernels was not built" in optional.stdout
    assert run_in(without_loops, *build, CC=compiler, IGLU_REQUIRE_LOOPS="1").returncode != 0
    assert not [*without_loops.rglob("_kernels*.so")]


def test_without_the_loops_their_tests_are_skipped_but_fail_where_they_are_required() -> None:
    program = (
        "import sys; sys.modules['iglu._kernels'] = None; import truth; print(truth.needs_loops.args[0])"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    assert run_in(ROOT, "-c", program, PYTHONPATH=path).stdout == "True\n"
    required = run_in(ROOT, "-c", program, PYTHONPATH=path, IGLU_REQUIRE_LOOPS="1")
    assert required.returncode != 0
    assert "IGLU_REQUIRE_LOOPS is set, but the loops (iglu._kernels) were not built" in required.stderr


def test_the_workflows_require_the_loops() -> None:
    """Else a build that fails would be green: the formulas would serve."""
    assert 'session.env["IGLU_REQUIRE_LOOPS"] = "1"' in read("noxfile.py")


# -- addresses -------------------------------------------------------------------------------------

# Hosts that exist and are meant: where data, torch and standards come from, and this machine in tests.
_HOSTS = {
    "127.0.0.1",
    "colab.research.google.com",
    "download.pytorch.org",
    "www.cs.toronto.edu",
    "www.w3.org",
}
_TEXTS = {".cff", ".cfg", ".css", ".html", ".in", ".js", ".json", ".md", ".py", ".toml", ".txt", ".yml", ""}
_NOT_OURS = {"build", "dist", "runs", "measured", "__pycache__"}


def our_texts() -> list[Path]:
    found = []
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part not in (".github", ".ci") for part in parts[:-1])
        if path.is_file() and path.suffix in _TEXTS and not hidden and not _NOT_OURS & {*parts}:
            found.append(path)
    return found


def test_no_address_is_invented() -> None:
    allowed = _HOSTS | {"github.com/OWNER/NAME", address.REPOSITORY.removeprefix("https://")}
    for path in our_texts():
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        for url in re.findall(r"https?://([\w.-]+(?:/[\w.-]+)*)", text):
            host = url.partition("/")[0]
            assert host in allowed or any(url.startswith(each) for each in allowed if "/" in each), (
                path,
                url,
            )
        assert not re.search(r"[\w.+-]+@(?!v\d|users)[\w-]+\.(com|org|net|edu|io)\b", text), (
            f"a mail address in {path}"
        )


def test_readme_and_citation_are_as_the_one_setting_makes_them() -> None:
    for name in ("README.md", "CITATION.cff"):
        assert read(name) == address.filled(name, read(name), address.REPOSITORY), "run tools/address.py"


def test_filling_in_the_address_can_be_undone_and_done_again() -> None:
    for name, shown in (("README.md", "tests.yml/badge.svg"), ("CITATION.cff", "repository-code: ")):
        empty = address.filled(name, read(name), "")
        there = address.filled(name, empty, SOMEWHERE)
        assert shown in there
        assert SOMEWHERE in there
        assert address.filled(name, there, SOMEWHERE) == there
        assert address.filled(name, there, "") == empty


def test_the_package_links_out_only_once_there_is_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "REPOSITORY", "")
    assert address.described()["project_urls"] == {}
    monkeypatch.setattr(address, "REPOSITORY", SOMEWHERE)
    links = address.described()["project_urls"]
    assert {"Homepage", "Source", "Issues", "Changelog"} <= links.keys()
    assert all(link.startswith(SOMEWHERE) for link in links.values())
    assert f"{SOMEWHERE}/raw/v{iglu.__version__}/docs/images/" in address.described()["long_description"]


def test_every_badge_is_of_a_workflow_that_exists() -> None:
    named = re.findall(r"workflows/([\w.]+)/badge", address.badges(SOMEWHERE))
    assert named
    assert {*named} <= {path.name for path in WORKFLOWS}


def test_the_description_for_an_index_has_no_relative_path_left() -> None:
    for repository in ("", SOMEWHERE):
        text = address.description(
            address.filled("README.md", read("README.md"), repository), repository, "1.0"
        )
        assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []
        assert "<!--" not in text
        assert ("*(picture: IGLU for four" in text) == (not repository)
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*\.png)\)", text)
    assert pictures
    for picture in pictures:
        path = picture.removeprefix(f"{SOMEWHERE}/raw/v1.0/")
        assert (ROOT / path).is_file()


def test_links_of_the_readme_lead_to_files() -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", read("README.md"))
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


# -- workflows -------------------------------------------------------------------------------------


def parsed(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def sessions() -> set[str]:
    """The functions of noxfile.py that nox would run."""
    tree = ast.parse(read("noxfile.py"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_only_calls_sessions_that_anybody_can_run(path: Path) -> None:
    steps = [step for job in parsed(path)["jobs"].values() for step in job["steps"]]
    commands = [step["run"].strip() for step in steps if "run" in step]
    for command in commands:
        if not command.startswith(("pip install --constraint constraints.txt nox", "sudo apt-get install ")):
            called = re.fullmatch(r'nox -s "?([\w ]+)(-\$\{\{.*\}\}\)")?( -- \S+)?', command)
            assert called, command
            assert {*called[1].split()} <= sessions()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_says_otherwise(path: Path) -> None:
    content = parsed(path)
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["timeout-minutes"] <= 120
        if job.get("permissions", {}).get("id-token") == "write":
            assert job["environment"] in ("pypi", "github-pages")
            assert "github.event_name == 'push'" in job["if"]


def test_the_tests_run_on_every_system_every_python_and_three_versions_of_torch() -> None:
    rows = parsed(ROOT / ".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]["include"]
    systems = {re.sub(r"-[\d.]+", "", row["system"]) for row in rows}
    assert systems == {"ubuntu", "ubuntu-arm", "macos", "windows"}
    assert {f"Python :: {row['python']}" for row in rows} == {
        each.removeprefix("Programming Language :: ")
        for each in PROJECT["classifiers"]
        if re.search(r"3\.\d", each)
    }
    torches = [row["torch"] for row in rows]
    assert [torches.count(each) for each in ("oldest", "newest")] == [1, 1]
    assert set(torches) == {"oldest", "pinned", "newest"}


def test_only_a_tag_is_published_and_only_after_every_archive_was_built() -> None:
    jobs = parsed(ROOT / ".github/workflows/wheels.yml")["jobs"]
    assert "startsWith(github.ref, 'refs/tags/v')" in jobs["publish"]["if"]
    assert {*jobs["publish"]["needs"]} == jobs.keys() - {"publish"}
    assert any(step.get("run") == "nox -s release" for step in jobs["publish"]["steps"])


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem
)
def test_a_form_has_what_github_asks_of_it(path: Path) -> None:
    content = parsed(path)
    if path.stem == "config":
        return
    assert content.keys() >= {"name", "description", "body"}
    names = [part["id"] for part in content["body"]]
    assert len(names) == len({*names})
    assert any(part.get("validations", {}).get("required") for part in content["body"])
