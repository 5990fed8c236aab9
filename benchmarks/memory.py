"""Peak resident memory of embedding 1,000 and 20,000 images, each in a process of its own.

The images are painted when they are asked for, so the memory is ours alone. It may grow by the cached features, and by
the decoded images that are kept for the second pass, which are bounded by bytes; both are printed beside the growth.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.measure import Plan, Verdict, show_table

COUNTS = (1_000, 20_000)
SIZE = 64
CLASSES = 10
_ROOT = Path(__file__).resolve().parents[1]
_MEBI = 1 << 20


@dataclass(frozen=True)
class PaintedImages:
    """Noise over a tone that tells the class, painted anew each time; nothing is kept."""

    count: int
    size: int = SIZE
    classes: int = CLASSES
    is_threadsafe: bool = True

    def __len__(self) -> int:
        """The number of images."""
        return self.count

    def load(self, index: int) -> Image.Image:
        """Image `index`, always the same."""
        rng = np.random.default_rng(index)
        tone = np.random.default_rng([1, index % self.classes]).integers(40, 200, (4, 4, 3))
        picture = np.kron(tone, np.ones((self.size // 4, self.size // 4, 1)))
        picture = picture + rng.normal(0, 40, (self.size, self.size, 3))
        return Image.fromarray(picture.clip(0, 255).astype(np.uint8))

    def name(self, index: int) -> str:
        """What to call it."""
        return f"painted image {index}"


def paint_task(count: int, *, size: int = SIZE, classes: int = CLASSES):
    """A task of `count` painted images."""
    import task2vec as t2v

    digests = tuple(hashlib.sha256(str(index).encode()).hexdigest() for index in range(count))
    targets = np.arange(count) % classes
    names = tuple(f"class {label}" for label in range(classes))
    return t2v.Task("painted", PaintedImages(count, size, classes), targets, names, digests)


def measure(plan: Plan) -> tuple[dict[str, object], list[Verdict]]:
    """Peaks and their growth, as `embed` is, and with no decoded images kept."""
    counts = (100, 1_000) if plan.is_quick else COUNTS
    more = counts[1] - counts[0]
    print(f"\nmemory: default probe at {SIZE} px, 50 images back-propagated", flush=True)
    rows, results = [], []
    for keeps_pixels in (True, False):
        small, large = (_peak(count, keeps_pixels) for count in counts)
        allowed = large["features"] - small["features"] + large["pixels"] - small["pixels"]
        growth = large["peak"] - small["peak"]
        label = "as it is" if keeps_pixels else "no pixels kept"
        rows.append([label, *(round(value / _MEBI) for value in (small["peak"], large["peak"], growth, allowed))])
        results.append({"keeps_pixels": keeps_pixels, "small": small, "large": large, "growth": growth})
    names = [f"peak at {counts[0]}", f"peak at {counts[1]}", "growth", "features + pixels kept"]
    show_table(["MiB", *names], rows)
    feature_bytes = results[1]["large"]["features"] - results[1]["small"]["features"]
    verdict = Verdict(
        f"memory: growth over {more} more images / bytes of their cached features",
        results[1]["growth"] / feature_bytes,
        1.5,
        is_at_least=False,
    )
    return {"memory": results}, [verdict]


def _peak(count: int, keeps_pixels: bool) -> dict[str, int]:
    """What a fresh process says of its own memory."""
    command = [sys.executable, "-m", "benchmarks.memory", str(count), *([] if keeps_pixels else ["--keep-no-pixels"])]
    paths = os.pathsep.join([str(_ROOT), str(_ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, "PYTHONPATH": paths}, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _embed_and_report(count: int, keeps_pixels: bool) -> None:
    """Embeds `count` painted images and prints the peak and what it should be made of, in bytes."""
    import task2vec as t2v
    from task2vec.embedding import batching

    if not keeps_pixels:
        batching.CACHE_BYTES["cpu"] = 0
    probe = t2v.load_probe(size=SIZE)
    before = _peak_bytes()
    t2v.embed(paint_task(count), probe, settings=t2v.EmbedSettings(max_samples=50), device="cpu")
    report = {
        "peak": _peak_bytes(),
        "before": before,
        "features": count * probe.feature_dim * 4,
        "pixels": min(count * 3 * SIZE * SIZE, batching.CACHE_BYTES["cpu"]),
    }
    print(json.dumps(report))


def _peak_bytes() -> int:
    """Largest resident size so far; Linux counts in kibibytes, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--keep-no-pixels", action="store_true")
    arguments = parser.parse_args()
    _embed_and_report(arguments.count, not arguments.keep_no_pixels)
