"""What a library holds, as plain values: their types, how names find them, and how they are read from the tables."""

import difflib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any, Literal, TypeVar

from task2vec.errors import AmbiguousNameError, LibraryError, NotInLibraryError, Task2VecError, UsageError

SOURCES = ("timm", "hub", "file")
LONGEST = 1 << 16  # characters of a text
DEEPEST = 20
_LARGEST_COST = 1e300
_LARGEST_INTEGER = 1 << 63
_SHORTEST = 4  # digits of a fingerprint or key that may stand for the whole
_TASK = "id, fingerprint, name, images, classes, counts, is_multilabel, taxon, source, added"
_EMBEDDING = (
    "e.id, e.key, s.probe, s.probe_fingerprint, e.settings, e.recipe, e.norm, e.cv_error, e.has_halves, e.sha256, "
    "e.bytes, e.added, e.task"
)

Text = TypeVar("Text", str, str | None)


# --- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EmbeddingEntry:
    """One embedding of a task in a library.

    Attributes:
        id: its number in this library.
        key: SHA-256 of all that determines it: the task's content, the probe, the settings, the recipe.
        probe: name of the probe.
        probe_fingerprint: of its weights and preprocessing.
        settings: of `embed`.
        recipe: the version of the algorithm; None if unknown.
        norm: L1 norm of the Fisher.
        cv_error: cross-validated error of the head; None if unknown.
        has_halves: whether the noise of its distances can be estimated.
        sha256: of its content.
        bytes: length of its content.
        added: when, in UTC.
    """

    id: int
    key: str
    probe: str
    probe_fingerprint: str
    settings: Mapping[str, Any]
    recipe: int | None
    norm: float
    cv_error: float | None
    has_halves: bool
    sha256: str
    bytes: int
    added: str


@dataclass(frozen=True)
class TaskEntry:
    """A task in a library, with its embeddings.

    Attributes:
        id: its number in this library.
        fingerprint: SHA-256 of its images and their partition.
        name: the name it was added or renamed to.
        images: how many it has.
        classes: their names.
        counts: images of each class.
        is_multilabel: whether an image may have any number of classes.
        taxon: its place in a taxonomy, if known.
        source: the folder or table that it was read from, as it was given.
        added: when, in UTC.
        tags: in alphabetical order.
        embeddings: by id.
    """

    id: int
    fingerprint: str
    name: str
    images: int
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    is_multilabel: bool
    taxon: str | None
    source: str
    added: str
    tags: tuple[str, ...] = ()
    embeddings: tuple[EmbeddingEntry, ...] = ()


@dataclass(frozen=True)
class Expert:
    """A feature extractor, and where to load it from; nothing is loaded here.

    Attributes:
        name: unique in a library.
        source: "timm" (a name that timm knows), "hub" (an id of a model hub) or "file" (weights on a disk).
        location: that name, id or path.
        task: fingerprint of the task it was trained on; None if unknown.
        recipe: how it was trained.
        parameters: how many it has.
        input_size: side of the images it takes, in pixels.
        cost: of one image, in billions of multiplications.
        sha256: of its file of weights.

    Example:
        >>> Expert("generic", "timm", "resnet34", parameters=21_284_672, input_size=224).location
        'resnet34'
    """

    name: str
    source: Literal["timm", "hub", "file"]
    location: str
    task: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    input_size: int | None = None
    cost: float | None = None
    sha256: str | None = None

    def __post_init__(self):
        """Refuses values that no expert can have."""
        for name in ("name", "location", "task", "sha256"):
            if not check_text(getattr(self, name), name, may_be_none=True) and name in ("name", "location"):
                raise UsageError(f"an expert without a {name} could not be found again. Give it as text.")
        if self.source not in SOURCES:
            raise UsageError(
                f"the expert '{self.name}' has the source {self.source!r}, from which nothing can be loaded. "
                f"Choose one of: {', '.join(SOURCES)}"
            )
        for name in ("parameters", "input_size", "cost"):
            value = getattr(self, name)
            if name != "cost":
                check_integer(value, name)
            is_size = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COST
            if value is not None and not is_size:
                raise UsageError(
                    f"the {name} of the expert '{self.name}' must be a number from 0 on. Give one, or None."
                )
        if not isinstance(self.recipe, Mapping):
            raise UsageError(f"the recipe of the expert '{self.name}' must be a dictionary. Give one.")
        to_json(dict(self.recipe), f"recipe of the expert '{self.name}'")


