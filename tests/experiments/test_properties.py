"""The properties of the embedding, measured: on the tasks of the package, and on a real one where it is at hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import task2vec as t2v
from experiments import properties
from experiments.collection import Collection, Member
from experiments.properties import (
    ALL_BUT_ONE,
    SHUFFLED,
    TRUE,
    Embedder,
    Experiments,
    Plan,
    check_relabelling,
    cut_classes,
    cut_images,
    plan_sample_size,
    relabel,
    shuffle_labels,
    single_out,
)
from experiments.property_claims import find_falls, only, split, summarise
from tests.cases import make_case

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "dtd10" / "images"
TINY = Plan(repeats=2, shuffled=(0.0, 1.0), classes=(2,), sizes=(1, 2, 4), tasks=2, most_classes=3, most_images=4)


@pytest.fixture(scope="module")
def samples():
    return {task.name: task for task in t2v.sample_tasks(images_per_task=60)}


@pytest.fixture(scope="module")
def embedder():
    """The default probe at a size at which an embedding takes half a second."""
    return Embedder(t2v.load_probe(size=32), t2v.EmbedSettings(max_samples=12), "cpu")


@pytest.fixture(scope="module")
def tiny():
    """A random network of a few filters."""
    return lambda **options: Embedder(make_case("odd"), t2v.EmbedSettings(max_samples=6), "cpu", **options)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_relabelling_changes_no_bit(samples, tiny):
    task, steps = samples["shapes"], []
    other = relabel(task, rng=rng())
    assert other.classes != task.classes
    assert other.digests != task.digests
    assert other.targets.tolist() != task.targets.tolist()
    row = check_relabelling(task, tiny(report=steps.append), seed=0)
    assert (row["filters_changed"], row["largest_difference"]) == (0, 0.0)
    assert len(steps) == 2  # both were computed


def test_a_change_of_labels_would_be_seen(samples, tiny, monkeypatch):
    monkeypatch.setattr(properties, "relabel", lambda task, rng: shuffle_labels(task, 0.2, rng=rng))
    row = check_relabelling(samples["shapes"], tiny(), seed=0)
    assert row["filters_changed"] > row["filters"] / 2
    assert row["largest_relative_difference"] > 1e-3


def test_shuffling_deals_the_same_labels_to_a_part_of_the_images(samples):
    task = samples["digits"]
    for share in (0.0, 0.25, 1.0):
        shuffled = shuffle_labels(task, share, rng=rng())
        assert shuffled.counts.tolist() == task.counts.tolist()
        changed = int((shuffled.targets != task.targets).sum())
        assert changed <= share * len(task)
        assert changed >= 0.5 * share * len(task)


def test_cuts_are_nested_and_equal(samples):
    task = samples["textures"]
    few, many = (cut_images(task, count, rng=rng(3)) for count in (2, 5))
    assert few.counts.tolist() == [2] * 6
    assert many.counts.tolist() == [5] * 6
    assert set(few.digests) < set(many.digests)
    three = cut_classes(task, 3, rng=rng(1))
    assert len(three.classes) == 3
    assert set(three.classes) < set(task.classes)
    assert sorted(single_out(few, rng=rng()).counts.tolist()) == [1, 11]


def test_shuffled_labels_are_nearer_to_the_trivial_embedding(samples, embedder):
    for name in ("digits", "colours"):
        true, *shuffled = embedder.rows(
            [
                properties.Case({}, samples[name]),
                *(properties.Case({}, shuffle_labels(samples[name], 1.0, rng=rng(seed))) for seed in range(2)),
            ],
            "labels",
        )
        for row in shuffled:
            assert row["distance"] < true["distance"]
            assert row["norm"] < true["norm"]
            assert row["prior_share"] > true["prior_share"]
            assert row["error"] > true["error"]


def assert_fewer_images_are_nearer(task, embedder):
    plan = Plan(repeats=3, sizes=(1, 3, 9), tasks=1, most_classes=5)
    cases = [case for case in plan_sample_size([Member("", task)], plan) if case.about["labels"] == TRUE]
    points = summarise(embedder.rows(cases, "sample size"), "images_per_class", "distance")
    assert [point.at for point in points] == [1, 3, 9]
    assert find_falls(points) == []
    assert points[0].mean + 2 * points[0].stderr < points[-1].mean


def test_fewer_images_are_nearer_to_the_trivial_embedding(embedder):
    task = t2v.sample_tasks(images_per_task=140)[0]
    assert_fewer_images_are_nearer(task, embedder)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no real images at {SHARED}")
def test_fewer_real_images_are_nearer_to_the_trivial_embedding(embedder):
    assert_fewer_images_are_nearer(t2v.read_folder(SHARED, name="textures"), embedder)


def test_one_image_per_class_is_a_task(samples, embedder):
    [row] = embedder.rows([properties.Case({}, cut_images(samples["shapes"], 1, rng=rng()))], "one")
    assert row["images"] == row["classes"] == 5
    assert all(math.isfinite(row[name]) for name in ("error", "norm", "distance", "prior_share", "l2"))
    assert 0 < row["distance"] < 1


def test_measured_numbers_are_those_of_the_embedding(samples, tiny):
    embedding = t2v.embed(samples["colours"], make_case("odd"), settings=t2v.EmbedSettings(max_samples=6), device="cpu")
    row = properties.measure(embedding)
    assert row["norm"] == embedding.norm()
    assert row["distance"] == t2v.distance.symmetric(embedding, t2v.trivial(embedding))
    assert row["error"] == embedding.provenance["head"]["cv_error"]
    assert row["prior_share"] == pytest.approx(1 - np.mean(embedding.fisher / embedding.vector))
    wide = replace(embedding, prior=embedding.prior * 60 / 1000)
    assert row["distance_with_prior_of_1000"] == t2v.distance.symmetric(wide, t2v.trivial(wide))


@pytest.fixture(scope="module")
def experiments(samples):
    members = tuple(Member(name.split()[0], task) for name, task in samples.items())
    return Experiments.of(Collection(members, (members[4], members[5])), TINY)


def test_all_experiments_embed_every_task_once(experiments, tiny):
    steps = []
    rows = experiments.run(tiny(report=steps.append))
    assert len(steps) == len(experiments)
    assert len(rows["norm_error"]) == 8
    assert len(rows["labels"]) == 2 * (1 + 2)
    assert len(rows["classes"]) == 2 * 2
    assert len(rows["sample_size"]) == (3 + 1 + 1) * 3 * 2 - 3 * 2
    assert {row["classes"] for row in rows["classes"]} == {2, 6}
    assert {row["images_per_class"] for row in rows["sample_size"]} == {1, 2, 4}


def test_the_controls_stand_beside_the_first_task_alone(experiments):
    rows = [case.about for case in experiments.sample_size]
    first, second = split(rows, "task")
    assert len(only(first, SHUFFLED)) == len(only(first, ALL_BUT_ONE)) == len(only(first, TRUE)) == 6
    assert {row["labels"] for row in second} == {TRUE}


def test_subsets_of_nearly_all_images_are_not_drawn(samples):
    cases = plan_sample_size([Member("", samples["digits"])], Plan(sizes=(1, 4, 5, 6)))
    assert {case.about["images_per_class"] for case in cases} == {1, 4}  # of six
