"""By how much do embeddings differ that were computed with one thread and with two?

    python benchmarks/threads.py [--out FILE]

The small tasks of the package with the default probe at 32 and at 96 pixels: the sum over filters of the difference,
relative to that of the embedding, the same again with one thread, which must be 0, and how many of the embeddings
differ at all. Nothing of the shared folder is needed.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.measure import MEASURED, make_parser, show_table, write_json  # noqa: E402

SIZES, IMAGES, TASKS = (32, 96), 40, 4


def compare(size: int, tasks: Sequence[t2v.Task]) -> dict[str, float]:
    """The differences of one size of images."""
    probe = t2v.load_probe(size=size)

    def embed(threads: int) -> list[np.ndarray]:
        torch.set_num_threads(threads)
        return [t2v.embed(task, probe, device="cpu").fisher for task in tasks]

    one, again, two = embed(1), embed(1), embed(2)
    apart = [float(np.abs(a - b).sum() / np.abs(a).sum()) for a, b in zip(one, two, strict=True)]
    repeated = max(float(np.abs(a - b).max()) for a, b in zip(one, again, strict=True))
    return {
        "size": size,
        "tasks": len(tasks),
        "that differ": sum(value > 0 for value in apart),
        "least": min(apart),
        "most": max(apart),
        "same threads": repeated,
    }


def main() -> int:
    """Measures, prints and writes."""
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=MEASURED / "threads.json")
    arguments = parser.parse_args()
    if (os.cpu_count() or 1) < 2:
        print("skipped: this machine has one core, so two threads would say nothing")
        return 0
    tasks = t2v.sample_tasks(images_per_task=IMAGES)[:TASKS]
    rows = [compare(size, tasks) for size in SIZES]
    show_table(list(rows[0]), [list(row.values()) for row in rows])
    found = {"machine": {"cores": os.cpu_count(), "torch": torch.__version__}, "rows": rows}
    write_json(arguments.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
