"""From a task to an embedding: against the definition, what must not change it, memory, degenerate images, settings."""

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from task2vec.distance import symmetric
from task2vec.embedding import EmbedSettings, VariationalSettings, embed, embed_many, trivial
from task2vec.embedding.batching import Passes, Pixels
from task2vec.embedding.single import prepare_job
from task2vec.errors import DataError, ResourceError, UsageError
from task2vec.fisher import PerSampleFisher, closed_form
from task2vec.fisher.estimate import MAX_PRIOR_RATIO
from task2vec.probe import load_probe
from task2vec.tasks import sample_tasks
from tests.cases import ask, make_attributes, make_case, make_task, make_tiny, pictures
from tests.embedding.conftest import Counts, write_folder
from tests.embedding.families import TRAINING, numbers, out_of_memory, plain_features, run_many
from tests.failures import refuse
from tests.oracles import heads
from tests.oracles.fisher import naive_rows, untied_rows

GOLDEN = Path(__file__).parents[1] / "golden"
SAMPLED = EmbedSettings(max_samples=30, split_half=True)
DIRECT = EmbedSettings(max_samples=25, split_half=True, method="direct", balance=False, l2=0.1)
VARIATIONAL = EmbedSettings(method="variational", split_half=True, variational=TRAINING)
ROWS = {"direct": naive_rows, "robust": untied_rows}


def definition(task, probe, *, l2, method, balance=True):
    """The Fisher of a task step by step: the network as it is, scipy's head, every label of every image, in float64."""
    images, features = plain_features(task, probe)
    onehot = task.targets if task.is_multilabel else np.eye(len(task.classes))[task.targets]
    omega = heads.weights_of(onehot, is_multilabel=task.is_multilabel, balance=balance)
    penalty = heads.penalty_of(l2, onehot, is_multilabel=task.is_multilabel) * heads.spread(features.numpy(), omega)
    weight, bias = heads.fit(features.numpy(), onehot, omega, penalty, is_multilabel=task.is_multilabel)
    rows = ROWS[method](probe, images, weight, bias, is_multilabel=task.is_multilabel).numpy()
    return omega @ rows, rows, omega


CASES = [("robust", True, make_task), ("direct", False, make_task), ("robust", True, make_attributes)]


@pytest.mark.parametrize(("method", "balance", "make"), CASES)
def test_all_seeds_equal_the_definition_from_end_to_end(method, balance, make):
    task, odd = make((3, 2, 1)) if make is make_task else make(5), make_case("odd")
    expected, rows, omega = definition(task, odd, l2=0.1, balance=balance, method=method)
    settings = EmbedSettings(method, "all", smoothing=0, l2=0.1, balance=balance, dtype="float64")
    embedding = embed(task, odd, settings=settings, batch_size=4)
    alive = expected > expected.max() * 1e-12
    assert alive.mean() > 0.9
    # The two heads were fitted by different solvers, each to its own tolerance.
    assert np.allclose(embedding.fisher[alive], expected[alive], rtol=2e-4)
    variance = (omega[:, None] ** 2 * (rows - expected) ** 2).sum(0) * len(task) / (len(task) - 1)
    assert np.allclose(embedding.stderr[alive], np.sqrt(variance)[alive], rtol=2e-3)
    counts = embedding.provenance["counts"]
    assert (counts["images"], counts["images_used"], counts["backpropagated"]) == (len(task), len(task), 3 * len(task))
    assert embedding.provenance["is_multilabel"] == task.is_multilabel


def test_an_attribute_and_the_same_question_with_two_classes_have_one_embedding():
    images, labels = pictures((11, 11))
    rows = [torch.tensor([label]) for label in labels]
    tasks = [ask(images, own, "colours") for own in (labels, rows)]
    assert [task.is_multilabel for task in tasks] == [False, True]
    settings = EmbedSettings(seeds="all", dtype="float64")
    two, one = (embed(task, make_case("odd"), settings=settings) for task in tasks)
    assert np.allclose(one.vector, two.vector, rtol=1e-3) and one.norm() == pytest.approx(two.norm(), rel=1e-3)


