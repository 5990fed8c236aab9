"""The pixels a probe sees are those its own library would show it."""

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from torchvision import transforms

from task2vec.errors import ProbeError
from task2vec.probe import Preprocess, load_probe
from task2vec.probe.load import _timm_preprocess
from task2vec.probe.probe import CustomPreprocess, check_transform
from tests.failures import refuse
from tests.probe.conftest import random_torchvision, save

SIZES = [(97, 131), (300, 41), (41, 300), (7, 5)]


def sample_image(width, height, mode="RGB"):
    pixels = np.random.default_rng([width, height]).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def config_of(name):
    found = timm.get_pretrained_cfg(name) or pytest.skip(f"timm {timm.__version__} has no {name}")
    return timm.data.resolve_data_config(pretrained_cfg=found.to_dict())


# Crops of 0.95 and 1.15 (padded), squashed with a crop and to a rectangle, bilinear and bicubic, other means; sizes.
CONFIGS = {
    "tf_efficientnet_lite0.in1k": (None, 31),
    "resnet50.a1_in1k": (None,),
    "volo_d4_448.sail_in1k": (64,),
    "dm_nfnet_f0.dm_in1k": (None, 64),
    "vit_base_patch16_sapiens2.fb": (None,),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_pixels_are_timms(name):
    for size in CONFIGS[name]:
        cfg = config_of(name)
        preprocess = _timm_preprocess(cfg, size)
        theirs = {**cfg, "input_size": (3, size, size)} if size else cfg
        for shape in SIZES:
            image = sample_image(*shape)
            assert torch.equal(preprocess(image), timm.data.create_transform(**theirs, normalize=False)(image))
            whole = timm.data.create_transform(**theirs)(image)
            assert (preprocess.normalise(preprocess(image)[None], torch.float32)[0] - whole).abs().max() <= 1e-6


@pytest.mark.parametrize(("interpolation", "size", "resize"), [("bicubic", 56, 64), ("bilinear", 33, 33)])
def test_resampling_on_a_device_is_pillows_to_the_last_bit(interpolation, size, resize):
    preprocess = Preprocess(size=(size, size - 2), resize=resize, interpolation=interpolation)
    rng = np.random.default_rng(0)
    for width, height in [(97, 131), (200, 100), (100, 200), (41, 30), (64, 64), (30, 31), (500, 70), (512, 512)]:
        pixels = rng.integers(0, 256, (3, height, width, 3), dtype=np.uint8)
        pixels[0] = 255 * (pixels[0] > 127)  # overshoots, and is clipped
        expected = torch.stack([preprocess(Image.fromarray(one)) for one in pixels])
        assert preprocess.can_resample(width, height)
        for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
            assert torch.equal(preprocess.resample(torch.from_numpy(pixels).to(device)).cpu(), expected)


def test_what_only_pillow_resamples_is_left_to_it():
    usual = Preprocess(size=(56, 56), resize=64)
    assert usual.can_resample(64, 64)
    for width, height in ((513, 512), (100, 201), (270, 30)):
        assert not usual.can_resample(width, height)
    for more in ({"resize": 50}, {"squash": (56, 56)}, {"interpolation": "lanczos"}):
        assert not replace(usual, **more).can_resample(64, 64)


def test_unusual_crops_go_through_timms_own_transform():
    cfg = {**config_of("resnet18.tv_in1k"), "crop_mode": "border"}
    preprocess = _timm_preprocess(cfg, 48)
    assert isinstance(preprocess, CustomPreprocess) and preprocess.size == (48, 48)
    expected = timm.data.create_transform(**{**cfg, "input_size": (3, 48, 48)})(sample_image(97, 131))
    assert torch.equal(preprocess(sample_image(97, 131)), expected)


def test_pixels_are_torchvisions(tmp_path):
    name = "regnet_y_400mf"  # resized to 232
    probe = load_probe(f"torchvision:{name}", weights=save(random_torchvision(name), tmp_path / "w.pth"))
    theirs = torchvision.models.get_model_weights(name).DEFAULT.transforms
    bare = theirs(mean=(0.0,) * 3, std=(1.0,) * 3)
    for image in (sample_image(*size) for size in SIZES):
        pixels = probe.preprocess(image)
        assert torch.equal(pixels, bare(image).mul(255).round().byte())
        assert (probe.preprocess.normalise(pixels[None], torch.float32)[0] - theirs()(image)).abs().max() <= 1e-6


@pytest.mark.parametrize("size", [(10000, 2), (2, 10000), (1, 1)])
def test_extreme_images_have_defined_pixels(size):
    preprocess = Preprocess(size=(64, 64), resize=73)
    pixels = preprocess(sample_image(*size))
    assert pixels.shape == (3, 64, 64) and pixels.dtype == torch.uint8
    assert torch.equal(preprocess(sample_image(*size, "L")), preprocess(sample_image(*size, "L").convert("RGB")))
    assert preprocess(sample_image(*size, "RGBA")).shape == (3, 64, 64)
    uniform = preprocess(Image.new("RGB", size, (10, 200, 30)))
    assert torch.equal(uniform, torch.tensor([10, 200, 30], dtype=torch.uint8)[:, None, None].expand(3, 64, 64))


# --- a caller's own transform ---


def test_a_transform_is_applied_as_it_is_and_must_give_images_of_one_size():
    steps = [transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()]
    transform, image = transforms.Compose(steps), sample_image(97, 131)
    preprocess = check_transform(transform)
    assert preprocess.size == (32, 32) and torch.equal(preprocess(image), transform(image))
    assert torch.equal(preprocess.normalise(torch.ones(1, 3, 2, 2), torch.float64), torch.ones(1, 3, 2, 2).double())
    uncropped = check_transform(transforms.Compose([steps[0], steps[2]]))
    refuse(ProbeError, r"97 x 131 .*CenterCrop", uncropped, image)
    for wrong in (transforms.PILToTensor(), lambda image: torch.zeros(1, 8, 8), lambda image: torch.zeros(3, 8)):
        refuse(ProbeError, r"floats of shape \(3, height, width\)", check_transform, wrong)
