"""Which model is recommended, in which words, and what is refused."""

import ast
from dataclasses import replace

import numpy as np
import pytest
import torch

import task2vec as t2v
from task2vec.distance import symmetric
from task2vec.errors import DataError, ProbeMismatchError, SettingsMismatchError, UsageError
from task2vec.experts import ErrorProtocol, ModelInfo, TaskInfo, checkpoint, linear_error
from task2vec.experts.protocol import wilson_interval
from task2vec.library import Expert, Library, MeasuredError
from task2vec.select import budget as budgets
from task2vec.select import candidates, combined
from task2vec.select import recommend as room
from task2vec.select.combined import scale_errors, unscale
from task2vec.select.recommend import recommend
from task2vec.select.zoo import load_zoo
from tests.cli.material import paint
from tests.command import run_command
from tests.experts.material import make_attributes, make_model, make_task
from tests.failures import refuse
from tests.select.material import FIVE, HALF, MODELS, TASKS, embed, fill_library, fingerprint, make_world

LOADABLE = {"generic resnet34", "tf_efficientnet_lite0", "tf_efficientnet_lite1", "mobilenet_v2"}
BEST = "tf_efficientnet_lite1"  # on average
LITE0 = "tf_efficientnet_lite0"
WICKED = 'x"); __import__("os").system("id"); ("'


@pytest.fixture(scope="module")
def world():
    return make_world()


def ask(world, *, seed=30, kind=0, **options):
    return recommend(embed("mine", seed, kind=kind), evidence=world, **options)


def mine_with(**about):
    """The embedding of the task with something else in its provenance."""
    own = embed("mine", 30)
    return replace(own, provenance=own.provenance | about)


def with_counts(**counts):
    return mine_with(counts=embed("mine", 30).provenance["counts"] | counts)


def names_of(rows):
    return [row.model for row in rows]


def has_note(advice, words):
    return any(words in note for note in advice.notes)


# --- who is recommended ----------------------------------------------------------------------------------------------


def test_candidates_can_be_loaded_and_one_is_chosen_where_the_evidence_beats_the_average(world):
    advice = ask(world)
    assert set(names_of(advice.rows)) == LOADABLE and [row.rank for row in advice.rows] == [1, 2, 3, 4]
    assert advice.average_best == BEST and [row.model for row in advice.rows if row.is_average_best] == [BEST]
    assert advice["tf_efficientnet_lite0"].load == 't2v.load_probe("tf_efficientnet_lite0")'
    assert advice["mobilenet_v2"].load == 't2v.load_probe("torchvision:mobilenet_v2", download=True)'
    first = advice.rows[0]
    assert first.is_available and advice.is_confident and advice.choice == first.model == "tf_efficientnet_lite0"
    assert first.gain == pytest.approx(advice[BEST].error - first.error) and first.gain > 0.02
    assert "lower than the average-best model, tf_efficientnet_lite1" in advice.verdict
    assert sum(row.p_best for row in advice.rows) == pytest.approx(1)
    assert all(row.low < row.error < row.high for row in advice.rows)
    far = {f"task {n}": symmetric(embed("mine", 30), embed("", n, kind=n % 2)) for n in range(TASKS)}
    nearest = sorted(far, key=lambda name: far[name])[:5]
    assert [name for name, _ in advice.neighbours] == nearest and {row.nearest for row in advice.rows} == {nearest[0]}
    assert [distance for _, distance in advice.neighbours] == pytest.approx([far[name] for name in nearest], abs=1e-6)
    near = [int(name.removeprefix("task ")) for name in nearest]
    gap = (world.select("half").mean[near, 2] - world.select("half").mean[near, 1]).mean()
    assert f"nearest 5 tasks its error is {100 * gap:.1f} points lower" in first.why


@pytest.mark.parametrize("kind", [1, 9])
def test_it_abstains_where_the_evidence_does_not(world, kind):
    advice = ask(world, kind=kind)
    assert not advice.is_confident and advice.choice == advice.average_best == BEST
    assert "no evidence against the average-best model" in repr(advice)
    assert has_note(advice, "No known task is similar") == (kind == 9)


def test_a_little_ahead_is_not_enough(world, monkeypatch):
    monkeypatch.setattr(combined, "LEAST_GAIN", 0.5)
    advice = ask(world)
    assert names_of(advice.rows)[:2] == [BEST, "tf_efficientnet_lite0"] and not advice.is_confident
    assert "(tf_efficientnet_lite0 is predicted to be" in advice.verdict
    assert advice.rows[1].error < advice.rows[0].error


def test_experts_without_weights_are_listed_apart_if_their_source_task_is_near(world):
    advice = ask(world)
    assert names_of(advice.others) == ["birds"] and advice["birds"].p_best is None
    assert "train-expert" in advice["birds"].load and advice["birds"].error < advice.rows[0].error
    assert "use data like 'birds'" in advice.to_text()
    assert not ask(world, kind=1).others
    with pytest.raises(KeyError, match="not among the candidates"):
        _ = advice["vgg16_features"]
    for seed, kind, wanted in ((99, 7, []), (98, 0, ["birds"])):
        embeddings = {"net robust": [*world.embeddings["net robust"], embed("birds", seed, kind=kind)]}
        source = TaskInfo("birds", "all", "birds", "b" * 64, 100, 2)
        found = ask(replace(world, source_tasks=(source,), embeddings=embeddings))
        assert names_of(found.others) == wanted
    assert found["birds"].distance == pytest.approx(symmetric(embed("mine", 30), embed("", 98)), abs=1e-6)


def test_a_known_task_is_predicted_without_its_own_errors(world):
    own = world.embeddings["net robust"][3]
    errors = world.errors.copy()
    errors[3] = 0.99
    worlds = (world, replace(world, errors=errors))
    advice, changed = (recommend(own, evidence=one) for one in worlds)
    assert advice.rows == changed.rows and has_note(advice, "This task is one of the known ones")
    assert "task 3" not in dict(advice.neighbours) and "11 tasks" in advice.known


