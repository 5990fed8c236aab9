"""Each score against its definition, on tasks that are tall, wide, uneven, singular and repeated."""

import numpy as np
import pytest
import scipy.spatial
import torch

from task2vec.errors import DataError, NotFiniteError, UndefinedScoreError, UsageError
from task2vec.select.scores import SCORES, Features, knn, leep, logme, nce, parc
from tests.oracles import slow_scores
from tests.select.scores.material import CASES, draw, draw_probabilities, tensors

# How far a score may be from its definition: two of a few hundred pairs in one bin show in the fourth digit of PARC.
NEAR = {"knn": 1e-12, "h_score": 1e-8, "h_score_shrunk": 1e-8, "transrate": 1e-8, "gbc": 1e-8, "parc": 2e-4}
ON_FEATURES = [name for name, score in SCORES.items() if not score.needs_source]
# Whatever is done to the features, these scores see the same.
SEES_NO = {
    "rotation": [name for name in ON_FEATURES if name != "parc"],
    "shift": [name for name in ON_FEATURES if name != "logme"],
    "scale": ON_FEATURES,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NEAR)
def test_equals_its_definition(name, case):
    x, y = CASES[case]()
    found = SCORES[name].function(*tensors(x, y))
    assert found == pytest.approx(getattr(slow_scores, name)(x, y), abs=NEAR[name], rel=NEAR[name])


@pytest.mark.parametrize("k", [1, 2, 5, 16])
def test_neighbours_of_any_number(k):
    x, y = CASES["uneven"]()
    assert knn(*tensors(x, y), k=k) == pytest.approx(slow_scores.knn(x, y, k), abs=1e-12)


def test_more_images_than_stand_in_one_block():
    x, y = draw(1100, 3, 3, apart=1.5)
    distances = scipy.spatial.distance.squareform(scipy.spatial.distance.pdist(x))
    np.fill_diagonal(distances, np.inf)
    assert knn(*tensors(x, y)) == pytest.approx(np.mean(y[distances.argmin(1)] == y), abs=1e-12)
    assert parc(*tensors(x, y)) == pytest.approx(slow_scores.parc(x, y), abs=1e-4)


@pytest.mark.parametrize("times", [100, 1e5])
def test_one_very_long_vector_does_not_make_the_others_alike(times):
    y = torch.arange(300) % 5
    generator = torch.Generator().manual_seed(0)
    centres, noise = (torch.randn(*shape, 16, generator=generator) for shape in ((5,), (300,)))
    x = centres[y] + 2 * noise
    before = knn(x, y)
    assert 0.3 < before < 0.8
    x[0] *= times
    assert abs(knn(x, y) - before) < 0.03


def test_tied_neighbours_share_the_vote():
    # The first image is as far from one of its own as from one of the others, but for rounding.
    rng = np.random.default_rng(0)
    for _ in range(10):
        around = rng.normal(size=(2, 7))
        around /= np.linalg.norm(around, axis=1, keepdims=True)
        far = rng.normal(size=(20, 7)) + 5
        x, y = np.concatenate([np.zeros((1, 7)), around, 1.2 * around, far]), np.array([0, 0, 1, 0, 1] + [0] * 20)
        assert knn(*tensors(x, y)) == pytest.approx(24.5 / 25)


@pytest.mark.parametrize("case", ["tall", "two classes", "uneven", "a class missing"])
def test_logme_is_the_largest_evidence(case):
    x, y = CASES[case]()
    assert logme(*tensors(x, y)) == pytest.approx(slow_scores.logme(x, y), abs=1e-7)


def test_logme_is_where_the_papers_iteration_ends():
    x, y = draw(60, 8, 3, apart=2.0)
    assert logme(*tensors(x, y)) == pytest.approx(slow_scores.logme_fixed_point(x, y), abs=1e-9)


@pytest.mark.parametrize(("width", "apart"), [(40, 1.0), (400, 8.0)])
def test_logme_with_more_features_than_images(width, apart):
    x, y = draw(16, width, 2, apart=apart, seed=7)
    assert logme(*tensors(x, y)) == pytest.approx(slow_scores.logme(x, y), abs=1e-5)


