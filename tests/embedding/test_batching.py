"""The shared backward passes against a loop over tasks and images, with rows that are a formula."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import task2vec as t2v
from task2vec.embedding import batching
from task2vec.embedding.batching import Backward, OomRetry, Part
from task2vec.fisher import Design, Ledger
from tests.embedding.families import out_of_memory
from tests.tiny_probe import make_tiny

FEATURES, FILTERS = 4, 6
MIX = torch.randn(FEATURES, FILTERS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
# What a forward pass costs, and how many images go for nothing: a CPU, a GPU, and a column for every pair that fits.
COSTS = {"cpu": (1.5, 0), "cuda": (0.3, 32), "pairs": (0.0, 10_000)}


@pytest.fixture(params=list(COSTS))
def costs(request, monkeypatch):
    for table, cost in zip((batching._FORWARD, batching._IDLE), COSTS[request.param], strict=True):
        monkeypatch.setitem(table, "cpu", cost)
    return request.param


def make_row(pixel, seed, key):
    """What the engine gives for one image and seed; not zero for the zero seed of an empty slot."""
    return (pixel + 0.1 * key) * (seed @ MIX + 1).square()


class Formula:
    """An engine that counts, and runs out of memory at some slots, or with more than so many images."""

    def __init__(self, *, fails=(), most=10**9):
        self.fails, self.most, self.slots, self.forward, self.back = list(fails), most, 0, [], 0

    def rows_by_seed(self, images, seeds, keys):
        assert len(images) == seeds.shape[1] == len(keys)
        if len(images) > self.most:
            raise out_of_memory()
        self.forward.append(len(images))
        self.back += seeds.shape[0] * seeds.shape[1]
        for seed in seeds:
            self.slots += 1
            if len(images) > 1 and self.slots in self.fails:
                raise out_of_memory()
            yield torch.stack([make_row(*each) for each in zip(images, seed, keys, strict=True)])


class Values:
    """Images that are one number each."""

    def __init__(self, count):
        self.values = torch.arange(1, count + 1, dtype=torch.float64)
        self.device = torch.device("cpu")

    def __len__(self):
        return len(self.values)

    def runs(self, runs):
        for run in runs:
            assert len(set(run)) == len(run)  # or an image would be decoded twice
            yield run, self.values[run]


def make_parts(seed, *, tasks, images, terms):
    """Tasks that drew up to `terms` pairs of some of the images; one drew a single pair."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size):
        return torch.rand(*size, generator=generator, dtype=torch.float64)

    parts = []
    for number in range(tasks):
        counts = torch.randint(terms + 1, (images,), generator=generator) if number else torch.eye(images)[-1].long()
        counts[number % images] += counts.sum() == 0
        owners = torch.repeat_interleave(torch.arange(images), counts)
        inclusion, weights = (0.2 + 0.8 * random(images))[owners], (0.5 + random(images))[owners]
        classes = 2 + number % 3
        vectors, weight = random(len(owners), classes) - 0.5, random(classes, FEATURES) - 0.5
        design = Design(images, len(owners.unique()), 1.5 * images)
        parts.append(Part(owners, vectors, weight, inclusion, weights, design))
    return parts


def loop(part, pixels, keys):
    """The estimate of one task: image by image, pair by pair."""
    ledger = Ledger([part.design], filters=FILTERS, device=pixels.device)
    for image in part.images.unique().tolist():
        own = torch.nonzero(part.images == image).flatten()
        rows = [make_row(pixels.values[image], part.vectors[i] @ part.weight, keys[image]) for i in own]
        given = {"inclusion": part.inclusion[own[:1]], "weights": part.weights[own[:1]]}
        ledger.add(torch.stack(rows).sum(0)[None], torch.tensor([0]), terms=torch.tensor([len(own)]), **given)
    return ledger.estimate(0)


def run(parts, count, *, batch_size=4, engine=None, padding=1):
    def fill_up(pixels):
        return torch.cat([pixels, pixels[-1:].expand(-len(pixels) % padding)])

    how = {"dtype": torch.float64, "batch_size": batch_size, "memory": OomRetry("a formula"), "input": fill_up}
    probe, keys = SimpleNamespace(feature_dim=FEATURES, n_filters=FILTERS), [7 * i % 5 for i in range(count)]
    passes = SimpleNamespace(probe=probe, pixels=Values(count), **how)
    backward = Backward(passes, engine or Formula(), parts, keys)
    ledger, pixels, steps = backward.ledger, passes.pixels, []
    drawn = torch.nonzero(backward.counts).flatten().tolist()
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        backward.run(drawn, steps.append)
    assert sum(steps) == sum(len(part.images) for part in parts)
    return [ledger.estimate(number) for number in range(len(parts))], [loop(part, pixels, keys) for part in parts]


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert (one.images, one.terms) == (other.images, other.terms)
        assert torch.allclose(one.fisher, other.fisher, rtol=1e-12, atol=0)
        # Sums of squares are subtracted from one another, which costs digits.
        assert torch.allclose(one.stderr, other.stderr, rtol=1e-6, atol=1e-9 * float(other.stderr.max()))
        assert one.effective_images == pytest.approx(other.effective_images, rel=1e-12)


