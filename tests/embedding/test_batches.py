"""Batches become embeddings in their order, and one that fails stops all."""

import numpy as np
import pytest

from task2vec import EmbedSettings, distance, embed, embed_batches, sample_tasks
from task2vec.errors import DataError, Task2VecError
from task2vec.tasks import draw_batches
from tests.tiny_probe import make_tiny

SMALL = EmbedSettings(max_samples=6, l2=0.01)


@pytest.fixture(scope="module")
def digits():
    return sample_tasks(images_per_task=120)[0]


def test_each_is_what_embed_makes_of_the_batch(digits):
    probe = make_tiny()
    how = {"classes": 3, "images": 2, "seed": 4}
    batches, twins = embed_batches(digits, probe, batches=4, settings=SMALL, device="cpu", **how)
    drawn = draw_batches(digits, 4, **how)
    assert [one.task for one in batches] == [batch.name for batch, _ in drawn]
    assert [one.task for one in twins] == [twin.name for _, twin in drawn]
    for found, task in zip((batches[2], twins[3]), (drawn[2][0], drawn[3][1]), strict=True):
        assert np.allclose(found.fisher, embed(task, probe, settings=SMALL, device="cpu").fisher, rtol=1e-4)
    told = distance.diversity(batches, twins, device="cpu")
    assert told.batches == 4 and told.floor is not None and 0 < told.floor.value < 1


def test_a_batch_that_fails_stops_all(digits, monkeypatch):
    import task2vec.embedding.batches as room

    def fail(tasks, probe, **how):
        yield room_result(0, tasks[0].name)

    class room_result:
        def __init__(self, number, task):
            self.number, self.task, self.embedding, self.error = number, task, None, DataError("no pixels")

    monkeypatch.setattr(room, "embed_many", fail)
    with pytest.raises(Task2VecError, match="no pixels"):
        embed_batches(digits, make_tiny(), batches=3, classes=2, images=2, settings=SMALL)
