"""What the tables and figures about choosing an expert have in common: settings, names, and how they are kept."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.outcome import write_figure, write_rows
from experiments.property_claims import Claim
from task2vec.experts.metatask import MetaTask
from task2vec.plots import shorten, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from task2vec.experts.metatask import MetaTask

# The probe of the paper; the offline one stands beside it.
PROBES = ("resnet34", "tf_efficientnet_lite0")
PROBE, METHOD = "resnet34", "robust"
# Colours that the colour-blind can tell apart, the same for one thing in all pictures.
SELECTED, PAPERS, GENERIC = "#d55e00", "#e69f00", "#0072b2"
DATASETS = {
    "cub200": "#0072b2",
    "flowers102": "#a8327d",
    "dogs": "#773311",
    "cifar10": "#00505e",
    "clothing10": "#2f2a9c",
    "dtd10": "#5f6b76",
}

# Samples of tasks behind every interval.
RESAMPLES = 10_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """One comparison: the tasks of a family by one training size.

    Attributes:
        family: of the tasks.
        protocol: "half" of the images for training, or how many of each class.
    """

    family: str
    protocol: str

    def __str__(self) -> str:
        """The comparison in words."""
        return f"{self.family}, {'half of the images' if self.protocol == 'half' else f'{self.protocol} per class'}"


@dataclass(frozen=True)
class Made:
    """What a table or figure leaves behind.

    Attributes:
        files: that were written.
        claims: what it says to the paper's sentences.
        text: the table in Markdown, where there is one.
        missing: what could not be made, and how to get it.
    """

    files: list[Path] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    text: str = ""
    missing: list[str] = field(default_factory=list)


def list_settings(measured: MetaTask) -> list[Setting]:
    """The families of a meta-task by its training sizes, the largest size first."""
    families = dict.fromkeys(task.family for task in measured.tasks)
    sizes = [part.removeprefix("train ") for name in measured.protocols for part in name.split(", ") if "train" in part]
    ordered = sorted(dict.fromkeys(sizes), key=lambda size: -math.inf if size == "half" else -float(size))
    return [Setting(family, size) for family in families for size in ordered]


def list_spaces(measured: MetaTask) -> list[str]:
    """The probes and methods ("resnet34 robust") that tasks have distances by, those of the paper's method first."""
    names = dict.fromkeys([*measured.distances, *measured.embeddings])
    first = [f"{probe} {METHOD}" for probe in PROBES]
    return sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name))


def choose_space(measured: MetaTask) -> tuple[str, str]:
    """The probe and method of the figures: the paper's, or else the first that there is."""
    return split_space(list_spaces(measured)[0])


def split_space(name: str) -> tuple[str, str]:
    """The probe and the method of a space.

    Example:
        >>> split_space("resnet34 robust")
        ('resnet34', 'robust')
    """
    probe, _, method = name.rpartition(" ")
    return probe, method


def gather(measured: MetaTask, setting: Setting, space: tuple[str, str] | None = None) -> "MetaTask":
    """The evidence of one comparison by one probe and method."""
    rows = [row for row, task in enumerate(measured.tasks) if task.family == setting.family]
    return gather_all(measured, setting.protocol, space or choose_space(measured)).only(rows)


@lru_cache(maxsize=32)
def gather_all(measured: MetaTask, protocol: str, space: tuple[str, str]) -> "MetaTask":
    """The evidence of all families at once; kept, for where distances are not in the bundle they take seconds."""
    return measured.select(protocol, probe=space[0], method=space[1])


def word_task(name: str) -> str:
    """The name of a task or an expert in a picture: without the dataset, which its colour tells.

    Example:
        >>> word_task("cub_Icteridae"), word_task("birds: hue"), word_task("label: family Parulidae or not")
        ('Icteridae', 'hue', 'Parulidae or not')
    """
    for start in ("cub_", "flowers_", "dogs_", "birds: ", "label: "):
        name = name.removeprefix(start)
    if name.endswith(" or not"):
        name = name.removeprefix("family ").removeprefix("order ")
    return shorten(name, 24)


def colour_datasets(datasets: Sequence[str]) -> dict[str, str]:
    """A colour for every dataset, that of a stranger from what is left."""
    from task2vec.plots import COLOURS

    known = {name: DATASETS[name] for name in dict.fromkeys(datasets) if name in DATASETS}
    spare = [colour for colour in COLOURS if colour not in known.values()]
    others = [name for name in dict.fromkeys(datasets) if name not in known]
    return known | {name: spare[number % len(spare)] for number, name in enumerate(others)}


def write_outcome(
    folder: Path, name: str, *, rows: Sequence[Row], numbers: Mapping[str, Any], figure: "Figure | None" = None
) -> list[Path]:
    """The figure as `name`.png and .pdf, its rows as .csv, and its numbers as .json."""
    pictures = [] if figure is None else write_figure(figure, folder, name)
    path = folder / f"{name}.json"
    write_file(path, (json.dumps(_plain(numbers), indent=1, allow_nan=False) + "\n").encode())
    return [*pictures, write_rows(rows, folder, name), path]


def write_claims(made: Sequence[Made], folder: Path) -> Made:
    """All claims with their verdicts as a table and in Markdown."""
    rows = [asdict(claim) for one in made for claim in one.claims]
    cells = [[row["claim"], row["measured"], row["verdict"]] for row in rows]
    text = write_markdown(["claim", "measured", "verdict"], cells)
    return Made([write_rows(rows, folder, "claims"), write_text(folder, "claims.md", text)])


def write_text(folder: Path, name: str, text: str) -> Path:
    """A text with a line end after it."""
    write_file(folder / name, f"{text}\n".encode())
    return folder / name


def write_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(write_markdown(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def _plain(value: Any) -> Any:
    """What JSON knows: NaN becomes null, numbers keep six digits."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(each) for each in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
