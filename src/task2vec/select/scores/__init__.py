"""Transferability scores: features and labels become one number, higher for a network that suits the task better."""

from task2vec.select.scores.features import Features
from task2vec.select.scores.gbc import gbc
from task2vec.select.scores.hscore import h_score, h_score_shrunk
from task2vec.select.scores.knn import knn
from task2vec.select.scores.leep import leep
from task2vec.select.scores.logme import logme
from task2vec.select.scores.nce import nce
from task2vec.select.scores.nleep import nleep
from task2vec.select.scores.parc import parc
from task2vec.select.scores.table import SCORES, Score
from task2vec.select.scores.transrate import transrate

__all__ = [
    "SCORES",
    "Features",
    "Score",
    "gbc",
    "h_score",
    "h_score_shrunk",
    "knn",
    "leep",
    "logme",
    "nce",
    "nleep",
    "parc",
    "transrate",
]
