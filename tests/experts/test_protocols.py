"""A protocol says all that changes an error, and its key says the same."""

from dataclasses import replace

import pytest

from task2vec.errors import UsageError
from task2vec.experts import protocols
from task2vec.experts.protocols import ACHILLE2019, ErrorProtocol


def test_the_numbers_of_the_paper():
    assert (ACHILLE2019.epochs, ACHILLE2019.draws) == (16, 10_000)
    assert (ACHILLE2019.rate, ACHILLE2019.weight_decay) == (1e-4, 5e-4)


def test_keys_differ_where_numbers_may():
    adam = ErrorProtocol(classifier="achille2019")
    different = [
        ErrorProtocol(),
        ErrorProtocol(train=5),
        ErrorProtocol(train=50),
        ErrorProtocol(measure="balanced"),
        ErrorProtocol(measure="precision"),
        adam,
        replace(adam, epochs=2),
    ]
    assert len({protocol.key for protocol in different}) == len(different)


def test_keys_are_equal_where_numbers_are():
    assert ErrorProtocol(epochs=3).key == ErrorProtocol().key  # a head that is solved has no epochs
    assert ErrorProtocol().key == "linear-2, train half, logistic, usual"
    assert ErrorProtocol(5, "achille2019", "balanced", 2).key == "linear-2, train 5, achille2019, balanced, 2 epochs"


def test_another_recipe_is_another_key(monkeypatch):
    before = ErrorProtocol().key
    monkeypatch.setattr(protocols, "RECIPE", 99)
    assert ErrorProtocol().key != before


@pytest.mark.parametrize(
    "wrong",
    [
        {"train": 0},
        {"train": True},
        {"train": "all"},
        {"train": 2.5},
        {"classifier": "svm"},
        {"measure": "plain"},
        {"epochs": 0},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        ErrorProtocol(**wrong)
