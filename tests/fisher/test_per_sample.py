"""Per-sample squared filter gradients, tied and untied, against their definitions in float64, over the shared table."""

import copy
import functools
import gc

import pytest
import torch
from timm.layers.std_conv import StdConv2d
from torch import nn

from task2vec.fisher import PerSampleFisher, reductions
from task2vec.fisher.per_sample import RecordedPass
from task2vec.probe import Preprocess, make_probe
from tests.cases import CASES, make_case
from tests.fisher.seeds import all_seeds, normal, random_head, random_images, relative_error
from tests.oracles.fisher import naive_rows, untied_rows

TASKS = [(2, False), (3, False), (2, True)]  # classes, and whether they are attributes
# Kinds of labels differ in the seeds, not in the layers: small networks see them all, and every route.
SMALL = ("odd", "shared", "encoder")
# Large networks whose kinds of layers, and ways to be folded, others have as well.
LARGE = ("resnet18", "vgg13_bn", "densenet121", "mobilenet_v2", "convnext_tiny", "mixer")
SHARED_TABLE = [pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in CASES]
make_case = functools.cache(make_case)  # nothing here may change a case


def fisher_rows(probe, images, weight, bias, *, is_multilabel=False, keys=None, is_untied=False, **options):
    """(images, filters) with every label of every image as a seed."""
    network = probe.prepare(dtype=torch.float64, **options)
    with torch.no_grad():
        features = torch.cat([network.module(image) for image in images.split(1)])
    seeds = all_seeds(features, weight, bias, is_multilabel)
    return PerSampleFisher(network, probe.layers, is_untied=is_untied).rows(images, seeds, keys)


@pytest.mark.parametrize("is_untied", [False, True])
@pytest.mark.parametrize("name", SHARED_TABLE)
def test_rows_equal_the_definition(name, is_untied, monkeypatch):
    probe = make_case(name)
    images = random_images(probe, 2 if name in SMALL else 1)
    for classes, is_multilabel in TASKS if name in SMALL else ((2, False),):
        weight, bias = random_head(probe, classes)
        with torch.no_grad():
            logits = copy.deepcopy(probe.network).double()(images) @ weight.T
        weight = weight / logits.abs().amax().clamp_min(1)  # where p is 1 to ten digits, 1 - p has six of them left
        oracle = untied_rows if is_untied else naive_rows
        reference = oracle(probe, images, weight, bias, is_multilabel=is_multilabel)
        assert (reference > 0).double().mean() > 0.5
        ways = [(True, None)]
        if name in SMALL and classes == 3:  # the routes differ in the layers, not in the labels
            ways += [(False, None)] if is_untied else [(False, "gram"), (True, "direct"), (True, "pixelwise")]
        for fold, route in ways:
            options = {"is_multilabel": is_multilabel, "fold": fold, "flip": fold, "is_untied": is_untied}
            with monkeypatch.context() as patch:
                if route is not None:
                    patch.setattr(reductions, "cheapest_route", lambda *_, route=route: route)
                rows = fisher_rows(probe, images, weight, bias, **options)
            assert relative_error(rows, reference, probe.layers) < 1e-6, (classes, is_multilabel, fold, route)


@pytest.mark.parametrize("is_untied", [False, True])
def test_hooks_are_removed_and_weights_unchanged_even_after_an_error(is_untied):
    probe = make_case("odd")
    network, images = probe.prepare(dtype=torch.float64), random_images(probe, 2)
    before = {k: v.clone() for k, v in network.module.state_dict().items()}
    fisher = PerSampleFisher(network, probe.layers, is_untied=is_untied)
    with pytest.raises(ZeroDivisionError):
        fisher.rows(images, lambda features: 1 / 0)
    runs = fisher.rows_by_seed(images, normal(3, 2, probe.feature_dim))  # a run that ends between seeds
    next(runs)
    assert not any(m._forward_hooks for m in network.module.modules())
    runs.close()
    assert all(torch.equal(v, before[k]) for k, v in network.module.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in network.module.parameters())


# --- seed by seed ---


