"""Many tasks at once: each as it is alone, work done once, results as they come, arguments refused at the call."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from task2vec.embedding import EmbedSettings, VariationalSettings, embed, embed_many
from task2vec.embedding.batching import Passes, Pixels
from task2vec.errors import ProbeError, ResourceError, UsageError
from task2vec.fisher import PerSampleFisher
from task2vec.head import fit_heads
from tests.cases import make_case
from tests.embedding.conftest import WAYS, make_task
from tests.embedding.families import CHOSEN, FAMILIES, FINE, ask_binary, is_close, mixed_family, out_of_memory
from tests.embedding.test_methods import make_tiny

TRAINING = VariationalSettings(epochs=2, head_epochs=1, draws=32, batch=16, rate=0.3, head_rate=0.05)
tiny = cache(make_tiny)
make_family = cache(lambda name: tuple((FAMILIES | {"mixed": mixed_family})[name]()))


@cache
def embed_alone(family, settings):
    return [embed(task, tiny(), settings=settings) for task in make_family(family)]


def embed_all(tasks, probe=None, **options):
    """The embeddings in the order of their tasks; all went well."""
    results = list(embed_many(tasks, probe or tiny(), **{"settings": FINE, **options}))
    assert sorted(result.number for result in results) == list(range(len(tasks)))
    assert all(result.task == tasks[result.number].name and not result.is_found for result in results)
    assert [result.error for result in results] == [None] * len(tasks)
    return [result.embedding for result in sorted(results, key=lambda result: result.number)]


def assert_same(found, wanted, error=1e-9):
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert is_close(one, other, error=error), other.task


# --- the numbers ---


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_together_as_alone(family, way):
    settings = replace(CHOSEN if way == WAYS[0] else FINE, method=way[0], engine=way[1])
    assert_same(embed_all(make_family(family), settings=settings), embed_alone(family, settings))


OTHERS = {
    "all pairs": {"seeds": "all"},
    "plain": {"seeds": "plain"},
    "unbalanced": {"balance": False},
    "halves": {"halves": True},
    "direct halves": {"halves": True, "method": "direct", "seeds": "all"},
    "precision": {"precision": 0.5, "images": 60},
    "another seed": {"seed": 5, "l2": None},
    "two pairs": {"images": 2},
    "variational": {"method": "variational", "variational": TRAINING, "dtype": "float32"},
    "single": {"dtype": "float32"},
}


@pytest.mark.parametrize("family", ["classes", "attributes", "overlapping"])
@pytest.mark.parametrize("others", list(OTHERS))
def test_together_as_alone_whatever_the_settings(family, others):
    settings = replace(FINE, **OTHERS[others])
    error = 1e-9 if settings.dtype == "float64" else 1e-5
    assert_same(embed_all(make_family(family), settings=settings), embed_alone(family, settings), error)


def test_halves_of_tasks_with_copies():
    tasks, settings = make_family("copies")[:3], replace(FINE, halves=True)
    found = embed_all(tasks, settings=settings)
    assert_same(found, [embed(task, tiny(), settings=settings) for task in tasks])
    assert all(one.halves.shape == (2, len(one)) for one in found)


@pytest.mark.parametrize("way", WAYS)
def test_a_larger_probe_in_both_precisions(probe, way):
    tasks = [*make_family("classes"), make_family("attributes")[0]]
    for dtype, error in (("float64", 1e-9), ("float32", 1e-5))[: 2 if way == WAYS[0] else 1]:
        settings = EmbedSettings(*way, max_samples=24, dtype=dtype, l2=0.05, seed=3)
        found = embed_all(tasks, probe, settings=settings, batch_size=7)
        assert_same(found, [embed(task, probe, settings=settings) for task in tasks], error)


def test_a_probe_with_a_layer_that_runs_twice_also_image_by_image():
    probe, tasks = make_case("shared"), make_family("classes")
    wanted = [embed(task, probe, settings=FINE) for task in tasks]
    assert_same(embed_all(tasks, probe), wanted)
    for key, network in probe._prepared.items():
        probe._prepared[key] = replace(network, is_batched=False)
    assert_same(embed_all(tasks, probe), wanted)


@pytest.mark.parametrize(
    "options", [{"batch_size": 1}, {"batch_size": 5}, {"workers": 1}, {"workers": 3}, {"gigabytes": 1e-9}]
)
def test_arguments_that_change_no_number(options):
    assert_same(embed_all(make_family("mixed"), **options), embed_alone("mixed", FINE))


def test_seeds_that_do_not_fit_at_once_change_no_number(monkeypatch):
    wanted, forward = embed_alone("mixed", FINE), []
    for limit in (1 << 26, 200):
        monkeypatch.setattr("task2vec.embedding.batching._SEEDS", limit)
        with monkeypatch.context() as patch:
            counts = Counts(patch)
            assert_same(embed_all(make_family("mixed")), wanted)
        forward.append(counts.forward)
    assert forward[0] < forward[1]


def test_heads_that_do_not_fit_at_once_are_fitted_in_halves(monkeypatch):
    asked, fit = [], fit_heads

    def guarded(features, targets, **options):
        asked.append(len(targets))
        if len(targets) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (pretended)")
        return fit(features, targets, **options)

    monkeypatch.setattr("task2vec.embedding.many.fit_heads", guarded)
    assert_same(embed_all(make_family("binary")), embed_alone("binary", FINE))
    assert max(asked) > 2


@pytest.mark.parametrize("together", [1, 2, 5])
def test_tasks_at_a_time_change_no_number(monkeypatch, many):
    monkeypatch.setattr("task2vec.embedding.many._TOGETHER", many)
    # Room for the features of some 12 images: families fall apart.
    gigabytes = 2 * 12 * 4 * tiny().feature_dim / 2**30
    assert_same(embed_all(make_family("mixed"), gigabytes=gigabytes), embed_alone("mixed", FINE))


def test_the_order_of_tasks_changes_no_number():
    tasks, wanted = make_family("mixed"), embed_alone("mixed", FINE)
    order = np.random.default_rng(0).permutation(len(tasks))
    assert_same(embed_all([tasks[i] for i in order]), [wanted[i] for i in order])


def test_the_same_task_twice_and_no_task_at_all():
    task = make_family("classes")[0]
    assert_same(embed_all([task, task]), embed_alone("classes", FINE)[:1] * 2)
    assert list(embed_many([], tiny())) == []


def test_tasks_may_come_from_a_generator_even_with_a_folder(tmp_path):
    tasks = make_family("classes")
    found = list(embed_many((task for task in tasks), tiny(), settings=FINE, folder=tmp_path))
    assert [result.number for result in found] == [0, 1, 2]


# --- the work ---


class Counts:
    """How often images are decoded, run forward and run back."""

    def __init__(self, monkeypatch):
        self.decoded, self.features, self.forward, self.backward = [], 0, 0, 0
        load, features, rows = Pixels.load, Passes._features, PerSampleFisher.rows_by_seed

        def counted_load(pixels, index):
            if index not in pixels.kept:
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


def test_tasks_on_the_same_images_share_all_but_the_way_back(monkeypatch):
    counts, tasks = Counts(monkeypatch), ask_binary(12)
    found = embed_all(tasks, batch_size=8)
    assert sorted(counts.decoded) == sorted(f"item {i}" for i in range(20))  # each image once
    assert counts.features == 20
    assert counts.forward <= 20
    pairs = sum(one.provenance["counts"]["backpropagated"] for one in found)
    assert pairs > 12 * 10
    assert pairs <= counts.backward <= pairs + 8 * 12


def test_parts_of_a_family_go_forward_once_each(monkeypatch):
    monkeypatch.setattr("task2vec.embedding.many._TOGETHER", 4)
    counts = Counts(monkeypatch)
    embed_all(ask_binary(12))
    assert len(counts.decoded) == counts.features == 20
    assert counts.forward <= 3 * 20


@pytest.mark.parametrize("others", ["precision", "variational"])
def test_methods_with_draws_of_their_own_share_images_and_features(monkeypatch, others):
    counts = Counts(monkeypatch)
    embed_all(ask_binary(4), settings=replace(FINE, **OTHERS[others]))
    assert len(counts.decoded) == counts.features == 20


def test_heads_on_the_same_images_are_fitted_together(monkeypatch):
    from task2vec.embedding import many

    sizes, fit = [], many.fit_heads
    monkeypatch.setattr(
        many, "fit_heads", lambda x, targets, **rest: (sizes.append(len(targets)), fit(x, targets, **rest))[1]
    )
    embed_all([*ask_binary(5), *make_family("classes")])
    assert sorted(sizes) == [1, 1, 1, 5]


# --- memory ---


@pytest.mark.parametrize("fails", [(1,), (2,), (4,), (2, 5)])
@pytest.mark.parametrize("family", ["binary", "classes"])
def test_memory_that_runs_out_at_any_slot_changes_no_number(monkeypatch, family, fails):
    wanted, rows, slots = embed_alone(family, FINE), PerSampleFisher.rows_by_seed, []

    def guarded(engine, images, seeds, keys=None):
        for found in rows(engine, images, seeds, keys):
            slots.append(len(images))
            if len(slots) in fails and len(images) > 1:
                raise out_of_memory()
            yield found

    monkeypatch.setattr(PerSampleFisher, "rows_by_seed", guarded)
    with pytest.warns(UserWarning, match="GPU memory ran out: going on with batches of"):
        assert_same(embed_all(make_family(family), batch_size=32), wanted)
    assert len(set(slots)) > 1


# --- as they come ---


def test_results_come_before_later_groups_are_touched(monkeypatch):
    tasks, counts = make_family("disjoint"), Counts(monkeypatch)
    results = embed_many(tasks, tiny(), settings=FINE)
    assert counts.decoded == []  # nothing before it is asked for
    assert next(results).number == 0 and len(counts.decoded) == len(tasks[0])
    assert next(results).number == 1 and len(counts.decoded) == len(tasks[0]) + len(tasks[1])
    results.close()
    assert len(counts.decoded) == len(tasks[0]) + len(tasks[1])
    assert list(results) == []


def test_results_come_before_later_tasks_of_their_group_are_run(monkeypatch, tmp_path):
    monkeypatch.setattr("task2vec.embedding.many._TOGETHER", 2)
    counts = Counts(monkeypatch)
    results = embed_many(ask_binary(6), tiny(), settings=FINE, folder=tmp_path)
    next(results)
    assert counts.forward <= 20 and len(list(tmp_path.iterdir())) == 1  # what was told is on disk
    results.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_bar_that_is_closed_early_is_gone():
    results = embed_many(make_family("disjoint"), tiny(), settings=FINE, progress=True)
    next(results)
    results.close()
    assert len(list(embed_many(make_family("disjoint"), tiny(), settings=FINE, progress=True))) == 3  # another may open


# --- arguments ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gigabytes": 0}, "gigabytes=0"),
        ({"gigabytes": -1.0}, "gigabytes=-1"),
        ({"gigabytes": float("nan")}, "gigabytes=nan"),
        ({"gigabytes": float("inf")}, "gigabytes=inf"),
        ({"device": "tpu9"}, "device 'tpu9'"),
        ({"workers": 0}, "workers=0"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_arguments_are_refused_at_the_call(options, words):
    with pytest.raises(UsageError, match=words):
        embed_many(make_family("classes"), tiny(), **options)


def test_what_is_no_task_is_refused_at_the_call():
    with pytest.raises(UsageError, match=r"number 1 of the tasks is a str.*read_folder"):
        embed_many([make_task(), "birds"], tiny())
    assert [result.task for result in embed_many(make_task(), tiny())] == ["colours"]  # one is some


def test_a_probe_that_the_method_cannot_use_is_refused_at_the_call():
    from timm.layers.std_conv import StdConv2d

    with pytest.raises(ProbeError, match="StdConv2d"):
        embed_many([make_task()], make_tiny(second=StdConv2d), settings=EmbedSettings(method="variational"))


def test_a_folder_that_cannot_be_is_refused_at_the_call(tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        with pytest.raises(ResourceError, match=r"cannot be kept in.*Choose another folder"):
            embed_many([make_task()], tiny(), folder=tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_precision_of_matrices_is_as_before():
    before = torch.get_float32_matmul_precision()
    results = embed_many(make_family("binary"), tiny(), settings=FINE)
    next(results)
    assert torch.get_float32_matmul_precision() == before
