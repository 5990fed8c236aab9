"""Where the evidence for model selection comes from: a library, CSV tables, or several meta-tasks merged into one.

A CSV table of errors has one error in a row, with columns in any order (`task2vec error-matrix --out` writes it):

    task,model,error[,seed][,protocol][,dataset][,classes][,source_task][,has_seen][,shares_images][,shares_labels]
        [,error_a,error_b][,logme][,parc]...

or a row for each task and a column for each model:

    task[,dataset],model A,model B

Errors are shares, from 0 to 1; empty cells, `nan`, `NA` and `-` are unknown. `dataset` is that of the task, and
`source_task` what the model was fine-tuned on; without it, a model that has the name of a task was fine-tuned on that
task. A model is no candidate for its own source task, nor where `has_seen`, `shares_images` or `shares_labels` is above
0. The first model with `generic` in its name is the generic one. `classes` is the number of classes of the task,
`error_a` and `error_b` are errors on two halves of the test images, and a column with the name of a transferability
score (`task2vec.select.SCORE_NAMES`) has that of the model on the task.

A CSV table of distances has a row for each task and a column for each task, model or source task; its first column has
the names of the tasks. Tasks without a distance in either direction count as far apart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from task2vec.distance import check_comparable
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
    RUN,
    SEEN,
    SYMMETRIC,
    MetaTask,
    ModelInfo,
    TaskInfo,
    build_metatask,
    bundled_metatask,
    deduplicate_names,
    find_free_name,
    find_protocol,
    find_shots,
    hide_test,
    measure_all,
    measure_embeddings,
    stack_vectors,
)
from task2vec.library import EmbeddingEntry, Expert, Library, MeasuredError, TaskEntry
from task2vec.select.combined import SIZE_SHIFT, scale_errors, unscale
from task2vec.select.strategies import SCORE_NAMES
from task2vec.tasks.table import read_columns

# With so many images per class or fewer, errors by few shots are the better prediction: between the 5 of the bundle's
# few-shot errors and the 20 or so that half of a class has there, in the middle of the logarithms.
FEW = 10
HALF = "half"
# Classifier and measure of the errors that are comparable.
_USUAL = "logistic, usual"
# Arrays of errors of a meta-task.
_ERRORS = ("errors", "low", "high")


# --- shots -----------------------------------------------------------------------------------------------------------


def choose_shots(per_class: Sequence[int], protocols: Iterable[str], shots: str | int | None = None) -> str:
    """What the classifiers of the errors should be trained on: "half" of the images, or so many per class.

    Without `shots` the median class decides: up to ten images, the most shots that are known and leave half of it for
    testing, or the fewest; else half.

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
                f"no error is known for classifiers trained on shots={shots} (--shots). Errors of others would be "
                f"misleading. Choose one of: {', '.join(known) or 'none'}"
            )
        return str(shots)
    numbers = sorted((one for one in known if one.isdigit()), key=int)
    median = float(np.median(per_class)) if len(per_class) > 0 else np.inf
    if numbers and median <= FEW:
        return max((one for one in numbers if int(one) <= median / 2), key=int, default=numbers[0])
    return HALF if HALF in known or not known else known[-1]


# --- spaces ----------------------------------------------------------------------------------------------------------


def find_space(embedding: Embedding, spaces: Mapping[str, Embedding]) -> str:
    """The name of the space that an embedding is in: one probe, its image size, and all settings that scale.

    Raises:
        ProbeMismatchError: It is by a probe, or of images of a size, that nothing is known for.
        SettingsMismatchError: It is by other settings.
    """
    for name, one in spaces.items():
        if is_comparable(embedding, one):
            return name
    for one in spaces.values():
        if one.probe_fingerprint == embedding.probe_fingerprint:
            check_comparable(one, embedding)  # raises: some setting differs
    known = "; ".join(dict.fromkeys(map(format_space, spaces.values()))) or "none"
    command = format_embed_command(next(iter(spaces.values()))) if spaces else "task2vec embed FOLDER"
    raise ProbeMismatchError(
        f"'{embedding.task}' was embedded by {format_space(embedding)}, but errors are known for tasks embedded by: "
        f"{known}. Distances between embeddings of different probes mean nothing. Embed it again: {command}; or pass "
        "the folder itself (in Python: the task), which is then embedded in the right space."
    )


def is_comparable(one: Embedding, other: Embedding) -> bool:
    """Whether two embeddings are in one space."""
    try:
        check_comparable(one, other)
    except (ProbeMismatchError, SettingsMismatchError):
        return False
    return True


