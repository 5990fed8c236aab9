"""The paper's toy experiment: 64 ways to cut the unit square in two, seen by two probes.

(Achille 2019, "Example toy task embedding".) All tasks have the same points, so the domain embedding (the mean
activation of the probe) is the same for all, and only an embedding that depends on the labels can separate them. The
paper shows it by a picture; here it is also measured, over several seeds, each with its own tasks and random features.

Both probes take points as (x, y, 1) and have one filter per feature, so that the Fisher of a filter is known in closed
form. With p the head's probability of a class, w_k its weight of feature k, and E the mean over points with both
classes weighted the same:

* random features z_k = max(0, a x + b y + c): F_k = E[p (1 - p) w_k^2 1(z_k > 0) (x^2 + y^2 + 1) / 3], the mean over
  the filter's three weights (a, b, c);
* monomials m_k, each times one weight that is 1: F_k = E[p (1 - p) w_k^2 m_k^2].

Drawn as in the paper, 3 in 8 random features are zero on the whole square, as many are linear on it, and only one in
four has its kink inside: ten of them see less than ten.

The similarity of two tasks is that of their decision regions and depends on no probe: the mean of the Jaccard indices
of the two classes, each class of one task matched with a class of the other, under the better of the two matchings.

The head's penalty is stronger than elsewhere. Cross-validation would choose hardly any (in the median 2e-4 for random
features, and 2e-5 for monomials), because labels without noise cannot be overfitted by nine or ten features. But
monomials are nearly collinear: without a penalty their weights grow large, of either sign, and depend little on the
regions. `L2` was chosen by the closed formulas on seeds 100 to 111, which the default run does not use: there, with
2e-2 neighbours cover 0.44 (ReLU) and 0.47 (polynomials) of the way from chance to the best, with 2e-5 only 0.36 and
0.21.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from torch import Tensor, nn

import task2vec as t2v
from experiments.agreement import share_nearest
from experiments.report import Row, make_app, open_figure, say, split_rows, write_rows
from task2vec import plots
from task2vec.tasks import draw_partitions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNT, SIDE = 64, 16
RANDOM_FEATURES, DEGREE, L2 = 10, 3, 2e-2
# The constant, which the degree allows as well, is left out: the head has a free bias of its own, and its penalty
# leaves a constant feature no weight at all, so that its Fisher would be zero for every task.
POWERS = tuple((total - j, j) for total in range(1, DEGREE + 1) for j in range(total + 1))
# Every pair, in double precision: nothing is sampled, so the numbers have no noise. Where maps are of one pixel, the
# direct and the robust Fisher are the same.
SETTINGS = t2v.EmbedSettings(method="direct", seeds="all", smoothing=0, l2=L2, dtype="float64")
# Of t-SNE; and how many random starts it gets, of which the best is drawn.
PERPLEXITY, STARTS = 12, 4


# --- probes ----------------------------------------------------------------------------------------------------------


class Monomials(nn.Module):
    """Features x^i y^j of degree one to three, each times a weight of 1 of its own (a depthwise convolution)."""

    def __init__(self):
        super().__init__()
        count = len(POWERS)
        self.features = nn.Conv2d(count, count, 1, groups=count, bias=False)
        nn.init.ones_(self.features.weight)
        self.head = nn.Linear(count, 2)

    def forward(self, points: Tensor) -> Tensor:
        """Logits of (n, 3, 1, 1) points."""
        x, y = points[:, :1], points[:, 1:2]
        monomials = torch.cat([x**i * y**j for i, j in POWERS], dim=1)
        return self.head(self.features(monomials).flatten(1))


def make_random_probe(*, side: int, seed: int) -> t2v.Probe:
    """Ten random features with a and b uniform in [-1/2, 1/2] and c in [-1, 1], for the tasks of a grid of `side`.

    A feature max(0, a x + b y + c) is a convolution of 1 x 1 without bias: c is the third channel's weight.

    Example:
        >>> make_random_probe(side=16, seed=0).n_filters
        10
    """
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(RANDOM_FEATURES, 3, generator=generator) * 2 - 1
    convolution = nn.Conv2d(3, RANDOM_FEATURES, 1, bias=False)
    convolution.weight = nn.Parameter((uniform * torch.tensor([0.5, 0.5, 1.0]))[:, :, None, None])
    layers: OrderedDict[str, nn.Module] = OrderedDict(features=convolution, relu=nn.ReLU(), flatten=nn.Flatten())
    layers["head"] = nn.Linear(RANDOM_FEATURES, 2)
    module = nn.Sequential(layers)
    return t2v.load_probe(module.eval(), head="head", transform=partial(_read_point, side=side))


def make_polynomial_probe(*, side: int) -> t2v.Probe:
    """The nine monomials of degree one to three in x and y, for the tasks of a grid of `side`.

    Example:
        >>> make_polynomial_probe(side=16).n_filters
        9
    """
    return t2v.load_probe(Monomials().eval(), head="head", transform=partial(_read_point, side=side))


def _read_point(image: Image.Image, *, side: int) -> Tensor:
    """(3, 1, 1) x, y and 1 of the point that a picture of `toy_tasks` stands for."""
    column, row, full = image.tobytes()[:3]
    return torch.tensor([column / (side - 1), row / (side - 1), full / 255], dtype=torch.float64)[:, None, None]


# --- measures --------------------------------------------------------------------------------------------------------


def region_similarity(regions: np.ndarray) -> np.ndarray:
    """(tasks, tasks) similarity of decision regions, from 0 to 1, given which points (tasks, points) are positive.

    Example:
        >>> half, quarter = [1, 1, 0, 0], [1, 0, 0, 0]
        >>> region_similarity(np.array([half, [0, 0, 1, 1], quarter])).round(3)
        array([[1.   , 1.   , 0.583],
               [1.   , 1.   , 0.583],
               [0.583, 0.583, 1.   ]])
    """
    from scipy.spatial.distance import cdist

    positive = np.asarray(regions, dtype=bool)
    negative = ~positive
    straight = cdist(positive, positive, "jaccard") + cdist(negative, negative, "jaccard")
    crossed = cdist(positive, negative, "jaccard") + cdist(negative, positive, "jaccard")
    return 1 - np.minimum(straight, crossed) / 2


def mean_at_nearest(distances: np.ndarray, values: np.ndarray) -> float:
    """Mean over tasks of `values` at the nearest other task, or at all that are equally near.

    Example:
        >>> values = np.array([[9, 1, 2], [1, 9, 3], [2, 3, 9]])
        >>> mean_at_nearest(np.zeros((3, 3)), values)  # no task is nearer than another: all others count the same
        2.0
    """
    others = np.where(np.eye(len(distances), dtype=bool), np.inf, distances)
    return float((share_nearest(others) * values).sum(axis=1).mean())


def measure_space(distances: np.ndarray, domain: np.ndarray, similarity: np.ndarray) -> Row:
    """The mean similarity of tasks to a random one, to the nearest by domain, to the nearest, and to the most similar.

    Args:
        distances: between tasks, in task space.
        domain: between tasks, in the domain embedding.
        similarity: of their decision regions.
    """
    return {
        "random": float(similarity[~np.eye(len(distances), dtype=bool)].mean()),
        "domain": mean_at_nearest(domain, similarity),
        "nearest": mean_at_nearest(distances, similarity),
        "best": mean_at_nearest(-similarity, similarity),
    }


def average_seeds(rows: Sequence[Row], name: str) -> tuple[float, float]:
    """Mean and standard error of a measure over the rows of one probe; the error of a single row is NaN.

    Example:
        >>> average_seeds([{"best": 0.3}, {"best": 0.5}], "best")
        (0.4, 0.1)
    """
    values = np.array([row[name] for row in rows])
    stderr = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(values.mean()), stderr


# --- the experiment --------------------------------------------------------------------------------------------------


def run_seed(seed: int, *, count: int = COUNT, side: int = SIDE) -> tuple[list[Row], dict[str, np.ndarray]]:
    """One seed: a row of measures per probe, and the distances by probe."""
    regions = np.stack([cut.is_positive for cut in draw_partitions(count=count, side=side, seed=seed)])
    tasks, similarity = t2v.toy_tasks(count=count, side=side, seed=seed), region_similarity(regions)
    probes = {"ReLU": make_random_probe(side=side, seed=seed), "polynomial": make_polynomial_probe(side=side)}
    rows, spaces = [], {}
    for name, probe in probes.items():
        say(f"seed {seed}: embedding {count} tasks by {name} features")
        options: Row = {"device": "cpu", "num_workers": 1, "batch_size": side**2}
        embeddings = [t2v.embed(task, probe, settings=SETTINGS, **options) for task in tasks]
        means = np.stack([t2v.embed_domain(task, probe, dtype="float64", **options).mean for task in tasks])
        domains = np.linalg.norm(means[:, None] - means[None, :], axis=2)
        spaces[name] = np.array(t2v.distance.pairwise(embeddings, device="cpu"))
        rows.append({"seed": seed, "probe": name, **measure_space(spaces[name], domains, similarity)})
    return rows, spaces


# --- figure ----------------------------------------------------------------------------------------------------------

# The side of an icon as a fraction of its cell.
_ICON = 0.86
_INK, _LIGHT = "#22313f", "#f4f1ea"
_CLUSTERS = range(3, 17)
_TITLES = {"ReLU": "ten random ReLU features", "polynomial": "polynomials of degree three"}


def draw_spaces(partitions: Sequence[Any], positions: dict[str, np.ndarray]) -> "Figure":
    """The task space of every probe, each task an icon of its regions in the nearest cell of a lattice.

    The frame of an icon has the colour of the number of clusters.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Rectangle

    figure = open_figure(4.1)
    panels = figure.subplots(1, len(positions))
    colours = ListedColormap(colormaps["plasma"](np.linspace(0.02, 0.92, len(_CLUSTERS))))
    edges = [*(count - 0.5 for count in _CLUSTERS), _CLUSTERS[-1] + 0.5]
    scale = ScalarMappable(BoundaryNorm(edges, len(_CLUSTERS)), colours)
    regions = np.stack([cut.is_positive for cut in partitions])
    side = math.isqrt(regions.shape[1])
    icons = match_colours(regions).reshape(-1, side, side)
    frames = scale.to_rgba(np.array([cut.clusters for cut in partitions]))
    look: dict[str, Any] = {"cmap": ListedColormap([_LIGHT, _INK]), "vmin": 0, "vmax": 1, "interpolation": "nearest"}
    for axes, (name, points) in zip(panels, positions.items(), strict=True):
        cells, cell = assign_cells(points)
        icon_side = _ICON * cell
        for icon, (x, y), frame in zip(icons, cells - icon_side / 2, frames, strict=True):
            axes.imshow(icon, extent=(x, x + icon_side, y, y + icon_side), origin="lower", **look)
            axes.add_patch(Rectangle((x, y), icon_side, icon_side, fill=False, edgecolor=frame, linewidth=1.4))
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        axes.set_title(_TITLES[name], fontsize=8, color=_INK)
    bar = figure.colorbar(scale, ax=panels, orientation="horizontal", ticks=list(_CLUSTERS), aspect=50, pad=0.02)
    bar.set_label(
        "clusters of the task (frame); its domain embedding is the same for all tasks", fontsize=7, color=_INK
    )
    bar.ax.tick_params(labelsize=6)
    bar.minorticks_off()
    return figure


