"""Whatever labelled images come in becomes a task, in every public function that takes one."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import task2vec as t2v
from task2vec.errors import DataError, UsageError
from task2vec.tasks import read_folder, to_task
from tests.failures import refuse
from tests.tasks.pictures import make_folder
from tests.tiny_probe import make_tiny

SMALL = t2v.EmbedSettings(max_samples=4, l2=0.01)


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "pets", cats=3, dogs=4)


def list_files(folder):
    """Paths and class names of the images."""
    paths = sorted(folder.glob("*/*.png"))
    return [str(path) for path in paths], [path.parent.name for path in paths]


def test_every_form_is_the_same_task_and_says_what_it_was_read_as(folder, tmp_path):
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    torchvision = pytest.importorskip("torchvision")
    paths, labels = list_files(folder)
    numbers, images = [int(label == "dogs") for label in labels], [np.asarray(Image.open(path)) for path in paths]
    rows = [f"{path};{label}" for path, label in zip(paths, labels, strict=True)]
    (tmp_path / "pets.csv").write_text("\n".join(["Dateiname;Klasse", *rows]))
    made = datasets.Dataset.from_dict({"image": paths, "label": numbers}).cast_column("image", datasets.Image())
    made = made.cast_column("label", datasets.ClassLabel(names=["cats", "dogs"]))
    made.save_to_disk(tmp_path / "saved")
    for source, words in (
        (str(folder), "a folder"),
        (folder, "a folder"),
        (tmp_path / "pets.csv", "a table"),
        (pandas.DataFrame({"file_name": paths, "Klasse": pandas.Categorical(labels)}), "a table (DataFrame)"),
        ({"path": paths, "label": labels}, "a table (dict)"),
        (made, "a Hugging Face Dataset"),
        (tmp_path / "saved", "a Hugging Face dataset"),
        (torchvision.datasets.ImageFolder(folder), "a dataset of images and labels (ImageFolder)"),
        ((paths, labels), "a list of paths and labels"),
        ([*zip(paths, labels, strict=True)], "a list of paths and labels"),
        ((images, labels), "a list of images and labels"),
        ((np.stack(images), np.array(numbers)), "a list of images and labels"),
    ):
        task = to_task(source)
        assert task.fingerprint == read_folder(folder).fingerprint
        assert task.notes[0] == f"read as {words}" and str(tmp_path) not in "".join(task.notes)
        assert to_task(task) is task


def test_rows_of_labels_are_attributes(folder):
    paths, _ = list_files(folder)
    rows = [[number % 2, number < 3] for number in range(len(paths))]
    images = [np.asarray(Image.open(path)) for path in paths]
    made = [*map(to_task, ((paths, np.array(rows)), (images, rows), [*zip(paths, rows, strict=True)]))]
    assert all(task.is_multilabel for task in made) and len({task.fingerprint for task in made}) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (3, "a int holds no labelled images"),
        ("nowhere", "nowhere does not exist"),
        (["a.png", "b.png"], "images have no labels.*embed_many"),
        ([], "a list of 0"),
        ((["a.png"], ["x", "y"]), "1 images and 2 labels"),
        ("x.safetensors", r"load_embedding\('x.safetensors'\)"),
    ],
)
def test_what_is_no_task_is_named_with_what_is(tmp_path, source, words):
    refuse((UsageError, DataError), words, to_task, source)
    (tmp_path / "image_class_labels.txt").write_text("1 1")
    refuse(UsageError, r"is cub200, a dataset of many tasks.*read_catalog\(.*\)\.task\(NAME\)", to_task, tmp_path)


def test_every_public_function_that_takes_a_task_takes_a_folder(folder, tmp_path):
    probe, task, place = make_tiny(), read_folder(folder), str(folder)
    vector = t2v.embed(task, probe, settings=SMALL).vector
    made = t2v.embed(place, probe, settings=SMALL)
    assert np.array_equal(made.vector, vector) and made.task == "pets"
    assert made.provenance["warnings"][0] == "read as a folder"
    for tasks in (place, [list_files(folder)], iter([folder])):
        (result,) = t2v.embed_many(tasks, probe, settings=SMALL)
        assert np.allclose(result.embedding.vector, vector)
    assert np.array_equal(t2v.embed_domain(place, probe).mean, t2v.embed_domain(task, probe).mean)
    how = {"batches": 1, "classes": 2, "images": 1, "settings": SMALL}
    (one,), (other,) = (t2v.embed_batches(source, probe, **how)[0] for source in (place, task))
    assert np.array_equal(one.vector, other.vector)
    assert t2v.linear_error(probe, place)[0].error == t2v.linear_error(probe, task)[0].error
    matrix = t2v.error_matrix(place, [probe], trained_on={"tiny": place})
    assert matrix.tasks[0].fingerprint == task.fingerprint and not matrix.failures
    brief = t2v.Recipe("brief", epochs=1, draws=8, batch=4)
    assert t2v.train_expert(place, probe, brief).name == "pets"
    (expert,) = t2v.train_experts([place], probe, brief, folder=tmp_path / "experts")
    assert expert.error is None
    assert t2v.join_tasks([place, task], merge_classes=True).fingerprint == task.fingerprint


@pytest.mark.parametrize("labels", ["names", "numbers", "tensors", "one-hot", "float one-hot", "indices in tensors"])
def test_targets_of_a_torch_dataset_are_classes_in_any_form(folder, labels):
    torch = pytest.importorskip("torch")
    paths, names = list_files(folder)
    numbers = [2 * (name == "dogs") for name in names]
    forms = {"names": names, "numbers": numbers, "tensors": torch.tensor(numbers)}
    forms |= {"one-hot": torch.eye(3)[numbers].int(), "float one-hot": torch.eye(3)[numbers]}
    forms |= {"indices in tensors": torch.tensor(numbers)[:, None]}
    images = [np.asarray(Image.open(path)) for path in paths]
    task = to_task(Pets(zip(images, forms[labels], strict=True)))
    assert task.fingerprint == read_folder(folder).fingerprint and task.name == "unnamed"
    assert task.classes == (("cats", "dogs") if labels == "names" else ("0", "2"))
    named = t2v.from_dataset(Pets(zip(images, names, strict=True)), classes=["dogs", "cats", "owls"])
    assert named.classes == ("dogs", "cats") and "'owls'" in named.notes[0]
    refuse(
        DataError,
        "none of the classes: 'dogs'",
        t2v.from_dataset,
        Pets(zip(images, names, strict=True)),
        classes=["cats"],
    )


class Pets(list):
    """A dataset of pairs, as torch has them."""


def test_rows_in_memory_are_a_table(folder, monkeypatch):
    monkeypatch.chdir(folder)
    paths, labels = list_files(folder)
    rows = [{"image": np.asarray(Image.open(path)), "label": label} for path, label in zip(paths, labels, strict=True)]
    assert to_task(rows).fingerprint == to_task({"cats": paths[:3], "dogs": paths[3:]}).fingerprint
    assert to_task((paths, labels)).name == to_task({"path": paths, "label": labels}).name == "pets"
    data = [{"bytes": Path(path).read_bytes(), "path": None} for path in paths]
    task = to_task({"image": data, "label": labels}, name="mine")
    assert (task.fingerprint, task.name) == (read_folder(folder).fingerprint, "mine")
    data[1] = {"bytes": b"no image"}
    assert [bad.path for bad in to_task({"image": data, "label": labels}).bad] == ["item 1"]
    refuse(
        DataError, "'https://a/b.png' is a URL, as 2 of 2", to_task, {"path": ["https://a/b.png"] * 2, "label": [1, 2]}
    )
    refuse(
        DataError, r"the table, row 3, column 'label': 'b' is not a list", to_task, (paths, [["a"], ["b"], *"bbbbb"])
    )
    refuse(DataError, "only one class .'cat'", to_task, {"cat": paths})
    refuse(UsageError, "2 groups for 7 items", t2v.from_dataset, [(row["image"], 0) for row in rows], groups=[1, 2])
