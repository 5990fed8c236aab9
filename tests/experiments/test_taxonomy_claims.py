"""Verdicts that can go either way, from numbers made for them."""

import numpy as np
import pytest

from experiments.property_claims import FAILS, HOLDS, PARTLY, UNCLEAR
from experiments.taxonomy_claims import make_claims
from experiments.taxonomy_measures import ALL, WITHIN, agree
from experiments.taxonomy_rows import SAME_DATASET, SAME_GROUP, SAME_GROUP_WITHIN, Agreements

NAMES = ("robust", "robust, cosine", "domain, cosine", "domain, standardised")


def noisy(taxa, noise, *, seed=0):
    space = taxa + noise * np.random.default_rng(seed).normal(size=taxa.shape)
    return (space + space.T) / 2


def make(noises, *, flipped=(), neighbours=(0.9, 0.8, 1.0, 0.3)):
    """What would be found on 20 tasks of two datasets if every space were the tree under so much noise."""
    group = np.arange(20) // 5
    taxa = np.where(group[:, None] == group, 2.0, np.where(group[:, None] // 2 == group // 2, 6.0, 12.0))
    np.fill_diagonal(taxa, 0)
    spaces = [noisy(taxa, noise, seed=number) for number, noise in enumerate(noises)]
    scopes = {ALL: np.arange(20), "birds": np.arange(10), "flowers": np.arange(10, 20)}
    found = {}
    for scope, rows in scopes.items():
        inside = np.ix_(rows, rows)
        parts = [-space[inside] if scope in flipped else space[inside] for space in spaces]
        found["graph", scope] = agree(parts, taxa[inside], permutations=199, seed=0)
    found["graph", WITHIN] = found["graph", flipped[0]] if flipped else found["graph", "birds"]
    value, low, high, chance = neighbours
    told = {"value": value, "low": low, "high": high, "chance": chance, "count": 20}
    kinds = (SAME_DATASET, SAME_GROUP, SAME_GROUP_WITHIN)
    measures = [{"measure": kind, "space": "robust", "tree": "", "scope": ALL, **told} for kind in kinds]
    tasks = [{"norm": float(number), "error": number / 40} for number in range(20)]
    return Agreements(dict(zip(NAMES, spaces, strict=True)), ("robust",), None, (), found, tasks, measures)


def verdicts(agreements):
    return {
        claim.claim + (" (domains)" if "over" in claim.measured else ""): claim.verdict
        for claim in make_claims(agreements, [])
    }


def test_a_space_that_follows_the_tree_and_beats_the_others():
    found = verdicts(make((0.5, 9.0, 9.0, 40.0)))
    assert found["distances follow the taxonomy"] == found["... within a dataset"] == HOLDS
    assert found["agrees better than domains do (domains)"] == HOLDS
    assert found["... than cosine of the Fishers (domains)"] == HOLDS
    assert found["the nearest is of the same dataset"] == found["the norm ranks tasks by error"] == HOLDS


def test_the_best_rival_counts():
    assert verdicts(make((9.0, 40.0, 40.0, 0.01)))["agrees better than domains do (domains)"] == FAILS
    claims = make_claims(make((9.0, 40.0, 40.0, 0.01)), [])
    claim = next(claim for claim in claims if claim.claim == "agrees better than domains do")
    assert claim.measured.startswith("rho -0.") and claim.measured.endswith("over 0.91")  # the tree has ties
    assert verdicts(make((3.0, 3.0, 3.0, 3.0)))["agrees better than domains do (domains)"] == UNCLEAR


def test_noise_and_the_opposite_do_not_hold():
    nothing = verdicts(make((500.0, 500.0, 500.0, 500.0), neighbours=(0.3, 0.1, 0.5, 0.3)))
    assert nothing["distances follow the taxonomy"] == UNCLEAR
    assert nothing["the nearest is of the same dataset"] == UNCLEAR
    worse = verdicts(make((0.5, 1.0, 1.0, 1.0), flipped=(ALL,), neighbours=(0.1, 0.0, 0.2, 0.3)))
    assert worse["distances follow the taxonomy"] == FAILS
    assert worse["the nearest is of the same dataset"] == FAILS


def test_one_dataset_against_it_is_partly():
    agreements = make((0.5, 9.0, 9.0, 9.0), flipped=("flowers",))
    agreements.found["graph", WITHIN] = agreements.found["graph", "birds"]
    assert verdicts(agreements)["... within a dataset"] == PARTLY


@pytest.mark.parametrize(
    ("main", "changed", "domain_rate", "expected"),
    [
        ({"rate": 0.9, "p": 0.001, "auc_beside": 0.9}, 0, 0.125, (HOLDS, HOLDS)),
        ({"rate": 0.5, "p": 0.01, "auc_beside": 0.3}, 0, 0.125, (PARTLY, HOLDS)),
        ({"rate": 0.2, "p": 0.4, "auc_beside": 0.5}, 3, 0.125, (UNCLEAR, PARTLY)),
        ({"rate": 0.1, "p": 0.7, "auc_beside": 0.5}, 0, 0.5, (FAILS, FAILS)),
    ],
)
def test_questions(main, changed, domain_rate, expected):
    about = {"family": "birds", "chance": 0.125, "domain_features_changed": changed}
    rows = [
        {**about, "space": "robust", **main},
        {**about, "space": "domain, cosine", "rate": domain_rate},
        {**about, "space": "domain, standardised", "rate": min(domain_rate, 0.125)},
    ]
    claims = make_claims(None, rows)
    assert tuple(claim.verdict for claim in claims) == expected
    assert all("birds" in claim.claim for claim in claims)
