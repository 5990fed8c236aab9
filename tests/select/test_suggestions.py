"""Models of the zoo to fine-tune: against a slow obvious computation, within limits, and where nothing is known."""

import csv
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student_t

from task2vec.errors import UsageError
from task2vec.select import candidates, suggestions
from task2vec.select.curves import Tuned
from task2vec.select.recommend import recommend
from task2vec.select.suggestions import Suggestion, suggest_models
from task2vec.select.zoo import Cell, Variances, Zoo, ZooModel, find_in_zoo, load_zoo, look_up
from tests.failures import refuse
from tests.oracles.zoo import predict_densely
from tests.select.material import embed
from tests.select.test_curves import world  # noqa: F401

TUNED = Tuned(0.2, 0.1, 0.35, 0.6)
TABLE = "task2vec, fine-tuned, half"
NUMBERS = ("error", "low", "high", "p_better")


@pytest.fixture
def take(monkeypatch):
    """Let this zoo stand for that of the package."""

    def patch(made):
        monkeypatch.setattr(suggestions, "load_zoo", lambda: made)
        monkeypatch.setattr("task2vec.select.zoo.load_zoo", lambda: made)
        return made

    return patch


@pytest.fixture
def zoo(take):
    """Ten models; the last two were never fine-tuned, and better ones the larger they are, up to one of 200 M."""
    rng = np.random.default_rng(0)
    params = [3e6, 5e6, 9e6, 20e6, 30e6, 50e6, 90e6, 200e6, 40e6, 8e6]
    models = [
        ZooModel(f"m{n}.in1k", 224, int(one), 1.0, 0.7, cpu_speed=9.0, license="unknown" if n == 5 else "mit")
        for n, one in enumerate(params)
    ]
    cells = [
        Cell(source, protocol, f"d{dataset}", model.name, float(0.4 - 0.03 * n + rng.uniform(0, 0.02)))
        for source, protocol in (("task2vec", "fine-tuned, half"), ("other", "linear"))
        for dataset in range(4)
        for n, model in enumerate(models)
        if n < 8 or protocol == "linear"
    ]
    noise = {TABLE: 0.02, "other, linear": 0.03}
    return take(Zoo(tuple(models), tuple(cells), Variances(0.05, 0.02, 0.03, 0.04, 0.01, noise)))


def odds(error):
    return np.log((error + 0.03) / (1.03 - error))


def unodds(value):
    return min(max(1.06 / (1 + np.exp(-value)) - 0.03, 0), 1)


def compute_slowly(zoo, name, anchor, tuned):
    """The numbers of a suggestion from a dense posterior, one model at a time."""
    mean, covariance = predict_densely(zoo, [name, anchor], "fine-tuned")
    gap, variance = mean[0] - mean[1], covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1] + 2 * 0.02
    half = np.sqrt(norm.ppf(0.95) ** 2 * variance + ((odds(tuned.high) - odds(tuned.low)) / 2) ** 2)
    numbers = (unodds(odds(tuned.error) + gap + step) for step in (0, -half, half))
    return *numbers, norm.cdf(-gap / np.sqrt(variance))


def test_numbers_are_those_of_a_dense_posterior_and_the_best_come_first_or_all_that_are_named(zoo):
    names = ["timm:m8", "m0.in1k", "timm:m1", "timm:unheard_of", "timm:m7", "timm:m4"]
    best, named = (suggest_models(TUNED, "timm:m1.in1k", names=each) for each in (None, names))
    assert [one.model for one in best] == ["m6.in1k", "m5.in1k", "m4.in1k", "m2.in1k"]  # the last one is small
    assert [one.model for one in named] == ["m7.in1k", "m8.in1k", "m4.in1k", "m0.in1k"]  # also m7, which is large
    for one in (*best, *named):
        slow = compute_slowly(zoo, one.model, "m1.in1k", TUNED)
        assert [getattr(one, name) for name in NUMBERS] == pytest.approx(slow, abs=1e-8)
    assert all(one.p_better > 0.5 for one in best)
    assert named[1].high / named[1].low > named[2].high / named[2].low  # nobody fine-tuned m8
    model = zoo.find("m6.in1k")
    own = (90_000_000, 224, model.imagenet, 9.0, "mit", model.tables, model.load)
    assert best[0] == Suggestion("m6.in1k", *(getattr(best[0], name) for name in NUMBERS), *own)


