"""``iglu compare``: the plan, the runs and how they resume, the output, and errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import iglu_lab
from iglu_lab import cli
from iglu_lab.comparing.api import Options, Pilot, run_comparison
from iglu_lab.comparing.output import write_result
from iglu_lab.comparing.plan import Log, Plan, make_plan
from iglu_lab.comparing.result import CompareResult, read_result
from iglu_lab.comparing.worker import InputError, Job, Outcome, RunTask, read_numbers
from iglu_lab.errors import UserError
from iglu_lab.sweep import local
from iglu_lab.sweep.pool import Progress, run_pool

pytestmark = pytest.mark.usefixtures("alone", "registries")

# Without torch, so that a process starts at once.  The numbers depend on activation and seed alone.
MODULE = '''
import json, os, pathlib, random, time

def value(activation, seed):
    return random.Random(f"{activation} {seed}").gauss(50.0, 1.0) + 5.0 * activation.startswith("gelu")

def run(activation, seed):
    print("a line of", activation)
    for epoch in range(3):
        yield {"acc": value(activation, seed) + epoch, "loss": 1.0 / (epoch + 1)}

def number(activation, seed):
    return value(activation, seed)

def diverges(activation, seed):
    return float("nan") if activation == "gelu" and seed == 1 else value(activation, seed)

def raises(activation, seed):
    if activation == "gelu" and not pathlib.Path("repaired").exists():
        raise ZeroDivisionError("in the user's code")
    return value(activation, seed)

def slow(activation, seed):
    """Long for one run, until it has been killed once."""
    flag = pathlib.Path("started")
    if activation == "gelu" and not flag.exists():
        flag.write_text(str(os.getpid()))
        time.sleep(120)
    return value(activation, seed)

def always_slow(activation, seed):
    time.sleep(120)

def act(act, s): return 1.0
def text(activation, seed): return "high"
def nothing(activation, seed): return None
def several(activation, seed): return {"acc": 1.0, "loss": 2.0}
def words(activation, seed): return {"value": "high"}
def empty(activation, seed): yield from ()
constant = 3
'''

SCRIPT = """
import json, os, random, sys
activation, seed = os.environ["IGLU_ACTIVATION"], os.environ["IGLU_SEED"]
value = random.Random(f"{activation} {seed}").gauss(50.0, 1.0)
print("starts")
way = sys.argv[1]
if way == "stdout":
    print(json.dumps({"acc": value, "loss": 1.0}))
    print("done")
elif way == "file":
    open(os.environ["IGLU_RESULT"], "w").write(json.dumps({"acc": value}))
elif way == "epochs":
    for epoch in range(3):
        print(json.dumps({"acc": value + epoch}))
elif way == "fails":
    print("a traceback", file=sys.stderr)
    sys.exit("no data")
