"""Settings that cannot be meant are refused by name before any work: no image is read, no network runs."""

import math

import pytest
import torch
from torch import nn

from task2vec.embedding import EmbedSettings, VariationalSettings, embed
from task2vec.errors import DataError, ProbeError, UsageError
from task2vec.probe.preprocess import Preprocess
from task2vec.probe.probe import make_probe
from task2vec.tasks import Task
from tests.cases import make_case

BAD = [
    {"method": "laplace"},
    {"method": "Robust"},
    {"method": ""},
    {"beta": 0.0},
    {"beta": -1e-7},
    {"beta": math.nan},
    {"beta": math.inf},
    {"images": 0},
    {"seed": -1},
]
BAD_TRAINING = [
    *[{name: value} for name in ("epochs", "head_epochs", "draws", "batch") for value in (0, -3, 1.5, math.nan, 1e4)],
    *[{name: value} for name in ("rate", "head_rate") for value in (0.0, -1e-2, math.nan, math.inf)],
    {"head": "frozen"},
    {"head": "Joint"},
    {"gradient": "hessian"},
    {"gradient": ""},
]


class Untouchable:
    """Images that nobody may look at."""

    is_threadsafe = True

    def __len__(self):
        return 4

    def load(self, index):
        raise AssertionError(f"image {index} was read")

    def name(self, index):
        return f"item {index}"


def untouchable_task(**changes):
    digests = tuple(f"{i:064x}" for i in range(4))
    given = {"targets": torch.tensor([0, 1, 0, 1]).numpy(), "classes": ("a", "b"), **changes}
    return Task(name="untouchable", images=Untouchable(), digests=digests, **given)


@pytest.fixture(scope="module")
def probe():
    return make_case("shared")


@pytest.mark.parametrize("values", BAD, ids=str)
def test_bad_settings(probe, values):
    with pytest.raises(UsageError, match=next(iter(values))):
        embed(untouchable_task(), probe, settings=EmbedSettings(**values))


@pytest.mark.parametrize("values", BAD_TRAINING, ids=str)
def test_bad_settings_of_the_training(probe, values):
    with pytest.raises(UsageError, match=next(iter(values))):
        embed(
            untouchable_task(), probe, settings=EmbedSettings("variational", variational=VariationalSettings(**values))
        )


@pytest.mark.parametrize("values", [{"workers": 0}, {"workers": -1}, {"batch_size": 0}, {"device": "tpu9"}], ids=str)
@pytest.mark.parametrize("method", ["robust", "variational"])
def test_bad_arguments(probe, values, method):
    with pytest.raises(UsageError, match=next(iter(values))):
        embed(untouchable_task(), probe, settings=EmbedSettings(method), **values)


def test_the_task_of_these_tests_would_be_noticed(probe):
    for method in ("robust", "direct", "variational"):
        with pytest.raises(AssertionError, match="was read"):
            embed(untouchable_task(), probe, settings=EmbedSettings(method))


def test_a_task_of_one_class_cannot_be_made():
    with pytest.raises(DataError, match="only one class"):
        untouchable_task(targets=torch.zeros(4, dtype=torch.long).numpy(), classes=("a",))
    with pytest.raises(DataError, match="no readable image"):
        untouchable_task(targets=torch.zeros(4, dtype=torch.long).numpy())


def test_a_probe_without_filters_cannot_be_made():
    module = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)).eval()
    with pytest.raises(ProbeError, match="no convolution and no linear layer"):
        make_probe("bare", module, ("2",), Preprocess(size=(8, 8), resize=8), source="test")


def test_every_bad_value_says_what_would_do():
    for values, kind in ((values, EmbedSettings) for values in BAD):
        _check_message(kind, values)
    for values in BAD_TRAINING:
        _check_message(VariationalSettings, values)


def _check_message(kind, values):
    with pytest.raises(UsageError) as caught:
        kind(**values)
    ((name, value),) = values.items()
    assert f"{name}={value}" in str(caught.value) or f"{name}={value!r}" in str(caught.value)


def test_settings_are_told_only_where_they_count():
    training = VariationalSettings(epochs=7)
    for method in ("robust", "direct"):
        told = EmbedSettings(method, variational=training).as_dict()
        assert told["method"] == method and not set(told) & {"epochs", "variational", "batch", "gradient"}
    told = EmbedSettings("variational", variational=training).as_dict()
    assert told["epochs"] == 7 and told["batch"] == 64 and "variational" not in told
    assert EmbedSettings() == EmbedSettings() and hash(EmbedSettings()) == hash(EmbedSettings())


def test_the_paper_is_the_default():
    training = VariationalSettings()
    assert (training.rate, training.head_rate, training.head_epochs, training.draws) == (1e-2, 1e-4, 2, 10_000)
    assert training.steps_per_epoch == 157


def test_settings_of_the_draw_are_told_only_where_pairs_are_drawn():
    assert {"images", "seeds", "engine"} <= set(EmbedSettings().as_dict())
    told = EmbedSettings(method="variational").as_dict()
    assert not {"images", "seeds", "engine", "precision"} & set(told)
    assert told["epochs"] == 10 and told["gradient"] == "curvature" and told["beta"] == 1e-7
