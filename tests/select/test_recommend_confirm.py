"""The best candidates are measured on the task's own images; what is measured counts, is kept, and survives Ctrl-C."""

from dataclasses import replace

import pytest

from task2vec import Library, load_metatask
from task2vec.errors import UsageError
from task2vec.experts import linear_error
from task2vec.experts.protocols import ErrorProtocol
from task2vec.library import Expert
from task2vec.select.recommendation import confirming, recommending
from task2vec.select.recommendation.recommending import recommend
from task2vec.select.recommendation.weighing import Weighed, weigh
from tests.embedding.conftest import make_attributes, make_task
from tests.experts.making import make_expert
from tests.select.recommend_world import PROTOCOLS, make_metatask, make_seen_world
from tests.tiny_probe import make_tiny

SEEDS = {"timm:tf_efficientnet_lite0": 1, "timm:tf_efficientnet_lite1": 2, "torchvision:mobilenet_v2": 3}


@pytest.fixture(scope="module")
def world():
    return make_seen_world(make_tiny())


@pytest.fixture(autouse=True)
def networks(monkeypatch):
    """Small networks in the place of those that are loaded by name; lists what was asked for."""
    asked = []

    def load(name, *, size=None, download=False, **_):
        asked.append((name, size, download))
        return make_expert(name, seed=SEEDS.get(name, 0))

    monkeypatch.setattr("task2vec.experts.loading.load_probe", load)
    monkeypatch.setattr("task2vec.probe.load_probe", lambda *_, **__: make_tiny(), raising=False)
    monkeypatch.setattr("task2vec.select.knowledge.offers._has_weights", lambda location: "lite" in location)
    return asked


@pytest.fixture(scope="module")
def task():
    return make_task((14, 14), seed=9, name="mine")


def test_the_best_of_those_that_are_here_are_measured(world, task, networks):
    advice = recommend(task, evidence=world, confirm=1, seeds=2, device="cpu", strategy="static")
    assert [name for name, _, _ in networks] == ["timm:tf_efficientnet_lite1"] and networks[0][1:] == (112, False)
    (row,) = [row for row in advice.rows if row.measured is not None]
    assert row.expert == "tf_efficientnet_lite1" and row.splits == 2
    own = linear_error(make_expert("x", seed=2), task, ErrorProtocol("half"), seeds=(0, 1), device="cpu")
    assert row.measured == pytest.approx(sum(error.error for error in own) / 2)
    assert row.measured_low <= row.measured <= row.measured_high
    assert advice.choice == row.expert and "measured on your images it leaves" in advice.verdict


def test_all_that_can_be_had_are_measured_and_ranked_by_that(world, task, networks):
    advice = recommend(task, evidence=world, confirm=9, seeds=2, device="cpu")
    measured = [row for row in advice.rows if row.measured is not None]
    assert {row.expert for row in measured} == {"tf_efficientnet_lite0", "tf_efficientnet_lite1"}
    best, other = sorted(measured, key=lambda row: row.measured)
    assert best.rank < other.rank and advice.choice == best.expert
    assert any("only 2 have their weights" in note for note in advice.notes)
    static = advice["tf_efficientnet_lite1"].error
    assert advice["tf_efficientnet_lite0"].gain == static - advice["tf_efficientnet_lite0"].error
    assert sum(row.chance for row in advice.rows) == pytest.approx(1)
    fetched = recommend(task, evidence=world, confirm=9, seeds=1, device="cpu", download=True)
    assert sum(row.measured is not None for row in fetched.rows) == 4 and networks[-1][2]


def test_predictions_of_the_others_move_with_what_was_measured(world, task):
    before = recommend(task, evidence=world, device="cpu", strategy="static")
    after = recommend(task, evidence=world, confirm=1, seeds=1, device="cpu", strategy="static")
    moved = after["tf_efficientnet_lite1"].measured - before["tf_efficientnet_lite1"].error
    assert moved != 0
    wanted = min(max(before["mobilenet_v2"].error + moved, 0), 1)
    assert after["mobilenet_v2"].error == pytest.approx(wanted)
    assert any("than foretold" in note for note in after.notes)


