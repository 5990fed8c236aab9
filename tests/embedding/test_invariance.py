"""What must not change an embedding does not: to the byte, or to rounding where sums are taken in another order."""

import numpy as np
import pytest

from task2vec.distance import symmetric
from task2vec.embedding import EmbedSettings, embed
from task2vec.tasks import from_dataset, read_folder
from tests.embedding.conftest import WAYS, make_attributes, make_task, pictures

SAMPLED = EmbedSettings(max_samples=30)


def numbers(embedding):
    return embedding.fisher.tobytes() + embedding.stderr.tobytes() + embedding.prior.tobytes()


@pytest.fixture(scope="module")
def reference(probe):
    return embed(make_task(), probe, settings=SAMPLED)


def relabelled(order, permutation, **options):
    images, labels = pictures()
    return from_dataset([(images[i], permutation[labels[i]]) for i in order], name="colours", **options)


@pytest.mark.parametrize("permutation", [(1, 2, 0), (2, 1, 0), (0, 2, 1)])
def test_numbering_of_the_classes(probe, reference, permutation):
    assert numbers(embed(relabelled(range(22), permutation), probe, settings=SAMPLED)) == numbers(reference)


def test_names_of_the_classes(probe, reference):
    renamed = embed(relabelled(range(22), (0, 1, 2), classes=["zebra", "=cmd()", "ä"]), probe, settings=SAMPLED)
    assert numbers(renamed) == numbers(reference)
    assert renamed.provenance["classes"] == ["zebra", "=cmd()", "ä"]
    assert renamed.provenance["task_fingerprint"] == reference.provenance["task_fingerprint"]


@pytest.mark.parametrize("seed", [0, 1])
def test_order_of_the_images(probe, reference, seed):
    order = np.random.default_rng(seed).permutation(22)
    assert numbers(embed(relabelled(order, (2, 0, 1)), probe, settings=SAMPLED)) == numbers(reference)


def test_order_and_columns_of_attributes(probe):
    task = make_attributes()
    first = embed(task, probe, settings=SAMPLED)
    rng = np.random.default_rng(0)
    items = [(task.images.load(i), task.targets[i][[2, 0, 1]].astype(int)) for i in rng.permutation(len(task))]
    assert numbers(embed(from_dataset(items), probe, settings=SAMPLED)) == numbers(first)


def test_other_labels_do_change_it(probe, reference):
    images, labels = pictures()
    labels[0] = 1
    assert numbers(embed(from_dataset(list(zip(images, labels, strict=True))), probe, settings=SAMPLED)) != numbers(
        reference
    )


@pytest.mark.parametrize("way", WAYS)
def test_workers_and_repetition_give_the_same_file(probe, tmp_path, way):
    images, labels = pictures()
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "photos" / str(label)).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "photos" / str(label) / f"{i}.png")
    task = read_folder(tmp_path / "photos")
    assert task.images.is_threadsafe  # or more workers would be one worker
    settings = EmbedSettings(*way, max_samples=30)
    files = []
    for run, workers in enumerate((1, 2, 2, 7)):
        file = embed(task, probe, settings=settings, num_workers=workers).save(tmp_path / f"{run}.t2v.safetensors")
        files.append(file.read_bytes())
    assert len(set(files)) == 1
    again = embed(read_folder(tmp_path / "photos"), probe, settings=settings).save(tmp_path / "again.t2v.safetensors")
    assert again.read_bytes() == files[0]


def test_the_second_embedding_equals_the_first_whatever_came_between(probe, reference):
    embed(make_task((5, 5), seed=9), probe, settings=EmbedSettings("direct", "fast", dtype="float64", seeds="all"))
    assert numbers(embed(make_task(), probe, settings=SAMPLED)) == numbers(reference)


@pytest.mark.parametrize("way", WAYS)
def test_batch_size_in_double_precision(probe, way):
    task = make_task((30, 25, 15))
    settings = EmbedSettings(*way, max_samples=80, dtype="float64")
    found = [embed(task, probe, settings=settings, batch_size=size) for size in (7, 32, 64)]
    for other in found[1:]:
        assert np.allclose(other.fisher, found[0].fisher, rtol=1e-9, atol=0)
        assert other.provenance["counts"] == found[0].provenance["counts"]


@pytest.mark.parametrize("way", WAYS)
def test_batch_size_in_single_precision(probe, way):
    task = make_task((30, 25, 15))
    found = [embed(task, probe, settings=EmbedSettings(*way, max_samples=80), batch_size=size) for size in (7, 32, 64)]
    for other in found[1:]:
        assert symmetric(other, found[0]) < 1e-4


def test_seeds_change_the_draw_and_little_else(probe):
    task = make_task((30, 25, 15))
    one, two = (embed(task, probe, settings=EmbedSettings(max_samples=60, seed=s)) for s in (0, 1))
    assert not np.array_equal(one.fisher, two.fisher)
    assert one.provenance["head"] == two.provenance["head"]
    gap = np.abs(one.fisher - two.fisher)
    assert (gap <= 4 * np.hypot(one.stderr, two.stderr) + 1e-12).mean() > 0.97
