"""A few birds in the layout of CUB-200-2011."""

from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image

# Classes as published: numbers with a gap, not in the order of the alphabet, three orders, one with a single species.
CLASSES = {
    4: "004.Groove_billed_Ani",
    31: "031.Black_billed_Cuckoo",
    32: "032.Mangrove_Cuckoo",
    29: "029.American_Crow",
    107: "107.Common_Raven",
    130: "130.Tree_Sparrow",
    118: "118.House_Sparrow",
    87: "087.Mallard",
}


def write_lines(place, lines):
    place.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def make_cub(root: Path, classes=None, per_class=3) -> dict[str, tuple[str, str]]:
    """The layout of a few classes, image numbers from 11 on and mixed; the class and split of every path."""
    classes = CLASSES if classes is None else classes
    told, lists = {}, defaultdict(list)
    places = [(number, name, copy) for copy in range(per_class) for number, name in classes.items()]
    for image, (number, name, copy) in enumerate(places, start=11):
        path = f"{name}/{name[4:]}_{copy:04}_{image * 37}.jpg"
        told[f"images/{path}"] = (name, "test" if copy == 0 else "train")
        lists["images"].append(f"{image} {path}")
        lists["image_class_labels"].append(f"{image} {number}")
        lists["train_test_split"].append(f"{image} {0 if copy == 0 else 1}")
        (root / "images" / name).mkdir(parents=True, exist_ok=True)
        shade = np.full((6, 6, 3), (number, 20 * copy, image), np.uint8)
        Image.fromarray(shade).save(root / "images" / path, format="PNG")
    for name, lines in lists.items():
        write_lines(root / f"{name}.txt", reversed(lines) if name == "train_test_split" else lines)
    write_lines(root / "classes.txt", [f"{number} {name}" for number, name in classes.items()])
    return told
