"""`embed`, one task by one probe: a pass for the features, the head, a sample of pairs, and a pass for the Fisher.

The prior is what a task without information embeds to. The paper's posterior has the precision
1 / s^2 = 1 / v + F / beta for a mean loss, where v is the variance of the prior of a layer's weights (derived in
`task2vec.fisher.estimate`). We count beta beside a loss *summed* over the N images of the task, so beta / N stands
beside the mean, and the embedding

    (beta / N) (1 / s^2) = F + (beta / N) / v

is the Fisher plus a prior: it fades as images come in, and is all that is left of a task with no Fisher. It also keeps
a filter that is dead for two tasks from making their distance 0/0.

The direct method takes v as the mean square of the layer's weights, which is where the robust method's v lies too
unless the layer tolerates much noise. On 43 real tasks (docs/measured/steadiness.json) the default beta, 1e-7, puts the
prior at 1% of the median Fisher of a ResNet-34's layers and 0.03% of an EfficientNet's; distances then find the
dataset of a task best. From about a tenth of the median Fisher on, the prior blurs them.
"""

import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import safetensors
import timm
import torch
from torch import Tensor
from torch.nn import functional

from task2vec.embedding.batching import Backward, Part, Passes, refuse_infinite, tensor_cores
from task2vec.embedding.embedding import RECIPE, Embedding, EmbedSettings
from task2vec.errors import DataError, ResourceError
from task2vec.fisher import (
    Design,
    FisherEstimate,
    NoisyNetwork,
    PerSampleFisher,
    check_rows,
    closed_form,
    draw_pairs,
    enough_pairs,
    mean_loss,
    minimise,
    pair_chances,
    probabilities,
    smooth,
    spread_over_filters,
    term_vectors,
    weight_scales,
)
from task2vec.head import Head, fit_head, image_weights, to_onehot
from task2vec.probe import FilterLayer, Probe, load_probe
from task2vec.progress import Report, show_progress
from task2vec.tasks import Task, to_task
from task2vec.version import __version__

# The Fisher, the prior of each filter, warnings, and what else a method adds to the provenance.
Measured = tuple[FisherEstimate, Tensor, list[str], dict[str, Any]]

# Above this change of L from epoch to epoch or between the halves of what is reported (root mean square over the
# filters), or this part of the optimiser's top speed, a run has not converged; the speed catches short epochs.
_MAX_DRIFT = 0.1
_MAX_SPEED = 0.1
# With a requested tolerance the estimate is checked after every so many images, if at least so many are in.
_IMAGES_PER_ROUND = 64
_MIN_IMAGES = 16


