"""Experts learn, repeat themselves to the bit, survive interruptions, and come back from disk as they were."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision.ops import StochasticDepth

import task2vec as t2v
from task2vec.errors import ConflictError, NotFiniteError, UsageError, WeightsError, WeightsNotFoundError
from task2vec.experts import RECIPES, Recipe, count_parameters, find_recipe, load_expert, load_trained, train
from task2vec.experts.checkpoint import UNFINISHED, read_tensors, write_tensors
from task2vec.experts.error_matrix import describe_model
from task2vec.experts.train import (
    RecordedSteps,
    Training,
    crop,
    draw_epoch,
    prepare_images,
    train_expert,
    train_experts,
)
from task2vec.probe.probe import make_probe
from tests.experts.material import Packed, make_attributes, make_model, make_task
from tests.failures import refuse
from tests.tiny_probe import make_tiny

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHORT = Recipe("short", epochs=1, draws=8, batch=4)
BRIEF = Recipe("brief", epochs=3, draws=40, batch=8, rate=0.05)
PAPER = replace(find_recipe("achille2019"), head_epochs=2, epochs=3, draws=24, batch=8, drops=(2,))


@pytest.fixture(scope="module")
def colours():
    return make_task((12, 9, 6))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small network of timm's, so that it can be built again, with random weights."""
    file = tmp_path_factory.mktemp("weights") / "test_resnet.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), file)
    return t2v.load_probe("test_resnet", weights=file, size=32)


def fine_tune(task, base=None, recipe=BRIEF, **how):
    return train_expert(task, base or make_model(), recipe, device="cpu", **how)


@pytest.fixture(scope="module")
def whole(colours):
    """What the interrupted trainings of these tests come to."""
    return fine_tune(colours)


def weights_of(expert):
    tensors = [*expert.probe.network.state_dict().values(), expert.weight, expert.bias]
    return b"".join(tensor.numpy().tobytes() for tensor in tensors)


@pytest.mark.parametrize(("recipe", "make"), [(BRIEF, make_task), (PAPER, make_attributes)], ids=["single", "multi"])
def test_recipes_run_to_their_end_on_both_kinds_of_tasks(recipe, make):
    task, base = make(), make_model()
    before = base.fingerprint
    expert = fine_tune(task, base, recipe)
    ends = [epoch * recipe.steps_per_epoch - 1 for epoch in (1, 2, 3)]
    assert [(one.epoch, one.rate) for one in expert.metrics] == [(n + 1, recipe.rate_at(e)) for n, e in enumerate(ends)]
    assert all(0 <= one.error <= 1 and np.isfinite(one.loss) for one in expert.metrics)
    assert expert.weight.shape == (len(task.classes), base.feature_dim)
    fresh = make_probe("tiny", base.network, (), base.preprocess, source="test").fingerprint
    assert expert.probe.fingerprint != fresh == before and expert.metadata["recipe"] == recipe.to_dict()
    # The classes of the head are those of the task in its canonical order.
    assert expert.metadata["classes"] == list(task.canonical().classes)


def test_an_expert_learns_its_task(colours):
    recipe = replace(BRIEF, epochs=12, rate=0.02, head="adam", head_epochs=1, head_rate=1e-4)
    expert = fine_tune(colours, recipe=recipe)
    assert expert.metrics[-1].loss < 0.6 * expert.metrics[0].loss
    canonical = colours.canonical()
    images = prepare_images(canonical, expert.probe, device=torch.device("cpu"))
    p = expert.probabilities(train.compute_features(expert.probe.network, images))
    assert (p.argmax(1).numpy() != canonical.targets).mean() < 0.2
    assert torch.allclose(p.sum(1), torch.ones(len(p), dtype=torch.float64))


def test_the_same_arguments_give_the_same_bytes_in_any_order_of_images(colours, whole):
    shuffled = colours.subset(np.random.default_rng(0).permutation(len(colours)))
    base = make_model()
    torch.manual_seed(99)  # of dropout, which has seeds of its own
    assert weights_of(whole) == weights_of(fine_tune(shuffled, base)) != weights_of(fine_tune(colours, seed=1))


