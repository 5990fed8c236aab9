"""Where the evidence for model selection comes from: a library, CSV tables, or several meta-tasks merged into one.

CSV tables of errors have one error in a row, columns in any order (`task2vec error-matrix --csv` writes such a table):

    task,model,error[,seed][,protocol][,dataset][,source_task][,has_seen][,shares_images][,shares_labels]

or a row for each task and a column for each model, of which the first is called `task` and one may be `dataset`:

    task,dataset,model A,model B

(or one for each model and a column for each task, where the first is called `model`, `expert` or `network`). A table of
the first kind may have columns `seed_0`, `seed_1`, ... in place of `error` and `seed`. Errors are shares, from 0 to 1;
empty cells, `nan`, `NA` and `-` are not known. `dataset` is that of the task, `source_task` what the model was
fine-tuned on; without it, a model that is called like a task was fine-tuned on that task. A model may not be selected
for its own source task, nor where `has_seen`, `shares_images` or `shares_labels` says that it has seen the task. The
first model that has `generic` in its name is the generic one.

Distances: a row for each task, and a column for each task, model or source task, the first column being the names of
the tasks. Embeddings: a row for each task, model or source task, its name first, then one number for each filter, 0 or
more. A row called `trivial` is the trivial embedding of the asymmetric distance.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.distance import SCALING
from task2vec.embedding import Embedding
from task2vec.errors import (
    DataError,
    LibraryError,
    NotInLibraryError,
    ProbeMismatchError,
    SettingsMismatchError,
    UsageError,
)
from task2vec.experts.metatask import (
    SYMMETRIC,
    MetaTask,
    ModelInfo,
    TaskInfo,
    build_metatask,
    deduplicate_names,
    find_free_name,
    find_protocol,
    find_shots,
    measure_embeddings,
    measure_from,
    stack_rows,
    stack_vectors,
)
from task2vec.library import EmbeddingEntry, Expert, Library, MeasuredError, TaskEntry
from task2vec.text import pluralize

# With so many images per class or fewer, errors by few shots are the better prediction: between the 5 of the bundle's
# few-shot errors and the 20 or so that half of a class has there, in the middle of the logarithms.
FEW = 10
HALF = "half"
# The record of an error matrix in a library, and what it says of cells whose model has seen the task.
_RUN, _SEEN_PAIRS = "error-matrix", "trivial"
# Classifier and measure that errors are compared by.
_USUAL = "logistic, usual"


# --- shots -----------------------------------------------------------------------------------------------------------


def choose_shots(per_class: Sequence[int], protocols: Iterable[str], shots: str | int | None = None) -> str:
    """What the classifiers of the errors should be trained on: "half" of the images, or so many per class.

    Without `shots` the median class decides: up to ten images, the fewest shots that are known; else half.

    Args:
        per_class: images of each class; may be empty where that is not known.
        protocols: keys of the protocols that errors are known by.
        shots: "half", or a number of images per class; None chooses.

    Example:
        >>> keys = ["linear-2, train 5, logistic, usual", "linear-2, train half, logistic, usual"]
        >>> choose_shots([4, 6, 90], keys), choose_shots([40, 60], keys), choose_shots([40, 60], keys, 5)
        ('5', 'half', '5')
    """
    known = list(dict.fromkeys(find_shots(key) for key in protocols))
    if shots is not None:
        if str(shots) not in known:
            raise UsageError(
                f"no error is known of classifiers trained on shots={shots} (--shots), and errors of others would be "
                f"misleading. Choose one of: {', '.join(known) or 'none'}"
            )
        return str(shots)
    numbers = sorted((one for one in known if one.isdigit()), key=int)
    if numbers and len(per_class) > 0 and float(np.median(per_class)) <= FEW:
        return numbers[0]
    return HALF if HALF in known or not known else known[-1]


# --- spaces ----------------------------------------------------------------------------------------------------------


def find_space(embedding: Embedding, spaces: Mapping[str, Embedding]) -> str:
    """The name of the space that an embedding is in: one probe, its image size, and all settings that scale.

    Raises:
        ProbeMismatchError: It is by a probe, or of images of a size, that nothing is known for.
        SettingsMismatchError: It is by other settings.
    """
    near = {name: one for name, one in spaces.items() if one.probe_fingerprint == embedding.probe_fingerprint}
    for name, one in near.items():
        if is_comparable(embedding, one):
            return name
    known = "; ".join(dict.fromkeys(format_space(one) for one in (near or spaces).values())) or "none"
    if near:
        first = next(iter(near.values()))
        own, others = _settings(embedding), _settings(first)
        key = next(key for key in SCALING if own.get(key) != others.get(key))
        raise SettingsMismatchError(
            f"'{embedding.task}' was embedded with {key}={own.get(key)}, and errors are known for tasks embedded with "
            f"{key}={others.get(key)} ({known}): the numbers themselves differ, and distances would mean nothing. "
            f"Embed it again: {format_embed_command(first)}"
        )
    command = format_embed_command(next(iter(spaces.values()))) if spaces else "task2vec embed FOLDER"
    raise ProbeMismatchError(
        f"'{embedding.task}' was embedded by {format_space(embedding)}, and errors are known for tasks embedded by: "
        f"{known}. Distances between embeddings of different probes mean nothing. Embed it again: {command}; or pass "
        "the folder itself (in Python: the task), which is then embedded in the right space."
    )


def is_comparable(one: Embedding, other: Embedding) -> bool:
    """Whether two embeddings are in one space."""
    if one.probe_fingerprint != other.probe_fingerprint:
        return False
    return all(_settings(one).get(key) == _settings(other).get(key) for key in SCALING)


def format_space(embedding: Embedding) -> str:
    """Probe, image size and method as text.

    Example:
        >>> from task2vec.experts import bundled_metatask
        >>> format_space(bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0])
        'tf_efficientnet_lite0 at 224 pixels (robust)'
    """
    size, method = image_size(embedding), _settings(embedding).get("method")
    return embedding.probe + (f" at {size} pixels" if size else "") + (f" ({method})" if method else "")


def format_embed_command(like: Embedding) -> str:
    """The command that embeds a folder in the same space."""
    size, method = image_size(like), _settings(like).get("method")
    parts = [f"task2vec embed FOLDER --probe {like.probe}", *([f"--size {size}"] if size else [])]
    return " ".join([*parts, *([f"--method {method}"] if method not in (None, "robust") else [])])


def image_size(embedding: Embedding) -> int | None:
    """The side of the images in pixels, if the embedding has it."""
    size = embedding.provenance.get("image_size")
    return int(size[0]) if isinstance(size, list | tuple) and size and isinstance(size[0], int) else None


def _settings(embedding: Embedding) -> Mapping[str, object]:
    settings = embedding.provenance.get("settings")
    return settings if isinstance(settings, Mapping) else {}


# --- a library -------------------------------------------------------------------------------------------------------


def metatask_from_library(
    library: Library,
    *,
    errors: Sequence[MeasuredError] | None = None,
    probe: str | None = None,
    method: str | None = None,
    like: Embedding | None = None,
) -> MetaTask:
    """The errors of a library, with the embeddings of its tasks in one space.

    Tasks that came from one place (a folder or a table) are of one dataset. Tasks and source tasks without an embedding
    in that space have no distances.

    Args:
        library: with errors, see `task2vec error-matrix`.
        errors: some of its errors; all by default. Tasks and models without any are left out.
        probe: that tasks were embedded with; by default the one that most tasks with errors were.
        method: by which they were embedded.
        like: an embedding of the space to take; tasks that have none there are left out, and counted in `info`.

    Raises:
        NotInLibraryError: It has no errors, or no embedding by that probe and method.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with Library.open(folder.name) as library:
        ...     metatask_from_library(library)
        Traceback (most recent call last):
        task2vec.errors.NotInLibraryError: the library has no measured errors, ...
        >>> folder.cleanup()
    """
    errors = library.errors() if errors is None else errors
    if not errors:
        raise NotInLibraryError(
            "the library has no measured errors, so there is nothing to select models by. Measure some: task2vec "
            "error-matrix PATH --expert MODEL"
        )
    having, measured = {error.task for error in errors}, {error.expert for error in errors}
    entries = {task.fingerprint: task for task in library.tasks()}
    tasks = [task for own, task in entries.items() if own in having]
    if like is None:
        like = _choose_library_space(library, tasks, (probe, method))
        kept, other_spaces = tasks, 0
    else:
        space = like
        kept = [task for task in tasks if find_embedding(library, task, space) is not None]
        other_spaces = len(tasks) - len(kept)
    experts = {expert.name: expert for expert in library.experts()}
    seen = {(expert.task, name) for name, expert in experts.items() if expert.task is not None}
    for run in library.runs():
        seen |= {(pair[0], pair[1]) for pair in run.details.get(_SEEN_PAIRS, ())} if run.what == _RUN else set()
    models = _list_models([expert for name, expert in experts.items() if name in measured], entries)
    taken = {task.fingerprint for task in kept}
    wanted = dict.fromkeys(model.source_fingerprint for model in models)
    sources = [entries[own] for own in wanted if own in entries and own not in taken]
    names = deduplicate_names([task.name for task in kept])
    return build_metatask(
        "your library",
        [_describe_task(task, name) for task, name in zip(kept, names, strict=True)],
        models,
        sorted({error.protocol for error in errors}),
        sorted({error.seed for error in errors}),
        errors=errors,
        has_seen=seen,
        source_tasks=tuple(_describe_task(task, task.name) for task in sources),
        info={"other_spaces": other_spaces},
        **_embed_rows(library, [*kept, *sources], like),
    )


def _describe_task(task: TaskEntry, name: str) -> TaskInfo:
    return TaskInfo(name, "", task.source or task.name, task.fingerprint, task.images, len(task.classes))


def _list_models(experts: Sequence[Expert], entries: Mapping[str, TaskEntry]) -> list[ModelInfo]:
    models = [describe_entry(expert, entries) for expert in experts]
    generic = next((place for place, model in enumerate(models) if "generic" in model.name.lower()), None)
    return [replace(model, kind="generic") if place == generic else model for place, model in enumerate(models)]


def describe_entry(expert: Expert, tasks: Mapping[str, TaskEntry] | None = None) -> ModelInfo:
    """The model of a library's entry; `tasks` are those of the library by fingerprint."""
    location: str | None = expert.location
    if expert.source != "file":
        location = location if location.startswith(("timm:", "torchvision:")) else f"timm:{location.split('/')[-1]}"
    elif location.startswith("module "):  # kept for its errors: a custom network
        location = None
    entry = (tasks or {}).get(expert.task or "")
    named = expert.recipe.get("task")
    source = entry.name if entry is not None else named if isinstance(named, str) else expert.task
    return ModelInfo(
        expert.name,
        "expert" if expert.task else "network",
        str(expert.recipe.get("architecture") or location or "") or None,
        source,
        expert.task,
        params=expert.parameters,
        gmacs=expert.cost,
        location=location,
        size=expert.input_size,
        source_dataset=(entry.source or entry.name) if entry is not None else source,
        entry=expert,
    )