def embed(
    task: Any,
    probe: Probe | None = None,
    *,
    settings: EmbedSettings = EmbedSettings(),
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    progress: bool | Report = False,
) -> Embedding:
    """The embedding of `task` by `probe` (the default one if None).

    Only `settings` change the numbers; the other arguments do not, beyond rounding (on a GPU, that of TF32). The order
    of the images, the names and numbers of their labels, the number of workers and earlier calls change nothing.

    Args:
        task: a task, or anything that `to_task` accepts: a folder, a table, a frame, a dataset, (paths, labels).
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
    options = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    task = to_task(task, num_workers=num_workers, progress=progress is True)
    job = prepare_job(task, probe or load_probe(), settings=settings, **options)
    job.split()  # refuses a task that cannot be split before any image is decoded
    with show_progress(progress) as report:
        return job.embed(job.features(report), report)


@dataclass(frozen=True)
class Job:
    """The embedding of one task, step by step.

    Attributes:
        given: the task as it was given.
        task: in its canonical order.
        settings: what changes the numbers.
        passes: the probe, and the images of this task or of several.
        places: the numbers of the task's images among these.
        digests: of all these images.
    """

    given: Task
    task: Task
    settings: EmbedSettings
    passes: Passes
    places: Tensor
    digests: tuple[str, ...]

    @property
    def device(self) -> torch.device:
        """Where it is computed."""
        return self.passes.pixels.device

    @cached_property
    def labels(self) -> Tensor:
        """The targets of the task on the host, which do not wait for a GPU."""
        return torch.from_numpy(self.task.targets.astype(np.int64))

    @cached_property
    def targets(self) -> Tensor:
        """The targets of the task, where the head is fitted."""
        return self.labels.to(self.device)

    @cached_property
    def groups(self) -> Tensor:
        """(n,) a number for each image, the same for copies and within a group: they belong into one fold."""
        return torch.from_numpy(self.task.fold_groups).to(self.device)

    @cached_property
    def weights(self) -> Tensor:
        """(n,) the weight of each image, on average one: all classes have the same in total, if balanced."""
        is_multilabel = self.task.is_multilabel
        onehot = to_onehot(self.labels, len(self.task.classes), is_multilabel=is_multilabel)
        return image_weights(onehot, is_multilabel=is_multilabel, balance=self.settings.balance) * len(self.task)

    def features(self, report: Report) -> Tensor:
        """(n, d) pooled features of every image, float32 (float64 if asked)."""
        features = self.passes.features(report)
        refuse_infinite(features, self.task.images.name)
        return features

    def embed(self, features: Tensor, report: Report) -> Embedding:
        """The embedding of the task, whose features are known, with its halves if wanted."""
        head, measured = self.measure(features, report)
        halves = [half.measure(features[images], report)[1][0].fisher.numpy() for images, half in self.split()]
        return self.describe(head, measured, halves=halves)

    def measure(self, features: Tensor, report: Report) -> tuple[Head, Measured]:
        """The head, and what is measured at it."""
        classes = len(self.task.classes)
        settings = self.settings
        head = fit_head(
            features, self.targets, classes=classes, l2=settings.l2, balance=settings.balance, groups=self.groups
        )
        if settings.method == "variational":
            with tensor_cores(self.device):
                return head, measure_noise(self, features, head, report)
        return head, add_priors([self], [self.fisher(features, head, report)])[0]

    @cached_property
    def order(self) -> Tensor:
        """The numbers of the images, class by class; attributes have none, so their images stay in order."""
        return torch.arange(len(self.task)) if self.task.is_multilabel else self.labels.argsort(stable=True)

    def fisher(self, features: Tensor, head: Head, report: Report) -> FisherEstimate:
        """Back-propagates the drawn pairs, image by image in random order, until done or precise enough."""
        pairs = draw_parts([self], [head], features)[0]
        backward = start_backward([self], [pairs])
        ledger = backward.ledger
        images = pairs.images.unique()
        wanted = self.settings.rel_tol
        shuffle = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.settings.seed + 1))
        step = report("fisher", len(pairs.images))
        for batch in images[shuffle].split(_IMAGES_PER_ROUND if wanted is not None else len(images)):
            backward.run(batch.tolist(), step)
            check_rows(ledger.sums[:1, 1], self.passes.probe.layers)
            # A handful of images cannot show how much they differ, so they never end a run.
            estimate = ledger.estimate(0)
            if wanted is not None and estimate.images >= _MIN_IMAGES and estimate.relative_error <= wanted:
                break
        return ledger.estimate(0)

    def split(self) -> list[tuple[Tensor, "Job"]]:
        """Two halves of the task as tasks of their own, if wanted: which images they have, and their jobs.

        Every second image of each class goes to the second half. The canonical order follows from a hash of the pixels,
        so the halves are as good as random. Each gets half of the pairs, so its noise is that of a task with half as
        many images.
        """
        halves = []
        settings = replace(self.settings, max_samples=max(2, self.settings.max_samples // 2), split_half=False)
        for start in (0, 1) if self.settings.split_half else ():
            images = self.order[start::2].sort().values
            try:
                # Fewer members may reorder classes; images stay, except copies, whose pixels are the same.
                task = self.task.subset(images.numpy()).canonical()
            except DataError as error:
                raise DataError(
                    f"'{self.task.name}' cannot be split into two halves: one of them would have a single class, or an "
                    "attribute that is the same for all images. Add images, or leave out split_half (--split-half)."
                ) from error
            halves.append((images, Job(task, task, settings, self.passes, self.places[images], self.digests)))
        return halves

    def _warn_of_copies(self) -> list[str]:
        """A warning if there are near copies, which make the error too low; exact copies are in one fold."""
        task = self.task
        pairs = []
        count = 0
        for first, *others in self.passes.near_copies(self.places):
            near = [image for image in others if task.digests[image] != task.digests[first]]
            pairs += [(first, image) for image in near[:1]]
            count += 1 + len(others) if near else 0
        if not pairs:
            return []
        first, second = (repr(task.images.name(image)) for image in pairs[0])
        return [
            f"{count} images look like near-copies of each other, such as {first} and {second}: the cross-validated "
            "error may be too low, as the head is tested on copies of what it was fitted to. Remove those that are not "
            "separate images; task2vec report shows them in groups"
        ]

    def describe(self, head: Head, measured: Measured, *, halves: Sequence[np.ndarray] = ()) -> Embedding:
        """The embedding of the task as it was given, with its provenance."""
        estimate, prior, warnings, more = measured
        given = self.given
        probe = self.passes.probe
        modules = {"torch": torch, "timm": timm, "numpy": np, "safetensors": safetensors}
        provenance = {
            "task_fingerprint": given.fingerprint,
            "probe_fingerprint": probe.fingerprint,
            "probe_source": probe.source,
            "image_size": list(probe.size),
            "settings": self.settings.as_dict(),
            "recipe": RECIPE,
            "versions": {"task2vec": __version__, "python": platform.python_version()}
            | {name: module.__version__ for name, module in modules.items()},
            "device": self.device.type,
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
            "head": {name: value for name, value in vars(head).items() if name not in ("weight", "bias")},
            **({"groups": given.groups_key} if given.groups_key else {}),
            "effective_images": estimate.effective_images,
            "relative_error": estimate.relative_error,
            "warnings": [
                *(*given.warnings, *self._warn_of_copies(), *warnings),
                *([] if head.beats_chance else [_chance_warning(head)]),
            ],
            **more,
        }
        arrays = estimate.fisher.numpy(), estimate.stderr.numpy(), prior.numpy()
        both = np.stack(halves) if halves else None
        return Embedding(given.name, probe.name, *arrays, probe.layers, provenance, both)


def _chance_warning(head: Head) -> str:
    """The warning for labels that cannot be predicted."""
    return (
        f"the head predicts no better than chance (cross-validated error {100 * head.cv_error:.1f}%): the norm then "
        "does not measure difficulty, and neighbours mean little. Check the labels, or add images"
    )


def prepare_job(task: Task, probe: Probe, *, settings: EmbedSettings, **options: Any) -> Job:
    """The job of embedding a task: the network is ready, and no image has been decoded.

    Options are device, num_workers and batch_size.
    """
    canonical = task.canonical()
    passes = Passes(canonical.images, probe, settings=settings, **options)
    return Job(task, canonical, settings, passes, torch.arange(len(task)), canonical.digests)


def draw_parts(jobs: Sequence[Job], heads: Sequence[Head], features: Tensor) -> list[Part]:
    """The pairs to back-propagate of jobs on the same images with as many classes, drawn from the images by class.

    In this order the draw spreads over the classes. A pair counts 1 / inclusion; the ledger divides by the inclusion of
    the image, so the gradient contains only the other factor.
    """
    settings = jobs[0].settings
    is_multilabel = jobs[0].task.is_multilabel
    weight, bias = (torch.stack(values) for values in zip(*((head.weight, head.bias) for head in heads), strict=True))
    # One product for all heads, and one transfer: a GPU waits for each.
    logits = replace(heads[0], weight=weight.flatten(0, 1), bias=bias.flatten()).logits(features)
    logits = logits.view(-1, *bias.shape).transpose(0, 1).contiguous()
    p = probabilities(logits, is_multilabel=is_multilabel).cpu()
    weight = weight.cpu()
    weights, order = (torch.stack(values) for values in zip(*((job.weights, job.order) for job in jobs), strict=True))
    chances = pair_chances(p, weight, weights, is_multilabel=is_multilabel, is_plain=settings.seeds == "plain")
    # Halves have half of the samples.
    budget = torch.tensor([chances[0].numel() if settings.seeds == "all" else job.settings.max_samples for job in jobs])
    if settings.seeds == "balanced" and settings.rel_tol is None:
        budget = torch.minimum(budget, enough_pairs(chances))
    chances = chances.take_along_dim(order[..., None], 1)
    draw = draw_pairs(chances, budget, generator=torch.Generator().manual_seed(settings.seed))
    images = order[draw.tasks, draw.images]
    counts = draw.tasks.bincount(minlength=len(jobs)).tolist()
    drawn_weights = weights[draw.tasks, images]
    root = (drawn_weights * draw.image_inclusion / draw.inclusion).sqrt()
    numbers = draw.tasks * p.shape[1] + images
    vectors = term_vectors(p.flatten(0, 1), numbers, draw.terms, is_multilabel=is_multilabel) * root[:, None]
    squares = weights.square().sum(1).tolist()
    columns = [values.split(counts) for values in (images, vectors, draw.image_inclusion, drawn_weights)]
    parts = []
    for job, head, square, images, vectors, inclusion, u in zip(jobs, weight, squares, *columns, strict=True):
        design = Design(len(job.task), len(images.unique()), square)
        parts.append(Part(job.places[images], vectors, head, inclusion, u, design))
    return parts


def start_backward(jobs: Sequence[Job], parts: Sequence[Part]) -> Backward:
    """The backward passes of jobs on common images, with an empty ledger."""
    settings, passes = jobs[0].settings, jobs[0].passes
    engine = PerSampleFisher(passes.network, passes.probe.layers, is_untied=settings.method == "robust")
    # Random signs are drawn from the content of an image and the seed.
    return Backward(passes, engine, parts, keys=[int(digest[:16], 16) ^ settings.seed for digest in jobs[0].digests])


def add_priors(jobs: Sequence[Job], estimates: Sequence[FisherEstimate]) -> list[Measured]:
    """Smoothed Fishers at converged heads with their priors, on the host; the direct method has a fixed prior.

    All are computed at once: a GPU takes no longer for many than for one.
    """
    settings = jobs[0].settings
    layers = jobs[0].passes.probe.layers
    both = torch.stack([torch.stack([estimate.fisher, estimate.stderr]) for estimate in estimates], dim=1)
    fisher, stderr = smooth(both, layers, settings.smoothing)
    beta = torch.tensor([[settings.beta / len(job.task)] for job in jobs], dtype=torch.float64)
    if settings.method == "robust":
        priors = fitted_prior(fisher, layers, beta=beta.to(fisher.device))
    else:
        priors = fixed_prior(layers, beta=beta)
    wanted = settings.rel_tol
    measured = []
    on_host = (values.cpu() for values in (fisher, stderr, priors))
    for estimate, *vectors, prior in zip(estimates, *on_host, strict=True):
        warnings = []
        if wanted is not None and estimate.relative_error > wanted:
            warnings.append(
                f"a relative error of {wanted:g} was requested, but only {estimate.relative_error:.2g} was reached "
                f"with {estimate.terms} samples: raise max_samples= (--max-samples), or add images to the task"
            )
        measured.append((replace(estimate, fisher=vectors[0], stderr=vectors[1]), prior, warnings, {}))
    return measured


def fixed_prior(layers: tuple[FilterLayer, ...], *, beta: float | Tensor) -> Tensor:
    """One value per filter: beta / mean square weight of the filter's layer; beta is that of a mean loss."""
    return beta / spread_over_filters(weight_scales(layers), layers)


