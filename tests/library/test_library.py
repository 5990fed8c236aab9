"""The library as users see it: adding, finding, removing, names, places, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from task2vec import Library, errors
from task2vec.library import Expert, MeasuredError, find_library, has_library, identify
from tests.failures import fail, refuse
from tests.library.material import DIRECT, OTHER_PROBE, change, fingerprint_of, make, read_bytes

EXPERT = Expert("e", "timm", "resnet34", recipe={"epochs": 3}, parameters=21_000_000, cost=3)
ERROR = MeasuredError(fingerprint_of(1), "e", 0.25, "p", seed=1, low=0.2, high=0.3, measured_by="me")


def test_neighbours_are_of_one_space_and_never_the_task_itself(filled):
    filled.add(
        make("direct", 1, settings=DIRECT),
        make("again", 1, settings={"method": "robust", "seed": 5}),
        make("stranger", 30, probe_fingerprint=OTHER_PROBE),
        make("narrow", 32, filters=49),
    )
    for what, has_first in (("task 0", False), (make("task 0", 0), False), (make("not in the library", 40), True)):
        near = filled.nearest(what, 20)
        names = [one.task.name for one in near]
        assert not {"stranger", "narrow"} & set(names) and ("task 0" in names) == has_first
        assert [one.distance for one in near] == sorted(one.distance for one in near)
        assert all(one.embedding.settings["method"] == "robust" for one in near)
    for other in ({}, {"probe": "another name"}, {"settings": {"method": "robust", "seed": 9}}):
        near = filled.nearest(make("x", 31, probe_fingerprint=OTHER_PROBE, **other))
        assert [one.task.name for one in near] == ["stranger"]
    refuse(errors.UsageError, "at least one", filled.nearest, "task 0", 0)


def test_tags_names_and_removing(filled):
    assert filled.tag("task 1", "a", "b").tags == ("a", "b", "small")
    assert filled.tag("task 1", "a", "unknown", remove=True).tags == ("b", "small")
    assert filled.rename("task 1", "new name").name == filled.get("new name").task == "new name"
    for edit in (filled.rename, filled.tag):
        refuse(errors.UsageError, "Give a text that is not empty", edit, "new name", " ")
    filled.add(make("task 1", 1, settings=DIRECT), tags="bird")
    assert filled.task("new name").tags == ("b", "bird", "small")  # no list of letters
    key = filled.task("new name").embeddings[0].key
    (gone,) = filled.remove(key[:10])
    assert gone.key == key and len(filled.task("new name").embeddings) == 1
    filled.add(EXPERT, MeasuredError(fingerprint_of(2), "e", 0.5, "p"))
    refuse(errors.UsageError, "1 errors were measured", filled.remove, "task 2")
    refuse(errors.UsageError, "1 errors were measured", filled.remove_expert, "e")
    filled.remove("task 2", with_errors=True)
    assert filled.errors() == [] and len(filled) == 5
    filled.remove_expert("e")
    assert filled.experts() == []
    refuse(errors.NotInLibraryError, "there is no task", filled.remove, "task 2")
    refuse(errors.NotInLibraryError, "there is no expert", filled.remove_expert, "e")
    assert filled.verify().is_sound


def test_runs(filled):
    with filled.record("embed", {"folder": "x"}) as number:
        (run,) = filled.runs()
        assert (run.id, run.what, run.ended) == (number, "embed", None)
    with pytest.raises(ZeroDivisionError), filled.record("fail"):
        raise ZeroDivisionError("by zero")
    assert [run.outcome for run in filled.runs()] == ["done", "ZeroDivisionError: by zero"]
    for details in ({"x": object()}, {"x": float("nan")}):
        with pytest.raises(errors.UsageError), filled.record("bad", details):
            pass
    assert len(filled.runs()) == 2


def test_the_file_itself_or_a_copy_of_it_can_be_opened(filled, tmp_path):
    filled.close()
    (tmp_path / "copy.sqlite").write_bytes((filled.folder / "library.sqlite").read_bytes())
    with Library.open(tmp_path / "copy.sqlite") as copy, Library.open(tmp_path / "new") as new:
        assert len(copy) == 6 and copy.verify().is_sound
        assert new.merge(tmp_path / "copy.sqlite").added["embedding"] == 6


# --- W7: the same again, and something else under one key ---


def test_the_very_same_changes_no_byte(filled):
    filled.add(EXPERT, ERROR)
    filled.close()  # so that the WAL is merged
    before = read_bytes(filled.folder)
    with Library.open(filled.folder) as library:
        again = library.add(*(make(f"task {seed}", seed) for seed in range(6)), EXPERT, ERROR, tags=["small"])
        again += library.add(make("task 3", 3), replace=True)
        assert not any(one.is_new for one in again)
    assert read_bytes(filled.folder) == before


def test_other_numbers_under_one_key_are_refused_and_named(filled):
    before = filled.get("task 2").fisher
    words = r"'task 2'.*numbers differ.*replace=True"
    found = refuse(errors.ConflictError, words, filled.add, make("new", 50), make("task 2", 2, numbers=99))
    assert found.exit_code == 3 and np.array_equal(filled.get("task 2").fisher, before)
    assert len(filled) == 6 and "new" not in {task.name for task in filled.tasks()}
    for other in (make("task 2", 2, halves=np.ones((2, 50))), make("task 2", 2, prior=0.5)):  # each part counts
        refuse(errors.ConflictError, "numbers differ", filled.add, other)
    (added,) = filled.add(make("task 2", 2, numbers=99), replace=True)
    assert added.is_new and added.name == "task 2"
    assert np.array_equal(filled.get("task 2").fisher, make("", 2, numbers=99).fisher)
    assert change(filled, "SELECT count(*) FROM contents") == [(6,)]
    near = {one.task.name: one.distance for one in filled.nearest("task 0")}
    with Library.open(filled.folder) as library:
        assert {one.task.name: one.distance for one in library.nearest("task 0")} == near
    assert filled.verify().is_sound


def test_a_task_is_known_by_its_images_and_an_embedding_by_all_that_determines_it(filled):
    for taxon, source in (("birds", "there"), ("plants", "elsewhere")):
        (added,) = filled.add(make("another name", 2), tags=["new"], taxon=taxon, source=source)
        task = filled.task("task 2")
        assert (added.is_new, added.name) == (False, "task 2")
        assert (task.tags, task.taxon, task.source) == (("new", "small"), "birds", "there")
    seed = {"method": "robust", "seed": 1}
    for other in ({"settings": DIRECT}, {"settings": seed}, {"probe_fingerprint": OTHER_PROBE}, {"recipe": 3}):
        (added,) = filled.add(make("task 2", 2, numbers=99, **other))
        assert added.is_new, other
    assert len(filled.task("task 2").embeddings) == 5 and len(filled) == 6
    same = {"versions": {"torch": "9"}, "device": "cuda", "probe": "another name of the probe"}
    (added,) = filled.add(make("x", 2, settings={"seed": 0, "method": "robust"}, **same))
    assert not added.is_new


def test_experts_and_errors_are_not_overwritten(filled):
    filled.add(EXPERT, ERROR)
    assert filled.errors("p") == filled.errors() != [] == filled.errors("q")
    costly = Expert("e", "timm", "resnet34", recipe={"epochs": 3}, parameters=21_000_000, cost=4)
    other = MeasuredError(fingerprint_of(1), "e", 0.5, "p", seed=1)
    refuse(errors.ConflictError, "its cost differs", filled.add, costly)
    refuse(errors.ConflictError, r"0\.2500.*0\.5000", filled.add, other)
    lost = MeasuredError(fingerprint_of(1), "unknown", 0.5, "p")
    refuse(errors.NotInLibraryError, "no expert 'unknown'", filled.add, make("new", 60), lost)
    assert len(filled) == 6 and filled.experts() == [EXPERT] and filled.errors()[0].error == 0.25
    filled.add(MeasuredError(fingerprint_of(1), "e", 0.4, "of the old weights"))
    filled.add(Expert("e", "file", "x.pt"), other, replace=True)
    assert filled.experts()[0].location == "x.pt"
    assert [(one.error, one.low, one.measured_by) for one in filled.errors()] == [(0.5, None, "")]


@pytest.mark.parametrize("text", ["\ud800", "x" * 70_000, 5])
def test_texts_that_cannot_be_saved(filled, text):
    before, new = filled.stats(), make("new", 60)
    for given in ({"tags": [text]}, {"taxon": text}, {"source": text}):
        refuse(errors.UsageError, None, filled.add, new, **given)
    for edit in (filled.rename, filled.tag):
        refuse(errors.UsageError, None, edit, "task 1", text)
    refuse(errors.UsageError, None, Expert, text, "timm", "net")
    refuse(errors.Task2VecError, None, lambda: filled.add(make(text, 60)))
    assert filled.stats() == before


def test_strange_names_are_stored_verbatim(library):
    library.add(make("other", 2))
    for name in ("../../etc/passwd", "a\nb", "\x1b[2J", "'; DROP TABLE tasks; --", "null\0byte", "%s {0}"):
        library.add(make(name, 1), tags=[name], taxon=name, source=name)
        task = library.task(name)
        assert (task.name, task.tags, task.taxon, task.source) == (name, (name,), name, name)
        assert library.get(name).task == library.nearest("other")[0].task.name == name
        assert library.remove(name) and len(library) == 1
    assert {path.name.partition("-")[0] for path in library.folder.iterdir()} == {"library.sqlite"}


# --- names become entries ---


def test_tasks_by_name_with_all_that_is_noted(library):
    assert library.tasks() == library.experts() == library.errors() == library.runs() == []
    refuse(errors.NotInLibraryError, "it is empty", library.get, "birds")
    assert library.nearest(make("a", 1)) == []
    assert repr(library) == "Library(0 tasks, 0 embeddings, 0 experts, 0 errors)"
    library.add(make("b", 2), tags=["y", "x"], taxon="birds", source="folder")
    library.add(make("a", 1), make("a", 1, settings=DIRECT))
    one, two = library.tasks()
    assert [one.name, two.name] == ["a", "b"]
    assert (two.tags, two.taxon, two.source, two.images, two.counts) == (("x", "y"), "birds", "folder", 10, (5, 5))
    assert [entry.settings["method"] for entry in one.embeddings] == ["robust", "direct"]
    assert [task.name for task in library.tasks(tag="x")] == ["b"] and library.tasks(tag="z") == []
    assert len(library.tasks(probe="net")) == 2 and library.tasks(probe="other") == []


def test_names_and_digits_of_one_and_of_several(library):
    library.add(make("low", 0xABCDEF), make("high", 0xABCDEF << 232))
    key = library.task("low").embeddings[0].key
    assert library.task("abcdef").name == library.get("ABCDEF00").task == "high"
    assert library.get(key[:8]).task == library.get(key).task == "low"
    for what in ("abc", "abcdef1", "0xabcdef", ""):
        refuse(errors.NotInLibraryError, "there is no task", library.get, what)
    refuse(errors.UsageError, "not valid Unicode", library.get, "\udcff")
    first, second = 0xBCD01 << 236, 0xBCD02 << 236
    library.add(make("birds", first), make("birds", second))
    found = refuse(errors.AmbiguousNameError, "2 tasks", library.get, "birds")
    assert fingerprint_of(first)[:8] in str(found) and found.exit_code == 2
    for ask, *given in ((library.task, "bcd0"), (library.remove, "birds"), (library.tag, "birds", "x")):
        refuse(errors.AmbiguousNameError, "2 tasks", ask, *given)
    library.remove(fingerprint_of(first))
    assert library.get("birds").provenance["task_fingerprint"] == fingerprint_of(second)
    change(library, "UPDATE embeddings SET key = 'beef' || id")
    refuse(errors.AmbiguousNameError, "keys of 3 embeddings begin with 'beef'", library.get, "beef")


def test_one_task_with_several_embeddings(library):
    other = make("a", 1, probe="other", probe_fingerprint=OTHER_PROBE)
    library.add(make("a", 1), make("a", 1, settings=DIRECT), other)
    refuse(errors.AmbiguousNameError, "3 embeddings", library.get, "a")
    assert library.get("a", probe="other").probe == "other" == library.get("a", probe="cdcd").probe
    assert library.get("a", probe="net", method="direct").provenance["settings"] == DIRECT
    refuse(errors.NotInLibraryError, "no embedding by variational", library.get, "a", method="variational")


def test_damaged_rows_are_reported(full):
    for damage, method in (
        ("spaces SET settings = '{'", "stats"),
        ("experts SET recipe = '[1]'", "experts"),
        ("errors SET error = 7", "errors"),
        ("runs SET details = 'x'", "runs"),
        ("embeddings SET settings = '{' WHERE id = 2", "tasks"),
        ("tasks SET counts = '5' WHERE id = 2", "tasks"),
    ):
        change(full, f"UPDATE {damage}")
        assert refuse(errors.LibraryError, "damaged", getattr(full, method)).exit_code == 4


# --- places ---


def test_the_order_of_places(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    for given, variable, data, found in (
        ("mine", "/team", "/data", "mine"),
        ("~/mine", "/team", "/data", "/home/ada/mine"),
        (None, "~/team", "/data", "/home/ada/team"),
        (None, "", "/data", "/data/task2vec"),
        (None, "", "relative", "/home/ada/.local/share/task2vec"),
    ):
        monkeypatch.setenv("TASK2VEC_LIBRARY", variable)
        monkeypatch.setenv("XDG_DATA_HOME", data)
        assert find_library(given) == Path(found)


def test_no_home(monkeypatch):
    monkeypatch.delenv("TASK2VEC_LIBRARY")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "expanduser", fail(RuntimeError("Could not determine home directory.")))
    for given in (None, "~nobody-of-that-name/library"):
        assert refuse(errors.ResourceError, "--library DIR", find_library, given).exit_code == 5


def test_a_library_below_folders_that_are_not_there(tmp_path):
    place = tmp_path / "a" / "b" / "ü %3F?#"
    with Library.open(place) as library:
        assert len(library) == 0
    assert has_library(place) and not has_library(tmp_path) and (place / "library.sqlite").is_file()


# --- identity ---


BAD_PROVENANCE = {
    "task_fingerprint": [None, "../x", "ab"],
    "probe_fingerprint": ["X" * 64],
    "settings": ["x", [], {"x": float("nan")}, {"x": {1, 2}}, {"x": "y" * 70_000}],
    "recipe": ["2", -1, True, 1 << 60],
    "classes": ["ab", ["a"], ["a", 5]],
    "counts": [[], {}, *({"images": n, "per_class": own} for n, own in ((-1, [5, 5]), (1.5, [5, 5]), (10, [5, -5])))],
}


def test_provenance_that_is_invalid_or_missing():
    for name, values in BAD_PROVENANCE.items():
        for value in values:
            refuse(errors.DataError, "is incomplete", identify, make("a", 1, **{name: value}))
    for name in (*BAD_PROVENANCE.keys() - {"recipe"}, "is_multilabel"):  # an unknown recipe is another one
        part = make("a", 1)
        del part.provenance[name]
        refuse(errors.DataError, name, identify, part)
    for error in (None, "0.1", float("nan"), float("inf"), 10**400, -1, []):  # optional, and not listed
        assert identify(make("a", 1, head={"cv_error": error})).cv_error is None
        assert identify(make("a", 1, head=error)).cv_error is None
    assert identify(make("a", 1)).cv_error == 0.1
