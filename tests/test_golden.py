"""Numbers that were frozen with recipe 4, and must come out the same until the next one.

`python -m tests.test_golden` writes tests/golden/frozen.json anew: do that only for a change that is meant to move
numbers. On the kind of machine that wrote the file numbers agree to 1e-6; elsewhere rounding moves single filters.
"""

import json
import platform
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import task2vec as t2v
from tests.cases import make_case
from tests.cli.material import read

FILE = Path(__file__).parent / "golden" / "frozen.json"
LIBRARY = FILE.parent / "exported.t2vlib"
METHODS = ("robust", "direct", "variational")
ARRAYS = ("vector", "stderr", "prior")
LITE = "tf_efficientnet_lite0 at 64 pixels"
PROBES = {LITE: lambda: t2v.load_probe(size=64), "odd": lambda: make_case("odd")}
DISTANCES = ("symmetric", "asymmetric", "cosine", "euclidean", "correlation", "log_euclidean")
DISTANCES += ("centred_log_euclidean", "jeffreys", "kl", "jensen_shannon")
EVALUATE = ["evaluate", "--strategy", "symmetric"]
# Of these, the weights of the first are on every machine.
CANDIDATES = ("tf_efficientnet_lite0", "torchvision:mobilenet_v2", "resnet50.tv_in1k", "convnext_tiny.in12k_ft_in1k")
# The bundled models have no source tasks, which the strategy "symmetric" needs; these experts have.
EXPERTS = FILE.parents[2] / "experiments" / "metatask" / "experts.safetensors"
MACHINE = f"{platform.machine()} {torch.__version__} {torch.backends.cpu.get_cpu_capability()}"


def project(values: np.ndarray) -> list[float]:
    """Sixteen random projections and the sum: they move if any of the numbers does."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(16, len(values)))
    return [float(values.sum()), *(signs @ values).tolist()]


@cache
def embed_sample(probe: str, method: str, number: int) -> t2v.Embedding:
    """The embedding of one of two tasks; it is computed once."""
    training = t2v.VariationalSettings(epochs=1, head_epochs=1, draws=64)
    settings = t2v.EmbedSettings(method=method, variational=training)
    return t2v.embed(t2v.sample_tasks(images_per_task=24)[number], PROBES[probe](), settings=settings, device="cpu")


def freeze_embeddings() -> dict:
    frozen = {}
    for probe, method, number in product(PROBES, METHODS, (0, 1)):
        embedding = embed_sample(probe, method, number)
        frozen[f"{probe}, {method}, {embedding.task}"] = {name: project(getattr(embedding, name)) for name in ARRAYS}
    return frozen


def freeze_distances() -> dict:
    known = t2v.bundled_metatask().embeddings["resnet34 robust"][:6]
    return {kind: np.asarray(t2v.distance.pairwise(known, kind, device="cpu").values).tolist() for kind in DISTANCES}


def freeze_commands(folder: Path) -> dict:
    """What the commands print as JSON, of two small folders in a new library."""
    for number, task in enumerate(t2v.sample_tasks(images_per_task=24)[:2]):
        for row, target in enumerate(task.targets.tolist()):
            path = folder / f"task{number}" / task.classes[target] / f"{row:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            task.images.load(row).save(path)
    library = ["--library", folder / "library"]
    known = t2v.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0]
    known.save(folder / "known.t2v.safetensors")
    commands = {
        "embed": ["embed", folder / "task0", "--size", "32", *library],
        "nearest": ["nearest", "task0", *library],
        "recommend": ["recommend", folder / "known.t2v.safetensors", "--no-library", "--model", ",".join(CANDIDATES)],
        "evaluate labels": [*EVALUATE, "--kind", "labels", "--evidence", EXPERTS],
    }
    read("embed", folder / "task1", "--size", "32", *library)
    return {name: read(*words) for name, words in commands.items()}


def export_library(folder: Path) -> Path:
    """An exported library with two small embeddings, a tag, an expert and an error."""
    with t2v.Library.open(folder / "exported") as library:
        library.add(embed_sample("odd", "robust", 0), tags=["sample"], source="tests")
        library.add(embed_sample("odd", "robust", 1))
        library.export(LIBRARY)
    return LIBRARY


# Times, places, keys (which hash the names of settings) and sentences.
VOLATILE = {"seconds", "library", "written", "key", "versions", "verdict", "why", "notes", "known", "load", "words"}
VOLATILE |= {"is_here"}


def flatten(value, path: str = "") -> dict:
    """Every number, text and length in a JSON document by its path."""
    if isinstance(value, dict):
        items = {f".{name}": item for name, item in value.items() if name not in VOLATILE}
    elif isinstance(value, list):
        items = {f"[{index}]": item for index, item in enumerate(value)} | {".length": len(value)}
    else:
        return {path: value}
    return {key: leaf for name, item in items.items() for key, leaf in flatten(item, path + name).items()}


def check_same(name: str, new) -> None:
    """Asserts that a command prints all that it printed, floats up to a tolerance; it may print more."""
    printed = flatten(new)
    tolerance = 1e-6 if IS_SAME_MACHINE else 0.2
    for path, leaf in flatten(FROZEN["commands"][name]).items():
        expected = pytest.approx(leaf, rel=tolerance, abs=1e-9) if isinstance(leaf, float) else leaf
        assert path in printed and printed[path] == expected, name + path


FROZEN = json.loads(FILE.read_text()) if FILE.exists() else {}
IS_SAME_MACHINE = FROZEN.get("machine") == MACHINE


QUICK = [*(("odd", method, (0, 1)) for method in METHODS), (LITE, "robust", (0,))]
LONG = [pytest.param(LITE, method, (0, 1), marks=pytest.mark.long) for method in METHODS]


@pytest.mark.parametrize(("probe", "method", "numbers"), [*QUICK, *LONG])
def test_embeddings_are_as_they_were(probe, method, numbers):
    tolerance = 1e-6 if IS_SAME_MACHINE else 0.05
    for embedding in (embed_sample(probe, method, number) for number in numbers):
        frozen = FROZEN["embeddings"][f"{probe}, {method}, {embedding.task}"]
        for name in ARRAYS:
            values = getattr(embedding, name)
            assert project(values) == pytest.approx(frozen[name], abs=tolerance * np.abs(values).sum()), name


def test_distances_are_as_they_were():
    for kind, values in freeze_distances().items():
        np.testing.assert_allclose(values, FROZEN["distances"][kind], rtol=1e-6, atol=1e-7, err_msg=kind)


def test_commands_print_what_they_printed(tmp_path):
    for name, printed in freeze_commands(tmp_path).items():
        check_same(name, printed)


@pytest.mark.long
def test_strategies_on_the_whole_bundle_are_as_they_were():
    check_same("evaluate", read(*EVALUATE))


def test_an_exported_library_is_read_as_it_was_written(tmp_path):
    with t2v.Library.open(tmp_path / "new") as library:
        library.merge(LIBRARY)
        assert library.task("digits").tags == ("sample",)
        for embedding in (embed_sample("odd", "robust", number) for number in (0, 1)):
            np.testing.assert_allclose(library.get(embedding.task).vector, embedding.vector, rtol=1e-5)


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        frozen = {
            "machine": MACHINE,
            "embeddings": freeze_embeddings(),
            "distances": freeze_distances(),
            "commands": freeze_commands(Path(scratch)) | {"evaluate": read(*EVALUATE)},
        }
        export_library(Path(scratch))
    FILE.write_text(json.dumps(frozen, indent=1) + "\n")
