"""Questions about experts: which suits a task, and which are known."""

import re
from collections import defaultdict

import numpy as np

from task2vec.experts.metatask import find_shots
from task2vec.select.evidence import HALF, choose_shots, list_library_errors
from task2vec.select.recommend import recommend
from task2vec.select.report import Recommendation, Row
from task2vec.web import answers
from task2vec.web.entries import LIBRARY, MEASURED
from task2vec.web.questions import find_entry
from task2vec.web.world import View, World

_TO_BE_TRAINED = "to be trained"


def advise(world: World, view: View, text: str, *, train: str | None) -> answers.RecommendationAnswer:
    """Which expert to start from for a task."""
    entry = find_entry(view, text)
    library = world.open() if view.has_errors else None  # without errors it has nothing to add
    advice = recommend(world.embedding(entry), evidence=world.measured, library=library, shots=train)
    kinds = {expert.name: expert.kind for expert in world.measured.models}
    rows = [_tell(row, kinds.get(row.model, LIBRARY), is_loadable=True) for row in advice.rows]
    rows += [_tell(row, _TO_BE_TRAINED, is_loadable=False) for row in advice.others]
    return answers.RecommendationAnswer(
        task=entry.id,
        sentence=advice.verdict,
        choice=advice.choice,
        is_sure=advice.is_confident,
        static=advice.average_best,
        basis=_word_basis(advice),
        train=advice.shots,
        notes=list(advice.notes),
        experts=rows,
    )


def _word_basis(advice: Recommendation) -> str:
    trained = "half of the images" if advice.shots == HALF else f"{advice.shots} images of each class"
    return f"{advice.known}; errors of linear classifiers trained on {trained}, predicted by '{advice.strategy}'"


def _tell(row: Row, kind: str, *, is_loadable: bool) -> answers.RecommendedAnswer:
    return answers.RecommendedAnswer(
        rank=row.rank,
        name=row.model,
        kind=kind,
        error=row.error,
        low=row.low,
        high=row.high,
        measured=row.measured,
        chance=row.p_best,
        gain=row.gain,
        parameters=row.params,
        cost=row.gmacs,
        nearest=row.nearest,
        distance=row.nearest_distance,
        lesson=row.source_task,
        is_static=row.is_average_best,
        is_loadable=is_loadable,
        load=hide_file(row.load),
        why=row.why,
    )


def hide_file(line: str) -> str:
    """The line that loads an expert, with the name of its file alone: where it lies is not for visitors.

    Example:
        >>> hide_file('t2v.load_expert("/home/ada/birds.expert.safetensors")')
        't2v.load_expert("birds.expert.safetensors")'
    """
    start, end = 't2v.load_expert("', '")'
    if not (line.startswith(start) and line.endswith(end)):
        return line
    name = re.split(r"/|\\\\", line[len(start) : -len(end)])[-1]  # in a literal a backslash is written as two
    return f"{start}{name}{end}"


def list_experts(world: World, view: View, *, train: str | None) -> answers.ExpertsAnswer:
    """All experts whose errors are known, the lowest mean first."""
    regime = choose_shots((), world.measured.protocols, shots=train)
    found = [*_list_measured(world, regime), *(_list_own(world, regime) if view.has_errors else [])]
    found.sort(key=lambda expert: (expert.mean_error is None, expert.mean_error or 0.0, expert.name))
    return answers.ExpertsAnswer(train=regime, experts=found)


def _list_measured(world: World, regime: str) -> list[answers.ExpertAnswer]:
    """Those of the meta-task; an error counts where the expert has not seen the task."""
    measured = world.measured
    protocol = next(at for at, key in enumerate(measured.protocols) if find_shots(key) == regime)
    errors = np.where(measured.is_candidate, measured.errors[:, :, protocol].mean(axis=2), np.nan)
    found = []
    for column, expert in enumerate(measured.models):
        own = errors[:, column][np.isfinite(errors[:, column])]
        if expert.is_repeat:
            continue
        found.append(
            answers.ExpertAnswer(
                name=expert.name,
                kind=expert.kind,
                network=expert.network or "",
                origin=MEASURED,
                parameters=expert.params,
                cost=expert.gmacs,
                mean_error=float(own.mean()) if len(own) else None,
                tasks=len(own),
                lesson=expert.source_task,
            )
        )
    return found


def _list_own(world: World, regime: str) -> list[answers.ExpertAnswer]:
    """Those of the library, with the mean of their errors over tasks."""
    library = world.open()
    if library is None:
        return []
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for error in list_library_errors(library, regime):
        cells[error.expert][error.task].append(error.error)
    names = {task.fingerprint: task.name for task in library.tasks()}
    found = []
    for expert in library.experts():
        means = [float(np.mean(values)) for values in cells[expert.name].values()]
        found.append(
            answers.ExpertAnswer(
                name=expert.name,
                kind=LIBRARY,
                network=expert.location if expert.source != "file" else "a file",
                origin=LIBRARY,
                parameters=expert.parameters,
                cost=expert.cost,
                mean_error=float(np.mean(means)) if means else None,
                tasks=len(means),
                lesson=names.get(expert.task or ""),
            )
        )
    return found