def test_smoothing_moves_filters_to_the_mean_of_their_layer_and_keeps_the_norm(probe):
    plain, smoothed = (embed(make_task(), probe, settings=EmbedSettings(smoothing=s)) for s in (0.0, 0.25))
    for part in plain.layer_slices().values():
        for name in ("fisher", "stderr"):
            given, found = getattr(plain, name)[part], getattr(smoothed, name)[part]
            assert np.allclose(found, 0.75 * given + 0.25 * given.mean(), rtol=1e-12)
    assert math.isclose(plain.norm(), smoothed.norm(), rel_tol=1e-12)


def test_no_more_pairs_are_drawn_than_needed(probe):
    counts = {
        limit: embed(make_task(), probe, settings=EmbedSettings(max_samples=limit)).provenance["counts"]
        for limit in (5, 400, 4000)
    }
    assert counts[5]["backpropagated"] <= 6 < len(make_task()) <= counts[400]["backpropagated"]
    assert counts[400] == counts[4000] and counts[400]["backpropagated"] < 3 * len(make_task())


def test_a_requested_precision_ends_the_run_early(probe):
    task, settings = make_task((40, 40, 40)), EmbedSettings(max_samples=120, l2=0.01)
    whole = embed(task, probe, settings=settings)
    loose = 1.7 * whole.provenance["relative_error"]
    # The second cannot be reached: all are used.
    early, strict = (embed(task, probe, settings=replace(settings, rel_tol=wanted)) for wanted in (loose, 1e-6))
    assert early.provenance["relative_error"] <= loose
    assert early.provenance["counts"]["images_used"] < whole.provenance["counts"]["images_used"]
    assert symmetric(early, whole) < 0.1
    assert np.allclose(strict.fisher, whole.fisher, rtol=1e-4, atol=whole.fisher.max() * 1e-6)
    assert "--max-samples" in strict.provenance["warnings"][-1]


def limit_memory(most, monkeypatch):
    """A GPU that holds `most` images at a time; the sizes of batches that fitted, and of those that did not."""
    fitted, refused = [], []

    def guard(work):
        def guarded(self, images, *rest):
            (fitted if len(images) <= most else refused).append(len(images))
            if len(images) > most:
                raise out_of_memory()
            return work(self, images, *rest)

        return guarded

    monkeypatch.setattr(PerSampleFisher, "rows_by_seed", guard(PerSampleFisher.rows_by_seed))
    monkeypatch.setattr(Passes, "_features", guard(Passes._features))
    return fitted, refused


def test_batches_halve_when_memory_runs_out(probe, task, monkeypatch, costs):
    settings = EmbedSettings(dtype="float64")
    before = embed(task, probe, settings=settings, batch_size=16)
    fitted, refused = limit_memory(3, monkeypatch)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        after = embed(task, probe, settings=settings, batch_size=16)
    assert "continuing with batches of 8 images" in str(said[0].message)
    assert len(refused) <= 4 and max(fitted) <= 3  # a size that did not fit is not tried again
    assert np.allclose(after.fisher, before.fisher, rtol=1e-9, atol=0)
    assert np.allclose(after.stderr, before.stderr, rtol=1e-6, atol=before.stderr.max() * 1e-9)


def test_one_image_too_many_is_an_error_that_says_what_to_do(probe, task, monkeypatch):
    limit_memory(0, monkeypatch)
    refuse(ResourceError, r"single image.*8 x 8.*--size.*--device cpu", embed, task, probe, batch_size=1)


