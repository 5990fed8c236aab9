"""The steps of an embedding: features of every image, the pairs to look at, and their Fisher."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from task2vec.embedding.halving import Halving
from task2vec.embedding.pixels import Pixels
from task2vec.embedding.progress import Report
from task2vec.embedding.settings import EmbedSettings
from task2vec.errors import DataError, NotFiniteError
from task2vec.fisher import (
    Accumulator,
    Draw,
    Engine,
    FisherEstimate,
    check_rows,
    draw_pairs,
    label_probabilities,
    mix_with_uniform,
    term_shares,
    term_vectors,
)
from task2vec.head import Head, image_weights
from task2vec.probe import PreparedNetwork, Probe
from task2vec.tasks import Task

# With a requested precision the estimate is looked at after every so many images.
_ROUND = 64
_FEWEST = 16
# Images of at most so many pairs are merged into common batches on a GPU.
_FEW = 8
# A GPU prepares its kernels for every new batch size, which can take seconds: batches fill up to multiples of this.
_STEP = 32


@dataclass(frozen=True)
class Steps:
    """What the steps of one embedding share; `task` is in its canonical order."""

    task: Task
    probe: Probe
    settings: EmbedSettings
    network: PreparedNetwork
    pixels: Pixels
    targets: Tensor
    dtype: torch.dtype
    batch_size: int
    memory: Halving

    def features(self, report: Report) -> Tensor:
        """(n, d) pooled features of every image, float32 (float64 if asked)."""
        kept = torch.empty(
            len(self.task),
            self.probe.feature_dim,
            dtype=torch.promote_types(self.dtype, torch.float32),
            device=self.pixels.device,
        )
        step = report("features", len(self.task))
        for indices, pixels in self.pixels.batches(range(len(self.task)), self.batch_size):
            rows = self.memory.run(self._features, [pixels])
            if not bool(torch.isfinite(rows).all()):
                bad = indices[int(torch.nonzero(~torch.isfinite(rows).all(1))[0])]
                raise NotFiniteError(
                    f"the probe's features of '{self.task.images.name(bad)}' are not finite, so no head can be "
                    "fitted and nothing was saved. "
                    f"Look at the image, or use dtype='float32' if another was chosen."
                )
            kept[indices] = rows.to(kept)
            step(len(indices))
        return kept

    @torch.inference_mode()
    def _features(self, pixels: Tensor) -> Tensor:
        return self.network.module(self.input(pixels))[: len(pixels)]

    def input(self, pixels: Tensor) -> Tensor:
        """What the network takes: normalised, and on a GPU with the last image repeated up to a multiple of `_STEP`.

        Nothing is filled up where memory is short, batches are small, or images go one by one anyway.
        """
        images = self.probe.preprocess.normalise(pixels, self.dtype)
        if not images.is_cuda:
            return images
        if self.memory.largest is None and self.batch_size >= _STEP and self.network.is_batched:
            images = torch.cat([images, images[-1:].expand(-len(images) % _STEP, -1, -1, -1)])
        return images.contiguous(memory_format=torch.channels_last)

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

    def fisher(self, p: Tensor, head: Head, draw: Draw, report: Report) -> FisherEstimate:
        """Back-propagates the drawn pairs, image by image in random order, until done or precise enough."""
        engine = Engine(
            self.network,
            self.probe.layers,
            is_fast=self.settings.engine == "fast",
            is_untied=self.settings.method == "robust",
        )
        seeds = self._seeds(p, head, draw)
        pairs: dict[int, list[int]] = {}
        for position, image in enumerate(draw.images.tolist()):
            pairs.setdefault(image, []).append(position)
        images = torch.tensor(sorted(pairs))
        shuffle = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.settings.seed + 1))
        order = images[shuffle].tolist()
        total = Accumulator(len(self.task), len(order), square_weights=float(self.weights.square().sum()))
        step = report("fisher", len(draw))
        size = _ROUND if self.settings.precision is not None else len(order)
        for start in range(0, len(order), size):
            for run in _groups(order[start : start + size], pairs, merge=self.pixels.device.type == "cuda"):
                self._add_images(engine, total, run, pairs, seeds, draw, step)
            wanted = self.settings.precision
            # A handful of images cannot tell how much they differ, so they never end a run.
            if wanted is not None and total.images >= _FEWEST and total.estimate().relative_error <= wanted:
                break
        return total.estimate()

    def _seeds(self, p: Tensor, head: Head, draw: Draw) -> Tensor:
        """(m, d): gradient at the pooled features of each drawn pair, times its weight.

        A pair counts 1 / inclusion; the accumulator divides by the inclusion of the image, so only the rest enters
        here.
        """
        vectors = term_vectors(p, draw.images, draw.terms, is_multilabel=self.task.is_multilabel)
        weight = self.weights[draw.images] * draw.image_inclusion / draw.inclusion
        return (vectors @ head.weight.cpu() * weight.sqrt()[:, None]).to(device=self.pixels.device, dtype=self.dtype)

    def _rows(self, engine: Engine, pixels: Tensor, seeds: Tensor, keys: list[int]) -> Tensor:
        """Rows of the images; seeds of nothing for those that only fill up a batch."""
        images = self.input(pixels)
        extra = len(images) - len(pixels)
        seeds = functional.pad(seeds, (0, 0, 0, extra)) if extra else seeds
        return engine.rows(images, seeds, keys + keys[-1:] * extra)[: len(pixels)]

    def _add_images(
        self,
        engine: Engine,
        total: Accumulator,
        images: list[int],
        pairs: dict[int, list[int]],
        seeds: Tensor,
        draw: Draw,
        step: Callable,
    ) -> None:
        def rows(pixels: Tensor, positions: list[list[int]], keys: list[int]) -> Tensor:
            lengths = torch.tensor([len(own) for own in positions])
            flat = seeds[[position for own in positions for position in own]]
            if not pixels.is_cuda or int(lengths.max()) > _FEW:  # all of one length: see `_groups`
                return self._rows(engine, pixels, flat.unflatten(0, (len(positions), -1)).transpose(0, 1), keys)
            found = seeds.new_zeros(len(positions), self.probe.n_filters)
            owners = torch.repeat_interleave(lengths)
            size = min(self.batch_size, self.memory.largest or self.batch_size)
            for own, some in zip(owners.split(size), flat.split(size), strict=True):
                part = self._rows(engine, pixels[own.to(pixels.device)], some[None], [keys[i] for i in own])
                found.index_add_(0, own.to(found.device), part)
            return found

        # Merged pairs are cut into batches of their own, so many images at a time leave fewer batches half full.
        is_merged = self.pixels.device.type == "cuda" and len(pairs[images[0]]) <= _FEW
        for indices, pixels in self.pixels.batches(images, self.batch_size * (4 if is_merged else 1)):
            positions = [pairs[i] for i in indices]
            keys = [int(self.task.digests[i][:16], 16) ^ self.settings.seed for i in indices]
            found = self.memory.run(rows, [pixels, positions, keys])
            check_rows(found, self.probe.layers)
            terms = sum(len(own) for own in positions)
            inclusion = draw.image_inclusion[[own[0] for own in positions]]
            total.add(found, inclusion, terms=terms, weights=self.weights[indices])
            step(terms)


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
        pixels = steps.pixels.part(own.tolist(), task)
        halves.append((own, replace(steps, task=task, targets=found, pixels=pixels, settings=settings)))
    return halves


def _groups(images: list[int], pairs: dict[int, list[int]], *, merge: bool) -> list[list[int]]:
    """`images` grouped by how many pairs they have, so that a batch shares one forward and as many backward passes.

    With `merge` the images of few pairs stay together and are run once per pair: a GPU is sooner done with some forward
    passes too many than with many small batches.
    """
    lengths = {i: 0 if merge and len(pairs[i]) <= _FEW else len(pairs[i]) for i in images}
    return [[i for i in images if lengths[i] == length] for length in sorted(set(lengths.values()))]
