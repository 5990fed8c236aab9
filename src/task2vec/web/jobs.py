"""Embeddings that were asked for from the page: one is made at a time, a few may wait, and each can be cancelled."""

import json
import secrets
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task2vec.web.answers import JobAnswer, Problem, State
from task2vec.web.ids import make_id
from task2vec.web.problems import NotServedError, find_none, hide_places, split_text
from task2vec.web.settings import DEFAULT_LIMITS, Limits

_PATIENCE = 5.0  # seconds that a process has to end before it is killed
_LAST_WORDS = 2000
# -P: without it the folder that the server was started in is searched first, and a PIL.py in there would be run.
EMBEDDER = (sys.executable, "-P", "-m", "task2vec.web.embedder")


@dataclass
class Job:
    """An embedding that is being made.

    Attributes:
        id: that the server issued.
        name: of the folder, or what the task is to be called.
        wish: what the process is told, see `task2vec.web.embedder`.
        state: how far it is.
        stage: what is being done.
        done: steps of that.
        total: steps of that in all.
        task: id of what came of it.
        error: what went wrong.
        version: grows with every change.
    """

    id: str
    name: str
    wish: Mapping[str, Any]
    state: State = "waiting"
    stage: str = "waiting"
    done: int = 0
    total: int = 0
    task: str | None = None
    error: Problem | None = None
    version: int = 0
    is_unwanted: bool = False
    process: "subprocess.Popen[str] | None" = field(default=None, repr=False)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in ("done", "failed", "cancelled")

    def tell(self) -> JobAnswer:
        """The job as an answer."""
        parts = ("id", "state", "stage", "done", "total", "name", "task", "error")
        return JobAnswer(**{part: getattr(self, part) for part in parts})

    def change(self, **changes: object) -> None:
        """Notes how far it is."""
        for name, value in changes.items():
            setattr(self, name, value)
        self.version += 1


class Jobs:
    """All jobs of a server; a thread starts one process after the other and listens to it."""

    def __init__(
        self,
        library: Path,
        *,
        limits: Limits = DEFAULT_LIMITS,
        names: Mapping[str, str] | None = None,
        command: tuple[str, ...] = EMBEDDER,
    ):
        """`names` are those that folders of this machine go by, `command` the process that embeds."""
        self.library, self.limits, self.names, self.command = library, limits, dict(names or {}), command
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._lock, self._wake = threading.Lock(), threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, folder: Path, *, name: str | None = None, more: Mapping[str, Any] | None = None) -> Job:
        """A job for a folder.

        Raises:
            NotServedError: As many as may wait are waiting.
        """
        wish = {"folder": str(folder), "name": name, "library": str(self.library), **(more or {})}
        job = Job(make_id("j", secrets.token_hex(16)), name or _shown(folder.name), wish)
        with self._lock:
            if self._is_closed or sum(not one.has_ended for one in self._jobs.values()) >= self.limits.jobs:
                raise NotServedError(
                    Problem(
                        what=f"{self.limits.jobs} folders are being embedded or wait for it.",
                        why="Each takes all of the machine, so one is done after the other.",
                        mend="Try again when one has ended, or cancel one.",
                    ),
                    status=409,
                )
            self._jobs[job.id] = job
            ended = [old for old in self._jobs.values() if old.has_ended]
            for old in ended[: max(len(ended) - self.limits.kept_jobs, 0)]:
                self._jobs.pop(old.id)
            self._waiting.append(job)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="task2vec-jobs", daemon=True)
                self._thread.start()
        with self._wake:
            self._wake.notify_all()
        return job

    def find(self, text: str) -> Job:
        """The job of an id."""
        job = self._jobs.get(text)
        if job is None:
            raise find_none("job", text)
        return job

    def tell(self) -> list[JobAnswer]:
        """All jobs, newest first."""
        with self._lock:
            return [job.tell() for job in reversed(self._jobs.values())]

    def cancel(self, text: str) -> Job:
        """Ends a job; one that has ended stays as it is."""
        job = self.find(text)
        with self._lock:
            if job.has_ended:
                return job
            job.is_unwanted = True
            if job in self._waiting:
                self._waiting.remove(job)
            process = job.process
            if process is None:
                job.change(state="cancelled", stage="cancelled")
        if process is not None:
            process.terminate()
        return job

    def close(self) -> None:
        """Cancels all that is under way, and waits for the process to end."""
        with self._lock:
            self._is_closed = True
            unended = [job.id for job in self._jobs.values() if not job.has_ended]
        for text in unended:
            self.cancel(text)
        with self._wake:
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _work(self) -> None:
        """One job after the other, until the server ends."""
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._is_closed)
            with self._lock:
                if self._is_closed:
                    return
                if not self._waiting:
                    continue
                job = self._waiting.popleft()
                job.change(state="running", stage="starting")
            try:
                self._run(job)
            except Exception as error:
                self._fail(job, f"the folder could not be embedded ({type(error).__name__}). Try again.")

    def _run(self, job: Job) -> None:
        """Starts the process of a job, and listens to it until it ends."""
        with self._lock:
            if job.is_unwanted:
                job.change(state="cancelled", stage="cancelled")
                return
            pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            # Our own program; what visitors say reaches it as JSON on standard input.
            job.process = subprocess.Popen(self.command, **pipes, text=True, encoding="utf-8")  # noqa: S603
        last: list[str] = []
        with job.process as process:
            assert process.stdin is not None and process.stdout is not None
            listener = threading.Thread(target=_drain, args=(process.stderr, last), daemon=True)
            listener.start()
            try:
                process.stdin.write(json.dumps(dict(job.wish)) + "\n")
                process.stdin.close()
            except BrokenPipeError:
                pass  # it ended at once: what it said last tells why
            ended = self._listen(job, process.stdout)
            _end(process)
            listener.join(_PATIENCE)
        said = "".join(last).strip().splitlines()
        why = f" It said: {said[-1]}" if said else ""
        with self._lock:  # at once: whoever cancels between the two would be told of an end that another one replaces
            job.process = None
            if job.is_unwanted and not job.has_ended:
                job.change(state="cancelled", stage="cancelled")
            elif not ended:
                self._fail(job, f"the process that embeds ended early (code {process.returncode}).{why}. Try again.")

    def _listen(self, job: Job, lines: Any) -> bool:
        """Notes what a process says; whether it came to an end of its own."""
        for line in lines:
            try:
                words = json.loads(line)
            except ValueError:
                continue  # a library of somebody else has printed something
            if "key" in words:
                job.change(state="done", stage="done", task=make_id("l", words["key"]))
                return True
            if "error" in words:
                self._fail(job, words["error"])
                return True
            if not job.is_unwanted:
                job.change(**{part: words[part] for part in ("stage", "done", "total")})
        return False

    def _fail(self, job: Job, text: str) -> None:
        job.change(state="failed", stage="failed", error=split_text(hide_places(text, self.names)))


def _drain(stream: Any, into: list[str]) -> None:
    """Keeps the last words of a stream, so that its pipe is never full."""
    for line in stream:
        into.append(line)
        while sum(map(len, into)) > _LAST_WORDS and len(into) > 1:
            into.pop(0)


def _end(process: "subprocess.Popen[str]") -> None:
    """Waits for a process that has said its last word; one that does not end is killed."""
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _shown(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") or "folder"