def fitted_prior(fisher: Tensor, layers: tuple[FilterLayer, ...], *, beta: float | Tensor) -> Tensor:
    """One value per filter: beta / v with the best v of each layer for this Fisher."""
    return beta / spread_over_filters(closed_form(fisher, layers, beta=beta)[1], layers)


# --- the paper's optimisation: a head trained for two epochs, then head and noise together ----------------------------


def measure_noise(job: Job, features: Tensor, head: Head, report: Report) -> Measured:
    """The Fisher behind the noise that the weights tolerate, with the prior that was trained.

    `head` is the converged one, used if it is to stay fixed.
    """
    settings = job.settings.variational
    layers = job.passes.probe.layers
    # Training needs at least single precision, whatever the probe runs in: small steps would be lost.
    dtype = torch.promote_types(job.passes.dtype, torch.float32)
    is_joint = settings.head == "joint"
    weight, bias = train_head(job, features, report) if is_joint else (head.weight, head.bias)
    beta = job.settings.beta / len(job.task)
    total = settings.epochs * settings.steps_per_epoch
    step = report("noise", total)
    try:
        minimum = minimise(
            NoisyNetwork(job.passes.network, layers),
            draw_batches(job, total + 1),
            weight=weight.to(job.device, dtype),
            bias=bias.to(job.device, dtype),
            beta=beta,
            steps=total,
            steps_per_epoch=settings.steps_per_epoch,
            generator=torch.Generator(job.device).manual_seed(job.settings.seed + 2),
            rate=settings.rate,
            head_rate=settings.head_rate if is_joint else 0.0,
            watch=lambda number, log_precision: step(1),
        )
    except torch.cuda.OutOfMemoryError as error:
        raise ResourceError(
            f"the GPU does not have enough memory for {settings.batch} noisy images at a time. The batch size "
            "changes the numbers and is not reduced automatically: use "
            f"VariationalSettings(batch={max(1, settings.batch // 2)})."
        ) from error
    prior = beta / spread_over_filters(minimum.prior_variances, layers)
    vector = beta * minimum.log_precision.exp()
    fisher = (vector - prior).clamp_min(0)
    stderr = vector * minimum.stderr
    images = len(job.task)
    estimate = FisherEstimate(fisher.cpu(), stderr.cpu(), images, total * settings.batch, float(images))
    has_converged = max(minimum.drift, minimum.trend) <= _MAX_DRIFT and minimum.speed <= _MAX_SPEED
    diagnostics = {name: getattr(minimum, name) for name in ("loss", "kl", "drift", "trend")} | {
        "has_converged": has_converged
    }
    warning = (
        "the variational training has not converged: the precisions still changed by a factor of "
        f"{math.exp(minimum.drift):.2f} from epoch to epoch and of {math.exp(minimum.trend):.2f} between the halves of "
        f"what is reported (root mean square over filters), at {100 * minimum.speed:.0f}% of the optimiser's top "
        "speed: raise epochs= (--epochs)"
    )
    return estimate, prior.cpu(), [] if has_converged else [warning], {"variational": diagnostics}


