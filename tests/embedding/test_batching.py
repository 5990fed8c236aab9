"""How a batch is laid out, against the cost of every layout; how a GPU multiplies, and resizes images."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import task2vec as t2v
from task2vec.embedding import batching
from tests.tiny_probe import make_tiny

CPU = torch.device("cpu")
some_counts = st.lists(st.integers(1, 9), min_size=1, max_size=12).map(lambda counts: sorted(counts, reverse=True))


def lay_out(counts, slots):
    """The columns of each image, and the cost of all in backward passes of one image, with so many slots."""
    columns = [math.ceil(count / slots) for count in counts]
    return columns, (sum(columns) + batching._IDLE["cpu"]) * (batching._FORWARD["cpu"] + slots)


@pytest.mark.parametrize(("forward", "idle"), [(1.5, 0), (0.3, 32), (0.0, 10_000)])  # a CPU, a GPU, a column per pair
@given(some_counts, st.integers(1, 15))
def test_the_cheapest_layout_is_chosen(forward, idle, counts, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(batching._FORWARD, "cpu", forward)
        patch.setitem(batching._IDLE, "cpu", idle)
        slots = {math.ceil(counts[0] / columns) for columns in range(1, most + 1)}  # by the image of the most pairs
        if len(counts) <= most:
            layouts = [lay_out(counts, count) for count in sorted(slots)]
            fitting = [(cost, columns) for columns, cost in layouts if sum(columns) <= most]
            best = [columns for cost, columns in fitting if cost <= min(fitting)[0] * (1 + 1e-6)]
            assert batching.assign_columns(torch.tensor(counts), most, device=CPU).tolist() in best
        # As many of the first images as fit, with the slots that make a pair the cheapest.
        shares = {}
        for count in slots:
            end = max(end for end in range(1, len(counts) + 1) if sum(lay_out(counts[:end], count)[0]) <= most)
            share = lay_out(counts[:end], count)[1] / sum(counts[:end])
            shares[end] = min(share, shares.get(end, math.inf))
        found = batching.count_images(torch.tensor(counts), most, device=CPU)
        assert shares[found] == pytest.approx(min(shares.values()), rel=1e-6)


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
    monkeypatch.setattr(batching, "_RESIZING_DEVICES", ("cpu",))
    monkeypatch.setattr(batching, "_MIN_SAME_SIZE", 2)
    seen = []
    resample = type(probe.preprocess).resample
    monkeypatch.setattr(type(probe.preprocess), "resample", lambda *args: seen.append(resample(*args)) or seen[-1])
    assert torch.equal(load(), plain)
    assert [*map(len, seen)] == [2, 2]


def test_a_device_has_one_name():
    """A network is prepared once for each name: loaded ahead for "cuda", it was prepared again for "cuda:0"."""
    device = batching.choose_device(None)
    assert str(batching.choose_device(str(device))) == str(device)
    assert str(batching.choose_device(device.type)) == str(device)
