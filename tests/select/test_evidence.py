"""Meta-tasks selected, read from CSV tables and from a library, and merged: rows are never taken for others."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.distance import symmetric
from task2vec.embedding import trivial
from task2vec.errors import DataError, NotInLibraryError, UsageError
from task2vec.experts.metatask import DOMAIN, SYMMETRIC, TAXONOMIC
from task2vec.library import Expert, MeasuredError
from task2vec.select import metatask_from_csv, metatask_from_library
from task2vec.select.evaluate import evaluate
from task2vec.select.evidence import choose_shots, merge
from tests.failures import refuse
from tests.oracles.selection import slow_symmetric
from tests.select.material import FIVE, HALF, embed, fingerprint, make_whole, make_world

# --- one protocol, one space -----------------------------------------------------------------------------------------


def test_a_selection_has_all_that_was_measured_by_one_protocol():
    whole = make_whole()
    found, kept = whole.select("half"), [0, 1, 2, 3]  # repeats are left out
    assert [model.name for model in found.models] == [whole.models[at].name for at in kept] and found.generic == 0
    assert np.array_equal(found.errors[:, :, 0], whole.errors[:, kept, 1]) and found.protocols == (HALF,)
    assert np.array_equal(found.scores["logme"], whole.scores["logme"][:, kept, 1:])
    assert np.array_equal(found.halves, whole.halves[:, kept, 1:])
    assert found.datasets == ("cub", "dogs", "cub") and found.space == "net robust"
    assert np.array_equal(found.select().errors, found.errors)  # once is enough
    for name in (FIVE, 5):
        assert np.array_equal(whole.select(name).errors, whole.errors[:, :4, :1])
    for option, choices in (("shots", "train half"), ("probe", "net robust"), ("family", "taxa, labels")):
        refuse(UsageError, f"Choose one of: .*{choices}", whole.select, **{option: "none such"})


def test_source_tasks_are_found_by_fingerprint_and_never_by_name():
    whole = make_whole()
    found, every = whole.select(), whole.embeddings["net robust"]
    assert found.source_rows.tolist() == [-1, 0, 3, 1]
    simplicity = found.pick_sources(found.trivial_distances[SYMMETRIC])
    for column, row in ((1, 0), (2, 3), (3, 1)):
        wanted = [symmetric(every[task], every[row]) for task in range(3)]
        np.testing.assert_allclose(found.to_sources(SYMMETRIC)[:, column], wanted, atol=1e-6)
        assert np.array_equal(found.pick_sources(found.vectors)[column], every[row].vector)
        assert np.array_equal(found.pick_sources(found.trivial_vectors)[column], every[row].prior)
        assert simplicity[column] == pytest.approx(symmetric(every[row], trivial(every[row])))
    assert np.isnan(found.to_sources(SYMMETRIC)[:, 0]).all() and np.isnan(simplicity[0])
    unknown = make_whole(has_source=False).select()
    assert np.isnan(unknown.to_sources(SYMMETRIC)[:, 2]).all() and unknown.models[2].source_task == "hue"
    # A task that is left out stays as the source task of a model.
    for dropped in (found.only([2]), whole.select(family="labels")):
        assert np.array_equal(dropped.to_sources(SYMMETRIC)[0], found.to_sources(SYMMETRIC)[2], equal_nan=True)
    turned = found.only([2, 0], [3, 1])
    assert np.array_equal(turned.to_sources(SYMMETRIC)[0], found.to_sources(SYMMETRIC)[2, [3, 1]])
    assert np.array_equal(turned.halves, found.halves[[2, 0]][:, [3, 1]])


def test_distances_are_those_that_are_stored_or_of_domains_and_taxa():
    table, rows = np.arange(16.0).reshape(4, 4), {"other direct": np.arange(4.0)}
    known = replace(make_whole(), distances={"other direct": table}, trivial_distances=rows, norms=rows)
    found = known.select(probe="other", method="direct")
    assert np.array_equal(found.between(SYMMETRIC), table[:3, :3])
    assert found.to_sources(SYMMETRIC)[1].tolist()[1:] == [4, 7, 5]
    assert found.vectors is None and DOMAIN not in found.distances
    whole = make_whole()
    means, found = whole.domains["net"], whole.select()
    cosine = 1 - means[0] @ means[3] / np.linalg.norm(means[0]) / np.linalg.norm(means[3])
    assert found.to_sources(DOMAIN)[0, 2] == pytest.approx(cosine) and found.between(DOMAIN)[1, 1] == 0
    assert TAXONOMIC not in found.distances
    counts = {"cub_Parulidae": 31, "cub_Corvidae": 8, "cub_Piciformes": 7}
    pairs = zip(whole.tasks, counts.items(), strict=True)
    birds = [replace(task, name=name, dataset="cub200", classes=count) for task, (name, count) in pairs]
    found = replace(whole, tasks=tuple(birds)).select()
    assert found.between(TAXONOMIC).tolist() == [[0, 4, 6], [4, 0, 6], [6, 6, 0]]
    assert found.to_sources(TAXONOMIC)[2, [1, 3]].tolist() == [6, 6]
    assert np.isnan(found.to_sources(TAXONOMIC)[:, [0, 2]]).all()


# --- CSV tables ------------------------------------------------------------------------------------------------------

LONG = """task,model,error,seed,dataset,source_task,classes,error_a,error_b,logme
cats,generic,0.2,0,pets,,4,0.1,0.3,-1.5
cats,generic,0.4,1,pets,,4,0.2,0.4,
cats,whales,0.5,0,pets,sea,4,,,2
dogs,generic,0.1,0,pets,,,0,0.2,0.5
dogs,whales,,0,pets,sea,,,,
fish,generic,nan,0,sea life,,,,,
fish,whales,0.3,1,sea life,sea,,,,
"""


@pytest.fixture
def put(tmp_path):
    def write(text, name="table.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def names_of(metatask):
    return [task.name for task in metatask.tasks], [model.name for model in metatask.models]


def test_one_error_in_a_row(put):
    found = metatask_from_csv(put(LONG))
    assert names_of(found) == (["cats", "dogs", "fish"], ["generic", "whales"])
    wanted = [[[0.2, 0.4], [0.5, np.nan]], [[0.1, np.nan], [np.nan, np.nan]], [[np.nan, np.nan], [np.nan, 0.3]]]
    np.testing.assert_array_equal(found.errors[:, :, 0], wanted)
    assert found.datasets == ("pets", "pets", "sea life") and found.models[1].source_task == "sea"
    assert found.generic == 0 and found.is_candidate.all() and [task.classes for task in found.tasks] == [4, 0, 0]
    np.testing.assert_array_equal(found.scores["logme"][:2, :, 0], [[-1.5, 2], [0.5, np.nan]])
    np.testing.assert_array_equal(found.halves[0, 0, 0], [[0.1, 0.3], [0.2, 0.4]])
    assert np.isnan(found.halves[0, 1]).all()
    head = "task,model,error,has_seen,shares_images,shares_labels\n"
    found = metatask_from_csv(put(head + "x,a,0.1,1,0,0\nx,b,0.1,false,0.02,0\nx,c,0.1,0,0,0\n"))
    assert found.is_candidate.tolist() == [[False, False, True]] and found.halves is None


def test_a_column_for_each_model(put):
    table = "task,dataset,generic,cats,-x-\ncats,pets,0.2,0.01,0.3\nbirds,air,0.4,-,0.5\n"
    for text in (table, "\ufeff" + table.replace(",", ";"), table.replace(",", "\t").replace("\n", "\r\n")):
        found = metatask_from_csv(put(text))
        assert names_of(found) == (["cats", "birds"], ["generic", "cats", "-x-"])
        np.testing.assert_array_equal(found.mean, [[0.2, 0.01, 0.3], [0.4, np.nan, 0.5]])
        assert found.is_candidate.tolist() == [[True, False, True], [True, True, True]]  # its own source task
        assert [model.source_dataset for model in found.models] == [None, "pets", None]


def test_what_cannot_be_read_is_reported_with_its_line(put):
    for text, match in (
        ("task,a\nx,12.5\n", r"line 2 of .*'12.5', which is not a number from 0 to 1: divide percentages by 100"),
        ("task,a\nx,-0.1\n", "line 2 of .*'-0.1', which is not a number from 0 to 1"),
        ("task,a\nx,many\n", "line 2 of .*'many', which is not a number"),
        ("task,a\nx,0.1,0.2\n", "line 2: 3 cells where the header has 2"),
        ("task,model,accuracy\nx,a,0.1\n", "line 1 of .*no column 'error'"),
        ("task,model,error\nx,a,0.1\n\nx,a,0.2\n", "line 4 of .*again, after line 2"),
        ("task,model,error,classes\nx,a,0.1,5\nx,b,0.1,6\n", "line 3 of .*has 6 classes for 'x'. Give the same whole"),
        ("task,model,error,classes\nx,a,0.1,5.5\n", "line 2 of .*has 5.5 classes for 'x'"),
        ("task,model,error,seed\nx,a,0.1,first\n", "line 2 of .*seed 'first'"),
        ("task,model,error\n,a,0.1\n", "line 2 of .*has the task ''"),
        ("task,model,error,error_a\nx,a,0.1,12\n", "line 2 of .*has the error_a '12'"),
        ("colour,a\nx,0.1\n", "line 1 of .*no column 'task'"),
        ("", "has no table"),
    ):
        refuse(DataError, match, metatask_from_csv, put(text))
    refuse(DataError, "is not a file", metatask_from_csv, "nowhere.csv")


def test_our_own_tables_can_be_read_and_protocols_are_not_mixed(tmp_path):
    whole, path = make_world(), tmp_path / "errors.csv"
    found = metatask_from_csv(whole.to_csv(path), shots="half")
    np.testing.assert_allclose(found.errors[:, :, 0], whole.errors[:, :, 1])
    assert names_of(found) == names_of(whole) and found.models[found.generic].name == "generic resnet34"
    np.testing.assert_allclose(metatask_from_csv(path, shots=5).errors[:, :, 0], whole.errors[:, :, 0])
    refuse(UsageError, f"{FIVE}; {HALF}", metatask_from_csv, path, shots=9)


def test_distances_are_matched_by_name_and_one_way_is_enough(put):
    errors = put("task,model,error,source_task\nx,a,0.1,\nx,b,0.2,sea\ny,a,0.3,\ny,b,0.4,sea\n", "errors.csv")
    found = metatask_from_csv(errors, put("task,y,x,sea,a\ny,0,0.3,0.1,\nx,0.3,0,0.2,0.7\nz,1,1,1,1\n", "d.csv"))
    assert found.between(SYMMETRIC).tolist() == [[0, 0.3], [0.3, 0]]
    np.testing.assert_array_equal(found.to_sources(SYMMETRIC), [[0.7, 0.2], [np.nan, 0.1]])
    for text, match in (
        ("task,x\nx,0\n", "no row for the task 'y', which"),
        ("task,p,q\nx,0,1\ny,1,0\n", "has 'p' and no task"),
        ("task,x,y\nx,0,-1\ny,1,0\n", "line 2 of .*'-1', which is not a number from 0"),
        ("task,x,y\nx,0,1\ny,1,0\ny,1,0\n", "two rows for the same name"),
    ):
        refuse(DataError, match, metatask_from_csv, errors, put(text, "wrong.csv"))
    errors = put("task,generic,a\nx,0.1,0.2\ny,0.3,0.1\nz,0.2,0.4\n", "errors.csv")
    for last, far in (("0.5", 0.5), ("", np.nan)):
        lacking = metatask_from_csv(errors, put(f"task,x,y\nx,0,0.3\ny,0.3,0\nz,{last},0.7\n", "lacking.csv"))
        np.testing.assert_array_equal(lacking.between(SYMMETRIC), [[0, 0.3, far], [0.3, 0, 0.7], [far, 0.7, 0]])
    sources = metatask_from_csv(errors, put("task,a\nx,0.1\ny,0.3\nz,0.5\n", "sources.csv"))
    assert sources.to_sources(SYMMETRIC)[:, 1].tolist() == [0.1, 0.3, 0.5]
    assert "kernel symmetric" in evaluate(sources, ["average_best", "kernel symmetric"], resamples=9).left_out


# --- a library -------------------------------------------------------------------------------------------------------


def fill(library):
    """Three tasks, each with an embedding, and models of which the last was fine-tuned on the second task."""
    for seed in range(3):
        library.add(embed(f"task {seed}", seed), source=f"folder {seed // 2}")
    for column, source in enumerate((None, None, fingerprint(1))):
        library.add(Expert(f"model {column}", "timm", f"net{column}", task=source, parameters=10 + column))
    for seed, column, split in np.ndindex(3, 3, 2):
        error = 0.1 + 0.1 * seed + 0.05 * column + 0.01 * split
        library.add(MeasuredError(fingerprint(seed), f"model {column}", error, HALF, split))


def test_a_library_is_a_meta_task_and_tasks_of_other_spaces_are_at_no_known_distance(library):
    fill(library)
    found = metatask_from_library(library)
    assert names_of(found)[0] == ["task 0", "task 1", "task 2"] and found.errors.shape == (3, 3, 1, 2)
    assert found.errors[2, 1, 0, 1] == pytest.approx(0.36)
    assert found.datasets == ("folder 0", "folder 0", "folder 1")
    assert [(one.source_task, one.source_dataset) for one in found.models[1:]] == [(None, None), ("task 1", "folder 0")]
    assert found.is_candidate.tolist() == [[True, True, True], [True, True, False], [True, True, True]]
    vectors = [embed("", seed).vector for seed in range(3)]
    assert found.between(SYMMETRIC)[0, 2] == pytest.approx(slow_symmetric(vectors[0], vectors[2]), abs=1e-6)
    assert found.to_sources(SYMMETRIC)[0, 2] == pytest.approx(slow_symmetric(vectors[0], vectors[1]), abs=1e-6)
    library.add(embed("task 3", 3, probe="other", weights="cd"), embed("task 4", 4, method="direct"))
    for seed in (3, 4):
        library.add(MeasuredError(fingerprint(seed), "model 0", 0.5, HALF, 0))
    found = metatask_from_library(library)
    assert np.isnan(found.between(SYMMETRIC)[3:]).all() and np.isfinite(found.between(SYMMETRIC)[:3, :3]).all()
    only = metatask_from_library(library, probe="other")
    assert np.isfinite(only.between(SYMMETRIC)[3, 3]) and np.isnan(only.between(SYMMETRIC)[0]).all()
    with pytest.raises(NotInLibraryError, match=r"'vgg'.*embedded by: net robust; other robust"):
        metatask_from_library(library, probe="vgg")
    like = metatask_from_library(library, like=embed("", 9))
    assert len(like.tasks) == 3 and like.info["other_spaces"] == 2


# --- merging ---------------------------------------------------------------------------------------------------------


def test_merged_meta_tasks_keep_what_is_theirs_and_measure_the_rest(library):
    fill(library)
    one, other = make_world().select("half"), metatask_from_library(library).select()
    other = replace(other, embeddings={"net robust": other.embeddings["net robust"]})
    found = merge(one, other)
    assert len(found.tasks) == 15 and len(found.models) == 9
    assert np.array_equal(found.mean[:12, :6], one.mean) and np.array_equal(found.mean[12:, 6:], other.mean)
    assert np.isnan(found.mean[:12, 6:]).all() and np.isnan(found.mean[12:, :6]).all()
    assert found.tasks[12].name == "task 0 (2)"
    every = found.embeddings["net robust"]
    for row, column in ((0, 13), (14, 2), (12, 13)):
        assert found.between(SYMMETRIC)[row, column] == pytest.approx(symmetric(every[row], every[column]), abs=1e-6)
    assert np.array_equal(found.is_candidate[12:, 6:], other.is_candidate)


def test_shots_go_by_the_median_class_among_several_sizes():
    sizes = ("2", "5", "10", "20", "half")
    keys = [f"linear-2, train {size}, logistic, usual" for size in sizes]
    wanted = {1: "2", 3: "2", 4: "2", 9: "2", 10: "5", 11: "half", 40: "half"}  # half of the class is for testing
    for median, shots in wanted.items():
        assert choose_shots([1, median, 500], keys) == shots == choose_shots([1, median, 500], keys[::-1])
    assert choose_shots([], keys) == "half" == choose_shots([], [])
    assert choose_shots([4], keys[1:]) == "5" and choose_shots([4], keys[4:]) == "half"  # the fewest, or all there is
    assert choose_shots([40], keys[:3]) == "10" and choose_shots([7], keys[3:4]) == "20"
    for size in sizes:
        assert choose_shots([3], keys, size) == size
    refuse(UsageError, r"shots=7 .* Choose one of: 2, 5, 10, 20, half", choose_shots, [3], keys, 7)
