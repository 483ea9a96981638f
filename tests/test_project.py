"""The files around the package agree: versions, addresses, workflows and the contents of the archive."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import iglu

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parent.parent
LAB = ROOT / "lab"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = dict(
    re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_file_with_the_equations_is_listed_for_a_change_of_formula() -> None:
    section = read("CONTRIBUTING.md").partition("## Change a formula")[2].partition("\n## ")[0]
    equation = re.compile(r"\batan[2f]?\b|INVERSE_PI|1 / (math|torch)\.pi")
    sources = [*(ROOT / "iglu").rglob("*.*"), *(ROOT / "tools").glob("*.c"), *LAB.rglob("assets/*.js")]
    texts = {
        path.name: path.read_text("utf-8") for path in sources if path.suffix in (".py", ".c", ".h", ".js")
    }
    found = {name for name, text in texts.items() if equation.search(text)}
    assert {"formulas.py", "formulas.h", "triton_kernels.py", "formulas.js"} <= found
    assert not {name for name in found if f"{name}`" not in section}


# -- versions --------------------------------------------------------------------------------------


def test_the_library_never_imports_the_lab() -> None:
    for path in (ROOT / "iglu").rglob("*.py"):
        assert not re.search(r"\biglu_lab\b", path.read_text("utf-8")), path


def test_importing_the_library_and_its_command_imports_neither_the_lab_nor_what_only_the_lab_needs() -> None:
    program = "import sys, iglu, iglu.cli; print({*sys.modules} & {'iglu_lab', 'rich', 'tyro', 'matplotlib'})"
    assert run_in(ROOT, "-c", program).stdout == "set()\n"


def test_everything_that_names_the_version_agrees() -> None:
    """A condition of an upload; the workflow compares the tag with the version."""
    assert PROJECT["dynamic"] == ["version"]
    assert re.findall(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE) == [iglu.__version__]
    if LAB.is_dir():
        assert f'__version__ = "{iglu.__version__}"\n' in (LAB / "iglu_lab/__init__.py").read_text("utf-8")
        project = tomllib.loads((LAB / "pyproject.toml").read_text("utf-8"))["project"]
        assert f"iglu-torch=={iglu.__version__}" in project["dependencies"]


@pytest.mark.skipif(not LAB.is_dir(), reason="needs a clone, which has the lab")
def test_the_lab_supports_what_the_library_does() -> None:
    project = tomllib.loads((LAB / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == PROJECT["requires-python"]
    for classifier in PROJECT["classifiers"]:
        assert "Python ::" not in classifier or classifier in project["classifiers"]
    assert (LAB / "LICENSE").read_text("utf-8") == read("LICENSE")


@pytest.mark.skipif(not LAB.is_dir(), reason="needs a clone, which has the lab")
def test_no_two_test_files_have_the_same_name() -> None:
    names = [path.name for folder in (ROOT, LAB) for path in (folder / "tests").glob("test_*.py")]
    assert len(names) == len({*names})


def test_every_supported_python_has_its_classifier_from_the_oldest_on() -> None:
    named = re.findall(r"Python :: 3\.(\d+)'", str(PROJECT["classifiers"]))
    minors = [int(minor) for minor in named]
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_the_changelog_begins_with_unreleased_changes_or_with_this_version() -> None:
    headings = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    version = rf"{re.escape(iglu.__version__)} \(\d{{4}}-\d\d-\d\d\)"
    assert re.fullmatch(rf"Unreleased|{version}", headings[0])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading) for heading in headings[1:])


def test_pre_commit_formats_as_lint_does() -> None:
    assert set(re.findall(r"ruff==([\w.]+)", read(".pre-commit-config.yaml"))) == {CONSTRAINTS["ruff"]}


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL")
def test_the_package_does_not_enable_the_gil() -> None:
    assert not sys._is_gil_enabled()


# -- the build -------------------------------------------------------------------------------------


def run_in(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "IGLU_REQUIRE_LOOPS"}
    environment |= {"PYTHONPATH": str(folder), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def without_loops(tmp_path: Path) -> Path:
    """The tree as it is before anything is built."""
    shutil.copytree(ROOT / "iglu", tmp_path / "iglu", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
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
    assert (
        "IGLU_REQUIRE_LOOPS is set, but the native kernels (iglu._kernels) were not built" in required.stderr
    )


def test_the_workflows_require_the_native_kernels() -> None:
    """Otherwise a failed build would pass the tests: the formulas would be used instead."""
    assert 'session.env["IGLU_REQUIRE_LOOPS"] = "1"' in read("noxfile.py")
    for name in ("nightly", "wheels"):
        assert parsed(ROOT / f".github/workflows/{name}.yml")["env"]["IGLU_REQUIRE_LOOPS"] == "1"


# -- addresses -------------------------------------------------------------------------------------

# Known hosts of data, torch and standards, and this machine in tests; and the authors' own code.
_LINKS = {"github.com/mingikang31/IGLU-Activation"}
_HOSTS = {
    "127.0.0.1",
    "download.pytorch.org",
    "www.cs.toronto.edu",
    "www.w3.org",
}
_TEXTS = {".cff", ".cfg", ".css", ".html", ".in", ".js", ".json", ".md", ".py", ".toml", ".txt", ".yml", ""}
_NOT_OURS = {"build", "dist", "runs", "results", "__pycache__"}


def our_texts() -> list[Path]:
    found = []
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part not in (".github", ".ci") for part in parts[:-1])
        if path.is_file() and path.suffix in _TEXTS and not hidden and not _NOT_OURS & {*parts}:
            found.append(path)
    return found


def test_every_address_is_a_known_one() -> None:
    for path in our_texts():
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        for url in re.findall(r"https?://([\w.-]+(?:/[\w.-]+)*)", text):
            assert url in _LINKS or url.partition("/")[0] in _HOSTS, (path, url)
        assert not re.search(r"[\w.+-]+@(?!v\d|users)[\w-]+\.(com|org|net|edu|io)\b", text), (
            f"a mail address in {path}"
        )


def test_links_of_the_readme_point_to_files_that_exist() -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", read("README.md"))
    assert targets
    if not LAB.is_dir():  # in the archive of the library
        targets = [target for target in targets if not target.startswith("lab/")]
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_picture_is_drawn_by_the_tool_and_shown_on_a_page() -> None:
    docs = ROOT / "docs"
    if not docs.is_dir():
        pytest.skip("needs a clone, which has the docs")
    keys = re.search(r"^DRAWN = {\n(.*?)^}", read("tools/pictures.py"), re.DOTALL | re.MULTILINE)
    assert keys is not None
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *docs.glob("*.md")))
    stored = {path.stem for path in (docs / "images").glob("*.png")}
    assert set(re.findall(r'"(\w+)":', keys[1])) == stored == set(re.findall(r"images/(\w+)\.png", pages))


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
def test_a_workflow_only_runs_make_targets_and_nox_sessions(path: Path) -> None:
    targets = {*re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE)}
    steps = [step for job in parsed(path)["jobs"].values() for step in job["steps"]]
    for command in [step["run"].strip() for step in steps if "run" in step]:
        program, *words = command.split()
        if program == "make":
            assert {*words} <= targets
        elif program == "nox":
            called = re.fullmatch(r'nox -s "?(\w+)(-\$\{\{.*\}\}\)")?', command)
            assert called, command
            assert called[1] in sessions()
        else:
            assert program in ("pip", "sudo", "ls"), command


def test_nox_has_only_the_sessions_that_need_several_interpreters() -> None:
    assert sessions() == {"tests", "wheels"}  # these need several interpreters


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_read_permission_only_unless_a_job_states_otherwise(path: Path) -> None:
    content = parsed(path)
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["timeout-minutes"] <= 120
        if job.get("permissions", {}).get("id-token") == "write":
            assert job["environment"] in ("pypi", "pypi-lab", "github-pages")
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


def test_only_a_tag_is_published_and_only_after_every_archive_was_built_and_compared_with_it() -> None:
    jobs = parsed(ROOT / ".github/workflows/wheels.yml")["jobs"]
    library, lab = jobs["publish-library"], jobs["publish-lab"]
    assert {*library["needs"]} == jobs.keys() - {"publish-library", "publish-lab"}
    assert lab["needs"] == "publish-library"
    assert library["environment"] != lab["environment"]
    for job, archive in ((library, "iglu_torch"), (lab, "iglu_lab")):
        assert "startsWith(github.ref, 'refs/tags/v')" in job["if"]
        compared = f'ls "dist/{archive}-${{GITHUB_REF_NAME#v}}.tar.gz"'
        places = [index for index, step in enumerate(job["steps"]) if compared in step.get("run", "")]
        assert len(places) == 1
        assert "gh-action-pypi-publish" in job["steps"][places[0] + 1]["uses"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem
)
def test_an_issue_form_has_the_fields_that_github_requires(path: Path) -> None:
    content = parsed(path)
    if path.stem == "config":
        return
    assert content.keys() >= {"name", "description", "body"}
    names = [part["id"] for part in content["body"]]
    assert len(names) == len({*names})
    assert any(part.get("validations", {}).get("required") for part in content["body"])
