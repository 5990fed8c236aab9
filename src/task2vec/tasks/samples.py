"""Small tasks that need no network: for the demo, the tests and the first minute.

They are chosen in pairs that ask one thing each: the same pixels under another question (digits and their parity,
photos and coin flips), the same question in other pixels (plain and cluttered shapes). Difficulty runs from trivial
(colours) to impossible (coin flips), so that norms and errors have something to say.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from task2vec.errors import UsageError
from task2vec.tasks.painting import CLUTTERED_SHAPES, COLOURS, SHAPES, TEXTURES, paint_digit
from task2vec.tasks.task import Task

SIDE = 96

# Below this, ten classes have too few images each for cross-validation.
FEWEST_IMAGES = 20


@dataclass(frozen=True)
class PilImages:
    """Images that are held in memory."""

    pictures: tuple[Image.Image, ...]
    is_threadsafe: bool = True

    def __len__(self) -> int:
        """Number of images."""
        return len(self.pictures)

    def load(self, index: int) -> Image.Image:
        """A copy of one image, so that no caller can change the task."""
        return self.pictures[index].copy()

    def name(self, index: int) -> str:
        """How messages call one image."""
        return f"item {index}"


def sample_tasks(*, images_per_task: int = 120, seed: int = 0) -> tuple[Task, ...]:
    """Eight small tasks of different kind and difficulty, made or shipped on this machine.

    Args:
        images_per_task: how many images each task gets, spread evenly over its classes.
        seed: another seed draws other images of the same kinds.

    Example:
        >>> [task.name for task in sample_tasks(images_per_task=40)][:3]
        ['digits', 'digit parity', 'shapes']
    """
    if images_per_task < FEWEST_IMAGES:
        raise UsageError(
            f"images_per_task={images_per_task} is too few: ten classes could not be cross-validated. "
            f"Ask for at least {FEWEST_IMAGES}."
        )
    digits, values = _draw_digits(images_per_task, np.random.default_rng([seed, 0]))
    crops, photos = _cut_crops(images_per_task, np.random.default_rng([seed, 1]))
    coins = np.random.default_rng([seed, 2]).permutation(np.arange(images_per_task) % 2)
    return (
        _make_task("digits", digits, values, [str(digit) for digit in range(10)]),
        _make_task("digit parity", digits, values % 2, ["even", "odd"]),
        _paint_task("shapes", SHAPES, images_per_task, np.random.default_rng([seed, 3])),
        _paint_task("cluttered shapes", CLUTTERED_SHAPES, images_per_task, np.random.default_rng([seed, 4])),
        _paint_task("textures", TEXTURES, images_per_task, np.random.default_rng([seed, 5])),
        _paint_task("colours", COLOURS, images_per_task, np.random.default_rng([seed, 6])),
        _make_task("photos", crops, photos, ["temple", "flower"]),
        _make_task("coin flips", crops, coins, ["heads", "tails"]),
    )


def _make_task(name: str, pictures: Sequence[Image.Image], targets: np.ndarray, classes: Sequence[str]) -> Task:
    digests = tuple(hashlib.sha256(f"{p.mode} {p.size} ".encode() + p.tobytes()).hexdigest() for p in pictures)
    return Task(
        name=name,
        images=PilImages(tuple(pictures)),
        targets=np.asarray(targets, dtype=np.int64),
        classes=tuple(classes),
        digests=digests,
        source="task2vec.sample_tasks",
    )


def _paint_task(
    name: str,
    painters: dict[str, Callable[[np.random.Generator, int], Image.Image]],
    count: int,
    rng: np.random.Generator,
) -> Task:
    targets = np.arange(count) % len(painters)
    paint = list(painters.values())
    return _make_task(name, [paint[target](rng, SIDE) for target in targets], targets, list(painters))


def _draw_digits(count: int, rng: np.random.Generator) -> tuple[list[Image.Image], np.ndarray]:
    """Handwritten digits of scikit-learn, equally many of each, inked on paper."""
    from sklearn.datasets import load_digits

    levels, values = load_digits(return_X_y=True)
    order = rng.permutation(len(values))
    by_digit = [order[values[order] == digit] for digit in range(10)]
    if count > 10 * min(len(rows) for rows in by_digit):
        raise UsageError(
            f"images_per_task={count} is too many: scikit-learn ships 174 of the rarest digit. Ask for 1740 or less."
        )
    chosen = [by_digit[i % 10][i // 10] for i in range(count)]
    return [paint_digit(levels[row].reshape(8, 8), rng, SIDE) for row in chosen], np.asarray(values)[chosen]


def _cut_crops(count: int, rng: np.random.Generator) -> tuple[list[Image.Image], np.ndarray]:
    """Random square crops of the two photographs that scikit-learn ships."""
    from sklearn.datasets import load_sample_image

    photographs = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    targets = np.arange(count) % len(photographs)
    return [_cut_crop(photographs[target], rng) for target in targets], targets


def _cut_crop(photograph: Image.Image, rng: np.random.Generator) -> Image.Image:
    edge = int(rng.integers(160, 340))
    left = int(rng.integers(0, photograph.width - edge + 1))
    top = int(rng.integers(0, photograph.height - edge + 1))
    return photograph.resize((SIDE, SIDE), Image.Resampling.LANCZOS, box=(left, top, left + edge, top + edge))
