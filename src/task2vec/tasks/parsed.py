"""Parsed catalogues on disk, so that half a minute of JSON is spent once.

One safetensors file per dataset and reader, in the user's cache folder. It holds arrays and one JSON text, and a
SHA-256 over both. It is only believed if it was made by this version of the reader from annotation files of the same
place, size and time of change; what is damaged, old or foreign is passed over and written anew. A folder that cannot be
written is no error: the dataset is then parsed each time.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import time

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from task2vec.errors import DataError
from task2vec.tasks.catalogue import Catalogue
from task2vec.tasks.definitions import Splits, TaskDefinition
from task2vec.tasks.label_tables import AttributeTable, ClassTable, LabelTable
from task2vec.tasks.paths import Paths
from task2vec.tasks.taxonomy import Taxonomy

# Counts up when the form below changes; readers count their own versions.
FORMAT = 1
# Temporary files of a writer that died; none is written for so long.
_ORPHAN_SECONDS = 3600


def parse_once(
    parse: Callable[[], Catalogue],
    *,
    reader: str,
    files: Sequence[Path],
    options: Mapping[str, object] | None = None,
    cache: bool = True,
) -> Catalogue:
    """What `parse` gives, from the cache if nothing has changed since it was put there.

    Args:
        parse: Reads the annotation files.
        reader: The reader's name and version, such as "inaturalist 1"; another version parses again.
        files: Every file that `parse` reads.
        options: The arguments that change what it gives, as JSON knows them.
        cache: False reads and writes no cache.

    Example:
        >>> import tempfile
        >>> from task2vec.tasks.definitions import define_attributes
        >>> def parse():
        ...     print("parsing")
        ...     table = AttributeTable.pack(np.array([[1], [0]], bool), ("red",))
        ...     splits = Splits(np.zeros(2, np.uint8), ("train",))
        ...     tasks = define_attributes(table, splits)
        ...     return Catalogue("hats", Path("."), ["1.jpg", "2.jpg"], splits, {"labels": table}, tasks)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "hats.txt")
        ...     _ = file.write_text("1 red")
        ...     parse_once(parse, reader="hats 1", files=[file], cache=False)
        parsing
        Catalogue(hats, 2 images, train, tasks: 1 attribute)
    """
    folder = find_cache_folder() if cache else None
    if folder is None:
        return parse()
    which = json.dumps([reader, options, [os.path.abspath(file) for file in files]], sort_keys=True)
    place = folder / f"{_hash_text(which)[:40]}.safetensors"
    key = _make_key(reader, files, options)
    known = _load(place, key)
    if known is not None:
        return known
    catalogue = parse()
    if _make_key(reader, files, options) == key:  # nobody wrote to them meanwhile
        _save(catalogue, place, key)
    return catalogue


def find_cache_folder() -> Path | None:
    """The folder of parsed catalogues, which may not be there yet; None where there is no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "task2vec" / "catalogues"


def _make_key(reader: str, files: Sequence[Path], options: Mapping[str, object] | None) -> str:
    """SHA-256 of all that decides what parsing gives."""
    try:
        states = [[os.path.abspath(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}). Check the dataset's folder.") from error
    return _hash_text(json.dumps([FORMAT, reader, options, states], sort_keys=True))


def _save(catalogue: Catalogue, place: Path, key: str) -> None:
    """Writes a catalogue, whole or not at all; where nothing can be written, nothing is."""
    arrays, story = _take_apart(catalogue)
    text = json.dumps(story)
    envelope = json.dumps({"key": key, "sha256": _hash_content(text, arrays), "story": text})
    temporary = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place.parent)
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=".partial")
        os.close(handle)
        save_file(arrays, temporary, metadata={"task2vec": envelope})
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except (OSError, SafetensorError):
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def _load(place: Path, key: str) -> Catalogue | None:
    """The catalogue saved at `place` under `key`; None if there is none that can be trusted."""
    try:
        with safe_open(place, framework="numpy") as file:
            envelope = json.loads(file.metadata()["task2vec"])
            if envelope["key"] != key:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if envelope["sha256"] != _hash_content(envelope["story"], arrays):
            return None
        return _put_together(arrays, json.loads(envelope["story"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _take_apart(catalogue: Catalogue) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """The arrays of a catalogue, and all else as JSON knows it."""
    paths = catalogue.paths if isinstance(catalogue.paths, Paths) else Paths.pack(catalogue.paths)
    arrays = {"path_bytes": paths.content, "path_ends": paths.ends, "splits": catalogue.splits.codes}
    tables: dict[str, dict[str, object]] = {}
    for number, (name, table) in enumerate(catalogue.tables.items()):
        if isinstance(table, ClassTable):
            arrays[f"classes {number}"] = table.numbers
            tables[name] = {"names": table.names}
        else:
            arrays[f"positive {number}"] = table.positive
            if table.known is not None:
                arrays[f"known {number}"] = table.known
            tables[name] = {"names": table.names, "groups": table.groups}
    tree = catalogue.taxonomy
    story = {
        "name": catalogue.name,
        "root": str(catalogue.root),
        "splits": catalogue.splits.names,
        "tables": tables,
        "definitions": [asdict(one) for one in catalogue.definitions],
        "sources": catalogue.sources,
        "taxonomy": None if tree is None else [tree.ranks, dict(tree.lineages), tree.root],
        "warnings": catalogue.warnings,
    }
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}, story


def _put_together(arrays: Mapping[str, np.ndarray], story: dict) -> Catalogue:
    """The catalogue of arrays and story; whatever does not fit is refused by its parts."""
    tables: dict[str, LabelTable] = {}
    for number, (name, told) in enumerate(story["tables"].items()):
        names = tuple(told["names"])
        if "groups" in told:
            bits = arrays[f"positive {number}"], arrays.get(f"known {number}")
            tables[name] = AttributeTable(*bits, names, tuple(told["groups"]))
        else:
            tables[name] = ClassTable(arrays[f"classes {number}"], names)
    definitions = (
        TaskDefinition(**{**one, "classes": tuple(one["classes"]), "members": tuple(one["members"])})
        for one in story["definitions"]
    )
    tree = story["taxonomy"]
    lineages = {} if tree is None else {leaf: tuple(lineage) for leaf, lineage in tree[1].items()}
    return Catalogue(
        story["name"],
        Path(story["root"]),
        Paths(arrays["path_bytes"], arrays["path_ends"]),
        Splits(arrays["splits"], tuple(story["splits"])),
        tables,
        tuple(definitions),
        tuple(story["sources"]),
        None if tree is None else Taxonomy(tuple(tree[0]), lineages, tree[2]),
        tuple(story["warnings"]),
    )


def _sweep(folder: Path) -> None:
    """Removes what writers left behind that were killed."""
    for orphan in folder.glob(".*.partial"):
        if time() - orphan.stat().st_mtime > _ORPHAN_SECONDS:
            orphan.unlink(missing_ok=True)


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _hash_content(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a text and of arrays with their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()
