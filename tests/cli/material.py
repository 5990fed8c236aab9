"""Commands run in this process; embeddings made up by hand, with all that a library knows; folders of images."""

import csv
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from typer.testing import CliRunner

import task2vec
from task2vec.cli.app import app
from tests.library.material import make as make_embedding

FILTERS = 30
# Options that make `embed` quick.
SMALL = ("--max-samples", "6", "--l2", "0.01", "--device", "cpu")


def call(*args):
    """Run a command in this process; the result has exit_code, stdout and stderr."""
    return CliRunner().invoke(app, [str(argument) for argument in args])


def read(*args, code=0):
    """Run a command with --json; the document."""
    result = call(*args, "--json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def read_csv(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def refuse(words, *args, code=2):
    """Run a command that must end with a code, these words and no result."""
    result = call(*args)
    assert result.exit_code == code and result.stdout == "", result.output
    assert words in result.stderr and "Traceback" not in result.stderr


def make(name, seed, *, kind=0, probe="net", weights="ab", method="robust", size=64, has_halves=False, noise=0.3):
    """The embedding of a made-up task: those of one kind are alike, those of one seed have the same images."""
    rng = np.random.default_rng([seed, 1])
    fisher = np.exp(np.random.default_rng(kind).normal(size=FILTERS) + noise * rng.normal(size=FILTERS))
    counts = {"images": 100 + seed, "classes": 2, "per_class": [60, 40 + seed], "bad": 0}
    story = {
        "task_fingerprint": hashlib.sha256(str(seed).encode()).hexdigest(),
        "probe_fingerprint": weights * 32,
        "image_size": [size, size],
        "settings": {"method": method, "dtype": "float32", "beta": 1e-7, "balance": True, "seed": 0},
        "classes": ["no", "yes"],
        "counts": counts | {"images_used": 10, "backpropagated": 12},
        "head": {"l2": 0.01, "train_loss": 0.1, "cv_loss": 0.2, "cv_error": 0.25, "has_converged": True},
        "effective_images": 9.0,
        "relative_error": 0.1,
        "warnings": [],
    }
    halves = np.stack([fisher * 1.2, fisher / 1.1]) ** [[1.02], [0.98]] if has_halves else None
    return make_embedding(name, seed, fisher=fisher, prior=1e-6, probe=probe, halves=halves, **story)


def make_known(name):
    """The embedding of a made-up task in the space of the bundled ones, near the first of them."""
    like = task2vec.bundled_metatask().embeddings["tf_efficientnet_lite0 robust"][0]
    space = {key: like.provenance[key] for key in ("probe_fingerprint", "image_size", "settings", "recipe")}
    return replace(like, task=name, fisher=like.fisher * 1.01, provenance=make(name, 30).provenance | space)


def damage(library):
    """Let the file of a library be none, and long enough to be taken for one."""
    Path(library).mkdir(parents=True, exist_ok=True)
    (Path(library) / "library.sqlite").write_bytes(b"not a database" * 400)


def paint(folder, levels, *, seed=0, count=6):
    """A class folder of noisy images for every level of brightness."""
    rng = np.random.default_rng(seed)
    for name, level in levels.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = rng.normal(level, 30, (24, 24, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder
