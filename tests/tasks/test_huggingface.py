"""A Hugging Face dataset becomes a task: from an object, a folder, a file or the cache, and never from the network."""

import shutil
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import Image

from task2vec import errors
from task2vec.errors import BadImagesError, DataError, UsageError
from task2vec.tasks import read_folder
from task2vec.tasks.huggingface import from_huggingface
from tests.failures import refuse
from tests.tasks.pictures import encode, make_folder, paint

hf = pytest.importorskip("datasets", reason="the datasets package is not installed: pip install 'task2vec[hf]'")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Every test has an empty cache, and no test asks for an address."""
    network = Mock(side_effect=OSError("no network in tests"))
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(socket, "getaddrinfo", network)
    monkeypatch.setattr(socket.socket, "connect", network)
    yield tmp_path / "cache"
    assert not network.called


def make_cell(shade: int) -> dict:
    return {"bytes": encode(Image.new("RGB", (6, 6), (shade, 0, 255 - shade))), "path": f"{shade}.png"}


def make_dataset(features=None, *, shades=range(4), cells=None, **columns):
    """A dataset of encoded images; one label column of two classes unless others are given."""
    columns = columns or {"label": [0, 1, 1, 0]}
    dataset = hf.Dataset.from_dict({"image": cells or [*map(make_cell, shades)], **columns})
    types = {"image": hf.Image(), **({"label": hf.ClassLabel(names=["cat", "dog"])} if "label" in columns else {})}
    for column, feature in {**types, **(features or {})}.items():
        dataset = dataset.cast_column(column, feature)
    return dataset


def save(root: Path, **splits) -> Path:
    """Parquet files as on the hub."""
    root.mkdir()
    for split, dataset in splits.items():
        dataset.to_parquet(root / f"{split}-00000-of-00001.parquet")
    return root


def fill_cache(cache: Path, folder: Path, *, config: str = "default") -> Path:
    """What `load_dataset` leaves in the cache for a dataset of the hub with the files of this folder."""
    builder = hf.load_dataset_builder(str(folder))
    builder.download_and_prepare()
    place = cache / "someone___pets" / config / "0.0.0" / ("0123456789abcdef" * 3)[:40]
    shutil.copytree(builder.cache_dir, place)
    info = (place / "dataset_info.json").read_text()
    (place / "dataset_info.json").write_text(info.replace('"config_name": "default"', f'"config_name": "{config}"'))
    return place


def test_a_dataset_becomes_a_task_whatever_its_format_and_order():
    dataset = make_dataset()
    task = from_huggingface(dataset, name="pets")
    assert (task.name, task.classes, task.targets.tolist()) == ("pets", ("cat", "dog"), [0, 1, 1, 0])
    assert (task.images.load(2).getpixel((0, 0)), task.images.name(2)) == ((2, 0, 253), "row 2 (2.png)")
    assert (task.source, task.bad, task.warnings) == ("Dataset", (), ())
    turned = from_huggingface(dataset.with_transform(lambda rows: {"image": [None], "label": [0]}))
    assert "transform was not applied" in turned.warnings[0]
    shuffled = from_huggingface(dataset.with_format("numpy").shuffle(seed=1))
    assert shuffled.fingerprint == turned.fingerprint == task.fingerprint
    assert dataset.features["image"].decode


def test_the_same_files_make_the_same_task_as_a_folder(tmp_path, capfd):
    counts = {f"{split}/{kind}": 2 for split in ("train", "test") for kind in ("cats", "dogs")}
    root = make_folder(tmp_path / "pets", **counts)
    hf.enable_progress_bars()
    capfd.readouterr()
    train = from_huggingface(root, "train")
    assert capfd.readouterr() == ("", "") and not hf.are_progress_bars_disabled()  # silent, and the setting is kept
    assert train.fingerprint == read_folder(root / "train").fingerprint
    assert train.fingerprint != read_folder(root / "test").fingerprint
    assert (train.name, train.classes, train.source) == ("pets (train)", ("cats", "dogs"), str(root))


def test_wherever_it_is_stored_it_is_the_same_task(own_cache, tmp_path):
    splits = hf.DatasetDict(train=make_dataset(), test=make_dataset(shades=range(10, 14)))
    splits.save_to_disk(tmp_path / "saved")
    pets = save(tmp_path / "pets", **splits)
    cached = fill_cache(own_cache, pets)
    tasks = {split: from_huggingface(dataset) for split, dataset in splits.items()}
    assert from_huggingface(pets / "train-00000-of-00001.parquet").fingerprint == tasks["train"].fingerprint
    for split, task in tasks.items():
        for place in (splits, str(pets), tmp_path / "saved", "someone/pets"):
            assert from_huggingface(place, split).fingerprint == task.fingerprint
    assert from_huggingface("someone/pets", "train").name == "someone/pets (train)"
    fill_cache(own_cache, pets, config="large")
    refuse(UsageError, r"multiple .* configurations.*config=", from_huggingface, "someone/pets", "train")
    assert len(from_huggingface("someone/pets", "train", config="large")) == 4
    next(cached.glob("*-test.arrow")).unlink()
    refuse(DataError, "cannot be opened", from_huggingface, "someone/pets", "train", config="default")


def test_nothing_is_fetched_without_being_asked(monkeypatch):
    refuse(errors.DatasetNotFoundError, r"'mnist' is not on this machine.*download=True", from_huggingface, "mnist")
    load = Mock(return_value=hf.DatasetDict(train=make_dataset()))
    monkeypatch.setattr(hf, "load_dataset", load)
    assert len(from_huggingface("someone/pets", "train", config="small", download=True)) == 4
    load.assert_called_once_with("someone/pets", "small")


def test_a_folder_that_points_elsewhere_is_refused(tmp_path):
    folder = save(tmp_path / "pets", train=make_dataset())
    card = "---\nconfigs:\n- config_name: default\n  data_files: {}\n---\n"
    (folder / "README.md").write_text(card.format("https://example.com/train.parquet"))
    refuse(DataError, "remote data files", from_huggingface, folder)
    save(tmp_path / "private", train=make_dataset())
    (folder / "README.md").write_text(card.format("../private/train-00000-of-00001.parquet"))
    refuse(DataError, r"outside of it|cannot be opened", from_huggingface, folder)
    (folder / "README.md").write_text("---\nlicense_link: https://example.com\n---\n")
    assert len(from_huggingface(folder)) == 4
    (folder / ".huggingface.yaml").write_text("configs: [{data_files: 'hf://datasets/a/b/x.parquet'}]")
    refuse(DataError, "remote data files", from_huggingface, folder)
    shard = tmp_path / "private" / "train-00000-of-00001.parquet"
    shard.rename(shard.with_name("train-00000-of-00003.parquet"))
    refuse(DataError, r"has 1 of 3 shards 'train-\*-of-00003", from_huggingface, tmp_path / "private")


def test_files_that_could_run_code_or_hold_no_images_are_refused(tmp_path):
    for file, text, place, message in (
        ("notes/train.txt", "nothing to see", "notes", "would be read as 'text'"),
        ("script/script.py", f"open({str(tmp_path / 'ran')!r}, 'w')", "script", "cannot be opened"),
        ("x.csv", "a,b\n", "x.csv", r"neither a folder nor a \.parquet file"),
        ("there/x.txt", "", "missing", "does not exist"),
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
        refuse((DataError, UsageError), message, from_huggingface, tmp_path / place)
    assert not (tmp_path / "ran").exists()


def test_files_named_by_a_stored_dataset_stay_in_its_folder(tmp_path):
    dataset = make_dataset(cells=[{"path": str(paint(tmp_path / "secret.png", 9)), "bytes": None}] * 4)
    assert len(from_huggingface(dataset)) == 4  # the caller's own object may refer to any local file
    save(tmp_path / "pets", train=dataset)
    refuse(BadImagesError, r"row 0 .*outside of the dataset's folder", from_huggingface, tmp_path / "pets")
    make_dataset().save_to_disk(str(tmp_path / "private"))
    make_dataset().save_to_disk(str(tmp_path / "v1.2"))
    assert from_huggingface(tmp_path / "v1.2").name == "v1.2"
    (arrow,) = (tmp_path / "v1.2").glob("*.arrow")
    state = tmp_path / "v1.2" / "state.json"
    state.write_text(state.read_text().replace(arrow.name, f"../private/{arrow.name}"))
    refuse(DataError, "data files outside of it", from_huggingface, tmp_path / "v1.2")


def test_bad_and_remote_images_are_named_by_row_and_path_and_keep_the_labels_of_others():
    cells = [*map(make_cell, range(80))]
    cells[0] = {"bytes": b"no image", "path": "broken.png"}
    cells[30] = {"bytes": cells[30]["bytes"][:40], "path": None}
    cells[50] = {"bytes": None, "path": "https://example.com/7.png"}
    cells[79] = None
    labels = [shade % 2 for shade in range(80)]
    task = from_huggingface(make_dataset(cells=cells, label=labels))
    paths = ["row 0 (broken.png)", "row 30", "row 50 (https://example.com/7.png)", "row 79"]
    assert [bad.path for bad in task.bad] == paths
    for bad, reason in zip(task.bad, ("not a JPEG", "damaged", "nothing is downloaded", "no image in"), strict=True):
        assert reason in bad.reason
    assert (len(task), task.images.name(75)) == (76, "row 78 (78.png)")
    assert all(task.images.load(row).getpixel((0, 0))[0] % 2 == task.targets[row] for row in range(76))
    cells[10] = None
    assert len(from_huggingface(make_dataset(cells=cells, label=labels), allow_bad=True)) == 75


LISTS = hf.Sequence(hf.ClassLabel(names=["red", "round", "never"]))
BOOLS = {"red": [True, False, True, False], "round": [True, True, False, False]}


def test_several_labels_come_from_lists_of_classes_or_from_flags():
    lists = from_huggingface(make_dataset({"tags": LISTS}, tags=[[0, 1], [1], [0], []]))
    assert (lists.classes, lists.is_multilabel) == (("red", "round"), True)
    assert lists.targets.tolist() == [[1, 1], [0, 1], [1, 0], [0, 0]]
    assert "attributes with one value for all images, left out: 'never'" in lists.warnings
    flags = from_huggingface(make_dataset(**BOOLS))
    assert (flags.classes, flags.fingerprint) == (("red", "round"), lists.fingerprint)
    numbers = make_dataset({name: hf.Value("int8") for name in BOOLS}, **BOOLS)
    assert from_huggingface(numbers, label_columns=["red", "round"]).fingerprint == lists.fingerprint
    wrong = make_dataset(red=[0, 1, 0, 1], round=[0, 2, 1, 1])
    refuse(DataError, r"'round', row 1: 2 is not 0 or 1", from_huggingface, wrong, label_columns=["red", "round"])


def test_one_column_may_be_named_whatever_its_type_if_its_cells_name_classes():
    for feature, values, classes, targets in (
        (hf.Value("int64"), [10, 7, 7, 9], ("7", "9", "10"), [2, 0, 0, 1]),
        (hf.Value("bool"), [True, False, False, True], ("not kind", "kind"), [1, 0, 0, 1]),
        (hf.ClassLabel(names=["x", "y", "z"]), [2, 0, 0, 2], ("x", "z"), [1, 0, 0, 1]),
    ):
        task = from_huggingface(make_dataset({"kind": feature}, kind=values), label_columns="kind")
        assert (task.classes, task.targets.tolist()) == (classes, targets)
    for feature, values, message in (
        (hf.ClassLabel(names=["a", "b"]), [0, 1, -1, 0], r"row 2: (None|-1) is not a class.*test splits"),
        (hf.Value("float32"), [0.5, 1.5, 2.5, 0.1], "row 0 holds decimal numbers.*regression is not supported"),
        (hf.Value("binary"), [b"a", b"b", b"a", b"b"], "is not a class"),
        (LISTS, [[0, 1], [1], None, [0]], "row 2: None is not a class"),
    ):
        refuse(DataError, message, from_huggingface, make_dataset({"kind": feature}, kind=values), label_columns="kind")


def test_integers_and_text_are_labels_if_they_are_called_so(tmp_path):
    for feature, values, classes in (
        (hf.Value("int64"), [10, 7, 7, 10], ("7", "10")),
        (hf.Value("string"), [*"baab"], ("a", "b")),
        (hf.Sequence(hf.Value("string")), [["b"], ["a", "b"], ["a"], []], ("a", "b")),
        (hf.Sequence(hf.Value("int64")), [[3], [3, 7], [7], []], ("3", "7")),
    ):
        task = from_huggingface(make_dataset({"label": feature}, label=values, other=[1, 2, 3, 4]))
        assert (task.classes, task.name) == (classes, "unnamed")
    several = make_dataset({"label": hf.Value("int64")}, label=[0, 1, 0, 1], target=[0, 1, 1, 0])
    refuse(UsageError, "'label'; or 'target'", from_huggingface, several)
    patients = make_dataset(patient=["p", "q", "p", "q"], label=[0, 0, 1, 1])
    assert len(set(from_huggingface(patients, group="patient").groups.tolist())) == 2
    refuse(UsageError, "no column 'site'", from_huggingface, patients, group="site")


def test_columns_are_found_by_type_and_splits_by_name_or_refused_with_the_candidates():
    two = {"fine": hf.ClassLabel(num_classes=3), "coarse": hf.ClassLabel(num_classes=2)}
    dataset = make_dataset(two, fine=[0, 1, 2, 0], coarse=[0, 0, 1, 1])
    assert from_huggingface(dataset, label_columns="coarse").targets.tolist() == [0, 0, 1, 1]
    mixed = make_dataset({"kind": hf.ClassLabel(num_classes=2)}, kind=[0, 1, 0, 1], **BOOLS)
    pairs = make_dataset({"mask": hf.Image()}, label=[0, 1, 1, 0], mask=[*map(make_cell, range(4))])
    assert len(from_huggingface(pairs, image_column="mask")) == 4
    splits = hf.DatasetDict(train=make_dataset(), test=make_dataset())
    for unclear, options, message in (
        (dataset, {}, r"'fine'; or 'coarse'.*label_columns="),
        (mixed, {}, r"'kind'; or 'red', 'round'"),
        (make_dataset(caption=[*"abcd"]), {}, r"no column is of the type ClassLabel, or.*'caption'.*label_columns="),
        (pairs, {}, r"several columns hold images \('image', 'mask'\).*image_column="),
        (make_dataset().remove_columns("image"), {}, "no column is of the type Image"),
        (make_dataset(), {"label_columns": "lable"}, r"there is no column 'lable'.*'label'"),
        (dataset, {"image_column": "fine", "label_columns": "coarse"}, "column fine' cannot be opened"),
        (pairs, {"image_column": "image", "label_columns": "mask"}, "column 'mask' is Image.*is not a class"),
        (splits, {}, r"several splits.*'train', 'test'"),
        (splits, {"split": "val"}, "no split 'val'"),
        (make_dataset(), {"split": "train"}, "has no split 'train'. Leave split out"),
        (make_dataset(), {"config": "large"}, "open already"),
        (make_dataset().to_iterable_dataset(), {}, "IterableDataset is neither.*streaming"),
    ):
        refuse((UsageError, DataError), message, from_huggingface, unclear, **options)
