"""Annotations of real size: seconds and peak memory of parsing them.

    python benchmarks/read_large.py [NAME ...] [--quick] [--out FILE]

The files are made up in a temporary folder, with as many records and as long ones as the published datasets have. Each
is parsed in a process of its own that has imported nothing else. A file that is only read from end to end, and one that
Python's json reads whole, are measured beside it. No image is opened.
Seconds of the processor are given too, for a machine that does other things.
"""

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "src")]

import numpy as np  # noqa: E402

OUT = _ROOT / "docs" / "measured" / "read_large.json"
LARGEST_GB = 2.0


@dataclass(frozen=True)
class Dataset:
    """How to make up a dataset in a folder (at a fraction of its size), and how to read it."""

    write: Callable[[Path, float], None]
    read: Callable[[Path], object]


def write_json(file: Path, **arrays: Iterable[dict]) -> None:
    """An object of arrays, written record by record."""
    with file.open("w", encoding="utf-8") as out:
        out.write('{"info": {"year": 2018, "description": "made up"}')
        for key, records in arrays.items():
            out.write(f', "{key}": [')
            out.writelines(
                f"{', ' if number else ''}{json.dumps(record, ensure_ascii=False)}"
                for number, record in enumerate(records)
            )
            out.write("]")
        out.write("}")


