"""Task + probe -> embedding: one pass for the features, the head, a draw, and a pass for the Fisher."""

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import safetensors
import timm
import torch
from torch import Tensor

from task2vec import __version__
from task2vec.embedding.device import choose_device
from task2vec.embedding.halving import Halving
from task2vec.embedding.passes import Passes
from task2vec.embedding.pixels import Pixels
from task2vec.embedding.prior import fitted_prior, fixed_prior
from task2vec.embedding.settings import RECIPE, EmbedSettings
from task2vec.embedding.steps import Steps, split_steps
from task2vec.embedding.value import Embedding
from task2vec.embedding.variational import MOST_DRIFT, MOST_SPEED, find_minimum
from task2vec.errors import UsageError
from task2vec.fisher import FisherEstimate, NoisyNetwork, spread_over_filters
from task2vec.head import Head, fit_head
from task2vec.probe import Probe, load_probe
from task2vec.progress import Report, show_progress
from task2vec.tasks import Images, Task

_BATCH = {"cpu": 16, "cuda": 128}


def embed(
    task: Task,
    probe: Probe | None = None,
    *,
    settings: EmbedSettings = EmbedSettings(),
    device: str | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
    progress: bool | Report = False,
) -> Embedding:
    """The embedding of `task` by `probe` (the default one if None).

    What changes the numbers is in `settings`; the other arguments do not, beyond rounding
    (on a GPU, that of TF32). The order of the images,
    their labels' names and numbers, the number of workers and earlier calls change nothing at all.

    Args:
        task: what `read_folder` and its siblings give.
        probe: what `load_probe` gives.
        settings: see `EmbedSettings`.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved by itself when GPU memory runs out.
        progress: show a progress bar on standard error, or a report of one's own (see `task2vec.progress`).

    Example:
        >>> from task2vec import sample_tasks
        >>> task = sample_tasks(images_per_task=24)[0]
        >>> embedding = embed(task, load_probe(size=64), settings=EmbedSettings(images=16))
        >>> len(embedding), embedding.norm() > 0
        (21008, True)
    """
    probe = probe or load_probe()
    steps = prepare_steps(task, probe, settings=settings, device=device, workers=workers, batch_size=batch_size)
    if settings.halves:
        split_steps(steps)  # refuses a task that cannot be split before any image is decoded
    with show_progress(progress) as report:
        with tensor_cores(steps.pixels.device):
            features = steps.features(report)
        return measure_with_halves(task, steps, features, report)


def measure_with_halves(task: Task, steps: Steps, features: Tensor, report: Report) -> Embedding:
    """The embedding of a task whose features are known, and that of its halves if the settings want them."""
    head, measured = measure(steps, features, report)
    halves = None
    if steps.settings.halves:
        measures = [measure(half, features[own], report)[1] for own, half in split_steps(steps)]
        halves = np.stack([half.estimate.fisher.numpy() for half in measures])
    return replace(describe(task, steps, head, measured), halves=halves)


def prepare_steps(
    task: Task,
    probe: Probe,
    *,
    settings: EmbedSettings,
    device: str | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
) -> Steps:
    """An embedding about to begin: the network is ready, no image has been decoded."""
    canonical = task.canonical()
    passes, pixels = prepare_passes(
        canonical.images, probe, settings=settings, device=device, workers=workers, batch_size=batch_size
    )
    return Steps(canonical, settings, passes, pixels, as_targets(canonical, pixels.device))


def prepare_passes(
    images: Images,
    probe: Probe,
    *,
    settings: EmbedSettings,
    device: str | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
) -> tuple[Passes, Pixels]:
    """The probe made ready to run, and the images that it will see, none of them decoded yet."""
    if any(count is not None and count < 1 for count in (workers, batch_size)):
        raise UsageError(
            f"workers={workers} and batch_size={batch_size} must be at least 1. Leave them out to have them chosen."
        )
    where = choose_device(device)
    dtype = getattr(torch, settings.dtype)
    pixels = Pixels(images, probe, device=where, workers=workers or os.cpu_count() or 1)
    network = probe.prepare(device=where, dtype=dtype)
    if settings.method == "variational":
        NoisyNetwork(network, probe.layers)  # refuses a probe whose noise is not known
    what = f"probe '{probe.name}' at {probe.size[0]} x {probe.size[1]} pixels"
    memory = Halving(what, on_shortage=pixels.forget)
    return Passes(probe, network, dtype, batch_size or _BATCH.get(where.type, 16), memory), pixels


def as_targets(task: Task, device: torch.device) -> Tensor:
    """The targets of a task, where they will be used."""
    return torch.from_numpy(task.targets.astype(np.int64)).to(device)


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Lets a GPU multiply float32 in TF32, its fast path, for as long as the probe runs; a CPU does as always."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Measured:
    """What a method found: the Fisher, the prior beside it, what to warn of, and what only it can tell."""

    estimate: FisherEstimate
    prior: Tensor
    warnings: tuple[str, ...] = ()
    story: dict[str, Any] = field(default_factory=dict)


