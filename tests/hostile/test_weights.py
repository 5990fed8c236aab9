"""S1: files that run code when they are opened carelessly are refused by content, and nothing in them runs."""

import io
import os
import pickle
import zipfile
from contextlib import suppress

import joblib
import numpy as np
import pytest
import safetensors.torch
import torch

from task2vec.embedding import load_embedding
from task2vec.errors import EmbeddingFileError, NotFiniteError, Task2VecError, WeightsError, WeightsNotFoundError
from task2vec.probe import load_probe, read_weights
from tests.failures import refuse

TORCH, PICKLES = ("torch zip", "torch legacy", "zip of a pickle"), ("pickle 0", "pickle 2", "pickle 5")
FORMATS = (*TORCH, *PICKLES, "joblib", "joblib packed", "npy", "npz")
ENDINGS = (".pt", ".pth", ".pkl", ".joblib", ".npy", ".bin", ".safetensors")


class Bomb:
    """Leaves a canary when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch '{self.canary}'",)


def arm(path, kind, canary):
    """Writes a bomb of this kind."""
    bomb = {"state_dict": {"conv1.weight": torch.ones(3), "more": Bomb(canary)}}
    buffer = io.BytesIO()
    if kind.startswith("torch"):
        torch.save(bomb, buffer, _use_new_zipfile_serialization=kind == "torch zip")
    elif kind.startswith("pickle"):
        pickle.dump({"w": [1.0, 2.0], "more": Bomb(canary)}, buffer, protocol=int(kind[-1]))
    elif kind.startswith("joblib"):
        joblib.dump({"more": Bomb(canary)}, buffer, compress=3 if "packed" in kind else 0)
    elif kind == "npy":
        np.save(buffer, np.array([Bomb(canary)], dtype=object), allow_pickle=True)
    elif kind == "npz":
        np.savez(buffer, w=np.array([Bomb(canary)], dtype=object))
    else:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Bomb(canary)))
            archive.writestr("archive/version", "3\n")
    path.write_bytes(buffer.getvalue())
    return path


@pytest.fixture
def canary(tmp_path):
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "code from a file was run"


@pytest.mark.parametrize("kind", FORMATS)
def test_bombs_are_refused_whatever_their_name(tmp_path, canary, kind):
    for ending in ENDINGS:
        path = arm(tmp_path / f"weights{ending}", kind, canary)
        refuse(WeightsError, "weights", read_weights, path)
        refuse(EmbeddingFileError, "not a task2vec embedding", load_embedding, path)
    refuse(WeightsError, None, load_probe, "test_resnet", weights=path)


def test_the_bombs_are_live(tmp_path):
    """Opened carelessly each of them goes off: or the tests above would show nothing."""
    for kind, open_carelessly in (
        *((kind, lambda path: torch.load(path, weights_only=False)) for kind in TORCH[:2]),
        ("pickle 2", lambda path: pickle.loads(path.read_bytes())),
        ("joblib", joblib.load),
        ("npy", lambda path: np.load(path, allow_pickle=True)),
    ):
        canary = tmp_path / f"canary of {kind}"
        open_carelessly(arm(tmp_path / "x.pt", kind, canary))
        assert canary.exists(), kind


def test_a_bomb_in_the_hub_cache_is_refused(tmp_path, canary, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    arm(folder / "snapshots" / "abc" / "pytorch_model.bin", "torch zip", canary)
    refuse(WeightsError, "could run code", load_probe, "test_resnet")


def test_garbage_is_refused_and_mutated_archives_never_do_more_than_fail(tmp_path, canary):
    """Flipped bytes in good files give tensors or one of our own errors, never anything else."""
    rng = np.random.default_rng(0)
    good = safetensors.torch.save({"weight": torch.ones(5)})
    bomb = arm(tmp_path / "x", "torch zip", canary).read_bytes()
    contents = [b"", b"\x80", b"\x80\x04", b"PK\x03\x04", b"{", b"\0" * 8, (1 << 62).to_bytes(8, "little")]
    contents += [good[:-1], good[:9], good + b"x", good + bomb, bomb + good]
    contents += [bytes(rng.integers(0, 256, int(n), dtype=np.uint8)) for n in rng.integers(1, 200, 40)]
    for content in contents:
        (tmp_path / "x.safetensors").write_bytes(content)
        refuse(WeightsError, r"x\.safetensors", read_weights, tmp_path / "x.safetensors")
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(5)}, buffer)
    for whole in 150 * (buffer.getvalue(), good):
        changed = bytearray(whole)
        for position in rng.integers(0, len(whole), 3):
            changed[position] = rng.integers(0, 256)
        (tmp_path / "x").write_bytes(changed)
        with suppress(Task2VecError):
            assert all(isinstance(tensor, torch.Tensor) for tensor in read_weights(tmp_path / "x").values())


def test_what_holds_no_finite_named_tensors_is_refused(tmp_path):
    for name, value in (("layer1.nan", np.nan), ("layer2.inf", np.inf)):
        tensors = {"good": torch.ones(2), name: torch.tensor([1.0, value])}
        safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
        torch.save(tensors, tmp_path / "x.pth")
        for file in ("x.safetensors", "x.pth"):
            refuse(NotFiniteError, name, read_weights, tmp_path / file)
    for content in ([torch.ones(2)], torch.ones(2), {"w": 3}, {}, {"state_dict": {}}, "text"):
        torch.save(content, tmp_path / "x.pth")
        refuse(WeightsError, r"model\.state_dict\(\)", read_weights, tmp_path / "x.pth")
    for path in (tmp_path / "missing.pth", tmp_path):
        refuse(WeightsNotFoundError, "--weights FILE", read_weights, path)
