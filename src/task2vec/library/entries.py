"""What a library holds, as plain values: their types and checks, what identifies them, how they are read from tables.

Embeddings, exported files and damaged tables come from outside, so every value is checked.
"""

import difflib
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from task2vec.distance import SCALING
from task2vec.embedding import RECIPE, Embedding
from task2vec.embedding.embedding import decode_embedding
from task2vec.errors import AmbiguousNameError, DataError, LibraryError, NotInLibraryError, Task2VecError, UsageError
from task2vec.library.database import read_blob

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings
    from task2vec.probe import Probe
    from task2vec.tasks import Task

SOURCES = ("timm", "hub", "file")
LONGEST = 1 << 16  # characters of a text
DEEPEST = 20
_LARGEST_COST = 1e300
_LARGEST_INTEGER = 1 << 63
_FIX = "List all damage: task2vec library verify; then embed the task again, or import a good copy."
_HEX = set("0123456789abcdef")
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
            is_cost = name == "cost"
            if getattr(self, name) is not None:
                check_number(
                    getattr(self, name), name, highest=_LARGEST_COST if is_cost else None, is_whole=not is_cost
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
        check_number(self.seed, "seed", lowest=-_LARGEST_INTEGER)
        for name in ("error", "low", "high"):
            if getattr(self, name) is not None or name == "error":
                what = f"{name} of the task {self.task[:8]} on the expert '{self.expert}'"
                check_number(getattr(self, name), what, highest=1, is_whole=False)


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
        raise UsageError(f"{name}={value!r:.80} is not a text, so it cannot be listed. Give a text.")
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


def check_number(
    value: object, name: str, *, lowest: int = 0, highest: float | None = None, is_whole: bool = True
) -> None:
    """Raises an error unless it is a finite number within the limits; SQLite holds integers below 2^63."""
    kind = int if is_whole else int | float
    limit = _LARGEST_INTEGER - 1 if highest is None else highest
    if not isinstance(value, kind) or isinstance(value, bool) or not lowest <= value <= limit:
        what = "a whole number" if is_whole else "a number"
        raise UsageError(
            f"{name}={value!r:.80} is not {what} from {lowest} to {limit}, so it cannot be saved. Give one; errors are "
            "fractions, not percentages."
        )


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


# --- identity --------------------------------------------------------------------------------------------------------


def identify(embedding: Embedding) -> EmbeddingEntry:
    """The entry that `embedding` would be in a library, without its number, bytes and moment.

    Raises:
        DataError: It lacks its task, probe or settings.
    """
    return identify_with_task(embedding)[1]


def identify_with_task(embedding: Embedding) -> tuple[TaskEntry, EmbeddingEntry]:
    """The task of `embedding`, and its own entry; see `identify`."""
    provenance = embedding.provenance
    try:
        settings, recipe, counts = provenance["settings"], provenance.get("recipe"), provenance["counts"]
        if not isinstance(settings, dict):
            raise TypeError("settings")
        if recipe is not None and not _is_count(recipe):
            raise TypeError("recipe")
        task = read_task(
            {
                "fingerprint": provenance["task_fingerprint"],
                "name": embedding.task,
                "images": counts["images"],
                "classes": provenance["classes"],
                "counts": counts["per_class"],
                "is_multilabel": provenance["is_multilabel"],
            }
        )
        probe = check_hash(provenance["probe_fingerprint"], "probe_fingerprint")
        to_json(settings, "settings")
        key = hash_values([task.fingerprint, probe, settings, recipe])
        head = provenance.get("head")
        error = head.get("cv_error") if isinstance(head, dict) else None
        check_text(embedding.probe, "probe")
        if not len(embedding) or not all(_is_count(layer.filters) for layer in embedding.layers):
            raise ValueError("layers")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"the provenance of the embedding of '{embedding.task}' is incomplete ({type(error).__name__}: {error}), "
            "so a library could not tell it from others. Embed the task again: task2vec embed FOLDER"
        ) from error
    cv_error = float(error) if isinstance(error, int | float) and 0 <= error <= 1 else None
    has_halves = embedding.halves is not None
    own = (key, embedding.probe, probe, settings, recipe, embedding.norm(), cv_error, has_halves)
    return task, EmbeddingEntry(0, *own, sha256="", bytes=0, added="")


def describe_space(embedding: Embedding) -> tuple[str, str]:
    """The key of the space that `embedding` can be compared in, and the settings that define it, as JSON.

    Embeddings of one probe with its weights, and with the same values of all settings that change the scale, are
    comparable; the name of the probe does not matter.
    """
    settings = embedding.provenance.get("settings")
    chosen = {name: settings.get(name) for name in SCALING} if isinstance(settings, dict) else {}
    text = json.dumps(chosen, sort_keys=True, allow_nan=False)
    return hash_values([embedding.probe_fingerprint, len(embedding), text]), text


