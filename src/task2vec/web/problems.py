"""Errors become answers: a status, and the three parts of the text; paths of this machine are not told."""

import re
from collections.abc import Mapping
from pathlib import PurePath

from starlette.responses import JSONResponse, Response

from task2vec.errors import DataError, LibraryError, ResourceError, Task2VecError, UsageError
from task2vec.web.answers import ErrorAnswer, Problem

# A sentence ends where the next one begins; "e.g. x" and "1.5" do not.
_SENTENCE = re.compile(r"(?<=[^A-Z.][.!?])\s+(?=[A-Z'`(])")
# A path from the top, in quotes or up to the next blank: its last part is the group "last".
_QUOTED = re.compile(r"""(?P<mark>['"])(?:/|[A-Za-z]:[/\\])[^'"\n]*?(?P<last>[^'"/\\\n]+)[/\\]?(?P=mark)""")
_BARE = re.compile(r"""(?<![\w.:/\\-])(?:/|[A-Za-z]:[/\\])(?:[^\s'"/\\]+[/\\])*(?P<last>[^\s'"/\\]+)[/\\]?""")
_STATUS = ((UsageError, 422), (DataError, 422), (LibraryError, 500), (ResourceError, 503))


class NotServedError(Task2VecError, KeyError):
    """A request for something that is not there, or that cannot be granted now; it knows its status."""

    def __init__(self, problem: Problem, *, status: int = 404):
        super().__init__(problem.what)
        self.problem, self.status = problem, status


def split_text(text: str) -> Problem:
    """The three parts of an error's text: what is wrong, why it matters, what mends it.

    Example:
        >>> split_text("'x' is no folder, so nothing is in it. It was asked for by name. Make one: mkdir x").mend
        'Make one: mkdir x'
        >>> split_text("nothing is known").what
        'nothing is known'
    """
    first, *rest = _SENTENCE.split(text.strip())
    return Problem(what=first, why=" ".join(rest[:-1]), mend=rest[-1] if rest else "")


def hide_places(text: str, names: Mapping[str, str]) -> str:
    """The text with folders of this machine under the names that visitors know them by, the longest first.

    Of any other path from the top its last part is left.

    Example:
        >>> hide_places("'/home/ada/photos/cats' is empty", {"/home/ada/photos": "photos"})
        "'photos/cats' is empty"
        >>> hide_places("cannot read /usr/lib/x.so: see '/etc/my hosts'", {"/": "root"})
        "cannot read x.so: see 'my hosts'"
    """
    for place in sorted(names, key=len, reverse=True):
        if len(PurePath(place).parts) > 1:  # the top itself is in every path
            text = re.sub(rf"{re.escape(place)}(?![\w-])", lambda _, name=names[place]: name, text)
    text = _QUOTED.sub(lambda found: found["mark"] + found["last"] + found["mark"], text)
    return _BARE.sub(lambda found: found["last"], text)


def tell_problem(problem: Problem, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that says what is wrong."""
    return JSONResponse(ErrorAnswer(error=problem).model_dump(), status, dict(headers or {}))


def tell_error(error: Task2VecError, names: Mapping[str, str]) -> Response:
    """The answer to a request that ended in one of our errors."""
    if isinstance(error, NotServedError):
        return tell_problem(error.problem, error.status)
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), 500)
    return tell_problem(split_text(hide_places(str(error), names)), status)


def find_none(kind: str, text: str) -> NotServedError:
    """The error of an id that was never issued, or is no longer."""
    return NotServedError(
        Problem(
            what=f"there is no {kind} {text[:64]!r}.",
            why="Only ids that this server has issued mean anything to it.",
            mend="Take one from a list: /api/v1/status, /api/v1/tasks, /api/v1/folders or /api/v1/jobs.",
        )
    )
