"""Small probes and small tasks for the tests of this room."""

import pytest

from task2vec.embedding import batching
from task2vec.embedding.batching import Passes, Pixels
from task2vec.fisher import PerSampleFisher
from task2vec.tasks import Task, read_folder
from tests.cases import ask as ask
from tests.cases import make_task, make_tiny
from tests.cases import pictures as pictures


@pytest.fixture(scope="session")
def probe():
    """The smallest probe, at 8 x 8 pixels."""
    return make_tiny()


def write_folder(root, images, labels, *, suffix="png") -> Task:
    """A task of pictures in a folder."""
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = root / f"class {label}" / f"{number}.{suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        image.save(place)
    return read_folder(root)


@pytest.fixture(scope="session")
def task():
    """Three classes, twenty-two images."""
    return make_task()


class Counts:
    """How often images are decoded, run forward and run back."""

    def __init__(self, monkeypatch):
        self.decoded, self.features, self.forward, self.backward = [], 0, 0, 0
        load, features, rows = Pixels.load, Passes._features, PerSampleFisher.rows_by_seed

        def counted_load(pixels, index):
            self.decoded.append(pixels.images.name(index))
            return load(pixels, index)

        def counted_features(passes, pixels):
            self.features += len(pixels)
            return features(passes, pixels)

        def counted_rows(engine, images, seeds, keys=None):
            self.forward += len(images)
            self.backward += 0 if callable(seeds) else seeds.shape[0] * seeds.shape[1]
            return rows(engine, images, seeds, keys)

        monkeypatch.setattr(Pixels, "load", counted_load)
        monkeypatch.setattr(Passes, "_features", counted_features)
        monkeypatch.setattr(PerSampleFisher, "rows_by_seed", counted_rows)


# What a forward pass costs, and how many images go for nothing: a CPU, a GPU, and a column for every pair that fits.
COSTS = {"cpu": (1.5, 0), "cuda": (0.3, 32), "pairs": (0.0, 10_000)}


@pytest.fixture(params=list(COSTS))
def costs(request, monkeypatch):
    """Every layout of batches."""
    for table, cost in zip((batching._FORWARD, batching._IDLE), COSTS[request.param], strict=True):
        monkeypatch.setitem(table, batching.choose_device(None).type, cost)
    return request.param
