"""Many tasks at once: each as it is alone, work done once, failures by task, the same bytes by every backend."""

import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.sparse.csgraph import connected_components
from timm.layers.std_conv import StdConv2d

from task2vec.embedding import EmbedSettings, embed, embed_many, many
from task2vec.embedding.batching import Passes
from task2vec.embedding.many import _merge, group_tasks
from task2vec.embedding.single import prepare_job
from task2vec.errors import DataChangedError, DataError, NotFiniteError, ProbeError, ResourceError, UsageError
from task2vec.fisher import Ledger, PerSampleFisher
from task2vec.head import fit_heads
from task2vec.progress import silent
from task2vec.tasks import Task, from_dataset
from tests.cases import make_case
from tests.embedding.conftest import Counts, ask, make_task, make_tiny, pictures, write_folder
from tests.embedding.families import FINE, TRAINING, Spoiled, ask_binary, is_close, make_family, out_of_memory, run_many
from tests.failures import refuse

tiny = cache(make_tiny)


@cache
def embed_alone(family, settings):
    return [embed(task, tiny(), settings=settings) for task in make_family(family)]


def embed_all(tasks, probe=None, **options):
    """The embeddings in the order of their tasks; all went well."""
    results = run_many(tasks, probe or tiny(), **options)
    assert not any(result.error or result.is_found for result in results)
    return [result.embedding for result in results]


def assert_same(found, wanted, error=1e-9):
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert is_close(one, other, error=error), other.task


OTHERS = {
    "default penalty": {"l2": EmbedSettings.l2},
    "all pairs": {"seeds": "all"},
    "halves": {"split_half": True},
    "direct halves": {"split_half": True, "method": "direct", "seeds": "all", "balance": False},
    "tolerance": {"rel_tol": 0.5, "max_samples": 60},
    "variational": {"method": "variational", "variational": TRAINING, "dtype": "float32"},
    "single": {"dtype": "float32"},
}


@pytest.mark.parametrize("others", list(OTHERS))
def test_together_as_alone_whatever_the_settings(others):
    family = "attributes" if others in ("halves", "tolerance") else "overlapping"
    family = "binary" if others == "default penalty" else family  # these are fitted together
    settings = replace(FINE, **OTHERS[others])
    error = 1e-9 if settings.dtype == "float64" else 1e-5
    assert_same(embed_all(make_family(family), settings=settings), embed_alone(family, settings), error)


@pytest.mark.parametrize("turn", [1, -1])
def test_a_half_of_a_task_that_is_another_task_has_its_own_budget(turn):
    whole, settings = make_family("binary")[0], replace(FINE, split_half=True, seeds="plain", max_samples=12)
    ((own, _), _) = prepare_job(whole, tiny(), settings=settings, device="cpu").split()
    tasks = [whole, whole.canonical().subset(own.tolist())][::turn]
    wanted = [embed(task, tiny(), settings=settings) for task in tasks]
    for one, other in zip(embed_all(tasks, settings=settings), wanted, strict=True):
        assert_same([one], [other])
        np.testing.assert_allclose(one.halves, other.halves, rtol=1e-9)


def test_a_probe_with_a_layer_that_runs_twice_also_image_by_image():
    probe, tasks = make_case("shared"), make_family("classes")
    wanted = [embed(task, probe, settings=FINE) for task in tasks]
    assert_same(embed_all(tasks, probe), wanted)
    for key, network in probe._prepared.items():
        probe._prepared[key] = replace(network, is_batched=False)
    assert_same(embed_all(tasks, probe), wanted)


# Room for the features of some 12 images: families fall apart.
FEW = {"gigabytes": 2 * 12 * (4 * 8 + many._SIGNATURE) / 2**30}


@pytest.mark.parametrize("options", [{"batch_size": 5, "num_workers": 3}, FEW], ids=str)
def test_together_as_alone_whatever_the_arguments(options, monkeypatch):
    monkeypatch.setattr(many, "_TOGETHER", 2 if options is FEW else 256)
    monkeypatch.setattr(many, "_TERMS", 1 << 20 if options is FEW else 1)  # tasks draw together, or one by one
    assert_same(embed_all(make_family("mixed"), **options), embed_alone("mixed", FINE))


def test_seeds_that_do_not_fit_at_once_change_no_number(monkeypatch):
    monkeypatch.setattr("task2vec.embedding.batching._SEEDS", 20)
    wanted, counts = embed_alone("classes", FINE), Counts(monkeypatch)
    assert_same(embed_all(make_family("classes")), wanted)
    assert counts.forward > len(make_family("classes")[0])  # which is what one pass would take


