"""`task2vec embed-many` and the library: kept, found, and where there is none, files."""

import json
import os

import pytest

import task2vec
from task2vec import Library
from task2vec.errors import ResourceError
from tests.cli.test_many import ATTRIBUTES, SMALL, data, read_rows, tiny  # noqa: F401


def read(result, code=0):
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def computed(monkeypatch):
    """The names of tasks that were really embedded: one list for each run."""
    from task2vec.embedding import many

    embed, names = many.Group.embed, []

    def count(self, jobs, *args, **options):
        names.extend(job.task.name for job in jobs)
        return embed(self, jobs, *args, **options)

    monkeypatch.setattr(many.Group, "embed", count)
    return names


def test_all_goes_into_the_library_and_is_found_there(call, data, computed, tmp_path, own_library):  # noqa: F811
    args = ("embed-many", data / "shades", "--one-vs-rest", "--tag", "mine", *SMALL)
    result = call(*args)
    assert result.exit_code == 0, result.stderr
    rows, (summary,) = read_rows(result.stdout)
    assert summary.startswith(f"3 embedded, 0 found, 0 failed; in {own_library} (")
    assert list(tmp_path.iterdir()) == [] and len(computed) == 3
    with Library.open() as opened:
        assert {task.name: task.tags for task in opened.tasks()} == dict.fromkeys(rows, ("mine",))
        assert {task.source for task in opened.tasks()} == {str(data / "shades")}
        (run,) = opened.runs()
        assert run.what == "embed-many" and run.outcome == "done" and run.story["paths"] == [str(data / "shades")]
        norms = {task.name: f"{task.embeddings[0].norm:.3g}" for task in opened.tasks()}
        assert {name: words[4] for name, words in rows.items()} == norms
    report = read(call(*args, "--json"))
    assert (report["embedded"], report["found"]) == (0, 3) and len(computed) == 3
    assert report["library"] == own_library and report["folder"] is None
    assert all(row["written"] is None and row["known_as"] is None for row in report["tasks"])


def test_embed_and_embed_many_find_what_the_other_made(call, data, computed):  # noqa: F811
    read(call("embed", data / "pair", "--json", *SMALL))
    assert read(call("embed-many", data / "pair", data / "shades", "--json", *SMALL))["found"] == 1
    assert read(call("embed", data / "shades", "--json", *SMALL))["is_found"]
    assert computed == ["shades"]


def test_files_of_an_earlier_run_come_into_the_library_and_the_other_way_round(call, data, computed, tmp_path):  # noqa: F811
    out = ("--out", tmp_path / "out", "--json", *SMALL)
    assert read(call("embed-many", data / "pair", "--no-library", *out))["library"] is None
    report = read(call("embed-many", data / "pair", *out))
    assert report["found"] == 1
    with Library.open() as opened:
        assert [task.name for task in opened.tasks()] == ["pair"]
    report = read(call("embed-many", data / "pair", "--out", tmp_path / "new", "--json", *SMALL))
    assert report["found"] == 1 and computed == ["pair"]
    assert task2vec.load_embedding(report["tasks"][0]["written"]).task == "pair"


def test_one_task_under_two_names_is_one_entry(call, data):  # noqa: F811
    paths = (data / "shades", data / "table.csv", *ATTRIBUTES, "--root", data, "--one-vs-rest")
    report = read(call("embed-many", *paths, "--json", *SMALL))
    named = {row["task"]: row["known_as"] for row in report["tasks"]}
    assert named["table: is_dark"] == "shades: dark" or named["shades: dark"] == "table: is_dark"
    assert sum(other is not None for other in named.values()) == 1
    with Library.open() as opened:
        assert len(opened) == len(named) - 1 and opened.verify().is_sound
    shown, _ = read_rows(call("embed-many", *paths, *SMALL).stdout)
    assert any("known" in words for words in shown.values())


def test_an_interrupted_run_is_noted_and_goes_on(call, data, computed, monkeypatch):  # noqa: F811
    embed_many = task2vec.embed_many

    def interrupt(tasks, *args, **options):
        results = embed_many(tasks, *args, **options)

        def first():
            yield next(results)
            raise KeyboardInterrupt

        return first() if tasks else results

    args = ("embed-many", data / "shades", "--one-vs-rest", *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(task2vec, "embed_many", interrupt)
        assert call(*args).exit_code == 130
    with Library.open() as opened:
        assert len(opened) == 1 and opened.runs()[0].outcome.startswith("Interrupted")
    assert read(call(*args, "--json"))["found"] == 1


def make_read_only(monkeypatch, own_library):
    Library.open(own_library).close()
    monkeypatch.setattr("task2vec.library.library.cannot_write", lambda folder: True)


def test_a_library_that_takes_nothing_is_refused_before_the_work(call, data, computed, own_library, monkeypatch):  # noqa: F811
    read(call("embed-many", data / "pair", "--json", *SMALL))
    make_read_only(monkeypatch, own_library)
    result = call("embed-many", data / "pair", data / "shades", *SMALL)
    assert result.exit_code == 5 and "--out DIR" in result.stderr and computed == ["pair"]
    result = call("embed-many", data / "pair", data / "shades", "--out", "out", "--json", *SMALL)
    assert read(result)["found"] == 1 and computed == ["pair", "shades"]  # what it has is found all the same
    assert result.stderr.startswith("warning: nothing is kept in the library: ")
    assert len(os.listdir("out")) == 2


def test_what_was_computed_is_not_lost_if_the_library_refuses_it(call, data, monkeypatch):  # noqa: F811
    def refuse(*args, **options):
        raise ResourceError("the disk is full")

    monkeypatch.setattr(Library, "add", refuse)
    report = read(call("embed-many", data / "pair", "--json", *SMALL))
    assert report["tasks"][0]["written"] == "pair.t2v.safetensors"
    assert task2vec.load_embedding("pair.t2v.safetensors").task == "pair"
    report = read(call("embed-many", data / "shades", "--out", "out", "--json", *SMALL))
    assert os.listdir("out") == ["shades.t2v.safetensors"] and not os.path.exists("shades.t2v.safetensors")