def test_models_that_were_trained_on_the_task_are_left_out(world):
    taught = tuple(replace(one, source_fingerprint=fingerprint(30)) if one.source_task else one for one in world.models)
    advice = ask(replace(world, models=taught))
    assert not advice.others and has_note(advice, "trained on images or labels of this task: birds")
    shares, own = world.shares_images.copy(), world.embeddings["net robust"][2]
    shares[2, 5] = 0.5
    assert recommend(own, evidence=world).others
    assert not recommend(own, evidence=replace(world, shares_images=shares)).others


def test_few_images_are_noted_and_two_per_class_keep_the_average_best_model(world):
    for count, half in ((4, 2), (5, 3), (8, 4)):
        few = recommend(with_counts(per_class=[count, count]), evidence=world)
        assert has_note(few, f"the median class has {half} for training. Known errors are those of classifiers")
        assert few.train_images == half and f"5 images per class ({half} where measured" in few.to_text(width=200)
    ten, eleven = (recommend(with_counts(per_class=[count, count]), evidence=world) for count in (10, 11))
    assert (ten.train_images, ten.shots, ten.protocol, eleven.protocol) == (None, "5", FIVE, HALF)
    assert ask(world, shots=5).rows[0].error > ask(world, shots="half").rows[0].error + 0.05
    two, mixed = (recommend(with_counts(per_class=n), evidence=world, shots="half") for n in ([2, 2], [2, 40, 40]))
    assert mixed.is_confident and not has_note(mixed, "for training")  # a single small class does not count
    assert not two.is_confident and two.choice == BEST and has_note(two, "Most classes have fewer than 3 images")


def test_limits(world, monkeypatch):
    small = ask(world, max_params="10M")
    assert set(names_of(small.rows)) == LOADABLE - {"generic resnet34"}
    assert has_note(small, "1 candidate with more than 10M parameters")
    (only,) = ask(world, max_params=3.6e6).rows
    assert only.model == "mobilenet_v2" and only.params == load_zoo().find("torchvision:mobilenet_v2").params
    seconds = {"timm:tf_efficientnet_lite0": 1.0}
    monkeypatch.setattr(candidates, "_build", lambda name, size: (name, size))
    monkeypatch.setattr(candidates, "time_network", lambda name, size, **_: seconds.get(name, 9.0) if not size else 0.0)
    fast = ask(world, max_time=5)  # at their own sizes, as they are loaded
    assert names_of(fast.rows) == ["tf_efficientnet_lite0"] and fast.rows[0].seconds == 1
    assert has_note(fast, "Networks were timed on this machine") and has_note(fast, "3 candidates taking more than 5 s")


def test_evidence_from_a_file_is_the_same_and_without_embeddings_it_is_refused(world, tmp_path):
    place = world.save(tmp_path / "world.safetensors")
    own = t2v.load_metatask(place).embeddings["net robust"][0]
    assert recommend(own, evidence=place).rows == recommend(own, evidence=t2v.load_metatask(place)).rows
    file = tmp_path / "errors.csv"
    file.write_text("task,a,b\ncats,0.2,0.3\ndogs,0.4,0.1\n", encoding="utf-8")
    for evidence in (file, t2v.metatask_from_csv(file)):
        with pytest.raises(UsageError, match=r"not their embeddings, so .* task2vec error-matrix FOLDER --expert NAME"):
            recommend(make_task((9, 9), seed=1), evidence=evidence)


def test_candidates_by_a_name_of_the_zoo_are_the_known_networks_and_those_without_errors_come_last(world, monkeypatch):
    tagged = ask(world, candidates=["tf_efficientnet_lite0.in1k", LITE0, "mobilenet_v2"])
    assert set(names_of(tagged.rows)) == {LITE0, "mobilenet_v2"} and tagged[LITE0].error is not None
    advice = ask(world, candidates=["mobilenet_v2", "resnet10t"])
    known, new = advice.rows
    assert (known.model, known.p_best, new.model, new.nearest) == ("mobilenet_v2", 1, "resnet10t", None)
    assert (new.error, new.low, new.high, new.p_best, new.gain) == (None,) * 5 and "unknown" in advice.to_text()
    assert new.load == 't2v.load_probe("resnet10t", download=True)' and 4e6 < new.params < 6e6
    assert new.why == "Its errors are not known." and "best of these candidates on average" in advice.verdict
    assert has_note(advice, "classifier on resnet10t is known, so none is predicted. --measure-top 2")
    monkeypatch.setattr("task2vec.experts.metatask.has_weights", lambda location: "resnet14t" in location)
    alone = ask(world, candidates=["resnet10t", "resnet14t", "resnet18"])
    assert "on any candidate is known" in alone.verdict and not alone.is_confident
    assert names_of(alone.rows) == ["resnet14t", "resnet10t", "resnet18"]  # of equals the one that is here


def test_a_file_of_an_expert_is_a_candidate_that_knows_its_source_task(world, library):
    metadata = {"kind": "expert", "name": "gulls", "architecture": "timm:resnet10t", "size": [64, 64], "task": "gulls"}
    file = library.folder / "gulls.expert.safetensors"
    checkpoint.write_tensors(file, {"weight": torch.zeros(1)}, metadata | {"task_fingerprint": fingerprint(60)})
    source = embed("gulls", 60)
    library.add(source)
    library.add(Expert("untried", "hub", "timm:resnet10t", input_size=64))
    assert set(names_of(ask(world, library=library).rows)) == LOADABLE  # what has no errors must be named
    advice = ask(world, library=library, candidates=[file, "mobilenet_v2", "untried", "untried"])
    assert len(advice) == 3 and advice["untried"].load == 't2v.load_probe("resnet10t", download=True)'
    assert advice["gulls"].load == f't2v.load_expert("{file}")' and advice["gulls"].is_available
    assert advice["gulls"].distance == pytest.approx(symmetric(embed("mine", 30), source), abs=1e-6)
    assert advice["gulls"].error is None and advice["mobilenet_v2"].error and advice["gulls"].params > 4e6
    with pytest.raises(UsageError, match="none of the candidates can be loaded"):
        recommend(source, evidence=world, library=library, candidates=[file])


