"""Weights are fetched from a hub on this machine, with real architectures and random numbers.

Pooling and preprocessing are then compared with those of timm, which fetches the same file.
"""

import hashlib
import inspect
from contextlib import suppress

import huggingface_hub
import pytest
import timm
import torch
from PIL import Image

from task2vec.errors import ResourceError, WeightsError, WeightsNotFoundError
from task2vec.experts import count_gmacs, count_parameters
from task2vec.probe import list_probes, load_probe
from task2vec.select.candidates import count_download, find_model, has_weights, list_candidates, load_candidate
from tests.failures import refuse
from tests.hub import serving_hub, use_hub
from tests.probe.conftest import random_timm, save

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

SMALL = "test_resnet.r160_in1k"
FILE = f"timm/{SMALL}/model.safetensors"
NAMES = [candidate.name for candidate in list_candidates()]
QUICK = "mobilenetv4_conv_small.e2400_r224_in1k"
POOLS = ("test_vit", "test_vit2", "test_vit3", "test_convnext", "test_efficientnet_gn")


@pytest.fixture
def hub(tmp_path, monkeypatch, empty_caches):
    with serving_hub() as served:
        use_hub(served, tmp_path / "cache", monkeypatch)
        yield served


def list_fetches(hub):
    """Method and range of every request for a file; the hub's client also asks which agents there are."""
    return [(method, span) for method, path, span in hub.requests if not path.startswith("/api/")]


@pytest.fixture
def small(hub):
    """The hub with one small network, and that network."""
    model = random_timm(SMALL)
    hub.put(SMALL, model)
    return model


def test_nothing_is_asked_without_permission(hub, small):
    candidate = list_candidates([SMALL])[0]
    assert not candidate.is_here and "download=True" in candidate.load_line
    refuse(WeightsNotFoundError, "--download", load_candidate, candidate)
    list_candidates(), list_candidates("timm", max_params="5M")
    assert hub.requests == []


def test_a_download_is_reported_kept_and_the_same_as_a_file(hub, small, tmp_path):
    stages = []

    def report(stage, total):
        stages.append([stage, total, 0])
        return lambda more: stages.__setitem__(-1, [stage, total, stages[-1][2] + more])

    candidate = list_candidates([SMALL])[0]
    assert count_download([candidate]) > 0
    probe = load_candidate(candidate, download=True, progress=report)
    assert probe.source == f"hub (timm/{SMALL})"
    assert probe.fingerprint == load_probe(SMALL, weights=save(small, tmp_path / "w.safetensors")).fingerprint
    megabytes = round(len(hub.files[FILE]) / 1e6)
    if "tqdm_class" in inspect.signature(huggingface_hub.hf_hub_download).parameters:  # else the hub draws its own bar
        assert stages == [[f"MB of {SMALL}", megabytes, megabytes]]
    asked = len(hub.requests)
    assert list_fetches(hub) == [("HEAD", None), ("GET", None)] and has_weights(f"timm:{SMALL}")
    now = list_candidates([SMALL])[0]
    assert now.is_here and count_download([now]) == 0 and "download" not in now.load_line
    again = load_candidate(now)
    assert again.fingerprint == probe.fingerprint and len(hub.requests) == asked
    assert again.source == f"hub cache (timm/{SMALL})"
    assert {"name": SMALL, "source": f"hub cache timm/{SMALL}", "is_local": True} in list_probes()


def test_a_cut_connection_goes_on_where_it_ended(hub, small, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)  # whole chunks are kept
    hub.cuts = 2
    for _ in range(3):
        with suppress(ResourceError):  # older clients go on when they are asked again
            probe = load_probe(SMALL, download=True)
            break
    half = len(hub.files[FILE]) // 2
    spans = [span for method, span in list_fetches(hub) if method == "GET"]
    assert spans[:2] == [None, f"bytes={half // 10_000 * 10_000}-"] and len(spans) == 3
    assert probe.fingerprint == load_probe(small).fingerprint


