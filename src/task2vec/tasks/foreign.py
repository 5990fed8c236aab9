"""What is no folder of class folders or table of paths, told by its files: datasets of Hugging Face, and archives."""

import os
from itertools import islice
from pathlib import Path

from task2vec.errors import DataError

# What `save_to_disk` writes; a folder with splits has the first, one split the second.
_SAVED = ("dataset_dict.json", "state.json")
_DATA = (".arrow", ".parquet")
# Entries of a folder that are looked at; data files are few and large.
_ENTRIES = 1000


def refuse_huggingface(place: Path) -> None:
    """Raise `DataError` if a folder in which no image was found holds a dataset of Hugging Face.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "state.json").write_text("{}")
        ...     refuse_huggingface(Path(folder))
        Traceback (most recent call last):
        task2vec.errors.DataError: ... is a Hugging Face dataset (it has state.json), and its images lie inside ...
    """
    signs = [name for name in _SAVED if (place / name).is_file()] or _find_data(place)
    if signs:
        raise _tell(place, f"it has {signs[0]}")


def refuse_embedded_images(place: Path, schema: object, path_column: str) -> None:
    """Raise `DataError` if a Parquet table holds images and not their paths, as those of Hugging Face do.

    Args:
        place: The table.
        schema: Its Arrow schema.
        path_column: The column that should hold paths; where there is one, the rest of the table is not looked at.
    """
    from pyarrow import types

    fields = {field.name: field.type for field in schema}  # type: ignore[attr-defined]
    if path_column in fields and not types.is_struct(fields[path_column]):
        return
    for name, kind in fields.items():
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            raise _tell(place, f"its column {name!r} holds the images themselves")


def _find_data(place: Path) -> list[str]:
    """Data files in the folder or in a folder below it, by their paths."""
    found = []
    for folder in (place, *(place / name for name in _list(place) if (place / name).is_dir())):
        names = (name for name in _list(folder) if os.path.splitext(name)[1].lower() in _DATA)
        found += [str((folder / name).relative_to(place)) for name in names]
    return found


def _list(folder: Path) -> list[str]:
    """The names of the first entries, sorted; none of a folder that may not be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, _ENTRIES))
    except OSError:
        return []


def _tell(place: Path, sign: str) -> DataError:
    return DataError(
        f"{place} is a Hugging Face dataset ({sign}), and its images lie inside of its data files, where a folder of "
        "class folders or a table of paths was expected. In Python: "
        f"task2vec.embed(task2vec.from_huggingface({str(place)!r})). The command line does not read them yet."
    )


def refuse_archive(place: Path) -> None:
    """Raise `DataError` if a plain file is an archive, told by its first bytes."""
    if not place.is_file():
        return
    try:
        with place.open("rb") as file:
            start = file.read(262)
    except OSError:
        return
    if start.startswith(_ARCHIVE_STARTS) or start[257:] == b"ustar":
        raise DataError(
            f"{place} is an archive, and none is unpacked here: it could write anywhere and grow to any size. Unpack "
            "it into an empty folder with a tool of yours, and name the folder that holds the class folders."
        )


# zip, gzip, bzip2, xz, zstd, 7z and rar; a tar says so later.
_ARCHIVE_STARTS = (b"PK\3\4", b"PK\5\6", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"Rar!")
