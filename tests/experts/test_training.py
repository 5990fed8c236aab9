"""Experts learn, repeat themselves to the bit, survive interruptions, and come back from disk as they were."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import task2vec as t2v
from task2vec.errors import ConflictError, NotFiniteError, UsageError, WeightsError, WeightsNotFoundError
from task2vec.experts import pauses
from task2vec.experts import training as experts_training
from task2vec.experts.cost import count_multiplications, count_parameters
from task2vec.experts.extractors import describe_extractor, judge_trivial
from task2vec.experts.files import PAUSED, read_tensors, write_tensors
from task2vec.experts.loading import load_expert, load_trained
from task2vec.experts.recipes import Recipe, find_recipe
from task2vec.experts.training import (
    begin,
    compute_features,
    describe,
    measure_error,
    prepare_lessons,
    train_expert,
    widen,
)
from task2vec.probe.preprocess import Preprocess
from task2vec.probe.probe import make_probe
from task2vec.progress import silent
from tests.embedding.conftest import make_attributes, make_task
from tests.embedding.test_methods import make_tiny

BRIEF = Recipe("brief", epochs=3, draws=40, batch=8, rate=0.05)
PAPER = replace(find_recipe("achille2019"), head_epochs=2, epochs=3, draws=24, batch=8, drops=(2,))


@pytest.fixture(scope="module")
def colours():
    return make_task((12, 9, 6))


@pytest.fixture(scope="module")
def lite():
    return t2v.load_probe(size=32)


def weights_of(expert):
    tensors = [*expert.probe.network.state_dict().values(), expert.weight, expert.bias]
    return b"".join(tensor.numpy().tobytes() for tensor in tensors)


@pytest.mark.parametrize("recipe", [BRIEF, PAPER], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("make", [lambda: make_task((12, 9, 6)), make_attributes], ids=["single", "multi"])
def test_recipes_run_to_their_end_on_both_kinds_of_tasks(recipe, make):
    task, base = make(), make_tiny()
    before = {name: tensor.clone() for name, tensor in base.network.state_dict().items()}
    expert = train_expert(task, base, recipe, device="cpu")
    assert [one.epoch for one in expert.metrics] == [1, 2, 3]
    assert [one.rate for one in expert.metrics] == [
        recipe.rate_at(epoch * recipe.steps_per_epoch - 1) for epoch in (1, 2, 3)
    ]
    assert all(0 <= one.error <= 1 and np.isfinite(one.loss) for one in expert.metrics)
    assert expert.weight.shape == (len(task.classes), base.feature_dim)
    assert expert.probe.fingerprint != base.fingerprint and expert.recipe == recipe
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.network.state_dict().items())
    # The classes of the head are those of the task in its canonical order.
    assert expert.story["classes"] == list(task.canonical().classes)


def test_an_expert_learns_its_task(colours):
    base = make_tiny()
    recipe = replace(BRIEF, epochs=12, rate=0.02, head="adam", head_epochs=1, head_rate=1e-4)
    expert = train_expert(colours, base, recipe, device="cpu", validation=colours)
    assert expert.metrics[-1].loss < 0.6 * expert.metrics[0].loss
    assert expert.metrics[-1].validation_error < 0.2
    canonical = colours.canonical()
    lessons = prepare_lessons(canonical, expert.probe, device=torch.device("cpu"))
    p = expert.probabilities(compute_features(expert.probe.network, lessons, silent))
    wrong = (p.argmax(1).numpy() != canonical.targets).mean()
    assert abs(wrong - expert.metrics[-1].validation_error) < 1e-9
    assert torch.allclose(p.sum(1), torch.ones(len(p), dtype=torch.float64))


def test_the_same_arguments_give_the_same_bytes_in_any_order_of_images(colours):
    shuffled = colours.subset(np.random.default_rng(0).permutation(len(colours)))
    first, again, other = (
        train_expert(task, make_tiny(), BRIEF, seed=seed, device="cpu")
        for task, seed in ((colours, 0), (shuffled, 0), (colours, 1))
    )
    assert weights_of(first) == weights_of(again) != weights_of(other)


@pytest.mark.parametrize("stop", [3, 5, 11])
def test_an_interrupted_training_goes_on_to_the_same_bytes(colours, stop, tmp_path, monkeypatch):
    monkeypatch.setattr(pauses, "PAUSE_SECONDS", 0.0)  # after every step
    whole = train_expert(colours, make_tiny(), BRIEF, device="cpu")
    file, steps = tmp_path / "colours.expert.safetensors", []
    learn = experts_training.Training._learn

    def counted(self, images, targets):
        if len(steps) == stop:
            raise KeyboardInterrupt
        steps.append(self.step)
        learn(self, images, targets)

    monkeypatch.setattr(experts_training.Training, "_learn", counted)
    with pytest.raises(KeyboardInterrupt):
        train_expert(colours, make_tiny(), BRIEF, out=file, device="cpu")
    assert not file.exists() and file.with_name(file.name + PAUSED).exists()
    stop = 10**6
    rest = train_expert(colours, make_tiny(), BRIEF, out=file, device="cpu")
    assert steps == list(range(BRIEF.steps))  # none twice, none left out
    assert weights_of(rest) == weights_of(whole)
    assert [replace(one, images_per_second=0.0) for one in rest.metrics] == [
        replace(one, images_per_second=0.0) for one in whole.metrics
    ]
    assert not file.with_name(file.name + PAUSED).exists()


def test_networks_with_dropout_repeat_themselves_too(colours):
    def make():
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Dropout2d(0.4), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        module = nn.Sequential(*layers, nn.Linear(6, 2)).eval()
        return make_probe("dropping", module, ("5",), Preprocess(size=(8, 8), resize=8), source="test")

    first = train_expert(colours, make(), BRIEF, device="cpu")
    torch.manual_seed(99)
    again = train_expert(colours, make(), BRIEF, device="cpu")
    assert weights_of(again) == weights_of(first)
    assert weights_of(train_expert(colours, make(), BRIEF, seed=1, device="cpu")) != weights_of(first)


def test_a_pause_of_something_else_or_a_damaged_one_is_not_gone_on_from(colours, tmp_path, monkeypatch):
    file = tmp_path / "e.expert.safetensors"
    place = file.with_name(file.name + PAUSED)
    whole = train_expert(colours, make_tiny(), BRIEF, device="cpu")
    write_tensors(place, {"sums": torch.zeros(2)}, {"kind": "pause", "key": "another", "step": 3})
    with pytest.raises(ConflictError, match="unfinished training of another"):
        train_expert(colours, make_tiny(), BRIEF, out=file, device="cpu")
    forced = train_expert(colours, make_tiny(), BRIEF, out=file, replace_other=True, device="cpu")
    assert weights_of(forced) == weights_of(whole) and not place.exists()
    file.unlink()
    place.write_bytes(b"half a file")
    assert weights_of(train_expert(colours, make_tiny(), BRIEF, out=file, device="cpu")) == weights_of(whole)


def test_an_expert_comes_back_from_disk(lite, tmp_path):
    task = t2v.sample_tasks(images_per_task=20)[2]
    recipe = replace(BRIEF, epochs=1, draws=8, batch=4)
    file = tmp_path / "shapes.expert.safetensors"
    made = train_expert(task, lite, recipe, out=file, device="cpu")
    known = train_expert(task, lite, recipe, out=file, device="cpu")
    assert known.is_found and not made.is_found
    assert weights_of(known) == weights_of(made) and known.probe.fingerprint == made.probe.fingerprint
    assert known.metrics == made.metrics
    with pytest.raises(ConflictError, match="--force"):
        train_expert(task, lite, recipe, out=file, seed=1, device="cpu")
    other = train_expert(task, lite, recipe, out=file, seed=1, replace_other=True, device="cpu")
    assert weights_of(load_trained(file)) == weights_of(other) != weights_of(made)

    entry = other.entry()
    assert (entry.source, entry.task, entry.input_size) == ("file", task.fingerprint, 32)
    assert entry.parameters == count_parameters(lite.network)
    for probe in (load_expert(entry), load_expert(file)):
        assert probe.name == entry.name and probe.fingerprint == other.probe.fingerprint
        assert probe.task == task.fingerprint and judge_trivial(probe)(task) and describe_extractor(probe) == entry
        assert describe(task, probe, recipe, seed=0)["architecture"] == "timm:tf_efficientnet_lite0"  # what it trains
    assert describe_extractor(replace(probe, name="another")).name == "another"

    import timm  # the file is one of timm's, too

    timm_model = timm.create_model("tf_efficientnet_lite0", num_classes=len(task.classes)).eval()
    timm_model.load_state_dict(t2v.probe.weights.read_weights(file))
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        logits = other.probe.network(images) @ other.weight.T + other.bias
        assert torch.allclose(timm_model(images), logits, atol=1e-4)

    content = bytearray(file.read_bytes())
    content[-9] ^= 4
    file.write_bytes(content)
    with pytest.raises(ConflictError, match="no longer the file"):
        load_expert(entry)
    with pytest.raises(WeightsError, match="changed after it was written"):
        load_trained(file)


def test_what_cannot_be_loaded_is_named(colours, tmp_path):
    expert = train_expert(colours, make_tiny(), replace(BRIEF, epochs=1), out=tmp_path / "e", device="cpu")
    with pytest.raises(WeightsError, match="somebody's own"):
        load_trained(expert.path)
    with pytest.raises(WeightsError, match="not an expert"):
        load_trained(__file__)
    with pytest.raises(WeightsNotFoundError, match="train it again"):
        read_tensors(tmp_path / "none")
    with pytest.raises(UsageError, match="out=FILE"):
        replace(expert, path=None).entry()


def test_a_training_that_runs_away_is_stopped(colours):
    with pytest.raises(NotFiniteError, match="smaller learning rate"):
        train_expert(colours, make_tiny(), replace(BRIEF, rate=1e30, schedule="steps"), device="cpu")


def test_validation_has_the_same_classes_whatever_their_order(colours):
    base = make_tiny()
    lessons = prepare_lessons(colours.canonical(), base, device=torch.device("cpu"))
    training = begin(base, lessons, BRIEF, seed=0, device=torch.device("cpu"), classes=3, report=silent)
    turned = replace(colours, targets=2 - colours.targets, classes=colours.classes[::-1])
    others = prepare_lessons(experts_training._match(turned, colours), base, device=torch.device("cpu"))
    assert measure_error(training.learner, others) == measure_error(training.learner, lessons)
    assert training.learner.training
    with pytest.raises(UsageError, match="other classes"):
        train_expert(colours, base, BRIEF, validation=make_attributes(), device="cpu")


def test_there_is_something_to_choose_crops_from():
    wide = widen(Preprocess(size=(112, 112), resize=128))
    assert (wide.size, wide.resize) == ((128, 128), 128)
    assert widen(Preprocess(size=(112, 112), resize=112)).size == (128, 128)
    assert widen(Preprocess(size=(70, 70), resize=70, squash=(70, 70))).squash == (80, 80)


def test_multiplications_are_counted():
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1), torch.nn.Conv2d(8, 8, 3, groups=8)
    )
    assert count_multiplications(network, (8, 8)) * 1e9 == 4 * 4 * 8 * 27 + 2 * 2 * 8 * 9
