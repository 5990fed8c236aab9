"""The zoo: its files are checked, its posterior is that of a dense Gaussian model, and its models load by name."""

from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import timm
from timm.models import get_pretrained_cfg
from torchvision.models import list_models

from task2vec.errors import UsageError
from task2vec.select import zoo as room
from task2vec.select.zoo import WAYS, Cell, Variances, Zoo, ZooModel, load_zoo
from tests.failures import refuse
from tests.oracles.zoo import predict_densely

TABLES = [("a", "linear"), ("b", "fine-tuned 1"), ("c", "fine-tuned 2"), ("d", "zero-shot")]
VARIANCES = Variances(0.05, 0.02, 0.03, 0.04, 0.01, {"a, linear": 0.02, "b, fine-tuned 1": 0.05})


@pytest.fixture(scope="module")
def small():
    """Nine models, of which two are in no table, and four tables of which none has all."""
    rng = np.random.default_rng(0)
    models = [
        ZooModel(f"m{n}.x", 224, int(1e6 * (n + 1)), 1.0 + n, *rng.uniform(0.5, 0.9, 4), pretraining=kind)
        for n, kind in enumerate([*room.PRETRAINING[:6], *room.PRETRAINING[:2]])
    ]
    cells = [
        Cell(*TABLES[k], f"d{d}", f"m{e}.x", float(rng.uniform(0.25, 0.35)))
        for k in range(4)
        for d in range(k, k + 4)
        for e in range(7)
        if (k + e) % 3
    ]
    return Zoo((*models, ZooModel("bare")), tuple(cells), VARIANCES)


@pytest.mark.parametrize("way", WAYS)
def test_the_posterior_is_that_of_a_dense_gaussian_model(small, way):
    names, anchors = ["m0.x", "m7.x", "bare", "m3.x"], ["m1.x", "m3.x"]
    mean, covariance = predict_densely(small, [*names, *anchors], way)
    contrast = np.hstack([np.eye(4), np.full((4, 2), -0.5)])
    found = small.compare(names, anchors, way)
    np.testing.assert_allclose(found[0], contrast @ mean, atol=1e-8, rtol=0)
    np.testing.assert_allclose(found[1], contrast @ covariance @ contrast.T, atol=1e-8, rtol=0)
    found = small.posterior.predict(np.arange(9), way, "b, fine-tuned 1")  # with the effects of a table
    for one, other in zip(found, predict_densely(small, small.numbers, way, "b, fine-tuned 1"), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8, rtol=0)


def test_a_failed_run_counts_as_bad_and_no_more(small):
    cells = [small.cells[0]._replace(error=0.99), *small.cells[1:]]
    scaled = replace(small, cells=tuple(cells)).posterior.scaled
    assert scaled[1:].tolist() == small.posterior.scaled[1:].tolist()
    assert small.posterior.scaled[1:].max() < scaled[0] < np.log(1.02 / 0.04) - 0.1


def test_what_is_not_there_is_refused_with_what_is(small):
    refuse(UsageError, "linear, fine-tuned, zero-shot", small.compare, ["m0.x"], ["m1.x"], "few-shot")
    refuse(UsageError, "anchors", small.compare, ["m0.x"], [], "linear")
    refuse(UsageError, r"Did you mean resnet50\.a1_in1k or .* task2vec models", load_zoo().find, "resnet5O.a1_in1k")
    with pytest.raises(UsageError, match=r"no model '%%%' in the zoo, so nothing is known about it. List them"):
        load_zoo().compare(["%%%"], ["resnet50.tv_in1k"], "linear")
    for license in ("", [], "gpl-7", ["mit", "apache"], "mit,"):
        with pytest.raises(UsageError, match=r"--license.* Choose from: .*apache-2.0.*mit.*permissive.*unknown"):
            load_zoo().read_licenses(license)
    assert load_zoo().read_licenses(" MIT , cc-by-nc-4.0") == {"mit", "cc-by-nc-4.0"}
    assert load_zoo().read_licenses(["mit,unknown", "permissive"]) == {"unknown", *room.PERMISSIVE}


def test_every_model_has_a_line_that_loads_it():
    for name, line in (
        ("torchvision:googlenet", 'torchvision.models.get_model("googlenet", weights="IMAGENET1K_V1")'),
        ("open_clip:ViT-B-16/e31", 'open_clip.create_model_and_transforms("ViT-B-16", pretrained="e31")'),
    ):
        assert ZooModel(name).load == line


@pytest.mark.skipif(timm.__version__ != "1.0.30", reason="names and licences were checked with timm 1.0.30")
def test_names_and_licenses_are_those_of_timm_and_torchvision():
    homes, models = {"timm": set(timm.list_pretrained()), "torchvision": set(list_models())}, load_zoo().models
    for model in models:
        library, _, name = model.location.partition(":")
        assert library == "open_clip" or name in homes[library], name
    for model in models[:: len(models) // 50]:
        stated = None if ":" in model.name else get_pretrained_cfg(model.name).license
        assert model.license == (stated or "unknown"), model.name
    assert {model.license for model in models if ":" in model.name} == {"unknown"}
    assert set(room.PERMISSIVE) < {model.license for model in models}


def test_the_tables_of_the_package_are_whole_and_small():
    zoo = load_zoo()
    assert len(zoo.models) > 1300 and len(zoo.cells) > 5000
    assert len(zoo.numbers) == len(zoo.models) and {cell.model for cell in zoo.cells} <= zoo.numbers.keys()
    assert len({cell[:4] for cell in zoo.cells}) == len(zoo.cells) and all(0 <= cell.error <= 1 for cell in zoo.cells)
    shares = [getattr(model, name) for model in zoo.models for name in ("imagenet", "real", "r", "sketch")]
    assert all(0 <= one <= 1 for one in shares if one is not None)
    assert all(model.params is None or model.params > 0 for model in zoo.models)
    assert {cell.source for cell in zoo.cells} == set(room.SOURCES) - {"timm", "V-PETL"}
    assert all(model.pretraining in room.PRETRAINING for model in zoo.models)
    assert set(zoo.variances.noise) == {cell.table for cell in zoo.cells}
    assert {room.find_way(cell.protocol) for cell in zoo.cells} == set(WAYS)
    assert zoo.find("resnet50.a1_in1k").cpu_speed < zoo.find("resnet50.a1_in1k").gpu_speed
    one = zoo.find("vit_base_patch16_siglip_224.webli")
    assert one.tables == ("MIEB", "OpenCLIP") and one.imagenet is None and one.pretraining == "image-text"
    files = resources.files("task2vec.select").joinpath("data").iterdir()
    assert sum(len(file.read_bytes()) for file in files) <= 400_000
