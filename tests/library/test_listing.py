"""Names become entries: by name, by the first digits of a fingerprint or key, and with help where it is unclear."""

import pytest

from task2vec.errors import AmbiguousNameError, LibraryError, NotInLibraryError, UsageError
from task2vec.library import Expert, MeasuredError
from tests.library.making import fingerprint_of, make


def test_tasks_by_name_with_all_that_is_noted(library):
    library.add(make("b", 2), tags=["y", "x"], taxon="birds", source="folder")
    library.add(make("a", 1), make("a", 1, settings={"method": "direct", "seed": 0}))
    one, two = library.tasks()
    assert [one.name, two.name] == ["a", "b"]
    assert (two.tags, two.taxon, two.source, two.images, two.counts) == (("x", "y"), "birds", "folder", 10, (5, 5))
    assert [entry.settings["method"] for entry in one.embeddings] == ["robust", "direct"]
    assert [task.name for task in library.tasks(tag="x")] == ["b"] and library.tasks(tag="z") == []
    assert len(library.tasks(probe="net")) == 2 and library.tasks(probe="other") == []


def test_digits_of_a_fingerprint_or_key(library):
    library.add(make("low", 0xABCDEF), make("high", 0xABCDEF << 232))
    key = library.task("low").embeddings[0].key
    assert library.task("abcdef").name == "high"
    assert library.get("ABCDEF00").task == "high"
    assert library.get(key[:8]).task == library.get(key).task == "low"
    for what in ("abc", "abcdef1", "0xabcdef", ""):
        with pytest.raises(NotInLibraryError):
            library.get(what)


def test_digits_that_begin_two(library):
    library.add(make("one", 0xABCD1 << 236), make("two", 0xABCD2 << 236))
    with pytest.raises(AmbiguousNameError, match="2 tasks"):
        library.task("abcd")
    with library._database.writing() as connection:
        connection.execute("UPDATE embeddings SET key = 'beef' || id")
    with pytest.raises(AmbiguousNameError, match="2 embeddings begin with 'beef'"):
        library.get("beef")


def test_two_tasks_of_one_name(library):
    library.add(make("birds", 1 << 240), make("birds", 2 << 240))
    with pytest.raises(AmbiguousNameError, match="2 tasks") as caught:
        library.get("birds")
    assert fingerprint_of(1 << 240)[:8] in str(caught.value) and caught.value.exit_code == 2
    for change in (
        lambda: library.remove("birds"),
        lambda: library.rename("birds", "x"),
        lambda: library.tag("birds", "x"),
    ):
        with pytest.raises(AmbiguousNameError):
            change()
    assert len(library) == 2
    library.remove(fingerprint_of(1 << 240))
    assert library.get("birds").provenance["task_fingerprint"] == fingerprint_of(2 << 240)


def test_one_task_with_several_embeddings(library):
    direct = {"method": "direct", "seed": 0}
    library.add(make("a", 1), make("a", 1, settings=direct), make("a", 1, probe="other", probe_fingerprint="cd" * 32))
    with pytest.raises(AmbiguousNameError, match="3 embeddings"):
        library.get("a")
    assert library.get("a", probe="other").probe == "other" == library.get("a", probe="cdcd").probe
    assert library.get("a", probe="net", method="direct").provenance["settings"] == direct
    with pytest.raises(NotInLibraryError, match="no embedding by variational"):
        library.get("a", method="variational")


def test_help_for_a_name_that_is_not_there(filled):
    with pytest.raises(NotInLibraryError, match="Did you mean 'task 1'") as caught:
        filled.get("tsk 1")
    assert caught.value.exit_code == 2 and not str(caught.value).startswith('"')
    with pytest.raises(UsageError, match="no UTF-8"):
        filled.get("\udcff")


def test_an_empty_library_is_friendly(library):
    assert library.tasks() == library.experts() == library.errors() == library.runs() == []
    with pytest.raises(NotInLibraryError, match="it is empty"):
        library.get("birds")
    assert library.nearest(make("a", 1)) == []
    assert repr(library) == "Library(0 tasks, 0 embeddings, 0 experts, 0 errors)"


def test_errors_by_protocol(filled):
    filled.add(Expert("e", "timm", "x"), Expert("f", "hub", "y"))
    cells = [("e", "p", 0), ("e", "p", 1), ("f", "q", 0)]
    filled.add(
        *(MeasuredError(fingerprint_of(1), expert, 0.5, protocol, seed=seed) for expert, protocol, seed in cells)
    )
    assert [(one.expert, one.protocol, one.seed) for one in filled.errors()] == cells
    assert [one.expert for one in filled.errors("q")] == ["f"]


@pytest.mark.parametrize(
    ("damage", "ask"),
    [
        ("UPDATE tasks SET classes = '[' WHERE id = 2", "tasks"),
        ("UPDATE tasks SET counts = '5' WHERE id = 2", "tasks"),
        ("UPDATE embeddings SET settings = '{' WHERE id = 2", "tasks"),
        ("UPDATE spaces SET settings = '{'", "stats"),
        ("UPDATE experts SET recipe = '[1]'", "experts"),
        ("UPDATE experts SET source = 'ftp'", "experts"),
        ("UPDATE errors SET error = 7", "errors"),
        ("UPDATE runs SET story = 'x'", "runs"),
    ],
)
def test_rows_that_are_damaged_say_so(filled, damage, ask):
    filled.add(Expert("e", "timm", "x"), MeasuredError(fingerprint_of(1), "e", 0.5, "p"))
    with filled.record("run"):
        pass
    with filled._database.writing() as connection:
        connection.execute(damage)
    with pytest.raises(LibraryError, match="damaged") as caught:
        getattr(filled, ask)()
    assert caught.value.exit_code == 4
