"""The JSON of the API, field by field: the same models produce the responses and their description in OpenAPI.

NaN and infinity become null, which is what JSON has for them.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

Origin = Literal["library", "bundled"]


class Problem(BaseModel):
    """An error in three parts, as plain text; never HTML."""

    what: str = Field(description="What is wrong, with the value.")
    why: str = Field(description="Why it matters; may be empty.")
    fix: str = Field(description="How to fix it; may be empty.")


class ErrorResponse(BaseModel):
    """The response to a request that was refused or failed."""

    error: Problem


class Space(BaseModel):
    """Tasks that were embedded in the same way, so that they can be compared."""

    id: str = Field(description="Of the space: 's-...'.")
    name: str = Field(description="Probe, image size and method.")
    tasks: int = Field(description="Number of tasks in it.")
    is_default: bool = Field(description="Whether requests without a space mean this one.")


class Status(BaseModel):
    """What this server serves."""

    version: str = Field(description="Of task2vec.")
    tasks: int = Field(description="Number of tasks, each counted once.")
    spaces: list[Space]
    library: str = Field(description="Name of the library's folder, without its path.")
    revision: str = Field(description="Changes whenever the library changes.")
    layout: str = Field(description="Method of the maps: 't-SNE', or why another one is used.")


class TaskSummary(BaseModel):
    """A task in a list."""

    id: str = Field(description="Of the task: 'l-...' in the library, 'm-...' bundled with the package.")
    name: str
    space: str = Field(description="Id of its space.")
    dataset: str | None = Field(description="Dataset of its images; of tasks in the library, the first tag.")
    taxon: str | None = Field(description="Its place in a taxonomy, or its family of tasks.")
    origin: Origin
    images: int
    classes: int
    head_error: float | None = Field(description="Cross-validated error of the head on the probe, as a fraction.")
    norm: float = Field(description="L1 norm of the Fisher information: how much the probe's weights matter.")
    best_error: float | None = Field(description="Lowest measured error of a model on it, as a fraction.")


class Point(TaskSummary):
    """A task on the map."""

    x: float
    y: float


class Map(BaseModel):
    """All tasks of a space on a plane."""

    space: str
    revision: str
    method: str = Field(description="How the map was made.")
    points: list[Point]


class MapProgress(BaseModel):
    """The map is not ready yet; ask again."""

    stage: str
    done: float = Field(ge=0, le=1, description="Fraction of the work that is done.")


class TaskList(BaseModel):
    """A page of the list of tasks."""

    total: int = Field(description="Number of tasks on all pages.")
    tasks: list[TaskSummary]


class ClassCount(BaseModel):
    """A class of a task."""

    name: str
    count: int = Field(description="Number of images.")


class Task(TaskSummary):
    """All that is known about a task."""

    class_counts: list[ClassCount] = Field(description="The first 500 classes; those of bundled tasks are numbered.")
    is_multilabel: bool
    tags: list[str]
    head_error_interval: list[float] | None = Field(description="95% Wilson interval of the head error, low and high.")
    noise: float | None = Field(
        description="Distance between two estimates of this task due to chance alone; null if unknown."
    )
    added: str | None = Field(description="The day it was added to the library.")
    settings: dict[str, Any] = Field(description="How it was embedded: probe, image size, settings.")
    has_report: bool = Field(description="Whether the library has a report on it.")


class Neighbour(TaskSummary):
    """A task near another one."""

    distance: float = Field(description="Symmetric distance.")
    is_within_noise: bool = Field(description="Whether the distance is no larger than the noise.")


class Nearest(BaseModel):
    """The nearest tasks, nearest first."""

    task: str
    noise: float | None
    neighbours: list[Neighbour]


class Layer(BaseModel):
    """A layer's share of a distance."""

    name: str
    share: float
    filters: int


class Filter(BaseModel):
    """A filter's share of a distance."""

    layer: str
    number: int = Field(description="Its index in the layer, from 0.")
    first: float = Field(description="Its Fisher information for the first task.")
    second: float
    share: float


class Comparison(BaseModel):
    """Two tasks side by side."""

    first: str
    second: str
    distance: float
    noise: float | None = Field(
        description="Distance between two estimates of one task due to chance alone; null if unknown of either."
    )
    first_to_second: float = Field(description="Asymmetric distance from the first task as the source.")
    second_to_first: float
    layers: list[Layer] = Field(description="All layers, the largest share first; shares sum to 1.")
    filters: list[Filter] = Field(description="The 20 filters with the largest shares.")


class Matrix(BaseModel):
    """Distances between tasks, and their tree."""

    space: str
    ids: list[str]
    names: list[str]
    values: list[list[float]] = Field(description="Symmetric distances, rows and columns in the order of `ids`.")
    order: list[int] = Field(description="Rows in the order of the leaves of the tree.")
    merges: list[list[float]] = Field(description="The tree in SciPy's format: two clusters, height, size.")


class AdviceRow(BaseModel):
    """A model of a recommendation; errors are null unless they were measured on the task."""

    rank: int
    model: str
    error: float | None = Field(description="Cross-validated error of a linear classifier, as a fraction.")
    low: float | None = Field(description="Lower end of its 95% interval.")
    high: float | None
    gap: float | None = Field(description="How much higher it is than the lowest error.")
    is_tied: bool = Field(description="Whether it cannot be told apart from the model with the lowest error.")
    is_choice: bool = Field(description="Whether it is the one to start from.")
    params: int | None
    gmacs: float | None
    license: str
    pretraining: str
    is_here: bool = Field(description="Whether its weights are on this machine.")
    load: str = Field(description="The line of Python that loads it.")
    reason: str = Field(description="Why it is proposed.")
    failure: str


class Advice(BaseModel):
    """Models for a task: what was measured on it, or what to measure first."""

    task: str
    is_measured: bool
    choice: str | None = Field(description="The model to start from; null if none was measured.")
    verdict: str
    command: str = Field(description="The command that measures models on the task's images.")
    rows: list[AdviceRow] = Field(description="Measured models, the best first; or those to measure, in order.")
    notes: tuple[str, ...]


class Model(BaseModel):
    """A model with measured errors."""

    name: str
    kind: str
    network: str
    origin: Origin
    params: int | None
    gmacs: float | None
    mean_error: float | None = Field(description="Over the tasks it was measured on, as a fraction.")
    tasks: int = Field(description="Number of these tasks.")
    is_few: bool = Field(False, description="Whether these are less than half as many as of another model.")
    source_task: str | None
    weights_origin: str = Field("", description="Where its pretrained weights come from, if no library has them.")


class ModelList(BaseModel):
    """All models with measured errors."""

    shots: str
    models: list[Model]
