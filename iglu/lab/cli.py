"""The commands of the lab, each loaded only when it is called."""

from __future__ import annotations

import errno
import importlib
import os
import sys

from iglu.lab.mistakes import MistakeError

# name -> what it does; iglu.lab.commands.NAME has main(argv: list[str]) -> int
COMMANDS: dict[str, str] = {
    "demo": "the tour: how right, how fast, and small networks trained over seeds",
    "train": "train a network by a recipe of the paper, or go on with it",
    "sweep": "a whole table of the paper over seeds, here or on a Ray cluster",
    "runs": "list, filter and compare the runs of a folder",
    "bench": "time every activation: Table 1 of the paper, and beyond",
    "probe": "the tails of a model's pre-activations, and which sigma they suggest",
    "convert": "put other activations into a trained model, and recalibrate it without training",
    "report": "what was measured beside the paper: tables, claims, figures, a page",
}

# What a script may tell apart, whatever the command.
DONE, FAILED, MISTAKE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141


def run(name: str, argv: list[str]) -> int:
    """Run one command; its exit status."""
    try:
        status: int = importlib.import_module(f"iglu.lab.commands.{name}").main(argv)
        sys.stdout.flush()
    except MistakeError as error:
        print(f"iglu {name}: {error}", file=sys.stderr)
        return MISTAKE
    except BrokenPipeError:
        # As of a reader like head, which has seen enough; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        print(f"iglu {name}: {error}", file=sys.stderr)
        return MISTAKE
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "; the same command goes on when there is room" if full else ""
        print(f"iglu {name}: {error}{hint}", file=sys.stderr)
        return FAILED
    return status
