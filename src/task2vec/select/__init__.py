"""Model selection: which network suits a task, predicted from the errors of others on known tasks.

Names are imported on first use: predictions from known errors need no torch, scores of features do. The functions
`recommend` and `evaluate` have the names of their files: import them from there, or as `task2vec.recommend`.
"""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec.select.combined import fit_combined
    from task2vec.select.evaluate import Evaluation, compare_paired, draw_weights, find_interval, unbiased_optimum
    from task2vec.select.evidence import find_embedding, image_size, metatask_from_csv, metatask_from_library
    from task2vec.select.model_space import fit_model_space
    from task2vec.select.recommend import choose_space, find_metatask, learn_bundled_scales
    from task2vec.select.report import Recommendation, Row
    from task2vec.select.scores import SCORES, SOURCE_SCORES, score_features
    from task2vec.select.strategies import SCORE_NAMES, STRATEGIES, Prediction, Strategy, find_strategy, fit_effects
    from task2vec.select.suggestions import Suggestion, suggest_models
    from task2vec.select.zoo import CELL_COLUMNS, MODEL_COLUMNS, UNKNOWN, VARIANCES, Posterior, Variances, Zoo, read_zoo

__getattr__ = lazy_names(__name__)
