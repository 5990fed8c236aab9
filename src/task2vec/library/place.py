"""Where the library lies."""

import os
from pathlib import Path

from task2vec.errors import ResourceError

VARIABLE = "TASK2VEC_LIBRARY"


def find_library(given: str | Path | None = None) -> Path:
    """The folder of the library: `given`, else the variable TASK2VEC_LIBRARY, else the user's own data folder.

    Example:
        >>> find_library("team/library").as_posix()
        'team/library'
    """
    named = os.environ.get(VARIABLE) if given is None else given
    data = os.environ.get("XDG_DATA_HOME", "")
    try:
        if given is not None or named:
            return Path(str(named)).expanduser()
        if os.path.isabs(data):  # the rule of that variable: a relative path is to be ignored
            return Path(data, "task2vec")
        return Path.home() / ".local" / "share" / "task2vec"
    except RuntimeError as error:
        raise ResourceError(
            f"there is no home folder for {str(named or '~')!r}, so it is unclear where the library should be. "
            f"Name a folder: --library DIR, or set {VARIABLE}."
        ) from error
