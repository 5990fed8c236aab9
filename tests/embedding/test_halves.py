"""The halves of a task: what they would be alone, whom they belong to, and how they are kept on disk."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from task2vec.embedding import Embedding, EmbedSettings, VariationalSettings, embed, load_embedding, trivial
from task2vec.embedding.batching import Pixels
from task2vec.embedding.single import prepare_job, split_steps
from task2vec.errors import DataError, EmbeddingFileError
from task2vec.fisher import PerSampleFisher
from task2vec.tasks import from_dataset
from tests.embedding.conftest import make_attributes, make_task, pictures
from tests.embedding.test_methods import make_tiny
from tests.embedding.test_store import make, write

SMALL = EmbedSettings(max_samples=24, split_half=True)
TRAINING = VariationalSettings(epochs=3, head_epochs=2, draws=64, batch=16, rate=0.3, head_rate=0.05)
TASKS = {"classes": make_task, "attributes": make_attributes, "rare": lambda: make_task((7, 5, 4, 1, 1))}


@pytest.fixture(scope="module")
def tiny():
    return make_tiny()


@pytest.fixture(scope="module")
def reference(tiny):
    return embed(make_task(), tiny, settings=SMALL)


def split(task, probe, settings=SMALL):
    """The steps of the whole, and which images go to each half."""
    steps = prepare_job(task, probe, settings=settings, device="cpu")
    return steps, [own.numpy() for own, _ in split_steps(steps)]


# --- the numbers ---


@pytest.mark.parametrize(
    "settings",
    [
        SMALL,
        EmbedSettings(max_samples=25, split_half=True, method="direct", balance=False, l2=0.1),
        EmbedSettings(seeds="all", split_half=True, dtype="float64"),
        EmbedSettings(method="variational", split_half=True, variational=TRAINING),
    ],
    ids=["robust", "direct", "all pairs", "variational"],
)
@pytest.mark.parametrize("kind", list(TASKS))
def test_halves_are_what_they_would_be_alone(tiny, kind, settings):
    task = TASKS[kind]()
    found = embed(task, tiny, settings=settings)
    steps, owners = split(task, tiny, settings)
    own = replace(settings, halves=False, images=settings.images // 2)
    for half, images in zip(found.halves, owners, strict=True):
        alone = embed(steps.task.subset(images), tiny, settings=own)
        assert np.allclose(half, alone.fisher, rtol=1e-4, atol=alone.fisher.max() * 1e-6)
        assert half.sum() > 0
    assert not np.allclose(*found.halves, rtol=0.01, atol=0)


def test_halves_of_a_larger_probe_are_what_they_would_be_alone(probe):
    task = make_task((9, 7, 6, 5))
    found = embed(task, probe, settings=SMALL, batch_size=5)
    steps, owners = split(task, probe)
    for half, images in zip(found.halves, owners, strict=True):
        alone = embed(steps.task.subset(images), probe, settings=EmbedSettings(max_samples=12))
        assert np.allclose(half, alone.fisher, rtol=1e-3, atol=alone.fisher.max() * 1e-5)


@pytest.mark.parametrize("method", ["robust", "direct", "variational"])
def test_the_whole_does_not_know_of_its_halves(tiny, method):
    settings = EmbedSettings(max_samples=24, method=method, variational=TRAINING)
    plain, halved = (embed(make_task(), tiny, settings=replace(settings, halves=h)) for h in (False, True))
    assert plain.halves is None and halved.halves.shape == (2, len(halved))
    for name in ("fisher", "stderr", "prior"):
        assert getattr(plain, name).tobytes() == getattr(halved, name).tobytes()
    asked = {**plain.provenance["settings"], "halves": True}
    assert {**plain.provenance, "settings": asked} == halved.provenance


# --- who goes where ---


@pytest.mark.parametrize("counts", [(9, 7, 6), (8, 8), (5, 1, 1, 1, 4), (1, 1, 1, 1), (3, 3, 3, 3, 3)])
def test_every_class_is_split_as_evenly_as_can_be(tiny, counts):
    steps, owners = split(make_task(counts), tiny)
    assert sorted(np.concatenate(owners)) == list(range(sum(counts)))
    assert abs(len(owners[0]) - len(owners[1])) <= 1
    parts = np.array([np.bincount(steps.task.targets[own], minlength=len(counts)) for own in owners])
    assert (abs(parts[0] - parts[1]) == parts.sum(0) % 2).all()


def test_each_half_has_its_own_labels_pixels_and_half_of_the_pairs(tiny):
    steps, _ = split(make_task((5, 4, 1, 1)), tiny)
    for own, half in split_steps(steps):
        assert half.settings == replace(SMALL, images=12)
        assert half.targets.tolist() == half.task.targets.tolist()
        names = [steps.task.classes[label] for label in steps.targets[own]]
        assert [half.task.classes[label] for label in half.targets] == names
        assert [half.task.digests[i] for i in range(len(own))] == [steps.task.digests[i] for i in own]
        assert half.pixels.images is half.task.images
        assert half.weights.sum() == pytest.approx(len(own))  # classes weigh the same in each half
    assert [h.settings.images for _, h in split_steps(replace(steps, settings=replace(SMALL, images=3)))] == [2, 2]


def test_attributes_are_split_by_turns(tiny):
    _, owners = split(make_attributes(9), tiny)
    assert [own.tolist() for own in owners] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


@pytest.mark.parametrize("seed", [0, 1])
def test_names_numbers_and_order_change_nothing(tiny, reference, seed):
    images, labels = pictures()
    order = np.random.default_rng(seed).permutation(len(labels))
    items = [(images[i], (2, 0, 1)[labels[i]]) for i in order]
    found = embed(from_dataset(items, classes=["zebra", "=cmd()", "ä"]), tiny, settings=SMALL)
    assert found.halves.tobytes() == reference.halves.tobytes()


def test_other_images_do_change_them(tiny, reference):
    assert embed(make_task(), tiny, settings=SMALL).halves.tobytes() == reference.halves.tobytes()
    assert not np.allclose(embed(make_task(seed=1), tiny, settings=SMALL).halves, reference.halves, rtol=0.01, atol=0)


def test_copies_of_one_image_under_two_labels_are_split_too(tiny):
    images, labels = pictures()
    items = [*zip(images, labels, strict=True), (images[0], 1), (images[0], 2), (images[1], 1)]
    found = [embed(from_dataset(some), tiny, settings=SMALL).halves for some in (items, items[::-1])]
    assert found[0].tobytes() == found[1].tobytes()


# --- what cannot be split ---


def paint(rows):
    images, _ = pictures((len(rows),))
    return from_dataset([(image, torch.tensor(row)) for image, row in zip(images, rows, strict=True)], name="colours")


@pytest.mark.parametrize(
    "task",
    [
        *(make_task(counts) for counts in ((1, 1), (2, 1), (12, 1), (1, 1, 1))),
        paint([[0], [1]]),
        paint([[0, 1], [1, 0], [1, 1]]),
        paint([[1], [1], [1], [1], [0]]),
    ],
    ids=["1 1", "2 1", "12 1", "1 1 1", "no attribute", "one image", "constant attribute"],
)
def test_too_few_images_are_refused_before_any_is_decoded(tiny, task, monkeypatch):
    monkeypatch.setattr(Pixels, "load", lambda *_: pytest.fail("an image was decoded"))
    with pytest.raises(DataError, match=r"'colours' cannot be split.*single class.*Add images.*--halves"):
        embed(task, tiny, settings=SMALL)


def test_without_halves_they_are_fine(tiny):
    assert embed(make_task((2, 1)), tiny, settings=replace(SMALL, halves=False)).halves is None


# --- what it costs ---


def test_kept_images_are_decoded_once(tiny, monkeypatch):
    decoded = []
    load = Pixels.load
    monkeypatch.setattr(
        Pixels, "load", lambda self, index: (decoded.append(index not in self.kept), load(self, index))[1]
    )
    embed(make_task(), tiny, settings=SMALL)
    assert sum(decoded) == 22 < len(decoded)


def test_images_that_are_not_kept_give_the_same_halves(tiny, reference, monkeypatch):
    for room in (0, 5 * 3 * 8 * 8 * 4):
        monkeypatch.setattr("task2vec.embedding.batching.CACHE_BYTES", {"cpu": room})
        assert embed(make_task(), tiny, settings=SMALL).halves.tobytes() == reference.halves.tobytes()


def test_parts_have_the_pixels_of_their_images_and_forget_with_the_whole(tiny):
    task = make_task()
    whole = Pixels(task.images, tiny, device=torch.device("cpu"), num_workers=1)
    list(whole.batches(range(0, 22, 3), 4))
    part = whole.part([3, 4, 18], task.subset([3, 4, 18]).images)
    assert sorted(part.kept) == [0, 2] and part.room == whole.room
    assert part.kept[0] is whole.kept[3] and part.kept[2] is whole.kept[18]
    ((_, pixels),) = part.batches(range(3), 3)
    assert torch.equal(pixels[1], whole.load(4))
    whole.forget()
    assert part.kept == {} and part.room == 0


def test_a_short_memory_in_a_half_is_outlived(probe, monkeypatch):
    task, settings = make_task(), replace(SMALL, dtype="float64")
    before = embed(task, probe, settings=settings)
    rows, part, begun = PerSampleFisher.rows_by_seed, Pixels.part, []

    def begin(whole, indices, task):
        begun.extend([True] * (len(whole.kept) == 22))
        return part(whole, indices, task)

    def guarded(engine, images, seeds, keys=None):
        if begun and len(images) > 3:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")
        return rows(engine, images, seeds, keys)

    monkeypatch.setattr(Pixels, "part", begin)
    monkeypatch.setattr(PerSampleFisher, "rows_by_seed", guarded)
    with pytest.warns(UserWarning, match="memory ran out"):
        after = embed(task, probe, settings=settings)
    assert after.fisher.tobytes() == before.fisher.tobytes() and len(begun) == 2
    assert np.allclose(after.halves, before.halves, rtol=1e-9, atol=0)


# --- on disk ---


def make_halved(halves=((0.5, 1.5, 0.0), (1.5, 2.5, 0.0))):
    return replace(make(), halves=np.array(halves))


def test_round_trip(tmp_path, reference):
    for saved in (make_halved(), reference):
        path = saved.save(tmp_path / "x")
        loaded = load_embedding(path)
        assert loaded.halves.dtype == np.float64 and not loaded.halves.flags.writeable
        assert loaded.halves.tobytes() == saved.halves.tobytes()
        assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()
    assert load_embedding(make().save(tmp_path / "y")).halves is None
    assert replace(reference, halves=None).save(tmp_path / "z").stat().st_size < path.stat().st_size


def arrays_of(embedding, **more):
    return {**{name: getattr(embedding, name).copy() for name in ("fisher", "prior", "stderr")}, **more}


def test_changed_or_foreign_arrays_are_refused(tmp_path):
    halves = np.ones((2, 3))
    path = write(tmp_path / "x", arrays=arrays_of(make(), halves=halves))
    assert (load_embedding(path).halves == 1).all()  # the file of this test is sound
    for more in ({"quarters": halves}, {"halves": halves, "quarters": halves}, {"Halves": halves}):
        with pytest.raises(EmbeddingFileError, match="changed after it was saved"):
            load_embedding(write(tmp_path / "x", arrays=arrays_of(make(), **more)))
    content = bytearray(make_halved().save(tmp_path / "y").read_bytes())
    place = content.index(np.float64(2.5).tobytes())
    content[place : place + 8] = np.float64(2.75).tobytes()
    (tmp_path / "y").write_bytes(content)
    with pytest.raises(EmbeddingFileError, match="SHA-256"):
        load_embedding(tmp_path / "y")


WRONG = {
    "one row": np.ones((1, 3)),
    "three rows": np.ones((3, 3)),
    "one filter less": np.ones((2, 2)),
    "flat": np.ones(6),
    "negative": np.array([[1, 1, 1], [1, -1e-9, 1]]),
    "nan": np.array([[1, np.nan, 1], [1, 1, 1]]),
    "infinite": np.full((2, 3), np.inf),
}


@pytest.mark.parametrize("halves", WRONG.values(), ids=WRONG)
def test_halves_that_cannot_be_are_refused(tmp_path, halves):
    with pytest.raises(DataError, match="'halves'"):
        make_halved(halves)
    with pytest.raises(EmbeddingFileError, match=r"sound.*'halves'"):
        load_embedding(write(tmp_path / "x", arrays=arrays_of(make(), halves=halves)))


def test_halves_are_a_read_only_copy():
    mine = np.ones((2, 3))
    embedding = make_halved(mine)
    mine[0, 0] = 7
    assert embedding.halves.max() == 1
    with pytest.raises(ValueError, match="read-only"):
        embedding.halves[0, 0] = 2


def test_the_trivial_embedding_has_none():
    nothing = trivial(make_halved())
    assert nothing.halves is None and isinstance(nothing, Embedding)


def test_identical_images_have_sound_halves(tiny):
    image = Image.new("RGB", (30, 30), (90,) * 3)
    found = embed(from_dataset([(image, i % 2) for i in range(9)]), tiny, settings=SMALL)
    assert np.isfinite(found.halves).all() and (found.halves >= 0).all()
