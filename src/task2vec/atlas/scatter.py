"""Norm against error: harder tasks have larger embeddings (Achille 2019)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from task2vec.atlas.canvas import import_figure
from task2vec.atlas.labels import word_legend
from task2vec.atlas.palette import INK, NO_GROUP, PAPER_WIDTH, check_groups, choose_looks, style_axes
from task2vec.atlas.table import save_drawing
from task2vec.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's rank correlation, ties with their mean rank; None where one side does not vary.

    Example:
        >>> rank_correlation([1, 2, 3], [10, 100, 1000]), rank_correlation([1, 2, 3], [5, 5, 5])
        (1.0, None)
    """
    from scipy.stats import rankdata

    ranks = [rankdata(side) - np.mean(rankdata(side)) for side in (x, y)]
    scale = float(np.sqrt(np.square(ranks[0]).sum() * np.square(ranks[1]).sum()))
    return None if scale == 0 else float(np.clip(ranks[0] @ ranks[1] / scale, -1, 1))


def draw_norm_error(
    norms: Sequence[float],
    errors: Sequence[float],
    *,
    names: Sequence[str],
    out: str | Path,
    groups: Sequence[str] | None = None,
) -> list[Path]:
    """Every task by its norm and its error: `out`.png, `out`.pdf, and the numbers in `out`.csv.

    Args:
        norms: of the embeddings; positive, drawn on a logarithmic axis.
        errors: between 0 and 1.
        names: of the tasks, for the table.
        out: path without extension.
        groups: one per task, each drawn in its own colour.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = draw_norm_error([1, 20], [0.1, 0.4], names=["a", "b"], out=f"{folder}/norms")
        ...     [file.name for file in files]
        ['norms.png', 'norms.pdf', 'norms.csv']
    """
    norm, error = _check(norms, errors, names)
    groups = check_groups(groups, len(norm))
    figure = import_figure()(figsize=(0.75 * PAPER_WIDTH, 3.4), dpi=300, layout="constrained")
    axes = figure.subplots()
    for group, look in choose_looks(groups).items():
        chosen = np.array([one == group for one in groups])
        label = f"{word_legend(group)} ({_word(norm[chosen], error[chosen])})" if group != NO_GROUP else None
        axes.scatter(
            norm[chosen], 100 * error[chosen], s=22, marker=look.mark, color=look.colour, alpha=0.85,
            edgecolors="white", linewidths=0.4, label=label,
        )  # fmt: skip
    scale_norms(axes, "x")
    style_axes(axes, "norm of the embedding (L1 of the Fisher)", "error (%)")
    axes.set_title(f"Spearman's {_word(norm, error)}", fontsize=8, color=INK, loc="left")
    if set(groups) != {NO_GROUP}:
        figure.legend(loc="outside right upper", fontsize=6.5, frameon=False, handletextpad=0.3, borderpad=0)
    rows = zip(names, groups, norm, error, strict=True)
    return save_drawing(figure, out, header=["task", "group", "norm", "error"], rows=rows)


def scale_norms(axes: "Axes", which: str) -> None:
    """A logarithmic "x" or "y" axis: powers of ten, or plain numbers where the norms span less than two of them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _word(norm: np.ndarray, error: np.ndarray) -> str:
    rho = rank_correlation(norm, error)
    told = f"{len(norm)} {'task' if len(norm) == 1 else 'tasks'}"
    return told if rho is None else f"ρ = {rho:.2f}, {told}"


def _check(norms: Sequence[float], errors: Sequence[float], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    norm, error = np.asarray(norms, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    if norm.ndim != 1 or not len(norm) or norm.shape != error.shape or len(norm) != len(names):
        raise UsageError(
            f"{norm.size} norms, {error.size} errors and {len(names)} names do not belong together: every task needs "
            "one of each. Pass three sequences of one length."
        )
    if not np.isfinite(error).all() or not np.isfinite(norm).all() or (norm <= 0).any():
        raise UsageError(
            "a norm that is not positive, or an error that is no number, has no place on the axes. Leave out the tasks "
            "without a head or an embedding."
        )
    return norm, error
