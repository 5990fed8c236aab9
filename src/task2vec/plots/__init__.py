"""Figures and a self-contained page of embeddings and distances."""
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
    format_legend,
    import_figure,
    make_folder,
    save_figure,
    save_picture,
    shorten,
)
from task2vec.plots.layout import TaskMap, lay_out, link_tasks, order_leaves
from task2vec.plots.page import write_page
from task2vec.storage import write_file, write_rows
