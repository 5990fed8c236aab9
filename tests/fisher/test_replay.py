"""A recorded step does what the step does; one that cannot be recorded runs as it is written."""

import pytest
import torch
from torch import Tensor

from task2vec.fisher.cuda_graph import GraphedStep

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")


def walk(device: str, *, is_recordable: bool, does_look: bool = False, sizes: tuple[int, ...] = (4,) * 12):
    """A noisy walk with state and optimiser; returns where it ends, its losses, and the replay."""
    generator = torch.Generator(device).manual_seed(0)
    place = torch.zeros(3, device=device)
    place.grad = torch.zeros_like(place)
    optimiser = torch.optim.Adam([place], lr=0.1, capturable=device == "cuda")

    def step(images: Tensor, targets: Tensor) -> Tensor:
        noise = torch.empty_like(images).normal_(generator=generator)
        if does_look and noise.sum().item() > 1e9:
            raise AssertionError
        place.grad.copy_((place - images - noise).mean(0) + targets.sum())
        optimiser.step()
        return (place - images).square().sum()

    replay = GraphedStep(step, generator, is_recordable=is_recordable)
    batches = [
        (torch.full((size, 3), float(i), device=device), torch.ones(size, device=device))
        for i, size in enumerate(sizes)
    ]
    losses = [float(replay(*batch)) for batch in batches]
    return place.clone(), losses, replay


def test_a_cpu_runs_the_step_as_it_is():
    one, losses, replay = walk("cpu", is_recordable=True)
    other, same, _ = walk("cpu", is_recordable=False)
    assert replay.graph is None
    assert torch.equal(one, other)
    assert losses == same
    assert len(set(losses)) == len(losses)


@needs_cuda
def test_a_recorded_step_draws_the_same_noise_and_goes_the_same_way():
    one, losses, replay = walk("cuda", is_recordable=True)
    other, same, _ = walk("cuda", is_recordable=False)
    assert replay.graph is not None
    torch.testing.assert_close(one, other)
    assert losses == pytest.approx(same, rel=1e-5)


@needs_cuda
def test_a_step_that_looks_at_a_value_runs_without_a_recording():
    one, losses, replay = walk("cuda", is_recordable=True, does_look=True)
    other, same, _ = walk("cuda", is_recordable=False, does_look=True)
    assert replay.graph is None
    torch.testing.assert_close(one, other)
    assert losses == pytest.approx(same, rel=1e-5)


@needs_cuda
def test_a_batch_of_another_size_runs_as_it_is_written():
    sizes = (4,) * 8 + (2,)
    one, losses, _ = walk("cuda", is_recordable=True, sizes=sizes)
    other, same, _ = walk("cuda", is_recordable=False, sizes=sizes)
    torch.testing.assert_close(one, other)
    assert losses == pytest.approx(same, rel=1e-5)