@dataclass(frozen=True)
class MeasuredError:
    """The test error of one task on top of one expert.

    Attributes:
        task: fingerprint of the task.
        expert: name of the expert.
        error: between 0 and 1.
        protocol: how it was measured; only equal ones can be compared.
        seed: of the split and of all randomness.
        low: lower end of its confidence interval, if known.
        high: upper end of it.
        measured: when, in UTC; the moment of adding, if left out.
        measured_by: by whom.
    """

    task: str
    expert: str
    error: float
    protocol: str
    seed: int = 0
    low: float | None = None
    high: float | None = None
    measured: str | None = None
    measured_by: str = ""

    def __post_init__(self):
        """Refuses values that no error can have."""
        for name in ("task", "expert", "protocol", "measured_by"):
            check_text(getattr(self, name), name)
        check_text(self.measured, "measured", may_be_none=True)
        if self.seed is None:
            raise UsageError("an error without its seed could not be told from others. Give the seed of the split.")
        check_integer(self.seed, "seed")
        for name in ("error", "low", "high"):
            value = getattr(self, name)
            if value is None and name != "error":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                raise UsageError(
                    f"{name}={value!r} of the task {self.task[:8]} on the expert '{self.expert}' is not an error: "
                    "errors are fractions of the test images, from 0 to 1. Divide percentages by 100."
                )


@dataclass(frozen=True)
class RunEntry:
    """A run that was recorded; `ended` is None if it is still going on or was killed."""

    id: int
    what: str
    details: Mapping[str, Any]
    started: str
    ended: str | None
    outcome: str | None


@dataclass(frozen=True)
class Added:
    """The outcome of adding one thing.

    Attributes:
        kind: "task", "embedding", "expert" or "error".
        name: of the task or expert in the library, which may differ from the one given.
        key: of the embedding, fingerprint of the task, or name of the expert.
        is_new: False if the very same was there already.
    """

    kind: str
    name: str
    key: str
    is_new: bool


@dataclass(frozen=True)
class Neighbour:
    """A task near another one, and the symmetric distance between their embeddings."""

    task: TaskEntry
    embedding: EmbeddingEntry
    distance: float


# --- checks of values from outside -----------------------------------------------------------------------------------