def test_weights_that_no_library_has_are_evidence_but_no_candidate(world):
    about = {"location": None, "weights_origin": "the body of another model"}
    models = (replace(world.models[0], name="resnet34", **about), *world.models[1:])
    lost = replace(world, models=models)
    advice = ask(lost)
    assert set(names_of(advice.rows)) == LOADABLE - {"generic resnet34"} and "errors of 6 models" in advice.known
    assert [row.error for row in advice.rows] == [
        row.error for row in ask(world).rows if row.model != "generic resnet34"
    ]
    # A name stands for what it loads, of which no error is known.
    for name, home in (("resnet34", "timm"), ("torchvision:resnet34", "torchvision")):
        (row,) = ask(lost, candidates=[name]).rows
        assert (row.model, row.error, row.params > 2e7) == (f"{home}:resnet34", None, True)
        assert ast.literal_eval(row.load[len("t2v.load_probe") :].replace("download=", "")) == (
            "resnet34" if home == "timm" else name, True)  # fmt: skip
    refuse(UsageError, "none of the candidates can be loaded", ask, lost, candidates=["vgg16_features"])
    probed = replace(lost, models=(replace(models[0], network="net"), *models[1:]))
    words = r"'net' .*those of the known tasks are the body of another model.* Choose one of: none"
    refuse(UsageError, words, room.choose_space, probed, probe="net")


def test_what_cannot_be_meant_is_refused(world):
    for options, match in (
        ({"candidates": ["resnet35"]}, r"'resnet35' is not a model .* Known and loadable: generic resnet34"),
        ({"candidates": ["tf_eficientnet_lite"]}, r"cannot be a candidate. Did you mean tf_efficientnet_lite\d.* or "),
        ({"candidates": ["open_clip:ViT-B-16-plus-240/laion400m_e31"]}, "timm or torchvision, so it cannot be a cand"),
        ({"candidates": ["birds"]}, "none of the candidates can be loaded"),
        ({"candidates": []}, "none of the candidates can be loaded"),
        ({"measure_top": 1}, "an embedding has none"),
        ({"measure_top": 1, "budget": 60}, "both say what to measure. Leave one"),
        ({"measure_top": -1}, r"measure_top=-1 \(--measure-top\) .* cannot be measured. Give a number of models"),
        ({"seeds": 0}, r"seeds=0 \(--seeds\) cannot be measured. .* at least one split"),
        ({"max_params": "1M"}, r"more than 1M parameters.* \(--max-params\), so none is left .* Change or drop --max"),
        ({"max_time": 0}, "is not a time for 1,000 images"),
        *(({"budget": each}, r"not a time above 0, .* Write it like 60s") for each in (0, "60 apples", "1e999")),
        ({"evidence": "library"}, "needs a library"),
        ({"evidence": "libary"}, r"there is no file 'libary' .*Choose 'bundle', 'library', or the path"),
        ({"what": 3}, "a int holds no labelled images"),
    ):
        refuse(UsageError, match, recommend, **{"what": embed("mine", 30), "evidence": world} | options)


def test_embeddings_of_other_spaces_are_refused(world):
    other, direct = embed("mine", 30, probe="other", weights="cd"), embed("mine", 30, method="direct")
    small = replace(other, probe="net", provenance=other.provenance | {"image_size": [32, 32]})
    for own, words in (
        (other, r"by other at 64 pixels .* net at 64 pixels \(robust\)"),
        (small, "by net at 32 pixels"),
    ):
        with pytest.raises(ProbeMismatchError, match=rf"{words}.*Embed it again: task2vec .*--probe net --size 64"):
            recommend(own, evidence=world)
    refuse(SettingsMismatchError, "method=robust and method=direct", recommend, direct, evidence=world)


@pytest.mark.parametrize("library", ["", "timm:", "torchvision:"])
def test_the_line_that_loads_is_one_call_with_one_text(library):
    for text in (WICKED, "a\nb", "C:\\new\\x", "\u202egnp", "zoë's", "\udcff"):
        line = ModelInfo("x", location=library + text, size=224).load
        call = ast.parse(line, mode="eval").body
        assert isinstance(call, ast.Call) and ast.unparse(call.func).startswith("t2v.load_")
        (given,) = call.args
        assert isinstance(given, ast.Constant) and given.value == (library + text).removeprefix("timm:")
        assert line.isprintable()
    wicked = ModelInfo("x", location="timm:resnet18", size=WICKED)  # pyright: ignore[reportArgumentType]
    assert wicked.load == 't2v.load_probe("resnet18", download=True)'


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_text_fits_the_page_and_shows_odd_names_as_text(world):
    models = tuple(replace(one, size=WICKED + "\x1b") if one.name == BEST else one for one in world.models)
    own = embed("[red]\x1b[31m " + "long " * 30, 30)
    advice = recommend(own, evidence=replace(world, models=models))
    for width in (40, 80, 120, 400):
        text = advice.to_text(width=width)
        assert "\x1b" not in text and "\\x1b[31m" in text
        lines = [line for line in text.splitlines() if not line.startswith("    ")]
        assert max(map(len, lines)) <= width
        assert all(any(row.model[-5:] in line for line in lines) for row in advice.rows)
    assert "__import__" in text and "  pixels  " in text
    head, verdict, code, table, *_ = ask(world).to_text(width=200).split("\n\n")
    assert head.startswith("mine: 130 images, 2 classes") and verdict.startswith("Start from tf_efficientnet_lite0")
    assert "%) at 112 pixels" in verdict and "pixels" not in table
    assert code.strip() == advice["tf_efficientnet_lite0"].load and "tf_efficientnet_lite1 *" in table


