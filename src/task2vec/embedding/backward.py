"""The backward passes of any number of tasks on the same images, which share the forward pass.

Every task has drawn pairs of an image and a term of its own. An image is run forward once, and back as often as it was
drawn, by whichever task: the backward passes of a batch are its slots. Images with about as many pairs are put into
one batch, so that few slots are empty.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from task2vec.embedding.passes import Passes
from task2vec.embedding.pixels import Pixels
from task2vec.fisher import Engine, Ledger

# Numbers in the seeds of one batch, all its slots together.
_SEEDS = 1 << 26


@dataclass(frozen=True)
class Part:
    """What one task wants from the backward passes; all but `weight` has an entry for each of its pairs.

    Attributes:
        images: whose pair it is, by its number among the common images; pairs of one image lie together.
        vectors: (m, c) the gradient at the logits, times the root of the pair's weight.
        weight: (c, d) of the head.
        inclusion: probability that the image was drawn.
        weights: what the image counts.
    """

    images: Tensor
    vectors: Tensor
    weight: Tensor
    inclusion: Tensor
    weights: Tensor


def make_keys(digests: Sequence[str], *, seed: int) -> list[int]:
    """One number per image, from its content and the seed: what a sketch draws its signs from."""
    return [int(digest[:16], 16) ^ seed for digest in digests]


class Backward:
    """Runs the pairs of all parts, and enters what they bring into the ledger."""

    def __init__(
        self,
        passes: Passes,
        engine: Engine,
        pixels: Pixels,
        *,
        parts: Sequence[Part],
        keys: Sequence[int],
        ledger: Ledger,
    ):
        """`keys` are those of the common images (see `make_keys`)."""
        self.passes, self.engine, self.pixels, self.parts, self.keys = passes, engine, pixels, parts, keys
        self.ledger = ledger
        images = torch.cat([part.images for part in parts])
        order = torch.argsort(images, stable=True)  # by image, then by task, then as drawn
        images = images[order]
        self.owners = torch.cat([torch.full_like(part.images, number) for number, part in enumerate(parts)])[order]
        self.places = torch.cat([torch.arange(len(part.images)) for part in parts])[order]
        self.inclusion = torch.cat([part.inclusion for part in parts])[order]
        self.weights = torch.cat([part.weights for part in parts])[order]
        self.goes_on = torch.zeros(len(images), dtype=torch.bool)  # whether the next pair is of the same image and task
        self.goes_on[:-1] = (images[1:] == images[:-1]) & (self.owners[1:] == self.owners[:-1])
        self.counts = torch.bincount(images, minlength=len(pixels))
        self.starts = self.counts.cumsum(0) - self.counts

    def run(self, images: Sequence[int], step: Callable[[int], None]) -> None:
        """Runs all pairs of the given images."""
        order = sorted(images, key=lambda image: -int(self.counts[image]))
        while order:
            slots = int(self.counts[order[0]])
            size = min(self.passes.batch_size, max(1, _SEEDS // (slots * self.passes.probe.feature_dim)))
            # Those with at least half as many pairs; the rest may go in larger batches.
            end = sum(2 * int(self.counts[image]) >= slots for image in order)
            end = -(-end // size) * size
            for numbers, pixels in self.pixels.batches(order[:end], size):
                batch = _Batch(self, numbers)
                self.passes.memory.run(batch.run, [pixels, torch.arange(len(numbers))])
                step(int(self.counts[numbers].sum()))
            order = order[end:]

    def seeds(self, pairs: Tensor) -> Tensor:
        """(m, d) gradients at the pooled features of the pairs with the given numbers."""
        found = torch.empty(len(pairs), self.passes.probe.feature_dim, dtype=self.passes.dtype)
        owners = self.owners[pairs]
        for owner in owners.unique().tolist():
            own, part = torch.nonzero(owners == owner).flatten(), self.parts[owner]
            found[own] = (part.vectors[self.places[pairs[own]]] @ part.weight).to(found)
        return found.to(self.pixels.device)

    def enter(self, rows: Tensor, pairs: Tensor, terms: Tensor) -> None:
        """Enters finished rows into the accounts of the tasks; `pairs` are their last ones."""
        inclusion, weights = self.inclusion[pairs], self.weights[pairs]
        self.ledger.add(rows, self.owners[pairs], inclusion=inclusion, terms=terms, weights=weights)


class _Batch:
    """Some images on their way back; what is done stays done if memory runs out and the rest goes on in halves."""

    def __init__(self, backward: Backward, images: list[int]):
        self.backward, self.images = backward, torch.tensor(images)
        self.done = torch.zeros(len(images), dtype=torch.long)
        self.sums: Tensor | None = None  # rows of images that have not come to the last of a task's pairs
        self.terms = torch.zeros(len(images), dtype=torch.long)

    def run(self, pixels: Tensor, columns: Tensor) -> Tensor:
        """Runs what is not done of the images in `columns` of the batch."""
        backward, passes = self.backward, self.backward.passes
        images = self.images[columns]
        first, counts = backward.starts[images] + self.done[columns], backward.counts[images] - self.done[columns]
        slots = int(counts.max())
        numbers = torch.arange(slots)[:, None] + first  # (slots, images) numbers of pairs
        is_filled = torch.arange(slots)[:, None] < counts
        inputs = passes.input(pixels)
        seeds = torch.zeros(slots, len(inputs), passes.probe.feature_dim, dtype=passes.dtype, device=inputs.device)
        where = torch.nonzero(is_filled).to(inputs.device)
        seeds[where[:, 0], where[:, 1]] = backward.seeds(numbers[is_filled])
        keys = [backward.keys[image] for image in images.tolist()]
        keys += keys[-1:] * (len(inputs) - len(keys))
        for slot, rows in enumerate(backward.engine.rows_by_seed(inputs, seeds, keys)):
            filled = torch.nonzero(is_filled[slot]).flatten()
            self._take(rows[: len(columns)][filled.to(rows.device)], columns[filled], numbers[slot, filled])
        return pixels.new_zeros(len(columns))

    def _take(self, rows: Tensor, columns: Tensor, pairs: Tensor) -> None:
        """Adds the rows of one slot; those that complete a task's share of an image are entered.

        Nothing is noted before all is done that may run out of memory: the slot is run again then, and counts once.
        """
        backward, goes_on = self.backward, self.backward.goes_on[pairs]
        terms = self.terms[columns] + 1
        if self.sums is None and not bool(goes_on.any()):  # one pair per task and image, as with two classes
            backward.enter(rows, pairs, terms)
        else:
            if self.sums is None:
                self.sums = rows.new_zeros(len(self.images), rows.shape[1])
            where, is_open = columns.to(rows.device), goes_on.to(rows.device)
            rows = rows + self.sums[where]
            left = torch.where(is_open[:, None], rows, 0)
            if not bool(goes_on.all()):
                backward.enter(rows[~is_open], pairs[~goes_on], terms[~goes_on])
            self.sums.index_copy_(0, where, left)
        self.terms[columns] = torch.where(goes_on, terms, 0)
        self.done[columns] += 1
