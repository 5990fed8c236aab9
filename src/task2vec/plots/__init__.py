"""Embeddings and distances become figures and a page."""
# ruff: noqa: F401

from task2vec.plots.figures import (
    draw_map,
    draw_matrix,
    draw_neighbourhoods,
    draw_norm_error,
    rank_correlation,
)
from task2vec.plots.layout import TaskMap, curve_area, lay_out, link_tasks, neighbourhood_curve, order_leaves
from task2vec.plots.page import TaskFacts, write_page
from task2vec.plots.style import (
    COLOURS,
    GREY,
    INK,
    MARKS,
    PALE,
    PAPER_WIDTH,
    choose_looks,
    format_legend,
    import_figure,
    make_folder,
    save_picture,
    scale_norms,
    shorten,
    style_axes,
    write_file,
    write_table,
)
