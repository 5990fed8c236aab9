"""Saved embeddings come back whole or are refused by name; those of earlier runs are found, nothing else is touched.

And the intervals that an embedding gives: their closed forms, and how often they hold.
"""

import errno
import json
import os
import time
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
import scipy.stats

from task2vec.embedding import Embedding, embed, embed_many, load_embedding, name_file, trivial
from task2vec.embedding.embedding import RECIPE, SCHEMA, SUFFIX, find_saved, hash_content, open_folder
from task2vec.errors import DataError, EmbeddingFileError, ResourceError, UsageError
from task2vec.library.entries import is_same_vector
from task2vec.probe import FilterLayer
from tests.cases import ask_binary, make_task, make_tiny
from tests.embedding.families import FINE, is_close, run_many
from tests.failures import fail, refuse
from tests.library.material import change

LAYERS = (FilterLayer("conv", "convolution", 2, 9, 0.1), FilterLayer("fc", "linear", 1, 4, 0.25))
NAMES = ("fisher", "prior", "stderr")


def make(task="birds", value=1.0, halves=None):
    story = {"probe_fingerprint": "abc", "settings": {"beta": 1e-5}, "counts": {"images": 12}, "note": "ä<script>"}
    arrays = np.array([value, 2.0, 0.0]), np.array([0.1, 0.2, 0.0]), np.full(3, 1e-6)
    return Embedding(task, "net", *arrays, LAYERS, story, halves)


def arrays_of(embedding, **more):
    return {name: getattr(embedding, name).copy() for name in NAMES} | more


def write(path, *, arrays=None, schema=SCHEMA, story=None):
    """A file in the format of an embedding, with whatever inside and a hash that fits."""
    arrays = arrays_of(make()) if arrays is None else arrays
    layers = [list(vars(layer).values()) for layer in LAYERS]
    whole = {"schema": schema, "task": "birds", "probe": "net", "layers": layers, "provenance": make().provenance}
    text = json.dumps({**whole, **(story or {})}, sort_keys=True)
    envelope = {"sha256": hash_content(text, arrays), "story": text}
    path.write_bytes(safetensors.numpy.save(arrays, metadata={"task2vec": json.dumps(envelope)}))
    return path


def test_round_trip(tmp_path):
    saved = make(halves=np.array([[0.5, 1.5, 0.0], [1.5, 2.5, 0.0]]))
    path = saved.save(tmp_path / "deep" / "er" / "birds.t2v.safetensors")
    loaded = load_embedding(path)
    for name in ("fisher", "stderr", "prior", "vector", "halves"):
        assert np.array_equal(getattr(loaded, name), getattr(saved, name))
        assert getattr(loaded, name).dtype == np.float64
    assert load_embedding(make().save(tmp_path / "y")).halves is None and trivial(saved).halves is None
    for name in ("task", "probe", "layers", "provenance"):
        assert getattr(loaded, name) == getattr(saved, name)
    assert repr(loaded) == "Embedding(birds, probe=net, 3 filters, 12 images)"
    assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()
    assert os.listdir(path.parent) == ["birds.t2v.safetensors"]  # no temporary file stays


def test_an_embedding_cannot_be_changed_nor_through_the_array_it_was_made_of():
    mine = np.ones(3)
    view = mine[:]
    view.setflags(write=False)
    made = [replace(make(), fisher=one) for one in (mine, view)]
    mine[0] = 9
    assert [one.fisher[0] for one in made] == [1, 1] and not made[0].fisher.flags.writeable


def test_every_changed_byte_is_noticed(tmp_path):
    content = make().save(tmp_path / "x").read_bytes()
    flipped = (content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :] for i in range(0, len(content), 2))
    cut = (content[:length] for length in range(0, len(content), 19))
    for damaged in (*flipped, *cut, content + b"\0" * 8):
        (tmp_path / "y").write_bytes(damaged)
        refuse(EmbeddingFileError, "y'", load_embedding, tmp_path / "y")


def test_other_schemas_are_named_with_the_remedy(tmp_path):
    remedies = {99: r"schema 99, but this version reads 1.*pip install -U", None: r"schema None.*embed the task again"}
    for schema, words in remedies.items():
        refuse(EmbeddingFileError, words, load_embedding, write(tmp_path / "x", schema=schema))


