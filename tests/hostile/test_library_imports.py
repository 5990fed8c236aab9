"""S1 and S3: files that pretend to be an exported library. Each is refused by name, and not a byte changes here."""

import json
import os
import pickle
import random
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from safetensors.numpy import save

from task2vec.embedding.embedding import SCHEMA, encode_embedding, hash_content
from task2vec.errors import LibraryError, Task2VecError
from task2vec.library import Expert, Library, MeasuredError, database
from tests.failures import refuse
from tests.hostile.test_weights import Bomb
from tests.library.material import describe, fingerprint_of, make, read_bytes

# What an exported file would have to be for any value to fit into any column.
LOOSE = (" STRICT,", " STRICT", " NOT NULL", " TEXT", " REAL", " BLOB")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The bytes of a sound file."""
    folder = tmp_path_factory.mktemp("giver")
    with Library.open(folder / "library") as library:
        library.add(*(make(f"gift {seed}", seed) for seed in (20, 21)), tags=["x"])
        library.add(Expert("e", "timm", "net", recipe={"epochs": 3}, parameters=5, input_size=224, cost=1.5))
        library.add(MeasuredError(fingerprint_of(20), "e", 0.5, "p", measured_by="me"))
        return library.export(folder / "gift.t2vlib").read_bytes()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A library that must not change."""
    with Library.open(tmp_path_factory.mktemp("home") / "library") as library:
        library.add(make("own", 1), Expert("mine", "timm", "net"), MeasuredError(fingerprint_of(1), "mine", 0.1, "p"))
        yield library


def refuse_merge(library, path):
    """The words of the refusal; the library is as it was, to the byte."""
    before = read_bytes(library.folder)
    error = refuse(LibraryError, "nothing in it was imported", library.merge, path)
    assert error.exit_code == 4 and read_bytes(library.folder) == before
    return str(error)


def write(folder, content):
    path = folder / "gift.t2vlib"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path


def forge(folder, content, *statements):
    """The file with any values in its tables: each statement is a text with what it takes."""
    path = write(folder, content)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for words in LOOSE:
            connection.execute("UPDATE sqlite_master SET sql = replace(sql, ?, '')", (words,))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement, *values in statements:
            connection.execute(statement, values)
    return path


def test_a_sound_one_is_taken_once(sound, tmp_path):
    """So that all that is refused below is refused for its fault alone."""
    with Library.open(tmp_path / "library") as library:
        for make_file in (write, forge):
            merged = library.merge(make_file(tmp_path, sound))
            assert merged.conflicts == [] and sum(merged.added.values()) + merged.known == 6
        assert (merged.known, len(library), library.errors()[0].error) == (6, 2, 0.5)


# --- S1: other files under this name ---------------------------------------------------------------------------------


STRANGERS = {
    "a pickle": lambda folder, sound: pickle.dumps(Bomb(folder / "canary")),
    "a pickle after our first page": lambda folder, sound: sound[:16384] + pickle.dumps(Bomb(folder / "canary")),
    "an embedding": lambda folder, sound: encode_embedding(make("x", 1)),
    "nothing": lambda folder, sound: b"",
    "a wrong count of free pages": lambda folder, sound: sound[:36] + b"\0\0\0\5" + sound[40:],
}
FORGERIES = {
    "a newer one": ("PRAGMA user_version = 99",),
    "another program's": ("PRAGMA application_id = 5",),
    "a view": ("CREATE VIEW extra AS SELECT 1",),
    "a trigger": ("CREATE TRIGGER extra AFTER INSERT ON tasks BEGIN DELETE FROM tasks; END",),
    "no table": ("DROP TABLE errors",),
    "no column": ("ALTER TABLE errors DROP COLUMN low",),
    "a task that is not there": ("UPDATE errors SET task = 99",),
    "no content": ("DELETE FROM contents WHERE embedding = 1",),
}


