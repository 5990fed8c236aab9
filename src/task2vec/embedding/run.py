"""Task + probe -> embedding: one pass for the features, the head, a draw, and a pass for the Fisher."""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import safetensors
import timm
import torch
from torch import Tensor

from task2vec import __version__
from task2vec.embedding.pixels import Pixels
from task2vec.embedding.prior import prior_of
from task2vec.embedding.progress import Report, watch
from task2vec.embedding.settings import EmbedSettings
from task2vec.embedding.value import Embedding
from task2vec.errors import NotFiniteError, ResourceError, UsageError
from task2vec.fisher import (
    Accumulator,
    Draw,
    Engine,
    FisherEstimate,
    check_rows,
    draw_pairs,
    label_probabilities,
    mix_with_uniform,
    probabilities,
    term_shares,
    term_vectors,
)
from task2vec.head import Head, fit_head, image_weights
from task2vec.probe import PreparedNetwork, Probe, load_probe
from task2vec.tasks import Task

_BATCH = {"cpu": 16, "cuda": 128}
# With a requested precision the estimate is looked at after every so many images.
_ROUND = 64
# Images of at most so many pairs are merged into common batches on a GPU.
_FEW = 8


def embed(
    task: Task,
    probe: Probe | None = None,
    *,
    settings: EmbedSettings = EmbedSettings(),
    device: str | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> Embedding:
    """The embedding of `task` by `probe` (the default one if None).

    What changes the numbers is in `settings`; the other arguments do not, beyond rounding. The order of the images,
    their labels' names and numbers, the number of workers and earlier calls change nothing at all.

    Args:
        task: what `read_folder` and its siblings give.
        probe: what `load_probe` gives.
        settings: see `EmbedSettings`.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved by itself when GPU memory runs out.
        progress: show a progress bar on standard error.

    Example:
        >>> from task2vec import sample_tasks
        >>> task = sample_tasks(images_per_task=24)[0]
        >>> embedding = embed(task, load_probe(size=64), settings=EmbedSettings(images=16))
        >>> len(embedding), embedding.norm() > 0
        (21008, True)
    """
    probe = probe or load_probe()
    run = _Run.start(task, probe, settings, device, workers, batch_size)
    with watch(progress) as report:
        with tensor_cores():
            features = run.features(report)
        head = fit_head(features, run.targets, classes=len(task.classes), l2=settings.l2, balance=settings.balance)
        p = probabilities(head.logits(features), is_multilabel=task.is_multilabel).cpu()
        draw = run.draw(p, head)
        with tensor_cores():
            estimate = run.fisher(p, head, draw, report)
    return run.embedding(head, estimate)


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Lets a GPU multiply float32 in TF32, its fast path, for as long as the probe runs; a CPU takes no notice."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class _Run:
    """What the steps of one embedding share."""

    original: Task
    task: Task
    probe: Probe
    settings: EmbedSettings
    network: PreparedNetwork
    pixels: Pixels
    targets: Tensor
    dtype: torch.dtype
    batch_size: int

    @classmethod
    def start(
        cls,
        task: Task,
        probe: Probe,
        settings: EmbedSettings,
        device: str | None,
        workers: int | None,
        batch_size: int | None,
    ) -> "_Run":
        where = _device(device)
        dtype = getattr(torch, settings.dtype)
        canonical = task.canonical()
        return cls(
            original=task,
            task=canonical,
            probe=probe,
            settings=settings,
            network=probe.prepare(device=where, dtype=dtype),
            pixels=Pixels(canonical, probe, device=where, workers=workers or os.cpu_count() or 1),
            targets=torch.from_numpy(canonical.targets.astype(np.int64)).to(where),
            dtype=dtype,
            batch_size=batch_size or _BATCH.get(where.type, 16),
        )

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
            rows = self._in_halves(self._features, [pixels])
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
        return self.network.module(self._input(pixels))

    def _input(self, pixels: Tensor) -> Tensor:
        images = self.probe.preprocess.normalise(pixels, self.dtype)
        return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images

    def draw(self, p: Tensor, head: Head) -> Draw:
        """The pairs to back-propagate; images lie sorted by class, so that the draw spreads over classes."""
        is_multilabel = self.task.is_multilabel
        labels = label_probabilities(p, is_multilabel=is_multilabel)
        shares = term_shares(p, head.weight.cpu(), is_multilabel=is_multilabel) * self._relative_weights()[:, None]
        if self.settings.seeds == "plain":
            chances = labels / labels.sum()
        else:
            chances = mix_with_uniform(shares, labels)
        budget = chances.numel() if self.settings.seeds == "all" else self.settings.images
        order = torch.arange(len(p)) if is_multilabel else torch.argsort(self.targets.cpu(), stable=True)
        drawn = draw_pairs(chances[order], budget, generator=torch.Generator().manual_seed(self.settings.seed))
        return Draw(order[drawn.images], drawn.terms, drawn.inclusion, drawn.image_inclusion)

    def _relative_weights(self) -> Tensor:
        """(n,) weights with mean one."""
        targets = self.targets.cpu()
        onehot = targets if targets.ndim == 2 else torch.nn.functional.one_hot(targets, len(self.task.classes))
        return image_weights(onehot.double(), is_multilabel=targets.ndim == 2, balance=self.settings.balance) * len(
            targets
        )

    def fisher(self, p: Tensor, head: Head, draw: Draw, report: Report) -> FisherEstimate:
        """Back-propagates the drawn pairs, image by image in random order, until done or precise enough."""
        engine = Engine(self.network, self.probe.layers, is_fast=self.settings.engine == "fast")
        seeds = self._seeds(p, head, draw)
        pairs: dict[int, list[int]] = {}
        for position, image in enumerate(draw.images.tolist()):
            pairs.setdefault(image, []).append(position)
        images = torch.tensor(sorted(pairs))
        shuffle = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.settings.seed + 1))
        order = images[shuffle].tolist()
        total = Accumulator(len(self.task), len(order))
        step = report("fisher", len(draw))
        size = _ROUND if self.settings.precision is not None else len(order)
        for start in range(0, len(order), size):
            for run in _groups(order[start : start + size], pairs, merge=self.pixels.device.type == "cuda"):
                self._add_images(engine, total, run, pairs, seeds, draw, step)
            if self.settings.precision is not None and total.estimate().relative_error <= self.settings.precision:
                break
        return total.estimate()

    def _seeds(self, p: Tensor, head: Head, draw: Draw) -> Tensor:
        """(m, d): gradient at the pooled features of each drawn pair, times its weight.

        A pair counts 1 / inclusion; the accumulator divides by the inclusion of the image, so only the rest enters
        here.
        """
        vectors = term_vectors(p, draw.images, draw.terms, is_multilabel=self.task.is_multilabel)
        weight = self._relative_weights()[draw.images] * draw.image_inclusion / draw.inclusion
        return (vectors @ head.weight.cpu() * weight.sqrt()[:, None]).to(device=self.pixels.device, dtype=self.dtype)

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
            if bool((lengths == lengths[0]).all()):
                return engine.rows(self._input(pixels), flat.unflatten(0, (len(positions), -1)).transpose(0, 1), keys)
            owners = torch.repeat_interleave(lengths)
            found = engine.rows(self._input(pixels[owners.to(pixels.device)]), flat[None], [keys[i] for i in owners])
            return found.new_zeros(len(positions), found.shape[1]).index_add_(0, owners.to(found.device), found)

        for indices, pixels in self.pixels.batches(images, self.batch_size):
            positions = [pairs[i] for i in indices]
            keys = [int(self.task.digests[i][:16], 16) ^ self.settings.seed for i in indices]
            found = self._in_halves(rows, [pixels, positions, keys])
            check_rows(found, self.probe.layers)
            terms = sum(len(own) for own in positions)
            total.add(found, draw.image_inclusion[[own[0] for own in positions]], terms=terms)
            step(terms)

    def _in_halves(self, work: Callable[..., Tensor], parts: list) -> Tensor:
        """`work` on a batch; where GPU memory runs out, on its halves."""
        try:
            return work(*parts)
        except torch.cuda.OutOfMemoryError as error:
            count = len(parts[0])
            if count == 1:
                raise ResourceError(
                    f"the GPU has not enough memory for a single image of {self.probe.size[0]} x "
                    f"{self.probe.size[1]} pixels with probe "
                    f"'{self.probe.name}'. Use a smaller size (--size) or the CPU (--device cpu)."
                ) from error
        torch.cuda.empty_cache()
        middle = count // 2
        return torch.cat(
            [self._in_halves(work, [p[:middle] for p in parts]), self._in_halves(work, [p[middle:] for p in parts])]
        )

    def embedding(self, head: Head, estimate: FisherEstimate) -> Embedding:
        """The value object, with everything that made it."""
        provenance = {
            "task_fingerprint": self.original.fingerprint,
            "probe_fingerprint": self.probe.fingerprint,
            "probe_source": self.probe.source,
            "image_size": list(self.probe.size),
            "settings": self.settings.as_dict(),
            "versions": _versions(),
            "device": self.pixels.device.type,
            "classes": list(self.original.classes),
            "is_multilabel": self.original.is_multilabel,
            "counts": {
                "images": len(self.original),
                "classes": len(self.original.classes),
                "per_class": self.original.counts.tolist(),
                "bad": len(self.original.bad),
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
            "warnings": list(self.original.warnings),
        }
        return Embedding(
            task=self.original.name,
            probe=self.probe.name,
            fisher=estimate.fisher.numpy(),
            stderr=estimate.stderr.numpy(),
            prior=prior_of(self.probe.layers, images=len(self.original), beta=self.settings.beta),
            layers=self.probe.layers,
            provenance=provenance,
        )


def _groups(images: list[int], pairs: dict[int, list[int]], *, merge: bool) -> list[list[int]]:
    """`images` grouped by how many pairs they have, so that a batch shares one forward and as many backward passes.

    With `merge` the images of few pairs stay together and are run once per pair: a GPU is sooner done with some forward
    passes too many than with many small batches.
    """
    lengths = {i: 0 if merge and len(pairs[i]) <= _FEW else len(pairs[i]) for i in images}
    return [[i for i in images if lengths[i] == length] for length in sorted(set(lengths.values()))]


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        return device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device '{name}' cannot be used here ({str(error).splitlines()[0]}). Leave it out, or use --device cpu."
        ) from error


def _versions() -> dict[str, str]:
    return {
        "task2vec": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
    }
