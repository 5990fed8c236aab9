"""`embed_many` with a shelf: asked before, given after, and no more than it knows what to do with."""

from dataclasses import replace

import numpy as np

from task2vec.embedding import embed_many
from tests.embedding.families import ask_binary
from tests.embedding.test_kept import FINE, TINY, content


class Memory:
    """A shelf in memory, which notes what it is asked."""

    def __init__(self):
        self.kept, self.asked = {}, []

    def find(self, task, probe, *, settings):
        self.asked.append((task.name, probe.fingerprint, settings))
        return self.kept.get(task.fingerprint)

    def keep(self, embedding, *, source):
        assert embedding.provenance["task_fingerprint"] not in self.kept
        self.kept[embedding.provenance["task_fingerprint"]] = embedding
        self.sources = {**getattr(self, "sources", {}), embedding.task: source}


def run(tasks, **options):
    return {result.number: result for result in embed_many(tasks, TINY, settings=FINE, **options)}


def test_what_is_made_is_kept_and_found_again():
    tasks = [replace(task, source=f"from {number}") for number, task in enumerate(ask_binary(3))]
    shelf = Memory()
    first = run(tasks[:2], shelf=shelf)
    assert [result.is_found for result in first.values()] == [False, False]
    assert shelf.asked == [(task.name, TINY.fingerprint, FINE) for task in tasks[:2]]
    assert {task: shelf.sources[task] for task in shelf.sources} == {task.name: task.source for task in tasks[:2]}
    again = run(tasks, shelf=shelf)
    assert [again[number].is_found for number in range(3)] == [True, True, False]
    for number in range(2):
        np.testing.assert_array_equal(again[number].embedding.fisher, first[number].embedding.fisher)
    assert len(shelf.kept) == 3


def test_a_result_has_the_name_that_was_given_and_not_that_of_the_shelf():
    (task,), shelf = ask_binary(1), Memory()
    run([task], shelf=shelf)
    (found,) = run([replace(task, name="other")], shelf=shelf).values()
    assert found.is_found and found.task == found.embedding.task == "other"


def test_a_task_that_is_given_twice_is_kept_once():
    (task,), shelf = ask_binary(1), Memory()
    found = run([task, replace(task, name="again")], shelf=shelf)
    assert len(found) == 2 and len(shelf.kept) == 1


def test_what_one_place_has_the_other_gets(tmp_path):
    tasks, shelf = ask_binary(2), Memory()
    first = run(tasks, folder=tmp_path)
    before = content(tmp_path)
    found = run(tasks, folder=tmp_path, shelf=shelf)
    assert all(result.is_found for result in found.values()) and len(shelf.kept) == 2
    assert content(tmp_path) == before
    found = run(tasks, folder=tmp_path / "new", shelf=shelf)
    assert all(result.is_found for result in found.values())
    assert content(tmp_path / "new") == before
    np.testing.assert_array_equal(found[0].embedding.fisher, first[0].embedding.fisher)
