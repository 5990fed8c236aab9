"""Experts on disk: safetensors under the names that the network's own library gives to its weights.

So a file serves two masters: we read its story (the metadata) and get an expert with its preprocessing and the task
that it was trained on; timm and torchvision read its tensors and get a classifier. A pause in the middle of a training
is kept in the same format, with the momentum beside the weights.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from task2vec.errors import ResourceError, WeightsError, WeightsNotFoundError
from task2vec.storage import write_whole

SUFFIX = ".expert.safetensors"
PAUSED = ".training"
SCHEMA = 1
_LARGEST_STORY = 64 << 20


def write_tensors(path: Path, tensors: Mapping[str, Tensor], story: Mapping[str, Any]) -> None:
    """Writes tensors and their story to `path`, whole or not at all."""
    text = json.dumps({"schema": SCHEMA, **story}, sort_keys=True, allow_nan=False)
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    envelope = json.dumps({"sha256": _hash(text, content), "story": text})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, save_tensors(content, metadata={"task2vec": envelope}))
    except OSError as error:
        raise ResourceError(
            f"the expert cannot be written to '{path}': {error.strerror}. Its training would be lost. Choose another "
            "place: --out FILE"
        ) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and story of a file that `write_tensors` wrote, after checking that nothing has changed since."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsNotFoundError(
            f"cannot read the expert '{path}': {error.strerror}. Without its weights it is only a name. Check the "
            "path, or train it again: task2vec train-expert"
        ) from error
    try:
        tensors = load_tensors(content)
        envelope = _read_envelope(content)
        text = envelope["story"]
        story = json.loads(text)
        is_sound = envelope["sha256"] == _hash(text, tensors) and isinstance(story, dict)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise WeightsError(
            f"'{path}' is not an expert of task2vec, or it is damaged ({type(error).__name__}). Plain weights are "
            "loaded by load_probe(NAME, weights=FILE)."
        ) from error
    if not is_sound or story.get("schema") != SCHEMA:
        raise WeightsError(
            f"'{path}' was changed after it was written, or by another version (schema {story.get('schema')}, this one "
            f"reads {SCHEMA}), so it may be another network. Take a good copy, or train it again: task2vec train-expert"
        )
    return tensors, story


def read_story(path: Path) -> dict[str, Any]:
    """The story alone, without the tensors and unchecked against them: to look at many experts quickly."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _LARGEST_STORY:
                raise ValueError("the header is too long")
            header = file.read(length)
        return json.loads(json.loads(json.loads(header)["__metadata__"]["task2vec"])["story"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsError(
            f"'{path}' is not an expert of task2vec, or cannot be read ({type(error).__name__}). Check the path."
        ) from error


def _read_envelope(content: bytes) -> dict[str, Any]:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return json.loads(header["__metadata__"]["task2vec"])


def _hash(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of tensors with their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
