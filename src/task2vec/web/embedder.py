"""One folder becomes an entry of the library, in a process of its own: `python -m task2vec.web.embedder`.

Images come from strangers, and a decoder of somebody else may have a bug: what happens here cannot hurt the server, and
can be ended at any moment, for a library is never half-written. The wish comes as one line of JSON on standard
input; every line on standard output is one of {"stage", "done", "total"}, {"key"} or {"error", "code"}.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from task2vec.errors import DataError, Task2VecError
from task2vec.experts.metatask import bundled_metatask
from task2vec.library import Library
from task2vec.library.identity import identify
from task2vec.select.evidence import image_size

_PAUSE = 0.1  # seconds between two words about progress


def embed_folder(wish: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> str:
    """The key of the folder's embedding in the library: found there, or made as the tasks that ship were, and kept.

    Args:
        wish: "folder", "name" (or None), "library", and for tests "size" and "images".
        tell: takes words about progress.

    Raises:
        DataError: A link has taken the place of the folder, or of one above it, since it was offered.
    """
    from task2vec.tasks import read_folder

    like = next(iter(bundled_metatask().spaces.values()))
    tell({"stage": "reading images", "done": 0, "total": 0})
    check_place(wish["folder"])
    task = read_folder(wish["folder"], name=wish["name"])
    check_place(wish["folder"])
    tell({"stage": "loading the probe", "done": 0, "total": 0})
    # Not before: torch takes seconds, and a folder that is no task needs none.
    from task2vec.embedding import EmbedSettings, embed
    from task2vec.probe import load_probe

    probe = load_probe(like.probe, size=wish.get("size") or image_size(like))
    method = (like.provenance.get("settings") or {}).get("method") or "robust"
    settings = EmbedSettings(method=method, max_samples=wish.get("images") or EmbedSettings().max_samples)
    with Library.open(Path(wish["library"])) as library:
        found = library.find(task, probe, settings=settings)
        if found is None:
            found = embed(task, probe, settings=settings, progress=make_report(tell))
            check_place(wish["folder"])  # images were read until now
            tell({"stage": "keeping", "done": 0, "total": 0})
            library.add(found, source=task.source)
    return identify(found).key


def check_place(folder: str) -> None:
    """Raise if a folder does not lie where its name says: roots were followed to where they lie when they were named.

    Example:
        >>> check_place(os.path.realpath("."))
    """
    if os.path.realpath(folder) != folder:
        raise DataError(
            f"'{folder}' is a link now, or lies below one, so it is no longer the folder that was offered. "
            "Links could lead out of what may be read. Put the folder itself there, and list the folders again."
        )


def make_report(tell: Callable[[dict[str, Any]], None]) -> Callable[[str, int], Callable[[int], None]]:
    """A report (see `task2vec.progress`) that tells how far each stage is, a few times a second."""
    before = 0.0

    def report(stage: str, total: int) -> Callable[[int], None]:
        done = 0

        def step(more: int) -> None:
            nonlocal before, done
            done += more
            if done >= total or time.monotonic() - before > _PAUSE:
                before = time.monotonic()
                tell({"stage": stage, "done": min(done, total), "total": total})

        return step

    return report


def main() -> int:
    """Embeds what standard input asks for."""
    wish = json.loads(sys.stdin.readline())

    def tell(words: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()

    try:
        tell({"key": embed_folder(wish, tell)})
    except Task2VecError as error:
        tell({"error": str(error), "code": error.exit_code})
    except MemoryError:
        tell({"error": "there was not enough memory to embed the folder. Make room, and try again.", "code": 5})
    return 0


if __name__ == "__main__":
    sys.exit(main())
