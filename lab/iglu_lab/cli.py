"""The commands that the lab adds to ``iglu`` through entry points.  Each is imported when it is called."""

from __future__ import annotations

import errno
import importlib
import sys
from dataclasses import dataclass

from iglu_lab.errors import UserError

# Exit statuses, the same for all commands; iglu.cli adds 130 after Ctrl-C and 141 for a closed pipe.
DONE, FAILED, USER_ERROR, INTERRUPTED = 0, 1, 2, 130

_PATH_ERRORS = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True)
class Command:
    """Runs ``main(argv: list[str]) -> int`` of iglu_lab.commands.NAME."""

    name: str
    help: str

    def __call__(self, argv: list[str]) -> int:
        try:
            extensions = importlib.import_module("iglu_lab.extensions")
            # The words after -- are the user's command.
            end = argv.index("--") if "--" in argv else len(argv)
            modules, rest = extensions.take_imports(f"iglu {self.name}", argv[:end])
            extensions.load(modules)
            # After the other arguments: the first one of iglu train is the recipe.
            rest += [word for name in modules for word in ("--import", name)] + argv[end:]
            status: int = importlib.import_module(f"iglu_lab.commands.{self.name}").main(rest)
        except BrokenPipeError:
            raise
        except (UserError, *_PATH_ERRORS) as error:
            print(f"iglu {self.name}: {error}", file=sys.stderr)
            return USER_ERROR
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = "; free some space, then resume with the same command" if is_full else ""
            print(f"iglu {self.name}: {error}{hint}", file=sys.stderr)
            return FAILED
        return status


demo = Command("demo", "show accuracy, speed, and small models trained over several seeds")
train = Command("train", "train or resume one run")
sweep = Command("sweep", "run a grid over seeds (a table of the paper), on this machine or on Ray")
runs = Command("runs", "list, filter and compare runs")
bench = Command("bench", "time activations and training steps (Table 1 of the paper)")
probe = Command("probe", "measure the tails of a model's pre-activations and suggest sigma")
convert = Command("convert", "replace the activations of a trained model and recalibrate it")
compare = Command("compare", "compare activations in your own model and training code, over seeds")
report = Command("report", "compare measurements with the paper: tables, claims, figures, HTML page")

COMMANDS = {each.name: each for each in (demo, compare, train, sweep, runs, bench, probe, convert, report)}