def count_heads(monkeypatch, most=10**9):
    """How many heads were fitted together, of which so many fit into memory."""
    asked = []

    def counted(features, targets, **options):
        asked.append(len(targets))
        if len(targets) > most:
            raise out_of_memory()
        return fit_heads(features, targets, **options)

    monkeypatch.setattr(many, "fit_heads", counted)
    return asked


def test_heads_that_do_not_fit_at_once_are_fitted_in_halves(monkeypatch):
    asked = count_heads(monkeypatch, most=2)
    with pytest.warns(UserWarning, match="continuing with batches of 2 heads"):
        assert_same(embed_all(make_family("binary")), embed_alone("binary", FINE))
    assert max(asked) > 2


def test_the_same_task_twice_and_no_task_at_all():
    task = make_family("classes")[0]
    assert_same(embed_all([task, task]), embed_alone("classes", FINE)[:1] * 2)
    assert list(embed_many([], tiny())) == []


def test_tasks_on_the_same_images_share_all_but_the_way_back(monkeypatch):
    counts, tasks = Counts(monkeypatch), ask_binary(12)
    found = embed_all(tasks, batch_size=8, device="cpu")  # a GPU fills batches up
    assert sorted(name.rpartition(": ")[2] for name in counts.decoded) == sorted(f"item {i}" for i in range(12))
    assert counts.features == 12
    assert counts.forward <= 12
    pairs = sum(one.provenance["counts"]["backpropagated"] for one in found)
    assert pairs > 12 * 6
    assert pairs <= counts.backward <= pairs + 8 * 12


@pytest.mark.parametrize("others", ["tolerance", "variational"])
def test_methods_with_draws_of_their_own_share_images_and_features(monkeypatch, others):
    counts = Counts(monkeypatch)
    embed_all(ask_binary(4), settings=replace(FINE, **OTHERS[others]))
    assert len(counts.decoded) == counts.features == 12


def test_heads_on_the_same_images_are_fitted_together(monkeypatch):
    asked = count_heads(monkeypatch)
    embed_all([*ask_binary(5), *make_family("classes")], device="cpu")
    assert sorted(asked) == [1, 1, 1, 5]


@pytest.mark.parametrize("most", [2048, 30])
def test_heads_of_small_tasks_on_other_images_are_fitted_together_where_a_device_waits(monkeypatch, most):
    tasks, probe = [*ask_binary(3), *make_family("disjoint")], tiny()
    wanted = [embed(task, probe, settings=FINE, device="cpu") for task in tasks]
    monkeypatch.setattr(many, "_WAITS", ("cpu",))
    monkeypatch.setattr(many, "_BUSY", most)
    asked = count_heads(monkeypatch)
    work = many.GroupWork(probe, FINE, 1e9, {"device": "cpu", "num_workers": None, "batch_size": None})
    found = dict(work.embed(list(enumerate(tasks)), silent))  # as one group, which a GPU makes of small ones
    assert max(asked) > 3 if most == 2048 else max(asked) * 12 < 60  # tasks of a dozen images
    assert_same([found[number] for number in range(len(tasks))], wanted)


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_any_layout_of_a_batch_gives_the_same(batch_size, costs, monkeypatch):
    settings, plain = replace(FINE, seeds="all"), Passes.input
    wanted, counts = embed_alone("classes", settings), Counts(monkeypatch)
    # As a GPU does, batches are filled up with images that count nothing.
    filled = lambda x: torch.cat([x, x[-1:].expand(-len(x) % 4, -1, -1, -1)])  # noqa: E731
    monkeypatch.setattr(Passes, "input", lambda self, pixels: filled(plain(self, pixels)))
    assert_same(embed_all(make_family("classes"), settings=settings, batch_size=batch_size), wanted)
    images, pairs = len(make_family("classes")[0]), sum(one.provenance["counts"]["backpropagated"] for one in wanted)
    if (batch_size, costs) in ((32, "cpu"), (32, "pairs")) and not torch.cuda.is_available():  # which fills up more
        assert counts.forward < images + 4 if costs == "cpu" else counts.forward >= pairs


OUTAGES = [("binary", "pass", [1]), ("classes", "pass", [2, 5]), ("classes", "ledger", [1]), ("binary", "ledger", [3])]