def test_few_images_are_kept_and_the_numbers_do_not_depend_on_it(probe, task, monkeypatch):
    settings, counts = EmbedSettings(max_samples=60, split_half=True), Counts(monkeypatch)
    before = embed(task, probe, settings=settings)
    assert len(counts.decoded) == len(set(counts.decoded)) == 22
    monkeypatch.setattr("task2vec.embedding.batching.CACHE_BYTES", {"cpu": 3 * 8 * 8 * 4, "cuda": 0})
    assert numbers(before) == numbers(embed(task, probe, settings=settings))
    assert len(counts.decoded) > 2 * 22 + 10  # all but a few images were decoded for each pass


@pytest.mark.parametrize(("settings", "shade"), [(SAMPLED, 0), (DIRECT, 90), (VARIATIONAL, 0)])
def test_identical_images_are_never_nan(probe, shade, settings):
    task = ask([Image.new("RGB", (30, 30), (shade,) * 3)] * 9, [i % 2 for i in range(9)], f"shade {shade}")
    embedding = embed(task, probe, settings=settings)
    for values in (embedding.fisher, embedding.stderr, embedding.vector, embedding.halves):
        assert np.isfinite(values).all() and (values >= 0).all()
    assert embedding.provenance["head"]["cv_error"] == pytest.approx(0.5, abs=0.35)
    if settings is not VARIATIONAL:  # a head that has nothing to go by is nearly constant: hardly any Fisher is left
        assert embedding.norm() < 1e-3
        assert symmetric(embedding, trivial(embedding)) < 0.5


@pytest.mark.parametrize("counts", [(1, 1), (12, 1)])
def test_one_image_per_class(probe, counts):
    embedding = embed(make_task(counts), probe)
    assert np.isfinite(embedding.vector).all() and (embedding.vector > 0).all()
    assert np.isfinite(embedding.stderr).all()


def test_provenance_is_complete_and_plain(probe, task, reference):
    story = reference.provenance
    assert story["task_fingerprint"] == task.fingerprint and story["probe_fingerprint"] == probe.fingerprint
    assert story["settings"]["max_samples"] == 30 and story["settings"]["seed"] == 0
    assert story["counts"]["per_class"] == [9, 7, 6] and story["counts"]["bad"] == 0
    assert set(story["versions"]) >= {"task2vec", "torch", "timm", "numpy"}
    assert 0 < story["effective_images"] <= story["counts"]["images_used"] <= 22
    assert json.loads(json.dumps(story)) == story  # plain values only


def test_the_prior_is_that_of_the_closed_form_or_of_the_weights_alone(probe, task):
    settings, beta, modules = EmbedSettings(beta=1e-2), 1e-2 / 22, dict(probe.network.named_modules())
    robust, direct = (embed(task, probe, settings=replace(settings, method=method)) for method in ("robust", "direct"))
    precision, variances = closed_form(torch.from_numpy(robust.fisher.copy()), probe.layers, beta=beta)
    assert np.allclose(robust.vector, beta * precision.numpy(), rtol=1e-12)
    for (name, part), variance in zip(robust.layer_slices().items(), variances.tolist(), strict=True):
        scale = modules[name].weight.double().square().mean().item()
        assert np.allclose(direct.prior[part], beta / scale, rtol=1e-6)
        assert np.allclose(robust.prior[part], beta / variance, rtol=1e-12)
        assert 1 - 1e-6 <= variance / scale <= MAX_PRIOR_RATIO + 1e-6  # every layer its own
    assert len(set(robust.prior.tolist())) == len(probe.layers)
    assert np.array_equal(direct.vector, direct.fisher + direct.prior) and direct.norm() == direct.fisher.sum()


