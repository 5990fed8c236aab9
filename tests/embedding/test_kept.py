"""Embeddings that are on disk already: found if they are the same, computed if not, and nothing else is touched."""

import os
import time
from dataclasses import replace

import pytest

from task2vec.embedding import embed, embed_many, load_embedding, name_file
from task2vec.embedding.embedding import find_kept, find_place, open_folder
from task2vec.errors import UsageError
from task2vec.fisher import PerSampleFisher
from tests.embedding.conftest import make_task
from tests.embedding.families import FINE, ask_binary, is_close
from tests.embedding.test_methods import make_tiny

TINY = make_tiny()
SUFFIX = ".t2v.safetensors"


def run(tasks, folder, probe=TINY, **options):
    results = list(embed_many(tasks, probe, **{"settings": FINE, **options}, folder=folder))
    assert all(result.error is None for result in results)
    return sorted(results, key=lambda result: result.number)


def content(folder):
    return {place.name: place.read_bytes() for place in folder.iterdir()}


@pytest.fixture
def nothing_runs(monkeypatch):
    """No image may be loaded, and the network may not run."""

    def refuse(*_, **__):
        raise AssertionError("this was to be found, not computed")

    monkeypatch.setattr("task2vec.embedding.batching.Pixels.load", refuse)
    monkeypatch.setattr(PerSampleFisher, "rows_by_seed", refuse)


# --- found ---


def test_a_second_run_finds_everything(tmp_path, request):
    tasks = ask_binary(5)
    first = run(tasks, tmp_path)
    assert sorted(content(tmp_path)) == [f"question-{i}{SUFFIX}" for i in range(5)]
    before = content(tmp_path)
    request.getfixturevalue("nothing_runs")
    second = run(tasks, str(tmp_path))
    assert [result.is_found for result in first] == [False] * 5
    assert [result.is_found for result in second] == [True] * 5
    for one, other in zip(first, second, strict=True):
        assert (one.number, one.task) == (other.number, other.task)
        assert is_close(other.embedding, one.embedding, error=0)
    assert content(tmp_path) == before


def test_what_is_missing_is_computed_and_no_more(tmp_path):
    tasks = ask_binary(4)
    run(tasks[1:3], tmp_path)
    told = list(embed_many(tasks, TINY, settings=FINE, folder=tmp_path))
    assert [(result.number, result.is_found) for result in told] == [(1, True), (2, True), (0, False), (3, False)]
    assert len(content(tmp_path)) == 4
    assert is_close(told[3].embedding, embed(tasks[3], TINY, settings=FINE), error=1e-9)


def test_what_embed_has_saved_is_found(tmp_path):
    task = make_task()
    embed(task, TINY, settings=FINE).save(tmp_path / name_file(task))
    assert run([task], tmp_path)[0].is_found


def test_names_of_classes_and_the_order_of_images_do_not_matter(tmp_path):
    task = make_task()
    run([task], tmp_path)
    again = replace(task.subset(range(len(task))[::-1]), classes=("x", "y", "z"))
    assert run([again], tmp_path)[0].is_found


# --- computed again, beside what is there ---


@pytest.mark.parametrize("change", ["settings", "probe", "data"])
def test_another_embedding_of_that_name_is_computed_and_both_are_kept(tmp_path, change):
    task, other_probe = make_task(), make_tiny()
    other_probe = replace(other_probe, fingerprint="0" * 64) if change == "probe" else other_probe
    options = {
        "settings": (task, TINY, replace(FINE, seed=1)),
        "probe": (task, other_probe, FINE),
        "data": (make_task(seed=9), TINY, FINE),
    }[change]
    first = run([task], tmp_path)[0]
    before = content(tmp_path)
    second = run([options[0]], tmp_path, options[1], settings=options[2])[0]
    assert not second.is_found
    after = content(tmp_path)
    assert len(after) == 2 and before.items() <= after.items()
    # Both are found from now on, each as itself.
    assert run([task], tmp_path)[0].is_found
    again = run([options[0]], tmp_path, options[1], settings=options[2])[0]
    assert again.is_found and content(tmp_path) == after
    assert is_close(again.embedding, second.embedding, error=0)
    assert (again.embedding.fisher.tolist() != first.embedding.fisher.tolist()) == (change != "probe")


@pytest.mark.parametrize("foreign", [b"", b"my notes", "truncated", "newer", "folder", "dangling"])
def test_a_file_that_is_no_such_embedding_stays(tmp_path, foreign):
    task = make_task()
    place = tmp_path / name_file(task)
    whole = embed(task, TINY, settings=FINE).save(tmp_path.parent / f"{tmp_path.name}-whole{SUFFIX}").read_bytes()
    if foreign == "folder":
        place.mkdir()
    elif foreign == "dangling":
        place.symlink_to(tmp_path / "nowhere")
    elif foreign == "newer":  # of a version to come
        place.write_bytes(whole.replace(rb"schema\\\": 1", rb"schema\\\": 2"))
        assert place.read_bytes() != whole
    else:
        place.write_bytes(whole[:-9] if foreign == "truncated" else foreign)
    before = None if foreign in ("folder", "dangling") else place.read_bytes()
    assert not run([task], tmp_path)[0].is_found
    assert place.is_dir() or place.is_symlink() or place.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
    assert run([task], tmp_path)[0].is_found


