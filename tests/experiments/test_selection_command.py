"""`python -m experiments. tables`, `violins`, `norms`, `curves`, `matrix` and `all`, on a small meta-task."""

import json

import pytest

from experiments import selection_probes, selection_table
from tests.experiments.selection_world import make_world

FEW = ("--engine", "serial", "--strategy", "static", "--strategy", "generic", "--strategy", "asymmetric")
STEMS = ("norms", "violins_taxa", "violins_labels", "matrix_taxa", "matrix_labels", "curves", "table1", "table2")


@pytest.fixture(scope="module", autouse=True)
def hurry():
    """Few samples for the intervals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection_table, "RESAMPLES", 200)
        patch.setattr(selection_probes, "RESAMPLES", 200)
        yield


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_world().save(tmp_path_factory.mktemp("bundle") / "small.safetensors")


def test_all_of_them_at_once(call, bundle, tmp_path):
    result = call("all", "--bundle", bundle, "--out", tmp_path / "new" / "folder", "--json", *FEW)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    made = {path.rsplit("/", 1)[1] for path in report["files"]}
    assert made >= {f"{stem}.{suffix}" for stem in STEMS for suffix in ("png", "pdf", "csv", "json")}
    assert made >= {"table1.md", "table2.md", "claims.md", "claims.csv"} and len(report["tables"]) == 2
    assert all((tmp_path / "new" / "folder" / name).stat().st_size > 0 for name in made)
    assert {claim["property"] for claim in report["claims"]} >= {"norms", "violins", "matrix", "curves", "table 1"}
    assert report["missing"] == [] and report["metatask"] == "small"
    assert "Table 1: taxa, half of the images" in result.stderr


def test_tables_are_printed_as_markdown(call, bundle, tmp_path):
    result = call("tables", "--bundle", bundle, "--out", tmp_path, *FEW)
    assert result.exit_code == 0, result.stderr
    assert "|  | taxa, half of the images |" in result.stdout and "| static | " in result.stdout
    assert "claim" in result.stdout and str(tmp_path / "table2.csv") in result.stdout
    assert "| kernel" not in result.stdout


def test_a_single_figure(call, bundle, tmp_path):
    result = call("norms", "--bundle", bundle, "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {f"norms.{suffix}" for suffix in ("png", "pdf", "csv", "json")}
    assert "taxa: " in result.stdout


def test_curves_that_are_missing_are_told(call, tmp_path):
    bare = make_world(has_curves=False).save(tmp_path / "bare.safetensors")
    result = call("curves", "--bundle", bare, "--out", tmp_path)
    assert result.exit_code == 0 and "--curves FILE.csv" in result.stdout.replace("\n", " ")
    assert not list(tmp_path.glob("curves*"))


def test_what_is_no_meta_task_is_refused(call, tmp_path):
    (tmp_path / "else").write_bytes(b"else")
    result = call("norms", "--bundle", tmp_path / "else", "--out", tmp_path)
    assert result.exit_code == 3 and "not a measured meta-task" in result.stderr
    result = call("tables", "--strategy", "luck", "--out", tmp_path)
    assert result.exit_code == 2 and "no strategy called 'luck'" in result.stderr
