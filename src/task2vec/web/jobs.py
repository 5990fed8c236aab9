"""Folders that may be embedded from the page, and the jobs that embed them.

Folders are known by ids and checked again whenever one is used. One job runs at a time, in a process of its own
(`python -m task2vec.web.jobs`): images come from anywhere, and a bug in a decoder cannot harm the server. The process
can be ended at any moment, for a library is never half-written. It reads its request as one line of JSON from standard
input, and every line it prints is one of {"stage", "done", "total"}, {"key"} or {"error"}.
"""

import asyncio
import hashlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from task2vec.errors import DataError, Task2VecError
from task2vec.tasks.folder import IMAGE_SUFFIXES
from task2vec.text import printable
from task2vec.web.schemas import Folder, FolderList, Job
from task2vec.web.security import Limits, RequestError, hide_paths, look_up, split_text

# Levels below a root, folders that are listed, and files that are counted, at most.
DEPTH, MOST_FOLDERS, MOST_FILES = 4, 2000, 500_000
_LAST_WORDS = 2000  # characters of a process's standard error
# -P: without it, modules in the folder in which the server was started (a PIL.py) would be imported.
EMBEDDER = (sys.executable, "-P", "-m", "task2vec.web.jobs")


def make_id(kind: str, *content: str, secret: bytes = b"") -> str:
    """An opaque id: the same content gives the same id.

    Args:
        kind: one letter: l, m, f, j or s.
        content: what distinguishes it from others of its kind.
        secret: of this server, where the content could be guessed.

    Example:
        >>> make_id("l", "abc")
        'l-3619b2e9832d748d745e'
    """
    text = "\0".join(content).encode("utf-8", "surrogateescape")
    return f"{kind}-{hashlib.blake2b(text, key=secret, digest_size=10).hexdigest()}"


class Folders:
    """The folders of all roots; ids reveal no path, and are valid for this server only."""

    def __init__(self, roots: Sequence[Path]):
        """Links in the paths of roots are resolved once."""
        self._secret = secrets.token_bytes(16)
        self._known: dict[str, Path] = {}
        self.roots = {self._issue(path): path for path in dict.fromkeys(root.resolve() for root in roots)}

    def find(self, text: str) -> Path:
        """The folder of an id; `embed_folder` checks that it is still the one that was offered."""
        return look_up(self._known, text, "folder")

    def list_folders(self, root: str | None) -> FolderList:
        """The folders of a root, the root first; of all roots for None."""
        tops = list(self.roots.values()) if root is None else [look_up(self.roots, root, "root")]
        found, files = FolderList(folders=[], is_complete=True), 0

        def walk(path: Path, parent: str | None, depth: int) -> int:
            """Lists a folder and all below; returns the number of their images."""
            nonlocal files
            if len(found.folders) >= MOST_FOLDERS or files >= MOST_FILES:
                found.is_complete = False
                return 0
            folder = Folder(id=self._issue(path), name=printable(path.name) or "root", parent=parent)
            found.folders.append(folder)
            entries = []
            with suppress(OSError), os.scandir(path) as inside:  # one that cannot be read is listed as empty
                entries = [one for one in inside if not one.name.startswith(".") and not one.is_symlink()]
            files += len(entries)
            inner = sorted(one.name for one in entries if one.is_dir()) if depth < DEPTH else []
            counts = [walk(path / name, folder.id, depth + 1) for name in inner]
            is_image = [os.path.splitext(one.name)[1].lower() in IMAGE_SUFFIXES and one.is_file() for one in entries]
            folder.images = sum(is_image) + sum(counts)
            folder.classes = sum(count > 0 for count in counts)
            return folder.images

        for top in tops:
            walk(top, None, 0)
        return found

    def _issue(self, path: Path) -> str:
        """The id of a folder, which is known from now on."""
        text = make_id("f", str(path), secret=self._secret)
        self._known[text] = path
        return text