def test_a_recommendation_by_the_bundle_needs_no_torch(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # weights in torch's cache would make it ask torchvision
    place = t2v.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0].save(tmp_path / "birds.safetensors")
    code = (
        "import sys, task2vec as t2v; assert 'numpy' not in sys.modules; "
        f"print(repr(t2v.recommend(t2v.load_embedding(r'{place}')))); print('torch' in sys.modules)"
    )
    result = run_command(python=code)
    assert result.stdout.startswith("Recommendation(") and result.stdout.splitlines()[-1] == "False", result.stderr


# --- with a library --------------------------------------------------------------------------------------------------


def test_models_of_the_library_join_those_of_the_bundle(world, library):
    fill_library(library)
    advice = ask(world, library=library)
    # The library's "small" is the bundle's lite0 at the same size: one column, measured on tasks of both.
    assert set(names_of(advice.rows)) == LOADABLE | {"mine"} and "7 models on 16 tasks" in advice.known
    assert advice["mine"].load.startswith('t2v.load_expert("') and advice["mine"].is_available
    assert advice["mine"].nearest.startswith("own") and advice.rows[0].model == "mine"
    assert names_of(ask(world, library=library, candidates=["small"]).rows) == ["tf_efficientnet_lite0"]
    library.add(Expert("taught", "file", str(library.folder / "mine.expert.safetensors"), task=fingerprint(50)))
    for number in range(4):
        library.add(MeasuredError(fingerprint(50 + number), "taught", 0.2 * (number > 0), HALF))
    alone = ask("library", library=library)
    assert alone["taught"].nearest == "own 2" and alone["taught"].error > 0.15  # not by its own source task
    own = recommend(embed("own 0", 50), evidence=world, library=library)  # known by what was measured on it
    assert own["mine"].measured == pytest.approx(0.155) and own["mine"].splits == 2
    assert own[LITE0].measured == pytest.approx(0.305) and own.choice == "mine" and "on 15 tasks" in own.known
    (library.folder / "mine.expert.safetensors").unlink()
    gone = ask(world, library=library)
    assert set(names_of(gone.rows)) == LOADABLE and has_note(gone, "their weights file is missing: mine, taught")


def test_the_library_alone_and_one_that_knows_a_single_task(library):
    refuse(DataError, r"no error of any model is in the library .*--evidence bundle", ask, "library", library=library)
    fill_library(library, tasks=1)
    one = ask("library", library=library)
    assert "2 models on 1 task " in one.known and "best on average over 1 known task:" in one.verdict
    assert names_of(one.rows) == ["mine", "small"] and one.average_best == "mine"
    with pytest.raises(DataError, match="errors are known only for 'own 0'"):
        recommend(embed("own 0", 50), evidence="library", library=library)


def test_tasks_of_the_library_in_another_space_and_older_protocols_are_noted(world, library):
    fill_library(library, weights="cd")
    advice = ask(world, library=library)
    assert set(names_of(advice.rows)) == LOADABLE
    assert has_note(advice, "Errors of 4 tasks of your library are not used: they have no embedding by net")
    refuse(DataError, "Errors of 4 tasks of your library", ask, "library", library=library)
    library.add(embed("other", 70))
    library.add(MeasuredError(fingerprint(70), "mine", 0.1, "linear-1, train half, logistic, usual", 0))
    for number in range(4):
        library.add(embed(f"own {number}", 50 + number))
    assert "mine" in names_of(ask(world, library=library).rows)


def add_at_size(library, name, size, errors):
    """Errors of a network at an image size on the first tasks of the library."""
    library.add(Expert(name, "hub", f"timm:{BEST}", input_size=size))
    for number, error in errors.items():
        library.add(MeasuredError(fingerprint(number), name, error, HALF))


def test_errors_at_larger_or_far_smaller_images_are_not_mixed_with_the_known_ones(world, library):
    fill_library(library)
    task = embed("own 0", 50)
    before = recommend(task, evidence=world, library=library)
    for name, size, error in (("large", 224, 0.01), ("tiny", 32, 0.9)):
        add_at_size(library, name, size, {50: error, 51: 0.5, 52: 0.5, 53: 0.5})
    after = recommend(task, evidence=world, library=library)
    assert after.rows == before.rows and has_note(after, "Errors of large, tiny in your library are not used")
    alone = recommend(task, evidence="library", library=library)  # whoever measured at one size only has no other
    assert alone["large"].measured == pytest.approx(0.01)


def test_errors_of_other_tasks_at_smaller_images_count_as_if_at_the_known_size(world, tmp_path):
    def fill(name, size, shift):
        moved = {51 + n: float(unscale(scale_errors(np.array(error)) - shift)) for n, error in enumerate((0.3, 0.4))}
        with Library.open(tmp_path / name) as library:
            fill_library(library)
            add_at_size(library, "first", 112, {50: 0.2} | (moved if size == 112 else {}))
            if size != 112:
                add_at_size(library, "second", size, {50: 0.9} | moved)  # one of both sizes: the known one counts
            return recommend(embed("mine", 30), evidence=world, library=library)

    moved, small = fill("moved", 112, combined.SIZE_SHIFT), fill("small", 56, 0.0)
    assert names_of(moved.rows) == names_of(small.rows)
    for one, other in zip(moved.rows, small.rows, strict=True):
        assert (one.error, one.low, one.high) == pytest.approx((other.error, other.low, other.high), abs=1e-9)


