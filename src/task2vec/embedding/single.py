"""One task + probe -> embedding: a pass for the features, the head, a draw of pairs, and a pass for the Fisher.

The prior is what a task without information embeds to. The paper's posterior has the precision
1 / s^2 = 1 / v + F / beta for a mean loss, where v is the variance of the prior of a layer's weights (derived in
`task2vec.fisher.estimate`). We count beta beside a loss *summed* over the N images of the task, so beta / N stands
beside the mean, and the embedding

    (beta / N) (1 / s^2) = F + (beta / N) / v

is the Fisher plus a prior: it fades as images come in, and is all that is left of a task with no Fisher. It also keeps
a filter that is dead for two tasks from making their distance 0/0.

The direct method takes v as the mean square of the layer's weights, which is where the robust method's v lies too
unless the layer tolerates much noise. On 43 real tasks (benchmarks/real_tasks.py) the default beta, 1e-7, puts the
prior at 0.5 % of the median Fisher of a ResNet-34's layers and 0.01 % of an EfficientNet's; distances then find the
dataset of a task best. From about a tenth of the median Fisher on, the prior blurs them.
"""

import math
import platform
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import safetensors
import timm
import torch
from torch import Tensor
from torch.nn import functional

from task2vec import __version__
from task2vec.embedding.batching import (
    Backward,
    Part,
    Passes,
    Pixels,
    prepare_passes,
    refuse_infinite,
    tensor_cores,
)
from task2vec.embedding.embedding import RECIPE, Embedding, EmbedSettings
from task2vec.embedding.variational import MOST_DRIFT, MOST_SPEED, find_minimum
from task2vec.errors import DataError
from task2vec.fisher import (
    Design,
    Draw,
    FisherEstimate,
    Ledger,
    PerSampleFisher,
    check_rows,
    closed_form,
    draw_pairs,
    label_probabilities,
    mix_with_uniform,
    probabilities,
    spread_over_filters,
    term_shares,
    term_vectors,
    weight_scales,
)
from task2vec.head import Head, fit_head, image_weights
from task2vec.probe import FilterLayer, Probe, load_probe
from task2vec.progress import Report, show_progress
from task2vec.tasks import Task

# With a requested tolerance the estimate is checked after every so many images, if at least so many are in.
_ROUND, _FEWEST = 64, 16


def embed(
    task: Task,
    probe: Probe | None = None,
    *,
    settings: EmbedSettings = EmbedSettings(),
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    progress: bool | Report = False,
) -> Embedding:
    """The embedding of `task` by `probe` (the default one if None).

    What changes the numbers is in `settings`; the other arguments do not, beyond rounding (on a GPU, that of TF32). The
    order of the images, the names and numbers of their labels, the number of workers and earlier calls change nothing.

    Args:
        task: what `read_folder` and its siblings return.
        probe: what `load_probe` returns.
        settings: see `EmbedSettings`.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. It is halved automatically when GPU memory runs out.
        progress: show a progress bar on standard error, or a function that reports it (see `task2vec.progress`).

    Example:
        >>> from task2vec import sample_tasks
        >>> task = sample_tasks(images_per_task=24)[0]
        >>> embedding = embed(task, load_probe(size=64), settings=EmbedSettings(max_samples=16))
        >>> len(embedding), embedding.norm() > 0
        (21008, True)
    """
    job = prepare_job(
        task, probe or load_probe(), settings=settings, device=device, num_workers=num_workers, batch_size=batch_size
    )
    if settings.split_half:
        job.split()  # refuses a task that cannot be split before any image is decoded
    with show_progress(progress) as report:
        return job.embed(task, job.features(report), report)


