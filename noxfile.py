"""Tasks that need several interpreters; all others are targets of make.  ``nox --list`` lists them."""

from __future__ import annotations

from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests-3.12(pinned)"]
nox.options.error_on_missing_interpreters = False

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)  # from the classifiers, the only list of supported versions
CONSTRAINTS = Path("constraints.txt")
# Each of these works with one version of torch only.
_WITH_TORCH = ("torch==", "torchvision==", "triton==")


@nox.session(python=PYTHONS)
@nox.parametrize("torch", ["oldest", "pinned", "newest"], ids=["oldest", "pinned", "newest"])
def tests(session: nox.Session, torch: str) -> None:
    """the tests with the oldest supported, the pinned or the newest torch"""
    session.env["IGLU_REQUIRE_LOOPS"] = "1"  # a failing compiler is an error here
    constraints, wanted = CONSTRAINTS, "torch"
    if torch != "pinned":
        lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines(keepends=True)
        constraints = Path(session.create_tmp()) / "constraints.txt"
        constraints.write_text("".join(line for line in lines if not line.startswith(_WITH_TORCH)), "utf-8")
        if torch == "oldest":
            (oldest,) = (each for each in PROJECT["project"]["dependencies"] if each.startswith("torch>="))
            wanted = oldest.replace(">=", "==") + ".*"
    # torch first and alone: another package might require a larger build of it.
    session.install("--constraint", str(constraints), wanted)
    session.install(
        "--constraint", str(constraints), "--editable", ".[hf,timm,onnx,dev]", "--editable", "./lab"
    )
    session.run("iglu", "doctor")
    session.run("pytest", "--numprocesses", "auto", "-m", "not slow", *session.posargs)


@nox.session(python="3.12")
def wheels(session: nox.Session) -> None:
    """wheels of the library for this system and every Python, into dist; on Linux in a container"""
    session.install("--constraint", str(CONSTRAINTS), "cibuildwheel", "twine")
    session.run("cibuildwheel", "--output-dir", "dist", *session.posargs)
    session.run("twine", "check", "--strict", *map(str, Path("dist").glob("*.whl")))
