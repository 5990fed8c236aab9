"""Folders that may be embedded from the page, and the jobs that embed them.

Folders are known by ids and checked again whenever one is used. One job runs at a time, in a process of its own
(`python -m task2vec.web.jobs`): images come from anywhere, and a bug in a decoder cannot harm the server. The process
can be ended at any moment, for a library is never half-written. It reads its request as one line of JSON from standard
input, and every line it prints is one of {"stage", "done", "total"}, {"key"} or {"error", "code"}.
"""

import hashlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from task2vec.errors import DataError, Task2VecError
from task2vec.tasks.folder import IMAGE_SUFFIXES
from task2vec.web.schemas import Folder, FolderList, Job
from task2vec.web.security import DEFAULT_LIMITS, Limits, RequestError, hide_paths, split_text, unknown

# Levels below a root, folders that are listed, and files that are counted, at most.
DEPTH, MOST_FOLDERS, MOST_FILES = 4, 2000, 500_000
_PATIENCE = 5.0  # seconds for a process to end before it is killed
_PAUSE = 0.1  # seconds between two reports of progress
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


def _printable(name: str) -> str:
    """A name as JSON can hold it: bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") or "folder"


class Folders:
    """The folders of all roots; ids reveal no path, and are valid for this server only."""

    def __init__(self, roots: Sequence[Path]):
        """Links in the paths of roots are resolved once."""
        self._secret, self._lock = secrets.token_bytes(16), threading.Lock()
        self.roots = {self._issue(path): path for path in dict.fromkeys(root.resolve() for root in roots)}
        self._known: dict[str, tuple[Path, tuple[str, ...]]] = {text: (path, ()) for text, path in self.roots.items()}

    def find(self, text: str) -> Path:
        """The folder of an id, if it is still a real folder inside its root.

        Raises:
            RequestError: The id was not issued, or the folder was replaced.
        """
        with self._lock:
            if text not in self._known:
                raise unknown("folder", text)
            path, names = self._known[text]
        for name in ("", *names):
            path = path / name if name else path
            if path.is_symlink() or not path.is_dir():
                raise RequestError(
                    f"the folder {text!r} no longer exists, or was replaced by a link.",
                    "Links could lead out of the folders that may be read.",
                    "List the folders again: /api/v1/folders",
                )
        return path

    def list_folders(self, root: str | None) -> FolderList:
        """The folders of a root, the root first; of all roots for None."""
        if root is not None and root not in self.roots:
            raise unknown("root", root)
        found, files = FolderList(folders=[], is_complete=True), 0

        def walk(root: Path, names: tuple[str, ...], parent: str | None) -> int:
            """Lists a folder and all below; returns the number of their images."""
            nonlocal files
            if len(found.folders) >= MOST_FOLDERS or files >= MOST_FILES:
                found.is_complete = False
                return 0
            own = self._issue(root, *names)
            with self._lock:
                self._known[own] = (root, names)
            folder = Folder(
                id=own, name=_printable(names[-1] if names else root.name), parent=parent, images=0, classes=0
            )
            found.folders.append(folder)
            inner = []
            for one in _scan(root.joinpath(*names)):
                files += 1
                if files > MOST_FILES:
                    found.is_complete = False
                    break
                if one.is_dir(follow_symlinks=False):
                    inner.append(one.name)
                folder.images += os.path.splitext(one.name)[1].lower() in IMAGE_SUFFIXES and one.is_file()
            counts = [walk(root, (*names, name), own) for name in sorted(inner)] if len(names) < DEPTH else []
            folder.images += sum(counts)
            folder.classes = sum(count > 0 for count in counts)
            return folder.images

        for text in self.roots if root is None else [root]:
            walk(self.roots[text], (), None)
        return found

    def _issue(self, root: Path, *names: str) -> str:
        return make_id("f", str(root), *names, secret=self._secret)


def _scan(path: Path) -> "list[os.DirEntry[str]]":
    """What is in a folder, without hidden files and links; nothing if it cannot be read."""
    try:
        with os.scandir(path) as found:
            return [one for one in found if not one.name.startswith(".") and not one.is_symlink()]
    except OSError:
        return []


class Jobs:
    """All jobs of a server; a thread runs one process after the other."""

    def __init__(
        self,
        library: Path,
        *,
        limits: Limits = DEFAULT_LIMITS,
        names: Mapping[str, str] | None = None,
        command: tuple[str, ...] = EMBEDDER,
    ):
        """`names` are the public names of folders, `command` starts the process."""
        self.library, self.limits, self.names, self.command = library, limits, dict(names or {}), command
        self._jobs: dict[str, Job] = {}
        self._running: tuple[Job, subprocess.Popen[str]] | None = None
        self._lock, self._is_closed = threading.Lock(), False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="task2vec-jobs")

    def add(self, folder: Path, *, name: str | None = None, more: Mapping[str, Any] | None = None) -> Job:
        """A new job for a folder.

        Raises:
            RequestError: Too many jobs are waiting.
        """
        request = {"folder": str(folder), "name": name, "library": str(self.library), **(more or {})}
        job = Job(id=make_id("j", secrets.token_hex(16)), name=name or _printable(folder.name))
        with self._lock:
            if self._is_closed or sum(not one.has_ended for one in self._jobs.values()) >= self.limits.jobs:
                raise RequestError(
                    f"{self.limits.jobs} folders are being embedded or waiting.",
                    "Each uses the whole machine, so they run one after the other.",
                    "Try again when one has ended, or cancel one.",
                    status=409,
                )
            self._jobs[job.id] = job
            ended = [old for old in self._jobs.values() if old.has_ended]
            for old in ended[: max(len(ended) - self.limits.kept_jobs, 0)]:
                self._jobs.pop(old.id)
            self._pool.submit(self._run, job, request)
        return job

    def find(self, text: str) -> Job:
        """The job of an id."""
        job = self._jobs.get(text)
        if job is None:
            raise unknown("job", text)
        return job

    def list_jobs(self) -> list[Job]:
        """All jobs, newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def cancel(self, text: str) -> Job:
        """Ends a job; one that has ended stays as it is."""
        job = self.find(text)
        with self._lock:
            if not job.has_ended:
                job.is_cancelled = True
                if self._running is not None and self._running[0] is job:
                    self._running[1].terminate()
                else:
                    job.update(state="cancelled", stage="cancelled")
        return job

    def close(self) -> None:
        """Cancels all jobs, and waits for the process to end."""
        with self._lock:
            self._is_closed = True
        for job in self.list_jobs():
            self.cancel(job.id)
        self._pool.shutdown()

    def _run(self, job: Job, request: Mapping[str, Any]) -> None:
        """Runs a job, unless it was cancelled while it waited."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            with self._lock:
                if job.has_ended:
                    return
                job.update(state="running", stage="starting")
                # Our own program; what clients send reaches it as JSON on standard input.
                process = subprocess.Popen(self.command, **pipes, text=True, encoding="utf-8")  # noqa: S603
                self._running = (job, process)
            self._follow(job, request, process)
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) else type(error).__name__
            self._fail(job, f"the folder could not be embedded ({reason}). Try again.")

    def _follow(self, job: Job, request: Mapping[str, Any], process: "subprocess.Popen[str]") -> None:
        """Sends a process its request, and reads its output until it ends."""
        last: deque[str] = deque(maxlen=20)
        with process:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            drain = threading.Thread(target=last.extend, args=(process.stderr,), daemon=True)  # its pipe is never full
            drain.start()
            try:
                process.stdin.write(json.dumps(dict(request)) + "\n")
                process.stdin.close()
            except BrokenPipeError:
                pass  # it ended at once: its standard error has the reason
            for line in process.stdout:
                self._take(job, line)
                if job.has_ended:
                    break
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            drain.join(_PATIENCE)
        lines = "".join(last)[-_LAST_WORDS:].strip().splitlines()
        reason = f" Its last output: {lines[-1]}." if lines else ""
        with self._lock:  # as one step: a job that is cancelled between the two would end twice
            self._running = None
            if job.is_cancelled and not job.has_ended:
                job.update(state="cancelled", stage="cancelled")
            elif not job.has_ended:
                self._fail(job, f"the embedding process ended early (code {process.returncode}).{reason} Try again.")

    def _take(self, job: Job, line: str) -> None:
        """Takes one line of a process."""
        try:
            message = json.loads(line)
        except ValueError:
            return  # another library has printed something
        if "key" in message:
            job.update(state="done", stage="done", task=make_id("l", message["key"]))
        elif "error" in message:
            self._fail(job, message["error"])
        elif not job.is_cancelled:
            job.update(**{part: message[part] for part in ("stage", "done", "total")})

    def _fail(self, job: Job, text: str) -> None:
        job.update(state="failed", stage="failed", error=split_text(hide_paths(text, self.names)))


# --- in the process of a job ------------------------------------------------------------------------------------------


def embed_folder(request: Mapping[str, Any], send: Callable[[dict[str, Any]], None]) -> str:
    """The key of the folder's embedding in the library: found there, or embedded in the space of the bundled tasks.

    Args:
        request: "folder", "name" (or None), "library", and for tests "size" and "max_samples".
        send: takes messages about progress.

    Raises:
        DataError: The folder, or one above it, was replaced by a link since it was offered.
    """
    from task2vec.experts import bundled_metatask
    from task2vec.library import Library, identify
    from task2vec.select.evidence import image_size
    from task2vec.tasks import read_folder

    like = next(iter(bundled_metatask().spaces.values()))
    send({"stage": "reading images", "done": 0, "total": 0})
    check_folder(request["folder"])
    task = read_folder(request["folder"], name=request["name"])
    check_folder(request["folder"])
    send({"stage": "loading the probe", "done": 0, "total": 0})
    # Not before: torch takes seconds to import, and a folder that is not a task needs none.
    from task2vec.embedding import EmbedSettings, embed
    from task2vec.probe import load_probe

    probe = load_probe(like.probe, size=request.get("size") or image_size(like))
    method = (like.provenance.get("settings") or {}).get("method") or "robust"
    settings = EmbedSettings(method=method, max_samples=request.get("max_samples") or EmbedSettings().max_samples)
    with Library.open(Path(request["library"])) as library:
        found = library.find(task, probe, settings=settings)
        if found is None:
            found = embed(task, probe, settings=settings, progress=make_report(send))
            check_folder(request["folder"])  # images were read until now
            send({"stage": "saving", "done": 0, "total": 0})
            library.add(found, source=task.source)
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


def make_report(send: Callable[[dict[str, Any]], None]) -> Callable[[str, int], Callable[[int], None]]:
    """A report (see `task2vec.progress`) that sends the progress of each stage, a few times a second."""
    before = 0.0

    def report(stage: str, total: int) -> Callable[[int], None]:
        done = 0

        def step(more: int) -> None:
            nonlocal before, done
            done += more
            if done >= total or time.monotonic() - before > _PAUSE:
                before = time.monotonic()
                send({"stage": stage, "done": min(done, total), "total": total})

        return step

    return report


def main() -> int:
    """Embeds the folder that standard input names."""

    def send(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    try:
        send({"key": embed_folder(json.loads(sys.stdin.readline()), send)})
    except Task2VecError as error:
        send({"error": str(error), "code": error.exit_code})
    except MemoryError:
        send({"error": "the machine ran out of memory. Close other programs, and try again.", "code": 5})
    return 0


if __name__ == "__main__":
    sys.exit(main())