def test_limits_leave_out_models_and_predict_the_others_as_before(zoo):
    every = {one.model: one for one in suggest_models(TUNED, "timm:m1.in1k", names=zoo.numbers)}
    for limits, models in (
        ({"max_params": "100M"}, "6542"),
        ({"max_params": 9_000_000}, "20"),
        ({"max_params": "1M"}, ""),
        ({"license": "mit"}, "6432"),
        ({"license": ["unknown"]}, "5"),
        ({"max_time": 1e9}, ""),  # nothing was timed
        ({"max_params": "50M", "names": ["timm:m8", "m0.in1k", "timm:m7"]}, "80"),
    ):
        found = suggest_models(TUNED, "timm:m1.in1k", **limits)
        assert [one.model for one in found] == [f"m{number}.in1k" for number in models]
        for one in found:
            assert (one.error, one.high) == pytest.approx((every[one.model].error, every[one.model].high))
    for limits in ({"max_params": "many"}, {"license": "gpl"}):
        refuse(UsageError, r"many|gpl", suggest_models, TUNED, "timm:m1", **limits)
    assert suggest_models(TUNED, "timm:unheard_of") == () == suggest_models(TUNED, "")


@pytest.mark.parametrize("is_gpu", [False, True])
def test_times_are_those_of_timed_networks_by_the_speeds_of_timm(zoo, take, is_gpu):
    """Networks of 100, 50 and 20 images per second that take 20, 30 and 80 s: the median is 1,600 images."""
    speeds = {"m1.in1k": 100, "m2.in1k": 50, "m3.in1k": 20, "m4.in1k": 10, "m6.in1k": 5}
    own, other = ("gpu_speed", "cpu_speed") if is_gpu else ("cpu_speed", "gpu_speed")
    take(replace(zoo, models=tuple(replace(one, **{own: speeds.get(one.name), other: 7.0}) for one in zoo.models)))
    timed = {"timm:m1": 20.0, "timm:m2": 30.0, "timm:m3": 80.0, "timm:m9": 1.0}
    expected = {"m2.in1k": 30.0, "m3.in1k": 80.0, "m4.in1k": 160.0, "m6.in1k": 320.0}  # as they were timed, if so
    every = suggest_models(TUNED, "timm:m1", timed=timed, is_gpu=is_gpu)
    assert {one.model: one.seconds for one in every} == {one.model: expected.get(one.model) for one in every}
    assert every[1].model == "m5.in1k" and every[1].seconds is None  # timm has no speed of it
    found = suggest_models(TUNED, "timm:m1", timed=timed, is_gpu=is_gpu, max_time=160)
    assert {one.model for one in found} == {"m2.in1k", "m3.in1k", "m4.in1k"}


@pytest.mark.parametrize(("images", "kind"), [(300, "1000"), (2000, "1000"), (2001, "all")])
def test_lora_moves_the_error_of_a_transformer_as_it_did_on_datasets_with_as_many_images(zoo, take, images, kind):
    named = [replace(model, name=model.name.replace("m6", "vit6")) for model in zoo.models]
    cells = [cell._replace(model=cell.model.replace("m6", "vit6")) for cell in zoo.cells]
    take(replace(zoo, models=tuple(named), cells=tuple(cells)))
    vit, *others = suggest_models(TUNED, "timm:m1.in1k", train_images=images)
    assert vit.model == "vit6.in1k" and all(one.lora is None for one in others)
    file = resources.files("task2vec.select") / "data" / "lora.csv"
    rows = [row for row in csv.DictReader(file.read_text().splitlines()) if row["images"] == kind]
    shifts = np.array([odds(float(row["lora"])) - odds(float(row["full"])) for row in rows])
    middle, low, high = map(odds, (vit.error, vit.low, vit.high))
    new = student_t(len(shifts) - 1, shifts.mean(), shifts.std(ddof=1) * np.sqrt(1 + 1 / len(shifts)))
    half = np.sqrt(((high - low) / 2) ** 2 + (new.ppf(0.95) - new.mean()) ** 2)
    slow, lora = [unodds(middle + shifts.mean() + step) for step in (0, -half, half)], vit.lora
    assert (lora.error, lora.low, lora.high, lora.p_better) == pytest.approx([*slow, new.cdf(0)], abs=1e-6)
    assert (lora.error < vit.error) == (kind == "1000")


