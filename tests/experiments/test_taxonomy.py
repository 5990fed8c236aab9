"""The taxonomy experiment: the tree above a collection, embeddings that are kept, and label sets of the same images."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import task2vec as t2v
from experiments import taxonomy
from experiments.collection import read_collection
from experiments.embeddings import embed_all, read_committed
from experiments.figures import curve_area, draw_neighbourhoods, neighbourhood_curve
from experiments.label_sets import draw_sets, make_class_family, make_family, make_taxon_family, measure_class_means
from task2vec.errors import DataError
from tests.experiments.material import ROOT, read_csv, run, write_collection, write_shades
from tests.oracles import distances
from tests.oracles.distances import slow_curve
from tests.plots.spaces import make_space
from tests.tiny_probe import make_tiny

SETTINGS = t2v.EmbedSettings(max_samples=6, l2=1e-2)
DIGITS = t2v.sample_tasks(images_per_task=40)[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_collection(tmp_path_factory.mktemp("life"))


@pytest.fixture(scope="module")
def collection(data):
    return read_collection(data)


@pytest.fixture(scope="module")
def family():
    """Three label sets of two sets of eight digits."""
    labels = {name: DIGITS.targets % modulus == 0 for modulus, name in ((2, "even"), (3, "third"), (4, "fourth"))}
    return make_family(DIGITS, labels, draw_sets(DIGITS, 8, rng=np.random.default_rng(0)))


def test_the_tree_stands_on_what_is_above_a_dataset(collection):
    tree = taxonomy.build_tree(collection)
    assert tree.taxonomy.ranks == ("kingdom", "phylum", "class", "order", "family", "use")
    path = list(tree.taxonomy.lineage("dogs/work-0"))
    assert path == ["life", "Animalia", "Chordata", "Mammalia", "Carnivora", "Canidae", "work", "dogs/work-0"]
    assert [group[-1] for group in tree.groups] == ["A", "A", "A", "Aves", "Aves", "Canidae", "Canidae"]
    assert tree.distances[0].tolist() == [0, 4, 4, 6, 6, 9, 9]


def test_measures_compare_every_space_with_the_tree_and_the_first_with_the_domains(monkeypatch):
    monkeypatch.setattr(taxonomy, "PERMUTATIONS", 99)
    tree = taxonomy._make_square(10 - 8 * np.kron(np.eye(3), np.ones((4, 4))))
    far = taxonomy._make_square(tree.max() - tree)
    noise = taxonomy._make_square(np.random.default_rng(0).random((12, 12)))
    spaces = {"robust": tree, "domain, cosine": far, "domain, standardised": noise}
    datasets, groups = [*"aaaabbbbcccc"], [("life", name) for name in "ddddddddeeee"]
    rows = {(row["measure"], row["scope"], row["space"]): row for row in
            taxonomy.compare_spaces(spaces, tree, datasets, groups)}  # fmt: skip
    assert len(rows) == 3 + 1 + 2 * 3
    assert rows["spearman", "all pairs", "robust"]["value"] == pytest.approx(1)
    better = rows["spearman above domain, standardised", "all pairs", "robust"]
    best = rows["spearman", "all pairs", "domain, standardised"]["value"]
    assert better["value"] == pytest.approx(1 - best) and better["low"] > 0.5 and better["count"] == 66
    values = {key[::2]: (row["value"], row["chance"]) for key, row in rows.items() if row["chance"] is not None}
    assert values["same dataset", "robust"] == (1, pytest.approx(3 / 11))
    assert values["same dataset", "domain, cosine"] == (0, pytest.approx(3 / 11))
    assert values["same group", "domain, cosine"] == (pytest.approx((8 * 4 / 8 + 4 * 0) / 12), pytest.approx(68 / 132))


def test_embeddings_are_kept_and_those_of_the_same_name_stay_apart(tmp_path, collection, monkeypatch):
    task, probe = collection.members[0].task, make_tiny()
    tasks = [replace(task, name="birds: a"), replace(task, targets=np.roll(task.targets, 3), name="birds: a")]
    options = {"settings": SETTINGS, "device": "cpu"}
    made = embed_all(tasks, probe, tmp_path, **options)
    assert [embedding.provenance["task_fingerprint"] for embedding in made] == [task.fingerprint for task in tasks]
    broken = make_tiny()
    next(broken.network.parameters()).data.fill_(torch.nan)
    with pytest.raises(t2v.errors.NotFiniteError):
        embed_all(tasks, broken, tmp_path / "broken", **options)
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *_, **__: pytest.fail("a network was run"))
    again = embed_all(tasks[::-1], probe, tmp_path, **options)
    assert all(np.array_equal(a.fisher, b.fisher) for a, b in zip(again[::-1], made, strict=True))


@pytest.mark.parametrize("probe", ["resnet34", "tf_efficientnet_lite0"])
def test_the_committed_embeddings_give_the_committed_norms(probe):
    folder = ROOT / "docs" / "results" / "taxonomy" / probe
    found = {
        (embedding.task, dataset): embedding.norm()
        for embedding, dataset in zip(*read_committed(folder / "embeddings.safetensors"), strict=True)
    }
    assert found == {
        (row["task"], row["dataset"]): pytest.approx(row["norm"], rel=1e-5) for row in read_csv(folder / "tasks.csv")
    }


def test_label_sets_share_their_images(collection, family):
    assert len(family.tasks) == 6 and len({task.digests for task in family.tasks}) == 2
    assert family.tasks[1].name == f"{DIGITS.name} third, set 1" and family.tasks[1].classes == ("not third", "third")
    dataset = collection.datasets[0]
    first, second = draw_sets(dataset.images, 40, rng=np.random.default_rng(0))
    assert not set(first) & set(second) and (np.bincount(dataset.images.targets[first]) == 4).all()
    assert make_taxon_family(dataset, ["order"], images=40, most=3, rng=np.random.default_rng(0)) is None


def test_domains_of_label_sets_are_one_and_distances_are_compared(family, tmp_path):
    embedded = taxonomy.embed_tasks(family.tasks, make_tiny(), tmp_path, settings=SETTINGS, device="cpu")
    rows = taxonomy.compare_label_sets(family, embedded, measure_class_means(family, make_tiny(), device="cpu"))
    by_space = {row["space"]: row for row in rows}
    assert rows[0]["space"] == "robust" and rows[0]["label_sets"] == 3 and rows[0]["images_per_set"] == 8
    blind = by_space["domain, cosine"]
    assert blind["rate"] == pytest.approx(1 / 3) and blind["p"] == 1.0
    assert by_space["class means, symmetric"]["rate"] <= 1


def test_class_means_are_those_of_the_features_and_their_distances_those_of_the_definition(family):
    probe = make_tiny()
    found = measure_class_means(family, probe, device="cpu")
    assert found.shape == (6, probe.feature_dim)
    for task, vector in zip(family.tasks, found, strict=True):  # one image at a time, in the order of the task
        pixels = [
            probe.preprocess.normalise(probe.preprocess(task.images.load(n))[None], torch.float32) for n in range(8)
        ]
        rows = [probe.network(image)[0].tolist() for image in pixels]
        for feature, value in enumerate(vector):
            means = [
                np.mean([row[feature] for row, t in zip(rows, task.targets, strict=True) if t == k]) for k in (0, 1)
            ]
            assert value == pytest.approx((means[0] - means[1]) ** 2, rel=1e-3, abs=1e-9)
    vectors = np.array([[1.0, 2.0, 0.0, 4.0], [3.0, 0.5, 0.0, 1.0], [1.0, 2.0, 0.0, 0.0]])  # a feature dead in all
    kept = [[1.0, 2.0, 4.0], [3.0, 0.5, 1.0], [1.0, 2.0, 0.0]]
    for kind, matrix in taxonomy.measure_class_mean_spaces(vectors).items():
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
    monkeypatch.setattr(taxonomy, "PERMUTATIONS", 99)
    args = ("--data", data, "--out", tmp_path, "--max-samples", 6)
    result = run(taxonomy.app, *args, "--device", "cpu")
    assert "spearman, all pairs, robust: " in result.stdout
    made = {path.name for path in tmp_path.iterdir()}
    stems = {"tree", "neighbourhoods", "maps"}
    tables = {"tasks", "distances", "measures"}
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