def test_errors_of_the_task_at_smaller_images_move_predictions_and_do_not_count_as_measured(world, library):
    fill_library(library)
    task = embed("mine", 30)
    before = recommend(task, evidence=world, library=library)
    library.add(task)
    add_at_size(library, "best at 80", 80, {30: 0.9})
    after = recommend(task, evidence=world, library=library)
    assert after[BEST].error > before[BEST].error + 0.02 and after[BEST].measured is None
    assert has_note(after, f"at smaller image sizes are used, too ({BEST}), reduced")
    models = [replace(one, location=f"timm:{BEST}", size=80) if one.name == LITE0 else one for one in world.models]
    two = recommend(task, evidence=replace(world, models=tuple(models)), library=library)  # known at two sizes
    assert two[LITE0].measured == pytest.approx(0.9) and two[BEST].measured is None
    add_at_size(library, "right", 112, {30: 0.3})
    measured = recommend(task, evidence=world, library=library)
    assert measured[BEST].measured == pytest.approx(0.3)
    assert not any(has_note(found, "smaller images") for found in (two, measured))


# --- given the task's own head and measured errors -------------------------------------------------------------------


def test_the_head_of_the_embedding_says_how_hard_the_task_is(world):
    heads = world.errors[:, 0, 1].mean(1)
    embeddings = [
        replace(one, provenance=one.provenance | {"head": {"cv_error": float(error)}})
        for one, error in zip(world.embeddings["net robust"], heads, strict=True)
    ]
    evidence = replace(world, embeddings={"net robust": embeddings})
    given = ({"cv_error": 0.15}, {}, {"cv_error": 0.6})
    easy, silent, hard = (recommend(mine_with(head=head), evidence=evidence).rows[0] for head in given)
    assert easy.error < silent.error < hard.error
    assert max(easy.high - easy.low, hard.high - hard.low) < silent.high - silent.low
    fitted = combined.fit_with_heads(evidence.select("half"))
    np.testing.assert_allclose(unscale(fitted.cells.values[:, -1] + fitted.centre), heads)
    widths = []
    for images in (20, None, 200, 10**9):  # one of many images is trusted more, and intervals are for new images
        counts = with_counts(images=images).provenance["counts"]
        row = recommend(mine_with(counts=counts, head=given[0]), evidence=world).rows[0]
        widths.append(row.high - row.low)
    assert widths[0] > max(widths[1:]) and widths[2] > widths[3] > 0


def ask_measured(world, library, errors, **options):
    """The recommendation once the library has errors of networks on the task itself, on several splits."""
    library.add(embed("mine", 30))
    for name, values in errors.items():
        location = next(model.location for model in MODELS if model.name == name)
        library.add(Expert(name, "hub", location, input_size=112))
        for seed, error in enumerate(values):
            ends = wilson_interval(1000 * error, 1000)
            library.add(MeasuredError(fingerprint(30), name, error, HALF, seed, ends.low, ends.high))
    return ask(world, library=library, **options)


# --- measuring on the task's own images ------------------------------------------------------------------------------

PAIR = {"candidates": [LITE0, BEST], "device": "cpu", "seeds": 1}
SEEDS = {"timm:tf_efficientnet_lite0": 1, "timm:tf_efficientnet_lite1": 2, "torchvision:mobilenet_v2": 3}


@pytest.fixture(scope="module")
def seen_world(world):
    """The same models on tasks of real pictures, embedded by a small probe."""
    made = [make_task((8, 7), seed=40 + number, name=f"task {number}") for number in range(4)]
    settings = t2v.EmbedSettings(max_samples=6, l2=0.01)
    embeddings = [t2v.embed(task, make_model(), settings=settings, device="cpu") for task in made]
    known = world.only(range(4), range(len(world.models)))
    tasks = tuple(replace(one, fingerprint=task.fingerprint) for one, task in zip(known.tasks, made, strict=True))
    return replace(known, tasks=tasks, embeddings={"tiny robust": embeddings})


@pytest.fixture
def failures():
    """What is raised in place of loading a network, by its name."""
    return {}


@pytest.fixture
def networks(monkeypatch, failures):
    """Small networks in place of those that are loaded by name; lists what was loaded."""
    loaded = []

    def load(name, *, size=None, download=False, **_):
        if name in failures:
            raise failures[name]
        loaded.append((name, size, download))
        return make_model(name, seed=SEEDS.get(name, 0))

    monkeypatch.setattr("task2vec.experts.checkpoint.load_probe", load)
    monkeypatch.setattr("task2vec.probe.load_probe", lambda *_, **__: make_model(), raising=False)
    monkeypatch.setattr("task2vec.experts.metatask.has_weights", lambda location: "lite" in location)
    return loaded


@pytest.fixture(scope="module")
def task():
    return make_task((14, 14), seed=9, name="mine")


def test_all_that_are_here_are_measured_and_kept_in_the_library(seen_world, task, networks, library):
    library.add(Expert(BEST, "hub", f"timm:{BEST}", input_size=224))
    options = {"evidence": seen_world, "library": library, "device": "cpu"}
    first = recommend(task, measure_top=9, seeds=2, **options)
    rows = sorted((row for row in first.rows if row.measured is not None), key=lambda row: row.measured)
    assert set(names_of(rows)) == {"tf_efficientnet_lite0", BEST} and first.choice == rows[0].model
    assert has_note(first, "Not measured, because the weights are not on this machine: ")
    assert sum(row.p_best for row in first.rows) == pytest.approx(1)
    names = sorted(expert.name for expert in library.experts())
    assert names == ["tf_efficientnet_lite0", BEST, f"{BEST} (112 px)"]
    assert len(library.errors()) == 4 and {error.protocol for error in library.errors()} == {HALF}
    networks.clear()
    again, seen = recommend(task, measure_top=2, seeds=2, **options), recommend(task, **options)
    assert not networks and again.rows == first.rows == seen.rows
    assert len(library.tasks()) == 1 and library.tasks()[0].embeddings
    more = recommend(task, measure_top=2, seeds=3, **options)  # one split more than is known
    assert [row.splits for row in more.rows if row.measured is not None] == [3, 3]
    fetched = recommend(task, evidence=seen_world, measure_top=9, seeds=1, device="cpu", download=True)
    assert sum(row.measured is not None for row in fetched.rows) == 4 and networks[-1][2]
    assert not has_note(fetched, "models: the weights") and not fetched.failures  # there are no more than four