def place_tasks(distances: np.ndarray, *, seed: int) -> np.ndarray:
    """(tasks, 2) positions in the plane for a picture: the t-SNE of least divergence from several random starts."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(distances) - 1) / 3)
    states = np.random.default_rng(seed).integers(1 << 31, size=STARTS)
    # For so few points the exact gradient is faster than the approximate one, and it needs no threads.
    options = {"metric": "precomputed", "init": "random", "method": "exact", "perplexity": perplexity}
    maps = [TSNE(random_state=int(state), **options).fit(distances) for state in states]
    return min(maps, key=lambda fitted: fitted.kl_divergence_).embedding_


def assign_cells(positions: np.ndarray) -> tuple[np.ndarray, float]:
    """The positions, stretched to the unit square, moved to cells of a lattice, one each; and the side of a cell.

    Pushing overlapping icons apart jams in crowded corners; cells cannot overlap, and the assignment of least squared
    distance moves icons no further. A third of the cells stays empty, so that groups stay apart.

    Example:
        >>> cells, side = assign_cells(np.array([[0.0, 0.0], [0.1, 0.0], [1.0, 1.0]]))
        >>> cells.round(2).tolist(), round(side, 2)
        ([[0.17, 0.17], [0.5, 0.17], [0.83, 0.83]], 0.33)
    """
    from scipy.optimize import linear_sum_assignment

    across = math.ceil(math.sqrt(1.5 * len(positions)))
    middles = (np.arange(across) + 0.5) / across
    cells = np.stack(np.meshgrid(middles, middles), axis=2).reshape(-1, 2)
    low, high = positions.min(axis=0), positions.max(axis=0)
    inside = middles[0] + (positions - low) / np.maximum(high - low, 1e-12) * (1 - 1 / across)
    _, chosen = linear_sum_assignment(np.square(inside[:, None] - cells[None, :]).sum(axis=2))
    return cells[chosen], 1 / across


def match_colours(regions: np.ndarray) -> np.ndarray:
    """(tasks, points) the regions, of some tasks the complement, so that similar tasks look similar.

    Which class is called positive means nothing. Tasks are visited along the tree that joins each to the one that it is
    most similar to, and each takes the colours that agree better with those of the one before.

    Example:
        >>> match_colours(np.array([[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], dtype=bool)).astype(int)
        array([[1, 1, 0, 0],
               [1, 1, 0, 0],
               [1, 1, 1, 0]])
    """
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    signs = 2.0 * regions - 1
    agreement = signs @ signs.T / signs.shape[1]
    tree = minimum_spanning_tree(1.001 - np.abs(agreement))  # zero would be no edge at all
    order, parents = breadth_first_order(tree, 0, directed=False)
    is_swapped = np.zeros(len(regions), dtype=bool)
    for task in order[1:]:
        is_swapped[task] = is_swapped[parents[task]] ^ (agreement[task, parents[task]] < 0)
    return regions ^ is_swapped[:, None]


# --- command line ----------------------------------------------------------------------------------------------------


def toy(
    out: Annotated[Path, typer.Option(help="Folder for the figure and tables.")] = Path("task2vec-paper"),
    seeds: Annotated[int, typer.Option(min=1, help="How many times to repeat it with other tasks and features.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="The first seed, which is drawn; the others follow it.")] = 0,
    count: Annotated[int, typer.Option(min=8, help="Tasks per seed.")] = COUNT,
    side: Annotated[int, typer.Option(help="Points along each side of the square.")] = SIDE,
) -> None:
    """64 small tasks on the unit square: what the embedding separates and the domain does not."""
    folder = plots.make_folder(out)
    trials = [run_seed(each, count=count, side=side) for each in range(seed, seed + seeds)]
    rows = [row for trial in trials for row in trial[0]]
    positions = {name: place_tasks(distances, seed=seed) for name, distances in trials[0][1].items()}
    figure = draw_spaces(draw_partitions(count=count, side=side, seed=seed), positions)
    write_rows(rows, folder / "toy_neighbours.csv")
    plots.save_picture(figure, folder / "toy.png")
    for name, probe_rows in split_rows(rows, "probe").items():
        for measure in list(rows[0])[2:]:
            value, stderr = average_seeds(probe_rows, measure)
            print(f"{name:12} {measure:20} {value:.3f}" + ("" if math.isnan(stderr) else f" ± {stderr:.3f}"))
    print(folder / "toy.png")


app = make_app(toy)

if __name__ == "__main__":
    app()
