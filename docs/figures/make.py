"""The figures of docs/explanation and docs/how-to, drawn from the meta-tasks that we measured.

    python docs/figures/make.py [FOLDER]

They need no images, weights or network access, and the same versions of the dependencies draw the same bytes.
"""

import sys
from pathlib import Path

import numpy as np

import task2vec as t2v
from task2vec.plots import COLOURS, GREY, choose_looks, import_figure, save_picture

HERE = Path(__file__).resolve().parent
METATASK = HERE.parents[1] / "experiments" / "metatask" / "experts.safetensors"
PROBE = "resnet34 robust"
# docs/results/metatask describes the datasets of these tasks.
SHOWN = ("cub_Parulidae", "flowers_Asparagales", "clothing10")


def draw_all(folder: Path) -> list[Path]:
    """The paths of all figures, drawn into a folder."""
    metatask = t2v.load_metatask(METATASK)
    drawings = (_draw_embeddings, _draw_norms, _draw_distances, _draw_errors)
    return [draw(metatask, folder) for draw in drawings]


def _open(width: float = 6.4, height: float = 2.9):
    figure = import_figure()(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def _label(axes, across: str, up: str) -> None:
    axes.set_xlabel(across, fontsize=9)
    axes.set_ylabel(up, fontsize=9)


def _draw_embeddings(metatask: t2v.MetaTask, folder: Path) -> Path:
    """Mean embedding of every layer for three tasks, and the prior of one of them."""
    figure, axes = _open()
    embeddings = {embedding.task: embedding for embedding in metatask.embeddings[PROBE]}
    for name, colour in zip(SHOWN, COLOURS, strict=False):
        axes.plot(_by_layer(embeddings[name], embeddings[name].vector), color=colour, lw=1.4, label=name)
    first = embeddings[SHOWN[0]]
    axes.plot(_by_layer(first, first.prior), color=GREY, lw=1, ls="--", label=f"the prior of {SHOWN[0]}")
    axes.set_yscale("log")
    axes.set_xlim(0, len(first.layers) - 1)
    _label(axes, "layer of the probe, from the pixels to the head", "mean over its filters")
    axes.legend(fontsize=7.5, frameon=False)
    return save_picture(figure, folder / "embeddings.png")


def _by_layer(embedding: t2v.Embedding, values: np.ndarray) -> list[float]:
    ends = np.cumsum([layer.filters for layer in embedding.layers])
    return [float(layer.mean()) for layer in np.split(np.asarray(values), ends[:-1])]


def _draw_norms(metatask: t2v.MetaTask, folder: Path) -> Path:
    """Norm against the error of the head, a point for every task, coloured by dataset."""
    figure, axes = _open()
    looks = choose_looks([task.dataset for task in metatask.tasks])
    embeddings = metatask.embeddings[PROBE][: len(metatask.tasks)]
    labelled = set()
    for task, embedding in zip(metatask.tasks, embeddings, strict=True):
        look, error = looks[task.dataset], embedding.provenance["head"]["cv_error"]
        label = None if task.dataset in labelled else task.dataset
        labelled.add(task.dataset)
        axes.scatter(100 * error, embedding.norm(), s=22, color=look.colour, marker=look.mark, label=label, lw=0)
    axes.set_yscale("log")
    _label(axes, "error of the head, cross-validated, in percent", "norm of the embedding")
    axes.legend(fontsize=7, frameon=False, ncols=2)
    return save_picture(figure, folder / "norms.png")


def _draw_distances(metatask: t2v.MetaTask, folder: Path) -> Path:
    """Histograms of the distances between tasks, within a dataset and across datasets."""
    figure, axes = _open(height=2.5)
    taxa = [number for number, task in enumerate(metatask.tasks) if task.family == "taxa"]
    distances = np.asarray(metatask.distances[PROBE])[np.ix_(taxa, taxa)]
    datasets = np.array([metatask.tasks[number].dataset for number in taxa])
    above = np.triu(np.ones_like(distances, dtype=bool), 1)
    same = datasets[:, None] == datasets[None, :]
    bins = np.linspace(0, distances.max(), 41)
    for mask, colour, label in ((same, COLOURS[0], "same dataset"), (~same, COLOURS[1], "different datasets")):
        axes.hist(distances[above & mask], bins, density=True, color=colour, alpha=0.6, label=label)
    axes.set_yticks([])
    _label(axes, "symmetric distance between two tasks", "share of the pairs")
    axes.legend(fontsize=8, frameon=False)
    return save_picture(figure, folder / "distances.png")


def _draw_errors(metatask: t2v.MetaTask, folder: Path) -> Path:
    """All errors with half of the images, sorted by their means; white: the model was fine-tuned on the task."""
    figure, axes = _open(height=4.2)
    half = next(number for number, name in enumerate(metatask.protocols) if "half" in name)
    models = [number for number, model in enumerate(metatask.models) if not model.is_repeat]
    errors = 100 * metatask.errors[:, models, half].mean(axis=-1)
    errors = np.where(metatask.is_candidate[:, models], errors, np.nan)
    errors = errors[np.argsort(np.nanmean(errors, axis=1))][:, np.argsort(np.nanmean(errors, axis=0))]
    picture = axes.imshow(errors, cmap="viridis", aspect="auto", interpolation="nearest")
    axes.spines[["left", "bottom"]].set_visible(False)
    _label(axes, f"{errors.shape[1]} models, the best on average first", f"{errors.shape[0]} tasks, the easiest first")
    figure.colorbar(picture, ax=axes, label="error in percent").ax.tick_params(labelsize=8)
    return save_picture(figure, folder / "errors.png")


if __name__ == "__main__":
    for path in draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE):
        print(path)
