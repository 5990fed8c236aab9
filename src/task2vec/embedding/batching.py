"""How images go through the probe: decoded by threads, in batches that fit into memory, forward and backward.

The backward passes of any number of tasks on the same images share the forward pass. Every task has drawn its own pairs
of an image and a term. A batch consists of columns, which go forward once, and slots: in each slot all columns go back
once. An image may take several columns. With one column, the batch has as many slots as the image has pairs, and most
are empty where other images have few. With a column for every pair no slot is empty, but the image goes forward once
for each pair. The best number of columns lies between; it minimises the cost

    (columns + idle) x (forward + slots)

in backward passes of one image. Images with the most pairs come first, so the images of a batch have similar numbers of
pairs. The pairs of an image are run in order, as many per slot as it has columns: so at most one task is unfinished on
an image, and a single row per image is enough for partial sums.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torch.nn import functional

from task2vec.embedding.embedding import EmbedSettings
from task2vec.errors import NotFiniteError, ResourceError, UsageError
from task2vec.fisher import Design, Ledger, NoisyNetwork, PerSampleFisher
from task2vec.probe import Preprocess, Probe
from task2vec.progress import Report
from task2vec.tasks import Images
from task2vec.tasks.images import SIGNATURE_SIDE, find_near_copies

# Decoded images are kept for the second pass up to this many bytes; more of them are decoded again.
CACHE_BYTES = {"cpu": 16 << 20, "cuda": 8 << 30}
# Larger batches would save a CPU a tenth of its time, but take twice the memory.
BATCH_SIZE = {"cpu": 3, "cuda": 128}
# A GPU prepares kernels for every new batch size, which can take seconds: batches are padded to the next of these.
_SIZES = (32, 64, 128, 256, 512, 1024)
# Devices that resize images faster than Pillow, if at least so many have the same size.
_RESIZING_DEVICES = ("cuda",)
_MIN_SAME_SIZE = 8
# Threads that decode images; more would wait for each other.
_MAX_DECODERS = 8
# Cost of a forward pass, with all that depends on the layers' inputs alone, in backward passes with their reductions.
# Measured: 0.5 to 1.7 on a CPU, by probe and method; 0.25 to 0.5 on an H200.
_FORWARD = {"cpu": 1.5, "cuda": 0.3}
# How many images a GPU could run while the host starts the kernels of a pass: 14 to 300 on an H200.
_IDLE = {"cpu": 0, "cuda": 32}
# Near copies are searched among at most so many images, which takes seconds.
_MAX_COMPARED = 10_000
# Numbers in the seeds of one forward pass over all its slots; more slots need another forward pass.
_SEEDS = 1 << 26


def choose_device(name: str | None) -> torch.device:
    """The device of that name, or a GPU if there is one and none was named."""
    try:
        # With its number: a probe is prepared once for each name of a device.
        return torch.empty(1, device=name or ("cuda" if torch.cuda.is_available() else "cpu")).device
    except (RuntimeError, AssertionError) as error:
        cause = str(error).splitlines()[0]
        raise UsageError(
            f"device '{name}' cannot be used here ({cause}). Leave it out to have one chosen, or use the CPU: "
            "device='cpu' (--device cpu)."
        ) from error


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Lets a GPU multiply float32 in TF32, its fast path, in the block; a CPU is not affected."""
    with ExitStack() as end:
        if device.type == "cuda":
            with suppress(RuntimeError):  # torch refuses if the user has set conflicting flags, which then stay
                end.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
                torch.set_float32_matmul_precision("high")
        yield