@pytest.mark.parametrize(("family", "where", "fails"), OUTAGES)
def test_memory_that_runs_out_at_any_slot_changes_no_number(monkeypatch, family, where, fails, costs):
    """In a backward pass, or while rows are entered into the ledger."""
    wanted, rows, add, calls = embed_alone(family, FINE), PerSampleFisher.rows_by_seed, Ledger.add, []

    def fail(name, count):
        calls.append(name)
        if name == where and calls.count(name) in fails and count > 1:
            raise out_of_memory()

    def guarded_rows(engine, images, seeds, keys=None):
        for found in rows(engine, images, seeds, keys):
            fail("pass", len(images))
            yield found

    def guarded_add(ledger, found, owners, **rest):
        fail("ledger", len(found))
        add(ledger, found, owners, **rest)

    monkeypatch.setattr(PerSampleFisher, "rows_by_seed", guarded_rows)
    monkeypatch.setattr(Ledger, "add", guarded_add)
    with pytest.warns(UserWarning, match="GPU memory ran out: continuing with batches of"):
        assert_same(embed_all(make_family(family), batch_size=8), wanted)


def test_results_come_before_later_groups_are_touched(monkeypatch):
    tasks, counts = make_family("disjoint"), Counts(monkeypatch)
    results = embed_many(tasks, tiny(), settings=FINE, device="cpu")  # a GPU takes small groups together
    assert counts.decoded == []  # nothing before it is asked for
    assert next(results).number == 0 and len(counts.decoded) == len(tasks[0])
    assert next(results).number == 1 and len(counts.decoded) == len(tasks[0]) + len(tasks[1])
    results.close()
    assert len(counts.decoded) == len(tasks[0]) + len(tasks[1])
    assert list(results) == []


def test_arguments_are_refused_at_the_call(tmp_path):
    task, file = make_task(), tmp_path / "file"
    file.write_text("mine")
    refuse(DataError, "no-such-birds does not exist", embed_many, [task, "no-such-birds"], tiny())
    refuse(UsageError, "a int holds no labelled images", embed_many, [task, 3], tiny())
    noisy, changing = EmbedSettings(method="variational"), make_tiny(second=StdConv2d)
    refuse(ProbeError, "StdConv2d", embed_many, [task], changing, settings=noisy)
    refuse(ResourceError, "be written to.*Choose another folder", embed_many, [task], tiny(), folder=file)
    assert file.read_text() == "mine"
    for gigabytes in (0, float("nan")):
        refuse(UsageError, f"gigabytes={gigabytes}", embed_many, [task], tiny(), gigabytes=gigabytes)
    refuse(UsageError, "num_workers=0", embed_many, [task], tiny(), num_workers=0)


BLACK = Image.new("RGB", (10, 10))


def assert_others_are_well(results, tasks, failed, *, settings=FINE):
    assert {result.number for result in results if result.error is not None} == set(failed)
    for result, task in zip(results, tasks, strict=True):
        if result.number not in failed:
            assert is_close(result.embedding, embed(task, tiny(), settings=settings), error=1e-9)


@pytest.fixture
def folders(tmp_path):
    """Tasks on pictures 0-7, 4-11 and 8-15, each from a folder of its own, so that common ones lie in two places."""
    pool, _ = pictures((16,), seed=1)
    spans = {tmp_path / f"from {a}": pool[a : a + 8] for a in (0, 4, 8)}
    return [write_folder(root, own, [i % 2 for i in range(8)]) for root, own in spans.items()], tmp_path


def test_a_file_that_is_no_longer_what_it_was_fails_its_own_task(folders):
    tasks, root = folders
    BLACK.save(root / "from 0" / "class 1" / "7.png")  # the first place of a picture that the second task has as well
    results = run_many(tasks, tiny())
    assert isinstance(results[0].error, DataChangedError) and "7.png" in str(results[0].error)
    assert_others_are_well(results, tasks, {0})


@pytest.mark.parametrize("others", [{}, {"rel_tol": 0.01, "split_half": True}])
def test_a_file_that_goes_away_between_the_passes(folders, monkeypatch, others):
    tasks, root = folders
    settings = replace(FINE, seeds="all", **others)
    wanted = {number: embed(tasks[number], tiny(), settings=settings) for number in (0, 2)}
    monkeypatch.setattr("task2vec.embedding.batching.CACHE_BYTES", {"cpu": 0, "cuda": 0})
    features = Passes.features

    def then_delete(passes, report):
        found = features(passes, report)
        (root / "from 4" / "class 1" / "5.png").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Passes, "features", then_delete)
    results = run_many(tasks, tiny(), settings=settings)
    assert "5.png" in str(results[1].error)
    for number, embedding in wanted.items():
        assert is_close(results[number].embedding, embedding, error=1e-9)


