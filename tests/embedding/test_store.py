"""A saved embedding comes back whole, or is refused by name."""

import errno
import json
import os

import numpy as np
import pytest
import safetensors.numpy

from task2vec.embedding import Embedding, load_embedding
from task2vec.embedding.embedding import SCHEMA, hash_content, save_embedding
from task2vec.errors import EmbeddingFileError, ResourceError
from task2vec.probe import FilterLayer


def make(task="birds", value=1.0):
    layers = (FilterLayer("conv", "convolution", 2, 9, 0.1), FilterLayer("fc", "linear", 1, 4, 0.25))
    story = {"probe_fingerprint": "abc", "settings": {"beta": 1e-5}, "counts": {"images": 12}, "note": "ä<script>"}
    return Embedding(
        task, "net", np.array([value, 2.0, 0.0]), np.array([0.1, 0.2, 0.0]), np.full(3, 1e-6), layers, story
    )


def write(path, *, arrays=None, schema=SCHEMA, story=None, sha256=None):
    """A file in the format of an embedding, with whatever inside and a hash that fits unless given."""
    embedding = make()
    arrays = arrays if arrays is not None else {n: getattr(embedding, n).copy() for n in ("fisher", "prior", "stderr")}
    whole = {
        "schema": schema,
        "task": "birds",
        "probe": "net",
        "layers": [["conv", "convolution", 2, 9, 0.1], ["fc", "linear", 1, 4, 0.25]],
        "provenance": dict(embedding.provenance),
    }
    text = json.dumps({**whole, **(story or {})}, sort_keys=True)
    envelope = {"sha256": sha256 or hash_content(text, arrays), "story": text}
    path.write_bytes(safetensors.numpy.save(arrays, metadata={"task2vec": json.dumps(envelope)}))
    return path


def test_round_trip(tmp_path):
    saved = make()
    path = saved.save(tmp_path / "deep" / "er" / "birds.t2v.safetensors")
    loaded = load_embedding(path)
    for name in ("fisher", "stderr", "prior", "vector"):
        assert np.array_equal(getattr(loaded, name), getattr(saved, name))
        assert getattr(loaded, name).dtype == np.float64
    assert (loaded.task, loaded.probe, loaded.layers, loaded.provenance) == (
        saved.task,
        saved.probe,
        saved.layers,
        saved.provenance,
    )
    assert repr(loaded) == "Embedding(birds, probe=net, 3 filters, 12 images)"
    assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()
    assert os.listdir(path.parent) == ["birds.t2v.safetensors"]  # no temporary file stays


def test_the_hand_made_file_of_these_tests_is_sound(tmp_path):
    assert load_embedding(write(tmp_path / "x")).norm() == 3.0


def test_every_changed_byte_is_noticed(tmp_path):
    content = make().save(tmp_path / "x").read_bytes()
    for mask in (0x01, 0xFF):
        for position in range(len(content)):
            changed = bytearray(content)
            changed[position] ^= mask
            (tmp_path / "y").write_bytes(changed)
            with pytest.raises(EmbeddingFileError, match="y'"):
                load_embedding(tmp_path / "y")


def test_every_truncation_is_noticed(tmp_path):
    content = make().save(tmp_path / "x").read_bytes()
    for length in range(0, len(content), 3):
        (tmp_path / "y").write_bytes(content[:length])
        with pytest.raises(EmbeddingFileError):
            load_embedding(tmp_path / "y")
    (tmp_path / "y").write_bytes(content + b"\0" * 8)
    with pytest.raises(EmbeddingFileError):
        load_embedding(tmp_path / "y")


def test_other_schemas_are_named_with_the_remedy(tmp_path):
    with pytest.raises(EmbeddingFileError, match=r"schema 99, and this version reads 1.*pip install -U"):
        load_embedding(write(tmp_path / "x", schema=99))
    with pytest.raises(EmbeddingFileError, match=r"schema 0.*embed the task again"):
        load_embedding(write(tmp_path / "x", schema=0))
    with pytest.raises(EmbeddingFileError, match="schema None"):
        load_embedding(write(tmp_path / "x", schema=None))


@pytest.mark.parametrize(
    ("name", "value"), [("fisher", np.nan), ("stderr", np.inf), ("prior", np.nan), ("fisher", -1.0), ("prior", 0.0)]
)
def test_values_that_no_fisher_can_have_are_refused_even_with_a_fitting_hash(tmp_path, name, value):
    arrays = {n: getattr(make(), n).copy() for n in ("fisher", "prior", "stderr")}
    arrays[name][1] = value
    with pytest.raises(EmbeddingFileError, match=f"sound.*{name}"):
        load_embedding(write(tmp_path / "x", arrays=arrays))


def test_arrays_that_do_not_fit_together_are_refused(tmp_path):
    arrays = {n: getattr(make(), n).copy() for n in ("fisher", "prior", "stderr")}
    for broken in (
        {**arrays, "fisher": arrays["fisher"][:2]},
        {**arrays, "more": np.ones(3)},
        {"fisher": arrays["fisher"]},
    ):
        with pytest.raises(EmbeddingFileError):
            load_embedding(write(tmp_path / "x", arrays=broken))
    for story in ({"layers": [["conv"]]}, {"layers": 3}, {"layers": [["conv", "convolution", "2", 9, 0.1]]}):
        with pytest.raises(EmbeddingFileError):
            load_embedding(write(tmp_path / "x", story=story))


def test_what_is_no_embedding_is_refused(tmp_path):
    file = tmp_path / "x"
    safetensors.numpy.save_file({"weight": np.ones(3)}, file)
    foreign = file.read_bytes()
    for content in (
        foreign,
        b"",
        b"hello",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
        b"{}",
        b"\xff" * 64,
        (1 << 40).to_bytes(8, "little") + b"{}",
    ):
        file.write_bytes(content)
        with pytest.raises(EmbeddingFileError, match="not an embedding"):
            load_embedding(file)
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(EmbeddingFileError, match="cannot read"):
            load_embedding(path)


def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = make("old").save(tmp_path / "x")
    before = path.read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(ResourceError, match=r"No space left.*--out"):
                save_embedding(make("new", 5.0), path)
        assert path.read_bytes() == before and load_embedding(path).task == "old"
        assert os.listdir(tmp_path) == ["x"]


def test_the_file_appears_only_when_it_is_whole(tmp_path, monkeypatch):
    seen = {}
    replace = os.replace

    def watch(source, target):
        seen["target existed"] = os.path.exists(target)
        seen["source"] = load_embedding(source)
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    path = make().save(tmp_path / "x")
    assert seen["target existed"] is False and seen["source"].task == "birds" and path.exists()


def test_an_unwritable_place_is_an_environment_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot write"):
        make().save(tmp_path / "file" / "x")
