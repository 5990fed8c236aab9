"""`python -m experiments.properties`, with a handful of tiny tasks so that the suite stays quick."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

import task2vec as t2v
from experiments import collection as collection_module
from experiments.commands import properties

SMALL = ("--quick", "--size", "32", "--images", "2", "--device", "cpu")
FIGURES = ("norm_error", "labels", "classes", "sample_size")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five tasks of three shades, from far apart to hardly so; one of them has a name that is meant to be a formula."""
    root = tmp_path_factory.mktemp("collection")
    rng = np.random.default_rng(0)
    for number, name in enumerate(("=far", "apart", "mid", "near", "hardly")):
        for kind in range(3):
            (root / name / str(kind)).mkdir(parents=True)
            for index in range(4):
                pixels = rng.normal(128 + (60 - 14 * number) * (kind - 1), 30, (24, 24, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / name / str(kind) / f"{index}.png")
    return root


@pytest.fixture
def small_samples(monkeypatch, folder):
    """The tasks of the package, replaced by quicker ones."""
    monkeypatch.setattr(
        collection_module, "sample_collection", lambda **options: collection_module.read_collection(folder)
    )


def read(place):
    with place.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_claims(folder):
    """The claims of a table, a quote before a leading sign taken away."""
    return [{key: cell.removeprefix("'") for key, cell in row.items()} for row in read(folder / "claims.csv")]


def test_figures_numbers_and_json(call, folder, tmp_path):
    result = call("--data", folder, "--out", tmp_path / "new", "--json", "--task", "mid", *SMALL)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["tasks"] == 5
    assert report["missing"] is None
    for name in FIGURES:
        for suffix in ("png", "pdf", "csv"):
            assert str(tmp_path / "new" / f"{name}.{suffix}") in report["files"]
            assert (tmp_path / "new" / f"{name}.{suffix}").stat().st_size > 100
    assert {claim["property"] for claim in report["claims"]} == set(FIGURES)
    assert report["claims"] == read_claims(tmp_path / "new")
    assert [row["task"] for row in read(tmp_path / "new" / "norm_error.csv")] == [
        "'=far", "apart", "hardly", "mid", "near",
    ]  # fmt: skip
    assert {row["task"] for row in read(tmp_path / "new" / "sample_size.csv")} == {"mid"}
    steps = result.stderr.splitlines()
    assert "reading hardly" in steps
    assert "relabelled: mid" in steps


def test_without_data_it_says_what_is_missing_on_a_page_of_80_columns(call, small_samples, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = call("--out", tmp_path, *SMALL)
    assert result.exit_code == 0, result.stderr
    assert "real images are missing" in " ".join(result.stdout.split())
    assert "python -m experiments.properties --data DIR" in " ".join(result.stdout.split())
    page = [line for line in result.stdout.splitlines() if str(tmp_path) not in line]
    assert max(map(len, page)) <= 80
    for claim in read_claims(tmp_path):
        assert any(line.split() == f"{claim['claim']} {claim['measured']} {claim['verdict']}".split() for line in page)
    assert str(tmp_path / "sample_size.png") in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--repeats", "1"), "no error bars"),
        (("--size", "0"), "--size 0"),
        (("--seed", "-1"), "--seed -1"),
        (("--images", "1"), "at least 2"),
        (("--data", "nowhere"), "not there"),
        (("--device", "abacus"), "abacus"),
        (("--method", "magic"), "magic"),
        (("--probe", "no_such_probe"), "no_such_probe"),
    ],
)
def test_bad_arguments_end_before_any_work(call, tmp_path, monkeypatch, options, words):
    def refuse(*args, **kwargs):
        raise AssertionError("work was begun")

    monkeypatch.setattr(t2v, "embed", refuse)
    monkeypatch.setattr(properties, "_gather", refuse)
    result = call("--out", tmp_path / "out", *options)
    assert result.exit_code == 2, result.stderr
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_task_that_is_not_there_ends_before_any_embedding(call, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(t2v, "embed", lambda *args, **kwargs: pytest.fail("an embedding was begun"))
    result = call("--data", folder, "--out", tmp_path, "--task", "cats", *SMALL)
    assert result.exit_code == 2
    assert "'cats'" in result.stderr and "apart" in result.stderr


def test_drawing_is_asked_for_before_the_work(call, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(t2v, "embed", lambda *args, **kwargs: pytest.fail("an embedding was begun"))
    result = call("--out", tmp_path)
    assert result.exit_code == 5
    assert "pip install 'task2vec[plot]'" in result.stderr