def list_bundled(like: Embedding) -> list[Embedding]:
    """The bundled tasks in the space of an embedding, made by the same recipe; none if there are none."""
    bundle, recipe = bundled_metatask(), like.provenance.get("recipe")
    for name, one in bundle.spaces.items():
        if is_comparable(one, like) and one.provenance.get("recipe") == recipe:
            return list(bundle.embeddings[name][: len(bundle.tasks)])
    return []


def format_space(embedding: Embedding) -> str:
    """Probe, image size and method as text.

    Example:
        >>> from task2vec.experts import bundled_metatask
        >>> format_space(bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0])
        'tf_efficientnet_lite0 at 224 pixels (robust)'
    """
    size, method = image_size(embedding), find_method(embedding)
    return embedding.probe + (f" at {size} pixels" if size else "") + (f" ({method})" if method else "")


def format_embed_command(like: Embedding) -> str:
    """The command that embeds a folder in the same space."""
    size, method = image_size(like), find_method(like)
    command = f"task2vec embed FOLDER --probe {like.probe}" + (f" --size {size}" if size else "")
    return command + (f" --method {method}" if method not in (None, "robust") else "")


def image_size(embedding: Embedding) -> int | None:
    """The side of the images in pixels, if the embedding has it."""
    size = embedding.provenance.get("image_size")
    return int(size[0]) if isinstance(size, list | tuple) and size and isinstance(size[0], int) else None


def find_method(embedding: Embedding) -> str | None:
    """The method of an embedding, if it has it."""
    settings = embedding.provenance.get("settings")
    return settings.get("method") if isinstance(settings, Mapping) else None


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
    in that space have no distances. Tasks with test images of their own share their protocols; of a task with several
    such sets, the one that was measured last counts.

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
    errors = _share_protocols(errors)
    having, measured = {error.task for error in errors}, {error.expert for error in errors}
    entries, experts = {task.fingerprint: task for task in library.tasks()}, library.experts()
    tasks = [task for own, task in entries.items() if own in having]
    space = like or choose_library_space(library, tasks, probe, method)
    seen = {(expert.task, expert.name) for expert in experts if expert.task is not None}
    for run in library.runs():
        seen |= {(pair[0], pair[1]) for pair in run.details.get(SEEN, ())} if run.what == RUN else set()
    models = mark_generic([describe_entry(one, entries) for one in experts if one.name in measured])
    wanted = {model.source_fingerprint for model in models} - having
    every = [task for own, task in entries.items() if own in having | wanted]
    found = {task.fingerprint: space and find_embedding(library, task, space) for task in every}
    kept = [task for task in tasks if like is None or found[task.fingerprint] is not None]
    sources = [task for task in every if task.fingerprint in wanted and found[task.fingerprint] is not None]
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
        info={"other_spaces": len(tasks) - len(kept)},
        **_measure_rows([found[task.fingerprint] for task in (*kept, *sources)]),
    )


def _share_protocols(errors: Iterable[MeasuredError]) -> list[MeasuredError]:
    """The errors by protocols that do not name the test images of a task, on one set of them for each task."""
    pairs = [(error, hide_test(error.protocol)) for error in errors]
    latest: dict[str, str] = {}
    for error, shared in sorted(pairs, key=lambda pair: pair[0].measured or ""):
        if shared != error.protocol:
            latest[error.task] = error.protocol.rpartition(", ")[2]
    return [
        replace(error, protocol=shared)
        for error, shared in pairs
        if shared == error.protocol or error.protocol.endswith(latest[error.task])
    ]


def _describe_task(task: TaskEntry, name: str) -> TaskInfo:
    return TaskInfo(name, "", task.source or task.name, task.fingerprint, task.images, len(task.classes))


def mark_generic(models: Sequence[ModelInfo]) -> list[ModelInfo]:
    """The models, of which the first with "generic" in its name is of that kind."""
    generic = next((model for model in models if "generic" in model.name.lower()), None)
    return [replace(model, kind="generic") if model is generic else model for model in models]


def describe_entry(expert: Expert, tasks: Mapping[str, TaskEntry] | None = None) -> ModelInfo:
    """The model of a library's entry; `tasks` are those of the library by fingerprint."""
    location: str | None = expert.location
    if expert.source != "file" and not location.startswith(("timm:", "torchvision:")):
        location = f"timm:{location.split('/')[-1]}"
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


