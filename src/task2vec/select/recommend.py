"""Which model to start from: candidates -> propose (an order) -> measure -> decide -> recommendation."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.errors import UsageError
from task2vec.library import Library, TaskEntry
from task2vec.progress import show_progress
from task2vec.select.candidates import TIMM, Candidate, count_download, list_candidates, load_candidate, read_seconds
from task2vec.select.evidence import (
    PROPOSALS,
    Given,
    Neighbours,
    find_seen,
    find_task,
    fingerprint_of,
    propose_models,
)
from task2vec.select.history import find_curve, find_measurements, keep_curve, keep_measurements
from task2vec.select.propose import Proposal
from task2vec.select.recommendation import (
    Recommendation,
    Row,
    describe_candidate,
    list_names,
    list_rows,
    write_verdict,
)
from task2vec.tasks import Task
from task2vec.text import pluralize

if TYPE_CHECKING:
    from task2vec.select.decide import Decision
    from task2vec.select.learning_curve import LearningCurve
    from task2vec.select.measure import Measurements

PREFERENCES = ("cheapest", "error")
# Seconds that measuring may take if nothing else is said.
BUDGETS = {"cpu": 60.0, "cuda": 600.0}
# Seconds between two lines of progress where there is no terminal.
PAUSE = 10.0
# About how long a model takes on two cores: to load, and for an image, by a power of its multiplications in billions.
_LOAD, _IMAGE, _GROWTH = 2.0, 0.03, 0.75


def recommend(
    task: Any,
    *,
    models: Any = None,
    library: Library | str | Path | None = None,
    budget: str | float | None = None,
    strategy: str | None = None,
    prefer: str = "cheapest",
    max_params: str | float | None = None,
    license: str | Sequence[str] | None = None,
    download: bool = False,
    device: str | None = None,
    progress: bool = False,
) -> Recommendation:
    """The model to start from, of those that were measured on the images of a task, and how sure that is.

    Every candidate is run once over the same images, and a linear classifier on its features is cross-validated. Models
    that cannot be told apart on these images are a tie, and the cheapest of them is recommended. If there are more
    candidates than can be measured in the budget, those are measured first that were best on similar tasks.

    Args:
        task: images: a task, the name of one in the library whose images are still where they were, or anything that
            `to_task` accepts (a folder, a table, a dataset). Of an embedding nothing can be measured: models are
            proposed.
        models: None takes about 16 modern networks and the experts of the library; "timm", all pretrained classifiers
            of timm; or name networks of timm or torchvision, files of experts, probes, or modules.
        library: where known errors, experts and embeddings are looked up, and what is measured is kept; None uses none.
        budget: the time that measuring may take, in seconds or like "2m". By default 60 s on a CPU, 10 minutes on a
            GPU. What does not fit is measured on a sample of the images, or not at all.
        strategy: None measures. "proposals" only puts the candidates in the order in which they would be measured; the
            name of a strategy of the paper, such as "nearest", selects a model from the embedding alone.
        prefer: what decides a tie: "cheapest" or "error".
        max_params: leave out models with more parameters, such as "10M".
        license: leave out models whose weights have none of these licences, or an unknown one. "permissive" stands for
            apache-2.0, bsd-3-clause, cc-by-4.0 and mit; "unknown" keeps the unknown ones.
        download: download weights that are not on this machine; by default such models are left out.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        progress: show progress on standard error.

    Raises:
        UsageError: A model is unknown, none is left, or something cannot be meant.
        DataError: The images of the task are not where they were.

    Example:
        >>> import task2vec as t2v
        >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
        >>> advice = t2v.recommend(shapes, models=[t2v.load_probe(size=32)])
        >>> advice
        Recommendation(shapes: tf_efficientnet_lite0, 1 of 1 model measured)
        >>> advice.rows[0].low <= advice.rows[0].error <= advice.rows[0].high
        True
    """
    _check_choices(strategy, prefer)
    begin, seconds = time.perf_counter(), None if budget is None else read_seconds(budget)
    how: dict[str, Any] = {"device": device, "progress": progress}
    with ExitStack() as stack:
        if isinstance(library, str | Path):
            library = stack.enter_context(Library.open(library))
        candidates = list_candidates(models, library=library, max_params=max_params, license=license)
        given = find_task(task, library, measures=strategy is None, progress=progress)
        candidates, notes = leave_out_seen(candidates, given, library)
        images = describe_task(given)["images"]
        known = {} if strategy else find_measurements(library, fingerprint_of(given), candidates, images=images)
        if strategy or not (known or isinstance(given, Task)):
            named = strategy or PROPOSALS
            proposals, near, more = propose_models(given, candidates, library, strategy=named, **how)
            return describe_proposals(given, candidates, proposals, near, strategy=named, notes=(*notes, *more))
        is_pool = models is None or (isinstance(models, str) and models == TIMM)
        allowed = candidates if isinstance(given, Task) else tuple(each for each in candidates if each.name in known)
        candidates, more = split_candidates(allowed, known, download=download or not is_pool)
        waiting = tuple(each for each in candidates if each.name not in known and isinstance(given, Task))
        limit, is_short = plan_time(given, waiting, seconds, device)
        proposals, near, _ = propose_models(given, waiting, library, embeds=is_short, **how)
        left = limit and max(limit - is_short * (time.perf_counter() - begin), 1.0)
        new = measure(given, waiting, proposals, budget=left, download=download, **how)
        measurements = join(new, known)
        decision = decide_on(measurements, candidates, prefer)
        if library is not None and new is not None:
            keep_measurements(library, given, waiting, new, decision)
        curve = draw_curve(given, new, measurements, decision, candidates, library)
    rows = tuple(list_rows(candidates, proposals, measurements, decision))
    compared = len(measurements.images)
    needed = decision.images_needed
    return Recommendation(
        **describe_task(given),
        rows=rows,
        choice=decision.choice,
        tie=decision.tie,
        verdict=write_verdict(rows, prefer=prefer, images=compared, images_needed=needed),
        notes=(*notes, *more, *explain_images(given, measurements)),
        measured_images=compared if measurements.models else None,
        images_needed=needed,
        learning_curve=curve,
        prefer=prefer,
        neighbours=near,
        budget=limit,
        seconds=time.perf_counter() - begin,
        is_interrupted=measurements.is_interrupted,
    )


def _check_choices(strategy: str | None, prefer: str) -> None:
    """Raise for what cannot be meant, before anything is read."""
    if prefer not in PREFERENCES:
        raise UsageError(f"prefer={prefer!r} (--prefer) is unknown. Choose {' or '.join(map(repr, PREFERENCES))}.")
    if strategy not in (None, PROPOSALS):
        from task2vec.select.evaluate import find_strategy

        find_strategy(strategy)


# --- candidates ------------------------------------------------------------------------------------------------------


def leave_out_seen(
    candidates: Sequence[Candidate], given: Given, library: Library | None
) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """The candidates that were not trained on the task or its images, and a note of the others."""
    fingerprint = fingerprint_of(given)
    names = set() if library is None or fingerprint is None else find_seen(library, fingerprint)
    seen = [
        each.name
        for each in candidates
        if each.name in names or (fingerprint, each.source_fingerprint).count(fingerprint) == 2
    ]
    if len(seen) == len(candidates):
        raise UsageError(
            f"all candidates were trained on images of this task ({list_names(seen)}), so their errors on it would "
            "mean nothing. Name others: --model NAME"
        )
    note = f"Left out, because trained on images of this task: {list_names(seen)}."
    return tuple(each for each in candidates if each.name not in seen), (note,) if seen else ()


def split_candidates(
    candidates: Sequence[Candidate], known: Mapping[str, Any], *, download: bool
) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """The candidates that can be measured now, and a note of those that `download` would add."""
    ready = tuple(each for each in candidates if download or each.is_here or each.name in known)
    missing = [each for each in candidates if each not in ready]
    names = list_names([each.name for each in missing], most=3)
    words = f"{pluralize(len(missing), 'candidate')} not on this machine ({names})"
    size = f"{count_download(missing):,.0f} MB"
    if not ready:
        raise UsageError(
            f"no candidate can be measured: {words}. Download them ({size}): --download, download=True; or install "
            "three small ones: pip install 'task2vec[models]'"
        )
    return ready, (f"{words}: --download (download=True) adds them, {size}.",) if missing else ()


def plan_time(
    given: Given, waiting: Sequence[Candidate], seconds: float | None, device: str | None
) -> tuple[float | None, bool]:
    """The seconds that measuring may take, and whether they are probably too few for all candidates."""
    if not waiting or not isinstance(given, Task):
        return None, False
    from task2vec.embedding.batching import choose_device

    kind = choose_device(device).type
    limit = BUDGETS.get(kind, BUDGETS["cpu"]) if seconds is None else seconds
    images = len(given) * (1.0 if kind == "cpu" else 0.03)
    expected = sum(_LOAD + images * _IMAGE * (each.gmacs or 4.0) ** _GROWTH for each in waiting)
    return limit, expected > limit


# --- proposals ------------------------------------------------------------------------------------------------------


def describe_proposals(
    given: Given,
    candidates: Sequence[Candidate],
    proposals: Sequence[Proposal],
    neighbours: Neighbours,
    *,
    strategy: str,
    notes: Sequence[str],
) -> Recommendation:
    """The candidates in their order with their reasons, without any error."""
    by_name = {each.name: each for each in candidates}
    rows = tuple(
        Row(rank, each.name, **describe_candidate(by_name[each.name]), reason=each.reason)
        for rank, each in enumerate(proposals, 1)
    )
    verdict = f"Nothing was measured. {rows[0].model} comes first by '{strategy}'."
    if strategy == PROPOSALS:
        verdict = f"Nothing was measured. Measure these first: {list_names([row.model for row in rows[:3]])}."
    source = given.source if isinstance(given, Task) and Path(given.source).exists() else "FOLDER"
    notes = (*notes, f"To compare models on the images: task2vec recommend {shlex.quote(source)}")
    about = {"neighbours": neighbours, "strategy": strategy, "notes": notes}
    return Recommendation(**describe_task(given), rows=rows, choice=None, verdict=verdict, **about)


# --- measure and decide ----------------------------------------------------------------------------------------------


def measure(
    given: Given,
    candidates: Sequence[Candidate],
    proposals: Sequence[Proposal],
    *,
    budget: float | None,
    download: bool,
    device: str | None,
    progress: bool,
) -> "Measurements | None":
    """The candidates on the images of the task, in the order of the proposals; None where none is left to measure."""
    if not candidates or not isinstance(given, Task):
        return None
    from task2vec.select.measure import measure_models

    by_name = {each.name: each for each in candidates}
    ordered = [by_name[each.name] for each in proposals]
    with show_progress(progress, pause=PAUSE) as report:  # of downloads and of images
        load = partial(load_candidate, download=download, progress=report)
        return measure_models(given, ordered, load=load, budget=budget, device=device, progress=report)


def join(new: "Measurements | None", known: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> "Measurements":
    """What was measured now and before, on the same images; what was measured on others is left out."""
    from task2vec.select.measure import Measurements

    if not known:
        assert new is not None
        return new
    groups = next(iter(known.values()))[0]
    count, losses = len(groups), np.column_stack([losses for _, losses in known.values()])
    stored = Measurements(
        images=np.arange(count),
        targets=np.empty(0),
        groups=groups,
        models=tuple(known),
        probability=np.full_like(losses, np.nan),
        losses=losses,
        seconds=(np.nan,) * len(known),
        features=(),
        failures=(),
        is_interrupted=False,
        total_images=count,
    )
    if new is None:
        return stored
    if not new.models or (len(new.images) < count and len(new.models) < len(known)):
        return replace(stored, failures=new.failures, is_interrupted=new.is_interrupted)
    if len(new.images) < count:
        return new
    both = {name: np.column_stack([getattr(stored, name), getattr(new, name)]) for name in ("losses", "probability")}
    return replace(new, models=stored.models + new.models, seconds=stored.seconds + new.seconds, features=(), **both)


def decide_on(measurements: "Measurements", candidates: Sequence[Candidate], prefer: Any) -> "Decision":
    """The best, the tie, and the choice among it, by what the candidates cost."""
    from task2vec.select.decide import decide

    return decide(measurements, {each.name: each.cost for each in candidates}, prefer=prefer)


def draw_curve(
    given: Given,
    new: "Measurements | None",
    whole: "Measurements",
    decision: "Decision",
    candidates: Sequence[Candidate],
    library: Library | None,
) -> "LearningCurve | None":
    """The errors of the chosen model with fewer training images, measured now or before; None if neither was."""
    from task2vec.select.learning_curve import measure_learning_curve

    chosen = next((each for each in candidates if each.name == decision.choice), None)
    if chosen is None:
        return None
    is_whole, fingerprint = len(whole.images) == whole.total_images, fingerprint_of(given)
    if new is None or chosen.name not in new.models or not isinstance(given, Task):
        return find_curve(library, fingerprint, chosen) if is_whole else None
    features = new.features[new.models.index(chosen.name)]
    curve = measure_learning_curve(features, new.targets, classes=len(given.classes), groups=new.groups)
    if library is not None and curve is not None and is_whole:
        keep_curve(library, fingerprint, chosen, curve)
    return curve


# --- the result ------------------------------------------------------------------------------------------------------


def describe_task(given: Given) -> dict[str, Any]:
    """The task of a recommendation, as its fields."""
    if isinstance(given, Task):
        return {"task": given.name, "images": len(given), "classes": len(given.classes), "data": given}
    if isinstance(given, TaskEntry):
        return {"task": given.name, "images": given.images, "classes": len(given.classes)}
    counts = given.provenance.get("counts") or {}
    return {"task": given.task, "images": counts.get("images"), "classes": counts.get("classes")}


def explain_images(given: Given, measurements: "Measurements") -> Iterator[str]:
    """What is to be known of the images that errors were measured on, if these are not all or not there."""
    if isinstance(given, TaskEntry):
        yield f"The images of '{given.name}' are not where they were, so only what was measured before is shown."
    count = len(measurements.images)
    if measurements.models and count < measurements.total_images:
        yield (
            f"Errors were measured on a sample of {count} of {measurements.total_images} images, so they are higher "
            "and less certain than on all, and are not kept in the library. A longer --budget (budget=) measures on "
            "more."
        )
