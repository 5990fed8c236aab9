"""`task2vec evaluate`: the tables that it takes, what it prints, and what it refuses."""

import csv
import json

import numpy as np
import pytest

from task2vec.cli import evaluate as command
from task2vec.experts.metatask import MetaTask
from task2vec.library import Expert, Library, MeasuredError
from tests.library.making import fingerprint_of, make
from tests.select.test_sources import make_measured


@pytest.fixture
def errors(tmp_path):
    """Six tasks of two datasets on four experts, and distances."""
    rng = np.random.default_rng(0)
    rows = ["task,dataset,generic,a,b,c"]
    rows += [f"t{i},d{i % 2}," + ",".join(f"{e:.3f}" for e in rng.uniform(0.1, 0.6, 4)) for i in range(6)]
    path = tmp_path / "errors.csv"
    path.write_text("\n".join(rows))
    apart = np.abs(np.subtract.outer(np.arange(6), np.arange(6))) / 10
    lines = ["task,t0,t1,t2,t3,t4,t5"] + [f"t{i}," + ",".join(map(str, row)) for i, row in enumerate(apart)]
    (tmp_path / "distances.csv").write_text("\n".join(lines))
    return path


def test_tables_of_ones_own_are_evaluated(call, errors, tmp_path):
    out = tmp_path / "rows.csv"
    result = call("evaluate", "--errors", errors, "--distances", tmp_path / "distances.csv", "--csv", out)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["strategy", "error", "%"]
    names = [line.split("  ")[0] for line in lines[1 : lines.index("")]]
    known = ["chance", "generic", "static", "kernel symmetric", "kernel dataset"]
    assert [name for name in names if not name.startswith("combined")] == known
    assert "6 tasks, each task left out in turn." in result.stdout and "strategies, 'size' and others" in result.stdout
    with out.open(newline="") as file:
        assert [row["strategy"] for row in csv.DictReader(file)] == names
    again = ("evaluate", "--errors", errors, "--strategy", "static", "--csv", out)
    refused = call(*again)
    assert refused.exit_code == 2 and "--force" in refused.stderr and len(out.read_text().splitlines()) > 2
    assert call(*again, "--force").exit_code == 0 and len(out.read_text().splitlines()) == 2


def test_one_json_document(call, errors):
    result = call("evaluate", "--errors", errors, "--strategy", "chance", "--leave", "dataset", "--json")
    told = json.loads(result.stdout)
    assert told["leave"] == "dataset" and [row["strategy"] for row in told["rows"]] == ["static", "chance"]
    assert told["optimum"] is None and len(told["choices"]["static"]) == 6


def test_a_library_is_evaluated(call, tmp_path):
    with Library.open(tmp_path / "library") as library:
        for seed in range(3):
            library.add(make(f"task {seed}", seed))
        for name in ("one", "two"):
            library.add(Expert(name, "timm", name))
            for seed in range(3):
                library.add(MeasuredError(fingerprint_of(seed), name, 0.1 * (seed + len(name)), "p", 0))
    result = call("evaluate", "--library", tmp_path / "library", "--strategy", "kernel symmetric")
    assert result.exit_code == 0, result.stderr
    assert "kernel symmetric" in result.stdout and "3 tasks" in result.stdout
    empty = call("evaluate", "--library", tmp_path / "nowhere")
    assert empty.exit_code != 0 and "task2vec" in empty.stderr


def test_what_ships_is_taken_by_family_and_a_family_of_one_dataset_learns_from_the_others(call, monkeypatch):
    import task2vec.experts.metatask as measured
    import task2vec.select.evidence.sources as sources

    monkeypatch.setattr(measured, "bundled_metatask", make_measured)
    monkeypatch.setattr(sources, "from_measured", lambda one, key, **how: MetaTask(one, key, **{**how, "probe": "net"}))
    result = call("evaluate", "--family", "labels", "--leave", "dataset", "--strategy", "chance", "--protocol", "5")
    assert result.exit_code == 0, result.stderr
    assert "all tasks of 'labels' are of one dataset" in result.stderr and "1 task, each dataset" in result.stdout
    whole = call("evaluate", "--strategy", "chance", "--json")
    assert len(json.loads(whole.stdout)["tasks"]) == 3
    assert command.evaluate.__doc__


@pytest.mark.parametrize(
    ("options", "code", "match"),
    [
        (("--errors", "ERRORS", "--library", "x"), 2, "Give one of them"),
        (("--distances", "x.csv"), 2, "--errors CSV"),
        (("--errors", "ERRORS", "--family", "taxa"), 2, "Leave it out"),
        (("--errors", "nowhere.csv"), 3, "cannot be read as a table"),
        (("--errors", "ERRORS", "--strategy", "oracle"), 2, "no strategy called 'oracle'"),
        (("--errors", "ERRORS", "--csv", "nowhere/rows.csv", "--strategy", "static"), 5, "'nowhere' is not a folder"),
    ],
)
def test_what_cannot_be_meant_is_refused(call, errors, options, code, match):
    result = call("evaluate", *(errors if option == "ERRORS" else option for option in options))
    assert result.exit_code == code and match in result.stderr


def test_narrow_pages_keep_the_words_that_matter(call, errors, monkeypatch):
    for width in (80, 40):
        monkeypatch.setenv("COLUMNS", str(width))
        result = call("evaluate", "--errors", errors, "--strategy", "chance")
        assert result.exit_code == 0 and max(map(len, result.stdout.splitlines())) <= width
        assert "over optimum" in result.stdout and "no room for" in result.stdout
