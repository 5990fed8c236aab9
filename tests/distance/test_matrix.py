"""The table of distances by itself, and in the hands of NumPy, SciPy, scikit-learn and pandas."""

import csv
import sys
import types

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.cluster import AgglomerativeClustering
from sklearn.neighbors import NearestNeighbors

from task2vec.distance import DistanceMatrix, cdist, pairwise
from task2vec.errors import DataError, MissingExtraError, ResourceError, UsageError
from tests.distance.material import make


@pytest.fixture(scope="module")
def two_families():
    rng = np.random.default_rng(0)
    centres = np.exp(rng.normal(size=(2, 40)))
    fishers = [centres[index % 2] * np.exp(0.1 * rng.normal(size=40)) for index in range(8)]
    return [make(fisher, task=f"t{index}") for index, fisher in enumerate(fishers)]


@pytest.fixture(scope="module")
def table(two_families):
    return pairwise(two_families, device="cpu")


def test_numpy_takes_it_for_an_array(table):
    assert np.array_equal(np.asarray(table), table.values) and table.shape == (8, 8) and len(table) == 8
    assert np.asarray(table, dtype=np.float32).dtype == np.float32
    copy = np.asarray(table)
    copy[0, 1] = 7  # as scikit-learn's t-SNE does with what it is given
    assert table.values[0, 1] != 7 and not table.values.flags.writeable
    assert repr(table) == "DistanceMatrix(symmetric, 8 x 8 tasks)"


def test_scipy_finds_the_families(table):
    labels = fcluster(linkage(squareform(np.asarray(table)), "average"), 2, "maxclust")
    assert set(labels[::2]) != set(labels[1::2]) and len(set(labels[::2])) == len(set(labels[1::2])) == 1


def test_scikit_learn_finds_the_families(table, two_families):
    labels = AgglomerativeClustering(2, metric="precomputed", linkage="average").fit_predict(table)
    assert len(set(labels[::2])) == len(set(labels[1::2])) == 1 and labels[0] != labels[1]
    search = NearestNeighbors(n_neighbors=3, metric="precomputed").fit(table)
    _, found = search.kneighbors(cdist(two_families[:2], two_families, device="cpu"))
    assert found[0, 0] == 0 and set(found[0] % 2) == {0} and set(found[1] % 2) == {1}


def test_nearest(table):
    found = table.nearest("t3", 3)
    assert {name for name, _ in found} == {"t1", "t5", "t7"}
    assert [value for _, value in found] == sorted(value for _, value in found)
    assert len(table.nearest("t3", 100)) == 7
    with pytest.raises(UsageError, match=r"no row is called 'x'.*t0, t1"):
        table.nearest("x")
    with pytest.raises(UsageError, match="k=0"):
        table.nearest("t3", 0)
    with pytest.raises(UsageError, match="several rows"):
        DistanceMatrix(np.zeros((2, 2)), ("a", "a"), ("a", "a"), "symmetric").nearest("a")


def test_names_must_fit():
    with pytest.raises(DataError, match=r"shape \(2, 3\)"):
        DistanceMatrix(np.zeros((2, 3)), ("a", "b"), ("a", "b"), "symmetric")


def test_csv_keeps_names_and_digits(table, tmp_path):
    odd = DistanceMatrix(table.values[:2, :2], ('cats, "wild"', "собаки"), ("a\nb", "c"), "symmetric")
    file = odd.save_csv(tmp_path / "table.csv")
    with file.open(encoding="utf-8", newline="") as text:
        header, *rows = list(csv.reader(text))
    assert header == ["symmetric", "a\nb", "c"] and [row[0] for row in rows] == ['cats, "wild"', "собаки"]
    assert np.array_equal(np.array([row[1:] for row in rows], dtype=float), odd.values)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_csv_is_whole_or_absent(table, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for place in (tmp_path / "missing" / "x.csv", tmp_path / "folder.csv"):
        with pytest.raises(ResourceError, match="cannot write the distances"):
            table.save_csv(place)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_pandas_is_asked_for_by_name(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        table.to_pandas()


def test_pandas_gets_names_and_values(table, monkeypatch):
    stand_in = types.ModuleType("pandas")
    stand_in.DataFrame = lambda values, index, columns: (values, index, columns)
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    values, index, columns = table.to_pandas()
    assert np.array_equal(values, table.values) and values.flags.writeable
    assert index == list(table.rows) and columns == list(table.columns)
