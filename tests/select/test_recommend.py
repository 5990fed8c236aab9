"""What is measured, kept, found again and recommended; small networks stand for those of the table of candidates."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import task2vec as t2v
from task2vec.distance import symmetric
from task2vec.errors import DataError, ProbeMismatchError, UsageError, WeightsNotFoundError
from task2vec.library import Library
from task2vec.metatask import bundled_metatask
from task2vec.select import Candidate, evidence, measure
from task2vec.select import recommend as room
from task2vec.select.evidence import find_errors, find_task
from task2vec.select.history import PROTOCOL, find_measurements, pack
from task2vec.select.recommend import recommend
from tests.cli.material import paint
from tests.tiny_probe import make_tiny

NAMES = ("first", "second", "third")
SPACE = "tf_efficientnet_lite0 robust"


@pytest.fixture
def folder(tmp_path):
    """Two classes of ten images, which small networks tell apart more or less well."""
    return paint(tmp_path / "photos", {"dark": 110, "bright": 140}, count=10)


@pytest.fixture
def candidates(monkeypatch):
    """Three candidates with small networks behind them; the names of those that were loaded are collected."""
    known = [
        Candidate(name, location=f"timm:{name}", params=1000 * cost, gmacs=float(cost), is_here=True)
        for cost, name in enumerate(NAMES, 1)
    ]
    loaded = []

    def load(candidate, *, download=False, **_):
        if not (candidate.is_here or download):
            raise WeightsNotFoundError(f"the weights of '{candidate.name}' are not on this machine.")
        loaded.append(candidate.name)
        return replace(make_tiny(NAMES.index(candidate.name)), name=candidate.name)

    def list_known(models=None, *, library=None, **_):
        return tuple(each for each in known if models is None or each.name in models)

    monkeypatch.setattr(room, "load_candidate", load)
    monkeypatch.setattr(room, "list_candidates", list_known)
    load.known, load.loaded = known, loaded
    return load


def errors_of(advice):
    """Of each measured model what was found; stored losses have single precision, as those of heads."""
    return {
        row.model: (*np.round((row.error, row.low, row.high, row.gap), 6), row.is_tied, row.is_choice)
        for row in advice.measured
    }


def test_every_candidate_is_measured_and_one_of_the_tie_is_chosen(folder, candidates):
    advice = recommend(folder)
    assert sorted(candidates.loaded) == sorted(NAMES) and set(errors_of(advice)) == set(NAMES)
    for row in advice.rows:
        assert 0 <= row.low <= row.error <= row.high <= 1 and row.images == 20 and row.seconds > 0
    tie = [row for row in advice.rows if row.is_tied]
    assert advice.tie == tuple(row.model for row in tie) and advice.rows[0].gap == 0 and tie[0] is advice.rows[0]
    cheapest = min(tie, key=lambda row: row.gmacs)
    assert (
        advice.choice == cheapest.model
        and cheapest.is_choice
        and advice.verdict.startswith(f"Start from {advice.choice}")
    )
    assert recommend(folder, prefer="error").choice == advice.rows[0].model
    assert (advice.images, advice.classes, advice.measured_images, advice.budget) == (20, 2, 20, 60.0)
    assert advice.strategy is None and not advice.is_interrupted


def test_a_folder_its_task_and_a_task_of_the_library_have_the_same_results(folder, candidates, tmp_path):
    of_folder = errors_of(recommend(folder))
    shuffled = t2v.to_task(folder).subset(np.random.default_rng(0).permutation(20))
    with Library.open(tmp_path / "library") as library:
        library.add(t2v.to_task(folder))
        of_name = recommend("photos", library=library)
        of_entry = recommend(library.task("photos"), library=library)
    assert of_folder == errors_of(recommend(shuffled)) == errors_of(of_name) == errors_of(of_entry)


def test_what_a_library_has_is_not_measured_again(folder, candidates, tmp_path):
    with Library.open(tmp_path / "library") as library:
        first = recommend(folder, library=library, models=NAMES[:2])
        assert len(candidates.loaded) == 2
        whole = recommend(folder, library=library)
        assert candidates.loaded[2:] == ["third"] and len(whole.measured) == 3
        again = recommend(folder, library=library)
        assert len(candidates.loaded) == 3 and again.rows[0].seconds is None
        stored = {(error.expert, error.error, error.protocol) for error in library.errors()}
    assert stored == {(row.model, row.error, PROTOCOL) for row in whole.rows}
    one_go = recommend(folder)
    for row in one_go.rows:  # compared with the best of three, whenever each was measured
        ours = (again[row.model].error, again[row.model].low, again[row.model].high, again[row.model].gap)
        assert ours == pytest.approx((row.error, row.low, row.high, row.gap), abs=1e-6)
    assert (again.choice, again.tie) == (one_go.choice, one_go.tie)
    assert first[NAMES[0]].error == pytest.approx(one_go[NAMES[0]].error)


def test_a_task_whose_images_are_gone_has_what_was_measured_before(folder, candidates, tmp_path):
    with Library.open(tmp_path / "library") as library:
        before = recommend(folder, library=library)
        library.add(t2v.sample_tasks(images_per_task=20)[0])
        shutil.rmtree(folder)
        after = recommend("photos", library=library)
        assert errors_of(after) == errors_of(before) and "not where they were" in after.notes[0]
        with pytest.raises(DataError, match="the images of 'digits' cannot be read from"):
            recommend("digits", library=library)
        paint(folder, {"dark": 110, "bright": 140}, count=9)
        assert errors_of(recommend("photos", library=library)) == errors_of(before)
    with pytest.raises(UsageError, match="no model to write"):
        after.script(tmp_path / "train.py")


def test_errors_of_a_library_are_evidence_for_other_tasks_only(folder, candidates, tmp_path):
    bundle = bundled_metatask()
    plain = find_errors(None, SPACE, ())
    assert plain.models == bundle.select("half").models
    known = bundle.embeddings[SPACE][0]
    with Library.open(tmp_path / "library") as library:
        recommend(folder, library=library)
        task = t2v.to_task(folder)
        provenance = known.provenance | {"task_fingerprint": task.fingerprint}
        provenance |= {"classes": list(task.classes), "counts": {"images": 20, "classes": 2, "per_class": [10, 10]}}
        library.add(replace(known, task="photos", provenance=provenance | {"is_multilabel": False}))
        whole = find_errors(library, SPACE, candidates.known)
        evidence_of_task = evidence.gather_evidence(find_task(task, library), candidates.known, library)
    assert len(whole.tasks) == len(plain.tasks) + 1 and whole.tasks[-1].fingerprint == task.fingerprint
    assert {model.name for model in whole.models} >= set(NAMES)
    assert np.isfinite(whole.mean[-1]).sum() == 3
    assert [known.name for known in evidence_of_task.view.tasks] == [known.name for known in plain.tasks]
    assert evidence_of_task.neighbours[0] == (plain.tasks[0].name, pytest.approx(0, abs=1e-6))


def test_an_expert_is_near_or_far_before_any_error_is_in_the_library(tmp_path):
    bundle = bundled_metatask()
    known = bundle.embeddings[SPACE][0]
    sources = {"of the bundle": bundle.tasks[0].fingerprint, "of the library": "a" * 64, "of nowhere": "b" * 64}
    experts = [
        Candidate(name, location=f"{name}.expert.safetensors", source_task=name, source_fingerprint=fingerprint)
        for name, fingerprint in sources.items()
    ]
    with Library.open(tmp_path / "library") as library:
        provenance = known.provenance | {"task_fingerprint": "a" * 64, "classes": ["x", "y"], "is_multilabel": False}
        provenance |= {"counts": {"images": 20, "classes": 2, "per_class": [10, 10]}}
        library.add(replace(known, task="of the library", provenance=provenance))
        with_library = find_errors(library, SPACE, experts)
    without = find_errors(None, SPACE, experts)
    for view, are_known in ((with_library, (True, True, False)), (without, (True, False, False))):
        assert [model.name for model in view.models[-3:]] == list(sources)
        assert np.isnan(view.mean[:, -3:]).all()
        distances = view.ask(bundle.embeddings[SPACE][3]).to_sources["symmetric"]
        assert tuple(np.isfinite(distances[-3:])) == are_known
        expected = symmetric(bundle.embeddings[SPACE][3], known)
        assert distances[-3:][list(are_known)] == pytest.approx([expected] * sum(are_known), abs=1e-6)


def test_weights_that_are_missing_are_counted_in_a_note_and_failures_are_rows(folder, candidates):
    candidates.known[2] = replace(candidates.known[2], is_here=False, megabytes=1234.4)
    advice = recommend(folder)
    assert set(advice) == set(NAMES[:2])
    assert any("1 candidate not on this machine (third)" in note and "1,234 MB" in note for note in advice.notes)
    assert set(recommend(folder, download=True)) == set(NAMES)
    named = recommend(folder, models=NAMES)
    assert [row.model for row in named.failures] == ["third"] and named.rows[-1].error is None
    assert "not on this machine" in named["third"].failure and "third could not be measured" in named.to_text()
    candidates.known[:] = [replace(each, is_here=False, megabytes=10.0) for each in candidates.known]
    with pytest.raises(UsageError, match=r"no candidate can be measured.*30 MB.*--download"):
        recommend(folder)


def test_models_that_were_trained_on_the_task_are_left_out(folder, candidates):
    fingerprint = t2v.to_task(folder).fingerprint
    candidates.known[0] = replace(candidates.known[0], source_task="photos", source_fingerprint=fingerprint)
    advice = recommend(folder)
    assert "first" not in set(advice) and "trained on images of this task: first" in advice.notes[0]
    with pytest.raises(UsageError, match="all candidates were trained on images of this task"):
        recommend(folder, models=["first"])


def test_an_embedding_gets_proposals_and_no_number_of_an_error(candidates):
    known = bundled_metatask().embeddings[SPACE][3]
    advice = recommend(known)
    assert candidates.loaded == [] and advice.choice is None and advice.strategy == "proposals"
    assert set(advice) == set(NAMES) and all(row.reason for row in advice.rows) and len(advice.neighbours) == 3
    document = advice.to_dict()
    for row in document["rows"]:
        assert {row[name] for name in ("error", "low", "high", "gap", "gap_low", "gap_high", "seconds", "images")} == {
            None
        }
    assert known.task not in [name for name, _ in advice.neighbours]
    with pytest.raises(UsageError, match="no model to write a script"):
        advice.script("train.py")
    stranger = replace(known, probe="net", provenance=known.provenance | {"probe_fingerprint": "ab" * 32})
    assert "All known tasks count alike" in recommend(stranger).notes[0]
    with pytest.raises(ProbeMismatchError):
        recommend(stranger, strategy="average_best")


def test_strategies_of_the_paper_select_by_name():
    known = bundled_metatask().embeddings[SPACE][3]
    lite = ["tf_efficientnet_lite0.in1k", "tf_efficientnet_lite1.in1k", "resnet50.tv_in1k"]
    advice = recommend(known, models=lite, strategy="average_best")
    view = find_errors(None, SPACE, ())
    view = view.only(row for row, task in enumerate(view.tasks) if task.name != known.task)
    means = dict(zip([model.name for model in view.models], view.mean.mean(0), strict=True))
    best = min(("tf_efficientnet_lite0", "tf_efficientnet_lite1"), key=means.__getitem__)
    assert advice.rows[0].model == f"{best}.in1k" and advice.rows[0].reason == "average_best: 1 of 2"
    assert advice.rows[2].reason == "not known to average_best" and advice.choice is None
    with pytest.raises(UsageError, match="no strategy called 'best'"):
        recommend(known, models=lite, strategy="best")
    with pytest.raises(UsageError, match="none of the candidates has known errors"):
        recommend(known, models=["resnet50.tv_in1k"], strategy="average_best")
    with pytest.raises(UsageError, match="cannot be used here: no symmetric distance"):
        recommend(known, models=lite, strategy="symmetric")


def test_the_task_is_embedded_only_if_time_is_short_and_that_can_change_the_order(folder, candidates, monkeypatch):
    calls = []

    def embed(task, like, library, **_):
        calls.append(task.name)
        return bundled_metatask().embeddings[SPACE][3]

    monkeypatch.setattr(evidence, "embed_like", embed)
    recommend(folder, budget=0.5)
    assert calls == []  # nothing is known of these candidates, so no order is better than another
    candidates.known[0] = replace(candidates.known[0], location="timm:tf_efficientnet_lite0.in1k")
    candidates.known[1] = replace(candidates.known[1], location="timm:tf_efficientnet_lite1.in1k")
    recommend(folder)
    assert calls == []  # all fit
    advice = recommend(folder, budget=0.5)
    assert calls == ["photos"] and len(advice.neighbours) == 3


def test_an_interrupt_keeps_what_was_measured(folder, candidates, monkeypatch, tmp_path):
    load = room.load_candidate

    def stop(candidate, **options):
        if candidate.name == interrupted:
            raise KeyboardInterrupt
        return load(candidate, **options)

    order = [row.model for row in recommend(bundled_metatask().embeddings[SPACE][3]).rows]
    interrupted = order[2]
    monkeypatch.setattr(room, "load_candidate", stop)
    with Library.open(tmp_path / "library") as library:
        advice = recommend(folder, library=library)
        assert (
            advice.is_interrupted
            and {row.model for row in advice.measured} <= set(order[:2])
            and advice.choice in order[:2]
        )
        assert (
            not advice.failures and "not measured" in advice[interrupted].reason and advice[interrupted].error is None
        )
        kept = {error.expert for error in library.errors()}
        assert kept == {row.model for row in advice.measured}


def test_a_sample_is_noted_and_not_kept(candidates, tmp_path, monkeypatch):
    task = t2v.sample_tasks(images_per_task=60)[2]
    real = measure.measure_models

    def measure_few(*arguments, **options):
        measured = real(*arguments, **options)
        arrays = {name: getattr(measured, name)[:30] for name in ("images", "groups", "losses")}
        return replace(measured, features=tuple(features[:30] for features in measured.features), **arrays)

    monkeypatch.setattr(measure, "measure_models", measure_few)
    with Library.open(tmp_path / "library") as library:
        advice = recommend(task, library=library)
        assert (
            advice.measured_images == 30 and "sample of 30 of 60 images" in advice.notes[-1] and library.errors() == []
        )
        monkeypatch.setattr(measure, "measure_models", real)
        recommend(task, library=library, models=NAMES[:2])
        monkeypatch.setattr(measure, "measure_models", measure_few)
        mixed = recommend(task, library=library)
    assert {row.model for row in mixed.measured} == set(NAMES[:2])  # of all images; the third is of another set
    assert mixed["third"].error is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefer": "best"}, "prefer='best'"),
        ({"budget": "soon"}, "'soon' is not a time"),
        ({"budget": 0}, "'0' is not a time"),
        ({"strategy": "magic"}, "no strategy called 'magic'"),
        ({"max_params": "few"}, "not a number of parameters"),
        ({"license": "gpl"}, "is not a licence of any model"),
        ({"models": ["resnet5O.a1_in1k"]}, "Did you mean resnet50.a1_in1k"),
    ],
)
def test_mistakes_are_refused_before_images_are_read(options, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        recommend(tmp_path / "nothing", **options)


def test_networks_in_memory_are_measured_and_not_confused_later(folder, tmp_path):
    probes = [replace(make_tiny(seed), name=f"net {seed}") for seed in range(2)]
    with Library.open(tmp_path / "library") as library:
        advice = recommend(folder, models=probes, library=library)
        assert (
            len(advice.measured) == 2 and library.errors() == []
        )  # nothing could tell later which networks these were
    assert find_measurements(None, "x", ()) is None and repr(advice).endswith("2 of 2 models measured)")


def test_what_is_stored_of_a_task_with_attributes_says_the_same_again(candidates, tmp_path):
    shapes = t2v.sample_tasks(images_per_task=40)[2]
    random = np.random.default_rng(0)
    names = [f"attribute {number}" for number in range(6)]
    task = replace(shapes, targets=random.integers(0, 2, (40, 6)).astype(np.uint8), classes=names)
    with Library.open(tmp_path / "library") as library:
        first, again = recommend(task, library=library), recommend(task, library=library)
        stored = find_measurements(library, task.fingerprint, candidates.known)
        details = [run.details for run in library.runs() if run.what == "recommend"]
        for wrong in ("nan", "inf", "-1", "0", "x", None):
            with library.record("recommend", details[-1] | {"answer": wrong}):
                pass
        assert find_measurements(library, task.fingerprint, candidates.known).answer == stored.answer
    assert errors_of(again) == errors_of(first) and again.tie == first.tie and len(again.measured) == 3
    assert 1 / 6 < stored.answer < 1 / 4 and {each["answer"] for each in details} == {repr(stored.answer)}


def test_records_that_are_not_of_this_task_are_left_out(folder, candidates, tmp_path):
    with Library.open(tmp_path / "library") as library:
        first = recommend(folder, library=library)
        names = {"task": first.data.fingerprint, "protocol": PROTOCOL, "expert": library.experts()[0].name}
        of_five_images = {"groups": pack(np.arange(5), "<i4"), "losses": pack(np.zeros(5), "<f4")}
        for details in (of_five_images, {"groups": "x", "losses": "?"}, {"groups": 3}, {}):
            with library.record("recommend", names | details):
                pass
        again = recommend(folder, library=library)
    assert errors_of(again) == errors_of(first) and len(again.measured) == 3


def test_the_learning_curve_of_the_choice_is_measured_kept_and_found_again(candidates, tmp_path):
    task = t2v.sample_tasks(images_per_task=100)[2]
    with Library.open(tmp_path / "library") as library:
        first = recommend(task, library=library, models=NAMES[:1])
        again = recommend(task, library=library, models=NAMES[:1])
    assert first.learning_curve is not None and again.learning_curve == first.learning_curve
    assert first.learning_curve.images[-1] == 100 and again.rows[0].seconds is None
    assert first.learning_curve.errors[-1] == pytest.approx(first.rows[0].error, abs=0.02)
    assert f"{first.learning_curve.sentence}" in " ".join(again.to_text(width=200).split())
    assert again.to_dict()["learning_curve"]["images"] == first.learning_curve.images
