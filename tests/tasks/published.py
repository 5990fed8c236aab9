"""Small iNaturalist and iMaterialist datasets in their published formats, quirks included.

The colour of every picture tells what it is: red its species or labels, green its split, blue its number. So a test can
ask the pixels, and not the annotations, whether a label is right.
"""

import hashlib
import json
from pathlib import Path

from PIL import Image

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
_STEP = 24


def species_of(picture: Image.Image) -> str:
    """What a picture shows, by its red."""
    return SPECIES[round(picture.getpixel((4, 4))[0] / _STEP)][1]


def split_of(picture: Image.Image) -> str:
    """The split that a picture was painted for, by its green."""
    return "val" if picture.getpixel((4, 4))[1] > 100 else "train"


def paint(file: Path, red: int, split: str, blue: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (red, 200 if split == "val" else 0, blue)).save(file, "JPEG", quality=95)


def categories(*, obfuscated: bool = False, ranks: bool = True, year: int = 2018) -> list[dict]:
    """The list of categories, in the order of no id."""
    found = []
    for number, name, group, lineage, *_ in SPECIES:
        one = {"id": number, "name": name, "supercategory": group}
        if ranks:
            one |= dict(zip(RANKS, lineage.split("|"), strict=True))
        if obfuscated:
            one |= {key: str(number) for key in ("name", *RANKS)}
        if year == 2021:
            one |= {"common_name": "?", "specific_epithet": "?", "image_dir_name": f"{number:05}_{name}"}
        found.append(one)
    return found[3:] + found[:3]


def write_inaturalist(folder: Path, year: int = 2018, *, mini: bool = False) -> Path:
    """The files and images of a year; 2018 and 2019 with hidden names, and the names in a file of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = year in (2018, 2019)
    listed = categories(obfuscated=hidden, ranks=year != 2017, year=year)
    names = {"train": "train_mini" if mini else "train", "val": "val"}
    for column, (split, called) in enumerate(names.items()):
        images, labels = [], []
        for place, (number, name, group, _, *counts) in enumerate(SPECIES):
            for n in range(counts[column]):
                digest = hashlib.md5(f"{split} {number} {n}".encode()).hexdigest()
                path = f"train_val{year}/{group}/{number}/{digest}.jpg"
                if year == 2021:
                    path = f"{called}/{number:05}_{name.replace(' ', '_')}/{digest}.jpg"
                paint(folder / path, place * _STEP, split, 40 * n)
                key = 5000 - 37 * len(images) + column
                image = {"id": key, "width": 8, "height": 8, "file_name": path, "license": 3, "rights_holder": "é"}
                if year == 2021:
                    image |= {"date": "2018-05-01", "latitude": float("nan"), "location_uncertainty": None}
                images.append(image)
                labels.append({"id": 2 * len(labels) + 9, "image_id": key, "category_id": number})
        content = {
            "info": {"year": year, "contributor": "nobody", "url": 'a "b" [c'},
            "images": images,
            "annotations": labels[5:] + labels[:5][::-1],
            "categories": listed,
        }
        file = f"{called}.json" if year == 2021 else f"{called}{year}.json"
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    if hidden:
        text = json.dumps(categories()[::-1], ensure_ascii=False)
        (folder / "categories.json").write_text(text, encoding="utf-8")
    return folder


LABEL_MAP = """labelId,taskId,labelName,taskName
17,2,Black,color
19,2,Blue,color
66,3,Female,gender
89,1,"Hosiery, Stockings, Tights",category
106,3,Male,gender
228,6,Zebra,pattern
"""
# Ids begin at 1, are no line numbers, and are text; the same ids mean other images in the other file. Nothing is
# striped like a zebra, and one image carries no label at all.
CARRIED = {
    "train": {"3": ["66", "17"], "1": ["106"], "10": ["89", "19", "66"], "2": [], "7": ["17", "66", "19"]},
    "val": {"1": ["66"], "2": ["106", "17"], "5": ["19"]},
}


def labels_of(picture: Image.Image) -> set[str]:
    """The ids of the labels that a picture carries, by its colours."""
    red, _, blue = picture.getpixel((4, 4))
    return set(CARRIED[split_of(picture)][str(round(blue / _STEP))]) if red < 30 else set()


def write_imaterialist(folder: Path, *, with_map: bool = True, val: str = "validation") -> Path:
    """The files and images of iMaterialist (Fashion) 2018, annotations in another order than images."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, file, place in (("train", "train", "train"), ("val", val, "validation")):
        carried = CARRIED[split]
        for key in carried:
            paint(folder / place / f"{key}.jpg", 0, split, int(key) * _STEP)
        content = {
            "info": {"year": 2018, "version": 1, "description": "iMaterialist (Fashion)", "url": ""},
            "images": [{"url": f"https://example.org/{key}", "imageId": key} for key in carried],
            "annotations": [{"labelId": carried[key], "imageId": key} for key in sorted(carried)],
        }
        (folder / f"{file}.json").write_text(json.dumps(content), encoding="utf-8")
    if with_map:
        (folder / "iMat_fashion_2018_label_map_228.csv").write_text(LABEL_MAP, encoding="utf-8")
    return folder


def edit(file: Path, change) -> None:
    """Writes a JSON file again after `change` was done to its content."""
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def change(key: str, number: int, **fields):
    """Other values for some fields of a record."""
    return lambda content: content[key][number].update(fields)
