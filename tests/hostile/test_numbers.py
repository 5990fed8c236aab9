"""Numbers: N1 nothing that is not finite, N4 the same bytes twice, N6 nothing random, N7 nothing incomparable."""

import os
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from torchvision import transforms

from task2vec.distance import symmetric
from task2vec.embedding import Embedding, EmbedSettings, embed, load_embedding
from task2vec.errors import DataError, NotFiniteError, ProbeError, ProbeMismatchError, SettingsMismatchError
from task2vec.fisher import PerSampleFisher
from task2vec.probe import FilterLayer, load_probe
from task2vec.tasks import from_dataset
from tests.cases import Odd, make_case
from tests.failures import refuse
from tests.probe.conftest import odd, transform_to


def make_task(images=None):
    """A task of two classes of these images, or of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (12, 20, 20, 3), dtype=np.uint8)
    images = map(Image.fromarray, noise) if images is None else images
    return from_dataset([(image, number % 2) for number, image in enumerate(images)])


# --- N1 ---


def load_odd(module=None, size=40, **options):
    return load_probe(odd() if module is None else module, head="fc", transform=transform_to(size), **options)


def test_weights_that_are_not_finite_or_overflow_are_named():
    for key, value in (("stem.weight", np.nan), ("norm.running_var", np.inf), ("strided.bias", -np.inf)):
        module = odd()
        module.state_dict()[key].view(-1)[0] = value
        refuse(NotFiniteError, rf"'Odd'.*'{key}'", load_odd, module)
    module = odd()
    for part in (module.stem, module.strided, module.reflected, module.same):
        part.weight.data.fill_(1e25)
    refuse(NotFiniteError, "noise", load_odd, module)


def test_pixels_that_are_not_finite_and_a_transform_that_breaks_are_named():
    for value in (float("nan"), float("inf")):
        images = [torch.rand(3, 8, 8) for _ in range(6)]
        images[4][1, 2, 3] = value
        refuse(DataError, "item 4", make_task, images)

    def transform(image):
        tensor = transform_to(40)(image)
        return tensor / 0 if image.getpixel((0, 0)) == (1, 2, 3) else tensor

    images = [Image.new("RGB", (20, 20), (shade, 2, 3)) for shade in (9, 8, 7, 1, 6, 5)]
    probe = load_probe(odd(), head="fc", transform=transform)
    refuse(NotFiniteError, r"item 3.*transform", embed, make_task(images), probe)


class Disturbed(Odd):
    """Does something to its input, though it is in eval mode."""

    def __init__(self, disturb):
        torch.manual_seed(0)
        super().__init__()
        self.disturb = disturb
        self.eval()

    def forward(self, x):
        return super().forward(self.disturb(x))


def test_features_that_are_not_finite_name_the_image():
    def burst(x):  # very bright images only
        return x / (x.mean((1, 2, 3), keepdim=True) < 0.9)

    images = [Image.new("RGB", (40, 40), (shade,) * 3) for shade in (10, 20, 30, 40, 255, 60)]
    refuse(NotFiniteError, "features of 'item 4'", embed, make_task(images), load_odd(Disturbed(burst)))


def test_a_fisher_that_is_not_finite_names_the_layer_and_saves_nothing(monkeypatch):
    probe = make_case("odd")
    rows = PerSampleFisher.rows_by_seed

    def broken(*arguments):
        for found in rows(*arguments):
            found[-1, probe.layers[0].filters + 3] = np.nan  # a filter of the second layer
            yield found

    monkeypatch.setattr(PerSampleFisher, "rows_by_seed", broken)
    refuse(NotFiniteError, r"layer 'dilated' is not finite.*nothing was saved", embed, make_task(), probe)


@pytest.mark.parametrize("name", ["fisher", "stderr", "prior"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_an_embedding_cannot_hold_such_numbers(name, value):
    arrays = {n: np.ones(3) for n in ("fisher", "stderr", "prior")}
    arrays[name][1] = value
    layers = (FilterLayer("c", "linear", 3, 1, 1.0),)
    refuse(DataError, f"'{name}'", Embedding, "a", "net", **arrays, layers=layers)


def test_a_certain_head_leaves_a_finite_fisher():
    """Perfectly separable classes and next to no penalty: probabilities of 0 and 1, no Fisher, no NaN."""
    task = make_task([Image.new("RGB", (20, 20), (250 * (number % 2), number, 0)) for number in range(8)])
    embedding = embed(task, make_case("odd"), settings=EmbedSettings(l2=1e-12))
    assert np.isfinite(embedding.vector).all() and np.isfinite(embedding.stderr).all()
    assert symmetric(embedding, embedding) == 0


# --- N4 ---


def test_the_same_run_twice_gives_the_same_bytes_and_leaves_global_randomness_alone(tmp_path):
    files = []
    for run, workers in enumerate((1, 2)):
        probe, task, module = make_case("odd"), make_task(), odd()  # made anew, as in another process
        torch.manual_seed(run)
        np.random.seed(run)
        random.seed(run)  # nobody's global randomness matters
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
        files.append(embed(task, probe, num_workers=workers).save(tmp_path / f"{run}").read_bytes())
        embed(task, probe, settings=EmbedSettings("direct"))
        load_odd(module)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.array_equal(np.random.get_state()[1], before[1]) and random.getstate() == before[2]
    assert files[0] == files[1]


# --- N6 ---


def test_a_probe_in_train_mode_is_copied_into_eval_mode_and_that_is_said():
    module = odd()
    expected = load_odd(module)
    assert expected.source == "module"
    for part in (module, module.norm, module.fc):
        part.train()
        probe = load_odd(module)
        assert probe.fingerprint == expected.fingerprint and probe.source == "module in train mode, put into eval mode"
        assert part.training and not any(inner.training for inner in probe.network.modules())
        images = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
        assert torch.equal(probe.network(images), expected.network(images))
        module.eval()


@pytest.mark.parametrize(
    "disturb", [lambda x: functional.dropout(x, 0.1, training=True), lambda x: x + 1e-3 * torch.randn_like(x)]
)
def test_a_random_network_is_refused(disturb):
    refuse(ProbeError, "random", load_odd, Disturbed(disturb))


RANDOM = {
    "crop": transforms.RandomCrop(40),
    "nested": transforms.Compose([transforms.Compose([transforms.RandomApply([transforms.Grayscale(3)], 0.01)])]),
    "jitter": transforms.ColorJitter(0.1),
    "augment": transforms.RandAugment(),
    "python": lambda image: image.rotate(random.uniform(-5, 5)),
    "numpy": lambda image: image.rotate(np.random.default_rng().uniform(-5, 5)),
}


@pytest.mark.parametrize("kind", list(RANDOM))
def test_augmentation_in_the_transform_is_refused(kind):
    transform = transform_to(44, RANDOM[kind], transforms.CenterCrop(40))
    refuse(ProbeError, "random", load_probe, odd(), head="fc", transform=transform)


# --- N7 ---


def test_embeddings_of_other_weights_or_settings_are_not_compared(tmp_path):
    task, module, one = make_task(), odd(), load_odd()
    module.stem.weight.data[0, 0, 0, 0] += 1e-6
    saved = load_embedding(embed(task, one).save(tmp_path / "one"))
    for probe in (load_odd(module), load_odd(size=48)):
        assert probe.name == one.name
        words = r"same name.*task2vec embed --probe Odd"
        refuse(ProbeMismatchError, words, symmetric, saved, embed(task, probe))
    for settings in ({"method": "direct"}, {"dtype": "float64"}, {"beta": 1.0}, {"balance": False}):
        other = embed(task, one, settings=EmbedSettings(**settings))
        refuse(SettingsMismatchError, "Embed one again", symmetric, saved, other)
    assert os.listdir(tmp_path) == ["one"]
