"""Fine-tune experts on tasks, and measure the test error of every task with every model.

Names are imported on first use. The function `error_matrix` has the name of its file: import it from there, or as
`task2vec.error_matrix`.
"""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from task2vec.lazy import lazy_names

if TYPE_CHECKING:
    from task2vec.experts.checkpoint import (
        TrainedExpert,
        count_gmacs,
        count_parameters,
        load_expert,
        load_trained,
        read_metadata,
    )
    from task2vec.experts.error_matrix import (
        CellPlan,
        features_of_tasks,
        linear_error,
        measure_cells,
        plan_cells,
        predict_cells,
        score_cell,
    )
    from task2vec.experts.protocol import ErrorProtocol, choose_test_half, choose_training, wilson_interval
    from task2vec.experts.recipes import RECIPES, Recipe, find_recipe
    from task2vec.experts.train import ExpertResult, train_expert, train_experts

__getattr__ = lazy_names(__name__)
