"""Processes with one job each, some of them killed while they do it: a server that has imported all forks them."""

import multiprocessing
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from task2vec.errors import DataError, NotInLibraryError, ResourceError
from task2vec.library import Expert, Library, MeasuredError, search
from task2vec.tasks import read_folder
from tests.command import ENVIRONMENT
from tests.hostile.peak_memory import read_memory
from tests.library.material import fingerprint_of, make

SERVER = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else None)
SERVER.set_forkserver_preload([__name__])


class Worker:
    """A process that does one of the jobs below, and what it has said until now."""

    def __init__(self, job, *, context=SERVER, **told):
        self.pipe, far_end = context.Pipe(duplex=False)
        self.process, self.said = context.Process(target=work, args=(far_end, job, told), daemon=True), []
        with patch.dict(os.environ, ENVIRONMENT):  # of the server, which begins with the first worker
            self.process.start()
        far_end.close()

    def hear(self, count):
        """Reads that many lines."""
        self.said += [self.pipe.recv() for _ in range(count)]

    def wait(self):
        """What it ended with; all that it has said is read."""
        with suppress(EOFError):
            while True:
                self.hear(1)
        self.process.join()
        return self.process.exitcode

    def kill(self):
        """Kills it without a warning."""
        self.process.kill()
        return self.wait()


def work(pipe, job, told):
    try:
        job(lambda *words: pipe.send(words), **told)
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
        raise SystemExit(1) from None


def add(say, folder, first, count, start=None):
    """Adds one task after the other."""
    while start and not Path(start).exists():
        time.sleep(0.001)
    with Library.open(folder) as library:
        for seed in range(first, first + count):
            say("begin", "add", seed)
            library.add(make(f"task {seed}", seed), tags=["here"])
            say("done", "add", seed)


def churn(say, folder, first, count):
    """Does everything that changes a library, over and over."""
    search.SKETCH_FROM = search.CANDIDATES = 4
    with Library.open(folder) as library:
        for seed in range(first, first + count):
            for what, change_it in list_changes(library, seed, Path(folder).parent).items():
                say("begin", what, seed)
                change_it()
                say("done", what, seed)


def list_changes(library, seed, aside):
    name, expert = f"task {seed}", Expert("e", "timm", "net")
    return {
        "add": lambda: library.add(make(name, seed), make(f"{name} too", 1000 + seed), tags=["here"]),
        "replace": lambda: library.add(make(name, seed, numbers=5000 + seed), replace=True),
        "tag": lambda: library.tag(name, "there"),
        "remove": lambda: library.remove(f"{name} too"),
        "search": lambda: library.nearest(name),
        "export": lambda: library.export(aside / "export.t2vlib"),
        "import": lambda: library.merge(aside / "gift.t2vlib"),
        "error": lambda: library.add(expert, MeasuredError(fingerprint_of(seed), "e", 0.5, "p")),
    }


def embed(say, folder):
    """Embeds ten tasks, each kept in the folder; says of each whether it was found or made."""
    from task2vec.embedding import EmbedSettings, embed_many
    from tests.embedding.families import ask_binary
    from tests.tiny_probe import make_tiny

    settings = EmbedSettings(max_samples=8, l2=0.1)
    for result in embed_many(ask_binary(10), make_tiny(), settings=settings, folder=folder, gigabytes=1e-9):
        say(result.task, "found" if result.is_found else "made")
        time.sleep(0.02)  # so that a signal comes while there is still something to do


def read_bad_folders(say, single, bombs):
    """Reads a folder of one class, without torch, and one with image bombs; says how much memory it took at most."""
    try:
        read_folder(single)
    except DataError as error:
        say("torch" in sys.modules, str(error))
    for item in read_folder(bombs).bad:
        say(item.path, item.reason)
    say(read_memory())


def read(say, folder, until):
    """Asks everything, at least once and until a file appears."""
    rounds = 0
    with Library.open(folder) as library:
        while not rounds or not Path(until).exists():
            for task in library.tasks()[:5]:
                with suppress(NotInLibraryError):  # a guest that has left since
                    library.get(task.name)
                    library.nearest(task.name, 3)
            found = library.verify()
            assert found.is_sound, found.problems[:2]
            library.stats(), library.errors(), repr(library)
            rounds += 1


def change(say, folder, until):
    """Replaces and removes, so that readers meet what is just going away."""
    with Library.open(folder) as library:
        turn = 0
        while not turn or not Path(until).exists():
            turn += 1
            library.add(make("restless", 9000, numbers=turn), replace=True)
            library.add(make(f"guest {turn}", 9001))
            library.remove(fingerprint_of(9001))


def fill(say, folder, limit, filters):
    """Adds until the disk is full, which is when a file reaches the limit; then makes room and goes on."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with Library.open(folder) as library:
        library.add(make("first", 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        seed = 1
        try:
            while seed < 1000:
                seed += 1
                library.add(make(f"task {seed}", seed, filters=filters), tags=["much"])
        except ResourceError as error:
            say("full", error.exit_code, str(error).split("'")[1].rpartition(".")[2])
        there = [task.name for task in library.tasks()]
        assert there == sorted(["first", *(f"task {one}" for one in range(2, seed))]), there
        for name in there:
            library.get(name)
        assert library.verify().is_sound
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        library.add(make(f"task {seed}", seed, filters=filters))
    with Library.open(folder) as library:
        found = library.verify()
        say("after", len(library) - len(there), len(found.problems))


def visit(say, folder, owner):
    """Reads a library without the right to write, as another user if this is root, and tries to write."""
    if os.getuid() == 0:
        os.setgid(owner)
        os.setuid(owner)
    with Library.open(folder) as library:
        names = [task.name for task in library.tasks()]
        near = [one.task.name for one in library.nearest(names[0], 3)]
        assert library.verify().is_sound
        say("read", library.is_read_only, len(names), len(near), library.get(names[0]).task)
        for change in (lambda: library.add(make("new", 99)), lambda: library.remove(names[0])):
            try:
                change()
            except ResourceError as error:
                say("refused", error.exit_code)
