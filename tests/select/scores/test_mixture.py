"""The mixture of N-LEEP against scikit-learn's, and N-LEEP against LEEP on scikit-learn's mixture."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from task2vec.select.scores import Features, nleep
from task2vec.select.scores.mixture import FLOOR, TOLERANCE, assign, fit_mixture, maximise, start_centres
from tests.oracles import slow_scores
from tests.select.scores.material import draw, tensors


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def fit_reference(points, components):
    """scikit-learn's mixture from the same start."""
    floor = FLOOR * float(points.var(0, correction=0).mean())
    memberships = assign(points, start_centres(points, components, generator=generator())).double()
    start = maximise(points, points.square(), memberships, floor)
    return GaussianMixture(
        components,
        covariance_type="diag",
        reg_covar=floor,
        weights_init=start.weights.numpy(),
        means_init=start.means.numpy(),
        precisions_init=1 / start.variances.numpy(),
        tol=TOLERANCE,
    ).fit(points.numpy())


@pytest.mark.parametrize(("images", "width", "components"), [(200, 4, 5), (150, 10, 12)])
def test_equals_scikit_learn(images, width, components):
    points = torch.from_numpy(draw(images, width, 4, apart=3.0)[0])
    found, reference = fit_mixture(points, components, generator=generator()), fit_reference(points, components)
    assert found.log_likelihood(points) == pytest.approx(reference.score(points.numpy()), abs=1e-9)
    np.testing.assert_allclose(found.memberships(points), reference.predict_proba(points.numpy()), atol=1e-7)
    np.testing.assert_allclose(found.variances, reference.covariances_, rtol=1e-6)


def test_the_start_is_about_as_good_as_scikit_learns():
    points = torch.from_numpy(draw(300, 6, 8, apart=4.0, seed=1)[0])
    ours = np.mean([fit_mixture(points, 8, generator=generator(s)).log_likelihood(points) for s in range(5)])
    theirs = np.mean(
        [GaussianMixture(8, covariance_type="diag", random_state=s).fit(points).score(points) for s in range(5)]
    )
    assert ours > theirs - 0.05


def test_centres_are_those_of_k_means():
    points = torch.from_numpy(draw(700, 6, 8, apart=2.0, seed=1)[0])

    def inertia(centres):
        return float(torch.cdist(points, torch.as_tensor(centres)).amin(1).square().mean())

    for count in (8, 140):  # one centre at a time, and eight
        ours = np.mean([inertia(start_centres(points, count, generator=generator(s))) for s in range(5)])
        theirs = [KMeans(count, n_init=1, random_state=s).fit(points.numpy()).cluster_centers_ for s in range(5)]
        assert ours < 1.08 * np.mean([inertia(centres) for centres in theirs])


def test_separate_clusters_are_found():
    y = np.arange(120) % 4
    points = torch.from_numpy(np.eye(4)[y] * 20 + np.random.default_rng(0).normal(size=(120, 4)))
    members = fit_mixture(points, 4, generator=generator()).memberships(points).numpy()
    assert members.max(1).min() > 0.999
    assert len({(int(label), int(row.argmax())) for label, row in zip(y, members, strict=True)}) == 4


@pytest.mark.parametrize("components", [1, 30, 45])
def test_more_components_than_distinct_points_are_borne(components):
    points = torch.from_numpy(np.repeat(np.random.default_rng(0).normal(size=(10, 3)), 3, axis=0))
    members = fit_mixture(points, components, generator=generator()).memberships(points)
    assert members.isfinite().all()
    torch.testing.assert_close(members.sum(1), torch.ones(30, dtype=torch.float64))


def test_nleep_is_leep_on_the_components():
    x, y = draw(100, 12, 3, apart=2.0)
    z = x - x.mean(0)
    _, singular, right = np.linalg.svd(z, full_matrices=False)
    kept = int(np.searchsorted(np.cumsum(singular**2) / np.sum(singular**2), 0.8)) + 1
    assert 1 < kept < 12
    points = z @ right[:kept].T
    members = fit_reference(torch.from_numpy(points), 15).predict_proba(points)
    assert nleep(*tensors(x, y)) == pytest.approx(slow_scores.leep(members, y), abs=1e-6)


def test_small_tasks_get_fewer_components():
    x, y = draw(40, 6, 3)
    prepared = Features.of(torch.from_numpy(x))
    nleep(prepared, torch.from_numpy(y))
    assert [members.shape for members in prepared._mixtures.values()] == [(40, 8)]


def test_the_seed_decides():
    x, y = tensors(*draw(100, 12, 3))
    assert nleep(x, y, seed=1) == nleep(x, y, seed=1)
    assert nleep(x, y, seed=1) != nleep(x, y, seed=2)
    assert nleep(x, y) == nleep(x, y, seed=0)
    prepared = Features.of(x)
    assert [nleep(prepared, y, seed=s) for s in (1, 2)] == [nleep(x, y, seed=s) for s in (1, 2)]
