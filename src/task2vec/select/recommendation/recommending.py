"""Which expert to start from: a task meets what is known of others."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from task2vec.embedding import Embedding
from task2vec.errors import DataError, ProbeMismatchError, UsageError
from task2vec.experts.measured import MeasuredMetaTask, bundled_metatask, load_metatask
from task2vec.library import Library
from task2vec.progress import show_progress
from task2vec.select.evidence.spaces import list_spaces, side_of, word_space
from task2vec.select.knowledge import Knowledge
from task2vec.select.knowledge.joining import join
from task2vec.select.knowledge.knowing import find_embedding, know_library, know_measured
from task2vec.select.knowledge.offers import offer_entry, offer_measured, offer_named
from task2vec.select.knowledge.regimes import choose_regime
from task2vec.select.recommendation import Recommendation
from task2vec.select.recommendation.case import Case
from task2vec.select.recommendation.limits import read_count
from task2vec.select.strategies import find_strategy

if TYPE_CHECKING:
    from task2vec.tasks import Task

BUNDLE, LIBRARY = "bundle", "library"


@dataclass(frozen=True)
class Wanted:
    """How a recommendation is to be made; see `recommend`."""

    evidence: MeasuredMetaTask | str | Path | None = None
    candidates: Sequence[str | Path] | None = None
    regime: str | int | None = None
    strategy: str | None = None
    max_params: str | float | None = None
    max_time: float | None = None
    download: bool = False
    progress: bool = False
    how: dict[str, Any] = field(default_factory=dict)


def recommend(
    what: "Task | Embedding | str | Path",
    *,
    evidence: MeasuredMetaTask | str | Path | None = None,
    library: Library | str | Path | None = None,
    candidates: Sequence[str | Path] | None = None,
    confirm: int = 0,
    seeds: int = 3,
    regime: str | int | None = None,
    strategy: str | None = None,
    max_params: str | float | None = None,
    max_time: float | None = None,
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    download: bool = False,
    progress: bool = False,
) -> Recommendation:
    """The experts that suit a task, with the error that each is predicted to leave and how sure that is.

    Where the evidence does not beat the static choice, the expert that is best on average over all that is known, it
    says so, and that is the choice.

    Args:
        what: an embedding; or a task or a folder of class folders, which is embedded as the evidence asks for.
        evidence: None takes the meta-task that comes with the package, and what was measured in `library`; "bundle" and
            "library" take one of them; a `MeasuredMetaTask`, or the path of one, stands in for that of the package.
        library: where errors, experts and embeddings are found, and where those that are made are kept; None does
            without.
        candidates: only these: names of experts that errors are known of, models of timm or torchvision, files of
            experts. By default all whose errors are known and whose weights anybody can get.
        confirm: measure the error of so many of the best candidates on the task's own images, of those whose weights
            are on this machine (or, with `download`, can be fetched).
        seeds: of the splits that are measured.
        regime: "half" or "few": with how many images classifiers are trained; or a number of images per class. None
            goes by the task: with up to ten images of a class it is "few".
        strategy: by which errors are predicted; None takes the best that we know.
        max_params: leave out experts with more weights, such as "10M".
        max_time: leave out experts that take longer for 1,000 images on this machine, in seconds; they are timed.
        device: "cpu", "cuda"; None takes a GPU if there is one. This and the next two change no number.
        num_workers: threads that decode images.
        batch_size: images per step.
        download: fetch weights that are not on this machine.
        progress: show progress bars on standard error.

    Raises:
        ProbeMismatchError: The embedding is by a probe that no errors are known for.
        DataError: No error is known at all.

    Example:
        >>> import task2vec as t2v
        >>> birds = t2v.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0]
        >>> advice = t2v.recommend(birds, max_params="10M")
        >>> advice
        Recommendation(cub_Charadriiformes: ..., 4 candidates...)
        >>> advice.rows[0].load.startswith("t2v.load_probe(")
        True
    """
    how = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    asked = Wanted(evidence, candidates, regime, strategy, max_params, max_time, download, progress, how)
    if confirm < 0:
        raise UsageError(f"confirm={confirm} (--confirm) is no number of experts. Give 0 or more.")
    with ExitStack() as stack:
        opened = library
        if isinstance(library, str | Path):
            opened = stack.enter_context(Library.open(library))
        assert not isinstance(opened, str | Path)
        check_wanted(asked, opened)
        task, embedding = take_task(what, asked, opened)
        if confirm and task is None:
            raise UsageError(
                f"confirm={confirm} (--confirm) measures errors on images, and an embedding has none. Pass the task or "
                "the folder instead."
            )
        case = open_case(embedding, asked, opened, task=task)
        return case.confirm(confirm, seeds=seeds) if confirm else case.weigh()


def check_wanted(asked: Wanted, library: Library | None) -> None:
    """Raise for what cannot be meant, before the minutes that an embedding takes.

    Raises:
        UsageError: There is no such candidate, regime or strategy, or a limit is no number.
    """
    if asked.max_params is not None:
        read_count(asked.max_params)
    if asked.strategy is not None:
        find_strategy(asked.strategy)
    known = [] if library is None else [offer_entry(expert) for expert in library.experts()]
    if asked.evidence != LIBRARY:
        measured = find_measured(asked.evidence)
        known += [offer_measured(expert) for expert in measured.experts]
        choose_regime((), measured.protocols, wanted=asked.regime)
    if not isinstance(asked.candidates, str | Path | None):
        for one in asked.candidates:
            offer_named(str(one), known)


def take_task(
    what: "Task | Embedding | str | Path", asked: Wanted, library: Library | None
) -> "tuple[Task | None, Embedding]":
    """The task, if its images are there, and its embedding: that which is given or known, or one that is made now."""
    if isinstance(what, Embedding):
        return None, what
    if isinstance(what, str | Path):
        from task2vec.tasks import read_folder

        what = read_folder(what, progress=asked.progress)
    if not hasattr(what, "fingerprint") or not hasattr(what, "targets"):
        raise UsageError(
            f"a {type(what).__name__} is neither a task nor an embedding, so there is nothing to choose an expert for. "
            "Pass what read_folder or embed give, or the path of a folder."
        )
    return what, embed_alike(what, find_wanted_space(asked, library), asked, library)


def find_wanted_space(asked: Wanted, library: Library | None) -> Embedding:
    """An embedding of the space that a task is to be embedded in: the first that errors are known for."""
    if asked.evidence != LIBRARY:
        return next(iter(list_spaces(find_measured(asked.evidence)).values()))
    assert_library(library)
    assert library is not None
    having = {error.task for error in library.errors()}
    for task in library.tasks():
        if task.fingerprint in having and task.embeddings:
            return library.get(task.embeddings[-1].key)
    raise DataError(word_nothing(library))


def embed_alike(task: "Task", like: Embedding, asked: Wanted, library: Library | None) -> Embedding:
    """The embedding of a task in the space of another one; that of the library, if it has one."""
    from task2vec.embedding import EmbedSettings, embed
    from task2vec.probe import load_probe

    probe = load_probe(like.probe, size=side_of(like), download=asked.download)
    if probe.fingerprint != like.probe_fingerprint:
        raise ProbeMismatchError(
            f"errors of experts are known for tasks embedded by {word_space(like)}, and the weights of '{like.probe}' "
            "here are others, so distances would mean nothing. Install the versions that were tested: pip install "
            "-c constraints.txt; or embed the task with the weights that were used."
        )
    settings = EmbedSettings(method=like.provenance.get("settings", {}).get("method") or "robust")
    if library is not None:
        known = [one for one in library.tasks() if one.fingerprint == task.fingerprint]
        found = find_embedding(library, known[0], like) if known else None
        if found is not None:
            return found
    made = embed(task, probe, settings=settings, progress=asked.progress, **asked.how)
    if library is not None and not library.is_read_only:
        library.add(made, source=task.source)
    return made


def open_case(embedding: Embedding, asked: Wanted, library: Library | None, *, task: "Task | None" = None) -> Case:
    """All that is known about the question which expert suits the task of an embedding."""
    begin = time.perf_counter()
    knowledge, notes = gather_knowledge(embedding, asked, library)
    with show_progress(asked.progress) as report:
        case = Case.open(embedding, knowledge, library, task=task, notes=notes)
        case = case.choose(asked.candidates).limit(
            max_params=asked.max_params, max_time=asked.max_time, device=asked.how.get("device"), report=report
        )
    return case.prepare(asked.strategy, download=asked.download, progress=asked.progress, how=asked.how, begin=begin)


def gather_knowledge(embedding: Embedding, asked: Wanted, library: Library | None) -> tuple[Knowledge, tuple[str, ...]]:
    """What the evidence tells by the regime that suits the task, and what is to be noted about it."""
    counts = embedding.provenance.get("counts", {}).get("per_class") or ()
    measured = None if asked.evidence == LIBRARY else find_measured(asked.evidence)
    keys = list(measured.protocols) if measured is not None else []
    uses_library = library is not None and asked.evidence != BUNDLE
    if library is not None and measured is None:
        keys += [error.protocol for error in library.errors()]
    if measured is None:
        assert_library(library)
        if not keys:
            assert library is not None
            raise DataError(word_nothing(library))
    regime = choose_regime(counts, keys, wanted=asked.regime)
    base = None if measured is None else know_measured(measured, regime, embedding)
    if not uses_library:
        assert base is not None
        return base, ()
    assert library is not None
    own, strangers = know_library(library, regime, embedding)
    notes = [] if not strangers else [word_strangers(strangers, embedding)]
    if base is None and own is None:
        raise DataError(word_nothing(library) if not strangers else notes[0])
    if base is None or own is None:
        known = base if own is None else own
        assert known is not None
        return known, tuple(notes)
    if own.protocol != base.protocol:
        notes.append(
            f"Errors of your library were measured by '{own.protocol}', those of {base.source} by '{base.protocol}': "
            "near to each other, not the same."
        )
    return join(base, own), tuple(notes)


def find_measured(evidence: MeasuredMetaTask | str | Path | None) -> MeasuredMetaTask:
    """The meta-task that is meant."""
    if isinstance(evidence, MeasuredMetaTask):
        return evidence
    return bundled_metatask() if evidence in (None, BUNDLE) else load_metatask(evidence)


def assert_library(library: Library | None) -> None:
    """Raise if the evidence is to come from a library and there is none."""
    if library is None:
        raise UsageError(
            "evidence='library' (--evidence library) needs a library, and none was given: there would be nothing to "
            "go by. Pass library=Library.open(FOLDER)."
        )


def word_nothing(library: Library) -> str:
    """What to say of a library that nothing was measured in."""
    return (
        f"no error of any expert is in the library '{library.folder}', so nothing is known that could be a reason to "
        "choose one. Measure some: task2vec error-matrix FOLDER --expert NAME; or take what comes with the package: "
        "evidence='bundle', --evidence bundle"
    )


def word_strangers(count: int, embedding: Embedding) -> str:
    """What to say of tasks that errors are known for, and that no embedding can be compared of."""
    size = side_of(embedding)
    how = f"--probe {embedding.probe}{'' if size is None else f' --size {size}'}"
    tasks = "1 task of your library has" if count == 1 else f"{count} tasks of your library have"
    return (
        f"{tasks} errors but no embedding by {word_space(embedding)}, so nothing could be learned from them. Embed "
        f"them like this one: task2vec embed FOLDER {how}"
    )
