"""What paths and options stand for: tasks to read, a probe, settings, a backend, and files to write."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import task2vec
from task2vec import errors
from task2vec.cli.app import is_watched, say, say_all
from task2vec.cli.options import Compute, ProbeOptions, Reading, SettingsOptions, spell
from task2vec.errors import DataError, ResourceError, UsageError
from task2vec.text import printable

if TYPE_CHECKING:
    from task2vec.experts.protocol import MatchedTest
    from task2vec.tasks.catalog import TaskDefinition

TABLE, FOLDER = "table", "folder"
# Why some tasks of a published dataset cannot be read.
REASONS = {
    errors.TooFewClassesError: "fewer than two of its classes have images. Raise --max-images, or use another --split.",
    errors.BadImagesError: "over 5% of its images are unreadable. Repair or remove them, or pass --allow-bad.",
}


@dataclass
class Tasks:
    """The tasks of several paths, what failed and why, and test images by the fingerprint of their task."""

    tasks: "list[task2vec.Task]" = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    tests: "dict[str, MatchedTest]" = field(default_factory=dict)

    def fail(self, name: object, error: Exception) -> None:
        """Notes a failure and prints it now: what follows may take hours."""
        bad = [asdict(image) for image in getattr(error, "bad", ())]
        self.failed.append({"name": str(name), "reason": str(error), "bad": bad})
        say(f"failed: {printable(name)}: {printable(error)}")


def recognize_path(path: Path, reading: Reading) -> str:
    """What a path is: a table, a folder of class folders, or a published dataset, by the name of its layout."""
    from task2vec.tasks import recognize_layout
    from task2vec.tasks.columns import SUFFIXES
    from task2vec.tasks.folder import refuse_archive

    if not os.path.exists(path):
        raise UsageError(f"'{path}' does not exist, so there is nothing to read. Check the path and the spelling.")
    if path.is_dir():
        return reading.layout or recognize_layout(path) or FOLDER
    if path.suffix.lower() in SUFFIXES:
        return TABLE
    refuse_archive(path)
    raise UsageError(
        f"'{path}' is neither a folder nor a table, so it has no labels to learn. Name a folder with one folder "
        f"per class, or a file ending in {', '.join(SUFFIXES)}."
    )


def recognize_paths(paths: Sequence[Path], reading: Reading) -> dict[Path, str]:
    """What each path is; an option that applies to none of them is refused."""
    from task2vec.tasks.folder import find_huggingface, find_split

    layouts = {path: recognize_path(path, reading) for path in paths}
    for path, times in Counter(path.resolve() for path in paths).items():
        if times > 1:
            raise UsageError(f"'{path}' is given twice, so its tasks would be the same. Give it once.")
    known = set(layouts.values())
    published = known - {TABLE, FOLDER}
    has_huggingface = any(layout == FOLDER and find_huggingface(path) for path, layout in layouts.items())
    for names, applies, target in (
        ("root separator header", TABLE in known, "a table (.csv, .tsv, .txt, .parquet)"),
        ("path_column", TABLE in known or has_huggingface, "a table or a Hugging Face dataset"),
        ("label_level label_pattern group_level", FOLDER in known, "a folder"),
        ("label_columns group", known & {TABLE, FOLDER}, "a folder or a table"),
        ("task_names kind max_images", published, "a published dataset (see task2vec tasks)"),
        ("layout", published or reading.layout == FOLDER, "a published dataset (see task2vec tasks)"),
        ("labels", "imaterialist" in published, "an iMaterialist dataset"),
        ("split", known != {TABLE}, "a folder or a published dataset"),
        ("test_split", published == known, "published datasets (see task2vec tasks), which know their test images"),
        ("test_split", not reading.one_vs_rest, "tasks as they are published, without --one-vs-rest"),
    ):
        given = list_given({name: getattr(reading, name) for name in names.split()})
        if given and not applies:
            raise UsageError(f"{given} only applies to {target}, but no path is one. Remove {given}.")
    for path, layout in layouts.items():
        if layout == FOLDER and reading.split is not None and find_huggingface(path) is None:
            find_split(path, reading.split)
    return layouts


def is_single(layouts: dict[Path, str], reading: Reading) -> bool:
    """Whether the paths stand for a single task, whatever is in them."""
    is_plain = set(layouts.values()) <= {TABLE, FOLDER}
    return len(layouts) == 1 and not reading.one_vs_rest and (is_plain or len(set(reading.task_names or ())) == 1)


def list_given(options: dict[str, Any]) -> str:
    """Those of the options that were given, as they are spelled on the command line; empty if none was."""
    given = {key: value for key, value in options.items() if value or value is False}
    return ", ".join(f"--{'no-' if value is False else ''}{spell(key)}" for key, value in given.items())


def read_paths(layouts: dict[Path, str], reading: Reading) -> Tasks:
    """The tasks of all paths; one of several that cannot be read is reported, and the others are read."""
    tasks = Tasks()
    read: list[tuple[Path, str, task2vec.Task]] = []
    is_of_tables = TABLE in layouts.values()
    for path, layout in layouts.items():
        # Of a folder, the label columns are those of a table beside it, unless other paths are tables.
        given = replace(reading, label_columns=None) if is_of_tables and layout == FOLDER else reading
        try:
            read += [(path, layout, task) for task in read_path(path, layout, given, tasks)]
        except (DataError, ResourceError) as error:
            if is_single(layouts, reading):
                raise
            say_bad(getattr(error, "bad", ()), path, layout, reading)
            tasks.fail(path, error)
    times = Counter(task.name for *_, task in read)
    for path, layout, task in read:
        if times[task.name] > 1 and layout in (TABLE, FOLDER):  # named by its path, which no other has
            task = replace(task, name=str(path if layout == TABLE else path.parent / task.name))
        is_binary = len(task.classes) == 2 and not task.is_multilabel
        try:
            tasks.tasks += [task] if is_binary or not reading.one_vs_rest else task.one_vs_rest()
        except DataError as error:
            tasks.fail(task.name, error)
    return tasks


def read_path(path: Path, layout: str, reading: Reading, tasks: Tasks) -> "list[task2vec.Task]":
    """The tasks of one path; unreadable images are named, and tasks of a published dataset that fail go to `tasks`."""
    from task2vec.tasks.columns import HuggingFaceFilesError

    options: dict[str, Any] = {"allow_bad": reading.allow_bad, "num_workers": reading.num_workers}
    options["progress"] = is_watched()
    about: dict[str, Any] = {"name": reading.name, "group": reading.group}
    about["label_columns"] = reading.label_columns or None
    try:
        if layout == FOLDER:
            levels = {name: getattr(reading, name) for name in ("label_level", "label_pattern", "group_level", "split")}
            read = [task2vec.read_folder(path, **levels, **about, **options)]
        elif layout == TABLE:
            text = {name: getattr(reading, name) for name in ("path_column", "root", "separator", "header")}
            read = [task2vec.read_table(path, **text, **about, **options)]
        else:
            read = _read_published(path, layout, reading, tasks, options)
    except HuggingFaceFilesError:
        about["image_column"] = reading.path_column
        read = [task2vec.from_huggingface(path, reading.split, **about, **options)]
    say_all(f"reading {printable(path)}", (note for task in read for note in task.notes if "in column" in note))
    tests = [tasks.tests[task.fingerprint].test for task in read if task.fingerprint in tasks.tests]
    say_bad({image.path: image for task in [*read, *tests] for image in task.bad}.values(), path, layout, reading)
    return read


def _read_published(
    path: Path, layout: str, reading: Reading, tasks: Tasks, options: dict[str, Any]
) -> "list[task2vec.Task]":
    """The chosen tasks of a published dataset, of the training split by default if their test images are asked for."""
    from task2vec.experts.protocol import match_test

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
    options |= {"images": reading.max_images, "seed": reading.seed}
    if reading.test_split is None:
        read = list(_read_defined(catalog, chosen, reading.split, tasks, options).values())
        return [replace(read[0], name=reading.name)] if reading.name and len(chosen) == 1 else read
    split = reading.split or next(iter(catalog.splits))
    if split == reading.test_split:
        raise UsageError(
            f"--test-split {split} is the split that is trained on, so the errors would be those of training. Choose "
            f"another one for it, or for --split: {', '.join(catalog.splits)}"
        )
    tests = _read_defined(catalog, chosen, reading.test_split, tasks, options)
    matched = []
    for definition, task in _read_defined(catalog, list(tests), split, tasks, options).items():
        try:
            tasks.tests[task.fingerprint] = match_test(task, tests[definition])
            matched.append(task)
        except DataError as error:
            tasks.fail(task.name, error)
    return matched


def _read_defined(
    catalog: "task2vec.Catalog", chosen: "list[TaskDefinition]", split: str | None, tasks: Tasks, options: Any
) -> "dict[TaskDefinition, task2vec.Task]":
    """The chosen tasks on one split; of several, those that fail are left out and reported."""
    is_only = len(chosen) == 1
    while chosen:
        try:
            return dict(zip(chosen, catalog.tasks(chosen, split=split, **options), strict=True))
        except tuple(REASONS) as error:
            if is_only or not error.tasks:
                raise
            say(f"failed: {printable(error)}")
            failed = sorted({getattr(task, "name", task) for task in error.tasks})
            names = [catalog.name_task(name, split=split) for name in failed]
            tasks.failed += [{"name": name, "reason": REASONS[type(error)], "bad": []} for name in names]
            chosen = [definition for definition in chosen if definition.name not in failed]
    return {}


def read_own(path: Path, reading: Reading) -> "task2vec.Task":
    """The task of a table or of a folder of class folders; a published dataset, which has many tasks, is refused."""
    ((_, layout),) = recognize_paths([path], reading).items()
    if layout not in (TABLE, FOLDER):
        raise UsageError(
            f"'{path}' is {layout}, a dataset of many tasks, so it is unclear which to use. List them: task2vec tasks "
            f"{path}; then embed one: task2vec embed {path} --task NAME"
        )
    return read_path(path, layout, reading, Tasks())[0]


def say_bad(bad: "Iterable[task2vec.BadImage]", path: Path, layout: str, reading: Reading) -> None:
    """Names the unreadable images of a path, one per line."""
    root = reading.root or path.parent if layout == TABLE else path / (reading.split or "" if layout == FOLDER else "")
    say_all("unreadable", (f"{root / image.path}: {image.reason}" for image in bad))


def load_probe(chosen: ProbeOptions) -> "task2vec.Probe":
    """The probe of the options; the first line is printed before the seconds that the imports take."""
    say(f"loading {printable(chosen.probe)} ...")
    return task2vec.load_probe(chosen.probe, weights=chosen.weights, size=chosen.size, download=chosen.download)


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
    """Refuses a file (or folder) that exists already or cannot be written, before hours of work."""
    if path is None:
        return
    if os.path.lexists(path) and path.is_dir() != is_folder:
        actual, needed = ("file", "folder") if is_folder else ("folder", "file")
        raise UsageError(f"{option} '{path}' is a {actual}, but a {needed} is needed. Choose another name.")
    if path.exists() and not is_forced:
        raise UsageError(f"{option} '{path}' exists and would be overwritten. Choose another name, or use --force.")
    folder = path.absolute() if is_folder else path.absolute().parent
    while is_folder and not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        reason = "is not writable" if folder.is_dir() else "is not a folder"
        raise ResourceError(f"{option}: '{folder}' {reason}, so the results would be lost. Choose another folder.")
