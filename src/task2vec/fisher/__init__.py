"""Probe, head and images become one Fisher value per filter."""

from task2vec.fisher.engine import Engine, check_rows
from task2vec.fisher.estimate import Accumulator, FisherEstimate, Ledger
from task2vec.fisher.noise import NoisyNetwork
from task2vec.fisher.posterior import closed_form, spread_over_filters
from task2vec.fisher.sampling import Draw, draw_pairs, mix_with_uniform
from task2vec.fisher.terms import count_terms, label_probabilities, probabilities, term_shares, term_vectors
from task2vec.fisher.variational import Minimum, mean_loss, minimise

__all__ = [
    "Accumulator",
    "Draw",
    "Engine",
    "FisherEstimate",
    "Ledger",
    "Minimum",
    "NoisyNetwork",
    "check_rows",
    "closed_form",
    "count_terms",
    "draw_pairs",
    "label_probabilities",
    "mean_loss",
    "minimise",
    "mix_with_uniform",
    "probabilities",
    "spread_over_filters",
    "term_shares",
    "term_vectors",
]