def test_an_unknown_standard_error_stays_unknown(tmp_path):
    blank = replace(make(), stderr=np.full(3, np.nan))
    assert not load_embedding(blank.save(tmp_path / "x")).has_stderr and make().has_stderr
    assert is_same_vector(blank, load_embedding(tmp_path / "x")) and not is_same_vector(blank, make())


def test_contents_that_no_embedding_has_are_refused_even_with_a_fitting_hash(tmp_path):
    for name, values in (
        ("stderr", [1, np.nan, 1]),
        ("fisher", [1, -1, 1]),
        ("prior", [1, 0, 1]),
        ("fisher", [1, 1]),
        ("halves", [[1, 1, 1]]),
        ("halves", [[1, 1, 1], [1, -1e-9, 1]]),
    ):
        values = np.array(values, dtype=float)
        refuse(DataError, f"'{name}'", replace, make(), **{name: values})
        write(tmp_path / "x", arrays=arrays_of(make(), **{name: values}))
        refuse(EmbeddingFileError, rf"valid.*'{name}'", load_embedding, tmp_path / "x")
    for layers in ([["conv"]], 3, [["conv", "convolution", "2", 9, 0.1]]):
        refuse(EmbeddingFileError, None, load_embedding, write(tmp_path / "x", story={"layers": layers}))
    for broken in ({"fisher": np.ones(3)}, arrays_of(make(), quarters=np.ones(3))):
        refuse(EmbeddingFileError, "not hold a valid embedding", load_embedding, write(tmp_path / "x", arrays=broken))


def test_what_is_no_embedding_is_refused(tmp_path):
    file = tmp_path / "x"
    safetensors.numpy.save_file({"weight": np.ones(3)}, file)
    foreign = file.read_bytes()
    too_long = (1 << 40).to_bytes(8, "little") + b"{}"
    for content in (foreign, b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"{}", b"\xff" * 64, too_long):
        file.write_bytes(content)
        refuse(EmbeddingFileError, "not a task2vec embedding", load_embedding, file)
    for path in (tmp_path, tmp_path / "missing"):
        refuse(EmbeddingFileError, "cannot read", load_embedding, path)


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch, name):
    path = make("old").save(tmp_path / "x")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail(OSError(errno.ENOSPC, "No space left on device")))
        refuse(ResourceError, r"No space left.*unchanged.*choose a folder", make("new", 5.0).save, path)
    assert load_embedding(path).task == "old" and os.listdir(tmp_path) == ["x"]


TINY = make_tiny()


def run(tasks, folder, probe=TINY, **options):
    results = run_many(tasks, probe, **options, folder=folder)
    assert all(result.error is None for result in results)
    return results


def content(folder):
    return {place.name: place.read_bytes() for place in folder.iterdir() if place.is_file()}


def test_a_second_run_finds_everything_and_computes_what_is_missing(tmp_path, monkeypatch):
    tasks = ask_binary(4)
    first = run(tasks[1:3], tmp_path)
    before = content(tmp_path)
    assert sorted(before) == [f"question-{i}{SUFFIX}" for i in (1, 2)]
    with monkeypatch.context() as patch:
        patch.setattr("task2vec.embedding.batching.Pixels.load", lambda *_: pytest.fail("it was to be found"))
        second = run(tasks[1:3], str(tmp_path))
    for one, other in zip(first, second, strict=True):
        assert (one.number, one.task, one.is_found) == (other.number, other.task, not other.is_found)
        assert is_close(other.embedding, one.embedding, error=0)
    assert content(tmp_path) == before
    told = list(embed_many(tasks, TINY, settings=FINE, folder=tmp_path))
    assert [(result.number, result.is_found) for result in told] == [(1, True), (2, True), (0, False), (3, False)]
    assert len(content(tmp_path)) == 4
    assert is_close(told[3].embedding, embed(tasks[3], TINY, settings=FINE), error=1e-9)