def test_errors_are_kept_in_the_library_and_found_again(world, task, networks, tmp_path):
    with Library.open(tmp_path / "library") as library:
        library.add(Expert("tf_efficientnet_lite1", "hub", "timm:tf_efficientnet_lite1", input_size=224))
        first = recommend(task, evidence=world, library=library, confirm=2, seeds=2, device="cpu")
        assert sorted(expert.name for expert in library.experts()) == [
            "tf_efficientnet_lite0",
            "tf_efficientnet_lite1",
            "tf_efficientnet_lite1 at 112 px",
        ]
        assert len(library.errors()) == 4 and {error.protocol for error in library.errors()} == {PROTOCOLS[1]}
        networks.clear()
        again = recommend(task, evidence=world, library=library, confirm=2, seeds=2, device="cpu")
        seen = recommend(task, evidence=world, library=library, device="cpu")
        assert not networks and again.rows == first.rows == seen.rows
        assert len(library.tasks()) == 1 and library.tasks()[0].embeddings


def test_an_interrupt_loses_nothing_that_was_measured(world, task, tmp_path, monkeypatch):
    with Library.open(tmp_path / "library") as library:
        asked = recommending.Wanted(world, strategy="static", how={"device": "cpu"})
        case = recommending.open_case(recommending.take_task(task, asked, library)[1], asked, library, task=task)
        taken = []

        def stop(errors):
            taken.extend(errors)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            case.confirm(2, seeds=1, on_error=stop)
        assert len(taken) == len(library.errors()) == 1
        told = case.learn(confirming.sum_up(taken)).weigh()
        assert told["tf_efficientnet_lite1"].measured == taken[0].error
        again = recommend(task, evidence=world, library=library, device="cpu", strategy="static")
        assert again.rows == told.rows


def test_an_expert_that_cannot_be_measured_is_named_and_the_rest_goes_on(world, task, monkeypatch):
    def load(name, **_):
        if "lite1" in name:
            raise UsageError("its weights are damaged")
        return make_expert(name, seed=1)

    monkeypatch.setattr("task2vec.experts.loading.load_probe", load)
    advice = recommend(task, evidence=world, confirm=2, seeds=1, device="cpu")
    assert advice["tf_efficientnet_lite0"].measured is not None and advice["tf_efficientnet_lite1"].measured is None
    assert any(
        "'tf_efficientnet_lite1' could not be measured: its weights are damaged" in note for note in advice.notes
    )


def test_nothing_to_measure(world, task, monkeypatch):
    monkeypatch.setattr("task2vec.select.knowledge.offers._has_weights", lambda location: False)
    with pytest.raises(UsageError, match=r"none of the 4 candidates has its weights .*--download"):
        recommend(task, evidence=world, confirm=1, device="cpu")
    with pytest.raises(UsageError, match="measures nothing"):
        recommend(task, evidence=world, confirm=1, seeds=0, device="cpu", download=True)


def test_an_older_recipe_is_noted(world, task):
    old = tuple(key.replace("linear-2", "linear-1") for key in world.protocols)
    advice = recommend(task, evidence=replace(world, protocols=old), confirm=1, seeds=1, device="cpu")
    assert any("which is near, not the same" in note for note in advice.notes)


def test_few_images_are_measured_with_few(world):
    few = make_task((6, 7), seed=10, name="few")
    advice = recommend(few, evidence=world, confirm=1, seeds=1, device="cpu", strategy="static")
    assert advice.regime == "5"
    own = linear_error(make_expert("x", seed=2), few, ErrorProtocol(5), device="cpu")
    assert advice["tf_efficientnet_lite1"].measured == own[0].error


