"""Tasks become experts, and experts on tasks an error matrix."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from task2vec.experts.linear import linear_error
    from task2vec.experts.loading import TrainedExpert, load_expert
    from task2vec.experts.matrix import ErrorMatrix
    from task2vec.experts.measuring import error_matrix
    from task2vec.experts.protocols import ErrorProtocol
    from task2vec.experts.recipes import RECIPES, Recipe, find_recipe
    from task2vec.experts.training import train_expert

__all__ = [
    "RECIPES",
    "ErrorMatrix",
    "ErrorProtocol",
    "Recipe",
    "TrainedExpert",
    "error_matrix",
    "find_recipe",
    "linear_error",
    "load_expert",
    "train_expert",
]

_FILES = {
    "ErrorMatrix": "matrix",
    "ErrorProtocol": "protocols",
    "RECIPES": "recipes",
    "Recipe": "recipes",
    "TrainedExpert": "loading",
    "error_matrix": "measuring",
    "find_recipe": "recipes",
    "linear_error": "linear",
    "load_expert": "loading",
    "train_expert": "training",
}


def __getattr__(name: str) -> object:
    """The public name, from its file."""
    if name not in _FILES:
        raise AttributeError(f"module 'task2vec.experts' has no attribute {name!r}")
    return getattr(import_module(f"task2vec.experts.{_FILES[name]}"), name)
