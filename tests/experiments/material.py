"""What several tests of the experiments need: a small collection on disk, and committed tables."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from experiments.report import load_bundle
from task2vec.storage import write_csv

ROOT = Path(__file__).resolve().parents[2]
# Families of an order share a hue, so that relatives look alike.
LIFE = {
    "cub200": {"A1": ("A", 20), "A2": ("A", 35), "A3": ("A", 50), "B": ("B", 110), "C": ("C", 140)},
    "dogs": {"work": ("", 190), "hunt": ("", 210)},
}


def read_csv(path):
    """The rows of a table; what looks like a number is one."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        return [{key: parse(value) for key, value in row.items()} for row in csv.DictReader(file)]


def parse(text):
    try:
        return float(text)
    except ValueError:
        return text


def write_shades(folder, colour, count, rng):
    """A class of small pictures that differ a little in colour."""
    folder.mkdir(parents=True)
    for index in range(count):
        pixels = rng.normal(colour, 18, (16, 16, 3)).clip(0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")


def write_collection(root, *, per_class=10):
    """Five groups of birds, three of them families of one order, and two uses of dogs; two shades in each group."""
    rng = np.random.default_rng(0)
    tasks = []
    for dataset, groups in LIFE.items():
        rows = []
        for name, (order, level) in groups.items():
            for kind in range(2):
                folder = root / dataset / "images" / f"{name}-{kind}"
                write_shades(folder, (level, 60 + 90 * kind, 128), per_class, rng)
                row = {"class_dir": folder.name}
                rows.append(row | ({"order": order, "family": name} if dataset == "cub200" else {"use": name}))
            level = ("family" if name[1:] else "order") if dataset == "cub200" else "use"
            tasks.append({"dataset": dataset, "taxon_level": level, "taxon": name, "task": f"{dataset} {name}"})
        write_csv(root / dataset / "taxonomy.csv", rows, list(rows[0]))
    write_csv(root / "tasks.csv", tasks, list(tasks[0]))
    return root


def run(app, *args, code=0):
    """Runs a command in this process; the result has stdout and stderr."""
    result = CliRunner().invoke(app, [str(argument) for argument in args])
    assert result.exit_code == code, (result.stderr, result.exception)
    return result


def load_with_repeat(tasks, models):
    """Some tasks and models of the meta-task of experts, and another expert as if it repeated one by another recipe."""
    whole = load_bundle(None)
    small = whole.only(tasks, [*models, 12])
    repeat = replace(small.models[-1], name=f"{small.models[-1].name} (fast)", recipe="fast", is_repeat=True)
    return replace(small, models=(*small.models[:-1], repeat))
