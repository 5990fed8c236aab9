"""`task2vec diversity`, with a tiny network so that the suite stays quick."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

import task2vec
from task2vec import EmbedSettings, distance, embed_batches, read_folder
from tests.tiny_probe import make_tiny

SMALL = ("--classes", "2", "--per-class", "2", "--images", "6", "--l2", "0.01", "--device", "cpu")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(task2vec, "load_probe", lambda *args, **options: make_tiny())


def write(folder, *, seed, classes=3, images=12):
    rng = np.random.default_rng(seed)
    for name in range(classes):
        (folder / f"class {name}").mkdir(parents=True)
        for index in range(images):
            pixels = rng.normal(60 + 60 * name, 30, (32, 32, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class {name}" / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("collections")
    return write(place / "one", seed=0), write(place / "other", seed=1)


def test_one_collection_is_what_python_finds(call, folders):
    result = call("diversity", folders[0], "--json", "--seed", 3, *SMALL)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    settings = EmbedSettings(max_samples=6, l2=0.01, seed=3)
    task = read_folder(folders[0])
    made = embed_batches(task, make_tiny(), classes=2, images=2, seed=3, settings=settings, device="cpu")
    wanted = distance.diversity(*made, device="cpu")
    row = report["collections"][0]
    assert row["coefficient"]["value"] == pytest.approx(wanted.coefficient.value, rel=1e-6)
    assert row["excess"]["stderr"] == pytest.approx(wanted.excess.stderr, rel=1e-6)
    assert row["batches"] == wanted.batches >= 3 and report["cross"] is None
    assert report["batch"] == {"classes": 2, "images_of_each": 2} and report["kind"] == "symmetric"


def test_two_collections_are_printed_side_by_side(call, folders):
    result = call("diversity", *folders, "--kind", "cosine", *SMALL)
    assert result.exit_code == 0, result.stderr
    assert "the one and the other" in result.stdout and "alignment" in result.stdout
    assert str(folders[1]) in result.stdout and result.stdout.count("±") >= 10
    assert "cosine distance" in result.stdout


def test_images_of_both_are_told(call, folders, tmp_path):
    mixed = write(tmp_path / "mixed", seed=2)
    for index in range(2):
        shutil.copy(folders[0] / "class 0" / f"{index}.png", mixed / "class 0" / f"copy{index}.png")
    result = call("diversity", folders[0], mixed, *SMALL)
    assert result.exit_code == 0 and "warning: 2 images are in both collections" in result.stderr


def test_what_cannot_be_measured_is_refused(call, folders, tmp_path):
    result = call("diversity", tmp_path / "none")
    assert result.exit_code == 2 and "is not there" in result.stderr
    result = call("diversity", folders[0], folders[0], *SMALL)
    assert result.exit_code == 2 and "compared with itself" in result.stderr
    result = call("diversity", folders[0], "--classes", 9)
    assert result.exit_code == 2 and "Ask for 2 to 3" in result.stderr
    result = call("diversity", folders[0], "--classes", 2, "--per-class", 50)
    assert result.exit_code == 3 and "enough for 0 batches" in result.stderr
    result = call("diversity", folders[0], "--all-classes", "--per-class", 5, *SMALL[4:])
    assert result.exit_code == 2 and "would not tell how diverse" in result.stderr
    assert "embedding" not in result.stderr