@pytest.mark.parametrize("change", ["settings", "probe", "data", "recipe"])
def test_another_embedding_of_that_name_is_computed_and_both_are_kept(tmp_path, change, monkeypatch):
    task = make_task()
    other, probe, settings = {
        "settings": (task, TINY, replace(FINE, seed=1)),
        "probe": (task, replace(TINY, fingerprint="0" * 64), FINE),
        "data": (make_task(seed=9), TINY, FINE),
        "recipe": (task, TINY, FINE),
    }[change]
    with monkeypatch.context() as patch:
        patch.setattr("task2vec.embedding.single.RECIPE", 1 if change == "recipe" else RECIPE)
        first = run([task], tmp_path)[0]
    before = content(tmp_path)
    second = run([other], tmp_path, probe, settings=settings)[0]
    after = content(tmp_path)
    assert not second.is_found and len(after) == 2 and before.items() <= after.items()
    # Both are found from now on, each as itself; one of an older recipe is not.
    assert run([task], tmp_path)[0].is_found
    again = run([other], tmp_path, probe, settings=settings)[0]
    assert again.is_found and content(tmp_path) == after and is_close(again.embedding, second.embedding, error=0)
    is_other = change in ("settings", "data")
    assert (again.embedding.fisher.tolist() != first.embedding.fisher.tolist()) == is_other


@pytest.mark.parametrize("foreign", ["truncated", "newer", "folder", "dangling"])
def test_a_file_that_is_no_such_embedding_stays(tmp_path, foreign):
    task, folder = make_task(), tmp_path / "folder"
    place = folder / name_file(task)
    whole = embed(task, TINY, settings=FINE).save(tmp_path / "whole").read_bytes()
    folder.mkdir()
    if foreign == "folder":
        place.mkdir()
    elif foreign == "dangling":
        place.symlink_to(folder / "nowhere")
    else:  # cut off, or of a version to come
        place.write_bytes(whole[:-9] if foreign == "truncated" else whole.replace(rb"schema\\\": 1", rb"schema\\\": 2"))
        assert place.read_bytes() != whole
    before = content(folder)
    for _ in range(2):
        assert not run([task], folder)[0].is_found
        assert before.items() <= content(folder).items() and os.path.lexists(place)
        assert len(list(folder.iterdir())) == 2 and run([task], folder)[0].is_found
        longer, _ = find_saved(folder, task, TINY, settings=FINE)
        longer.write_bytes(longer.read_bytes()[:100])  # its own file under the longer name is written anew


