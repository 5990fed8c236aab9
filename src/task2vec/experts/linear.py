"""The error of one task on top of one expert."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

from task2vec.experts.cells import measure_cells, plan_cells
from task2vec.experts.extractors import (
    Extractor,
    check_extractors,
    compute_features,
    open_extractor,
    prepare_features,
)
from task2vec.experts.protocols import ErrorProtocol
from task2vec.library import MeasuredError
from task2vec.probe import Probe
from task2vec.progress import Report, show_progress
from task2vec.tasks import Task

# Features of the last tasks are kept up to this many bytes: another protocol or seed then costs no pass.
_MOST_BYTES = 128 << 20


def linear_error(
    expert: Extractor,
    task: Task,
    protocol: ErrorProtocol = ErrorProtocol(),
    *,
    seeds: Sequence[int] = (0,),
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    download: bool = False,
    progress: bool = False,
) -> tuple[MeasuredError, ...]:
    """The test error of a linear classifier for `task` on the features of `expert`, one for each seed.

    Features are computed once and kept in memory for the next call. The order of the images, names of classes and
    earlier calls change nothing.

    Args:
        expert: what `load_probe`, `train_expert` or `library.experts()` give.
        task: what `read_folder` and its siblings give.
        protocol: how it is measured; see `ErrorProtocol`.
        seeds: of splits and all other randomness.
        device: "cpu", "cuda"; None takes a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one. Halved by itself when GPU memory runs out.
        download: fetch weights that are not on this machine.
        progress: show a progress bar on standard error.

    Example:
        >>> import task2vec as t2v
        >>> shapes = t2v.sample_tasks(images_per_task=40)[2]
        >>> errors = linear_error(t2v.load_probe(size=32), shapes, seeds=(0, 1))
        >>> [(error.expert, error.seed, error.low <= error.error <= error.high) for error in errors]
        [('tf_efficientnet_lite0', 0, True), ('tf_efficientnet_lite0', 1, True)]
    """
    (expert,) = check_extractors([expert])
    plan = plan_cells(task.canonical(), [protocol], seeds)
    probe = open_extractor(expert, download=download)
    how = {"device": device, "num_workers": num_workers, "batch_size": batch_size}
    with show_progress(progress) as report:
        features = _KEPT.find(probe, plan.task, how, report)
        return tuple(measure_cells(features, plan.to(features.device), expert=expert.name))


class _Kept:
    """Features by network, images and device; those that were not asked for the longest go first."""

    def __init__(self):
        self.kept: OrderedDict[tuple, Tensor] = OrderedDict()

    def find(self, probe: Probe, task: Task, how: dict, report: Report) -> Tensor:
        """The features of a task, computed if they are not here."""
        passes, pixels = prepare_features(probe, task.images, **how)
        content = hashlib.sha256("".join(task.digests).encode()).digest()
        key = (probe.fingerprint, content, str(pixels.device))
        if key not in self.kept:
            self.kept[key] = compute_features(passes, pixels, report)
        self.kept.move_to_end(key)
        found = self.kept[key]
        while sum(one.numel() * one.element_size() for one in self.kept.values()) > _MOST_BYTES:
            self.kept.popitem(last=False)
        return found


_KEPT = _Kept()
