"""The taxonomy experiment: the tree above a collection, embeddings that are found again, and what is concluded."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import task2vec as t2v
from experiments import taxonomy
from experiments.agreement import ALL, WITHIN, Agreement
from experiments.collection import read_collection
from experiments.embeddings_file import open_embeddings
from experiments.label_sets import draw_sets, make_family, make_painted_family, make_taxon_family
from experiments.report import FAILS, HOLDS, PARTLY, UNCLEAR
from experiments.taxonomy import Comparison, Embedded, Embedder, build_tree, make_claims
from tests.experiments.material import ROOT, read_csv, run, write_collection
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


def test_embeddings_are_kept_in_one_file_and_found_again(tmp_path, collection):
    file, probe, members = open_embeddings(tmp_path / "all.safetensors"), make_tiny(), collection.members[:2]
    tasks = [member.task for member in members]
    made = Embedder(file, probe, SMALL, "cpu").embed(tasks, [member.dataset for member in members])
    again = open_embeddings(file.save())
    assert again.datasets == {"cub200 A1": "cub200", "cub200 A2": "cub200"}
    assert list(again.domains) == list(again.datasets)
    for known, one in zip(again.of_method("robust"), made.by_method["robust"], strict=True):
        assert np.allclose(known.vector, one.vector, rtol=1e-6) and known.provenance == one.provenance
    assert again.find(members[0].task, probe, settings=SMALL[0]) is again.embeddings["robust", "cub200 A1"]
    assert again.find(members[0].task, make_tiny(seed=1), settings=SMALL[0]) is None
    shuffled = replace(members[0].task, targets=np.roll(members[0].task.targets, 3))
    assert again.find(shuffled, probe, settings=SMALL[0]) is None
    other = t2v.embed(members[0].task, make_tiny(seed=1), settings=SMALL[0], device="cpu")
    with pytest.raises(t2v.errors.UsageError, match="different probes"):
        again.keep(replace(other, task="other"))
    (tmp_path / "bad").write_bytes(b"bad")
    with pytest.raises(t2v.errors.EmbeddingFileError, match="not a file of embeddings"):
        open_embeddings(tmp_path / "bad")


@pytest.mark.parametrize("probe", ["resnet34", "tf_efficientnet_lite0"])
def test_the_committed_embeddings_give_the_committed_norms(probe):
    folder = ROOT / "docs" / "results" / "taxonomy" / probe
    norms = {one.task: one.norm() for one in open_embeddings(folder / "embeddings.safetensors").of_method("robust")}
    assert all(norms[row["task"]] == pytest.approx(row["norm"], rel=1e-5) for row in read_csv(folder / "tasks.csv"))


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
    null = np.where(np.arange(999)[:, None] < p * 1000 - 1, 1.0, -1.0).repeat(len(rho), 1)
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
    found = {("graph", ALL): fake_agreement(whole), ("graph", WITHIN): fake_agreement(pooled)}
    found |= {("graph", f"d{n}"): fake_agreement(part) for n, part in enumerate(parts)}
    row = {"measure": "same dataset", "space": "robust", "value": 0.9, "chance": 0.4, "count": 8, "low": 0.7, "high": 1}
    spaces = {name: np.zeros((2, 2)) for name in ("robust", "robust, cosine", "domain, cosine")}
    tasks = [{"norm": n, "error": n / 10} for n in range(1, 9)]
    claims = make_claims(Comparison(spaces, ("robust",), {}, found, tasks, [row]), [])
    assert [claim.verdict for claim in claims] == [*verdicts, HOLDS, HOLDS]
    assert claims[-2].measured == "90 %, chance 40 %, 8 tasks"


def test_verdicts_on_label_sets():
    main = {"family": "f", "space": "robust", "rate": 0.8, "chance": 0.25, "p": 0.001, "auc_beside": 0.9}
    main |= {"domain_features_changed": 0}
    blind = main | {"space": "domain, cosine", "rate": 0.25}
    assert [claim.verdict for claim in make_claims(None, [main, blind])] == [HOLDS, HOLDS]
    assert make_claims(None, [main | {"auc_beside": 0.4}, blind])[0].verdict == PARTLY
    assert make_claims(None, [main | {"p": 0.5, "rate": 0.2}, blind])[0].verdict == FAILS
    assert make_claims(None, [main | {"domain_features_changed": 2}, blind])[1].verdict == PARTLY
    assert make_claims(None, [main, blind | {"rate": 0.5}])[1].verdict == FAILS


def test_domains_of_label_sets_are_one_and_distances_are_compared(collection):
    family = make_painted_family(images=8, seed=0)
    made = {"robust": [t2v.embed(t, make_tiny(), settings=SMALL[0], device="cpu") for t in family.tasks]}
    embedded = Embedded(made, [t2v.embed_domain(task, make_tiny(), device="cpu") for task in family.tasks])
    rows, pairs, tasks = taxonomy.compare_label_sets(family, embedded, permutations=99)
    assert rows[0]["space"] == "robust" and rows[0]["domain_features_changed"] == 0
    blind = next(row for row in rows if row["space"] == "domain, cosine")
    assert blind["rate"] == pytest.approx(1 / 6) and blind["beside"] == 0.0
    kinds = [pair["kind"] for pair in pairs if pair["space"] == "robust"]
    assert (len(kinds), kinds.count("same"), kinds.count("beside")) == (66, 6, 30)
    assert [(row["set"], row["positive"]) for row in tasks] == [(1, 4)] * 6 + [(2, 4)] * 6


@pytest.mark.long
def test_the_command_draws_and_a_second_run_embeds_nothing(tmp_path, data, monkeypatch):
    probe = make_tiny()
    monkeypatch.setattr(t2v, "load_probe", lambda *_, **__: probe, raising=False)
    monkeypatch.setattr(taxonomy, "PAINTED", 40)
    args = ("--data", data, "--out", tmp_path, "--permutations", 99, "--max-samples", 6, "--l2", 0.01)
    result = run(taxonomy.app, *args, "--device", "cpu")
    assert "distances follow the taxonomy: rho" in result.stdout
    made = {path.name for path in tmp_path.iterdir()}
    stems = {"tree", "neighbourhoods", "norm_error", "maps"}
    assert made >= {f"{stem}.png" for stem in stems} | {f"{stem}.csv" for stem in stems}
    assert made >= {"tasks.csv", "distances.csv", "measures.csv", "attributes.csv", "attribute_tasks.csv", "claims.csv"}
    before = read_csv(tmp_path / "distances.csv")
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *_, **__: pytest.fail("a network was run"))
    run(taxonomy.app, *args, "--device", "cpu")
    after = read_csv(tmp_path / "distances.csv")
    assert [row["robust"] for row in after] == pytest.approx([row["robust"] for row in before], rel=1e-4)
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    assert "tasks.csv cannot be" in run(taxonomy.app, "--data", tmp_path / "empty", "--out", tmp_path, code=3).stderr
