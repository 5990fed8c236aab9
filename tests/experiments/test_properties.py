"""The properties: what is done to tasks, what is concluded from rows, and the committed claims."""

import numpy as np
import pytest

import task2vec as t2v
from experiments import properties
from experiments.collection import Collection, Member, read_collection
from experiments.report import FAILS, HOLDS, UNCLEAR, correlate
from tests.experiments.material import ROOT, read_csv, run, write_collection
from tests.failures import refuse
from tests.tiny_probe import make_tiny

DIGITS = t2v.sample_tasks(images_per_task=60)[0]


def rng(seed=0):
    return np.random.default_rng(seed)


def test_what_is_done_to_labels_images_and_classes():
    half, same = (properties.shuffle_labels(DIGITS, share, rng=rng()) for share in (0.5, 0.0))
    assert (half.counts == DIGITS.counts).all() and 0 < (half.targets != DIGITS.targets).sum() <= 30
    assert (same.targets == DIGITS.targets).all()

    small, large = (properties.cut_images(DIGITS, count, rng=rng(3)) for count in (2, 4))
    assert set(small.digests) < set(large.digests) and (large.counts == 4).all()
    some = properties.cut_classes(DIGITS, 3, rng=rng())
    assert len(some.classes) == 3 and (some.counts == 6).all()

    other = properties.relabel(DIGITS, rng=rng())
    assert other.fingerprint == DIGITS.fingerprint and other.classes[0] == "class 0"


def test_a_rise_counts_beyond_its_noise():
    a, b = properties.Point(1, 1.0, 0.5, (0.5, 1.5)), properties.Point(2, 1.2, 0.5, (0.7, 1.7))
    assert properties.find_rise(a, b) == pytest.approx(0.2)  # every repeat rises by the same
    assert properties.find_rise(a, properties.Point(2, 1.2, 0.5, (1.7, 0.7))) == 0.0
    assert properties.find_rise(a, properties.Point(2, 0.4, 0.1, (0.4,))) == 0.0
    rows = [{"n": 1, "d": 1.0}, {"n": 1, "d": 4.0}, {"n": 2, "d": 3.0}]
    first, second = properties.summarise(rows, "n", "d")
    assert (first.mean, first.stderr, second.stderr) == (2.5, pytest.approx(1.5), 0.0)


def test_correlations_have_verdicts():
    x = np.arange(30.0)
    assert correlate(x, x**2).verdict == HOLDS and correlate(x, -x).verdict == FAILS
    assert correlate(x[:4], x[:4]).verdict == UNCLEAR and str(correlate(x[:4], x[:4])) == "-"
    assert correlate(x, np.ones(30)).rho is None
    noisy = correlate(x, rng(1).normal(size=30))
    assert noisy.low < noisy.rho < noisy.high and noisy.verdict == UNCLEAR


def test_the_committed_claims_follow_from_the_committed_rows():
    folder = ROOT / "docs" / "properties"
    rows = {name: read_csv(folder / f"{name}.csv") for name in ("norm_error", "labels", "classes", "sample_size")}
    # Measured on a GPU, which adds in any order: the claim is the only record of that row.
    moved = {"filters": 8512, "filters_changed": 8512, "largest_relative_difference": 2e-8}
    rows["sample_size"] = [row for row in rows["sample_size"] if row["labels"] == "true labels"]
    # Commit 507e0f77 made two more.
    dropped = ("... those better than chance", "few empty labels are trivial")
    wanted = [row for row in read_csv(folder / "claims.csv") if row["claim"] not in dropped]
    found = properties.make_claims({**rows, "relabelled": [moved]})
    assert [claim.claim for claim in found] == [row["claim"] for row in wanted]
    for claim, row in zip(found, wanted, strict=True):
        if not claim.measured.startswith("rho"):  # rounded rows have ties, which move a rho by 0.01
            assert claim.measured == row["measured"].lstrip("'")  # which keeps a cell from being a formula
        assert claim.verdict == row["verdict"]


def test_a_collection_is_read_by_taxon_and_tables_that_do_not_fit_are_refused(tmp_path):
    collection = read_collection(write_collection(tmp_path))
    assert [member.task.name for member in collection.members][2:4] == ["cub200 A3", "cub200 B"]
    assert [task.name for task in properties.pick_rich(collection.members)] == ["cub200 A1", "dogs work"]
    for table, words in (
        ("dataset,taxon_level\ncub200,order\n", "needs a header with dataset, taxon_level, taxon"),
        ("dataset,taxon_level,taxon\n../x,order,A\n", "nothing outside of the collection is read"),
        ("dataset,taxon_level,taxon,n_classes\ncub200,order,A,7\n", "do not agree: 'A' in column 'order'"),
        ("dataset,taxon_level,taxon\ncub200,tribe,A\n", "there is no column 'tribe'"),
    ):
        (tmp_path / "tasks.csv").write_text(table)
        refuse(t2v.errors.DataError, words, read_collection, tmp_path)
    # The version of a rank that fits the counts is followed.
    path = tmp_path / "cub200" / "taxonomy.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{lines[0]},order_old", *(f"{line},X" for line in lines[1:])]) + "\n")
    (tmp_path / "tasks.csv").write_text("dataset,taxon_level,taxon,n_classes\ncub200,order,X,10\n")
    collection = read_collection(tmp_path)
    assert collection.datasets[0].columns == {"order": "order_old"} and len(collection.members[0].task.classes) == 10


def test_cases_are_planned_with_their_kinds(monkeypatch):
    for name, value in (
        ("REPEATS", 2),
        ("SHARES", (0.0, 1.0)),
        ("CLASSES", (2,)),
        ("SIZES", (1, 2)),
        ("MOST_IMAGES", 3),
    ):
        monkeypatch.setattr(properties, name, value)
    cases = properties.plan_cases(Collection((Member("d", DIGITS),)))
    assert [(about["shuffled"], about["repeat"]) for about, _ in cases["labels"]] == [(0.0, 0), (1.0, 0), (1.0, 1)]
    assert [len(task.classes) for _, task in cases["classes"]] == [2, 2, 10, 10]
    assert len(cases["sample_size"]) == 2 * 2 and [about["task"] for about, _ in cases["norm_error"]] == [DIGITS.name]


@pytest.mark.long
def test_the_command_on_a_small_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(t2v, "load_probe", lambda *_, **__: make_tiny(), raising=False)
    monkeypatch.setattr(properties, "REPEATS", 2)
    data = write_collection(tmp_path / "data")
    result = run(properties.app, "--data", data, "--out", tmp_path / "out", "--max-samples", 6)
    assert "names and order change no bit: 0 of 28 filters move" in result.stdout
    made = {path.name for path in (tmp_path / "out").iterdir()}
    stems = ("norm_error", "labels", "classes", "sample_size")
    assert made >= {f"{stem}.csv" for stem in stems} | {"claims.csv", "norm_error.png"}
    shuffled = read_csv(tmp_path / "out" / "labels.csv")
    assert {row["shuffled"] for row in shuffled} == set(properties.SHARES)