class Jobs:
    """All jobs of a server, on its event loop: one process after the other. A final state stays as it is."""

    def __init__(self, library: Path, *, limits: Limits, names: Mapping[str, str]):
        """`names` are the public names of folders."""
        self.library, self.limits, self.names, self.command = library, limits, names, EMBEDDER
        self._jobs: dict[str, Job] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    def add(self, folder: Path, *, name: str | None = None) -> Job:
        """A new job for a folder.

        Raises:
            RequestError: Too many jobs are waiting.
        """
        ended = [old.id for old in self._jobs.values() if old.has_ended]
        if len(self._jobs) - len(ended) >= self.limits.jobs:
            why = "Each uses the whole machine, so they run one after the other."
            fix = "Try again when one has ended, or cancel one."
            raise RequestError(409, f"{self.limits.jobs} folders are being embedded or waiting. {why} {fix}")
        for old in ended[: max(len(ended) - self.limits.kept_jobs, 0)]:
            del self._jobs[old]
        job = Job(id=make_id("j", secrets.token_hex(16)), name=name or printable(folder.name) or "root")
        request = {"folder": str(folder), "name": name, "library": str(self.library)}
        self._jobs[job.id] = job
        self._work[job.id] = asyncio.create_task(self._run(job.id, request))
        self._work[job.id].add_done_callback(lambda _: self._work.pop(job.id))
        return job

    def find(self, text: str) -> Job:
        """The job of an id, as it is now."""
        return look_up(self._jobs, text, "job")

    def list_jobs(self) -> list[Job]:
        """All jobs, newest first."""
        return list(reversed(self._jobs.values()))

    def cancel(self, text: str) -> Job:
        """Ends a job; one that has ended stays as it is."""
        if not self.find(text).has_ended:
            self._update(text, state="cancelled", stage="cancelled")
            self._work[text].cancel()
        return self.find(text)

    async def close(self) -> None:
        """Cancels all jobs, and waits for the process to end."""
        for text in self._jobs:
            self.cancel(text)
        await asyncio.gather(*self._work.values(), return_exceptions=True)

    def _update(self, text: str, **changes: Any) -> None:
        """Changes a job, unless it has ended."""
        if text in self._jobs and not self._jobs[text].has_ended:
            self._jobs[text] = Job.model_validate(dict(self._jobs[text]) | changes)

    def _fail(self, text: str, reason: str) -> None:
        self._update(text, state="failed", stage="failed", error=split_text(hide_paths(reason, self.names)))

    async def _run(self, text: str, request: Mapping[str, Any]) -> None:
        """Runs a job in its turn."""
        try:
            async with self._turn:
                self._update(text, state="running", stage="starting")
                with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
                    code = await self._follow(text, request, output)
                    output.seek(0)
                    last = "".join(deque(output, maxlen=1)).strip()[-_LAST_WORDS:]
            hint = f" Its last output: {last}." if last else ""
            self._fail(text, f"the embedding process ended early (code {code}).{hint} Try again.")
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) else type(error).__name__
            self._fail(text, f"the folder could not be embedded ({reason}). Try again.")

    async def _follow(self, text: str, request: Mapping[str, Any], output: IO[str]) -> int | None:
        """Sends a process its request, and takes its messages; returns its exit code if it ended without a last one."""
        # Our own program; what clients send reaches it as JSON on standard input.
        process = await asyncio.create_subprocess_exec(
            *self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.close()
            async for line in process.stdout:
                message = None
                with suppress(ValueError):  # another library has printed the line
                    message = json.loads(line)
                match message:
                    case {"key": str(key)}:
                        return self._update(text, state="done", stage="done", task=make_id("l", key))
                    case {"error": str(reason)}:
                        return self._fail(text, reason)
                    case {"stage": stage, "done": done, "total": total}:
                        self._update(text, stage=stage, done=done, total=total)
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()  # at any moment: a library is never half-written
                await process.wait()


# --- in the process of a job ------------------------------------------------------------------------------------------


def embed_folder(request: Mapping[str, Any], send: Callable[[dict[str, Any]], None]) -> str:
    """The key of the folder's embedding in the library: found there, or embedded in the space of the bundled tasks.

    The library has a report on it then, too.

    Args:
        request: "folder", "name" (or None), "library".
        send: takes messages about progress.

    Raises:
        DataError: The folder, or one above it, was replaced by a link since it was offered.
    """
    from task2vec.library import Library, identify
    from task2vec.metatask import bundled_metatask, find_method, image_size
    from task2vec.tasks import read_folder

    def show(stage: str, total: int = 0) -> Callable[[int], None]:
        done = 0

        def step(more: int) -> None:
            nonlocal done
            done += more
            send({"stage": stage, "done": min(done, total), "total": total})

        step(0)
        return step

    like = next(iter(bundled_metatask().spaces.values()))
    show("reading images")
    check_folder(request["folder"])
    task = read_folder(request["folder"], name=request["name"])
    check_folder(request["folder"])
    show("loading the probe")
    # Not before: torch takes seconds to import, and a folder that is not a task needs none.
    from task2vec.audit.report import report
    from task2vec.embedding import EmbedSettings
    from task2vec.probe import load_probe

    probe = load_probe(like.probe, size=image_size(like))
    settings = EmbedSettings(method=find_method(like) or "robust")
    with Library.open(Path(request["library"])) as library:
        found = library.find(task, probe, settings=settings)
        if found is None or not library.report_file(task.fingerprint).exists():
            made = report(task, probe, library=library, settings=settings, progress=show)
            check_folder(request["folder"])  # images were read until now
            show("writing the report")
            made.keep(library)
            found = made.embedding
    return identify(found).key


def check_folder(folder: str) -> None:
    """Raise if a link has become part of the path: roots were resolved when the server was started.

    Example:
        >>> check_folder(os.path.realpath("."))
    """
    if os.path.realpath(folder) != folder:
        raise DataError(
            f"'{folder}' is now a link, or below one, so it is no longer the folder that was offered. Links could lead "
            "out of the folders that may be read. Put the folder itself there, and list the folders again."
        )


def main() -> None:
    """Embeds the folder that standard input names."""

    def send(message: dict[str, Any]) -> None:
        print(json.dumps(message), flush=True)  # noqa: T201 - to the server

    try:
        send({"key": embed_folder(json.loads(sys.stdin.readline()), send)})
    except Task2VecError as error:
        send({"error": str(error)})


if __name__ == "__main__":
    main()
