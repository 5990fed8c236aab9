"""The zoo: pretrained models that load by name, their published errors, and how good they probably are.

`experiments/zoo.py` makes two tables from published ones: `zoo.csv`, every model of timm with ImageNet results and the
models of published tables, and `published.csv.gz`, the errors of these tables; ours are one more. On the scale of
log-odds y (`scale_errors`), for table k, of the way w (linear, fine-tuned, zero-shot), dataset d and model e,

    y_kde = h_kd + x_e · beta + x_e · beta_w + u_e + v_ew + r_ke + noise_kde

- h_kd: how hard the dataset is in this table;
- x_e: what is known of the model: ImageNet, ReaL, R and Sketch errors, sizes, GMACs, kind of pretraining;
- u_e, v_ew, r_ke: the model's own effect everywhere, in this way, and in this table only.

All are independent Gaussians of mean zero, so the quality of a model for a way, x_e · (beta + beta_w) + u_e + v_ew, has
an exact posterior: given h and beta models are independent. Variances (`variances.json`) have the highest likelihood.
"""

import csv
import difflib
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from task2vec.errors import UsageError
from task2vec.experts.metatask import ARCHITECTURES, ModelInfo

MODEL_COLUMNS = (
    "name", "size", "params", "gmacs", "imagenet", "real", "r", "sketch", "cpu", "gpu", "license", "pretraining"
)  # fmt: skip
CELL_COLUMNS = ("source", "protocol", "dataset", "model", "error")
MODELS, CELLS, VARIANCES, LORA = "zoo.csv", "published.csv.gz", "variances.json", "lora.csv"
WAYS = ("linear", "fine-tuned", "zero-shot")
UNKNOWN = "unknown"
# Licences that allow any use, also a commercial one, of weights whose authors are named.
PERMISSIVE = ("apache-2.0", "bsd-3-clause", "cc-by-4.0", "mit")
PRETRAINING = ("in1k", "in21k", "web labels", "image-text", "masked images", "self-supervised")
# Where the tables come from: repository, commit, and the licence where one is recorded. The figures are facts.
SOURCES = {
    "task2vec": "measured by us: the bundled meta-task, docs/results/networks",
    "timm": "huggingface/pytorch-image-models aa4b585, Apache-2.0",
    "MIEB": "embeddings-benchmark/results f4cc6c8, CC0",
    "TransferGraph records": "zLizy/transferability_graph 9c22047",
    "OpenCLIP": "mlfoundations/open_clip 89fb801, MIT",
    "fastai_timm": "tcapelle/fastai_timm 2ef632d",
    "SFDA group1": "TencentARC/SFDA 3b7edf7",
    "V-PETL": "synbol/Parameter-Efficient-Transfer-Learning-Benchmark c188fad",
}
_WIDE = 4.0  # variance of h_kd
# Values above the median of a dataset by more than so many robust standard deviations count as this far; the least one.
_WORST, _LEAST = 3.0, 0.02
# Covariates farther from the mean than so many standard deviations count as this far: few such models were measured.
_FARTHEST = 2.0
_ACCURACIES = ("imagenet", "real", "r", "sketch")


@dataclass(frozen=True)
class ZooModel:
    """A pretrained model, and what is known of it.

    Attributes:
        name: of timm, or `torchvision:NAME`, or `open_clip:ARCHITECTURE/WEIGHTS`.
        size, params: side of its images, in pixels, and number of parameters.
        gmacs: billions of multiply-accumulate operations per image.
        imagenet, real, r, sketch: top-1 accuracies on ImageNet, with ReaL labels, on ImageNet-R, and on Sketch.
        cpu_speed, gpu_speed: images per second, one at a time on a CPU, or on a GPU, as measured by timm.
        license: of the weights, as stated by timm; unknown for weights that only torchvision or open_clip have.
        pretraining: one of `PRETRAINING`.
        tables: the published tables that it is in.
    """

    name: str
    size: int | None = None
    params: int | None = None
    gmacs: float | None = None
    imagenet: float | None = None
    real: float | None = None
    r: float | None = None
    sketch: float | None = None
    cpu_speed: float | None = None
    gpu_speed: float | None = None
    license: str = UNKNOWN
    pretraining: str = ""
    tables: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """Its name with the library: "timm:NAME", "torchvision:NAME" or "open_clip:ARCHITECTURE/WEIGHTS"."""
        return self.name if ":" in self.name else f"timm:{self.name}"

    @property
    def load(self) -> str:
        """The line of Python that loads it; of torchvision the first weights, which the tables have."""
        library, _, name = self.location.partition(":")
        first, _, second = name.partition("/")
        return {
            "timm": f'timm.create_model("{name}", pretrained=True)',
            "torchvision": f'torchvision.models.get_model("{name}", weights="IMAGENET1K_V1")',
            "open_clip": f'open_clip.create_model_and_transforms("{first}", pretrained="{second}")',
        }[library]


