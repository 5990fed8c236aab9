"""The probes and tasks that are measured: real weights and real images of the shared folder."""

import csv
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import task2vec as t2v
from benchmarks.measure import Plan

SIZE = 128
RESNET = "resnet34"
_RESNET_FILE = "weights/resnet34_body.fp16.safetensors"


def missing_material(shared: Path) -> str | None:
    """Why nothing real can be measured, or None if all is there."""
    wanted = [_RESNET_FILE, "data/clothing10/images", "data/dtd10/images", "data/cub200/taxonomy.csv"]
    missing = [name for name in wanted if not (shared / name).exists()]
    if not missing:
        return None
    return f"{shared} lacks {', '.join(missing)}: real weights and images are needed. Name their folder: --shared DIR"


def resnet_weights(shared: Path) -> Path:
    """The file of ResNet-34 weights, in torchvision's names."""
    return shared / _RESNET_FILE


def load_probes(plan: Plan) -> list[t2v.Probe]:
    """ResNet-34 and the default probe, at 128 pixels."""
    return [t2v.load_probe(RESNET, weights=resnet_weights(plan.shared), size=SIZE), t2v.load_probe(size=SIZE)]


def task_readers(plan: Plan) -> dict[str, Callable[[], t2v.Task]]:
    """Three real tasks by name: garments, textures and a family of birds (13 species, 30 images of each)."""
    data = plan.shared / "data"
    readers: dict[str, Callable[[], t2v.Task]] = {
        "clothing10": lambda: t2v.read_folder(data / "clothing10" / "images", name="clothing10"),
        "dtd10": lambda: t2v.read_folder(data / "dtd10" / "images", name="dtd10"),
        "cub_Icteridae": lambda: read_taxon(data / "cub200", "family", "Icteridae", name="cub_Icteridae"),
    }
    return {name: (lambda read=read: _thin(read(), 4)) for name, read in readers.items()} if plan.is_quick else readers


def read_taxon(folder: Path, level: str, taxon: str, *, name: str, least_images: int = 2) -> t2v.Task:
    """The task of all species of one taxon that have at least `least_images` images."""
    with (folder / "taxonomy.csv").open(encoding="utf-8", newline="") as file:
        species = [row["class_dir"] for row in csv.DictReader(file) if row[level] == taxon]
    with tempfile.TemporaryDirectory() as folder_of_table:
        table = Path(folder_of_table, f"{name}.csv")
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label"])
            for kind in species:
                paths = sorted((folder / "images" / kind).glob("*.jpg"))
                if len(paths) >= least_images:
                    writer.writerows([str(path.relative_to(folder)), kind] for path in paths)
        return t2v.read_table(table, root=folder, name=name)


def _thin(task: t2v.Task, images_per_class: int) -> t2v.Task:
    """The first few images of every class."""
    kept = [np.flatnonzero(task.targets == label)[:images_per_class] for label in range(len(task.classes))]
    return task.subset(np.sort(np.concatenate(kept)))