@pytest.mark.parametrize("terms", [1, 5])
@pytest.mark.parametrize("tasks", [1, 9])
@pytest.mark.parametrize(("batch_size", "padding"), [(1, 1), (3, 1), (100, 1), (4, 4)])
def test_shared_passes_equal_a_loop_over_tasks_and_images(terms, tasks, batch_size, padding, costs):
    engine = Formula()
    parts = make_parts(tasks, tasks=tasks, images=8, terms=terms)
    assert_same(*run(parts, 8, batch_size=batch_size, engine=engine, padding=padding))
    assert max(engine.forward) <= batch_size


def test_images_of_many_pairs_go_forward_once_and_few_slots_are_empty():
    parts, engine = make_parts(1, tasks=12, images=30, terms=2), Formula()
    assert_same(*run(parts, 30, batch_size=5, engine=engine))
    drawn = torch.cat([part.images for part in parts])
    assert sum(engine.forward) == len(drawn.unique())
    # Images come by falling numbers of pairs, so all empty slots together are fewer than those of one batch.
    assert engine.back <= len(drawn) + 5 * int(drawn.bincount().max())


def draw_alone(counts):
    """One task that drew so many pairs of each image."""
    images = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    ones = torch.ones(len(images), dtype=torch.float64)
    design = Design(len(counts), len(counts), 1.5 * len(counts))
    return [Part(images, torch.rand(len(images), 2).double(), torch.rand(2, FEATURES).double(), ones, ones, design)]


@pytest.mark.parametrize("costs", ["cuda"], indirect=True)
def test_images_of_many_pairs_take_several_columns_and_leave_few_slots_empty(costs):
    parts, engine = draw_alone([8, 6, 6, *[4] * 5, *[3] * 20, *[2] * 60, *[1] * 170]), Formula()
    assert_same(*run(parts, 258, batch_size=128, engine=engine))
    pairs = len(parts[0].images)
    assert engine.back < 1.1 * pairs and sum(engine.forward) <= pairs
    engine = Formula()
    assert_same(*run(draw_alone([64] * 3), 3, batch_size=64, engine=engine))
    assert engine.slots < 64 / 4 and max(engine.forward) <= 64


@pytest.mark.parametrize("terms", [1, 4])
@pytest.mark.parametrize(("where", "fails"), [("pass", [1]), ("pass", [2, 5, 9]), ("add", [1]), ("add", [4])])
def test_memory_that_runs_out_changes_no_number(where, fails, terms, costs, monkeypatch):
    """Between the slots of a pass, or while rows are entered into the ledger."""
    calls, add = [], Ledger.add

    def guarded(ledger, rows, owners, **rest):
        calls.append(len(rows))
        if where == "add" and len(calls) in fails:
            raise out_of_memory()
        add(ledger, rows, owners, **rest)

    engine = Formula(fails=fails if where == "pass" else ())
    monkeypatch.setattr(Ledger, "add", guarded)
    assert_same(*run(make_parts(terms, tasks=9, images=8, terms=terms), 8, batch_size=8, engine=engine))
    assert len(engine.forward) > 1  # it was halved indeed


def test_columns_that_do_not_fit_become_fewer(costs):
    engine = Formula(most=3)
    for counts in ([9] * 4, [9, 2, 1, 1, 1, 1], [9]):
        assert_same(*run(draw_alone(counts), len(counts), batch_size=16, engine=engine))
        assert max(engine.forward) <= 3
    assert engine.forward[-1] == (1 if costs == "cpu" else 3)  # and no fewer than do fit


def test_a_gpu_multiplies_in_tf32_within_the_block_unless_a_users_own_flags_forbid_it():
    with batching.tensor_cores(torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"
    flags = torch.backends.cuda.matmul
    try:
        for allowed in (True, False):  # torch refuses to read a precision flag once another of them disagrees
            flags.allow_tf32 = allowed
            with batching.tensor_cores(torch.device("cuda")):
                pass
            assert flags.allow_tf32 is allowed
    finally:
        flags.allow_tf32 = False


def test_images_that_the_device_resizes_are_those_of_pillow(monkeypatch):
    # Each thread takes every second one of four: pairs of one size, but one pair too high, and one of two sizes.
    shapes = [(40, 30), (50, 20), (40, 30), (50, 20), (30, 40), (9, 9), (30, 40), (40, 30)]
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    task, probe = t2v.from_dataset([*zip(images, [0, 1] * 4, strict=True)], name="sizes"), make_tiny()

    def load() -> torch.Tensor:
        pixels = batching.Pixels(task.images, probe, device=torch.device("cpu"), num_workers=2)
        return torch.cat([some for _, some in pixels.batches(range(len(task)), 4)])

    plain = load()
    monkeypatch.setattr(batching, "_RESAMPLES", ("cpu",))
    monkeypatch.setattr(batching, "_ALIKE", 2)
    seen = []
    resample = type(probe.preprocess).resample
    monkeypatch.setattr(type(probe.preprocess), "resample", lambda *args: seen.append(resample(*args)) or seen[-1])
    assert torch.equal(load(), plain)
    assert [*map(len, seen)] == [2, 2]