def _draw(job: Job, count: int, *, seed: int) -> Tensor:
    """Indices of images, with replacement, uniformly over classes (over images if attributes)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(job.weights, count, replacement=True, generator=generator)


def train_head(job: Job, features: Tensor, report: Report) -> tuple[Tensor, Tensor]:
    """Weight and bias after the epochs of the head alone, trained from zero by Adam on the features."""
    settings = job.settings.variational
    total = settings.head_epochs * settings.steps_per_epoch
    drawn = _draw(job, total * settings.batch, seed=job.settings.seed + 3).to(features.device)
    classes = len(job.task.classes)
    weight = torch.zeros(classes, features.shape[1], dtype=features.dtype, device=features.device, requires_grad=True)
    bias = torch.zeros(classes, dtype=features.dtype, device=features.device, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], lr=settings.head_rate)
    step = report("head", total)
    for images in drawn.split(settings.batch):
        optimiser.zero_grad()
        mean_loss(functional.linear(features[images], weight, bias), job.targets[images]).backward()
        optimiser.step()
        step(1)
    return weight.detach(), bias.detach()


def draw_batches(job: Job, total: int) -> Iterator[tuple[Tensor, Tensor]]:
    """`total` batches of images as the network takes them, and their targets."""
    size = job.settings.variational.batch
    drawn = _draw(job, total * size, seed=job.settings.seed + 4)
    batches = job.passes.pixels.draws(job.places[drawn].tolist(), size)
    for pixels, images in zip(batches, drawn.to(job.device).split(size), strict=True):
        # Without the padding of a batch on a GPU, which has no targets.
        yield job.passes.input(pixels)[: len(pixels)], job.targets[images]