@pytest.mark.parametrize("method", ["robust", pytest.param("direct", marks=pytest.mark.long)])
def test_golden_vector_of_the_default_probe(method):
    """N5. The golden files were written by `definition` above, in double precision: see what they say of themselves."""
    task = sample_tasks(images_per_task=24)[1]
    embedding = embed(task, load_probe(size=64), settings=EmbedSettings(method=method, seeds="all", l2=0.02))
    found = {name: float(embedding.fisher[part].sum()) for name, part in embedding.layer_slices().items()}
    golden = json.loads((GOLDEN / f"digit_parity_64_{method}.json").read_text())
    assert list(found) == list(golden["layers"])
    logs = [np.log(np.array(list(d.values()))) for d in (found, golden["layers"])]
    raw = [torch.tensor(list(d.values())) for d in (found, golden["layers"])]
    assert functional.cosine_similarity(*raw, dim=0) > 0.9999
    assert np.abs(logs[0] - logs[1]).max() < 0.05  # small layers too, which a cosine does not see
    assert embedding.norm() == pytest.approx(golden["norm"], rel=0.01)


@pytest.fixture(scope="module")
def reference(probe):
    return embed(make_task(), probe, settings=SAMPLED)


def test_order_of_the_images(probe, reference):
    rng, columns, (images, labels) = np.random.default_rng(0), [2, 0, 1], pictures()
    order, names = rng.permutation(22), ["zebra", "=cmd()", "ä"]  # of the classes, which do not matter either
    other = ask([images[i] for i in order], [columns[labels[i]] for i in order], "colours", classes=names)
    found = embed(other, probe, settings=SAMPLED)
    assert numbers(found) == numbers(reference) and found.provenance["classes"] == names
    assert found.provenance["task_fingerprint"] == reference.provenance["task_fingerprint"]
    task, order = make_attributes(), rng.permutation(20)
    other = ask([task.images.load(i) for i in order], task.targets[order][:, columns].astype(int), "other")
    assert len({numbers(embed(one, probe, settings=SAMPLED)) for one in (task, other)}) == 1


def test_a_folder_and_a_dataset_of_the_same_pixels_are_the_same_task(probe, tmp_path):
    folder = write_folder(tmp_path, *pictures(), suffix="jpg")
    rows = range(len(folder))[::-1]
    dataset = ask([folder.images.load(row) for row in rows], folder.targets[rows].tolist(), "dataset")
    assert dataset.fingerprint == folder.fingerprint and dataset.canonical().digests == folder.canonical().digests
    one, other = (embed(task, probe, settings=SAMPLED, device="cpu") for task in (folder, dataset))
    assert numbers(one) == numbers(other)


@pytest.mark.parametrize("settings", [SAMPLED, VARIATIONAL], ids=["robust", "variational"])
def test_workers_and_repetition_give_the_same_file(probe, tmp_path, settings):
    found = []
    for workers, seed in ((1, 0), (3, 0), (3, 1)):
        task = write_folder(tmp_path / "photos", *pictures())
        assert task.images.is_threadsafe  # or more workers would be one worker
        torch.manual_seed(workers)  # nobody's global randomness matters
        state = torch.get_rng_state()
        found.append(embed(task, probe, settings=replace(settings, seed=seed), num_workers=workers))
        assert torch.equal(torch.get_rng_state(), state)
    files = [embedding.save(tmp_path / str(number)) for number, embedding in enumerate(found[:2])]
    assert files[0].read_bytes() == files[1].read_bytes() and numbers(found[2]) != numbers(found[1])


@pytest.mark.parametrize(("method", "dtype"), [("robust", "float64"), ("direct", "float64"), ("robust", "float32")])
def test_the_batch_size_changes_the_numbers_by_rounding_alone(probe, method, dtype):
    settings, task = EmbedSettings(method, max_samples=60, l2=0.01, dtype=dtype), make_task((20, 15, 10))
    one, other = (embed(task, probe, settings=settings, batch_size=size) for size in (7, 32))
    if dtype == "float64":
        assert np.allclose(other.fisher, one.fisher, rtol=1e-9, atol=0)
        assert other.provenance["counts"] == one.provenance["counts"]
    assert symmetric(one, other) < (1e-3 if torch.cuda.is_available() else 1e-4)


