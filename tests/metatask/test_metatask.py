"""A measured meta-task comes back from disk as it was, and is cut by family without mixing rows up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.metatask.plan import LOCATIONS, ORIGINS
from task2vec.embedding.embedding import pack_arrays, unpack_arrays
from task2vec.errors import DataError, UsageError
from task2vec.metatask import bundled_metatask, load_metatask
from task2vec.metatask import metatask as module
from task2vec.probe import FilterLayer
from tests.failures import refuse
from tests.select.material import make_whole

LAYERS = (FilterLayer("a", "convolution", 20, 9, 0.1), FilterLayer("b", "linear", 10, 4, 0.2))


@pytest.fixture(scope="module")
def metatask():
    """Fishers of all sizes, each with a dead filter; priors that differ by task and layer; errors in column order."""
    rng, whole, embeddings = np.random.default_rng(0), make_whole(), []
    for number, one in enumerate(whole.embeddings["net robust"]):
        fisher = rng.lognormal(-20, 5, 30) * (np.arange(30) != number)
        prior = np.repeat([1e-9 * (number + 1), 2e-9], [20, 10])
        embeddings.append(replace(one, fisher=fisher, prior=prior, layers=LAYERS))
    return replace(whole, embeddings={"net robust": embeddings}, errors=np.asfortranarray(whole.errors))


def test_the_origin_of_weights_and_the_recipe_of_experts_are_kept_and_older_files_have_none(metatask, tmp_path):
    models = [replace(one, recipe=f"recipe {n}", weights_origin=f"from {n}") for n, one in enumerate(metatask.models)]
    file = replace(metatask, models=tuple(models)).save(tmp_path / "m.safetensors")
    assert load_metatask(file).models == tuple(models)
    header, arrays = unpack_arrays(file.read_bytes())
    header["models"] = [
        {k: v for k, v in one.items() if k not in ("recipe", "weights_origin")} for one in header["models"]
    ]
    file.write_bytes(pack_arrays(header, arrays))
    assert {(one.recipe, one.weights_origin) for one in load_metatask(file).models} == {("", "")}


def test_no_file_says_that_its_resnet34_is_that_of_a_library():
    for file, recipes in (
        (None, {""}), ("experts", {"", "achille2019"}), ("fast_experts", {"", "fast"}),
        ("fast1_experts", {"", "fast-1"}), ("domain_experts", {"", "fast"}),
    ):  # fmt: skip
        path = Path(__file__).parents[2] / "experiments" / "metatask" / f"{file}.safetensors"
        found = bundled_metatask() if file is None else load_metatask(path)
        for model in found.models:
            assert model.weights_origin == ORIGINS.get(model.network, "") and model.location == LOCATIONS.get(
                model.name
            )
            assert bool(model.recipe) == (model.source_task is not None)
        assert {model.recipe for model in found.models} == recipes
        generic = found.models[found.generic]
        assert generic.location is None and generic.weights_origin == ORIGINS["resnet34"]


def test_a_meta_task_comes_back_from_disk(metatask, tmp_path):
    found = load_metatask(metatask.save(tmp_path / "m.safetensors"))
    for name in ("tasks", "models", "protocols", "seeds", "source_tasks"):
        assert getattr(found, name) == getattr(metatask, name)
    for name, tolerance in {"errors": 1e-6, "low": 1e-3, "high": 1e-3, "shares_labels": 0}.items():
        assert np.allclose(getattr(found, name), getattr(metatask, name), atol=tolerance)
    assert np.array_equal(found.is_candidate, metatask.is_candidate) and 0 < metatask.is_candidate.sum() < 15
    assert np.allclose(found.scores["logme"], metatask.scores["logme"], atol=1e-5)
    for one, other in zip(found.embeddings["net robust"], metatask.embeddings["net robust"], strict=True):
        assert np.array_equal(one.fisher == 0, other.fisher == 0)
        assert np.allclose(one.fisher, other.fisher, rtol=0.02) and np.allclose(one.prior, other.prior)
        assert one.provenance["task_fingerprint"] == other.provenance["task_fingerprint"]


def test_families_and_repeats_are_cut_alike_everywhere(metatask):
    part = metatask.subset(family="taxa")
    assert part.tasks == metatask.tasks[:2] and part.models == metatask.models[:4]
    for find in (lambda one: one.errors, lambda one: one.shares_images, lambda one: one.scores["logme"]):
        assert np.array_equal(find(part), find(metatask)[:2, :4])
    assert [one.task for one in part.embeddings["net robust"]][:2] == ["e0", "e1"]
    assert np.array_equal(part.domains["net"][:2], metatask.domains["net"][:2])
    assert len(metatask.subset(repeats=True).models) == 5
    refuse(UsageError, "taxa, labels", metatask.subset, family="c")


def test_damage_is_named_and_rows_that_do_not_fit_are_refused(metatask, tmp_path):
    file = metatask.save(tmp_path / "m.safetensors")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    for path, message in ((file, "SHA-256"), (tmp_path / "none", "not a meta-task")):
        refuse(DataError, message, load_metatask, path)
    for wrong, message in (
        ({"shares_images": np.zeros((3, 2))}, r"'shares_images' of the meta-task 'small' has the shape \(3, 2\)"),
        ({"errors": metatask.errors * 100}, "from 0 to 1"),
        ({"tasks": metatask.tasks[:1] * 3}, "the task 'birds' occurs 3 times .*own name"),
    ):
        refuse(DataError, message, replace, metatask, **wrong)


def test_embeddings_that_do_not_fit_are_refused_whatever_their_hash(metatask, tmp_path, monkeypatch):
    arrays, header = module._pack_embeddings(metatask.embeddings["net robust"])
    prior, fisher = arrays["prior"], arrays["fisher"]
    wrong = [({"prior": values}, {}) for values in (prior * 0, prior * np.nan, prior[:, :1].copy())]
    wrong += [({"fisher": values}, {}) for values in (fisher[:, :-1].copy(), fisher[:-1])]
    wrong += [({}, each) for each in ({"own": [3] * len(fisher)}, {"shared": None}, {"tasks": header["tasks"][:1]})]
    for own, about in wrong:
        monkeypatch.setattr(module, "_pack_embeddings", lambda _, own=own, about=about: (arrays | own, header | about))
        with pytest.raises(DataError, match="not a meta-task of task2vec, or it is damaged"):
            load_metatask(metatask.save(tmp_path / "m.safetensors"))


def test_the_default_space_is_the_same_in_every_process_with_and_without_embeddings(metatask, tmp_path):
    table = np.zeros((len(metatask.tasks) + len(metatask.source_tasks),) * 2)
    spaces = ("zebra direct", "resnet34 robust", "tf_efficientnet_lite0 robust", "aspen robust")
    known = replace(metatask, embeddings={}, distances=dict.fromkeys(spaces, table))
    file = known.save(tmp_path / "m.safetensors")
    assert load_metatask(file).select("half").space == "tf_efficientnet_lite0 robust"
    assert list(load_metatask(file).distances) == sorted(spaces)
