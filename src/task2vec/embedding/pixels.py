"""The images of a task as batches of tensors: decoded by threads, in order, with a bounded number held at a time."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from task2vec.errors import NotFiniteError
from task2vec.probe import Probe
from task2vec.tasks import Images

# Decoded images are kept for the second pass up to this many bytes; more of them are decoded again.
CACHE_BYTES = {"cpu": 128 << 20, "cuda": 8 << 30}


class Pixels:
    """Preprocessed images for one probe, on the device where they will be used.

    What is kept depends on bytes only, never on the number of images, and the numbers do not depend on what is kept.
    """

    def __init__(self, images: Images, probe: Probe, *, device: torch.device, workers: int):
        self.images, self.probe, self.device = images, probe, device
        self.workers = workers if images.is_threadsafe else 1
        self.kept: dict[int, Tensor] = {}
        self.parts: list[Pixels] = []
        self.room = CACHE_BYTES.get(device.type, CACHE_BYTES["cpu"])
        if device.type == "cuda":
            self.room = min(self.room, torch.cuda.mem_get_info(device)[0] // 4)

    def __len__(self) -> int:
        """Number of images."""
        return len(self.images)

    def part(self, indices: Sequence[int], images: Images) -> "Pixels":
        """The pixels of some of the images, which are `images`; what is kept of them is not decoded again."""
        pixels = Pixels(images, self.probe, device=self.device, workers=self.workers)
        pixels.kept = {new: self.kept[old] for new, old in enumerate(indices) if old in self.kept}
        pixels.room = self.room
        self.parts.append(pixels)
        return pixels

    def batches(self, indices: Sequence[int], size: int) -> Iterator[tuple[list[int], Tensor]]:
        """Runs of `size` indices with their stacked tensors."""
        return self.runs(list(indices[start : start + size]) for start in range(0, len(indices), size))

    def runs(self, runs: Iterable[list[int]]) -> Iterator[tuple[list[int], Tensor]]:
        """Runs of indices with their stacked tensors, one run being decoded while another is used."""
        with ThreadPoolExecutor(self.workers) as pool:

            def begin(run: list[int]) -> tuple[list[int], list[Future[Tensor]]]:
                return run, [pool.submit(self.load, index) for index in run]

            begun = map(begin, runs)
            ahead = next(begun, None)
            while ahead is not None:
                run, loading = ahead
                ahead = next(begun, None)
                try:
                    tensors = [future.result().to(self.device, non_blocking=True) for future in loading]
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
                self._keep(run, tensors)
                yield run, torch.stack(tensors)

    def draws(self, indices: Sequence[int], size: int) -> Iterator[Tensor]:
        """Batches of images that come up again and again: from one tensor, if all images are kept."""
        if len(self.kept) < len(self):
            yield from (pixels for _, pixels in self.batches(indices, size))
            return
        whole = torch.stack([self.kept[index] for index in range(len(self))])
        self.kept = dict(enumerate(whole))
        for some in torch.tensor(indices, device=self.device).split(size):
            yield whole[some]

    def forget(self) -> None:
        """Gives up what is kept, here and in parts, and keeps nothing more: memory is short."""
        self.kept, self.room = {}, 0
        for part in self.parts:
            part.forget()

    def load(self, index: int) -> Tensor:
        """One image as a tensor, decoded if it is not kept; `DataError` if it cannot be."""
        if index in self.kept:
            return self.kept[index]
        tensor = self.probe.preprocess(self.images.load(index))
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFiniteError(
                f"'{self.images.name(index)}' becomes NaN or infinity under the probe's transform, which would "
                "spoil the embedding. "
                f"Check the image and the transform."
            )
        return tensor

    def _keep(self, indices: list[int], tensors: list[Tensor]) -> None:
        for index, tensor in zip(indices, tensors, strict=True):
            size = tensor.numel() * tensor.element_size()
            if index not in self.kept and size <= self.room:
                self.kept[index] = tensor
                self.room -= size
