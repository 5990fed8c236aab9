"""Small copies of four published datasets in their own layouts, quirks included.

Each writer returns what it wrote: the label and the split of the image at every path.
"""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from tests.tasks.pictures import paint

# --- CUB-200-2011 ----------------------------------------------------------------------------------------------------

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


def write_lists(root: Path, **lists) -> None:
    for name, lines in lists.items():
        (root / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def make_cub(root: Path, classes=CLASSES, *, copies=3) -> dict[str, tuple[str, str]]:
    """Some images of each class, numbered from 11 on and mixed; the first ones are for testing."""
    written, lists = {}, defaultdict(list)
    places = [(number, name, copy) for copy in range(copies) for number, name in classes.items()]
    for image, (number, name, copy) in enumerate(places, start=11):
        path = f"{name}/{name[4:]}_{copy:04}_{image * 37}.jpg"
        written[f"images/{path}"] = (name, "train" if copy else "test")
        lists["images"].append(f"{image} {path}")
        lists["image_class_labels"].append(f"{image} {number}")
        lists["train_test_split"].insert(0, f"{image} {min(copy, 1)}")
        paint(root / "images" / path, image)
    write_lists(root, **lists, classes=[f"{number} {name}" for number, name in classes.items()])
    return written


# --- DeepFashion -----------------------------------------------------------------------------------------------------

# Names with blanks, of each of the five types; the third is the beginning of the second.
ATTRIBUTES = {
    "a-line": 3,
    "abstract chevron print": 1,
    "abstract": 1,
    "linen": 2,
    "crew neck": 4,
    "summer": 5,
    "3/4 sleeve": 4,
    "floral": 1,
    "chic": 5,
}
# Numbers of categories are their places here, from 1; "Cape" and "Sarong" have no image, as some in the real list.
CATEGORIES = {"Anorak": 1, "Blouse": 1, "Jeans": 2, "Sarong": 2, "Shorts": 2, "Cape": 3, "Robe": 3}
USED = ("Anorak", "Blouse", "Jeans", "Shorts", "Robe")


def make_deepfashion(root: Path, *, anno="Anno", folder="Img", count=24, used=USED) -> dict[str, tuple[list[int], str]]:
    """The lists and some images; the label of each is 1, 0 or -1 (unknown) for every attribute."""
    values = np.random.default_rng(0).choice([-1, 0, 1], (count, len(ATTRIBUTES)), p=[0.4, 0.2, 0.4])
    paths = [f"img/Sheer_Pleated-Front_Blouse/img_{number + 1:08}.jpg" for number in range(count)]
    splits = [("train", "val", "test")[number % 7 % 3] for number in range(count)]
    numbers = [[*CATEGORIES].index(used[number % len(used)]) + 1 for number in range(count)]
    # Values are aligned to two places in the published file: runs of blanks before a 1.
    rows = [" ".join(f"{value:2}" for value in row) for row in values]
    for number, path in enumerate(paths):
        paint(root / folder / path, number)
    for place, header, entries in (
        (f"{anno}/list_attr_cloth", "attribute_name  attribute_type", ATTRIBUTES.items()),
        (f"{anno}/list_category_cloth", "category_name  category_type", CATEGORIES.items()),
        (f"{anno}/list_attr_img", "image_name  attribute_labels", zip(paths, rows, strict=True)),
        (f"{anno}/list_category_img", "image_name  category_label", zip(paths, numbers, strict=True)),
        # The lists need not be in one order.
        ("Eval/list_eval_partition", "image_name  evaluation_status", [*zip(paths, splits, strict=True)][::-1]),
    ):
        lines = [f"{name:<70} {value}" for name, value in entries]
        (root / place).parent.mkdir(exist_ok=True)
        write_lists(root, **{place: [len(lines), header, *lines]})
    meaning = {1: 1, -1: 0, 0: -1}
    labels = [[meaning[value] for value in row] for row in values.tolist()]
    return {f"{folder}/{path}": (label, split) for path, label, split in zip(paths, labels, splits, strict=True)}


# --- iNaturalist -----------------------------------------------------------------------------------------------------

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")
_BIRD = "Animalia|Chordata|Aves"
_FUNGUS = "Fungi|Basidiomycota|Agaricomycetes|Agaricales"
# id, name, supercategory, lineage, images for training and for validation. Ids do not begin at 0 and have gaps; one
# category has no image, one a single one, one order a single species, one species no order and no family.
SPECIES = [
    (3, "Corvus corax", "Aves", f"{_BIRD}|Passeriformes|Corvidae|Corvus", 4, 2),
    (11, "Corvus corone", "Aves", f"{_BIRD}|Passeriformes|Corvidae|Corvus", 3, 2),
    (12, "Turdus merula", "Aves", f"{_BIRD}|Passeriformes|Turdidae|Turdus", 2, 1),
    (40, "Apteryx owenii", "Aves", f"{_BIRD}|Apterygiformes|Apterygidae|Apteryx", 3, 1),
    (41, "Amanita muscaria", "Fungi", f"{_FUNGUS}|Amanitaceae|Amanita", 2, 1),
    (57, "Clitocybe × éburnea", "Fungi", f"{_FUNGUS}|Tricholomataceae|Clitocybe", 1, 1),
    (100, "Parus major", "Aves", f"{_BIRD}|Passeriformes|Paridae|Parus", 0, 0),
    (120, "Spongilla sp", "Animalia", "Animalia|Porifera|Demospongiae|||Spongilla", 2, 1),
]


def write_json(place: Path, content: object) -> None:
    place.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def list_categories(year: int, species=SPECIES, *, is_hidden: bool) -> list[dict]:
    """The list of categories, in the order of no id."""
    found = []
    for number, name, group, lineage, *_ in species:
        names = {"name": name} | ({} if year == 2017 else dict(zip(RANKS, lineage.split("|"), strict=True)))
        found.append(
            {"id": number, "supercategory": group, **(dict.fromkeys(names, str(number)) if is_hidden else names)}
        )
    return found[3:] + found[:3]


def make_inaturalist(
    root: Path, year: int = 2018, species=SPECIES, *, train: str = "train", is_hidden: bool | None = None
) -> dict[str, tuple[str, str]]:
    """The files and images of a year; 2018 and 2019 with hidden names, and the names in a file of their own."""
    written, is_hidden = {}, year in (2018, 2019) if is_hidden is None else is_hidden
    for column, split in enumerate((train, "val")):
        images, labels = [], []
        for number, name, group, _, *counts in species:
            for n in range(counts[column]):
                key, path = 5000 - 37 * len(images), f"train_val/{split}/{group}/{number}/{n}.jpg"
                written[path] = (name, ("train", "val")[column])
                paint(root / path, len(written))
                images.append({"id": key, "width": 8, "file_name": path, "rights_holder": "é"})
                labels.append({"id": 2 * len(labels) + 9, "image_id": key, "category_id": number})
        categories = list_categories(year, species, is_hidden=is_hidden)
        content = {"images": images, "annotations": labels[5:] + labels[:5][::-1], "categories": categories}
        write_json(root / f"{split}{'' if year == 2021 else year}.json", content)
    if is_hidden:
        write_json(root / "categories.json", list_categories(year, species, is_hidden=False)[::-1])
    return written


# --- iMaterialist ----------------------------------------------------------------------------------------------------

LABEL_MAP = """labelId,taskId,labelName,taskName
17,2,Black,color
19,2,Blue,color
66,3,Female,gender
89,1,"Hosiery, Stockings, Tights",category
106,3,Male,gender
228,6,Zebra,pattern
"""
IDS = ("17", "19", "66", "89", "106", "228")
# Ids begin at 1, are no line numbers, and are text; the same ids mean other images in the other file. Nothing is
# striped like a zebra, and one image carries no label at all.
CARRIED = {
    "train": {"3": ["66", "17"], "1": ["106"], "10": ["89", "19", "66"], "2": [], "7": ["17", "66", "19"]},
    "val": {"1": ["66"], "2": ["106", "17"], "5": ["19"]},
}


def make_imaterialist(
    root: Path, *, has_names: bool = True, val: str = "validation", all_carried=CARRIED, label_map=LABEL_MAP
) -> dict[str, tuple[list, str]]:
    """The files and images, annotations in another order than images; the label is 0 or 1 for every id."""
    written, all_ids = {}, IDS if label_map == LABEL_MAP else [line.split(",")[0] for line in label_map.split()[1:]]
    for split, folder, file in (("train", "train", "train"), ("val", "validation", val)):
        carried = all_carried[split]
        for key, ids in carried.items():
            paint(root / folder / f"{key}.jpg", len(written))
            written[f"{folder}/{key}.jpg"] = ([int(number in ids) for number in all_ids], split)
        content = {
            "images": [{"url": f"https://example.org/{key}", "imageId": key} for key in carried],
            "annotations": [{"labelId": carried[key], "imageId": key} for key in sorted(carried)],
        }
        write_json(root / f"{file}.json", content)
    if has_names:
        (root / "iMat_fashion_2018_label_map_228.csv").write_text(label_map, encoding="utf-8")
    return written