def test_a_training_that_is_interrupted_twice_goes_on_to_the_same_bytes(colours, whole, tmp_path, monkeypatch):
    """First between two epochs, then within one."""
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)  # after every step
    file, steps, learn, stops = tmp_path / "colours.expert.safetensors", [], train.Training._learn, [11, 5]
    place = file.with_name(file.name + UNFINISHED)

    def counted(self, images, targets):
        if stops and len(steps) == stops[-1]:
            raise KeyboardInterrupt
        steps.append(self.step)
        learn(self, images, targets)

    monkeypatch.setattr(train.Training, "_learn", counted)
    while stops:
        with pytest.raises(KeyboardInterrupt):
            fine_tune(colours, out=file)
        assert len(steps) == stops.pop() and not file.exists() and place.exists()
    rest = fine_tune(colours, out=file)
    assert steps == list(range(BRIEF.steps))  # none twice, none left out
    assert weights_of(rest) == weights_of(whole) and not place.exists()
    told, wanted = ([replace(one, images_per_second=0.0) for one in each.metrics] for each in (rest, whole))
    assert told == wanted


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_a_step_to_be_recorded_is_the_step_of_the_loop(colours, device, monkeypatch):
    recipe = replace(BRIEF, draws=41)  # the last batch of an epoch has a single image
    steps, step = [], RecordedSteps._step
    monkeypatch.setattr(RecordedSteps, "_step", lambda self, count: steps.append(count) or step(self, count))

    def train_all(is_recorded):
        images = prepare_images(colours.canonical(), make_tiny(), device=torch.device(device))
        training = Training(make_tiny(), images, recipe, seed=0, classes=3)
        if is_recorded and device == "cpu":  # a CPU records nothing, but takes the same steps
            training.recorded = RecordedSteps.open(training)
        with nullcontext() if is_recorded else pytest.MonkeyPatch.context() as patch:
            if patch is not None:
                patch.setattr(RecordedSteps, "open", lambda _: None)
            training.run()
        return training

    slow, fast = train_all(is_recorded=False), train_all(is_recorded=True)
    assert slow.recorded is None and fast.recorded is None  # a training that is over holds no recordings
    assert len(steps) == (4 if device == "cuda" else recipe.steps)  # once and to be recorded, for both sizes of batches
    assert [m.loss for m in fast.metrics] == pytest.approx([m.loss for m in slow.metrics], rel=1e-5)
    for ours, theirs in zip(fast.learner.parameters(), slow.learner.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_networks_that_draw_at_random_are_not_recorded(colours):
    paths = make_tiny()
    paths.network.add_module("relu", StochasticDepth(0.5, "row"))
    paths.network.forward = lambda x, net=paths.network: net.relu(net.body(net.stem(x))).mean((2, 3))
    for model, is_recorded in ((make_tiny(), True), (make_model(), False), (paths, False)):  # the second has dropout
        images = prepare_images(colours.canonical(), model, device=torch.device("cpu"))
        training = Training(model, images, BRIEF, seed=0, classes=3)
        before = torch.get_rng_state()
        assert (RecordedSteps.open(training) is not None) == is_recorded
        assert torch.equal(torch.get_rng_state(), before)


def test_the_checkpoint_of_another_training_or_a_damaged_one_is_not_resumed(colours, whole, tmp_path):
    file = tmp_path / "e.expert.safetensors"
    place = file.with_name(file.name + UNFINISHED)
    write_tensors(place, {"sums": torch.zeros(2)}, {"kind": "checkpoint", "key": "another", "step": 3})
    refuse(ConflictError, "unfinished training of another", fine_tune, colours, out=file)
    forced = fine_tune(colours, out=file, replace_other=True)
    assert weights_of(forced) == weights_of(whole) and not place.exists()
    file.unlink()
    place.write_bytes(b"half a file")
    assert weights_of(fine_tune(colours, out=file)) == weights_of(whole)


def test_an_expert_comes_back_from_disk(small, tmp_path):
    task, recipe, file = make_task(), SHORT, tmp_path / "shapes.expert.safetensors"
    made, known = (fine_tune(task, small, recipe, out=file) for _ in range(2))
    assert known.is_found and not made.is_found
    assert weights_of(known) == weights_of(made) and known.probe.fingerprint == made.probe.fingerprint
    assert known.metrics == made.metrics
    refuse(ConflictError, "--force", fine_tune, task, small, recipe, out=file, seed=1)
    other = fine_tune(task, small, recipe, out=file, seed=1, replace_other=True)
    assert weights_of(load_trained(file)) == weights_of(other) != weights_of(made)

    entry = other.entry()
    assert (entry.source, entry.task, entry.input_size) == ("file", task.fingerprint, 32)
    assert entry.parameters == count_parameters(small.network)
    for probe in (load_expert(entry), load_expert(file)):
        assert probe.name == entry.name and probe.fingerprint == other.probe.fingerprint
        assert probe.task == task.fingerprint and describe_model(probe) == entry
        assert train.describe(task, probe, recipe, seed=0)["architecture"] == "timm:test_resnet"  # what it trains
    assert describe_model(replace(probe, name="another")).name == "another"

    # The file is one of timm's, too.
    timm_model = timm.create_model("test_resnet", num_classes=len(task.classes)).eval()
    timm_model.load_state_dict(t2v.probe.weights.read_weights(file))
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        logits = other.probe.network(images) @ other.weight.T + other.bias
        assert torch.allclose(timm_model(images), logits, atol=1e-4)

    content = bytearray(file.read_bytes())
    content[-9] ^= 4
    file.write_bytes(content)
    refuse(ConflictError, "no longer the file", load_expert, entry)
    refuse(WeightsError, "changed after it was written", load_trained, file)


def test_what_cannot_be_loaded_is_named(colours, tmp_path):
    expert = fine_tune(colours, recipe=SHORT, out=tmp_path / "e")
    for load, path, error, message in (
        (load_trained, expert.path, WeightsError, "custom network"),
        (load_trained, __file__, WeightsError, "not an expert"),
        (read_tensors, tmp_path / "none", WeightsNotFoundError, "train it again"),
    ):
        refuse(error, message, load, path)
    refuse(UsageError, "out=FILE", replace(expert, path=None).entry)


def test_a_training_that_runs_away_is_stopped(colours):
    with pytest.raises(NotFiniteError, match="smaller learning rate"):
        fine_tune(colours, recipe=replace(BRIEF, rate=1e30, schedule="steps"))


def test_an_epoch_draws_classes_equally_often_by_its_seed_and_number_alone():
    targets = np.array([0] * 60 + [1] * 30 + [2] * 10)
    numbers = ((3, 2), (3, 2), (4, 2), (3, 1), (2, 3))
    first, *others = (draw_epoch(targets, draws=30_000, seed=seed, epoch=epoch) for seed, epoch in numbers)
    same = [[torch.equal(*pair) for pair in zip(first, other, strict=True)] for other in others]
    assert same == [[True] * 3, *([[False] * 3] * 3)]
    drawn = first[0].numpy()
    assert np.abs(np.bincount(targets[drawn]) / len(drawn) - 1 / 3).max() < 0.015
    seen = np.bincount(drawn, minlength=100)
    assert seen.min() > 0 and abs(seen[targets == 2].mean() / seen[targets == 0].mean() - 6) < 0.3
    assert 0.45 < first[2].float().mean() < 0.55


@pytest.mark.parametrize("size", [(3, 5), (6, 8)])
def test_crops_are_the_parts_that_slicing_gives(size):
    pixels = torch.arange(5 * 3 * 6 * 8).view(5, 3, 6, 8)
    corners = torch.tensor([[0.0, 0.0], [0.999, 0.999], [0.5, 0.0], [0.0, 0.5], [0.3, 0.7]])
    mirrored = torch.tensor([False, False, True, True, False])
    found = crop(pixels, corners, mirrored, size)
    for number, corner in enumerate(corners):
        top, left = int(corner[0] * (6 - size[0] + 1)), int(corner[1] * (8 - size[1] + 1))
        wanted = pixels[number, :, top : top + size[0], left : left + size[1]]
        assert torch.equal(found[number], wanted.flip(2) if mirrored[number] else wanted)
    assert int(corners[1, 0] * (6 - size[0] + 1)) == 6 - size[0]  # the last corner is reached


@pytest.fixture(scope="module")
def pair():
    task = make_task((6, 6, 6))
    return [replace(task.select([0, 1]), name="first"), replace(task.select([1, 2]), name="second")]


def test_other_processes_train_the_same_expert_and_none_twice(small, pair, tmp_path):
    how = {"device": "cpu", "seed": 3}
    (made,) = train_experts(pair[:1], small, SHORT, folder=tmp_path, backend=Packed(), **how)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    (again,) = train_experts(pair[:1], small, SHORT, folder=tmp_path, **how)
    assert again.is_found and not made.is_found and again.entry == made.entry and file.read_bytes() == content
    assert weights_of(load_trained(file)) == weights_of(train_expert(pair[0], small, SHORT, **how))


def test_one_that_fails_is_reported_first_and_the_rest_goes_on(pair, tmp_path):
    """Two are named alike in two calls: the second one is refused before anything is trained."""
    tiny, how = make_model(), {"folder": tmp_path, "device": "cpu"}
    (done,) = train_experts(pair[:1], tiny, SHORT, names=["a"], **how)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    found = train_experts(pair, tiny, SHORT, names=["b", "a"], seed=1, **how)
    refused = next(found)
    assert (refused.task, refused.name, refused.entry) == ("second", "a", None) and list(tmp_path.iterdir()) == [file]
    assert "another task, network, recipe or seed" in str(refused.error) and "--name" in str(refused.error)
    (other,) = found
    assert done.entry.task == other.entry.task == pair[0].fingerprint and done.entry.sha256 != other.entry.sha256
    assert (file.read_bytes(), other.error) == (content, None)
    for names, message in ((["a"], "1 names for 2 tasks"), (["same", "same"], r"same\.expert")):
        refuse(UsageError, message, train_experts, pair, tiny, SHORT, names=names, **how)


def test_achille2019_is_the_paper_s_and_a_cosine_rises_and_falls_to_zero():
    recipe = find_recipe("achille2019")
    told = {"head": "adam", "head_epochs": 10, "epochs": 60, "draws": 10_000, "rate": 1e-3, "weight_decay": 5e-4}
    assert told.items() <= recipe.to_dict().items() and recipe.steps_per_epoch == 157  # of 64 images
    rates = [recipe.rate_at(step) for step in (0, 40 * 157 - 1, 40 * 157, 60 * 157 - 1)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4])
    recipe = Recipe("r", epochs=10, draws=100, batch=10, rate=0.5)
    rates = [recipe.rate_at(step) for step in range(recipe.steps)]
    top = int(np.argmax(rates))
    assert rates[top] == pytest.approx(0.5) and top < 10 and rates[0] < 0.2
    assert (np.diff(rates[top:]) < 0).all() and rates[-1] < 1e-3 * 0.5


def test_what_cannot_train_is_refused():
    wrong = {"epochs": 0, "draws": 0, "batch": -1, "rate": 0.0, "head_rate": 0.0, "momentum": 1.0, "weight_decay": -1.0}
    wrong |= {"head": "magic", "schedule": "never", "head_epochs": 0}
    for name, value in wrong.items():
        refuse(UsageError, "'achille2019'", replace, RECIPES["achille2019"], **{name: value})
