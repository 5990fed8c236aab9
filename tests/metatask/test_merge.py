"""Meta-tasks selected, read from a library, and merged: rows are never taken for others."""

from dataclasses import replace

import numpy as np
import pytest

from task2vec.distance import symmetric
from task2vec.embedding import trivial
from task2vec.errors import NotInLibraryError, UsageError
from task2vec.library import Expert, MeasuredError
from task2vec.metatask import DOMAIN, SYMMETRIC, ModelInfo, metatask_from_library
from task2vec.metatask.merge import add_library
from tests.failures import refuse
from tests.oracles.selection import slow_symmetric
from tests.select.material import FIVE, HALF, embed, fingerprint, make_whole, make_world

# --- one protocol, one space -----------------------------------------------------------------------------------------


def test_a_selection_has_all_that_was_measured_by_one_protocol():
    whole = make_whole()
    found, kept = whole.select("half"), [0, 1, 2, 3]  # repeats are left out
    assert [model.name for model in found.models] == [whole.models[at].name for at in kept] and found.generic == 0
    assert np.array_equal(found.errors, whole.errors[:, kept, 1]) and found.protocol == HALF
    assert np.array_equal(found.halves, whole.halves[:, kept, 1])
    assert found.datasets == ("cub", "dogs", "cub") and found.space == "net robust"
    for name in (FIVE, 5):
        assert np.array_equal(whole.select(name).errors, whole.errors[:, :4, 0])
    for option, choices in (("shots", "train half"), ("probe", "net robust"), ("family", "taxa, labels")):
        refuse(UsageError, f"Choose one of: .*{choices}", whole.select, **{option: "none such"})


def test_source_tasks_are_found_by_fingerprint_and_never_by_name():
    whole = make_whole()
    found, every = whole.select(), whole.embeddings["net robust"]
    assert found.source_rows.tolist() == [-1, 0, 3, 1]
    simplicity = found.pick_sources(found.trivial_distances)
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


def test_distances_are_those_that_are_stored_or_of_domains():
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


def test_a_new_task_is_asked_for_as_a_known_one_would_be():
    view = make_whole().select()
    query, asked = view.query(1), view.ask(view.embeddings[1])
    np.testing.assert_allclose(asked.distances[SYMMETRIC], query.distances[SYMMETRIC], atol=1e-6)
    np.testing.assert_allclose(asked.to_sources[SYMMETRIC], query.to_sources[SYMMETRIC], atol=1e-6)
    assert np.array_equal(asked.vector, query.vector) and asked.is_candidate.all()
    few = replace(view, embeddings=()).ask(view.embeddings[1])
    assert np.isnan(few.distances[SYMMETRIC]).all() and np.isnan(few.to_sources[SYMMETRIC]).all()


# --- a library -------------------------------------------------------------------------------------------------------


def names_of(metatask):
    return [task.name for task in metatask.tasks], [model.name for model in metatask.models]


def fill(library):
    """Three tasks, each with an embedding, and models of which the last was fine-tuned on the second task."""
    for seed in range(3):
        library.add(embed(f"task {seed}", seed), source=f"folder {seed // 2}")
    for column, source in enumerate((None, None, fingerprint(1))):
        library.add(Expert(f"model {column}", "timm", f"net{column}", task=source, parameters=10 + column))
    for seed, column, split in np.ndindex(3, 3, 2):
        error = 0.1 + 0.1 * seed + 0.05 * column + 0.01 * split
        library.add(MeasuredError(fingerprint(seed), f"model {column}", error, HALF, split))


def test_a_library_is_a_meta_task_and_tasks_of_other_spaces_are_left_out(library):
    fill(library)
    whole = metatask_from_library(library)
    found = whole.select()
    assert whole.protocols == (HALF,)
    assert names_of(found)[0] == ["task 0", "task 1", "task 2"] and found.errors.shape == (3, 3, 2)
    assert found.errors[2, 1, 1] == pytest.approx(0.36)
    assert found.datasets == ("folder 0", "folder 0", "folder 1")
    assert [(one.source_task, one.source_dataset) for one in found.models[1:]] == [(None, None), ("task 1", "folder 0")]
    assert found.is_candidate.tolist() == [[True, True, True], [True, True, False], [True, True, True]]
    vectors = [embed("", seed).vector for seed in range(3)]
    assert found.between(SYMMETRIC)[0, 2] == pytest.approx(slow_symmetric(vectors[0], vectors[2]), abs=1e-6)
    assert found.to_sources(SYMMETRIC)[0, 2] == pytest.approx(slow_symmetric(vectors[0], vectors[1]), abs=1e-6)
    library.add(embed("task 3", 3, probe="other", weights="cd"), embed("task 4", 4, method="direct"))
    for seed in (3, 4):
        library.add(MeasuredError(fingerprint(seed), "model 0", 0.5, HALF, 0))
    found = metatask_from_library(library).select()
    assert names_of(found)[0] == ["task 0", "task 1", "task 2"]
    only = metatask_from_library(library, probe="other").select()
    assert names_of(only) == (["task 3"], ["model 0"]) and only.between(SYMMETRIC).tolist() == [[0]]
    with pytest.raises(NotInLibraryError, match=r"'vgg'.*embedded by: net robust; other robust"):
        metatask_from_library(library, probe="vgg")


# --- merging ---------------------------------------------------------------------------------------------------------


def test_a_library_beside_a_meta_task_keeps_errors_and_measures_distances(library):
    fill(library)
    library.add(MeasuredError(fingerprint(2), "model 0", 0.4, "another protocol", 0))
    bundle, space = make_world(), "net robust"
    bundle = replace(bundle, tasks=(replace(bundle.tasks[0], fingerprint="x" * 64), *bundle.tasks[1:]))
    expert = ModelInfo("model 0", "expert", source_fingerprint=fingerprint(1), location="expert.safetensors")
    view = add_library(bundle, library, library.errors(), protocol=HALF, space=space, models=[expert])
    known, own = bundle.view(1, space), metatask_from_library(library).select(HALF)
    assert [task.name for task in view.tasks[12:]] == ["task 0 (2)"]  # the others are tasks of the bundle
    assert np.array_equal(view.mean[:12, :7], known.mean) and np.array_equal(view.mean[12, 7:10], own.mean[0])
    assert np.isnan(view.mean[:12, 7:]).all() and np.isnan(view.mean[12, :7]).all() and np.isnan(view.mean[:, 10]).all()
    for row, column in ((0, 12), (3, 12), (1, 2)):
        expected = symmetric(view.embeddings[row], view.embeddings[column])
        assert view.between(SYMMETRIC)[row, column] == pytest.approx(expected, abs=1e-6)
    assert view.source_rows[9:].tolist() == [1, 1] and not view.is_candidate[1, 9] and view.is_candidate[:, 10].all()


def test_the_same_network_of_a_library_and_a_meta_task_is_one_model(library):
    fill(library)
    library.add(Expert("lite", "timm", "tf_efficientnet_lite0", input_size=112))
    library.add(embed("new", 20), MeasuredError(fingerprint(20), "lite", 0.2, HALF, 0))
    view = add_library(make_world(), library, library.errors(), protocol=HALF, space="net robust")
    assert (
        view.tasks[-1].name == "new" and view.mean[-1, 1] == 0.2 and "lite" not in {model.name for model in view.models}
    )
