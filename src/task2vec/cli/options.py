"""Options that several commands share, each defined once; groups of them; and the layout of help texts."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

DEFAULT_PROBE = "tf_efficientnet_lite0"
Datasets = Literal["folder", "cub200", "cub200-paper", "inaturalist", "imaterialist", "deepfashion"]
MAX_IMAGES = "Published dataset: at most this many images of a task, chosen at random."
RECIPE = "Classifier: logistic regression, or that of the paper."
BACKEND = "Compute in this process, in several, or with Ray (the cluster of RAY_ADDRESS)."
LIBRARY = "Folder of the library. Default: TASK2VEC_LIBRARY, or one in your home folder."
EVIDENCE = "Measured errors to use. Default: the bundled ones and your library."
GROUP = "Colors: CSV file with the columns task and group. Default: first tag, or folder of the file."

# Arguments.
Paths = Annotated[list[Path], typer.Argument(metavar="PATH", help="Folders with one folder per class, or tables.")]
AllPaths = Annotated[list[Path], typer.Argument(metavar="PATH", help="Folders, tables, or published datasets.")]
Folder = Annotated[Path, typer.Argument(metavar="PATH", help="A folder with one folder per class, or a table.")]
Query = Annotated[str, typer.Argument(metavar="NAME|FILE|PATH", help="A task of the library, a file, or a folder.")]

# Reading images.
PathColumn = Annotated[str | None, typer.Option(help="Table: column of the image paths. Default: path.")]
LabelColumn = Annotated[list[str] | None, typer.Option(help="Table: column of labels; several are multi-label.")]
Root = Annotated[Path | None, typer.Option(help="Table: folder of relative paths. Default: that of the table.")]
Split = Annotated[str | None, typer.Option(help="Use only the images of this split: train, val or test.")]
TaskNames = Annotated[list[str] | None, typer.Option("--task", help="Published dataset: its task. Can be repeated.")]
Kind = Annotated[str | None, typer.Option(help="Published dataset: all tasks of this kind, e.g. order.")]
Layout = Annotated[Datasets | None, typer.Option("--as", help="Kind of dataset. Default: detected from its files.")]
MaxImages = Annotated[int | None, typer.Option(help=MAX_IMAGES)]
Labels = Annotated[Path | None, typer.Option(help="iMaterialist: CSV file with the names of the labels.")]
OneVsRest = Annotated[bool, typer.Option("--one-vs-rest", help="Make a binary task of each class.")]
AllowBad = Annotated[bool, typer.Option("--allow-bad", help="Continue if over 5 % of the images are unreadable.")]

# The probe.
ProbeName = Annotated[str, typer.Option("--probe", metavar="MODEL", help="A timm or torchvision model.")]
AnyProbe = Annotated[str | None, typer.Option("--probe", metavar="MODEL", help="Only embeddings by this probe.")]
Weights = Annotated[Path | None, typer.Option(metavar="FILE", help="Local file with the weights of the probe.")]
Size = Annotated[int | None, typer.Option(help="Image size in pixels; smaller is faster. Default: the model's.")]
Download = Annotated[bool, typer.Option("--download", help="Download weights that are not on this machine.")]

# Settings that change the numbers.
Methods = Literal["robust", "direct", "variational"]
Method = Annotated[Methods | None, typer.Option(help="Fisher estimate; variational needs a GPU. Default: robust.")]
Epochs = Annotated[int | None, typer.Option(help="Epochs of training. Default: 10, or those of the recipe.")]
MaxSamples = Annotated[int | None, typer.Option(help="At most this many (image, label) gradients. Default: 400.")]
PerEpoch = Annotated[int | None, typer.Option("--max-samples", help="Images per epoch. Default: 10,000.")]
RelTol = Annotated[float | None, typer.Option(help="Stop at this relative error of a filter, e.g. 0.05.")]
SplitHalf = Annotated[bool, typer.Option("--split-half", help="Also embed two halves, to estimate noise. Slower.")]
L2 = Annotated[float | None, typer.Option("--l2", help="L2 penalty of the head. Default: cross-validated.")]
Beta = Annotated[float | None, typer.Option(help="Weight of the prior. Default: 1e-7.")]
Seed = Annotated[int | None, typer.Option(help="Random seed. Default: 0.")]
Dtype = Annotated[str | None, typer.Option(help="float32, float64 or bfloat16. Default: float32.")]
Recipe = Annotated[str, typer.Option(help="fast, or achille2019: that of the paper, 12 times slower.")]
Classifier = Annotated[Literal["logistic", "achille2019"], typer.Option("--recipe", help=RECIPE)]
Metrics = Literal["usual", "balanced", "precision"]
Metric = Annotated[Metrics, typer.Option(help="Error rate, balanced error rate, or 1 - precision (attributes).")]
Shots = Annotated[str | None, typer.Option(metavar="half|N", help="Train on half of the images, or N per class.")]
AllShots = Annotated[list[str] | None, typer.Option("--shots", metavar="half|N", help="As before. Can be repeated.")]
Seeds = Annotated[int, typer.Option(help="Number of train/test splits.")]

# Settings that do not.
Device = Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda if available.")]
NumWorkers = Annotated[int | None, typer.Option(help="Threads that decode images. Default: one per core.")]
BatchSize = Annotated[int | None, typer.Option(help="Images per batch. Default: chosen for the device.")]
Backend = Annotated[Literal["serial", "processes", "ray"], typer.Option(help=BACKEND)]
Jobs = Annotated[int | None, typer.Option(help="Processes of --backend. Default: one per core.")]

# Choosing models.
Evidence = Annotated[str | None, typer.Option(metavar="bundle|library|FILE", help=EVIDENCE)]
Experts = Annotated[list[str], typer.Option("--expert", help="Expert, its file, or any model. Can be repeated.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="Rank only these models or files; with commas.")]
MeasureTop = Annotated[int, typer.Option(metavar="K", help="Measure the top K models on your images.")]
MaxParams = Annotated[str | None, typer.Option(metavar="N", help="Only models with at most N parameters: 10M.")]
MaxTime = Annotated[float | None, typer.Option(metavar="S", help="Only models faster than S s for 1,000 images.")]
Strategy = Annotated[str | None, typer.Option(help="Prediction strategy; see task2vec evaluate.")]
Strategies = Annotated[list[str] | None, typer.Option("--strategy", help="Only this one and average_best.")]
Distances = Annotated[Path | None, typer.Option(metavar="CSV", help="With --evidence FILE.csv: distances.")]
Leave = Annotated[Literal["task", "dataset", "domain"], typer.Option(help="What is left out in turn.")]
Family = Annotated[str | None, typer.Option("--kind", help="Bundled tasks of one kind: taxa or labels.")]

# Batches and maps.
Batches = Annotated[int | None, typer.Option(help="Number of batches. Default: at most 20.")]
Classes = Annotated[int, typer.Option(help="Classes in each batch; 0 for all.")]
PerClass = Annotated[int, typer.Option("--shots", help="Images of each class in a batch, and in its repeat.")]
Distance = Annotated[str, typer.Option("--kind", help="Distance: symmetric, asymmetric, cosine, ...")]
Group = Annotated[Path | None, typer.Option(metavar="FILE.csv", help=GROUP)]
Place = Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Place this embedding on the map.")]

# Where results go, and what is shown.
LibraryFolder = Annotated[Path | None, typer.Option("--library", metavar="DIR", help=LIBRARY, show_default=False)]
NoLibrary = Annotated[bool, typer.Option("--no-library", help="Do not use the library.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag for the task. Can be repeated.")]
Tag = Annotated[str | None, typer.Option(help="Only tasks with this tag.")]
OutFile = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the table to this CSV file.")]
OutFolder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Also write files to this folder.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite or replace what exists.")]
K = Annotated[int, typer.Option("-k", help="How many to print.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@dataclass(frozen=True)
class ProbeOptions:
    """Which probe to load."""

    probe: ProbeName = DEFAULT_PROBE
    weights: Weights = None
    size: Size = None
    download: Download = False


@dataclass(frozen=True)
class SettingsOptions:
    """Settings of an embedding; None for the default."""

    method: Method = None
    epochs: Epochs = None
    max_samples: MaxSamples = None
    rel_tol: RelTol = None
    split_half: SplitHalf = False
    l2: L2 = None
    beta: Beta = None
    seed: Seed = None
    dtype: Dtype = None


@dataclass(frozen=True)
class Reading:
    """How paths are read as tasks.

    `name` is that of the task, if it is only one, and `seed` chooses the images of `max_images`.
    """

    path_column: PathColumn = None
    label_column: LabelColumn = None
    root: Root = None
    task_names: TaskNames = None
    kind: Kind = None
    layout: Layout = None
    max_images: MaxImages = None
    labels: Labels = None
    one_vs_rest: OneVsRest = False
    split: Split = None
    allow_bad: AllowBad = False
    num_workers: NumWorkers = None
    name: str | None = None
    seed: int = 0


# Commands with more options than this print them in groups: first those that everyone needs, then these.
MOST_UNGROUPED = 20
GROUPS: dict[str, tuple[str, ...]] = {
    "Tables": ("path_column", "label_column", "root"),
    "Published datasets": ("task_names", "kind", "layout", "max_images", "labels", "one_vs_rest"),
    "Probe": ("probe", "weights", "size", "download"),
    "Settings that change the numbers": (
        *("method", "epochs", "max_samples", "split_half", "rel_tol", "l2", "beta", "seed", "dtype"),
        *("recipe", "shots", "metric", "seeds"),
    ),
    "Speed and memory": ("device", "num_workers", "batch_size", "backend", "jobs"),
    "Library": ("library", "no_library", "tags"),
}
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
        groups = {name: group for group, names in GROUPS.items() for name in names} if is_large else {}
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
    return _CHOICE.sub(r"\1", _TYPE.sub(lambda found: _TYPES[found[1].lower()], spelling))
