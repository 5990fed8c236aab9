"""`python -m experiments. taxonomy`, with a tiny network so that the suite stays quick."""

import csv
import json
import sys
from dataclasses import replace

import pytest

import task2vec as t2v
from experiments.commands import taxonomy
from tests.experiments.test_taxonomy import write_collection
from tests.tiny_probe import make_tiny

SMALL = ("--quick", "--images", "4", "--device", "cpu", "--permutations", "99", "--l2", "0.01")
FIGURES = ("tree", "neighbourhoods", "norm_error", "maps", "attributes")
TABLES = ("tasks", "distances", "measures", "attribute_distances", "questions", "claims")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_collection(tmp_path_factory.mktemp("life"), per_class=12)


def hurry(patch):
    """A tiny probe and few painted images."""
    patch.setattr(t2v, "load_probe", lambda *args, **kwargs: make_tiny())
    patch.setattr(taxonomy, "QUICK", replace(taxonomy.QUICK, painted=12))


@pytest.fixture
def tiny(monkeypatch):
    hurry(monkeypatch)


@pytest.fixture(scope="module")
def made(folder, tmp_path_factory, call):
    """The folder and the printed report of a run with data."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        result = call("--data", folder, "--out", out, "--json", *SMALL)
    assert result.exit_code == 0, result.stderr
    return out, json.loads(result.stdout), result.stderr


def read(place):
    with place.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_figures_numbers_and_json(made):
    out, report, steps = made
    assert (report["tasks"], report["found"], report["missing"]) == (5, 0, [])  # three of five birds, two dogs
    for name in FIGURES:
        for suffix in ("png", "pdf", "csv"):
            assert (out / f"{name}.{suffix}").stat().st_size > 100
            assert str(out / f"{name}.{suffix}") in report["files"]
    for name in TABLES:
        assert read(out / f"{name}.csv")
    assert (out / "map.html").stat().st_size > 1000
    assert {claim["property"] for claim in report["claims"]} == {"taxonomy", "neighbours", "norm_error", "attributes"}
    assert [row["verdict"] for row in read(out / "claims.csv")] == [claim["verdict"] for claim in report["claims"]]
    assert len(read(out / "distances.csv")) == 10
    assert {row["family"] for row in read(out / "attributes.csv")} == {"cub200", "painted"}
    assert "no questions about dogs: too few of its taxa have enough images" in steps
    assert f"0 of {report['embeddings']} embeddings were found" in steps


def test_a_second_run_draws_only_and_says_so(call, made, folder, tiny, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("something was embedded again")

    out, report, _ = made
    before = (out / "measures.csv").read_text()
    monkeypatch.setattr(t2v, "embed_many", refuse)
    monkeypatch.setattr(t2v, "embed_domain", refuse)
    monkeypatch.setenv("COLUMNS", "80")
    result = call("--data", folder, "--out", out, *SMALL)
    assert result.exit_code == 0, result.stderr
    assert f"({report['embeddings']} embeddings, {report['embeddings']} of them found" in result.stdout
    assert (out / "measures.csv").read_text() == before
    page = [line for line in result.stdout.splitlines() if str(out) not in line]
    assert max(map(len, page)) <= 80


def test_without_the_library_of_maps_all_else_is_drawn(call, folder, made, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("task2vec.plots.layout.FEWEST_FOR_TSNE", 2)
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    (tmp_path / "embeddings.safetensors").write_bytes((made[0] / "embeddings.safetensors").read_bytes())
    result = call("--data", folder, "--out", tmp_path, *SMALL)
    assert result.exit_code == 0, result.stderr
    words = " ".join(result.stdout.split())
    assert (
        "The maps are missing" in words and "pip install 'task2vec[map]'" in words and "run the same command" in words
    )
    assert (tmp_path / "tree.png").exists() and not (tmp_path / "maps.png").exists()


def test_without_data_the_painted_questions_are_asked_and_the_rest_is_missing(call, tiny, tmp_path):
    result = call("--out", tmp_path, "--method", "robust", "--json", *SMALL)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["tasks"], report["embeddings"]) == (0, 12 + 4)
    assert "tasks.csv" in report["missing"][0] and "taxonomy.csv" in report["missing"][0]
    assert {row["family"] for row in read(tmp_path / "attributes.csv")} == {"painted"}
    assert not (tmp_path / "tree.png").exists()
    assert [path.name for path in (tmp_path / "embeddings").iterdir()] == ["robust"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--size", "0"), "--size 0"),
        (("--seed", "-1"), "--seed -1"),
        (("--permutations", "9"), "--permutations 9"),
        (("--images", "1"), "at least 2"),
        (("--epochs", "0"), "epochs=0"),
        (("--l2", "0"), "l2=0.0"),
        (("--data", "nowhere"), "not there"),
        (("--data", "."), "no tasks.csv"),
        (("--device", "abacus"), "abacus"),
        (("--method", "magic"), "magic"),
        (("--probe", "no_such_probe"), "no_such_probe"),
    ],
)
def test_bad_arguments_end_before_any_work(call, tmp_path, monkeypatch, options, words):
    def refuse(*args, **kwargs):
        raise AssertionError("work was begun")

    monkeypatch.setattr(t2v, "embed_many", refuse)
    monkeypatch.setattr(taxonomy, "_ask", refuse)
    monkeypatch.chdir(tmp_path)
    result = call("--out", tmp_path / "out", *options)
    assert result.exit_code == 2, result.stderr
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_torn_tree_is_found_before_any_embedding(call, tiny, tmp_path, monkeypatch):
    root = write_collection(tmp_path / "life")
    table = root / "cub200" / "taxonomy.csv"
    table.write_text(table.read_text() + "A1-0,B,A1\n")
    monkeypatch.setattr(t2v, "embed_many", lambda *args, **kwargs: pytest.fail("an embedding was begun"))
    result = call("--data", root, "--out", tmp_path / "out", *SMALL)
    assert result.exit_code == 3
    assert "two places" in result.stderr
