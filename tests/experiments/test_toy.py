"""The toy experiment: closed formulas, a blind domain, neighbours that are alike, and files that can be read."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from experiments import toy
from experiments.toy_figures import match_colours, seat_icons, turn_to_grow
from experiments.toy_measures import (
    MEASURES,
    Mean,
    average_seeds,
    correlate_ranks,
    region_similarity,
    value_of_nearest,
    word_statement,
)
from experiments.toy_probes import POWERS, make_polynomial_probe, make_random_probe, name_filters
from task2vec import distance, embed, embed_domain, toy_tasks
from task2vec.errors import MissingExtraError, UsageError
from task2vec.head import fit_head
from task2vec.tasks.synthetic import draw_partitions, read_point

SIDE, COUNT = 10, 8
MAKERS = {"ReLU": lambda: make_random_probe(side=SIDE, seed=0), "polynomial": lambda: make_polynomial_probe(side=SIDE)}


@pytest.fixture(scope="module", params=list(MAKERS))
def probe(request):
    return MAKERS[request.param]()


@pytest.fixture(scope="module")
def tasks():
    return toy_tasks(count=COUNT, side=SIDE)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """A small run, with its folder and what it said on the way."""
    folder, said = tmp_path_factory.mktemp("paper") / "made" / "here", []
    return toy.run_toy(folder, seeds=(3, 4), count=COUNT, side=SIDE, progress=said.append), folder, said


def compute_features(points, probe):
    """Features and the squared derivative of each with respect to its filter's weights, mean over them, in numpy."""
    if probe.n_filters == 10:
        weights = probe.network.features.weight.double().numpy()[:, :, 0, 0]
        before = points @ weights.T
        return np.maximum(before, 0), (before > 0) * np.square(points).mean(axis=1, keepdims=True)
    x, y = points[:, 0], points[:, 1]
    monomials = np.stack([x, y, x**2, x * y, y**2, x**3, x**2 * y, x * y**2, y**3], axis=1)
    return monomials, np.square(monomials)


@pytest.mark.parametrize("number", range(4))
def test_embed_agrees_with_the_closed_formula(number, tasks, probe):
    task = tasks[number].canonical()
    points = np.array([read_point(task.images.load(index), side=SIDE) for index in range(len(task))])
    features, squares = compute_features(points, probe)
    settings = toy.SETTINGS
    head = fit_head(torch.from_numpy(features), torch.tensor(task.targets), classes=2, l2=settings.l2)
    w = (head.weight[1] - head.weight[0]).numpy()
    p = 1 / (1 + np.exp(-(features @ w + float(head.bias[1] - head.bias[0]))))
    balanced = np.where(task.targets == 1, 0.5 / (task.targets == 1).sum(), 0.5 / (task.targets == 0).sum())
    expected = w**2 * ((balanced * p * (1 - p)) @ squares)
    found = embed(tasks[number], probe, settings=settings)
    assert np.allclose(found.fisher, expected, rtol=1e-6, atol=1e-15)
    assert found.fisher.max() > 1e-3
    assert found.provenance["counts"]["backpropagated"] == len(task)