def test_random_labels_are_the_hardest_to_memorise_and_reported_as_chance():
    rng, probe = np.random.default_rng(0), load_probe(size=32)
    textures = next(task for task in sample_tasks(images_per_task=40) if task.name == "textures")
    members = [rng.permutation(np.flatnonzero(textures.targets == c))[:4] for c in range(len(textures.classes))]
    few = textures.subset(np.concatenate(members))
    tasks = [few, *(replace(few, targets=rng.permutation(few.targets)) for _ in range(3))]
    results = run_many(tasks, probe, settings=EmbedSettings(max_samples=12))
    true, *random = (result.embedding for result in results)

    def is_warned(embedding):
        return any("no better than chance" in text for text in embedding.provenance["warnings"])

    assert min(one.norm() for one in random) > 1.5 * true.norm()
    assert not is_warned(true) and sum(map(is_warned, random)) >= 2  # by chance one may do better


def test_a_task_with_every_image_twice_is_nearly_the_same(probe):
    """Copies are in one fold, or the error would be that of images seen in training."""
    (images, labels), settings = pictures((9, 9, 9)), EmbedSettings(max_samples=10_000)
    once, twice = (ask(images * k, labels * k, str(k)) for k in (1, 2))
    expected, *found = (embed(task, probe, settings=settings) for task in (once, twice))
    for embedding in (*found, *(result.embedding for result in embed_many([twice], probe, settings=settings))):
        errors = [one.provenance["head"]["cv_error"] for one in (embedding, expected)]
        assert errors[0] == pytest.approx(errors[1], abs=0.05) and errors[1] > 0.1  # an easy task would show nothing
        assert 0.9 < embedding.norm() / expected.norm() < 1.1


BAD = [{"method": "laplace"}, {"seeds": "some"}, {"dtype": "int8"}, {"rel_tol": math.nan}, {"l2": -1.0}, {"l2": None}]
BAD += [{"beta": 0.0}, {"beta": math.nan}, {"beta": math.inf}, {"max_samples": 1}, {"seed": -1}, {"seed": 1 << 63}]
BAD_TRAINING = [{name: 0} for name in ("epochs", "head_epochs", "draws", "batch", "rate", "head_rate")]
BAD_TRAINING += [{"epochs": 1.5}, {"rate": math.nan}, {"head": "frozen"}]


def test_near_copies_are_warned_of_and_the_very_same_images_are_not(monkeypatch):
    photos, settings, larger = sample_tasks(images_per_task=20)[6], EmbedSettings(max_samples=2), make_tiny(size=32)
    images = [photos.images.load(number) for number in range(20)]
    mirrored = images[3].transpose(Image.Transpose.FLIP_LEFT_RIGHT).resize((90, 90))
    images += [images[0], mirrored, images[3]]
    labels = [number % 2 for number in range(20)] + [0, 1, 1]

    def warn(count, probe=larger):
        """The warning of near copies by `embed`, which is that beside another task without any."""
        plain, task = (ask(images[some], labels[some], "photos") for some in (slice(5, 20), slice(count)))
        own = embed(task, probe, settings=settings).provenance["warnings"]
        results = embed_many([plain, task], probe, settings=settings)
        found = {result.number: result.embedding.provenance["warnings"] for result in results}
        assert found[1] == own and not any("near-copies" in text for text in found[0])
        return [text for text in own if "near-copies" in text]

    assert warn(21) == []
    (found,) = warn(23)
    assert found.startswith("3 images look like near-copies of each other, such as ")
    assert "'item 21'" in found and ("'item 3'" in found) + ("'item 22'" in found) == 1 and "task2vec report" in found
    assert warn(23, make_tiny(size=15)) == []  # too small to tell
    monkeypatch.setattr("task2vec.embedding.batching._MAX_COMPARED", 20)
    assert warn(23) == []


@pytest.mark.parametrize("values", [*BAD, *BAD_TRAINING], ids=str)
def test_bad_settings(values):
    refuse(UsageError, next(iter(values)), EmbedSettings if values in BAD else VariationalSettings, **values)