def _choose_library_space(
    library: Library, tasks: Sequence[TaskEntry], wanted: tuple[str | None, str | None]
) -> Embedding | None:
    """One embedding by the probe and method that most tasks have, among those that are wanted."""

    def name(entry: EmbeddingEntry) -> tuple[str, str]:
        return entry.probe, str(entry.settings.get("method", ""))

    every = [entry for task in tasks for entry in task.embeddings]
    fit = [entry for entry in every if all(one in (None, own) for one, own in zip(wanted, name(entry), strict=True))]
    if not fit and wanted != (None, None):
        known = "; ".join(dict.fromkeys(" ".join(name(entry)) for entry in every)) or "none"
        raise NotInLibraryError(
            f"no task with errors was embedded by the probe '{wanted[0] or 'any'}' and the method "
            f"'{wanted[1] or 'any'}'; they were embedded by: {known}. Embed them: task2vec embed --probe PROBE FOLDER"
        )
    if not fit:
        return None
    most = Counter((entry.probe_fingerprint, name(entry)) for entry in fit).most_common(1)[0][0]
    return library.get(next(entry for entry in fit if (entry.probe_fingerprint, name(entry)) == most).key)


def _embed_rows(library: Library, rows: Sequence[TaskEntry], like: Embedding | None) -> dict[str, Any]:
    """Distances and vectors of some tasks in the space of an embedding, as fields; NaN where there is no embedding."""
    if like is None:
        return {"space": ""}
    found = [find_embedding(library, task, like) for task in rows]
    every = [one for one in found if one is not None]
    places = [place for place, one in enumerate(found) if one is not None]
    space = f"{like.probe} {_settings(like).get('method') or 'robust'}"
    if not every:
        return {"space": ""}
    fields: dict[str, Any] = {"space": space}

    def spread(values: np.ndarray) -> np.ndarray:
        whole = np.full((len(rows), *values.shape[1:]), np.nan)
        whole[places] = values
        return whole

    distances = np.full((len(rows), len(rows)), np.nan)
    distances[np.ix_(places, places)] = measure_all(every, every)
    for kind, values in measure_embeddings(every).items():
        fields[kind] = {SYMMETRIC: spread(values[SYMMETRIC])}
    fields |= {name: spread(values) for name, values in stack_vectors(every).items()}
    if len(every) == len(rows):
        fields["embeddings"] = {space: every}
    return fields | {"distances": {SYMMETRIC: distances}}


