"""Weights on disk for tiny networks, and empty caches."""

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from torchvision import transforms

from tests.cases import Odd


@pytest.fixture(autouse=True)
def empty_caches(tmp_path, monkeypatch):
    """Caches of the hubs that hold nothing but what a test puts there."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path


def random_timm(name, **options):
    """A timm network with seeded weights and batch-norm statistics away from the identity."""
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    for key, tensor in model.state_dict().items():
        if key.endswith(("running_mean", "pos_embed", "bias")):
            tensor.normal_(std=0.1)
        if key.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
    return model


def random_torchvision(name, **options):
    """A torchvision network with seeded weights."""
    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None, **options).eval()


def transform_to(size, *more):
    return transforms.Compose([transforms.Resize((size, size)), *more, transforms.ToTensor()])


def odd():
    torch.manual_seed(0)
    return Odd().eval()


def save(model, path):
    """The weights of `model` as a file whose ending chooses the format."""
    tensors = {k: v.contiguous() for k, v in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path