def test_logme_of_an_exact_fit_counts_a_residual_of_rounding():
    y = np.arange(30) % 3
    # y = F w with w = 1 for one class: a third of the images, and a residual of 10^-12 of them, is what is left.
    squares, rest = 10.0, 1e-12 * 10
    t = np.exp(np.linspace(-60, 20, 200_001))
    evidence = -15 * np.log((10 * t / (squares + t) + rest) / 30) + 1.5 * np.log(t / (squares + t))
    expected = evidence.max() / 30 - (1 + np.log(2 * np.pi)) / 2
    assert logme(*tensors(np.eye(3)[y], y)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("sources", "sure"), [(7, 2.0), (60, 1.0), (2, 20.0)])
def test_leep_and_nce_equal_their_definitions(sources, sure):
    theta, y = draw_probabilities(sources=sources, sure=sure)
    assert leep(*tensors(theta, y)) == pytest.approx(slow_scores.leep(theta, y), abs=1e-12)
    assert nce(*tensors(theta, y)) == pytest.approx(slow_scores.nce(theta, y), abs=1e-12)


def test_leep_and_nce_do_not_mind_source_classes_that_never_occur():
    theta, y = draw_probabilities()
    wider = np.concatenate([np.zeros((len(y), 2)), theta], axis=1)
    for score in (leep, nce):
        assert score(*tensors(wider, y)) == pytest.approx(score(*tensors(theta, y)), abs=1e-12)


def test_probabilities_of_half_precision_are_brought_to_sum_one():
    theta, y = draw_probabilities()
    assert leep(*tensors(theta * 1.004, y)) == pytest.approx(leep(*tensors(theta, y)), abs=1e-12)


def test_leep_and_nce_stay_between_the_entropy_and_zero():
    theta, y = draw_probabilities()
    shares = np.bincount(y) / len(y)
    entropy = -np.sum(shares * np.log(shares))
    same = np.tile(theta[:1], (len(y), 1))
    for score in (leep, nce):
        assert score(*tensors(same, y)) == pytest.approx(-entropy, abs=1e-12)
        assert score(*tensors(np.eye(3)[y], y)) == 0.0
        assert -entropy <= score(*tensors(theta, y)) <= 0


@pytest.mark.parametrize("name", ON_FEATURES)
def test_classes_further_apart_score_higher(name):
    found = [SCORES[name].function(*tensors(*draw(120, 5, 3, apart=apart, seed=8))) for apart in (0, 1, 2, 3)]
    assert found == sorted(found) and found[0] < found[-1]


@pytest.mark.parametrize("name", ON_FEATURES)
def test_true_labels_score_higher_than_shuffled_ones(name):
    x, y = draw(120, 5, 3, apart=2.0, seed=9)
    shuffled = np.random.default_rng(0).permutation(y)
    true, false = (SCORES[name].function(*tensors(x, labels)) for labels in (y, shuffled))
    assert true > false


@pytest.mark.parametrize("name", ON_FEATURES)
def test_names_of_classes_and_order_of_images_do_not_matter(name):
    x, y = CASES["uneven"]()
    rng = np.random.default_rng(1)
    order = rng.permutation(len(y))
    renamed = np.array([7, 1, 4, 2])[y]
    function = SCORES[name].function
    # N-LEEP draws its start among the images in their order.
    if name != "nleep":
        assert function(*tensors(x[order], y[order])) == pytest.approx(function(*tensors(x, y)), abs=1e-9)
    assert function(*tensors(x, renamed)) == pytest.approx(function(*tensors(x, y)), abs=1e-9)


@pytest.mark.parametrize(("change", "name"), [(c, name) for c, names in SEES_NO.items() for name in names])
@pytest.mark.parametrize("case", ["tall", "wide"])
def test_what_a_score_does_not_see(change, name, case):
    x, y = CASES[case]()
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(x.shape[1],) * 2))[0]
    changed = {"rotation": x @ rotation, "shift": x + 3, "scale": x * 1e-6}[change]
    before, after = (SCORES[name].function(*tensors(features, y)) for features in (x, changed))
    assert after == pytest.approx(before, abs=2e-4 if name == "parc" else 1e-7)


def test_transrate_is_blind_to_two_classes_of_equal_size_and_sees_three():
    transrate = SCORES["transrate"].function
    two, three = (transrate(*tensors(*draw(600, 4, classes, apart=8.0, seed=1))) for classes in (2, 3))
    assert 10 * abs(two) < three


def test_transrate_prefers_a_signal_to_noise_of_more_directions():
    x, y = draw(60, 80, 4, apart=3.0)
    noise = np.random.default_rng(1).normal(size=x.shape)
    transrate = SCORES["transrate"].function
    signal = x * np.arange(1, 81) ** -0.5
    assert parc(*tensors(signal, y)) > 0.5 > parc(*tensors(noise, y))
    assert transrate(*tensors(signal, y)) > 1.5 * transrate(*tensors(noise, y))