@pytest.mark.parametrize("values", [{"num_workers": 0}, {"batch_size": 0}, {"device": "tpu9"}], ids=str)
def test_bad_arguments_are_refused_before_an_image_is_read(probe, task, values, monkeypatch):
    monkeypatch.setattr(Pixels, "load", lambda *_: pytest.fail("an image was read"))
    refuse(UsageError, next(iter(values)), embed, task, probe, **values)


def test_settings_are_recorded_only_where_they_count():
    robust, direct, trained = (EmbedSettings(name).as_dict() for name in ("robust", "direct", "variational"))
    sampling, training = {"max_samples", "seeds", "rel_tol", "smoothing"}, {"epochs", "batch", "head_rate", "rate"}
    assert sampling <= set(robust) == set(direct) and not training & set(robust) and direct["method"] == "direct"
    assert training <= set(trained) and not (sampling | {"variational"}) & set(trained) and trained["batch"] == 64
    assert (VariationalSettings().steps_per_epoch, VariationalSettings().rate) == (157, 1e-2)  # the paper's


# --- the halves of a task ---

TASKS = {"classes": make_task, "attributes": make_attributes, "rare": lambda: make_task((7, 5, 4, 1, 1))}


def split(task, probe, settings=SAMPLED):
    """The task in its canonical order, and which images go to each half."""
    job = prepare_job(task, probe, settings=settings, device="cpu")
    return job.task, [own.numpy() for own, _ in job.split()]


@pytest.mark.parametrize(
    ("kind", "settings"), [("classes", DIRECT), ("attributes", SAMPLED), ("attributes", VARIATIONAL), ("rare", SAMPLED)]
)
def test_halves_are_what_they_would_be_alone_and_leave_the_whole_as_it_is(probe, kind, settings):
    task, plain = TASKS[kind](), replace(settings, split_half=False)
    found, whole = (embed(task, probe, settings=each) for each in (settings, plain))
    canonical, owners = split(task, probe, settings)
    for half, images in zip(found.halves, owners, strict=True):
        alone = embed(canonical.subset(images), probe, settings=replace(plain, max_samples=settings.max_samples // 2))
        assert np.allclose(half, alone.fisher, rtol=1e-4, atol=alone.fisher.max() * 1e-6)
        assert half.sum() > 0
    assert found.halves.shape == (2, len(found)) and not np.allclose(*found.halves, rtol=0.01, atol=0)
    assert whole.halves is None
    for name in ("fisher", "stderr", "prior"):
        assert getattr(whole, name).tobytes() == getattr(found, name).tobytes()
    asked = {**whole.provenance["settings"], "split_half": True}
    assert {**whole.provenance, "settings": asked} == found.provenance


def test_every_class_is_split_as_evenly_as_can_be_and_attributes_by_turns(probe):
    for counts in ((9, 7, 6), (5, 1, 1, 1, 4)):
        task, owners = split(make_task(counts), probe)
        assert sorted(np.concatenate(owners)) == list(range(sum(counts)))
        assert abs(len(owners[0]) - len(owners[1])) <= 1
        parts = np.array([np.bincount(task.targets[own], minlength=len(counts)) for own in owners])
        assert (abs(parts[0] - parts[1]) == parts.sum(0) % 2).all()
    assert [own.tolist() for own in split(make_attributes(9), probe)[1]] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


@pytest.mark.parametrize("labels", [[0] * 12 + [1], [[0, 1], [1, 0], [1, 1]], [[1], [1], [1], [1], [0]]], ids=str)
def test_too_few_images_are_refused_before_any_is_decoded(probe, labels, monkeypatch):
    monkeypatch.setattr(Pixels, "load", lambda *_: pytest.fail("an image was decoded"))
    task = ask(pictures((len(labels),))[0], map(torch.tensor, labels), "few")
    with pytest.raises(DataError, match=r"'few' cannot be split.*single class.*Add images.*--split-half"):
        embed(task, probe, settings=SAMPLED)
