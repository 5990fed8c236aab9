"""Small pictures in files: every one of another colour, so that pixels tell which is which."""

import io
from pathlib import Path

from PIL import Image


def paint(path: Path, shade: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (shade % 256, shade // 256, 7)).save(path, "PNG")
    return path


def encode(image: Image.Image, form: str = "PNG", **options) -> bytes:
    """What a file with the picture holds."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def make_folder(root: Path, **counts: int) -> Path:
    """A folder of every name with that many pictures: 000.png, 001.png, ... of shades from 1000 times its number on."""
    for number, kind in enumerate(counts):
        (root / kind).mkdir(parents=True, exist_ok=True)
        for index in range(counts[kind]):
            paint(root / kind / f"{index:03}.png", 1000 * number + index)
    return root
