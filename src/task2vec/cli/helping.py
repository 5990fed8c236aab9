"""How help is laid out: plain words for values, and the options of large commands in groups."""

import re
from typing import Any

from typer.core import TyperCommand

# Commands of more options than this have them in groups: first those that everyone needs, then these.
MOST_IN_ONE = 20
GROUPS: dict[str, tuple[str, ...]] = {
    "Tables": ("path_column", "label_column", "root"),
    "Published datasets": ("task_name", "task_names", "kind", "layout", "draw", "labels", "one_vs_rest"),
    "Probe": ("probe", "weights", "size", "download"),
    "What changes the numbers": (
        *("method", "epochs", "max_samples", "split_half", "rel_tol", "l2", "beta", "seed", "dtype"),
        *("recipe", "draws"),
    ),
    "Speed and memory": ("device", "num_workers", "batch_size", "gigabytes", "backend", "jobs", "threads", "address"),
    "Library": ("library", "no_library", "tags"),
}
# Python's names of types, and what a person writes there.
WORDS = {"str": "TEXT", "int": "N", "float": "NUMBER", "path": "PATH", "Path": "PATH"}
_TYPE = re.compile(r"<(?:list\[)?(str|int|float|path|Path)\]?>")
_CHOICE = re.compile(r"<([^<> ]+)>")


class PlainCommand(TyperCommand):
    """A command whose help is laid out so."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments and options, group by group."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", "Options", *GROUPS)}
        params = self.get_params(ctx)
        is_large = sum(param.param_type_name == "option" for param in params) > MOST_IN_ONE
        groups = {name: group for group, names in GROUPS.items() for name in names} if is_large else {}
        for param in params:
            if (record := param.get_help_record(ctx)) is None:
                continue
            words, told = record
            if param.param_type_name == "argument":
                sections["Arguments"].append((_TYPE.sub("", words).strip(), told))
            else:
                sections[groups.get(param.name or "", "Options")].append((word_values(words), told))
        for name, rows in sections.items():
            if rows:
                with formatter.section(name):
                    formatter.write_dl(rows)


def word_values(words: str) -> str:
    """An option with its value as a person would write it.

    Example:
        >>> word_values("--tag <list[str]>"), word_values("--fisher <exact|fast>")
        ('--tag TEXT', '--fisher exact|fast')
    """
    return _CHOICE.sub(r"\1", _TYPE.sub(lambda found: WORDS[found[1]], words))