"""

TWO = ["--activations", "relu", "gelu"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder has a module and a script of the user."""
    (tmp_path / "their_code.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("their_code", None)
    return tmp_path


def _compare(function: str, seeds: int = 3, **options: Any) -> CompareResult:
    given = {"activations": ["relu", "gelu"], "seeds": seeds, **options}
    work: Any = f"their_code:{function}"
    return run_comparison(work, given, Path("compare"), Options(allow_unchanged=True, jobs=2))


def _numbers(result: CompareResult) -> dict[tuple[str, int], Any]:
    return {key: (row.status, dict(row.metrics), row.history) for key, row in sorted(result.rows.items())}


def _expected(activation: str, seed: int) -> float:
    import random

    return random.Random(f"{activation} {seed}").gauss(50.0, 1.0) + 5.0 * (activation == "gelu")


# -- runs -------------------------------------------------------------------------------------------


def test_a_comparison_writes_its_plan_its_runs_and_the_result_in_every_format(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--seeds", "3", "--margin", "1", "--metric", "acc", "--jobs", "2", "--allow-unchanged"]
    assert cli.compare(["their_code:run", "--activations", "relu", "gelu", *flags]) == 0
    shown = capsys.readouterr().out
    assert "left" in shown
    assert "6/6" in shown
    out = Path("compare")
    result = read_result(out)
    assert {key: row.metrics["acc"] for key, row in result.rows.items()} == {
        (name, seed): pytest.approx(_expected(name, seed) + 2)
        for name in ("relu", "gelu")
        for seed in range(3)
    }
    assert [row["epoch"] for row in result.rows["relu", 0].history] == [1, 2, 3]
    assert all(row.seconds > 0 for row in result.rows.values())
    assert "a line of relu" in (out / "output/relu_seed=0.txt").read_text()
    written = {path.name for path in out.iterdir()}
    assert {"plan.toml", "runs.jsonl", "compare.json", "compare.csv", "runs.csv", "compare.md"} <= written
    assert {"compare.html", "forest.png", "forest.svg", "curves.png", "curves.svg"} <= written
    body = json.loads((out / "compare.json").read_text())
    verdict = result.verdicts["gelu"]
    assert body["activations"]["gelu"]["verdict"] == verdict
    for text in (shown, str(result), result._repr_html_(), *map(_read, ("compare.md", "compare.html"))):
        assert str(verdict) in text
    page = _read("compare.html")
    assert "<script" not in page
    assert page.count("<img") == 2  # forest plot and learning curves
    assert "ours" not in page.partition("</style>")[2]  # not the report's plot, which compares with the paper
    assert (out / "runs.csv").read_text().count("\n") == 7


def _read(name: str) -> str:
    return (Path("compare") / name).read_text(encoding="utf-8")


def test_seeds_are_the_outer_loop_and_the_plan_is_written_before_the_first_run() -> None:
    plan = make_plan({"task": "m:f", "activations": ["relu", "iglu:5.0"], "seeds": 2})
    assert [(job.seed, job.activation) for job in plan.jobs()] == [
        (0, "relu"), (0, "iglu:5"), (1, "relu"), (1, "iglu:5"),
    ]  # fmt: skip
    with pytest.raises(UserError):
        _compare("text")  # stops in its first run
    content = (Path("compare") / "plan.toml").read_text()
    assert 'reference = "relu"' in content
    assert (Path("compare") / "runs.jsonl").read_text().count("\n") == 1


def test_more_seeds_and_activations_extend_a_comparison_and_the_report_says_so() -> None:
    first = _compare("number", seeds=3)
    assert not first.changes
    before = Path("compare/runs.jsonl").read_text()
    second = _compare("number", seeds=4, activations=["relu", "gelu", "silu"])
    assert Path("compare/runs.jsonl").read_text().startswith(before)
    assert len(second.rows) == 12
    assert {(change.field, change.runs) for change in second.changes} == {("seeds", 6), ("activations", 6)}
    assert "changed after the first run" in str(second)
    third = run_comparison("their_code:number", {}, Path("compare"), Options(allow_unchanged=True))
    assert third.plan == second.plan  # what is not given is taken from the plan
    assert not third.missing


def test_a_changed_source_is_reported() -> None:
    _compare("number")
    Path("their_code.py").write_text(MODULE + "\n# other code\n")
    sys.modules.pop("their_code")
    result = _compare("number", seeds=4)
    assert "code" in {change.field for change in result.changes}


def test_a_run_that_raises_keeps_its_traceback_and_is_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["their_code:raises", *TWO, "--seeds", "3", "--allow-unchanged", "--jobs", "2"]
    assert cli.compare(command) == cli.FAILED
    shown = capsys.readouterr().out
    assert "ZeroDivisionError: in the user's code" in shown
    traceback = Path("compare/failures/gelu_seed=0.txt")
    assert "their_code.py" in traceback.read_text()
    result = read_result("compare")
    assert result.verdicts == {"gelu": None}
    assert result.compared[0].found is None  # an interval would say what a verdict does
    assert len(result.rows) == 3
    Path("repaired").touch()
    assert cli.compare(command) == cli.DONE
    assert not traceback.exists()
    assert read_result("compare").verdicts["gelu"] is not None


def test_nan_is_diverged_and_counts_against_its_activation() -> None:
    result = _compare("diverges", seeds=5, margin=1.0)
    assert result.rows["gelu", 1].status == "diverged"
    assert not result.missing
    (gelu,) = result.compared
    assert (gelu.finished, gelu.diverged, gelu.category) == (4, 1, "inconclusive")
    assert "better" in gelu.verdict.reason  # by its other runs
    assert "diverged" in str(result)


def test_a_run_that_exceeds_its_time_has_failed() -> None:
    options = Options(allow_unchanged=True, jobs=2, time_limit=1.0)
    given = {"activations": ["relu", "gelu"], "seeds": 3}
    started = time.monotonic()
    result = run_comparison("their_code:always_slow", given, Path("compare"), options)
    assert time.monotonic() - started < 100
    assert len(result.failures) == 2  # all of the first seed: the others are not begun
    assert all("time limit of 1 s" in each.failure for each in result.failures)


# -- killed -----------------------------------------------------------------------------------------


def _wait_for(path: Path) -> int:
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(path.read_text())


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def undisturbed(folder: Path) -> dict[tuple[str, int], Any]:
    (folder / "started").touch()
    given = {"activations": ["relu", "gelu"], "seeds": 3}
    result = run_comparison(
        "their_code:slow", given, folder / "undisturbed", Options(allow_unchanged=True, jobs=2)
    )
    (folder / "started").unlink()
    assert len(result.rows) == 6
    return _numbers(result)


def test_a_killed_run_fails_alone_and_resumes_to_the_same_numbers(
    undisturbed: dict[tuple[str, int], Any],
) -> None:
    killer = threading.Thread(target=lambda: os.kill(_wait_for(Path("started")), signal.SIGKILL))
    killer.start()
    result = _compare("slow")
    killer.join()
    (failure,) = result.failures
    assert "SIGKILL" in failure.failure
    assert len(result.rows) == 5
    assert _numbers(_compare("slow")) == undisturbed


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_or_stopped_comparison_leaves_no_process_and_resumes_to_the_same_numbers(
    sign: signal.Signals, undisturbed: dict[tuple[str, int], Any]
) -> None:
    flags = ["--seeds", "3", "--jobs", "2", "--allow-unchanged"]
    code = "import sys; from iglu_lab import cli; sys.exit(cli.compare(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "their_code:slow", "--activations", "relu", "gelu", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    worker = _wait_for(Path("started"))
    process.send_signal(sign)
    status = process.wait(timeout=120)
    assert status == (-sign if sign == signal.SIGKILL else cli.INTERRUPTED)
    deadline = time.monotonic() + 60
    while _is_alive(worker):
        assert time.monotonic() < deadline, "the run of a killed comparison still runs"
        time.sleep(0.1)
    assert len(Log(Path("compare/runs.jsonl")).rows) < 6
    assert _numbers(_compare("slow")) == undisturbed


@pytest.mark.slow
def test_a_comparison_killed_again_and_again_ends_with_the_same_numbers(tmp_path: Path) -> None:
    complete = _compare("number", seeds=6)
    Path("compare").rename("complete")
    flags = ["--seeds", "6", "--jobs", "2", "--allow-unchanged"]
    code = "import sys; from iglu_lab import cli; sys.exit(cli.compare(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "their_code:number", "--activations", "relu", "gelu", *flags]
    log, kills = Path("compare/runs.jsonl"), 0
    for lines in range(3, 12, 2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= lines):
            time.sleep(0.01)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 3
    assert _numbers(_compare("number", seeds=6)) == _numbers(complete)


def test_a_line_that_was_cut_off_is_dropped_and_its_run_repeated() -> None:
    complete = _numbers(_compare("number"))
    path = Path("compare/runs.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    assert len(Log(path).rows) == 5
    assert _numbers(_compare("number")) == complete
    assert all(json.loads(line) for line in path.read_text().splitlines())


# -- functions that cannot be imported, and scripts ----------------------------------------------------


def test_a_function_of_a_notebook_runs_in_forked_processes() -> None:
    scale = 3.0

    def train(activation: str, seed: int) -> float:
        return scale * seed + len(activation) * (seed + 1) ** 0.5

    result = iglu_lab.compare(
        train, ["relu", "leaky_relu"], seeds=3, out="mine", allow_unchanged=True, progress=False
    )
    assert result.rows["relu", 2].metrics["value"] == pytest.approx(6.0 + 4 * 3**0.5)
    assert result.verdicts["leaky_relu"] is not None


def test_a_program_without_a_main_guard_can_compare_a_function_of_its_own() -> None:
    Path("program.py").write_text(
        "from iglu_lab import compare\n"
        "import their_code\n\n"
        "def train(activation, seed):\n"
        "    return their_code.value(activation, seed)\n\n"
        "for work, out in ((train, 'own'), (their_code.number, 'imported')):\n"
        "    print(len(compare(work, ['relu', 'gelu'], seeds=2, out=out, allow_unchanged=True).rows))\n"
    )
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.isdigit()] == ["4", "4"]


@pytest.mark.parametrize("way", ["stdout", "file", "epochs"])
def test_a_script_is_compared_through_its_environment(way: str) -> None:
    flags = ["--metric", "acc", "--seeds", "3", "--jobs", "2", "--activations", "relu", "gelu"]
    assert cli.compare([*flags, "--", sys.executable, "script.py", way]) == 0
    result = read_result("compare")
    found = result.rows["relu", 1]
    assert found.metrics["acc"] == pytest.approx(_expected("relu", 1) + 2 * (way == "epochs"))
    assert len(found.history) == (3 if way == "epochs" else 0)
    assert "starts" in Path("compare/output/relu_seed=1.txt").read_text()


def test_a_script_that_fails_shows_the_last_line_of_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--metric", "acc", *TWO, "--", sys.executable, "script.py", "fails"]
    assert cli.compare(command) == cli.FAILED
    shown = capsys.readouterr().out
    assert "failed: relu_seed=0: its process ended with status 1: no data\n" in shown
    assert "a traceback" not in shown
    assert Path("compare/failures/relu_seed=0.txt").read_text() == "a traceback\nno data"


# -- the activation is used ---------------------------------------------------------------------------

USES = """
import iglu
from iglu import swap
from torch import nn

def replaced(activation, seed):
    iglu.swap(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.ReLU()), activation)
    return 1.0

def unreplaced(activation, seed):
    import warnings
    warnings.simplefilter("ignore")
    swap(nn.Sequential(nn.Linear(2, 2)), activation)
    return 1.0

def created(activation, seed):
    iglu.create(activation)
    return 1.0

def ignored(activation, seed):
    nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    return 1.0
"""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("replaced", ""),
        ("unreplaced", "swap replaced nothing"),
        ("created", ""),
        ("ignored", "neither called"),
    ],
)
def test_a_run_has_to_use_its_activation(
    function: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_models.py").write_text(USES)
    monkeypatch.setattr("iglu_lab.comparing.worker._redirect", lambda path: None)
    task = RunTask(f"their_models:{function}", "value", tmp_path, str(tmp_path), 1)
    outcome = task.run(Job("run", "iglu:5", 0), lambda progress: False)
    sys.modules.pop("their_models")
    assert outcome.is_input_error is bool(problem)
    assert problem in outcome.failure
    assert ("--allow-unchanged" in outcome.failure) is bool(problem)
    allowed = RunTask(task.work, "value", tmp_path, str(tmp_path), 1, allow_unchanged=True)
    assert allowed.run(Job("run", "iglu:5", 0), lambda progress: False).status == "finished"
    sys.modules.pop("their_models")


# -- invalid input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["their_code:act", *TWO], "must take the arguments activation and seed"),
        (["their_code:nowhere", *TWO], "'their_code' has no function 'nowhere'"),
        (["their_code:constant", *TWO], "is not a function"),
        (["their_codes:run", *TWO], "no module 'their_codes'"),
        (["their_code", *TWO], "module:name"),
        (["their_code:number", "--activations", "relu", "geluu"], "Did you mean 'gelu'?"),
        (["their_code:number", "--activations", "relu"], "at least two activations"),
        (["their_code:number", "--activations", "relu", "relu"], "once"),
        (["their_code:number"], "iglu:5, got none"),
        (["their_code:number", *TWO, "--seeds", "0"], "seeds must be"),
        (["their_code:number", *TWO, "--margin", "-1"], "margin must be"),
        (["their_code:number", *TWO, "--looks", "2", "5"], "looks must ascend"),
        (["their_code:number", *TWO, "--looks", "3", "5", "--spending", "0.04", "0.04"], "at most 0.05"),
        (["their_code:number", *TWO, "--jobs", "0"], "--jobs must be at least 1"),
        (["their_code:number", *TWO, "--run-time-limit", "soon"], "--run-time-limit must be"),
        (["their_code:number", *TWO, "--pilot", "1"], "--pilot must be at least 2"),
        (TWO, "either a function"),
        (["their_code:number", *TWO, "--", "python"], "either a function"),
        (["--show", "--out", "nowhere"], "no comparison"),
    ],
)
def test_invalid_flags_give_one_line_of_error(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.compare(flags) == cli.USER_ERROR
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("text", "a number or a dict"),
        ("several", "--metric"),
        ("words", "must be a number"),
        ("empty", "yielded"),
    ],
)
def test_a_run_without_a_metric_stops_the_comparison_with_one_line(
    function: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.compare([f"their_code:{function}", *TWO, "--allow-unchanged"]) == cli.USER_ERROR
    shown, said = capsys.readouterr()
    assert message in said
    assert said.count("\n") == 1
    assert message not in shown


def test_a_script_without_a_json_line_gives_one_line_of_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.compare([*TWO, "--", sys.executable, "script.py", "silent"]) == cli.USER_ERROR
    said = capsys.readouterr().err
    assert "no JSON line" in said
    assert "IGLU_RESULT" in said
    assert cli.compare([*TWO, "--out", "b", "--", "./nowhere"]) == cli.USER_ERROR
    assert "cannot be started" in capsys.readouterr().err


def test_a_folder_of_another_comparison_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(_folder("compare") / "runs.jsonl")
    log.begin(_plan(task="their_code:run"))
    log.add(Outcome(Job("run", "relu", 0), "finished", {"acc": 1.0}))
    before = Path("compare/runs.jsonl").read_bytes(), Path("compare/plan.toml").read_bytes()
    assert cli.compare(["their_code:number", *TWO]) == cli.USER_ERROR
    assert "another comparison, of their_code:run" in capsys.readouterr().err
    assert (Path("compare/runs.jsonl").read_bytes(), Path("compare/plan.toml").read_bytes()) == before
    (_folder("full") / "thesis.txt").touch()
    assert cli.compare(["their_code:number", *TWO, "--out", "full"]) == cli.USER_ERROR
    assert "thesis.txt" in capsys.readouterr().err


def test_a_plan_without_runs_is_replaced() -> None:
    """After a wrong command, the right one has the same folder."""
    flags = ["--metric", "acc", "--seeds", "1", *TWO]
    assert cli.compare([*flags, "--", "./nowhere"]) == cli.USER_ERROR
    assert cli.compare([*flags, "--", sys.executable, "script.py", "stdout"]) == 0
    result = read_result("compare")
    assert result.plan.name == "script.py"
    assert not result.changes


def test_a_metric_that_the_runs_do_not_have_leaves_the_plan_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["--", sys.executable, "script.py", "stdout"]
    assert cli.compare(["--metric", "acc", "--seeds", "1", *TWO, *command]) == 0
    before = Path("compare/runs.jsonl").read_bytes(), Path("compare/plan.toml").read_bytes()
    assert cli.compare(["--metric", "accuracy", *command]) == cli.USER_ERROR
    assert "no metric 'accuracy', only acc, loss" in capsys.readouterr().err
    assert (Path("compare/runs.jsonl").read_bytes(), Path("compare/plan.toml").read_bytes()) == before


@pytest.mark.parametrize("value", [None, 1e150])
def test_a_run_without_a_number_in_the_chosen_metric_has_diverged(value: float | None) -> None:
    """Also if it has finished by another metric, or its number has no finite square."""
    plan = _plan(metric="loss", seeds=3)
    rows = {
        (job.activation, job.seed): Outcome(
            job, "finished", {"acc": 1.0, "loss": _expected("relu", job.seed)}
        )
        for job in plan.jobs()
    }
    rows["gelu", 1] = Outcome(Job("f", "gelu", 1), "finished", {"acc": 1.0, "loss": value})
    (gelu,) = CompareResult(plan, rows).compared
    assert (gelu.finished, gelu.diverged) == (2, 1)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("package.train:run", "run"),
        ("python train.py --url http://127.0.0.1:80", "train.py"),
        ("torchrun --nproc-per-node 2 code/train.py", "train.py"),
        ("./train.sh", "train.sh"),
    ],
)
def test_a_comparison_has_the_name_of_its_function_or_script(task: str, name: str) -> None:
    assert _plan(task=task).name == name