def choose_library_space(
    library: Library, tasks: Sequence[TaskEntry], probe: str | None = None, method: str | None = None
) -> Embedding | None:
    """One embedding by the probe and method that most of the tasks have, among those that are wanted."""

    def name(entry: EmbeddingEntry) -> tuple[str, str]:
        return entry.probe, str(entry.settings.get("method", ""))

    every = [entry for task in tasks for entry in task.embeddings]
    fit = [one for one in every if probe in (None, name(one)[0]) and method in (None, name(one)[1])]
    if not fit and (probe or method):
        known = "; ".join(dict.fromkeys(" ".join(name(entry)) for entry in every)) or "none"
        raise NotInLibraryError(
            f"no task with errors was embedded by the probe '{probe or 'any'}' and the method '{method or 'any'}', so "
            f"no distances are known; they were embedded by: {known}. Embed them: task2vec embed --probe PROBE FOLDER"
        )
    counts = Counter((entry.probe_fingerprint, name(entry)) for entry in fit)
    return library.get(max(fit, key=lambda one: counts[one.probe_fingerprint, name(one)]).key) if fit else None


def _measure_rows(rows: Sequence[Embedding | None], distances: np.ndarray | None = None) -> dict[str, Any]:
    """Embeddings in one space and what is measured of them, as fields of a meta-task; NaN in rows that have none."""
    every = [one for one in rows if one is not None]
    if not every:
        return {"space": ""}
    places = np.array([one is not None for one in rows])
    space = f"{every[0].probe} {find_method(every[0]) or 'robust'}"
    distances = measure_all(every, every) if distances is None else distances

    def spread(values: np.ndarray) -> np.ndarray:
        whole = np.full((len(rows), *values.shape[1:]), np.nan)
        whole[places] = values
        return whole

    fields: dict[str, Any] = {
        kind: {SYMMETRIC: spread(each[SYMMETRIC])} for kind, each in measure_embeddings(every).items()
    }
    fields |= {name: spread(values) for name, values in stack_vectors(every).items()}
    fields["embeddings"] = {space: every} if len(every) == len(rows) else {}
    return fields | {"space": space, "distances": {SYMMETRIC: spread(spread(distances).T)}}


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
    found = [error for error in library.errors() if find_shots(error.protocol) == shots]
    found = [error for error in found if error.protocol.endswith(_USUAL)]
    counts = Counter(error.protocol for error in found)
    return [error for error in found if error.protocol == counts.most_common(1)[0][0]]


# --- merging ---------------------------------------------------------------------------------------------------------


def merge(one: MetaTask, other: MetaTask, sizes: Mapping[str, int] | None = None) -> MetaTask:
    """Two selected meta-tasks in one space as one. Models that are the same network at the same size become one.

    Errors of the tasks of one on the models of the other are unknown; symmetric distances are measured, other kinds are
    dropped. `other` may have models and source tasks only. Its networks that `sizes` has by location, and that were
    measured at smaller images, count as if at that size: errors move by `SIZE_SHIFT`. If a network was measured at
    several sizes, each task keeps its errors at the largest.
    """
    keys = {model.key: number for number, model in enumerate(one.models) if model.key is not None}
    models, columns, halvings = list(one.models), [], []
    for model in other.models:
        moved = replace(model, size=(sizes or {}).get(model.location or "", model.size))
        halvings.append(np.log2(moved.size / model.size) if moved.size and model.size else 0.0)
        columns.append(len(models) if moved.key is None else keys.setdefault(moved.key, len(models)))
        if columns[-1] == len(models):
            name = find_free_name(model.name, [known.name for known in models], size=moved.size)
            models.append(replace(moved, name=name))
    tasks, count = (*one.tasks, *other.tasks), len(one.tasks)

    def join(name: str, blank: float) -> np.ndarray:
        first, second = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        more = np.maximum(first.shape[2:], second.shape[2:]).astype(int)
        whole = np.full((len(tasks), len(models), *more), blank, dtype=first.dtype)
        whole[(slice(count), slice(len(one.models)), *map(slice, first.shape[2:]))] = first
        for number in np.argsort(halvings, kind="stable").tolist():  # the largest images first
            values, rows = second[:, number], whole[(slice(count, None), columns[number])]
            if halvings[number] and name in _ERRORS:
                values = unscale(scale_errors(values) - SIZE_SHIFT * halvings[number])
            is_new = ((rows == blank) | np.isnan(rows)).all(tuple(range(1, rows.ndim)))
            rows[(is_new, *map(slice, second.shape[2:]))] = values[is_new]
        return whole

    fields: dict[str, Any] = {name: join(name, np.nan) for name in _ERRORS}
    fields |= {name: join(name, 0) for name in ("shares_images", "shares_labels")}
    own, others = (part.embeddings.get(one.space or "", []) for part in (one, other))
    distances = one.distances[SYMMETRIC]
    if len(others):
        cross = measure_all(own, others)
        distances = np.block([[distances, cross], [cross.T, measure_all(others, others)]])
    # Tasks of both, then source tasks of both.
    is_source = [row >= len(part.tasks) for part, each in ((one, own), (other, others)) for row in range(len(each))]
    order = np.argsort(is_source, kind="stable")
    fields |= _measure_rows([[*own, *others][row] for row in order], distances[np.ix_(order, order)])
    unique = deduplicate_names([task.name for task in tasks])
    return MetaTask(
        " and ".join(dict.fromkeys(filter(None, (one.name, other.name)))),
        tuple(replace(task, name=name) for task, name in zip(tasks, unique, strict=True)),
        tuple(models),
        one.protocols,
        max(one.seeds, other.seeds, key=len),
        source_tasks=(*one.source_tasks, *other.source_tasks),
        **fields,
    )