def measure_all(rows: Sequence[Embedding], columns: Sequence[Embedding]) -> np.ndarray:
    """Symmetric distances without torch; symmetric and 0 on the diagonal where both are the same."""
    stacked = stack_rows(columns)
    found = np.array([measure_from(row, columns, stacked) for row in rows]).reshape(len(rows), len(columns))
    if rows is columns:
        found = (found + found.T) / 2
        np.fill_diagonal(found, 0)
    return found


def find_embedding(library: Library, task: TaskEntry, like: Embedding) -> Embedding | None:
    """The embedding of a task in the space of another one, if the library has it."""
    for entry in reversed(task.embeddings):
        if entry.probe_fingerprint == like.probe_fingerprint:
            with suppress(LibraryError):  # damaged: `library verify` names it
                found = library.get(entry.key)
                if is_comparable(found, like):
                    return found
    return None


def list_library_errors(library: Library, shots: str) -> list[MeasuredError]:
    """The errors of a library by so many shots; of several protocols the one that most are of."""
    found = [
        error for error in library.errors() if find_shots(error.protocol) == shots and error.protocol.endswith(_USUAL)
    ]
    counts = Counter(error.protocol for error in found)
    return [error for error in found if error.protocol == counts.most_common(1)[0][0]]


# --- merging ---------------------------------------------------------------------------------------------------------