def test_numbers_are_read_from_what_runs_return() -> None:
    import torch

    assert read_numbers(3, "value") == {"value": 3.0}
    assert read_numbers(torch.tensor(2.5), "value") == {"value": 2.5}
    assert read_numbers({"acc": torch.tensor([1.0]), "name": "x", "ok": True}, "acc") == {"acc": 1.0}
    for wrong in (True, None, torch.ones(2), [1.0]):
        with pytest.raises(InputError):
            read_numbers(wrong, "value")


# -- plan and looks ----------------------------------------------------------------------------------


def _folder(name: str) -> Path:
    Path(name).mkdir(exist_ok=True)
    return Path(name)


def _plan(**given: Any) -> Plan:
    return make_plan({"task": "m:f", "activations": ["relu", "gelu"], "metric": "acc", **given})


def _result(plan: Plan, done: Callable[[Job], bool]) -> CompareResult:
    rows = {
        (job.activation, job.seed): Outcome(job, "finished", {"acc": _expected(job.activation, job.seed)})
        for job in plan.jobs()
        if done(job)
    }
    return CompareResult(plan, rows)


def test_there_is_no_verdict_while_runs_are_missing_unless_a_look_is_due() -> None:
    def first_four(job: Job) -> bool:
        return job.seed < 4

    sealed = _result(_plan(seeds=6), first_four)
    assert sealed.look == 0
    assert sealed.verdicts == {"gelu": None}
    assert all(each.found is None and each.mean and not each.mean.has_interval for each in sealed.compared)
    (_folder("out") / "forest.svg").touch()  # of a comparison with fewer seeds
    write_result(sealed, Path("out"))
    assert not list(Path("out").glob("*.svg"))
    looked = _result(_plan(seeds=6, looks=[3]), first_four)
    assert looked.look == 3
    assert looked.plan.level(3) == looked.plan.level(6) == 0.025
    assert looked.compared[0].finished == 3  # the fourth seed waits for the next look
    assert looked.verdicts["gelu"] is not None
    assert _result(_plan(seeds=6, looks=[3]), lambda job: job.seed < 2).look == 0
    assert _result(_plan(seeds=2), lambda job: True).verdicts == {"gelu": None}
    assert _result(_plan(seeds=2), lambda job: True).compared[0].found is not None