def test_two_tasks_of_one_name_are_refused_at_the_call_unless_they_are_the_same(tmp_path):
    task = make_task()
    words = r"2 tasks would be saved in one file, 'colours.*its own name"
    refuse(UsageError, words, embed_many, [task, make_task(seed=1)], TINY, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(run([task, task], tmp_path)) == 2
    assert len(list(embed_many([task, make_task(seed=1)], TINY, settings=FINE))) == 2  # without a folder nobody minds


@pytest.mark.parametrize("name", ["../../up", "鸟", "x" * 400])
def test_any_name_becomes_a_file_in_the_folder(tmp_path, name):
    folder = tmp_path / "deep" / "kept"
    task = replace(make_task(), name=name)
    assert run([task], folder)[0].task == name
    found = list(folder.iterdir())
    assert len(found) == 1 and len(list(tmp_path.rglob("*"))) == 3
    assert found[0].name.endswith(SUFFIX) and not found[0].name.startswith("..")
    assert found[0].name.isascii() and len(found[0].name) < 200
    again = run([task], folder)[0]
    assert again.is_found and again.embedding.task == name


def test_old_leftovers_are_swept_and_young_ones_may_be_in_use(tmp_path):
    old, young, mine = (tmp_path / name for name in (f".a{SUFFIX}.x.partial", f".b{SUFFIX}.y.partial", ".mine.partial"))
    for place in (old, young, mine):
        place.write_text("half")
    for place in (old, mine):
        os.utime(place, (time.time() - 7200,) * 2)
    assert open_folder(tmp_path) == tmp_path
    assert not old.exists() and young.exists() and mine.exists()


def test_what_is_made_is_kept_and_found_again_under_the_name_that_is_given(library):
    tasks = [replace(task, source=f"from {n}") for n, task in enumerate(ask_binary(3))]
    first = run_many([*tasks[:2], tasks[0]], TINY, library=library)
    assert not any(result.is_found for result in first)
    assert {task.name: task.source for task in library.tasks()} == {task.name: task.source for task in tasks[:2]}
    again = run_many([replace(tasks[0], name="other"), *tasks[1:]], TINY, library=library)
    assert [result.is_found for result in again] == [True, True, False] and len(library) == 3
    assert again[0].embedding.task == "other"
    for one, other in zip(first[:2], again[:2], strict=True):
        np.testing.assert_array_equal(one.embedding.fisher, other.embedding.fisher)
    change(library, "DELETE FROM contents WHERE embedding = 1")  # a damaged one is made again
    assert [result.is_found for result in run_many(tasks, TINY, library=library)] == [False, True, True]
    assert not run_many(tasks[:1], replace(TINY, fingerprint="0" * 64), library=library)[0].is_found


def test_what_one_place_has_the_other_gets(tmp_path, library):
    tasks, old, new = ask_binary(2), tmp_path / "old", tmp_path / "new"
    first = run_many(tasks, TINY, folder=old)
    for place in (old, new):  # from the folder to the library, and from there to a new folder
        found = run_many(tasks, TINY, folder=place, library=library)
        assert all(result.is_found for result in found) and len(library) == 2
        assert content(place) == content(old)
    np.testing.assert_array_equal(found[0].embedding.fisher, first[0].embedding.fisher)


# --- intervals of the Fisher of the population ---


def make_noisy(fisher, stderr, *, images=100, layers=1):
    """An embedding whose filters are spread evenly over `layers`."""
    arrays = [np.array(values, dtype=float) for values in (fisher, stderr)]
    size = len(arrays[0]) // layers
    kinds = tuple(FilterLayer(f"conv{number}", "convolution", size, 9, 0.1) for number in range(layers))
    return Embedding("birds", "net", *arrays, np.ones(len(arrays[0])), kinds, {"counts": {"images_used": images}})


def test_an_interval_is_students_in_the_logarithm_and_the_rule_of_three_above():
    """Of 100 equal images each has a hundredth of the Fisher, and fewer than 3 in 100 may be of another kind."""
    fisher, stderr = np.array([[1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]]), np.array([0.1, 0.4, 0.9, 0.0])
    embedding = make_noisy(fisher.ravel(), np.append(stderr, np.zeros(4)), layers=2)
    for level in (0.5, 0.95, 0.999):
        low, high = (each.reshape(2, 4) for each in embedding.interval(level))
        error = stderr[:3] / fisher[0, :3]
        images = 1 / (1 / 100 + error**2)
        half = scipy.stats.t.ppf((1 + level) / 2, images) * error
        rare = -np.log(1 - level) * (fisher[0, :3] / images).sum() / 4
        assert np.allclose(np.log(fisher[0, :3] / low[0, :3]), half)
        assert np.allclose(high[0], np.maximum([*(fisher[0, :3] * np.exp(half)), 0], rare))
        assert low[0, 3] == 0 and not low[1].any() and not high[1].any()  # a layer without Fisher
    low, high = make_noisy([1.0, 0.0], [0.0, 0.0]).interval()
    assert low.tolist() == [1, 0] and high == pytest.approx([1, 3 / 100 / 2], rel=0.01)


def test_an_interval_is_finite_whatever_the_error_and_its_level_is_a_probability():
    rare = make_noisy([1e-30, 1.0], [1.0, 5.0])
    for embedding in (rare, trivial(rare), make_noisy([1.0], [0.0], images=float("inf"))):
        assert np.isfinite(embedding.interval(0.9999)).all()
    for level in (0, 1, 1.5, -0.1, float("nan")):
        refuse(UsageError, "between 0 and 1", rare.interval, level)


def test_an_interval_holds_for_heavy_tails_where_the_normal_interval_does_not():
    """Lognormal Fisher, by images of unequal size, in filters that respond to 3% to all of them."""
    rng, often = np.random.default_rng(0), np.geomspace(0.03, 1, 60)
    truth, normal, own = often * np.exp((0.6**2 + 0.8**2) / 2), [], []
    for _ in range(60):
        rows = np.exp(0.6 * rng.standard_normal((100, 1)) + 0.8 * rng.standard_normal((100, 60)))
        rows *= rng.random((100, 60)) < often
        embedding = make_noisy(rows.mean(0), rows.std(0, ddof=1) / 10)
        low, high = embedding.interval()
        own.append((low <= truth) & (truth <= high))
        normal.append(np.abs(embedding.fisher - truth) <= 1.96 * embedding.stderr)
    assert np.mean(normal) < 0.88
    assert 0.92 < np.mean(own) < 0.985
    assert min(part.mean() for part in np.array_split(np.array(own), 6, axis=1)) > 0.9  # also in rare filters