def test_the_plain_h_score_does_not_see_any_linear_map():
    x, y = draw()
    mixed = x @ np.random.default_rng(3).normal(size=(6, 6))
    h_score = SCORES["h_score"].function
    assert h_score(*tensors(mixed, y)) == pytest.approx(h_score(*tensors(x, y)), abs=1e-9)


def test_the_plain_h_score_says_nothing_of_few_images_and_the_shrunk_one_does():
    x, y = draw(24, 60, 4, apart=2.0, seed=1)
    shuffled = np.random.default_rng(0).permutation(y)
    plain, shrunk = SCORES["h_score"].function, SCORES["h_score_shrunk"].function
    assert plain(*tensors(x, y)) == pytest.approx(3) == plain(*tensors(x, shuffled))
    assert shrunk(*tensors(x, y)) > 1.2 * shrunk(*tensors(x, shuffled))


@pytest.mark.parametrize("value", [0.0, 1 / 3])
@pytest.mark.parametrize("name", ON_FEATURES)
def test_constant_features_say_nothing(name, value):
    y = np.arange(30) % 3
    x = np.full((30, 5), value)
    found = SCORES[name].function(*tensors(x, y))
    rng = np.random.default_rng(0)
    assert np.isfinite(found)
    assert found == pytest.approx(SCORES[name].function(*tensors(x, rng.permutation(y))), abs=1e-9)
    assert found <= SCORES[name].function(*tensors(*draw(30, 5, 3, apart=3.0)))


@pytest.mark.parametrize("name", ON_FEATURES)
def test_perfect_features_are_finite_and_best(name):
    y = np.arange(30) % 3
    perfect = SCORES[name].function(*tensors(np.eye(3)[y], y))
    assert np.isfinite(perfect)
    assert perfect >= SCORES[name].function(*tensors(*draw(30, 3, 3, apart=2.0)))


@pytest.mark.parametrize("name", ON_FEATURES)
def test_huge_and_tiny_features_are_borne(name):
    x, y = draw()
    expected = SCORES[name].function(*tensors(x, y))
    for factor in (1e-30, 1e30):
        assert SCORES[name].function(*tensors(x * factor, y)) == pytest.approx(expected, abs=2e-4)


def test_one_image_per_class_has_no_pairs():
    x, _ = draw(6, 4, 2)
    with pytest.raises(UndefinedScoreError, match="no two of the 6 images"):
        parc(*tensors(x, np.arange(6)))
    for name in set(ON_FEATURES) - {"parc"}:
        assert np.isfinite(SCORES[name].function(*tensors(x, np.arange(6))))


@pytest.mark.parametrize("name", ON_FEATURES)
def test_single_precision_is_enough_for_features(name):
    x, y = CASES["wide"]()
    x = x.astype(np.float32)
    function = SCORES[name].function
    assert function(*tensors(x, y)) == function(*tensors(x.astype(np.float64), y))


def test_prepared_features_give_the_same_numbers():
    x, y = tensors(*CASES["uneven"]())
    prepared = Features.of(x)
    for name in ON_FEATURES:
        assert SCORES[name].function(prepared, y) == SCORES[name].function(x, y)
    assert Features.of(prepared) is prepared


def test_what_cannot_be_scored_is_refused():
    x, y = tensors(*draw())
    with pytest.raises(UndefinedScoreError, match=r"all 40 images are of one class \(1\)"):
        knn(x, torch.ones(40, dtype=torch.long))
    with pytest.raises(UsageError, match=r"shape \(39,\) do not fit 40 images"):
        knn(x, y[:-1])
    with pytest.raises(UsageError, match="not one row per image"):
        knn(x[0], y)
    with pytest.raises(UsageError, match="k=17"):
        knn(x, y, k=17)
    broken = x.clone()
    broken[7, 2] = torch.nan
    with pytest.raises(NotFiniteError, match="image 7"):
        knn(broken, y)
    with pytest.raises(DataError, match=r"image 0 sum to 6.*not logits"):
        leep(torch.full((40, 3), 2.0), y)
    negative = torch.tensor([[0.5, 0.5], [1.5, -0.5]])
    with pytest.raises(DataError, match="no distribution"):
        nce(negative, torch.tensor([0, 1]))
