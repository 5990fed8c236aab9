"""Probe, head and images become one Fisher value per filter."""

from task2vec.fisher.engine import Engine, check_rows
from task2vec.fisher.estimate import Accumulator, FisherEstimate
from task2vec.fisher.sampling import Draw, draw_pairs, mix_with_uniform
from task2vec.fisher.terms import count_terms, label_probabilities, probabilities, term_shares, term_vectors

__all__ = [
    "Accumulator",
    "Draw",
    "Engine",
    "FisherEstimate",
    "check_rows",
    "count_terms",
    "draw_pairs",
    "label_probabilities",
    "mix_with_uniform",
    "probabilities",
    "term_shares",
    "term_vectors",
]