def test_the_probes_are_those_of_the_paper():
    weights = torch.cat([make_random_probe(side=SIDE, seed=s).network.features.weight[:, :, 0, 0] for s in range(60)])
    assert weights.shape == (600, 3)
    for column, bound in zip(weights.T, (0.5, 0.5, 1.0), strict=True):
        assert bound > float(column.abs().max()) > 0.95 * bound
        assert abs(float(column.mean())) < 0.1 * bound
        assert float(column.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
    polynomial = make_polynomial_probe(side=SIDE)
    assert polynomial.size == (1, 1)
    assert sorted(POWERS) == sorted((i, j) for i in range(4) for j in range(4) if 1 <= i + j <= 3)
    assert bool((polynomial.network.features.weight == 1).all())


def test_another_seed_makes_another_random_probe_and_the_same_one_the_same():
    first, again, other = (make_random_probe(side=SIDE, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    # On a finer grid the same pixel is another point: embeddings must not be compared.
    assert make_random_probe(side=SIDE + 1, seed=0).fingerprint != first.fingerprint


def test_filters_have_names(probe):
    names = name_filters(probe)
    assert len(set(names)) == len(names) == probe.n_filters


def test_the_domain_is_blind_where_the_task_embedding_is_not(tasks, probe):
    domains = [embed_domain(task, probe, dtype="float64").mean for task in tasks]
    assert all((domain == domains[0]).all() for domain in domains)
    points = np.array([read_point(tasks[0].images.load(index), side=SIDE) for index in range(SIDE**2)])
    assert np.allclose(domains[0], compute_features(points, probe)[0].mean(axis=0), rtol=1e-12, atol=1e-15)
    embeddings = [embed(task, probe, settings=toy.SETTINGS) for task in tasks[:4]]
    apart = [distance.symmetric(a, b) for i, a in enumerate(embeddings) for b in embeddings[:i]]
    assert min(apart) > 1e-6


def test_similarity_does_not_depend_on_which_class_is_positive():
    regions = np.stack([cut.is_positive for cut in draw_partitions(count=12, side=SIDE, seed=1)])
    similarity = region_similarity(regions)
    swapped = regions.copy()
    swapped[::3] ^= True
    assert (region_similarity(swapped) == similarity).all()
    assert (similarity.diagonal() == 1).all() and (similarity == similarity.T).all()
    assert similarity[~np.eye(12, dtype=bool)].max() < 1 and similarity.min() > 0
    pair = region_similarity(np.stack([regions[0], ~regions[0]]))
    assert (pair == 1).all()


def test_similarity_by_hand():
    left, lower = np.array([1, 0, 1, 0], dtype=bool), np.array([1, 1, 0, 0], dtype=bool)
    # Either matching shares one point of three in both classes.
    assert region_similarity(np.stack([left, lower]))[0, 1] == pytest.approx(1 / 3)


def test_nearest_counts_ties_alike_and_never_the_task_itself():
    values = np.array([[100.0, 1.0, 2.0], [1.0, 100.0, 4.0], [2.0, 4.0, 100.0]])
    distances = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    assert value_of_nearest(distances, values) == pytest.approx((1 + (1 + 4) / 2 + 4) / 3)
    assert value_of_nearest(np.zeros((3, 3)), values) == pytest.approx(7 / 3)


def test_rank_correlation():
    assert correlate_ranks([1, 2, 3, 4], [1, 4, 9, 16]) == pytest.approx(1)
    assert correlate_ranks([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert np.isnan(correlate_ranks([2, 2, 2], [1, 2, 3]))


def test_means_and_standard_errors_over_seeds():
    rows = [dict.fromkeys(MEASURES, value) for value in (1.0, 2.0, 3.0)]
    assert average_seeds(rows)["way"] == Mean(2.0, pytest.approx(1 / 3**0.5))
    assert average_seeds(rows[:1])["way"] == Mean(1.0, None)
    rows[0]["way"] = float("nan")
    assert average_seeds(rows)["way"].value == 2.5


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (Mean(0.4, 0.03), "40 ± 3 % of the way from chance to the best."),
        (Mean(0.1, 0.01), "small"),
        (Mean(0.1, 0.2), "chance."),
        (Mean(-0.1, 0.01), "may be chance"),
        (Mean(0.4, None), "40 % of the way"),
    ],
)
def test_the_statement_is_honest(way, words):
    means = {"ReLU": {**dict.fromkeys(MEASURES, Mean(0.5, 0.1)), "way": way}}
    assert words in word_statement(means, seeds=5)


def test_neighbours_in_task_space_are_more_alike_than_random_pairs(probe):
    """On a fixed seed: 24 tasks are few, and not every draw of them shows it as clearly as the 64 of the experiment."""
    tasks = toy_tasks(count=24, side=SIDE, seed=4)
    embeddings = [embed(task, probe, settings=toy.SETTINGS) for task in tasks]
    distances = np.array([[distance.symmetric(a, b) for b in embeddings] for a in embeddings])
    similarity = region_similarity(np.stack([task.targets for task in tasks]))
    found = value_of_nearest(distances, similarity)
    rng, shuffled = np.random.default_rng(0), []
    for _ in range(200):
        order = rng.permutation(24)
        shuffled.append(value_of_nearest(distances[np.ix_(order, order)], similarity))
    assert found > np.mean(shuffled) + 3 * np.std(shuffled)
    assert found < value_of_nearest(-similarity, similarity)


def test_the_run_measures_every_seed_and_probe(outcome):
    found, _, said = outcome
    assert [(row["seed"], row["probe"]) for row in found.rows] == [
        (3, "ReLU"), (3, "polynomial"), (4, "ReLU"), (4, "polynomial")
    ]  # fmt: skip
    for row in found.rows:
        assert row["domain"] == pytest.approx(row["random"], abs=1e-12)
        assert row["apart_domain"] == pytest.approx(row["apart_random"], abs=1e-12)
        assert 0 < row["random"] < row["best"] < 1
        assert row["nearest"] <= row["best"]
    assert len(said) == toy.count_steps([3, 4])
    assert "2 seeds" in found.statement
    assert torch.get_num_threads() == 1  # as tests/conftest.py has set it


def test_figures_and_tables_are_there_and_can_be_read(outcome):
    found, folder, _ = outcome
    names = {"toy.png", "toy.pdf", "toy_neighbours.png", "toy_neighbours.pdf"}
    names |= {"toy_tasks.csv", "toy_neighbours.csv", "toy_embeddings.csv"}
    assert {path.name for path in folder.iterdir()} == names == {path.name for path in found.files}
    for name in ("toy", "toy_neighbours"):
        with Image.open(folder / f"{name}.png") as picture:
            assert picture.width > 1000
            assert len(set(np.asarray(picture.convert("L")).ravel().tolist())) > 10
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_the_tables_hold_what_was_found(outcome):
    found, folder, _ = outcome
    tasks, neighbours, filters = (
        list(csv.DictReader((folder / f"toy_{name}.csv").read_text().splitlines()))
        for name in ("tasks", "neighbours", "embeddings")
    )
    assert len(tasks) == 2 * COUNT and len(neighbours) == 4 and len(filters) == 2 * COUNT * 19
    cuts = draw_partitions(count=COUNT, side=SIDE, seed=3)
    assert [int(row["clusters"]) for row in tasks[:COUNT]] == [cut.clusters for cut in cuts]
    assert float(tasks[0]["share_positive"]) == pytest.approx(cuts[0].is_positive.mean(), rel=1e-5)
    # Only the first seed is drawn.
    assert tasks[0]["relu_x"] and tasks[0]["polynomial_y"] and not tasks[COUNT]["relu_x"]
    assert float(neighbours[1]["nearest"]) == pytest.approx(found.rows[1]["nearest"], rel=1e-5)
    norm = sum(
        float(row["fisher"]) for row in filters if (row["seed"], row["probe"], row["task"]) == ("4", "ReLU", "2")
    )
    assert norm == pytest.approx(float(tasks[COUNT + 2]["relu_norm"]), rel=1e-4)


@pytest.mark.parametrize(
    "arguments", [{"seeds": ()}, {"seeds": (-1,)}, {"seeds": (1, 1)}, {"seeds": (1 << 63,)}, {"count": 3}, {"side": 3}]
)
def test_what_cannot_be_meant_is_refused_before_work_starts(tmp_path, arguments, monkeypatch):
    monkeypatch.setattr(toy, "embed", None)
    with pytest.raises(UsageError):
        toy.run_toy(tmp_path / "out", **arguments)


def test_without_matplotlib_nothing_is_computed(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setattr(toy, "embed", None)
    with pytest.raises(MissingExtraError, match="plot"):
        toy.run_toy(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_seats_are_never_shared_and_near():
    places = np.random.default_rng(0).normal(size=(64, 2)) ** 3
    seats, cell = seat_icons(places)
    apart = np.abs(seats[:, None] - seats[None, :]).max(axis=2) + np.eye(64)
    assert apart.min() > 0.99 * cell
    assert cell / 2 - 1e-9 <= seats.min() and seats.max() <= 1 - cell / 2 + 1e-9


def test_a_map_is_turned_not_bent():
    places = np.random.default_rng(0).normal(size=(20, 2))
    values = places @ [1.0, -2.0]
    turned = turn_to_grow(places, values.tolist())
    assert np.corrcoef(turned[:, 0], values)[0, 1] == pytest.approx(1)
    before, after = (np.linalg.norm(p[:, None] - p[None, :], axis=2) for p in (places, turned))
    assert np.allclose(before, after)


def test_colours_change_no_task():
    regions = np.stack([cut.is_positive for cut in draw_partitions(count=12, side=SIDE, seed=1)])
    shown = match_colours(regions)
    assert (region_similarity(shown) == region_similarity(regions)).all()
    assert all((a == b).all() or (a != b).all() for a, b in zip(shown, regions, strict=True))
    assert (match_colours(np.stack([regions[0], ~regions[0]]))[1] == regions[0]).all()