def add_models(metatask: MetaTask, models: Sequence[ModelInfo], library: Library | None, like: Embedding) -> MetaTask:
    """The meta-task and models whose errors are unknown, with those source tasks that the library has embedded."""
    if not models:
        return metatask
    wanted, sources = {model.source_fingerprint for model in models}, {}
    for task in [] if library is None else library.tasks():
        embedding = find_embedding(library, task, like) if task.fingerprint in wanted else None  # type: ignore[arg-type]
        sources |= {} if embedding is None else {_describe_task(task, task.name): embedding}
    fields = {"source_tasks": tuple(sources), "embeddings": {metatask.space or "": list(sources.values())}}
    return merge(metatask, build_metatask("", (), models, metatask.protocols, metatask.seeds, **fields))


# --- CSV tables ------------------------------------------------------------------------------------------------------

_UNKNOWN = ("", "nan", "na", "n/a", "none", "-")
_SEEN_COLUMNS = ("has_seen", "shares_images", "shares_labels")
# Errors on two halves of the test images.
_HALVES = ("error_a", "error_b")
# The line of a table, and its cells by heading.
_Row = tuple[int, dict[str, str]]


def metatask_from_csv(
    errors: str | Path, distances: str | Path | None = None, *, shots: str | int | None = None
) -> MetaTask:
    r"""The meta-task of a CSV table of errors, and of one of distances; the top of this module has their format.

    Args:
        errors: a CSV file of errors.
        distances: another, of distances between tasks and between tasks and source tasks.
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
    rows = _read_errors(Path(errors))
    protocols = list(dict.fromkeys(row.get("protocol", "") for _, row in rows))
    protocol = protocols[find_protocol(protocols, shots, of=f"the table '{errors}'")]
    rows = [(line, row) for line, row in rows if row.get("protocol", "") == protocol]
    keys = [(row["task"], row["model"], row.get("seed", "0")) for _, row in rows]
    tasks, models, seeds = (list(dict.fromkeys(axis)) for axis in zip(*keys, strict=True))
    names = ("error", *_HALVES, *(name for name in SCORE_NAMES if name in rows[0][1]))
    cells = {name: np.full((len(tasks), len(models), 1, len(seeds)), np.nan) for name in names}
    seen, lines = np.zeros((len(tasks), len(models))), dict[tuple[int, ...], int]()
    datasets, sources, classes = dict[str, str](), dict[str, str | None](), dict[str, int]()
    for (line, row), (task, model, seed) in zip(rows, keys, strict=True):
        place, at = (tasks.index(task), models.index(model), 0, seeds.index(seed)), f"line {line} of '{errors}'"
        if not task or not model or not (seed.isascii() and seed.isdigit()):
            key = f"the task '{task}', the model '{model}', the seed '{seed}'"
            raise DataError(f"{at} has {key}. Give two names and a whole number.")
        if (first := lines.setdefault(place, line)) != line:
            again = f"the error of '{model}' on '{task}' again, after line {first}"
            raise DataError(f"{at} has {again}. Keep one of them, or give them different seeds.")
        for name, values in cells.items():
            limits = (-np.inf, np.inf) if name in SCORE_NAMES else (0, 1)
            values[place] = _parse_number(at, row.get(name, ""), name, *limits)
        seen[place[:2]] += any(_parse_number(at, row.get(name, ""), name) > 0 for name in _SEEN_COLUMNS)
        count = _parse_number(at, row.get("classes", ""), "number of classes")
        if np.isfinite(count) and (count != int(count) or classes.setdefault(task, int(count)) != count):
            raise DataError(f"{at} has {count:g} classes for '{task}'. Give the same whole number in all its lines.")
        datasets[task] = row.get("dataset") or datasets.get(task, task)
        sources[model] = row.get("source_task") or sources.get(model) or (model if model in tasks else None)
    known = [
        ModelInfo(model, "network", None, own, own, source_dataset=datasets.get(own or ""))
        for model, own in sources.items()
    ]
    metatask = build_metatask(
        Path(errors).stem,
        [TaskInfo(task, "", one, task, classes=classes.get(task, 0)) for task, one in datasets.items()],
        mark_generic(known),
        [protocol],
        [int(seed) for seed in seeds],
        has_seen={(source, model) for model, source in sources.items() if source},
        space="",
    )
    halves = np.stack([cells.pop(name) for name in _HALVES], axis=-1)
    fields: dict[str, Any] = {"errors": cells.pop("error"), "halves": halves if np.isfinite(halves).any() else None}
    fields["scores"] = {name: values[..., 0] for name, values in cells.items()}
    metatask = replace(metatask, **fields, shares_images=metatask.shares_images + seen)
    return metatask if distances is None else _add_distances(metatask, Path(distances))


def _read_errors(path: Path) -> list[_Row]:
    """One error in a row, also where the table has a column for each model."""
    rows = _read_rows(path)
    heads = rows[0][1]
    if "task" not in heads or ("model" in heads and "error" not in heads):
        raise DataError(
            f"line 1 of '{path}' has no column '{'error' if 'task' in heads else 'task'}'. Use the columns task, model "
            "and error, or task and one column for each model."
        )
    if "model" in heads:
        return rows
    return [
        (line, {"task": row["task"], "dataset": row.get("dataset", ""), "model": model, "error": row[model]})
        for line, row in rows
        for model in heads
        if model not in ("task", "dataset")
    ]


def _read_rows(path: Path) -> list[_Row]:
    """The rows of a table, and their lines."""
    columns = read_columns(path)
    if len(columns) < 2 or not columns.lines:
        raise DataError(
            f"'{path}' has no table: it needs two columns and a row below the heading. Add the missing ones."
        )
    cells = zip(*([cell.strip() for cell in column] for column in columns.values()), strict=True)
    heads = [head.strip() for head in columns]
    return [(line, dict(zip(heads, row, strict=True))) for line, row in zip(columns.lines, cells, strict=True)]


def _parse_number(place: str, text: str, what: str, least: float = 0.0, most: float = np.inf) -> float:
    """A number between two; NaN for what is unknown. An error names the `place`."""
    if text.lower() in _UNKNOWN:
        return np.nan
    with suppress(ValueError):
        value = float({"true": "1", "false": "0"}.get(text.lower(), text))
        if np.isfinite(value) and least <= value <= most:
            return value
    share = ": divide percentages by 100" if most == 1 else ""
    raise DataError(
        f"{place} has the {what} '{text}', which is not a number from {least:g} to {most:g}{share}. Correct it, or "
        "leave it empty."
    )


def _add_distances(metatask: MetaTask, path: Path) -> MetaTask:
    """The meta-task with the distances of a table; columns of models are taken for their source tasks."""
    rows = _read_rows(path)
    first, *heads = rows[0][1]
    table = {row[first]: (line, row) for line, row in rows}
    names = [task.name for task in metatask.tasks]
    missing = [name for name in names if name not in table]
    if missing or len(table) < len(rows):
        what = f"no row for the task '{missing[0]}', which has errors" if missing else "two rows for the same name"
        raise DataError(f"'{path}' has {what}, so similarities are not known. Give every task with errors one row.")
    models = []
    for model in metatask.models:
        own = next((name for name in (model.source_task, model.name) if name in heads), model.source_task)
        models.append(replace(model, source_fingerprint=own))
    sources = [own for own in dict.fromkeys(model.source_fingerprint for model in models) if own and own not in names]
    every, count = [*names, *sources], len(names)
    if not set(heads) & set(every):
        raise DataError(
            f"line 1 of '{path}' has '{heads[0]}' and no task, model or source task of the errors. Use their names."
        )
    whole = np.full((len(every), len(every)), np.nan)
    for number, name in enumerate(names):
        line, row = table[name]
        whole[number] = [_parse_number(f"line {line} of '{path}'", row.get(one, ""), "distance") for one in every]
    whole = np.where(np.isnan(whole), whole.T, whole)  # one way may be given for both
    between = whole[:count, :count]
    if set(heads) & set(names):
        between[np.eye(count, dtype=bool) & np.isnan(between)] = 0
    source_tasks = tuple(TaskInfo(own, fingerprint=own) for own in sources)
    return replace(metatask, models=tuple(models), source_tasks=source_tasks, distances={SYMMETRIC: whole})
