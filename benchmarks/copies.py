"""Copies: how many made ones are found with their original, and how many pairs that are reported are right?

    python benchmarks/copies.py --data DIR [--cleanvision PYTHON] [--cache DIR] [--sheets DIR] [--known FILE ...]
        [--json docs/measured/copies.json]

DIR holds sets of images, each in folders of classes. Of every set up to 240 different images are read, and nine kinds
of copies made of 20 of them. A copy counts as found if it would be reported as a copy of its original if it were added
to the set, on its own and without features, which only add pairs to compare. "Short" says, for every kind of which
fewer are found than wanted, whether `unseen` names it.

Precision is that of the pairs that are reported as copies in the sets as they are, with features of the default probe:
looked at one by one, and judged in `copies_judged.csv`. `--sheets` draws them. PYTHON is an interpreter with
cleanvision, which gets the same files; its near and exact duplicates count as found. `--cache` keeps features,
`--known` sets that earlier runs measured.
"""

import argparse
import csv
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image, ImageDraw, ImageEnhance, ImageOps  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

import task2vec as t2v  # noqa: E402
from benchmarks.measure import describe_machine, make_parser, show_table, write_json  # noqa: E402
from task2vec.probe import Probe  # noqa: E402
from task2vec.tasks.copies import SIDE, _normalise, _PictureSet, make_picture  # noqa: E402
from task2vec.tasks.images import digest_pixels  # noqa: E402

IMAGES, COPIES, TIMED = 240, 20, 32
SUFFIXES = (".jpg", ".jpeg", ".png")
JUDGED = Path(__file__).with_name("copies_judged.csv")
SEARCH = """
import json, sys
from cleanvision import Imagelab
lab = Imagelab(data_path=sys.argv[1])
lab.find_issues({"near_duplicates": {}, "exact_duplicates": {}}, n_jobs=1, verbose=False)
print("\\n" + json.dumps([g for kind in ("near_duplicates", "exact_duplicates") for g in lab.info[kind]["sets"]]))
"""


def crop(image: Image.Image, share: float) -> Image.Image:
    """Without so much of its width and height, more of it at the right and at the top."""
    width, height = round(image.width * share), round(image.height * share)
    left, top = round(0.3 * width), round(0.6 * height)
    return image.crop((left, top, left + image.width - width, top + image.height - height))


