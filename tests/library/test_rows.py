"""Rows give the distances of the embeddings they were made from, and a damaged file is seen."""

import errno
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from task2vec.distance import symmetric
from task2vec.errors import ResourceError
from task2vec.library import rows as module
from task2vec.library.rows import Rows, checksum, distances, make_row
from tests.distance.material import make, make_many
from tests.library.shelf import load_real

storable = st.one_of(st.just(0.0), st.floats(1e-30, 1e36), st.floats(1e-3, 1e3))


@pytest.mark.parametrize("probe", ["tf_efficientnet_lite0", "resnet34"])
def test_real_embeddings_are_as_far_apart_as_their_rows(probe):
    real = load_real(probe)
    held = np.stack([make_row(one) for one in real])
    for number in (0, 11, 22, 35, 42):
        expected = [symmetric(real[number], other) for other in real]
        found = distances(held[number], held)
        assert np.abs(found - expected).max() < 1e-6
        assert found[number] == 0


def test_dead_filters_that_two_tasks_share_do_not_count():
    made = make_many(60, 3000, dead=0.3, spread=1.5, scales=3, priors=2)
    held = np.stack([make_row(one) for one in made])
    assert (held < 0).mean() == pytest.approx(0.3, abs=0.02)
    assert distances(held[0], held) == pytest.approx([symmetric(made[0], one) for one in made], abs=1e-6)


def test_tasks_without_anything_alive_are_the_same():
    nothing = [make_row(make(np.zeros(5), prior=level)) for level in (1e-3, 2.0)]
    assert distances(nothing[0], np.stack(nothing)).tolist() == [0, 0]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 30).flatmap(lambda n: st.tuples(*[arrays.arrays(float, n, elements=storable)] * 2)))
def test_any_two_rows_have_the_distance_of_their_embeddings(pair):
    a, b = (make(values, prior=1e-36) for values in pair)
    held = np.stack([make_row(a), make_row(b)])
    there, back = distances(held[0], held), distances(held[1], held)
    assert there[1] == pytest.approx(symmetric(a, b), abs=1e-6)
    assert there[0] == back[1] == 0
    assert there[1] == pytest.approx(back[0], abs=1e-6)
    assert math.isfinite(there[1]) and 0 <= there[1] < 1


def test_vectors_of_very_different_size():
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(2, 500))
    for factor in (1e-30, 1e-21, 1e-12, 1e12, 1e21, 1e30):
        a, b = make(np.exp(logs[0])), make(np.exp(logs[1]) * factor)
        assert distances(make_row(a), make_row(b)[None])[0] == pytest.approx(symmetric(a, b), abs=1e-6)


def test_small_distances_keep_their_digits():
    rng = np.random.default_rng(1)
    a, u = np.exp(rng.normal(size=5000)), rng.normal(size=5000)
    for step in (1e-1, 1e-2, 1e-3):
        near = make(a * np.exp(step * u))
        found = distances(make_row(make(a)), make_row(near)[None])[0]
        assert found == pytest.approx(symmetric(make(a), near), rel=1e-3)


def test_a_row_tells_what_is_dead_by_its_sign():
    row = make_row(make([2.0, 0.0, 1e-30], prior=0.5))
    assert row.dtype == np.float32
    assert row.tolist() == [2.5, -0.5, 0.5]


@pytest.mark.parametrize("value", [1e-40, 1e39, 1e200])
def test_what_float32_cannot_hold_has_no_row(value):
    assert make_row(make([1.0, value], prior=1e-60)) is None
    assert make_row(make([1.0, 0.0], prior=1e-36)) is not None


def test_no_rows_no_distances():
    assert distances(np.ones(3, np.float32), np.empty((0, 3), np.float32)).shape == (0,)


def test_rows_come_back_from_their_slots(tmp_path):
    held = np.stack([make_row(one) for one in make_many(7, 10, dead=0.2)])
    file = Rows(tmp_path / "search" / "a.f32", 10)
    for slot in range(7):
        assert len(file) == slot
        file.write(slot, held[slot])
    file.sync()
    again, is_there = Rows(file.path, 10).read([4, 5, 0, 6])
    assert is_there.all()
    assert np.array_equal(again, held[[4, 5, 0, 6]])
    assert again.dtype == np.float32


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not tell what a descriptor is")
def test_what_was_written_is_flushed_with_its_folders(tmp_path, monkeypatch):
    flushed, flush = [], module.os.fsync

    def note(descriptor):
        flushed.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        flush(descriptor)

    monkeypatch.setattr(module.os, "fsync", note)
    file = Rows(tmp_path / "search" / "a.f32", 2)
    file.write(0, np.ones(2, np.float32))
    assert not flushed
    file.sync()
    assert flushed == [str(file.path), str(file.path.parent), str(tmp_path)]
    file.write(1, np.ones(2, np.float32))
    file.sync()
    file.sync()
    assert flushed[3:] == [str(file.path)]


def test_several_rows_at_once(tmp_path):
    held = np.stack([make_row(one) for one in make_many(5, 10)])
    file = Rows(tmp_path / "a.f32", 10)
    file.write(2, held)
    assert np.array_equal(file.read(range(2, 7))[0], held)
    assert len(file) == 7


def test_a_file_that_is_too_short_lacks_its_last_rows(tmp_path):
    held = np.stack([make_row(one) for one in make_many(4, 10)])
    file = Rows(tmp_path / "a.f32", 10)
    file.write(0, held)
    with open(file.path, "r+b") as handle:
        handle.truncate(2 * 40 + 13)
    found, is_there = file.read([0, 1, 2, 3, 900, 1])
    assert is_there.tolist() == [True, True, False, False, False, True]
    assert np.array_equal(found[is_there], held[[0, 1, 1]])
    assert len(file) == 3  # the torn one is not written over


def test_a_missing_file_has_no_rows(tmp_path):
    file = Rows(tmp_path / "none.f32", 10)
    assert len(file) == 0
    assert not file.read([0, 3])[1].any()
    assert file.read([])[0].shape == (0, 10)


def test_a_checksum_knows_its_row(tmp_path):
    held = np.stack([make_row(one) for one in make_many(2, 10)])
    file = Rows(tmp_path / "a.f32", 10)
    file.write(0, held)
    content = bytearray(file.path.read_bytes())
    content[43] ^= 1
    file.path.write_bytes(content)
    found, _ = file.read([0, 1])
    assert checksum(found[0]) == checksum(held[0])
    assert checksum(found[1]) != checksum(held[1])


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = Rows(tmp_path / "a.f32", 2)
    monkeypatch.setattr(module.os, "open", refuse)
    with pytest.raises(ResourceError, match=r"a\.f32'.*No space left.*--library DIR"):
        file.write(0, np.ones(2, np.float32))
