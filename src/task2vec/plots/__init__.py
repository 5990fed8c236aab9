"""Embeddings and distances become figures and a page."""
# ruff: noqa: F401

from task2vec.plots.figures import (
    COLOURS,
    GREY,
    INK,
    MARKS,
    PAPER_WIDTH,
    choose_looks,
    draw_map,
    draw_matrix,
    draw_neighbourhoods,
    draw_norm_error,
    format_legend,
    import_figure,
    make_folder,
    rank_correlation,
    save_picture,
    scale_norms,
    shorten,
    style_axes,
    write_table,
)
from task2vec.plots.layout import TaskMap, curve_area, lay_out, link_tasks, neighbourhood_curve, order_leaves
from task2vec.plots.page import TaskFacts, write_page
from task2vec.storage import write_file
