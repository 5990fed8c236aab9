"""`task2vec embed`: what it writes, says and refuses."""

import csv
import json
import shutil

import pytest

import task2vec
from task2vec.distance.noise import find_floor
from tests.command import SMALL


def test_it_writes_an_embedding_that_loads(embedded):
    embedding = task2vec.load_embedding(embedded)
    assert embedding.task == "photos"
    assert embedding.provenance["counts"]["images"] == 16


def test_it_says_what_it_did(call, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("embed", photos, "--no-library", *SMALL)
    assert result.exit_code == 0, result.stderr
    for words in (
        "16 images",
        "2 classes",
        "cross-validated error",
        "norm",
        "relative error",
        "photos.t2v.safetensors",
    ):
        assert words in result.stdout
    assert (tmp_path / "photos.t2v.safetensors").exists()


def test_json_is_one_document_and_nothing_else(call, photos, tmp_path):
    result = call("embed", photos, "--out", tmp_path / "a.t2v.safetensors", "--json", "--seed", 3, *SMALL)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["counts"]["classes"] == 2
    assert report["settings"]["seed"] == 3
    assert report["bad"] == []
    assert report["norm"] > 0
    assert report["written"].endswith("a.t2v.safetensors")


def test_the_same_again_is_fine_and_something_else_is_refused(call, photos, embedded, tmp_path):
    place = tmp_path / "copy.t2v.safetensors"
    shutil.copy(embedded, place)
    before = place.read_bytes()
    assert call("embed", photos, "--out", place, *SMALL).exit_code == 0
    assert place.read_bytes() == before
    refused = call("embed", photos, "--out", place, *SMALL, "--seed", "7")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr and "settings" in refused.stderr
    other_size = call("embed", photos, "--out", place, "--size", "40", "--images", "6")
    assert other_size.exit_code == 2 and "probe" in other_size.stderr
    assert place.read_bytes() == before
    assert call("embed", photos, "--out", place, *SMALL, "--seed", "7", "--force").exit_code == 0
    assert place.read_bytes() != before


def test_a_file_that_is_no_embedding_is_not_overwritten(call, photos, tmp_path):
    place = tmp_path / "thesis.txt"
    place.write_text("three years of work")
    result = call("embed", photos, "--out", place, *SMALL)
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert place.read_text() == "three years of work"


def test_bad_images_are_named(call, photos, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(photos, folder)
    (folder / "dark" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    stopped = call("embed", folder, "--out", tmp_path / "x.t2v.safetensors", *SMALL)
    assert stopped.exit_code == 3
    assert "torn.png" in stopped.stderr and "--allow-bad" in stopped.stderr
    assert not (tmp_path / "x.t2v.safetensors").exists()
    allowed = call("embed", folder, "--out", tmp_path / "x.t2v.safetensors", "--allow-bad", "--json", *SMALL)
    assert allowed.exit_code == 0, allowed.stderr
    report = json.loads(allowed.stdout)
    assert [bad["path"].endswith("torn.png") for bad in report["bad"]] == [True]
    assert report["counts"]["images"] == 16 and report["counts"]["bad"] == 1


@pytest.mark.parametrize(("columns", "labels"), [(["kind"], 2), (["is_dark", "is_even"], 2)], ids=["one", "several"])
def test_a_table_with_its_columns(call, photos, tmp_path, columns, labels):
    files = sorted(photos.rglob("*.png"))
    with open(tmp_path / "table.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "kind", "is_dark", "is_even"])
        for index, image in enumerate(files):
            kind = image.parent.name
            writer.writerow([image.relative_to(photos), kind, int(kind == "dark"), index % 2])
    options = [part for column in columns for part in ("--label-column", column)]
    out = tmp_path / "table.t2v.safetensors"
    args = ("--path-column", "file", "--root", photos, "--out", out, "--json", *SMALL)
    result = call("embed", tmp_path / "table.csv", *options, *args)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["counts"]["classes"] == labels


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["missing"], 2, "'missing' is not there"),
        (["empty"], 3, "empty"),
        (["lonely"], 3, "class"),
        (["note.txt"], 2, "neither a folder nor a table"),
        (["lonely", "--label-column", "x"], 2, "--label-column"),
        (["lonely", "--fisher", "slow"], 2, "slow"),
        (["lonely", "--nonsense"], 2, "nonsense"),
        ([], 2, "PATH"),
    ],
)
def test_mistakes_have_their_exit_codes(call, photos, tmp_path, monkeypatch, args, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    shutil.copytree(photos / "dark", tmp_path / "lonely" / "dark")
    (tmp_path / "note.txt").write_text("hello")
    result = call("embed", *args)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--probe", "resnet_thirty_four"], 2, "resnet_thirty_four"),
        (["--weights", "missing.safetensors"], None, "missing.safetensors"),
        (["--images", "0"], 2, "0"),
    ],
)
def test_wrong_settings_have_their_exit_codes(call, photos, tmp_path, monkeypatch, args, code, words):
    monkeypatch.chdir(tmp_path)
    result = call("embed", photos, *args)
    assert result.exit_code == code if code else result.exit_code in (2, 3, 5), result.stderr
    assert words in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_names_from_strangers_are_shown_as_text(call, photos, tmp_path):
    folder = tmp_path / "[red]evil\x1b[31m"
    shutil.copytree(photos, folder)
    (folder / "dark" / "a\x1b[2J.png").write_bytes(b"")
    out = tmp_path / "x.t2v.safetensors"
    result = call("embed", folder, "--out", out, "--allow-bad", *SMALL)
    assert result.exit_code == 0, result.stderr
    assert "[red]evil\\x1b[31m" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    assert "a\\x1b[2J.png" in result.stderr