# How a copy is made, which kind of `unseen` says that it is not found, and the recall that is wanted.
KINDS = {
    "recompressed": (lambda image: image, "recompressed", 0.95),
    "half size": (lambda image: image.resize((image.width // 2, image.height // 2)), "scaled", 0.95),
    "darkened": (lambda image: ImageEnhance.Brightness(image).enhance(0.6), "darkened", 0.95),
    "mirrored": (ImageOps.mirror, "mirrored", 0.95),
    "turned": (lambda image: image.transpose(Image.Transpose.ROTATE_90), "turned", 0.95),
    "brightened": (lambda image: ImageEnhance.Brightness(image).enhance(1.4), "brightened", 0.9),
    "cropped 2 %": (lambda image: crop(image, 0.02), "cropped by 5 %", 0.9),
    "cropped 5 %": (lambda image: crop(image, 0.05), "cropped by 5 %", 0.9),
    "cropped 10 %": (lambda image: crop(image, 0.10), "cropped by 10 %", 0.9),
}


def recompress(image: Image.Image, quality: int) -> Image.Image:
    """The image as a JPEG shows it."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality)
    return Image.open(data).convert("RGB")


def compute_features(probe: Probe, images: list[Image.Image]) -> np.ndarray:
    """(n, d) features."""
    network = probe.prepare(device=torch.device("cpu"))
    features = []
    with torch.inference_mode():
        for start in range(0, len(images), 16):
            pixels = torch.stack([probe.preprocess(image) for image in images[start : start + 16]])
            features.append(network.module(probe.preprocess.normalise(pixels, torch.float32)))
    return torch.cat(features).numpy()


def find_with_cleanvision(python: str, images: dict[str, Image.Image]) -> list[set[str]]:
    """The groups of duplicates that cleanvision finds in these images, as their names."""
    with tempfile.TemporaryDirectory() as folder:
        for name, image in images.items():
            image.save(Path(folder) / f"{name}.png")
        command = [python, "-c", SEARCH, folder]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [{Path(path).stem for path in group} for group in json.loads(output.splitlines()[-1])]


def read_judged() -> dict[tuple[str, str, str], bool]:
    """Whether pairs of files are copies, as somebody saw them."""
    with JUDGED.open(newline="") as file:
        return {(row["set"], row["first"], row["second"]): row["copy"] == "yes" for row in csv.DictReader(file)}


def draw_pairs(images: list[Image.Image], names: list[str], pairs: list[tuple[int, int]], path: Path) -> None:
    """A contact sheet."""
    sheet = Image.new("RGB", (4 * 340, 190 * -(-len(pairs) // 4)), "white")
    for place, pair in enumerate(pairs):
        left, top = place % 4 * 340, place // 4 * 190
        for side, number in enumerate(pair):
            image = ImageOps.contain(images[number], (165, 165), Image.Resampling.BICUBIC)
            sheet.paste(image, (left + 168 * side, top + 18))
        ImageDraw.Draw(sheet).text((left, top), " ".join(names[number][-26:] for number in pair), fill="black")
    sheet.save(path)


def study(folder: Path, probe: Probe, options: argparse.Namespace) -> dict:
    """What is measured on a set."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    random.Random(0).shuffle(files)
    files = files[:IMAGES]
    images = [Image.open(path).convert("RGB") for path in files]
    different = sorted({digest_pixels(image): number for number, image in reversed([*enumerate(images)])}.values())
    images, names = [images[n] for n in different], [files[n].relative_to(folder).as_posix() for n in different]
    cached = None if options.cache is None else options.cache / f"{folder.name}.safetensors"
    if cached is not None and cached.exists():
        vectors = load_file(cached)["features"][different]
    else:
        vectors = compute_features(probe, [Image.open(path).convert("RGB") for path in files])
        if cached is not None:
            save_file({"features": vectors}, cached)
        vectors = vectors[different]
    start = time.process_time()
    compute_features(probe, images[:TIMED])
    pass_seconds = (time.process_time() - start) / TIMED
    start = time.process_time()
    pictures = np.stack([make_picture(image) for image in images])
    picture_seconds = (time.process_time() - start) / len(images)
    start = time.process_time()
    searched = _PictureSet(pictures)
    links, unseen = searched.search(_normalise(vectors))
    seconds = (time.process_time() - start) / len(images)

    chosen = np.array(random.Random(1).sample(range(len(images)), COPIES))
    recall, said, made = {}, {}, {}
    for kind, (change, name, wanted) in KINDS.items():
        made[kind] = [recompress(change(images[number]), 50 if kind == "recompressed" else 85) for number in chosen]
        luma = np.stack([make_picture(image)[:SIDE] for image in made[kind]])
        recall[kind] = searched.share_found(searched.match_made(chosen, luma))
        if recall[kind] < wanted:
            said[kind] = any(name in text for text in unseen)
    reported = {"task2vec": [(link.first, link.second) for link in links if link.kind == "copy"]}
    result = {
        "images": len(images),
        "recall": recall,
        "short": said,
        "unseen": unseen,
        "scene links": sum(link.kind == "scene" for link in links),
        "alike": sum(link.kind == "alike" for link in links),
        "seconds per image": {"probe": pass_seconds, "pictures": picture_seconds, "search": seconds},
    }
    if options.cleanvision is not None:
        by_name = {f"{number}": image for number, image in enumerate(images)}
        for place, kind in enumerate(KINDS):
            by_name |= {f"{number}-{place}": image for number, image in zip(chosen, made[kind], strict=True)}
        groups = find_with_cleanvision(options.cleanvision, by_name)
        result["cleanvision recall"] = {
            kind: sum(any({f"{number}", f"{number}-{place}"} <= group for group in groups) for number in chosen)
            / COPIES
            for place, kind in enumerate(KINDS)
        }
        originals = [sorted(int(name) for name in group if name.isdigit()) for group in groups]
        reported["cleanvision"] = [pair for group in originals for pair in combinations(group, 2)]
    for name, pairs in reported.items():
        result[f"{name} pairs"] = [sorted(names[number] for number in pair) for pair in sorted(pairs)]
        if options.sheets is not None and pairs:
            draw_pairs(images, names, sorted(pairs), options.sheets / f"{folder.name} {name}.png")
    return result


def count_verdicts(results: dict[str, dict], judged: dict[tuple[str, str, str], bool]) -> dict[str, dict[str, int]]:
    """How many of the pairs that are reported in the sets as they are were judged right and wrong, by program."""
    counts = {}
    for program in ("task2vec", "cleanvision"):
        keys = [(name, *pair) for name, values in results.items() for pair in values.get(f"{program} pairs", [])]
        for key in keys:
            if key not in judged:
                print(f"not judged ({program}): {','.join(key)}")
        verdicts = [judged.get(key) for key in keys]
        counts[program] = {"right": verdicts.count(True), "wrong": verdicts.count(False), "open": verdicts.count(None)}
    return counts


def summarise(results: dict[str, dict]) -> dict:
    """By kind: the mean recall, the sets that reach what is wanted, and those that fall short, and of these said."""
    summary = {}
    for kind, (_, _, wanted) in KINDS.items():
        recalls = [values["recall"][kind] for values in results.values()]
        others = [values["cleanvision recall"] for values in results.values() if "cleanvision recall" in values]
        said = [values["short"][kind] for values in results.values() if kind in values["short"]]
        summary[kind] = {
            "wanted": wanted,
            "mean recall": round(float(np.mean(recalls)), 3),
            "sets": len(recalls),
            "sets that reach it": len(recalls) - len(said),
            "sets that fall short": len(said),
            "of these said": sum(said),
        }
        if others:
            recall = round(float(np.mean([values[kind] for values in others])), 3)
            summary[kind] |= {"cleanvision mean recall": recall, "cleanvision sets": len(others)}
    return summary


def main() -> None:
    """Studies every set and writes what was measured."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of sets")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    parser.add_argument("--cleanvision", help="an interpreter that has it")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--sheets", type=Path)
    parser.add_argument("--sets", nargs="*", help="of these alone")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="files of earlier runs, whose sets are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cleanvision is None:
        print("cleanvision is left out: --cleanvision PYTHON names an interpreter that has it")
    probe = t2v.load_probe()
    results = {name: values for path in options.known for name, values in json.loads(path.read_text())["sets"].items()}
    for folder in sorted(path for path in options.data.iterdir() if path.is_dir()):
        if folder.name in results or (options.sets and folder.name not in options.sets):
            continue
        results[folder.name] = study(folder, probe, options)
        print(folder.name, json.dumps(results[folder.name]), flush=True)
        if options.json:
            write_json(options.json, {"sets": results})
    report = {
        "machine": describe_machine(),
        "settings": {"images": IMAGES, "copies": COPIES},
        "summary": summarise(results),
        "verdicts": count_verdicts(results, read_judged()),
        "sets": dict(sorted(results.items())),
    }
    rows = [[name, *(f"{values['recall'][kind]:.2f}" for kind in KINDS)] for name, values in results.items()]
    show_table(["set", *KINDS], rows)
    show_table(
        ["kind", *next(iter(report["summary"].values()))], [[k, *v.values()] for k, v in report["summary"].items()]
    )
    print(report["verdicts"])
    if options.json:
        write_json(options.json, report)


if __name__ == "__main__":
    main()
