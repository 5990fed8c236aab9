"""The halves of a task: what they would be alone, how images are assigned, and what cannot be split."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from task2vec.embedding import EmbedSettings, VariationalSettings, embed
from task2vec.embedding.batching import Pixels
from task2vec.embedding.single import Job, prepare_job
from task2vec.errors import DataError
from task2vec.fisher import PerSampleFisher
from task2vec.tasks import from_dataset
from tests.embedding.conftest import make_attributes, make_task, pictures
from tests.embedding.families import out_of_memory

SMALL = EmbedSettings(max_samples=24, split_half=True)
TRAINING = VariationalSettings(epochs=2, head_epochs=1, draws=32, batch=16, rate=0.3, head_rate=0.05)
TASKS = {"classes": make_task, "attributes": make_attributes, "rare": lambda: make_task((7, 5, 4, 1, 1))}
DIRECT = EmbedSettings(max_samples=25, split_half=True, method="direct", balance=False, l2=0.1)
VARIATIONAL = EmbedSettings(method="variational", split_half=True, variational=TRAINING)


@pytest.fixture(scope="module")
def reference(probe):
    return embed(make_task(), probe, settings=SMALL)


def split(task, probe, settings=SMALL):
    """The job of the whole, and which images go to each half."""
    job = prepare_job(task, probe, settings=settings, device="cpu")
    return job, [own.numpy() for own, _ in job.split()]


@pytest.mark.parametrize(
    ("kind", "settings"), [("classes", DIRECT), ("attributes", SMALL), ("attributes", VARIATIONAL), ("rare", SMALL)]
)
def test_halves_are_what_they_would_be_alone_and_leave_the_whole_as_it_is(probe, kind, settings):
    task, plain = TASKS[kind](), replace(settings, split_half=False)
    found, whole = (embed(task, probe, settings=each) for each in (settings, plain))
    job, owners = split(task, probe, settings)
    for half, images in zip(found.halves, owners, strict=True):
        alone = embed(job.task.subset(images), probe, settings=replace(plain, max_samples=settings.max_samples // 2))
        assert np.allclose(half, alone.fisher, rtol=1e-4, atol=alone.fisher.max() * 1e-6)
        assert half.sum() > 0
    assert found.halves.shape == (2, len(found)) and not np.allclose(*found.halves, rtol=0.01, atol=0)
    assert whole.halves is None
    for name in ("fisher", "stderr", "prior"):
        assert getattr(whole, name).tobytes() == getattr(found, name).tobytes()
    asked = {**whole.provenance["settings"], "split_half": True}
    assert {**whole.provenance, "settings": asked} == found.provenance


@pytest.mark.parametrize("counts", [(9, 7, 6), (5, 1, 1, 1, 4)])
def test_every_class_is_split_as_evenly_as_can_be(probe, counts):
    job, owners = split(make_task(counts), probe)
    assert sorted(np.concatenate(owners)) == list(range(sum(counts)))
    assert abs(len(owners[0]) - len(owners[1])) <= 1
    parts = np.array([np.bincount(job.task.targets[own], minlength=len(counts)) for own in owners])
    assert (abs(parts[0] - parts[1]) == parts.sum(0) % 2).all()


def test_attributes_are_split_by_turns(probe):
    _, owners = split(make_attributes(9), probe)
    assert [own.tolist() for own in owners] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


def test_names_numbers_and_order_change_nothing(probe, reference):
    images, labels = pictures()
    order = np.random.default_rng(0).permutation(len(labels))
    items = [(images[i], (2, 0, 1)[labels[i]]) for i in order]
    found = embed(from_dataset(items, classes=["zebra", "=cmd()", "ä"]), probe, settings=SMALL)
    assert found.halves.tobytes() == reference.halves.tobytes()


def paint(rows):
    images, _ = pictures((len(rows),))
    return from_dataset([(image, torch.tensor(row)) for image, row in zip(images, rows, strict=True)], name="colours")


@pytest.mark.parametrize(
    "task",
    [
        *(make_task(counts) for counts in ((2, 1), (12, 1))),
        paint([[0, 1], [1, 0], [1, 1]]),
        paint([[1], [1], [1], [1], [0]]),
    ],
    ids=["2 1", "12 1", "one image", "constant attribute"],
)
def test_too_few_images_are_refused_before_any_is_decoded(probe, task, monkeypatch):
    monkeypatch.setattr(Pixels, "load", lambda *_: pytest.fail("an image was decoded"))
    with pytest.raises(DataError, match=r"'colours' cannot be split.*single class.*Add images.*--split-half"):
        embed(task, probe, settings=SMALL)


def test_kept_images_are_decoded_once(probe, monkeypatch):
    decoded, load = [], Pixels.load
    counted = lambda self, index: (decoded.append(index not in self.kept), load(self, index))[1]  # noqa: E731
    monkeypatch.setattr(Pixels, "load", counted)
    embed(make_task(), probe, settings=SMALL)
    assert sum(decoded) == 22 < len(decoded)


def test_a_short_memory_in_a_half_is_outlived(probe, monkeypatch):
    task, settings = make_task(), replace(SMALL, dtype="float64")
    before = embed(task, probe, settings=settings)
    rows, fisher, asked = PerSampleFisher.rows_by_seed, Job.fisher, []

    def count(job, *rest):
        asked.append(len(job.task))
        return fisher(job, *rest)

    def guarded(engine, images, seeds, keys=None):
        if len(asked) > 1 and len(images) > 3:
            raise out_of_memory()
        return rows(engine, images, seeds, keys)

    monkeypatch.setattr(Job, "fisher", count)
    monkeypatch.setattr(PerSampleFisher, "rows_by_seed", guarded)
    with pytest.warns(UserWarning, match="memory ran out"):
        after = embed(task, probe, settings=settings)
    assert after.fisher.tobytes() == before.fisher.tobytes() and asked == [22, 11, 11]
    assert np.allclose(after.halves, before.halves, rtol=1e-9, atol=0)


def test_identical_images_have_sound_halves(probe):
    image = Image.new("RGB", (30, 30), (90,) * 3)
    found = embed(from_dataset([(image, i % 2) for i in range(9)]), probe, settings=SMALL)
    assert np.isfinite(found.halves).all() and (found.halves >= 0).all()
