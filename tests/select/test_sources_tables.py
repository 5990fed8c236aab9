"""Evidence from tables of strangers, and from a library."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.errors import DataError, NotInLibraryError, UsageError
from task2vec.experts.matrix import ErrorMatrix
from task2vec.experts.measured import bundled_metatask
from task2vec.library import Expert, Library, MeasuredError
from task2vec.select.evaluation import evaluate
from task2vec.select.evidence import SYMMETRIC
from task2vec.select.evidence.shelves import from_library
from task2vec.select.evidence.tables import read_evidence
from tests.library.making import fingerprint_of, make
from tests.oracles.slow_choosing import slow_symmetric

LONG = """task,expert,error,seed,dataset,lesson
cats,generic,0.2,0,pets,
cats,generic,0.4,1,pets,
cats,whales,0.5,0,pets,sea
dogs,generic,0.1,0,pets,
dogs,whales,,0,pets,sea
fish,generic,nan,0,sea life,
fish,whales,0.3,1,sea life,sea
"""


@pytest.fixture
def put(tmp_path):
    def write(text, name="table.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_one_error_in_a_row(put):
    evidence = read_evidence(put(LONG))
    assert evidence.tasks == ("cats", "dogs", "fish") and evidence.experts == ("generic", "whales")
    wanted = [[[0.2, 0.4], [0.5, np.nan]], [[0.1, np.nan], [np.nan, np.nan]], [[np.nan, np.nan], [np.nan, 0.3]]]
    np.testing.assert_array_equal(evidence.errors, wanted)
    assert evidence.groups == ("pets", "pets", "sea life") and evidence.lessons == (None, "sea")
    assert evidence.generic == 0 and evidence.is_candidate.all()


def test_a_column_for_each_expert(put):
    table = "task,dataset,generic,cats,-x-\ncats,pets,0.2,0.01,0.3\nbirds,air,0.4,-,0.5\n"
    for text in (
        table,
        table.replace(",", ";"),
        table.replace(",", "\t"),
        "\ufeff" + table,
        table.replace("\n", "\r\n"),
    ):
        evidence = read_evidence(put(text))
        assert evidence.tasks == ("cats", "birds") and evidence.experts == ("generic", "cats", "-x-")
        np.testing.assert_array_equal(evidence.mean, [[0.2, 0.01, 0.3], [0.4, np.nan, 0.5]])
        assert evidence.groups == ("pets", "air")
        assert evidence.is_candidate.tolist() == [[True, False, True], [True, True, True]]  # its own lesson
        assert evidence.lessons == (None, "cats", None) and evidence.lesson_groups == (None, "pets", None)


def test_a_row_for_each_expert(put):
    evidence = read_evidence(put("model,birds,cats\ngeneric,0.2,0.1\ncats,0.3,\n"))
    assert evidence.tasks == ("birds", "cats") and evidence.experts == ("generic", "cats")
    np.testing.assert_array_equal(evidence.mean, [[0.2, 0.3], [0.1, np.nan]])
    assert evidence.is_candidate.tolist() == [[True, True], [True, False]]


def test_tasks_without_a_dataset_are_one_each(put):
    evidence = read_evidence(put("task,a,b\nx,0.1,0.2\ny,0.3,0.1\n"))
    assert evidence.groups == ("x", "y") and evidence.generic is None


def test_who_has_seen_a_task_is_no_candidate(put):
    text = (
        "task,expert,error,is_trivial,shares_images,shares_labels\nx,a,0.1,1,0,0\nx,b,0.1,false,0.02,0\nx,c,0.1,0,0,0\n"
    )
    assert read_evidence(put(text)).is_candidate.tolist() == [[False, False, True]]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("task,a\nx,12.5\n", "line 2 of .*percent. Divide by 100"),
        ("task,a\nx,0.1\ny,3%\n", "line 3 of .*percent"),
        ("task,a\nx,-0.1\n", "line 2 of .*below 0"),
        ("task,a\nx,many\n", "line 2 of .*'many' where an error is a number"),
        ("task,a\nx,inf\n", "line 2 of"),
        ("task,a\nx,0.1,0.2\n", "line 2 of .*3 cells where the heading has 2"),
        ("task,a,a\nx,0.1,0.2\n", "line 1 of .*two columns 'a'"),
        ("task,expert,accuracy\nx,a,0.1\n", "line 1 of .*no column 'error'"),
        ("task,expert,error\nx,a,0.1\n\nx,a,0.2\n", "line 4 of .*again, after line 2"),
        ("task,expert,error,seed\nx,a,0.1,first\n", "line 2 of .*seed 'first'"),
        ("task,expert,error\n,a,0.1\n", "line 2 of .*no task or no expert"),
        ("colour,a\nx,0.1\n", "line 1 of .*begins with 'colour'"),
        ("task,a\n", "no table is that small"),
        ("", "no table is that small"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(put, text, match):
    with pytest.raises(DataError, match=match):
        read_evidence(put(text))


def test_files_that_are_no_tables(put, tmp_path):
    with pytest.raises(DataError, match="cannot be read as a table"):
        read_evidence(tmp_path / "nowhere.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_evidence(tmp_path / "bytes.csv")


def test_protocols_are_not_mixed(put):
    text = 'task,expert,protocol,error\nx,a,"linear-2, train half",0.1\nx,a,"linear-2, train 5",0.3\n'
    with pytest.raises(UsageError, match=r"2 ways.*linear-2, train half; linear-2, train 5"):
        read_evidence(put(text))
    with pytest.raises(UsageError, match="'all' is not one"):
        read_evidence(put(text), protocol="all")
    for name in ("5", "linear-2, train 5"):
        assert read_evidence(put(text), protocol=name).mean.tolist() == [[0.3]]


def test_our_own_tables_can_be_read(tmp_path):
    from experiments.metatask_results import write_errors

    measured = bundled_metatask().only(family="labels")
    path = write_errors(measured, tmp_path / "errors.csv")
    evidence = read_evidence(path, protocol="half")
    assert evidence.tasks == tuple(task.name for task in measured.tasks) and evidence.errors.shape[2] == 5
    number = next(place for place, name in enumerate(measured.protocols) if "half" in name)
    np.testing.assert_allclose(evidence.errors, measured.errors[:, :, number], atol=6e-5)
    assert np.array_equal(evidence.is_candidate, (measured.shares_images == 0) & ~measured.shares_labels)
    assert evidence.experts[evidence.generic] == "generic resnet34"


def test_distances_are_matched_by_name(put):
    errors = put("task,expert,error,lesson\nx,a,0.1,\nx,b,0.2,sea\ny,a,0.3,\ny,b,0.4,sea\n", "errors.csv")
    table = put("task,y,x,sea,a\ny,0,0.3,0.1,\nx,0.3,0,0.2,0.7\nz,1,1,1,1\n", "distances.csv")
    evidence = read_evidence(errors, table)
    assert evidence.distances[SYMMETRIC].tolist() == [[0, 0.3], [0.3, 0]]
    np.testing.assert_array_equal(evidence.to_lessons[SYMMETRIC], [[0.7, 0.2], [np.nan, 0.1]])
    for text, match in (
        ("task,x\nx,0\n", "no row for the task 'y', which"),
        ("task,x\nz,0\n", r"no row for the task 'x' \(and 1 more\), which"),
        ("task,p,q\nx,0,1\ny,1,0\n", "names 'p' and no task"),
        ("task,x,y\nx,0,-1\ny,1,0\n", "line 2 of .*below 0"),
        ("task,x,y\nx,0,1\ny,1,0\ny,1,0\n", "two rows for the same name"),
    ):
        with pytest.raises(DataError, match=match):
            read_evidence(errors, put(text, "wrong.csv"))


def test_one_way_of_a_distance_is_enough_and_none_is_said(put):
    errors = put("task,generic,a\nx,0.1,0.2\ny,0.3,0.1\nz,0.2,0.4\n", "errors.csv")
    lacking = put("task,x,y\nx,0,0.3\ny,0.3,0\nz,0.5,0.7\n", "lacking.csv")
    whole = [[0, 0.3, 0.5], [0.3, 0, 0.7], [0.5, 0.7, 0]]
    assert read_evidence(errors, lacking).distances[SYMMETRIC].tolist() == whole
    with pytest.raises(DataError, match="no distance between the tasks 'x' and 'z'"):
        read_evidence(errors, put("task,x,y\nx,0,0.3\ny,0.3,0\nz,,0.7\n", "hole.csv"))
    lessons = read_evidence(errors, put("task,a\nx,0.1\ny,0.3\nz,0.5\n", "lessons.csv"))
    assert SYMMETRIC not in lessons.distances and lessons.to_lessons[SYMMETRIC][:, 1].tolist() == [0.1, 0.3, 0.5]


def test_embeddings_become_distances(put):
    errors = put("task,expert,error,lesson\nx,a,0.1,\nx,b,0.2,sea\ny,a,0.3,\ny,b,0.4,sea\n", "errors.csv")
    rows = {"x": [1.0, 2, 3, 0], "y": [2.0, 1, 0.5, 0], "sea": [3.0, 1, 1, 0], "trivial": [0.1, 0.1, 0.2, 0]}
    lines = [",".join([name, *map(str, row)]) for name, row in rows.items()]
    evidence = read_evidence(errors, None, put("\n".join(["name,1,2,3,4", *lines]), "e.csv"))
    alive = {name: np.array(row[:3]) for name, row in rows.items()}
    assert evidence.distances[SYMMETRIC][0, 1] == pytest.approx(slow_symmetric(alive["x"], alive["y"]), abs=1e-6)
    assert evidence.to_lessons[SYMMETRIC][0, 1] == pytest.approx(slow_symmetric(alive["x"], alive["sea"]), abs=1e-6)
    assert np.isnan(evidence.to_lessons[SYMMETRIC][:, 0]).all()
    assert evidence.simplicity[1] == pytest.approx(slow_symmetric(alive["sea"], alive["trivial"]), abs=1e-6)
    assert evidence.norms.tolist() == [6, 3.5] and evidence.vectors.shape == (2, 3)
    found = evaluate(evidence, ["static", "asymmetric", "kernel symmetric"], resamples=9)
    assert not found.left_out
    for text, match in (
        ("name,1\nx,1\n", "no row for 'y'"),
        ("name,1\nx,1\ny,2\ny,2\n", "two rows for the same name"),
        ("name,1\nx,1\ny,-2\n", "line 3 of .*a Fisher is 0 or more"),
        ("name,1,2\nx,1,\ny,2,1\n", "line 2 of .*a Fisher is 0 or more"),
    ):
        with pytest.raises(DataError, match=match):
            read_evidence(errors, None, put(text, "wrong.csv"))


def test_filters_that_are_dead_for_both_do_not_count(put):
    errors = put("task,a,b\nx,0.1,0.2\ny,0.3,0.1\nz,0.3,0.1\n", "errors.csv")
    evidence = read_evidence(errors, None, put("name,1,2,3\nx,1,2,0\ny,2,1,0\nz,1,1,4\n", "embeddings.csv"))
    wanted = slow_symmetric(np.array([1.0, 2]), np.array([2.0, 1]))
    assert evidence.distances[SYMMETRIC][0, 1] == pytest.approx(wanted, abs=1e-6)


@pytest.fixture
def library(tmp_path):
    with Library.open(tmp_path / "library") as opened:
        yield opened


def fill(library, *, experts=3, protocols=("linear-2, train half, logistic, usual",)):
    """Three tasks, each with an embedding, and experts of which the last was taught the second task."""
    for seed in range(3):
        library.add(make(f"task {seed}", seed), source=f"folder {seed // 2}")
    for column in range(experts):
        taught = fingerprint_of(1) if column == experts - 1 and column else None
        library.add(Expert(f"expert {column}", "timm", f"net{column}", task=taught, parameters=10 + column))
    for protocol in protocols:
        for seed in range(3):
            for column in range(experts):
                for split in (0, 1):
                    error = 0.1 + 0.1 * seed + 0.05 * column + 0.01 * split
                    library.add(MeasuredError(fingerprint_of(seed), f"expert {column}", error, protocol, split))


def test_a_library_is_evidence(library):
    fill(library)
    evidence = from_library(library)
    assert evidence.tasks == ("task 0", "task 1", "task 2") and evidence.errors.shape == (3, 3, 2)
    assert evidence.errors[2, 1, 1] == pytest.approx(0.36)
    assert evidence.groups == ("folder 0", "folder 0", "folder 1")
    assert evidence.lessons == (None, None, "task 1") and evidence.lesson_groups[2] == "folder 0"
    assert evidence.is_candidate.tolist() == [[True, True, True], [True, True, False], [True, True, True]]
    vectors = [make("", seed).vector for seed in range(3)]
    assert evidence.distances[SYMMETRIC][0, 2] == pytest.approx(slow_symmetric(vectors[0], vectors[2]), abs=1e-6)
    assert evidence.to_lessons[SYMMETRIC][0, 2] == pytest.approx(slow_symmetric(vectors[0], vectors[1]), abs=1e-6)
    assert evidence.parameters.tolist() == [10, 11, 12] and np.isnan(evidence.simplicity[0])
    assert evaluate(evidence, ["static", "symmetric"], resamples=9).outcomes["static"].errors[0] == pytest.approx(0.105)


def test_a_library_without_errors_says_how_to_get_some(library):
    library.add(make("task 0", 0))
    with pytest.raises(NotInLibraryError, match=r"no errors of experts.*task2vec error-matrix"):
        from_library(library)


def test_one_expert_is_nothing_to_choose_from(library):
    fill(library, experts=1)
    evidence = from_library(library)
    assert evidence.experts == ("expert 0",)
    with pytest.raises(UsageError, match="no task has two candidates"):
        evaluate(evidence, ["static"])


def test_protocols_of_a_library_are_not_mixed(library):
    names = ("linear-2, train half, logistic, usual", "linear-2, train 5, logistic, usual")
    fill(library, protocols=names)
    with pytest.raises(UsageError, match="2 protocols"):
        from_library(library)
    assert from_library(library, protocol="5").errors.shape == (3, 3, 2)
    with pytest.raises(NotInLibraryError, match="no error by the protocol '7'"):
        from_library(library, protocol="7")
    assert ErrorMatrix.from_library(library).errors.shape[2] == 2


def test_tasks_of_another_probe_are_at_no_known_distance(library):
    fill(library)
    library.add(make("task 3", 3, probe="other", probe_fingerprint="cd" * 32))
    library.add(MeasuredError(fingerprint_of(3), "expert 0", 0.5, "linear-2, train half, logistic, usual", 0))
    evidence = from_library(library)
    assert evidence.tasks[3] == "task 3" and np.isnan(evidence.distances[SYMMETRIC][3]).all()
    assert np.isfinite(evidence.distances[SYMMETRIC][:3, :3]).all()
    only = from_library(library, probe="other")
    assert np.isfinite(only.distances[SYMMETRIC][3, 3]) and np.isnan(only.distances[SYMMETRIC][0]).all()
    with pytest.raises(NotInLibraryError, match=r"'vgg'.*they were by: net robust; other robust"):
        from_library(library, probe="vgg")


def test_embeddings_of_other_settings_are_not_compared(library):
    fill(library)
    library.add(make("task 3", 3, settings={"method": "robust", "seed": 0, "beta": 1.0}))
    library.add(MeasuredError(fingerprint_of(3), "expert 0", 0.5, "linear-2, train half, logistic, usual", 0))
    apart = from_library(library).distances[SYMMETRIC]
    assert np.isnan(apart[3, :3]).all() and np.isfinite(apart[:3, :3]).all()


def test_a_library_without_embeddings_has_errors_alone(library):
    fill(library)
    evidence = from_library(library)
    for seed in range(3):
        assert library.task(f"task {seed}").embeddings
    bare = replace(evidence, distances={}, to_lessons={}, vectors=None, simplicity=None)
    assert "kernel symmetric" in evaluate(bare, ["static", "kernel symmetric"], resamples=9).left_out
