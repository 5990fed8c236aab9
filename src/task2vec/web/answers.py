"""What the API answers, field by field: the same models make the JSON and its description in OpenAPI."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Origin = Literal["library", "measured by us"]
State = Literal["waiting", "running", "done", "failed", "cancelled"]
Share = Annotated[float, Field(ge=0, le=1)]


class Answer(BaseModel):
    """An answer, or a part of one; NaN and infinity are null, for JSON has neither."""

    model_config = ConfigDict(ser_json_inf_nan="null", extra="forbid")


class Problem(Answer):
    """What went wrong, as text; never HTML, and to be shown as text."""

    what: str = Field(description="What is wrong, with the value.")
    why: str = Field(description="Why it matters; may be empty.")
    mend: str = Field(description="What mends it; may be empty.")


class ErrorAnswer(Answer):
    """The answer to a request that could not be granted."""

    error: Problem


class SpaceAnswer(Answer):
    """A space: tasks that were embedded alike, so that they can be compared."""

    id: str = Field(description="Of the space: 's-...'.")
    name: str = Field(description="Probe, size of the images and method in words.")
    tasks: int = Field(description="How many tasks lie in it.")
    is_default: bool = Field(description="Whether it is the one that is meant where none is named.")


class RootAnswer(Answer):
    """A folder that the server was told to offer."""

    id: str = Field(description="Of the folder: 'f-...'.")
    name: str = Field(description="The last part of its path.")


class StatusAnswer(Answer):
    """What is served."""

    version: str = Field(description="Of task2vec.")
    tasks: int = Field(description="How many tasks are known, each counted once.")
    spaces: list[SpaceAnswer]
    can_embed: bool = Field(description="Whether folders can be embedded from here.")
    roots: list[RootAnswer] = Field(description="Folders that the server was told to offer.")
    library: str = Field(description="Name of the library's folder, without its path.")
    revision: str = Field(description="Changes whenever the library does.")
    layout: str = Field(description="How maps are laid out here: 't-SNE', or why not.")


class PointAnswer(Answer):
    """A task on the map."""

    id: str = Field(description="Of the task: 'l-...' of the library, 'm-...' of what ships with the package.")
    x: float
    y: float
    name: str
    dataset: str | None = Field(description="Where its images are from; of the library's tasks, their first tag.")
    taxon: str | None = Field(description="Its place in a taxonomy, or the family of tasks that it belongs to.")
    origin: Origin
    images: int
    classes: int
    head_error: float | None = Field(description="Cross-validated error of the head of the embedding, as a share.")
    norm: float = Field(description="L1 norm of the Fisher: how difficult the task is for the probe.")
    best_error: float | None = Field(description="Lowest measured error of an expert on it, as a share.")


class MapAnswer(Answer):
    """All tasks of a space on a plane."""

    space: str
    revision: str
    method: str = Field(description="How the map was made, in words.")
    points: list[PointAnswer]


class LayingOutAnswer(Answer):
    """The map is not there yet; ask again."""

    stage: str = Field(description="What is being done, in words.")
    done: Share = Field(description="How much of it is done.")


class TaskLine(Answer):
    """A task in a list."""

    id: str
    name: str
    dataset: str | None
    origin: Origin
    space: str
    images: int
    classes: int
    norm: float
    head_error: float | None


class TasksAnswer(Answer):
    """A page of the list of tasks."""

    total: int = Field(description="How many there are on all pages.")
    tasks: list[TaskLine]


class ClassAnswer(Answer):
    """A class of a task."""

    name: str
    count: int = Field(description="How many images are of it.")


class TaskAnswer(Answer):
    """All that is known of a task."""

    id: str
    name: str
    origin: Origin
    dataset: str | None
    taxon: str | None
    space: str
    images: int
    classes: list[ClassAnswer] = Field(description="The first 500; those of tasks that ship are numbered.")
    class_total: int
    is_multilabel: bool
    tags: list[str]
    norm: float
    head_error: float | None
    head_error_interval: list[float] | None = Field(description="Wilson's interval of that (95 %), lowest first.")
    noise: float | None = Field(description="Distance that two such embeddings of this very task would have by chance.")
    best_error: float | None
    made: str | None = Field(description="The day it came into the library.")
    settings: dict[str, Any] = Field(description="How it was embedded: probe, size of images, settings.")


class NeighbourAnswer(Answer):
    """A task near another one."""

    id: str
    name: str
    dataset: str | None
    origin: Origin
    distance: float = Field(description="The symmetric distance.")
    is_within_noise: bool = Field(description="Whether chance alone could have put them so far apart.")


class NearestAnswer(Answer):
    """The nearest tasks, nearest first."""

    task: str
    noise: float | None
    neighbours: list[NeighbourAnswer]


class RecommendedAnswer(Answer):
    """An expert of a recommendation; errors, chances and gains are shares."""

    rank: int
    name: str
    kind: str
    error: float | None = Field(description="Predicted test error.")
    low: float | None = Field(description="Lower end of an interval that should hold it in nine of ten cases.")
    high: float | None
    measured: float | None = Field(description="Its error where that was measured on this very task.")
    chance: float | None = Field(description="Of being the best of those that can be loaded.")
    gain: float | None = Field(description="How much lower its error is than that of the static choice.")
    parameters: int | None
    cost: float | None = Field(description="Of one image, in billions of multiplications.")
    nearest: str | None = Field(description="Nearest task that its error is known on.")
    distance: float | None = Field(description="Distance from that.")
    lesson: str | None = Field(description="What it was taught beyond its pretraining.")
    is_static: bool = Field(description="Whether it is the best on average over all that is known.")
    is_loadable: bool = Field(description="False of those whose weights nobody has: train one like it.")
    load: str = Field(description="The line of code that loads it, or how to train one like it.")
    why: str


class RecommendationAnswer(Answer):
    """Which expert to start from."""

    task: str
    sentence: str = Field(description="The answer in words.")
    choice: str
    is_sure: bool = Field(description="Whether there is a reason to leave the static choice.")
    static: str = Field(description="The expert that is best on average.")
    basis: str = Field(description="What it goes by, in words.")
    train: str = Field(description="What classifiers were trained on: 'half' of the images, or so many of each class.")
    notes: list[str]
    experts: list[RecommendedAnswer]


class AsymmetricAnswer(Answer):
    """The asymmetric distance, both ways: from a model of one task to the other task."""

    there: float
    back: float


class LayerAnswer(Answer):
    """A layer's part in a distance."""

    name: str
    share: float
    filters: int