class Pixels:
    """Preprocessed images for one probe, on the device where they will be used.

    The cache is limited in bytes, not images, and results do not depend on it.
    """

    def __init__(self, images: Images, probe: Probe, *, device: torch.device, num_workers: int):
        self.images = images
        self.probe = probe
        self.device = device
        self.num_workers = num_workers if images.is_threadsafe else 1
        self.kept: dict[int, Tensor] = {}
        self.room = CACHE_BYTES.get(device.type, CACHE_BYTES["cpu"])
        if device.type == "cuda":
            self.room = min(self.room, torch.cuda.mem_get_info(device)[0] // 4)

    def __len__(self) -> int:
        """Number of images."""
        return len(self.images)

    def batches(self, indices: Sequence[int], size: int) -> Iterator[tuple[list[int], Tensor]]:
        """Runs of `size` indices with their stacked tensors."""
        return self.runs(list(indices[start : start + size]) for start in range(0, len(indices), size))

    def runs(self, runs: Iterable[list[int]]) -> Iterator[tuple[list[int], Tensor]]:
        """Runs of indices with their stacked tensors; the next run is decoded while one is used."""
        pool = ThreadPoolExecutor(self.num_workers)
        begun = ((run, *self._begin(run, pool)) for run in runs)
        try:
            ahead = next(begun, None)
            while ahead is not None:
                run, tensors, loading = ahead
                ahead = next(begun, None)
                for indices, future in loading:
                    loaded = dict(zip(indices, future.result(), strict=True))
                    tensors |= loaded
                    new = {index: tensor for index, tensor in loaded.items() if index not in self.kept}
                    if (size := sum(tensor.nbytes for tensor in new.values())) <= self.room:
                        self.kept |= new
                        self.room -= size
                yield run, torch.stack([tensors[index] for index in run])
        finally:
            pool.shutdown(cancel_futures=True)

    def _begin(
        self, run: list[int], pool: ThreadPoolExecutor
    ) -> tuple[dict[int, Tensor], list[tuple[list[int], Future[Tensor]]]]:
        """The cached images of a run, and those being decoded, in one part per thread."""
        cached = {index: self.kept[index] for index in run if index in self.kept}
        missing = [index for index in run if index not in cached]
        shares = [missing[start :: self.num_workers] for start in range(min(self.num_workers, len(missing)))]
        return cached, [(share, pool.submit(self._load_all, share)) for share in shares]

    def _load_all(self, indices: Sequence[int]) -> Tensor:
        """Images on the device. A GPU resizes images of one size together; Pillow would take longer than decoding."""
        look = self.probe.preprocess
        if self.device.type not in _RESIZING_DEVICES or not isinstance(look, Preprocess):
            tensors = torch.stack([self._preprocess(index, self.load(index)) for index in indices])
            return tensors.to(self.device, non_blocking=True)
        resized: dict[int, Tensor] = {}
        sizes: dict[tuple[int, int], dict[int, Image]] = {}
        for number, index in enumerate(indices):
            image = self.load(index)
            sizes.setdefault(image.size, {})[number] = image
        for size, same_size in sizes.items():
            if len(same_size) >= _MIN_SAME_SIZE and look.can_resample(*size):
                stacked = torch.from_numpy(np.stack([*map(np.asarray, same_size.values())]))
                pixels = look.resample(stacked.to(self.device))
            else:
                pixels = torch.stack([look(image) for image in same_size.values()]).to(self.device, non_blocking=True)
            resized |= dict(zip(same_size, pixels, strict=True))
        return torch.stack([resized[number] for number in range(len(indices))])

    def stack(self) -> Tensor | None:
        """All images as one tensor, if all are in the cache."""
        if len(self.kept) < len(self):
            return None
        whole = torch.stack([self.kept[index] for index in range(len(self))])
        self.kept = dict(enumerate(whole))
        return whole

    def draws(self, indices: Sequence[int], size: int) -> Iterator[Tensor]:
        """Batches of images with repetitions: from one tensor, if all images are in the cache."""
        whole = self.stack()
        if whole is None:
            yield from (pixels for _, pixels in self.batches(indices, size))
            return
        for numbers in torch.tensor(indices, device=self.device).split(size):
            yield whole[numbers]

    def forget(self) -> None:
        """Empties the cache and disables it, since memory is short."""
        self.kept = {}
        self.room = 0

    def load(self, index: int) -> Image:
        """One image, decoded; `DataError` if it cannot be."""
        return self.images.load(index)

    def _preprocess(self, index: int, image: Image) -> Tensor:
        tensor = self.probe.preprocess(image)
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFiniteError(
                f"'{self.images.name(index)}' becomes NaN or infinity under the probe's transform, which would spoil "
                "the embedding. Check the image and the transform."
            )
        return tensor


class OomRetry:
    """Runs work on batches that are halved when GPU memory runs out; results do not change."""

    def __init__(self, description: str, *, on_shortage: Callable[[], None] = lambda: None, unit: str = "image"):
        """`description` and `unit` are for messages; `on_shortage` frees memory that can be spared."""
        self.description = description
        self.on_shortage = on_shortage
        self.unit = unit
        self.largest: int | None = None

    def shrink(self, count: int) -> None:
        """Records that `count` units at a time are too many."""
        self.largest = (count + 1) // 2
        self.on_shortage()
        torch.cuda.empty_cache()
        warnings.warn(f"GPU memory ran out: continuing with batches of {self.largest} {self.unit}s", stacklevel=3)

    def run(self, work: Callable[..., list], sequences: Sequence[Any]) -> list:
        """`work` on `sequences` with one entry per unit each, or on their halves as often as memory requires."""
        count = len(sequences[0])
        if self.largest is None or count <= self.largest:
            try:
                return work(*sequences)
            except torch.cuda.OutOfMemoryError as error:
                if count == 1:
                    raise ResourceError(
                        f"the GPU does not have enough memory for a single {self.unit}: {self.description}. Use "
                        "smaller images (--size), fewer classes or the CPU (--device cpu)."
                    ) from error
            self.shrink(count)
        middle = (count + 1) // 2
        first = self.run(work, [values[:middle] for values in sequences])
        return first + self.run(work, [values[middle:] for values in sequences])


class Passes:
    """A probe that is ready to run on images, none of which is decoded before it is used."""

    def __init__(
        self,
        images: Images,
        probe: Probe,
        *,
        settings: EmbedSettings,
        device: str | None = None,
        num_workers: int | None = None,
        batch_size: int | None = None,
    ):
        if any(count is not None and count < 1 for count in (num_workers, batch_size)):
            raise UsageError(
                f"num_workers={num_workers} and batch_size={batch_size} must be at least 1. Leave them out to have "
                "them chosen."
            )
        chosen_device = choose_device(device)
        self.dtype = getattr(torch, settings.dtype)
        self.probe = probe
        decoders = num_workers or min(_MAX_DECODERS, os.cpu_count() or 1)
        self.pixels = Pixels(images, probe, device=chosen_device, num_workers=decoders)
        self.network = probe.prepare(device=chosen_device, dtype=self.dtype)
        if settings.method == "variational":
            NoisyNetwork(self.network, probe.layers)  # refuses a probe with layers that cannot take noise
        self.batch_size = batch_size or BATCH_SIZE.get(chosen_device.type, 16)
        description = f"probe '{probe.name}' at {probe.size[0]} x {probe.size[1]} pixels"
        self.memory = OomRetry(description, on_shortage=self.forget)
        self.signatures: Tensor | None = None
        self._near_copies: dict[bytes, list[list[int]]] = {}

    def forget(self) -> None:
        """Frees the memory that only saves time: decoded images and recorded passes."""
        self.pixels.forget()
        self.network.recorded.clear()

    def input(self, pixels: Tensor) -> Tensor:
        """What the network takes: normalised, and on a GPU with the last image repeated up to one of `_SIZES`.

        Batches are not padded where memory is short, batches are small, or images go one by one.
        """
        images = self.probe.preprocess.normalise(pixels, self.dtype)
        if not images.is_cuda:
            return images
        size = next((size for size in _SIZES if len(images) <= size <= self.batch_size), len(images))
        if self.memory.largest is None and size > len(images) and self.network.is_batched:
            images = torch.cat([images, images[-1:].expand(size - len(images), -1, -1, -1)])
        return images.contiguous(memory_format=torch.channels_last)

    def features(self, report: Report) -> Tensor:
        """(n, d) pooled features of every image, float32 (float64 if requested); keeps signatures for near copies."""
        pixels = self.pixels
        dtype = torch.promote_types(self.dtype, torch.float32)
        kept = torch.empty(len(pixels), self.probe.feature_dim, dtype=dtype, device=pixels.device)
        signatures = []
        step = report("features", len(pixels))
        with tensor_cores(pixels.device):
            for indices, batch in pixels.batches(range(len(pixels)), self.batch_size):
                kept[indices] = torch.cat(self.memory.run(lambda images: [self._features(images)], [batch])).to(kept)
                if batch.dtype == torch.uint8 and min(batch.shape[2:]) >= SIGNATURE_SIDE:
                    signatures += self.memory.run(_pool, [batch])
                step(len(indices))
        self.signatures = torch.cat(signatures).permute(0, 2, 3, 1) if signatures else None
        return kept

    def near_copies(self, places: Tensor) -> list[list[int]]:
        """Groups of near copies among the images at `places`; none if images are too many, too small, or floats."""
        if self.signatures is None or len(places) > _MAX_COMPARED:
            return []
        key = places.numpy().tobytes()
        if key not in self._near_copies:
            self._near_copies[key] = find_near_copies(self.signatures[places].cpu().numpy())
        return self._near_copies[key]

    @torch.inference_mode()
    def _features(self, pixels: Tensor) -> Tensor:
        return self.network.module(self.input(pixels))[: len(pixels)]


def _pool(pixels: Tensor) -> list[Tensor]:
    """The signatures of the network's input for `find_near_copies`, channels first."""
    return [functional.adaptive_avg_pool2d(pixels.float(), SIGNATURE_SIDE).half()]


def refuse_infinite(features: Tensor, name_of: Callable[[int], str]) -> None:
    """Raises `NotFiniteError` if the features of some image are not finite, and names it."""
    is_bad = ~torch.isfinite(features).all(1)
    if bool(is_bad.any()):
        raise NotFiniteError(
            f"the probe's features of '{name_of(int(torch.nonzero(is_bad)[0]))}' are not finite, so no head can be "
            "fitted and nothing was saved. Check the image, or use dtype='float32' if another was chosen."
        )


# --- backward passes --------------------------------------------------------------------------------------------------


def count_images(counts: Tensor, max_columns: int, *, device: torch.device) -> int:
    """How many of the first images make up the next batch, of at most `max_columns` columns.

    `counts` are the pairs of each image, descending.
    """
    slots, columns = _list_layouts(counts[:max_columns], max_columns)
    totals = columns.cumsum(1)
    images = (totals <= max_columns).sum(1)
    costs = _find_costs(totals.gather(1, images[:, None] - 1)[:, 0], slots, device)
    return int(images[(costs / counts.cumsum(0)[images - 1]).argmin()])


def assign_columns(counts: Tensor, max_columns: int, *, device: torch.device) -> Tensor:
    """(images,) the columns that each image of a batch takes, at most `max_columns` in all; none where it has no pairs.

    `counts` are the pairs of each image; there are no more images than columns.
    """
    slots, columns = _list_layouts(counts, max_columns)
    total = columns.sum(1)
    costs = _find_costs(total, slots, device).masked_fill(total > max_columns, torch.inf)
    return columns[costs.argmin()]


def _list_layouts(counts: Tensor, max_columns: int) -> tuple[Tensor, Tensor]:
    """(choices,) slots with which the image with the most pairs takes 1, 2, ... columns; (choices, images) columns."""
    highest = int(counts.max())
    slots = (-(-highest // torch.arange(1, min(max_columns, highest) + 1))).unique()
    return slots, -(-counts // slots[:, None])


def _find_costs(columns: Tensor, slots: Tensor, device: torch.device) -> Tensor:
    kind = device.type if device.type in _FORWARD else "cpu"
    return (columns + _IDLE[kind]) * (_FORWARD[kind] + slots)


@dataclass(frozen=True)
class Part:
    """The pairs of one task; all attributes but `weight` and `design` have one entry per pair.

    Attributes:
        images: the image of the pair, by its number among the common images; pairs of one image lie together.
        vectors: (m, c) the gradient at the logits, times the root of the pair's weight.
        weight: (c, d) of the head.
        inclusion: probability that the image was drawn.
        weights: of the image.
        design: how the images of the task were drawn.
    """

    images: Tensor
    vectors: Tensor
    weight: Tensor
    inclusion: Tensor
    weights: Tensor
    design: Design


class Backward:
    """Runs the pairs of all parts, and enters their rows into a ledger.

    The pairs of one image and one task are a group; the sum of their rows enters the ledger. If memory runs out,
    finished groups stay in the ledger, and the rest is run in halves.
    """

    def __init__(self, passes: Passes, engine: PerSampleFisher, parts: Sequence[Part], keys: Sequence[int]):
        """`keys` are the seeds of the random signs of the common images."""
        self.passes = passes
        self.engine = engine
        self.keys = keys
        self.pixels = passes.pixels
        designs = [pairs.design for pairs in parts]
        self.ledger = Ledger(designs, filters=passes.probe.n_filters, device=self.pixels.device)
        # Vectors and heads of all tasks with as many classes, one below the other; where those of each task begin.
        self.vectors: dict[int, Tensor] = {}
        self.heads: dict[int, Tensor] = {}
        self.classes = torch.tensor([len(pairs.weight) for pairs in parts])
        first_vector, self.first_class = torch.zeros(2, len(parts), dtype=torch.int64)
        for classes in self.classes.unique().tolist():
            same = [pairs for pairs in parts if len(pairs.weight) == classes]
            counts = torch.tensor([len(pairs.vectors) for pairs in same])
            is_same = self.classes == classes
            first_vector[is_same] = counts.cumsum(0) - counts
            self.first_class[is_same] = classes * torch.arange(len(same))
            self.vectors[classes] = _send(torch.cat([pairs.vectors for pairs in same]), self.pixels.device)
            self.heads[classes] = _send(torch.cat([pairs.weight for pairs in same]), self.pixels.device)
        images = torch.cat([pairs.images for pairs in parts])
        order = torch.argsort(images, stable=True)  # by image, then by task, then as drawn
        self.images = images[order]
        self.owners = torch.cat([torch.full_like(pairs.images, number) for number, pairs in enumerate(parts)])[order]
        within = torch.cat([torch.arange(len(pairs.images)) for pairs in parts])[order]
        self.places = first_vector[self.owners] + within
        self.inclusion = torch.cat([pairs.inclusion for pairs in parts])[order]
        self.weights = torch.cat([pairs.weights for pairs in parts])[order]
        ids = self.images * len(parts) + self.owners
        _, self.groups, self.sizes = torch.unique_consecutive(ids, return_inverse=True, return_counts=True)
        self.firsts = self.sizes.cumsum(0) - self.sizes  # of the pairs of each group
        self.counts = torch.bincount(self.images, minlength=len(self.pixels))
        self.starts = self.counts.cumsum(0) - self.counts
        self.done = torch.zeros_like(self.counts)  # pairs of each image that have been run
        self.waiting: tuple[Tensor, Tensor, Tensor] | None = None  # sums of unfinished groups, numbers and terms

    @property
    def most(self) -> int:
        """Columns of the largest batch that may fit into memory."""
        return min(self.passes.batch_size, self.passes.memory.largest or self.passes.batch_size)

    def run(self, images: Sequence[int], step: Callable[[int], None]) -> None:
        """Runs all pairs of the given images."""
        with tensor_cores(self.pixels.device):
            for numbers, pixels in self.pixels.runs(self._plan(torch.tensor(images))):
                self.passes.memory.run(self._run_batch, [pixels, torch.tensor(numbers)])
                step(int(self.counts[numbers].sum()))

    def _plan(self, images: Tensor) -> Iterator[list[int]]:
        """The images of one batch after the other; the size is computed each time, as memory may have run out."""
        order = images[torch.argsort(self.counts[images], descending=True, stable=True)]
        while len(order):
            end = count_images(self.counts[order[: self.most]], self.most, device=self.pixels.device)
            yield order[:end].tolist()
            order = order[end:]

    def _run_batch(self, pixels: Tensor, images: Tensor) -> list:
        """Runs the pairs of these images that are not done."""
        while bool((left := self.counts[images] - self.done[images]).any()):
            columns = assign_columns(left, self.most, device=pixels.device)
            try:
                self._pass(pixels, images, left, columns)
                continue
            except torch.cuda.OutOfMemoryError:
                if int(columns.max()) == 1:  # fewer columns are fewer images
                    raise
            self.passes.memory.shrink(int(columns.sum()))
            self.passes.memory.run(self._run_batch, [pixels, images])
        return []

    def _pass(self, pixels: Tensor, images: Tensor, left: Tensor, columns: Tensor) -> None:
        """One forward pass, and the backward passes of the pairs `left` of each image, within the limit of seeds."""
        passes, device = self.passes, pixels.device
        owners = torch.repeat_interleave(columns)  # the image of each column
        within = torch.arange(len(owners)) - (columns.cumsum(0) - columns)[owners]
        slots = int((-(-left // columns.clamp_min(1))).max())
        slots = min(slots, max(1, _SEEDS // (len(owners) * passes.probe.feature_dim)))
        order = torch.arange(slots)[:, None] * columns[owners] + within  # (slots, columns): which of its image's pairs
        is_filled = order < left[owners]
        pairs = (self.starts[images] + self.done[images])[owners] + order
        inputs = passes.input(pixels if bool((columns == 1).all()) else pixels[_send(owners, device)])
        seeds = torch.zeros(slots, len(inputs), passes.probe.feature_dim, dtype=passes.dtype, device=device)
        seeds[tuple(_send(torch.nonzero(is_filled), device).T)] = self._seeds(pairs[is_filled])
        keys = [self.keys[image] for image in images[owners].tolist()]
        keys += keys[-1:] * (len(inputs) - len(keys))
        for slot, rows in enumerate(self.engine.rows_by_seed(inputs, seeds, keys)):
            filled = torch.nonzero(is_filled[slot]).flatten()
            self._take(rows[_send(filled, device)], pairs[slot, filled])

    def _seeds(self, pairs: Tensor) -> Tensor:
        """(m, d) gradients at the pooled features of the pairs with the given numbers: vectors times heads.

        Those of many tasks are sums of weighted rows of all their heads: a product for each would be as many launches.
        """
        passes = self.passes
        device = self.pixels.device
        all_seeds = torch.empty(len(pairs), passes.probe.feature_dim, dtype=passes.dtype, device=device)
        classes = self.classes[self.owners[pairs]]
        for count in classes.unique().tolist():
            selected = torch.nonzero(classes == count).flatten()
            vectors = self.vectors[count][_send(self.places[pairs[selected]], device)]
            heads = self.heads[count]
            if len(heads) == count:
                seeds = vectors @ heads
            else:
                rows = self.first_class[self.owners[pairs[selected]]][:, None] + torch.arange(count)
                seeds = functional.embedding_bag(_send(rows, device), heads, per_sample_weights=vectors, mode="sum")
            all_seeds[_send(selected, device)] = seeds.to(all_seeds)
        return all_seeds

    def _take(self, rows: Tensor, pairs: Tensor) -> None:
        """Adds the rows of one slot to their groups: complete groups enter the ledger, the others wait.

        State changes only after everything that may run out of memory: then the slot is run again, and counts once.
        """
        groups = self.groups[pairs]
        terms = torch.ones_like(pairs)
        if self.waiting is not None:
            rows, groups, terms = (torch.cat(parts) for parts in zip(self.waiting, (rows, groups, terms), strict=True))
        different, index = groups.unique(return_inverse=True)
        if len(different) < len(groups):  # most images have one pair, and nothing to add up
            rows = rows.new_zeros(len(different), rows.shape[1]).index_add_(0, _send(index, rows.device), rows)
            groups = different
            terms = torch.zeros_like(different).index_add_(0, index, terms)
        is_complete = terms == self.sizes[groups]
        ended, going_on = (torch.nonzero(mask).flatten() for mask in (is_complete, ~is_complete))
        waiting = (rows[_send(going_on, rows.device)], groups[going_on], terms[going_on]) if len(going_on) else None
        if len(ended):
            firsts = self.firsts[groups[ended]]
            numbers = {"inclusion": self.inclusion[firsts], "terms": terms[ended], "weights": self.weights[firsts]}
            finished = rows if waiting is None else rows[_send(ended, rows.device)]
            self.ledger.add(finished, self.owners[firsts], **numbers)
        self.waiting = waiting
        self.done.index_add_(0, self.images[pairs], torch.ones_like(pairs))


def _send(small: Tensor, device: torch.device) -> Tensor:
    """The tensor on another device, without waiting for that device."""
    return small.to(device, non_blocking=True)
