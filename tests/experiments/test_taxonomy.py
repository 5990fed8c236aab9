"""The taxonomy experiment: the tree above a collection, embeddings that are found again, and what is concluded."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import task2vec as t2v
from experiments import taxonomy
from experiments.agreement import ALL, WITHIN, Agreement
from experiments.collection import read_collection
from experiments.embeddings import embed_all, read_committed
from experiments.figures import curve_area, draw_neighbourhoods, draw_norms, neighbourhood_curve
from experiments.label_sets import (
    draw_sets,
    make_class_family,
    make_family,
    make_painted_family,
    make_taxon_family,
    measure_class_means,
)
from experiments.report import FAILS, HOLDS, PARTLY, UNCLEAR
from experiments.taxonomy import Comparison, build_tree, embed_tasks, make_claims
from task2vec.errors import DataError
from tests.experiments.material import ROOT, read_csv, run, write_collection, write_shades
from tests.oracles import distances
from tests.oracles.distances import slow_curve
from tests.plots.spaces import make_space
from tests.tiny_probe import make_tiny

SMALL = (t2v.EmbedSettings(max_samples=6, l2=1e-2),)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_collection(tmp_path_factory.mktemp("life"))


@pytest.fixture(scope="module")
def collection(data):
    return read_collection(data)


def test_the_tree_stands_on_what_is_above_a_dataset(collection):
    tree = build_tree(collection)
    assert tree.taxonomy.ranks == ("kingdom", "phylum", "class", "order", "family", "use")
    path = list(tree.taxonomy.lineage("dogs/work-0"))
    assert path == ["life", "Animalia", "Chordata", "Mammalia", "Carnivora", "Canidae", "work", "dogs/work-0"]
    assert [group[-1] for group in tree.groups] == ["A", "A", "A", "Aves", "Aves", "Canidae", "Canidae"]
    assert tree.distances["graph"][0].tolist() == [0, 4, 4, 6, 6, 9, 9]
    assert tree.distances["ultrametric"][0].tolist() == [0, 3, 3, 4, 4, 5, 5]


def test_embeddings_are_kept_and_those_of_the_same_name_stay_apart(tmp_path, collection, monkeypatch):
    task, probe = collection.members[0].task, make_tiny()
    tasks = [replace(task, name="birds: a"), replace(task, targets=np.roll(task.targets, 3), name="birds: a")]
    how = {"settings": SMALL[0], "device": "cpu"}
    made = embed_all(tasks, probe, tmp_path, **how)
    assert [one.provenance["task_fingerprint"] for one in made] == [one.fingerprint for one in tasks]
    broken = make_tiny()
    next(broken.network.parameters()).data.fill_(torch.nan)
    with pytest.raises(t2v.errors.NotFiniteError):
        embed_all(tasks, broken, tmp_path / "broken", **how)
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *_, **__: pytest.fail("a network was run"))
    again = embed_all(tasks[::-1], probe, tmp_path, **how)
    assert all(np.array_equal(one.fisher, other.fisher) for one, other in zip(again[::-1], made, strict=True))


@pytest.mark.parametrize("probe", ["resnet34", "tf_efficientnet_lite0"])
def test_the_committed_embeddings_give_the_committed_norms(probe):
    folder = ROOT / "docs" / "results" / "taxonomy" / probe
    found = {
        (one.task, dataset): one.norm()
        for one, dataset in zip(*read_committed(folder / "embeddings.safetensors"), strict=True)
    }
    assert found == {
        (row["task"], row["dataset"]): pytest.approx(row["norm"], rel=1e-5) for row in read_csv(folder / "tasks.csv")
    }


def test_label_sets_share_their_images(collection):
    family = make_painted_family(images=12, seed=0)
    assert len(family.tasks) == 12 and len({task.digests for task in family.tasks}) == 2
    assert all(task.counts.tolist() == [6, 6] for task in family.tasks)
    dataset = collection.datasets[0]
    first, second = draw_sets(dataset.images, 40, rng=np.random.default_rng(0))
    assert not set(first) & set(second) and (np.bincount(dataset.images.targets[first]) == 4).all()
    assert make_taxon_family(dataset, ["order"], images=40, most=3, rng=np.random.default_rng(0)) is None
    answers = {"a": np.arange(len(dataset.images)) % 2 == 0, "b": np.arange(len(dataset.images)) % 3 == 0}
    made = make_family(dataset.images, answers, (first, second))
    assert made.tasks[1].name == "cub200 b, set 1" and made.tasks[1].classes == ("not b", "b")


def fake_agreement(rho, *, p=0.001, spread=0.01):
    rng, rho = np.random.default_rng(0), np.array(rho)
    null = np.where(np.arange(999)[:, None] < p * 1000 - 1, 1.0, 0.0).repeat(len(rho), 1)
    return Agreement(10, rho, null, rho + spread * rng.normal(size=(200, len(rho))))


@pytest.mark.parametrize(
    ("whole", "pooled", "parts", "verdicts"),
    [
        ((0.8, 0.5, 0.6), (0.5, 0, 0), ((0.6, 0, 0), (0.4, 0, 0)), [HOLDS, HOLDS, HOLDS, HOLDS, HOLDS]),
        ((0.5, 0.8, 0.6), (0.5, 0, 0.5), ((0.6, 0, 0), (-0.4, 0, 0)), [HOLDS, PARTLY, FAILS, UNCLEAR, FAILS]),
        ((-0.5, -0.8, -0.6), (-0.5, 0, 0), ((0.6, 0, 0),), [FAILS, FAILS, HOLDS, FAILS, HOLDS]),
    ],
)
def test_verdicts_on_the_taxonomy(whole, pooled, parts, verdicts):
    agreements = {ALL: whole, WITHIN: pooled, **{f"d{number}": part for number, part in enumerate(parts)}}
    found = {("graph", scope): fake_agreement(rho) for scope, rho in agreements.items()}
    row = {"measure": "same dataset", "space": "robust", "value": 0.9, "chance": 0.4, "count": 8, "low": 0.7, "high": 1}
    spaces = dict.fromkeys(("robust", "robust, cosine", "domain, cosine"), np.zeros((2, 2)))
    tasks = [{"norm": n, "error": n / 10} for n in range(1, 9)]
    claims = make_claims(Comparison(spaces, ("robust",), {}, found, tasks, [row]), [])
    assert [claim.verdict for claim in claims] == [*verdicts, HOLDS, HOLDS]
    assert claims[-2].measured == "90%, chance 40%, 8 tasks"


@pytest.mark.parametrize(
    ("ours", "domains", "verdicts"),
    [
        ({}, {}, [HOLDS, HOLDS]),
        ({"auc_beside": 0.4}, {}, [PARTLY, HOLDS]),
        ({"p": 0.5, "rate": 0.2}, {}, [FAILS, HOLDS]),
        ({"domain_features_changed": 2}, {}, [HOLDS, PARTLY]),
        ({}, {"rate": 0.5}, [HOLDS, FAILS]),
    ],
)
def test_verdicts_on_label_sets(ours, domains, verdicts):
    main = {"family": "f", "space": "robust", "rate": 0.8, "chance": 0.25, "p": 0.001, "auc_beside": 0.9}
    blind = main | {"domain_features_changed": 0, "space": "domain, cosine", "rate": 0.25}
    claims = make_claims(None, [main | {"domain_features_changed": 0} | ours, blind | domains])
    assert [claim.verdict for claim in claims] == verdicts


def test_domains_of_label_sets_are_one_and_distances_are_compared(tmp_path):
    family = make_painted_family(images=8, seed=0)
    embedded = embed_tasks(family.tasks, make_tiny(), tmp_path, settings=SMALL, device="cpu")
    class_means = measure_class_means(family, make_tiny(), device="cpu")
    rows, pairs, tasks = taxonomy.compare_label_sets(family, embedded, class_means, permutations=99)
    assert rows[0]["space"] == "robust" and rows[0]["domain_features_changed"] == 0
    blind = next(row for row in rows if row["space"] == "domain, cosine")
    assert blind["rate"] == pytest.approx(1 / 6) and blind["beside"] == 0.0
    kinds = [pair["kind"] for pair in pairs if pair["space"] == "robust"]
    assert (len(kinds), kinds.count("same"), kinds.count("beside")) == (66, 6, 30)
    assert [(row["set"], row["positive"]) for row in tasks] == [(1, 4)] * 6 + [(2, 4)] * 6


def test_class_means_are_those_of_the_features_and_their_distances_those_of_the_definition():
    family, probe = make_painted_family(images=8, seed=0), make_tiny()
    found = measure_class_means(family, probe, device="cpu")
    assert found.shape == (12, probe.feature_dim)
    for task, vector in zip(family.tasks, found, strict=True):  # one image at a time, in the order of the task
        pixels = [
            probe.preprocess.normalise(probe.preprocess(task.images.load(n))[None], torch.float32) for n in range(8)
        ]
        rows = [probe.network(one)[0].tolist() for one in pixels]
        for place, value in enumerate(vector):
            means = [np.mean([row[place] for row, t in zip(rows, task.targets, strict=True) if t == k]) for k in (0, 1)]
            assert value == pytest.approx((means[0] - means[1]) ** 2, rel=1e-3, abs=1e-9)
    vectors = np.array([[1.0, 2.0, 0.0, 4.0], [3.0, 0.5, 0.0, 1.0], [1.0, 2.0, 0.0, 0.0]])  # a feature dead in all
    kept = [[1.0, 2.0, 4.0], [3.0, 0.5, 1.0], [1.0, 2.0, 0.0]]
    for kind, matrix in taxonomy.measure_vectors(vectors).items():
        slow = {"class means, cosine": distances.cosine, "class means, symmetric": distances.symmetric}[kind]
        np.testing.assert_allclose(matrix, [[slow(a, b) if a != b else 0 for b in kept] for a in kept], atol=1e-12)


def test_each_of_the_largest_classes_of_a_folder_against_the_rest(tmp_path):
    for number, count in enumerate((30, 24, 22, 21, 20, 8)):
        write_shades(tmp_path / "whole" / f"c{number}", (40 * number, 128, 128), count, np.random.default_rng(number))
    family = make_class_family(tmp_path / "whole", images=60, most=4, rng=np.random.default_rng(0))
    assert family.attributes == ("c0", "c1", "c2", "c3") and len(family.tasks) == 8
    assert [task.counts[1] for task in family.tasks[:4]] == [task.counts[1] for task in family.tasks[4:]]
    for path in (tmp_path / "whole").glob("c[123]"):
        path.rename(tmp_path / path.name)
    with pytest.raises(DataError, match=r"fewer than 4 classes of 20 images.* Leave it out of --label-sets"):
        make_class_family(tmp_path / "whole", images=60, most=4, rng=np.random.default_rng(0))


@pytest.mark.long
def test_the_command_draws_and_a_second_run_embeds_nothing(tmp_path, data, monkeypatch):
    monkeypatch.setattr(t2v, "load_probe", lambda *_, **__: make_tiny(), raising=False)
    monkeypatch.setattr(taxonomy, "PAINTED", 40)
    args = ("--data", data, "--out", tmp_path, "--permutations", 99, "--max-samples", 6, "--l2", 0.01)
    result = run(taxonomy.app, *args, "--device", "cpu")
    assert "distances follow the taxonomy: rho" in result.stdout
    made = {path.name for path in tmp_path.iterdir()}
    stems = {"tree", "neighbourhoods", "norm_error", "maps"}
    tables = {"tasks", "distances", "measures", "attributes", "attribute_tasks", "claims"}
    assert made >= {f"{stem}.png" for stem in stems} | {f"{stem}.csv" for stem in stems | tables}
    before = (tmp_path / "distances.csv").read_bytes()
    monkeypatch.setattr(t2v.embedding.many.GroupWork, "embed", lambda *_: pytest.fail("embedded again"))
    run(taxonomy.app, *args, "--device", "cpu")
    assert (tmp_path / "distances.csv").read_bytes() == before
    (tmp_path / "empty").mkdir()
    assert "tasks.csv cannot be" in run(taxonomy.app, "--data", tmp_path / "empty", "--out", tmp_path, code=3).stderr


# --- its figures ------------------------------------------------------------------------------------------------------


def test_the_curve_is_the_slow_one_and_its_area_one_at_best_zero_at_random_and_below_at_worst(tmp_path):
    rng = np.random.default_rng(0)
    distances, taxa = rng.integers(0, 3, (6, 6)).astype(float), rng.random((6, 6))  # ties, and no symmetry
    np.testing.assert_allclose(neighbourhood_curve(distances, taxa), slow_curve(distances, taxa), atol=1e-12)
    taxa = np.array([[0, 2, 8], [2, 0, 8], [8, 8, 0.0]])
    assert curve_area(np.ones((3, 3)), taxa) == pytest.approx(0, abs=1e-12)
    # By hand: the best curve is (2 + 2 + 8) / 3 = 4, then 6; this one is 8, 6. So -2 of a possible 2.
    worst = np.array([[0, 9, 1], [9, 0, 1], [1, 1, 0.0]])
    np.testing.assert_allclose(neighbourhood_curve(worst, taxa), [8, 6])
    assert curve_area(worst, taxa) == pytest.approx(-1)
    taxa, (space, _) = make_space(12, seed=5)[0], make_space(12)
    files = draw_neighbourhoods({"task2vec": space, "$cosine_": taxa}, taxa, out=tmp_path / "curve.v1")
    assert [file.name for file in files] == ["curve.v1.png", "curve.v1.pdf", "curve.v1.csv"]
    rows = read_csv(files[2])
    np.testing.assert_allclose([row["task2vec"] for row in rows], neighbourhood_curve(space, taxa), rtol=1e-5)
    assert [row["$cosine_"] for row in rows] == [row["best possible"] for row in rows]


def test_a_norm_far_below_the_others_is_at_the_edge_with_its_number():
    rows = [{"family": "f", "dataset": f"d{n}", "norm": n + 1.0, "error": n / 10} for n in range(10)]
    rows[4]["norm"] = 1e-9
    (axes,) = draw_norms(rows, ["norm"], error="error", what="error").axes
    np.testing.assert_allclose([dots.get_offsets()[0, 1] for dots in axes.collections], range(0, 100, 10))
    assert axes.get_xlim()[0] > 1e-3 and [text.get_text() for text in axes.texts] == ["‹ 1e-09"]
