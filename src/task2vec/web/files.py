"""The page's own files: what lay in the folder when the server was started, and nothing else."""

from importlib import resources
from importlib.resources.abc import Traversable

from starlette.responses import Response

from task2vec.web.problems import find_none

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
INDEX = "index.html"


class Files:
    """Files by the names that they are asked for; a name is looked up in a list, never joined to a path."""

    def __init__(self):
        """Lists the files of the package."""
        self._files = dict(_walk(resources.files("task2vec.web") / "static", ""))

    def names(self) -> list[str]:
        """Of all files."""
        return sorted(self._files)

    def answer(self, name: str) -> Response:
        """The file of a name; the page itself for none."""
        file = self._files.get(name or INDEX)
        if file is None:
            raise find_none("file", name)
        kind = _TYPES.get((name or INDEX).rpartition(".")[2], "application/octet-stream")
        return Response(file.read_bytes(), media_type=kind)


def _walk(folder: Traversable, above: str):
    """All files below a folder, with their names from there."""
    for one in folder.iterdir() if folder.is_dir() else ():
        if one.name.startswith((".", "__")):
            continue
        if one.is_dir():
            yield from _walk(one, f"{above}{one.name}/")
        else:
            yield f"{above}{one.name}", one
