"""Questions about the same images: how they are asked, and whether planted answers are found again."""

import numpy as np
import pytest

import task2vec as t2v
from experiments.collection import read_collection
from experiments.taxonomy_attributes import LEAST_IMAGES, ask_about_taxa, draw_sets, paint_family
from experiments.taxonomy_paintings import ATTRIBUTES, paint_images
from experiments.taxonomy_retrieval import count_nearer, retrieve, share_nearest, spread_domains
from tests.cases import make_case
from tests.experiments.test_collection import paint_class, write_csv


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Eight birds of 14 images in two orders and four families, the fifth of which is too small to be asked for."""
    root = tmp_path_factory.mktemp("questions")
    families = {"a": "P", "b": "P", "c": "O", "d": "O"}
    rows = []
    for number, family in enumerate("aabbccdd"):
        kind = f"{family}{number}"
        paint_class(root / "birds" / "images" / kind, 24, seed=number)
        rows.append({"class_dir": kind, "order": families[family], "family": family})
    paint_class(root / "birds" / "images" / "e8", 4, seed=8)
    rows.append({"class_dir": "e8", "order": "O", "family": "e"})
    write_csv(root / "birds" / "taxonomy.csv", rows)
    write_csv(root / "tasks.csv", [{"dataset": "birds", "taxon_level": "order", "taxon": "P"}])
    return read_collection(root).datasets[0]


def test_sets_are_disjoint_and_alike(dataset):
    first, second = draw_sets(dataset.images, 60, rng=np.random.default_rng(0))
    assert len(first) == len(second) == 60
    assert not set(first) & set(second)
    counts = [np.bincount(dataset.images.targets[rows], minlength=9) for rows in (first, second)]
    assert counts[0].tolist() == counts[1].tolist()
    assert np.ptp(counts[0][:8]) <= 1  # as equal as 60 allows, until a class runs out
    everything, _ = draw_sets(dataset.images, 10_000, rng=np.random.default_rng(0))
    assert len(everything) == 8 * 12 + 2


def test_questions_are_those_of_the_rank_with_most_large_taxa(dataset):
    family = ask_about_taxa(dataset, images=90, most=10, rng=np.random.default_rng(0))
    assert family is not None
    assert sorted(family.attributes) == ["a", "b", "c", "d"]
    for side in (family.first, family.second):
        for name, task in zip(family.attributes, side, strict=True):
            assert task.classes == (f"not {name}", name)
            assert LEAST_IMAGES <= task.counts[1] < 0.5 * len(task)
        assert len({task.digests for task in side}) == 1  # the same images
        assert len({task.fingerprint for task in side}) == 4
    assert not set(family.first[0].digests) & set(family.second[0].digests)
    own = {
        digest: dataset.images.classes[target]
        for digest, target in zip(dataset.images.digests, dataset.images.targets, strict=True)
    }
    task = family.first[0]
    assert all((own[d][0] == family.attributes[0]) == bool(t) for d, t in zip(task.digests, task.targets, strict=True))


def test_a_dataset_of_few_taxa_is_not_asked(dataset):
    assert ask_about_taxa(dataset, images=90, most=3, rng=np.random.default_rng(0)) is None
    assert ask_about_taxa(dataset, images=16, most=10, rng=np.random.default_rng(0)) is None


def test_painted_attributes_are_independent_and_visible():
    pictures, answers = paint_images(400, rng=np.random.default_rng(0))
    assert answers.sum(axis=0).tolist() == [200] * 6
    assert answers[:200].sum(axis=0).tolist() == [100] * 6
    assert abs(np.corrcoef(answers.T) - np.eye(6)).max() < 0.2
    pixels = np.stack([np.asarray(picture, dtype=np.float64) for picture in pictures])
    ground = np.median(pixels, axis=(1, 2, 3))
    figure = abs(pixels - ground[:, None, None, None]).max(axis=3) > 45
    columns = np.arange(96)
    seen = {
        "warm": (pixels[..., 0] - pixels[..., 2]).mean(axis=(1, 2)) > 0,
        "large": figure.sum(axis=(1, 2)) > 800,
        "on the left": (figure.sum(axis=1) @ columns) / figure.sum(axis=(1, 2)) < 48,
        "on dark ground": ground < 128,
    }
    for name, told in seen.items():
        assert np.mean(told == answers[:, ATTRIBUTES.index(name)]) > 0.9, name
    family = paint_family(images=20, seed=0)
    assert family.attributes == ATTRIBUTES
    assert family.first[0].fingerprint != paint_family(images=20, seed=1).first[0].fingerprint


def test_questions_about_one_set_have_one_domain_to_the_bit():
    family, probe = paint_family(images=16, seed=0), make_case("odd")
    domains = [t2v.embed_domain(task, probe, device="cpu") for task in (*family.first[:3], family.second[0])]
    for domain in domains[1:3]:
        assert (domain.mean == domains[0].mean).all()
        assert (domain.second_moment == domains[0].second_moment).all()
    assert (domains[3].mean != domains[0].mean).any()
    tasks = [
        t2v.embed(task, probe, settings=t2v.EmbedSettings(max_samples=6), device="cpu") for task in family.first[:2]
    ]
    assert t2v.distance.symmetric(*tasks) > 1e-3


def plant(k, *, own, noise, seed=0):
    """Distances that fall by `own` where the question is the same, under noise."""
    rng = np.random.default_rng(seed)
    questions = np.tile(np.arange(k), 2)
    distances = 1 + noise * rng.random((2 * k, 2 * k)) - own * (questions[:, None] == questions)
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0)
    return distances


def test_planted_questions_are_found_and_others_are_not():
    found = retrieve(plant(8, own=0.5, noise=0.2), permutations=999)
    assert (found.rate, found.auc, found.auc_beside, found.p) == (1.0, 1.0, 1.0, 1 / 1000)
    assert found.same == pytest.approx(found.other - 0.5, abs=0.1)
    rates, ps = zip(
        *((f.rate, f.p) for f in (retrieve(plant(8, own=0, noise=1, seed=s), permutations=199) for s in range(60))),
        strict=True,
    )
    assert np.mean(rates) == pytest.approx(1 / 8, abs=0.05)
    assert np.mean(np.array(ps) < 0.1) < 0.25


def test_numbers_by_hand():
    #              X1   Y1   X2   Y2
    distances = [[0.0, 0.2, 0.1, 0.4],
                 [0.2, 0.0, 0.3, 0.5],
                 [0.1, 0.3, 0.0, 0.2],
                 [0.4, 0.5, 0.2, 0.0]]  # fmt: skip
    found = retrieve(np.array(distances), permutations=99)
    # X1 finds X2, Y1 finds X2; X2 finds X1, Y2 finds X1.
    assert found.rate == 0.5
    assert (found.same, found.other, found.beside) == pytest.approx((0.3, 0.35, 0.2))
    assert found.auc == 0.5  # 0.1 before 0.3 and 0.4, 0.5 after both
    assert found.auc_beside == 0.5
    assert found.chance == 0.5


def test_a_domain_finds_nothing():
    """All questions about a set lie in one point: the nearest is any of them, and those beside it are nearer still."""
    found = retrieve(spread_domains(np.array([[0, 0.3], [0.3, 0]]), 5), permutations=99)
    assert found.rate == pytest.approx(found.chance)
    assert (found.p, found.auc, found.auc_beside) == (1.0, 0.5, 0.0)
    assert share_nearest(np.ones((2, 4))).tolist() == [[0.25] * 4] * 2
    assert count_nearer(np.array([1.0]), np.array([0.0, 1.0, 2.0, 3.0])) == 0.625