@dataclass(frozen=True)
class Job:
    """One task on its way to an embedding; `task` is in its canonical order."""

    task: Task
    settings: EmbedSettings
    passes: Passes
    pixels: Pixels
    targets: Tensor

    def features(self, report: Report) -> Tensor:
        """(n, d) pooled features of every image, float32 (float64 if asked)."""
        features = self.passes.features(self.pixels, report)
        refuse_infinite(features, self.pixels.images.name)
        return features

    def embed(self, given: Task, features: Tensor, report: Report) -> Embedding:
        """The embedding of the task as it was given, whose features are known, with its halves if wanted."""
        head = self.fit(features)
        if self.settings.method == "variational":
            with tensor_cores(self.pixels.device):
                parts = self._measure_noise(features, head, report)
        else:
            estimate = self.fisher(features, head, report)
            parts = estimate, *self.judge(estimate)
        found = self.describe(given, head, *parts)
        if not self.settings.split_half:
            return found
        halves = [half.embed(half.task, features[own], report).fisher for own, half in self.split()]
        return replace(found, halves=np.stack(halves))

    def fit(self, features: Tensor) -> Head:
        """The head of the task."""
        classes, settings = len(self.task.classes), self.settings
        return fit_head(features, self.targets, classes=classes, l2=settings.l2, balance=settings.balance)

    @cached_property
    def weights(self) -> Tensor:
        """(n,) the weight of each image, on average one: all classes have the same in total, if balanced."""
        targets = self.targets.cpu()
        onehot = targets if targets.ndim == 2 else functional.one_hot(targets, len(self.task.classes))
        share = image_weights(onehot.double(), is_multilabel=targets.ndim == 2, balance=self.settings.balance)
        return share * len(targets)

    def draw(self, p: Tensor, head: Head) -> Draw:
        """The pairs to back-propagate; images lie sorted by class, so that the draw spreads over classes."""
        is_multilabel = self.task.is_multilabel
        labels = label_probabilities(p, is_multilabel=is_multilabel)
        shares = term_shares(p, head.weight.cpu(), is_multilabel=is_multilabel) * self.weights[:, None]
        if self.settings.seeds == "plain":
            chances = labels / labels.sum()
        else:
            chances = mix_with_uniform(shares, labels)
        budget = chances.numel() if self.settings.seeds == "all" else self.settings.max_samples
        order = torch.arange(len(p)) if is_multilabel else torch.argsort(self.targets.cpu(), stable=True)
        drawn = draw_pairs(chances[order], budget, generator=torch.Generator().manual_seed(self.settings.seed))
        return Draw(order[drawn.images], drawn.terms, drawn.inclusion, drawn.image_inclusion)

    def part(self, features: Tensor, head: Head) -> Part:
        """The drawn pairs, as the backward passes need them.

        A pair counts 1 / inclusion; the accumulator divides by the inclusion of the image, so only the rest enters its
        gradient.
        """
        p = probabilities(head.logits(features), is_multilabel=self.task.is_multilabel).cpu()
        draw = self.draw(p, head)
        order = torch.argsort(draw.images, stable=True)
        images, inclusion = draw.images[order], draw.image_inclusion[order]
        vectors = term_vectors(p, images, draw.terms[order], is_multilabel=self.task.is_multilabel)
        weights = self.weights[images]
        root = (weights * inclusion / draw.inclusion[order]).sqrt()
        return Part(images, vectors * root[:, None], head.weight.cpu(), inclusion, weights)

    def fisher(self, features: Tensor, head: Head, report: Report) -> FisherEstimate:
        """Back-propagates the drawn pairs, image by image in random order, until done or precise enough."""
        part = self.part(features, head)
        backward = start_backward(self.passes, self.pixels, [(self, part)], self.task.digests)
        ledger, images, wanted = backward.ledger, part.images.unique(), self.settings.rel_tol
        shuffle = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.settings.seed + 1))
        step = report("fisher", len(part.images))
        for some in images[shuffle].split(_ROUND if wanted is not None else len(images)):
            backward.run(some.tolist(), step)
            check_rows(ledger.sums[:1, 1], self.passes.probe.layers)
            # A handful of images cannot show how much they differ, so they never end a run.
            if wanted is not None and ledger.count(0) >= _FEWEST and ledger.estimate(0).relative_error <= wanted:
                break
        return ledger.estimate(0)

    def judge(self, estimate: FisherEstimate) -> tuple[Tensor, list[str], dict[str, Any]]:
        """The prior beside a Fisher at the converged head, warnings, and further provenance."""
        layers, beta = self.passes.probe.layers, self.settings.beta / len(self.task)
        is_robust = self.settings.method == "robust"
        prior = fitted_prior(estimate.fisher, layers, beta=beta) if is_robust else fixed_prior(layers, beta=beta)
        wanted = self.settings.rel_tol
        if wanted is None or estimate.relative_error <= wanted:
            return prior, [], {}
        warning = (
            f"a relative error of {wanted:g} was requested and {estimate.relative_error:.2g} reached with "
            f"{estimate.terms} samples: raise max_samples= (--max-samples), or add images to the task"
        )
        return prior, [warning], {}

    def _measure_noise(
        self, features: Tensor, head: Head, report: Report
    ) -> tuple[FisherEstimate, Tensor, list[str], dict[str, Any]]:
        """The Fisher behind the noise that the weights tolerate, by the paper's optimisation; else as `judge`."""
        found = find_minimum(self, features, head, report)
        training, layers = self.settings.variational, self.passes.probe.layers
        beta = self.settings.beta / len(self.task)
        prior = beta / spread_over_filters(found.prior_variances, layers)
        vector = beta * found.log_precision.exp()
        fisher, stderr = (vector - prior).clamp_min(0), vector * found.stderr
        passes = training.epochs * training.steps_per_epoch * training.batch
        estimate = FisherEstimate(fisher.cpu(), stderr.cpu(), len(self.task), passes, float(len(self.task)))
        has_converged = max(found.drift, found.trend) <= MOST_DRIFT and found.speed <= MOST_SPEED
        story = {"loss": found.loss, "kl": found.kl, "drift": found.drift, "trend": found.trend}
        story["has_converged"] = has_converged
        warning = (
            "the variational training has not converged: the precisions still changed by a factor of "
            f"{math.exp(found.drift):.2f} from epoch to epoch and of {math.exp(found.trend):.2f} between the halves of "
            f"what is reported (root mean square over filters), at {100 * found.speed:.0f} % of the optimiser's top "
            "speed: raise epochs= (--epochs)"
        )
        return estimate, prior.cpu(), [] if has_converged else [warning], {"variational": story}

    def split(self) -> list[tuple[Tensor, "Job"]]:
        """Two halves of the task as tasks of their own: which images they have, and their jobs.

        Every second image of each class goes to the second half. As the canonical order follows from the bytes of the
        images, the halves are as good as drawn at random. Each gets half of the pairs, so that their noise is that of
        the whole with half as many images.
        """
        targets = self.targets.cpu()
        order = torch.argsort(targets, stable=True) if targets.ndim == 1 else torch.arange(len(targets))
        samples = max(2, self.settings.max_samples // 2)
        settings = replace(self.settings, max_samples=samples, split_half=False)
        halves = []
        for start in (0, 1):
            own = order[start::2].sort().values
            try:
                # Fewer members may reorder classes; images stay, except copies, whose pixels are the same.
                task = self.task.subset(own.numpy()).canonical()
            except DataError as error:
                raise DataError(
                    f"'{self.task.name}' cannot be split into two halves: one of them would have a single class, or an "
                    "attribute that is the same for all images. Add images, or leave out split_half (--split-half)."
                ) from error
            pixels = self.pixels.part(own.tolist(), task.images)
            halves.append((own, Job(task, settings, self.passes, pixels, as_targets(task, self.targets.device))))
        return halves

    def describe(
        self,
        given: Task,
        head: Head,
        estimate: FisherEstimate,
        prior: Tensor,
        warnings: list[str],
        more: dict[str, Any],
    ) -> Embedding:
        """The embedding of the task as it was given, with its provenance."""
        probe = self.passes.probe
        provenance = {
            "task_fingerprint": given.fingerprint,
            "probe_fingerprint": probe.fingerprint,
            "probe_source": probe.source,
            "image_size": list(probe.size),
            "settings": self.settings.as_dict(),
            "recipe": RECIPE,
            "versions": {
                "task2vec": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "timm": timm.__version__,
                "numpy": np.__version__,
                "safetensors": safetensors.__version__,
            },
            "device": self.pixels.device.type,
            "classes": list(given.classes),
            "is_multilabel": given.is_multilabel,
            "counts": {
                "images": len(given),
                "classes": len(given.classes),
                "per_class": given.counts.tolist(),
                "bad": len(given.bad),
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
            "warnings": [*given.warnings, *warnings],
            **more,
        }
        arrays = estimate.fisher.numpy(), estimate.stderr.numpy(), prior.numpy()
        return Embedding(given.name, probe.name, *arrays, probe.layers, provenance)


def prepare_job(
    task: Task,
    probe: Probe,
    *,
    settings: EmbedSettings,
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
) -> Job:
    """An embedding about to begin: the network is ready, no image has been decoded."""
    canonical = task.canonical()
    passes, pixels = prepare_passes(
        canonical.images, probe, settings=settings, device=device, num_workers=num_workers, batch_size=batch_size
    )
    return Job(canonical, settings, passes, pixels, as_targets(canonical, pixels.device))


def as_targets(task: Task, device: torch.device) -> Tensor:
    """The targets of a task, where they will be used."""
    return torch.from_numpy(task.targets.astype(np.int64)).to(device)


def start_backward(passes: Passes, pixels: Pixels, work: list[tuple[Job, Part]], digests: tuple[str, ...]) -> Backward:
    """The backward passes of jobs on common images, about to begin, with an empty ledger."""
    settings = work[0][0].settings
    designs = [
        Design(len(job.task), len(part.images.unique()), float(job.weights.square().sum())) for job, part in work
    ]
    ledger = Ledger(designs, filters=passes.probe.n_filters, device=pixels.device)
    engine = PerSampleFisher(passes.network, passes.probe.layers, is_untied=settings.method == "robust")
    # Random signs are drawn from the content of an image and the seed.
    keys = [int(digest[:16], 16) ^ settings.seed for digest in digests]
    return Backward(passes, engine, pixels, parts=[part for _, part in work], keys=keys, ledger=ledger)


def fixed_prior(layers: tuple[FilterLayer, ...], *, beta: float) -> Tensor:
    """One value per filter: beta / mean square weight of the filter's layer; beta is that of a mean loss."""
    return beta / spread_over_filters(weight_scales(layers), layers)


def fitted_prior(fisher: Tensor, layers: tuple[FilterLayer, ...], *, beta: float) -> Tensor:
    """One value per filter: beta / v with the best v of each layer for this Fisher."""
    _, variances = closed_form(fisher, layers, beta=beta)
    return beta / spread_over_filters(variances, layers)