def test_one_poisoned_task_among_fifty(tmp_path):
    """R3."""
    pool, _ = pictures((12,), seed=3)
    tasks = [ask(pool, np.random.default_rng(i).permutation(12) % 2, f"task-{i}") for i in range(50)]
    rows = [(BLACK if i == 4 else image, i % 2) for i, image in enumerate(pool)]
    tasks[23] = from_dataset(rows, name="poisoned")
    rows[4] = (Image.new("RGB", (10, 10), (1, 2, 3)), 0)  # another image than the one that was read
    results = run_many(tasks, tiny(), folder=tmp_path)
    failed = [result for result in results if result.error is not None]
    assert [(result.number, result.task) for result in failed] == [(23, "poisoned")]
    assert "item 4" in str(failed[0].error)
    assert len(list(tmp_path.iterdir())) == 49
    assert is_close(results[24].embedding, embed(tasks[24], tiny(), settings=FINE), error=1e-9)


@pytest.mark.parametrize("what", ["features", "rows"])
def test_what_is_not_finite_is_named_and_fails_the_tasks_that_have_the_image(monkeypatch, what):
    """Tasks on common pictures, of which the second and the last have a black one too."""
    features, rows, seen = Passes._features, PerSampleFisher.rows_by_seed, []
    black = int(ask([BLACK, BLACK], [0, 1], "black").digests[0][:16], 16)

    def spoilt_features(passes, pixels):
        seen.append(len(pixels))
        found = features(passes, pixels).clone()
        found[pixels.flatten(1).amax(1) == 0] = float("nan")
        return found

    def spoilt_rows(engine, images, seeds, keys):
        for found in rows(engine, images, seeds, keys):
            found[[key == black for key in keys], 8:] = float("nan")
            yield found

    pool, _ = pictures((10,), seed=4)
    own = [[*pool, BLACK] if number in (1, 3) else pool for number in range(4)]
    tasks = [ask(images, [i % 2 for i in range(len(images))], f"t{n}") for n, images in enumerate(own)]
    settings = replace(FINE, seeds="all")
    with monkeypatch.context() as patch:
        if what == "features":
            patch.setattr(Passes, "_features", spoilt_features)
        else:
            patch.setattr(PerSampleFisher, "rows_by_seed", spoilt_rows)
        results = run_many(tasks, tiny(), settings=settings)
    assert sum(seen) == (11 if what == "features" else 0)  # the others need no second look
    for number in (1, 3):
        assert isinstance(results[number].error, NotFiniteError)
        assert ("'item 10'" if what == "features" else "layer 'second'") in str(results[number].error)
    assert_others_are_well(results, tasks, {1, 3}, settings=settings)


def test_a_task_that_cannot_be_split_fails_alone():
    settings = replace(FINE, split_half=True)
    tasks = [make_task((1, 1), name="one each"), *ask_binary(2)]
    results = run_many(tasks, tiny(), settings=settings)
    assert "cannot be split into two halves" in str(results[0].error)
    assert_others_are_well(results, tasks, {0}, settings=settings)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_unexpected_errors_are_not_swallowed(error):
    tasks = ask_binary(2)
    ill = replace(tasks[1], images=Spoiled(tasks[1].images, error))
    threads = threading.active_count()
    refuse(type(error), None, list, embed_many([make_task(), ill], tiny(), settings=FINE))
    assert threading.active_count() == threads


def make_named(name, numbers) -> Task:
    """A task of images of one colour each, which its number decides."""
    return ask([Image.new("RGB", (2, 2), (int(n), 0, 0)) for n in numbers], [i % 2 for i in range(len(numbers))], name)


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_what_is_joined_by_common_images(seed):
    rng = np.random.default_rng(seed)
    tasks = [make_named(f"t{i}", rng.integers(40, size=rng.integers(2, 6))) for i in range(9)]
    does_share = [[not set(one.digests).isdisjoint(other.digests) for other in tasks] for one in tasks]
    labels = connected_components(np.array(does_share))[1]
    expected = sorted(np.flatnonzero(labels == label).tolist() for label in set(labels))
    assert group_tasks(tasks, most=10**9) == expected


def test_groups_are_filled_before_another_is_begun_and_a_gpu_takes_small_ones_together():
    tasks = [make_named(str(i), [i, i + 1]) for i in range(6)]
    assert group_tasks(tasks, most=3) == [[0, 1], [2, 3], [4, 5]]
    assert group_tasks(tasks, most=7) == [[0, 1, 2, 3, 4, 5]]
    assert group_tasks([], most=7) == []
    assert group_tasks([make_named(str(i), range(9)) for i in range(3)], most=5) == [[0, 1, 2]]  # all images are shared
    groups = [[(number, make_named("", range(size)))] for number, size in enumerate([10, 20, 30, 90, 5])]
    assert [[number for number, _ in group] for group in _merge(groups, 60)] == [[0, 1, 2], [3], [4]]