def test_embeddings_of_an_older_recipe_are_made_anew_and_stay(tmp_path, monkeypatch):
    (task,) = ask_binary(1)
    monkeypatch.setattr("task2vec.embedding.single.RECIPE", 1)
    old = next(embed_many([task], TINY, settings=FINE, folder=tmp_path))
    monkeypatch.undo()
    new = next(embed_many([task], TINY, settings=FINE, folder=tmp_path))
    assert not new.is_found and old.embedding.provenance["recipe"] < new.embedding.provenance["recipe"]
    assert len(list(tmp_path.iterdir())) == 2
    assert next(embed_many([task], TINY, settings=FINE, folder=tmp_path)).is_found


def test_a_damaged_file_under_the_longer_name_is_written_anew(tmp_path):
    task = make_task()
    (tmp_path / name_file(task)).write_text("my notes")
    run([task], tmp_path)
    place = find_place(tmp_path, task, TINY, settings=FINE)
    assert place.name != name_file(task)
    place.write_bytes(place.read_bytes()[:100])
    assert find_kept(tmp_path, task, TINY, settings=FINE) is None
    assert not run([task], tmp_path)[0].is_found
    assert load_embedding(place).task == "colours" and len(content(tmp_path)) == 2


def test_longer_names_tell_data_probe_and_settings_apart(tmp_path):
    task, other_probe = make_task(), replace(make_tiny(), fingerprint="0" * 64)
    (tmp_path / name_file(task)).write_text("my notes")
    kinds = [
        (task, TINY, FINE),
        (make_task(seed=9), TINY, FINE),
        (task, other_probe, FINE),
        (task, TINY, replace(FINE, seed=1)),
    ]
    for is_found in (False, True):
        for own, probe, settings in kinds:
            assert run([own], tmp_path, probe, settings=settings)[0].is_found == is_found
    assert len(content(tmp_path)) == 5


def test_the_place_of_what_is_kept_is_told_even_if_the_name_has_become_free(tmp_path):
    task, other = make_task(), make_task(seed=9)
    run([other], tmp_path)
    run([task], tmp_path)
    place = find_place(tmp_path, task, TINY, settings=FINE)
    (tmp_path / name_file(other)).unlink()
    assert place.exists() and find_place(tmp_path, task, TINY, settings=FINE) == place


# --- names ---


def test_two_tasks_of_one_name_are_refused_at_the_call_unless_they_are_the_same(tmp_path):
    task = make_task()
    with pytest.raises(UsageError, match=r"2 tasks would be kept in one file, 'colours.*name of its own"):
        embed_many([task, make_task(seed=1)], TINY, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(run([task, task], tmp_path)) == 2
    assert len(list(embed_many([task, make_task(seed=1)], TINY, settings=FINE))) == 2  # without a folder nobody minds


@pytest.mark.parametrize(
    "name", ["a/b", "../../up", "Vögel über Häuser", "鸟", "", ".", "..", "a\x00b\n", "x" * 400, "C:\\x", "💡" * 200]
)
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


def test_names_that_look_alike_in_a_file_are_kept_apart(tmp_path):
    tasks = [replace(task, name=name) for task, name in zip(ask_binary(3), ["a b", "a/b", "a_b"], strict=True)]
    run(tasks, tmp_path)
    assert len(content(tmp_path)) == 3 and f"a_b{SUFFIX}" in content(tmp_path)
    assert [result.is_found for result in run(tasks, tmp_path)] == [True] * 3


def test_one_content_under_two_names_that_share_a_file_is_told_by_both(tmp_path):
    task = make_task()
    tasks = [replace(task, name="鸟"), replace(task, name="鱼")]
    assert name_file(tasks[0]) == name_file(tasks[1])
    run(tasks, tmp_path)
    assert [result.embedding.task for result in run(tasks, tmp_path)] == ["鸟", "鱼"]


# --- what killed writers leave ---


def test_old_leftovers_are_swept_and_young_ones_may_be_in_use(tmp_path):
    old, young, mine = (tmp_path / name for name in (f".a{SUFFIX}.x.partial", f".b{SUFFIX}.y.partial", ".mine.partial"))
    for place in (old, young, mine):
        place.write_text("half")
    for place in (old, mine):
        os.utime(place, (time.time() - 7200,) * 2)
    assert open_folder(tmp_path) == tmp_path
    assert not old.exists() and young.exists() and mine.exists()
