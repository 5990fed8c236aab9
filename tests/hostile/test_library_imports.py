"""S1 and S3: files that pretend to be an exported library. Each is refused by name, and not a byte changes here."""

import hashlib
import json
import os
import pickle
import random
import struct
from contextlib import suppress
from dataclasses import asdict, replace

import numpy as np
import pytest
from safetensors.numpy import save

from task2vec.embedding.embedding import SCHEMA, encode_embedding, hash_content
from task2vec.errors import LibraryError, Task2VecError
from task2vec.library import Expert, Library, MeasuredError, export
from task2vec.library.entries import identify_with_task
from tests.hostile.test_weights import Bomb
from tests.library.making import fingerprint_of, make, read_bytes, run_python

MAGIC = export.MAGIC


def pack(text, blobs=(), *, magic=MAGIC, length=None):
    """A file as `export` writes it, around any text."""
    content = text if isinstance(text, bytes) else json.dumps(text).encode()
    size = struct.pack("<Q", len(content) if length is None else length)
    return magic + size + hashlib.sha256(content).digest() + content + b"".join(blobs)


def list_blob(blob):
    """The entry of an embedding in the list."""
    return {"sha256": hashlib.sha256(blob).hexdigest(), "bytes": len(blob), "added": "2026-01-01T00:00:00Z"}


def list_everything():
    """The list of a sound file, and its blobs."""
    gifts = [make(f"gift {seed}", seed) for seed in (20, 21)]
    tasks = [replace(identify_with_task(one)[0], tags=["x"]) for one in gifts]
    expert = Expert("e", "timm", "net", recipe={"epochs": 3}, parameters=5, input_size=224, cost=1.5)
    error = MeasuredError(fingerprint_of(20), "e", 0.5, "p", measured_by="me")
    blobs = [encode_embedding(one) for one in gifts]
    text = {
        "tasks": [{name: getattr(task, name) for name in export._TASK} for task in tasks],
        "experts": [asdict(expert)],
        "errors": [asdict(error)],
        "embeddings": [list_blob(blob) for blob in blobs],
    }
    return json.loads(json.dumps(text)), blobs


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A library that must not change."""
    with Library.open(tmp_path_factory.mktemp("home") / "library") as library:
        library.add(make("own", 1), Expert("mine", "timm", "net"), MeasuredError(fingerprint_of(1), "mine", 0.1, "p"))
        yield library


def refuse(library, path):
    """The words of the refusal; the library is as it was, to the byte."""
    before = read_bytes(library.folder)
    with pytest.raises(LibraryError) as caught:
        library.merge(path)
    assert caught.value.exit_code == 4
    assert read_bytes(library.folder) == before
    return str(caught.value)


def write(folder, content):
    path = folder / "gift.t2vlib"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("times", [1, 2])
def test_a_sound_one_is_taken_once(tmp_path, times):
    """So that all that is refused below is refused for its fault alone."""
    text, blobs = list_everything()
    repeated = {table: entries * times for table, entries in text.items()}
    with Library.open(tmp_path / "library") as library:
        merged = library.merge(write(tmp_path, pack(repeated, blobs * times)))
        assert merged.added == {"task": 2, "embedding": 2, "expert": 1, "error": 1} and merged.conflicts == []
        assert library.verify().is_sound and np.array_equal(library.get("gift 20").fisher, make("", 20).fisher)


# --- S1: other files under this name ---------------------------------------------------------------------------------


STRANGERS = {
    "a pickle": lambda folder: pickle.dumps(Bomb(folder / "canary")),
    "a pickle after our first line": lambda folder: MAGIC + pickle.dumps(Bomb(folder / "canary")),
    "a pickle for a list": lambda folder: pack(pickle.dumps(Bomb(folder / "canary"))),
    "an embedding": lambda folder: encode_embedding(make("x", 1)),
    "a newer one": lambda folder: pack({}, magic=MAGIC.replace(b"1", b"2")),
    "no list": lambda folder: pack(b""),
    "a pickle for an embedding": lambda folder: pack_embedding(pickle.dumps(Bomb(folder / "canary"))),
}


def pack_embedding(blob):
    """A sound file in which this is the first embedding."""
    text, blobs = list_everything()
    text["embeddings"][0] = list_blob(blob)
    return pack(text, [blob, blobs[1]])


@pytest.mark.parametrize("content", STRANGERS.values(), ids=STRANGERS)
def test_other_files_under_this_name(home, tmp_path, content):
    path = write(tmp_path, content(tmp_path))
    assert "gift.t2vlib" in refuse(home, path)
    assert [found.name for found in tmp_path.iterdir()] == ["gift.t2vlib"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_is_no_file(home, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refuse(home, tmp_path / "pipe")
    assert "not a regular file" in refuse(home, "/dev/zero")
    assert "cannot read" in refuse(home, tmp_path / "none")
    refuse(home, tmp_path)  # a folder without a library


# --- S3: damaged and lying files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.long)])
def test_every_place_of_a_file_matters(home, tmp_path, step):
    """One flipped byte, wherever it is, is found; so is an end that is missing, and one byte too many."""
    content = pack(*list_everything())
    before = read_bytes(home.folder)
    for place in range(0, len(content), step):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        for wrong in (damaged, content[:place]):
            with pytest.raises(LibraryError):
                home.merge(write(tmp_path, wrong))
    for wrong in (content[:-1], content[: len(MAGIC)], content + b"\0"):
        refuse(home, write(tmp_path, wrong))
    assert read_bytes(home.folder) == before


def test_absurd_lengths_and_lists(home, tmp_path):
    for length in (1 << 63, (1 << 64) - 1, 1 << 40, 1 << 28, 10_000):
        assert f"{length} bytes" in refuse(home, write(tmp_path, pack(*list_everything(), length=length)))
    for text in ODD_LISTS:
        refuse(home, write(tmp_path, pack(text)))


REFUSING = """
import sys
from task2vec.errors import LibraryError
from task2vec.library import Library
from tests.hostile.peak_memory import read_memory
with Library.open(sys.argv[1]) as library:
    for path in sys.argv[2:]:
        used = read_memory()
        try:
            library.merge(path)
        except LibraryError:
            print(read_memory() - used)