def test_an_interrupt_loses_nothing_that_was_measured_and_ends_a_budget(seen_world, task, spend, library, failures):
    failures["timm:tf_efficientnet_lite0"] = KeyboardInterrupt()
    options = {"evidence": seen_world, "library": library, "device": "cpu"}
    found = recommend(task, measure_top=2, seeds=1, **options)
    assert found.is_interrupted and len(library.errors()) == 1
    assert found[BEST].measured == library.errors()[0].error
    assert recommend(task, **options).rows == found.rows
    failures[f"timm:{BEST}"] = KeyboardInterrupt()
    assert spend(60)[0].is_interrupted


def test_what_cannot_be_measured_is_noted(seen_world, task, networks, failures, monkeypatch):
    failures[f"timm:{BEST}"] = UsageError("its weights are damaged")
    old = tuple(key.replace("linear-2", "linear-1") for key in seen_world.protocols)
    advice = recommend(task, evidence=replace(seen_world, protocols=old), measure_top=2, seeds=1, device="cpu")
    assert advice["tf_efficientnet_lite0"].measured is not None and advice[BEST].measured is None
    assert has_note(advice, "'tf_efficientnet_lite1' could not be measured: its weights are damaged")
    assert [(one.model, one.exit_code) for one in advice.failures] == [(BEST, UsageError.exit_code)]
    assert has_note(advice, "similar, but not the same")
    monkeypatch.setattr("task2vec.experts.metatask.has_weights", lambda location: False)
    with pytest.raises(UsageError, match=r"none of the 4 candidates \(.*\) has its weights .*--download"):
        recommend(task, evidence=seen_world, measure_top=1, device="cpu")


@pytest.mark.parametrize(("sizes", "shots"), [((6, 7), 5), ((14, 14), "half")])
def test_the_best_that_is_here_is_measured_by_as_many_shots_as_suit(seen_world, networks, library, sizes, shots):
    task = make_task(sizes, seed=10)
    advice = recommend(task, evidence=seen_world, library=library, measure_top=1, seeds=2, device="cpu")
    assert {error.protocol for error in library.errors()} == {advice.protocol}
    ((name, *how),) = networks
    own = linear_error(make_model("x", seed=SEEDS[name]), task, ErrorProtocol(shots), seeds=(0, 1), device="cpu")
    (row,) = (row for row in advice.rows if row.measured is not None)
    assert name == f"timm:{row.model}" and how == [112, False] and advice.shots == str(shots) and row.splits == 2
    assert row.measured == pytest.approx(sum(error.error for error in own) / 2)
    assert row.measured_low <= row.measured <= row.measured_high and not advice.is_interrupted
    assert not has_note(advice, "Not measured")


def test_a_folder_is_read_and_embedded_by_the_weights_of_the_evidence(seen_world, networks, tmp_path, monkeypatch):
    folder = paint(tmp_path / "photos", {"dark": 60, "bright": 190})
    assert recommend(folder, evidence=seen_world, device="cpu").task == "photos"
    monkeypatch.setattr("task2vec.probe.load_probe", lambda *_, **__: make_model(seed=5), raising=False)
    with pytest.raises(ValueError, match="the weights of 'tiny' on this machine are different"):
        recommend(folder, evidence=seen_world, device="cpu")


@pytest.mark.parametrize(
    ("errors", "choice"),
    [
        ({BEST: [0.17] * 3}, BEST),  # tf_efficientnet_lite0 has a lower predicted error, and was not measured
        ({BEST: [0.40] * 3}, LITE0),
        # nor was the average-best model
        ({"generic resnet34": [0.18] * 3, "mobilenet_v2": [0.35] * 3}, "generic resnet34"),
    ],
)
def test_after_measuring_a_measured_model_is_recommended_unless_another_is_surely_so(world, library, errors, choice):
    advice = ask_measured(world, library, errors)
    assert advice.choice == choice == advice.rows[0].model
    other = advice["tf_efficientnet_lite0"]
    assert other.measured is None and other.error < min(advice[name].error for name in errors)
    rank = names_of(advice.rows).index(other.model) + 1
    assert f"Measure {other.model} next (--measure-top {rank}): it is the best with probability" in advice.verdict
    assert ("It was not measured, but is better than the best measured one" in advice.verdict) == (choice not in errors)


@pytest.mark.parametrize(("errors", "is_confident"), [((0.1, 0.1), True), ((0.1, 0.4), False)])
def test_measured_errors_beat_the_average_as_far_as_they_are_no_noise(world, library, errors, is_confident):
    both = {"mobilenet_v2": errors, BEST: (0.3, 0.3)}
    advice = ask_measured(world, library, both, candidates=list(both))
    # Splits that differ so much are hardly trusted: the average-best model stays though the mean is lower.
    assert advice.choice == ("mobilenet_v2" if is_confident else BEST) and advice.is_confident == is_confident
    row = advice["mobilenet_v2"]
    assert row.measured == pytest.approx(sum(errors) / 2) and row.measured < row.error
    if is_confident:
        assert f"The average-best model is {BEST}: measured test error of 30.0%" in advice.verdict


