"""A small folder of pictures, the embedding that the command line makes of it, and a runner."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from task2vec.cli.app import app
from tests.command import SMALL


@pytest.fixture(autouse=True)
def wide_page(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="session")
def call():
    """Run the command in this process; the result has exit_code, stdout and stderr."""
    return lambda *args: CliRunner().invoke(app, [str(argument) for argument in args])


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Two classes of eight noisy pictures, one dark and one bright."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    rng = np.random.default_rng(0)
    for name, level in (("dark", 60), ("bright", 190)):
        (folder / name).mkdir(parents=True)
        for index in range(8):
            pixels = rng.normal(level, 30, (32, 32, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


@pytest.fixture(scope="session")
def embedded(tmp_path_factory, photos, call):
    """The file of the embedded photos."""
    out = tmp_path_factory.mktemp("out") / "photos.t2v.safetensors"
    result = call("embed", photos, "--out", out, *SMALL)
    assert result.exit_code == 0, result.stderr
    return out