def test_a_file_that_is_not_what_was_promised_is_refused_and_removed(hub, small):
    hub.promised[FILE] = hashlib.sha256(b"another").hexdigest()
    refuse(WeightsError, r"not the file that it promised.*again", load_probe, SMALL, download=True)
    assert not has_weights(f"timm:{SMALL}")
    refuse(WeightsNotFoundError, "not on this machine", load_probe, SMALL)
    hub.promised.clear()
    assert load_probe(SMALL, download=True).fingerprint == load_probe(small).fingerprint


def test_refusals_of_the_hub_say_what_to_do(hub, small, tmp_path):
    hub.gated.add(f"timm/{SMALL}")
    words = rf"accept its licence.*/timm/{SMALL}, and log in: hf auth login"
    refuse(ResourceError, words, load_probe, SMALL, download=True)
    hub.gated.clear()
    other = "test_vit.r160_in1k"
    refuse(ResourceError, "pip install --upgrade timm", load_probe, other, download=True)
    hub.files[f"timm/{other}/config.json"] = b"{}"
    refuse(ResourceError, "could not be downloaded", load_probe, other, download=True)


def test_older_repositories_have_their_weights_under_another_name(hub, tmp_path):
    model = random_timm(SMALL)
    hub.files[f"timm/{SMALL}/pytorch_model.bin"] = save(model, tmp_path / "w.pth").read_bytes()
    assert load_probe(SMALL, download=True).fingerprint == load_probe(model).fingerprint
    assert has_weights(f"timm:{SMALL}")


def test_without_a_hub_the_connection_is_named(tmp_path, monkeypatch, empty_caches):
    with serving_hub() as gone:
        use_hub(gone, tmp_path / "cache", monkeypatch)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    refuse(ResourceError, r"could not be downloaded .*connection.*weights=FILE", load_probe, SMALL, download=True)


# --- pooling and preprocessing are the network's own -----------------------------------------------------------------


def measures_as_timm_does(probe, model, size):
    """Whether features and pixels are those of timm's network and transform."""
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model.forward_head(model.forward_features(images), pre_logits=True)
        features = probe.prepare().module(images)
    assert features.shape == expected.shape == (2, probe.feature_dim)
    assert (features - expected).abs().max() < 2e-4 * expected.std(), "features"
    config = {**timm.data.resolve_model_data_config(model), "input_size": (3, size, size)}
    transform = timm.data.create_transform(**config, is_training=False)
    noise = torch.randint(0, 256, (300, 421, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    picture = Image.fromarray(noise.numpy())
    pixels = probe.preprocess.normalise(probe.preprocess(picture)[None], torch.float32)[0]
    assert (pixels - transform(picture)).abs().max() < 1e-5, "pixels"


@pytest.mark.parametrize("name", POOLS)
def test_class_tokens_means_and_attention_pools_are_timms(name):
    model = random_timm(name)
    measures_as_timm_does(load_probe(model), model, model.pretrained_cfg["input_size"][-1])


def fetch_and_compare(hub, name, monkeypatch):
    """Fetches random weights of a candidate from the hub; features, pixels and costs are compared with timm's."""
    monkeypatch.setattr("task2vec.probe.weights.is_offline_package_installed", lambda architecture: False)
    candidate = list_candidates([name])[0]
    model = random_timm(name)
    hub.put(name, model)
    probe = load_candidate(candidate, download=True)
    options = {"img_size": candidate.size} if candidate.size else {}
    reference = timm.create_model(name, pretrained=True, **options).eval()  # timm's own download of the same file
    measures_as_timm_does(probe, reference, probe.size[0])
    assert len(hub.files[f"timm/{name}/model.safetensors"]) == pytest.approx(candidate.megabytes * 1e6, rel=0.01)
    assert count_parameters(probe.network) == candidate.params
    assert count_gmacs(probe.network, probe.size) == pytest.approx(candidate.gmacs, rel=0.02)
    assert find_model(name).license == candidate.license


def test_a_small_candidate_is_fetched_and_measured_as_timm_does(hub, monkeypatch):
    fetch_and_compare(hub, QUICK, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name != QUICK])
def test_every_candidate_is_fetched_and_measured_as_timm_does(hub, name, monkeypatch):
    fetch_and_compare(hub, name, monkeypatch)
