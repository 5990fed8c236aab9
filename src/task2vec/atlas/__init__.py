"""Embeddings and distances become pictures."""

from task2vec.atlas.layout import TaskMap, lay_out
from task2vec.atlas.map import draw_map, draw_map_pair
from task2vec.atlas.matrix import cluster_order, draw_distance_matrix
from task2vec.atlas.neighbourhood import curve_area, draw_neighbourhoods, neighbourhood_curve
from task2vec.atlas.page import TaskFacts, write_page
from task2vec.atlas.scatter import draw_norm_error, rank_correlation
from task2vec.atlas.tree import draw_tree, link_tasks

__all__ = [
    "TaskFacts",
    "TaskMap",
    "cluster_order",
    "curve_area",
    "draw_distance_matrix",
    "draw_map",
    "draw_map_pair",
    "draw_neighbourhoods",
    "draw_norm_error",
    "draw_tree",
    "lay_out",
    "link_tasks",
    "neighbourhood_curve",
    "rank_correlation",
    "write_page",
]
