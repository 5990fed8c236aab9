"""The stages of `task2vec.embed`, one by one, so that each can be timed and the first ones be shared.

This is the only file of benchmarks/ that looks inside the room `embedding`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

import task2vec as t2v
from benchmarks.measure import timed
from task2vec.distance import symmetric_from_logs
from task2vec.embedding import EmbedSettings
from task2vec.embedding.batching import Pixels
from task2vec.embedding.single import Job, fixed_prior, prepare_job
from task2vec.fisher import FisherEstimate
from task2vec.head import Head, fit_head
from task2vec.progress import silent


@dataclass(frozen=True)
class Fitted:
    """A task up to its head, and the seconds that the feature pass (with decoding) and the fit took."""

    run: Job
    head: Head
    features: Tensor
    feature_seconds: float
    head_seconds: float

    @property
    def seconds(self) -> float:
        """What every estimate of the Fisher costs before it can begin."""
        return self.feature_seconds + self.head_seconds

    @property
    def pixels(self) -> Pixels:
        """The decoded images, in the order of the canonical task."""
        return self.run.passes.pixels

    @property
    def task(self) -> t2v.Task:
        """The task in its canonical order."""
        return self.run.task


def start(task: t2v.Task, probe: t2v.Probe, *, settings: EmbedSettings, device: str = "cpu") -> Job:
    """An embedding about to begin: the network is ready, no image has been decoded."""
    return prepare_job(task, probe, settings=settings, device=device)


def fit(run: Job, clock: Callable[[], float]) -> Fitted:
    """The first two stages: features and head."""
    features, feature_seconds = timed(lambda: run.features(silent), clock)
    classes = len(run.task.classes)
    head, head_seconds = timed(lambda: fit_head(features, run.targets, classes=classes, l2=run.settings.l2), clock)
    return Fitted(run, head, features, feature_seconds, head_seconds)


def estimate(fitted: Fitted, settings: EmbedSettings, clock: Callable[[], float]) -> tuple[FisherEstimate, float]:
    """The last two stages, draw and Fisher, and their seconds."""
    run = replace(fitted.run, settings=settings)

    def work() -> FisherEstimate:
        return run.fisher(fitted.features, fitted.head, silent)

    return timed(work, clock)


def median_error(fisher: Tensor, reference: Tensor) -> float:
    """Median over the filters that are alive in the reference of |F - reference| / reference."""
    alive = reference > 0
    return float(((fisher - reference).abs()[alive] / reference[alive]).median())


def distance(fisher: Tensor, reference: Tensor, fitted: Fitted) -> float:
    """The symmetric distance of an estimate from the reference: 0 if it were perfect."""
    beta = fitted.run.settings.beta / len(fitted.task)
    prior = fixed_prior(fitted.run.passes.probe.layers, beta=beta).numpy()
    logs, reference_logs = (np.log(values.double().numpy() + prior) for values in (fisher, reference))
    return symmetric_from_logs(logs, reference_logs)
