"""A program of timm and torch that trains a model on the images of a task; it needs no task2vec.

It reads the images where the task was read from, loads the model, and trains a linear classifier on its features, as it
was measured, or all weights. `data/train.py.jinja` is the program.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from task2vec.errors import UsageError
from task2vec.storage import write_file
from task2vec.tasks import Task
from task2vec.tasks.columns import SUFFIXES, read_columns
from task2vec.tasks.folder import SPLIT_NAMES, list_splits
from task2vec.tasks.images import ChosenImages, StoredImages
from task2vec.text import printable

# Splits that nothing is trained on, and names of columns that have them. Files in a folder of which a task has not all.
_HELD_OUT = SPLIT_NAMES[3:]
_SPLIT_COLUMNS = ("split", "set", "subset", "partition")
MAX_IGNORED = 100
# The penalty that errors are measured with, see `measure`, which imports torch.
_PENALTY = 3e-4


def write_script(
    path: Path, task: Task, *, model: str, location: str | None, size: int | None, measured: str, whole_network: bool
) -> Path:
    """Writes the program that trains a model at a location, such as "timm:resnet50", on the images of a task.

    Args:
        path: of the program.
        task: read from a folder or a table.
        model: name of the model.
        location: what loads it.
        size: side of the images, where it is not the network's own.
        measured: the error that the linear classifier should have, in words; empty if that is not known.
        whole_network: whether all weights are trained.
    """
    from jinja2 import Environment, StrictUndefined

    options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = Environment(undefined=StrictUndefined, autoescape=False, **options)  # noqa: S701  # it is no HTML
    environment.filters |= {"python": repr, "text": _escape}
    template = (resources.files("task2vec.select") / "data" / "train.py.jinja").read_text("utf-8")
    about = {"model": model, "task": task.name, "classes": list(task.classes), "is_multilabel": task.is_multilabel}
    about |= {"measured": "" if whole_network else measured, "whole_network": whole_network, "penalty": _PENALTY}
    about |= _describe_table(task) if _is_table(task) else _describe_folder(task)
    about |= _describe_model(model, location, size)
    return write_file(path, environment.from_string(template).render(about).encode())


def _escape(text: str) -> str:
    """The text as part of a docstring."""
    return printable(text).replace("\\", "\\\\").replace('"', "'")


# --- images ----------------------------------------------------------------------------------------------------------


def _find_files(task: Task) -> tuple[Path, list[str]]:
    """The folder of the images of a task, and their paths below it."""
    images, numbers = task.images, list(range(len(task)))
    if isinstance(images, ChosenImages) and len(images.sources) == 1:
        numbers = [within for _, within in images.places]
        images = images.sources[0]
    if not isinstance(images, StoredImages) or not images.root or not Path(task.source).exists():
        raise UsageError(
            f"the images of '{task.name}' are not those of a folder of class folders or of a table, so a script "
            "(--script) could not read them. Write them to a folder, one folder for each class, and pass that."
        )
    return Path(images.root), [images.names[number] for number in numbers]


def _is_table(task: Task) -> bool:
    return Path(task.source).suffix.lower() in SUFFIXES and not Path(task.source).is_dir()


def _describe_folder(task: Task) -> dict[str, Any]:
    """What the program needs to read a folder; the split is the folder that is for validation, if there is one."""
    root, names = _find_files(task)
    suffixes = sorted({Path(name).suffix.lower() for name in names})
    files = [file for kind in task.classes for file in (root / kind).rglob("*") if file.suffix.lower() in suffixes]
    listed = {file.relative_to(root).as_posix() for file in files}
    ignored = sorted(listed.difference(names))
    kinds = [name.partition("/")[0] for name in names]
    is_same = not task.is_multilabel and kinds == [task.classes[target] for target in task.targets]
    if not is_same or not listed.issuperset(names) or len(ignored) > MAX_IGNORED:
        raise UsageError(
            f"the classes of '{task.name}' are not the folders of '{root}', or many of its images are not in the task, "
            "so a script (--script) could not read it from there. Pass the folder itself, or a table of paths and "
            "labels."
        )
    split = _find_validation(root)
    about = {"table": "", "root": str(root), "ignored": ignored, "suffixes": suffixes}
    return about | {"split": "" if split is None else str(split)}


def _find_validation(root: Path) -> Path | None:
    """The folder beside that of a training split that is for validation, or else for testing."""
    if root.name.lower() in _HELD_OUT or root.name.lower() not in SPLIT_NAMES:
        return None
    return next((root.parent / name for name in list_splits(root.parent) if name.lower() in _HELD_OUT), None)


def _describe_table(task: Task) -> dict[str, Any]:
    """What the program needs to read a table; the split is the column that says what is for validation, if any."""
    root, names = _find_files(task)
    table = Path(task.source).resolve()
    columns = read_columns(table) if table.suffix.lower() in (".csv", ".tsv") else None
    path = next((head for head in columns if set(names) <= {*columns[head]}), None) if columns else None
    if columns is None or path is None or not columns.has_header or columns.delimiter == " ":
        raise UsageError(
            f"'{table}' is not a CSV table with a header and a column of the images' paths, so a script (--script) "
            "could not read it. Save it as CSV."
        )
    labels = [] if task.is_multilabel else [task.classes[target] for target in task.targets]
    known = dict(zip(names, labels, strict=False))
    rest = {head: cells for head, cells in columns.items() if head != path}
    label = next((head for head, cells in rest.items() if _has_labels(cells, columns[path], known)), "")
    split = next((head for head, cells in rest.items() if head.lower() in _SPLIT_COLUMNS and _is_split(cells)), "")
    ignored = sorted(set(columns[path]).difference(names))
    about = {"table": str(table), "root": str(root), "ignored": ignored, "delimiter": columns.delimiter}
    return about | {"path": path, "label": label, "split": split, "held_out": list(_HELD_OUT)}


def _has_labels(cells: Sequence[str], paths: Sequence[str], known: dict[str, str]) -> bool:
    """Whether the cells of a column are the labels of the images."""
    return all(known[path] == cell for cell, path in zip(cells, paths, strict=True) if path in known)


def _is_split(cells: Sequence[str]) -> bool:
    """Whether the cells of a column say which images are for training, and which for validation or tests."""
    names = {cell.strip().lower() for cell in cells}
    return names <= set(SPLIT_NAMES) and bool(names.intersection(_HELD_OUT)) and not names <= set(_HELD_OUT)


# --- models ----------------------------------------------------------------------------------------------------------


def _describe_model(model: str, location: str | None, size: int | None) -> dict[str, Any]:
    """What the program needs to load a model."""
    from task2vec.probe.weights import OFFLINE_PACKAGES, is_offline_package_installed

    about = {"expert": "", "package": "", "package_file": "", "tag": "", "size": size}
    location = location or ""
    if location.endswith(".expert.safetensors"):
        from task2vec.experts.checkpoint import read_metadata

        metadata = read_metadata(Path(location))
        about |= {"expert": str(Path(location).absolute()), "size": metadata["size"][0]}
        location = str(metadata.get("architecture") or "")
    home, _, network = location.rpartition(":")
    if is_offline_package_installed(network.partition(".")[0]) and home == "timm" and not about["expert"]:
        about["package"], about["package_file"], _ = OFFLINE_PACKAGES[network.partition(".")[0]]
    if home == "torchvision" and not about["expert"]:
        network, _, about["tag"] = network.partition(".")
    elif home != "timm":
        raise UsageError(
            f"'{model}' is not a network of timm or torchvision, or an expert of one of timm's, so a script (--script) "
            "could not load it. Load it yourself, or name another model: script(PATH, model=NAME)"
        )
    is_resized = about["size"] is not None and home == "timm" and _takes_size(network)
    return about | {"home": home, "network": network, "resize": f", img_size={about['size']}" if is_resized else ""}


def _takes_size(network: str) -> bool:
    """Whether a network of timm is built for one image size, as vision transformers are."""
    import timm
    import torch

    try:
        with torch.device("meta"):
            timm.create_model(network, img_size=32 * 7)
    except TypeError:
        return False
    return True