def merge(one: MetaTask, other: MetaTask) -> MetaTask:
    """Two selected meta-tasks in one space as one. Models that are the same network at the same size become one.

    Errors of the tasks of one on the models of the other are unknown; symmetric distances are measured, other kinds are
    dropped. `other` may have models and source tasks only.
    """
    keys = {model.key: number for number, model in enumerate(one.models) if model.key is not None}
    columns: list[int] = []
    new: list[ModelInfo] = []
    for model in other.models:
        known = keys.get(model.key) if model.key is not None else None
        columns.append(len(one.models) + len(new) if known is None else known)
        new += [model] if known is None else []
    names = [model.name for model in one.models]
    models = list(one.models)
    for model in new:
        names.append(find_free_name(model.name, names, size=model.size))
        models.append(replace(model, name=names[-1]))
    tasks = (*one.tasks, *other.tasks)
    names = deduplicate_names([task.name for task in tasks])
    count, seeds = len(one.tasks), max(one.seeds, other.seeds, key=len)
    cells = (np.ix_(range(count), range(len(one.models))), np.ix_(range(count, len(tasks)), columns))
    fields: dict[str, Any] = {}
    for name in ("errors", "low", "high", "shares_images", "shares_labels"):
        is_share = name.startswith("shares")
        shape = (len(tasks), len(models), *(() if is_share else (1, len(seeds))))
        kind = bool if name == "shares_labels" else np.float64
        fields[name] = np.full(shape, 0 if is_share else np.nan, dtype=kind)
        for place, part in zip(cells, (one, other), strict=True):
            values = np.asarray(getattr(part, name))
            where = (*place, ...) if is_share else (*place, slice(None), slice(values.shape[3]))
            fields[name][where] = values
    # Tasks of both, then source tasks of both.
    total, more = count + len(one.source_tasks), len(other.tasks)
    order = [*range(count), *range(total, total + more), *range(count, total)]
    order += range(total + more, total + more + len(other.source_tasks))
    own, others = (part.embeddings[one.space or ""] if part.embeddings else [] for part in (one, other))
    every = [*own, *others]
    cross, inner = measure_all(own, others), measure_all(others, others)
    distances = one.distances[SYMMETRIC]
    if len(others):
        distances = np.block([[distances, cross], [cross.T, inner]])
    embedded = [every[row] for row in order]
    fields |= {name: {SYMMETRIC: each[SYMMETRIC]} for name, each in measure_embeddings(embedded).items()}
    return MetaTask(
        " and ".join(dict.fromkeys(filter(None, (one.name, other.name)))),
        tuple(replace(task, name=name) for task, name in zip(tasks, names, strict=True)),
        tuple(models),
        one.protocols,
        seeds,
        source_tasks=(*one.source_tasks, *other.source_tasks),
        embeddings={one.space or "": embedded},
        distances={SYMMETRIC: distances[np.ix_(order, order)]},
        space=one.space,
        **stack_vectors(embedded),
        **fields,
    )


