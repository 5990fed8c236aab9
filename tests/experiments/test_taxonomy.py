"""The taxonomy experiment: the tree above a collection, embeddings that are taken up, and what is made of distances."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import task2vec as t2v
from experiments.collection import Collection, Dataset, read_collection
from experiments.taxonomy import COMPACT, SUFFIX, Plan, Shelf, check_names, measure_spaces
from experiments.taxonomy_attributes import paint_family
from experiments.taxonomy_rows import (
    SAME_DATASET,
    SAME_GROUP,
    SAME_GROUP_WITHIN,
    compare_questions,
    compare_spaces,
    list_asked,
    list_pairs,
)
from experiments.taxonomy_store import load_compact, save_compact
from experiments.taxonomy_tree import choose_ranks, find_group, join_datasets, plant
from task2vec.embedding import is_same, name_file
from task2vec.errors import DataError, EmbeddingFileError, UsageError
from tests.tiny_probe import make_tiny

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
SMALL = t2v.EmbedSettings(max_samples=6, l2=1e-2)

# Families of an order share a hue, so that relatives look alike.
LIFE = {
    "cub200": {"A1": ("A", 20), "A2": ("A", 35), "A3": ("A", 50), "B": ("B", 110), "C": ("C", 140)},
    "dogs": {"work": ("", 190), "hunt": ("", 210)},
}


def write_table(place, rows):
    with place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_collection(root, *, per_class=10, side=16):
    """Five groups of birds, three of them families of one order, and two uses of dogs; two shades in each group."""
    rng = np.random.default_rng(0)
    tasks = []
    for dataset, groups in LIFE.items():
        rows = []
        for name, (order, level) in groups.items():
            for kind in range(2):
                folder = root / dataset / "images" / f"{name}-{kind}"
                folder.mkdir(parents=True)
                for index in range(per_class):
                    pixels = rng.normal((level, 60 + 90 * kind, 128), 18, (side, side, 3)).clip(0, 255)
                    Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
                row = {"class_dir": folder.name}
                rows.append(row | ({"order": order, "family": name} if dataset == "cub200" else {"use": name}))
            level = ("family" if name[1:] else "order") if dataset == "cub200" else "use"
            tasks.append({"dataset": dataset, "taxon_level": level, "taxon": name, "task": f"{dataset} {name}"})
        write_table(root / dataset / "taxonomy.csv", rows)
    write_table(root / "tasks.csv", tasks)
    return root


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return read_collection(write_collection(tmp_path_factory.mktemp("life")))


@pytest.fixture(scope="module")
def probe():
    return make_tiny()


def test_the_tree_stands_on_what_is_above_a_dataset(collection):
    forest = plant(collection)
    assert forest.tree.ranks == ("kingdom", "phylum", "class", "order", "family", "use")
    path = [taxon.name for taxon in forest.tree.lineage("dogs/work-0")]
    assert path == ["life", "Animalia", "Chordata", "Mammalia", "Carnivora", "Canidae", "work", "dogs/work-0"]
    names = [member.task.name for member in collection.members]
    assert names == ["cub200 A1", "cub200 A2", "cub200 A3", "cub200 B", "cub200 C", "dogs work", "dogs hunt"]
    assert [group.name for group in forest.groups] == ["A", "A", "A", "Aves", "Aves", "Canidae", "Canidae"]
    assert forest.distances["graph"][0].tolist() == [0, 4, 4, 6, 6, 9, 9]
    assert forest.distances["ultrametric"][0].tolist() == [0, 3, 3, 4, 4, 5, 5]


def test_ranks_follow_the_columns_of_the_tasks(tmp_path, collection):
    rows = ({"class_dir": "a", "kingdom": "K", "order": "x", "order_old": "y", "use": "z"},)
    dataset = Dataset(collection.members[0].task, rows, tmp_path / "t.csv", {"order": "order_old", "use": "use"})
    assert choose_ranks(dataset) == {"kingdom": "kingdom", "order": "order_old", "use": "use"}
    by_column = replace(dataset, columns={"order_old": "order_old"})
    assert choose_ranks(by_column) == {"kingdom": "kingdom", "order": "order_old"}


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"order": "x"}, ["Animalia", "Chordata", "Aves", "x"]),
        ({"class": "Birds", "order": "x"}, ["Animalia", "Chordata", "Birds", "x"]),
        ({"kingdom": "Fauna", "class": "Birds", "order": "x"}, ["Fauna", "Birds", "x"]),
    ],
)
def test_what_a_table_says_itself_is_not_said_again(tmp_path, collection, row, path):
    row = {"class_dir": "a", **row}
    write_table(tmp_path / "t.csv", [row])
    tree = join_datasets([Dataset(replace(collection.datasets[0].images, name="cub200"), (row,), tmp_path / "t.csv")])
    assert [taxon.name for taxon in tree.lineage("cub200/a")][1:-1] == path


def test_classes_of_one_name_in_two_datasets_stay_apart(tmp_path, collection):
    parts = []
    for name, order in (("fish", "F"), ("trees", "T")):
        write_table(tmp_path / f"{name}.csv", [{"class_dir": "1", "order": order}])
        rows = ({"class_dir": "1", "order": order},)
        parts.append(Dataset(replace(collection.datasets[0].images, name=name), rows, tmp_path / f"{name}.csv"))
    assert join_datasets(parts).graph_distance("fish/1", "trees/1") == 4


def test_groups_are_the_next_larger_taxon():
    ranks = {"a": ("P", "A"), "b": ("P", "A"), "c": ("P", "B"), "d": ("Q", "D"), "e": ("Q", "D")}
    tree = t2v.Taxonomy(("order", "family"), ranks)
    assert str(find_group(["a", "b"], tree)) == "P (order)"
    assert str(find_group(["a"], tree)) == "A (family)"
    assert str(find_group(["a", "c"], tree)) == "life"
    assert str(find_group(["d", "e"], tree)) == "life"  # Q has no other classes than D
    assert str(find_group(list("abcde"), tree)) == "life"


def test_tasks_that_no_tree_knows_are_refused(collection):
    with pytest.raises(DataError, match=r"not cut by taxon.*taxonomy\.csv"):
        plant(Collection(collection.members, ()))
    with pytest.raises(DataError, match="two tasks are called 'x'"):
        check_names(["x", "y", "x"])


@pytest.fixture(scope="module")
def planned(collection):
    return Plan(collection, (paint_family(images=16, seed=0),), (SMALL, replace(SMALL, method="direct")))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory, probe):
    return Shelf(tmp_path_factory.mktemp("shelf"), probe, "cpu")


@pytest.fixture(scope="module")
def run(planned, shelf):
    return planned.run(shelf)


def refuse(*args, **kwargs):
    raise AssertionError("something was embedded again")


def test_every_embedding_is_saved_under_its_method(planned, shelf, run):
    assert (shelf.made, shelf.found) == (len(planned), 0)
    assert len(planned) == 7 * 3 + 12 + 4
    names = {path.name for path in (shelf.folder / "embeddings" / "robust").iterdir()}
    assert len(names) == 19
    assert name_file(run[0].tasks[0], SUFFIX) in names
    assert {one.provenance["settings"]["method"] for one in run[0].by_method["direct"]} == {"direct"}


def test_a_second_run_embeds_nothing(planned, shelf, run, probe, monkeypatch):
    monkeypatch.setattr(t2v, "embed_many", refuse)
    monkeypatch.setattr(t2v, "embed_domain", refuse)
    again = Shelf(shelf.folder, probe, "cpu")
    whole, families = planned.run(again)
    assert (again.made, again.found) == (0, len(planned))
    for one, other in zip(whole.by_method["robust"], run[0].by_method["robust"], strict=True):
        assert (one.fisher == other.fisher).all()
    assert (families[0].domains[0].mean == run[1][0].domains[0].mean).all()


def test_questions_about_the_same_images_share_their_passes(planned, run, probe, tmp_path, monkeypatch):
    family = planned.families[0]
    asked = (*family.first, *family.second)
    calls, embed_many = [], t2v.embed_many
    monkeypatch.setattr(
        t2v, "embed_many", lambda tasks, *args, **kw: calls.append(tasks) or embed_many(tasks, *args, **kw)
    )
    shelf = Shelf(tmp_path, probe, "cpu")
    found = shelf.embed([asked[3]], SMALL)
    shared = shelf.embed(asked, SMALL)
    assert [[task.name for task in tasks] for tasks in calls] == [
        [asked[3].name],
        [task.name for task in asked if task is not asked[3]],
    ]
    assert shared[3] is not found[0] and (shared[3].fisher == found[0].fisher).all()
    assert (shelf.made, shelf.found) == (12, 1)
    for task, one in zip(asked, shared, strict=True):
        alone = t2v.embed(task, probe, settings=SMALL, device="cpu")
        assert one.task == task.name and one.provenance["task_fingerprint"] == task.fingerprint
        for part in ("fisher", "stderr", "prior"):
            np.testing.assert_allclose(getattr(one, part), getattr(alone, part), rtol=1e-4, atol=1e-12)


def test_where_one_question_fails_the_others_are_kept(planned, probe, tmp_path, monkeypatch):
    asked = planned.families[0].first
    lost = asked[1]

    def stumble(tasks, *args, **kwargs):
        for number, task in enumerate(tasks):
            if task is lost:
                yield t2v.TaskResult(number, task.name, error=DataError("it is gone"))
            else:
                yield t2v.TaskResult(number, task.name, t2v.embed(task, probe, settings=SMALL, device="cpu"))

    with monkeypatch.context() as patch:
        patch.setattr(t2v, "embed_many", stumble)
        with pytest.raises(DataError, match="it is gone"):
            Shelf(tmp_path, probe, "cpu").embed(asked, SMALL)
    names = {path.name for path in (tmp_path / "embeddings" / "robust").iterdir()}
    assert names == {name_file(task, SUFFIX) for task in asked if task is not lost}
    again = Shelf(tmp_path, probe, "cpu")
    assert [one.task for one in again.embed(asked, SMALL)] == [task.name for task in asked]
    assert (again.made, again.found) == (1, len(asked) - 1)


def test_the_compact_file_alone_is_enough(planned, shelf, run, probe, monkeypatch, tmp_path):
    monkeypatch.setattr(t2v, "embed_many", refuse)
    monkeypatch.setattr(t2v, "embed_domain", refuse)
    (tmp_path / COMPACT).write_bytes((shelf.folder / COMPACT).read_bytes())
    whole, _ = planned.run(Shelf(tmp_path, probe, "cpu"))
    given, taken = (measure_spaces(one, device="cpu")["robust"] for one in (run[0], whole))
    assert abs(given - taken).max() < 1e-6
    # One method more does not lose the others.
    kept = load_compact(tmp_path / COMPACT)
    Plan(None, (), (SMALL,)).run(found := Shelf(tmp_path, probe, "cpu"))
    found.keep()
    assert {m: len(group) for m, group in load_compact(tmp_path / COMPACT).embeddings.items()} == {
        m: len(group) for m, group in kept.embeddings.items()
    }


def test_what_has_changed_is_embedded_again(collection, shelf, run, probe, tmp_path):
    task, embedding = run[0].tasks[0], run[0].by_method["robust"][0]
    assert is_same(embedding, task, probe, settings=SMALL)
    assert not is_same(embedding, run[0].tasks[1], probe, settings=SMALL)
    assert not is_same(embedding, task, make_tiny(1), settings=SMALL)
    assert not is_same(embedding, task, probe, settings=replace(SMALL, images=8))
    assert not is_same(embedding, task, probe, settings=replace(SMALL, method="direct"))
    path = tmp_path / "embeddings" / "robust" / name_file(task, SUFFIX)
    embedding.save(path)
    path.write_bytes(path.read_bytes()[:-1] + b"!")  # damaged
    said = []
    steps = []
    fresh = Shelf(tmp_path, probe, "cpu", steps.append, said.append)
    fresh.embed([task], SMALL)
    assert fresh.made == len(steps) == 1
    assert "SHA-256" in said[0]
    assert Shelf(tmp_path, probe, "cpu").embed([task], SMALL)[0].fisher.tolist() == embedding.fisher.tolist()


def test_the_compact_file_forgets_other_settings_of_a_method_it_is_asked_for(run, probe, tmp_path):
    one, other = run[0].by_method["robust"][:2]
    save_compact([one, other, run[0].by_method["direct"][0]], path=tmp_path / COMPACT)
    shelf = Shelf(tmp_path, probe, "cpu")
    shelf.embed([run[0].tasks[0]], replace(SMALL, images=8))
    kept = load_compact(shelf.keep()).embeddings
    assert [(e.task, e.provenance["settings"]["images"]) for e in kept["robust"]] == [(one.task, 8)]
    assert [e.task for e in kept["direct"]] == [one.task]


def test_questions_are_embedded_by_the_first_method_alone(planned, run, probe, tmp_path):
    assert list(run[0].by_method) == ["robust", "direct"] and list(run[1][0].by_method) == ["robust"]
    turned = Plan(None, planned.families, planned.settings[::-1])
    assert len(turned) == 12 + 4
    _, (found,) = turned.run(shelf := Shelf(tmp_path, probe, "cpu"))
    assert (shelf.made, found.main) == (len(turned), "direct")
    assert {one.provenance["settings"]["method"] for one in found.by_method["direct"]} == {"direct"}


def test_names_that_are_no_files_become_some(collection):
    task = collection.members[0].task
    assert name_file(replace(task, name="cub_Parulidae"), SUFFIX) == "cub_Parulidae.safetensors"
    wild = {name_file(replace(task, name=name), SUFFIX) for name in ("../../etc", "a/b", ".hidden", "ä", "x" * 500)}
    assert len(wild) == 5
    for name in wild:
        assert "/" not in name and not name.startswith(".") and len(name) < 160 and name.endswith(SUFFIX)
    other = replace(collection.members[1].task, name="a/b")
    assert name_file(other, SUFFIX) not in wild


def test_the_compact_file_gives_back_distances(run, tmp_path):
    by_method, domains = run[0].by_method, run[0].domains
    whole = [one for group in by_method.values() for one in group]
    path = save_compact(whole, domains, path=tmp_path / "all.safetensors", datasets={"cub200 B": "cub200"})
    found = load_compact(path)
    assert list(found.embeddings) == ["robust", "direct"] or set(found.embeddings) == {"robust", "direct"}
    for method, group in by_method.items():
        for kind in ("symmetric", "cosine", "log_euclidean", "jeffreys"):
            given, taken = (
                t2v.distance.pairwise(g, kind, device="cpu").values for g in (group, found.embeddings[method])
            )
            assert np.allclose(given, taken, rtol=1e-5, atol=1e-6)
        for one, other in zip(group, found.embeddings[method], strict=True):
            assert (one.task, one.probe, one.layers, one.provenance) == (
                other.task,
                other.probe,
                other.layers,
                other.provenance,
            )
            assert np.allclose(one.prior, other.prior, rtol=1e-6)
            assert ((one.fisher == 0) == (other.fisher == 0)).all()
    assert all((a.mean == b.mean).all() for a, b in zip(domains, found.domains, strict=True))
    assert found.datasets == {"cub200 B": "cub200"}
    assert path.stat().st_size < 0.6 * len(whole) * 3 * 8 * len(whole[0]) + 1_000_000


def test_tiny_fishers_stay_alive(run, tmp_path):
    one = run[0].by_method["robust"][0]
    fisher = np.array(one.fisher)
    fisher[:2] = 1e-60, 0.0
    [back] = load_compact(save_compact([replace(one, fisher=fisher)], path=tmp_path / "t.safetensors")).embeddings[
        "robust"
    ]
    assert back.fisher[0] > 0 and back.fisher[1] == 0


def test_compact_files_that_cannot_be_trusted(run, tmp_path, probe):
    one = run[0].by_method["robust"][0]
    path = save_compact([one], path=tmp_path / "t.safetensors")
    content = path.read_bytes()
    for damaged in (content[:-1] + bytes([content[-1] ^ 1]), content[:100], b"", b"nothing"):
        path.write_bytes(damaged)
        with pytest.raises(EmbeddingFileError, match="is not a collection of embeddings"):
            load_compact(path)
    with pytest.raises(EmbeddingFileError):
        load_compact(one.save(tmp_path / "single.safetensors"))
    with pytest.raises(DataError, match="not constant within its layers"):
        save_compact([replace(one, prior=one.prior * np.linspace(1, 2, len(one)))], path=path)
    stranger = replace(one, provenance={**one.provenance, "probe_fingerprint": "other"})
    with pytest.raises(UsageError, match="different probes"):
        save_compact([one, stranger], path=path)
    said = []
    (tmp_path / COMPACT).write_bytes(b"nothing")
    assert Shelf(tmp_path, probe, "cpu", warn=said.append).found == 0
    assert "damaged" in said[0]


def test_numbers_of_a_collection(collection, run):
    forest = plant(collection)
    datasets = [member.dataset for member in collection.members]
    found = compare_spaces(run[0], forest, datasets, permutations=199, seed=0, device="cpu")
    assert found.methods == ("robust", "direct")
    assert [name for name in found.spaces if "," not in name] == ["robust", "direct"]
    assert "robust, asymmetric" not in found.spaces and "robust, kl" not in found.spaces
    assert {"robust, cosine", "robust, jeffreys", "domain, cosine", "domain, standardised"} < set(found.spaces)
    assert {scope for _, scope in found.found} == {"all pairs", "cub200", "within datasets"}  # all dogs are cousins
    assert found.look_up(SAME_DATASET, "robust")["chance"] == pytest.approx((5 * 4 + 2 * 1) / 7 / 6)
    assert found.look_up(SAME_GROUP, "robust")["chance"] == pytest.approx((3 * 2 + 2 + 2) / 7 / 6)
    within = found.look_up(SAME_GROUP_WITHIN, "robust")
    assert (within["count"], within["chance"]) == (5, pytest.approx((3 * 2 + 2 * 1) / 5 / 4))
    pairs = list_pairs(found)
    assert len(pairs) == 21
    assert (pairs[0]["graph"], pairs[0]["ultrametric"]) == (4, 3)
    assert pairs[0]["robust"] == pytest.approx(t2v.distance.symmetric(*run[0].by_method["robust"][:2]), abs=1e-6)
    assert pairs[-1]["domain, cosine"] == t2v.distance.domain(*run[0].domains[-2:])


def test_numbers_of_a_family(planned, run):
    family, embedded = planned.families[0], run[1][0]
    rows, pairs = compare_questions(family, embedded, permutations=99, device="cpu")
    assert rows[0]["space"] == "robust" and rows[0]["questions"] == 6
    domain = next(row for row in rows if row["space"] == "domain, cosine")
    assert (domain["rate"], domain["beside"], domain["domain_features_changed"]) == (pytest.approx(1 / 6), 0.0, 0)
    robust = [pair for pair in pairs if pair["space"] == "robust"]
    assert {kind: sum(pair["kind"] == kind for pair in robust) for kind in ("same", "other", "beside")} == {
        "same": 6, "other": 30, "beside": 30,
    }  # fmt: skip
    same = next(pair for pair in robust if pair["kind"] == "same" and pair["question"] == "large")
    both = [embedded.by_method["robust"][number] for number in (1, 7)]
    assert [one.task for one in both] == ["painted large, set 1", "painted large, set 2"]
    assert same["distance"] == pytest.approx(t2v.distance.symmetric(*both), abs=1e-6)
    assert np.mean([pair["distance"] for pair in robust if pair["kind"] == "other"]) == pytest.approx(rows[0]["other"])


def test_questions_that_were_asked(planned, run):
    rows = list_asked(planned.families[0], run[1][0])
    assert [(row["question"], row["set"]) for row in rows[5:8]] == [("on dark ground", 1), ("warm", 2), ("large", 2)]
    assert all((row["images"], row["yes"], row["l2"]) == (16, 8, 1e-2) for row in rows)
    assert rows[7]["norm"] == run[1][0].by_method["robust"][7].norm()


@pytest.mark.skipif(not (SHARED / "tasks.csv").exists(), reason=f"no real collection at {SHARED}")
def test_the_real_collection_has_its_tree():
    """Reading all images takes long, so they are stood in for by empty folders' worth of names."""
    parts = []
    some = t2v.sample_tasks(images_per_task=20)[0]
    columns = {
        "cub200": {"order": "order_traditional", "family": "family_2011"},
        "flowers102": {"order": "order"},
        "dogs": {"breed_group": "breed_group"},
    }
    for name, chosen in columns.items():
        place = SHARED / name / "taxonomy.csv"
        rows = tuple(csv.DictReader(place.read_text(encoding="utf-8").splitlines()))
        parts.append(Dataset(replace(some, name=name), rows, place, chosen))
    tree = join_datasets(parts)
    assert tree.ranks == ("kingdom", "phylum", "class", "order", "family", "breed_group")

    def group(dataset, column, taxon):
        part = next(part for part in parts if part.images.name == dataset)
        return find_group([f"{dataset}/{row['class_dir']}" for row in part.taxonomy if row[column] == taxon], tree).name

    assert group("cub200", "family_2011", "Parulidae") == "Passeriformes"
    assert group("cub200", "order_traditional", "Podicipediformes") == "Aves"
    assert group("flowers102", "order", "Asterales") == "Magnoliopsida"
    assert group("flowers102", "order", "Liliales") == "Liliopsida"
    assert group("dogs", "breed_group", "hound") == "Canidae"