def test_scores_of_the_measured_features_count_if_all_candidates_have_one(seen_world, task, networks, monkeypatch):
    scored, given = replace(seen_world, scores={"logme": -seen_world.errors.mean(3)}), []

    def ask_with(*values, evidence=scored):
        """The recommendation with scores of the two networks, in the order in which they are measured."""
        left = list(values)

        def score(features, targets, **how):
            given.append((features.shape, targets.tolist(), how))
            return {"logme": left.pop(0)}

        monkeypatch.setattr("task2vec.select.scores.score_features", score)
        return recommend(task, evidence=evidence, measure_top=2, **PAIR)

    without = ask_with(1.0, -1.0, evidence=seen_world)  # its errors come with no scores
    first, second = [name.partition(":")[2] for name, *_ in networks[:2]]
    assert ask_with(np.nan, 9.0).rows == without.rows
    for values, better, worse in (((2.0, -2.0), first, second), ((-2.0, 2.0), second, first)):
        advice = ask_with(*values)
        assert advice[better].p_best > without[better].p_best and advice[worse].error > without[worse].error
    kind = {"classes": 2, "is_multilabel": False, "which": ["logme"]}
    assert given[-2:] == [((28, 8), task.canonical().targets.tolist(), kind)] * 2


def test_attributes_have_scores_and_one_that_is_undefined_loses_no_measurement(seen_world, networks, monkeypatch):
    options = PAIR | {"measure_top": 2, "evidence": replace(seen_world, scores={"logme": -seen_world.errors.mean(3)})}
    scored = recommend(make_attributes(24), **options)

    def fail(*_, **__):
        raise UsageError("features of one value")

    monkeypatch.setattr("task2vec.select.scores.score_features", fail)
    advice = recommend(make_attributes(24), **options)
    assert all(row.measured is not None for row in advice.rows) and not advice.failures
    assert has_note(advice, "several labels per image")
    assert {row.model: row.error for row in scored.rows} != {row.model: row.error for row in advice.rows}


# --- a budget --------------------------------------------------------------------------------------------------------


@pytest.fixture
def spend(seen_world, task, networks, monkeypatch):
    """Recommends within a budget by a clock that only timing, measuring (by network) and embedding move."""
    now, load, make = [0.0], checkpoint.load_probe, room._embed_like

    def wait(seconds, result):
        now[0] += seconds
        return result

    def recommend_within(budget, *, passes=None, takes=None, embedding=5.0, what=task, **options):
        begin, per_image = now[0], embedding / (budgets._EMBEDDING + budgets._PER_IMAGE * len(what))
        known = {"timm:tiny": per_image} | (passes or {})
        monkeypatch.setattr(candidates, "time_network", lambda name, *_, **__: wait(0.5, 1000 * known.get(name, 0.1)))
        slow = takes or {}
        monkeypatch.setattr(checkpoint, "load_probe", lambda name, **how: wait(slow.get(name, 5), load(name, **how)))
        monkeypatch.setattr(room, "_embed_like", lambda *args: wait(embedding, make(*args)))
        networks.clear()
        advice = recommend(what, budget=budget, **({"evidence": seen_world} | PAIR | options))
        return advice, [name.partition(":")[2] for name, _, _ in networks], now[0] - begin

    monkeypatch.setattr(budgets, "clock", lambda: now[0])
    monkeypatch.setattr(budgets, "_RATE", 1.0)
    monkeypatch.setattr(candidates, "_build", lambda name, size: (name, size))
    return recommend_within


def test_a_budget_that_is_enough_measures_all_candidates_and_needs_no_embedding(spend, task, library):
    advice, loaded, seconds = spend(60, library=library)
    assert set(loaded) == {LITE0, BEST} and seconds == 11
    assert all(row.measured is not None for row in advice.rows) and advice.measured_images == len(task) == 28
    assert advice.budget == 60 and advice.spent == {"embedding": 0, "measuring": 11} and not advice.is_embedded
    assert advice.neighbours == () and advice.probe == "" and {row.nearest for row in advice.rows} == {None}
    assert has_note(advice, "The task was not embedded: nothing had to be predicted.")
    assert "time: embedding 0.0 s, measuring 11.0 s (2 models on 28 of 28 images) of 60 s" in advice.to_text(width=120)
    assert not library.tasks()[0].embeddings and len(library.errors()) == 2
    again, loaded, _ = spend(60, library=library)  # what the library has is not measured again
    assert not loaded and again.rows == advice.rows


def test_models_without_weights_here_are_predicted_from_the_embedding_if_there_is_time(spend, library):
    every = {"candidates": None, "library": library}
    short, _, _ = spend(14, **every)
    assert not short.is_embedded and has_note(short, "are predicted by their average over tasks: that takes about 5 s.")
    assert short.rows[-1].measured is None and short.rows[-1].error is not None
    advice, _, seconds = spend(60, **every)
    assert advice.is_embedded and advice.neighbours and advice.spent["embedding"] == 5.0 and seconds < 60
    is_measured = [row.measured is not None for row in advice.rows]
    assert is_measured == sorted(is_measured, reverse=True) and set(is_measured) == {True, False}
    assert library.tasks()[0].embeddings
    assert spend(60, **every)[0].spent["embedding"] == 0  # it is in the library


def test_the_order_is_that_of_the_probability_of_being_the_best_per_second(spend, seen_world, task, monkeypatch):
    monkeypatch.setattr("task2vec.experts.metatask.has_weights", lambda location: True)
    every, never = {"candidates": [LITE0, BEST, "mobilenet_v2"]}, {"torchvision:mobilenet_v2": 9.0}
    chances = {row.model: row.p_best for row in recommend(task, evidence=seen_world, device="cpu", **every).rows}
    first, second = sorted((LITE0, BEST), key=lambda name: -chances[name])
    assert spend(200, passes=never, **every)[1] == [first, second]
    slow = (1.5 * chances[first] / chances[second] * (2 + 28 * 0.1) - 2) / 28
    assert spend(200, passes=never | {f"timm:{first}": slow}, **every)[1][:2] == [second, first]


