"""Options that several commands share, each defined once; groups of them; and the layout of help texts."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option
from typer.core import TyperCommand

DEFAULT_PROBE = "tf_efficientnet_lite0"
Datasets = Literal["folder", "cub200", "cub200-paper", "inaturalist", "imaterialist", "deepfashion"]
Separators = Literal["comma", "semicolon", "tab", "pipe", "space"]
MAX_IMAGES = "Published dataset: use at most N random images per task."
BACKEND = "Run in this process, or on Ray: all cores and GPUs, or the cluster of RAY_ADDRESS."
LIBRARY = "Library folder. Default: TASK2VEC_LIBRARY, or your user data folder."
SHOTS = "Train on half of the images, or N per class."
LICENSE = "Only weights with these licences, e.g. permissive or mit,apache-2.0."
PATTERN = "Folder: regular expression on the path; its first group is the label."
GROUP = "Column, or regular expression on the path: images to keep in one fold, e.g. of a patient."
EVIDENCE = "Measured errors to use. Default: the bundled ones and your library."

# Arguments.
AllPaths = Annotated[list[Path], Argument(metavar="PATH", help="Image folders, tables, or published datasets.")]
Folder = Annotated[Path, Argument(metavar="PATH", help="A folder with one subfolder per class, or a table.")]
Query = Annotated[
    str, Argument(metavar="NAME|FILE|PATH", help="A task in the library, an embedding file, or a folder.")
]

# The probe, and settings that change the numbers.
AnyProbe = Annotated[str | None, Option("--probe", metavar="MODEL", help="Only embeddings by this probe.")]
Size = Annotated[int | None, Option(help="Image size in pixels; smaller is faster. Default: the model's.")]
Methods = Literal["robust", "direct", "variational"]
Method = Annotated[Methods | None, Option(help="Fisher estimate; variational needs a GPU. Default: robust.")]
Epochs = Annotated[int | None, Option(help="Training epochs. Default: 10, or as in the recipe.")]
Seed = Annotated[int | None, Option(help="Random seed. Default: 0.")]
Shots = Annotated[str | None, Option(metavar="half|N", help=SHOTS)]
Seeds = Annotated[int, Option(min=1, metavar="N", help="Number of train/test splits.")]
Distance = Annotated[str, Option("--kind", help="Distance: symmetric, asymmetric, cosine, ...")]
Evidence = Annotated[str | None, Option(metavar="bundle|library|FILE", help=EVIDENCE)]

# Settings that do not.
AllowBad = Annotated[bool, Option("--allow-bad", help="Continue if over 5% of the images are unreadable.")]
Offline = Annotated[bool, Option("--offline", help="Only models that are on this machine.")]
Download = Annotated[bool, Option("--download", help="Download weights that are not on this machine.")]

Device = Annotated[str | None, Option(help="cpu or cuda. Default: cuda if available.")]

# Where results go, and what is shown.
LibraryFolder = Annotated[Path | None, Option("--library", metavar="DIR", help=LIBRARY, show_default=False)]
NoLibrary = Annotated[bool, Option("--no-library", help="Do not use the library.")]
Tags = Annotated[list[str] | None, Option("--tag", metavar="TAG", help="Tag to add to the task. Can be repeated.")]
Tag = Annotated[str | None, Option(help="Only tasks with this tag.")]
OutFile = Annotated[Path | None, Option("--out", metavar="FILE", help="Write the table to this CSV file.")]
Out = Annotated[Path, Option(metavar="DIR", help="Folder for the results.")]
Force = Annotated[bool, Option("--force", help="Overwrite existing results.")]
MaxParams = Annotated[str | None, Option(metavar="N", help="At most N parameters per model, e.g. 10M.")]
License = Annotated[list[str] | None, Option("--license", metavar="NAME", help=LICENSE)]
K = Annotated[int, Option("-k", min=1, metavar="N", help="Number of results to print.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON document.")]


@dataclass(frozen=True)
class ProbeOptions:
    """Which probe to load."""

    probe: Annotated[str, Option("--probe", metavar="MODEL", help="A timm model, or torchvision:NAME.")] = DEFAULT_PROBE
    weights: Annotated[Path | None, Option(metavar="FILE", help="Local file with the weights of the probe.")] = None
    size: Size = None
    download: Download = False


@dataclass(frozen=True)
class SettingsOptions:
    """Settings of an embedding; None for the default."""

    method: Method = None
    epochs: Epochs = None
    max_samples: Annotated[int | None, Option(help="Maximum number of (image, label) gradients. Default: 400.")] = None
    split_half: Annotated[bool, Option("--split-half", help="Also embed two halves to estimate noise. Slower.")] = False
    l2: Annotated[float | None, Option("--l2", help="L2 penalty of the head per class. Default: 2e-3.")] = None
    seed: Seed = None
    dtype: Annotated[str | None, Option(help="float32, float64 or bfloat16. Default: float32.")] = None


@dataclass(frozen=True)
class Compute:
    """Where and how the numbers are computed, which does not change them."""

    device: Device = None
    batch_size: Annotated[int | None, Option(help="Images per batch. Default: chosen for the device.")] = None
    backend: Annotated[str, Option(metavar="serial|ray", help=BACKEND)] = "serial"
    jobs: Annotated[int | None, Option(help="Ray: number of workers. Default: one per GPU or core.")] = None

    def __post_init__(self):
        """Refuse a backend that does not exist before anything is read or loaded."""
        from task2vec.parallel import check_backend

        check_backend(self.backend, jobs=self.jobs)


@dataclass(frozen=True)
class Reading:
    """How paths are read as tasks.

    `name` is that of the task, if it is only one, `seed` chooses the images of `max_images`, and `test_split` is the
    split of published datasets that errors are measured on.
    """

    path_column: Annotated[str | None, Option(help="Table: column with the image paths. Default: detected.")] = None
    label_columns: Annotated[list[str] | None, Option(help="Table: label column; repeat it for multi-label.")] = None
    root: Annotated[Path | None, Option(help="Table: folder that paths must not leave. Default: the table's.")] = None
    separator: Annotated[Separators | None, Option(help="Table: what separates cells. Default: detected.")] = None
    header: Annotated[bool | None, Option(help="Table: whether it has one. Default: detected.")] = None
    label_level: Annotated[int | None, Option(help="Folder: level of the folders that are the labels.")] = None
    label_pattern: Annotated[str | None, Option(metavar="REGEX", help=PATTERN)] = None
    group: Annotated[str | None, Option(metavar="COLUMN|REGEX", help=GROUP)] = None
    group_level: Annotated[int | None, Option(help="Folder: level of the folders to keep in one fold.")] = None
    task_names: Annotated[list[str] | None, Option("--task", help="Published dataset: task. Can be repeated.")] = None
    kind: Annotated[str | None, Option(help="Published dataset: all tasks of this kind, e.g. order.")] = None
    layout: Annotated[Datasets | None, Option("--as", help="Dataset format. Default: detected from its files.")] = None
    max_images: Annotated[int | None, Option(help=MAX_IMAGES)] = None
    labels: Annotated[Path | None, Option(help="iMaterialist: CSV file with the names of the labels.")] = None
    one_vs_rest: Annotated[bool, Option("--one-vs-rest", help="Make one binary task per class.")] = False
    split: Annotated[str | None, Option(help="Use only the images of this split: train, val or test.")] = None
    allow_bad: AllowBad = False
    num_workers: Annotated[int | None, Option(help="Threads that decode images. Default: one per core.")] = None
    name: str | None = None
    seed: int = 0
    test_split: str | None = None


# The options of a command that reads one task of the user's own.
OWN = (
    "path_column label_columns root separator header label_level label_pattern group group_level split allow_bad "
    "num_workers"
)


def spell(name: str) -> str:
    """The option of a field, without its dashes."""
    return _SPELLED.get(name, name.replace("_", "-"))


def format_options(*groups: Any) -> str:
    """The options of groups that are not the default, as words of a shell command.

    Example:
        >>> format_options(Reading(label_columns=["is red", "round"], header=False, group="-x", allow_bad=True))
        "--label-columns 'is red' --label-columns round --no-header --group=-x --allow-bad"
    """
    words = []
    for group in groups:
        for name, default in vars(type(group)()).items():
            value = getattr(group, name)
            for item in (value if isinstance(value, list) else [value]) if value != default else ():
                option = f"--{'no-' if item is False else ''}{spell(name)}"
                if isinstance(item, bool):
                    words.append(option)
                else:
                    words.append(f"{option}{'=' if str(item).startswith('-') else ' '}{shlex.quote(str(item))}")
    return " ".join(words)


# Commands with more options than this print them in groups: first those that everyone needs, then these.
MOST_UNGROUPED = 20
GROUPS = {
    "Tables": "path_column label_columns root separator header",
    "Labels and groups": "label_level label_pattern group group_level",
    "Published datasets": "task_names kind layout max_images labels one_vs_rest test_split",
    "Probe": "probe weights size download",
    "Settings that affect the results": "method epochs max_samples split_half l2 seed dtype recipe shots seeds",
    "Speed and memory": "device num_workers batch_size backend jobs",
    "Library": "library no_library tags",
}
# Options that are not spelled like their field.
_SPELLED = {"layout": "as", "task_names": "task"}
_TYPES = {"str": "TEXT", "int": "N", "float": "NUMBER", "path": "PATH"}
_TYPE = re.compile(r"<(?:list\[)?(str|int|float|path)\]?>", re.IGNORECASE)
_CHOICE = re.compile(r"<([^<> ]+)>")


class PlainCommand(TyperCommand):
    """A command whose help shows plain placeholders, and groups of options where there are many."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments without the braces that Typer puts around them."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments and options, group by group."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", "Options", *GROUPS)}
        params = self.get_params(ctx)
        is_large = sum(param.param_type_name == "option" for param in params) > MOST_UNGROUPED
        groups = {name: group for group, names in GROUPS.items() for name in names.split()} if is_large else {}
        for param in params:
            if (record := param.get_help_record(ctx)) is None:
                continue
            spelling, text = record
            if param.param_type_name == "argument":
                sections["Arguments"].append((_TYPE.sub("", spelling).strip(), text))
            else:
                sections[groups.get(param.name or "", "Options")].append((format_placeholder(spelling), text))
        for name, rows in sections.items():
            if rows:
                with formatter.section(name):
                    formatter.write_dl(rows)


def format_placeholder(spelling: str) -> str:
    """An option with a plain placeholder for its value.

    Example:
        >>> format_placeholder("--tag <list[str]>"), format_placeholder("--backend <serial|ray>")
        ('--tag TEXT', '--backend serial|ray')
    """
    return _CHOICE.sub(r"\1", _TYPE.sub(lambda match: _TYPES[match[1].lower()], spelling))