def measure(steps: Steps, features: Tensor, report: Report) -> tuple[Head, Measured]:
    """The head of a task, and what the wanted method finds behind it."""
    settings = steps.settings
    classes = len(steps.task.classes)
    head = fit_head(features, steps.targets, classes=classes, l2=settings.l2, balance=settings.balance)
    with tensor_cores(steps.pixels.device):
        if settings.method == "variational":
            return head, _measure_noise(steps, features, head, report)
        p = steps.probabilities(features, head)
        return head, judge(steps, steps.fisher(p, head, steps.draw(p, head), report))


def judge(steps: Steps, estimate: FisherEstimate) -> Measured:
    """The Fisher at the converged head with its prior; direct or, with the prior of the closed form, robust."""
    layers, beta = steps.passes.probe.layers, steps.settings.beta / len(steps.task)
    if steps.settings.method == "robust":
        prior = fitted_prior(estimate.fisher, layers, beta=beta)
    else:
        prior = fixed_prior(layers, beta=beta)
    wanted = steps.settings.precision
    if wanted is None or estimate.relative_error <= wanted:
        return Measured(estimate, prior)
    warning = (
        f"precision {wanted:g} was asked for and {estimate.relative_error:.2g} reached with {estimate.terms} pairs: "
        "raise images= (--images), or add images to the task"
    )
    return Measured(estimate, prior, (warning,))


def _measure_noise(steps: Steps, features: Tensor, head: Head, report: Report) -> Measured:
    """The Fisher behind the noise that the weights bear, by the paper's optimisation."""
    found = find_minimum(steps, features, head, report)
    training, layers = steps.settings.variational, steps.passes.probe.layers
    beta = steps.settings.beta / len(steps.task)
    prior = beta / spread_over_filters(found.prior_variances, layers)
    vector = beta * found.log_precision.exp()
    fisher, stderr = (vector - prior).clamp_min(0), vector * found.stderr
    passes = (1 + (training.gradient == "noise")) * training.epochs * training.steps_per_epoch * training.batch
    estimate = FisherEstimate(fisher.cpu(), stderr.cpu(), len(steps.task), passes, float(len(steps.task)))
    has_converged = max(found.drift, found.trend) <= MOST_DRIFT and found.speed <= MOST_SPEED
    story = {"loss": found.loss, "kl": found.kl, "drift": found.drift, "trend": found.trend}
    story["has_converged"] = has_converged
    if has_converged:
        return Measured(estimate, prior.cpu(), story={"variational": story})
    warning = (
        "the variational training has not converged: the precisions still moved by a factor of "
        f"{math.exp(found.drift):.2f} from epoch to epoch and of {math.exp(found.trend):.2f} between the halves of "
        f"what is reported (root mean square over filters), at {100 * found.speed:.0f} % of the optimiser's top speed: "
        "raise epochs= (--epochs)"
    )
    return Measured(estimate, prior.cpu(), (warning,), {"variational": story})


def describe(task: Task, steps: Steps, head: Head, measured: Measured) -> Embedding:
    """The value object, with everything that made it."""
    estimate = measured.estimate
    provenance = {
        "task_fingerprint": task.fingerprint,
        "probe_fingerprint": steps.passes.probe.fingerprint,
        "probe_source": steps.passes.probe.source,
        "image_size": list(steps.passes.probe.size),
        "settings": steps.settings.as_dict(),
        "recipe": RECIPE,
        "versions": _versions(),
        "device": steps.pixels.device.type,
        "classes": list(task.classes),
        "is_multilabel": task.is_multilabel,
        "counts": {
            "images": len(task),
            "classes": len(task.classes),
            "per_class": task.counts.tolist(),
            "bad": len(task.bad),
            "images_used": estimate.images,
            "backpropagated": estimate.terms,
        },
        "head": {
            "l2": head.l2,
            "train_loss": head.train_loss,
            "cv_loss": head.cv_loss,
            "cv_error": head.cv_error,
            "has_converged": head.has_converged,
        },
        "effective_images": estimate.effective_images,
        "relative_error": estimate.relative_error,
        "warnings": [*task.warnings, *measured.warnings],
        **measured.story,
    }
    return Embedding(
        task=task.name,
        probe=steps.passes.probe.name,
        fisher=estimate.fisher.numpy(),
        stderr=estimate.stderr.numpy(),
        prior=measured.prior.numpy(),
        layers=steps.passes.probe.layers,
        provenance=provenance,
    )


def _versions() -> dict[str, str]:
    return {
        "task2vec": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
    }