def write_inaturalist(folder: Path, share: float) -> None:
    """Writes iNaturalist 2018: 437,513 and 24,426 images of 8,142 species, in about 300 orders of unequal size."""
    species = max(20, round(8142 * share))
    rng = np.random.default_rng(0)
    orders = np.sort((300 * share**0.5 * rng.random(species) ** 3).astype(int)).tolist()
    ranks = [(n, orders[n], orders[n] // 7, orders[n] // 40) for n in range(species)]
    names = [
        {
            "id": n,
            "name": f"Genus{n // 3} species{n}",
            "supercategory": f"Super{kind % 14}",
            "kingdom": f"Kingdom{kind % 3}",
            "phylum": f"Phylum{kind}",
            "class": f"Class{group}",
            "order": f"Order{order}",
            "family": f"Family{order}.{n // 10}",
            "genus": f"Genus{n // 3}",
        }
        for n, order, group, kind in ranks
    ]
    hidden = [{key: str(value) if key != "id" else value for key, value in one.items()} for one in names]
    hidden = [{**one, "name": str(one["id"])} for one in hidden]
    (folder / "categories.json").write_text(json.dumps(names))
    start = 0
    for split, count in (("train", 437_513), ("val", 24_426)):
        count = max(2 * species, round(count * share))
        of = rng.permutation(np.append(np.arange(species), rng.integers(0, species, count - species))).tolist()
        ids = range(start, start + count)
        images = (
            {
                "id": n,
                "width": 800,
                "height": 600,
                "file_name": f"train_val2018/Super{ranks[kind][3] % 14}/{kind}/{_hash(n)}.jpg",
                "license": 3,
                "rights_holder": f"Somebody Nr. {n % 9000}",
            }
            for n, kind in zip(ids, of, strict=True)
        )
        labels = ({"id": n, "image_id": n, "category_id": kind} for n, kind in zip(ids[::-1], of[::-1], strict=True))
        write_json(folder / f"{split}2018.json", images=images, categories=hidden, annotations=labels)
        start += count


def write_imaterialist(folder: Path, share: float) -> None:
    """Writes iMaterialist (Fashion) 2018: 1,012,947 and 9,897 images with 1 to 30 of 228 labels, and their names."""
    groups = ("category", "color", "gender", "material", "neckline", "pattern", "sleeve", "style")
    rows = (f"{n},{n % 8 + 1},Label {n},{groups[n % 8]}\n" for n in range(1, 229))
    (folder / "labels.csv").write_text("labelId,taskId,labelName,taskName\n" + "".join(rows))
    rng = np.random.default_rng(0)
    popular = rng.permutation(np.arange(1, 229)).tolist()
    for split, count in (("train", 1_012_947), ("validation", 9_897)):
        count = max(500, round(count * share))
        keys = [str(n) for n in range(1, count + 1)]
        sizes = rng.integers(1, 31, count).tolist()
        starts = rng.integers(0, 228, count).tolist()
        images = (
            {"url": f"https://contestimg.wish.com/api/webimage/{_hash(int(key))[:24]}-large", "imageId": key}
            for key in keys
        )
        labels = (
            {"labelId": [str(popular[(start + 7 * n) % 228]) for n in range(size)], "imageId": key}
            for key, size, start in zip(keys, sizes, starts, strict=True)
        )
        write_json(folder / f"{split}.json", images=images, annotations=labels)


def write_deepfashion(folder: Path, share: float) -> None:
    """Writes DeepFashion: 289,222 images with 1,000 attributes that are 1, -1 or (few) 0, categories and partition."""
    count, attributes = max(100, round(289_222 * share)), 1000
    rng = np.random.default_rng(0)
    paths = [f"img/Sheer_Pleated-Front_Blouse_{n // 60}/img_{n:08}.jpg" for n in range(1, count + 1)]
    splits = [("train", "train", "train", "val", "test")[n % 5] for n in range(count)]
    # Numbers of categories are places in their list; 46 of the 50 have images.
    lists = {
        "Anno/list_attr_cloth.txt": [(f"attribute of number {n}", n % 5 + 1) for n in range(attributes)],
        "Anno/list_category_cloth.txt": [(f"Category{n}", 1 + (n >= 20) + (n >= 36)) for n in range(50)],
        "Anno/list_category_img.txt": [(path, n % 46 + 1) for n, path in enumerate(paths)],
        "Eval/list_eval_partition.txt": list(zip(paths, splits, strict=True)),
    }
    for name, rows in lists.items():
        (folder / name).parent.mkdir(exist_ok=True)
        entries = "".join(f"{entry:<70} {value}\n" for entry, value in rows)
        (folder / name).write_text(f"{len(rows)}\nname  value\n{entries}")
    words = np.array([b"-1 ", b" 0 ", b" 1 "])
    with (folder / "Anno" / "list_attr_img.txt").open("wb") as out:
        out.write(f"{count}\nimage_name  attribute_labels\n".encode())
        for start in range(0, count, 2000):
            some = paths[start : start + 2000]
            values = words[np.searchsorted([0.98, 0.985], rng.random((len(some), attributes)))]
            out.writelines(
                path.ljust(70).encode() + b" " + row.tobytes() + b"\n" for path, row in zip(some, values, strict=True)
            )


def _hash(number: int) -> str:
    return hashlib.md5(str(number).encode()).hexdigest()


def _read_inaturalist(folder: Path) -> object:
    import task2vec as t2v

    return t2v.read_inaturalist(folder)


def _read_imaterialist(folder: Path) -> object:
    import task2vec as t2v

    return t2v.read_imaterialist(folder, labels=folder / "labels.csv", images="{folder}/{id}.jpg")


def _read_deepfashion(folder: Path) -> object:
    import task2vec as t2v

    return t2v.read_deepfashion(folder)


# Another dataset is one more line here.
DATASETS = {
    "inaturalist": Dataset(write_inaturalist, _read_inaturalist),
    "imaterialist": Dataset(write_imaterialist, _read_imaterialist),
    "deepfashion": Dataset(write_deepfashion, _read_deepfashion),
}


def measure(name: str, share: float) -> dict[str, object]:
    """Figures of one dataset: its size, and seconds and peak memory of each way to read it."""
    dataset = DATASETS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, name)
        folder.mkdir()
        dataset.write(folder, share)
        files = {file.name: round(file.stat().st_size / 1e6, 1) for file in _list_files(folder)}
        parsed = _run("read", name, folder)
        whole = _run("whole", name, folder) if any(file.endswith(".json") for file in files) else None
        found = {
            "share": share,
            "megabytes": files,
            "read_bytes_s": round(_read_bytes(folder), 2),
            "parsed": parsed,
        }
        return found | ({"json_load": whole} if whole else {})


def _run(mode: str, name: str, folder: Path) -> dict[str, object]:
    """What a process of its own reports of reading the folder."""
    command = [sys.executable, str(Path(__file__)), name, "--inside", mode, "--folder", str(folder)]
    done = subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _inside(mode: str, name: str, folder: Path) -> None:
    """Reads the folder and prints seconds, peak memory and what was found."""
    import task2vec.tasks  # noqa: F401  # so that the peak before is that of the imports

    before, begin, busy = _peak_gb(), time.perf_counter(), time.process_time()
    if mode == "read":
        found = repr(DATASETS[name].read(folder))
    else:
        held = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
        found = f"{len(held)} files"
    figures = {
        "seconds": round(time.perf_counter() - begin, 2),
        "processor_seconds": round(time.process_time() - busy, 2),
        "peak_gb": round(_peak_gb(), 3),
        "imports_gb": round(before, 3),
    }
    print(json.dumps({**figures, "found": found}))


def _list_files(folder: Path) -> list[Path]:
    """The files of a dataset by name, at whatever depth."""
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _read_bytes(folder: Path) -> float:
    """Seconds to read every file from end to end."""
    begin = time.perf_counter()
    for file in _list_files(folder):
        with file.open("rb") as source:
            while source.read(1 << 20):
                pass
    return time.perf_counter() - begin


def _peak_gb() -> float:
    """Largest resident size of this process; where the system only tells of it and its parent, of the larger."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux starts ru_maxrss of a child at its parent's size
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024 / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def main() -> None:
    """Measures, prints, and merges the figures into the file by the name of the dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(DATASETS))
    parser.add_argument("--quick", action="store_true", help="a hundredth of the size, to see that it runs")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--inside", choices=("read", "whole"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        _inside(arguments.inside, arguments.names[0], arguments.folder)
        return
    known = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    for name in arguments.names:
        found = measure(name, 0.01 if arguments.quick else 1.0)
        known[name] = found
        parsed, whole = (found.get(key) for key in ("parsed", "json_load"))
        print(f"\n{name}: {sum(found['megabytes'].values()):.0f} MB of annotations\n  {parsed['found']}")
        for what, row in (("parsed", parsed), ("json.load alone", whole)):
            if row:
                spent = f"{row['seconds']:8.2f} s ({row['processor_seconds']:.2f} s of the processor)"
                print(f"  {what:16} {spent}  peak {row['peak_gb']:6.3f} GB")
        print(f"  {'met' if parsed['peak_gb'] < LARGEST_GB else 'MISSED'}: peak below {LARGEST_GB} GB")
    if not arguments.quick:
        arguments.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
