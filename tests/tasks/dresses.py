"""A few clothes in the layout of DeepFashion's Category and Attribute Prediction Benchmark."""

from pathlib import Path

import numpy as np
from PIL import Image

# Names with blanks, of each of the five types; the third is the beginning of the second.
ATTRIBUTES = (
    ("a-line", 3),
    ("abstract chevron print", 1),
    ("abstract", 1),
    ("linen", 2),
    ("crew neck", 4),
    ("summer", 5),
    ("3/4 sleeve", 4),
    ("floral", 1),
    ("chic", 5),
)
# Numbers of categories are their places here, from 1; "Cape" and "Sarong" have no image, as some in the real list.
CATEGORIES = (("Anorak", 1), ("Blouse", 1), ("Jeans", 2), ("Sarong", 2), ("Shorts", 2), ("Cape", 3), ("Robe", 3))
USED = (1, 2, 3, 5, 7)
SPLITS = ("train", "val", "test")


def make_deepfashion(root: Path, *, anno="Anno", folder="Img"):
    """Writes the lists and 24 images, and tells (path, row of -1, 0 and 1, category, split) of each image."""
    values = np.random.default_rng(0).choice([-1, 0, 1], (24, len(ATTRIBUTES)), p=[0.4, 0.2, 0.4])
    told = []
    for number in range(24):
        path = f"img/Sheer_Pleated-Front_Blouse/img_{number + 1:08}.jpg"
        told.append((path, values[number].tolist(), USED[number % len(USED)], SPLITS[number % 7 % 3]))
        place = root / folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 6), (number, 3 * number, 7)).save(place, format="PNG")
    for name in (anno, "Eval"):
        (root / name).mkdir(exist_ok=True)
    _write(root / anno / "list_attr_cloth.txt", "attribute_name  attribute_type", ATTRIBUTES)
    _write(root / anno / "list_category_cloth.txt", "category_name  category_type", CATEGORIES)
    # Values are aligned to two places in the published file: runs of blanks before a 1.
    rows = [(path, " ".join(f"{value:2}" for value in row)) for path, row, _, _ in told]
    _write(root / anno / "list_attr_img.txt", "image_name  attribute_labels", rows)
    _write(root / anno / "list_category_img.txt", "image_name  category_label", [(one[0], one[2]) for one in told])
    # The lists need not be in one order.
    parts = [(one[0], one[3]) for one in reversed(told)]
    _write(root / "Eval" / "list_eval_partition.txt", "image_name  evaluation_status", parts)
    return told


def _write(place: Path, header: str, rows) -> None:
    lines = [str(len(rows)), header, *(f"{name!s:<70} {value}" for name, value in rows)]
    place.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