def key_of(task: "Task", probe: "Probe", settings: "EmbedSettings") -> str:
    """The key of the embedding that `embed` would give for these today."""
    return hash_values([task.fingerprint, probe.fingerprint, json.loads(json.dumps(settings.as_dict())), RECIPE])


def describe_task(task: "Task") -> TaskEntry:
    """The entry that `task` would be in a library."""
    counts = tuple(int(count) for count in task.counts)
    entry = (task.fingerprint, task.name, len(task), task.classes, counts, task.is_multilabel, None, task.source, "")
    return TaskEntry(0, *entry)


def is_same_vector(one: Embedding, other: Embedding) -> bool:
    """Whether two embeddings hold the same numbers, whatever their tasks are called and whoever made them."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("fisher", "stderr", "prior", "halves")]
    return all((a is None and b is None) or (a is not None and np.array_equal(a, b)) for a, b in pairs)


def read_task(fields: Mapping[str, Any]) -> TaskEntry:
    """A task from plain values, each checked.

    Raises:
        KeyError, TypeError, ValueError: One is missing or is not what it should be.
    """
    classes, counts, tags = fields["classes"], fields["counts"], fields.get("tags", [])
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise TypeError("classes")
    if not isinstance(counts, list) or len(counts) != len(classes) or not all(_is_count(count) for count in counts):
        raise TypeError("counts")
    if not _is_count(fields["images"]):
        raise TypeError("images")
    if not isinstance(tags, list) or any(not check_text(tag, "tag").strip() for tag in tags):
        raise TypeError("tags")
    for text in (fields["name"], *classes):
        check_text(text, "name")
    taxon, added = (check_text(fields.get(name), name, may_be_none=True) for name in ("taxon", "added"))
    return TaskEntry(
        0, check_hash(fields["fingerprint"], "fingerprint"), fields["name"], fields["images"], tuple(classes),
        tuple(counts), fields["is_multilabel"] is True, taxon, "", added or "", tuple(tags),
    )  # fmt: skip


def hash_values(content: Sequence[Any]) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def check_hash(value: object, name: str, *, length: int | None = None) -> str:
    """The value, if it is a hash in hexadecimal digits."""
    if not isinstance(value, str) or not 8 <= len(value) <= 128 or len(value) != (length or len(value)):
        raise ValueError(name)
    if not set(value) <= _HEX:
        raise ValueError(name)
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


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
    for *row, task in sorted(
        select(f"SELECT {_EMBEDDING} FROM embeddings e JOIN spaces s ON s.id = e.space", "e.task")
    ):
        _check_types(*row[1:4], row[9], row[11])
        row[4], row[8] = json.loads(row[4]), bool(row[8])
        embeddings[task].append(EmbeddingEntry(*row))
    for task, tag in sorted(select("SELECT task, tag FROM tags", "task")):
        tags[task].append(tag)
    rows = select(f"SELECT {_TASK} FROM tasks", "id")
    order = {} if ids is None else {one: place for place, one in enumerate(ids)}
    rows.sort(key=lambda row: (row[2], row[0]) if ids is None else order[row[0]])
    found = []
    for row in rows:
        number, (classes, counts) = row[0], map(json.loads, row[4:6])
        _check_types(*row[1:3], *row[8:], *tags[number])
        known = [*row[:4], tuple(classes), tuple(counts), bool(row[6]), *row[7:]]
        found.append(TaskEntry(*known, tags=tuple(tags[number]), embeddings=tuple(embeddings[number])))
    return found


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
    return digits if len(digits) >= _SHORTEST and set(digits) <= _HEX else None


def _check_types(*texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{type(text).__name__} instead of a text")


# --- embeddings ------------------------------------------------------------------------------------------------------


def read_content(connection: Connection, number: int, sha256: str) -> bytes:
    """The bytes of the embedding with that id.

    Raises:
        LibraryError: They are missing, unreadable, or have another SHA-256.
    """
    content = read_blob(connection, "contents", "content", number)
    if content is None:
        raise LibraryError(f"the content of embedding {number} is missing or unreadable. {_FIX}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise LibraryError(f"embedding {number} was changed after it was saved: its SHA-256 differs. {_FIX}")
    return content


def read_embedding(connection: Connection, number: int, sha256: str, *, name: str) -> Embedding:
    """The embedding with that id, under the name that its task has in the library."""
    try:
        embedding = decode_embedding(read_content(connection, number, sha256), f"embedding {number}")
    except Task2VecError as error:
        raise LibraryError(f"the embedding of '{name}' is damaged: {error}") from error
    return embedding if embedding.task == name else replace(embedding, task=name)


def load_embedding(connection: Connection, number: int) -> Embedding | None:
    """The embedding with that id, or None if it was removed or is damaged: `verify` names it."""
    row = connection.execute(
        "SELECT e.sha256, t.name FROM embeddings e JOIN tasks t ON t.id = e.task WHERE e.id = ?", (number,)
    ).fetchone()
    try:
        return None if row is None else read_embedding(connection, number, row[0], name=row[1])
    except LibraryError:
        return None