def add_models(metatask: MetaTask, models: Sequence[ModelInfo], sources: Mapping[str, Embedding]) -> MetaTask:
    """The meta-task and models whose errors are unknown; `sources` are embeddings of source tasks by fingerprint."""
    if not models:
        return metatask
    wanted = dict.fromkeys(model.source_fingerprint for model in models)
    known = [own for own in wanted if own is not None and own in sources]
    other = build_metatask(
        "",
        (),
        models,
        metatask.protocols,
        metatask.seeds,
        source_tasks=tuple(TaskInfo(sources[own].task, fingerprint=own) for own in known),
        embeddings={metatask.space or "": [sources[own] for own in known]},
        space=metatask.space,
    )
    return merge(metatask, other)


# --- CSV tables ------------------------------------------------------------------------------------------------------

_UNKNOWN = ("", "nan", "na", "n/a", "none", "-")
_SEED = re.compile(r"seed_(\d+)")
_TASK_HEADS, _MODEL_HEADS = ("", "task", "tasks", "name"), ("model", "models", "expert", "experts", "network")
_SEEN_HEADS = ("has_seen", "is_trivial", "shares_images", "shares_labels")
_TRIVIAL = "trivial"


@dataclass(frozen=True)
class _Table:
    """A CSV file: its headings, and its rows with their line numbers."""

    path: Path
    heads: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]

    def fail(self, line: int, what: str, fix: str) -> DataError:
        """The error with its line."""
        return DataError(f"line {line} of '{self.path}' {what}. {fix}")

    def number(self, line: int, text: str, what: str) -> float:
        """A number, NaN for what is not known."""
        if text.lower() in _UNKNOWN:
            return np.nan
        try:
            value = float({"true": "1", "false": "0"}.get(text.lower(), text))
        except ValueError:
            value = np.inf
        if not np.isfinite(value):
            raise self.fail(line, f"has '{text}' where {what} is a finite number", "Correct it, or leave it empty.")
        return value


