"""How a command ends: an exit code, and words instead of a traceback.

0 done, 1 our bug, 2 bad usage, 3 bad data, 4 a damaged or incompatible file, 5 the environment, 130 interrupted.
"""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TextIO

import typer

from task2vec.cli.speech import named_library, say
from task2vec.errors import Task2VecError
from task2vec.text import printable

OUR_BUG, ENVIRONMENT, INTERRUPTED = 1, 5, 130

is_debugging: ContextVar[bool] = ContextVar("is_debugging", default=False)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command, ending in one of our exit codes whatever happens in it."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        before = named_library.set(kwargs.get("library"))
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except Task2VecError as error:
            _end(error.exit_code, f"error: {error}")
        except KeyboardInterrupt:
            _end(INTERRUPTED, "interrupted; nothing half-made was left behind")
        except BrokenPipeError:  # results are printed last, so nothing is lost
            let_go(sys.stdout)
            sys.exit(0)
        except MemoryError:
            _end(ENVIRONMENT, "error: out of memory. Try a smaller --batch-size or --size.")
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):  # torch's own
                _end(ENVIRONMENT, "error: out of memory. Try a smaller --batch-size or --size.")
            _end(
                OUR_BUG,
                f"error: {type(error).__name__}: {error}\n"
                "This is a bug of task2vec. `task2vec --debug ...` shows where it happened; please report it.",
            )
        finally:
            named_library.reset(before)

    return run


def _end(code: int, message: str) -> None:
    if is_debugging.get() and code != INTERRUPTED:
        traceback.print_exc()
    say(printable(message, keep_lines=True))
    sys.exit(code)


def let_go(stream: TextIO) -> None:
    """Let go of a reader that has gone, as `head` does: what is printed from now on goes nowhere."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