def test_halves_are_embedded_if_asked_for(call, photos, embedded, tmp_path):
    place = tmp_path / "halved.t2v.safetensors"
    result = call("embed", photos, "--out", place, "--halves", *SMALL)
    assert result.exit_code == 0, result.stderr
    whole, halved = task2vec.load_embedding(embedded), task2vec.load_embedding(place)
    assert whole.halves is None and halved.halves.shape == (2, len(halved))
    assert (whole.fisher == halved.fisher).all()
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("noise floor"))
    assert line.split()[2].rstrip(",") == f"{find_floor(halved):.3f}"
    assert "two such embeddings of this task" in line and "or more" not in line and "--halves" not in line
    refused = call("embed", photos, "--out", place, *SMALL)
    assert refused.exit_code == 2 and "other settings" in refused.stderr


def test_json_tells_the_noise(call, photos, tmp_path):
    for options, basis in (((), "stderr"), (("--halves",), "halves")):
        place = tmp_path / f"{basis}.t2v.safetensors"
        report = json.loads(call("embed", photos, "--out", place, "--json", *options, *SMALL).stdout)
        assert report["settings"]["halves"] == (basis == "halves")
        assert report["noise"] == {"floor": find_floor(task2vec.load_embedding(place)), "basis": basis}
        assert 0 < report["noise"]["floor"] < 1


def test_a_task_that_cannot_be_halved_is_refused(call, photos, tmp_path):
    for name in ("dark", "bright"):
        (tmp_path / "few" / name).mkdir(parents=True)
        shutil.copy(photos / name / "0.png", tmp_path / "few" / name)
    result = call("embed", tmp_path / "few", "--out", tmp_path / "x", "--halves", *SMALL)
    assert result.exit_code == 3
    assert "'few' cannot be split" in result.stderr and "--halves" in result.stderr
    assert not (tmp_path / "x").exists()


def test_a_split_of_a_folder_is_read(call, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "pets" / "train")
    shutil.copytree(photos, tmp_path / "pets" / "val")
    place = tmp_path / "a.t2v.safetensors"
    result = call("embed", tmp_path / "pets", "--split", "train", "--out", place, *SMALL)
    assert result.exit_code == 0, result.stderr
    assert task2vec.load_embedding(place).task == "pets (train)"
    unsaid = call("embed", tmp_path / "pets", *SMALL)
    assert unsaid.exit_code == 3 and "split='train'" in " ".join(unsaid.stderr.split())
    absent = call("embed", tmp_path / "pets", "--split", "dev", *SMALL)
    assert absent.exit_code == 2 and "no split 'dev'" in absent.stderr
