"""A few birds in the layout of CUB-200-2011."""

from collections import defaultdict
from pathlib import Path

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


def write_lists(root, **lists):
    for name, lines in lists.items():
        (root / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def make_cub(root: Path) -> dict[str, tuple[str, str]]:
    """The layout with three images of each class, numbered from 11 on and mixed; the class and split of every path."""
    told, lists = {}, defaultdict(list)
    places = [(number, name, copy) for copy in range(3) for number, name in CLASSES.items()]
    for image, (number, name, copy) in enumerate(places, start=11):
        path = f"{name}/{name[4:]}_{copy:04}_{image * 37}.jpg"
        told[f"images/{path}"] = (name, "test" if copy == 0 else "train")
        lists["images"].append(f"{image} {path}")
        lists["image_class_labels"].append(f"{image} {number}")
        lists["train_test_split"].append(f"{image} {0 if copy == 0 else 1}")
        (root / "images" / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 6), (number, 20 * copy, image)).save(root / "images" / path, format="PNG")
    lists["train_test_split"].reverse()
    write_lists(root, **lists, classes=[f"{number} {name}" for number, name in CLASSES.items()])
    return told
