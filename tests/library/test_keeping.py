"""W7: the same again changes nothing, something else under one key is refused, and `replace` replaces."""

import numpy as np
import pytest

from task2vec.errors import ConflictError, NotInLibraryError, Task2VecError, UsageError
from task2vec.library import Expert, Library, MeasuredError
from tests.library.making import fingerprint_of, make, read_bytes

EXPERT = Expert("e", "timm", "resnet34", recipe={"epochs": 3}, parameters=21_000_000, cost=3)


def read_closed(library):
    """The bytes of a library that nobody has open."""
    library.close()
    return read_bytes(library.folder)


def test_the_very_same_changes_no_byte(filled):
    filled.add(EXPERT, MeasuredError(fingerprint_of(1), "e", 0.25, "p"))
    before = read_closed(filled)
    with Library.open(filled.folder) as library:
        again = library.add(*(make(f"task {seed}", seed) for seed in range(6)), tags=["small"])
        again += library.add(EXPERT, MeasuredError(fingerprint_of(1), "e", 0.25, "p"))
        again += library.add(make("task 3", 3), replace=True)
        assert not any(one.is_new for one in again)
    assert read_closed(library) == before


def test_other_numbers_under_one_key_are_refused_and_named(filled):
    before = filled.get("task 2").fisher
    size = read_bytes(filled.folder)
    with pytest.raises(ConflictError, match=r"'task 2'.*numbers differ.*replace=True") as caught:
        filled.add(make("new", 50), make("task 2", 2, numbers=99))
    assert caught.value.exit_code == 3
    assert np.array_equal(filled.get("task 2").fisher, before)
    assert len(filled) == 6 and "new" not in {task.name for task in filled.tasks()}
    filled.compact()
    assert filled.verify().is_sound and filled.verify().orphans == 0 and len(size) >= len(read_bytes(filled.folder)) - 1


def test_replace_takes_the_new_one_and_drops_the_old_blob(filled):
    (added,) = filled.add(make("task 2", 2, numbers=99), replace=True)
    assert added.is_new and added.name == "task 2"
    assert np.array_equal(filled.get("task 2").fisher, make("", 2, numbers=99).fisher)
    assert len(list(filled.folder.glob("blobs/*/*"))) == 6
    near = {one.task.name: one.distance for one in filled.nearest("task 0")}
    with Library.open(filled.folder) as library:
        assert {one.task.name: one.distance for one in library.nearest("task 0")} == near
    assert filled.verify().is_sound


def test_the_same_task_under_another_name(filled):
    (added,) = filled.add(make("another name", 2), tags=["new"], taxon="birds", source="there")
    assert (added.is_new, added.name) == (False, "task 2")
    task = filled.task("task 2")
    assert (task.tags, task.taxon, task.source) == (("new", "small"), "birds", "there")
    filled.add(make("another name", 2), taxon="plants", source="elsewhere")
    assert (filled.task("task 2").taxon, filled.task("task 2").source) == ("birds", "there")
    assert len(filled) == 6


@pytest.mark.parametrize(
    "other",
    [
        {"settings": {"method": "direct", "seed": 0}},
        {"settings": {"method": "robust", "seed": 1}},
        {"probe_fingerprint": "cd" * 32},
        {"recipe": 3},
        {"recipe": None},
    ],
)
def test_all_that_makes_an_embedding_is_in_its_key(filled, other):
    (added,) = filled.add(make("task 2", 2, numbers=99, **other))
    assert added.is_new and len(filled.task("task 2").embeddings) == 2


def test_what_does_not_make_it_is_not(filled):
    (added,) = filled.add(make("x", 2, versions={"torch": "9"}, device="cuda", probe="another name of the probe"))
    assert not added.is_new


def test_all_or_nothing(filled):
    before = filled.stats()
    with pytest.raises(NotInLibraryError):
        filled.add(make("new", 60), EXPERT, MeasuredError(fingerprint_of(1), "unknown", 0.5, "p"))
    with pytest.raises(UsageError, match="does not keep a str"):
        filled.add(make("new", 60), "task 1")
    assert filled.stats() == before
    assert filled.compact() and filled.verify().orphans == 0