@pytest.mark.parametrize("is_untied", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_seeds_do_not_affect_one_another(name, is_untied, monkeypatch):
    monkeypatch.setattr(reductions, "cheapest_route", lambda *_: "gram")  # the one that keeps something for other seeds
    probe = make_case(name)
    images, seeds = random_images(probe, 2), normal(2, 2, probe.feature_dim)
    seeds[1, 0] = 0  # an image that has fewer seeds than the other
    fisher = PerSampleFisher(probe.prepare(dtype=torch.float64), probe.layers, is_untied=is_untied)
    together = list(fisher.rows_by_seed(images, seeds))
    alone = [next(fisher.rows_by_seed(images, seed[None])) for seed in seeds]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12 * float(other.max()))
    assert not together[1][0].any() and together[1][1].any()
    total = fisher.rows(images, seeds)
    assert torch.allclose(torch.stack(together).sum(0), total, rtol=1e-9, atol=1e-12 * float(total.max()))


# --- layers that are not plain ---


class Halved(nn.Linear):
    def forward(self, input):
        return nn.functional.linear(input, self.weight / 2, self.bias)


class Changing(nn.Module):
    """timm's weight-standardised convolution after a plain one, and a linear layer that scales its weights."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(3, 4, 3, stride=2)
        self.body = nn.Sequential(nn.Tanh(), StdConv2d(4, 6, 3, padding=1, groups=2), nn.Tanh())
        self.halved = Halved(6, 5)
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        return self.fc(torch.tanh(self.halved(self.body(self.plain(x)).flatten(2).mT)).mean(1))


@pytest.fixture(scope="module")
def changing():
    torch.manual_seed(0)
    probe = make_probe("changing", Changing().eval(), ("fc",), Preprocess(size=(10, 10), resize=10), source="test")
    return probe, random_images(probe, 2), random_head(probe, 3)


def test_layers_that_are_not_plain_are_estimated_without_bias(changing):
    probe, images, head = changing
    reference, draws = untied_rows(probe, images, *head, by_autograd=True), 150
    many = images.repeat(draws, 1, 1, 1)
    found = fisher_rows(probe, many, *head, keys=range(2 * draws), is_untied=True).unflatten(0, (-1, 2))
    plain = probe.layers[0].filters
    assert torch.allclose(found[..., :plain], reference[:, :plain].expand(draws, -1, -1), rtol=1e-8)
    error = found.std(0)[:, plain:] / draws**0.5
    gaps = (found.mean(0) - reference)[:, plain:].abs() / error
    assert gaps.max() < 4.5 and gaps.square().mean() < 2
    assert (error / reference[:, plain:]).max() < 0.17  # so that a wrong scale could not hide
    tied = naive_rows(probe, images, *head)
    assert ((tied - reference)[:, plain:].abs() / error).median() > 6  # nor the tied Fisher


def test_the_estimate_depends_on_the_image_and_not_on_its_batch(changing):
    probe, images, head = changing

    def rows(order, keys):
        return fisher_rows(probe, images[order], *head, keys=keys, is_untied=True)

    together = rows([0, 1], [11, 7])
    assert torch.allclose(torch.cat([rows([0], [11]), rows([1], [7])]), together, rtol=1e-10)
    assert torch.allclose(rows([1, 0], [7, 11]).flip(0), together, rtol=1e-10)
    assert not torch.allclose(rows([0, 1], [12, 7])[0], together[0], rtol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need an NVIDIA GPU")
@pytest.mark.parametrize(("is_untied", "seeds"), [(False, 8), (True, 8), (True, 1)])
def test_recorded_passes_repeat_the_rows_of_other_images_and_seeds(is_untied, seeds):
    probe = make_case("resnet18")
    network = probe.prepare(device=torch.device("cuda"), dtype=torch.float32)
    engine = PerSampleFisher(network, probe.layers, is_untied=is_untied)
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(2 + 16 // seeds):  # as written for the first ones, recorded then
        images = torch.randn(4, 3, *probe.size, device="cuda", generator=generator)
        chosen = torch.randn(seeds, 4, probe.feature_dim, device="cuda", generator=generator)
        rows = list(engine.rows_by_seed(images, chosen))
        recorder, features = engine.forward(images, range(4))
        wanted = [recorder.backward(features, seed, is_last=False) for seed in chosen]
        for one, other in zip(rows, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.max()))
    assert any(isinstance(found, RecordedPass) for found in network.recorded.values())


def test_a_pass_leaves_nothing_behind():
    """What a pass held is freed when it ends, and not when Python next looks for cycles."""
    probe = make_case("odd")
    engine, images = PerSampleFisher(probe.prepare(dtype=torch.float64), probe.layers), random_images(probe, 2)
    seeds, held = normal(2, 2, probe.feature_dim), []
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            held.append(sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()))
            list(engine.rows_by_seed(images, seeds))
    finally:
        gc.enable()
    assert held[1] <= held[0]
