"""What the words of a command line stand for: tasks to read, embeddings of the library or of files, and new ones."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.cli.options import DEFAULT_PROBE, ProbeOptions, Reading, SettingsOptions
from task2vec.cli.output import is_watched, name_library, say, say_all
from task2vec.errors import (
    BadImagesError,
    DataError,
    LibraryError,
    NotInLibraryError,
    ResourceError,
    Task2VecError,
    TooFewClassesError,
    UsageError,
)
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.embedding import Embedding, EmbedSettings, TaskResult
    from task2vec.library import Library
    from task2vec.parallel import Backend
    from task2vec.probe import Probe
    from task2vec.tasks import BadImage, Task

TABLE, FOLDER = "table", "folder"
TABLES = (".csv", ".parquet", ".pq")
SUFFIX = ".t2v.safetensors"
FIRST = "Add a first task: task2vec embed FOLDER"
TOO_FEW_CLASSES = (
    "fewer than two of its classes have images here, so there is nothing to classify. Leave it out, or use more images "
    "(--max-images) or another --split."
)
TOO_MANY_BAD = (
    "over 5 % of its images are unreadable, so the rest may not represent the task. Repair or remove them, or pass "
    "--allow-bad."
)


# --- paths -> tasks --------------------------------------------------------------------------------------------------


@dataclass
class Tasks:
    """The tasks of several paths, and what could not be read: its name, the reason, and unreadable images."""

    tasks: "list[Task]" = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, name: object, error: Exception) -> None:
        """Notes a failure and prints it now: what follows may take hours."""
        bad = [asdict(one) for one in getattr(error, "bad", ())]
        self.failed.append({"name": str(name), "reason": str(error), "bad": bad})
        say(f"failed: {printable(name)}: {printable(error)}")


def is_table(path: Path) -> bool:
    """Whether a path is a table of images, by its name; if not, it is a folder.

    Raises:
        DataError: It is an archive.
        UsageError: It does not exist, or is a file of another kind.
    """
    if not os.path.exists(path):
        raise UsageError(
            f"'{path}' does not exist, so there is nothing to read. Check the spelling and the current folder."
        )
    if path.suffix.lower() in TABLES and not path.is_dir():
        return True
    if path.is_file():
        from task2vec.tasks.folder import refuse_archive

        refuse_archive(path)
        raise UsageError(
            f"'{path}' is neither a folder nor a table, so it has no labels to learn. Name a folder with one folder "
            f"per class, or a file ending in {', '.join(TABLES)}."
        )
    return False


def sort_paths(paths: Sequence[Path], reading: Reading) -> dict[Path, str]:
    """What each path is: a table, a folder of class folders, or a published dataset, by the name of its layout.

    Raises:
        UsageError: A path is given twice, does not exist or is none of these, a folder lacks the split, or an option
            is given that applies to none of the paths.
    """
    from task2vec.tasks.folder import find_split

    sorts: dict[Path, str] = {}
    for path in paths:
        if path.resolve() in {known.resolve() for known in sorts}:
            raise UsageError(f"'{path}' is given twice, and its tasks would be the same. Give it once.")
        sorts[path] = _sort_path(path, reading)
    _refuse_strays(set(sorts.values()), reading)
    for path, sort in sorts.items():
        if sort == FOLDER and reading.split is not None:
            find_split(path, reading.split)
    return sorts


def _sort_path(path: Path, reading: Reading) -> str:
    from task2vec.tasks import recognize_layout

    return TABLE if is_table(path) else reading.layout or recognize_layout(path) or FOLDER


def _refuse_strays(sorts: set[str], reading: Reading) -> None:
    """Raise `UsageError` if an option was given that applies to none of the paths."""
    published = sorts - {TABLE, FOLDER}
    strays = (
        ("path_column label_column root", TABLE in sorts, "a table (.csv, .parquet)"),
        ("task_names kind layout max_images", bool(published), "a published dataset (see task2vec tasks)"),
        ("labels", "imaterialist" in published, "an iMaterialist dataset"),
        ("split", sorts != {TABLE}, "a folder or a published dataset"),
    )
    chosen = replace(reading, layout=None) if reading.layout == FOLDER else reading
    for names, applies, what in strays:
        given = list_given({name: getattr(chosen, name) for name in names.split()})
        if given and not applies:
            raise UsageError(f"{given} only applies to {what}, and no path is one. Remove {given}, or add such a path.")


def list_given(options: dict[str, Any]) -> str:
    """Those of the options that were given, as they are spelled on the command line; empty if none was."""
    spelled = {"layout": "as", "task_names": "task"}
    return ", ".join(f"--{spelled.get(key, key.replace('_', '-'))}" for key, value in options.items() if value)


def read_paths(sorts: dict[Path, str], reading: Reading) -> Tasks:
    """The tasks of all paths; one that cannot be read is reported, and the others are read."""
    found = Tasks()
    read: list[tuple[Path, str, Task]] = []
    for path, sort in sorts.items():
        root = reading.root or path.parent if sort == TABLE else path / (reading.split or "" if sort == FOLDER else "")
        try:
            tasks = read_path(path, sort, reading, found)
        except (DataError, ResourceError) as error:
            say_bad(getattr(error, "bad", ()), root=root)
            found.fail(path, error)
            continue
        say_bad({bad.path: bad for task in tasks for bad in task.bad}.values(), root=root)
        read += [(path, sort, task) for task in tasks]
    times = Counter(task.name for *_, task in read)
    for path, sort, task in read:
        if times[task.name] > 1 and sort in (TABLE, FOLDER):  # named by its path, which no other has
            task = replace(task, name=str(path if sort == TABLE else path.parent / task.name))
        found.tasks += _split_classes(task, found) if reading.one_vs_rest else [task]
    return found


def _split_classes(task: "Task", found: Tasks) -> "Sequence[Task]":
    """A binary task for each class; a task of two classes is one already."""
    if len(task.classes) == 2 and not task.is_multilabel:
        return [task]
    try:
        return task.one_vs_rest()
    except DataError as error:
        found.fail(task.name, error)
        return []


def read_path(path: Path, sort: str, reading: Reading, found: Tasks) -> "list[Task]":
    """The tasks of one path; those of a published dataset that fail are added to `found`."""
    if sort in (TABLE, FOLDER):
        return [read_own(path, reading)]
    from task2vec.tasks import read_catalog

    labels = reading.labels if sort == "imaterialist" else None
    catalog = read_catalog(path, layout=sort, labels=labels, progress=is_watched())
    say_all("warning", catalog.warnings)
    if reading.task_names:
        chosen = [catalog.find(name, reading.kind) for name in dict.fromkeys(reading.task_names)]
    elif reading.kind is None and len(catalog.kinds) > 1:
        raise UsageError(
            f"{catalog.name} has tasks of several kinds ({', '.join(catalog.kinds)}), so it is unclear which to use. "
            f"Choose a kind (--kind {catalog.kinds[0]!r}) or a task (--task NAME); task2vec tasks {path} lists them."
        )
    else:
        chosen = list(catalog.definitions if reading.kind is None else catalog.of_kind(reading.kind))
    how = {"split": reading.split, "images": reading.max_images, "seed": reading.seed}
    how |= {"allow_bad": reading.allow_bad, "num_workers": reading.num_workers, "progress": is_watched()}
    is_one = len(chosen) == 1
    while chosen:
        try:
            tasks = catalog.tasks(chosen, **how)
            return [replace(tasks[0], name=reading.name)] if reading.name and is_one else tasks
        except (TooFewClassesError, BadImagesError) as error:
            if is_one or not error.tasks:
                raise
            reason = TOO_FEW_CLASSES if isinstance(error, TooFewClassesError) else TOO_MANY_BAD
            gone = {getattr(one, "name", one) for one in error.tasks}
            say(f"failed: {printable(error)}")
            names = [catalog.name_task(name, split=reading.split) for name in sorted(gone)]
            found.failed += [{"name": name, "reason": reason, "bad": []} for name in names]
            chosen = [one for one in chosen if one.name not in gone]
    return []


def read_own(path: Path, reading: Reading) -> "Task":
    """The task of a table or of a folder of class folders.

    Raises:
        UsageError: It is a published dataset, which has many tasks.
    """
    from task2vec.tasks import read_folder, read_table

    sort = _sort_path(path, reading)
    if sort not in (TABLE, FOLDER):
        raise UsageError(
            f"'{path}' is {sort}, a dataset of many tasks, so it is unclear which to use. List them: task2vec tasks "
            f"{path}; then embed one: task2vec embed {path} --task NAME"
        )
    how = {"name": reading.name, "allow_bad": reading.allow_bad, "num_workers": reading.num_workers}
    how["progress"] = is_watched()
    if sort == FOLDER:
        return read_folder(path, split=reading.split, **how)
    columns = {"path_column": reading.path_column, "label_columns": reading.label_column, "root": reading.root}
    return read_table(path, **{key: value for key, value in columns.items() if value}, **how)


def say_bad(bad: "Iterable[BadImage]", *, root: Path | None = None) -> None:
    """Names the unreadable images, one per line."""
    say_all("unreadable", (f"{one.path if root is None else root / one.path}: {one.reason}" for one in bad))


def load_probe(chosen: ProbeOptions) -> "Probe":
    """The probe of the options."""
    import task2vec

    return task2vec.load_probe(chosen.probe, weights=chosen.weights, size=chosen.size, download=chosen.download)


def make_settings(chosen: SettingsOptions) -> "EmbedSettings":
    """The settings of the options."""
    import task2vec

    given: dict[str, Any] = {name: value for name, value in vars(chosen).items() if value is not None}
    epochs = given.pop("epochs", None)
    if epochs is not None:
        if chosen.method != "variational":
            raise UsageError(
                f"--epochs {epochs} is for --method variational only: the other methods do not train. Remove --epochs."
            )
        given["variational"] = task2vec.VariationalSettings(epochs=epochs)
    return task2vec.EmbedSettings(**given)


def open_backend(name: str, jobs: int | None) -> "Backend":
    """The backend that computes; Ray is that of RAY_ADDRESS, if set, or one that is started here."""
    from task2vec.parallel import open_backend

    return open_backend(name, jobs=jobs, address=os.environ.get("RAY_ADDRESS") if name == "ray" else None)


# --- files that are written ------------------------------------------------------------------------------------------


def check_output(path: Path | None, *, is_forced: bool = True, is_folder: bool = False) -> None:
    """Refuses a file (or folder) of --out that exists already or cannot be written, before hours of work.

    Raises:
        UsageError: It would be lost, or is a folder instead of a file or the other way round.
        ResourceError: It is in a folder that does not exist or cannot be written to.
    """
    if path is None:
        return
    if os.path.lexists(path) and path.is_dir() != is_folder:
        wrong, right = ("file", "folder") if is_folder else ("folder", "file")
        raise UsageError(f"--out '{path}' is a {wrong}, and a {right} is needed. Choose another name.")
    if path.exists() and not is_forced:
        raise UsageError(f"--out '{path}' exists and would be lost. Choose another name, or overwrite it with --force.")
    place = path.absolute()
    while is_folder and not os.path.lexists(place):
        place = place.parent
    folder = place if is_folder else place.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        reason = "is not a folder" if not folder.is_dir() else "is not writable"
        raise ResourceError(f"--out: '{folder}' {reason}, so the results would be lost. Choose another folder.")


# --- the library -----------------------------------------------------------------------------------------------------


def find_library_folder(folder: Path | None) -> Path:
    """The folder of the library, whether or not it exists."""
    from task2vec.library import find_library

    place = find_library(folder)
    if place.exists() and not place.is_dir():
        raise UsageError(f"'{place}' is a file, and a library is a folder. Name its folder: --library DIR")
    return place


def open_if_any(folder: Path | None) -> "Library | None":
    """The library, or None if there is none: looking at it creates no folders."""
    from task2vec.library import Library, has_library

    return Library.open(folder) if has_library(find_library_folder(folder)) else None


def open_existing(folder: Path | None) -> "Library":
    """The library, which must exist."""
    library = open_if_any(folder)
    if library is None:
        raise UsageError(
            f"there is no library in '{find_library_folder(folder)}'. {FIRST}, or choose another one: --library DIR"
        )
    return library


def format_empty(folder: Path | None) -> str:
    """What to print for a library without tasks."""
    return f"The library in '{printable(find_library_folder(folder))}' is empty. {name_library(FIRST)}"


@dataclass
class Session:
    """Where embeddings are looked up before they are computed, and saved afterwards: the library, and a folder.

    Attributes:
        library: None if there is none, or it is not used.
        folder: for files; None for none.
        tags: for all tasks that are added.
        is_forced: whether known embeddings are computed again and replaced.
        is_read_only: whether nothing can be added to the library.
        names: the names of the tasks in the library, by their fingerprints.
        files: files that were written because the library refused the embedding, by the tasks' fingerprints.
        refusals: why it did.
    """

    library: "Library | None" = None
    folder: Path | None = None
    tags: tuple[str, ...] = ()
    is_forced: bool = False
    is_read_only: bool = False
    names: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    refusals: dict[str, Task2VecError] = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        """Where embeddings are saved."""
        library = None if self.library is None or self.is_read_only else self.library.folder
        return [str(place) for place in (library, self.folder) if place is not None]

    def find(self, task: "Task", probe: "Probe", *, settings: "EmbedSettings") -> "Embedding | None":
        """The embedding that would be computed again, if the library has it intact; its task gets the tags."""
        if self.library is None or self.is_forced:
            return None
        known = self.library.find(task, probe, settings=settings)
        if known is not None:
            self.names[task.fingerprint] = known.task
            if self.tags and not self.library.is_read_only:
                self.library.add(known, tags=self.tags)
        return known

    def keep(self, embedding: "Embedding", *, source: str = "") -> None:
        """Adds an embedding; one that the library refuses is written to a file, so that it is not lost."""
        if self.library is None or self.is_read_only:
            return
        fingerprint = embedding.provenance["task_fingerprint"]
        try:
            (added,) = self.library.add(embedding, tags=self.tags, source=source, replace=self.is_forced)
            self.names[fingerprint] = added.name
        except Task2VecError as error:
            self.refusals[fingerprint] = error
            where = ""
            if self.folder is None:
                file = Path(f"task-{fingerprint[:16]}-{embedding.probe_fingerprint[:8]}{SUFFIX}")
                place = self.files[fingerprint] = embedding.save(file)
                where = f"; it is in '{printable(place)}' instead"
            say(f"warning: '{printable(embedding.task)}' was not added to the library{where}: {printable(error)}")


@contextmanager
def open_session(
    library: Path | None,
    command: str,
    details: dict[str, Any],
    *,
    no_library: bool = False,
    folder: Path | None = None,
    tags: Sequence[str] = (),
    is_forced: bool = False,
) -> Iterator[Session]:
    """A session whose run is recorded in the library; where that cannot be written, a warning is printed.

    Raises:
        LibraryError: The library is damaged or of a newer version: better reported now than after the work.
    """
    from task2vec.library import Library, check_tags

    check_tags(tags)
    session = Session(None, folder, tags=tuple(tags), is_forced=is_forced)
    with ExitStack() as stack:
        try:
            if not no_library:
                session.library = stack.enter_context(Library.open(find_library_folder(library)))
                stack.enter_context(session.library.record(command, details))
        except ResourceError as error:
            session.is_read_only = True
            say(f"warning: nothing is saved to the library: {printable(error)}")
        except LibraryError as error:
            raise LibraryError(f"{error} To work without the library this time: --no-library") from error
        yield session


def embed_tasks(
    tasks: "Sequence[Task]", probe: "Probe", session: Session, *, settings: "EmbedSettings", is_one: bool, **how: Any
) -> "Iterator[TaskResult]":
    """The embeddings of tasks, from the library or new and added to it; the error of a single task is raised."""
    import task2vec

    how["progress"] = is_watched()
    if not is_one:
        folder = None if session.is_forced else session.folder
        yield from task2vec.embed_many(tasks, probe, settings=settings, folder=folder, library=session, **how)
        return
    (task,) = tasks
    found = session.find(task, probe, settings=settings)
    embedding = found or task2vec.embed(task, probe, settings=settings, **how)
    if found is None:
        session.keep(embedding, source=task.source)
    yield task2vec.TaskResult(0, task.name, replace(embedding, task=task.name), None, found is not None)


# --- words -> embeddings ---------------------------------------------------------------------------------------------

LIBRARY, FILE, PATH = "library", "file", "path"


@dataclass(frozen=True)
class Query:
    """An embedding that a word of the command line stands for: of the library, of a file, or new, and its origin."""

    embedding: "Embedding"
    origin: str
    description: str


def list_embedding_files(places: Sequence[Path]) -> list[Path]:
    """The files that were named, and the embeddings of the folders that were, each once."""
    found: dict[Path, Path] = {}
    for place in places:
        files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place] if place.exists() else []
        if not files:
            raise UsageError(
                f"there is no embedding (*.safetensors) at '{place}', so there is nothing to use. Check the spelling; "
                f"if it is a folder of images: task2vec embed {place}"
            )
        found |= {file.resolve(): file for file in files}
    return list(found.values())


def find_origin(query: str, library: Path | None) -> str:
    """Whether a word stands for a task of the library, a saved embedding, or a folder or table.

    What exists as a path is that, unless it is a mere name without a separator and the library has a task of that name.
    """
    path = Path(query)
    if not path.exists():
        return LIBRARY
    is_path = any(mark in query for mark in (os.sep, os.altsep) if mark) or query in (os.curdir, os.pardir)
    opened = None if is_path else open_if_any(library)
    if opened is not None:
        with opened:
            if any(task.name == query for task in opened.tasks()):
                return LIBRARY
    return FILE if path.is_file() and path.suffix == ".safetensors" else PATH


def load_query(query: str, library: Path | None, *, allow_bad: bool = False) -> Query:
    """The embedding that a word stands for; a folder or table is embedded with default settings."""
    import task2vec

    origin = find_origin(query, library)
    if origin == FILE:
        return Query(task2vec.load_embedding(query), FILE, f"from the file '{query}'")
    if origin == LIBRARY:
        other = f" (for the folder or file: {os.path.join(os.curdir, query)})" if Path(query).exists() else ""
        return Query(_get_named(query, library), LIBRARY, f"from the library{other}")
    with open_session(library, "embed", {"paths": [query]}) as session:
        task = read_own(Path(query), Reading(allow_bad=allow_bad))
        say_bad(task.bad)
        settings = task2vec.EmbedSettings()
        (result,) = embed_tasks([task], task2vec.load_probe(DEFAULT_PROBE), session, settings=settings, is_one=True)
    known_as = session.names.get(task.fingerprint, task.name)
    known = f", known there as '{known_as}'" if known_as != task.name else ""
    state = "found in the library" if result.is_found else "embedded now"
    assert result.embedding is not None
    return Query(result.embedding, PATH, f"from '{query}', {state}{known}")


def _get_named(query: str, library: Path | None) -> "Embedding":
    """The embedding of the library with that name or key."""
    opened = open_if_any(library)
    if opened is None:
        raise NotInLibraryError(
            f"there is no folder or file '{query}', and no library in '{find_library_folder(library)}' with such a "
            "task. Check the spelling, or embed a folder: task2vec embed FOLDER"
        )
    with opened:
        try:
            return opened.get(query)
        except NotInLibraryError as error:
            raise NotInLibraryError(f"{error} (There is no folder or file '{query}' either.)") from error