def test_a_recommendation_has_them_as_text_and_values(world):  # noqa: F811
    advice = recommend(embed("mine", 30), evidence=world)
    assert advice.choice == "tf_efficientnet_lite0"
    assert advice.zoo == suggest_models(advice.tuned, "timm:tf_efficientnet_lite0") and len(advice.zoo) == 4
    lines = advice.to_text(width=120).splitlines()
    first = advice.zoo[0]
    (row,) = [line for line in lines if line.startswith(first.model)]
    assert f" {100 * first.error:.1f}%" in row and f"{100 * first.low:.0f} to {100 * first.high:.0f}%" in row
    assert f"    {first.load}" in lines and "ImageNet" not in advice.to_text(width=60)
    vit = next(one for one in advice.zoo if one.lora)
    *_, lora = advice.format_curves()
    assert f"LoRA on {vit.model}: predicted test error {100 * vit.lora.error:.1f}%" in lora
    assert f"probability {vit.lora.p_better:.2f}" in lora and lora[:30] in advice.to_text(width=120)
    small = recommend(embed("mine", 30), evidence=world, max_params="10M", license="apache-2.0")
    assert small.zoo and all(one.params <= 10e6 and one.license == "apache-2.0" for one in (*small.rows, *small.zoo))
    bare = recommend(embed("mine", 30), evidence=replace(world, info={}))
    assert bare.zoo == () and "zoo" not in bare.to_text()


def test_a_limit_of_time_holds_for_the_zoo_too(world, monkeypatch):  # noqa: F811
    monkeypatch.setattr(candidates, "_build", lambda name, size: (name, size))
    monkeypatch.setattr(candidates, "time_network", lambda name, size, **_: 10.0)
    advice = recommend(embed("mine", 30), evidence=world, max_time=50)
    speeds = [look_up(model.location).cpu_speed for model in world.models if model.is_named]
    images = 10 * np.median([speed for speed in speeds if speed])
    assert advice.zoo and all(one.seconds == pytest.approx(images / one.cpu_speed) for one in advice.zoo)
    assert all(one.seconds <= 50 for one in advice.zoo) and "estimated from" in " ".join(advice.notes)
    assert "images/s" not in advice.to_text(width=120)


def test_offline_keeps_what_is_on_this_machine(world, monkeypatch):  # noqa: F811
    monkeypatch.setattr("task2vec.experts.metatask.has_weights", lambda location: location.endswith("lite1"))
    monkeypatch.setattr(suggestions, "has_weights", lambda location: False)
    advice = recommend(embed("mine", 30), evidence=world, offline=True)
    assert [row.model for row in advice.rows] == ["tf_efficientnet_lite1"] and not advice.zoo
    assert any("3 candidates whose weights are not on this machine" in note for note in advice.notes)
    monkeypatch.setattr("task2vec.experts.metatask.has_weights", lambda location: False)
    with pytest.raises(UsageError, match=r"\(--offline\), so none is left .* drop --offline"):
        recommend(embed("mine", 30), evidence=world, offline=True)


def test_named_models_are_compared_when_fine_tuned_even_if_no_linear_error_is_known(world):  # noqa: F811
    names = ["mobilenetv3_small_050.lamb_in1k", "mobilevit_s.cvnets_in1k"]
    known = recommend(embed("mine", 30), evidence=world, candidates=["tf_efficientnet_lite0", *names])
    assert known.tuned is not None and {one.model for one in known.zoo} == set(names)
    alone = recommend(embed("mine", 30), evidence=world, candidates=names)
    assert alone.tuned is alone.labels is None and all(row.error is None for row in alone.rows)
    assert "No error of a linear classifier on any candidate is known" in alone.verdict
    best = recommend(embed("mine", 30), evidence=world).average_best
    other = recommend(embed("mine", 30), evidence=world, candidates=[best, *names])
    assert best == other.choice and alone.zoo == other.zoo and [one.model for one in alone.zoo] == names[::-1]


def test_a_location_stands_for_the_weights_that_it_loads():
    names = {
        "timm:tf_efficientnet_b0": "tf_efficientnet_b0.ns_jft_in1k",  # what timm loads without a tag, not .in1k
        "timm:tf_efficientnet_lite0": "tf_efficientnet_lite0.in1k",
        "timm:resnet34": "resnet34.a1_in1k",
        "torchvision:resnet50": "resnet50.tv2_in1k",  # torchvision's default, not its first weights
        "torchvision:resnet34": "resnet34.tv_in1k",
        "torchvision:mobilenet_v2": "torchvision:mobilenet_v2",
        "resnet34.tv_in1k": "resnet34.tv_in1k",
    }
    assert {location: find_in_zoo(load_zoo(), location).name for location in names} == names
    assert find_in_zoo(load_zoo(), "torchvision:unheard_of") is None
