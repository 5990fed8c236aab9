"""Options that several commands have, each of them said once, and the settings that they add up to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from task2vec.errors import UsageError

if TYPE_CHECKING:
    from task2vec.embedding import EmbedSettings

# The probe.
ProbeName = Annotated[str, typer.Option("--probe", help="A timm or torchvision model.")]
Weights = Annotated[
    Path | None, typer.Option(help="A local file of weights for the probe; default: those it is known by.")
]
Size = Annotated[
    int | None, typer.Option(help="Side of the images in pixels; smaller is faster. Default: the probe's own.")
]
Download = Annotated[bool, typer.Option("--download", help="Fetch weights that are not on this machine.")]

# Tables.
PathColumn = Annotated[str | None, typer.Option(help="Table: the column of image paths; default: path.")]
LabelColumn = Annotated[
    list[str] | None,
    typer.Option(help="Table: the column of labels; default: all others. Several are a multi-label task."),
]
Root = Annotated[Path | None, typer.Option(help="Table: the folder that its paths start from; default: its own.")]

# What changes the numbers.
Method = Annotated[
    Literal["robust", "direct", "variational"] | None,
    typer.Option(help="Which Fisher; variational is slow, for a GPU. Default: robust."),
]
Epochs = Annotated[int | None, typer.Option(help="Of the variational method; default: 10.")]
MaxSamples = Annotated[
    int | None, typer.Option(help="How many (image, label) pairs to back-propagate at most; default: 400.")
]
SplitHalf = Annotated[
    bool, typer.Option("--split-half", help="Also embed two halves, to measure the noise: twice the gradients.")
]
RelTol = Annotated[float | None, typer.Option(help="Stop at this relative error, e.g. 0.05; default: do not.")]
L2 = Annotated[float | None, typer.Option("--l2", help="Penalty of the head; default: cross-validated.")]
Beta = Annotated[float | None, typer.Option(help="Weight of the prior; default: 1e-7.")]
Seed = Annotated[int | None, typer.Option(help="Seed of all randomness; default: 0.")]
Dtype = Annotated[str | None, typer.Option(help="float32, float64 or bfloat16; default: float32.")]

# What does not.
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")]
Workers = Annotated[int | None, typer.Option(help="How many threads decode images; default: by your cores.")]
BatchSize = Annotated[int | None, typer.Option(help="Images per pass; default: by the device.")]
AllowBad = Annotated[bool, typer.Option("--allow-bad", help="Go on with over 5 % unreadable images.")]

# Who computes, which does not change them either.
BackendName = Annotated[
    Literal["serial", "processes", "ray"],
    typer.Option("--backend", help="Who computes: this process, processes of this machine, or Ray."),
]
Jobs = Annotated[int | None, typer.Option(help="How many units are computed at a time; default: one per core.")]
Threads = Annotated[int | None, typer.Option(help="How many threads each of them computes with; default: its share.")]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray cluster: auto, HOST:PORT, ray://HOST:PORT; default: one is started here.")
]

# The library.
LibraryFolder = Annotated[
    Path | None,
    typer.Option(
        "--library",
        metavar="DIR",
        help="The library; default: TASK2VEC_LIBRARY, or one in your home.",
        show_default=False,
    ),
]
NoLibrary = Annotated[bool, typer.Option("--no-library", help="Keep nothing in the library: write a file.")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag for the task; may be given many times.")
]

# How it is told.
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def choose_settings(given: dict[str, Any], *, epochs: int | None) -> "EmbedSettings":
    """The settings as given, and the defaults for all that is None."""
    import task2vec

    if epochs is not None and given["method"] != "variational":
        raise UsageError("--epochs is for --method variational alone: the other methods do not train. Leave it out.")
    training = None if epochs is None else task2vec.VariationalSettings(epochs=epochs)
    asked: dict[str, Any] = {
        key: value for key, value in (given | {"variational": training}).items() if value is not None
    }
    return task2vec.EmbedSettings(**asked)
