"""Photographs of coloured things, with mistakes planted among them."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter, ImageOps

import task2vec as t2v
from tests.tiny_probe import make_tiny

COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 200)}


def paint(kind: str, seed: int) -> Image.Image:
    """A blurred pattern in the colour of its class."""
    random = np.random.default_rng([seed, *kind.encode()])
    shade = Image.fromarray(random.integers(0, 255, (8, 8), dtype=np.uint8)).resize((64, 48), Image.Resampling.BICUBIC)
    pixels = np.asarray(shade.filter(ImageFilter.GaussianBlur(1)), dtype=float)[..., None] / 255
    return Image.fromarray((np.array(COLOURS[kind]) * (0.3 + 0.7 * pixels)).astype(np.uint8))


def save(image: Image.Image, path: Path, quality: int = 92) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=quality)


def make_folder(root: Path, *, images: int = 14, start: int = 0) -> Path:
    """Three classes without mistakes."""
    for kind in COLOURS:
        for number in range(start, start + images):
            save(paint(kind, number), root / kind / f"{number:02}.jpg")
    return root


def plant(root: Path) -> Path:
    """A wrong label, an exact copy, a near copy, and a file that is no image."""
    save(paint("red", 90), root / "green" / "wrong.jpg")
    shutil.copy(root / "red" / "00.jpg", root / "red" / "same.jpg")
    save(ImageOps.mirror(Image.open(root / "blue" / "03.jpg")), root / "blue" / "mirrored.jpg", quality=70)
    (root / "blue" / "broken.jpg").write_bytes(b"\xff\xd8\xff no image")
    return root


def make_report(data, **options):
    """The report on some data by a tiny network."""
    return t2v.report(data, make_tiny(), device="cpu", **options)