@pytest.mark.parametrize(
    ("metric", "is_lower"), [("acc", False), ("val_loss", True), ("eval/perplexity", True), ("value", False)]
)
def test_the_direction_follows_from_the_metric_unless_it_is_given(metric: str, is_lower: bool) -> None:
    assert _plan(metric=metric).lower_is_better is is_lower
    assert _plan(metric=metric, lower_is_better=not is_lower).lower_is_better is not is_lower


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("lower_is_better", "false", "lower_is_better must be true or false, got 'false'"),
        ("correction", "none", "correction must be 'holm'"),
        ("looks", 3, "looks must be a list, got 3"),
        ("looks", ["3"], "looks must be a list of numbers"),
        ("activations", 5, "activations must be a list, got 5"),
    ],
)
def test_a_plan_edited_by_hand_is_checked(field: str, value: Any, message: str) -> None:
    fields = {"task": "train", "activations": ["relu", "gelu"], "seeds": 6} | {field: value}
    with pytest.raises(UserError, match=message):
        make_plan(fields)


def test_a_plan_is_read_back_as_it_was_written() -> None:
    plan = _plan(seeds=6, looks=[3, 6], spending=[0.01, 0.04], margin=0.5)
    Log(_folder("compare") / "runs.jsonl").begin(plan)
    assert read_result("compare").plan == plan