BOTH = (f"timm:{LITE0}", f"timm:{BEST}")


@pytest.mark.parametrize(
    ("budget", "how", "count", "is_embedded", "words"),
    [
        # The slow one does not fit; the fast one is measured after the embedding.
        (25, {"passes": {BOTH[0]: 1.0}}, 1, True, f"not measured: the time left is not enough for {LITE0}"),
        # The first one takes longer than expected, so the second one waits.
        (30, {"takes": dict.fromkeys(BOTH, 20)}, 1, True, "1 candidate on this machine not measured: the time left"),
        (3, {}, 0, False, "2 candidates on this machine not measured: the time left is not enough"),
        # Of 58 s each: the first one may take a little longer than is left.
        (52, {"passes": dict.fromkeys(BOTH, 2.0), "takes": dict.fromkeys(BOTH, 30)}, 1, True, "not enough"),
        (48, {"passes": dict.fromkeys(BOTH, 2.0), "takes": dict.fromkeys(BOTH, 30)}, 0, True, "not enough"),
        # Another measurement gains little.
        (50, {"passes": {BOTH[1]: 2.0}, "least": 1.0}, 0, True, "expected to lower the error by less than 0.1 points"),
        (60, {"least": 1.0}, 2, False, "nothing had to be predicted"),  # there is time for all
    ],
)
def test_what_is_measured_in_the_time_that_there_is(spend, monkeypatch, budget, how, count, is_embedded, words):
    monkeypatch.setattr(budgets, "LEAST", how.get("least", budgets.LEAST))
    options = {name: how[name] for name in how if name != "least"}
    advice, loaded, seconds = spend(budget, **options)
    assert len(loaded) == count and advice.is_embedded == is_embedded and has_note(advice, words)
    assert {row.model for row in advice.rows if row.measured is not None} == set(loaded) and seconds <= 1.15 * budget
    assert count or (advice.choice == BEST and advice.measured_images is None)
    if "for tf" in words:  # the time that it asks for is enough
        more = next(note for note in advice.notes if words in note).rsplit(" ", 1)[1].rstrip("s")
        assert len(spend(int(more), **options)[1]) == 2


def test_a_measurement_that_takes_much_longer_is_stopped(spend, library, monkeypatch):
    slow = {f"timm:{LITE0}": 69.0, f"timm:{BEST}": 69.0}
    late, loaded, _ = spend(60, takes=slow, library=library, candidates=None)  # 69.5 to 70.5 of 60 s
    assert len(loaded) == 1 and late.measured_images is None and not late.is_interrupted and not late.failures
    assert has_note(late, f"Measuring {loaded[0]} was stopped, because it took longer") and not late.is_embedded
    assert has_note(late, "by their average over tasks: no time was left.") and not library.errors()
    assert late.spent["embedding"] == 0 and late.choice == BEST
    monkeypatch.setattr(budgets, "_LATE", 0.25)
    found, loaded, _ = spend(60, takes=slow, candidates=None)
    assert len(loaded) == 1 and found[loaded[0]].measured is not None and not has_note(found, "was stopped")


def test_many_images_are_sampled_and_what_was_measured_is_less_certain(spend, library):
    many = make_task((110, 110), seed=11, name="many")
    options = {"what": many, "library": library, "shots": "half", "passes": dict.fromkeys(BOTH, 0.2)}
    advice, loaded, seconds = spend(60, **options)
    assert len(loaded) == 2 and seconds <= 60 and advice.measured_images == 110 and advice.images == 220
    sample = many.sample(110)
    assert not library.tasks() and not library.errors()  # a sample is no task of the user's
    (own,) = linear_error(make_model("x", seed=2), sample, ErrorProtocol("half"), device="cpu")
    assert advice[BEST].measured == own.error and has_note(advice, "a sample of 110 of 220 images, so they are higher")
    whole, _, _ = spend(600, **options)
    assert whole.measured_images == 220 and not has_note(whole, "a sample of")
    for name in (LITE0, BEST):
        assert advice[name].high - advice[name].low > whole[name].high - whole[name].low


def test_without_the_weights_of_the_probe_what_was_measured_is_reported(spend, monkeypatch):
    monkeypatch.setattr("task2vec.probe.load_probe", lambda *_, **__: make_model(seed=5), raising=False)
    advice, loaded, _ = spend(60, candidates=None)
    assert len(loaded) == 2 and has_note(advice, "average over tasks: errors are known for tasks embedded by")


def test_every_architecture_is_timed_once_and_corrected_by_what_it_takes(spend, monkeypatch):
    timed, plan = [], budgets.Budget(60)
    monkeypatch.setattr(candidates, "time_network", lambda *key, **_: timed.append(key) or 1000.0 * float(key[0][-1]))
    nets = [ModelInfo(f"net {n}", size=96, location=f"timm:net_{n}") for n in (1, 2, 3)]
    plan.time([*nets, replace(nets[1], name="again")], None)
    assert timed == [(f"timm:net_{n}", 96) for n in (1, 2, 3)]  # as they are measured
    plan.images = 10
    assert plan.expect("net 2") == plan.expect("again") == budgets._LOAD + 20
    assert plan.expect("net 1", "net 8") == 2 * budgets._LOAD + 10 + 30  # unknown ones like the slowest
    plan.learn("net 1", budgets._LOAD + 5)  # half as long as expected
    plan.learn("net 3", 0.1)  # it was in the library
    assert plan.expect("net 2") == budgets._LOAD + 10