def test_attributes_are_measured_too(world):
    attributes = make_attributes(24)
    advice = recommend(attributes, evidence=world, confirm=1, seeds=1, device="cpu")
    assert advice.rows[0].measured is not None or advice["tf_efficientnet_lite1"].measured is not None
    assert any("several labels per image" in note for note in advice.notes)


def test_a_folder_is_read_and_embedded(world, tmp_path):
    task = make_task((4, 4), seed=3)
    for number, target in enumerate(task.targets):
        place = tmp_path / "photos" / str(target)
        place.mkdir(parents=True, exist_ok=True)
        task.images.load(number).save(place / f"{number}.png")
    assert recommend(tmp_path / "photos", evidence=world, device="cpu").task == "photos"


def test_weights_that_are_not_those_of_the_evidence_are_refused(world, task, monkeypatch):
    monkeypatch.setattr("task2vec.probe.load_probe", lambda *_, **__: make_tiny(seed=5), raising=False)
    with pytest.raises(ValueError, match="the weights of 'tiny' here are others"):
        recommend(task, evidence=world, device="cpu")


def test_evidence_from_a_file_is_the_same(world, task, tmp_path):
    place = make_metatask().save(tmp_path / "world.safetensors")
    own = load_metatask(place).embeddings["net robust"][0]
    assert recommend(own, evidence=place).rows == recommend(own, evidence=load_metatask(place)).rows


def test_a_poor_expert_is_not_chosen_because_it_alone_was_measured(world, task):
    asked = recommending.Wanted(world, how={"device": "cpu"})
    case = recommending.open_case(recommending.take_task(task, asked, None)[1], asked, None)
    found = {"mobilenet_v2": confirming.Measured(0.9, 0.8, 1.0, {0: 0.9})}
    told = Weighed(case.embedding, case.knowledge, case.is_allowed, found)
    advice = weigh(told, "static")
    assert advice.rows[-1].expert == "mobilenet_v2" and advice.choice == "tf_efficientnet_lite1"
    assert "mobilenet_v2, the only one that was measured on your images, leaves 90.0 % errors" in advice.verdict
    assert not advice.is_sure


@pytest.mark.parametrize(("errors", "is_sure"), [((0.1, 0.1), True), ((0.1, 0.4), False)])
def test_what_was_measured_beats_the_static_choice_as_far_as_it_is_no_noise(world, task, errors, is_sure):
    two = ["mobilenet_v2", "tf_efficientnet_lite1"]
    asked = recommending.Wanted(world, candidates=two, how={"device": "cpu"})
    case = recommending.open_case(recommending.take_task(task, asked, None)[1], asked, None)
    found = {
        "mobilenet_v2": confirming.Measured(sum(errors) / 2, 0.0, 0.5, dict(enumerate(errors))),
        "tf_efficientnet_lite1": confirming.Measured(0.3, 0.2, 0.4, {0: 0.3, 1: 0.3}),
    }
    advice = weigh(Weighed(case.embedding, case.knowledge, case.is_allowed, found))
    # Splits that differ so much are hardly believed: the static choice stays though the mean is lower.
    assert advice.choice == ("mobilenet_v2" if is_sure else "tf_efficientnet_lite1") and advice.is_sure == is_sure
    own = advice["mobilenet_v2"]
    assert own.measured == sum(errors) / 2 and own.measured < own.error
    assert own.gain == advice["tf_efficientnet_lite1"].error - own.error
    if is_sure:
        assert "is ahead of it on 2 of 2 splits (mobilenet_v2 is better with a chance of" in advice.verdict
        assert f"With all else that is known, expect {100 * own.error:.1f} %" in advice.verdict
    plain = weigh(Weighed(case.embedding, case.knowledge, case.is_allowed, found), "static")
    assert plain.choice == "mobilenet_v2" and plain.is_sure == is_sure  # a strategy that knows no noise
    assert f"ahead of it on {2 if is_sure else 1} of 2 splits." in plain.verdict
    assert plain["mobilenet_v2"].error == own.measured and plain["mobilenet_v2"].chance is None