def test_a_pilot_prints_the_seeds_needed_and_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*TWO, "--allow-unchanged", "--margin", "1", "--seeds", "3"]
    assert cli.compare(["their_code:number", *flags, "--pilot", "3", "--jobs", "2"]) == 0
    shown = capsys.readouterr().out
    assert "standard deviation" in shown
    assert "n = " in shown
    assert not Path("compare/plan.toml").exists()
    assert cli.compare(["their_code:run", *flags, "--pilot", "3", "--metric", "acc"]) == cli.USER_ERROR
    assert "another comparison" in capsys.readouterr().err
    assert cli.compare(["their_code:number", *flags]) == 0
    assert {seed for _, seed in read_result("compare").rows} == {0, 1, 2}
    # What is not given is taken from the plan.
    assert cli.compare(["their_code:number", "--pilot", "3", "--allow-unchanged"]) == 0
    assert "A difference of the margin, 1," in capsys.readouterr().out


def test_the_seeds_that_a_pilot_recommends_are_those_of_uncorrelated_pairs() -> None:
    """Values with SD 0.7: the doctest of seeds_needed says 10 seeds for a difference of 1."""
    assert "n = 10 seeds" in str(Pilot((0.0, 0.7, 1.4), 1.0, 5))


# -- devices -----------------------------------------------------------------------------------------


def test_gpus_are_assigned_per_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [local.visible_devices(number) for number in range(5)] == ["0", "1", "2", "3", "0"]
    assert [local.visible_devices(number, 2) for number in range(3)] == ["0,1", "2,3", "0,1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7,4,5")
    assert local.visible_devices(1, 2) == "4,5"


def test_progress_of_a_run_arrives_while_it_runs(tmp_path: Path) -> None:
    seen: list[Progress | None] = []
    task = RunTask("their_code:run", "acc", tmp_path, os.getcwd(), 1, allow_unchanged=True)

    class Sees(local.SweepObserver):  # type: ignore[misc]
        def progressed(self, item: Any, progress: Progress | None) -> None:
            seen.append(progress)

    (outcome,) = run_pool([Job("run", "relu", 0)], task, observer=Sees())  # type: ignore[arg-type]
    assert outcome.status == "finished"
    assert [each.epoch for each in seen if each is not None] == [1, 2, 3]


def test_importing_the_lab_imports_neither_torch_nor_the_comparison() -> None:
    code = (
        "import sys, iglu_lab; assert 'torch' not in sys.modules and 'iglu_lab.comparing' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(AttributeError):
        iglu_lab.comparison  # noqa: B018