class Cell(NamedTuple):
    """A published error: the table (source and protocol), the dataset, the model's name, and the error."""

    source: str
    protocol: str
    dataset: str
    model: str
    error: float

    @property
    def table(self) -> str:
        """The table that it is in."""
        return f"{self.source}, {self.protocol}"


class Variances(NamedTuple):
    """Variances of u_e, v_ew and r_ke, of each of beta and of beta_w, and of the noise by table (else their median)."""

    model: float
    way: float
    table: float
    slope: float
    way_slope: float
    noise: dict[str, float]


def find_way(protocol: str) -> str:
    """Which of `WAYS` a protocol is, from its text."""
    return "zero-shot" if "zero" in protocol else "linear" if "linear" in protocol else "fine-tuned"


# --- the posterior ---------------------------------------------------------------------------------------------------


class Posterior:
    """The exact posterior of the model at the top of this file; beside it what the likelihood needs.

    There are C cells of M models in K tables. The S shared effects are h, beta and beta_w.

    Attributes:
        scaled, design: (C) values y, and (C, S) how they depend on shared effects, whose variances are `prior`.
        places: (C) the model and the table of each.
        between: (K, K) covariance of the effects of one model in two tables.
        weights: (M, K) number of cells, divided by the noise.
        sums, sums_y: (M, K, S) and (M, K) sums of `design` and `scaled` over these cells, divided by the noise.
        effects: (M, K, K) covariances of the effects of models in tables, given the cells and the shared effects.
        pull, pull_y: (M, K, S) and (M, K) these effects, given the cells, by shared effects and by values.
        spread, shared: (S, S) covariance and (S) mean of the shared effects, given the cells; `evidence` is for them.
        log_det: of the covariance of the cells, given the shared effects.
    """

    def __init__(self, covariates: np.ndarray, numbers: dict[str, int], cells: Sequence[Cell], variances: Variances):
        from task2vec.select.combined import scale_errors

        self.covariates, self.variances = covariates, variances
        self.columns = sorted({(cell.table, cell.dataset) for cell in cells})
        self.tables = list(dict.fromkeys(table for table, _ in self.columns))
        self.ways = np.array([WAYS.index(find_way(table.partition(", ")[2])) for table in self.tables], dtype=int)
        usual = float(np.median([*variances.noise.values()]))
        self.noise = np.array([variances.noise.get(table, usual) for table in self.tables])
        column_of = np.array([self.columns.index((cell.table, cell.dataset)) for cell in cells], dtype=int)
        table_of = np.array([self.tables.index(cell.table) for cell in cells], dtype=int)
        model_of = np.array([numbers[cell.model] for cell in cells], dtype=int)
        self.places = model_of, table_of
        self.scaled = scale_errors(np.array([cell.error for cell in cells]))
        for column in range(len(self.columns)):  # a failed run tells that, but not how good the model is elsewhere
            own = column_of == column
            middle = np.median(self.scaled[own])
            spread = 1.4826 * np.median(np.abs(self.scaled[own] - middle)) + _LEAST
            self.scaled[own] = np.minimum(self.scaled[own], middle + _WORST * spread)
        hard = np.eye(len(self.columns))[column_of]
        self.design = np.hstack([hard, self.spread_covariates(model_of, self.ways[table_of])])
        width = covariates.shape[1]
        sizes, values = (len(self.columns), width, width * len(WAYS)), (_WIDE, variances.slope, variances.way_slope)
        self.prior = np.repeat(values, sizes)
        self._solve()

    def spread_covariates(self, models: np.ndarray, ways: np.ndarray) -> np.ndarray:
        """(N, B) how the qualities of models for ways depend on beta and every beta_w."""
        own = self.covariates[models]
        return np.hstack([own, *(own * (ways == way)[:, None] for way in range(len(WAYS)))])

    def _solve(self) -> None:
        """Posterior of the shared effects, models integrated out one by one."""
        weights, size = 1 / self.noise[self.places[1]], (len(self.covariates), len(self.tables))
        weighted = self.design * weights[:, None]
        self.weights, self.sums_y, self.sums = np.zeros(size), np.zeros(size), np.zeros((*size, len(self.prior)))
        for sums, values in ((self.weights, weights), (self.sums_y, self.scaled * weights), (self.sums, weighted)):
            np.add.at(sums, self.places, values)
        self.between = self.covary(self.ways) + self.variances.table * np.eye(size[1])
        matrices = np.eye(size[1]) + self.between * self.weights[:, None]
        self.effects = np.linalg.solve(matrices, self.between)
        self.log_det = float(np.linalg.slogdet(matrices)[1].sum() - np.log(weights).sum())
        self.pull = self.effects @ self.sums
        self.pull_y = np.einsum("mij,mj->mi", self.effects, self.sums_y)
        self.evidence = weighted.T @ self.scaled - np.tensordot(self.pull_y, self.sums, 2)
        information = self.design.T @ weighted - np.tensordot(self.sums, self.pull, ((0, 1), (0, 1)))
        self.spread = np.linalg.inv(information + np.diag(1 / self.prior))
        self.shared = self.spread @ self.evidence

    def covary(self, ways: np.ndarray) -> np.ndarray:
        """(N, K) covariance of the effects of a model for these ways with those in every table."""
        return self.variances.model + self.variances.way * (ways[:, None] == self.ways)

    def predict(self, models: np.ndarray, way: str, table: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean (N) and covariance (N, N) of the qualities of models for a way, or in a table."""
        number, own = WAYS.index(way), self.variances.table * (np.array(self.tables) == table)
        likeness, weights = self.covary(np.array([number]))[0] + own, self.weights[models]
        gain = np.linalg.solve(np.eye(len(self.tables)) + self.between * weights[:, None], likeness)
        lean = -np.einsum("nk,nks->ns", gain, self.sums[models])
        lean[:, len(self.columns) :] += self.spread_covariates(models, np.full(len(models), number))
        variance = self.variances.model + self.variances.way + own.sum() - (gain * weights) @ likeness
        mean = (gain * self.sums_y[models]).sum(1) + lean @ self.shared
        return mean, lean @ self.spread @ lean.T + np.diag(variance)


# --- the zoo ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Zoo:
    """Models that load by name, published errors of some of them, and variances of what the errors are made of."""

    models: tuple[ZooModel, ...]
    cells: tuple[Cell, ...]
    variances: Variances

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The places of the models by their names."""
        return {model.name: at for at, model in enumerate(self.models)}

    @cached_property
    def covariates(self) -> np.ndarray:
        """(models, covariates) scaled errors, sizes, kind of pretraining, and whether ImageNet results are missing."""
        from task2vec.select.combined import scale_errors

        values = np.array(
            [[*(getattr(one, name) for name in _ACCURACIES), one.params, one.gmacs, one.size] for one in self.models],
            dtype=float,
        ).reshape(len(self.models), -1)  # None is NaN
        is_missing = np.isnan(values[:, :1])
        values = np.hstack([scale_errors(1 - values[:, :4]), np.log(values[:, 4:])])
        is_known = ~np.isnan(values)
        counts = np.maximum(is_known.sum(0), 1)
        values = np.where(is_known, values - np.where(is_known, values, 0).sum(0) / counts, 0)
        values /= np.maximum(np.sqrt((values**2).sum(0) / counts), 1e-9)
        values = np.clip(values, -_FARTHEST, _FARTHEST)
        kinds = np.array([[one.pretraining == kind for kind in PRETRAINING] for one in self.models], dtype=float)
        return np.hstack([values, kinds.reshape(len(self.models), -1), is_missing])

    @cached_property
    def posterior(self) -> Posterior:
        """What the published errors say about the models."""
        return Posterior(self.covariates, self.numbers, self.cells, self.variances)

    def find(self, name: str) -> ZooModel:
        """The model of that name; a UsageError for an unknown one names the nearest."""
        return self.models[self._number(name)]

    def _number(self, name: str) -> int:
        if (number := self.numbers.get(name.removeprefix("timm:"))) is not None:
            return number
        names = difflib.get_close_matches(name, self.numbers, n=3, cutoff=0.5)
        near = f" Did you mean {' or '.join(names)}?" if names else ""
        what = f"there is no model '{name}' in the zoo, so nothing is known about it."
        raise UsageError(f"{what}{near} List them: task2vec models")

    def read_licenses(self, license: str | Sequence[str]) -> frozenset[str]:
        """The licences that are meant by names, several separated by commas; "permissive" stands for `PERMISSIVE`.

        Example:
            >>> sorted(load_zoo().read_licenses("permissive,cc-by-nc-4.0"))
            ['apache-2.0', 'bsd-3-clause', 'cc-by-4.0', 'cc-by-nc-4.0', 'mit']
        """
        texts = [license] if isinstance(license, str) else license
        names = [one.strip().lower() for text in texts for one in text.split(",")]
        known = {"permissive", UNKNOWN, *(model.license for model in self.models)}
        if wrong := [one for one in names or [""] if one not in known]:
            raise UsageError(
                f"'{wrong[0]}' (--license) is not a licence of any model of the zoo, so none would be left. Choose "
                f"from: {', '.join(sorted(known))}"
            )
        return frozenset(each for one in names for each in (PERMISSIVE if one == "permissive" else (one,)))

    def compare(self, names: Sequence[str], anchors: Sequence[str], way: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean (N) and covariance (N, N) of the quality of models minus the mean quality of anchors; lower is better.

        Qualities are for one of `WAYS`, on the scale of log-odds: -0.1 means about 10% fewer errors if these are few.

        Example:
            >>> mean, _ = load_zoo().compare(["convnext_base.fb_in22k"], ["resnet50.tv_in1k"], "fine-tuned")
            >>> bool(mean[0] < 0)
            True
        """
        if way not in WAYS or not anchors:
            raise UsageError(
                f"way={way!r} with {len(anchors)} anchors is not possible: a quality is defined for a way and relative "
                f"to anchors. Pass a way ({', '.join(WAYS)}) and at least one anchor."
            )
        unique, where = np.unique([self._number(name) for name in (*names, *anchors)], return_inverse=True)
        with threadpool_limits(1):  # matrices are small, and threads would wait for one another
            mean, covariance = self.posterior.predict(unique, way)
        own, others = where[: len(names)], where[len(names) :]
        cross = covariance[np.ix_(own, others)].mean(1)
        covariance = covariance[np.ix_(own, own)] + covariance[np.ix_(others, others)].mean()
        return mean[own] - mean[others].mean(), covariance - cross[:, None] - cross


def find_in_zoo(zoo: Zoo, location: str) -> ZooModel | None:
    """The network of a location, which may lack the tag of its weights: then those that the library loads."""
    library, _, name = location.partition(":")
    names = [location, name]
    if library == "torchvision":
        network, _, tag = name.partition(".")
        first = [f"torchvision:{network}", f"{network}.tv_in1k"]  # those of the zoo have its first weights
        second = [f"{network}.tv2_in1k"]
        names = {"": [location, *second, *first], "IMAGENET1K_V1": first, "IMAGENET1K_V2": second}.get(tag, [])
    elif location in ARCHITECTURES.values():  # without importing timm
        names.append(f"{name}.in1k")
    elif library == "timm" and not zoo.numbers.keys() & names:
        from timm.models import get_pretrained_cfg

        config = get_pretrained_cfg(name, allow_unregistered=True)
        names.append(f"{name}.{(config and config.tag) or 'in1k'}")
    known = next((one for one in names if one in zoo.numbers), None)
    return None if known is None else zoo.find(known)


def look_up(location: str | None) -> ZooModel:
    """What the zoo knows of a network; of a file or a network that it does not have, nothing."""
    return find_in_zoo(load_zoo(), location or "") or ZooModel(location or "")


def count_params(model: ModelInfo) -> int | None:
    """Its parameters, as timm counts them where the zoo has it: with the classifier of its pretraining."""
    return look_up(model.location).params or model.params or look_up(name_network(model)).params


def name_network(model: ModelInfo) -> str | None:
    """What the architecture of a model is called where it can be built."""
    if model.is_named:
        return model.location
    name = model.network or ""
    return name if name.startswith(("timm:", "torchvision:")) else ARCHITECTURES.get(name)


# --- files -----------------------------------------------------------------------------------------------------------


@cache
def load_zoo() -> Zoo:
    """The zoo that comes with the package.

    Example:
        >>> zoo = load_zoo()
        >>> zoo.find("resnet50.a1_in1k").load
        'timm.create_model("resnet50.a1_in1k", pretrained=True)'
    """
    with resources.as_file(resources.files("task2vec.select") / "data") as folder:
        return read_zoo(folder)


def read_zoo(folder: Path) -> Zoo:
    """The zoo in a folder."""
    cells = [Cell(**{**row, "error": float(row["error"])}) for row in read_rows(folder / CELLS)]
    tables: dict[str, dict[str, None]] = defaultdict(dict)
    for cell in cells:
        tables[cell.model][cell.source] = None
    models = []
    for row in read_rows(folder / MODELS):
        values: dict[str, Any] = {name: float(row[name]) if row[name] else None for name in MODEL_COLUMNS[1:10]}
        values |= {name: values[name] and int(values[name]) for name in ("size", "params")}
        values |= {f"{name}_speed": values.pop(name) for name in ("cpu", "gpu")}
        values |= {name: row[name] for name in ("name", "license", "pretraining")}
        models.append(ZooModel(**values, tables=tuple(tables.get(row["name"], ()))))
    return Zoo(tuple(models), tuple(cells), Variances(**json.loads((folder / VARIANCES).read_text("utf-8"))))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file of the package by their headings; tests check its tables."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))
