"""Reference distances: of domains, in a taxonomy, and from measured errors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import task2vec as t2v
from task2vec.distance import domain, taxonomic, taxonomic_matrix, transfer
from task2vec.errors import DataError, ProbeMismatchError, SettingsMismatchError, UsageError
from tests.failures import refuse
from tests.oracles.distances import height, walk

# --- domains ----------------------------------------------------------------------------------------------------------


def make(features, *, task="a", probe="net", fingerprint="p", dtype="float32"):
    features = np.asarray(features, dtype=float)
    provenance = {"probe_fingerprint": fingerprint, "settings": {"dtype": dtype}}
    return t2v.DomainEmbedding(task, probe, features.mean(0), np.square(features).mean(0), provenance)


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    return rng.gamma(2.0, size=(30, 8)), 1 + 2 * rng.gamma(1.0, size=(30, 8))


def test_cosine_of_the_means(pair):
    a, b = (features.mean(0) for features in pair)
    expected = 1 - a @ b / np.sqrt((a @ a) * (b @ b))
    assert domain(make(pair[0]), make(pair[1])) == pytest.approx(expected, rel=1e-10)
    assert domain(make([[1.0, 0.0]]), make([[-3.0, 0.0]])) == pytest.approx(2.0)


def test_standardised_by_the_images_of_both_whatever_the_units(pair):
    # With as many images in each, s is the plain standard deviation of all of them together.
    s = np.concatenate(pair).std(0)
    gaps = [(pair[0].mean(0) - pair[1].mean(0)) / s, (pair[0].std(0) - pair[1].std(0)) / s]
    expected = np.sqrt(np.mean(gaps[0] ** 2 + gaps[1] ** 2))
    a, b = map(make, pair)
    assert domain(a, b, kind="standardised") == pytest.approx(expected, rel=1e-10)
    assert domain(b, a, kind="standardised") == domain(a, b, kind="standardised")
    scaled = (make(features * np.logspace(-6, 6, 8)) for features in pair)
    assert domain(*scaled, kind="standardised") == pytest.approx(expected, rel=1e-6)
    assert domain(a, a, kind="standardised") == domain(a, a) == 0


def test_constant_features_do_not_make_noise_count():
    rng = np.random.default_rng(0)
    a, b = np.full((37, 50), 0.1), np.full((41, 50), 0.1)
    a[:, 0], b[:, 0] = rng.normal(size=37), rng.normal(size=41)
    one = domain(make(a[:, :1]), make(b[:, :1]), kind="standardised")
    assert domain(make(a), make(b), kind="standardised") == pytest.approx(one / np.sqrt(50), rel=1e-6)
    # Dead in both: nothing. Constant at two values: as far as can be, but finite.
    assert domain(make(np.zeros((3, 2))), make(np.zeros((4, 2))), kind="standardised") == 0
    assert domain(make([[1.0]]), make([[2.0]]), kind="standardised") == pytest.approx(2.0)


def test_domains_that_cannot_be_compared_are_refused(pair):
    a, unknown = make(pair[0], task="birds"), make(pair[0], fingerprint="unknown")
    other, rough = make(pair[1], probe="x", fingerprint="q"), make(pair[1], dtype="bfloat16")
    refuse(ProbeMismatchError, "'birds' with 'a'.*net and x", domain, a, other)
    refuse(ProbeMismatchError, "probes", domain, unknown, unknown)
    refuse(SettingsMismatchError, "dtype=float32 and dtype=bfloat16", domain, a, rough)
    refuse(UsageError, "kind='euclidean'.*cosine, standardised", domain, a, a, kind="euclidean")
    refuse(DataError, "every mean feature of 'dead' is 0", domain, a, make(np.zeros((3, 8)), task="dead"))


# --- taxonomy ---------------------------------------------------------------------------------------------------------

ORACLES = {"graph": walk, "ultrametric": height}
ORDERS = {"raven": ("P", "Corvidae"), "jay": ("P", "Corvidae"), "robin": ("P", "Turdidae"), "wren": ("P", "")}
BIRDS = t2v.Taxonomy(("order", "family"), {**ORDERS, "kiwi": ("A", "Apterygidae")})


@st.composite
def worlds(draw):
    """A tree with gaps, and tasks that may share classes."""
    ranks = ("a", "b", "c")[: draw(st.integers(0, 3))]
    lineage = st.tuples(*[st.sampled_from(["", "x", "y"])] * len(ranks))
    tree = t2v.Taxonomy(ranks, draw(st.dictionaries(st.sampled_from("abcdefgh"), lineage, min_size=1)))
    task = st.lists(st.sampled_from(tree.classes), min_size=1, max_size=4)
    return tree, draw(st.lists(task, min_size=2, max_size=5))


@pytest.mark.parametrize("kind", list(ORACLES))
@settings(max_examples=20, deadline=None)
@given(worlds())
def test_taxonomic_equals_the_definition(kind, world):
    tree, tasks = world
    expected = [[min(ORACLES[kind](tree, i, j) for i in a for j in b) for b in tasks] for a in tasks]
    assert taxonomic_matrix(tasks, tree, kind=kind).tolist() == expected
    assert taxonomic(tasks[0], tasks[1], tree, kind=kind) == expected[0][1]


def test_taxonomic_distances_of_tasks():
    pictures = [(Image.new("L", (4, 4), shade), shade % 2) for shade in range(4)]
    task = t2v.from_dataset(pictures, classes=["raven", "jay"], name="corvids")
    assert taxonomic_matrix([task, task, ["robin"]], BIRDS).tolist() == [[0, 0, 4], [0, 0, 4], [4, 4, 0]]


def test_invalid_taxonomic_arguments_are_refused():
    refuse(DataError, "dodo", taxonomic, ["raven"], ["raven", "dodo"], BIRDS)
    refuse(UsageError, "without classes", taxonomic, ["raven"], [], BIRDS)
    refuse(UsageError, r"\['kiwi'\]", taxonomic, ["raven"], "kiwi", BIRDS)
    refuse(UsageError, "kind='tree'", taxonomic, ["raven"], ["kiwi"], BIRDS, kind="tree")
    assert taxonomic_matrix([], BIRDS).shape == (0, 0)


# --- transfer ---------------------------------------------------------------------------------------------------------


def test_transfer_is_the_formula_and_what_was_not_measured_stays_unknown():
    # Rows are tasks: with own errors by column the numbers would be others.
    assert transfer([[0.2, 0.2], [0.2, 0.2]], own=[0.1, 0.2]).tolist() == [[1.0, 1.0], [0.0, 0.0]]
    found = transfer([[0.2, math.nan, 0.1], [0.3, math.nan, 0.3], [0.0, 0.8, 0.4]])
    assert np.array_equal(np.isnan(found), [[False, True, False], [True, True, True], [False, False, False]])
    assert found[2].tolist() == [-1.0, 1.0, 0.0]


def test_invalid_errors_are_refused():
    refuse(UsageError, r"shape \(1, 2\).*Pass own=", transfer, [[0.2, 0.3]])
    refuse(UsageError, r"own errors of shape \(2,\).*transpose", transfer, [[0.2, 0.3]], [0.2, 0.3])
    refuse(UsageError, r"errors of shape \(2,\)", transfer, [0.2, 0.3])
    refuse(DataError, r"own\[1\] is 0", transfer, [[0.2, 0.3], [0.5, 0.0]])
    refuse(DataError, r"errors\[0, 1\] is -0.3", transfer, [[0.2, -0.3], [0.5, math.inf]], [1, 1])
