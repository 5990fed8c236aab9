"""Which group each task of a map belongs to: a table of the user's, the folder of its file, or a fact of its making."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from task2vec.errors import DataError, ResourceError, UsageError

if TYPE_CHECKING:
    from task2vec.embedding import Embedding

FOLDER, NO_GROUP = "folder", "(no group)"


def choose_groups(wish: str | None, files: Sequence[Path], embeddings: "Sequence[Embedding]") -> list[str] | None:
    """One group per task; without a wish the folders of the files, if there are several."""
    folders = [file.resolve().parent.name for file in files]
    if wish is None:
        return folders if len(set(folders)) > 1 else None
    if wish == FOLDER:
        return folders
    table, _, column = wish.rpartition(":") if not wish.endswith(".csv") and ".csv:" in wish else (wish, "", "")
    if table.endswith(".csv"):
        known = read_groups(Path(table), column=column or None)
        return [known.get(embedding.task, NO_GROUP) for embedding in embeddings]
    return _read_story(wish, embeddings)


def read_groups(table: Path, *, column: str | None = None) -> dict[str, str]:
    """The group of each task of a CSV table with a column `task` and one of groups.

    Args:
        table: the file, UTF-8.
        column: which column holds the groups; `group` by default, or the only other one.
    """
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ResourceError(
            f"cannot read '{table}': {error.strerror}. It should say which group each task belongs to. "
            "Name a CSV file with the columns task and group: --group FILE.csv"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"'{table}' is not a table in UTF-8 ({error}), so the groups in it cannot be read. Save it as CSV (UTF-8)."
        ) from error
    columns = [name for name in rows[0] if name] if rows else []
    others = [name for name in columns if name != "task"]
    chosen = column or ("group" if "group" in others else others[0] if len(others) == 1 else None)
    if "task" not in columns or chosen not in columns:
        raise DataError(
            f"'{table}' has the columns {', '.join(columns) or 'none'}, and it takes one named task and one of groups"
            f"{f' named {column}' if column else ''}. Add them, or say which it is: --group {table}:COLUMN"
        )
    return {row["task"]: row[chosen] or NO_GROUP for row in rows if row["task"]}


def _read_story(key: str, embeddings: "Sequence[Embedding]") -> list[str]:
    """A fact that every embedding tells of its making, as its probe's name or whether it has several labels."""
    told = [{"probe": one.probe, **one.provenance} for one in embeddings]
    plain = [{name for name, value in story.items() if isinstance(value, str | int | float)} for story in told]
    common = set.intersection(*plain)
    if key not in common:
        raise UsageError(
            f"--group {key} is neither a CSV file nor something that all embeddings tell, so there is nothing to "
            f"colour by. Use a file with the columns task and group, or one of: {FOLDER}, {', '.join(sorted(common))}."
        )
    return [str(story[key]) for story in told]
