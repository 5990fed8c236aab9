"""The steps of an embedding: features of every image, the pairs to look at, and their Fisher."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from task2vec.embedding.backward import Backward, Part, make_keys
from task2vec.embedding.passes import Passes, refuse_infinite
from task2vec.embedding.pixels import Pixels
from task2vec.embedding.settings import EmbedSettings
from task2vec.errors import DataError
from task2vec.fisher import (
    Accumulator,
    Draw,
    FisherEstimate,
    Ledger,
    PerSampleFisher,
    check_rows,
    draw_pairs,
    label_probabilities,
    mix_with_uniform,
    probabilities,
    term_shares,
    term_vectors,
)
from task2vec.head import Head, image_weights
from task2vec.progress import Report
from task2vec.tasks import Task

# With a requested precision the estimate is looked at after every so many images.
_ROUND = 64
_FEWEST = 16


@dataclass(frozen=True)
class Steps:
    """What the steps of one embedding share; `task` is in its canonical order."""

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

    def probabilities(self, features: Tensor, head: Head) -> Tensor:
        """(n, c) what the head thinks of every image."""
        return probabilities(head.logits(features), is_multilabel=self.task.is_multilabel).cpu()

    def draw(self, p: Tensor, head: Head) -> Draw:
        """The pairs to back-propagate; images lie sorted by class, so that the draw spreads over classes."""
        is_multilabel = self.task.is_multilabel
        labels = label_probabilities(p, is_multilabel=is_multilabel)
        shares = term_shares(p, head.weight.cpu(), is_multilabel=is_multilabel) * self.weights[:, None]
        if self.settings.seeds == "plain":
            chances = labels / labels.sum()
        else:
            chances = mix_with_uniform(shares, labels)
        budget = chances.numel() if self.settings.seeds == "all" else self.settings.images
        order = torch.arange(len(p)) if is_multilabel else torch.argsort(self.targets.cpu(), stable=True)
        drawn = draw_pairs(chances[order], budget, generator=torch.Generator().manual_seed(self.settings.seed))
        return Draw(order[drawn.images], drawn.terms, drawn.inclusion, drawn.image_inclusion)

    @cached_property
    def weights(self) -> Tensor:
        """(n,) what each image counts, on average one: every class the same in all, if balanced."""
        targets = self.targets.cpu()
        onehot = targets if targets.ndim == 2 else functional.one_hot(targets, len(self.task.classes))
        share = image_weights(onehot.double(), is_multilabel=targets.ndim == 2, balance=self.settings.balance)
        return share * len(targets)

    def part(self, p: Tensor, head: Head, draw: Draw) -> Part:
        """What the backward passes need to know of the drawn pairs.

        A pair counts 1 / inclusion; the accumulator divides by the inclusion of the image, so only the rest enters its
        gradient.
        """
        order = torch.argsort(draw.images, stable=True)
        images, inclusion = draw.images[order], draw.image_inclusion[order]
        vectors = term_vectors(p, images, draw.terms[order], is_multilabel=self.task.is_multilabel)
        weights = self.weights[images]
        root = (weights * inclusion / draw.inclusion[order]).sqrt()
        return Part(images, vectors * root[:, None], head.weight.cpu(), inclusion, weights)

    def account(self, part: Part) -> Accumulator:
        """An empty account for the rows of `part`."""
        drawn = len(part.images.unique())
        return Accumulator(len(self.task), drawn, square_weights=float(self.weights.square().sum()))

    def engine(self) -> PerSampleFisher:
        """What makes rows of passes, as the settings want them."""
        is_untied = self.settings.method == "robust"
        return PerSampleFisher(self.passes.network, self.passes.probe.layers, is_untied=is_untied)

    def fisher(self, p: Tensor, head: Head, draw: Draw, report: Report) -> FisherEstimate:
        """Back-propagates the drawn pairs, image by image in random order, until done or precise enough."""
        part = self.part(p, head, draw)
        ledger = Ledger([self.account(part)], filters=self.passes.probe.n_filters, device=self.pixels.device)
        keys, engine = make_keys(self.task.digests, seed=self.settings.seed), self.engine()
        backward = Backward(self.passes, engine, self.pixels, parts=[part], keys=keys, ledger=ledger)
        images = part.images.unique()
        shuffle = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.settings.seed + 1))
        step, wanted = report("fisher", len(part.images)), self.settings.precision
        for some in images[shuffle].split(_ROUND if wanted is not None else len(images)):
            backward.run(some.tolist(), step)
            check_rows(ledger.sums[:1, 1], self.passes.probe.layers)
            # A handful of images cannot tell how much they differ, so they never end a run.
            is_many = ledger.count(0) >= _FEWEST
            if wanted is not None and is_many and ledger.estimate(0).relative_error <= wanted:
                break
        return ledger.estimate(0)


def split_steps(steps: Steps) -> list[tuple[Tensor, Steps]]:
    """Two halves of a task as tasks of their own: which images they have, and the steps to embed them.

    Every second image of each class goes to the second half. As the canonical order follows from the bytes of the
    images, the halves are as good as drawn at random. Each gets half of the pairs, so that their noise is that of the
    whole with half as many images.
    """
    targets = steps.targets.cpu()
    order = torch.argsort(targets, stable=True) if targets.ndim == 1 else torch.arange(len(targets))
    settings = replace(steps.settings, images=max(2, steps.settings.images // 2))
    halves = []
    for start in (0, 1):
        own = order[start::2].sort().values
        try:
            # Fewer members may put classes in another order; images stay, but for copies, whose pixels are the same.
            task = steps.task.subset(own.numpy()).canonical()
        except DataError as error:
            raise DataError(
                f"'{steps.task.name}' cannot be split into halves that are tasks: one of them would have a single "
                "class, or an attribute that is the same for all images. Add images, or leave out halves (--halves)."
            ) from error
        found = torch.from_numpy(task.targets.astype(np.int64)).to(steps.targets.device)
        pixels = steps.pixels.part(own.tolist(), task.images)
        halves.append((own, replace(steps, task=task, targets=found, pixels=pixels, settings=settings)))
    return halves