def test_experts_and_errors_are_not_overwritten(filled):
    error = MeasuredError(fingerprint_of(1), "e", 0.25, "p", seed=1, low=0.2, high=0.3, measured_by="me")
    filled.add(EXPERT, error)
    with pytest.raises(ConflictError, match="its cost differs"):
        filled.add(Expert("e", "timm", "resnet34", recipe={"epochs": 3}, parameters=21_000_000, cost=4))
    with pytest.raises(ConflictError, match=r"0\.2500.*0\.5000"):
        filled.add(MeasuredError(fingerprint_of(1), "e", 0.5, "p", seed=1))
    assert filled.experts() == [EXPERT] and filled.errors()[0].error == 0.25
    filled.add(Expert("e", "file", "x.pt"), MeasuredError(fingerprint_of(1), "e", 0.5, "p", seed=1), replace=True)
    assert filled.experts()[0].location == "x.pt"
    assert [(one.error, one.low, one.measured_by) for one in filled.errors()] == [(0.5, None, "")]


HUGE = 10**400
BAD = [
    ("Expert", {"name": "", "source": "timm", "location": "x"}),
    ("Expert", {"name": None, "source": "timm", "location": "x"}),
    ("Expert", {"name": "e", "source": "ftp", "location": "x"}),
    ("Expert", {"name": "e\ud800", "source": "timm", "location": "x"}),
    ("Expert", {"name": "e" * 70_000, "source": "timm", "location": "x"}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "parameters": HUGE}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "parameters": 1 << 63}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "parameters": 1.5}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "parameters": -1}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "cost": HUGE}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "cost": float("nan")}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "input_size": True}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "recipe": {"rate": float("inf")}}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "recipe": {"rate": object()}}),
    ("Expert", {"name": "e", "source": "timm", "location": "x", "sha256": 5}),
    ("MeasuredError", {"task": "ab", "expert": "e", "error": 1.5, "protocol": "p"}),
    ("MeasuredError", {"task": "ab", "expert": "e", "error": float("nan"), "protocol": "p"}),
    ("MeasuredError", {"task": "ab", "expert": "e", "error": True, "protocol": "p"}),
    ("MeasuredError", {"task": None, "expert": "e", "error": 2, "protocol": "p"}),
    ("MeasuredError", {"task": "ab", "expert": "e", "error": 0.1, "protocol": None}),
    ("MeasuredError", {"task": "ab", "expert": "e", "error": 0.1, "protocol": "p", "seed": HUGE}),
    ("MeasuredError", {"task": "ab", "expert": "e", "error": 0.1, "protocol": "p", "seed": None}),
    ("MeasuredError", {"task": "ab", "expert": "e", "error": 0.1, "protocol": "p", "seed": 1.0}),
    ("MeasuredError", {"task": "ab", "expert": "e", "error": 0.1, "protocol": "p", "measured_by": None}),
]


@pytest.mark.parametrize(("kind", "told"), BAD)
def test_what_is_no_expert_or_error(kind, told):
    with pytest.raises(UsageError):
        {"Expert": Expert, "MeasuredError": MeasuredError}[kind](**told)


@pytest.mark.parametrize("text", ["\ud800", "x" * 70_000, 5, b"x"])
def test_texts_that_cannot_be_kept(filled, text):
    before = filled.stats()
    for told in ({"tags": [text]}, {"taxon": text}, {"source": text}):
        with pytest.raises(Task2VecError):
            filled.add(make("new", 60), **told)
    with pytest.raises(Task2VecError):
        filled.add(make(text, 60))
    with pytest.raises(Task2VecError):
        filled.rename("task 1", text)
    with pytest.raises(Task2VecError):
        filled.tag("task 1", text)
    assert filled.stats() == before


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "a\nb", "\x1b[2J", "<script>", "=cmd()", "'; DROP TABLE tasks; --", "null\0byte", "%s {0}"],
)
def test_strange_names_are_kept_as_they_are(library, name):
    library.add(make(name, 1), tags=[name], taxon=name, source=name)
    library.add(make("other", 2))
    task = library.task(name)
    assert (task.name, task.tags, task.taxon, task.source) == (name, (name,), name, name)
    assert library.get(name).task == name
    assert library.nearest("other")[0].task.name == name
    assert sorted(path.name for path in library.folder.iterdir() if "-" not in path.name) == [
        "blobs",
        "index.sqlite",
        "pending",
        "search",
    ]
    assert library.remove(name) and len(library) == 1


def test_a_single_tag_is_no_list_of_letters(library):
    library.add(make("a", 1), tags="bird")
    assert library.task("a").tags == ("bird",)
    with pytest.raises(UsageError):
        library.tag("a", " ")