@pytest.mark.parametrize("kind", [*STRANGERS, *FORGERIES, "a pickle for an embedding"])
def test_other_files_under_this_name(home, sound, tmp_path, kind):
    statement = ("UPDATE contents SET content = ? WHERE embedding = 1", pickle.dumps(Bomb(tmp_path / "canary")))
    if kind in STRANGERS:
        path = write(tmp_path, STRANGERS[kind](tmp_path, sound))
    else:
        path = forge(tmp_path, sound, FORGERIES.get(kind, statement))
    assert "gift.t2vlib" in refuse_merge(home, path)
    assert [found.name for found in tmp_path.iterdir()] == ["gift.t2vlib"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_is_no_file_or_would_fill_the_memory(home, sound, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/zero"):
        assert "not a regular file" in refuse_merge(home, place)
    for place in (tmp_path / "none", tmp_path):
        assert "there is no library" in refuse_merge(home, place)
    monkeypatch.setattr(database, "MAX_BYTES", 1 << 20)
    path = forge(tmp_path, sound, ("UPDATE tasks SET classes = printf('[%.*c]', 2000000, ' ')",))
    assert "too big" in refuse_merge(home, path)


# --- S3: damaged and lying files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_mutations(sound, tmp_path, count):
    """Bytes are flipped, cut out, doubled and swapped, or the end is missing: a file is taken and valid, or refused."""
    rng, taken, true = random.Random(0), 0, {make("", seed).fisher.tobytes() for seed in (20, 21)}
    places = [place for place, byte in enumerate(sound) if byte]  # most of the file is empty
    with Library.open(tmp_path / "guest") as guest:
        for number in range(count):
            content = bytearray(sound if number % 10 else sound[: rng.randrange(len(sound))])
            for _ in range(rng.randrange(1, 4)):
                mutate(content, rng.choice(places), rng)
            before = describe(guest)
            try:
                guest.merge(write(tmp_path, content))
                taken += 1
            except Task2VecError as error:
                assert error.exit_code in (4, 5) and describe(guest) == before
        found = [guest.get(entry.key) for task in guest.tasks() for entry in task.embeddings]
        assert {one.fisher.tobytes() for one in found} == true and guest.verify().is_sound
    assert 0 < taken < count


def mutate(content, place, rng):
    """Cuts a few bytes out, doubles or turns them, flips a bit, or puts something odd in their place."""
    old = content[place : place + rng.choice((0, 1, 1, rng.randrange(20)))]
    flipped = bytes(byte ^ 1 << rng.randrange(8) for byte in old[:1]) + old[1:]
    odd = (b"9" * 30, b"null", b'"', b"[", b"}", b"\xed\xa0\x80", b"-", b"1e999", b"\0")
    new = rng.choice((b"", 2 * old, old[::-1], flipped, rng.choice(odd)))
    end = place + (len(new) if rng.random() < 0.8 else len(old))  # what follows is seldom moved
    content[place:end] = new


HALF = b"\xed\xa0\x80"  # half of a letter in UTF-8
INFINITE = float("inf")
WRONG = {
    "tasks": {
        "fingerprint": ["../../x", "", "xyz" * 20, 5, None, b"ab", "ab" * 2],
        "name": [5, None, HALF, "x" * 70_000],
        "images": [-1, 1.5, "ten", None, 1 << 60],
        "classes": ['"ab"', None, "[5]", '["a"]', '["a", "b", "c"]', "[", "[" * 100_000, "9" * 10_000, HALF],
        "counts": ["[5]", "[5, -1]", "[5, 1152921504606846976]", '[5, "5"]', "null", "[5, true]", "NaN"],
        "taxon": [5, b"x", HALF],
        "added": [5, "x" * 70_000],
    },
    "tags": {"tag": [5, "", HALF]},
    "experts": {
        "name": [None, 5, "", HALF],
        "source": [None, "ftp", 5],
        "recipe": [None, "[]", '"x"', "5", '{"rate": Infinity}'],
        "parameters": [-1, 1.5, "five"],
        "input_size": [-1, "large"],
        "cost": [-1, "one", INFINITE],
        "sha256": [5, b"x"],
    },
    "errors": {
        "task": [None, 5],
        "expert": [None, 5],
        "error": [None, 1.5, -1, "half", INFINITE],
        "protocol": [None, 5],
        "seed": [None, "zero", 1.5],
        "measured_by": [None, 5],
        "low": ["zero", 2],
    },
    "contents": {"content": [None, 5, "text", b"", b"x" * 500]},
    "embeddings": {"added": [5]},
}


@pytest.mark.parametrize("table", WRONG)
def test_wrong_values(home, sound, tmp_path, table):
    for name, values in WRONG[table].items():
        for value in values:
            given = "CAST(? AS TEXT)" if value == HALF else "?"
            first = f"rowid = (SELECT min(rowid) FROM {table})" if table != "tags" else "task = 1"
            path = forge(tmp_path, sound, (f"UPDATE {table} SET {name} = {given} WHERE {first}", value))
            assert "refused" in refuse_merge(home, path), (name, value)


# Embeddings that have the right hashes, and lie.
LIES = {
    "no filters": {"layers": [], "fisher": []},
    "filters that cancel out": {"layers": [["a", "convolution", -5, 9, 0.1], ["b", "convolution", 55, 9, 0.1]]},
    "a probe that is no text": {"probe": {"a": 1}},
    "a task that is no text": {"task": 5},
    "half a letter": {"task": "\ud800"},
    "a story that is a list": {"provenance": []},
    "a deep setting": {"settings": {"deep": None}},
    "a huge error": {"head": {"cv_error": 10**400}},
    "a text that cannot be encoded": {},
}


def lie(kind):
    """A blob whose hashes are right, and whose content is not."""
    told, sound = LIES[kind], make("gift 20", 20)
    arrays = {name: np.array(getattr(sound, name)) for name in ("fisher", "prior", "stderr")}
    if "fisher" in told:
        arrays = dict.fromkeys(arrays, np.zeros(0))
    provenance = {**sound.provenance} | {name: told[name] for name in told if name in sound.provenance}
    story = {"schema": SCHEMA, "task": "gift 20", "probe": "net", "layers": [["conv", "convolution", 50, 9, 0.1]]}
    story |= {"provenance": provenance} | {name: told[name] for name in told if name in (*story, "provenance")}
    text = json.dumps(story)
    if kind == "a deep setting":
        text = text.replace('{"deep": null}', '{"deep": ' + "[" * 900 + "]" * 900 + "}")
    envelope = json.dumps({"sha256": hash_content(text, arrays), "story": text})
    if kind == "a text that cannot be encoded":  # half a letter in the text that the hash is of
        envelope = '{"sha256": "", "story": "{\\"schema\\": 1, \\"a\\": \\"\\ud800\\"}"}'
    return save(arrays, metadata={"task2vec": envelope})


@pytest.mark.parametrize("kind", LIES)
def test_embeddings_that_lie(sound, tmp_path, kind):
    """They are refused in our words and nothing of them is there, or they are taken and all is sound."""
    with Library.open(tmp_path / "library") as library:
        library.add(make("own", 1))
        try:
            library.merge(forge(tmp_path, sound, ("UPDATE contents SET content = ? WHERE embedding = 1", lie(kind))))
        except Task2VecError:
            assert [task.name for task in library.tasks()] == ["own"] and library.experts() == []
        assert library.verify().is_sound
        library.errors(), library.experts(), library.stats()
        assert len(library.nearest("own")) == sum(space["embeddings"] for space in library.stats()["spaces"][:1]) - 1
        library.export(tmp_path / "again.t2vlib")  # what was taken can be given
        with Library.open(tmp_path / "second") as second:
            second.merge(tmp_path / "again.t2vlib")
