"""Embeddings on disk: safetensors, one JSON text beside the tensors, and a SHA-256 over both.

safetensors itself loads a flipped byte or a NaN without a word, hence the hash and the checks. The same embedding gives
the same bytes: nothing of the moment is written, and the metadata is a single entry (the format keeps
several in no fixed order).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from task2vec.embedding.value import Embedding
from task2vec.errors import DataError, EmbeddingFileError, ResourceError
from task2vec.probe import FilterLayer
from task2vec.storage import write_whole

SCHEMA = 1
_ARRAYS = ("fisher", "prior", "stderr")
_LARGEST = 1 << 30


def save_embedding(embedding: Embedding, path: str | Path) -> Path:
    """Writes `embedding` to `path`, whole or not at all."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, encode_embedding(embedding))
    except OSError as error:
        raise ResourceError(
            f"cannot write the embedding to '{path}': {error.strerror}. Nothing was left behind. Choose another "
            "place: --out FILE"
        ) from error
    return path


def encode_embedding(embedding: Embedding) -> bytes:
    """The embedding as the content of a file."""
    arrays = {name: getattr(embedding, name) for name in _ARRAYS}
    if embedding.halves is not None:
        arrays["halves"] = embedding.halves
    story = {
        "schema": SCHEMA,
        "task": embedding.task,
        "probe": embedding.probe,
        "layers": [list(asdict(layer).values()) for layer in embedding.layers],
        "provenance": embedding.provenance,
    }
    text = json.dumps(story, sort_keys=True, allow_nan=False)
    return save_tensors(
        arrays, metadata={"task2vec": json.dumps({"sha256": hash_content(text, arrays), "story": text})}
    )


def load_embedding(path: str | Path) -> Embedding:
    """The embedding saved at `path`, after checking format, schema, hash and values.

    Example:
        >>> import numpy as np, tempfile
        >>> layer = FilterLayer("conv", "convolution", 2, 9, 0.1)
        >>> one = np.ones(2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Embedding("birds", "net", one, one, one, (layer,)).save(f"{folder}/birds.t2v.safetensors")
        ...     load_embedding(file)
        Embedding(birds, probe=net, 2 filters, ? images)
    """
    return decode_embedding(_read(Path(path)), path)


def decode_embedding(content: bytes, path: str | Path) -> Embedding:
    """The embedding that `content` is; `path` is where that came from, for the words of an error."""
    try:
        arrays = load_tensors(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        envelope = json.loads(header["__metadata__"]["task2vec"])
        text = envelope["story"]
        story = json.loads(text)
        schema, found = story["schema"], hash_content(text, arrays)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EmbeddingFileError(
            f"'{path}' is not an embedding of task2vec, or it is damaged ({type(error).__name__}). "
            f"Nothing in it can be trusted. Embed the task again: task2vec embed FOLDER"
        ) from error
    if schema != SCHEMA:
        wish = (
            "upgrade: pip install -U task2vec"
            if isinstance(schema, int) and schema > SCHEMA
            else "embed the task again"
        )
        raise EmbeddingFileError(
            f"'{path}' has schema {schema}, and this version reads {SCHEMA}: its numbers may mean something else; "
            f"{wish}."
        )
    if set(arrays) - {"halves"} != set(_ARRAYS) or envelope.get("sha256") != found:
        raise EmbeddingFileError(
            f"'{path}' was changed after it was saved: its SHA-256 does not fit its content. "
            f"Take a good copy, or embed the task again: task2vec embed FOLDER"
        )
    try:
        layers = tuple(FilterLayer(*fields) for fields in story["layers"])
        return Embedding(
            story["task"],
            story["probe"],
            arrays["fisher"],
            arrays["stderr"],
            arrays["prior"],
            layers,
            story["provenance"],
            arrays.get("halves"),
        )
    except (DataError, KeyError, TypeError, AttributeError) as error:
        raise EmbeddingFileError(
            f"'{path}' does not hold a sound embedding ({error}). Embed the task again: task2vec embed FOLDER"
        ) from error


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST:
            raise EmbeddingFileError(
                f"'{path}' has {path.stat().st_size} bytes; no embedding is larger than {_LARGEST}. It is something "
                "else."
            )
        return path.read_bytes()
    except OSError as error:
        raise EmbeddingFileError(
            f"cannot read '{path}': {error.strerror}. Check the path, or embed the task: task2vec embed FOLDER"
        ) from error


def hash_content(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a text and of arrays with their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
