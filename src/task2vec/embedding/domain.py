"""The domain of a task: its images as a probe sees them, without their labels.

The baseline of Achille 2019: mean and second moment of the probe's pooled features z over the images. It depends on
p(x) alone, so tasks that label the same images differently have the same domain, to the bit. The second moment is the
diagonal of the paper's C_1 = E[z z^T].
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from task2vec.embedding.embedding import EmbedSettings
from task2vec.errors import DataError
from task2vec.progress import Report, show_progress

if TYPE_CHECKING:
    from task2vec.probe import Probe


@dataclass(frozen=True, eq=False, repr=False)
class DomainEmbedding:
    """The images of a task as a vector.

    Attributes:
        task: name of the task.
        probe: name of the probe.
        mean: mean of each pooled feature: the domain embedding in the paper's figures.
        second_moment: mean of its square.
        provenance: fingerprints of task and probe, arithmetic, counts.
    """

    task: str
    probe: str
    mean: np.ndarray
    second_moment: np.ndarray
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        """Refuse moments that no features have, and make them read-only."""
        for name in ("mean", "second_moment"):
            values = np.array(getattr(self, name), dtype=np.float64)  # a copy: the caller's array stays writable
            if values.ndim != 1 or not values.size or not np.isfinite(values).all():
                problem = (
                    f"'{name}' of the domain of '{self.task}' has shape {values.shape} or values that are not finite"
                )
                raise DataError(f"{problem}: it is not a vector of moments. Pass one number per feature.")
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        # A second moment is never below the square of the mean, rounding aside.
        least = np.square(self.mean) * (1 - 1e-9) - 1e-300
        if least.shape != self.second_moment.shape or (self.second_moment < least).any():
            problem = f"mean and second moment of the domain of '{self.task}' cannot be those of the same features"
            raise DataError(f"{problem}: E[z^2] is at least E[z]^2. Compute both from one set, as embed_domain does.")

    def __repr__(self) -> str:
        """The domain in one line."""
        images = self.provenance.get("counts", {}).get("images", "?")
        return f"DomainEmbedding({self.task}, probe={self.probe}, {len(self)} features, {images} images)"

    def __len__(self) -> int:
        """Number of features."""
        return len(self.mean)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each feature over the images."""
        return np.sqrt(np.maximum(self.second_moment - np.square(self.mean), 0))

    @property
    def probe_fingerprint(self) -> str:
        """SHA-256 of the probe's weights and preprocessing: only equal ones can be compared."""
        return self.provenance.get("probe_fingerprint", "unknown")


def embed_domain(
    task: Any,
    probe: "Probe | None" = None,
    *,
    dtype: str = "float32",
    device: str | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    progress: bool | Report = False,
) -> DomainEmbedding:
    """The domain embedding of `task` by `probe` (the default one if None): one pass over the images, no labels.

    Args:
        task: a task, or anything that `to_task` accepts: a folder, a table, a frame, a dataset, (paths, labels).
        probe: what `load_probe` returns.
        dtype: arithmetic of the probe, as in `EmbedSettings`; the only argument that changes the numbers.
        device: "cpu", "cuda"; None uses a GPU if there is one.
        num_workers: threads that decode images; None takes one per core.
        batch_size: images per step; None chooses one.
        progress: show a progress bar on standard error.

    Example:
        >>> from task2vec import load_probe, sample_tasks
        >>> digits, parity = sample_tasks(images_per_task=24)[:2]
        >>> probe = load_probe(size=64)
        >>> domain = embed_domain(digits, probe)
        >>> len(domain), bool((domain.mean == embed_domain(parity, probe).mean).all())
        (1280, True)
    """
    # Domain embeddings are compared without torch; computing one needs it.
    from task2vec.embedding.single import prepare_job
    from task2vec.probe import load_probe
    from task2vec.tasks import to_task

    task = to_task(task, num_workers=num_workers, progress=progress is True)
    probe = probe or load_probe()
    settings = EmbedSettings(dtype=dtype)
    job = prepare_job(task, probe, settings=settings, device=device, num_workers=num_workers, batch_size=batch_size)
    with show_progress(progress) as report:
        rows = job.features(report).cpu().numpy()
    return DomainEmbedding(
        task=task.name,
        probe=probe.name,
        mean=rows.mean(axis=0, dtype=np.float64),
        second_moment=np.einsum("ij,ij->j", rows, rows, dtype=np.float64) / len(rows),
        provenance={
            "task_fingerprint": task.fingerprint,
            "probe_fingerprint": probe.fingerprint,
            "probe_source": probe.source,
            "image_size": list(probe.size),
            "settings": {"dtype": dtype},
            "counts": {"images": len(task), "bad": len(task.bad)},
            "warnings": list(task.warnings),
        },
    )