class FilterAnswer(Answer):
    """A filter's part in a distance."""

    layer: str
    number: int = Field(description="Its place in the layer, from 0.")
    first: float = Field(description="Its Fisher for the first task.")
    second: float
    share: float


class CompareAnswer(Answer):
    """Two tasks side by side."""

    first: str
    second: str
    distance: float
    noise: float | None = Field(description="The distance that chance alone would put between two such embeddings.")
    asymmetric: AsymmetricAnswer
    layers: list[LayerAnswer] = Field(description="All layers, the largest share first; shares add up to 1.")
    filters: list[FilterAnswer] = Field(description="The 20 filters with the largest shares.")


class MatrixAnswer(Answer):
    """Distances between some tasks, and their family tree."""

    space: str
    ids: list[str]
    names: list[str]
    values: list[list[float]] = Field(description="Symmetric distances, rows and columns as `ids`.")
    order: list[int] = Field(description="Rows in the order of the tree's leaves.")
    merges: list[list[float]] = Field(description="The tree as SciPy writes it: two clusters, height, size.")


class ExpertAnswer(Answer):
    """An expert whose errors are known."""

    name: str
    kind: str
    network: str
    origin: Origin
    parameters: int | None
    cost: float | None
    mean_error: float | None = Field(description="Over the tasks that it was measured on, as a share.")
    tasks: int = Field(description="How many these are.")
    lesson: str | None


class ExpertsAnswer(Answer):
    """All experts whose errors are known."""

    train: str
    experts: list[ExpertAnswer]


class FolderAnswer(Answer):
    """A folder below an allowed root."""

    id: str
    name: str
    parent: str | None = Field(description="Id of the folder above; null for the root.")
    images: int = Field(description="How many images lie in it and in its folders.")
    classes: int = Field(description="How many of its folders hold images: a task needs two or more.")


class FoldersAnswer(Answer):
    """The folders of a root."""

    folders: list[FolderAnswer]
    is_whole: bool = Field(description="False if there were more than are listed.")


class JobWish(BaseModel):
    """What is to be embedded."""

    model_config = ConfigDict(extra="forbid")

    folder: str = Field(description="Id of a folder: 'f-...'.", max_length=64)
    name: str | None = Field(default=None, description="What to call the task.", min_length=1, max_length=200)


class JobAnswer(Answer):
    """An embedding that is being made."""

    id: str
    state: State
    stage: str = Field(description="What is being done, in words.")
    done: int = Field(description="Steps of this stage that are done.")
    total: int = Field(description="Steps of this stage; 0 where that is not known.")
    name: str
    task: str | None = Field(description="Id of the task, once it is in the library.")
    error: Problem | None


class JobsAnswer(Answer):
    """All embeddings that were asked for since the server was started, newest first."""

    jobs: list[JobAnswer]