def _read_table(path: str | Path) -> _Table:
    """The table in a file; commas, semicolons or tabs between its cells, empty lines do not count."""
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(f"'{path}' cannot be read as a table: {reason}. Give a CSV file in UTF-8.") from error
    delimiter = max(",;\t", key=text.split("\n", 1)[0].count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        lines = [(reader.line_num, tuple(cell.strip() for cell in row)) for row in reader]
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of '{path}' is no line of a CSV file: {error}. Fix it.") from error
    lines = [(line, row) for line, row in lines if any(row)]
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise DataError(
            f"'{path}' has {pluralize(len(lines), 'line')} and {len(lines[0][1]) if lines else 0} columns, which is no "
            "table. Give a heading and a row for each task, comma-separated."
        )
    table = _Table(path, lines[0][1], tuple(lines[1:]))
    doubled = [head for head, count in Counter(table.heads).items() if count > 1 and head]
    if doubled:
        raise table.fail(lines[0][0], f"has two columns '{doubled[0]}'", "Rename or remove one.")
    for line, row in table.rows:
        if len(row) != len(table.heads):
            raise table.fail(line, f"has {len(row)} cells where the heading has {len(table.heads)}", "Fix that line.")
    return table


def metatask_from_csv(
    errors: str | Path,
    distances: str | Path | None = None,
    embeddings: str | Path | None = None,
    *,
    shots: str | int | None = None,
) -> MetaTask:
    r"""The meta-task of CSV tables of errors, and of distances or embeddings; the top of this module has their format.

    Args:
        errors: a CSV file of errors.
        distances: another, of distances between tasks and between tasks and source tasks.
        embeddings: or one of embeddings, from which symmetric distances are computed.
        shots: which errors to take where there are several protocols; see `MetaTask.select`.

    Raises:
        DataError: A table cannot be read; the message has the line.
        UsageError: Errors are of several protocols, and none was chosen.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "errors.csv"
        >>> _ = path.write_text("task,generic,birds\ncats,0.2,0.3\nbirds,0.4,0.1\n")
        >>> metatask = metatask_from_csv(path)
        >>> metatask, metatask.is_candidate.tolist()
        (MetaTask(errors, 2 tasks, 2 models, 1 protocols, 1 seeds), [[True, True], [True, False]])
        >>> folder.cleanup()
    """
    table = _read_table(errors)
    cells = _list_cells(table) if "task" in table.heads and _find_model_head(table) else _list_wide(table)
    protocols = list(dict.fromkeys(cell.protocol for cell in cells))
    protocol = protocols[find_protocol(protocols, shots, of=f"the table '{table.path}'")]
    metatask = _arrange([cell for cell in cells if cell.protocol == protocol], table, protocol)
    if distances is not None:
        metatask = _add_distances(metatask, _read_table(distances))
    return metatask if embeddings is None else _add_embeddings(metatask, _read_table(embeddings))


@dataclass(frozen=True)
class _Cell:
    """One error and what its row says."""

    line: int
    task: str
    model: str
    seed: int
    protocol: str
    error: float
    dataset: str = ""
    source: str = ""
    is_seen: bool = False


def _find_model_head(table: _Table) -> str | None:
    return next((head for head in ("model", "expert") if head in table.heads), None)


def _list_cells(table: _Table) -> list[_Cell]:
    """The errors of a table with one error, or one for each seed, in a row."""
    columns = {head: place for place, head in enumerate(table.heads)}
    model_head = _find_model_head(table)
    assert model_head is not None
    seeds = {int(found[1]): columns[head] for head in columns if (found := _SEED.fullmatch(head))}
    if "error" not in columns and not seeds:
        raise table.fail(1, "has no column 'error'", "Call the column of the errors so, or use seed_0, seed_1, ...")
    source_head = "source_task" if "source_task" in columns else "lesson"
    cells = []
    for line, row in table.rows:
        keys = ("protocol", "dataset", source_head)
        protocol, dataset, source = (row[columns[key]] if key in columns else "" for key in keys)
        is_seen = any(table.number(line, row[columns[head]], head) > 0 for head in _SEEN_HEADS if head in columns)
        seed = row[columns["seed"]] if "seed" in columns else "0"
        if not seed.isascii() or not seed.isdigit():
            raise table.fail(line, f"has the seed '{seed}', which is no whole number", "Give 0, 1, ...")
        for number, place in seeds.items() if seeds else ((int(seed), columns["error"]),):
            error = _parse_error(table, line, row[place])
            names = (row[columns["task"]], row[columns[model_head]])
            cells.append(_Cell(line, *names, number, protocol, error, dataset, source, is_seen))
    return cells


def _list_wide(table: _Table) -> list[_Cell]:
    """The errors of a table with a row for each task and a column for each model, or the other way round."""
    first = table.heads[0].lower()
    if first not in (*_TASK_HEADS, *_MODEL_HEADS):
        raise table.fail(
            1,
            f"begins with '{table.heads[0]}', so it is unclear what its rows are",
            "Begin with 'task', then one column for each model, or with 'model', then one for each task.",
        )
    dataset = table.heads.index("dataset") if "dataset" in table.heads and first in _TASK_HEADS else None
    cells = []
    for line, row in table.rows:
        for place, (head, text) in enumerate(zip(table.heads, row, strict=True)):
            if place not in (0, dataset):
                names = (row[0], head) if first in _TASK_HEADS else (head, row[0])
                own = "" if dataset is None else row[dataset]
                cells.append(_Cell(line, *names, 0, "", _parse_error(table, line, text), own))
    return cells


def _parse_error(table: _Table, line: int, text: str) -> float:
    value = table.number(line, text.removesuffix("%").rstrip(), "an error")
    if text.endswith("%") or value > 1:
        raise table.fail(
            line, f"has the error {text}, and errors are shares from 0 to 1: this looks like percent", "Divide by 100."
        )
    if value < 0:
        raise table.fail(line, f"has the error {text}, and no error is below 0", "Give 1 - accuracy, not its negative.")
    return value


def _arrange(cells: Sequence[_Cell], table: _Table, protocol: str) -> MetaTask:
    """The cells as a meta-task."""
    tasks, models, seeds = (
        {name: place for place, name in enumerate(dict.fromkeys(getattr(cell, side) for cell in cells))}
        for side in ("task", "model", "seed")
    )
    errors = np.full((len(tasks), len(models), 1, len(seeds)), np.nan)
    seen = np.zeros((len(tasks), len(models)), dtype=bool)
    lines: dict[tuple[int, int, int, int], int] = {}
    sources: dict[str, str] = {name: name for name in models if name in tasks}
    datasets = {name: name for name in tasks}
    for cell in cells:
        if not cell.task or not cell.model:
            raise table.fail(cell.line, "has no task or no model", "Name both.")
        place = (tasks[cell.task], models[cell.model], 0, seeds[cell.seed])
        if place in lines:
            what = f"has the error of '{cell.task}' on '{cell.model}' again, after line {lines[place]}"
            raise table.fail(cell.line, what, "Keep one of them, or give them different seeds.")
        lines[place], errors[place] = cell.line, cell.error
        seen[place[:2]] |= cell.is_seen
        datasets[cell.task] = cell.dataset or datasets[cell.task]
        if cell.source:
            sources[cell.model] = cell.source
    for model, source in sources.items():
        if source in tasks:
            seen[tasks[source], models[model]] = True
    generic = next((name for name in models if "generic" in name.lower()), None)
    described = []
    for name in models:
        source = sources.get(name)
        kind = "generic" if name == generic else "network"
        dataset = datasets.get(source or "")
        described.append(ModelInfo(name, kind, None, source, source, source_dataset=dataset))
    return MetaTask(
        table.path.stem,
        tuple(TaskInfo(name, dataset=datasets[name], fingerprint=name) for name in tasks),
        tuple(described),
        (protocol,),
        tuple(seeds),
        errors,
        np.full_like(errors, np.nan),
        np.full_like(errors, np.nan),
        np.zeros(seen.shape),
        seen,
        space="",
    )


def _add_rows(metatask: MetaTask, numbers: Mapping[str, int]) -> tuple[MetaTask, list[int]]:
    """The meta-task with source tasks for what a table has: under their own names, or under those of the models.

    Also returned is where each row stands in the table, -1 where it does not.
    """
    models = []
    for model in metatask.models:
        source = model.source_task if (model.source_task or "") in numbers else None
        own = source or (model.name if model.name in numbers else model.source_task)
        models.append(replace(model, source_fingerprint=own))
    tasks = [task.name for task in metatask.tasks]
    sources = [own for own in dict.fromkeys(model.source_fingerprint for model in models) if own and own not in tasks]
    source_tasks = tuple(TaskInfo(own, fingerprint=own) for own in sources)
    return replace(metatask, models=tuple(models), source_tasks=source_tasks), [
        numbers.get(name, -1) for name in (*tasks, *sources)
    ]


def _add_distances(metatask: MetaTask, table: _Table) -> MetaTask:
    """The meta-task with the distances of a table."""
    rows = {row[0]: (line, row) for line, row in table.rows}
    names = [task.name for task in metatask.tasks]
    if len(rows) < len(table.rows):
        raise DataError(f"'{table.path}' has two rows for the same name, so one would be lost. Keep one of them.")
    missing = [name for name in names if name not in rows]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise DataError(
            f"'{table.path}' has no row for the task '{missing[0]}'{more}, which has errors. Add it, or remove its "
            "errors."
        )
    numbers = {head: place for place, head in enumerate(table.heads) if place}
    sources = {model.source_task for model in metatask.models}
    if not numbers.keys() & {*names, *(model.name for model in metatask.models), *sources}:
        strange = next(iter(numbers))
        raise table.fail(1, f"has '{strange}' and no task, model or source task of the errors", "Use their names.")
    metatask, places = _add_rows(metatask, numbers)
    count = len(names)
    values = np.full((count, len(places)), np.nan)
    for row, name in enumerate(names):
        line, cells = rows[name]
        for column, place in enumerate(places):
            if place > 0:
                values[row, column] = table.number(line, cells[place], "a distance")
                if values[row, column] < 0:
                    what = f"has the distance {cells[place]}, and no symmetric one is below 0"
                    raise table.fail(line, what, "Give distances of 0 or more.")
    whole = np.full((len(places), len(places)), np.nan)
    whole[:count, count:], whole[count:, :count] = values[:, count:], values[:, count:].T
    if numbers.keys() & set(names):  # one way may be given for both
        between = np.where(np.isnan(values[:, :count]), values[:, :count].T, values[:, :count])
        between = np.where(np.eye(count, dtype=bool) & np.isnan(between), 0, between)
        lacking = np.argwhere(np.isnan(between))
        if len(lacking):
            one, other = (names[number] for number in lacking[0])
            raise DataError(
                f"'{table.path}' has no distance between the tasks '{one}' and '{other}', so their similarity is not "
                "known. Fill that cell, or remove the errors of one of them."
            )
        whole[:count, :count] = between
    return replace(metatask, distances={SYMMETRIC: whole})


def _add_embeddings(metatask: MetaTask, table: _Table) -> MetaTask:
    """The meta-task with the embeddings of a table, and the symmetric distances between them."""
    from task2vec.distance import pairwise_from_logs

    names = [row[0] for _, row in table.rows]
    missing = [task.name for task in metatask.tasks if task.name not in names]
    if missing or len(set(names)) < len(names):
        what = f"has no row for '{missing[0]}'" if missing else "has two rows for the same name"
        raise DataError(
            f"'{table.path}' {what}, so embeddings and errors cannot be matched. Give one row for each task."
        )
    values = np.array([[table.number(line, cell, "a filter") for cell in row[1:]] for line, row in table.rows])
    wrong = np.argwhere(~(values >= 0))
    if len(wrong):
        line, row = table.rows[wrong[0][0]]
        what = f"has '{row[wrong[0][1] + 1]}' for a filter, and a Fisher is 0 or more"
        raise table.fail(line, what, "Complete or fix that row.")
    dead = values == 0
    if dead.all(0).any():
        values, dead = values[:, ~dead.all(0)], dead[:, ~dead.all(0)]
    # A filter that is dead for some has no logarithm there: it gets the smallest value that the filter has for others.
    vectors = np.where(dead, np.where(dead, np.inf, values).min(0), values)
    gaps = pairwise_from_logs(np.log(vectors), dead=dead, device="cpu")
    numbers = {name: number for number, name in enumerate(names)}
    metatask, places = _add_rows(metatask, numbers)
    rows = np.array(places)

    def pick(each: np.ndarray) -> np.ndarray:
        found = each[rows].astype(np.float64)
        found[rows < 0] = np.nan
        return found

    fields: dict[str, Any] = {
        "distances": {SYMMETRIC: pick(pick(gaps).T).T},
        "vectors": pick(vectors),
        "norms": {SYMMETRIC: pick(np.where(dead, 0, values).sum(1))},
    }
    if _TRIVIAL in numbers:
        place = numbers[_TRIVIAL]
        fields["trivial_distances"] = {SYMMETRIC: pick(gaps[place])}
        fields["trivial_vectors"] = np.tile(vectors[place], (len(rows), 1))
    return replace(metatask, **fields)
