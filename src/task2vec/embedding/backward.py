"""The backward passes of any number of tasks on the same images, which share the forward pass.

Every task has drawn pairs of an image and a term of its own. A batch is made of columns, which go forward once, and of
slots, in each of which all columns go back; an image with many pairs may take several columns (see `columns`). Its
pairs are run in their order, as many in a slot as it has columns: no more than one task is then ever in the middle of
its pairs of an image, so that a single row per image is enough for sums that wait.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from task2vec.embedding.columns import count_images, share_out
from task2vec.embedding.passes import Passes
from task2vec.embedding.pixels import Pixels
from task2vec.fisher import Ledger, PerSampleFisher

# Numbers in the seeds of one forward pass, all its slots together; for the other slots a batch goes forward again.
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
        engine: PerSampleFisher,
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

    @property
    def most(self) -> int:
        """Columns of the largest batch that may fit into memory."""
        return min(self.passes.batch_size, self.passes.memory.largest or self.passes.batch_size)

    def run(self, images: Sequence[int], step: Callable[[int], None]) -> None:
        """Runs all pairs of the given images."""
        for numbers, pixels in self.pixels.runs(self._plan(torch.tensor(images))):
            batch = _Batch(self, numbers)
            self.passes.memory.run(batch.run, [pixels, torch.arange(len(numbers))])
            step(int(self.counts[numbers].sum()))

    def _plan(self, images: Tensor) -> Iterator[list[int]]:
        """The images of one batch after the other; how much fits is asked each time, for memory may have run out."""
        order = images[torch.argsort(self.counts[images], descending=True, stable=True)]
        while len(order):
            end = count_images(self.counts[order[: self.most]], self.most, device=self.pixels.device)
            yield order[:end].tolist()
            order = order[end:]

    def seeds(self, pairs: Tensor) -> Tensor:
        """(m, d) gradients at the pooled features of the pairs with the given numbers."""
        found = torch.empty(len(pairs), self.passes.probe.feature_dim, dtype=self.passes.dtype)
        owners = self.owners[pairs]
        for owner in owners.unique().tolist():
            own, part = torch.nonzero(owners == owner).flatten(), self.parts[owner]
            found[own] = (part.vectors[self.places[pairs[own]]] @ part.weight).to(found)
        return found.to(self.pixels.device, non_blocking=True)

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

    def run(self, pixels: Tensor, places: Tensor) -> Tensor:
        """Runs what is not done of the images at `places` of the batch."""
        backward, counts = self.backward, self.backward.counts[self.images[places]]
        while bool((left := counts - self.done[places]).any()):
            columns = share_out(left, backward.most, device=backward.pixels.device)
            try:
                self._pass(pixels, places, left, columns)
                continue
            except torch.cuda.OutOfMemoryError:
                if int(columns.max()) == 1:  # fewer columns are fewer images
                    raise
            backward.passes.memory.shrink(int(columns.sum()))
            backward.passes.memory.run(self.run, [pixels, places])
        return pixels.new_zeros(len(places))

    def _pass(self, pixels: Tensor, places: Tensor, left: Tensor, columns: Tensor) -> None:
        """One forward pass, and the backward passes of what is `left` of each image, as far as seeds may be held."""
        backward, passes, device = self.backward, self.backward.passes, pixels.device
        owners = torch.repeat_interleave(columns)  # the image of each column
        within = torch.arange(len(owners)) - (columns.cumsum(0) - columns)[owners]
        slots = int((-(-left // columns.clamp_min(1))).max())
        slots = min(slots, max(1, _SEEDS // (len(owners) * passes.probe.feature_dim)))
        order = torch.arange(slots)[:, None] * columns[owners] + within  # (slots, columns): which of its image's pairs
        is_filled = order < left[owners]
        images = self.images[places]
        numbers = (backward.starts[images] + self.done[places])[owners] + order
        inputs = passes.input(pixels if bool((columns == 1).all()) else pixels[_send(owners, device)])
        seeds = torch.zeros(slots, len(inputs), passes.probe.feature_dim, dtype=passes.dtype, device=device)
        seeds[tuple(_send(torch.nonzero(is_filled), device).T)] = backward.seeds(numbers[is_filled])
        keys = [backward.keys[image] for image in images[owners].tolist()]
        keys += keys[-1:] * (len(inputs) - len(keys))
        for slot, rows in enumerate(backward.engine.rows_by_seed(inputs, seeds, keys)):
            filled = torch.nonzero(is_filled[slot]).flatten()
            self._take(rows[_send(filled, device)], places[owners[filled]], numbers[slot, filled])

    def _take(self, rows: Tensor, places: Tensor, pairs: Tensor) -> None:
        """Takes in the rows of one slot, which lie image by image, and adds up those of one image and task.

        Nothing is noted before all is done that may run out of memory: the slot is run again then, and counts once.
        """
        done = torch.bincount(places, minlength=len(self.images))
        is_end = ~self.backward.goes_on[pairs] | _is_last(places)
        group = is_end.cumsum(0) - is_end.long()
        if not bool(is_end.all()):
            sums = rows.new_zeros(int(is_end.sum()), rows.shape[1])
            rows = sums.index_add_(0, _send(group, rows.device), rows)
        self._settle(rows, places[is_end], pairs[is_end], torch.bincount(group))
        self.done += done

    def _settle(self, rows: Tensor, places: Tensor, pairs: Tensor, terms: Tensor) -> None:
        """Enters the sums that complete a task's share of an image; the others wait for the next slot."""
        device, is_open = rows.device, self.backward.goes_on[pairs]
        last = torch.nonzero(_is_last(places)).flatten()  # what each image ends with
        first = torch.cat([last.new_zeros(1), last[:-1] + 1])
        terms[first] += self.terms[places[first]]
        sums, into, waiting = self.sums, _send(places[last], device), None
        if sums is None and bool(is_open.any()):
            sums = rows.new_zeros(len(self.images), rows.shape[1])
        if sums is not None:
            rows = rows.index_add_(0, _send(first, device), sums[into])
            waiting = torch.where(_send(is_open[last], device)[:, None], rows[_send(last, device)], 0)
        closed = torch.nonzero(~is_open).flatten()
        if len(closed) < len(rows):
            rows = rows[_send(closed, device)]
        if len(closed):
            self.backward.enter(rows, pairs[closed], terms[closed])
        if sums is not None and waiting is not None:
            self.sums = sums.index_copy_(0, into, waiting)
        self.terms[places[last]] = torch.where(is_open[last], terms[last], 0)


def _is_last(places: Tensor) -> Tensor:
    """Whether the next place is another one."""
    return torch.cat([places[1:] != places[:-1], places.new_ones(1, dtype=torch.bool)])


def _send(small: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device of the rows, without waiting for what that is busy with."""
    return small.to(device, non_blocking=True)