def check_text(value: Text, name: str, *, may_be_none: bool = False) -> Text:
    """The text itself.

    Raises:
        UsageError: It is not a text, is longer than any name, or has lone surrogates, as names of files that are not
            UTF-8 do.

    Example:
        >>> check_text("Vögel", "name")
        'Vögel'
    """
    if value is None and may_be_none:
        return value
    if not isinstance(value, str):
        raise UsageError(f"{name}={_shorten(value)} is not a text, so it cannot be listed. Give a text.")
    if len(value) > LONGEST:
        raise UsageError(f"the {name} has {len(value)} characters, which is too long to list. Give at most {LONGEST}.")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UsageError(f"the {name} {value[:80]!r} is not valid Unicode, so it cannot be saved. Rename it.")
    return value


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags as a tuple; a single text is one tag, not its letters."""
    found = (tags,) if isinstance(tags, str) else tuple(tags)
    for tag in found:
        if not check_text(tag, "tag").strip():
            raise UsageError(
                f"{tag!r} is not a tag, because nobody could search for it. Give texts that are not empty."
            )
    return found


def check_integer(value: int | None, name: str) -> None:
    """Raises an error unless it is None or an integer that SQLite can hold."""
    is_fine = isinstance(value, int) and not isinstance(value, bool) and -_LARGEST_INTEGER <= value < _LARGEST_INTEGER
    if value is not None and not is_fine:
        raise UsageError(f"{name}={_shorten(value)} is not an integer that can be saved. Give one below 2^63.")


def to_json(content: object, name: str) -> str:
    """Plain values as JSON, of limited length and depth.

    Raises:
        UsageError: It has other types, NaN or infinities, or is nested so deeply that it might not be read again.

    Example:
        >>> to_json({"epochs": 3}, "recipe")
        '{"epochs": 3}'
    """
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the {name} cannot be saved as JSON ({error}). Use texts, finite numbers, lists and dictionaries."
        ) from error
    depth, level = 0, [content]
    while level := [inner for one in level for inner in _list_values(one)]:
        depth += 1
    if len(text) > LONGEST or depth > DEEPEST:
        raise UsageError(
            f"the {name} has {len(text)} characters at a depth of {depth}, which is too much to list. Give at most "
            f"{LONGEST} characters and {DEEPEST} nested lists."
        )
    return text


def _list_values(value: object) -> list:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _shorten(value: object) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # Python writes no integers of more than 4,300 digits
        return "a huge number"


# --- reading from the tables -----------------------------------------------------------------------------------------


@contextmanager
def expect_sound_rows() -> Iterator[None]:
    """Turns whatever a damaged row of a table raises into a LibraryError."""
    try:
        yield
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        if isinstance(error, Task2VecError) and not isinstance(error, UsageError):
            raise
        raise LibraryError(
            f"a row of the library is damaged ({type(error).__name__}: {error}), so the list cannot be trusted. "
            "List what is damaged: task2vec library verify; then run: task2vec library repair"
        ) from error


@expect_sound_rows()
def list_tasks(connection: Connection, ids: Sequence[int] | None = None) -> list[TaskEntry]:
    """All tasks with their embeddings and tags by name, or those with the given ids in that order."""
    where, values = ("", ()) if ids is None else ("IN (SELECT value FROM json_each(?))", (json.dumps(list(ids)),))

    def select(query: str, column: str) -> list[tuple]:
        return connection.execute(f"{query} WHERE {column} {where}" if where else query, values).fetchall()

    embeddings, tags = defaultdict(list), defaultdict(list)
    for *fields, task in sorted(
        select(f"SELECT {_EMBEDDING} FROM embeddings e JOIN spaces s ON s.id = e.space", "e.task")
    ):
        embeddings[task].append(_make_embedding(fields))
    for task, tag in sorted(select("SELECT task, tag FROM tags", "task")):
        tags[task].append(tag)
    rows = select(f"SELECT {_TASK} FROM tasks", "id")
    order = {} if ids is None else {one: place for place, one in enumerate(ids)}
    rows.sort(key=lambda row: (row[2], row[0]) if ids is None else order[row[0]])
    return [_make_task(row, tags[row[0]], embeddings[row[0]]) for row in rows]


@expect_sound_rows()
def list_experts(connection: Connection) -> list[Expert]:
    """All experts by name."""
    rows = connection.execute(
        "SELECT name, source, location, task, recipe, parameters, input_size, cost, sha256 FROM experts ORDER BY name"
    )
    return [
        Expert(name, source, location, task, json.loads(recipe), *sizes)
        for name, source, location, task, recipe, *sizes in rows
    ]


@expect_sound_rows()
def list_errors(connection: Connection, protocol: str | None = None) -> list[MeasuredError]:
    """All measured errors, or those of one protocol, by task, expert and seed."""
    rows = connection.execute(
        "SELECT t.fingerprint, x.name, e.error, e.protocol, e.seed, e.low, e.high, e.measured, e.measured_by FROM "
        "errors e JOIN tasks t ON t.id = e.task JOIN experts x ON x.id = e.expert WHERE ? IS NULL OR e.protocol = ? "
        "ORDER BY t.name, t.id, x.name, e.protocol, e.seed",
        (protocol, protocol),
    )
    return [MeasuredError(*row) for row in rows]


@expect_sound_rows()
def list_runs(connection: Connection) -> list[RunEntry]:
    """All recorded runs, oldest first."""
    rows = connection.execute("SELECT id, what, details, started, ended, outcome FROM runs ORDER BY id")
    return [RunEntry(row[0], row[1], json.loads(row[2]), *row[3:]) for row in rows]


@expect_sound_rows()
def count_everything(connection: Connection) -> dict[str, Any]:
    """The number of entries of every kind, the bytes of all embeddings, and the spaces that these are in."""
    kinds = ("tasks", "embeddings", "experts", "errors", "runs")
    counts = {kind: connection.execute(f"SELECT count(*) FROM {kind}").fetchone()[0] for kind in kinds}
    size = connection.execute("SELECT coalesce(sum(bytes), 0) FROM embeddings").fetchone()[0]
    spaces = connection.execute(
        "SELECT s.probe, s.probe_fingerprint, s.settings, s.filters, count(e.id) FROM spaces s "
        "JOIN embeddings e ON e.space = s.id GROUP BY s.id ORDER BY count(e.id) DESC, s.id"
    ).fetchall()
    names = ("probe", "probe_fingerprint", "settings", "filters", "embeddings")
    found = [dict(zip(names, row, strict=True)) | {"settings": json.loads(row[2])} for row in spaces]
    return {**counts, "bytes": size, "spaces": found}


def find_task(connection: Connection, what: str) -> TaskEntry:
    """The task of that name, or whose fingerprint begins so."""
    found = find_tasks(connection, what)
    if len(found) > 1:
        choices = "; ".join(f"{one.fingerprint[:8]} ({one.images} images, {one.added[:10]})" for one in found)
        raise AmbiguousNameError(
            f"{len(found)} tasks of the library are called '{what}', so the name is ambiguous. Name one by the first "
            f"digits of its fingerprint: {choices}"
        )
    if not found:
        raise NotInLibraryError(_describe_missing(connection, what))
    return found[0]


def find_tasks(connection: Connection, what: str) -> list[TaskEntry]:
    """All tasks of that name; if there is none, those whose fingerprint begins so."""
    check_text(what, "name")
    rows = connection.execute("SELECT id FROM tasks WHERE name = ? ORDER BY id", (what,)).fetchall()
    if not rows and (prefix := _as_prefix(what)):
        rows = connection.execute(
            "SELECT id FROM tasks WHERE fingerprint >= ? AND fingerprint < ? || 'g' ORDER BY id", (prefix, prefix)
        ).fetchall()
    return list_tasks(connection, [row[0] for row in rows])


def find_embedding(
    connection: Connection, what: str, *, probe: str | None = None, method: str | None = None
) -> tuple[TaskEntry, EmbeddingEntry]:
    """The embedding of a task, or whose key begins so."""
    prefix = _as_prefix(what)
    if prefix and not find_tasks(connection, what):
        rows = connection.execute(
            "SELECT id, task FROM embeddings WHERE key >= ? AND key < ? || 'g'", (prefix, prefix)
        ).fetchall()
        if len(rows) == 1:
            (task,) = list_tasks(connection, [rows[0][1]])
            return task, next(one for one in task.embeddings if one.id == rows[0][0])
        if rows:
            raise AmbiguousNameError(
                f"the keys of {len(rows)} embeddings begin with '{what}', so it is ambiguous. Give more digits."
            )
    task = find_task(connection, what)
    fitting = [
        one
        for one in task.embeddings
        if (probe is None or probe == one.probe or one.probe_fingerprint.startswith(probe))
        and (method is None or method == one.settings.get("method"))
    ]
    if len(fitting) == 1:
        return task, fitting[0]
    if not task.embeddings:
        raise NotInLibraryError(
            f"the task '{task.name}' is in the library without an embedding. Embed it: task2vec embed FOLDER"
        )
    choices = "; ".join(_format_embedding(one) for one in fitting or task.embeddings)
    if not fitting:
        wanted = " ".join(part for part in (probe, method) if part)
        raise NotInLibraryError(f"the task '{task.name}' has no embedding by {wanted}. It has: {choices}")
    raise AmbiguousNameError(
        f"the task '{task.name}' has {len(fitting)} embeddings, so the name is ambiguous. Name one by the first digits "
        f"of its key: {choices}"
    )


def _format_embedding(entry: EmbeddingEntry) -> str:
    """An embedding in a list of several; probes of one name may differ in weights or image size."""
    probe = f"{entry.probe} {entry.probe_fingerprint[:8]}"
    return f"{entry.key[:8]} ({probe}, {entry.settings.get('method')}, {entry.added[:10]})"


def _describe_missing(connection: Connection, what: str) -> str:
    names = [row[0] for row in connection.execute("SELECT DISTINCT name FROM tasks")]
    if not names:
        return f"there is no '{what}' in the library: it is empty. Add a task: task2vec embed FOLDER"
    close = difflib.get_close_matches(what, names, n=3)
    hint = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return f"there is no task '{what}' in the library.{hint} List all tasks: task2vec library ls"


def _as_prefix(what: str) -> str | None:
    """`what` in lower case if it can be the beginning of a fingerprint or key."""
    digits = what.lower()
    return digits if len(digits) >= _SHORTEST and set(digits) <= set("0123456789abcdef") else None


def _make_task(row: Sequence, tags: Sequence[str], embeddings: Sequence[EmbeddingEntry]) -> TaskEntry:
    number, fingerprint, name, images, classes, counts, is_multilabel, taxon, source, added = row
    _check_types(fingerprint, name, source, added, *tags)
    return TaskEntry(
        number, fingerprint, name, images, tuple(json.loads(classes)), tuple(json.loads(counts)), bool(is_multilabel),
        taxon, source, added, tuple(tags), tuple(embeddings),
    )  # fmt: skip


def _make_embedding(row: Sequence) -> EmbeddingEntry:
    number, key, probe, fingerprint, settings, recipe, norm, cv_error, has_halves, sha256, size, added = row
    _check_types(key, probe, fingerprint, sha256, added)
    return EmbeddingEntry(
        number, key, probe, fingerprint, json.loads(settings), recipe, norm, cv_error, bool(has_halves), sha256, size,
        added,
    )  # fmt: skip


def _check_types(*texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} instead of a text")