"""


def test_gigabytes_of_nothing_are_refused_in_little_memory(tmp_path):
    """Sparse files; a list of 8 million empty entries; a blob of the largest size, which is read to take its hash."""
    giant = {"tasks": [], "experts": [], "errors": []}
    giant["embeddings"] = [{"sha256": "0" * 64, "bytes": 1 << 28, "added": None}]
    many = b'{"tasks": [' + b"{}," * (1 << 23) + b"{}]}"
    files = {
        "trailing": (pack(*list_everything()), 1 << 30),
        "list": (pack(b"", length=1 << 30), 1 << 30),
        "many": (pack(many), 0),
        "giant": (pack(giant), len(pack(giant)) + (1 << 28)),
    }
    for name, (content, size) in files.items():
        (tmp_path / name).write_bytes(content)
        os.truncate(tmp_path / name, max(size, len(content)))
    printed = run_python(REFUSING, tmp_path / "library", *(tmp_path / name for name in files))
    grown = dict(zip(files, map(float, printed.split()), strict=True))
    assert grown["trailing"] < 20 and grown["list"] < 20, grown
    assert grown["many"] < 150 and grown["giant"] < 600, grown


ODD_LISTS = [
    b'{"tasks": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b"[]",
    b"null",
    b'{"tasks": NaN, "experts": [], "errors": [], "embeddings": []}',
    b'{"tasks": [], "experts": [], "errors": []}',
    b'{"tasks": {}, "experts": 5, "errors": [], "embeddings": []}',
    b"\xff\xfe{}",
    b'{"tasks": ' + b"9" * 10_000 + b"}",
]


WRONG = {
    "tasks": {
        "fingerprint": ["../../x", "", "xyz" * 20, 5, None, [], "ab" * 2],
        "name": [5, None, [], "\ud800", "x" * 70_000],
        "images": [-1, 1.5, "10", None, True, 1 << 60, 10**400],
        "classes": ["ab", None, [5], ["a"], ["a", "b", "c"], ["a", "\udfff"]],
        "counts": [[5], [5, -1], [5, 1 << 60], [5, "5"], None, [5, True]],
        "tags": ["x", [5], [None], [""], ["\ud800"], {"a": 1}],
        "taxon": [5, [], "\ud800"],
        "added": [5, [], "x" * 70_000],
    },
    "experts": {
        "name": [None, 5, "", "\ud800", []],
        "source": [None, "ftp", 5],
        "recipe": [None, [], "x", 5, {"rate": float("inf")}],
        "parameters": [-1, 1.5, 1 << 63, 10**400, "5", True],
        "input_size": [1 << 70, [], "224"],
        "cost": [-1, "1", 10**400, [], float("inf"), float("nan")],
        "sha256": [5, []],
        "extra": [5],
    },
    "errors": {
        "task": [None, 5, fingerprint_of(99)],
        "expert": [None, "mine", 5, []],
        "error": [None, 1.5, -1, "0.5", True, 10**400, float("nan")],
        "protocol": [None, 5, []],
        "seed": [None, 1 << 63, 10**400, "0", 1.5, True],
        "measured_by": [None, 5],
        "low": ["0", 2],
        "__class__": ["x"],
    },
    "embeddings": {
        "sha256": [None, 5, "0" * 63, "../" * 21 + "x", "0" * 64],
        "bytes": [0, -1, 1.5, None, "5", 1 << 62, (1 << 28) + 1],
        "added": [5, []],
        "path": ["/etc/passwd"],
    },
}
OPTIONAL = {
    "experts": {"task", "recipe", "parameters", "input_size", "cost", "sha256"},
    "errors": {"seed", "measured", "low", "high", "measured_by"},
}


@pytest.mark.parametrize("table", WRONG)
def test_wrong_and_missing_values(home, tmp_path, table):
    for name, values in WRONG[table].items():
        for value in values:
            text, blobs = list_everything()
            text[table][0][name] = value
            assert "refused" in refuse(home, write(tmp_path, pack(text, blobs))), (name, value)
    for name in set(list_everything()[0][table][0]) - OPTIONAL.get(table, set()):
        text, blobs = list_everything()
        del text[table][0][name]
        refuse(home, write(tmp_path, pack(text, blobs)))


# Embeddings that have the right hashes, and lie.
LIES = {
    "no filters": {"layers": [], "fisher": []},
    "filters that cancel out": {"layers": [["a", "convolution", -5, 9, 0.1], ["b", "convolution", 55, 9, 0.1]]},
    "a probe that is no text": {"probe": {"a": 1}},
    "a task that is no text": {"task": 5},
    "half a letter": {"task": "\ud800"},
    "a story that is a list": {"provenance": []},
    "settings that are a list": {"settings": []},
    "a deep setting": {"settings": {"deep": None}},
    "a recipe that is a text": {"recipe": "2"},
    "a fingerprint that is a path": {"task_fingerprint": "../../../x"},
    "a huge error": {"head": {"cv_error": 10**400}},
    "counts that are a text": {"counts": "many"},
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
def test_embeddings_that_lie(tmp_path, kind):
    """They are refused in our words and nothing of them is there, or they are taken and all is sound."""
    with Library.open(tmp_path / "library") as library:
        library.add(make("own", 1))
        try:
            library.merge(write(tmp_path, pack_embedding(lie(kind))))
        except Task2VecError:
            assert [task.name for task in library.tasks()] == ["own"] and library.experts() == []
        assert library.verify().is_sound
        library.errors(), library.experts(), library.stats()
        assert len(library.nearest("own")) == sum(space["embeddings"] for space in library.stats()["spaces"][:1]) - 1
        library.export(tmp_path / "again.t2vlib")  # what was taken can be given
        with Library.open(tmp_path / "second") as second:
            second.merge(tmp_path / "again.t2vlib")


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_mutations(home, tmp_path, count):
    """Bytes are flipped, cut out, doubled and swapped; hashes are made to fit, so that what lies behind is reached."""
    rng = random.Random(0)
    text, blobs = list_everything()
    before, taken = read_bytes(home.folder), 0
    with Library.open(tmp_path / "guest") as guest:
        for number in range(count):
            path = write(tmp_path, mutate_everything(text, blobs, rng, is_fitting=bool(number % 2)))
            with suppress(LibraryError):  # anything else is a failure
                guest.merge(path)
                taken += 1
        assert guest.verify().is_sound
        guest.tasks(), guest.experts(), guest.errors(), guest.stats()
    assert read_bytes(home.folder) == before
    assert 0 < taken < count / 2


def mutate_everything(text, blobs, rng, *, is_fitting):
    """A file with one to three faults; if `is_fitting`, the list tells the hashes and lengths of what it now brings."""
    parts = [bytearray(json.dumps(text).encode()), *map(bytearray, blobs)]
    for _ in range(rng.randrange(1, 4)):
        mutate(rng.choice(parts), rng)
    if is_fitting:
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            told = json.loads(parts[0])
            for entry, blob in zip(told["embeddings"], parts[1:], strict=True):
                entry |= list_blob(blob)
            return pack(told, map(bytes, parts[1:]))
    return pack(bytes(parts[0]), map(bytes, parts[1:]))


def mutate(content, rng):
    """Cuts a few bytes out, doubles or turns them, flips a bit, or puts something odd in their place."""
    place, length = rng.randrange(len(content) + 1), rng.choice((0, 1, 1, rng.randrange(20)))
    old = content[place : place + length]
    flipped = bytes(byte ^ 1 << rng.randrange(8) for byte in old[:1]) + old[1:]
    odd = (b"9" * 30, b"null", b'"', b"[", b"}", b"\\ud800", b"-", b"1e999", b"\0")
    content[place : place + length] = rng.choice((b"", 2 * old, old[::-1], flipped, rng.choice(odd)))


def test_an_embedding_of_a_task_that_is_not_listed(home, tmp_path):
    text, blobs = list_everything()
    text["tasks"].pop()
    assert "not listed" in refuse(home, write(tmp_path, pack(text, blobs)))
