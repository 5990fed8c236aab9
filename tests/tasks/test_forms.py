"""Every row of the table of forms in docs/how-to/data.md is read as the same task, in Python and as a command."""

import re
import shlex
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import task2vec as t2v
from tests.cli.material import call
from tests.documents import ROOT
from tests.tasks.pictures import encode, paint

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
hf = pytest.importorskip("datasets")
torch = pytest.importorskip("torch")

PAGE = (ROOT / "docs" / "how-to" / "data.md").read_text("utf-8")
ROWS = [
    [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.split("| you have |")[1].split("\n\n")[0].splitlines()[2:]
]
# Eight images: their shades, labels and patients; attributes for the rows that have several labels for an image.
SHADES = [20 * number for number in range(8)]
LABELS = ["cat"] * 4 + ["dog"] * 4
PATIENTS = ["p0", "p0", "p1", "p1", "p2", "p2", "p3", "p3"]
ATTRIBUTES = [["red"], ["red", "round"], [], ["round"], ["red", "round"], ["red"], ["round"], []]


class Pairs(list):
    """A dataset of pairs, as torch has them."""


def write(path: Path, *rows: tuple, separator: str = ",") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{separator.join(map(str, row))}\n" for row in rows))


@pytest.fixture
def material(tmp_path, monkeypatch):
    """All that the rows name, in the current folder, and the names of their code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was asked"))
    paths = [
        f"pets/{label}/{patient}_{shade}.png" for label, patient, shade in zip(LABELS, PATIENTS, SHADES, strict=True)
    ]
    for number, (shade, label, path) in enumerate(zip(SHADES, LABELS, paths, strict=True)):
        for copy in (path, f"splits/train/{label}/{shade}.png", f"sites/site_{number % 2}/{label}/{shade}.png",
                      f"named/{label}_{shade}.png", f"flat/{shade}.png"):  # fmt: skip
            paint(tmp_path / copy, shade)
    for kind in ("cat", "dog"):
        paint(tmp_path / "splits" / "test" / kind / "1.png", 250 + len(kind))
    pairs = [*zip(paths, LABELS, strict=True)]
    write(Path("flat/labels.csv"), ("id", "breed"), *zip(SHADES, LABELS, strict=True))
    write(Path("labels.txt"), *pairs, separator="  ")
    absolute = [(tmp_path / path if number % 2 else f"../{path}", label) for number, (path, label) in enumerate(pairs)]
    write(Path("tables/absolute.csv"), ("path", "label"), *absolute)
    write(
        Path("tables/names.csv"),
        ("path", "label"),
        *((f"{s}.png", label) for s, label in zip(SHADES, LABELS, strict=True)),
    )
    write(
        Path("wide.csv"),
        ("photo", "kind", "age", "patient"),
        *((*pair, 3, p) for pair, p in zip(pairs, PATIENTS, strict=True)),
    )
    flags = [("red" in names, "round" in names) for names in ATTRIBUTES]
    write(
        Path("attributes.csv"),
        ("path", "red", "round"),
        *((path, *map(int, row)) for path, row in zip(paths, flags, strict=True)),
    )
    pandas.DataFrame({"path": paths, "label": LABELS}).to_parquet("labels.parquet")
    images = [Image.open(path).convert("RGB") for path in paths]
    cells = [{"bytes": encode(image), "path": None} for image in images]

    def hf_dataset(**columns):
        return hf.Dataset.from_dict({"image": cells, **columns}).cast_column("image", hf.Image())

    Path("saved").mkdir()
    hf_dataset(label=LABELS).cast_column("label", hf.ClassLabel(names=["cat", "dog"])).to_parquet(
        "saved/train-00000-of-00001.parquet"
    )
    names = {"t2v": t2v, "pandas": pandas, "paths": paths, "labels": LABELS, "images": images, "patients": PATIENTS}
    numbers = torch.tensor([int(label == "dog") for label in LABELS])
    names |= {"cats": paths[:4], "dogs": paths[4:], "array": np.stack([*map(np.asarray, images)]), "numbers": numbers}
    names |= {"attribute_lists": ATTRIBUTES, "one_hot": torch.eye(2)[numbers], "hf_dataset": hf_dataset}
    return names | {"torch_dataset": lambda targets: Pairs(zip(images, targets, strict=True))}


@pytest.mark.parametrize(("form", "code", "command"), ROWS, ids=[row[0][:60] for row in ROWS])
def test_every_row_of_the_table_is_read_as_the_same_task(material, form, code, command):
    task = eval(code.strip("`"), material)
    plain = t2v.read_folder("pets")
    name = Path(command.strip("`").split()[0]).stem if command else "pets"
    assert task.name in ((f"{name} (train)",) if "splits" in code else (name, *(() if command else ("unnamed",))))
    if task.is_multilabel:
        expected = t2v.to_task("attributes.csv")
        assert task.fingerprint == expected.fingerprint and task.classes[-2:] == ("red", "round")[-len(task.classes) :]
    else:
        assert task.fingerprint == plain.fingerprint
        assert task.classes == (("0", "1") if "numbers" in code or "one_hot" in code else plain.classes)
    if "group" in code:
        numbers = [task.images.load(row).getpixel((0, 0))[0] // 20 for row in range(len(task))]
        known = [number % 2 for number in range(len(SHADES))] if "level" in code else PATIENTS
        names = [known[number] for number in numbers]
        pairs = {(group, name) for group, name in zip(task.groups.tolist(), names, strict=True)}
        assert len(pairs) == len(set(known)) == len(set(task.groups.tolist()))
    if command:
        result = call("tasks", *shlex.split(command.strip("`")))
        assert result.exit_code == 0 and f"{len(task)} images" in result.stdout, result.output


def test_the_table_has_the_forms_that_people_have():
    assert len(ROWS) >= 29 and all(len(row) == 3 and row[0] and row[1] for row in ROWS)
